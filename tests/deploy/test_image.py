"""deploy/Dockerfile: the launcher's environment, no root, no model; and what the build is sent."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from slipstream import stack

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
RUNTIME = DOCKERFILE.rpartition("\nFROM ")[2]
IGNORE = (ROOT / ".dockerignore").read_text().splitlines()


def environment() -> dict[str, str]:
    """The variables that the final stage sets."""
    block = re.search(r"^ENV (.*?[^\\])$", RUNTIME, re.DOTALL | re.MULTILINE)
    assert block is not None
    words = block[1].replace("\\\n", " ").split()
    return dict(word.split("=", 1) for word in words)


def packages() -> list[str]:
    """Our packages that exist so far."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["packages"]["find"]["include"]
    return [name for pattern in patterns if (ROOT / (name := pattern.removesuffix("*"))).is_dir()]


def test_a_container_has_the_environment_that_the_launcher_sets():
    assert stack._ENVIRONMENT.items() <= environment().items()


def test_the_cache_is_where_compose_mounts_it():
    fetch = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["fetch"]

    assert fetch["volumes"] == [f"models:{environment()['SLIPSTREAM_CACHE']}"]


def test_the_image_is_not_run_by_root():
    assert re.findall(r"^USER (.*)$", RUNTIME, re.MULTILINE) == ["10001:10001"]


def test_no_model_and_no_certificate_is_left_in_the_image():
    """The final stage takes the virtual environment and nothing else."""
    assert re.findall(r"^(?:COPY|ADD) (.*)$", RUNTIME, re.MULTILINE) == ["--from=build /venv /venv"]
    assert "slipstream fetch" not in re.sub(r"(?m)^#.*$", "", DOCKERFILE)


def test_no_build_step_needs_a_foreign_frontend():
    """A syntax line would pull an image before anything else happens."""
    assert "syntax=" not in DOCKERFILE


def test_the_build_is_sent_what_is_named_and_nothing_else():
    assert next(line for line in IGNORE if not line.startswith("#")) == "*"


@pytest.mark.parametrize("name", packages())
def test_the_build_is_sent_every_package(name):
    assert f"!{name}" in IGNORE
