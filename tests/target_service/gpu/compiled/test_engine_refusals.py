"""What kernels for GPUs cannot do is refused when the engine is made."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from kernels.native import Selection
from target_service.__main__ import load
from target_service.config import TargetConfig
from target_service.device_engine import DeviceEngine, Load, new_memory
from target_service.device_steps import Place
from target_service.weights import read_config
from tests.target_service.gpu.tiny_steps import CPU, KINDS, TAPS
from tests.target_service.played_session import load_model
from tests.tiny_deepseek import quantized, write_checkpoint
from tests.tiny_llama import write_tiny_llama

LOAD = Load(rows=4, sessions=1, session_slots=64)


def test_a_cpu_runs_them_only_for_tests(models):
    with pytest.raises(ValueError, match="device is 'cpu': kernels for GPUs run there only under"):
        DeviceEngine(models["llama"], TAPS, 1, LOAD, Place(CPU))


def test_a_device_that_is_not_there(models):
    if torch.cuda.is_available():
        pytest.skip("torch finds a CUDA device")
    with pytest.raises(ValueError, match="device is 'cuda:3', but torch finds no CUDA device"):
        DeviceEngine(models["llama"], TAPS, 1, LOAD, Place(torch.device("cuda", 3)))


def test_weights_of_another_dtype(directories):
    model = load_model(directories["llama"], torch.float32)
    with pytest.raises(ValueError, match=r"bfloat16 weights, not torch\.float32"):
        new_memory(model, TAPS, 1, LOAD, CPU)


@pytest.mark.parametrize("head_dim", [8, 288])
def test_heads_that_attention_has_no_tiles_for(tmp_path, head_dim):
    sizes = KINDS["llama"] | {"layers": 1, "head_dim": head_dim}
    model = load_model(write_tiny_llama(tmp_path, **sizes))
    with pytest.raises(
        ValueError, match=f"head_dim is {head_dim}, kernels for GPUs take 16 to 256"
    ):
        new_memory(model, TAPS, 1, LOAD, CPU)


def test_quantized_weights(directories):
    config = TargetConfig(model=directories["llama"], weights="int8", kv_tokens=4096)
    model, _ = load(config, Selection("reference"))
    with pytest.raises(ValueError, match="dense weights, not Int8Linear"):
        new_memory(model, TAPS, 1, LOAD, CPU)


def test_int4_of_other_layers_than_experts_is_refused_with_the_layer(directories, tmp_path):
    path = directories["all switches"]
    stored = read_config(path), load_file(path / "model.safetensors")
    write_checkpoint(tmp_path, *quantized(*stored, ignored=("re:.*self_attn.*",)))
    with pytest.raises(ValueError, match=r"layer 0: .* dense weights, not Int4Linear"):
        new_memory(load_model(tmp_path), TAPS, 1, LOAD, CPU)


def test_room_is_made_for_the_lists_of_as_many_sessions_as_a_step_can_have(models):
    """A list has at most the vocabulary."""
    limits = new_memory(models["llama"], TAPS, 1, LOAD, CPU).work.limits
    assert limits.entries == models["llama"].config.vocab_size
    many = new_memory(models["llama"], TAPS, 1, replace(LOAD, sessions=9), CPU).work.limits
    assert many.entries == 4 * limits.entries


def test_a_tied_head_is_the_embedding(models):
    model = new_memory(models["norms and biases"], TAPS, 1, LOAD, CPU).model
    assert model.head.weight_NK.data_ptr() == model.embedding_VH.data_ptr()
