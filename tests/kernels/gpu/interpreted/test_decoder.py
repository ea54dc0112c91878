"""Decoder layers against those of kernels/decoder.py: as near to float32 as they are.

Legend: R rows, H hidden, T taps.
"""

from dataclasses import replace

import pytest
import torch

from kernels.attention import lay_out_rows
from kernels.decoder import DecoderStack
from kernels.decoder import decode_layers as on_cpu
from kernels.elementwise import rms_norm
from kernels.gpu.attention_plan import plan_attention
from kernels.gpu.attention_shape import AttentionShape, StepRows, Tiling, new_plan
from kernels.gpu.decoder import Places, decode_layers, new_layer_buffers
from kernels.gpu.pages import new_pages
from kernels.gpu.stack import Stack, Weight
from kernels.kv_pages import new_pages as new_cpu_pages
from kernels.linear import DenseLinear
from kernels.quantized_linear import new_linear
from tests.kernels.gpu.proofs.capture_guard import CaptureGuard
from tests.kernels.tiny_decoder import KINDS, Inputs, chain, in_float32, normal, random_stack

ROWS, CPU = 5, torch.device("cpu")
TILING = Tiling(lines=16, warps=4, stages=2, programs=2)


def places(stack: Stack, bucket: int) -> Places:
    """A text of some rows, and padding."""
    positions_R = torch.zeros(bucket, dtype=torch.int32)
    positions_R[:ROWS] = torch.arange(ROWS)
    slots_R = torch.full_like(positions_R, -1)
    slots_R[:ROWS] = torch.arange(ROWS)
    shape = AttentionShape(
        TILING, stack.heads, stack.kv_heads, stack.head_dim, stack.head_dim, len(stack.layers), 1, 1
    )
    rows = StepRows(
        torch.zeros_like(positions_R),
        positions_R,
        torch.zeros(bucket, dtype=torch.int64),
        torch.tensor([0, ROWS], dtype=torch.int32),
        torch.tensor([ROWS], dtype=torch.int32),
        torch.zeros(1, 1, dtype=torch.int32),
    )
    plan = new_plan(shape, bucket, shape.most_tiles(bucket) + 4, CPU)
    plan_attention(rows, plan)
    return Places(positions_R, slots_R, rows, plan)


def padded(x: torch.Tensor, bucket: int) -> torch.Tensor:
    out = torch.full((bucket, *x.shape[1:]), torch.nan, dtype=x.dtype)
    out[: len(x)] = x
    return out


def on_device(
    layers: DecoderStack, inputs: Inputs, norm_H: torch.Tensor, bucket: int
) -> torch.Tensor:
    """Return taps of all layers and the last norm, [T, R, H]. Rows of padding are NaN."""
    stack = Stack.of(layers.layers, layers.angles)
    h_RH, at = padded(inputs.h_RH, bucket), places(stack, bucket)
    x_RX = None if inputs.x_RX is None else padded(inputs.x_RX, bucket)
    taps_TRH = torch.zeros(len(stack.layers) + 1, *h_RH.shape, dtype=h_RH.dtype)
    pages = new_pages(1, len(stack.layers), stack.kv_heads, stack.head_dim, CPU)
    buffers, taps = new_layer_buffers(stack, bucket, CPU), dict(enumerate(taps_TRH))
    with CaptureGuard(most_bytes=0):
        normed_RH = decode_layers(h_RH, stack, at, pages, buffers, norm_H, taps, x_RX)
    assert torch.equal(padded(h_RH[:ROWS], ROWS), taps_TRH[-1, :ROWS])
    return torch.cat([taps_TRH, normed_RH[None]])[:, :ROWS]


def expected(stack: DecoderStack, inputs: Inputs, norm_H: torch.Tensor) -> torch.Tensor:
    """The same of kernels/decoder.py, in the dtype of the inputs."""
    layer = stack.layers[0]
    kv_heads = layer.k.weight_NK.shape[0] // layer.head_dim
    kv = new_cpu_pages(1, len(stack.layers), kv_heads, layer.head_dim, inputs.h_RH)
    layout = lay_out_rows(torch.tensor([0]), 0, chain(ROWS))
    taps = range(len(stack.layers) + 1)
    h_RH, taps_RX = on_cpu(inputs.h_RH, stack, [layout], kv, taps, inputs.x_RX)
    taps_TRH = taps_RX.unflatten(1, (len(taps), -1)).transpose(0, 1)
    return torch.cat([taps_TRH, rms_norm(h_RH, norm_H.to(h_RH.dtype), layer.eps)[None]])


def errors(kind: str, stack: DecoderStack) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how far both are from float32, of each tap; the device runs `stack`."""
    original = random_stack(KINDS[kind])
    inputs, norm_H = Inputs.random(KINDS[kind], ROWS), 1 + normal(KINDS[kind].hidden, seed=9) / 4
    exact = expected(in_float32(original), inputs.to(torch.float32), norm_H)
    found = on_device(stack, inputs, norm_H, 7), expected(original, inputs, norm_H)
    of_device, of_cpu = ((one - exact).square().mean((1, 2)).sqrt() for one in found)
    return of_device, of_cpu


@pytest.mark.parametrize("kind", ["qwen3", "all_biases", "eagle3"])
def test_layers_are_as_near_to_float32_as_those_of_the_cpu(kind):
    of_device, of_cpu = errors(kind, random_stack(KINDS[kind]))
    assert of_device[0] == of_cpu[0] == 0
    assert (of_device[1:] < 1.5 * of_cpu[1:]).all()


def test_a_norm_that_is_left_out_is_seen():
    stack = random_stack(KINDS["eagle3"])
    layers = [replace(layer, k_norm_D=None) for layer in stack.layers]
    of_device, of_cpu = errors("eagle3", DecoderStack(layers, stack.angles))
    assert of_device[1] > 4 * of_cpu[1]


def test_a_row_does_not_feel_the_bucket():
    stack, norm_H = random_stack(KINDS["eagle3"]), torch.ones(48, dtype=torch.bfloat16)
    inputs = Inputs.random(KINDS["eagle3"], ROWS)
    a, b = (on_device(stack, inputs, norm_H, bucket) for bucket in (ROWS, 17))
    assert torch.equal(a, b)


def test_weights_side_by_side_have_zeros_where_one_has_no_bias():
    with_bias = DenseLinear(normal(3, 8, seed=1), normal(3, seed=2))
    without = DenseLinear(normal(2, 8, seed=3))
    joined = Weight.of(without, with_bias)
    assert joined.bias_N is not None
    assert torch.equal(joined.bias_N[2:], with_bias.bias_N)
    assert not joined.bias_N[:2].any()
    assert torch.equal(joined.weight_NK[2:], with_bias.weight_NK)
    assert Weight.of(without).bias_N is None


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (new_linear("int8", normal(4, 8, seed=1)), "dense weights, not Int8Linear"),
        (DenseLinear(torch.zeros(4, 8)), "bfloat16 weights, not torch.float32"),
    ],
)
def test_other_weights_are_refused(layer, named):
    with pytest.raises(ValueError, match=named):
        Weight.of(layer)
