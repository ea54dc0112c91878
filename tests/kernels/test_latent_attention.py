"""Latent attention as linear layers: scores and values are those of keys written out a head."""

import pytest
import torch

from kernels.elementwise import rotate
from kernels.latent_attention import (
    LatentKeys,
    LatentOutput,
    LatentQueries,
    LatentSizes,
    NormedDown,
    head_linear,
    latent_angles,
    rotated_angles,
)
from kernels.linear import DenseLinear

HEADS, INPUTS, HIDDEN = 3, 40, 16
SIZES = LatentSizes(query_rank=12, latent=8, rotated=4, unrotated=6, value=5)
NORM = torch.linspace(0.5, 1.5, 12)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


def down(outputs, normed, seed):
    return NormedDown(DenseLinear(random(outputs, INPUTS, seed=seed)), NORM[:normed], 1e-6)


KEY_UP, VALUE_UP = random(HEADS, 6, 8, seed=3), random(HEADS, 5, 8, seed=4)
QUERY_UP = random(HEADS * 10, 12, seed=2)
KEYS = LatentKeys(down(12, 8, seed=1))
QUERIES = LatentQueries(down(12, 12, seed=5), DenseLinear(QUERY_UP), KEY_UP.mT)


def neighbours_turned(x, angle):
    """Rotate [..., 4]: element 2 i pairs with 2 i + 1, at an angle of its own."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


def test_scores_are_those_of_every_heads_own_key():
    """Query and key both turned, each by the angles of its position."""
    x, angles = random(2, INPUTS, seed=7), torch.tensor([[0.3, 2.0], [1.1, -0.7]])
    tables = torch.cat((angles, angles), dim=-1)
    cos, sin = latent_angles(tables.cos(), tables.sin(), SIZES)
    q = rotate(QUERIES(x).unflatten(1, (HEADS, -1)), cos, sin)[0]
    k = rotate(KEYS(x)[:, None], cos, sin)[1, 0]

    latent, rest = KEYS.down(x)
    queries = (QUERIES.down(x)[0] @ QUERY_UP.T).view(2, HEADS, 10)[0]
    plain = [
        queries[head, :6] @ (KEY_UP[head] @ latent[1])
        + neighbours_turned(queries[head, 6:], angles[0]) @ neighbours_turned(rest[1], angles[1])
        for head in range(HEADS)
    ]

    assert torch.allclose(q @ k, torch.stack(plain), atol=1e-5)


def test_values_come_out_as_every_heads_own():
    """The rotated part, which lies among them, is left out."""
    out = DenseLinear(random(HIDDEN, HEADS * 5, seed=6))
    x = random(4, INPUTS, seed=8)
    weights = torch.softmax(random(HEADS, 4, seed=9), dim=-1)
    attended = (weights @ KEYS(x)).flatten()[None]

    got = LatentOutput(VALUE_UP, out, rotated=4)(attended)

    values = [weights[head] @ (KEYS.down(x)[0] @ VALUE_UP[head].T) for head in range(HEADS)]
    assert torch.allclose(got, out(torch.cat(values)[None]), atol=1e-5)


def test_queries_may_come_from_hidden_directly():
    """As queries whose smaller vector is the input itself."""
    up, x = DenseLinear(random(HEADS * 10, INPUTS, seed=2)), random(5, INPUTS, seed=7)
    direct = LatentQueries(None, up, KEY_UP.mT)(x)

    written_out = up(x).view(5, HEADS, 10)

    latent = torch.einsum("ran,anl->ral", written_out[..., :6], KEY_UP)
    even, first, odd, other = direct.view(5, HEADS, 12).split((2, 4, 2, 4), dim=-1)
    assert torch.allclose(torch.cat((first, other), dim=-1), latent, atol=1e-6)
    assert torch.equal(torch.stack((even, odd), dim=-1).flatten(-2), written_out[..., 6:])


def test_ups_of_keys_and_values_lie_head_after_head_in_one_matrix():
    together = torch.cat((KEY_UP, VALUE_UP), dim=1).flatten(0, 1)

    key_up_ALN, value_up_AVL = SIZES.ups(together)

    assert torch.equal(key_up_ALN, KEY_UP.mT)
    assert torch.equal(value_up_AVL, VALUE_UP)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 16, 17, 40])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(rows, dtype):
    x, weight = random(rows, HEADS, 70).to(dtype), random(HEADS, 33, 70).to(dtype)

    together = head_linear(x, weight)

    alone = [head_linear(x[i : i + 1], weight) for i in range(rows)]
    assert torch.equal(together, torch.cat(alone))
    plain = torch.einsum("rax,ayx->ray", x.double(), weight.double())
    assert torch.allclose(together.double(), plain, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(("latent", "rotated"), [(7, 4), (8, 3)])
def test_parts_that_cannot_be_halved_are_refused(latent, rotated):
    with pytest.raises(ValueError, match=f"must be even, got {latent} and {rotated}"):
        LatentSizes(query_rank=1, latent=latent, rotated=rotated, unrotated=1, value=1)


def test_angles_of_the_rotated_part_are_found_again():
    cos_PE, sin_PE = random(5, 4, seed=1), random(5, 4, seed=2)

    found = rotated_angles(*latent_angles(cos_PE, sin_PE, SIZES), SIZES.rotated)

    assert torch.equal(found[0], cos_PE)
    assert torch.equal(found[1], sin_PE)
