"""Feed-forward layers on a GPU: a gated one, alone or as the shared expert beside many.

    y = down(silu(gate x) up x)  +  sum over the chosen experts of weight expert(x)

Both are summed into one buffer, rounded once, before they meet the residual stream.

Legend: R rows, H hidden, F width, E experts, C choices of a row, N outputs, K inputs, X elements, B
bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from kernels.decoder import DecoderLayer
from kernels.experts import Mixture, Routing
from kernels.gpu.elementwise import silu_mul
from kernels.gpu.expert_scratch import ExpertScratch, scratch_bytes, scratch_in
from kernels.gpu.expert_weights import ExpertWeight, stack_experts
from kernels.gpu.experts import mix_experts
from kernels.gpu.linear import linear
from kernels.gpu.router import choose_experts
from kernels.gpu.stack import Weight


class Experts(NamedTuple):
    """The experts of a layer, and what chooses among them."""

    router: Weight
    bias_E: torch.Tensor
    """float32."""
    routing: Routing
    gate_up: ExpertWeight
    down: ExpertWeight

    @classmethod
    def of(cls, mixture: Mixture, device: torch.device) -> Experts:
        """Take experts of kernels/experts.py to a device.

        Raises ValueError for weights that kernels for GPUs do not take.
        """
        return cls(
            Weight(_router(mixture.router.weight_NK), None).to(device),
            mixture.bias_E.to(device),
            mixture.routing,
            stack_experts([expert.gate_up for expert in mixture.experts], device),
            stack_experts([expert.down for expert in mixture.experts], device),
        )


def _router(weight_EH: torch.Tensor) -> torch.Tensor:
    """Return a router's weight in bfloat16, in which checkpoints keep it."""
    rounded_EH = weight_EH.bfloat16()
    if not torch.equal(rounded_EH.float(), weight_EH):
        raise ValueError("kernels for GPUs take routers in bfloat16, which would round this one")
    return rounded_EH


class FeedForward(NamedTuple):
    """A layer's weights. With experts, gate, up and down are those of the shared one."""

    gate_up: Weight
    down: Weight
    experts: Experts | None

    @classmethod
    def of(cls, layer: DecoderLayer, device: torch.device) -> FeedForward:
        """Take a layer of kernels/decoder.py to a device. Raises ValueError as `Experts.of`."""
        return cls(
            Weight.of(layer.gate, layer.up).to(device),
            Weight.of(layer.down).to(device),
            None if layer.experts is None else Experts.of(layer.experts, device),
        )

    @property
    def kind_of_experts(self) -> str | None:
        """What must be alike in all layers with experts, in words; None without."""
        if self.experts is None:
            return None
        shapes = [list(weight[0].shape) for weight in (self.experts.gate_up, self.experts.down)]
        return f"{type(self.experts.gate_up).__name__} of {shapes}"

    @property
    def weights(self) -> Iterable[Weight]:
        """What rows are multiplied with whatever they choose."""
        router = () if self.experts is None else (self.experts.router,)
        return self.gate_up, self.down, *router


@dataclass(frozen=True)
class ChoiceBuffers:
    """What rows choose, and what experts write on their way. All layers' experts are alike."""

    experts: Experts
    """Of one layer: those of all have these shapes."""
    live_R: torch.Tensor
    """int32: 0 for padding, which chooses nothing."""
    logits_RE: torch.Tensor
    experts_RC: torch.Tensor
    weights_RC: torch.Tensor
    memory_B: torch.Tensor
    scratch: ExpertScratch

    def rows(self, count: int) -> ChoiceBuffers:
        """Return the buffers of the first rows."""
        return replace(
            self,
            live_R=self.live_R[:count],
            logits_RE=self.logits_RE[:count],
            experts_RC=self.experts_RC[:count],
            weights_RC=self.weights_RC[:count],
            scratch=_scratch_in(self.memory_B, count, self.experts),
        )


