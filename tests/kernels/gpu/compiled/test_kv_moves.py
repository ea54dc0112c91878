"""What the interpreter cannot show of moves: all threads have read before one of them writes."""

import re

import pytest
import triton
import triton.language as tl

from tests.kernels.gpu.proofs.compile_spec import compiled, empty
from tests.kernels.gpu.proofs.fake_driver import CHIPS
from tests.kernels.gpu.specs import kv_moves

every_chip = pytest.mark.parametrize("sm", CHIPS, ids=lambda sm: f"sm_{sm}")
_MEMORY = re.compile(r"(ld\.global)\S*v\d|(st\.global)|(bar(?:rier)?\S*sync)")


@triton.jit
def moves_without_waiting(x, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(x + at, tl.load(x + at + size))


def phases(ptx):
    """The order of wide loads, barriers and stores, repetitions as one."""
    kinds = ["load" if m[1] else "store" if m[2] else "barrier" for m in _MEMORY.finditer(ptx)]
    return [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]


def in_order(ptx):
    """Whether stores follow loads over a barrier, each time."""
    found = phases(ptx)
    between = [found[i - 1] for i, kind in enumerate(found) if kind == "store"]
    return "store" in found and all(kind == "barrier" for kind in between)


@every_chip
@pytest.mark.parametrize("spec", kv_moves.SPECS, ids=lambda spec: spec.name)
def test_a_barrier_lies_between_reads_and_writes(spec, sm):
    (binary,) = spec.compile(sm)
    assert in_order(binary.ptx), phases(binary.ptx)


@every_chip
def test_one_that_does_not_wait_is_found(sm):
    x = empty(8192)
    (binary,) = compiled(lambda: moves_without_waiting[(1,)](x, 4096), sm)
    assert not in_order(binary.ptx), phases(binary.ptx)
