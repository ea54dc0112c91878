"""What live recording costs the requests that are served: nothing that they should notice.

A recorder watches all the time. Eight requests at once are answered in turn unrecorded and
recorded; the ratio of their rates is what it costs. `python -m benchmarks.recording` prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.load import list_request, rate_of_requests, ratios, spread
from slipstream.client import AsyncClient
from slipstream.model_cache import resolve_model
from slipstream.stack import Addresses, LocalStack, StackConfig

_STREAMS = 8
# More than a run has: the recorder never ends by itself.
_ENDLESS = str(10**9)


async def measure(client: AsyncClient, repeats: int, mode: str) -> dict[str, Any]:
    """Return the rates of both arms, which take turns, and their ratio."""
    rates: dict[str, list[float]] = {"unrecorded": [], "recorded": []}
    for _ in range(repeats):
        for arm, values in rates.items():
            requests = [
                replace(list_request(number, mode), recordable=arm == "recorded")
                for number in range(_STREAMS)
            ]
            values.append(await rate_of_requests(client, requests))
    return {
        "tokens_per_second": {arm: spread(values) for arm, values in rates.items()},
        "recorded_over_unrecorded": spread(ratios(rates["recorded"], rates["unrecorded"])),
    }


async def _measure_all(address: str, repeats: int) -> dict[str, Any]:
    async with AsyncClient(address) as client:
        await rate_of_requests(client, [list_request(0, "off")])  # warm up
        return {mode: await measure(client, repeats, mode) for mode in ("off", "fixed")}


def main() -> None:
    """Measure on a local stack of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    model = resolve_model(options.model)
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalStack(StackConfig(model, Addresses.free())) as stack,
    ):
        command = [sys.executable, "-m", "slipstream", "record", str(Path(directory) / "r")]
        command += ["--live", "--target", stack.addresses.target, "--tokens", _ENDLESS]
        recorder = subprocess.Popen([*command, "--model", str(model)], stderr=subprocess.DEVNULL)
        try:
            found = asyncio.run(_measure_all(stack.addresses.gateway, options.repeats))
            assert recorder.poll() is None, "the recorder watched to the end"
        finally:
            recorder.terminate()
            recorder.wait()
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
