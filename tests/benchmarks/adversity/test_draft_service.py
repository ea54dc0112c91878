"""Random drafts have the planned size, the true root, and nothing of the drafter's guesses."""

from __future__ import annotations

import random

import pytest

from benchmarks.adversity.draft_service import randomize
from protos.messages import DraftTree
from protos.speculation_pb2 import DraftTree as DraftTreeProto
from protos.speculation_pb2 import Plan


def randomized(tree: DraftTreeProto, plan: Plan) -> DraftTree:
    """What the gateway would read."""
    randomize(tree, plan, 1000, random.Random(0))
    return DraftTree.from_proto(tree)


@pytest.mark.parametrize("tokens", [[7], [7, 8, 9]])
def test_a_lookup_that_found_little_becomes_a_whole_chain(tokens):
    tree = DraftTreeProto(committed_len=3, tokens=tokens, parents=range(-1, len(tokens) - 1))

    found = randomized(tree, Plan(steps=5, top_k=1, draft_tokens=6))

    assert found.committed_len == 3
    assert found.parents == (-1, 0, 1, 2, 3, 4)
    assert found.tokens[0] == 7
    assert found.tokens[1:3] != (8, 9)


def test_a_tree_with_probabilities_keeps_its_shape_and_them():
    tree = DraftTreeProto(tokens=[7, 8, 9], parents=[-1, 0, 0], logprobs=[0, -0.5, -1])

    found = randomized(tree, Plan(steps=5, top_k=2, draft_tokens=6))

    assert found.parents == (-1, 0, 0)
    assert found.logprobs == (0, -0.5, -1)
    assert found.tokens[0] == 7
    assert found.tokens[1:] != (8, 9)


def test_a_drafter_that_was_told_to_pause_meanwhile_sends_its_root():
    assert randomized(DraftTreeProto(tokens=[7], parents=[-1]), Plan()).tokens == (7,)
