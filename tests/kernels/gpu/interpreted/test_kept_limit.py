"""Limits of the filters against the reference and against float64.

Legend: R rows, V vocabulary, B blocks.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gpu import kept_limit
from kernels.gpu.kept_limit import kept_limits
from kernels.gpu.vocabulary import BLOCK_LEN
from kernels.sampling import Filters, filtered_logits
from tests.kernels.gpu.interpreted.sampled_rows import (
    FILTERS,
    peaked_and_flat,
    row_filters,
    unshaped,
)
from tests.kernels.gpu.proofs.memory_guard import launch_guarded

# Masses are within a millionth: exponentials of float32 logits, and the reference's running sum.
ERROR = 3e-6


def limits_of(logits_RV, filters, launch=None):
    """Return the limits of rows, NaN of those that no filter touches."""
    padded_RV = F.pad(logits_RV, (0, -logits_RV.shape[1] % BLOCK_LEN), value=-torch.inf)
    peaks_RB = padded_RV.unflatten(1, (-1, BLOCK_LEN)).amax(-1)
    kept_RV = torch.full(logits_RV.shape, torch.nan)
    limits_R = torch.full((len(logits_RV),), torch.nan)
    buffers = logits_RV, unshaped(logits_RV), peaks_RB, row_filters(filters), kept_RV, limits_R
    (launch or plainly)(lambda: kept_limits(*buffers), kept_RV, limits_R)
    return limits_R


def plainly(launch, *_written):
    launch()


def assert_top_p_is_kept(scaled_V, limit, among_V, top_p):
    """Of what the filters before it keep: enough mass, and too little without the last value."""
    masses_V = scaled_V.double().sub(scaled_V.max()).exp().where(among_V, 0)
    need = torch.tensor(top_p).double() * masses_V.sum()
    assert masses_V[scaled_V >= limit].sum() >= need * (1 - ERROR)
    assert masses_V[scaled_V > limit].sum() < need * (1 + ERROR)
    assert (scaled_V == limit).any()


def check_row(logits_V, one, limit):
    """Everything but top_p is exact."""
    some_k = 0 < one.top_k < len(logits_V)
    if one.temperature < 1e-5 or not (some_k or one.top_p < 1 or one.min_p > 0):
        assert limit.isnan()
        return
    before = Filters(one.temperature, one.top_k, 1.0, one.min_p)
    among_V = filtered_logits(logits_V[None], before)[0] > -torch.inf
    scaled_V = logits_V / one.temperature
    if one.top_p < 1:
        assert_top_p_is_kept(scaled_V, limit, among_V, one.top_p)
    else:
        assert torch.equal((scaled_V >= limit) & (scaled_V > -torch.inf), among_V)


@pytest.mark.parametrize(("vocab", "times"), [(1, 1), (7, 1), (1024, 1), (2500, 2)])
def test_limits_are_what_the_definitions_say(vocab, times):
    rows = len(FILTERS) * times
    logits_RV, filters = peaked_and_flat(rows, vocab), FILTERS * times
    for row, limit in enumerate(limits_of(logits_RV, filters)):
        check_row(logits_RV[row], filters[row], limit)


@settings(max_examples=8)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    st.integers(1, 41),
    st.sampled_from([0.05, 0.3, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.1, 0.9]),
)
def test_values_that_tie_stay_together(steps, top_k, top_p, min_p):
    """Among them both zeros."""
    logits_RV = torch.tensor([steps, [-step / 2 for step in steps]])
    one = Filters(0.5, top_k, top_p, min_p)
    for logits_V, limit in zip(logits_RV, limits_of(logits_RV, [one, one]), strict=True):
        check_row(logits_V, one, limit)


@pytest.mark.parametrize("top_k", [1, 16, 17, 16_383])
def test_a_limit_lies_in_any_block(top_k, monkeypatch):
    """With fewer likely tokens than blocks, as many, and more; most blocks are never read."""
    monkeypatch.setattr(kept_limit, "_BLOCKS_OF_TILE", 8)
    logits_RV = torch.randn(3, 16_384)
    logits_RV[1, -1000:] += 50
    logits_RV[2, ::BLOCK_LEN] += 50
    one = Filters(1.0, top_k)
    for logits_V, limit in zip(logits_RV, limits_of(logits_RV, [one] * 3), strict=True):
        assert limit == logits_V.sort(descending=True).values[top_k - 1]


@pytest.mark.parametrize("top_p", [0.5, 0.95, 1 - 2**-24])
def test_a_tail_of_many_tokens_has_its_mass(top_p):
    """One likely token, and all others far away but together as heavy."""
    logits_RV = torch.full((2, 10_000), -1.0)
    logits_RV[0, 7777] = 8.2
    logits_RV[1] += torch.linspace(0, 5, 10_000)
    one = Filters(1.0, top_p=top_p)
    for logits_V, limit in zip(logits_RV, limits_of(logits_RV, [one, one]), strict=True):
        check_row(logits_V, one, limit)


def test_what_is_too_far_to_be_kept_counts_as_mass():
    """A twelfth of all lies below where the limit is looked for, and moves it by some tokens."""
    head_V, tail_V = torch.linspace(-3.85, -3.95, 60), torch.full((9939,), -11.0)
    logits_V, one = torch.cat((torch.zeros(1), head_V, tail_V)), Filters(1.0, top_p=0.5)
    check_row(logits_V, one, limits_of(logits_V[None], [one])[0])


def test_where_the_largest_are_infinite_the_limit_keeps_what_the_reference_does():
    """Nothing finite weighs anything beside them, but top_k counts it."""
    logits_RV = peaked_and_flat(len(FILTERS), 1500)
    logits_RV[:, [7, 1100]] = torch.inf
    logits_RV[:, 8] = 1.0
    for logits_V, one, limit in zip(logits_RV, FILTERS, limits_of(logits_RV, FILTERS), strict=True):
        if one in (Filters(0.0), Filters(1.0)):
            assert limit.isnan()
        else:
            kept_V = filtered_logits(logits_V[None], one)[0] > -torch.inf
            assert torch.equal(logits_V / one.temperature >= limit, kept_V)


def test_programs_neither_meet_nor_stray():
    logits_RV = peaked_and_flat(2, 2500)
    limits_R = limits_of(logits_RV, FILTERS[5:7], launch_guarded)
    assert torch.equal(limits_R, limits_of(logits_RV, FILTERS[5:7]))


def test_a_limit_one_value_off_would_be_told():
    """Control."""
    logits_V, one = torch.randn(500), Filters(1.0, top_p=0.7)
    right = limits_of(logits_V[None], [one])[0]
    values = logits_V.sort().values
    at = int((values == right).nonzero()[0, 0])
    check_row(logits_V, one, right)
    for wrong in (values[at - 1], values[at + 1]):
        with pytest.raises(AssertionError):
            check_row(logits_V, one, wrong)
