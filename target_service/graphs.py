"""The steps that are captured when the service starts, and what each of them cost."""

from __future__ import annotations

import structlog

from kernels.gpu.graphs import Captured
from target_service.buckets import Bucket
from target_service.device_engine import DeviceEngine

log = structlog.get_logger()


def prepare(engine: DeviceEngine) -> None:
    """Capture the usual buckets of an engine, and log what each took."""
    costs: list[Captured] = []

    def told(bucket: Bucket, captured: Captured) -> None:
        costs.append(captured)
        log.info("step_prepared", **bucket._asdict(), **_rounded(captured))

    engine.prepare(told)
    total = Captured(sum(cost.seconds for cost in costs), sum(cost.num_bytes for cost in costs))
    log.info("steps_prepared", buckets=len(costs), **_rounded(total))


def _rounded(captured: Captured) -> dict[str, float]:
    return {"seconds": round(captured.seconds, 3), "bytes": captured.num_bytes}
