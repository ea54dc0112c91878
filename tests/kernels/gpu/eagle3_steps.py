"""Steps of a tiny drafter, with what one is filled with: sessions that hold pages of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from draft_service.drafters import Wanted
from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.eagle3_gpu.follower import GpuFollower
from draft_service.drafters.eagle3_gpu.launches import Extension, Job, Tree
from draft_service.drafters.eagle3_gpu.step import StepMaker
from draft_service.drafters.eagle3_gpu.weights import GpuWeights
from draft_service.drafters.eagle3_gpu.workspace import Cache, Workspace
from draft_service.drafters.eagle3_tensors import Eagle3Tensors
from draft_service.graphs import Growth
from draft_service.kv_pool import KvPool
from draft_service.weights import open_drafter, read_config
from kernels.gpu.attention_shape import Tiling
from protos.messages import Plan, SamplingParams
from tests.draft_service.drafters.played_session import HIDDEN, LAYERS, VOCAB, target_side

PAGES, CONTEXT = 4, 100


def new_maker(path: Path, tiling: Tiling, rows: int) -> StepMaker:
    """Return what makes steps of up to so many rows."""
    config = Eagle3Config.from_json(read_config(path), LAYERS)
    tensors = Eagle3Tensors(config, open_drafter(path), target_side())
    weights = GpuWeights.of(tensors, CONTEXT)
    cache = Cache.of(weights, 64 * PAGES)
    return StepMaker(weights, cache, Workspace.of(weights, rows), tiling, 3)


def jobs_of(rows: Sequence[int], plans: Sequence[Plan], seed: int = 0) -> list[Job]:
    """Return sessions with so many new rows each; the first of them want trees of these plans."""
    generator = torch.Generator().manual_seed(seed)
    pool = KvPool(PAGES)
    return [
        _job(pool, count, plans[n] if n < len(plans) else None, generator)
        for n, count in enumerate(rows)
    ]


def _job(pool: KvPool, count: int, plan: Plan | None, generator: torch.Generator) -> Job:
    follower = GpuFollower(pool, first_row=3)
    follower.reserve(count)
    tokens = torch.randint(0, VOCAB, (3 + count + 1,), generator=generator).tolist()
    taps_TX = torch.randn(count, 3 * HIDDEN, generator=generator)
    extension = Extension(follower, 0, tokens[4:], taps_TX) if count else None
    follower.take_in(count)
    sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=7)
    wanted = plan and Wanted(follower, tokens, plan, sampling)
    return Job(follower, extension, wanted and Tree(wanted, Growth.of(wanted.plan)))
