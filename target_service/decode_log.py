"""The target's `decode` line, every few seconds, in the words SGLang's users know."""

from __future__ import annotations

import copy
import time

import structlog

from target_service.scheduler import Scheduler
from target_service.totals import Totals

log = structlog.get_logger()


class DecodeLog:
    """Writes down from time to time what was added to the totals."""

    def __init__(self, totals: Totals, scheduler: Scheduler, interval_s: float = 5.0) -> None:
        self._totals = totals
        self._scheduler = scheduler
        self._interval_s = interval_s
        self.restart()

    def tick(self) -> None:
        """Write the line if it is time. Called after every step."""
        if time.monotonic() - self._since >= self._interval_s:
            self.flush()

    def flush(self) -> None:
        """Write the line, if there is anything to write, and begin anew."""
        now, then = self._totals, self._before
        rounds = now.rounds - then.rounds
        if rounds:
            accepted, drafted = now.accepted - then.accepted, now.draft_rows - then.draft_rows
            tokens = now.committed_tokens - then.committed_tokens
            log.info(
                "decode",
                running_requests=self._scheduler.num_sessions,
                tokens=tokens,
                accept_length=round(1 + accepted / rounds, 2),
                accept_rate=round(accepted / max(drafted, 1), 2),
                graph=False,
                tokens_per_second=round(tokens / (time.monotonic() - self._since), 1),
                queued_requests=self._scheduler.num_ready,
            )
        self.restart()

    def restart(self) -> None:
        """Begin to count."""
        self._since = time.monotonic()
        self._before = copy.deepcopy(self._totals)
