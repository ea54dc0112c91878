"""What config.json says about an EAGLE-3 drafter, whichever format it is in.

Every switch that changes the maths is read or refused; none is ignored. `max_position_embeddings`
(often 2048) is no limit: positions are rotated as far as the target's context reaches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draft_service.drafters.checkpoint_config import (
    LLAMA_ARCHITECTURES,
    MLA_ARCHITECTURES,
    SPECULATORS_ARCHITECTURE,
    CheckpointFormat,
    architecture_of,
    canonical_config,
    checkpoint_format,
)
from draft_service.tap_layers import input_of_layer_ids, stated_layers
from kernels.latent_attention import LatentSizes, latent_rope
from kernels.rotary import Rope

# Switches of which one value only can be run. A field that is missing or null has that value.
_ONLY: Mapping[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_act": "silu",
    "quantization_config": None,
    "use_sliding_window": False,
    "mla_use_nope": False,
    # False wants the target's last hidden state after its norm, which is not among the taps.
    "eagle_config.use_aux_hidden_state": True,
    "eagle_config.use_mtp_layernorm": False,
    "eagle_config.parallel_draft_step": 1,
}
# A target of so many layers has three tap layers by default.
_DEEP_ENOUGH = 8


@dataclass(frozen=True)
class Eagle3Config:
    """A drafter's sizes and switches."""

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """What the KV cache holds of a token: so many heads of this size."""
    vocab_size: int
    draft_vocab_size: int
    tap_layers: tuple[int, ...]
    """Input-of-layer ids."""
    rms_norm_eps: float
    rope: Rope
    bias: bool
    """`fc` has a bias. Other biases are added if the checkpoint has them."""
    tied_head: bool
    fc_norm: bool
    """Each tap is normed by itself (EAGLE-3.1)."""
    norm_before_fc: bool
    """All taps together are normed by one norm."""
    norm_before_residual: bool
    """The residual stream begins with the normed hidden state."""
    norm_output: bool
    """The next guess is fed the hidden state after the last norm (EAGLE-3.1), not before it."""
    first_layer_norm: bool
    """The token's embedding is normed."""
    last_norm: bool
    """There is a norm before the head."""
    latent: LatentSizes | None
    """Sizes of DeepSeek's latent attention; None for Llama's."""
    qk_norm: bool
    """Each head of queries and keys is normed before it is rotated (Qwen3)."""

    @property
    def tapped_width(self) -> int:
        """The width of a row of taps."""
        return len(self.tap_layers) * self.target_hidden_size

    @classmethod
    def from_json(
        cls,
        config: Mapping[str, Any],
        num_target_layers: int,
        tap_layers: Sequence[int] | None = None,
    ) -> Eagle3Config:
        """Read a config.json. `tap_layers` (input-of-layer) overrides what it says about them.

        Raises ValueError naming the field and its value if this drafter cannot be run.
        """
        _check_architecture(config)
        config = canonical_config(config)
        _check_supported(config)
        heads = _required(config, "num_attention_heads")
        hidden_size = _required(config, "hidden_size")
        latent = _latent_sizes(config)
        head_dim = config.get("head_dim") or hidden_size // heads
        vocab_size = _required(config, "vocab_size")
        return cls(
            hidden_size=hidden_size,
            target_hidden_size=config.get("target_hidden_size") or hidden_size,
            intermediate_size=_intermediate_size(config),
            num_heads=heads,
            num_kv_heads=1 if latent else config.get("num_key_value_heads") or heads,
            head_dim=latent.head_dim if latent else head_dim,
            vocab_size=vocab_size,
            draft_vocab_size=_draft_vocab_size(config, vocab_size),
            tap_layers=_tap_layers(config, num_target_layers, tap_layers),
            rms_norm_eps=config.get("rms_norm_eps") or 1e-6,
            rope=_rope(config, latent, head_dim),
            latent=latent,
            **_switches(config),
        )

    @classmethod
    def for_any_depth(cls, config: Mapping[str, Any]) -> Eagle3Config:
        """As `from_json`, without a target. Tap layers that are not stated are any three."""
        stated = stated_layers(canonical_config(config))
        return cls.from_json(config, max(stated.input_of) if stated else _DEEP_ENOUGH)


