"""A device that is not there is refused with what there is."""

import pytest
import torch

from kernels.device import device_of


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
