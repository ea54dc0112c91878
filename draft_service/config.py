"""The draft service's settings: every field is a flag and an environment variable."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class DraftConfig(BaseSettings):
    """The draft service: follows a target's taps and pushes draft trees."""

    model_config = SettingsConfigDict(
        env_prefix="SLIPSTREAM_DRAFT_",
        frozen=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_prog_name="python -m draft_service",
        protected_namespaces=(),
    )

    target: str = Field("127.0.0.1:50051", description="address of the target service")
    listen: str = Field("127.0.0.1:50052", description="address to serve gRPC on")
    insecure: bool = Field(False, description="allow an address that other machines can reach")
    drafter: list[str] = Field(
        ["ngram"],
        description="`ngram`, a shipped one or ID=DIRECTORY; repeat it; the first that fits leads",
    )
    target_model: Path | None = Field(
        None, description="the target's model directory, for drafters that share its embedding"
    )
    kernels: str = Field("auto", description="auto (native where it can run), native or reference")
    device: str = Field(
        "cpu", description="cpu, cuda or cuda:N for EAGLE-3, or auto (a GPU if torch finds one)"
    )
    graphs: bool = Field(
        True, description="capture steps on a GPU as CUDA graphs; --no-graphs launches one by one"
    )
    threads: int = Field(1, ge=1, le=256, description="threads for matrix products")
    kv_tokens: int = Field(
        65536, ge=1, description="tokens of all sessions together that a drafter's KV cache holds"
    )
    alarms: bool = Field(
        True, description="take a drafter whose drafts are never right out of service"
    )
    max_sessions: int = Field(64, ge=1, description="sessions followed at once")
    log_level: str = Field("info", description="debug, info, warning or error")
