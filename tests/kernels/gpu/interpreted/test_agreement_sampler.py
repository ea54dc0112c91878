"""The sampler against the reference, row by row, and the law that rows obey.

Legend: R rows, V vocabulary, S shards.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gpu import agreement_sampler, kept_limit
from kernels.gpu.agreement_sampler import Draw
from kernels.gpu.choice import merge_parts
from kernels.gpu.shaping import Shaping
from kernels.noise import gumbel_of_vocabulary
from kernels.sampling import Filters, agreement_scores, agreement_tokens, token_logprobs
from tests.kernels.gpu.interpreted.sampled_rows import (
    EPSILON,
    FILTERS,
    choose,
    draw_of,
    peaked_and_flat,
    row_filters,
    shaped,
    unshaped,
    unwritten_choice,
    unwritten_scratch,
)
from tests.kernels.gpu.proofs.memory_guard import as_bytes, launch_guarded


def reference_tokens(logits_RV, filters, draw):
    rows = zip(logits_RV.float().split(1), filters, *draw, strict=True)
    return torch.cat([agreement_tokens(of, at[None], int(seed), f) for of, f, seed, at in rows])


def reference_scores(logits_RV, filters, draw):
    rows = zip(logits_RV.float().split(1), filters, *draw, strict=True)
    return torch.cat([agreement_scores(of, at[None], int(seed), f) for of, f, seed, at in rows])


def assert_tokens_are_near(tokens_R, logits_RV, filters, draw):
    """The same, or one that beats it by no more than the last places of noise and sum.

    Noise errs by four units of its last place, and is less than 25.
    """
    expected_R = reference_tokens(logits_RV, filters, draw)
    scores_RV = reference_scores(logits_RV, filters, draw)
    scores = [scores_RV.gather(1, of[:, None])[:, 0] for of in (tokens_R, expected_R)]
    apart_R = torch.where(tokens_R == expected_R, 0, (scores[0] - scores[1]).abs())
    assert (apart_R <= 9 * EPSILON * scores[1].abs().clamp(min=25)).all()
    assert (tokens_R != expected_R).sum() <= 1 + len(tokens_R) // 50


def assert_logprobs_are_near(chosen, logits_RV):
    expected_R = token_logprobs(logits_RV.float(), chosen.tokens_R)
    torch.testing.assert_close(chosen.logprobs_R, expected_R, rtol=1e-6, atol=3e-6)


@pytest.mark.parametrize(
    ("vocab", "dtype", "times"),
    [
        (7, torch.bfloat16, 1),
        (1025, torch.bfloat16, 1),
        (2100, torch.float32, 1),
    ],
    ids=str,
)
def test_any_mix_of_rows_chooses_as_the_reference(vocab, dtype, times):
    rows = len(FILTERS) * times
    logits_RV, draw = peaked_and_flat(rows, vocab).to(dtype), draw_of(rows)
    chosen = choose(logits_RV, FILTERS * times, draw)
    assert_tokens_are_near(chosen.tokens_R, logits_RV, FILTERS * times, draw)
    assert_logprobs_are_near(chosen, logits_RV)


def test_another_filter_would_be_told():
    """Control."""
    logits_RV, draw = peaked_and_flat(4, 1000), draw_of(4)
    chosen = choose(logits_RV, [Filters(1.0, top_k=2)] * 4, draw)
    with pytest.raises(AssertionError):
        assert_tokens_are_near(chosen.tokens_R, logits_RV, [Filters(1.0)] * 4, draw)


def test_the_vocabulary_of_kimi(monkeypatch):
    """163,840 tokens in bf16. More blocks a program change nothing but the interpreter's time."""
    monkeypatch.setattr(agreement_sampler, "_BLOCKS_OF_PROGRAM", 64)
    monkeypatch.setattr(kept_limit, "_BLOCKS_OF_TILE", 64)
    filters = [Filters(0.0), Filters(1.0), Filters(0.8, 50, 0.95), Filters(1.0, top_p=0.9)]
    logits_RV, draw = (3 * torch.randn(4, 163_840)).bfloat16(), draw_of(4)
    logits_RV[2:] *= 3
    chosen = choose(logits_RV, filters, draw)
    assert_tokens_are_near(chosen.tokens_R, logits_RV, filters, draw)
    assert_logprobs_are_near(chosen, logits_RV)


