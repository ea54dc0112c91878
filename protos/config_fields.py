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


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


SIZE = Kind("an integer of at least 1", _is_size)
POSITIVE = Kind("a number above 0", _is_positive)
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
NAMES = Kind("a list of names", _are_names)
COUNTS = Kind("a list of integers of at least 0", _are_counts)

# What configs of all families have in common.
LAYER_FIELDS: dict[str, Kind] = {
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


def stated(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the fields that are null, which say as much as missing ones."""
    return {name: value for name, value in config.items() if value is not None}


def check_fields(config: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Raise ValueError naming the first field that does not hold what its kind says, nor null."""
    for name, kind in kinds.items():
        value = config.get(name)
        if value is not None and not kind.holds(value):
            raise ValueError(f"{name} must be {kind.words}, got {value!r:.80}")
