"""`python -m draft_service --target ADDRESS`: attach to a target, then serve drafts."""

from __future__ import annotations

import asyncio

import structlog
import torch

from draft_service.admin import DraftAdminServicer
from draft_service.config import DraftConfig
from draft_service.draft_loop import DraftLoop
from draft_service.load import Load
from draft_service.loader import DrafterSpec
from draft_service.placement import Placement
from draft_service.registry import Registry
from draft_service.server import DraftServicer
from draft_service.standings import Standings
from draft_service.tap_reader import TapReader
from draft_service.upstream import Target
from kernels.native import select
from protos import draft_admin_pb2_grpc, draft_pb2_grpc, serving

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
    placement = Placement.parse(config.device, graphs=config.graphs)
    specs = [DrafterSpec.parse(text) for text in config.drafter]
    registry = Registry(specs, config.kv_tokens, placement)
    standings = Standings(registry, alarms=config.alarms)
    target = Target(serving.open_channel(config.target), config.target)
    server = serving.new_server()
    drafts = DraftLoop(Load(registry), standings)
    taps = TapReader(target, drafts, standings)
    servicer = DraftServicer(registry, standings, taps, drafts.load, config.max_sessions)
    draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server)
    admin = DraftAdminServicer(registry, standings)
    draft_admin_pb2_grpc.add_DraftAdminServiceServicer_to_server(admin, server)
    attaching = asyncio.create_task(target.attach(registry, config.target_model))
    try:
        await serving.serve(server, config.listen, "draft")
    finally:
        attaching.cancel()
        drafts.stop()


if __name__ == "__main__":
    serving.run(main)
