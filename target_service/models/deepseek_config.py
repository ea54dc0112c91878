"""What config.json says about a model of the DeepSeek-V3 family.

Kimi-K2.5 also sees; its text model is described by `text_config`, and is all that is read here.
Every field that changes the maths is read or refused; none is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.experts import Routing
from kernels.latent_attention import LatentSizes, latent_rope
from kernels.rotary import Rope
from protos.config_fields import LAYER_FIELDS, check_fields
from target_service.models.quantization import Int4Groups, read_quantization

# Fields of which one value only is computed. One that is missing or null has that value.
_ONLY: Mapping[str, Any] = {
    "hidden_act": "silu",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
    "rope_interleave": True,
    "mla_use_nope": False,
}


@dataclass(frozen=True)
class DeepseekConfig:
    """A model's sizes and switches."""

    hidden_size: int
    num_layers: int
    num_dense_layers: int
    """The first so many have no experts."""
    num_heads: int
    latent: LatentSizes
    intermediate_size: int
    expert_size: int
    num_shared_experts: int
    """They are one layer, so many times as wide."""
    routing: Routing
    vocab_size: int
    rms_norm_eps: float
    tied_head: bool
    max_context_len: int
    rope: Rope
    quantization: Int4Groups | None

    @property
    def head_dim(self) -> int:
        """Of the one key of all heads, as it lies in the cache."""
        return self.latent.head_dim

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> DeepseekConfig:
        """Read a config.json. Raises ValueError naming the field and its value if need be."""
        config = text_config(config)
        check_fields(config, LAYER_FIELDS)
        _check_supported(config)
        latent = _latent_sizes(config)
        return cls(
            hidden_size=_size(config, "hidden_size"),
            num_layers=_size(config, "num_hidden_layers"),
            num_dense_layers=_size(config, "first_k_dense_replace", least=0),
            num_heads=_size(config, "num_attention_heads"),
            latent=latent,
            intermediate_size=_size(config, "intermediate_size"),
            expert_size=_size(config, "moe_intermediate_size"),
            num_shared_experts=_size(config, "n_shared_experts"),
            routing=_routing(config),
            vocab_size=_size(config, "vocab_size"),
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            tied_head=config.get("tie_word_embeddings", False),
            max_context_len=_size(config, "max_position_embeddings"),
            rope=latent_rope(config, latent),
            quantization=read_quantization(config),
        )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of the text model; quantization may be stated beside them."""
    if "text_config" not in config:
        return config
    beside = {"quantization_config": config.get("quantization_config")}
    return beside | {k: v for k, v in config["text_config"].items() if v is not None}


def _check_supported(config: Mapping[str, Any]) -> None:
    for name, only in _ONLY.items():
        value = config.get(name)
        if value is not None and value != only:
            raise ValueError(f"{name} {value!r} is not supported; known: {only}")


def _latent_sizes(config: Mapping[str, Any]) -> LatentSizes:
    return LatentSizes(
        query_rank=_size(config, "q_lora_rank") if config.get("q_lora_rank") is not None else 0,
        latent=_size(config, "kv_lora_rank"),
        rotated=_size(config, "qk_rope_head_dim"),
        unrotated=_size(config, "qk_nope_head_dim"),
        value=_size(config, "v_head_dim"),
    )


def _routing(config: Mapping[str, Any]) -> Routing:
    return Routing(
        num_experts=_size(config, "n_routed_experts"),
        choices=_size(config, "num_experts_per_tok"),
        num_groups=_size(config, "n_group"),
        groups_kept=_size(config, "topk_group"),
        normalized=bool(_stated(config, "norm_topk_prob")),
        scale=float(_stated(config, "routed_scaling_factor")),
    )


def _size(config: Mapping[str, Any], name: str, least: int = 1) -> int:
    value = _stated(config, name)
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value


def _stated(config: Mapping[str, Any], name: str) -> Any:
    if config.get(name) is None:
        raise ValueError(f"config.json has no {name!r}")
    return config[name]
