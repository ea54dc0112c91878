"""What a step is told is what its batch says, and no piece of it lies in another's bytes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.gpu.packed_memory import Layout, TwinMemory
from protos.messages import DraftTree, SamplingParams
from target_service.buckets import Bucket
from target_service.device_buffers import (
    StepInputs,
    StepLimits,
    StepOutputs,
    input_shapes,
    output_shapes,
)
from target_service.session import Rows, Session
from target_service.step_packing import pack
from target_service.step_shares import shares_of
from target_service.token_lists import MOST_EXTRA_ENTRIES, entries_of
from tests.target_service.gpu.tiny_steps import CPU, SAMPLINGS, VOCAB, chunk, tree

LIMITS = StepLimits(rows=16, sessions=3, pages=2, entries=600, tap_layers=3, hidden=8)
buckets = st.builds(Bucket, st.integers(1, 300), st.integers(0, 300), st.integers(1, 70))


@given(buckets)
def test_pieces_are_aligned_and_lie_apart(bucket):
    for shapes, kind in ((input_shapes, StepInputs), (output_shapes, StepOutputs)):
        layout = Layout(shapes(bucket, LIMITS))
        views = layout.views(torch.zeros(layout.num_bytes, dtype=torch.uint8))
        there = [view for view in views.values() if view.nbytes]
        spans = sorted((view.data_ptr(), view.data_ptr() + view.nbytes) for view in there)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        start = spans[0][0]
        assert all((begin - start) % 16 == 0 for begin, _ in spans)
        assert spans[-1][1] <= start + layout.num_bytes
        assert set(views) == set(kind._fields)


@given(buckets)
def test_a_smaller_bucket_needs_no_more_memory(bucket):
    largest = Bucket(300, 300, 70)
    for shapes in (input_shapes, output_shapes):
        assert Layout(shapes(bucket, LIMITS)).num_bytes <= Layout(shapes(largest, LIMITS)).num_bytes


def test_what_varies_in_length_travels_as_far_as_it_goes():
    layout = Layout(output_shapes(Bucket(16, 16, 3), LIMITS))
    memory = TwinMemory(layout.num_bytes, CPU)
    device = StepOutputs(**layout.views(memory.device_B))
    device.taps_RLH.fill_(1)
    device.tokens_M.fill_(7)
    memory.to_host(layout.bytes_with("taps_RLH", 5))
    host = StepOutputs(**layout.views(memory.host_B))
    assert host.tokens_M.tolist() == [7] * 16
    assert host.taps_RLH[:5].eq(1).all()
    assert not host.taps_RLH[5:].any()


def packed(batch: Sequence[Rows]) -> tuple[StepInputs, int]:
    layout = Layout(input_shapes(Bucket(16, 16, 3), LIMITS))
    inputs = StepInputs(**layout.views(torch.zeros(layout.num_bytes, dtype=torch.uint8)))
    return inputs, pack(shares_of(batch), inputs)


def test_a_batch_is_described():
    inputs, entries = packed(
        [
            chunk(range(9), 3, [1]),
            tree([1, 2, 3, 4], 1, [5, 6], [0, 0], [0, 1], "everything"),
            tree([7, 8], 1, [9], [0], [2], "nucleus"),
        ]
    )
    assert inputs.tokens_R[:10].tolist() == [0, 1, 2, 2, 3, 4, 5, 6, 8, 9]
    assert inputs.session_R[:10].tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 2, 2]
    assert inputs.positions_R[:3].tolist() == [0, 1, 2]
    assert inputs.positions_R[3:5].tolist() == [1, 2]
    assert inputs.first_row_N1.tolist() == [0, 3, 8, 10]
    assert inputs.prefix_len_N.tolist() == [0, 1, 1]
    assert inputs.root_slot_N.tolist() == [3, 3, 1]
    assert inputs.sizes_N.tolist() == [0, 3, 2]
    assert inputs.root_rows_N.tolist() == [0, 5, 8]
    assert inputs.first_nodes_N.tolist() == [0, 0, 3]
    assert inputs.committed_lens_N[1:].tolist() == [4, 2]
    assert inputs.node_rows_M[:5].tolist() == [5, 6, 7, 8, 9]
    assert inputs.trees_M[:5].tolist() == [1, 1, 1, 2, 2]
    assert inputs.pages_NX.tolist() == [[1, 0], [0, 1], [2, 0]]
    assert inputs.parents_NT[1, :3].tolist() == [-1, 0, 0]
    assert inputs.kept_rows_R[:9].tolist() == [0, 1, 2, 3, 4, 5, 5, 8, 8]
    assert inputs.path_places_N.tolist() == [0, 6, 8]
    assert inputs.lengths_M[:5].tolist() == [entries] * 3 + [0, 0]
    assert inputs.seeds_M[3].item() % 2**64 == SAMPLINGS["nucleus"].seed
    assert inputs.log_min_ps_M[:4].tolist()[:3] == [-np.inf] * 3
    assert inputs.log_min_ps_M[3] == torch.tensor(SAMPLINGS["nucleus"].min_p).log()


@pytest.mark.parametrize(
    ("min_new_tokens", "depth"), [(0, 0), (63, 63), (65, 64), (2**31, 64), (2**32 - 1, 64)]
)
def test_tokens_that_are_suppressed_for_long_are_so_at_every_node(min_new_tokens, depth):
    """Also for longer than 32 bits with a sign count."""
    sampling = SamplingParams(suppressed_token_ids=(5,), min_new_tokens=min_new_tokens)
    rows = replace(Session("s", [7], sampling, 9, VOCAB).next_rows(1), pages=(0,))
    inputs, _ = packed([rows])
    assert inputs.early_depths_N.tolist() == [depth, 0, 0]


def test_padding_sessions_have_no_rows():
    inputs, entries = packed([tree([7, 8], 1, [9], [0], [2])])
    assert inputs.first_row_N1.tolist() == [0, 2, 2, 2]
    assert inputs.sizes_N.tolist() == [2, 0, 0]
    assert entries == 0


class TestLists:
    def lists(self, sampling: SamplingParams, text=(1, 1, 3), prompt_len=2, drafts=(3, 9)):
        session = Session("s", list(text[:prompt_len]), sampling, 9, VOCAB)
        session.tokens += text[prompt_len:]
        parents = (-1, *range(len(drafts)))
        session.tree = DraftTree(len(text), (text[-1], *drafts), parents)
        found = entries_of(replace(session.next_rows(99), pages=(0,)))
        return {token: (count, marks, bias) for token, count, marks, bias in found.tolist()}

    def test_nothing_is_listed_where_nothing_is_shaped(self):
        assert self.lists(SamplingParams(temperature=0.3, top_k=3, min_new_tokens=5)) == {}

    def test_penalties_list_the_text_and_the_drafts(self):
        assert self.lists(SamplingParams(presence_penalty=1)) == {
            1: (0, 1, 0),
            3: (1, 1, 0),
            9: (0, 0, 0),
        }

    def test_suppressed_tokens_are_listed_while_it_is_early(self):
        early = SamplingParams(suppressed_token_ids=(5, 3, 5), min_new_tokens=2)
        assert self.lists(early) == {3: (0, 2, 0), 5: (0, 2, 0)}
        assert self.lists(replace(early, min_new_tokens=1)) == {}

    def test_a_bias_is_its_float32(self):
        (entry,) = self.lists(SamplingParams(logit_bias={7: -0.1})).values()
        assert np.int32(entry[2]).view(np.float32) == np.float32(-0.1)

    @given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40), st.integers(0, 9))
    def test_a_list_never_is_longer_than_the_room_for_it(self, text, drafts):
        found = self.lists(SAMPLINGS["everything"], text, 1, tuple(range(drafts)))
        assert len(found) <= min(VOCAB, len(text) + drafts + MOST_EXTRA_ENTRIES)
        assert sum(count for count, *_ in found.values()) == len(text) - 1
