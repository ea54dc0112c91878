"""Attention on pages, of ordinary and of latent heads, against its definition in float64.

Memory that nobody may see is NaN, and so is what the plan's buffers held.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from kernels.attention import lay_out_rows, position_blocked_attention
from kernels.gpu.attention_shape import AttentionShape, Tiling, new_plan
from kernels.gpu.latent_attention import LATENT_TILINGS
from kernels.gpu.paged_attention import PAGED_TILINGS
from kernels.kv_pages import new_pages
from tests.kernels.gpu.attention_batch import (
    SMALL,
    attend,
    chain,
    expected,
    grown,
    latent_model,
    lay_out,
    model,
    plan_of,
    random_parents,
)
from tests.kernels.gpu.proofs.memory_guard import launch_guarded, memory_guard
from tests.kernels.gpu.proofs.tensor_core_products import tensor_core_products

BFLOAT16 = torch.bfloat16
MODELS = {
    "2 heads a key": lambda: model(4, 2, 16, 800, torch.float32),
    "5 heads a key": lambda: model(5, 1, 24, 800, BFLOAT16),
    "one head a key": lambda: model(2, 2, 16, 800, BFLOAT16),
    "latent": lambda: latent_model(3, 16, 16, 800, torch.float32),
    "more latent heads than lines": lambda: latent_model(18, 16, 16, 800, BFLOAT16),
}
every_model = pytest.mark.parametrize("made", MODELS.values(), ids=MODELS.keys())


@pytest.fixture(autouse=True)
def _tensor_cores() -> Iterator[None]:
    with tensor_core_products():
        yield


def assert_close(batch, out_RAV):
    """Float32 but for the order of sums; in bfloat16 weights and results are rounded."""
    wide = out_RAV.dtype == torch.float32
    expected_RAV = expected(batch)
    found_RAV = out_RAV[: len(expected_RAV)].double()
    torch.testing.assert_close(found_RAV, expected_RAV, rtol=0, atol=3e-6 if wide else 1.2e-2)


@every_model
def test_a_mixed_batch(made):
    """Trees, chains, a decoded token, a whole prompt; rows and sessions that are padding."""
    sessions = [
        chain(range(133), 1),
        grown(61, random_parents(5, 1), 133),
        chain(range(210, 226), 16),
        grown(64, (-1, 0, 1), 250),
        grown(130, random_parents(7, 2), 330, first=3),
    ]
    batch = lay_out(made(), sessions, padding_rows=3, padding_sessions=2)

    out_RAV = attend(batch)

    assert_close(batch, out_RAV)
    assert torch.equal(out_RAV[-3:], torch.zeros_like(out_RAV[-3:]))


@pytest.mark.parametrize("prefix", [0, 1, 63, 64, 65, 127, 128])
def test_every_way_a_tree_meets_the_borders_of_pages(prefix):
    of = model(2, 1, 16, 200, torch.float32)
    batch = lay_out(of, [grown(prefix, (-1, 0, 0, 1, 2, 4, 3))])

    assert_close(batch, attend(batch))


def test_a_tree_of_64_nodes():
    """The last node is the sign of a mask. The path is deeper than a page has slots left."""
    of = model(2, 1, 16, 200, torch.float32)
    parents = (*range(-1, 61), 60, 61)
    batch = lay_out(of, [grown(100, parents, first=60)])

    assert_close(batch, attend(batch))


def test_it_is_the_reference():
    """The same rows through the reference and its pages."""
    of, parents = model(4, 2, 16, 100, torch.float32), (-1, 0, 0, 1, 1, 3, 2, 5)
    session = grown(70, parents)
    kv = new_pages(2, 1, 2, 16, of.q_UAD)
    tokens, slots = torch.arange(78), torch.arange(78)
    kv.write(0, slots, of.k_UCD[tokens], of.v_UCV[tokens])
    layout = lay_out_rows(torch.arange(2), 70, parents)
    q_RAD = of.q_UAD[70:78]
    reference = position_blocked_attention.reference(q_RAD, kv, 0, layout, of.scale)

    out_RAD = attend(lay_out(of, [session]))

    torch.testing.assert_close(out_RAD, reference, rtol=0, atol=3e-6)


@pytest.mark.parametrize("major", PAGED_TILINGS)
def test_ordinary_heads_as_a_chip_has_them(major):
    batch = lay_out(model(8, 1, 128, 90, BFLOAT16), [grown(70, (-1, 0, 0, 1)), chain(range(66), 1)])

    assert_close(batch, attend(batch, plan_of(batch, PAGED_TILINGS[major])))


def test_an_eighth_of_kimi():
    """8 heads of a latent of 512 and 64 rotated, the tile of every chip."""
    of = latent_model(8, 512, 64, 90, BFLOAT16)
    batch = lay_out(of, [grown(66, (-1, 0, 0, 1)), chain(range(70), 1)])
    tilings = {tiling.lines: tiling for tiling in LATENT_TILINGS.values()}

    for tiling in tilings.values():
        assert_close(batch, attend(batch, plan_of(batch, tiling)))


@pytest.mark.parametrize("name", ["2 heads a key", "latent"])
@pytest.mark.parametrize("items", [None, 12])
def test_programs_touch_what_is_theirs(name, items):
    """No access outside a tensor, no two programs at one place, in any order of programs."""
    batch = lay_out(MODELS[name](), [grown(70, (-1, 0, 0, 1)), chain(range(150, 162), 12)], 2, 1)
    plan = plan_of(batch, items=items)
    out_RAV = attend(batch, plan)

    launch_guarded(lambda: out_RAV.copy_(attend(batch, plan)), out_RAV)
    launch_guarded(lambda: plan_of(batch, items=items))

    assert_close(batch, out_RAV)


def test_a_plan_has_an_item_for_every_tile():
    tiling = Tiling(16, 4, 2, 5)
    shape = AttentionShape(tiling, 4, 1, 16, 16, 1, sessions=3, pages=8)

    assert shape.most_tiles(9) == (9 + 3 * 3) // 4
    with pytest.raises(ValueError, match="4 tiles of rows do not fit into 3 items"):
        new_plan(shape, 9, 3, torch.device("cpu"))


def at_the_end(batch):
    """The batch in the last pages of a memory that is otherwise untouched."""
    held, *sizes = batch.keys.shape
    count = 2**31 // batch.keys[0].numel() + held
    memories = []
    for part in (batch.keys, batch.values)[: 1 if batch.model.latent else 2]:
        memories.append(part.new_empty(count, *sizes))
        memories[-1][-held:] = part
    rows = batch.rows._replace(pages_NX=batch.rows.pages_NX + (count - held))
    return replace(batch, keys=memories[0], values=memories[-1], rows=rows)


@pytest.mark.parametrize("name", ["5 heads a key", "more latent heads than lines"])
def test_pages_beyond_what_32_bits_count_are_found(name):
    """Those of a prefix, and those that a tree's own paths lead through."""
    batch = lay_out(MODELS[name](), [grown(70, (-1, 0, 0, 1)), chain(range(150, 162), 12)])
    far = at_the_end(batch)

    with memory_guard():
        out_RAV = attend(far)

    assert torch.equal(out_RAV, attend(batch))