def test_more_blocks_a_program_give_the_same_bits(monkeypatch):
    logits_RV, draw, filters = peaked_and_flat(3, 9000), draw_of(3), FILTERS[4:7]
    chosen = choose(logits_RV, filters, draw)
    monkeypatch.setattr(agreement_sampler, "_BLOCKS_OF_PROGRAM", 16)
    monkeypatch.setattr(kept_limit, "_BLOCKS_OF_TILE", 16)
    same = choose(logits_RV, filters, draw)
    assert all(torch.equal(a, b) for a, b in zip(chosen, same, strict=True))


@pytest.mark.parametrize("first", [0, 5, 1023, 4998])
def test_of_equal_scores_the_smallest_token_is_it(first):
    """In one block or another. Logits this large swallow the noise."""
    filters = [Filters(0.0), Filters(1.0), Filters(1.0, top_k=1), Filters(1.0, top_p=0.5)]
    logits_RV = torch.zeros(4, 5000)
    for token in (first, first + 1, first + 16, first + 2000, 4999):
        logits_RV[:, min(token, 4999)] = 1e9
    chosen = choose(logits_RV, filters, draw_of(4))
    assert chosen.tokens_R.tolist() == [first] * 4


def test_all_that_is_kept_can_win_and_nothing_else():
    """Every position draws anew: all tokens that are kept, ties among them, are seen."""
    logits_V, rows = torch.tensor([2.0, 1.0, 2.0, -1.0, -torch.inf, 2.0]), 14
    draw = Draw(torch.zeros(rows, dtype=torch.int64), torch.arange(rows))
    chosen = choose(logits_V.repeat(rows, 1), [Filters(1.0, top_k=2)] * rows, draw)
    assert chosen.tokens_R.unique().tolist() == [0, 2, 5]


def test_a_row_of_nothing_but_minus_infinity_chooses_a_token_there_is():
    filters = [Filters(0.0), Filters(1.0), Filters(1.0, 5, 0.5, 0.1)]
    logits_RV = torch.full((3, 1500), -torch.inf)
    chosen = choose(logits_RV, filters, draw_of(3))
    assert chosen.tokens_R.tolist() == [0, 0, 0]


def test_not_a_number_never_wins():
    filters = [Filters(0.0), Filters(1.0), Filters(1.0, 5, 0.5, 0.1)]
    logits_RV, draw = torch.randn(3, 1500), draw_of(3)
    without, of_none = (
        choose(logits_RV.index_fill(1, torch.tensor([7, 900]), value), filters, draw)
        for value in (-torch.inf, torch.nan)
    )
    assert torch.equal(of_none.tokens_R, without.tokens_R)


def shaping_of(rows, vocab):
    """Rows without a list, with a short one, with one that names most of their likely tokens."""
    tokens_RP = torch.stack([torch.randperm(vocab)[:40] for _ in range(rows)])
    counts_RP = torch.randint(0, 3, (rows, 40))
    return Shaping(
        torch.tensor([0, 5, 40])[torch.arange(rows) % 3].int(),
        tokens_RP.int(),
        counts_RP.int(),
        counts_RP > 0,
        10 * torch.randn(rows, 40),
        *torch.tensor([[0.5], [0.25], [1.3]]).expand(3, rows).contiguous(),
    )


def test_rows_choose_by_shaped_logits_and_tell_of_the_others():
    rows = len(FILTERS)
    logits_RV, draw = peaked_and_flat(rows, 1500), draw_of(rows)
    shaping = shaping_of(rows, 1500)
    by = shaped(logits_RV, shaping)
    chosen = choose(logits_RV, FILTERS, draw, by)
    own_RV = torch.where(by.lengths_R[:, None] > 0, by.logits_RV, logits_RV)
    assert_tokens_are_near(chosen.tokens_R, own_RV, FILTERS, draw)
    assert_logprobs_are_near(chosen, logits_RV)
    assert not torch.equal(chosen.tokens_R, choose(logits_RV, FILTERS, draw).tokens_R)


