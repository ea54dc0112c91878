"""How busy the draft service is, and what it has done since it began."""

from __future__ import annotations

from dataclasses import dataclass

from draft_service.engine import Report
from draft_service.kv_pool import KvPoolFullError, KvUsage
from draft_service.registry import Registry


@dataclass
class Load:
    """Counters. They change on the event loop only."""

    registry: Registry
    sessions: int = 0
    tap_subscriptions: int = 0
    batches: int = 0
    extended_rows: int = 0
    """Rows with real taps."""
    grown_rows: int = 0
    """Rows of guesses."""
    dropped_for_memory: int = 0
    """Sessions that ended because no KV page was free."""

    @property
    def kv_pages(self) -> KvUsage:
        """How many KV pages of all drafters are in use, and how many there are."""
        usages = [entry.drafter.kv_usage for entry in self.registry.all if entry.drafter]
        return KvUsage(sum(usage.used for usage in usages), sum(usage.total for usage in usages))

    def count(self, report: Report) -> None:
        """Count a batch."""
        self.batches += 1
        self.extended_rows += report.extended_rows
        self.grown_rows += report.grown_rows
        errors = [news.error for news in report.news if not news.following.is_shadow]
        self.dropped_for_memory += sum(isinstance(error, KvPoolFullError) for error in errors)
