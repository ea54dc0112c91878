"""Agreement sampling: filters against plain loops, and that a row feels nothing but itself.

Legend: N nodes, V vocabulary.
"""

import math
from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import sampling
from kernels.noise import seeds_of_rows
from kernels.sampling import (
    Filters,
    Penalties,
    agreement_candidates,
    agreement_scores,
    agreement_tokens,
    filtered_logits,
    log_normalizer,
    penalized_logits,
    token_logprobs,
    top_logprobs,
)

FILTERS = [
    Filters(1.0),
    Filters(0.7, top_k=20),
    Filters(1.3, top_p=0.937),
    Filters(0.9, min_p=0.0713),
    Filters(1.1, top_k=300, top_p=0.713),
    Filters(2.0, top_k=-1, top_p=0.991, min_p=0.0007),
    Filters(0.8, top_k=5, top_p=0.519, min_p=0.0317),
]
every_filter = pytest.mark.parametrize("filters", FILTERS, ids=str)
seeds = st.integers(0, 2**64 - 1)


def normal(*shape, seed, spread=3.0):
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def peaked_and_flat(vocab, seed):
    """Rows of which some keep a handful of tokens and others thousands."""
    spreads_N1 = torch.tensor([8.0, 0.01, 3.0, 1.0, 0.2])[:, None]
    return spreads_N1 * normal(5, vocab, seed=seed, spread=1)


def plainly_kept(logits, filters):
    """Return the tokens that are kept, filter after filter, by the definitions vLLM follows."""
    scaled = [logit / filters.temperature for logit in logits]
    kept = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    weights = [math.exp(logit - max(scaled)) for logit in scaled]
    kept = [token for token in kept if weights[token] >= filters.min_p]
    if 0 < filters.top_k < len(kept):
        last = scaled[kept[filters.top_k - 1]]
        kept = [token for token in kept if scaled[token] >= last]
    if filters.top_p < 1:
        mass = list(accumulate(weights[token] for token in kept))
        last = scaled[kept[bisect_left(mass, filters.top_p * mass[-1])]]
        kept = [token for token in kept if scaled[token] >= last]
    return set(kept)


@every_filter
@pytest.mark.parametrize("vocab", [1, 2, 50, 700])
def test_what_is_kept_is_what_the_definitions_say(filters, vocab):
    for logits_NV in (normal(8, vocab, seed=vocab), peaked_and_flat(vocab, seed=vocab)):
        kept_NV = filtered_logits(logits_NV, filters) > -torch.inf
        for logits_V, kept_V in zip(logits_NV.tolist(), kept_NV, strict=True):
            assert set(kept_V.nonzero()[:, 0].tolist()) == plainly_kept(logits_V, filters)


@every_filter
def test_tokens_that_tie_with_the_last_one_kept_are_kept_too(filters):
    """Logits on a coarse grid, so that most tokens tie."""
    logits_NV = (normal(20, 200, seed=1) / 2).round()
    kept_NV = filtered_logits(logits_NV, filters) > -torch.inf
    for logits_V, kept_V in zip(logits_NV, kept_NV, strict=True):
        assert set(kept_V.nonzero()[:, 0].tolist()) == plainly_kept(logits_V.tolist(), filters)
        assert (logits_V[kept_V].min() > logits_V[~kept_V]).all()


@every_filter
def test_what_is_kept_keeps_its_logit_over_the_temperature(filters):
    logits_NV = normal(6, 300, seed=2)
    kept_NV = filtered_logits(logits_NV, filters)
    scaled_NV = logits_NV / filters.temperature
    assert torch.equal(kept_NV, torch.where(kept_NV > -torch.inf, kept_NV, -torch.inf))
    assert torch.equal(kept_NV[kept_NV > -torch.inf], scaled_NV[kept_NV > -torch.inf])


