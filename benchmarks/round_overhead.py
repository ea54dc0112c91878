"""What a round costs beside its two forwards: gRPC, state, serialisation, waiting in queues.

    overhead = round - verify.forward - verify.accept - draft.extend - draft.grow

All five ride in every chunk, so one run measures all of it, on the embedded model through three
processes. `python -m benchmarks.round_overhead` prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator

from protos import gateway_pb2 as pb
from slipstream.client import Client, Request
from slipstream.model_cache import resolve_model
from slipstream.stack import Addresses, LocalStack, StackConfig

_PROMPT = "List the numbers from one to one hundred, one on each line, in words."
_NEW_TOKENS = 200
_RUNS = 3


def overheads_us(chunks: list[pb.GenerateResponse]) -> list[int]:
    """Return the overhead of every round of an answer, in microseconds."""
    return [
        timings.round_us
        - (timings.verify.forward_us + timings.verify.accept_us)
        - (timings.draft.extend_us + timings.draft.grow_us)
        for timings in (chunk.timings for chunk in chunks if chunk.HasField("timings"))
    ]


def summarize(values: list[int]) -> dict[str, float]:
    """Return median, spread and number of values, in milliseconds."""
    deciles = [value / 1000 for value in statistics.quantiles(values, n=10)]
    return {
        "median_ms": round(statistics.median(values) / 1000, 3),
        "p10_ms": round(deciles[0], 3),
        "p90_ms": round(deciles[-1], 3),
        "rounds": len(values),
    }


def measure(client: Client) -> Iterator[tuple[str, list[pb.GenerateResponse]]]:
    """Answer the prompt speculated and plain, in turn."""
    for _ in range(_RUNS):
        for mode in ("fixed", "off"):
            request = Request(
                chat=_PROMPT,
                sampling={"temperature": 0.0},
                stopping={"max_new_tokens": _NEW_TOKENS, "ignore_eos": True},
                speculation={"steps": 4},
                mode=mode,
            )
            yield mode, list(client.stream(request))


def main() -> None:
    """Measure on a stack of its own and print the result."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    config = StackConfig(resolve_model("smollm2-135m"), Addresses.free())
    found: dict[str, list[int]] = {"fixed": [], "off": []}
    forwards: list[int] = []
    with LocalStack(config) as stack, Client(stack.addresses.gateway) as client:
        for mode, chunks in measure(client):
            found[mode] += overheads_us(chunks)
            forwards += [chunk.timings.verify.forward_us for chunk in chunks[1:]]
    report = {
        "what": "one round's overhead over the two forwards, loopback, three processes",
        "speculated": summarize(found["fixed"]),
        "plain": summarize(found["off"]),
        "verify_forward": summarize(forwards),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
