"""Checkpoints that other engines load wrongly in silence: here they draft right, or are refused.

Each is compared with the plain transcription, and with what falling for it would draft.
"""

import math

import pytest
import torch

from tests.draft_service.drafters.plain_eagle3 import PlainEagle3
from tests.draft_service.drafters.played_session import (
    GREEDY,
    HIDDEN,
    LAYERS,
    VOCAB,
    PlayedSession,
    load,
    play,
    write_target,
)
from tests.tiny_models import (
    reconfigure,
    rename_tensors,
    replace_tensors,
    rewrite_as_speculators,
    write_tiny_eagle3,
)

sizes = {"hidden": HIDDEN, "vocab": VOCAB, "target_layers": LAYERS}
NORMS = ("low", "mid", "high")


def drafts_of(path, **facts):
    """Return tokens and log-probabilities of the drafts of a few rounds, as numbers in a row."""
    rounds = play(load(path, **facts), PlayedSession(seed=2), GREEDY)
    return [number for draft in rounds for number in (*draft.tokens, *draft.logprobs)]


def plain_drafts(plain):
    """Return what the plain transcription drafts in the same rounds, to be compared with."""
    session, numbers = PlayedSession(seed=2), []
    for _ in range(6):
        steps = min(session.random.randint(1, 6), 5)
        h = plain.fuse(session.taps())
        tokens, logprobs, _ = plain.chain(session.tokens, h, 0, steps, GREEDY)
        numbers += [*tokens, *logprobs]
        session.commit(tokens)
    return pytest.approx(numbers, abs=1e-4)


def twin(tmp_path, **config):
    """Write a drafter in the flat format; return its path and the transcription of it."""
    path = write_tiny_eagle3(tmp_path / "flat", **sizes, seed=3, **config)
    return path, PlainEagle3(path)


