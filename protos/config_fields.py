"""The fields of a model's config.json: what each must hold, before anybody computes with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """What a field must hold, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and value > 0 and math.isfinite(value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


SIZE = Kind("an integer of at least 1", _is_size)
POSITIVE = Kind("a number above 0", _is_positive)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
NAMES = Kind("a list of names", _are_names)

# What configs of all families have in common.
LAYER_FIELDS: Mapping[str, Kind] = {
    "architectures": NAMES,
    "hidden_size": SIZE,
    "intermediate_size": SIZE,
    "num_attention_heads": SIZE,
    "num_key_value_heads": SIZE,
    "num_hidden_layers": SIZE,
    "head_dim": SIZE,
    "vocab_size": SIZE,
    "max_position_embeddings": SIZE,
    "rms_norm_eps": POSITIVE,
    "rope_theta": POSITIVE,
    "rope_scaling": OBJECT,
    "rope_parameters": OBJECT,
    "tie_word_embeddings": FLAG,
    "quantization_config": OBJECT,
}


def checked_fields(config: Mapping[str, Any], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """Return a config without the fields that are null, which say as much as missing ones.

    Raises ValueError naming the first field that does not hold what its kind says.
    """
    stated = {name: value for name, value in config.items() if value is not None}
    for name, kind in kinds.items():
        if name in stated and not kind.holds(stated[name]):
            raise ValueError(f"{name} must be {kind.words}, got {stated[name]!r:.80}")
    return stated
