"""Rounds over plain steps of eight models: R(K), from SpecForge's SpecBundle raw data.

One number a model, the overhead of a round, is fitted to R at 5 steps; three are shared by all. R
at 2, 3 and 7 steps is predicted.
"""

import functools

import pytest

from benchmarks.simulate import round_ratios
from benchmarks.simulation import spec_bundle

ROWS = {row.model: row for row in spec_bundle.ROWS}


@functools.cache
def simulated(model):
    return round_ratios(ROWS[model])


@pytest.mark.parametrize("model", ROWS)
def test_rounds_take_as_long_as_measured(model):
    """Within 10 %; 2 % where it was fitted."""
    measured, fitted = ROWS[model].ratio, spec_bundle.FITTED_STEPS
    assert simulated(model) == pytest.approx(measured, rel=0.1)
    assert simulated(model)[fitted] == pytest.approx(measured[fitted], rel=0.02)


@pytest.mark.parametrize("model", ROWS)
def test_no_overhead_is_negative(model):
    """Or the shared numbers would have taken more than there was."""
    assert 0 < ROWS[model].hardware().drafter.extend_ms < 12


def test_draft_rows_cost_a_large_mixture_of_experts_more_than_a_dense_model():
    """At 8 sessions a further step adds 15.5 % of a plain step to Kimi-K2, 4.2 % to Llama-70B."""
    kimi, llama = (
        (simulated(model)[7] - simulated(model)[3]) / 4
        for model in ("Kimi-K2-Instruct", "Llama-3.3-70B")
    )
    assert kimi == pytest.approx(0.155, rel=0.15)
    assert llama == pytest.approx(0.042, rel=0.25)
