"""Weights of a drafter, and those it shares with its target: safetensors only, memory-mapped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from protos.config_fields import COUNTS, LAYER_FIELDS, OBJECT, SIZE, check_fields

_EAGLE_FIELDS = {"eagle_aux_hidden_state_layer_ids": COUNTS}
_DRAFTER_FIELDS = _EAGLE_FIELDS | {
    "draft_vocab_size": SIZE,
    "target_hidden_size": SIZE,
    "eagle_config": OBJECT,
    "transformer_layer_config": OBJECT,
}
# What exporters call the same tensor; the second name is the one used here.
_DRAFTER_PREFIXES = (
    ("layers.0.", "midlayer."),
    ("aux_norm_low.", "fc_norm.0."),
    ("aux_norm_mid.", "fc_norm.1."),
    ("aux_norm_high.", "fc_norm.2."),
)


def read_config(directory: Path) -> dict[str, Any]:
    """Return config.json of a directory. Raises ValueError that says what is missing or wrong."""
    path = directory / "config.json"
    if not path.is_file():
        raise ValueError(f"{directory} is not a model directory: it has no config.json")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a JSON object, not {type(config).__name__}")
    check_fields(config, LAYER_FIELDS | _DRAFTER_FIELDS)
    check_fields(config.get("eagle_config") or {}, _EAGLE_FIELDS)
    return config


class Checkpoint(Protocol):
    """What drafters are made of: tensors by name, on disk as `Weights` or made up."""

    def __contains__(self, name: str) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __getitem__(self, name: str) -> torch.Tensor: ...


class Weights:
    """The tensors of a directory by name. A tensor is a view of its file until it is converted."""

    def __init__(self, directory: Path, rename: Callable[[str], str] = str) -> None:
        """Open every shard. `rename` maps a name in the files to the name used here."""
        self._directory = directory
        self._source_of: dict[str, tuple[Any, str]] = {}
        for path in _shards(directory):
            file = _open(path)
            for stored_name in file.keys():  # noqa: SIM118
                self._add(rename(stored_name), file, stored_name)

    def _add(self, name: str, file: Any, stored_name: str) -> None:
        if name in self._source_of:
            twin = self._source_of[name][1]
            raise ValueError(f"{self._directory} has {name!r} twice: {twin!r} and {stored_name!r}")
        self._source_of[name] = file, stored_name

    def __contains__(self, name: str) -> bool:
        return name in self._source_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._source_of)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Return a tensor. Raises ValueError for a name that no shard has."""
        if name not in self._source_of:
            raise ValueError(f"{self._directory} has no tensor {name!r}")
        file, stored_name = self._source_of[name]
        tensor: torch.Tensor = file.get_tensor(stored_name)
        return tensor

    def num_elements(self, name: str) -> int:
        """Return how many numbers a tensor has, without reading them."""
        file, stored_name = self._source_of[name]
        return math.prod(file.get_slice(stored_name).get_shape())


def open_drafter(drafter_dir: Path) -> Weights:
    """Open a drafter's weights; names are brought to one form (see `drafter_tensor_name`)."""
    return Weights(drafter_dir, drafter_tensor_name)


def drafter_tensor_name(name: str) -> str:
    """Return the name of a drafter's tensor without the habits of its exporter.

    `model.` is dropped, `layers.0.` is `midlayer.`, `aux_norm_low|mid|high` is `fc_norm.0|1|2`.
    """
    name = name.removeprefix("model.")
    for theirs, ours in _DRAFTER_PREFIXES:
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def target_embedding(model_dir: Path) -> torch.Tensor:
    """Return the target's input embedding, [vocabulary, hidden]."""
    return open_target(model_dir)["model.embed_tokens.weight"]


def target_head(model_dir: Path) -> torch.Tensor:
    """Return the target's output head, [vocabulary, hidden]; its embedding if they are tied.

    A head that is missing from an untied target is an error: half a download must not pass.
    """
    weights = open_target(model_dir)
    config = read_config(model_dir)
    tied = config.get("text_config", config).get("tie_word_embeddings", False)
    if tied and "lm_head.weight" not in weights:
        return weights["model.embed_tokens.weight"]
    return weights["lm_head.weight"]


def open_target(model_dir: Path) -> Weights:
    """Open a target's weights. Models that also see keep their text part in `language_model.`."""
    return Weights(model_dir, lambda name: name.removeprefix("language_model."))


def _shards(directory: Path) -> list[Path]:
    paths = sorted(directory.glob("*.safetensors"))
    if paths:
        return paths
    for pattern in ("*.bin", "*.pt", "*.pth"):
        for pickled in sorted(directory.glob(pattern)):
            raise ValueError(
                f"{pickled} is not read: only *.safetensors are, as a pickle can run code. "
                "Convert it on a machine you can lose: safetensors.torch.save_file("
                f"torch.load({pickled.name!r}, weights_only=True), 'model.safetensors')"
            )
    raise ValueError(f"{directory} has no *.safetensors")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
