"""MLA drafters against DeepSeek's attention written out, and the traps of their checkpoints."""

import math
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.eagle3_layer import decoder_layer
from draft_service.drafters.eagle3_tensors import Eagle3Tensors
from draft_service.weights import open_drafter, read_config
from protos.messages import Plan, SamplingParams
from tests.draft_service.drafters.followed import Followed
from tests.draft_service.drafters.plain_eagle3 import PlainEagle3
from tests.draft_service.drafters.plain_latent import PlainLatent
from tests.draft_service.drafters.played_session import (
    GREEDY,
    HIDDEN,
    LAYERS,
    SAMPLED,
    VOCAB,
    PlayedSession,
    load,
    play,
    target_side,
)
from tests.kernels.implementations import running
from tests.tiny_models import FILE, LATENT, rename_tensors, replace_tensors, write_tiny_eagle3

sizes = {"hidden": HIDDEN, "vocab": VOCAB, "target_layers": LAYERS}
# The mscales are published as equal; apart, they tell where each of them goes.
YARN = {
    "type": "yarn",
    "factor": 32.0,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
SWITCHES = {
    "as_it_comes": {},
    "eagle_3.1": {"fc_norm": True, "norm_output": True},
    "draft_vocab": {"draft_vocab_size": 50},
    "norm_before_residual": {"norm_before_residual": True},
    "yarn": {"rope_scaling": YARN},
    "yarn_uneven_mscale": {"rope_scaling": YARN | {"mscale": 0.3}},
    "values_wider_than_keys": {"v_head_dim": 30},
    "deepseek_v3": {"architectures": ["Eagle3DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"},
}


def write(path, **config):
    return write_tiny_eagle3(path, **sizes, **(LATENT | {"seed": 6} | config))


def numbers(rounds):
    return [number for tokens, logprobs in rounds for number in (*tokens, *logprobs)]


def drafts_of(drafter, sampling=GREEDY, **options):
    drafts = play(drafter, PlayedSession(seed=2), sampling, **options)
    return numbers((draft.tokens, draft.logprobs) for draft in drafts)


def plain_drafts(plain, sampling=GREEDY, first_row=0):
    """Return what the transcription drafts in the same rounds, to be compared with."""
    session, rounds = PlayedSession(seed=2), []
    for _ in range(6):
        steps = min(session.random.randint(1, 6), 5)
        h = plain.fuse(session.taps()[first_row:])
        tokens, logprobs, _ = plain.chain(session.tokens, h, first_row, steps, sampling)
        rounds.append((tokens, logprobs))
        session.commit(tokens)
    return pytest.approx(numbers(rounds), abs=1e-4)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("switch", SWITCHES)
def test_drafts_are_those_of_attention_written_out(tmp_path, switch, sampling):
    path = write(tmp_path, **SWITCHES[switch])

    drafts = drafts_of(load(path), sampling)

    assert drafts == plain_drafts(PlainLatent(path), sampling)


def test_a_late_joiner_sees_rows_from_its_first_on(tmp_path):
    path = write(tmp_path)

    drafts = drafts_of(load(path), first_row=7)

    assert drafts == plain_drafts(PlainLatent(path), first_row=7)


YARNS_SCALE = 0.1 * math.log(32) + 1


class HalvesTurned(PlainLatent):
    """Pairs lie half a head apart, as Llama's."""

    def turn(self, heads, position):
        return PlainEagle3.turn(self, heads, position)


class ScoresUnscaled(PlainLatent):
    """YaRN leaves the scores alone, as with Llama's attention."""

    def score_scale(self):
        return (LATENT["qk_nope_head_dim"] + LATENT["qk_rope_head_dim"]) ** -0.5


class AnglesScaled(PlainLatent):
    """YaRN's scale is on cos and sin too, as if there were no mscale_all_dim."""

    def amplitude(self):
        return YARNS_SCALE


@pytest.mark.parametrize("trap", [HalvesTurned, ScoresUnscaled, AnglesScaled])
def test_another_rotation_or_scale_would_draft_otherwise(tmp_path, trap):
    """Shows that the law above notices each way in which engines differ."""
    path = write(tmp_path, rope_scaling=YARN)

    drafts = drafts_of(load(path))

    assert drafts == plain_drafts(PlainLatent(path))
    assert drafts != plain_drafts(trap(path))


def test_yarns_scale_is_on_the_scores_with_latent_attention_and_nowhere_with_llamas(tmp_path):
    latent = read_config(write(tmp_path / "latent", rope_scaling=YARN))
    llama = read_config(write_tiny_eagle3(tmp_path / "llama", **sizes, rope_scaling=YARN))

    for config in (latent, llama):
        assert Eagle3Config.from_json(config, LAYERS).rope.frequencies()[1] == 1.0
    assert Eagle3Config.from_json(latent, LAYERS).rope.score_factor == pytest.approx(
        1.3466**2, 1e-4
    )


def layer_of(path):
    config = Eagle3Config.from_json(read_config(path), LAYERS)
    return decoder_layer(Eagle3Tensors(config, open_drafter(path), target_side()))


@pytest.mark.parametrize("name", ["fused_qkv_a_proj_with_mqa", "fused_qkv_a_proj"])
def test_down_projections_may_be_stored_as_one(tmp_path, name):
    path = write(tmp_path)
    separate = drafts_of(load(path))
    stored, attention = load_file(path / FILE), "midlayer.self_attn."
    parts = [f"{attention}{part}.weight" for part in ("q_a_proj", "kv_a_proj_with_mqa")]

    fused = torch.cat([stored[part] for part in parts])
    replace_tensors(path, dict.fromkeys(parts) | {f"{attention}{name}.weight": fused})

    assert drafts_of(load(path)) == separate


def test_the_layer_may_be_called_by_either_name(tmp_path):
    path = write(tmp_path)
    drafts = drafts_of(load(path))

    rename_tensors(path, lambda name: name.replace("midlayer.", "layers.0."))

    assert drafts_of(load(path)) == drafts


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("q_a_proj", [20, 32], [20, 64]),
        ("kv_a_proj_with_mqa", [32, 32], [32, 64]),
        ("q_b_proj", [72, 64], [72, 20]),
        ("kv_b_proj", [64, 64], [64, 24]),
        ("o_proj", [32, 72], [32, 24]),
    ],
)
def test_only_the_down_projections_read_the_pair(tmp_path, name, shape, expected):
    path = write(tmp_path)
    tensor = f"midlayer.self_attn.{name}.weight"

    replace_tensors(path, {tensor: torch.ones(shape)})

    assert list(load_file(path / FILE)[tensor].shape) != expected
    with pytest.raises(ValueError, match=rf"{name}\.weight has shape .*, expected .*"):
        load(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q_lora_rank": None}, "q_lora_rank must be a positive integer, got None"),
        ({"kv_lora_rank": 0}, "kv_lora_rank must be a positive integer, got 0"),
        ({"qk_rope_head_dim": 7}, "must be even, got 24 and 7"),
        ({"mla_use_nope": True}, "mla_use_nope is True, only False"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2, only 1"),
        ({"rope_scaling": YARN | {"mscale": None}}, r"or neither, got \['mscale_all_dim'\]"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused(tmp_path, fields, message):
    config = read_config(write(tmp_path)) | fields

    with pytest.raises(ValueError, match=message):
        Eagle3Config.from_json(config, LAYERS)


def test_a_token_takes_one_latent_and_one_rotated_part_in_the_cache_twice(tmp_path):
    """Not a key and a value of every head: of Kimi's drafter 2 304 bytes, not 49 152."""
    drafter = load(write(tmp_path))

    pages = drafter._kv

    assert pages.keys_PLCKD.shape[2:] == (1, 64, 24 + 8)
    assert pages.values_PLCJD2.shape[2:] == (1, 32, 24 + 8, 2)


def drafts_with(drafter, seeds, pieces):
    """Return the trees of some sessions, all in one batch, their rows taken in in pieces."""
    plan, sampling = Plan(4, 3, 12), SamplingParams(temperature=0.8, seed=5)
    sessions = [PlayedSession(seed=seed, prompt_len=70 + seed) for seed in seeds]
    guests = [(session, Followed.by(drafter)) for session in sessions]
    for session, one in guests:
        edges = [0, *pieces, len(session.tokens) - 1]
        for first, end in pairwise(edges):
            one.extend(first, session.tokens[first + 1 : end + 1], session.taps()[first:end])
    found = drafter.draft([one.wanted(session.tokens, plan, sampling) for session, one in guests])
    for _, one in guests:
        one.follower.close()
    return found


@pytest.mark.parametrize(
    ("kernels", "dtype"),
    [
        ("reference", torch.float32),
        ("reference", torch.bfloat16),
        ("avx2", torch.bfloat16),
        ("avx512", torch.bfloat16),
        ("amx", torch.bfloat16),
    ],
)
def test_trees_do_not_feel_who_is_beside_them(tmp_path, kernels, dtype):
    """Bit for bit, as with Llama's layer: all products have 16 rows."""
    with running(kernels):
        drafter = load(write(tmp_path, dtype=dtype))

        together = drafts_with(drafter, [3, 1, 2], pieces=[9, 40])

        assert together == [drafts_with(drafter, [seed], pieces=[])[0] for seed in (3, 1, 2)]
    assert all(len(draft.tokens) == 11 for draft in together)


def test_a_tree_holds_what_chains_along_its_paths_would_say(tmp_path):
    """Branches attend to their own paths only."""
    drafter = load(write(tmp_path))
    session, one = PlayedSession(), Followed.by(drafter)
    one.extend(0, session.tokens[1:], session.taps())

    tree = one.draft(session.tokens, Plan(3, 3, 14), GREEDY)
    chain = one.draft(session.tokens, Plan(3), GREEDY)

    path, node = [], 0
    while children := [i + 1 for i, parent in enumerate(tree.parents) if parent == node]:
        node = max(children, key=lambda child: tree.logprobs[child - 1])
        path.append(node)
    assert [tree.tokens[i - 1] for i in path] == list(chain.tokens)
    assert [tree.logprobs[i - 1] for i in path] == pytest.approx(chain.logprobs, abs=1e-5)
