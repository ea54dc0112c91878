"""Latent attention (DeepSeek-V2, arXiv 2405.04434) as linear layers of an ordinary one.

    c = norm(down x),  r = rest of down x         what all heads share: latent, and a rotated part
    key_a = [key_up_a c, rotate(r)]               of head a, if it were written out
    query_a . key_a = key_up_a^T n . c + rotate(q) . rotate(r),   with query_a = [n, rotate(q)]
    out_a = value_up_a sum(weight c)

So there is one key-value head, [c, rotate(r)], and its values are c; queries are brought to it, and
what comes out is brought back to the heads. The key is the value, too: its rotated part rides
along, and is left out when values come out.

A head lies so that the ordinary rotation, which pairs an element with the one half a head further,
turns r as DeepSeek does, which pairs neighbours: [even r, first half of c, odd r, other half of c],
with an angle of 0 for all of c.

Legend: R rows, K inputs, A heads, L latent, E rotated, M = L + E a head as it lies here, N a
head's part that is not rotated, V a head's value, Q inputs of the queries, H hidden, P positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kernels.elementwise import rms_norm
from kernels.linear import ROW_BLOCK, Linear, padded_rows
from kernels.rotary import Rope


@dataclass(frozen=True)
class LatentSizes:
    """How wide the parts of latent attention are."""

    query_rank: int
    """0 if queries have no down-projection."""
    latent: int
    rotated: int
    unrotated: int
    value: int

    def __post_init__(self) -> None:
        if self.latent % 2 or self.rotated % 2:
            raise ValueError(
                f"latent and rotated parts must be even, got {self.latent} and {self.rotated}"
            )

    @property
    def head_dim(self) -> int:
        """A head as it lies in the cache."""
        return self.latent + self.rotated

    @property
    def query_dim(self) -> int:
        """A head of queries and keys, written out."""
        return self.unrotated + self.rotated

    def ups(self, kv_up_XL: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the ways from the latent to each head's key, and to its value.

        Both lie in one matrix, head after head. They are [A, L, N], as queries need it, and
        [A, V, L].
        """
        heads_AXL = kv_up_XL.unflatten(0, (-1, self.unrotated + self.value))
        key_up_ANL, value_up_AVL = heads_AXL.split((self.unrotated, self.value), dim=1)
        return key_up_ANL.mT.contiguous(), value_up_AVL


@dataclass(frozen=True)
class NormedDown:
    """A down-projection and the norm of its first outputs, as many as the norm has."""

    down: Linear
    norm_L: torch.Tensor
    eps: float

    def __call__(self, x_RK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is normed and the rest."""
        y_RX = self.down(x_RK)
        normed = len(self.norm_L)
        return rms_norm(y_RX[:, :normed], self.norm_L, self.eps), y_RX[:, normed:]


@dataclass(frozen=True)
class LatentKeys:
    """x to the one key of all heads, not rotated yet, which is its value as well."""

    down: NormedDown

    @property
    def like(self) -> torch.Tensor:
        return self.down.down.like

    def __call__(self, x_RK: torch.Tensor) -> torch.Tensor:
        return _laid_out(*self.down(x_RK))


@dataclass(frozen=True)
class LatentQueries:
    """x to a query a head, in the place of the key that all heads share."""

    down: NormedDown | None
    up: Linear
    key_up_ALN: torch.Tensor

    @property
    def like(self) -> torch.Tensor:
        return self.up.like

    def __call__(self, x_RK: torch.Tensor) -> torch.Tensor:
        heads, _, unrotated = self.key_up_ALN.shape
        if self.down is not None:
            x_RK = self.down(x_RK)[0]
        queries_RAX = self.up(x_RK).unflatten(1, (heads, -1))
        latent_RAL = head_linear(queries_RAX[..., :unrotated], self.key_up_ALN)
        return _laid_out(latent_RAL, queries_RAX[..., unrotated:]).flatten(1)


@dataclass(frozen=True)
class LatentOutput:
    """What attention returns of the shared values, to each head's value, to hidden."""

    value_up_AVL: torch.Tensor
    out: Linear
    rotated: int

    @property
    def like(self) -> torch.Tensor:
        return self.out.like

    def __call__(self, x_RK: torch.Tensor) -> torch.Tensor:
        heads_RAM = x_RK.unflatten(1, (len(self.value_up_AVL), -1))
        first, other = (half[..., self.rotated // 2 :] for half in heads_RAM.chunk(2, dim=-1))
        latent_RAL = torch.cat((first, other), dim=-1)
        return self.out(head_linear(latent_RAL, self.value_up_AVL).flatten(1))


def head_linear(x_RAX: torch.Tensor, weight_AYX: torch.Tensor) -> torch.Tensor:
    """Return W_a x_a for each head, [R, A, Y]; 16 rows in every product, whatever the batch."""
    rows = len(x_RAX)
    x_ARX = F.pad(x_RAX.transpose(0, 1), (0, 0, 0, padded_rows(rows) - rows))
    blocks = x_ARX.split(ROW_BLOCK, dim=1)
    y_ARY = torch.cat([torch.bmm(block, weight_AYX.mT) for block in blocks], dim=1)
    return y_ARY[:, :rows].transpose(0, 1)


def latent_rope(config: Mapping[str, Any], sizes: LatentSizes) -> Rope:
    """Return the rotation that a config.json states. Raises ValueError for one in doubt.

    Where one of mscale and mscale_all_dim is missing, engines disagree about the other.
    """
    rope = Rope.from_config(config, sizes.rotated)
    given = [name for name in ("mscale", "mscale_all_dim") if rope.scaling.get(name)]
    if len(given) == 1:
        raise ValueError(f"rope scaling needs mscale and mscale_all_dim, or neither, got {given}")
    return rope


def latent_scale(rope: Rope, sizes: LatentSizes) -> float:
    """Return what scores are multiplied by."""
    return rope.score_factor / sizes.query_dim**0.5


def latent_angles(
    cos_PE: torch.Tensor, sin_PE: torch.Tensor, sizes: LatentSizes
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin of a whole head, [P, M] each, from those of its rotated part."""
    unturned = sizes.latent // 2
    halves_of_cos = [F.pad(half, (0, unturned), value=1.0) for half in cos_PE.chunk(2, dim=-1)]
    halves_of_sin = [F.pad(half, (0, unturned)) for half in sin_PE.chunk(2, dim=-1)]
    return torch.cat(halves_of_cos, dim=-1), torch.cat(halves_of_sin, dim=-1)


def rotated_angles(
    cos_PM: torch.Tensor, sin_PM: torch.Tensor, rotated: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin of the rotated part of a head, [P, E] each, from those of a whole one."""
    halves_of_cos, halves_of_sin = (x_PM.chunk(2, dim=-1) for x_PM in (cos_PM, sin_PM))
    turned = slice(rotated // 2)
    cos_PE = torch.cat([half[:, turned] for half in halves_of_cos], dim=-1)
    return cos_PE, torch.cat([half[:, turned] for half in halves_of_sin], dim=-1)


def _laid_out(latent_XL: torch.Tensor, rotated_XE: torch.Tensor) -> torch.Tensor:
    first, other = latent_XL.chunk(2, dim=-1)
    return torch.cat((rotated_XE[..., 0::2], first, rotated_XE[..., 1::2], other), dim=-1)
