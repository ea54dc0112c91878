"""Rotation against the reference op, bit for bit, and every slot of the pages.

Legend: R rows, A query heads, C key-value heads, D head size, P positions or pages, L layers.
"""

from dataclasses import dataclass

import pytest
import torch

from kernels.elementwise import rotate
from kernels.gpu.rotary import rotate_and_store
from kernels.kv_pages import PAGE_LEN, new_zeros
from kernels.rotary import Rope
from tests.kernels.gpu.proofs.memory_guard import launch_guarded, memory_guard

POSITIONS = 300


@dataclass(frozen=True)
class Heads:
    queries: int
    kv: int
    dim: int
    rotated: int

    @property
    def latent(self):
        return self.rotated < self.dim


SMALL, ODD, GROUPED = Heads(4, 2, 16, 16), Heads(9, 3, 80, 80), Heads(20, 4, 128, 128)
LATENT, KIMI = Heads(3, 1, 576, 64), Heads(64, 1, 576, 64)
every_head = pytest.mark.parametrize("heads", [SMALL, ODD, GROUPED, LATENT, KIMI], ids=str)


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


class Rows:
    """Rows of one product: q, k and v side by side. Of latent queries, what is rotated."""

    def __init__(self, heads, slots, dtype=torch.bfloat16):
        self.heads, self.dtype, num_rows = heads, dtype, len(slots)
        widths = (heads.queries, heads.kv, heads.kv)
        wide_RX = normal(num_rows, sum(widths) * heads.dim, dtype=dtype)
        parts = wide_RX.split([n * heads.dim for n in widths], dim=1)
        self.q, self.k, self.v = (part.unflatten(1, (-1, heads.dim)) for part in parts)
        self.q = self.q[..., heads.dim - heads.rotated :]
        self.angles = Rope(heads.rotated, 10000.0, {}, 2048).tables(POSITIONS, dtype)
        self.positions = torch.randint(0, POSITIONS, (num_rows,), dtype=torch.int32)
        self.slots = torch.tensor(slots)

    def launch(self, keys, values, layer, out, rows=slice(None)):
        v = None if self.heads.latent else self.v[rows]
        where = (self.positions[rows], self.slots[rows])
        rotate_and_store(
            self.q[rows], self.k[rows], v, self.angles, *where, keys, values, layer, out
        )

    def rotated(self, x):
        """The last elements of each head are."""
        copied, turned = x.split([x.shape[-1] - self.heads.rotated, self.heads.rotated], dim=-1)
        at_rows = (table[self.positions.long()] for table in self.angles)
        return torch.cat((copied, rotate(turned, *at_rows)), dim=-1)

    def buffers(self, pages=3, layers=2):
        """Keys, values, and room for queries that lie in wider heads."""
        shape = (pages, layers, self.heads.kv, PAGE_LEN, self.heads.dim)
        keys, values = normal(2, *shape, dtype=self.dtype).unbind()
        wide = torch.full((*self.q.shape[:2], self.heads.dim), torch.nan, dtype=self.dtype)
        return keys, None if self.heads.latent else values, wide


def stored(pages, layer, rows, x):
    """Pages in which each row that has a slot is written."""
    expected = pages.clone()
    for slot, row in zip(rows.slots.tolist(), x, strict=True):
        if slot >= 0:
            expected[slot // PAGE_LEN, layer, :, slot % PAGE_LEN] = row
    return expected


@every_head
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_are_rotated_and_stored(heads, dtype):
    """First and last slots of pages, a row of padding in between, one layer of two."""
    rows = Rows(heads, [0, -1, 63, 128], dtype)
    keys, values, wide = rows.buffers()
    expected_keys = stored(keys, 1, rows, rows.rotated(rows.k))
    expected_values = None if values is None else stored(values, 1, rows, rows.v)
    out = wide[..., heads.dim - heads.rotated :]
    written = [wide, keys] + ([] if values is None else [values])
    launch_guarded(lambda: rows.launch(keys, values, 1, out), *written)
    assert torch.equal(out, rows.rotated(rows.q))
    assert wide[..., : heads.dim - heads.rotated].isnan().all()
    assert torch.equal(keys, expected_keys)
    assert values is None or torch.equal(values, expected_values)


@every_head
def test_a_row_alone_has_the_same_bits(heads):
    rows = Rows(heads, [3, 70])
    keys, values, _ = rows.buffers()
    alone_keys, alone_values, _ = rows.buffers()
    out, alone = torch.empty_like(rows.q), torch.empty_like(rows.q)
    rows.launch(keys, values, 0, out)
    for row in range(2):
        one = slice(row, row + 1)
        rows.launch(alone_keys, alone_values, 0, alone[one], one)
    assert torch.equal(alone, out)
    for slot in rows.slots.tolist():
        at = (slot // PAGE_LEN, 0, slice(None), slot % PAGE_LEN)
        assert torch.equal(alone_keys[at], keys[at])


@pytest.mark.parametrize("heads", [ODD, LATENT], ids=str)
def test_queries_may_be_rotated_where_they_lie(heads):
    rows = Rows(heads, [0, 1])
    keys, values, _ = rows.buffers()
    expected_RAE = rows.rotated(rows.q)
    rows.launch(keys, values, 0, rows.q)
    assert torch.equal(rows.q, expected_RAE)


def test_a_page_beyond_two_gigabytes_is_found():
    """Kimi's cache has more elements than 32 bits count."""
    rows = Rows(LATENT, [999 * PAGE_LEN + 7])
    keys = new_zeros((1000, 61, 1, PAGE_LEN, 576), rows.q)
    assert keys.numel() > 2**31
    with memory_guard():
        rows.launch(keys, None, 60, torch.empty_like(rows.q))
    assert torch.equal(keys[999, 60, :, 7], rows.rotated(rows.k)[0])
