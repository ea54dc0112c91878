"""`python -m target_service.rank SEAT`: a device more. It runs what the first one is about to run.

Started by `ranks`, and by nobody else; it ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import structlog
import torch

from kernels.gpu.graphs import Captured, capture_on
from kernels.gpu.runtime import on_device
from kernels.native import Selection
from protos import serving
from target_service.__main__ import load
from target_service.buckets import Bucket
from target_service.device_engine import Load, new_memory
from target_service.device_steps import DeviceSteps, Place
from target_service.kv_memory import PAGE_LEN
from target_service.orders import OrderReader
from target_service.team import RankJob, join

_PR_SET_PDEATHSIG = 1

log = structlog.get_logger()


def main(job: RankJob) -> None:
    """Run what is ordered, until nobody gives orders any more. Does not return."""
    die_with(job.parent)
    serving.configure_logging(job.config.log_level)
    torch.set_num_threads(job.config.threads)
    try:
        follow(job)
    except BaseException:
        log.exception("rank_failed", rank=job.rank)
        os._exit(1)
    # Libraries would wait for other ranks, which need not be there any more.
    os._exit(0)


def follow(job: RankJob) -> None:
    """Load this rank's slices, say so, and run what is ordered."""
    orders, device = OrderReader(job.orders_fd), torch.device(job.device)
    with on_device(device):
        steps = load_steps(job, device)
    orders.report_ready()
    for bucket, num_bytes in orders:
        if num_bytes:
            steps.run(bucket, num_bytes)
        else:
            steps.prepare(bucket, _nothing)


def load_steps(job: RankJob, device: torch.device) -> DeviceSteps:
    """Meet the others, and take this rank's slices to its device."""
    config = job.config
    team = join(job)
    model, facts = load(config, Selection("triton"), device)
    place = Place(device, capture_on(device, enabled=config.graphs), team)
    tap_layers, num_pages = facts.pairing.tap_layers, config.kv_tokens // PAGE_LEN
    most = Load.of(config, facts.max_context_len)
    memory = new_memory(model, tap_layers, num_pages, most, device, team)
    return DeviceSteps(memory, place)


def die_with(parent: int) -> None:
    """Have the kernel end this process with its parent, even if that one is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _nothing(bucket: Bucket, captured: Captured) -> None:
    """The first rank logs what captures cost."""


if __name__ == "__main__":
    main(RankJob.model_validate_json(sys.argv[1]))