def test_a_logit_that_a_penalty_made_infinite_is_chosen_as_the_reference_does():
    """Under every filter; of several the first one, in whatever block they are."""
    rows = len(FILTERS)
    logits_RV, draw, tokens_RP = torch.randn(rows, 1500), draw_of(rows), torch.tensor([[1100, 7]])
    logits_RV[:, 7], logits_RV[:, 1100] = 6.0, 5.0
    seen_RP, zeros_RP = torch.ones(rows, 2, dtype=torch.bool), torch.zeros(rows, 2)
    tokens_RP, counts_RP = tokens_RP.int().repeat(rows, 1), zeros_RP.int()
    lengths_R = torch.tensor([1, 2])[torch.arange(rows) % 2].int()
    none_R, repetitions_R = torch.zeros(rows), torch.full((rows,), 1e-38)
    by = shaped(
        logits_RV,
        Shaping(lengths_R, tokens_RP, counts_RP, seen_RP, zeros_RP, none_R, none_R, repetitions_R),
    )
    assert by.logits_RV.isinf().sum(-1).tolist() == lengths_R.tolist()
    chosen = choose(logits_RV, FILTERS, draw, by)
    assert chosen.tokens_R.tolist() == [1100 if length == 1 else 7 for length in lengths_R]
    assert torch.equal(chosen.tokens_R, reference_tokens(by.logits_RV, FILTERS, draw))
    assert_logprobs_are_near(chosen, logits_RV)


def test_programs_neither_meet_nor_stray():
    """Rows that lie apart, as those of a wider buffer do."""
    filters, draw = FILTERS[4:8], draw_of(4)
    logits_RV = peaked_and_flat(4, 3000)[:, :2100]
    scratch, chosen = unwritten_scratch(4, 2100), unwritten_choice(4)
    arguments = logits_RV, unshaped(logits_RV), row_filters(filters), draw, scratch, chosen
    launch_guarded(lambda: agreement_sampler.agreement_tokens(*arguments), *scratch, *chosen)
    alike = choose(logits_RV.contiguous(), filters, draw)
    assert all(torch.equal(as_bytes(a), as_bytes(b)) for a, b in zip(chosen, alike, strict=True))


def test_a_row_does_not_feel_the_rows_beside_it():
    filters, draw = FILTERS[1:6], draw_of(5)
    logits_RV = peaked_and_flat(5, 2100)
    together = choose(logits_RV, filters, draw)
    for part in (slice(0, 1), slice(2, 3), slice(4, 5)):
        own = Draw(*(of[part] for of in draw))
        alone = choose(logits_RV[part], filters[part], own)
        assert all(torch.equal(a[part], b) for a, b in zip(together, alone, strict=True))


@settings(max_examples=3)
@given(st.integers(2, 4), st.sampled_from([1024, 1500, 3072]))
def test_shards_exchange_five_numbers_a_row(shards, width):
    """What they choose together is what one would that has all of the vocabulary."""
    filters = [Filters(0.0), Filters(1.0), Filters(0.7), Filters(1.3)]
    logits_RV, draw = peaked_and_flat(4, shards * width), draw_of(4)
    said = [
        choose(part_RV, filters, draw, first_token=shard * width).whole_R5
        for shard, part_RV in enumerate(logits_RV.split(width, dim=1))
    ]
    gathered_SR5, chosen = torch.stack(said), unwritten_choice(4)
    parts = gathered_SR5.permute(1, 2, 0)
    launch_guarded(lambda: merge_parts(parts, *chosen), *chosen)
    whole = choose(logits_RV, filters, draw)
    assert torch.equal(chosen.tokens_R, whole.tokens_R)
    torch.testing.assert_close(chosen.logprobs_R, whole.logprobs_R, rtol=1e-6, atol=3e-6)


def test_the_score_that_wins_is_logit_and_noise():
    """To the last places of the noise: the shards of a row are compared by it."""
    logits_RV, draw = torch.randn(3, 2100), draw_of(3)
    chosen = choose(logits_RV, [Filters(0.7)] * 3, draw)
    noise_RV = gumbel_of_vocabulary(draw.seeds_R[:, None], draw.positions_R[:, None], 2100)
    best_R = (logits_RV / 0.7 + noise_RV).amax(-1)
    torch.testing.assert_close(chosen.whole_R5[:, 2], best_R, rtol=1e-6, atol=1e-6)
