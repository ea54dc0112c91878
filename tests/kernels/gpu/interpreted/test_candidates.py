"""Candidates of a drafter against the reference, which knows all of the target's tokens.

Legend: R rows, N drafter's vocabulary, V target's vocabulary, B blocks, C candidates.
"""

import pytest
import torch

from kernels.gpu import candidates as gpu
from kernels.gpu import kept_limit
from kernels.gpu.candidates import Candidates, CandidateScratch
from kernels.gpu.vocabulary import BLOCK_LEN
from kernels.sampling import Filters, agreement_candidates, log_normalizer
from tests.kernels.gpu.interpreted.sampled_rows import (
    FILTERS,
    draw_of,
    peaked_and_flat,
    row_filters,
)
from tests.kernels.gpu.proofs.memory_guard import launch_guarded


def buffers(rows, known, count):
    """Return scratch and candidates, unwritten."""
    blocks = -(-known // BLOCK_LEN)
    shapes = (rows, known), (rows, blocks), (rows, 3, blocks), (rows, known), (rows,)
    nothing_R = torch.zeros(rows, dtype=torch.int32)
    scratch = CandidateScratch(*(torch.full(shape, torch.nan) for shape in shapes), nothing_R)
    tokens_RC = torch.full((rows, count), -1)
    values = (torch.full((rows, count), torch.nan) for _ in range(2))
    return scratch, Candidates(tokens_RC, *values)


def find(logits_RN, target_ids_N, filters, draw, count):
    scratch, found = buffers(*logits_RN.shape, count)
    gpu.agreement_candidates(logits_RN, target_ids_N, row_filters(filters), draw, scratch, found)
    return found


def over_the_target(logits_RN, target_ids_N, vocab):
    """The logits of all of the target's tokens: -inf for those the drafter does not know."""
    logits_RV = torch.full((len(logits_RN), vocab), -torch.inf)
    logits_RV[:, target_ids_N.long()] = logits_RN.float()
    return logits_RV


def assert_candidates_are_near(found, logits_RV, filters, draw, count):
    """The same tokens in the same order, and values but for the last places."""
    for row, one in enumerate(filters):
        logits_1V, position = logits_RV[row : row + 1], draw.positions_R[row : row + 1]
        args = logits_1V, position, int(draw.seeds_R[row]), one
        ids_1C, scores_1C = agreement_candidates(*args, count)
        is_one_C = scores_1C[0] > -torch.inf
        logprobs_C = (logits_1V.gather(-1, ids_1C) - log_normalizer(logits_1V))[0]
        assert torch.equal(found.tokens_RC[row][is_one_C], ids_1C[0][is_one_C])
        assert torch.equal(found.scores_RC[row] > -torch.inf, is_one_C)
        for mine, expected in ((found.scores_RC, scores_1C[0]), (found.logprobs_RC, logprobs_C)):
            torch.testing.assert_close(
                mine[row][is_one_C], expected[is_one_C], rtol=3e-6, atol=3e-6
            )


def known_tokens(known, vocab):
    return torch.randperm(vocab)[:known].sort().values.int()


@pytest.mark.parametrize(
    ("known", "vocab", "count"), [(1, 1, 1), (50, 300, 8), (1100, 1100, 5), (2100, 9000, 10)]
)
def test_candidates_are_the_references(known, vocab, count):
    """With any mix of filters; -inf where fewer tokens are kept."""
    rows = len(FILTERS)
    logits_RN, draw = peaked_and_flat(rows, known), draw_of(rows)
    logits_RN[3::5] += 1e-3 * torch.randn(logits_RN[3::5].shape)
    target_ids_N = None if known == vocab else known_tokens(known, vocab)
    found = find(logits_RN, target_ids_N, FILTERS, draw, count)
    ids_N = torch.arange(known) if target_ids_N is None else target_ids_N
    logits_RV = over_the_target(logits_RN, ids_N, vocab)
    assert_candidates_are_near(found, logits_RV, FILTERS, draw, count)


def test_the_vocabulary_of_a_drafter_of_kimi(monkeypatch):
    """32,000 of 163,840 tokens, in bf16."""
    monkeypatch.setattr(gpu, "_BLOCKS_OF_PROGRAM", 32)
    monkeypatch.setattr(kept_limit, "_BLOCKS_OF_TILE", 32)
    filters, draw = [Filters(0.0), Filters(0.8, 50, 0.95)], draw_of(2)
    logits_RN, target_ids_N = (9 * torch.randn(2, 32_000)).bfloat16(), known_tokens(32_000, 163_840)
    found = find(logits_RN, target_ids_N, filters, draw, 8)
    logits_RV = over_the_target(logits_RN, target_ids_N, 163_840)
    assert_candidates_are_near(found, logits_RV, filters, draw, 8)


def test_of_equal_candidates_the_smaller_tokens_come_first():
    """In one block and in several, also where the last of them ties with some that are left out."""
    logits_RN = torch.randint(0, 3, (4, 3000)).float()
    logits_RN[2] = 1.0
    logits_RN[3, 2000:] = torch.tensor([0.0, -0.0]).repeat(500)
    found = find(logits_RN, None, [Filters(0.0)] * 4, draw_of(4), 12)
    expected_RC = logits_RN.sort(dim=-1, descending=True, stable=True).indices[:, :12]
    assert torch.equal(found.tokens_RC, expected_RC)


def test_programs_neither_meet_nor_stray_and_rows_are_alone():
    logits_RN, draw, filters = peaked_and_flat(5, 1500), draw_of(5), FILTERS[:5]
    scratch, found = buffers(5, 1500, 4)
    arguments = logits_RN, None, row_filters(filters), draw, scratch, found
    launch_guarded(lambda: gpu.agreement_candidates(*arguments), *found)
    for row in (0, 3):
        own = type(draw)(*(of[row : row + 1] for of in draw))
        alone = find(logits_RN[row : row + 1], None, filters[row : row + 1], own, 4)
        assert all(torch.equal(a[row : row + 1], b) for a, b in zip(found, alone, strict=True))


def test_another_order_would_be_told():
    """Control."""
    logits_RN, draw, filters = torch.randn(1, 500), draw_of(1), [Filters(1.0)]
    found = find(logits_RN, None, filters, draw, 4)
    assert_candidates_are_near(found, logits_RN, filters, draw, 4)
    with pytest.raises(AssertionError):
        assert_candidates_are_near(
            found._replace(tokens_RC=found.tokens_RC.flip(1)), logits_RN, filters, draw, 4
        )
