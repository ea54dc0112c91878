"""What a training that was interrupted goes on from: parameters, moments and its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

_MOMENTS = ("exp_avg", "exp_avg_sq")


def save_checkpoint(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, place: Mapping[str, int]
) -> None:
    """Write a checkpoint, whole or not at all. `place` says where in the training it was."""
    tensors = {}
    for name, parameter in module.named_parameters():
        tensors[name] = parameter.detach()
        for moment in _MOMENTS:
            tensors[f"{moment}:{name}"] = optimizer.state[parameter][moment]
    temporary = path.with_suffix(".tmp")
    metadata = {key: str(value) for key, value in place.items()}
    save_file(tensors, temporary, metadata)
    temporary.replace(path)


@torch.no_grad()
def load_checkpoint(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, int]:
    """Read a checkpoint into module and optimizer; return its place.

    Raises ValueError if it is of another drafter.
    """
    with safe_open(path, framework="pt") as file:
        place = {key: int(value) for key, value in file.metadata().items()}
        for name, parameter in module.named_parameters():
            _copy(file, name, parameter, path)
            moments = {moment: torch.empty_like(parameter) for moment in _MOMENTS}
            for moment, tensor in moments.items():
                _copy(file, f"{moment}:{name}", tensor, path)
            optimizer.state[parameter] = {"step": torch.tensor(float(place["step"])), **moments}
    return place


def _copy(file: safe_open, name: str, into: torch.Tensor, path: Path) -> None:
    names = file.keys()
    if name not in names or file.get_slice(name).get_shape() != list(into.shape):
        raise ValueError(f"{path} is a checkpoint of another drafter: {name} does not fit")
    into.copy_(file.get_tensor(name))
