"""Moves of accepted paths against the plain statement: all slots are read, then all written.

Legend: N sessions, J nodes of a path, P pages, L layers, C key-value heads, D head size.
"""

import pytest
import torch

from kernels.gpu.kv_moves import move_accepted
from kernels.kv_pages import PAGE_LEN, new_zeros, slots_in_pool
from kernels.tree import paths
from tests.kernels.gpu.proofs.memory_guard import launch_guarded, memory_guard


def ints(values):
    return torch.tensor(values, dtype=torch.int32)


def random_path(nodes, draw):
    """The path to a random node of a random tree."""
    parents = [-1] + [int(torch.randint(0, n, (), generator=draw)) for n in range(1, nodes)]
    return list(paths(parents)[int(torch.randint(0, nodes, (), generator=draw))])


def padded(accepted, most):
    return ints([path + [77] * (most - len(path)) for path in accepted])


def moved(pages, pages_NX, prefix_lens, accepted):
    """What the definition leaves of some pages."""
    expected = pages.clone()
    for pages_X, prefix_len, path in zip(pages_NX.long(), prefix_lens, accepted, strict=True):
        source, target = (
            slots_in_pool(pages_X, prefix_len + torch.tensor(nodes, dtype=torch.int64))
            for nodes in (path, range(len(path)))
        )
        at = (target // PAGE_LEN, slice(None), slice(None), target % PAGE_LEN)
        expected[at] = pages[source // PAGE_LEN, :, :, source % PAGE_LEN]
    return expected


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "has_values"),
    [(2, 2, 16, True), (3, 1, 80, True), (1, 1, 576, False)],
)
@pytest.mark.parametrize("nodes", [2, 7, 64])
def test_accepted_rows_end_up_in_order(layers, kv_heads, head_dim, has_values, nodes):
    """A random tree, a chain, a node alone, a padding session, one whose last page is full."""
    draw = torch.Generator().manual_seed(nodes)
    short = [0, 2] if nodes > 2 else [0, 1]
    accepted = [random_path(nodes, draw), list(range(nodes)), [0], [], short]
    prefix_lens = [63, 100, 7, 0, 189]
    pages_NX = torch.randperm(15, dtype=torch.int32).view(5, 3)
    shape = (15, layers, kv_heads, PAGE_LEN, head_dim)
    keys, values = torch.randn(2, *shape).bfloat16().unbind()
    expected = [moved(part, pages_NX, prefix_lens, accepted) for part in (keys, values)]
    expected[1] = expected[1] if has_values else values.clone()
    args = (pages_NX, ints(prefix_lens), padded(accepted, nodes), ints([*map(len, accepted)]))
    launch_guarded(lambda: move_accepted(*args, keys, values if has_values else None), keys, values)
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])


def test_a_slot_that_is_read_and_written_gives_what_was_there():
    """Path 0, 2, 3: slot 2 is where node 2 was and where node 3 goes."""
    keys = torch.arange(PAGE_LEN).view(1, 1, 1, PAGE_LEN, 1).expand(-1, -1, -1, -1, 16).clone()
    move_accepted(ints([[0]]), ints([10]), ints([[0, 2, 3, 9]]), ints([4]), keys, None)
    assert keys[0, 0, 0, :, 0].tolist() == [*range(11), 12, 13, 19, *range(14, PAGE_LEN)]


def test_a_page_beyond_two_gigabytes_is_found():
    """Kimi's cache has more elements than 32 bits count."""
    last = 2**31 // (2 * PAGE_LEN * 576)
    keys = new_zeros((last + 1, 2, 1, PAGE_LEN, 576), torch.empty(0, dtype=torch.bfloat16))
    keys[last, :, :, 5] = torch.randn(2, 1, 576).bfloat16()
    with memory_guard():
        move_accepted(ints([[last]]), ints([1]), ints([[0, 4]]), ints([2]), keys, None)
    assert torch.equal(keys[last, :, :, 2], keys[last, :, :, 5])
