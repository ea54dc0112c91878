"""What a drafter's checkpoint is, what it needs of a target, and whether it fits one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draft_service.drafters.checkpoint_config import (
    CheckpointFormat,
    architecture_of,
    canonical_config,
    checkpoint_format,
)
from draft_service.drafters.draft_vocabulary import known_tokens
from draft_service.drafters.eagle3 import Eagle3Drafter
from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.eagle3_tensors import IGNORED_TENSORS
from draft_service.drafters.target_side import TargetSide
from draft_service.drafters.trained_with import trained_tokenizer_digest
from draft_service.tap_layers import StatedLayers, stated_layers
from draft_service.weights import open_drafter, read_config
from protos.pairing import Pairing, fingerprint, tokenizer_digest
from slipstream.probe import get_target

_SWITCHES = (
    "bias",
    "fc_norm",
    "norm_before_fc",
    "norm_before_residual",
    "norm_output",
    "qk_norm",
)
_NO_PARAMETERS = IGNORED_TENSORS | {"d2t"}


@dataclass(frozen=True)
class DrafterFacts:
    """What can be said of a checkpoint without a target."""

    checkpoint_format: CheckpointFormat
    architecture: str
    config: Eagle3Config
    """Its tap layers mean something only if they are `stated`."""
    stated: StatedLayers | None
    num_parameters: int
    own_embedding: bool
    own_head: bool
    tokenizer_digest: str

    @classmethod
    def of(cls, directory: Path) -> DrafterFacts:
        """Look at a checkpoint. Raises ValueError for one that cannot be run with any target."""
        stored = read_config(directory)
        config, weights = Eagle3Config.for_any_depth(stored), open_drafter(directory)
        known_tokens(weights, config.draft_vocab_size, config.vocab_size)
        return cls(
            checkpoint_format=checkpoint_format(stored),
            architecture=architecture_of(stored),
            config=config,
            stated=stated_layers(canonical_config(stored)),
            num_parameters=sum(map(weights.num_elements, set(weights) - _NO_PARAMETERS)),
            own_embedding="embed_tokens.weight" in weights,
            own_head="lm_head.weight" in weights or config.tied_head,
            tokenizer_digest=trained_tokenizer_digest(directory),
        )

    def lines(self) -> dict[str, str]:
        """Return what there is to say, by its heading."""
        config = self.config
        return {
            "format": f"{self.checkpoint_format} ({self.architecture})",
            "layer": self._layer(),
            "parameters": f"{self.num_parameters:,}".replace(",", " "),
            "vocabulary": f"drafts {config.draft_vocab_size} of {config.vocab_size} tokens",
            "tap layers": self._tap_layers(),
            "switches": ", ".join(name for name in _SWITCHES if getattr(config, name)) or "none on",
            "target": f"hidden size {config.target_hidden_size}, vocabulary {config.vocab_size}",
            "embedding": _origin(self.own_embedding),
            "head": _origin(self.own_head),
            "tokenizer": self.tokenizer_digest or "none stated: it is not compared",
        }

    def _layer(self) -> str:
        config = self.config
        if config.latent:
            return (
                f"latent attention, {config.num_heads} heads that share {config.head_dim} numbers"
            )
        return (
            f"Llama's attention, {config.num_heads} heads and {config.num_kv_heads} "
            f"key-value heads of {config.head_dim}"
        )

    def _tap_layers(self) -> str:
        if self.stated is None:
            return "not stated: the inputs of 2, n // 2 and n - 3 of a target with n layers"
        output_of = [layer - 1 for layer in self.stated.input_of]
        return (
            f"inputs of {list(self.stated.input_of)}, that is outputs of {output_of}; "
            f"stated as {list(self.stated.written)} in {_PLACES[self.stated.where]}"
        )


_PLACES = {"top level": "config.json itself", "eagle_config": "its eagle_config"}


def _origin(own: bool) -> str:
    return "its own" if own else "the target's: needs --target-model"


def misfit(directory: Path, address: str | None, model_dir: Path | None) -> str:
    """Return why a drafter does not fit a target, "" if it does: what a draft service would say.

    The target is a running one, a model directory, or both: weights are shared from a directory.
    """
    try:
        side, pairing = _target(address, model_dir)
        drafter = Eagle3Drafter.load("inspected", directory, side, kv_tokens=1)
    except ValueError as error:
        return str(error)
    return "; ".join(drafter.pairing.mismatches(pairing or drafter.pairing))


def _target(address: str | None, model_dir: Path | None) -> tuple[TargetSide, Pairing | None]:
    """Return a target's facts. What a directory would be served as, it does not say: no pairing."""
    if address is None:
        assert model_dir is not None, "there is a target"
        return side_of(model_dir), None
    info = get_target(address)
    pairing = Pairing.from_proto(info.pairing)
    if model_dir is not None and fingerprint(model_dir) != pairing.target_fingerprint:
        raise ValueError(
            f"{model_dir} has fingerprint {fingerprint(model_dir)}, "
            f"the target at {address} serves {pairing.target_fingerprint}"
        )
    return TargetSide.from_proto(info, model_dir), pairing


def side_of(model_dir: Path) -> TargetSide:
    """Return what a drafter must know of a target that does not run. Raises ValueError."""
    config = read_config(model_dir)
    text: Mapping[str, Any] = config.get("text_config", config)
    sizes = {name: _size(text, name) for name in ("num_hidden_layers", "vocab_size", "hidden_size")}
    return TargetSide(
        num_layers=sizes["num_hidden_layers"],
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_size"],
        max_context_len=text.get("max_position_embeddings") or 2048,
        model_dir=model_dir,
        tokenizer_digest=tokenizer_digest(model_dir),
    )


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"the target's {name} must be a positive integer, got {value!r}")
    return value
