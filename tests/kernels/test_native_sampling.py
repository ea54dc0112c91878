"""The native sampler: its noise, its tokens against the reference's, and the law that rows obey.

Legend: N rows, V vocabulary.
"""

from contextlib import contextmanager
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import native
from kernels.noise import gumbel_of_vocabulary, philox, seeds_of_rows
from kernels.sampling import (
    Filters,
    agreement_candidates,
    agreement_scores,
    agreement_tokens,
    filtered_logits,
    log_normalizer,
    token_logprobs,
    top_logprobs,
)

VOCABS = [1, 7, 1000, 1025, 49152]
FILTERS = [
    Filters(0.0),
    Filters(1.0),
    Filters(0.7, top_k=20),
    Filters(1.3, top_p=0.937),
    Filters(0.9, min_p=0.0713),
    Filters(1.1, top_k=300, top_p=0.713),
    Filters(2.0, top_k=-1, top_p=0.991, min_p=0.0007),
    Filters(0.8, top_k=5, top_p=0.519, min_p=0.0317),
    Filters(1.0, top_k=1),
    Filters(1.0, top_p=0.0),
    Filters(1.0, min_p=1.0),
]
every_filter = pytest.mark.parametrize("filters", FILTERS, ids=str)
every_vocab = pytest.mark.parametrize("vocab", VOCABS)
seeds = st.integers(0, 2**64 - 1)
EPSILON = 2**-23


@pytest.fixture(scope="module", autouse=True)
def _native():
    try:
        native.enable(2)
    except native.NativeUnavailableError as error:
        pytest.skip(str(error))
    yield
    native.disable()


@contextmanager
def threads(count):
    torch.ops.slipstream.set_num_threads(count)
    yield
    torch.ops.slipstream.set_num_threads(2)


def by_reference(function, *args):
    """Call something with all of the reference below it."""
    native.disable()
    try:
        return function(*args)
    finally:
        native.enable(2)


def rows_of_all_kinds(vocab, seed):
    """Peaked and flat ones, one of coarse steps where most tokens tie, one that is half masked."""
    generator = torch.Generator().manual_seed(seed)
    spreads_N1 = torch.tensor([8.0, 0.01, 3.0, 1.0, 3.0, 4.0, 0.0])[:, None]
    logits_NV = spreads_N1 * torch.randn(len(spreads_N1), vocab, generator=generator)
    logits_NV[4] = logits_NV[4].round()
    logits_NV[5, 1::2] = -torch.inf
    return logits_NV


def noise_of(seed, positions_N, vocab):
    """Return the uniforms and the noise that the native sampler draws."""
    seeds_N = seeds_of_rows([seed] * len(positions_N), positions_N.device)
    return torch.ops.slipstream.agreement_noise(positions_N, seeds_N, vocab)


