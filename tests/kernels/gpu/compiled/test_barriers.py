"""What the interpreter cannot show: threads wait before they touch what others hold.

Specs ask it of kernels that need it (`Needs.waits`). Here kernels that do not wait are found.
"""

import importlib
import sys
from pathlib import Path

import pytest
import triton
import triton.language as tl

import kernels.gpu
from tests.kernels.gpu.proofs.barriers import races
from tests.kernels.gpu.proofs.compile_spec import Needs, compiled, empty, faults
from tests.kernels.gpu.proofs.fake_driver import CHIPS
from tests.kernels.gpu.specs import attention

every_chip = pytest.mark.parametrize("sm", CHIPS, ids=lambda sm: f"sm_{sm}")
UNGUARDED = "tensors that no barrier guards"
READ, WRITTEN = "read", "written"


@triton.jit
def reads_what_others_write(x, out, size: tl.constexpr, waits: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(x + at, at.to(tl.bfloat16))
    if waits:
        tl.debug_barrier()
    tl.store(out + at, tl.load(x + (size - 1 - at)))


@triton.jit
def writes_what_others_read(x, size: tl.constexpr, waits: tl.constexpr):
    at = tl.arange(0, size)
    moved = tl.load(x + at + size)
    if waits:
        tl.debug_barrier()
    tl.store(x + at, moved)


@triton.jit
def adds_up(x, sums, steps, size: tl.constexpr, waits: tl.constexpr):
    at = tl.arange(0, size)
    for step in range(steps):
        total = tl.load(sums + at) + tl.load(x + step * size + at)
        tl.debug_barrier()
        tl.store(sums + (size - 1 - at), total)
        if waits:
            tl.debug_barrier()


@every_chip
@pytest.mark.parametrize(
    ("launch", "fault"),
    [
        (lambda waits: reads_what_others_write[(1,)](empty(4096), empty(4096), 4096, waits), READ),
        (lambda waits: writes_what_others_read[(1,)](empty(8192), 4096, waits), WRITTEN),
        (lambda waits: adds_up[(1,)](empty(8, 4096), empty(4096), 8, 4096, waits), READ),
    ],
    ids=["a read", "a write", "a read in the next turn"],
)
def test_one_that_does_not_wait_is_found(launch, fault, sm):
    waiting, hurrying = (compiled(lambda w=w: launch(w), sm)[0] for w in (True, False))
    assert faults(waiting, Needs(wide_loads=False, waits=True)) == []
    assert [done for done, _ in races(hurrying.ptx)] == [fault]
    assert faults(hurrying, Needs(wide_loads=False, waits=True)) == [UNGUARDED]


def without_barriers(directory: Path, monkeypatch) -> None:
    """Let specs launch latent attention whose source has no barriers."""
    for name in ("attention_parts", "latent_attention"):
        text = (Path(kernels.gpu.__path__[0]) / f"{name}.py").read_text()
        text = text.replace("tl.debug_barrier()", "pass")
        text = text.replace("kernels.gpu.attention_parts", "hurried_attention_parts")
        (directory / f"hurried_{name}.py").write_text(text)
        sys.modules.pop(f"hurried_{name}", None)
    monkeypatch.syspath_prepend(directory)
    hurried = importlib.import_module("hurried_latent_attention")
    monkeypatch.setattr(attention, "latent_attention", hurried.latent_attention)


@every_chip
def test_latent_attention_without_its_barriers_is_found(sm, tmp_path, monkeypatch):
    """Maxima, masses and sums of parts: each is read after it was written, and the reverse."""
    without_barriers(tmp_path, monkeypatch)
    spec = attention.SPECS[3]
    _, attend, *_ = spec.compile(sm)
    assert faults(attend, spec.kernels["_attend_latent"]) == [UNGUARDED]
    assert {done for done, _ in races(attend.ptx)} == {READ, WRITTEN}


@every_chip
def test_paged_attention_without_any_barrier_is_found(sm):
    """Those that Triton puts in to exchange values guard it, too: as it lays them out today."""
    _, attend, *_ = attention.SPECS[1].compile(sm)
    assert attend.name == "_attend"
    assert {done for done, _ in races(attend.ptx.replace("bar.sync", "//"))} == {READ, WRITTEN}
