"""The implementations that tests run on: the reference, and each instruction set of the native one.

A test says `@every_implementation` or `@natively` and gets, as `kernels`, the name of the one that
is in use.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch

from kernels import native
from kernels.native import ISAS, NativeUnavailableError

NATIVE = ("avx2", "avx512", "avx512_bf16", "amx")
every_implementation = pytest.mark.parametrize("kernels", ["reference", *NATIVE], indirect=True)
natively = pytest.mark.parametrize("kernels", NATIVE, indirect=True)


@cache
def shortcoming(kernels: str) -> str:
    """Why an implementation cannot run here; empty if it can."""
    if kernels == "reference":
        return ""
    try:
        best = native.enable(1)
    except NativeUnavailableError as error:
        return str(error)
    finally:
        native.disable()
    if (best == "avx2") != (kernels == "avx2"):
        return f"the library is of the family of {best}: see --family"
    return "" if ISAS.index(kernels) <= ISAS.index(best) else f"this CPU has no {kernels}"


def least() -> str:
    """The native implementation that every CPU of this one's family runs."""
    return "avx512" if shortcoming("avx2") else "avx2"


@contextmanager
def running(kernels: str) -> Iterator[None]:
    """Run an implementation on one thread, and afterwards the reference again."""
    if kernels == "reference":
        yield
        return
    if reason := shortcoming(kernels):
        pytest.skip(reason)
    best = native.enable(1)
    torch.ops.slipstream.use_isa(ISAS.index(kernels))
    try:
        yield
    finally:
        torch.ops.slipstream.use_isa(ISAS.index(best))
        native.disable()


def use_threads(count: int) -> None:
    """Let torch and, where it is loaded, the native library compute on so many threads."""
    torch.set_num_threads(count)
    if hasattr(torch.ops.slipstream, "set_num_threads"):
        torch.ops.slipstream.set_num_threads(count)
