"""The noise against the reference: words and uniforms bit for bit.

Legend: R rows, V vocabulary, W words.
"""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.gpu.noise import gumbels_of, gumbels_of_tokens, uniforms_of, vocabulary_noise
from kernels.noise import gumbel, gumbel_of_vocabulary, philox, seeds_of_rows
from tests.kernels.gpu.interpreted.sampled_rows import EPSILON
from tests.kernels.gpu.proofs.memory_guard import launch_guarded

seeds = st.integers(0, 2**64 - 1)
positions = st.integers(0, 2**32 - 1)


@triton.jit
def _of_words(words, uniforms, noise, count: tl.constexpr):
    at = tl.arange(0, count)
    uniform = uniforms_of(tl.load(words + at).to(tl.uint32, bitcast=True))
    tl.store(uniforms + at, uniform)
    tl.store(noise + at, gumbels_of(uniform))


@triton.jit
def _token_noise(seed, position, tokens, out, count: tl.constexpr):
    at = tl.arange(0, count)
    tl.store(out + at, gumbels_of_tokens(tl.load(seed), tl.load(position), tl.load(tokens + at)))


def words_of_every_kind():
    """Both ends, all that is near a power of two or the middle of two floats, and random ones."""
    edges = {(1 << bit) + near for bit in range(33) for near in range(-3, 4)}
    middles = {(1 << bit) + (1 << max(bit - 24, 0)) * odd for bit in range(32) for odd in (1, 3, 5)}
    ends = {2**32 - step for step in (1, 2, 127, 128, 129, 255, 256, 257, 383, 384, 385)}
    special = sorted(word for word in edges | middles | ends if 0 <= word < 2**32)
    return torch.cat((torch.tensor(special), torch.randint(0, 2**32, (2**18 - len(special),))))


def reference_uniforms(words_W):
    return ((words_W.double() + 0.5) * 2**-32).float().clamp_(max=1 - 2**-24)


def of_words(words_W):
    """Return uniforms and noise, [2, W]."""
    out_2W = torch.full((2, len(words_W)), torch.nan)
    _of_words[(1,)](words_W.to(torch.int32), *out_2W, len(words_W))
    return out_2W


def test_uniforms_are_those_of_the_doubles_bit_for_bit():
    words_W = words_of_every_kind()
    assert torch.equal(of_words(words_W)[0], reference_uniforms(words_W))


def test_a_word_rounded_before_its_half_is_added_would_be_told():
    """Control."""
    words_W = words_of_every_kind()
    naive_W = ((words_W.float() + 0.5) * 2**-32).clamp(max=1 - 2**-24)
    assert not torch.equal(naive_W, reference_uniforms(words_W))


def assert_noise_is_near(noise, expected):
    """Units in the last place of what is at least 1: the noise is a logarithm through zero."""
    assert ((noise - expected).abs() <= 4 * EPSILON * expected.abs().clamp(min=1)).all()


@settings(max_examples=8)
@given(of=st.lists(st.tuples(seeds, positions), min_size=1, max_size=2), vocab=st.integers(1, 3000))
def test_the_noise_of_a_vocabulary_is_the_references(of, vocab):
    seeds_R = seeds_of_rows([seed for seed, _ in of], torch.device("cpu"))
    positions_R = torch.tensor([position for _, position in of])
    noise_RV = torch.full((len(of), vocab), torch.nan)
    launch_guarded(lambda: vocabulary_noise(seeds_R, positions_R, noise_RV), noise_RV)
    assert_noise_is_near(
        noise_RV, gumbel_of_vocabulary(seeds_R[:, None], positions_R[:, None], vocab)
    )


@settings(max_examples=8)
@given(seeds, positions, st.lists(st.integers(0, 2**20), min_size=64, max_size=64))
def test_the_noise_of_any_token_is_that_of_its_word(seed, position, tokens):
    seeds_1 = seeds_of_rows([seed], torch.device("cpu"))
    tokens_V, noise_V = torch.tensor(tokens), torch.full((64,), torch.nan)
    _token_noise[(1,)](seeds_1, torch.tensor([position]), tokens_V, noise_V, 64)
    assert_noise_is_near(noise_V, gumbel(seed, position, tokens_V))


def test_neighbours_of_every_token_draw_other_words():
    """Control for all of the above: noise of another token, position or seed differs."""
    tokens_V = torch.arange(64)
    noise_V = gumbel(5, 7, tokens_V)
    others = gumbel(5, 7, tokens_V ^ 1), gumbel(5, 8, tokens_V), gumbel(5 + 2**32, 7, tokens_V)
    for other_V in others:
        with pytest.raises(AssertionError):
            assert_noise_is_near(other_V, noise_V)


def test_the_noise_of_extreme_words_is_finite_and_in_their_order():
    rising = [3 << bit for bit in range(30)]
    ends = [0, *rising, 2**31 + 2**30, 2**32 - 513, 2**32 - 129, 2**32 - 2, 2**32 - 1]
    words_W = torch.tensor(ends[:1] * (64 - len(ends)) + ends)
    uniforms_W, noise_W = of_words(words_W)
    assert torch.isfinite(noise_W).all()
    assert torch.equal(noise_W, noise_W.sort(descending=True).values)
    assert_noise_is_near(noise_W, -torch.log(-torch.log1p(-uniforms_W)))


def test_philox_of_the_reference_is_what_is_drawn():
    """One word by hand: counter (token // 4, position, 0, 0), word token % 4."""
    words = philox(11, tuple(torch.tensor([value]) for value in (5, 3, 0, 0)))
    uniform = reference_uniforms(words[2])
    noise_1V = torch.full((1, 32), torch.nan)
    vocabulary_noise(torch.tensor([11]), torch.tensor([3]), noise_1V)
    expected = -torch.log(-torch.log1p(-uniform))
    assert noise_1V[0, 22].item() == pytest.approx(expected.item(), rel=1e-6)
