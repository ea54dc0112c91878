"""The matrix of the first promise: prompts, ways of sampling, and what must not change the text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.client import AsyncClient, Completion, Request

# Repetitive ones that prompt lookup drafts well, and others; other lengths, other block edges.
PROMPTS = (
    "Count from one to twenty in words, one number on each line.",
    "Repeat after me: the cat sat on the mat. The cat sat on the mat. The cat",
    "Write a short poem about rivers.",
    "What is the capital of France?",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\nAdd mul and div.",
    "List the days of the week, then list them again in reverse order.",
    "Explain why the sky is blue to a child of five.",
    "Translate to French: good morning, good evening, good night.",
    "A",
    "1 2 3 4 5 6 7 8 9 10 1 2 3 4 5 6 7 8 9 10 1 2 3",
    "Summarise: The river rose overnight and flooded the lower fields. By noon it fell again.",
    "Give me a recipe for pancakes with exact amounts.",
    "Write a JSON object with the keys name, age and city.",
    "Once upon a time there was a fox who",
    "Fix the spelling: Teh quikc brown fox jmups over teh lazy dog.",
    "What is 17 times 23? Show every step.",
    "Name five fruits. Name five more fruits. Name five other fruits.",
    "Write an email to my landlord about a broken heater.",
    "Tell me a joke about computers, then explain the joke.",
    "Repeat this sentence ten times: all work and no play makes Jack a dull boy.",
)
SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0, "seed": 7},
    "nucleus": {"temperature": 0.8, "top_p": 0.95, "seed": 7},
    "penalized": {
        "temperature": 1.0,
        "seed": 7,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.2,
    },
}
DRAFTERS = ("ngram", "eagle")


def request(
    prompt: str, sampling: str, new_tokens: int, drafter: str | None, mode: str = "fixed"
) -> Request:
    """Return the request for one cell of the matrix; no drafter decodes plainly."""
    return Request(
        chat=prompt,
        sampling=SAMPLINGS[sampling],
        stopping={"max_new_tokens": new_tokens, "ignore_eos": True},
        speculation={"steps": 5, "drafter_id": drafter or ""},
        mode="off" if drafter is None else mode,
    )


async def _answers(gateway: str, requests: Sequence[Request], timeout_s: float) -> list[Completion]:
    async with AsyncClient(gateway) as client:
        done = (client.complete(request, timeout_s=timeout_s) for request in requests)
        return list(await asyncio.gather(*done))


def answers(
    gateway: str, requests: Sequence[Request], *, timeout_s: float = 600
) -> list[Completion]:
    """Answer all requests at once."""
    return asyncio.run(_answers(gateway, requests, timeout_s))


def differing(plain: Sequence[Completion], other: Sequence[Completion]) -> list[int]:
    """Return the indices of answers that differ in a token or in a bit of a logprob."""
    return [
        index
        for index, (left, right) in enumerate(zip(plain, other, strict=True))
        if (left.token_ids, left.logprobs) != (right.token_ids, right.logprobs)
    ]
