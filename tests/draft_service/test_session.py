"""The draft service's half of a session follows any cut of the same tokens to the same state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.session import DraftSession
from protos.messages import Plan, SamplingParams

PROMPT = [7, 8, 9]


def opened(tokens=PROMPT, session_id="s"):
    return DraftSession(session_id, "ngram", list(tokens), SamplingParams(), Plan(steps=3))


@given(st.data())
def test_frames_in_order_lead_to_the_committed_tokens(data):
    """Wherever the drafter joined, and however the rows were cut into frames."""
    tokens = data.draw(st.lists(st.integers(0, 99), min_size=2, max_size=20))
    known = data.draw(st.integers(1, len(tokens)))
    joined = data.draw(st.integers(known, len(tokens)))
    row = data.draw(st.integers(0, joined - 1))
    session = opened(tokens[:known])

    session.attach(tokens[known:joined], row)
    while row < len(tokens) - 1:
        end = data.draw(st.integers(row + 1, len(tokens) - 1))
        session.take(row, tokens[row + 1 : end + 1])
        assert session.tokens[: end + 1] == tokens[: end + 1]
        row = end
        assert session.next_row == row

    assert session.tokens == tokens
    assert session.is_newest(len(tokens))


def test_a_session_is_newest_only_after_all_of_its_rows():
    """Neither while rows are missing, nor for another number of committed tokens."""
    session = opened()
    session.attach([], 0)
    session.take(0, [8])
    assert not session.is_newest(3)

    session.take(1, [9])
    assert session.is_newest(3)
    assert not session.is_newest(4)

    session.take(2, [5, 6])
    assert session.is_newest(5)
    assert session.committed_len == 5


@pytest.mark.parametrize("base_len", [0, 1, 3])
def test_a_frame_that_repeats_rows_or_leaves_a_gap_is_refused(base_len):
    session = opened()
    session.attach([], 0)
    session.take(0, [8, 9])

    with pytest.raises(ValueError, match=f"begins at row {base_len}, expected 2"):
        session.take(base_len, [1])
    assert session.tokens == PROMPT


def test_taps_that_begin_behind_the_known_tokens_are_refused():
    """There would be no telling which tokens are between."""
    opened().attach([1], 3)

    with pytest.raises(ValueError, match="begin at row 4, but only 4 tokens are known"):
        opened().attach([1], 4)


def test_a_session_needs_a_legal_id_and_a_token():
    with pytest.raises(ValueError, match=r"session_id must be .*got 'a b'"):
        opened(session_id="a b")
    with pytest.raises(ValueError, match="token_ids needs at least one token, got none"):
        opened([])
