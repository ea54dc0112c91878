"""What a step is told by the host: one buffer, written for each batch and sent in one copy.

Legend: R rows, X tapped width, N sessions (N1 = N + 1), B pages of a session.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from draft_service.drafters.eagle3_gpu.launches import Job
from draft_service.graphs import Bucket
from kernels.gpu.packed_memory import Piece
from kernels.noise import seeds_of_rows

_CPU = torch.device("cpu")


class Inputs(NamedTuple):
    """Rows with real taps, the sessions they belong to, and the trees wanted of the first ones.

    Rows behind those that are real may hold anything that was real once.
    """

    tokens_R: torch.Tensor
    taps_RX: torch.Tensor
    session_R: torch.Tensor
    positions_R: torch.Tensor
    """Among the session's slots."""
    text_positions_R: torch.Tensor
    first_row_N1: torch.Tensor
    prefix_len_N: torch.Tensor
    pages_NB: torch.Tensor
    last_row_N: torch.Tensor
    """A session's last row; -1 if it has none."""
    state_N: torch.Tensor
    """Where its last hidden state lies; -1 for padding."""
    first_node_N1: torch.Tensor
    """The first row of its tree in a level; sessions without trees have none."""
    real_len_N: torch.Tensor
    length_N: torch.Tensor
    """Committed tokens, of sessions with trees."""
    root_N: torch.Tensor
    seed_N: torch.Tensor
    temperature_N: torch.Tensor
    top_k_N: torch.Tensor
    top_p_N: torch.Tensor
    log_min_p_N: torch.Tensor
    width_N: torch.Tensor
    steps_N: torch.Tensor
    draft_tokens_N: torch.Tensor

    @classmethod
    def pieces(cls, bucket: Bucket, tapped_width: int, pages: int) -> list[Piece]:
        """Return what a buffer for a bucket holds, in the order of the fields."""
        sessions = bucket.sessions
        shapes = {
            "taps_RX": (bucket.rows, tapped_width),
            "pages_NB": (sessions, pages),
        }
        sizes = {"R": bucket.rows, "N": sessions, "N1": sessions + 1}
        return [
            Piece(
                _DTYPES.get(name, torch.int32),
                shapes.get(name, (sizes.get(name.rpartition("_")[2], 0),)),
            )
            for name in cls._fields
        ]

    def fill(self, jobs: Sequence[Job], width: int) -> None:
        """Write a batch, of which the jobs with trees come first. Without jobs nothing is real."""
        self._fill_rows(jobs)
        self._fill_sessions(jobs)
        self._fill_trees([job for job in jobs if job.tree], width)

    def _fill_rows(self, jobs: Sequence[Job]) -> None:
        extensions = [job.extension for job in jobs if job.extension]
        counts = [len(job.extension.tokens) if job.extension else 0 for job in jobs]
        ends = list(accumulate(counts))
        positions = [
            range(extension.first, extension.first + len(extension.tokens))
            for extension in extensions
        ]
        _put(self.tokens_R, [token for extension in extensions for token in extension.tokens])
        _put(self.positions_R, [place for of_one in positions for place in of_one])
        first_rows = [extension.follower.first_row for extension in extensions]
        text = zip(first_rows, positions, strict=True)
        _put(self.text_positions_R, [first + place for first, of_one in text for place in of_one])
        _put(self.session_R, [n for n, count in enumerate(counts) for _ in range(count)])
        if extensions:
            torch.cat(
                [extension.taps_TX.to(self.taps_RX.dtype) for extension in extensions],
                out=self.taps_RX[: ends[-1]],
            )
        _put_all(self.first_row_N1, [0, *ends], rest=ends[-1] if ends else 0)
        last = [end - 1 if count else -1 for end, count in zip(ends, counts, strict=True)]
        _put_all(self.last_row_N, last, rest=-1)

    def _fill_sessions(self, jobs: Sequence[Job]) -> None:
        prefixes = [job.extension.first if job.extension else 0 for job in jobs]
        _put_all(self.prefix_len_N, prefixes)
        _put_all(self.state_N, [job.follower.state for job in jobs], rest=-1)
        for pages_B, job in zip(self.pages_NB, jobs, strict=False):
            _put(pages_B, job.follower.pages)

    def _fill_trees(self, jobs: Sequence[Job], width: int) -> None:
        trees = [job.tree for job in jobs if job.tree]
        samplings = [tree.wanted.sampling for tree in trees]
        firsts = [n * width for n in range(len(trees) + 1)]
        _put_all(self.first_node_N1, firsts, rest=firsts[-1])
        _put_all(self.real_len_N, [job.follower.num_real for job in jobs])
        _put_all(self.length_N, [len(tree.wanted.tokens) for tree in trees])
        _put_all(self.root_N, [tree.wanted.tokens[-1] for tree in trees])
        seeds_N = seeds_of_rows([sampling.seed for sampling in samplings], _CPU)
        _put_all(self.seed_N, seeds_N.tolist())
        _put_all(self.temperature_N, [sampling.temperature for sampling in samplings])
        _put_all(self.top_k_N, [sampling.top_k for sampling in samplings])
        _put_all(self.top_p_N, [sampling.top_p for sampling in samplings], rest=1)
        min_ps = torch.tensor([sampling.min_p for sampling in samplings], dtype=torch.float32)
        _put_all(self.log_min_p_N, min_ps.log().tolist())
        _put_all(self.width_N, [tree.growth.width for tree in trees])
        _put_all(self.steps_N, [tree.growth.steps for tree in trees])
        _put_all(self.draft_tokens_N, [tree.wanted.plan.draft_tokens for tree in trees], rest=1)


_DTYPES = {
    "taps_RX": torch.bfloat16,
    **dict.fromkeys(("tokens_R", "length_N", "root_N", "seed_N"), torch.int64),
    **dict.fromkeys(("temperature_N", "top_p_N", "log_min_p_N"), torch.float32),
}
"""Of what is not int32."""


def _put(out_X: torch.Tensor, values: Sequence[float]) -> None:
    """Write the first elements of a tensor on the host."""
    out_X.numpy()[: len(values)] = values


def _put_all(out_X: torch.Tensor, values: Sequence[float], rest: float = 0) -> None:
    """Write all elements: those that nobody needs are `rest`."""
    out_X.fill_(rest)
    _put(out_X, values)
