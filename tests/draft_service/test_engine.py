"""A frame is taken in whole or refused, and a draft is made of the newest one only."""

import time

import pytest
import torch

from draft_service.drafters import Draft
from draft_service.drafters.ngram import NgramDrafter
from draft_service.engine import Following, follow
from draft_service.session import DraftSession
from protos import speculation_pb2 as pb
from protos import tensors
from protos.messages import DraftTree, Plan, SamplingParams
from protos.pairing import Pairing

HIDDEN = 4
LAYERS = (2, 5)
WIDTH = 8
PROMPT = [7, 8, 9]
GUESSES = Draft((1, 2, 3), (0, 0, 1), (-0.5, -0.75, -1.0))


class NotingDrafter:
    """Notes what it is given, and always guesses the same."""

    drafter_id = "noting"
    kind = "noting"
    blocking = False
    pairing = Pairing(HIDDEN, 50, LAYERS)

    def __init__(self, draft=GUESSES):
        self.given = draft
        self.first_row = None
        self.rows, self.asked = [], []

    def follow(self, first_row):
        self.first_row = first_row
        return self

    def extend(self, base_len, tokens, taps):
        self.rows.append((base_len, list(tokens), taps))

    def draft(self, tokens, plan, sampling):
        self.asked.append((list(tokens), plan, sampling))
        return self.given


def taps_of(rows, width=WIDTH, dtype=torch.bfloat16):
    return torch.arange(rows * width, dtype=dtype).reshape(rows, width)


def frame(base_len, tokens, committed_len, taps=None):
    return pb.TapFrame(
        base_len=base_len,
        tokens=tokens,
        committed_len=committed_len,
        taps=tensors.to_proto(taps_of(len(tokens)) if taps is None else taps),
    )


def following(drafter, first_row=0, steps=3):
    session = DraftSession("s", "eagle", list(PROMPT), SamplingParams(seed=3), Plan(steps))
    session.attach([], first_row)
    return Following.begin(session, drafter)


def take(followed, message, *, draft=True):
    return follow(followed, message, time.perf_counter_ns(), draft)


def test_the_newest_frame_becomes_a_tree_below_its_root():
    drafter = NotingDrafter()
    followed = following(drafter)

    tree = take(followed, frame(0, [8, 9, 4], 4))

    assert tree == DraftTree(
        4, (4, 1, 2, 3), (-1, 0, 0, 1), (0.0, -0.5, -0.75, -1.0), "eagle", tree.timings
    )
    assert min(vars(tree.timings).values()) >= 0
    assert drafter.asked == [([7, 8, 9, 4], Plan(3), SamplingParams(seed=3))]


def test_rows_arrive_with_their_taps():
    drafter = NotingDrafter()
    followed = following(drafter, first_row=1)
    assert drafter.first_row == 1

    take(followed, frame(1, [9, 4], 4))

    ((base_len, tokens, taps),) = drafter.rows
    assert (base_len, tokens) == (1, [9, 4])
    assert torch.equal(taps, taps_of(2))


def test_a_drafter_without_probabilities_sends_none():
    tree = take(following(NotingDrafter(Draft((1,), (0,)))), frame(0, [8, 9], 3))

    assert tree.logprobs == ()


def test_a_drafter_that_knows_nothing_sends_the_root_alone():
    tree = take(following(NotingDrafter(Draft())), frame(0, [8, 9], 3))

    assert (tree.committed_len, tree.tokens, tree.num_drafts) == (3, (9,), 0)


@pytest.mark.parametrize(
    ("message", "draft", "steps"),
    [
        (frame(0, [8], 3), True, 3),
        (frame(0, [8, 9], 4), True, 3),
        (frame(0, [8, 9], 3), False, 3),
        (frame(0, [8, 9], 3), True, 0),
    ],
    ids=["more rows follow", "more is committed", "not wanted", "not planned"],
)
def test_nothing_is_drafted_in_vain(message, draft, steps):
    """The rows are taken in all the same: the drafter stays warm."""
    drafter = NotingDrafter()
    followed = following(drafter, steps=steps)

    assert take(followed, message, draft=draft) is None
    assert drafter.asked == []
    assert len(drafter.rows) == 1
    assert followed.session.next_row == len(message.tokens)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (frame(1, [9], 3), "begins at row 1, expected 0"),
        (frame(0, [8, 9], 3, taps_of(1)), r"shape \[1, 8\] .*expected \[2, 8\]"),
        (frame(0, [8, 9], 3, taps_of(2, width=12)), r"shape \[2, 12\] .*expected \[2, 8\]"),
        (frame(0, [8], 3, taps_of(1)[0]), r"shape \[8\] .*expected \[1, 8\]"),
        (pb.TapFrame(tokens=[8], committed_len=3), "unknown tensor dtype 0"),
        (
            frame(0, [8, 9], 3, taps_of(2, dtype=torch.float32)),
            "torch.float32, expected .*torch.bfloat16",
        ),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_and_changes_nothing(message, reason):
    drafter = NotingDrafter()
    followed = following(drafter)

    with pytest.raises(ValueError, match=reason):
        take(followed, message)

    assert drafter.rows == []
    assert (followed.session.tokens, followed.session.next_row) == (PROMPT, 0)


def test_a_drafter_that_reads_no_taps_needs_none():
    followed = following(NgramDrafter("ngram", 50), steps=2)

    tree = take(followed, pb.TapFrame(tokens=[8, 9, 7, 8], committed_len=5))

    assert tree.tokens == (8, 9, 7)
