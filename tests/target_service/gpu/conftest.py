"""As for the kernels: one half is interpreted, the other compiled, in processes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kernels.gpu.conftest import LEFT_OUT
from tests.target_service.played_session import load_model
from tests.tiny_llama import write_tiny_llama

if TYPE_CHECKING:
    from target_service.models.target_model import TargetModel


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    within = collection_path.relative_to(Path(__file__).parent)
    return True if within.parts and within.parts[0] in LEFT_OUT else None


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models for an interpreter."""
    # Where Triton is not, nothing of this is collected but this file.
    from tests.kernels.gpu import tiny_latent
    from tests.target_service.gpu.tiny_steps import KINDS

    latent = {
        name: tiny_latent.write_tiny_latent(tmp_path_factory.mktemp("latent"), name)
        for name in tiny_latent.KINDS
    }
    return latent | {
        name: write_tiny_llama(tmp_path_factory.mktemp("model"), **kind)
        for name, kind in KINDS.items()
    }


@pytest.fixture(scope="session")
def models(directories: dict[str, Path]) -> dict[str, TargetModel]:
    return {name: load_model(path) for name, path in directories.items()}
