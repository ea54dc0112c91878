"""`slipstream doctor`: looks at environment, model and pairing; says what is wrong and why."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from protos import (
    draft_pb2,
    gateway_pb2,
    gateway_pb2_grpc,
    target_pb2,
    target_pb2_grpc,
)
from protos.pairing import Pairing
from slipstream.model_cache import DEFAULT_MODEL, resolve_model
from slipstream.probe import list_drafters, open_channel
from slipstream.stack import Addresses

_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    ok: bool
    detail: str
    remedy: str = ""


def examine(model: str, addresses: Addresses | None) -> Iterator[Finding]:
    """Look at everything; services only if addresses are given."""
    yield check_python()
    yield check_kernels_package()
    yield check_cores()
    yield check_row_invariance()
    yield check_native_kernels()
    yield check_model(model)
    if addresses is not None:
        yield _ask("target", addresses.target, lambda: check_target(addresses.target))
        yield _ask(
            "drafters", addresses.draft, lambda: check_drafters(addresses.draft, addresses.target)
        )
        yield _ask("gateway", addresses.gateway, lambda: check_gateway(addresses.gateway))


def _ask(subject: str, address: str, check: Callable[[], Finding]) -> Finding:
    """Check a service; one that does not answer is a finding too."""
    try:
        return check()
    except grpc.RpcError as error:
        detail = f"{address}: {error.code().name}: {error.details()}"
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return Finding(subject, False, detail, "another service listens there; swap addresses")
        return Finding(subject, False, detail, "start it, or correct the address")


def check_python() -> Finding:
    """Python and torch are recent enough."""
    version = ".".join(map(str, sys.version_info[:3]))
    torch = importlib.metadata.version("torch")
    return Finding(
        "python", sys.version_info >= (3, 11), f"{version}, torch {torch}", "use Python 3.11"
    )


def check_kernels_package() -> Finding:
    """`import kernels` finds ours, not the package of that name on PyPI."""
    import kernels

    ours = Path(__file__).parent.parent / "kernels"
    found = Path(kernels.__file__ or "").parent
    remedy = "pip uninstall kernels"
    return Finding("kernels", found.resolve() == ours.resolve(), str(found), remedy)


def check_cores() -> Finding:
    """There is more than one core, and no waiting thread spins."""
    policy = os.environ.get("OMP_WAIT_POLICY", "unset (the launcher sets it for its services)")
    cores = os.cpu_count() or 1
    detail = f"{cores} cores, OMP_WAIT_POLICY {policy}"
    return Finding("cores", policy.lower() != "active", detail, "export OMP_WAIT_POLICY=passive")


def check_row_invariance() -> Finding:
    """A row's product has the same bits wherever it stands in a block of 16."""
    import torch

    from kernels.linear import ROW_BLOCK, DenseLinear

    generator = torch.Generator().manual_seed(0)
    different = []
    for dtype in (torch.float32, torch.bfloat16):
        linear = DenseLinear(torch.randn(576, 1536, generator=generator).to(dtype))
        x_RK = torch.randn(ROW_BLOCK, 1536, generator=generator).to(dtype)
        order_R = torch.randperm(ROW_BLOCK, generator=generator)
        if not torch.equal(linear(x_RK[order_R]), linear(x_RK)[order_R]):
            different.append(str(dtype))
    detail = f"differs for {', '.join(different)}" if different else "same bits in every row"
    return Finding("row invariance", not different, detail, "try another torch build")


def check_native_kernels() -> Finding:
    """The native kernels are built, and this CPU can run them."""
    from kernels.native import select

    kernels = select("auto", num_threads=1)
    detail = kernels.shortcoming or kernels.name
    return Finding("native kernels", not kernels.shortcoming, detail, "python -m kernels.native")


def check_model(model: str) -> Finding:
    """The model directory is there, complete, and one the target can load."""
    from target_service.models import model_config
    from target_service.weights import Weights, read_config

    try:
        path = resolve_model(model)
    except ValueError as error:
        return Finding("model", False, str(error), f"slipstream fetch {DEFAULT_MODEL}")
    try:
        model_config(read_config(path))
        Weights(path)
        if not (path / "tokenizer.json").is_file():
            raise ValueError(f"{path} has no tokenizer.json")
    except ValueError as error:
        return Finding("model", False, str(error), "fetch or copy the model again")
    return Finding("model", True, str(path))


def check_target(address: str) -> Finding:
    """The target answers."""
    info = _target_info(address)
    load = info.load
    return Finding(
        "target",
        True,
        f"{address}: {info.model_name} ({info.weights}, {info.device}, {info.kernels} kernels), "
        f"context {info.max_context_len}, taps {list(info.pairing.tap_layers)}, "
        f"{load.sessions} sessions, {load.kv_tokens_reserved} of {load.kv_tokens_total} KV slots",
    )


def _target_info(address: str) -> target_pb2.GetTargetResponse:
    with open_channel(address) as channel:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        return stub.GetTarget(target_pb2.GetTargetRequest(), timeout=_TIMEOUT_S)


def check_drafters(address: str, target_address: str) -> Finding:
    """Every drafter fits the target."""
    listed = list_drafters(address)
    target = Pairing.from_proto(_target_info(target_address).pairing)
    problems = [
        f"{info.drafter_id}: {problem}"
        for info in listed.drafters
        for problem in _problems(info, target)
    ]
    names = ", ".join(info.drafter_id for info in listed.drafters) or "none yet"
    detail = "; ".join(problems) or f"{address}: {names}"
    return Finding("drafters", not problems, detail, "fix the drafter or choose another")


def _problems(info: draft_pb2.DrafterInfo, target: Pairing) -> list[str]:
    if info.refusal:
        return [info.refusal]
    return Pairing.from_proto(info.pairing).mismatches(target)


def check_gateway(address: str) -> Finding:
    """The gateway answers."""
    with open_channel(address) as channel:
        stub = gateway_pb2_grpc.GenerationServiceStub(channel)
        info = stub.GetInfo(gateway_pb2.GetInfoRequest(), timeout=_TIMEOUT_S)
    drafters = ", ".join(info.drafter_ids) or "no drafter reachable: plain decoding"
    return Finding("gateway", True, f"{address}: {info.model_name}, drafters: {drafters}")
