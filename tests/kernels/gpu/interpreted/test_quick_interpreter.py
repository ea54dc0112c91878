"""What the quick interpreter leaves out is not missed."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from tests.kernels.gpu.proofs import quick_interpreter


@triton.jit
def _twice(x):
    return x + x


@triton.jit
def _mixed(x, out, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    values = _twice(tl.load(x + at)).to(tl.float32)
    largest = tl.max(values, axis=1)[:, None]
    tl.store(out + at, tl.where(values == largest, tl.sum(values, axis=1)[:, None], values))


def launched():
    torch.manual_seed(0)
    x, out = torch.randint(-50, 50, (4, 8)), torch.empty(4, 8)
    _mixed[(1,)](x, out, 4, 8)
    return x, out


def test_a_launch_gives_what_it_gave(monkeypatch):
    """Blocks, nested functions, reductions, casts: as in the interpreter that came."""
    _, quick = launched()
    monkeypatch.setattr(interpreter, "_patch_lang", quick_interpreter._patch_lang)
    monkeypatch.setattr(interpreter, "_get_np_dtype", quick_interpreter._np_dtype_of)
    monkeypatch.setattr(tl.block_type, "__init__", quick_interpreter._new_block)
    monkeypatch.setattr(tl.core.tensor, "__init__", quick_interpreter._new_value)
    x, slow = launched()

    assert torch.equal(quick, slow)
    assert not torch.equal(quick, 2.0 * x)


@pytest.mark.parametrize("element", [tl.float32, tl.pointer_type(tl.int8)])
@pytest.mark.parametrize("sizes", [[1], [16, 4], tl.core.tuple([tl.constexpr(8)])])
def test_a_type_of_blocks_is_the_one_that_it_was(element, sizes, monkeypatch):
    quick = tl.block_type(element, sizes)
    monkeypatch.setattr(tl.block_type, "__init__", quick_interpreter._new_block)
    slow = tl.block_type(element, sizes)

    assert quick == slow
    assert [str(quick), quick.numel, list(quick.shape), quick.element_ty] == [
        str(slow),
        slow.numel,
        list(slow.shape),
        slow.element_ty,
    ]


def test_a_wrong_shape_is_still_refused():
    with pytest.raises(ValueError, match="power of 2"):
        tl.block_type(tl.float32, [3])
