"""The devices that share a model's layers, a process each: how one of them takes part.

Sums are not left to the library, which may add in another order where there are other numbers of
rows: parts are gathered, which only copies, and a kernel adds them in the order of the ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from pydantic import BaseModel

from kernels.gpu.stack import Gather
from target_service.config import TargetConfig
from target_service.tensor_parallel import Part

LOOPBACK = "127.0.0.1"
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class Seat(BaseModel, frozen=True):
    """Which place a process takes, and where it meets the others."""

    rank: int
    of: int
    device: str
    port: int
    """On loopback."""
    inputs_fd: int
    """Memory that all processes share: the inputs of a step, as the first one packs them."""


class RankJob(Seat, frozen=True):
    """What a process is told that is started to take a place."""

    orders_fd: int
    parent: int
    """The number of the process that started it."""
    config: TargetConfig


@dataclass(frozen=True)
class Team:
    """A place that was taken."""

    part: Part
    all_gather: Callable[[torch.Tensor, torch.Tensor], object]
    """Write the bytes of all, one after the other, to the first; the second are this one's."""
    inputs: Callable[[int, torch.device], torch.Tensor]
    """So many bytes of shared memory, where a device can reach them."""

    def gather(self, most_elements: int, device: torch.device) -> Gather:
        """Return what gathers parts of sums, bfloat16, of up to so many elements."""
        buffer_E = torch.zeros(self.part.of * most_elements, dtype=torch.bfloat16, device=device)

        def gather(x_RH: torch.Tensor) -> torch.Tensor:
            all_E = buffer_E[: self.part.of * x_RH.numel()]
            self.all_gather(all_E.view(torch.uint8), x_RH.view(-1).view(torch.uint8))
            return all_E.view(self.part.of, *x_RH.shape)

        return gather


def join(seat: Seat, listener_fd: int | None = None) -> Team:
    """Take a place, once all have come. The first one listens, at the port where they meet."""
    device = torch.device(seat.device)
    for name in _INTERFACES:
        # All are on this machine, and nobody else is to reach them.
        os.environ.setdefault(name, "lo")
    store = dist.TCPStore(  # type: ignore[attr-defined]
        LOOPBACK,
        seat.port,
        seat.of,
        listener_fd is not None,
        wait_for_workers=False,
        master_listen_fd=listener_fd,
    )
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=seat.rank,
        world_size=seat.of,
        device_id=device if device.type == "cuda" else None,
    )
    return Team(
        Part(seat.rank, seat.of),
        dist.all_gather_single,
        lambda num_bytes, device: _shared_memory(seat.inputs_fd, num_bytes, device),
    )


def leave() -> None:
    """Give the place up, if it was taken."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _shared_memory(fd: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    path = f"/proc/self/fd/{fd}"
    memory_B = torch.from_file(path, shared=True, size=num_bytes, dtype=torch.uint8)
    if device.type == "cuda":
        cudart = torch.cuda.cudart()
        torch.cuda.check_error(cudart.cudaHostRegister(memory_B.data_ptr(), num_bytes, 0))
    return memory_B
