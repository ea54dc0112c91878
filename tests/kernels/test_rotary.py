"""Frequencies and tables of every rope scaling against transformers', and what is refused."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from kernels.rotary import Rope

ORIGINAL = 512
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": ORIGINAL}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
SCALINGS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "llama3_other_ramp": LLAMA3 | {"low_freq_factor": 2.0, "high_freq_factor": 9.0, "factor": 32.0},
    "yarn": YARN,
    "yarn_attention_factor": YARN | {"attention_factor": 0.7},
    "yarn_mscale": YARN | {"mscale": 1.5, "mscale_all_dim": 0.8},
    "yarn_mscale_of_one": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn_mscale_alone": YARN | {"mscale": 1.5},
    "yarn_mscale_all_dim_of_zero": YARN | {"mscale": 1.5, "mscale_all_dim": 0},
    "yarn_attention_factor_over_mscale": YARN
    | {"attention_factor": 1.2, "mscale": 1.5, "mscale_all_dim": 0.8},
    "yarn_not_truncated": YARN | {"truncate": False},
    "yarn_betas": YARN | {"beta_fast": 48, "beta_slow": 3},
    "yarn_betas_not_truncated": YARN | {"beta_fast": 48, "beta_slow": 3, "truncate": False},
    "yarn_ramp_of_no_width": YARN | {"beta_fast": 2.0, "beta_slow": 2.0, "truncate": False},
    "yarn_ramp_outside": YARN | {"beta_fast": 1e6, "beta_slow": 1e-6},
    "yarn_shorter": YARN | {"factor": 0.5},
    "yarn_without_original": {"rope_type": "yarn", "factor": 8.0},
}
every_scaling = pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS.keys())


def transformers_rotary(head_dim, theta, scaling):
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=4096,
        rope_parameters=scaling | {"rope_theta": theta},
    )
    return LlamaRotaryEmbedding(config)


def rope_of(head_dim, theta, scaling):
    parameters = scaling | {"rope_theta": theta}
    config = {"rope_parameters": parameters, "max_position_embeddings": 4096}
    return Rope.from_config(config, head_dim)


@every_scaling
@pytest.mark.parametrize(("head_dim", "theta"), [(16, 10000.0), (80, 10000.0), (128, 500000.0)])
def test_frequencies_are_the_trainers(scaling, head_dim, theta):
    reference = transformers_rotary(head_dim, theta, scaling)
    inverse_F, amplitude = rope_of(head_dim, theta, scaling).frequencies()
    torch.testing.assert_close(inverse_F, reference.inv_freq, rtol=4e-6, atol=0)
    assert amplitude == pytest.approx(reference.attention_scaling, rel=1e-12)


@every_scaling
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tables_are_the_trainers(scaling, dtype):
    reference = transformers_rotary(64, 10000.0, scaling)
    tables = rope_of(64, 10000.0, scaling).tables(1000, dtype)
    expected = reference(torch.empty(0, dtype=dtype), torch.arange(1000)[None])
    for table_PD, expected_1PD in zip(tables, expected, strict=True):
        # The angle grows with the position, and the rounding of its frequency with it.
        tolerance = 1000 * 4e-6 + torch.finfo(dtype).eps
        torch.testing.assert_close(table_PD, expected_1PD[0], rtol=0, atol=tolerance)


def test_the_scalings_above_differ():
    """Control: a key that is overlooked would show. A lone or a zero mscale says nothing."""
    seen = set()
    for scaling in SCALINGS.values():
        inverse_F, amplitude = rope_of(128, 10000.0, scaling).frequencies()
        seen.add((*inverse_F.tolist(), amplitude))
    assert len(seen) == len(SCALINGS) - len(["yarn_mscale_alone", "yarn_mscale_all_dim_of_zero"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_position_has_the_same_bits_in_tables_of_any_length(dtype):
    rope = rope_of(64, 10000.0, YARN)
    for long_PD, short_PD in zip(rope.tables(2000, dtype), rope.tables(37, dtype), strict=True):
        assert torch.equal(long_PD[:37], short_PD)


@every_scaling
def test_the_old_spelling_means_the_same(scaling):
    new = rope_of(64, 500000.0, scaling)
    old = {
        "rope_theta": 500000.0,
        "rope_scaling": {("type" if k == "rope_type" else k): v for k, v in scaling.items()},
        "max_position_embeddings": 4096,
    }
    inverse_F, amplitude = Rope.from_config(old, 64).frequencies()
    assert torch.equal(inverse_F, new.frequencies()[0])
    assert amplitude == new.frequencies()[1]


@pytest.mark.parametrize("nothing", [{}, {"rope_scaling": None}, {"rope_parameters": None}])
def test_without_scaling_the_embedding_is_the_default(nothing):
    config = nothing | {"rope_theta": 7000.0, "max_position_embeddings": 99}
    assert Rope.from_config(config, 8) == Rope(8, 7000.0, {}, 99)
    assert Rope.from_config(config, 8).kind == "default"


def test_theta_is_ten_thousand_where_a_config_is_silent():
    assert Rope.from_config({}, 8).theta == 10000.0


@pytest.mark.parametrize("kind", [*sorted(ROPE_INIT_FUNCTIONS.keys() - SCALINGS.keys()), "mrope"])
def test_a_scaling_that_is_not_known_is_refused_by_name(kind):
    rope = rope_of(64, 10000.0, {"rope_type": kind, "factor": 2.0})
    with pytest.raises(ValueError, match=f"rope scaling '{kind}' is not supported; known: .*yarn"):
        rope.tables(10, torch.float32)


@pytest.mark.parametrize(("kind", "missing"), [("linear", "factor"), ("llama3", "low_freq_factor")])
def test_a_scaling_without_its_numbers_is_refused_naming_the_first(kind, missing):
    """Not a KeyError from inside: a message for whoever wrote the config."""
    scaling = {"rope_type": kind} | ({"factor": 8.0} if kind == "llama3" else {})
    rope = Rope.from_config({"rope_scaling": scaling}, 64)

    with pytest.raises(ValueError, match=f"'{kind}' needs '{missing}'"):
        rope.frequencies()


def test_a_partly_rotated_head_is_refused():
    """Ignoring the factor would compute another model."""
    with pytest.raises(ValueError, match=r"partial_rotary_factor 0\.5"):
        Rope.from_config({"partial_rotary_factor": 0.5}, 64)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({}, 1.0),
        ({"type": "linear", "factor": 64.0, "mscale_all_dim": 1.0}, 1.0),
        ({"type": "yarn", "factor": 64.0, "mscale_all_dim": 1.0}, 2.0047),
        ({"type": "yarn", "factor": 64.0, "mscale_all_dim": 0.5}, 1.4592),
        ({"type": "yarn", "factor": 64.0}, 1.0),
        ({"type": "yarn", "factor": 1.0, "mscale_all_dim": 1.0}, 1.0),
    ],
)
def test_yarn_scales_the_scores_of_latent_attention(scaling, expected):
    """(0.1 mscale_all_dim ln(factor) + 1)^2: 2.0047 for Kimi-K2.5."""
    rope = Rope.from_config({"rope_scaling": scaling}, 64)

    assert rope.score_factor == pytest.approx(expected, abs=1e-4)
