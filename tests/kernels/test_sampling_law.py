"""Agreement sampling draws the filtered softmax exactly, and a drafter agrees as theory promises.

Legend: N draws, V vocabulary.
"""

import numpy as np
import pytest
import torch
from scipy import stats

from kernels import sampling
from kernels.sampling import Filters, agreement_tokens, filtered_logits

# Below this a test of a distribution fails; by chance it would once in a million seeds.
REJECTED = 1e-6
DRAWS = 30_000
LOGITS_V = torch.tensor([2.0, 1.4, 1.1, 0.9, 0.3, 0.0, -0.2, -0.7, -1.1, -1.6, -2.0, -2.7])
FILTERS = [
    Filters(1.0),
    Filters(0.6),
    Filters(1.7),
    Filters(1.0, top_k=5),
    Filters(1.0, top_p=0.8),
    Filters(1.0, min_p=0.15),
    Filters(1.4, top_k=8, top_p=0.9, min_p=0.05),
]
every_filter = pytest.mark.parametrize("filters", FILTERS, ids=str)


def drawn(filters, seed=0, logits_V=LOGITS_V, positions_N=None):
    """Return the tokens of many positions that all have the same logits."""
    positions_N = torch.arange(DRAWS) if positions_N is None else positions_N
    return agreement_tokens(logits_V.expand(len(positions_N), -1), positions_N, seed, filters)


def likelihood(tokens_N, filters):
    """Return the p-value of Pearson's test that tokens were drawn from the filtered softmax."""
    probs_V = filtered_logits(LOGITS_V[None], filters)[0].double().softmax(-1).numpy()
    counts_V = np.bincount(tokens_N, minlength=len(probs_V))
    assert counts_V[probs_V == 0].sum() == 0, "a token was drawn that the filters exclude"
    kept_V = probs_V > 0
    return stats.chisquare(counts_V[kept_V], len(tokens_N) * probs_V[kept_V]).pvalue


@every_filter
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_positions_draw_from_the_filtered_softmax(filters, seed):
    assert likelihood(drawn(filters, seed), filters) > REJECTED


@pytest.mark.parametrize("filters", [FILTERS[0], FILTERS[-1]], ids=str)
def test_seeds_draw_from_the_filtered_softmax(filters):
    """Few positions, many seeds: what many users see at the same place."""
    tokens = [drawn(filters, seed, positions_N=torch.arange(10)) for seed in range(1000)]
    assert likelihood(torch.cat(tokens), filters) > REJECTED


def test_the_whole_vocabulary_draws_from_the_softmax(monkeypatch):
    monkeypatch.setattr(sampling, "_FEW_CANDIDATES", 0)
    assert likelihood(drawn(Filters(1.0)), Filters(1.0)) > REJECTED


def test_a_slightly_other_temperature_would_be_told():
    """Control."""
    assert likelihood(drawn(Filters(1.05)), Filters(1.0)) < REJECTED


def test_noise_reused_at_all_positions_would_be_told():
    """Control."""
    tokens_N = drawn(Filters(1.0), positions_N=torch.zeros(DRAWS, dtype=torch.int64))
    assert likelihood(tokens_N, Filters(1.0)) < REJECTED


def test_noise_that_is_not_gumbel_would_be_told(monkeypatch):
    """Control: the argmax of other noise samples something else."""
    gumbel = sampling.gumbel
    monkeypatch.setattr(sampling, "gumbel", lambda *where: 1.1 * gumbel(*where))
    assert likelihood(drawn(Filters(1.0)), Filters(1.0)) < REJECTED


def dependence(before_N, after_N):
    """Return the p-value of the test that two tokens were drawn independently."""
    table = np.zeros((len(LOGITS_V), len(LOGITS_V)))
    np.add.at(table, (before_N.numpy(), after_N.numpy()), 1)
    return stats.chi2_contingency(table[:8, :8]).pvalue


@pytest.mark.parametrize("lag", [1, 2, 64])
def test_what_was_drawn_before_says_nothing_about_what_is_drawn_next(lag):
    tokens_N = drawn(Filters(1.0))
    assert dependence(tokens_N[:-lag], tokens_N[lag:]) > REJECTED


def test_what_one_seed_draws_says_nothing_about_another():
    assert dependence(drawn(Filters(1.0), 1), drawn(Filters(1.0), 2)) > REJECTED


def test_draws_that_share_noise_would_be_told():
    """Control for the two tests above."""
    assert dependence(drawn(Filters(1.0)), drawn(Filters(1.7))) < REJECTED


@pytest.mark.parametrize("error", [0.0, 0.1, 0.5, 2.0])
def test_a_drafter_agrees_at_least_as_often_as_theory_promises(error):
    """(1 - d) / (1 + d) with d the total variation distance (Daliri et al., arXiv 2408.07978)."""
    off_V = error * torch.randn(len(LOGITS_V), generator=torch.Generator().manual_seed(1))
    guesses_N = drawn(Filters(1.0), logits_V=LOGITS_V + off_V)
    agreed = (guesses_N == drawn(Filters(1.0))).float().mean().item()
    distance = ((LOGITS_V + off_V).softmax(-1) - LOGITS_V.softmax(-1)).abs().sum().item() / 2
    sigma = 0.5 / DRAWS**0.5
    assert (1 - distance) / (1 + distance) - 5 * sigma < agreed <= 1 - distance + 5 * sigma


def test_a_drafter_without_the_seed_agrees_less_often():
    """Control: sharing the noise is what makes them agree."""
    agreed = (drawn(Filters(1.0), 1) == drawn(Filters(1.0), 2)).float().mean().item()
    assert agreed == pytest.approx((LOGITS_V.softmax(-1) ** 2).sum().item(), abs=0.02)
    assert agreed < 0.5
