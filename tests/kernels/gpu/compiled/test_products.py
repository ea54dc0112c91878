"""What the bits of a product rest on, in the code of every chip.

One instruction for all tiles, and one chain of them for every sum: then tiles cannot differ in what
they sum in which order.
"""

import re
from collections import Counter

import pytest

from kernels.gpu import head_linear as of_heads
from kernels.gpu import linear as of_rows
from tests.kernels.gpu.proofs.fake_driver import CHIPS
from tests.kernels.gpu.specs import experts, head_linear, linear, w4_linear

INSTRUCTION = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
_PRODUCT = re.compile(r"(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\S*")
_ARITHMETIC = re.compile(r"(?:add|fma|mul)\S*\.f32")
_OPERANDS = re.compile(r"mma\.sync\S*\s*\{([^}]*)\},\s*\{[^}]*\},\s*\{[^}]*\},\s*\{([^}]*)\}")

every_chip = pytest.mark.parametrize("sm", CHIPS, ids=lambda sm: f"sm_{sm}")
every_product = pytest.mark.parametrize(
    "spec",
    [*linear.SPECS, *head_linear.SPECS, *w4_linear.SPECS, *experts.SPECS],
    ids=lambda spec: spec.name,
)


def products(spec, sm):
    return [binary for binary in spec.compile(sm) if binary.tensor_cores]


def chains(ptx):
    """Return how many products each sum goes through between two loads."""
    length = Counter()
    for result, start in _OPERANDS.findall(ptx):
        length[result.replace(" ", "")] = length.pop(start.replace(" ", ""), 0) + 1
    return list(length.values())


@every_chip
@every_product
def test_all_tiles_multiply_with_one_instruction(spec, sm):
    for binary in products(spec, sm):
        assert set(_PRODUCT.findall(binary.ptx)) == {INSTRUCTION}


@every_chip
@pytest.mark.parametrize(
    ("spec", "tile_for"),
    [(spec, of_rows.tile_for) for spec in linear.SPECS]
    + [(spec, of_heads.tile_for) for spec in head_linear.SPECS],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_sum_is_one_chain_of_products(spec, tile_for, sm):
    """64 inputs are four products of 16, one after the other; each warp has 8 outputs a chain.

    Of a head's 128 inputs both turns of the loop may be written out.
    """
    tile = tile_for(spec.sizes[-1])
    for binary in products(spec, sm):
        num_chains = tile.blocks * tile.outputs // 8 // tile.warps
        lengths = (4,) if tile_for is of_rows.tile_for else (4, 8)
        assert chains(binary.ptx) in [[length] * num_chains for length in lengths]
        # Only a prompt adds anything else: the sums of its parts. Heads have no parts.
        adds_parts = tile.one_program and tile_for is of_rows.tile_for
        assert bool(_ARITHMETIC.search(binary.ptx)) == adds_parts


@every_chip
@pytest.mark.parametrize("spec", [*w4_linear.SPECS, *experts.INT4_SPECS], ids=lambda s: s.name)
def test_a_sum_of_4_bits_is_one_chain_of_products(spec, sm):
    for binary in products(spec, sm):
        assert set(chains(binary.ptx)) == {16}


@every_chip
@pytest.mark.parametrize("spec", experts.DENSE_SPECS, ids=lambda spec: spec.name)
def test_a_sum_of_bfloat16_experts_is_one_chain_of_products(spec, sm):
    for binary in products(spec, sm):
        assert set(chains(binary.ptx)) == {4}


@every_chip
def test_4_bits_are_unpacked_in_registers(sm):
    """Nothing is put into shared memory but words, scales and rows, as they came, and results."""
    (binary,) = products(w4_linear.SPECS[0], sm)
    assert len(re.findall(r"st\.shared", binary.ptx)) == 16 * 128 // 128 // 4
    assert not re.findall(r"ld\.global", binary.ptx)
