"""Several processes train one drafter: the one that their batches together would have made."""

import subprocess
import sys

import torch
from safetensors.torch import load_file

from tests.training.test_trainer import recorded, target_dir  # noqa: F401 (fixtures)

TRAIN = ("--tokens", "1500", "--batch-tokens", "100", "--draft-vocab", "40", "--max-len", "64")


def train(launcher, recording, target, out):
    command = [sys.executable, "-m", *launcher, "slipstream", "train", str(recording)]
    command += ["--out", str(out), "--model", str(target), *TRAIN]
    subprocess.run(command, check=True, timeout=240)
    return load_file(out / "drafter" / "model.safetensors")


def test_two_processes_end_together_in_one_drafter(recorded, target_dir, tmp_path):  # noqa: F811
    """Twice gives the same bits, and not those of one process: the steps are of two batches."""
    two = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    first = train(two, recorded, target_dir, tmp_path / "1")
    again = train(two, recorded, target_dir, tmp_path / "2")
    alone = train((), recorded, target_dir, tmp_path / "3")
    assert first.keys() == alone.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], alone["fc.weight"])
    lines = (tmp_path / "1" / "training.csv").read_text().splitlines()
    other = (tmp_path / "3" / "training.csv").read_text().splitlines()
    steps = [int(float(text[-1].split(",")[0])) for text in (lines, other)]
    assert 2 * steps[0] - steps[1] in (0, 1, 2)
