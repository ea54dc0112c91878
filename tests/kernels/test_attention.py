"""A row of attention has the same bits alone, in a chunk, in any tree and beside any padding.

A text of rows is computed in some way (see `attend`) and its outputs are compared bit for bit.

Legend: R rows, A query heads, C key-value heads, D head size, S slots.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import attention, tree
from kernels.attention import lay_out_branches, lay_out_rows, position_blocked_attention
from kernels.kv_pages import PAGE_LEN, new_pages, num_pages_for, slots_in_pool
from kernels.linear import ROW_BLOCK, padded_rows
from tests.kernels.implementations import NATIVE, natively

PAGES_X = torch.arange(4)
# Where a block of keys begins and ends, and one beside it.
PREFIXES = [0, 1, 63, 64, 65, 127, 128, 200]
# Key-value heads, queries of each and head size, as models have them (and a few that none has).
SHAPES = [(3, 1, 64), (2, 2, 33), (3, 3, 64), (4, 8, 80), (1, 20, 128), (1, 32, 16)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_kernel = pytest.mark.parametrize(
    ("kernels", "dtype"),
    [
        ("reference", torch.float32),
        *((name, torch.bfloat16) for name in ("reference", *NATIVE)),
    ],
    indirect=["kernels"],
    ids=str,
)
seeds = st.integers(0, 2**32)
garbage = st.sampled_from([0.0, 7.0, -1e30, 3e38])


@dataclass(frozen=True)
class Rows:
    """Queries, keys and values of consecutive rows, [R, A or C, D]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def __len__(self):
        return len(self.q)

    def __getitem__(self, rows):
        return Rows(self.q[rows], self.k[rows], self.v[rows])

    def then(self, other):
        mine, others = (self.q, self.k, self.v), (other.q, other.k, other.v)
        return Rows(*(torch.cat(pair) for pair in zip(mine, others, strict=True)))

    def of_positive_values(self):
        return Rows(self.q, self.k, self.v.abs())


def random_rows(rows, shape, seed, dtype=torch.float32):
    """Rows whose softmax is neither flat nor of one key."""
    key_heads, groups, head_dim = shape
    generator = torch.Generator().manual_seed(seed)
    heads = (key_heads * groups, key_heads, key_heads)
    q, k, v = (torch.randn(rows, h, head_dim, generator=generator).to(dtype) for h in heads)
    return Rows(2 * q, k, v)


def chain(rows):
    return list(range(-1, rows - 1))


