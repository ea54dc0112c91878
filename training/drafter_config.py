"""The config.json of a drafter that is to be trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_TAKEN_OVER = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
)


def drafter_config(
    target: Mapping[str, Any],
    tap_layers: Sequence[int],
    draft_vocab_size: int,
    *,
    fc_norm: bool,
    norm_output: bool,
) -> dict[str, Any]:
    """Return a config with one layer of the target's shape, in the format of SGLang and vLLM.

    `target` is the config of a Llama-like model; for others (Kimi) write a config by hand.
    """
    missing = [name for name in _TAKEN_OVER[:4] if name not in target]
    if missing:
        raise ValueError(
            f"the target's config has no {', '.join(missing)}: give the drafter's with --config"
        )
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **{name: target[name] for name in _TAKEN_OVER if target.get(name) is not None},
        "draft_vocab_size": draft_vocab_size,
        "eagle_aux_hidden_state_layer_ids": list(tap_layers),
        "fc_norm": fc_norm,
        "norm_output": norm_output,
    }
