"""Short questions to running services, asked without an event loop."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos import draft_pb2, draft_pb2_grpc, serving, target_pb2, target_pb2_grpc

_TIMEOUT_S = 1.0


def open_channel(address: str) -> grpc.Channel:
    """Return a blocking channel to a service. Raises ValueError for what is no address."""
    serving.check_address(address)
    return grpc.insecure_channel(address, options=serving.CHANNEL_OPTIONS)


def is_healthy(address: str) -> bool:
    """Ask a service's health endpoint."""
    with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            response = stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError:
            return False
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


def get_target(address: str) -> target_pb2.GetTargetResponse:
    """Return what a target is, and how busy."""
    with open_channel(address) as channel:
        stub = target_pb2_grpc.TargetServiceStub(channel)
        return stub.GetTarget(target_pb2.GetTargetRequest(), timeout=_TIMEOUT_S)


def list_drafters(address: str) -> draft_pb2.ListDraftersResponse:
    """Return a draft service's drafters; none while it has not found its target yet."""
    with open_channel(address) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        return stub.ListDrafters(draft_pb2.ListDraftersRequest(), timeout=_TIMEOUT_S)
