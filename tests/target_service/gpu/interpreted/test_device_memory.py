"""What is said of a device's memory is what its tensors have, each byte once."""

from dataclasses import dataclass

import pytest
import torch

from target_service import device_engine
from target_service.device_engine import Load, new_memory
from target_service.device_memory import num_bytes
from tests.target_service.gpu.tiny_steps import CPU, TAPS

LOAD = Load(rows=4, sessions=1, session_slots=64)


@dataclass
class Part:
    tensor: torch.Tensor
    name: str = "no tensor"


def test_bytes_of_shared_memory_are_counted_once():
    x = torch.zeros(10, dtype=torch.int32)
    assert num_bytes((x, (Part(x[2:]), None, 7)), torch.zeros(3)) == 40 + 12


@pytest.mark.parametrize(("kind", "numbers"), [("llama", 2 * 2 * 16), ("kimi", 2 * (64 + 16))])
def test_a_slot_has_keys_and_values_or_latent_keys_alone(models, kind, numbers):
    found = new_memory(models[kind], TAPS, 3, LOAD, CPU).num_bytes()
    assert found.pages == 3 * 64 * numbers * 2


def test_more_pages_take_no_more_of_anything_else_and_experts_are_weights(models):
    few, many = (new_memory(models["kimi"], TAPS, pages, LOAD, CPU).num_bytes() for pages in (1, 9))
    assert (few.weights, few.buffers) == (many.weights, many.buffers)
    # Six experts of 3 x 64 x 32 weights in 4 bits, padded to 256 inputs.
    assert few.weights > 6 * (2 * 32 + 64) * 256 // 2
    assert few.buffers < few.weights


def test_weights_without_room_are_refused_as_such(models, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr(device_engine.DeviceModel, "of", full)
    with pytest.raises(ValueError, match="device is 'cpu', which has no memory for all weights"):
        new_memory(models["kimi"], TAPS, 1, LOAD, CPU)