@pytest.mark.parametrize(
    "filters", [Filters(1.0, 1), Filters(1.0, 0, 0.0), Filters(1.0, 0, 1, 1.0)]
)
def test_the_narrowest_filters_keep_the_likeliest_token_alone(filters):
    logits_NV = normal(6, 300, seed=3)
    kept_NV = filtered_logits(logits_NV, filters) > -torch.inf
    assert kept_NV.nonzero().tolist() == [[n, t] for n, t in enumerate(logits_NV.argmax(-1))]


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 5.0])
def test_a_head_that_is_doubled_finds_the_limit_of_a_full_sort(top_p, spread):
    """Of flat rows the first head of 64 tokens holds too little, and so does the second."""
    logits_NV = normal(3, 5000, seed=4, spread=spread)
    sorted_NV = logits_NV.sort(dim=-1, descending=True).values
    mass_NV = torch.exp(sorted_NV - log_normalizer(logits_NV)).cumsum(-1)
    last_N1 = (mass_NV < top_p).sum(-1, keepdim=True).clamp(max=4999)
    limit_N1 = sorted_NV.gather(-1, last_N1)
    kept_NV = filtered_logits(logits_NV, Filters(1.0, top_p=top_p))
    assert torch.equal(kept_NV, logits_NV.masked_fill(logits_NV < limit_N1, -torch.inf))


@settings(max_examples=30)
@given(st.integers(0, 1000), seeds, st.integers(0, 2**20))
def test_at_temperature_zero_the_likeliest_token_is_it(case, seed, position):
    logits_NV = normal(4, 200, seed=case)
    filters = Filters(0.0, top_k=3, top_p=0.5)
    tokens_N = agreement_tokens(logits_NV, torch.full((4,), position), seed, filters)
    assert torch.equal(tokens_N, logits_NV.argmax(-1))


@pytest.mark.parametrize("few", [0, 10**6])
def test_of_equal_sums_the_smallest_token_is_it(few, monkeypatch):
    """Only then do all ways of computing a token agree."""
    monkeypatch.setattr(sampling, "_FEW_CANDIDATES", few)
    for noise in ("gumbel", "gumbel_of_vocabulary"):
        monkeypatch.setattr(sampling, noise, lambda *_: torch.zeros(1))
    logits_NV = torch.zeros(3, 90)
    logits_NV[0, [70, 30, 80]], logits_NV[1, [89, 88]], logits_NV[2, [5, 0]] = 2.0, 2.0, 2.0
    for temperature in (0.0, 1.0):
        tokens_N = agreement_tokens(logits_NV, torch.arange(3), 0, Filters(temperature))
        assert tokens_N.tolist() == [30, 88, 0]


@every_filter
@settings(max_examples=15)
@given(case=st.integers(0, 2**32), seed=seeds, vocab=st.sampled_from([1, 5, 333, 3000]))
def test_few_candidates_and_the_whole_vocabulary_give_the_same_token(filters, case, seed, vocab):
    logits_NV, positions_N = peaked_and_flat(vocab, seed=case), torch.arange(5) + case
    tokens = []
    for few in (0, 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampling, "_FEW_CANDIDATES", few)
            tokens.append(agreement_tokens(logits_NV, positions_N, seed, filters))
    assert torch.equal(*tokens)


@every_filter
@given(own=st.lists(seeds, min_size=5, max_size=5))
def test_rows_of_many_seeds_draw_each_with_its_own(filters, own):
    logits_NV, positions_N = peaked_and_flat(333, seed=1), torch.arange(5) + 7
    seeds_N = seeds_of_rows(own, positions_N.device)
    together = agreement_tokens(logits_NV, positions_N, seeds_N, filters)
    rows = zip(logits_NV.split(1), positions_N.split(1), own, strict=True)
    assert torch.equal(together, torch.cat([agreement_tokens(*row, filters) for row in rows]))


