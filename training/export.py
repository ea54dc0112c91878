"""A drafter's checkpoint, written in the format that another engine reads.

In between it has one form: the flat config with every switch stated, and tensors by the names used
here. Converting that form to another format and back gives the same bytes. What a format has no
word for is refused: engines would skip it in silence, and draft at a low accept length.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from draft_service.drafters.checkpoint_config import (
    LAYER_CONFIG,
    LLAMA_ARCHITECTURES,
    SPECULATORS_ARCHITECTURE,
    SPECULATORS_FIELDS,
    CheckpointFormat,
    canonical_config,
    checkpoint_format,
)
from draft_service.drafters.draft_vocabulary import known_tokens, mask_of
from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.eagle3_tensors import DOWN_PROJECTIONS, FUSED_DOWN, IGNORED_TENSORS
from draft_service.tap_layers import output_of_layer_ids, stated_layers
from draft_service.weights import Weights, open_drafter, read_config

_SGLANG, _SPECULATORS, _MLA = CheckpointFormat
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_TAPS = "eagle_aux_hidden_state_layer_ids"
# Switches by which a norm is taken away, and the field of the config that says so.
_NORM_SWITCHES = {
    "use_input_layernorm_in_first_layer": "first_layer_norm",
    "use_last_layernorm": "last_norm",
}
# Other words for what the flat form states, and what only other formats state.
_REPLACED = ("use_aux_norm", "intermediate_size_mlp", "num_aux_hidden_states", "eagle_config")


@dataclass(frozen=True)
class Checkpoint:
    """A drafter in the form between all formats."""

    config: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]

    @classmethod
    def read(cls, directory: Path) -> Checkpoint:
        """Read a drafter of any format. Raises ValueError for one that cannot be run."""
        config, weights = canonical_config(read_config(directory)), open_drafter(directory)
        known = Eagle3Config.for_any_depth(config)
        names = set(weights) - IGNORED_TENSORS - {"d2t"}
        tensors = {name: weights[name] for name in sorted(names)}
        tensors |= _draft_vocabulary(weights, known) | _down_projections(tensors, known)
        tensors = {name: one for name, one in tensors.items() if name not in FUSED_DOWN}
        return cls(_stated_form(config, known, tensors), tensors)

    @property
    def is_latent(self) -> bool:
        """Whether its layer has latent attention: there is one format for these only."""
        return checkpoint_format(self.config) is _MLA


def convert(
    source: Path, destination: Path, target_format: CheckpointFormat, verifier: str | None = None
) -> Checkpoint:
    """Write a drafter of any format into an empty or new directory; return what was read.

    `verifier` names the target for readers of the speculators format. Raises ValueError that says
    what the format has no word for.
    """
    checkpoint = Checkpoint.read(source)
    write_checkpoint(checkpoint, destination, target_format, verifier)
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)
    return checkpoint


def write_checkpoint(
    checkpoint: Checkpoint,
    destination: Path,
    target_format: CheckpointFormat,
    verifier: str | None = None,
) -> None:
    """Write config.json and model.safetensors. Drafters with latent attention keep their format."""
    config, prefix = _config_in(checkpoint, target_format, verifier)
    destination.mkdir(parents=True, exist_ok=True)
    if any(destination.iterdir()):
        raise ValueError(f"{destination} is not empty")
    tensors = {
        name.replace("midlayer.", prefix): tensor.contiguous()
        for name, tensor in checkpoint.tensors.items()
    }
    save_file(tensors, destination / "model.safetensors", metadata={"format": "pt"})
    # The last one: half a directory has no config.json, and is nobody's drafter.
    (destination / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _config_in(
    checkpoint: Checkpoint, target_format: CheckpointFormat, verifier: str | None
) -> tuple[dict[str, Any], str]:
    """Return the config in a format, and how it calls the layer."""
    if target_format is _SPECULATORS:
        return _speculators_config(checkpoint, verifier), "layers.0."
    if checkpoint.is_latent:
        return dict(checkpoint.config), "layers.0."
    if target_format is _MLA:
        raise ValueError("format mla is for drafters with latent attention, and this has none")
    if checkpoint.config.get("qk_norm"):
        raise ValueError(
            "format sglang has no norms of queries and keys (qk_norm): they would be skipped"
        )
    return dict(checkpoint.config), "midlayer."


def _stated_form(
    config: Mapping[str, Any], known: Eagle3Config, tensors: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Return the flat config with every switch stated, in the words most engines know."""
    kept = {k: v for k, v in config.items() if v is not None and k not in _REPLACED}
    kept |= _switches(known, tensors) | _sizes(known)
    if config.get("speculators_config") == _speculators_section(None):
        del kept["speculators_config"]
    if not known.qk_norm:
        kept.pop("qk_norm", None)
    if checkpoint_format(config) is not _MLA:
        kept |= {"architectures": [LLAMA_ARCHITECTURES[0]], "model_type": "llama"}
        kept |= {"head_dim": known.head_dim, "num_key_value_heads": known.num_kv_heads}
    return kept | _taps_and_norms(config, known)