@settings(max_examples=40)
@given(
    seed=seeds,
    vocab=st.integers(1, 3000),
    at=st.lists(st.integers(0, 2**31), min_size=1, max_size=4),
)
def test_the_uniforms_are_the_references_bit_for_bit(seed, vocab, at):
    positions_N = torch.tensor(at)
    counters = torch.arange(-(-vocab // 4)).expand(len(at), -1)
    zeros = torch.zeros_like(counters)
    words = philox(seed, (counters, zeros + positions_N[:, None], zeros, zeros))
    words_NV = torch.stack(words, dim=-1).flatten(-2)[:, :vocab]
    uniform_NV = ((words_NV.double() + 0.5) * 2**-32).float().clamp_(max=1 - 2**-24)
    assert torch.equal(noise_of(seed, positions_N, vocab)[0], uniform_NV)


def assert_noise_is_near(noise_NV, expected_NV):
    """Two units in the last place of what is at least 1, as the noise is near zero and through it.

    It may be a difference of logarithms that cancel, whose error is that of the larger one.
    """
    assert ((noise_NV - expected_NV).abs() <= 2 * EPSILON * expected_NV.abs().clamp(min=1)).all()


@settings(max_examples=20)
@given(seed=seeds, position=st.integers(0, 2**31))
def test_the_noise_is_the_references_but_for_the_last_places(seed, position):
    positions_N = torch.tensor([position])
    noise_NV = noise_of(seed, positions_N, 30_000)[1]
    assert_noise_is_near(noise_NV, gumbel_of_vocabulary(seed, positions_N[:, None], 30_000))


def assert_tokens_are_near(tokens_N, expected_N, scores_NV):
    """The same, or one that beats it by no more than the last places of noise and sum.

    Each of two candidates' scores errs by two units of noise and half of one for the sum.
    """
    scores = [scores_NV.gather(1, chosen[:, None])[:, 0] for chosen in (tokens_N, expected_N)]
    apart_N = torch.where(tokens_N == expected_N, 0, (scores[0] - scores[1]).abs())
    noise_bound = 25
    assert (apart_N <= 8 * EPSILON * scores[1].abs().clamp(min=noise_bound)).all()


def reference_scores(logits_NV, positions_N, seed, filters):
    """Return what the reference takes the argmax of."""
    if filters.temperature == 0:
        return logits_NV
    noise_NV = gumbel_of_vocabulary(seed, positions_N[:, None], logits_NV.shape[1])
    return filtered_logits(logits_NV, filters) + noise_NV


@every_filter
@every_vocab
def test_tokens_are_the_references(filters, vocab):
    for case, seed in enumerate((0, 2**64 - 1, 2**63 + 12345)):
        logits_NV = rows_of_all_kinds(vocab, case)
        positions_N = torch.arange(len(logits_NV)) * 1000 + case
        args = logits_NV, positions_N, seed, filters
        expected_N = by_reference(agreement_tokens, *args)
        scores_NV = by_reference(reference_scores, *args)
        assert_tokens_are_near(agreement_tokens(*args), expected_N, scores_NV)


def test_another_filter_would_be_told():
    """Control."""
    args = rows_of_all_kinds(1000, 0), torch.arange(7), 0, Filters(1.0)
    scores_NV = reference_scores(*args)
    tokens_N = agreement_tokens(*args[:3], Filters(1.0, top_k=1))
    with pytest.raises(AssertionError):
        assert_tokens_are_near(tokens_N, by_reference(agreement_tokens, *args), scores_NV)


@pytest.mark.parametrize(
    "filters", [Filters(1.0, top_k=3), Filters(1.0, top_p=0.7), Filters(1.0, min_p=0.5)], ids=str
)
def test_all_that_is_kept_can_win_and_nothing_else(filters):
    """Every position draws anew: all tokens that are kept, ties among them, are seen."""
    either_side_of_half = 1.3068, 1.3069
    logits_V = torch.tensor([2.0, 1.0, 2.0, 1.9, -1.0, 1.9, -torch.inf, *either_side_of_half])
    logits_NV = logits_V.expand(3000, -1)
    tokens_N = agreement_tokens(logits_NV, torch.arange(3000), 3, filters)
    kept_V = by_reference(filtered_logits, logits_V[None], filters)[0] > -torch.inf
    assert tokens_N.unique().tolist() == kept_V.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("filters", [Filters(0.0), Filters(1.0), Filters(1.0, top_k=1)], ids=str)
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("first", [0, 5, 30_000, 49_151])
def test_of_equal_sums_the_smallest_token_is_it(filters, rows, first):
    """In another lane, vector, block or thread's share. Logits this large swallow the noise."""
    logits_NV = torch.zeros(rows, 49_152)
    for token in (first, first + 1, first + 16, first + 77, first + 2000, 48_000, 49_151):
        logits_NV[:, max(first, min(token, 49_151))] = 1e9
    tokens_N = agreement_tokens(logits_NV, torch.arange(rows), 0, filters)
    assert tokens_N.tolist() == [first] * rows


def test_all_that_ties_with_the_last_one_kept_may_win():
    logits_NV = torch.zeros(2, 5000)
    logits_NV[1, 2000:] = 3.0
    noise_NV = noise_of(0, torch.arange(2), 5000)[1]
    noise_NV[1, :2000] = -torch.inf
    tokens_N = agreement_tokens(logits_NV, torch.arange(2), 0, Filters(1.0, top_k=1, top_p=0.0))
    assert torch.equal(tokens_N, (noise_NV + logits_NV).argmax(-1))


@every_filter
@every_vocab
def test_the_first_candidate_is_the_token_that_is_chosen(filters, vocab):
    for case, seed in enumerate((0, 2**64 - 1, 2**63 + 12345)):
        logits_NV = rows_of_all_kinds(vocab, case)
        args = logits_NV, torch.arange(len(logits_NV)) * 1000 + case, seed, filters
        ids_NC, _ = agreement_candidates(*args, 4)
        assert torch.equal(ids_NC[:, 0], agreement_tokens(*args))


@every_filter
@every_vocab
def test_scores_are_logits_and_noise_of_what_is_kept(filters, vocab):
    logits_NV, positions_N = rows_of_all_kinds(vocab, 8), torch.arange(7) + 3
    scores_NV = agreement_scores(logits_NV, positions_N, 5, filters)
    if filters.temperature == 0:
        assert torch.equal(scores_NV, logits_NV)
        return
    kept_NV = scores_NV > -torch.inf
    expected_NV = logits_NV / filters.temperature + noise_of(5, positions_N, vocab)[1]
    assert torch.equal(scores_NV[kept_NV], expected_NV[kept_NV])
    # Which is the last token within top_p may hang on the last place of a sum.
    others_NV = kept_NV != (by_reference(filtered_logits, logits_NV, filters) > -torch.inf)
    assert others_NV.sum(-1).max() <= vocab / 10_000


@pytest.mark.parametrize("filters", [Filters(0.0), Filters(1.0), Filters(0.7, top_k=20)], ids=str)
def test_candidates_are_the_references_but_for_the_last_places(filters):
    """Of rows in which none of the likely tokens tie."""
    logits_NV = rows_of_all_kinds(1000, 6)[[0, 2, 3]]
    args = logits_NV, torch.arange(3), 5, filters, 6
    (ids_NC, scores_NC), expected = (
        agreement_candidates(*args),
        by_reference(agreement_candidates, *args),
    )
    assert torch.equal(ids_NC, expected[0])
    torch.testing.assert_close(scores_NC, expected[1], rtol=1e-5, atol=1e-5)


def results(logits_NV, positions_N, seed, filters):
    """Return all that is said about some rows."""
    candidates = agreement_candidates(
        logits_NV, positions_N, seed, filters, min(5, logits_NV.shape[1])
    )
    tokens_N = agreement_tokens(logits_NV, positions_N, seed, filters)
    logprobs_N = token_logprobs(logits_NV, tokens_N)
    top = top_logprobs(logits_NV, min(5, logits_NV.shape[1]))
    return tokens_N, logprobs_N, log_normalizer(logits_NV), *top, *candidates


def assert_rows_are_independent(logits_NV, seed, filters, slices):
    """Every row gives the same bits in every company, on any number of threads."""
    positions_N = torch.arange(len(logits_NV)) + 17
    whole = results(logits_NV, positions_N, seed, filters)
    for count, part in product((1, 2, 3), slices):
        with threads(count):
            found = results(logits_NV[part], positions_N[part], seed, filters)
        assert all(torch.equal(a, b[part]) for a, b in zip(found, whole, strict=True))


@every_filter
@settings(max_examples=4, deadline=None)
@given(case=st.integers(0, 2**32), seed=seeds, vocab=st.sampled_from([1, 70, 1500, 3001, 20_000]))
def test_a_row_does_not_feel_the_rows_beside_it(filters, case, seed, vocab):
    slices = [slice(0, 7), slice(0, 1), slice(1, 3), slice(2, 7), slice(6, 7), slice(0, 7, 3)]
    assert_rows_are_independent(rows_of_all_kinds(vocab, case), seed, filters, slices)


@every_filter
def test_rows_that_all_threads_share_do_not_feel_it(filters):
    """Long enough that every pass over them is shared."""
    logits_NV = rows_of_all_kinds(49_152, 5)
    slices = [slice(0, 7), slice(0, 1), slice(1, 2), slice(2, 7)]
    assert_rows_are_independent(logits_NV, 9, filters, slices)


@pytest.mark.parametrize("vocab", [*VOCABS, 163_840])
def test_log_normalizers_are_those_of_double_precision(vocab):
    logits_NV = rows_of_all_kinds(vocab, 1)
    exact_N1 = logits_NV.double().logsumexp(-1, keepdim=True)
    torch.testing.assert_close(
        log_normalizer(logits_NV).double(), exact_N1, rtol=1.2e-7, atol=2.4e-7
    )


@every_vocab
def test_logprobs_are_logits_less_their_log_normalizer(vocab):
    logits_NV = rows_of_all_kinds(vocab, 4)
    tokens_N = torch.arange(len(logits_NV)) * 1000 % vocab
    picked_N1 = logits_NV.gather(-1, tokens_N[:, None])
    expected_N = (picked_N1 - log_normalizer(logits_NV))[:, 0]
    assert torch.equal(token_logprobs(logits_NV, tokens_N), expected_N)


def test_rows_that_lie_apart_or_on_each_other_are_read_where_they_lie():
    logits_NV = rows_of_all_kinds(3000, 2)
    for strided_NV in (logits_NV[::2, 500:2000], logits_NV[2:3].expand(4, -1), logits_NV.T):
        args = torch.arange(len(strided_NV)), 1, Filters(0.9, top_p=0.9)
        dense_NV = strided_NV.contiguous()
        assert torch.equal(agreement_tokens(strided_NV, *args), agreement_tokens(dense_NV, *args))
        assert torch.equal(log_normalizer(strided_NV), log_normalizer(dense_NV))
        tokens_N = args[0] % strided_NV.shape[1]
        logprobs_N = token_logprobs(dense_NV, tokens_N)
        assert torch.equal(token_logprobs(strided_NV, tokens_N), logprobs_N)


@every_filter
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_a_number_breaks_nothing(filters, bad):
    """A token comes out of rows with a bad logit and of rows with nothing else."""
    for vocab in VOCABS:
        logits_NV = rows_of_all_kinds(vocab, 3)
        logits_NV[:4, vocab // 2], logits_NV[4:] = bad, bad
        tokens_N = agreement_tokens(logits_NV, torch.arange(7), 0, filters)
        assert ((tokens_N >= 0) & (tokens_N < vocab)).all()
        if bad is torch.nan and vocab > 1:
            assert (tokens_N[:4] != vocab // 2).all()
            assert log_normalizer(logits_NV).isnan().all()


def test_no_rows_have_no_tokens():
    none_NV = torch.empty(0, 50)
    assert agreement_tokens(none_NV, torch.arange(0), 0, Filters(1.0, top_p=0.5)).shape == (0,)
    assert agreement_tokens(none_NV, torch.arange(0), 0, Filters(0.0)).shape == (0,)
    assert log_normalizer(none_NV).shape == (0, 1)
    assert token_logprobs(none_NV, torch.arange(0)).shape == (0,)


def test_wrong_shapes_are_refused():
    with pytest.raises(RuntimeError, match="logits must be"):
        agreement_tokens(torch.zeros(5), torch.arange(5), 0, Filters(1.0))
    with pytest.raises(RuntimeError, match="logits must be"):
        log_normalizer(torch.zeros(5, 0))
    for wrong in (-1, 3):
        with pytest.raises(RuntimeError, match="of a vocabulary of 3"):
            token_logprobs(torch.zeros(2, 3), torch.tensor([0, wrong]))
    with pytest.raises(RuntimeError, match="positions must be"):
        agreement_tokens(torch.zeros(5, 3), torch.arange(4), 0, Filters(1.0))
    with pytest.raises(RuntimeError, match="positions must be"):
        agreement_tokens(torch.zeros(5, 3), torch.arange(5).float(), 0, Filters(1.0))
    with pytest.raises(RuntimeError, match="seeds must be"):
        agreement_tokens(torch.zeros(5, 3), torch.arange(5), torch.arange(4), Filters(1.0))


@pytest.mark.parametrize("filters", [Filters(1.0), Filters(0.7, top_k=20, top_p=0.9)], ids=str)
def test_rows_of_many_seeds_draw_each_with_its_own(filters):
    logits_NV, positions_N = rows_of_all_kinds(700, 3), torch.arange(7) + 5
    own = [0, 1, 7, 2**31, 2**63 - 1, 2**63, 2**64 - 1]
    tokens_N = agreement_tokens(
        logits_NV, positions_N, seeds_of_rows(own, positions_N.device), filters
    )
    alone = [
        agreement_tokens(logits_NV[[i]], positions_N[[i]], seed, filters)
        for i, seed in enumerate(own)
    ]
    assert torch.equal(tokens_N, torch.cat(alone))


def test_shapes_are_known_without_computing():
    logits_NV, positions_N = torch.zeros(3, 50, device="meta"), torch.arange(3, device="meta")
    ops = torch.ops.slipstream
    assert ops.likeliest_tokens(logits_NV).shape == (3,)
    tokens_N = ops.agreement_tokens(logits_NV, positions_N, positions_N, 1.0, 0, 1.0, 0.0)
    assert (tokens_N.shape, tokens_N.dtype) == ((3,), torch.int64)
    assert ops.log_normalizer(logits_NV).shape == (3, 1)
    assert ops.token_logprobs(logits_NV, positions_N).shape == (3,)
    scores_NV = ops.agreement_scores(logits_NV, positions_N, positions_N, 1.0, 0, 1.0, 0.0)
    assert scores_NV.shape == (3, 50)
    noise = ops.agreement_noise(positions_N, positions_N, 9)
    assert [part.shape for part in noise] == [(3, 9), (3, 9)]
