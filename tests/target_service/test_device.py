"""What a GPU cannot serve is refused with the reason."""

import pytest
import torch

from target_service.config import TargetConfig
from target_service.device import check_parallel, check_settings, devices_of, devices_to_text
from target_service.models import build_model, model_config
from target_service.weights import Weights, read_config
from tests.tiny_llama import write_tiny_llama

BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "dtype", "reason"),
    [
        ({"weights": "int8"}, BF16, "weights is 'int8'.*--weights bf16"),
        ({"weights": "int4"}, BF16, "weights is 'int4'"),
        ({}, torch.float32, "the model is float32.*--weights bf16 converts it"),
        ({"kernels": "native"}, BF16, "kernels is 'native', which are for CPUs"),
        ({"kernels": "reference"}, BF16, "kernels is 'reference'"),
        ({"allow_forced_acceptance": True}, BF16, "allow_forced_acceptance is set"),
    ],
)
def test_what_a_gpu_cannot_serve_is_refused_with_the_reason(tiny_dir, settings, dtype, reason):
    with pytest.raises(ValueError, match=f"on a GPU {reason}.*--device cpu"):
        check_settings(TargetConfig(model=tiny_dir, **settings), dtype)


def test_a_dense_bfloat16_model_is_served(tiny_dir):
    check_settings(TargetConfig(model=tiny_dir, weights="bf16"), BF16)


@pytest.fixture
def four_gpus(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


def test_layers_are_shared_by_the_devices_from_the_named_one_on(four_gpus):
    devices = devices_of("cuda:1", 3)
    assert devices == tuple(torch.device("cuda", number) for number in (1, 2, 3))
    assert devices_to_text(devices[0], 3) == "cuda:1-3"
    assert devices_to_text(*devices_of("cuda", 1), 1) == "cuda:0"
    assert devices_of("cpu", 1) == (torch.device("cpu"),)


@pytest.mark.parametrize(("device", "count"), [("cpu", 2), ("cuda", 8), ("cuda:3", 2)])
def test_more_devices_than_there_are_are_refused_with_both_numbers(four_gpus, device, count):
    reason = f"tensor_parallel is {count} and device '{device}', but torch finds 4 CUDA devices"
    with pytest.raises(ValueError, match=reason):
        devices_of(device, count)


class TestSharedModels:
    def check(self, path, count, dtype=None):
        config = TargetConfig(model=path, tensor_parallel=count)
        weights = Weights(path, dtype)
        check_parallel(config, build_model(model_config(read_config(path)), weights, 64))

    def test_a_model_of_equal_parts_is_served(self, tmp_path):
        self.check(write_tiny_llama(tmp_path, layers=1, vocab=260), 2)

    def test_heads_are_refused_with_both_numbers(self, tiny_dir):
        self.check(tiny_dir, 1)
        with pytest.raises(ValueError, match="tensor_parallel is 3, but 4 attention heads are"):
            self.check(tiny_dir, 3)

    def test_a_checkpoint_that_every_rank_would_convert_is_refused(self, tiny_dir):
        with pytest.raises(ValueError, match=r"torch.float32 checkpoint to torch.bfloat16"):
            self.check(tiny_dir, 2, BF16)
