"""The front door: command line, launcher of a local stack, Python client, doctor."""

from slipstream.client import AsyncClient, Client, Completion, Request

__all__ = ["AsyncClient", "Client", "Completion", "Request"]
