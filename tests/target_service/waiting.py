"""Waiting for what must happen soon, without saying how soon."""

import asyncio
from collections.abc import Callable

LIMIT_S = 30


async def until(holds: Callable[[], object]) -> None:
    """Return as soon as a condition holds; fail if it does not."""
    for _ in range(LIMIT_S * 1000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("waited in vain")
