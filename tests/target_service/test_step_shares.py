"""Sessions' parts of a step lie side by side, and every row that may be kept has a place."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kernels import tree
from protos.messages import DraftTree, SamplingParams
from target_service.kept_rows import KeptRows
from target_service.session import Rows, Session
from target_service.step_shares import shares_of


@st.composite
def rows(draw) -> Rows:
    """A chunk of a prompt, or rows that are not cached and a tree."""
    text = list(range(draw(st.integers(1, 9))))
    session = Session("s", text, SamplingParams(), 9, 99)
    session.cached_len = draw(st.integers(0, len(text) - 1))
    parents = [draw(st.integers(0, node)) for node in range(draw(st.integers(0, 6)))]
    nodes = (text[-1], *range(len(parents)))
    session.tree = DraftTree(len(text), nodes, (-1, *parents))
    chunk_len = draw(st.integers(0 if session.cached_len == len(text) - 1 else 1, 9))
    return replace(session.next_rows(chunk_len), pages=(0,))


@given(st.lists(rows(), min_size=1, max_size=5))
def test_parts_lie_side_by_side_and_taps_of_any_path_have_a_place(batch):
    shares = shares_of(batch)
    nodes = taps = row = 0
    for share in shares:
        assert (share.first_row, share.first_node, share.first_tap) == (row, nodes, taps)
        paths = tree.paths(share.parents) or [()]
        kept = [KeptRows(share.rows, share.first_row, path[1:]) for path in paths]
        assert share.num_taps == max(part.num_rows for part in kept)
        # What is written whatever is accepted, before the places of a path.
        before = kept[0].places()
        assert share.kept_rows()[: len(before)] == before
        assert not share.parents or share.path_place == share.first_tap + len(before)
        assert len(share.kept_rows()) == share.num_taps
        assert all(share.first_row <= place < share.end_row for place in share.kept_rows())
        row, nodes, taps = share.end_row, nodes + share.num_nodes, taps + share.num_taps
    assert row == sum(len(rows.tokens) for rows in batch)
