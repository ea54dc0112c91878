"""Slices of a layer are layers, and what all of them add to the residual stream is what it adds."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from kernels.attention import lay_out_rows
from kernels.decoder import DecoderLayer, DecoderStack, decode_layers
from kernels.kv_pages import KvPages, new_pages, new_shared_pages
from kernels.linear import Linear
from kernels.quantized_linear import Int4Linear, Int8Linear
from target_service.models import build_model, model_config
from target_service.models.target_model import TargetModel
from target_service.tensor_parallel import Part, slice_layer, slice_model
from target_service.weights import Weights, read_config
from tests.tiny_deepseek import nested, quantized, write_checkpoint, write_tiny_deepseek
from tests.tiny_llama import write_tiny_llama

ROWS = 5
LLAMA = {"layers": 1, "hidden": 64, "heads": 8, "kv_heads": 4, "vocab": 260}


def llama(path, weight_format="dense", **config):
    return load(write_tiny_llama(path, **(LLAMA | config)), weight_format)


def deepseek(path, weight_format="dense", **config):
    return load(write_tiny_deepseek(path, num_hidden_layers=2, **config), weight_format)


def kimi(path):
    """Experts as Kimi keeps them: words and scales of the checkpoint."""
    plain = write_tiny_deepseek(path / "plain", num_hidden_layers=2, moe_intermediate_size=128)
    stored = quantized(read_config(plain), load_file(plain / "model.safetensors"))
    write_checkpoint(path / "packed", *nested(*stored))
    return load(path / "packed")


def load(path, weight_format="dense") -> TargetModel:
    return build_model(model_config(read_config(path)), Weights(path), 256, weight_format)


MODELS: dict[str, Callable[..., TargetModel]] = {
    "llama": llama,
    "norms and biases": lambda path: llama(
        path, architecture="Qwen3ForCausalLM", attention_bias=True, mlp_bias=True
    ),
    "int4": lambda path: llama(path, "int4", hidden=128),
    "latent": deepseek,
    "latent with biases": lambda path: deepseek(path, attention_bias=True, q_lora_rank=None),
    "two shared experts": lambda path: deepseek(path, n_shared_experts=2),
    "latent int4": lambda path: deepseek(
        path, "int4", moe_intermediate_size=128, intermediate_size=128, v_head_dim=32
    ),
    "kimi": kimi,
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory) -> TargetModel:
    return MODELS[request.param](tmp_path_factory.mktemp("model"))


class Nothing:
    """A linear layer that adds nothing."""

    def __init__(self, outputs: int, like: torch.Tensor) -> None:
        self.outputs, self.like = outputs, like

    def __call__(self, x_RK: torch.Tensor) -> torch.Tensor:
        return x_RK.new_zeros(len(x_RK), self.outputs)


def only(kind: str, layer: DecoderLayer) -> DecoderLayer:
    """The layer with nothing but its attention, or its feed-forward layer."""
    nothing = Nothing(len(layer.post_norm_H), layer.gate.like)
    if kind == "attention":
        return replace(layer, down=nothing, experts=None)
    return replace(layer, o=nothing)


def added(model: TargetModel, layer: DecoderLayer) -> torch.Tensor:
    """What a layer adds to the residual stream."""
    h_RH = torch.randn(ROWS, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    layout = lay_out_rows(torch.arange(1), 0, range(-1, ROWS - 1))
    stack = DecoderStack([layer], model.stack.angles)
    return decode_layers(h_RH, stack, [layout], pages_of(layer))[0] - h_RH


def pages_of(layer: DecoderLayer) -> KvPages:
    if layer.v is layer.k:
        return new_shared_pages(1, 1, 1, layer.head_dim, torch.empty(0))
    kv_heads = layer.k.num_outputs // layer.head_dim
    return new_pages(1, 1, kv_heads, layer.head_dim, torch.empty(0))


@pytest.mark.parametrize("kind", ["attention", "feed-forward"])
@pytest.mark.parametrize("count", [2, 4])
def test_what_slices_add_is_what_the_layer_adds(model, kind, count):
    """As close as sums of float32 are; and no slice adds nothing."""
    for layer in model.stack.layers:
        whole_RH = added(model, only(kind, layer))
        slices = [only(kind, slice_layer(layer, Part(rank, count))) for rank in range(count)]
        parts = [added(model, one) for one in slices]
        torch.testing.assert_close(torch.stack(parts).sum(0), whole_RH)
        with pytest.raises(AssertionError):
            torch.testing.assert_close(torch.stack(parts[1:]).sum(0), whole_RH)


def test_a_sum_has_its_bias_once(tmp_path):
    layer = llama(tmp_path, architecture="Qwen3ForCausalLM", mlp_bias=True).stack.layers[0]
    biases = [slice_layer(layer, Part(rank, 4)).down.bias_N for rank in range(4)]
    assert torch.equal(biases[0], layer.down.bias_N)
    assert biases[1:] == [None] * 3


def test_slices_of_8_bits_are_those_of_the_weight():
    """Activations of a slice are quantized by themselves: sums are near, weights are the same."""
    layer = Int8Linear(torch.randn(6, 64), torch.randn(6))
    halves = [layer.of_inputs(span, None) for span in (slice(0, 32), slice(32, 64))]
    assert torch.equal(torch.cat([half.q_NK for half in halves], 1), layer.q_NK)
    assert all(torch.equal(half.scale_N1, layer.scale_N1) for half in halves)
    x_RK = torch.randn(3, 64)
    outputs = [layer.of_outputs(span)(x_RK) for span in (slice(0, 2), slice(2, 6))]
    assert torch.equal(torch.cat(outputs, 1), layer(x_RK))


@pytest.mark.parametrize("kind", ["llama", "kimi"])
def test_slices_lie_where_the_weights_lie(kind, tmp_path):
    """In files that are mapped: what a rank does not hold it never reads."""
    layer = MODELS[kind](tmp_path).stack.layers[-1]
    part = slice_layer(layer, Part(1, 2))
    pairs = [(part.down, layer.down), (part.gate, layer.gate)]
    if layer.experts is not None:
        (mine, whole) = (one.experts[3] for one in (part.experts, layer.experts))
        pairs += [(mine.down, whole.down)]
        pairs += zip(mine.gate_up.parts, whole.gate_up.parts, strict=True)
    for mine, whole in pairs:
        assert memory_of(mine) == memory_of(whole)


def memory_of(linear: Linear) -> int:
    tensor = linear.words_NX if isinstance(linear, Int4Linear) else linear.weight_NK
    return tensor.untyped_storage().data_ptr()


def test_a_latent_key_and_a_router_are_whole(tmp_path):
    layer = deepseek(tmp_path).stack.layers[-1]
    part = slice_layer(layer, Part(1, 2))
    assert part.k is part.v is layer.k
    assert part.experts.router is layer.experts.router
    assert len(part.experts.experts) == len(layer.experts.experts)


@pytest.mark.parametrize(
    ("make", "count", "reason"),
    [
        (llama, 3, "tensor_parallel is 3, but 8 attention heads are not so many equal parts"),
        (llama, 8, "tensor_parallel is 8, but 4 key-value heads are not"),
        (
            lambda path: llama(path, vocab=262),
            4,
            "tensor_parallel is 4, but 262 tokens of the vocabulary are not",
        ),
        (deepseek, 8, "tensor_parallel is 8, but 4 attention heads are not"),
        (
            lambda path: llama(path, intermediate_size=130),
            4,
            "tensor_parallel is 4, but 130 places of a feed-forward layer are not",
        ),
        (
            lambda path: deepseek(path, moe_intermediate_size=34),
            4,
            "tensor_parallel is 4, but 34 places of a feed-forward layer are not",
        ),
        (
            lambda path: llama(path, "int4", intermediate_size=96),
            2,
            "tensor_parallel is 2, but the width is 96: inputs 0 to 48 cut int4 weights in groups",
        ),
    ],
)
def test_what_is_not_so_many_equal_parts_is_refused_with_both_numbers(
    make, count, reason, tmp_path
):
    model = make(tmp_path)
    with pytest.raises(ValueError, match=reason):
        slice_model(model, Part(0, count))


def test_a_sliced_model_leaves_the_model_as_it_was(tmp_path):
    model = llama(tmp_path)
    slices = [slice_model(model, Part(rank, 4)) for rank in range(4)]
    for of in (lambda m: m.stack.layers[0].q, lambda m: m.head.linear):
        assert torch.equal(torch.cat([of(m).weight_NK for m in slices]), of(model).weight_NK)