@every_filter
@settings(max_examples=15)
@given(case=st.integers(0, 2**32), seed=seeds, vocab=st.sampled_from([1, 5, 127, 128, 333, 3000]))
def test_the_first_candidate_is_the_token_that_is_chosen(filters, case, seed, vocab):
    logits_NV, positions_N = peaked_and_flat(vocab, seed=case), torch.arange(5) + case
    for temperature in (filters.temperature, 0.0):
        args = logits_NV, positions_N, seed, replace(filters, temperature=temperature)
        ids_NC, _ = agreement_candidates(*args, 4)
        assert ids_NC.shape == (5, min(4, vocab))
        assert torch.equal(ids_NC[:, 0], agreement_tokens(*args))


@every_filter
@pytest.mark.parametrize(("vocab", "count"), [(1, 1), (50, 8), (333, 63), (3000, 5)])
def test_candidates_are_the_largest_of_log_softmax(filters, vocab, count):
    """Where fewer are kept, the others have no probability."""
    args = peaked_and_flat(vocab, seed=9), torch.arange(5), 3, filters
    expected_NV = torch.log_softmax(agreement_scores(*args), dim=-1)
    ids_NC, scores_NC = agreement_candidates(*args, count)
    torch.testing.assert_close(scores_NC, expected_NV.topk(count).values, rtol=1e-6, atol=3e-6)
    torch.testing.assert_close(scores_NC, expected_NV.gather(-1, ids_NC), rtol=1e-6, atol=3e-6)
    assert (scores_NC <= 0).all()
    assert all(len(set(ids)) == count for ids in ids_NC.tolist())


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=700),
    st.integers(1, 20),
    st.booleans(),
)
def test_of_equal_candidates_the_smaller_tokens_come_first(steps, count, masked):
    """Also where the last of them ties with some that are left out."""
    logits_1V = torch.tensor([steps]).float()
    if masked:
        logits_1V[logits_1V == 0] = -torch.inf
    ids_1C, _ = agreement_candidates(logits_1V, torch.arange(1), 0, Filters(0.0), count)
    ranked = sorted(range(len(steps)), key=lambda token: -steps[token])
    assert ids_1C.tolist() == [ranked[:count]]


def assert_rows_are_independent(logits_NV, seed, filters):
    """Every row gives the same bits alone and in every company of its neighbours."""
    positions_N = torch.arange(len(logits_NV)) + 17
    tokens_N = agreement_tokens(logits_NV, positions_N, seed, filters)
    kept_NV, logprobs_N = filtered_logits(logits_NV, filters), token_logprobs(logits_NV, tokens_N)
    candidates = agreement_candidates(logits_NV, positions_N, seed, filters, 5)
    for start, end in product(range(len(logits_NV)), range(1, len(logits_NV) + 1)):
        if rows := range(len(logits_NV))[start:end]:
            part, cut = logits_NV[start:end], slice(rows[0], rows[-1] + 1)
            assert torch.equal(filtered_logits(part, filters), kept_NV[cut])
            assert torch.equal(token_logprobs(part, tokens_N[cut]), logprobs_N[cut])
            chosen = agreement_tokens(part, positions_N[cut], seed, filters)
            assert torch.equal(chosen, tokens_N[cut])
            some = agreement_candidates(part, positions_N[cut], seed, filters, 5)
            assert all(torch.equal(a, b[cut]) for a, b in zip(some, candidates, strict=True))


@every_filter
@settings(max_examples=5)
@given(case=st.integers(0, 2**32), seed=seeds, vocab=st.sampled_from([1, 70, 1500, 3001]))
def test_a_row_does_not_feel_the_rows_beside_it(filters, case, seed, vocab):
    assert_rows_are_independent(peaked_and_flat(vocab, seed=case), seed, filters)


def sums_alone_and_beside_another(log_sum):
    """Yield log sums of rows that are large enough for torch to split one among threads."""
    for case in range(50):
        logits_NV = normal(2, 40_000, seed=case)
        yield log_sum(logits_NV[:1]), log_sum(logits_NV)[:1]


