"""What a trainer takes of the target's weights.

Legend: V vocabulary, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draft_service.weights import open_target, read_config, target_embedding, target_head
from protos.pairing import fingerprint
from training.recording import Source


@dataclass(frozen=True)
class TargetWeights:
    """A target's embedding, final norm and head."""

    config: dict[str, Any]
    embedding_VH: torch.Tensor
    norm_H: torch.Tensor
    head_VH: torch.Tensor

    @classmethod
    def read(cls, model_dir: Path, source: Source) -> TargetWeights:
        """Read a model directory. Raises ValueError if it is not the one that was recorded."""
        if (ours := fingerprint(model_dir)) != source.target_fingerprint:
            raise ValueError(
                f"{model_dir} has fingerprint {ours}, "
                f"the recorded target {source.target_fingerprint}"
            )
        config = read_config(model_dir)
        return cls(
            config.get("text_config", config),
            target_embedding(model_dir).bfloat16(),
            open_target(model_dir)["model.norm.weight"],
            target_head(model_dir),
        )

    @property
    def eps(self) -> float:
        """The epsilon of the final norm."""
        return float(self.config.get("rms_norm_eps", 1e-6))
