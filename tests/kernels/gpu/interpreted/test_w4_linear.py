"""4-bit weights: packed from a checkpoint's words, multiplied as the reference's bfloat16.

Legend: R rows, N outputs, K inputs, G groups of 32 inputs.
"""

import pytest
import torch

from kernels.gpu.packed_int4 import pack_checkpoint, pack_linear, stack
from kernels.gpu.w4_linear import parts_of, scratch_elements, tile_for, w4_linear
from kernels.quantized_linear import Int4Linear, pack_int4
from tests.kernels.gpu.interpreted.test_linear import assert_near, normal, twice, unwritten
from tests.kernels.gpu.proofs.memory_guard import as_bytes, launch_guarded

DOWN, GATE = (256, 2048), (256, 7168)
"""Inputs of Kimi's experts, and some outputs; all of them are in `test_experts`."""


def product(x_RK, weight, bias_N=None, dtype=torch.bfloat16):
    out_RN = unwritten(len(x_RK), weight.num_outputs, dtype=dtype)
    scratch = unwritten(scratch_elements(len(x_RK), weight), dtype=torch.float32)
    w4_linear(x_RK, weight, bias_N, out_RN, scratch)
    return out_RN


def dequantized(layer):
    """What the reference multiplies: bfloat16 weights."""
    scale_NK = layer.scale_NG.repeat_interleave(32, dim=1)[:, : layer.q_NK.shape[1]]
    return (layer.q_NK.float() * scale_NK).bfloat16()


def checkpoint_words(q_NK):
    """As compressed-tensors packs them: input 8 i + j is nibble j of word i, plus 8."""
    words_NW = torch.zeros(q_NK.shape[0], q_NK.shape[1] // 8, dtype=torch.int32)
    for j in range(8):
        words_NW |= (q_NK[:, j::8].int() + 8) << 4 * j
    return words_NW


def twice_the_layer(outputs, order_G):
    """A layer for inputs whose products cancel: see `twice`."""
    layer = any_layer(outputs, 16 * len(order_G))
    return layer_of(twice(layer.q_NK, 1, order_G), layer.scale_NG.repeat(1, 2)[:, order_G])


def any_layer(*shape):
    """All 16 integers, -8 too, which quantizing never gives."""
    scale_NG = Int4Linear(torch.randn(*shape)).scale_NG
    return layer_of(torch.randint(-8, 8, shape, dtype=torch.int8), scale_NG)


def layer_of(q_NK, scale_NG):
    return Int4Linear.from_packed(pack_int4(q_NK), scale_NG, q_NK.shape, scale_NG)


@pytest.mark.parametrize("shape", [(1, 32), (5, 288), (130, 2048)], ids=str)
def test_a_checkpoint_and_the_reference_pack_alike(shape):
    layer = any_layer(*shape)
    ours = pack_checkpoint(checkpoint_words(layer.q_NK), layer.scale_NG.bfloat16())
    other = pack_linear(layer)
    assert torch.equal(ours.words_NTI, other.words_NTI)
    assert torch.equal(ours.scales_T4N, other.scales_T4N)
    assert (ours.num_inputs, ours.num_outputs) == (other.num_inputs, other.num_outputs)


def test_groups_of_another_size_are_refused():
    words_NW, scale_NG = torch.zeros(4, 16, dtype=torch.int32), torch.zeros(4, 1)
    with pytest.raises(ValueError, match="groups of 32"):
        pack_checkpoint(words_NW, scale_NG)


def test_experts_are_stacked_one_after_the_other():
    experts = [pack_linear(any_layer(5, 64)) for _ in range(3)]
    together = stack(iter(experts), 3)
    assert torch.equal(together.words_NTI[1], experts[1].words_NTI)
    assert torch.equal(together.scales_T4N[2], experts[2].scales_T4N)
    assert (together.num_outputs, together.num_steps, together.num_inputs) == (5, 1, 64)


@pytest.mark.parametrize("rows", [1, 17, 65])
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (130, 300)], ids=str)
def test_a_product_of_any_shape(rows, shape):
    layer, x_RK, bias_N = any_layer(*shape), normal(rows, shape[1]), 8 * normal(shape[0])
    y_RN = product(x_RK, pack_linear(layer), bias_N)
    assert_near(y_RN, x_RK, dequantized(layer), bias_N)


def test_each_weight_is_the_reference_weight():
    """One input of 1 at a time: the product is the weight itself, bit for bit."""
    layer = any_layer(3, 300)
    ones_KK = torch.eye(300).bfloat16()
    weight_KN = product(ones_KK, pack_linear(layer))
    assert torch.equal(weight_KN, dequantized(layer).T)


@pytest.mark.parametrize("shape", [DOWN, GATE], ids=["down", "gate"])
def test_a_product_of_kimis_inputs(shape):
    layer, x_RK = any_layer(*shape), normal(2, shape[1])
    assert_near(product(x_RK, pack_linear(layer)), x_RK, dequantized(layer))


@pytest.mark.parametrize("rows", [2, 66])
def test_programs_touch_only_what_is_theirs(rows):
    layer, x_RK, bias_N = any_layer(30, 2100), normal(rows, 2100), normal(30)
    weight, out_RN = pack_linear(layer), unwritten(rows, 30)
    scratch = unwritten(scratch_elements(rows, weight), dtype=torch.float32)
    launch_guarded(lambda: w4_linear(x_RK, weight, bias_N, out_RN, scratch), out_RN, scratch)
    assert_near(out_RN, x_RK, dequantized(layer), bias_N)


def test_a_row_has_the_same_bits_in_any_company():
    """Alone, in a tree, and in a prompt whose programs go through all parts."""
    order_G = torch.randperm(4096 // 32)
    x_RK, weight = twice(normal(66, 2048), -1, order_G), pack_linear(twice_the_layer(40, order_G))
    assert parts_of(weight) > 2
    assert len({tile_for(rows) for rows in (1, 33, 66)}) == 3
    together_RN = product(x_RK, weight, dtype=torch.float32)
    assert together_RN.ne(0).float().mean() > 0.5
    for rows in (slice(0, 1), slice(65, 66), slice(20, 53)):
        alone_RN = product(x_RK[rows].contiguous(), weight, dtype=torch.float32)
        assert torch.equal(as_bytes(alone_RN), as_bytes(together_RN[rows]))
