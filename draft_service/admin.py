"""The draft service's other gRPC face: drafters come and go while it serves."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import structlog

from draft_service.loader import DrafterRefusedError, DrafterSpec, Loader
from draft_service.registry import Canary, DrafterExistsError, Registered, Registry
from draft_service.standings import Standings
from draft_service.trial import DEFAULT_CONFIDENCE, DEFAULT_MAX_ROUNDS, PromotionRule
from protos import draft_admin_pb2 as pb
from protos import draft_admin_pb2_grpc, draft_pb2
from protos.messages import check_id

log = structlog.get_logger()

_MAX_PATH_LEN = 4096
_LAST_BATCH_S = 1.0


class DraftAdminServicer(draft_admin_pb2_grpc.DraftAdminServiceServicer):
    """DraftAdminService of draft_admin.proto."""

    def __init__(self, registry: Registry, standings: Standings) -> None:
        self._registry = registry
        self._standings = standings
        # One after the other: each sees what memory those before it have left.
        self._loading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def LoadDrafter(  # noqa: N802
        self, request: pb.LoadDrafterRequest, context: Any
    ) -> pb.LoadDrafterResponse:
        """Begin to load a drafter."""
        async with self._refusing(context) as loader:
            entry = self._registry.begin_load(_spec(request))
            self._start(self._load(loader, entry))
        return pb.LoadDrafterResponse()

    async def UnloadDrafter(  # noqa: N802
        self, request: pb.UnloadDrafterRequest, context: Any
    ) -> pb.UnloadDrafterResponse:
        """Let a drafter go when its last session has ended."""
        async with self._refusing(context):
            try:
                entry = self._standings.unload(request.drafter_id)
            except ValueError as error:
                raise DrafterRefusedError(str(error)) from None
            self._start(_give_memory_back(entry))
        return pb.UnloadDrafterResponse(sessions=len(entry.outboxes))

    async def SetDefaultDrafter(  # noqa: N802
        self, request: pb.SetDefaultDrafterRequest, context: Any
    ) -> pb.SetDefaultDrafterResponse:
        """Switch the default."""
        async with self._refusing(context):
            previous_id = self._registry.default_id
            self._standings.choose_default(request.drafter_id)
        return pb.SetDefaultDrafterResponse(previous_drafter_id=previous_id)

    async def SetCanary(  # noqa: N802
        self, request: pb.SetCanaryRequest, context: Any
    ) -> pb.SetCanaryResponse:
        """Give a drafter a share of the sessions that name none."""
        async with self._refusing(context):
            share = request.canary.share
            if not 0 <= share <= 1:
                raise ValueError(f"share must be in [0, 1], got {share}")
            self._registry.set_canary(Canary(request.canary.drafter_id, share))
        return pb.SetCanaryResponse()

    async def StartShadow(  # noqa: N802
        self, request: pb.StartShadowRequest, context: Any
    ) -> pb.StartShadowResponse:
        """Compare a candidate with the default."""
        async with self._refusing(context):
            rule = _rule(request.promote_if) if request.HasField("promote_if") else None
            shadow = self._standings.start_shadow(request.drafter_id, request.share, rule)
        return pb.StartShadowResponse(incumbent_id=shadow.incumbent_id)

    async def StopShadow(  # noqa: N802
        self, request: pb.StopShadowRequest, context: Any
    ) -> pb.StopShadowResponse:
        """End the shadow."""
        del request, context
        self._standings.stop_shadow()
        return pb.StopShadowResponse()

    def _start(self, work: Any) -> None:
        """Work on in the background. The set keeps the task: the loop itself does not."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load(self, loader: Loader, entry: Registered) -> None:
        """Load a drafter in a thread: sessions go on meanwhile."""
        async with self._loading:
            try:
                entry.become_ready(await asyncio.to_thread(loader.load, entry.spec))
            except DrafterRefusedError as error:
                entry.close_to_sessions(draft_pb2.DRAFTER_STATE_REFUSED, str(error))

    @asynccontextmanager
    async def _refusing(self, context: Any) -> AsyncIterator[Any]:
        """Yield the loader; end the call with the status of whatever speaks against it."""
        loader = self._registry.loader
        try:
            if loader is None:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the target was not reachable yet")
            yield loader
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except DrafterExistsError as error:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, str(error))
        except DrafterRefusedError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except KeyError as error:
            message = f"no drafter {str(error.args[0])[:80]!r}"
            await context.abort(grpc.StatusCode.NOT_FOUND, message)


def _spec(request: pb.LoadDrafterRequest) -> DrafterSpec:
    """Return what to load: a directory of this machine, or prompt lookup, which needs none."""
    drafter_id, directory = check_id("drafter_id", request.drafter_id), request.directory
    if not directory:
        return DrafterSpec.parse(drafter_id)
    if len(directory) > _MAX_PATH_LEN or "\0" in directory:
        raise ValueError(
            f"directory must be a path of at most {_MAX_PATH_LEN} characters, "
            f"got {directory[:80]!r} of {len(directory)}"
        )
    return DrafterSpec(drafter_id, Path(directory))


def _rule(message: draft_pb2.PromotionRule) -> PromotionRule:
    return PromotionRule(
        message.better_by,
        message.confidence or DEFAULT_CONFIDENCE,
        message.max_rounds or DEFAULT_MAX_ROUNDS,
    )


async def _give_memory_back(entry: Registered) -> None:
    """Once a drafter is gone: what the allocator keeps of it goes back to the machine."""
    await entry.gone.wait()
    # A batch that used it may still run.
    await asyncio.sleep(_LAST_BATCH_S)
    await asyncio.to_thread(_collect)


def _collect() -> None:
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
