"""Where models live, and when a folder counts as a finished model."""

import json
from pathlib import Path

import pytest

from slipstream import model_cache
from slipstream.model_cache import (
    CONVERSION,
    KNOWN_MODELS,
    KnownModel,
    cache_dir,
    is_complete,
    known_model,
    model_dir,
    resolve_model,
)

SMOLLM2 = KNOWN_MODELS[0]


def finished_folder(model: KnownModel, cache: Path) -> Path:
    """A folder that looks like a fetched `model`: two small files and their manifest."""
    directory = model_dir(model, cache)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"weights")
    write_manifest(directory, name=model.name, sha256=model.sha256, conversion=CONVERSION)
    return directory


def write_manifest(directory: Path, **origin: object) -> None:
    files = {"config.json": {"size": 2}, "model.safetensors": {"size": 7}}
    (directory / "manifest.json").write_text(json.dumps({**origin, "files": files}))


def test_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))

    assert cache_dir() == tmp_path


@pytest.mark.parametrize("unset", [True, False], ids=["unset", "empty"])
def test_cache_is_below_the_home_folder_otherwise(monkeypatch, tmp_path, unset):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLIPSTREAM_CACHE", "")
    if unset:
        monkeypatch.delenv("SLIPSTREAM_CACHE")

    assert cache_dir() == tmp_path / ".cache" / "slipstream"


def test_a_folder_with_a_config_is_taken_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text("{}")

    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_fetched_name_resolves_into_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    directory = finished_folder(SMOLLM2, tmp_path)

    assert resolve_model("smollm2-135m") == directory == tmp_path / "models" / "smollm2-135m"


def test_a_folder_of_the_same_name_wins_over_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))
    finished_folder(SMOLLM2, tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    (tmp_path / "smollm2-135m" / "config.json").write_text("{}")

    assert resolve_model("smollm2-135m") == Path("smollm2-135m")


@pytest.mark.parametrize(
    ("value", "command"),
    [
        ("smollm2-135m", "slipstream fetch smollm2-135m"),
        ("smollm3", "slipstream fetch NAME"),
        ("no/such/folder", "slipstream fetch NAME"),
    ],
)
def test_an_unresolved_value_is_named_with_the_way_out(monkeypatch, tmp_path, value, command):
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path))

    with pytest.raises(ValueError, match="known models: smollm2-135m") as refusal:
        resolve_model(value)

    assert repr(value) in str(refusal.value)
    assert str(refusal.value).endswith(command)


def test_a_folder_without_config_is_no_model(tmp_path):
    with pytest.raises(ValueError, match=r"neither a folder with a config\.json"):
        resolve_model(str(tmp_path))


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'gpt-9'.*smollm2-135m"):
        known_model("gpt-9")


def test_a_folder_with_what_its_manifest_promises_is_complete(tmp_path):
    assert is_complete(finished_folder(SMOLLM2, tmp_path), SMOLLM2)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "manifest.json"])
@pytest.mark.parametrize("harm", ["missing", "cut short"])
def test_a_folder_that_lost_anything_is_not_complete(tmp_path, name, harm):
    directory = finished_folder(SMOLLM2, tmp_path)
    kept = (directory / name).read_bytes()[:-1]
    (directory / name).unlink()
    if harm == "cut short":
        (directory / name).write_bytes(kept)

    assert not is_complete(directory, SMOLLM2)


@pytest.mark.parametrize(
    "change", [{"name": "other"}, {"sha256": "0" * 64}, {"conversion": CONVERSION - 1}]
)
def test_a_folder_of_another_origin_is_not_complete(tmp_path, change):
    directory = finished_folder(SMOLLM2, tmp_path)
    right = {"name": SMOLLM2.name, "sha256": SMOLLM2.sha256, "conversion": CONVERSION}
    write_manifest(directory, **(right | change))

    assert not is_complete(directory, SMOLLM2)


def test_no_folder_is_not_complete(tmp_path):
    assert not is_complete(tmp_path / "nothing", SMOLLM2)


def test_known_names_are_unique_and_plain():
    names = [model.name for model in model_cache.KNOWN_MODELS]

    assert len(set(names)) == len(names)
    assert all(Path(name).name == name for name in names)
