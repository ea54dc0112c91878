"""A tiny drafter on every implementation of the kernels that runs here."""

from collections.abc import Iterator

import pytest
import torch

from draft_service.drafters.eagle3 import Eagle3Drafter
from tests.draft_service.drafters.played_session import HIDDEN, LAYERS, VOCAB, load
from tests.kernels.implementations import running
from tests.tiny_models import write_tiny_eagle3


@pytest.fixture(scope="module", params=["reference", "avx2", "avx512", "amx"])
def everywhere(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Eagle3Drafter]:
    """Native kernels serve bfloat16 only."""
    dtype = torch.float32 if request.param == "reference" else torch.bfloat16
    sizes = {"hidden": HIDDEN, "vocab": VOCAB, "target_layers": LAYERS}
    with running(request.param):
        path = tmp_path_factory.mktemp("tiny")
        yield load(write_tiny_eagle3(path, **sizes, dtype=dtype, seed=4))
