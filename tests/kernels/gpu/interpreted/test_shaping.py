"""Bias and penalties against the reference, bit for bit.

Legend: R rows, V vocabulary, P places of a list.
"""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernels.gpu.shaping import Shaping
from kernels.sampling import Penalties, penalized_logits
from tests.kernels.gpu.interpreted.sampled_rows import shaped
from tests.kernels.gpu.proofs.memory_guard import launch_guarded

NO_TOKEN = -1


def random_shaping(lengths, places, vocab, penalties):
    """Lists of different tokens; behind its length one holds rubbish."""
    rows = len(lengths)
    tokens = [torch.randperm(vocab)[:places] for _ in lengths]
    tokens_RP = torch.stack(
        [torch.nn.functional.pad(row, (0, places - len(row))) for row in tokens]
    )
    counts_RP = torch.randint(0, 3, (rows, places))
    biases_RP = 5 * torch.randn(rows, places) * (torch.rand(rows, places) > 0.5)
    biases_RP[:, ::7] = -torch.inf
    return Shaping(
        torch.tensor(lengths, dtype=torch.int32),
        tokens_RP.int(),
        counts_RP.int(),
        (counts_RP > 0) | (torch.rand(rows, places) > 0.5),
        biases_RP,
        *(torch.tensor(column) for column in zip(*penalties, strict=True)),
    )


def expected_row(logits_V, shaping, row):
    """The reference on a row's own counts."""
    counts_V = torch.zeros(len(logits_V), dtype=torch.int64)
    seen_V, biased_V = torch.zeros(len(logits_V), dtype=torch.bool), logits_V.float().clone()
    for place in range(int(shaping.lengths_R[row])):
        token = int(shaping.tokens_RP[row, place])
        counts_V[token] = shaping.counts_RP[row, place]
        seen_V[token] = shaping.seen_RP[row, place]
        biased_V[token] += shaping.biases_RP[row, place]
    penalties = Penalties(
        shaping.presences_R[row].item(),
        shaping.frequencies_R[row].item(),
        shaping.repetitions_R[row].item(),
    )
    return penalized_logits(biased_V[None], counts_V[None], seen_V[None], penalties)[0]


penalties = st.tuples(
    st.sampled_from([0.0, 0.5, -1.5]),
    st.sampled_from([0.0, 0.25, -0.7]),
    st.sampled_from([1.0, 1.3, 0.8]),
)


@settings(max_examples=10)
@example([(length, (0.5, 0.25, 1.3)) for length in (1, 256, 257)], torch.float32)
@given(
    st.lists(st.tuples(st.integers(0, 300), penalties), min_size=1, max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_rows_are_shaped_as_by_the_reference(rows, dtype):
    """Those with a list; the others are not even copied."""
    lengths = [length for length, _ in rows]
    shaping = random_shaping(lengths, 300, 5000, [of for _, of in rows])
    logits_RV = (3 * torch.randn(len(rows), 5000)).to(dtype)
    for row, shaped_V in enumerate(shaped(logits_RV, shaping).logits_RV):
        if lengths[row]:
            assert torch.equal(shaped_V, expected_row(logits_RV[row], shaping, row))
        else:
            assert shaped_V.isnan().all()


def test_programs_do_not_meet():
    shaping = random_shaping([300, 0, 1], 300, 5000, [(0.5, 0.25, 1.3)] * 3)
    logits_RV, found = torch.randn(3, 5000), []
    launch_guarded(lambda: found.append(shaped(logits_RV, shaping).logits_RV))
    assert torch.equal(found[0][[0, 2]], found[1][[0, 2]])


@pytest.mark.parametrize("first", [0, 1500, 4000])
def test_a_shard_shapes_its_own_tokens(first):
    logits_RV = torch.randn(2, 5000)
    shaping = random_shaping([300, 200], 300, 5000, [(0.5, 0.25, 1.3)] * 2)
    whole_RV = shaped(logits_RV, shaping).logits_RV
    part_RV = shaped(logits_RV[:, first : first + 1000].contiguous(), shaping, first).logits_RV
    assert torch.equal(part_RV, whole_RV[:, first : first + 1000])


def test_nothing_of_a_list_changes_what_it_does_not_name():
    """Control of the expectation: a token outside every list keeps its logit."""
    shaping = random_shaping([10], 10, 100, [(1.0, 1.0, 2.0)])
    logits_1V = torch.randn(1, 100)
    shaped_V = shaped(logits_1V, shaping).logits_RV[0]
    named = torch.zeros(100, dtype=torch.bool).index_fill(0, shaping.tokens_RP[0].long(), True)
    assert torch.equal(shaped_V[~named], logits_1V[0, ~named])
    assert (shaped_V[named] != logits_1V[0, named]).any()
