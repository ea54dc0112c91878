"""The step of a drafter on a GPU, launched over buffers that stay: what `Eagle3Drafter` computes.

    h = layer(tokens, fuse(taps))                rows with real taps, over guessed ones
    h = the last h of each session               of this step, or of an earlier one
    frontier = grow(candidates(head(h)))
    for each level but the last:
        h = layer(frontier, h of its parents)    rows of guesses, behind the real ones
        frontier = grow(candidates(head(h)))
    trees = the best nodes of all levels

The host reads nothing before the trees, so all of it is one graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draft_service.drafters import Draft
from draft_service.drafters.eagle3_gpu.extending import Extending
from draft_service.drafters.eagle3_gpu.growing import Growing
from draft_service.drafters.eagle3_gpu.inputs import Inputs
from draft_service.drafters.eagle3_gpu.launches import Job
from draft_service.drafters.eagle3_gpu.weights import GpuWeights
from draft_service.drafters.eagle3_gpu.workspace import (
    Cache,
    Workspace,
    attention_plan,
    tree_pieces,
)
from draft_service.graphs import Bucket
from kernels.gpu.attention_shape import Tiling
from kernels.gpu.draft_tree import DraftTrees
from kernels.gpu.packed_buffer import PackedBuffer


@dataclass(frozen=True)
class StepMaker:
    """What the steps of all buckets share."""

    weights: GpuWeights
    cache: Cache
    space: Workspace
    tiling: Tiling
    pages: int
    """The most pages of a session."""

    def __call__(self, bucket: Bucket) -> Eagle3Step:
        """Return the step of a bucket, which holds nothing real."""
        return Eagle3Step(self, bucket)


class Eagle3Step:
    """A step of one bucket. What the host writes and reads lies in `inputs` and `results`."""

    def __init__(self, maker: StepMaker, bucket: Bucket) -> None:
        weights, cache, sessions = maker.weights, maker.cache, bucket.sessions
        pieces = Inputs.pieces(bucket, weights.config.tapped_width, maker.pages)
        self._bucket = bucket
        self.inputs = PackedBuffer(pieces, weights.device)
        self.results = PackedBuffer(tree_pieces(bucket), weights.device)
        inputs = Inputs(*self.inputs.on_device)
        rows, level_rows = bucket.rows, sessions * bucket.width
        plans = [
            attention_plan(weights, maker.tiling, sessions, maker.pages, count)
            for count in (rows, level_rows)
        ]
        self._last_NH = maker.space.last_RH[:sessions]
        self._extending = Extending(weights, cache, maker.space.rows(rows), inputs, plans[0])
        self._growing = Growing(
            weights, cache, maker.space.rows(level_rows), inputs, plans[1], bucket
        )

    def clear(self) -> None:
        """See `kernels.gpu.graphs.Step`."""
        self.fill(())

    def fill(self, jobs: Sequence[Job]) -> None:
        """Send a batch to the device: the jobs with trees come first."""
        Inputs(*self.inputs.on_host).fill(jobs, self._bucket.width)
        self.inputs.upload()

    def run(self) -> None:
        """Launch everything. What can be captured."""
        self._extending.run(self._last_NH)
        if self._bucket.depth:
            self._growing.run(self._last_NH, DraftTrees(*self.results.on_device))

    def drafts(self, count: int) -> list[Draft]:
        """Wait for the step, and return the first trees, without their roots."""
        self.results.download()
        trees = DraftTrees(*self.results.on_host)
        return [_draft(trees, tree) for tree in range(count)]


def _draft(trees: DraftTrees, tree: int) -> Draft:
    size = int(trees.sizes_S[tree])
    tokens, parents, logprobs = (
        part_ST[tree, 1:size].tolist()
        for part_ST in (trees.tokens_ST, trees.parents_ST, trees.logprobs_ST)
    )
    return Draft(tuple(tokens), tuple(parents), tuple(logprobs))
