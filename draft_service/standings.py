"""What every drafter achieves, and what follows from it: an alarm, a promotion, a shadow's end.

For the event loop only.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from draft_service.alarm import LEAST_SHARE
from draft_service.diagnosis import Evidence, likely_cause
from draft_service.following import Following
from draft_service.loader import DrafterRefusedError
from draft_service.registry import Registered, Registry
from draft_service.scoring import Scored
from draft_service.shadow import Shadow
from draft_service.trial import PromotionRule, Verdict

log = structlog.get_logger()


class Standings:
    """The rounds of all drafters, as they are decided."""

    def __init__(self, registry: Registry, *, alarms: bool = True) -> None:
        self.shadow: Shadow | None = None
        """The shadow that runs, or the last one that did."""
        self._registry = registry
        self._alarms = alarms
        self._entries: dict[Following, Registered] = {}

    def begin(self, following: Following, entry: Registered) -> None:
        """This drafter's rounds of the session count from now on."""
        self._entries[following] = entry

    def end(self, following: Following) -> None:
        """No more rounds of the session count."""
        entry = self._entries.pop(following, None)
        if entry is not None:
            entry.scorecard.end(following.session.session_id)

    def record(self, following: Following, rounds: Sequence[Scored]) -> None:
        """Take in rounds that were decided."""
        for scored in rounds:
            # What follows from a round may be that the drafter follows the session no more.
            entry = self._entries.get(following)
            if entry is None:
                return
            entry.scorecard.count(following.session.session_id, scored)
            self._count_in_trial(following, entry, scored)
            self._watch(following, entry, scored)

    def choose_default(self, drafter_id: str) -> None:
        """Give sessions that name no drafter this one. Raises KeyError or DrafterRefusedError."""
        self._registry.choose_default(drafter_id)
        self._follow_the_default()

    def unload(self, drafter_id: str) -> Registered:
        """Unload a drafter, a shadow's candidate too. See `Registry.begin_unload`."""
        entry = self._registry.begin_unload(drafter_id)
        self._end_shadow_of(entry, "the candidate was unloaded")
        return entry

    def start_shadow(self, drafter_id: str, share: float, rule: PromotionRule | None) -> Shadow:
        """Compare a candidate with the default.

        Raises KeyError, DrafterRefusedError, or ValueError if it is the default.
        """
        candidate = self._registry.entry(drafter_id)
        incumbent_id = self._registry.default_id
        if drafter_id == incumbent_id:
            raise ValueError(f"drafter_id must not be the default's, got {drafter_id!r}")
        shadow = Shadow(candidate, incumbent_id, share, rule)
        self.stop_shadow("another shadow was started")
        self.shadow = shadow
        log.info("shadow_started", candidate_id=drafter_id, incumbent_id=incumbent_id, share=share)
        return shadow

    def stop_shadow(self, outcome: str = "stopped") -> None:
        """End the shadow, if one runs."""
        if self.shadow is not None and self.shadow.running:
            self.shadow.end(outcome)
            log.info(
                "shadow_ended",
                candidate_id=self.shadow.candidate.drafter_id,
                outcome=outcome,
                rounds=self.shadow.trial.rounds,
                gain=round(self.shadow.trial.gain, 4),
            )

    def _count_in_trial(self, following: Following, entry: Registered, scored: Scored) -> None:
        shadow = self.shadow
        if shadow is None or not shadow.running:
            return
        if not following.is_shadow and entry.drafter_id != shadow.incumbent_id:
            return
        session_id = following.session.session_id
        shadow.trial.count(session_id, scored, of_candidate=following.is_shadow)
        if shadow.trial.verdict is not Verdict.OPEN:
            self._conclude(shadow)

    def _conclude(self, shadow: Shadow) -> None:
        trial, candidate_id = shadow.trial, shadow.candidate.drafter_id
        low, high = trial.gain_interval()
        found = f"{trial.gain:+.1%} ({low:+.1%} to {high:+.1%}) over {trial.rounds} rounds"
        if trial.verdict is not Verdict.BETTER:
            self.stop_shadow(f"{trial.verdict.value}: {found}")
            return
        self.stop_shadow(f"promoted: {found}")
        self._registry.choose_default(candidate_id)
        log.info(
            "drafter_promoted", drafter_id=candidate_id, instead_of=shadow.incumbent_id, gain=found
        )

    def _watch(self, following: Following, entry: Registered, scored: Scored) -> None:
        """Prompt lookup is silent or wrong on many texts, rightly so: it has no wiring to mistake.

        Nor does a text say much of a drafter if the request bends it away from the model.
        """
        reads_taps = bool(following.drafter.pairing.tap_layers)
        if not self._alarms or not reads_taps or following.session.sampling.shapes_logits:
            return
        entry.alarm.count(scored)
        if entry.alarm.is_raised and entry.takes_sessions:
            self._raise_alarm(following, entry)

    def _raise_alarm(self, following: Following, entry: Registered) -> None:
        """Its sessions are ended too: they may open again, with the drafter that comes next."""
        alarm, drafter_id = entry.alarm, entry.drafter_id
        cause = likely_cause(Evidence(alarm.evidence, following.drafter.target_ids))
        reason = (
            f"fewer than {LEAST_SHARE:.0%} of its first drafts were right in the last "
            f"{alarm.num_rounds} rounds; {cause}"
        )
        log.error("drafter_alarm", drafter_id=drafter_id, reason=reason, likely_cause=cause)
        self._registry.take_out(entry, reason)
        self._end_shadow_of(entry, f"alarm: {reason}")
        self._follow_the_default()
        for outbox in list(entry.outboxes):
            outbox.end(DrafterRefusedError(reason))

    def _end_shadow_of(self, entry: Registered, outcome: str) -> None:
        if self.shadow is not None and self.shadow.candidate is entry:
            self.stop_shadow(outcome)

    def _follow_the_default(self) -> None:
        """A shadow is compared with the default, whichever that is now."""
        shadow, default_id = self.shadow, self._registry.default_id
        if shadow is None or not shadow.running or shadow.incumbent_id == default_id:
            return
        if shadow.candidate.drafter_id == default_id:
            self.stop_shadow("the candidate became the default")
        else:
            self.start_shadow(shadow.candidate.drafter_id, shadow.share, shadow.rule)
