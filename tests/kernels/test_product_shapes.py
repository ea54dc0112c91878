"""Why a row has the same bits in every company: all products have the same number of rows.

Whether a matrix library minds depends on the machine. So the shapes are looked at, and the laws are
proven once more with the products that a CPU without AVX-512 gets.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels import linear
from kernels.attention import lay_out_rows, position_blocked_attention
from kernels.kv_pages import new_pages
from kernels.linear import ROW_BLOCK, DenseLinear

aten = torch.ops.aten
ROOT = Path(__file__).parents[2]
# The last two operands of each of these are the factors.
PRODUCTS = {aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.baddbmm_, aten.linear, aten.matmul}


class Products(TorchDispatchMode):
    """Writes down the number of rows of every matrix product."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in PRODUCTS:
            self.rows.append(args[-2].shape[-2])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [1, 16, 17, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_product_of_a_linear_layer_has_sixteen_rows(rows, dtype, monkeypatch):
    monkeypatch.setattr(linear, "_wide_blocks_agree", lambda _weight: False)
    apply = DenseLinear(torch.ones(48, 64, dtype=dtype))
    with Products() as products:
        apply(torch.ones(rows, 64, dtype=dtype))
    assert set(products.rows) == {ROW_BLOCK}


@pytest.mark.parametrize("groups", [1, 2, 3, 8, 20])
@pytest.mark.parametrize(("prefix_len", "rows"), [(0, 80), (65, 32), (200, 16)])
@pytest.mark.parametrize("in_chain", [True, False], ids=["chain", "tree"])
def test_every_product_of_attention_has_sixteen_rows(groups, prefix_len, rows, in_chain):
    parents = [-1, *(node if in_chain else node // 2 for node in range(rows - 1))]
    layout = lay_out_rows(torch.arange(5), prefix_len, parents)
    kv = new_pages(5, 1, 2, 16, torch.empty(0))
    with Products() as products:
        q_RAD = torch.ones(rows, 2 * groups, 16)
        position_blocked_attention(q_RAD, kv, 0, layout, 1)
    assert set(products.rows) == {ROW_BLOCK}


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only x86 has AVX")
def test_the_laws_hold_with_the_products_of_older_cpus():
    """Has no effect on a library other than MKL, or on a CPU that is no better."""
    older = {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    files = [
        f"tests/kernels/test_{name}.py" for name in ("linear", "elementwise", "attention", "noise")
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    laws = "(not_feel or any_tree or any_chunks or wherever or whole_vocabulary)"
    done = subprocess.run(
        [*command, "-k", f"{laws} and not avx and not amx"],
        cwd=ROOT,
        env=os.environ | older | {"ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
