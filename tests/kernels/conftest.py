"""One thread, so that what is compared is the code; tests of the threads themselves ask for two."""

from collections.abc import Iterator

import pytest
import torch

from tests.kernels.implementations import running, use_threads


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    use_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def two_threads() -> Iterator[None]:
    use_threads(2)
    yield
    use_threads(1)


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """The implementation in use, for a whole module: hypothesis runs a test many times in one."""
    with running(request.param):
        yield request.param
