"""Record what a serving target is asked anyway: its users' conversations, if they may be kept.

    for each session that the target tells of, some of them:
        subscribe to its taps, from the first row on
        add it to the recording when it ends

The target sends taps to one subscriber more, in large frames; nobody waits for us.

Legend: X tapped width.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

import grpc
import structlog
import torch

from protos import target_pb2
from protos.messages import SamplingParams
from protos.pairing import Pairing
from training.recording import Recording
from training.sample import Facts, Sample
from training.target_client import Followed, Target

log = structlog.get_logger()

LIVE_TASK = "live"


@dataclass(frozen=True)
class LiveRecorder:
    """Keeps a share of the sessions that may be kept, until there are enough tokens."""

    target: Target
    pairing: Pairing
    num_tokens: int
    share: float = 1.0

    async def record(self, recording: Recording, told: Callable[[], None]) -> None:
        """Record until there are enough tokens; `told` after each conversation.

        What has ended is on the disk however this ends. Raises AioRpcError, DiskFullError.
        """
        enough = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._watch(group, recording, told, enough))
                await enough.wait()
                watching.cancel()
        finally:
            recording.flush()

    async def _watch(
        self,
        group: asyncio.TaskGroup,
        recording: Recording,
        told: Callable[[], None],
        enough: asyncio.Event,
    ) -> None:
        async for notice in self.target.watch_sessions():
            if random.random() < self.share and notice.session_id not in recording.sample_ids:
                group.create_task(self._keep(notice, recording, told, enough))

    async def _keep(
        self,
        notice: target_pb2.WatchSessionsResponse,
        recording: Recording,
        told: Callable[[], None],
        enough: asyncio.Event,
    ) -> None:
        """Follow a session to its end. One that cannot be followed is no training data."""
        try:
            followed = await self.target.follow(notice.session_id, self.pairing)
            recording.add(_sample(notice, followed))
        except (grpc.aio.AioRpcError, ValueError) as error:
            reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            log.warning("session_not_recorded", session_id=notice.session_id, reason=reason)
            return
        told()
        if recording.num_tokens >= self.num_tokens:
            enough.set()


def _sample(notice: target_pb2.WatchSessionsResponse, followed: Followed) -> Sample:
    """Return a session as a sample. Raises ValueError if it began without us, or had no answer."""
    tokens = followed.tokens
    if followed.first_row or len(tokens) <= notice.prompt_len:
        raise ValueError(
            f"taps from row {followed.first_row} on, {len(tokens)} tokens "
            f"after a prompt of {notice.prompt_len}"
        )
    sampling = SamplingParams.from_proto(notice.sampling)
    facts = Facts(
        notice.session_id,
        LIVE_TASK,
        ((notice.prompt_len, len(tokens)),),
        sampling.temperature,
        sampling.top_p,
        sampling.seed,
    )
    return Sample(facts, torch.tensor(tokens, dtype=torch.int32), followed.taps_TX)
