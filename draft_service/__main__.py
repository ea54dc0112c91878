"""`python -m draft_service --target ADDRESS`: attach to a target, then serve drafts."""

from __future__ import annotations

import asyncio

import structlog
import torch

from draft_service.config import DraftConfig
from draft_service.registry import DrafterSpec, Registry
from draft_service.server import DraftServicer
from draft_service.upstream import Target
from kernels.native import select
from protos import draft_pb2_grpc, serving

log = structlog.get_logger()


async def main() -> None:
    """Serve until a signal. The target may come later; until then sessions are UNAVAILABLE."""
    config = DraftConfig(_cli_parse_args=True)  # type: ignore[call-arg]
    serving.configure_logging(config.log_level)
    serving.check_listen_address(config.listen, insecure=config.insecure)
    torch.set_num_threads(config.threads)
    kernels = select(config.kernels, config.threads)
    if kernels.shortcoming:
        log.warning("native_kernels_unavailable", reason=kernels.shortcoming)
    registry = Registry([DrafterSpec.parse(text) for text in config.drafter])
    target = Target(serving.open_channel(config.target), config.target)
    server = serving.new_server()
    servicer = DraftServicer(registry, target, config.max_sessions)
    draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server)
    attaching = asyncio.create_task(target.attach(registry, config.target_model))
    await serving.serve(server, config.listen, "draft")
    attaching.cancel()


if __name__ == "__main__":
    serving.run(main)