def attend(past, rows, parents, *, fill=7.0, padding_seed=0, more_blocks=0, row_block=ROW_BLOCK):
    """Return the output of rows whose predecessors lie in the cache. All else there is `fill`."""
    padding = -len(rows) % row_block + 16 * more_blocks
    in_chain = tree.is_chain(parents)
    parents = chain(len(rows) + padding) if in_chain else [*parents, *[0] * padding]
    key_heads, head_dim = rows.k.shape[1:]
    shape = (key_heads, rows.q.shape[1] // key_heads, head_dim)
    padded = rows.then(random_rows(padding, shape, padding_seed, rows.q.dtype))
    written = past.then(padded)
    pages = num_pages_for(len(written)) + 1 + more_blocks
    kv = new_pages(pages + 1, 2, key_heads, head_dim, rows.q)
    # The text's pages lie in the pool the other way round.
    pages_X = torch.arange(pages).flip(0)
    for part in kv:
        part.fill_(fill)
    slots = slots_in_pool(pages_X, torch.arange(len(written)))
    fill_behind(kv, slots, written, fill)
    layout = lay_out_rows(pages_X, len(past), parents)
    out = position_blocked_attention(padded.q, kv, 1, layout, head_dim**-0.5)
    return out[: len(rows)]


def fill_behind(kv, slots, written, fill):
    """Write rows to layer 1. What lies behind them in their last page is `fill`, as it may be."""
    kv.write(1, slots, written.k, written.v)
    last, end = int(slots[-1]) // PAGE_LEN, int(slots[-1]) % PAGE_LEN + 1
    kv.keys_PLCKD[last, 1, :, end:] = fill
    rest = torch.arange(end, PAGE_LEN)
    kv.values_PLCJD2[last, 1, :, rest // 2, :, rest % 2] = fill


def alone(past, rows):
    """Return the output of a row after another, as plain decoding computes them."""
    text = past.then(rows)
    places = range(len(past), len(text))
    return torch.cat([attend(text[:i], text[i : i + 1], [-1]) for i in places])


def exact(past, rows, parents):
    """An explicit softmax in float64 over the past and the path of each row."""
    outputs = []
    for path in tree.paths(parents):
        seen = past.then(rows[list(path)])
        q_CGD = rows.q[path[-1]].double().unflatten(0, (rows.k.shape[1], -1))
        scores_CGS = torch.einsum("cgd,scd->cgs", q_CGD, seen.k.double()) * q_CGD.shape[-1] ** -0.5
        out_CGD = torch.einsum("cgs,scd->cgd", scores_CGS.softmax(-1), seen.v.double())
        outputs.append(out_CGD.flatten(0, 1))
    return torch.stack(outputs)


@st.composite
def parent_lists(draw, max_nodes=40):
    """Parents of trees from bushes to all but chains."""
    nodes, reach = draw(st.integers(1, max_nodes)), draw(st.sampled_from([1, 2, 4, max_nodes]))
    return [
        -1,
        *(node - 1 - draw(st.integers(0, min(reach, node) - 1)) for node in range(1, nodes)),
    ]


BUSH = [-1, 0, 0, 0, 1, 1, 2, 4, 4, 7, 7, 3, 11, 12, 13, 14, 15, 16, 16]


@pytest.mark.parametrize("shape", [*SHAPES, (2, 3, 256), (1, 1, 1)], ids=str)
@every_kernel
@pytest.mark.parametrize("parents", [chain(1), chain(19), BUSH], ids=["one", "chain", "tree"])
def test_it_is_softmax_attention(kernels, shape, dtype, parents):
    for prefix_len in PREFIXES:
        text = random_rows(prefix_len + len(parents), shape, seed=1, dtype=dtype)
        past, rows = text[:prefix_len], text[prefix_len:]
        out_RAD, exact_RAD = attend(past, rows, parents).double(), exact(past, rows, parents)
        rounding = torch.finfo(dtype).eps
        bound_RAD = rounding * exact_RAD.abs() + 1e-5
        if kernels != "reference":
            # Natively weights are rounded to the nearest bfloat16 before they meet the values.
            sizes_RAD = exact(past.of_positive_values(), rows.of_positive_values(), parents)
            bound_RAD += rounding / 2 * sizes_RAD
        assert torch.all((out_RAD - exact_RAD).abs() <= bound_RAD)


@every_shape
@every_kernel
def test_a_chunk_gives_the_bits_of_a_row_after_another(kernels, shape, dtype):
    picked = [0, 1, 15, 16, 31, 62, 63, 64, 69]
    for prefix_len in PREFIXES:
        text = random_rows(prefix_len + 70, shape, seed=2, dtype=dtype)
        past, rows = text[:prefix_len], text[prefix_len:]
        one_by_one = [alone(text[: prefix_len + i], rows[i : i + 1]) for i in picked]
        assert torch.equal(attend(past, rows, chain(70))[picked], torch.cat(one_by_one))


@every_shape
@every_kernel
@settings(max_examples=10)
@given(length=st.integers(2, 150), data=st.data(), seed=seeds)
def test_a_text_has_the_same_bits_cut_into_any_chunks(kernels, shape, dtype, length, data, seed):
    text = random_rows(length, shape, seed, dtype)
    cuts = sorted(data.draw(st.sets(st.integers(1, length - 1), max_size=4)))
    ends = zip([0, *cuts], [*cuts, length], strict=True)
    chunks = [attend(text[:a], text[a:b], chain(b - a)) for a, b in ends]
    assert torch.equal(torch.cat(chunks), attend(text[:0], text, chain(length)))


@every_shape
@every_kernel
@settings(max_examples=20)
@given(prefix_len=st.sampled_from(PREFIXES), parents=parent_lists(), seed=seeds, data=st.data())
def test_a_node_of_any_tree_has_the_bits_of_its_path_decoded_plainly(
    kernels, shape, dtype, prefix_len, parents, seed, data
):
    text = random_rows(prefix_len + len(parents), shape, seed, dtype)
    past, nodes = text[:prefix_len], text[prefix_len:]
    path = list(tree.paths(parents)[data.draw(st.integers(0, len(parents) - 1))])
    in_tree = attend(past, nodes, parents)[path]
    assert torch.equal(in_tree, alone(past, nodes[path]))
    assert torch.equal(in_tree, attend(past, nodes[path], chain(len(path))))


def grown(past, nodes, parents, sizes):
    """Return the output of a tree's nodes, computed some at a time, as branches that grow."""
    key_heads, head_dim = nodes.k.shape[1:]
    written = past.then(nodes)
    pages_X = torch.arange(num_pages_for(len(written)) + 1).flip(0)
    kv = new_pages(len(pages_X), 2, key_heads, head_dim, nodes.q)
    slots = slots_in_pool(pages_X, torch.arange(len(written)))
    kv.write(1, slots[: len(past)], past.k, past.v)
    paths, outputs, first = tree.paths(parents), [], 0
    while first < len(nodes):
        rows = range(first, min(first + sizes[len(outputs) % len(sizes)], len(nodes)))
        layout = lay_out_branches(pages_X, len(past), paths[rows.start : rows.stop])
        some = nodes[rows.start : rows.stop]
        kv.write(1, layout.pool_slots_R, some.k, some.v)
        q_RAD = some.q[[*range(len(some)), *[0] * (-len(some) % ROW_BLOCK)]]
        out = position_blocked_attention(q_RAD, kv, 1, layout.padded, head_dim**-0.5)
        outputs.append(out[: len(some)])
        first = rows.stop
    return torch.cat(outputs)


@every_shape
@every_kernel
@settings(max_examples=15)
@given(
    prefix_len=st.sampled_from(PREFIXES[1:]),
    parents=parent_lists(max_nodes=70),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    seed=seeds,
)
def test_branches_that_grow_have_the_bits_of_the_whole_tree(
    kernels, shape, dtype, prefix_len, parents, sizes, seed
):
    text = random_rows(prefix_len + len(parents), shape, seed, dtype)
    past, nodes = text[:prefix_len], text[prefix_len:]
    assert torch.equal(grown(past, nodes, parents, sizes), attend(past, nodes, parents))


@every_shape
@every_kernel
@settings(max_examples=15)
@given(
    prefix_len=st.sampled_from(PREFIXES),
    parents=parent_lists(max_nodes=20),
    seed=seeds,
    fill=garbage,
    more_blocks=st.integers(0, 3),
)
def test_a_row_does_not_feel_padding_nor_what_lies_beyond_in_the_cache(
    kernels, shape, dtype, prefix_len, parents, seed, fill, more_blocks
):
    text = random_rows(prefix_len + len(parents), shape, seed, dtype)
    past, rows = text[:prefix_len], text[prefix_len:]
    other = attend(past, rows, parents, fill=fill, padding_seed=seed + 1, more_blocks=more_blocks)
    assert torch.equal(other, attend(past, rows, parents))


@pytest.mark.parametrize("shape", [(3, 3, 64), (1, 20, 128)], ids=str)
@every_kernel
def test_two_threads_keep_the_law(kernels, shape, dtype, two_threads):
    text = random_rows(65 + len(BUSH), shape, seed=3, dtype=dtype)
    path = list(tree.paths(BUSH)[-1])
    in_tree = attend(text[:65], text[65:], BUSH)[path]
    assert torch.equal(in_tree, alone(text[:65], text[65:][path]))


@every_kernel
def test_a_path_longer_than_a_block_keeps_the_law(kernels, dtype):
    parents = [*chain(140), 3, 140, 139, 70]
    text = random_rows(50 + len(parents), (3, 3, 64), seed=4, dtype=dtype)
    in_tree = attend(text[:50], text[50:], parents)
    for path in tree.paths(parents)[-4:]:
        as_chain = attend(text[:50], text[50:][list(path)], chain(len(path)))
        assert torch.equal(in_tree[list(path)], as_chain)


@every_shape
@natively
@pytest.mark.parametrize("parents", [chain(1), chain(19), BUSH], ids=["one", "chain", "tree"])
def test_natively_rows_need_not_fill_row_blocks(kernels, shape, parents):
    text = random_rows(70 + len(parents), shape, seed=7, dtype=torch.bfloat16)
    unpadded = attend(text[:70], text[70:], parents, row_block=1)
    assert torch.equal(unpadded, attend(text[:70], text[70:], parents))


@every_shape
@natively
@pytest.mark.parametrize("end", [32, 96])
def test_natively_the_half_of_a_page_that_no_row_sees_is_not_read(kernels, shape, end):
    text = random_rows(end, shape, seed=9, dtype=torch.bfloat16)
    past, rows = text[: end - 5], text[end - 5 :]
    outputs = [attend(past, rows, chain(5), fill=fill, row_block=1) for fill in (0.0, torch.nan)]
    assert torch.equal(*outputs)


@every_kernel
@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
def test_a_row_feels_all_that_it_sees_and_nothing_else(kernels, dtype, seen):
    """Node 11 lies behind 3 and the root; the text before them ends at 70."""
    text = random_rows(70 + len(BUSH), (3, 3, 64), seed=8, dtype=dtype)
    before = attend(text[:70], text[70:], BUSH)[11]
    for place in [0, 63, 64, 69, 70, 73, 81] if seen else [71, 72, 74, 80, 82, 88]:
        other = Rows(text.q, text.k.clone(), text.v)
        other.k[place] *= -1
        assert torch.equal(attend(other[:70], other[70:], BUSH)[11], before) is not seen


def from_the_last_block(out_CBPD, weights_CBPS, v_CBSD):
    """Add weights @ values, the last key block first."""
    blocks = zip(weights_CBPS.split(PAGE_LEN, -1), v_CBSD.split(PAGE_LEN, 2), strict=True)
    for weights, values in reversed(list(blocks)):
        out_CBPD += weights @ values


def in_one_product(out_CBPD, weights_CBPS, v_CBSD):
    out_CBPD += weights_CBPS @ v_CBSD


def test_the_order_of_key_blocks_is_part_of_the_law(monkeypatch):
    """Control: summed from the last block on, a tree does not give the bits of plain decoding."""
    text = random_rows(200 + len(BUSH), (3, 3, 64), seed=5)
    plain = alone(text[:200], text[200:][list(tree.paths(BUSH)[-1])])
    monkeypatch.setattr(attention, "_add_blocks", from_the_last_block)
    in_tree = attend(text[:200], text[200:], BUSH)[list(tree.paths(BUSH)[-1])]
    torch.testing.assert_close(in_tree, plain)
    assert not torch.equal(in_tree, plain)


def test_one_product_over_all_keys_would_break_the_law(monkeypatch):
    """Control: a product that picks its own order does not give the same bits in a tree."""
    text = random_rows(200 + len(BUSH), (3, 3, 64), seed=6)
    path = list(tree.paths(BUSH)[-1])
    monkeypatch.setattr(attention, "_add_blocks", in_one_product)
    in_tree = attend(text[:200], text[200:], BUSH)[path]
    plain = alone(text[:200], text[200:][path])
    torch.testing.assert_close(in_tree, plain)
    assert not torch.equal(in_tree, plain)


@given(prefix_len=st.integers(0, 200), parents=parent_lists(max_nodes=20))
def test_a_row_lies_at_the_position_its_depth_says(prefix_len, parents):
    expected = [prefix_len + depth for depth in tree.depths(parents)]
    assert lay_out_rows(PAGES_X, prefix_len, parents).positions_R.tolist() == expected


@given(prefix_len=st.integers(0, 200), parents=parent_lists(max_nodes=20))
def test_padding_fills_row_blocks_and_sees_something(prefix_len, parents):
    """A softmax over nothing would be NaN."""
    layout = lay_out_rows(PAGES_X, prefix_len, parents).padded
    assert len(layout.positions_R) == padded_rows(len(parents))
    assert layout.positions_R[: len(parents)].equal(
        lay_out_rows(PAGES_X, prefix_len, parents).positions_R
    )
    assert not layout.unseen_R1T.all(-1).any()


@given(prefix_len=st.integers(0, 180), parents=parent_lists(max_nodes=40), first=st.integers(0, 39))
def test_branches_lie_where_they_would_in_the_whole_tree(prefix_len, parents, first):
    first %= len(parents)
    branches = lay_out_branches(PAGES_X, prefix_len, tree.paths(parents)[first:])
    whole = lay_out_rows(PAGES_X, prefix_len, parents)
    assert torch.equal(branches.positions_R, whole.positions_R[first:])
    assert torch.equal(branches.pool_slots_R, whole.pool_slots_R[first:])
