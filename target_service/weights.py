"""Weights of a Hugging Face directory: safetensors only, memory-mapped, one file or many shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def read_config(model_dir: Path) -> dict[str, Any]:
    """Return config.json of a model directory. Raises ValueError that says what is missing."""
    path = model_dir / "config.json"
    if not path.is_file():
        raise ValueError(f"{model_dir} is not a model directory: it has no config.json")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a JSON object, not {type(config).__name__}")
    return config


def parse_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a name such as "bfloat16"."""
    if name not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {name!r}")
    return _DTYPES[name]


class Checkpoint(Protocol):
    """What models are made of: tensors by name, on disk as `Weights` or made up."""

    def __contains__(self, name: str) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> torch.Tensor: ...
    def stored(self, name: str) -> torch.Tensor:
        """Return a tensor in the dtype it is stored in, whatever that is."""

    def get(self, name: str) -> torch.Tensor | None:
        """Return a tensor, or None if there is none."""


class Weights:
    """The tensors of a directory by name. A tensor is a view of the file until it is converted.

    Models that also see keep their text part in `language_model.`, which is no part of a name here.
    """

    def __init__(self, model_dir: Path, dtype: torch.dtype | None = None) -> None:
        """Open every shard. `dtype` converts on access; None keeps what the files have."""
        paths = sorted(model_dir.glob("*.safetensors"))
        if not paths:
            raise ValueError(
                f"{model_dir} has no *.safetensors (other formats are not read: they can run code)"
            )
        self._dtype = dtype
        self._files = [_open(path) for path in paths]
        self._source_of = {
            name.removeprefix("language_model."): (file, name)
            for file in self._files
            for name in file.keys()  # noqa: SIM118
        }

    def __contains__(self, name: str) -> bool:
        return name in self._source_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._source_of)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a tensor. Raises ValueError for a name that no shard has, or a quantized one."""
        tensor = self.stored(name)
        if tensor.dtype not in _DTYPES.values():
            raise ValueError(
                f"tensor {name!r} has dtype {tensor.dtype}; known: {', '.join(_DTYPES)}"
            )
        return tensor if self._dtype is None else tensor.to(self._dtype)

    def stored(self, name: str) -> torch.Tensor:
        """Return a tensor in the dtype it is stored in, whatever that is.

        Raises ValueError for a name that no shard has.
        """
        if name not in self._source_of:
            raise ValueError(f"the checkpoint has no tensor {name!r}")
        file, stored_name = self._source_of[name]
        tensor: torch.Tensor = file.get_tensor(stored_name)
        return tensor

    def get(self, name: str) -> torch.Tensor | None:
        """Return a tensor, or None if no shard has it."""
        if name not in self:
            return None
        return self[name]


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
