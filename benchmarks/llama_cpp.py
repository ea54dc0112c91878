"""What a forward of 1 and of 8 rows takes llama.cpp, to hold beside `python -m benchmarks.kernels`.

Needs `llama-cpp-python`, built from source for the CPU it runs on, and a GGUF file of the model;
nothing of ours, so an environment of its own will do. `python -m benchmarks.llama_cpp FILE` prints
JSON. Run it and ours in turn, with nothing beside them, and without OMP_WAIT_POLICY=passive, which
our services like and which makes llama.cpp wait twice as long.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from typing import Any

CONTEXT = 256
"""As in `benchmarks.kernels`, whose import would bring torch and its threads."""
_ROWS = (1, 8)
_REPEATS, _WARM_UP = 50, 10
_TOKENS = 40_000
"""Any of the first so many."""


class Forwards:
    """A model with a context of random tokens, of which each forward begins anew."""

    def __init__(self, path: str, threads: int) -> None:
        import llama_cpp

        self._library: Any = llama_cpp
        settings = {"n_ctx": 2 * CONTEXT, "n_batch": CONTEXT, "logits_all": True, "verbose": False}
        self._model = llama_cpp.Llama(path, n_threads=threads, n_threads_batch=threads, **settings)
        self._context = self._model.ctx
        self._random = random.Random(0)
        self._decode(CONTEXT - 1, 0)

    def run(self, rows: int) -> None:
        """Compute the logits of so many rows after the context, and forget them."""
        self._decode(rows, CONTEXT - 1)
        memory = self._library.llama_get_memory(self._context)
        self._library.llama_memory_seq_rm(memory, 0, CONTEXT - 1, -1)

    def _decode(self, rows: int, position: int) -> None:
        batch = self._library.llama_batch_init(rows, 0, 1)
        batch.n_tokens = rows
        for row in range(rows):
            batch.token[row] = self._random.randrange(_TOKENS)
            batch.pos[row], batch.logits[row] = position + row, 1
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
        failed = self._library.llama_decode(self._context, batch)
        self._library.llama_synchronize(self._context)
        self._library.llama_batch_free(batch)
        assert not failed, failed


def median_ms(forwards: Forwards, rows: int) -> float:
    """Return the median time of a forward."""
    taken = []
    for _ in range(_WARM_UP + _REPEATS):
        started = time.perf_counter()
        forwards.run(rows)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[_WARM_UP:]) * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    forwards = Forwards(options.gguf, options.threads)
    taken = {rows: round(median_ms(forwards, rows), 3) for rows in _ROWS}
    print(json.dumps({"what": "forwards of llama.cpp, medians", "context": CONTEXT, "ms": taken}))


if __name__ == "__main__":
    main()
