"""Which layers of the target a drafter reads: every convention, brought to input-of-layer ids.

Id i means the residual stream at the INPUT of layer i; the number of layers itself stands for the
output of the last one. The same tensor is called

- i by SafeAILab/EAGLE, by vLLM (`eagle_aux_hidden_state_layer_ids` at the top level of a config),
  and by SGLang for ids that do not begin with 1;
- i - 1, "output of layer", by TensorRT-LLM, by the trainers SpecForge and TorchSpec, and by SGLang
  for ids that begin with 1 (`eagle_config.eagle_aux_hidden_state_layer_ids`; SGLang adds 1).

So input-of [2, 30, 58] is output-of [1, 29, 57]. Being off by one is silent and costs up to three
quarters of the acceptance at the first position, which is why this is decided here and only here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

_KEY = "eagle_aux_hidden_state_layer_ids"


def input_of_layer_ids(
    config: Mapping[str, Any], num_layers: int, override: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return the tapped layers of a target with `num_layers` layers.

    The first of these that is there: `override` as it is, ids at the config's top level as they
    are, ids in its eagle_config (1 is added to each if the first is 1), and [2, n // 2, n - 3].
    Raises ValueError for ids that do not ascend within [0, num_layers].
    """
    stated = stated_layers(config, override)
    ids = stated.input_of if stated else (2, num_layers // 2, num_layers - 3)
    _check(ids, num_layers)
    return ids


class StatedLayers(NamedTuple):
    """Ids of layers, and where they were found."""

    input_of: tuple[int, ...]
    where: str
    """"override", "top level" or "eagle_config"."""
    written: tuple[int, ...]
    """The ids as they were written, in whichever convention."""


def stated_layers(
    config: Mapping[str, Any], override: Sequence[int] | None = None
) -> StatedLayers | None:
    """Return the layers that are stated, unchecked; None if none are, and the default counts."""
    for where, ids in (("override", override), ("top level", config.get(_KEY))):
        if ids:
            return StatedLayers(tuple(ids), where, tuple(ids))
    nested = (config.get("eagle_config") or {}).get(_KEY)
    if not nested:
        return None
    shift = 1 if nested[0] == 1 else 0
    return StatedLayers(tuple(layer + shift for layer in nested), "eagle_config", tuple(nested))


def output_of_layer_ids(input_of: Sequence[int]) -> tuple[int, ...] | None:
    """Return ids for an eagle_config that every engine reads as these layers, or None.

    SGLang adds 1 to ids of some targets in any case, and of others only if they begin with 1.
    """
    return tuple(layer - 1 for layer in input_of) if input_of[0] == 2 else None


def _check(ids: tuple[int, ...], num_layers: int) -> None:
    """Engines concatenate taps in layer order, so any other order would be a misunderstanding."""
    ascending = all(low < high for low, high in pairwise(ids))
    if not ascending or not 0 <= ids[0] <= ids[-1] <= num_layers:
        raise ValueError(
            f"tap layers must ascend within [0, {num_layers}] (input-of-layer), got {list(ids)}"
        )
