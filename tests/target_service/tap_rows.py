"""Made-up taps whose every number tells its row, layer and column."""

import torch

from protos.pairing import Pairing
from target_service.taps import Frame

HIDDEN = 4
TAPPED = Pairing(hidden_size=HIDDEN, vocab_size=50, tap_layers=(2, 5, 9), tap_dtype=1)
MIB = 2**20


def reader(*layers: int) -> Pairing:
    return Pairing(hidden_size=HIDDEN, vocab_size=50, tap_layers=layers, tap_dtype=1)


def numbered(rows: int, first: int = 0) -> torch.Tensor:
    """Return taps whose row i, layer column j and hidden column k say i, j and k."""
    row = torch.arange(first, first + rows)[:, None, None]
    layer = torch.tensor(TAPPED.tap_layers)[:, None]
    return (row * 1000 + layer * 10 + torch.arange(HIDDEN)).float().flatten(1)


def frame_of(rows: int, first: int = 0) -> Frame:
    tokens = tuple(range(first + 1, first + rows + 1))
    return Frame(first, first + rows + 1, tokens, numbered(rows, first))
