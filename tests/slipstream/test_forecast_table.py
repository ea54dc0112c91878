"""What a forecast comes to is said in a sentence."""

from dataclasses import replace

import pytest

from benchmarks.simulation.forecast import Forecast
from benchmarks.simulation.stack import Outcome
from slipstream.forecast_table import advice, as_json

PLAIN = Outcome(50.0, 100.0, 1.0, 20.0, 0.0, 1.0)
FAST = replace(PLAIN, tokens_per_second=80.0, accept_length=2.4)


def forecast_of(drafters):
    return Forecast(2, PLAIN, {1: PLAIN, 3: FAST}, FAST, drafters)


@pytest.mark.parametrize(
    ("drafters", "said"),
    [
        (0.0, "No drafter is needed."),
        (0.3, "One drafter is enough for 3 targets."),
        (0.6, "A target needs 1 drafter."),
        (1.2, "A target needs 2 drafters."),
    ],
)
def test_drafters_are_counted_in_whole_machines(drafters, said):
    assert said in advice([forecast_of(0.0), forecast_of(drafters)])


def test_gains_are_over_plain_decoding():
    worse = replace(forecast_of(0.1), auto=replace(PLAIN, tokens_per_second=49.0))
    assert "-2% to +60%" in advice([forecast_of(0.1), worse])


def test_all_figures_are_in_the_json():
    found = as_json(forecast_of(0.1))
    assert (found["best_steps"], found["auto_gain"]) == (3, pytest.approx(0.6))
    assert found["fixed"][3]["accept_length"] == 2.4
