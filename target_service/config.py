"""The target service's settings: every field is a flag and an environment variable."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class TargetConfig(BaseSettings):
    """The target service: owns the model, verifies draft trees, streams taps."""

    model_config = SettingsConfigDict(
        env_prefix="SLIPSTREAM_TARGET_",
        frozen=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_prog_name="python -m target_service",
        protected_namespaces=(),
    )

    model: Path = Field(description="Hugging Face model directory (safetensors)")
    listen: str = Field("127.0.0.1:50051", description="address to serve gRPC on")
    insecure: bool = Field(False, description="allow an address that other machines can reach")
    dtype: str = Field("auto", description="auto (the checkpoint's), float32, bfloat16 or float16")
    weights: str = Field(
        "auto", description="auto (as dtype says), bf16, int8 or int4: converted when loading"
    )
    kernels: str = Field(
        "auto", description="of a CPU: auto (native where it can run), native or reference"
    )
    device: str = Field("cpu", description="cpu, cuda, cuda:N, or auto (cuda where there is one)")
    tensor_parallel: int = Field(
        1, ge=1, le=64, description="GPUs that share every layer, from the one of `device` on"
    )
    graphs: bool = Field(True, description="capture the steps of a GPU as CUDA graphs")
    threads: int = Field(
        os.cpu_count() or 1, ge=1, le=256, description="threads for matrix products"
    )
    max_context_len: int = Field(0, ge=0, description="longest session; 0: what the model allows")
    kv_tokens: int = Field(
        65536, ge=1, le=2**30, description="KV cache for all sessions, in tokens"
    )
    max_sessions: int = Field(64, ge=1, description="sessions open at once")
    tap_layers: str = Field(
        "", description="layers whose inputs are tapped, as in 2,15,27; empty: 2, n/2, n-3, n"
    )
    prefill_chunk: int = Field(32, ge=16, description="rows of prompts computed in a step")
    step_rows: int = Field(256, ge=128, description="rows of all sessions computed in a step")
    tap_buffer_mib: int = Field(64, ge=2, description="taps held for a subscriber, in MiB")
    attach_timeout_s: float = Field(
        5.0, gt=0, description="how long a tap subscriber waits for its session to open"
    )
    allow_forced_acceptance: bool = Field(
        False, description="let requests have drafts accepted right or wrong: for measurements"
    )
    log_level: str = Field("info", description="debug, info, warning or error")
