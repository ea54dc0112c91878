"""Where the taps of some layers lie side by side in what was recorded."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from training.recording import Source


def columns_of(layers: Sequence[int], source: Source) -> torch.Tensor:
    """Return the columns of recorded taps that are these layers'. Raises ValueError if not."""
    if missing := [layer for layer in layers if layer not in source.tap_layers]:
        raise ValueError(
            f"the drafter reads layers {list(layers)}, the recording has "
            f"{list(source.tap_layers)} (input-of-layer); missing {missing}"
        )
    width = source.hidden_size
    starts = [source.tap_layers.index(layer) * width for layer in layers]
    columns = [torch.arange(start, start + width) for start in starts]
    return torch.cat(columns) if columns else torch.empty(0, dtype=torch.long)
