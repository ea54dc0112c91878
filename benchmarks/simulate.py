"""The simulator against what others have measured, and the gateway's policy in it.

`python -m benchmarks.simulate` prints JSON: every published figure beside the simulated one.
`--policy` lets `auto` decide on all hardware, with good and bad drafters, beside plain decoding and
the best fixed number of steps. `--plots docs` draws the pictures of docs/tuning.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.simulation import plots, spec_bundle, story
from benchmarks.simulation.acceptance import Acceptance
from benchmarks.simulation.forecast import fixed_policies, forecasts, plain_policies
from benchmarks.simulation.presets import PRESETS
from benchmarks.simulation.stack import Load, Policies, simulate
from protos.messages import Plan

_STORY_STEPS = 8_000
_ROW_STEPS = 400
LOADS = (1, 4, 16, 64)
DRAFTERS = {
    "good": Acceptance(),
    "accept length 2.1": story.ACCEPTANCE,
    "poor": Acceptance((0.35, 0.1, 0.03)),
    "never right": Acceptance((0.0,)),
}


def attempt_speed(attempt: story.Attempt, *, apart: bool = False) -> float:
    """Return the simulated tokens a second of one attempt of the story.

    `apart`: with the drafter on a machine of its own.
    """
    hardware = PRESETS["kimi-k2.5-8xh200"] if apart else story.engine(graphs=attempt.graphs)
    policies, load = _policies(attempt.plan), Load(story.ACCEPTANCE)
    return simulate(hardware, load, policies, plain_steps=_STORY_STEPS).tokens_per_second


def _policies(plan: Plan | None) -> Policies:
    if plan is None:
        return plain_policies()
    return fixed_policies(plan.steps, plan.top_k, plan.draft_tokens)


def round_ratios(row: spec_bundle.Row) -> dict[int, float]:
    """Return the simulated round of one model over its plain step, by the number of steps."""
    hardware, load = row.hardware(), Load(Acceptance(), row.sessions)

    def round_ms(policies: Policies) -> float:
        return simulate(hardware, load, policies, plain_steps=_ROW_STEPS).round_ms

    plain_ms = round_ms(plain_policies())
    return {steps: round_ms(fixed_policies(steps)) / plain_ms for steps in row.ratio}


def compare() -> dict[str, Any]:
    """Return every published figure beside the simulated one."""
    return {
        "story": [
            {
                "what": attempt.name,
                "measured": attempt.tokens_per_second,
                "simulated": round(attempt_speed(attempt), 1),
                "drafter_apart": round(attempt_speed(attempt, apart=True), 1),
                "predicted": attempt.predicted,
            }
            for attempt in story.ATTEMPTS
        ],
        "round_over_plain_step": [
            {
                "model": row.model,
                "measured": row.ratio,
                "simulated": {steps: round(r, 3) for steps, r in round_ratios(row).items()},
                "fitted": spec_bundle.FITTED_STEPS,
            }
            for row in spec_bundle.ROWS
        ],
    }


def draw(directory: Path) -> None:
    """Draw the pictures of docs/tuning.md."""
    together, apart = (
        [attempt_speed(one, apart=layout) for one in story.ATTEMPTS] for layout in (False, True)
    )
    plots.plot_story(together, apart, directory / "tuning-story.png")
    layouts = {"in one engine": story.engine(), "drafter apart": PRESETS["kimi-k2.5-8xh200"]}
    plots.plot_rounds(layouts, story.ACCEPTANCE, directory / "tuning-round.png")
    for name in ("kimi-k2.5-8xh200", "dense-70b"):
        found = forecasts(PRESETS[name], Acceptance(), LOADS)
        plots.plot_forecasts(found, name, directory / f"tuning-{name}.png")


def judge_policy() -> Iterator[dict[str, Any]]:
    """Compare `auto` with plain decoding and with what a tuner would have found, everywhere."""
    for hardware, (drafter, acceptance) in itertools.product(PRESETS.values(), DRAFTERS.items()):
        for one in forecasts(hardware, acceptance, LOADS[:-1]):
            yield {
                "hardware": hardware.name,
                "drafter": drafter,
                "sessions": one.sessions,
                "best_steps": one.best_steps,
                "best_over_plain": round(1 + one.gain(one.best), 3),
                "auto_over_plain": round(1 + one.gain(one.auto), 3),
            }


def run(
    directory: Path | None, *, policy: bool = False, show: Callable[[str], object] = print
) -> None:
    """Compare and show the report; draw if there is a directory for it."""
    if directory is not None:
        draw(directory)
    report = compare() | ({"policy": list(judge_policy())} if policy else {})
    show(json.dumps(report, indent=2))


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plots", type=Path, help="directory for the pictures")
    parser.add_argument("--policy", action="store_true", help="judge the policy; minutes")
    options = parser.parse_args()
    run(options.plots, policy=options.policy)


if __name__ == "__main__":
    main()
