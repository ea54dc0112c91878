"""Gumbel noise that is a function of (seed, position, token), and of nothing else.

Target and drafters of any batch, round or machine draw the same noise for the same token, which is
what makes sampling reproducible and drafts agree. The generator is Philox4x32-10 (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011): a block cipher over a counter. The counter
is (token // 4, position, 0, 0), the key the seed, and word token % 4 is the token's.

Legend: B any batch shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK32 = 0xFFFFFFFF
# The largest float32 below 1: keeps the noise finite.
_BELOW_ONE = 1 - 2**-24


# A seed has 64 bits; seeds in a tensor are those bits as int64, in any shape that broadcasts.
Seed = int | torch.Tensor


def seeds_of_rows(seeds: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return seeds in [0, 2^64) as a tensor."""
    return torch.tensor([seed - (seed >> 63 << 64) for seed in seeds], device=device)


def gumbel(seed: Seed, position: int | torch.Tensor, token_ids_B: torch.Tensor) -> torch.Tensor:
    """Return the float32 Gumbel noise of token ids (int64) that are candidates for a position."""
    words_B = _philox_word(seed, position, token_ids_B)
    uniform_B = ((words_B.double() + 0.5) * 2**-32).float().clamp_(max=_BELOW_ONE)
    # uniform is fine-grained near 0, where log1p makes the large values of the noise.
    return -torch.log(-torch.log1p(-uniform_B))


def _philox_word(
    seed: Seed, position: int | torch.Tensor, token_ids_B: torch.Tensor
) -> torch.Tensor:
    counter_B = token_ids_B >> 2
    zeros_B = torch.zeros_like(counter_B)
    words = philox(seed, (counter_B, zeros_B + position, zeros_B, zeros_B))
    return torch.stack(words).gather(0, (token_ids_B & 3)[None])[0]


def gumbel_of_vocabulary(seed: Seed, positions_B1: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return the noise of every token id, [B, vocab_size]. Same bits as `gumbel`, 4 x cheaper."""
    counter_B = torch.arange(-(-vocab_size // 4), device=positions_B1.device)
    counter_B = counter_B.expand(len(positions_B1), -1)
    zeros_B = torch.zeros_like(counter_B)
    words = philox(seed, (counter_B, zeros_B + positions_B1, zeros_B, zeros_B))
    words_BV = torch.stack(words, dim=-1).flatten(-2)[:, :vocab_size]
    uniform_BV = ((words_BV.double() + 0.5) * 2**-32).float().clamp_(max=_BELOW_ONE)
    return -torch.log(-torch.log1p(-uniform_BV))


Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox(seed: Seed, counter: Words) -> Words:
    """Philox4x32-10. Words are 32-bit values in int64 tensors."""
    key0, key1 = _key_of(seed)
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = (key0 + _WEYL[0]) & _MASK32, (key1 + _WEYL[1]) & _MASK32
    return c0, c1, c2, c3


def _key_of(seed: Seed) -> tuple[Seed, Seed]:
    """Return the cipher's key, two words of 32 bits."""
    return seed & _MASK32, (seed >> 32) & _MASK32


def _multiply(word_B: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the high and low 32 bits of a product. int64 wraps, which keeps all 64 bits."""
    product_B = word_B * multiplier
    return (product_B >> 32) & _MASK32, product_B & _MASK32