def _switches(known: Eagle3Config, tensors: Mapping[str, torch.Tensor]) -> dict[str, bool]:
    names = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output")
    return {name: getattr(known, name) for name in names} | {
        "bias": "fc.bias" in tensors,
        "attention_bias": _biased(tensors, "self_attn"),
        "mlp_bias": _biased(tensors, "mlp"),
        "tie_word_embeddings": known.tied_head and "lm_head.weight" not in tensors,
    }


def _sizes(known: Eagle3Config) -> dict[str, Any]:
    names = ("draft_vocab_size", "intermediate_size", "rms_norm_eps", "target_hidden_size")
    return {name: getattr(known, name) for name in names}


def _taps_and_norms(config: Mapping[str, Any], known: Eagle3Config) -> dict[str, Any]:
    """State the tap layers twice, as vLLM and as SGLang read them, if they are stated at all."""
    taken = {name: False for name, there in _NORM_SWITCHES.items() if not getattr(known, there)}
    if not stated_layers(config):
        return {"eagle_config": taken} if taken else {}
    output_of = output_of_layer_ids(known.tap_layers)
    nested = taken | ({_TAPS: list(output_of)} if output_of else {})
    return {_TAPS: list(known.tap_layers)} | ({"eagle_config": nested} if nested else {})


def _biased(tensors: Mapping[str, torch.Tensor], part: str) -> bool:
    """Whether the linear layers of a part have biases. Raises ValueError if only some have."""
    start = f"midlayer.{part}."
    linear = {name.rpartition(".")[0] for name in tensors if name.startswith(start)}
    with_bias = {name for name in linear if f"{name}.bias" in tensors}
    projections = {name for name in linear if name.endswith("_proj")}
    if with_bias and with_bias != projections:
        raise ValueError(
            f"of {sorted(projections)} only {sorted(with_bias)} have a bias: "
            "engines expect all of them to have one, or none"
        )
    return bool(with_bias)


def _draft_vocabulary(weights: Weights, known: Eagle3Config) -> dict[str, torch.Tensor]:
    """Return d2t and the mask that belongs to it, checked; nothing if all tokens are known."""
    ids_N = known_tokens(weights, known.draft_vocab_size, known.vocab_size)
    if ids_N is None:
        return {}
    return {"d2t": weights["d2t"].long(), "t2d": mask_of(ids_N, known.vocab_size)}


def _down_projections(
    tensors: Mapping[str, torch.Tensor], known: Eagle3Config
) -> dict[str, torch.Tensor]:
    """Return as two what is stored as one: SGLang skips it in silence, for it makes one of two."""
    fused = [tensors[name] for name in FUSED_DOWN if name in tensors]
    if known.latent is None or not fused:
        return {}
    rank = known.latent.query_rank
    return dict(zip(DOWN_PROJECTIONS, (fused[0][:rank], fused[0][rank:]), strict=True))


def _speculators_config(checkpoint: Checkpoint, verifier: str | None) -> dict[str, Any]:
    flat = checkpoint.config
    _check_speculators_knows(checkpoint)
    outer = {name: flat[name] for name in SPECULATORS_FIELDS if name in flat}
    if verifier is not None or "speculators_config" not in outer:
        outer["speculators_config"] = _speculators_section(verifier)
    elsewhere = {*SPECULATORS_FIELDS, "architectures", "eagle_config", "bias", "qk_norm"}
    layer = {name: value for name, value in flat.items() if name not in elsewhere}
    layer["model_type"] = "qwen3" if flat.get("qk_norm") else "llama"
    return {
        "architectures": [SPECULATORS_ARCHITECTURE],
        "speculators_model_type": "eagle3",
        LAYER_CONFIG: layer,
    } | outer


def _check_speculators_knows(checkpoint: Checkpoint) -> None:
    if checkpoint.is_latent:
        raise ValueError(
            f"format speculators has no latent attention ({checkpoint.config['architectures'][0]})"
        )
    nested = checkpoint.config.get("eagle_config") or {}
    foreign = {f"eagle_config.{name} False": nested.get(name) is False for name in _NORM_SWITCHES}
    foreign |= {
        "bias of fc": checkpoint.config["bias"],
        "tie_word_embeddings": checkpoint.config["tie_word_embeddings"],
    }
    if unknown := [name for name, there in foreign.items() if there]:
        raise ValueError(f"format speculators has no {', no '.join(unknown)}")


def _speculators_section(verifier: str | None) -> dict[str, Any]:
    """Return what readers of the format want to know: how to draft, and for which target."""
    greedy = {
        "proposal_type": "greedy",
        "speculative_tokens": 3,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [greedy],
        "verifier": {"name_or_path": verifier, "architectures": []},
    }
