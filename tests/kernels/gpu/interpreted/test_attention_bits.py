"""The law: what a token gets has the same bits wherever it lies, and whoever is beside it."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests.kernels.gpu.attention_batch import (
    SMALL,
    Session,
    attend,
    chain,
    grown,
    latent_model,
    lay_out,
    model,
    plan_of,
    random_parents,
)
from tests.kernels.gpu.proofs.tensor_core_products import add_products, tensor_core_products

MODELS = {
    "2 heads a key": lambda: model(2, 1, 16, 700, torch.float32),
    "3 heads a key": lambda: model(3, 1, 16, 700, torch.bfloat16),
    "latent": lambda: latent_model(3, 16, 16, 700, torch.float32),
}
every_model = pytest.mark.parametrize("made", MODELS.values(), ids=MODELS.keys())
PARENTS = random_parents(9, seed=3)
PREFIXES = (121, 190)
"""With the paths, over the border of a page (and of a part of two), and just below one."""


@pytest.fixture(autouse=True)
def _tensor_cores() -> Iterator[None]:
    with tensor_core_products():
        yield


def last(of, session):
    return attend(lay_out(of, [session], seed=len(session.prefix)))[-1]


@every_model
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_node_is_the_token_decoded_alone(made, prefix):
    """Alone its ancestors lie in the prefix: they were moved there, to other pages even."""
    of, session = made(), grown(prefix, PARENTS)
    out_RAV = attend(lay_out(of, [session]))

    for node in (0, 3, 6, 8):
        text = session.text(node)
        assert torch.equal(out_RAV[node], last(of, chain(text, 1))), node


@every_model
def test_a_node_is_the_last_token_of_a_chunk(made):
    of, session = made(), grown(121, PARENTS)
    out_RAV = attend(lay_out(of, [session]))

    for node, rows in ((0, 2), (5, 9), (8, 40)):
        assert torch.equal(out_RAV[node], last(of, chain(session.text(node), rows))), node


@every_model
def test_a_row_does_not_feel_its_company(made):
    of, session = made(), grown(190, PARENTS)
    alone_RAV = attend(lay_out(of, [session]))
    others = [chain(range(300, 320), 20), grown(64, random_parents(5, 4), 400)]
    batch = lay_out(of, [others[0], session, others[1]], 4, 3, seed=5)

    out_RAV = attend(batch)[20 : 20 + len(PARENTS)]

    assert torch.equal(out_RAV, alone_RAV)


@every_model
def test_a_tree_grown_level_by_level(made):
    """Rows are the last nodes of a tree whose others lie there already."""
    of, session = made(), grown(121, PARENTS)
    whole_RAV = attend(lay_out(of, [session]))

    for first in (1, 4, 8):
        level = Session(session.prefix, session.nodes, session.parents, first)
        assert torch.equal(attend(lay_out(of, [level])), whole_RAV[first:])


@every_model
def test_a_node_in_another_tree(made):
    """Siblings that are gone, in another order, or more of them."""
    of, session = made(), grown(121, PARENTS)
    out_RAV = attend(lay_out(of, [session]))
    path = session.paths[8]
    nodes = (*(session.nodes[n] for n in path), 500, 501, 502)
    parents = (*range(-1, len(path) - 1), 0, 0, len(path) + 1)

    other_RAV = attend(lay_out(of, [Session(session.prefix, nodes, parents)]))

    assert torch.equal(other_RAV[: len(path)], out_RAV[list(path)])


@every_model
def test_who_does_the_parts_is_not_felt(made):
    """Parts as items of their own, or all parts by one program; few programs, or many."""
    of = made()
    batch = lay_out(of, [grown(330, random_parents(6, 5)), chain(range(350, 520), 3)])
    divided = plan_of(batch)
    together = plan_of(batch, items=divided.shape.most_tiles(9))
    assert together.buffers.parts_N.tolist() == [1, 1]
    assert divided.buffers.parts_N.tolist() == [4, 2]

    out_RAV = attend(batch, together)

    assert torch.equal(attend(batch, divided), out_RAV)
    many = type(SMALL)(16, 8, 3, 64, SMALL.part_blocks)
    assert torch.equal(attend(batch, plan_of(batch, many)), out_RAV)


def test_parts_are_divided_as_far_as_they_fit():
    """A prompt's tiles keep all programs busy; what is left of the items goes to the others."""
    of = model(4, 2, 16, 900, torch.float32)
    sessions = [chain(range(200), 60), chain(range(200, 500), 1), chain(range(500, 900), 1)]
    batch = lay_out(of, sessions)

    assert plan_of(batch).buffers.parts_N.tolist() == [1, 3, 4]
    assert plan_of(batch, items=14).buffers.parts_N.tolist() == [1, 3, 1]
    assert plan_of(batch, items=14).buffers.first_item_N1.tolist() == [0, 8, 11, 12]


def test_the_order_of_keys_is_felt():
    """Control: the same keys one position further, and sums of products, have other bits."""
    of = model(4, 2, 16, 200, torch.float32)
    text = tuple(range(100))
    swapped = (*text[:40], text[50], *text[41:50], text[40], *text[51:])

    out_AV, other_AV = last(of, chain(text, 1)), last(of, chain(swapped, 1))

    torch.testing.assert_close(out_AV, other_AV)
    assert not torch.equal(out_AV, other_AV)


def test_every_line_of_a_product_is_treated_alike():
    a_MK, b_KN = (np.random.default_rng(0).standard_normal((40, 40), np.float32) for _ in range(2))
    zeros = np.zeros((40, 40), np.float32)
    whole = add_products(a_MK, b_KN, zeros)

    np.testing.assert_allclose(whole, a_MK @ b_KN, rtol=0, atol=1e-5)
    for shift in range(1, 40):
        rolled = add_products(np.roll(a_MK, shift, axis=0), b_KN, zeros)
        assert np.array_equal(rolled, np.roll(whole, shift, axis=0))
