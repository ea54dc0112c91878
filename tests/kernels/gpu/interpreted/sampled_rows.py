"""Rows of the sampler: buffers that hold NaN until they are written, and any mix of filters.

Legend: R rows, V vocabulary, B blocks, P places of a list.
"""

from collections.abc import Sequence

import torch

from kernels.gpu import agreement_sampler
from kernels.gpu.agreement_sampler import Draw, SamplerScratch
from kernels.gpu.choice import Chosen
from kernels.gpu.kept_limit import RowFilters
from kernels.gpu.shaping import Shaped, Shaping, shape_logits
from kernels.gpu.vocabulary import BLOCK_LEN
from kernels.noise import seeds_of_rows
from kernels.sampling import Filters

FILTERS = [
    Filters(0.0),
    Filters(1.0),
    Filters(0.7, top_k=20),
    Filters(1.3, top_p=0.937),
    Filters(0.9, min_p=0.0713),
    Filters(1.1, top_k=300, top_p=0.713),
    Filters(2.0, top_k=-1, top_p=0.991, min_p=0.0007),
    Filters(0.8, top_k=5, top_p=0.519, min_p=0.0317),
    Filters(1.0, top_k=1),
    Filters(1.0, top_p=1e-6),
    Filters(1.0, min_p=1.0),
]
EPSILON = 2**-23


def peaked_and_flat(rows: int, vocab: int) -> torch.Tensor:
    """Rows of which some keep a handful of tokens and others thousands; some are coarse or masked.

    Kinds of rows and kinds of filters have no common divisor: enough rows are every pair.
    """
    spreads = torch.tensor([8.0, 0.01, 3.0, 1.0, 3.0])
    logits_RV = spreads[torch.arange(rows) % 5, None] * torch.randn(rows, vocab)
    logits_RV[3::5] = logits_RV[3::5].round()
    logits_RV[4::5, 1::2] = -torch.inf
    return logits_RV


def row_filters(filters: Sequence[Filters]) -> RowFilters:
    return RowFilters(
        torch.tensor([one.temperature for one in filters]),
        torch.tensor([one.top_k for one in filters], dtype=torch.int32),
        torch.tensor([one.top_p for one in filters]),
        torch.tensor([one.min_p for one in filters]).log(),
    )


def draw_of(rows: int) -> Draw:
    seeds = [(2**64 - 1 - row) if row % 2 else row for row in range(rows)]
    return Draw(seeds_of_rows(seeds, torch.device("cpu")), 1000 + 77 * torch.arange(rows))


def unshaped(logits_RV: torch.Tensor) -> Shaped:
    nothing_RV = torch.full(logits_RV.shape, torch.nan)
    return Shaped(nothing_RV, torch.zeros(len(logits_RV), dtype=torch.int32))


def shaped(logits_RV: torch.Tensor, shaping: Shaping, first_token: int = 0) -> Shaped:
    """Shape rows; those without a list are not written."""
    to_RV = torch.full(logits_RV.shape, torch.nan)
    shape_logits(logits_RV, shaping, to_RV, first_token)
    return Shaped(to_RV, shaping.lengths_R)


def unwritten_scratch(rows: int, vocab: int) -> SamplerScratch:
    blocks = -(-vocab // BLOCK_LEN)
    shapes = (rows, blocks), (rows, 5, blocks), (rows, vocab), (rows,)
    return SamplerScratch(*(torch.full(shape, torch.nan) for shape in shapes))


def unwritten_choice(rows: int) -> Chosen:
    tokens_R = torch.full((rows,), -1)
    return Chosen(torch.full((rows, 5), torch.nan), tokens_R, torch.full((rows,), torch.nan))


def choose(
    logits_RV: torch.Tensor,
    filters: Sequence[Filters],
    draw: Draw,
    shaped: Shaped | None = None,
    first_token: int | None = None,
) -> Chosen:
    """Return what is chosen, of a whole vocabulary or of the shard that begins at a token."""
    rows, vocab = logits_RV.shape
    scratch, chosen = unwritten_scratch(rows, vocab), unwritten_choice(rows)
    by = shaped or unshaped(logits_RV)
    arguments = logits_RV, by, row_filters(filters), draw, scratch, chosen
    if first_token is None:
        agreement_sampler.agreement_tokens(*arguments)
    else:
        agreement_sampler.choose_of_shard(*arguments, first_token)
    return chosen