class FeedForwardBuffers(NamedTuple):
    """What feed-forward layers write on their way, whatever their widths."""

    gate_up_X: torch.Tensor
    inner_X: torch.Tensor
    choice: ChoiceBuffers | None
    """None if no layer has experts."""

    def rows(self, count: int) -> FeedForwardBuffers:
        """Return the buffers of the first rows."""
        choice = None if self.choice is None else self.choice.rows(count)
        return self._replace(choice=choice)


def new_feed_forward_buffers(
    layers: Sequence[FeedForward], rows: int, device: torch.device
) -> FeedForwardBuffers:
    """Return buffers for up to so many rows."""
    widest = max(layer.down.weight_NK.shape[1] for layer in layers)
    experts = [layer.experts for layer in layers if layer.experts is not None]
    empty = torch.empty(0, dtype=torch.bfloat16, device=device)
    return FeedForwardBuffers(
        empty.new_zeros(rows * 2 * widest),
        empty.new_zeros(rows * widest),
        _new_choice_buffers(experts[0], rows, device) if experts else None,
    )


def _new_choice_buffers(experts: Experts, rows: int, device: torch.device) -> ChoiceBuffers:
    choices, shapes = experts.routing.choices, (experts.gate_up, experts.down)
    num_bytes = max(scratch_bytes(count, choices, *shapes) for count in range(1, rows + 1))
    memory_B = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    floats = torch.zeros(0, dtype=torch.float32, device=device)
    return ChoiceBuffers(
        experts,
        live_R=floats.int().new_zeros(rows),
        logits_RE=floats.new_zeros(rows, experts.routing.num_experts),
        experts_RC=floats.int().new_zeros(rows, choices),
        weights_RC=floats.new_zeros(rows, choices),
        memory_B=memory_B,
        scratch=_scratch_in(memory_B, rows, experts),
    )


def _scratch_in(memory_B: torch.Tensor, rows: int, experts: Experts) -> ExpertScratch:
    return scratch_in(memory_B, rows, experts.routing.choices, experts.gate_up, experts.down)


def find_live(slots_R: torch.Tensor, buffers: FeedForwardBuffers) -> None:
    """Note which rows are not padding, for the choices of all layers of a step."""
    if buffers.choice is not None:
        torch.ge(slots_R, 0, out=buffers.choice.live_R)


def feed_forward(
    layer: FeedForward,
    x_RH: torch.Tensor,
    buffers: FeedForwardBuffers,
    scratch: torch.Tensor,
    out_RH: torch.Tensor,
) -> None:
    """Write y to `out_RH`. `scratch` is that of products."""
    rows, width = len(x_RH), layer.down.weight_NK.shape[1]
    gate_up_R2F = buffers.gate_up_X[: rows * 2 * width].view(rows, 2 * width)
    inner_RF = buffers.inner_X[: rows * width].view(rows, width)
    linear(x_RH, *layer.gate_up, gate_up_R2F, scratch)
    gate_RF, up_RF = gate_up_R2F.chunk(2, dim=1)
    silu_mul(gate_RF, up_RF, inner_RF)
    linear(inner_RF, *layer.down, out_RH, scratch)
    if layer.experts is not None:
        assert buffers.choice is not None, "there are buffers for experts where a layer has some"
        _add_experts(layer.experts, x_RH, buffers.choice, scratch, out_RH)


def _add_experts(
    experts: Experts,
    x_RH: torch.Tensor,
    buffers: ChoiceBuffers,
    scratch: torch.Tensor,
    out_RH: torch.Tensor,
) -> None:
    """Add what the chosen experts say to what the shared one said."""
    linear(x_RH, *experts.router, buffers.logits_RE, scratch)
    choose_experts(
        buffers.logits_RE,
        experts.bias_E,
        buffers.live_R,
        experts.routing,
        buffers.experts_RC,
        buffers.weights_RC,
    )
    weights = (experts.gate_up, experts.down)
    mix_experts(
        x_RH, buffers.experts_RC, buffers.weights_RC, weights, out_RH, buffers.scratch, out_RH
    )
