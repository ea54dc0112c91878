"""Why a drafter's drafts are never right: from the last rounds to the likely cause. Sans-I/O.

Each suspicion reads the same drafts in another way. If they would then have been right, that is how
the drafter is wired wrongly. A new suspicion is a function more in `SUSPICIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from draft_service.scoring import Scored

# Of the rounds, to be right by another reading. By chance it would be next to none.
_TELLING_SHARE = 0.2
# Of the rounds, in which the same token was drafted.
_STUCK_SHARE = 0.95

UNKNOWN = (
    "likely causes: tap layers that are off by one or of another model, a chat template other than "
    "the one it was trained with, or another vocabulary"
)


@dataclass(frozen=True)
class Evidence:
    """The last rounds in which a drafter drafted, and its vocabulary. `rounds` is not empty."""

    rounds: Sequence[Scored]
    target_ids: Sequence[int] | None = None
    """The target's id of each draft token; None if they are the same."""

    def share(self, holds: Callable[[Scored], bool]) -> float:
        """Return the share of rounds of which something holds."""
        return sum(map(holds, self.rounds)) / len(self.rounds)


def likely_cause(evidence: Evidence) -> str:
    """Return what the evidence points to, or what is usually wrong if it points nowhere."""
    return next((cause for suspect in SUSPICIONS if (cause := suspect(evidence))), UNKNOWN)


def _is_stuck(evidence: Evidence) -> str:
    """A head that was not loaded has the same favourite everywhere."""
    first = [scored.guesses[0] for scored in evidence.rounds]
    favourite = max(set(first), key=first.count)
    if first.count(favourite) < _STUCK_SHARE * len(first):
        return ""
    return (
        f"it drafts token {favourite} whatever the text: its output head is missing, not "
        "initialised, or reads a hidden state that it was not made for"
    )


def _is_shifted(evidence: Evidence) -> str:
    """Its drafts are those of the position before or after."""
    for place, where in ((2, "one position further on"), (0, "one position before")):
        if evidence.share(partial(_fits, place)) >= _TELLING_SHARE:
            return f"its drafts fit {where}: taps and tokens are paired off by one"
    return ""


def _maps_wrongly(evidence: Evidence) -> str:
    """Its draft vocabulary is right, and its way to the target's is wrong."""
    if evidence.target_ids is None:
        return ""
    draft_id = {target: draft for draft, target in enumerate(evidence.target_ids)}
    readings: Mapping[str, Callable[[int], int | None]] = {
        "its d2t holds ids of target tokens, and was read as offsets": (
            lambda token: token - draft_id.get(token, 0)
        ),
        "it drafts ids of target tokens, and its d2t maps them to others": draft_id.get,
    }
    for cause, reading in readings.items():
        if evidence.share(partial(_fits_as, reading)) >= _TELLING_SHARE:
            return f"its vocabulary is mapped wrongly: {cause}"
    return ""


SUSPICIONS: Iterable[Callable[[Evidence], str]] = (_is_stuck, _is_shifted, _maps_wrongly)


def _fits(place: int, scored: Scored) -> bool:
    """Whether the first guess is another token of the context than the one it should be."""
    return len(scored.context) > place and scored.guesses[0] == scored.context[place]


def _fits_as(reading: Callable[[int], int | None], scored: Scored) -> bool:
    """Whether the first guess, read otherwise, is the token that was committed."""
    return reading(scored.guesses[0]) == scored.context[1]
