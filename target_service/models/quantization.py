"""What a config.json says about quantized weights: int4 in groups of 32, as Kimi's are, or refused.

compressed-tensors, "pack-quantized": of each layer that is not ignored there are `weight_packed`,
`weight_scale` and `weight_shape` in place of `weight`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.quantized_linear import INT4_GROUP

_REGEX = "re:"
# Of a group's weights. One that is missing or null has the value of those that say nothing.
_WEIGHTS: Mapping[str, tuple[Any, Any]] = {
    "num_bits": (4, 8),
    "type": ("int", "int"),
    "symmetric": (True, True),
    "strategy": ("group", None),
    "group_size": (INT4_GROUP, None),
    "actorder": (None, None),
    "dynamic": (False, False),
}


@dataclass(frozen=True)
class Int4Groups:
    """Which layers are quantized: all that no name and no pattern of `ignored` speaks of."""

    ignored: tuple[str, ...]

    def covers(self, layer: str) -> bool:
        """Whether the layer of such a name is quantized, as in "model.layers.0.mlp.up_proj"."""
        return not any(_speaks_of(entry, layer) for entry in self.ignored)


def _speaks_of(entry: str, layer: str) -> bool:
    # Models that also see say this in front of all names of their text part.
    names = (layer, f"language_model.{layer}")
    if entry.startswith(_REGEX):
        return any(re.match(entry.removeprefix(_REGEX), name) for name in names)
    return entry in names


def read_quantization(config: Mapping[str, Any]) -> Int4Groups | None:
    """Return what a config.json says, None if nothing is quantized.

    Raises ValueError naming the value for every other scheme.
    """
    found = config.get("quantization_config")
    if not found:
        return None
    method = found.get("quant_method")
    if method != "compressed-tensors":
        details = {name: value for name, value in found.items() if name != "quant_method"}
        raise ValueError(
            f"quantized weights ({method!r}, {details}) are not supported; take bfloat16 or "
            "compressed-tensors int4"
        )
    _check("format", found.get("format"), "pack-quantized")
    groups = found.get("config_groups") or {}
    if len(groups) != 1:
        raise ValueError(f"config_groups must be one group of layers, got {sorted(groups)}")
    _check_group(next(iter(groups.values())))
    return Int4Groups(tuple(found.get("ignore") or ()))


def _check_group(group: Mapping[str, Any]) -> None:
    _check("targets", group.get("targets"), ["Linear"])
    _check("input_activations", group.get("input_activations"), None)
    weights = group.get("weights") or {}
    for name, (only, default) in _WEIGHTS.items():
        value = weights.get(name)
        _check(name, default if value is None else value, only)


def _check(name: str, value: object, only: object) -> None:
    if value != only:
        raise ValueError(f"quantization: {name} is {value!r}, only {only!r} is supported")
