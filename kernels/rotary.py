"""Rotary position embedding: frequencies under every scaling in use, and tables of cos and sin.

Scalings follow the checkpoints' own reading of them: linear (positions divided), llama3 (long waves
divided, short ones kept, a ramp between), yarn (Peng et al., arXiv 2309.00071; the ratio form of
mscale / mscale_all_dim, as the trainers do).

Legend: D head size, F = D / 2 frequencies, P positions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Rope:
    """A model's rotary embedding as its config.json states it."""

    head_dim: int
    theta: float
    scaling: Mapping[str, Any]
    max_position: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any], head_dim: int) -> Rope:
        """Read `rope_parameters` (new) or `rope_theta` and `rope_scaling` (old) of a config."""
        if config.get("partial_rotary_factor", 1.0) != 1.0:
            raise ValueError(
                f"partial_rotary_factor {config['partial_rotary_factor']} is not supported"
            )
        if head_dim % 2:
            raise ValueError(f"head_dim must be even, got {head_dim}: rotation takes pairs")
        scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
        theta = scaling.get("rope_theta") or config.get("rope_theta") or 10000.0
        max_position = config.get("max_position_embeddings") or 2048
        return cls(head_dim, float(theta), scaling, max_position)

    @property
    def kind(self) -> str:
        return self.scaling.get("rope_type") or self.scaling.get("type") or "default"

    def tables(self, length: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin of positions 0..length - 1, [P, D] each, computed in float32."""
        inverse_F, amplitude = self.frequencies()
        angles_PF = torch.arange(length, dtype=torch.float32)[:, None] * inverse_F
        angles_PD = torch.cat((angles_PF, angles_PF), dim=-1)
        return (angles_PD.cos() * amplitude).to(dtype), (angles_PD.sin() * amplitude).to(dtype)

    @property
    def score_factor(self) -> float:
        """What DeepSeek's attention multiplies scores by under yarn; others do not."""
        all_dim = self.scaling.get("mscale_all_dim") or 0.0
        return self._yarn_mscale(all_dim) ** 2 if self.kind == "yarn" else 1.0

    def frequencies(self) -> tuple[torch.Tensor, float]:
        """Return the inverse frequencies and the factor on cos and sin."""
        exponents_F = torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        inverse_F = 1.0 / self.theta**exponents_F
        if self.kind == "default":
            return inverse_F, 1.0
        if self.kind == "linear":
            return inverse_F / self._given("factor"), 1.0
        if self.kind == "llama3":
            return self._llama3(inverse_F), 1.0
        if self.kind == "yarn":
            return self._yarn(inverse_F), self._yarn_amplitude()
        raise ValueError(
            f"rope scaling {self.kind!r} is not supported; known: default, linear, llama3, yarn"
        )

    @property
    def _original_length(self) -> int:
        return self.scaling.get("original_max_position_embeddings") or self.max_position

    def _given(self, name: str) -> float:
        value = self.scaling.get(name)
        if not isinstance(value, int | float):
            raise ValueError(f"rope scaling {self.kind!r} needs {name!r}, a number, got {value!r}")
        return float(value)

    def _llama3(self, inverse_F: torch.Tensor) -> torch.Tensor:
        factor = self._given("factor")
        low, high = self._given("low_freq_factor"), self._given("high_freq_factor")
        waves_F = self._original_length * inverse_F / (2 * math.pi)
        keep_F = ((waves_F - low) / (high - low)).clamp(0, 1)
        return (1 - keep_F) * inverse_F / factor + keep_F * inverse_F

    def _yarn(self, inverse_F: torch.Tensor) -> torch.Tensor:
        low = self._yarn_dimension(self.scaling.get("beta_fast") or 32)
        high = self._yarn_dimension(self.scaling.get("beta_slow") or 1)
        if self.scaling.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.head_dim - 1)
        ramp_F = torch.arange(len(inverse_F), dtype=torch.float32) - low
        keep_F = 1 - (ramp_F / max(high - low, 0.001)).clamp(0, 1)
        return inverse_F / self._given("factor") * (1 - keep_F) + inverse_F * keep_F

    def _yarn_dimension(self, rotations: float) -> float:
        turns = math.log(self._original_length / (rotations * 2 * math.pi))
        return self.head_dim * turns / (2 * math.log(self.theta))

    def _yarn_amplitude(self) -> float:
        given = self.scaling.get("attention_factor")
        if given is not None:
            return float(given)
        mscale, all_dim = self.scaling.get("mscale"), self.scaling.get("mscale_all_dim")
        if mscale and all_dim:
            return self._yarn_mscale(mscale) / self._yarn_mscale(all_dim)
        return self._yarn_mscale(1.0)

    def _yarn_mscale(self, mscale: float) -> float:
        factor = self._given("factor")
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0
