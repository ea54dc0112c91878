"""What of a model and its GPUs a step's time depends on."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.simulation.hardware import Experts, Forward

# A GPU reaches about half of what its data sheet says on few rows. A check: TurboSpec (arXiv
# 2406.14066) has 21 µs a token for an 8B model on an H100, which is 760 TFLOP/s, on many.
_FLOPS = 400e12


@dataclass(frozen=True)
class Gpus:
    """Some GPUs that compute a step together, each its share of every layer."""

    number: int
    bytes_s: float
    """Memory bandwidth of one, from its data sheet."""
    share: float = 0.8
    """How much of that a step gets."""

    def read_ms(self, num_bytes: float) -> float:
        """Return the time in which all together read so many bytes, in milliseconds."""
        return 1000 * num_bytes / (self.number * self.bytes_s * self.share)


H200 = 4.8e12
RTX_PRO_6000 = 1.79e12


@dataclass(frozen=True)
class Architecture:
    """A decoder. Parameters in billions."""

    layers: int
    dense: float
    """Those that every token needs."""
    weight_bytes: float
    experts: int = 0
    per_token: int = 0
    expert: float = 0.0
    """Parameters of one routed expert of one layer."""

    def forward(self, gpus: Gpus, layer_ms: float) -> Forward:
        """Return what a step costs if a layer takes `layer_ms` besides reading its weights."""
        active = self.dense + self.layers * self.per_token * self.expert
        fixed_ms = self.layers * layer_ms + gpus.read_ms(1e9 * self.dense * self.weight_bytes)
        row_ms = 1000 * 2e9 * active / (gpus.number * _FLOPS)
        return Forward(fixed_ms, row_ms, experts=self._routed(gpus))

    def _routed(self, gpus: Gpus) -> Experts | None:
        if not self.experts:
            return None
        stream_ms = gpus.read_ms(1e9 * self.layers * self.expert * self.weight_bytes)
        return Experts(self.experts, self.per_token, stream_ms)