def test_two_threads_keep_rows_independent(two_threads):
    assert all(torch.equal(*sums) for sums in sums_alone_and_beside_another(log_normalizer))
    assert_rows_are_independent(normal(2, 40_000, seed=1), 5, Filters(1.0, top_p=0.937))


def test_the_sum_of_the_library_would_break_the_law(two_threads):
    """Control: with two threads the sum of one row is not that of the row beside others."""
    sums = sums_alone_and_beside_another(lambda logits_NV: logits_NV.logsumexp(-1))
    if all(torch.equal(*pair) for pair in sums):
        pytest.skip("this library sums a row in the same order alone and beside others")


@pytest.mark.parametrize("vocab", [1, 7, 1024, 1025, 30_000])
def test_logprobs_are_those_of_log_softmax(vocab):
    logits_NV = torch.cat((normal(4, vocab, seed=5), peaked_and_flat(vocab, seed=5)))
    tokens_N = torch.arange(len(logits_NV)) % vocab
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1)
    picked_N = logprobs_NV.gather(-1, tokens_N[:, None])[:, 0]
    torch.testing.assert_close(token_logprobs(logits_NV, tokens_N), picked_N, rtol=1e-6, atol=3e-6)
    count = min(vocab, 5)
    ids_NC, logprobs_NC = top_logprobs(logits_NV, count)
    expected = logprobs_NV.topk(count, dim=-1).values
    torch.testing.assert_close(logprobs_NC, expected, rtol=1e-6, atol=3e-6)
    torch.testing.assert_close(logprobs_NC, logprobs_NV.gather(-1, ids_NC), rtol=1e-6, atol=3e-6)


def test_logprobs_of_masked_tokens_are_minus_infinity():
    logits_NV = normal(2, 50, seed=6)
    logits_NV[:, 10:] = -torch.inf
    assert token_logprobs(logits_NV, torch.tensor([20, 5])).isneginf().tolist() == [True, False]
    torch.testing.assert_close(
        log_normalizer(logits_NV)[:, 0], torch.logsumexp(logits_NV[:, :10], dim=-1)
    )


@settings(max_examples=30)
@given(
    case=st.integers(0, 2**32),
    presence=st.sampled_from([0.0, 0.5, -1.5]),
    frequency=st.sampled_from([0.0, 0.25, -0.75]),
    repetition=st.sampled_from([1.0, 1.3, 0.8]),
)
def test_penalties_are_those_of_a_plain_loop(case, presence, frequency, repetition):
    generator = torch.Generator().manual_seed(case)
    logits_NV = normal(3, 40, seed=case)
    answer = torch.randint(0, 4, (3, 40), generator=generator) * (normal(3, 40, seed=case + 1) > 0)
    seen_NV = (answer > 0) | (torch.rand(3, 40, generator=generator) > 0.7)
    expected = torch.empty(3, 40)
    for node, token in product(range(3), range(40)):
        logit, count = logits_NV[node, token].item(), answer[node, token].item()
        if seen_NV[node, token]:
            logit = logit / repetition if logit > 0 else logit * repetition
        expected[node, token] = logit - frequency * count - (presence if count else 0)
    penalties = Penalties(presence, frequency, repetition)
    penalized_NV = penalized_logits(logits_NV, answer, seen_NV, penalties)
    torch.testing.assert_close(penalized_NV, expected, rtol=1e-6, atol=1e-6)


def test_no_penalties_change_nothing():
    logits_NV = normal(3, 40, seed=7)
    counts_NV = torch.arange(120).view(3, 40) % 4
    nothing = Penalties(presence=0.0, frequency=0.0, repetition=1.0)
    assert torch.equal(penalized_logits(logits_NV, counts_NV, counts_NV > 0, nothing), logits_NV)
