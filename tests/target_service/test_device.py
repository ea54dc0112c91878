"""A device that is not there, or cannot serve what the settings say, is refused with the reason."""

import pytest
import torch

from target_service.config import TargetConfig
from target_service.device import check_settings, device_of

BF16 = torch.bfloat16


@pytest.fixture
def found(monkeypatch):
    """Let torch find so many CUDA devices."""
    return lambda count: monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("setting", "count", "device"),
    [
        ("auto", 0, "cpu"),
        ("auto", 2, "cuda:0"),
        ("cpu", 2, "cpu"),
        ("cuda", 1, "cuda:0"),
        ("cuda:1", 2, "cuda:1"),
    ],
)
def test_a_setting_names_a_device(found, setting, count, device):
    found(count)
    assert str(device_of(setting)) == device


@pytest.mark.parametrize(("setting", "count"), [("cuda", 0), ("cuda:0", 0), ("cuda:2", 2)])
def test_a_device_there_is_not_is_refused_with_what_there_is(found, setting, count):
    found(count)
    with pytest.raises(ValueError, match=f"'{setting}', but torch finds {count} CUDA devices"):
        device_of(setting)


@pytest.mark.parametrize("setting", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "CUDA", ""])
def test_another_setting_is_refused(found, setting):
    found(4)
    with pytest.raises(ValueError, match="auto, cpu, cuda or cuda:N, got"):
        device_of(setting)


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