def _latent_sizes(config: Mapping[str, Any]) -> LatentSizes | None:
    if checkpoint_format(config) is not CheckpointFormat.MLA:
        return None
    return LatentSizes(
        query_rank=_required(config, "q_lora_rank"),
        latent=_required(config, "kv_lora_rank"),
        rotated=_required(config, "qk_rope_head_dim"),
        unrotated=_required(config, "qk_nope_head_dim"),
        value=_required(config, "v_head_dim"),
    )


def _switches(config: Mapping[str, Any]) -> dict[str, bool]:
    nested = config.get("eagle_config") or {}
    return {
        "bias": bool(config.get("bias")),
        "tied_head": bool(config.get("tie_word_embeddings")),
        "fc_norm": bool(config.get("fc_norm") or config.get("use_aux_norm")),
        "norm_before_fc": bool(config.get("norm_before_fc") or nested.get("norm_before_fc")),
        "norm_before_residual": bool(config.get("norm_before_residual")),
        "norm_output": bool(config.get("norm_output")),
        "first_layer_norm": nested.get("use_input_layernorm_in_first_layer") is not False,
        "last_norm": nested.get("use_last_layernorm") is not False,
        "qk_norm": bool(config.get("qk_norm")),
    }


def _check_architecture(config: Mapping[str, Any]) -> None:
    known = (*LLAMA_ARCHITECTURES, SPECULATORS_ARCHITECTURE, *MLA_ARCHITECTURES)
    if architecture_of(config) not in known:
        raise ValueError(
            f"architecture {architecture_of(config)!r} is no EAGLE-3 drafter that is known: "
            f"{', '.join(known)}"
        )


def _check_supported(config: Mapping[str, Any]) -> None:
    heads = _required(config, "num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise ValueError(
            f"num_attention_heads is {heads}, not a multiple of num_key_value_heads {kv_heads}"
        )
    for name, only in _ONLY.items():
        value = _field(config, name)
        if value is not None and value != only:
            raise ValueError(f"{name} is {value!r}, only {only!r} is supported")
    _check_layer_types(config)


def _check_layer_types(config: Mapping[str, Any]) -> None:
    kinds = config.get("layer_types") or ["full_attention"]
    if kinds[0] != "full_attention":
        raise ValueError(
            f"layer_types begins with {kinds[0]!r}, only 'full_attention' is supported"
        )


def _draft_vocab_size(config: Mapping[str, Any], vocab_size: int) -> int:
    size = _required(config, "draft_vocab_size") if config.get("draft_vocab_size") else vocab_size
    if size > vocab_size:
        raise ValueError(f"draft_vocab_size is {size}, more than vocab_size {vocab_size}")
    return size


def _field(config: Mapping[str, Any], name: str) -> Any:
    """Return a field, or one of eagle_config for a dotted name; None if there is none."""
    section, _, key = name.rpartition(".")
    return ((config.get(section) or {}) if section else config).get(key)


def _required(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return value


def _intermediate_size(config: Mapping[str, Any]) -> int:
    """Return the width of the dense layer; Llama 4 configs name their experts' width as well."""
    if config.get("intermediate_size_mlp"):
        return _required(config, "intermediate_size_mlp")
    return _required(config, "intermediate_size")


def _tap_layers(
    config: Mapping[str, Any], num_target_layers: int, override: Sequence[int] | None
) -> tuple[int, ...]:
    layers = input_of_layer_ids(config, num_target_layers, override)
    stated = config.get("num_aux_hidden_states") or len(layers)
    if stated != len(layers):
        raise ValueError(f"num_aux_hidden_states is {stated}, but the tap layers are {layers}")
    return layers


def _rope(config: Mapping[str, Any], latent: LatentSizes | None, head_dim: int) -> Rope:
    rope = latent_rope(config, latent) if latent else Rope.from_config(config, head_dim)
    try:
        rope.frequencies()
    except KeyError as missing:
        raise ValueError(
            f"rope scaling {rope.kind!r} needs {missing}, got {rope.scaling}"
        ) from None
    return rope
