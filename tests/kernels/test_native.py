"""Which implementation runs, what it says if it cannot, and what its ops refuse.

Legend: R rows, K inputs, D head size.
"""

import pytest
import torch

from kernels import native
from kernels.attention import position_blocked_attention
from kernels.decoder import decode_layers, pack_layers
from kernels.native import NativeUnavailableError, Selection, build, select
from kernels.normed_linear import NormedLinear, normed_linear, pack_normed_linear
from kernels.quantized_linear import new_linear
from tests.kernels.implementations import (
    NATIVE,
    every_implementation,
    least,
    natively,
    shortcoming,
    use_threads,
)
from tests.kernels.tiny_decoder import KINDS, Inputs, Session, chain, normal, random_stack

OPS = (pack_layers, pack_normed_linear, decode_layers, normed_linear, position_blocked_attention)
needs_native = pytest.mark.skipif(
    bool(shortcoming(least())), reason=f"native kernels: {shortcoming(least())}"
)


@pytest.fixture
def restored():
    yield
    native.disable()
    use_threads(1)


@pytest.fixture
def not_built(monkeypatch, tmp_path, restored):
    monkeypatch.setattr(native, "library_path", lambda: tmp_path / "slipstream.so")


@pytest.fixture
def old_cpu(monkeypatch, restored):
    native.enable(1)
    native.disable()
    monkeypatch.setattr(torch.ops.slipstream, "best_isa", lambda: 0)


def runs_natively():
    """Whether all ops run natively in bfloat16; they never do so one without another."""
    native_ops = [("cpu", torch.bfloat16) in op._faster for op in OPS]
    assert len(set(native_ops)) == 1
    return native_ops[0]


@needs_native
@pytest.mark.parametrize("choice", ["auto", "native"])
def test_the_native_kernels_are_used_where_they_can_be_had(choice, restored):
    selection = select(choice, 1)
    assert selection.name in [f"native ({isa})" for isa in NATIVE]
    assert (selection.shortcoming, runs_natively()) == ("", True)


def test_the_reference_is_used_if_asked_for(restored):
    assert select("reference", 1) == Selection("reference")
    assert not runs_natively()


@needs_native
@pytest.mark.parametrize("choice", ["auto", "native"])
def test_the_reference_can_be_returned_to(choice, restored):
    select(choice, 2)
    select("reference", 1)
    assert not runs_natively()


@pytest.mark.parametrize("choice", ["", "cuda", "Native"])
def test_an_unknown_choice_is_refused(choice, restored):
    with pytest.raises(ValueError, match=f"one of auto, native, reference, got '{choice}'"):
        select(choice, 1)
    assert not runs_natively()


def test_a_library_that_was_not_built_is_reported_and_the_reference_runs(not_built):
    selection = select("auto", 1)
    assert (selection.name, runs_natively()) == ("reference", False)
    assert "`python -m kernels.native` builds them" in selection.shortcoming


def test_native_kernels_that_are_demanded_but_not_built_are_an_error(not_built):
    with pytest.raises(ValueError, match=r"kernels is 'native', but .* `python -m kernels.native`"):
        select("native", 1)
    with pytest.raises(NativeUnavailableError, match="not built"):
        native.enable(1)
    assert not runs_natively()


@needs_native
def test_what_a_failed_selection_says_is_in_use_is_in_use(restored, monkeypatch, tmp_path):
    select("auto", 1)
    monkeypatch.setattr(native, "library_path", lambda: tmp_path / "slipstream.so")
    assert select("auto", 1).name == "reference"
    assert not runs_natively()


@needs_native
def test_a_cpu_without_the_instructions_is_reported_and_the_reference_runs(old_cpu):
    selection = select("auto", 1)
    assert (selection.name, runs_natively()) == ("reference", False)
    assert "AVX2" in selection.shortcoming


@needs_native
@pytest.mark.parametrize("threads", [0, -1])
def test_threads_that_are_none_are_refused(threads, restored):
    with pytest.raises((RuntimeError, ValueError), match=f"threads.*{threads}"):
        native.enable(threads)


