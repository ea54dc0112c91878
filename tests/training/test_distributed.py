"""Several processes train one drafter: the one that their batches together would have made."""

import subprocess
import sys

import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from slipstream.__main__ import app
from tests.training.test_trainer import recorded, target_dir  # noqa: F401 (fixtures)

TRAIN = ("--tokens", "1500", "--batch-tokens", "100", "--draft-vocab", "40", "--max-len", "64")


def arguments(recording, target, out):
    return ["train", str(recording), "--out", str(out), "--model", str(target), *TRAIN]


def train_alone(*where):
    """As one process does it: this one."""
    CliRunner().invoke(app, arguments(*where), catch_exceptions=False)


def train_together(*where):
    two = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "slipstream")
    subprocess.run([sys.executable, "-m", *two, *arguments(*where)], check=True, timeout=240)


def test_two_processes_end_together_in_one_drafter(recorded, target_dir, tmp_path):  # noqa: F811
    """Twice gives the same bits, and not those of one process: the steps are of two batches."""
    drafters = []
    for number, train in enumerate((train_together, train_together, train_alone), 1):
        train(recorded, target_dir, tmp_path / str(number))
        drafters.append(load_file(tmp_path / str(number) / "drafter" / "model.safetensors"))
    first, again, alone = drafters
    assert first.keys() == alone.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["fc.weight"], alone["fc.weight"])
    lines = (tmp_path / "1" / "training.csv").read_text().splitlines()
    other = (tmp_path / "3" / "training.csv").read_text().splitlines()
    steps = [int(float(text[-1].split(",")[0])) for text in (lines, other)]
    assert 2 * steps[0] - steps[1] in (0, 1, 2)
