"""A drafter that no GPU runs says why, and runs on the CPU unless a GPU was asked for by name."""

import pytest
import torch

from draft_service.drafters.eagle3 import Eagle3Drafter
from draft_service.loader import DrafterRefusedError, DrafterSpec, Loader
from draft_service.placement import Placement
from protos import speculation_pb2 as pb
from protos.pairing import Pairing
from tests.draft_service.drafters.played_session import (
    HIDDEN,
    LAYERS,
    TAP_LAYERS,
    VOCAB,
    target_side,
)
from tests.tiny_models import LATENT, write_tiny_eagle3

pytest.importorskip("triton")
GPU = torch.device("cuda", 0)
TARGET = Pairing(HIDDEN, VOCAB, TAP_LAYERS, tap_dtype=pb.DTYPE_F32)
UNFIT = {
    "latent attention": ("latent attention", LATENT | {"dtype": torch.bfloat16}),
    "float32": ("fc.weight has dtype torch.float32", {"head_dim": 16}),
    "small heads": ("head_dim is 8", {"dtype": torch.bfloat16}),
    "large heads": ("head_dim is 288", {"dtype": torch.bfloat16, "head_dim": 288}),
}
every_unfit_one = pytest.mark.parametrize(("reason", "config"), UNFIT.values(), ids=UNFIT)


def loaded(path, placement):
    loader = Loader(target_side(), TARGET, 128, placement)
    return loader.load(DrafterSpec("eagle", path))


@pytest.fixture
def write(tmp_path):
    sizes = {"hidden": HIDDEN, "vocab": VOCAB, "target_layers": LAYERS}
    return lambda config: write_tiny_eagle3(tmp_path, **sizes, **config)


@every_unfit_one
def test_what_no_gpu_runs_is_refused_where_one_was_asked_for(write, reason, config):
    with pytest.raises(DrafterRefusedError, match=f"{reason}.*: --device cpu runs it"):
        loaded(write(config), Placement(GPU))


@every_unfit_one
def test_it_runs_on_the_cpu_where_the_device_was_left_open(write, reason, config):
    drafter = loaded(write(config), Placement(GPU, may_fall_back=True))
    assert isinstance(drafter, Eagle3Drafter)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("may_fall_back", [True, False])
def test_a_gpu_that_is_not_there_is_no_reason_to_be_slow_without_a_word(write, may_fall_back):
    path = write({"dtype": torch.bfloat16, "head_dim": 16})
    with pytest.raises(DrafterRefusedError, match="device is 'cuda:0', but torch finds no CUDA"):
        loaded(path, Placement(GPU, may_fall_back=may_fall_back))