def items_of(plan):
    """How many were handed out."""
    return int(plan.buffers.first_item_N1[-1])


@pytest.mark.parametrize("lens", [(300, 133, 400), (500, 70, 70, 300), (130, 130, 600)], ids=str)
def test_no_more_items_are_handed_out_than_there_is_memory_for(lens):
    """With any number of them: a long session leaves one to every tile that comes after it."""
    of = model(2, 1, 16, max(lens), torch.float32)
    batch = lay_out(of, [chain(range(n), 9 if n == 133 else 1) for n in lens])
    most_tiles = plan_of(batch).shape.most_tiles(len(batch.q_RAD))
    wanted = items_of(plan_of(batch))
    handed_out = [items_of(plan_of(batch, items=items)) for items in range(most_tiles, wanted + 1)]
    assert handed_out[0] < handed_out[-1] == wanted
    assert all(handed <= items for items, handed in enumerate(handed_out, most_tiles))


@pytest.mark.parametrize(
    ("group", "tile_heads", "tile_rows", "tiles"),
    [(1, 1, 16, 1), (5, 5, 3, 1), (16, 16, 1, 1), (22, 11, 1, 2), (100, 15, 1, 7)],
)
def test_heads_fill_tiles(group, tile_heads, tile_rows, tiles):
    shape = AttentionShape(SMALL, 2 * group, 2, 16, 16, 1, 1, 1)

    assert (shape.tile_heads, shape.tile_rows) == (tile_heads, tile_rows)
    assert shape.head_tiles == 2 * tiles
