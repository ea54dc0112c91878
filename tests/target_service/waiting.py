"""Waiting for what must happen soon, without saying how soon."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

LIMIT_S = 30
T = TypeVar("T")


async def until(holds: Callable[[], object]) -> None:
    """Return as soon as a condition holds; fail if it does not."""
    for _ in range(LIMIT_S * 1000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("waited in vain")


async def soon(awaited: Awaitable[T]) -> T:
    """Return what is awaited; fail if it does not come."""
    async with asyncio.timeout(LIMIT_S):
        return await awaited
