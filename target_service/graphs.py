"""The steps that are captured when the service starts, and what each of them cost."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from kernels.gpu.graphs import Captured
from target_service.buckets import Bucket

log = structlog.get_logger()


def prepare(capture: Callable[[Callable[[Bucket, Captured], None]], None]) -> None:
    """Let an engine `capture` its usual buckets, and log what it tells of each."""
    costs: list[Captured] = []

    def told(bucket: Bucket, captured: Captured) -> None:
        costs.append(captured)
        log.info("step_prepared", **bucket._asdict(), **_rounded(captured))

    capture(told)
    total = Captured(sum(cost.seconds for cost in costs), sum(cost.num_bytes for cost in costs))
    log.info("steps_prepared", buckets=len(costs), **_rounded(total))


def _rounded(captured: Captured) -> dict[str, float]:
    return {"seconds": round(captured.seconds, 3), "bytes": captured.num_bytes}