@needs_native
def test_linear_layers_loaded_before_stay_with_the_reference(restored):
    x_RK, layer = (
        normal(16, 1728, seed=1),
        NormedLinear(new_linear("dense", normal(33, 1728, seed=2))),
    )
    expected_RN = normed_linear(x_RK, layer)
    native.enable(1)
    assert torch.equal(normed_linear(x_RK, layer), expected_RN)
    packed = NormedLinear(layer.linear)
    assert not torch.equal(normed_linear(x_RK, packed), expected_RN)


@needs_native
def test_decoders_loaded_before_stay_with_the_reference(restored, monkeypatch):
    """With all but their attention: that is an op of its own."""
    kind, rows = KINDS["llama"], Inputs.random(KINDS["llama"], 16)
    stack = random_stack(kind)
    native.enable(1)
    position_blocked_attention.unregister("cpu", torch.bfloat16)
    found_RH = Session(kind, stack).look(rows, chain(16))[0]
    native.disable()
    assert torch.equal(found_RH, Session(kind, stack).look(rows, chain(16))[0])


@needs_native
def test_models_loaded_natively_run_on_the_reference_too(restored):
    kind, rows = KINDS["llama"], Inputs.random(KINDS["llama"], 16)
    expected_RH = Session(kind, random_stack(kind)).look(rows, chain(16))[0]
    native.enable(1)
    stack = random_stack(kind)
    assert not torch.equal(Session(kind, stack).look(rows, chain(16))[0], expected_RH)
    native.disable()
    assert torch.equal(Session(kind, stack).look(rows, chain(16))[0], expected_RH)


@every_implementation
def test_float32_is_left_to_the_reference(kernels):
    x_RK, layer = torch.ones(3, 33), NormedLinear(new_linear("dense", torch.ones(7, 33)))
    assert layer.packed is None
    assert torch.equal(normed_linear(x_RK, layer), normed_linear.reference(x_RK, layer))


@natively
def test_heads_too_large_for_the_native_kernels_are_left_to_the_reference(kernels):
    kind = KINDS["llama"]
    assert random_stack(kind).packed is not None
    assert pack_layers(normal(0, seed=1), random_stack(kind.with_heads_of(258)).layers) is None


@needs_native
def test_what_is_built_is_not_built_again(monkeypatch):
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("it was compiled"))
    assert build.build() == build.library_path()


@pytest.mark.parametrize("choice", ["auto", "native"])
def test_a_broken_library_is_reported_with_its_remedy(choice, monkeypatch, tmp_path):
    broken = tmp_path / "slipstream_broken.so"
    broken.write_text("no library")
    monkeypatch.setattr(native, "library_path", lambda: broken)
    if choice == "native":
        with pytest.raises(ValueError, match=f"{broken} cannot be loaded .* delete it"):
            native.select(choice, 1)
    else:
        found = native.select(choice, 1)
        assert found.name == "reference"
        assert "delete it and run `python -m kernels.native`" in found.shortcoming


@needs_native
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_library_that_was_cut_off_is_never_loaded(share, monkeypatch, tmp_path, restored):
    """A missing page would end the process."""
    whole = build.library_path().read_bytes()
    cut = tmp_path / "slipstream_cut.so"
    cut.write_bytes(whole[: int(len(whole) * share)])
    assert build.is_whole(build.library_path())
    assert not build.is_whole(cut)
    monkeypatch.setattr(native, "library_path", lambda: cut)
    found = native.select("auto", 1)
    assert found.name == "reference"
    assert "cut off" in found.shortcoming


def test_a_missing_compiler_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "library_path", lambda *_: tmp_path / "slipstream.so")
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler"):
        build.build()


def test_other_sources_are_another_library(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "_HERE", tmp_path)
    (tmp_path / "a.cpp").write_text("int a;")
    before = build.library_path()
    assert build.library_path() == before
    (tmp_path / "a.h").write_text("int b;")
    assert build.library_path() != before
