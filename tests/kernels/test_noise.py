"""Philox against its published answers, and Gumbel noise: its law, its bits, its independence.

Legend: N nodes, V vocabulary, B any batch shape.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kernels.noise import gumbel, gumbel_of_vocabulary, philox

# Below this a test of a distribution fails; by chance it would once in a million seeds.
REJECTED = 1e-6
DRAWS = 200_000
seeds = st.integers(0, 2**64 - 1)
positions = st.integers(0, 2**31)


def hexadecimal(words):
    return [int(word, 16) for word in words.split()]


# kat_vectors of Random123 (Salmon et al., SC 2011): counter, key and answer of philox4x32 10.
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        (
            "00000000 00000000 00000000 00000000",
            "00000000 00000000",
            "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
    ids=["zeros", "ones", "digits_of_pi"],
)
def test_philox_gives_the_published_answers(counter, key, answer):
    key0, key1 = hexadecimal(key)
    words = philox(key0 | key1 << 32, tuple(torch.tensor(word) for word in hexadecimal(counter)))
    assert [int(word) for word in words] == hexadecimal(answer)


def plain_philox(seed, counter):
    """The cipher in Python's unbounded integers."""
    key, c = [seed & 0xFFFFFFFF, seed >> 32], list(counter)
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            product1 >> 32 ^ c[1] ^ key[0],
            product1 & 0xFFFFFFFF,
            product0 >> 32 ^ c[3] ^ key[1],
            product0 & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@settings(max_examples=50)
@given(seed=seeds, counters=st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * 4), min_size=1))
def test_philox_is_the_cipher_for_every_key_and_counter(seed, counters):
    words = philox(seed, tuple(torch.tensor(column) for column in zip(*counters, strict=True)))
    expected = [plain_philox(seed, counter) for counter in counters]
    assert torch.stack(words, dim=-1).tolist() == expected


@settings(max_examples=50)
@given(seed=seeds, position=positions, token=st.integers(0, 200_000))
def test_the_noise_is_that_of_the_word_of_its_token(seed, position, token):
    word = plain_philox(seed, (token // 4, position, 0, 0))[token % 4]
    uniform = np.clip(np.float32((word + 0.5) / 2**32), None, np.float32(1 - 2**-24))
    exact = -np.log(-np.log1p(-np.float64(uniform)))
    assert gumbel(seed, position, torch.tensor([token])).item() == pytest.approx(exact, abs=1e-5)


@settings(max_examples=25)
@given(seed=seeds, vocab=st.integers(1, 3000), at=st.lists(positions, min_size=1, max_size=5))
def test_the_noise_of_a_vocabulary_is_that_of_its_tokens(seed, vocab, at):
    positions_N1 = torch.tensor(at)[:, None]
    noise_NV = gumbel_of_vocabulary(seed, positions_N1, vocab)
    assert torch.equal(
        noise_NV, gumbel(seed, positions_N1, torch.arange(vocab).expand(len(at), -1))
    )


@settings(max_examples=25)
@given(seed=seeds, position=positions, rows=st.integers(1, 4), columns=st.integers(1, 50))
def test_the_noise_of_a_token_does_not_feel_who_else_is_asked_for(seed, position, rows, columns):
    generator = torch.Generator().manual_seed(columns)
    ids_B = torch.randint(0, 150_000, (rows, columns), generator=generator)
    one_by_one = torch.cat([gumbel(seed, position, token_1) for token_1 in ids_B.view(-1, 1)])
    assert torch.equal(gumbel(seed, position, ids_B).flatten(), one_by_one)


def test_two_threads_draw_the_same(two_threads):
    """Large enough that torch shares the work among threads."""
    positions_N1 = torch.arange(3)[:, None]
    noise_NV = gumbel_of_vocabulary(5, positions_N1, 50_001)
    torch.set_num_threads(1)
    alone = [gumbel_of_vocabulary(5, position_11, 50_001) for position_11 in positions_N1.split(1)]
    assert torch.equal(noise_NV, torch.cat(alone))


def words_of(values):
    """A stand-in for the cipher that answers with the given words."""
    return lambda _seed, _counter: tuple(torch.tensor([[value]]) for value in values)


def test_the_noise_is_finite_for_every_word(monkeypatch):
    ends = [0, 1, 2**31, 2**31 + 1, 2**32 - 513, 2**32 - 129, 2**32 - 2, 2**32 - 1]
    for first in (0, 4):
        monkeypatch.setattr("kernels.noise.philox", words_of(ends[first : first + 4]))
        noise_4 = gumbel_of_vocabulary(0, torch.zeros(1, 1, dtype=torch.int64), 4)[0]
        assert torch.isfinite(noise_4).all()
        assert torch.equal(noise_4, noise_4.sort(descending=True).values)


def draws(seed=7, position=3):
    return gumbel(seed, position, torch.arange(DRAWS)).double().numpy()


def test_the_noise_is_gumbel():
    assert stats.kstest(draws(), stats.gumbel_r.cdf).pvalue > REJECTED


@pytest.mark.parametrize(
    "wrong",
    [lambda x: -x, lambda x: x * 1.02, lambda x: x + 0.02, lambda x: np.maximum(x, -1.3)],
    ids=["turned_round", "wider", "shifted", "cut_off"],
)
def test_noise_a_little_off_would_be_told(wrong):
    """Control: the test above sees a few per cent."""
    assert stats.kstest(wrong(draws()), stats.gumbel_r.cdf).pvalue < REJECTED


def correlation_in_sigmas(x, y):
    return abs(np.corrcoef(x, y)[0, 1]) * len(x) ** 0.5


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 8},
        {"seed": 7 + 2**32},
        {"seed": 7 + 2**63},
        {"position": 4},
        {"position": 3 + 2**20},
        {"seed": 3, "position": 7},
    ],
    ids=str,
)
def test_other_seeds_and_positions_are_uncorrelated(other):
    assert correlation_in_sigmas(draws(), draws(**other)) < 5


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 5, 64])
def test_neighbouring_tokens_are_uncorrelated(lag):
    assert correlation_in_sigmas(draws()[lag:], draws()[:-lag]) < 5


def test_noise_shared_in_a_fiftieth_would_be_told():
    """Control for the two tests above."""
    other = draws(seed=8)
    other[::50] = draws()[::50]
    assert correlation_in_sigmas(draws(), other) > 5
