"""EAGLE-3 on a GPU: `Eagle3Drafter`, a batch of which is one launch of a captured graph.

What a batch takes in and what it grows belong to one graph, so `extend` puts its rows off until
`draft`, which ends every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from draft_service.drafters import Draft, Rows, Wanted
from draft_service.drafters.eagle3 import pairing_of
from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.eagle3_gpu.follower import GpuFollower
from draft_service.drafters.eagle3_gpu.launches import Extension, Launch, Tree, launches_of
from draft_service.drafters.eagle3_gpu.step import Eagle3Step, StepMaker
from draft_service.drafters.eagle3_gpu.weights import GpuWeights
from draft_service.drafters.eagle3_gpu.workspace import Cache, Workspace, pages_of_session
from draft_service.drafters.eagle3_tensors import Eagle3Tensors
from draft_service.drafters.target_side import TargetSide
from draft_service.graphs import Bucket, Growth, first_buckets
from draft_service.kv_pool import KvPool, KvUsage
from draft_service.weights import open_drafter, read_config
from kernels.gpu.graphs import Capture, Captured, StepGraphs, capture_on
from kernels.gpu.paged_attention import PAGED_TILINGS
from kernels.gpu.runtime import on_device, tiling_of
from protos.pairing import Pairing


class Facts(NamedTuple):
    """What a drafter says of itself."""

    drafter_id: str
    pairing: Pairing
    max_context_len: int


class Eagle3GpuDrafter:
    """A loaded drafter, shared by all sessions."""

    kind = "eagle3"
    blocking = True

    def __init__(
        self, facts: Facts, weights: GpuWeights, kv_tokens: int, capture: Capture | None
    ) -> None:
        """`capture` is None where steps are launched one by one, each time."""
        self.drafter_id, self.pairing, self.max_context_len = facts
        self._weights = weights
        self._device = weights.device
        self._staged: list[Extension] = []
        cache = Cache.of(weights, kv_tokens)
        self._pool = KvPool(cache.pages.num_pages)
        pages = pages_of_session(cache, facts.max_context_len)
        tiling = tiling_of(PAGED_TILINGS, self._device)
        maker = StepMaker(weights, cache, Workspace.of(weights), tiling, pages)
        self._steps: StepGraphs[Bucket, Eagle3Step] = StepGraphs(maker, capture)

    @classmethod
    def load(
        cls,
        drafter_id: str,
        drafter_dir: Path,
        target: TargetSide,
        device: torch.device,
        *,
        kv_tokens: int,
        graphs: bool = True,
    ) -> Eagle3GpuDrafter:
        """Load a checkpoint directory for a target, with a KV cache for so many tokens.

        It must be fit for the device (`check_fit`). With `graphs`, steps are captured as CUDA
        graphs; without, launched one by one. Raises ValueError that names what does not fit
        the target, or in itself.
        """
        config = Eagle3Config.from_json(read_config(drafter_dir), target.num_layers)
        pairing = pairing_of(config, drafter_dir, target)
        facts = Facts(drafter_id, pairing, target.max_context_len)
        with on_device(device):
            tensors = Eagle3Tensors(config, open_drafter(drafter_dir), target, device)
            weights = GpuWeights.of(tensors, target.max_context_len)
            return cls(facts, weights, kv_tokens, capture_on(device, enabled=graphs))

    def prepare(self, told: Callable[[Bucket, Captured], None]) -> None:
        """Capture the commonest steps, so that no session waits for it; `told` what each cost."""
        with on_device(self._device):
            self._steps.prepare(first_buckets(), told)

    @property
    def kv_usage(self) -> KvUsage:
        """How many KV pages are in use, and how many there are."""
        return self._pool.usage

    @property
    def target_ids(self) -> list[int] | None:
        """The target's id of each draft token; None if they are the same."""
        ids_N = self._weights.target_ids_N
        return None if ids_N is None else ids_N.tolist()

    def follow(self, first_row: int) -> GpuFollower:
        """Begin to follow a session whose first row will be at position `first_row`."""
        return GpuFollower(self._pool, first_row)

    def extend(self, batch: Sequence[Rows[GpuFollower]]) -> None:
        """Take in committed rows: they are run by the `draft` that follows, or before more come."""
        if self._staged:
            self.draft(())
        for rows in batch:
            follower = rows.follower
            assert rows.base_len == follower.next_row, "rows are in order"
            assert rows.taps_TX is not None, "this drafter has tap layers"
            self._staged.append(Extension(follower, follower.num_real, rows.tokens, rows.taps_TX))
            follower.take_in(len(rows.tokens))

    def draft(self, batch: Sequence[Wanted[GpuFollower]]) -> list[Draft]:
        """Run the rows that were taken in, and guess a tree for each session."""
        # Who has closed meanwhile has no pages any more, and others may have them.
        extensions = [rows for rows in self._staged if rows.follower.is_open]
        self._staged = []
        trees = [Tree(wanted, Growth.of(wanted.plan)) for wanted in batch]
        grown = [tree for tree in trees if tree.growth.steps and tree.wanted.follower.num_real]
        drafts: dict[GpuFollower, Draft] = {}
        with on_device(self._device):
            for launch in launches_of(extensions, grown):
                drafts |= self._run(launch)
        for follower in {*(rows.follower for rows in extensions), *drafts}:
            follower.forget_guesses()
        return [drafts.get(wanted.follower, Draft()) for wanted in batch]

    def _run(self, launch: Launch) -> dict[GpuFollower, Draft]:
        """Run a step, and return the trees of those that wanted one."""
        step = self._steps.run(launch.bucket, lambda step: step.fill(launch.jobs))
        trees = [job.tree for job in launch.jobs if job.tree]
        drafts = zip(trees, step.drafts(len(trees)), strict=True)
        return {tree.wanted.follower: tree.counted(draft) for tree, draft in drafts}
