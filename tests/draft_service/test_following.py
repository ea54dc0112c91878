"""A frame is taken whole or refused, and a draft is wanted of the newest state only."""

import pytest
import torch

from draft_service.drafters import Draft
from draft_service.drafters.ngram import NgramDrafter
from draft_service.kv_pool import KvPoolFullError
from protos import speculation_pb2 as pb
from protos.messages import DraftTimings, DraftTree, Plan, SamplingParams
from tests.draft_service.noting_drafter import (
    CONTEXT,
    GUESSES,
    PROMPT,
    NotingDrafter,
    following,
    frame,
    taps_of,
)

TIMINGS = DraftTimings(1, 2, 3)


def test_a_draft_becomes_a_tree_below_the_last_committed_token():
    followed = following(NotingDrafter())
    followed.arrive(frame(0, [8, 9, 4]), 0)

    tree = followed.tree(GUESSES, TIMINGS)

    assert tree == DraftTree(
        4, (4, 1, 2, 3), (-1, 0, 0, 1), (0.0, -0.5, -0.75, -1.0), "eagle", TIMINGS
    )


def test_a_drafter_without_probabilities_sends_none():
    assert following(NotingDrafter()).tree(Draft((1,), (0,)), TIMINGS).logprobs == ()


def test_a_drafter_that_knows_nothing_sends_the_root_alone():
    tree = following(NotingDrafter()).tree(Draft(), TIMINGS)

    assert (tree.committed_len, tree.tokens, tree.num_drafts) == (3, (9,), 0)


def test_rows_go_to_the_drafter_as_they_came_from_the_first_one_on():
    followed = following(NotingDrafter(), first_row=1)
    assert followed.follower.first_row == 1
    followed.arrive(frame(1, [9, 4]), 0)
    followed.arrive(frame(3, [5]), 0)

    pieces = [followed.next_rows(2), followed.next_rows(10)]

    assert [(rows.base_len, rows.tokens) for rows in pieces] == [(1, [9, 4]), (3, [5])]
    assert torch.equal(pieces[0].taps_TX, taps_of(2))
    assert torch.equal(pieces[1].taps_TX, taps_of(1))


def wanted_after(message, steps=3, rows_left=0):
    followed = following(NotingDrafter(), plan=Plan(steps))
    followed.arrive(message, 0)
    followed.next_rows(len(message.tokens) - rows_left)
    return followed.wanted()


def test_a_draft_is_wanted_of_all_committed_tokens():
    wanted = wanted_after(frame(0, [8, 9, 4]))

    assert list(wanted.tokens) == [7, 8, 9, 4]
    assert (wanted.plan, wanted.sampling) == (Plan(3), SamplingParams(seed=3))


@pytest.mark.parametrize(
    ("message", "steps", "rows_left"),
    [
        (frame(0, [8], 3), 3, 0),
        (frame(0, [8, 9], 4), 3, 0),
        (frame(0, [8, 9], 3), 3, 1),
        (frame(0, [8, 9], 3), 0, 0),
    ],
    ids=["more rows follow", "more is committed", "not all taken in", "not planned"],
)
def test_nothing_is_drafted_in_vain(message, steps, rows_left):
    assert wanted_after(message, steps, rows_left) is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (frame(1, [9], 3), "begins at row 1, expected 0"),
        (frame(0, [8, 50], 3), r"tokens must be in \[0, 50\), got 50"),
        (frame(0, [8] * CONTEXT), "makes the session 2001 tokens long, at most 2000 fit"),
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
    followed = following(NotingDrafter())

    with pytest.raises(ValueError, match=reason):
        followed.arrive(message, 0)

    assert followed.backlog.num_rows == 0
    assert (followed.session.tokens, followed.session.next_row) == (PROMPT, 0)


def test_a_session_may_grow_as_long_as_the_drafter_follows():
    followed = following(NotingDrafter())
    followed.arrive(frame(0, [8] * (CONTEXT - 1)), 0)

    assert followed.session.committed_len == CONTEXT


def test_a_drafter_that_reads_no_taps_needs_none():
    followed = following(NgramDrafter("ngram", 50, 64))
    followed.arrive(pb.TapFrame(tokens=[8, 9, 7], committed_len=4), 0)

    assert followed.next_rows(10).taps_TX is None


def test_rows_and_drafts_need_room():
    """What is taken for a session that fails is free again."""
    followed = following(NotingDrafter(num_pages=2), plan=Plan(steps=63, draft_tokens=64))
    followed.arrive(frame(0, [8] * 100), 0)
    followed.next_rows(100)
    followed.follower.num_rows = 100

    with pytest.raises(KvPoolFullError, match="all 2 KV pages of the drafter are in use"):
        followed.wanted()
    followed.fail(KvPoolFullError())

    assert followed.drafter.kv_usage.used == 0
    assert followed.wanted() is None


def test_a_frame_is_done_when_its_last_row_is_taken():
    followed = following(NotingDrafter())
    for message in (frame(0, [8, 9]), frame(2, []), frame(2, [1, 2, 3])):
        followed.arrive(message, 0)

    done = [followed.frames_done()]
    for size in (1, 2, 2, 5):
        followed.next_rows(size)
        done.append(followed.frames_done())

    assert done == [1, 0, 1, 1, 0]