SWITCHES = {
    "as_it_comes": {},
    "fc_norm": {"fc_norm": True},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": True},
    "draft_vocab": {"draft_vocab_size": 50},
    "attention_bias": {"attention_bias": True},
    "qwen3": {"qk_norm": True},
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_speculators_checkpoint_drafts_what_its_flat_twin_drafts(tmp_path, switch):
    path, plain = twin(tmp_path, **SWITCHES[switch])
    layer = {"model_type": "qwen3" if switch == "qwen3" else "llama", "qk_norm": None}

    rewrite_as_speculators(path, layer)

    assert drafts_of(path) == plain_drafts(plain)


def test_norm_before_residual_left_out_is_true_in_speculators_and_false_elsewhere(tmp_path):
    path, plain = twin(tmp_path)
    without = plain_drafts(plain)
    plain.config["norm_before_residual"] = True

    flat = drafts_of(path)
    drafts = drafts_of(rewrite_as_speculators(path, norm_before_residual=None))

    assert flat == without
    assert drafts == plain_drafts(plain)
    assert drafts != without


@pytest.mark.parametrize(
    "fields", [{"eagle_config": {"use_last_layernorm": False}}, {"norm_output": True}], ids=str
)
def test_switches_of_the_targets_own_config_do_not_count(tmp_path, fields):
    """The layer's config was copied from the target's."""
    path, plain = twin(tmp_path)

    rewrite_as_speculators(path, layer=fields)

    assert drafts_of(path) == plain_drafts(plain)


def test_the_head_the_drafter_learnt_from_is_not_its_own(tmp_path):
    path, plain = twin(tmp_path, draft_vocab_size=50)
    rewrite_as_speculators(path)
    other = {name: torch.randn(50, HIDDEN) for name in ("verifier_lm_head.weight",)}

    replace_tensors(path, other | {"verifier_norm.weight": torch.ones(HIDDEN)})

    assert drafts_of(path) == plain_drafts(plain)


def test_without_its_own_head_that_of_the_target_is_cut_and_not_the_one_it_learnt_from(tmp_path):
    """verifier_lm_head may be of another target, or of another choice of tokens."""
    shared = write_target(tmp_path / "target")
    path, plain = twin(tmp_path, draft_vocab_size=50)
    plain.w["lm_head.weight"] = shared["head"][plain.ids]
    rewrite_as_speculators(path)
    learnt_from = torch.randn(50, HIDDEN)

    replace_tensors(path, {"lm_head.weight": None, "verifier_lm_head.weight": learnt_from})

    assert drafts_of(path, model_dir=tmp_path / "target") == plain_drafts(plain)


def test_a_head_left_out_although_draft_vocab_size_is_set_is_the_targets(tmp_path):
    """Left uninitialised, it would draft at accept length 1 (sglang#27908)."""
    shared = write_target(tmp_path / "target")
    path, plain = twin(tmp_path, draft_vocab_size=VOCAB)
    plain.w["lm_head.weight"] = shared["head"]

    replace_tensors(path, {"lm_head.weight": None})

    assert drafts_of(path, model_dir=tmp_path / "target") == plain_drafts(plain)


def test_an_embedding_left_out_is_the_targets(tmp_path):
    shared = write_target(tmp_path / "target")
    path, plain = twin(tmp_path)
    plain.w["embed_tokens.weight"] = shared["embed"]

    replace_tensors(path, {"embed_tokens.weight": None})

    assert drafts_of(path, model_dir=tmp_path / "target") == plain_drafts(plain)


@pytest.mark.parametrize(
    ("value", "message"),
    [(torch.nan, "values that are not finite"), (torch.inf, "not finite"), (0.0, "but zeros")],
)
def test_a_head_that_was_never_loaded_is_refused(tmp_path, value, message):
    """speculators begins with NaN, SGLang with zeros."""
    path, _ = twin(tmp_path)

    replace_tensors(path, {"lm_head.weight": torch.full((VOCAB, HIDDEN), value)})

    with pytest.raises(ValueError, match=rf"lm_head\.weight has .*{message}: it was never loaded"):
        load(path)


NAMES = {
    "layers.0": lambda name: name.replace("midlayer.", "layers.0."),
    "model. before all": lambda name: name if name in ("d2t", "t2d") else f"model.{name}",
    "model.layers.0": lambda name: name.replace("midlayer.", "model.layers.0."),
    "EAGLE-3.1 norms by their level": lambda name: (
        name
        if not name.startswith("fc_norm.")
        else f"aux_norm_{NORMS[int(name.split('.')[1])]}.weight"
    ),
}


@pytest.mark.parametrize("rename", NAMES.values(), ids=NAMES)
def test_every_exporters_names_lead_to_the_same_drafts(tmp_path, rename):
    path, plain = twin(tmp_path, fc_norm=True, draft_vocab_size=50)

    rename_tensors(path, rename)

    assert drafts_of(path) == plain_drafts(plain)


def test_norms_by_their_level_are_in_the_order_of_the_layers(tmp_path):
    """Had the first and the last been exchanged, it would be noticed."""
    path, plain = twin(tmp_path, fc_norm=True)
    first, last = "fc_norm.0.weight", "fc_norm.2.weight"
    plain.w[first], plain.w[last] = plain.w[last], plain.w[first]

    assert drafts_of(path) != plain_drafts(plain)


def ids_of(path):
    plain = PlainEagle3(path)
    return torch.tensor(plain.ids)


def test_tokens_in_place_of_offsets_are_refused(tmp_path):
    path, _ = twin(tmp_path, draft_vocab_size=50)

    replace_tensors(path, {"d2t": ids_of(path), "t2d": None})

    with pytest.raises(ValueError, match=r"draft token i is the target's token i \+ d2t\[i\]"):
        load(path)


def test_a_mask_that_says_otherwise_is_refused(tmp_path):
    path, _ = twin(tmp_path, draft_vocab_size=50)
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[:50] = True

    replace_tensors(path, {"t2d": mask})

    with pytest.raises(ValueError, match="t2d and d2t disagree about"):
        load(path)


def test_a_mask_of_some_tokens_is_refused_where_all_are_known(tmp_path):
    path, _ = twin(tmp_path)

    replace_tensors(path, {"t2d": torch.arange(VOCAB) < 50})

    with pytest.raises(ValueError, match="disagree about 47 tokens: t2d of token 50 is False"):
        load(path)


def test_draft_tokens_exchanged_are_refused(tmp_path):
    """The rows of the head belong to the tokens in ascending order."""
    path, _ = twin(tmp_path, draft_vocab_size=50)

    replace_tensors(path, {"d2t": ids_of(path).flip(0) - torch.arange(50)})

    with pytest.raises(ValueError, match="target tokens must ascend"):
        load(path)


@pytest.mark.parametrize("nested", [[1, 5, 8], [2, 6, 9]])
def test_both_conventions_of_nested_layer_ids_lead_to_the_same_drafts(tmp_path, nested):
    """Ids that begin with 1 name outputs (sglang#25454), others inputs."""
    path, plain = twin(tmp_path)

    reconfigure(
        path,
        eagle_aux_hidden_state_layer_ids=None,
        eagle_config={"eagle_aux_hidden_state_layer_ids": nested},
    )

    assert load(path).pairing.tap_layers == (2, 6, 9)
    assert drafts_of(path) == plain_drafts(plain)


def test_ids_of_a_speculators_checkpoint_name_inputs_even_if_they_begin_with_1(tmp_path):
    path, _ = twin(tmp_path)

    rewrite_as_speculators(path, eagle_aux_hidden_state_layer_ids=[1, 5, 8])

    assert load(path).pairing.tap_layers == (1, 5, 8)


def test_a_targets_quantization_is_not_inherited(tmp_path):
    """Embedding and head of a quantized target are not quantized, and the drafter is not either."""
    shared = write_target(tmp_path / "target")
    reconfigure(tmp_path / "target", quantization_config={"quant_method": "compressed-tensors"})
    path, plain = twin(tmp_path)
    plain.w["embed_tokens.weight"] = shared["embed"]

    replace_tensors(path, {"embed_tokens.weight": None})

    assert drafts_of(path, model_dir=tmp_path / "target") == plain_drafts(plain)


@pytest.mark.parametrize("format_", ["sglang", "speculators"])
def test_a_drafter_that_is_quantized_itself_is_refused(tmp_path, format_):
    path, _ = twin(tmp_path)
    if format_ == "speculators":
        rewrite_as_speculators(path)

    reconfigure(path, quantization_config={"quant_method": "fp8"})

    with pytest.raises(ValueError, match=r"quantization_config is \{'quant_method': 'fp8'\}"):
        load(path)


YARN = {
    "rope_type": "yarn",
    "factor": 64.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}


def test_yarn_scales_cos_and_sin_by_the_ratio_and_the_scores_not_at_all(tmp_path):
    """0.1 ln 64 + 1 on cos and sin, or its square on the scores, is what other engines do."""
    path, plain = twin(tmp_path, rope_scaling=YARN)
    drafts = drafts_of(path)

    assert drafts == plain_drafts(plain)
    plain.amplitude = lambda: 0.1 * math.log(64) + 1
    assert drafts != plain_drafts(plain)


def test_positions_beyond_max_position_embeddings_are_rotated_like_the_others(tmp_path):
    """Its 2048 are what it was trained on, not what it can read; here they are 8."""
    path, plain = twin(tmp_path, max_position_embeddings=8)

    assert drafts_of(path) == plain_drafts(plain)
