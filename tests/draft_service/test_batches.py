"""Which sessions run together, and what becomes of those that fail or leave."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from draft_service.batches import Batches
from draft_service.drafters.ngram import NgramDrafter
from draft_service.following import Following
from draft_service.outbox import Outbox
from draft_service.session import DraftSession
from protos import speculation_pb2 as pb
from protos import tensors
from protos.messages import Plan, SamplingParams
from tests.draft_service.drafters.played_session import PlayedSession, load
from tests.draft_service.noting_drafter import NotingDrafter, following, frame
from tests.tiny_models import write_tiny_eagle3


def arrive(batches, followed, *messages):
    for message in messages:
        batches.arrive(followed, message, 0)


def test_sessions_of_one_drafter_run_together_those_of_another_after_them():
    batches, drafters = Batches(), [NotingDrafter(), NotingDrafter()]
    sessions = [following(drafter) for drafter in (*drafters, *drafters)]
    for followed in sessions:
        arrive(batches, followed, frame(0, [8, 9]))

    together = []
    while batches.are_waiting:
        together.append([news.following for news in batches.run_next().news])

    assert together == [sessions[::2], sessions[1::2]]


def test_who_shared_the_last_batch_is_missed_until_all_are_there_or_gone():
    """They share a step of the target, too; nobody else is waited for."""
    batches, drafter = Batches(), NotingDrafter()
    first, second, stranger = (following(drafter) for _ in range(3))
    arrive(batches, first, frame(0, [8, 9]))
    arrive(batches, second, frame(0, [8, 9]))
    assert not batches.lack_company
    batches.run_next()
    assert not batches.lack_company

    arrive(batches, stranger, frame(0, [8, 9]))
    arrive(batches, first, frame(2, [1]))
    assert batches.lack_company
    arrive(batches, second, frame(2, [1]))
    assert not batches.lack_company

    batches.run_next()
    arrive(batches, first, frame(3, [2]))
    batches.close(second)
    assert batches.lack_company
    batches.close(stranger)
    assert not batches.lack_company


def test_drafters_with_much_to_do_take_turns():
    batches, drafters = Batches(), [NotingDrafter(), NotingDrafter()]
    for drafter in drafters:
        arrive(batches, following(drafter), frame(0, [8] * 500))

    order = [batches.run_next().news[0].following.drafter for _ in range(4)]

    assert order == [*drafters, *drafters]
    assert not batches.are_waiting


def test_frames_of_a_session_that_arrive_together_make_one_batch_and_one_tree():
    batches, drafter = Batches(), NotingDrafter()
    arrive(batches, following(drafter), frame(0, [8, 9]), frame(2, [1]), frame(3, [2, 3]))

    (news,) = batches.run_next().news

    assert [rows.tokens for rows in drafter.extended[0]] == [[8, 9, 1, 2, 3]]
    assert (news.frames_done, news.tree.committed_len) == (3, 6)
    assert not batches.are_waiting


@pytest.mark.parametrize("wrong", [frame(7, [9]), pb.TapFrame(base_len=1, tokens=[9])])
def test_a_wrong_frame_ends_its_session_and_no_other(wrong):
    batches, drafter = Batches(), NotingDrafter()
    good, bad = following(drafter), following(drafter)
    arrive(batches, bad, frame(0, [8]))
    arrive(batches, good, frame(0, [8, 9]))
    arrive(batches, bad, wrong)

    news = {one.following: one for one in batches.run_next().news}
    arrive(batches, bad, frame(1, [9]))

    assert isinstance(news[bad].error, ValueError)
    assert news[good].error is None
    assert news[good].tree is not None
    assert not batches.are_waiting, "nothing more is done for a session that failed"


def test_a_drafter_that_breaks_takes_the_sessions_of_the_batch_with_it():
    """It goes on with others, and the reason is logged."""
    batches, drafter, other = Batches(), NotingDrafter(), NgramDrafter("ngram", 50, 64)
    broken = [following(drafter), following(drafter)]
    arrive(batches, broken[0], frame(0, [8, 9]))
    arrive(batches, broken[1], frame(0, [8, 49]))
    arrive(batches, following(other), frame(0, [8, 9]))

    with capture_logs() as logs:
        report = batches.run_next()

    assert [str(news.error) for news in report.news] == ["it broke"] * 2
    assert [entry["event"] for entry in logs] == ["batch_failed"]
    assert drafter.kv_usage.used == 0
    assert batches.run_next().news[0].tree is not None
    arrive(batches, following(drafter), frame(0, [8, 9]))
    assert batches.run_next().news[0].tree is not None


def test_a_session_that_leaves_frees_its_pages_and_is_in_no_batch_any_more():
    batches, drafter = Batches(), NotingDrafter()
    leaving, staying = following(drafter), following(drafter)
    for followed in (leaving, staying):
        arrive(batches, followed, frame(0, [8] * 300))
    batches.run_next()
    assert drafter.kv_usage.used == 4

    batches.close(leaving)
    batches.close(leaving)

    assert drafter.kv_usage.used == 2
    assert [news.following for news in batches.run_next().news] == [staying]


def test_when_the_last_one_leaves_nothing_waits():
    batches, drafter = Batches(), NotingDrafter()
    followed = following(drafter)
    arrive(batches, followed, frame(0, [8, 9]))

    batches.close(followed)

    assert not batches.are_waiting
    assert drafter.kv_usage.used == 0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    return load(write_tiny_eagle3(path, hidden=32, vocab=97, target_layers=12))


PROMPT = PlayedSession(prompt_len=9)
TAPS = PROMPT.taps()
WIDTHS = st.sampled_from([TAPS.shape[1], TAPS.shape[1], 5])
DTYPES = st.sampled_from([torch.float32, torch.float32, torch.bfloat16])
WILD_FRAMES = st.builds(
    lambda base_len, tokens, committed_len, rows, width, dtype: pb.TapFrame(
        base_len=base_len,
        tokens=tokens,
        committed_len=committed_len,
        taps=tensors.to_proto(
            torch.full((len(tokens) if rows is None else rows, width), 3e38).to(dtype)
        ),
    ),
    st.sampled_from([0, 0, 0, 1, 2, 2**63]),
    st.lists(st.integers(0, 98), max_size=5),
    st.integers(0, 8),
    st.sampled_from([None, None, 0, 3]),
    WIDTHS,
    DTYPES,
)


def real_following(drafter):
    session = DraftSession("s", "tiny", list(PROMPT.tokens), SamplingParams(seed=1), Plan(3, 2, 8))
    session.attach([], 0)
    return Following.begin(session, drafter, Outbox())


@settings(deadline=None, max_examples=60)
@given(st.lists(WILD_FRAMES, max_size=4))
def test_no_frames_whatever_disturb_the_session_beside(tiny, wild):
    """Its tree is always the same; what held pages lets them go."""
    trees = []
    for frames in ([], wild):
        batches, good, other = Batches(), real_following(tiny), real_following(tiny)
        arrive(batches, other, *frames)
        whole = pb.TapFrame(tokens=PROMPT.tokens[1:], committed_len=9, taps=tensors.to_proto(TAPS))
        arrive(batches, good, whole)
        (tree,) = [one.tree for one in batches.run_next().news if one.following is good]
        trees.append((tree.tokens, tree.parents, tree.logprobs))
        for followed in (good, other):
            batches.close(followed)

    assert trees[0] == trees[1]
    assert len(trees[0][0]) == 8
    assert tiny.kv_usage.used == 0
