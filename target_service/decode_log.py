"""The target's `decode` line, every few seconds, in the words SGLang's users know."""

from __future__ import annotations

import time

import structlog

from protos.messages import Verdict
from target_service.scheduler import Scheduler
from target_service.session import Rows

log = structlog.get_logger()


class DecodeLog:
    """Counts what verdicts commit and writes it down from time to time."""

    def __init__(self, interval_s: float = 5.0) -> None:
        self._interval_s = interval_s
        self.restart()

    def count(self, rows: Rows, verdict: Verdict, scheduler: Scheduler) -> None:
        """Add a verdict; write the line if it is time."""
        self._rounds += 1
        self._tokens += len(verdict.tokens)
        self._accepted += len(verdict.path)
        self._drafted += rows.num_drafts
        if time.monotonic() - self._since >= self._interval_s:
            self.flush(scheduler)

    def flush(self, scheduler: Scheduler) -> None:
        """Write the line, if there is anything to write, and begin anew."""
        if self._rounds:
            seconds = time.monotonic() - self._since
            log.info(
                "decode",
                running_requests=scheduler.num_sessions,
                tokens=self._tokens,
                accept_length=round(1 + self._accepted / self._rounds, 2),
                accept_rate=round(self._accepted / max(self._drafted, 1), 2),
                graph=False,
                tokens_per_second=round(self._tokens / seconds, 1),
                queued_requests=scheduler.num_ready,
            )
        self.restart()

    def restart(self) -> None:
        """Begin to count."""
        self._since = time.monotonic()
        self._rounds = self._tokens = self._accepted = self._drafted = 0
