"""What the interpreter cannot show of limits: what is gathered is there before it is tallied."""

import re

import pytest
import triton
import triton.language as tl

from tests.kernels.gpu.proofs.compile_spec import compiled, empty
from tests.kernels.gpu.proofs.fake_driver import CHIPS
from tests.kernels.gpu.specs import sampling

every_chip = pytest.mark.parametrize("sm", CHIPS, ids=lambda sm: f"sm_{sm}")
_MEMORY = re.compile(r"(ld\.global)|(st\.global)|(bar(?:rier)?\S*sync)")


@triton.jit
def reads_what_others_write(x, out, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(x + at, at.to(tl.bfloat16))
    tl.store(out + at, tl.load(x + (size - 1 - at)))


def waits(ptx):
    """Whether nothing is read after a write without a barrier between them."""
    kinds = ["load" if m[1] else "store" if m[2] else "barrier" for m in _MEMORY.finditer(ptx)]
    phases = [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]
    stores = [i for i, kind in enumerate(phases) if kind == "store"]
    return len(stores) > 1 and all("load" not in phases[i + 1 : i + 2] for i in stores)


@every_chip
def test_a_barrier_lies_between_what_is_gathered_and_what_is_tallied(sm):
    limits = {binary.name: binary for binary in sampling.SPECS[0].compile(sm)}["_limits_kernel"]
    assert waits(limits.ptx)


@every_chip
def test_one_that_does_not_wait_is_found(sm):
    (binary,) = compiled(lambda: reads_what_others_write[(1,)](empty(4096), empty(4096), 4096), sm)
    assert not waits(binary.ptx)
