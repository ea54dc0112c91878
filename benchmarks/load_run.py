"""All of `slipstream bench load`: the ratios of `load`, then the curves of `load_curve`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks.arms import Arm
from benchmarks.load import measure_ratios
from benchmarks.load_curve import Asker, Points, measure_curves
from slipstream.client import AsyncClient

_WHAT = "Many requests at once on one gateway; the arms take turns, ratios are within one run"


def run(
    gateway: str, asker: Asker, arms: Sequence[Arm], points: Points, repeats: int
) -> dict[str, Any]:
    """Measure and return the report, without the machine. Raises RpcError."""
    return asyncio.run(_run(gateway, asker, arms, points, repeats))


async def _run(
    gateway: str, asker: Asker, arms: Sequence[Arm], points: Points, repeats: int
) -> dict[str, Any]:
    async with AsyncClient(gateway) as client:
        ratios = await measure_ratios(client, repeats)
        curves = await measure_curves(client, asker, arms, points)
    arm_names = {"arms": [arm.name for arm in arms]}
    settings = {**vars(asker.wish), **vars(points), "repeats": repeats} | arm_names
    return {"what": _WHAT, "settings": settings, **ratios, **curves}
