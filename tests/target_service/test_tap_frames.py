"""Frames fit a message, and each subscriber gets its own columns of them."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import tensors
from target_service.taps import Frame, Subscription
from tests.target_service.tap_rows import HIDDEN, MIB, TAPPED, frame_of, numbered, reader


class TestFrames:
    @given(rows=st.integers(1, 3000), width=st.integers(0, 700))
    @settings(max_examples=30)
    def test_pieces_fit_a_message_and_make_the_whole(self, rows, width):
        taps = torch.arange(rows * width).view(rows, width).float()
        whole = Frame(3, rows + 4, tuple(range(rows)), taps)
        pieces = whole.split()
        assert all(piece.num_bytes <= 2 * MIB for piece in pieces)
        assert all(piece.tokens for piece in pieces)
        assert sum((piece.tokens for piece in pieces), ()) == whole.tokens
        assert torch.equal(torch.cat([piece.taps_TX for piece in pieces]), taps)
        ends = [piece.base_len + len(piece.tokens) for piece in pieces]
        assert [piece.base_len for piece in pieces] == [3, *ends[:-1]]
        assert {piece.committed_len for piece in pieces} == {rows + 4}

    def test_small_frames_stay_whole(self):
        assert len(frame_of(100).split()) == 1

    def test_a_row_wider_than_a_message_travels_alone(self):
        taps = torch.zeros(2, MIB)
        assert [len(piece.tokens) for piece in Frame(0, 3, (1, 2), taps).split()] == [1, 1]


class TestColumns:
    @pytest.mark.parametrize("layers", [(2, 5, 9), (9, 2, 5), (5,), (9, 2), (5, 5)])
    async def test_the_subscribers_layers_in_the_subscribers_order(self, layers):
        subscription = Subscription(reader(*layers), TAPPED, MIB)
        subscription.put(frame_of(3, first=4))
        frame = await subscription.next_frame()
        taps = tensors.from_proto(frame.taps).view(3, len(layers), HIDDEN)
        assert taps[:, :, 0].tolist() == [
            [row * 1000 + i * 10 for i in layers] for row in (4, 5, 6)
        ]
        assert taps[0, 0].diff().tolist() == [1, 1, 1]
        assert (frame.base_len, list(frame.tokens)) == (4, [5, 6, 7])

    async def test_no_layers_are_tokens_only(self):
        subscription = Subscription(reader(), TAPPED, MIB)
        subscription.put(frame_of(3))
        frame = await subscription.next_frame()
        assert not frame.HasField("taps")
        assert list(frame.tokens) == [1, 2, 3]


class TestGathering:
    @pytest.mark.parametrize("min_rows", [0, 1, 5, 7, 100])
    async def test_rows_are_gathered_and_none_is_lost(self, min_rows):
        """A message has so many rows at least, but for the last."""
        subscription = Subscription(TAPPED, TAPPED, MIB, min_rows)
        whole = frame_of(20)
        for start in range(0, 20, 2):
            tokens, taps = whole.tokens[start : start + 2], whole.taps_TX[start : start + 2]
            subscription.put(Frame(start, start + 3, tokens, taps))
        subscription.end()
        frames = []
        while (frame := await subscription.next_frame()) is not None:
            frames.append(frame)
        assert all(len(frame.tokens) >= min_rows for frame in frames[:-1])
        assert [token for frame in frames for token in frame.tokens] == list(whole.tokens)
        taps = torch.cat([tensors.from_proto(frame.taps) for frame in frames])
        assert torch.equal(taps, whole.taps_TX)
        assert frames[-1].committed_len == 21


def test_the_numbers_of_the_tests_tell_rows_layers_and_columns_apart():
    values = numbered(12).flatten().tolist()
    assert len(set(values)) == len(values) == 12 * 3 * HIDDEN
    assert all(a < b for a, b in itertools.pairwise(values))
