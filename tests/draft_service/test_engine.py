"""A batch: what each session gets of it, and that those that fail are left out."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters import Draft
from draft_service.engine import ROWS_OF_A_BATCH, fair_shares, run_batch
from draft_service.following import LAZY_ROWS
from draft_service.kv_pool import KvPoolFullError
from protos.messages import DraftTree, Plan
from tests.draft_service.noting_drafter import NotingDrafter, following, frame

NO_PLAN = Plan(steps=0)


def ready(drafter, *messages, plan=Plan(steps=3)):  # noqa: B008 - a frozen value
    followed = following(drafter, plan=plan)
    for message in messages:
        followed.arrive(message, 0)
    return followed


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=80), st.integers(1, 600))
def test_shares_are_fair(pending, budget):
    """Nobody gets nothing or more than it has, or less than another while it has more left."""
    shares = fair_shares(pending, budget)

    assert all(1 <= share <= rows for share, rows in zip(shares, pending, strict=True))
    assert sum(shares) <= max(budget, len(pending))
    assert sum(shares) >= min(budget, sum(pending)) - len(pending)
    short = [share for share, rows in zip(shares, pending, strict=True) if share < rows]
    assert all(share <= least + 1 for least in short for share in shares)


def test_few_rows_are_never_held_up_by_many():
    assert fair_shares([10_000, 3, 10_000, 1], 256) == [126, 3, 126, 1]
    assert fair_shares([300, 9000], 256) == [128, 128]


def test_all_that_is_ready_makes_one_forward_of_rows_and_one_draft():
    drafter = NotingDrafter()
    sessions = [ready(drafter, frame(0, [8, 9, token])) for token in range(5)]

    report = run_batch(drafter, sessions)

    ((*rows,),) = drafter.extended
    assert [piece.tokens for piece in rows] == [[8, 9, token] for token in range(5)]
    ((*wanted,),) = drafter.drafted
    assert [one.follower for one in wanted] == [session.follower for session in sessions]
    assert [news.tree.tokens[0] for news in report.news] == [0, 1, 2, 3, 4]
    assert [news.frames_done for news in report.news] == [1] * 5
    assert (report.extended_rows, report.grown_rows) == (15, 10)


def test_a_tree_says_how_long_it_took():
    drafter = NotingDrafter()

    (news,) = run_batch(drafter, [ready(drafter, frame(0, [8, 9]))]).news

    assert isinstance(news.tree, DraftTree)
    assert min(vars(news.tree.timings).values()) >= 0


def test_a_long_prompt_takes_its_share_and_is_drafted_for_when_it_is_through():
    drafter = NotingDrafter()
    prompt = ready(drafter, frame(0, [8] * 600))
    sizes, trees = [], []
    while prompt.backlog.num_rows:
        beside = ready(drafter, frame(0, [8, 9]))
        report = run_batch(drafter, [prompt, beside])
        sizes.append([len(piece.tokens) for piece in drafter.extended[-1]])
        trees.append([news.tree is not None for news in report.news])

    assert sizes == [[ROWS_OF_A_BATCH - 2, 2], [ROWS_OF_A_BATCH - 2, 2], [92, 2]]
    assert trees == [[False, True], [False, True], [True, True]]
    bases = [batch[0].base_len for batch in drafter.extended]
    assert all(b - a == ROWS_OF_A_BATCH - 2 for a, b in pairwise(bases))


def test_nothing_to_take_in_or_to_draft_is_not_asked_for():
    drafter = NotingDrafter()

    run_batch(drafter, [ready(drafter, frame(0, [], 3))])

    assert (drafter.extended, drafter.drafted) == ([], [])


def test_a_batch_ends_with_a_draft_be_it_for_nobody():
    """A drafter may put off its rows until then."""
    drafter = NotingDrafter()

    run_batch(drafter, [ready(drafter, frame(0, [8] * LAZY_ROWS), plan=NO_PLAN)])

    assert [len(batch) for batch in drafter.extended] == [1]
    assert drafter.drafted == [[]]


def test_rows_are_taken_in_by_many_at_once_while_nobody_wants_drafts():
    """A forward for each would cost a machine that the target may share."""
    drafter = NotingDrafter()
    followed = ready(drafter, frame(0, [8] * (LAZY_ROWS - 2)), plan=NO_PLAN)
    run_batch(drafter, [followed])
    assert drafter.extended == []

    followed.session.plan = Plan(3)
    followed.arrive(frame(LAZY_ROWS - 2, [9]), 0)
    (news,) = run_batch(drafter, [followed]).news

    assert [rows.tokens for rows in drafter.extended[0]] == [[8] * (LAZY_ROWS - 2) + [9]]
    assert news.tree is not None


@pytest.mark.parametrize("rows", [1000, 3])
def test_a_session_for_which_there_is_no_room_ends_and_the_others_go_on(rows):
    """Its own pages are free at once: the one behind it finds them."""
    drafter = NotingDrafter(num_pages=1)
    first = ready(drafter, frame(0, [8] * LAZY_ROWS), plan=NO_PLAN)
    greedy = ready(drafter, frame(0, [8] * rows))
    run_batch(drafter, [first])

    report = run_batch(drafter, [greedy])
    first.fail(ValueError())
    after = run_batch(drafter, [ready(drafter, frame(0, [8, 9]))])

    assert isinstance(report.news[0].error, KvPoolFullError)
    assert greedy.backlog.num_rows == 0
    assert after.news[0].tree is not None


def test_a_session_whose_tree_has_no_room_ends_alone():
    drafter = NotingDrafter(Draft(), num_pages=2)
    wide = ready(drafter, frame(0, [8, 9]), plan=Plan(steps=20, top_k=8))
    narrow = ready(drafter, frame(0, [8, 9]))

    report = run_batch(drafter, [wide, narrow])

    assert [type(news.error) for news in report.news] == [KvPoolFullError, type(None)]
    assert report.news[1].tree is not None
    assert drafter.kv_usage.used == 1
