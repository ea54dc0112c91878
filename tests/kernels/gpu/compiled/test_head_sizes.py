"""Heads of all sizes that are taken compile for every chip; those that are not do not.

What they cost beyond those that have specs is in docs/gpu-kernels.md.
"""

import pytest
from triton.compiler import CompilationError
from triton.runtime.errors import OutOfResources

from kernels.gpu.paged_attention import check_head_dim
from tests.kernels.gpu.proofs.compile_spec import Needs, compiled, faults
from tests.kernels.gpu.proofs.fake_driver import CHIPS
from tests.kernels.gpu.specs.attention import paged_step

every_chip = pytest.mark.parametrize("sm", CHIPS, ids=lambda sm: f"sm_{sm}")
NEEDS = Needs(tensor_cores=True, wide_loads=False, waits=True)


def attend(head_dim, sm):
    binaries = compiled(lambda: paged_step(8, 4, head_dim)(64), sm)
    return next(binary for binary in binaries if binary.name == "_attend")


@every_chip
@pytest.mark.parametrize("head_dim", [16, 256])
def test_the_smallest_and_the_largest_heads_compile(head_dim, sm):
    """They may spill registers, and nothing else is wrong."""
    check_head_dim(head_dim)
    assert [fault for fault in faults(attend(head_dim, sm), NEEDS) if "spilled" not in fault] == []


@every_chip
@pytest.mark.parametrize(("head_dim", "error"), [(8, CompilationError), (258, OutOfResources)])
def test_others_are_refused_as_they_would_not_compile(head_dim, error, sm):
    with pytest.raises(ValueError, match=f"head_dim is {head_dim}"):
        check_head_dim(head_dim)
    with pytest.raises(error):
        attend(head_dim, sm)
