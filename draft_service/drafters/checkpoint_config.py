"""The config.json of a drafter, whoever wrote it, brought to one form: here and only here.

Three formats are in use. All of them are read as the first one's flat fields.

- `sglang`: SafeAILab, SGLang, SpecForge. One Llama layer.
- `speculators`: vLLM's speculators. The layer's config is nested in `transformer_layer_config`, and
  was copied from the target's: what it says beside the layer's own sizes is the target's business.
- `mla`: as `sglang`, but with the sizes of DeepSeek's latent attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class CheckpointFormat(StrEnum):
    """Who wrote a checkpoint."""

    SGLANG = "sglang"
    SPECULATORS = "speculators"
    MLA = "mla"


LLAMA_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM")
MLA_ARCHITECTURES = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")
SPECULATORS_ARCHITECTURE = "Eagle3Speculator"
LAYER_CONFIG = "transformer_layer_config"
# What a speculators config leaves out is this, and not what it is elsewhere: there a missing
# draft_vocab_size is the whole vocabulary, and a missing norm_before_residual is False. The latter
# is vLLM's reading, whose reader serves these checkpoints.
SPECULATORS_DEFAULTS: Mapping[str, Any] = {"draft_vocab_size": 32000, "norm_before_residual": True}
# What else a speculators config says of the drafter, beside the layer's config.
SPECULATORS_FIELDS = (
    *SPECULATORS_DEFAULTS,
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "target_hidden_size",
    "eagle_aux_hidden_state_layer_ids",
    "embed_requires_grad",
    "speculators_config",
    "speculators_version",
    "quantization_config",
)
# Of the target, like the fields above where they stand within the layer's config. A drafter is
# quantized by its own config; one that is quantized all the same has tensors that are refused.
_OF_THE_TARGET = ("architectures", "bias", "eagle_config", "tie_word_embeddings")
_SPECULATORS_LAYERS = ("llama", "qwen3")


def architecture_of(config: Mapping[str, Any]) -> str:
    """Return the first architecture a config names, the usual one if it names none."""
    return str((config.get("architectures") or LLAMA_ARCHITECTURES)[0])


def checkpoint_format(config: Mapping[str, Any]) -> CheckpointFormat:
    """Return the format of a config.json. What is none of the others is read as `sglang`."""
    architecture = architecture_of(config)
    if "speculators_model_type" in config or architecture == SPECULATORS_ARCHITECTURE:
        return CheckpointFormat.SPECULATORS
    if architecture in MLA_ARCHITECTURES:
        return CheckpointFormat.MLA
    return CheckpointFormat.SGLANG


def canonical_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json in flat form. Raises ValueError for a speculators config of no use.

    `qk_norm` is added: whether the layer norms its queries and keys. A config that is flat already
    comes back as it was.
    """
    if checkpoint_format(config) is not CheckpointFormat.SPECULATORS:
        return dict(config)
    _check_speculators(config)
    stated = {name: value for name, value in config.items() if value is not None}
    of_the_drafter = {name: stated[name] for name in SPECULATORS_FIELDS if name in stated}
    not_the_layers = {*SPECULATORS_FIELDS, *_OF_THE_TARGET}
    layer = {k: v for k, v in config[LAYER_CONFIG].items() if k not in not_the_layers}
    layer |= {"architectures": [LLAMA_ARCHITECTURES[0]], "model_type": "llama"}
    layer |= {"qk_norm": _layer_kind(config) == "qwen3"}
    return layer | dict(SPECULATORS_DEFAULTS) | of_the_drafter


def _layer_kind(config: Mapping[str, Any]) -> str:
    # speculators itself takes a layer that does not say what it is for a Qwen3 one.
    return str(config[LAYER_CONFIG].get("model_type") or "qwen3")


def _check_speculators(config: Mapping[str, Any]) -> None:
    kind = config.get("speculators_model_type") or "eagle3"
    if kind != "eagle3":
        raise ValueError(f"speculators_model_type is {kind!r}, only 'eagle3' is supported")
    layer = config.get(LAYER_CONFIG)
    if not isinstance(layer, Mapping):
        raise ValueError(f"{LAYER_CONFIG} must be an object, got {layer!r}")
    if _layer_kind(config) not in _SPECULATORS_LAYERS:
        raise ValueError(
            f"{LAYER_CONFIG}.model_type is {_layer_kind(config)!r}, "
            f"supported: {', '.join(_SPECULATORS_LAYERS)}"
        )
    if config.get("norm_before_fc") and config.get("fc_norm"):
        raise ValueError("norm_before_fc and fc_norm are both True, at most one of them may be")
