"""Taps in a recording: bf16 as they were, int8 within half a step of their group's scale."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.tap_encoding import ENCODINGS, decode_taps, encode_taps

seeds = st.integers(0, 2**32)


def taps_of(seed, outlier):
    taps = torch.randn(5, 64, generator=torch.Generator().manual_seed(seed))
    taps[:, 40] *= outlier
    return taps.bfloat16()


@given(seeds)
def test_bf16_is_exact(seed):
    taps = taps_of(seed, 1.0)
    assert torch.equal(decode_taps(encode_taps(taps, "bf16")), taps)


@given(seeds, st.sampled_from([0.0, 1.0, 1000.0]))
def test_an_outlier_harms_only_its_own_group(seed, outlier):
    """Values are within half a step of a scale that the largest of their 32 neighbours sets."""
    taps = taps_of(seed, outlier)
    decoded = decode_taps(encode_taps(taps, "int8")).float()
    largest = taps.float().unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True)
    error = (decoded - taps.float()).unflatten(1, (-1, 32)).abs()
    # Half a step, the scale's own rounding over 127 steps, and the result's.
    assert bool((error <= largest * (0.5 / 127 + 2**-8 + 2**-8)).all())


def test_int8_takes_about_half():
    taps = taps_of(0, 1.0)
    sizes = {e: sum(t.nbytes for t in encode_taps(taps, e).values()) for e in ENCODINGS}
    assert sizes["int8"] == sizes["bf16"] * (1 + 2 / 32) / 2


def test_an_unknown_encoding_is_refused():
    with pytest.raises(ValueError, match="one of bf16, int8, got 'fp4'"):
        encode_taps(taps_of(0, 1.0), "fp4")
