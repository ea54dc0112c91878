"""What a session may begin after a plain stretch: a gain that is sure, or a trial. Sans-I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gateway.candidates import Candidates
from gateway.experience import Experience
from protos.messages import Plan

# What joining costs a target that shares its machine with the drafter, in plain steps.
JOINING = 1.5
# Tokens that must be left for drafters to be tried.
SHORTEST = 16
# The gain with which to begin, and one that is clear.
_ENTER = 1.02
_CLEAR = 1.25
# A drafter that should gain less is tried after so many pauses only.
_HOPEFUL = 0.97
_HOPELESS_PAUSES = 3


class Beginning(NamedTuple):
    """A spell with this drafter and plan."""

    name: str
    plan: Plan
    is_trial: bool


def what_to_begin(
    experience: Experience, drafters: Candidates, pauses_taken: int, remaining: int
) -> Beginning | None:
    """Return what to begin after so many pauses, or None to go on plainly.

    The answer has at most `remaining` tokens more. Who is not known yet is tried first, and what
    others know of the rest may be sure.
    """
    to_be_tried = _to_be_tried(drafters) if remaining >= SHORTEST else []
    return (
        _trial(experience, drafters, _unknown(drafters, to_be_tried), pauses_taken)
        or _sure_gain(experience, drafters, remaining)
        or _trial(experience, drafters, to_be_tried, pauses_taken)
    )


def strangers(drafters: Candidates) -> list[str]:
    """Return those of which it is not known how good they are."""
    return _unknown(drafters, _to_be_tried(drafters))


def _unknown(drafters: Candidates, names: Sequence[str]) -> list[str]:
    return [name for name in names if not drafters.was_tried(name)]


def _to_be_tried(drafters: Candidates) -> list[str]:
    """What scouts bring is known without a trial."""
    return [name for name in drafters if not drafters.may_scout(name)]


def _sure_gain(experience: Experience, drafters: Candidates, remaining: int) -> Beginning | None:
    """Return the best of the drafters that are known, if it surely gains."""
    known = [name for name in drafters if drafters.is_known(name)]
    if not known:
        return None
    name, best = drafters.surest(known)
    pays = best.sure_gain > _ENTER and (
        drafters.may_scout(name) or _steps_gained(best.sure_gain, remaining) > JOINING
    )
    affords = experience.purse.affords_spell(clear=best.sure_gain > _CLEAR)
    return Beginning(name, best.plan, False) if pays and affords else None


def _steps_gained(gain: float, tokens: int) -> float:
    """Return how many plain steps such a gain saves in so many tokens."""
    return tokens * (1 - 1 / gain)


def _trial(
    experience: Experience, drafters: Candidates, names: Sequence[str], pauses_taken: int
) -> Beginning | None:
    """Return the best of these if a trial is due and there is time to lose: one at a time."""
    affordable = experience.purse.affords_trial and experience.calls.may_try
    if not names or experience.trying or not affordable:
        return None
    name, best = drafters.best(names)
    known = drafters.was_tried(name)
    if known and best.gain <= _HOPEFUL and pauses_taken < _HOPELESS_PAUSES:
        return None
    # Of a drafter that is not known the least is tried: it tells what rows and steps cost.
    return Beginning(name, best.plan if known else drafters.plans[0], is_trial=True)
