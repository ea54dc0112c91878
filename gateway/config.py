"""The gateway's settings: every field is a flag and an environment variable."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class GatewayConfig(BaseSettings):
    """The gateway: text in, text out; drafts and verifies behind it."""

    model_config = SettingsConfigDict(
        env_prefix="SLIPSTREAM_GATEWAY_",
        frozen=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_prog_name="python -m gateway",
        protected_namespaces=(),
    )

    model: Path = Field(description="model directory: tokenizer.json and the chat template")
    listen: str = Field("127.0.0.1:50050", description="address to serve gRPC on")
    http_listen: str = Field(
        "", description="address to serve OpenAI's HTTP API on, e.g. 127.0.0.1:8000; none: do not"
    )
    insecure: bool = Field(False, description="allow an address that other machines can reach")
    target: str = Field("127.0.0.1:50051", description="address of the target service")
    draft: list[str] = Field(
        ["127.0.0.1:50052"], description="address of a draft service; repeat it for replicas"
    )
    draft_deadline_ms: float = Field(
        50.0, gt=0, le=60_000, description="how long a round waits for a draft before it goes on"
    )
    record_share: float = Field(
        0.0, ge=0, le=1, description="share of requests that recorders may keep for training"
    )
    experience: Path | None = Field(
        None, description="file that keeps measured costs between starts; none: learn them anew"
    )
    max_requests: int = Field(64, ge=1, description="requests answered at once")
    log_level: str = Field("info", description="debug, info, warning or error")
