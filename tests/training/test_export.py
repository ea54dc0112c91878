"""A drafter means the same in every format, and comes back from another one bit for bit."""

import json

import pytest
import torch
from safetensors.torch import load_file

from draft_service.drafters.checkpoint_config import CheckpointFormat
from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.weights import open_drafter, read_config
from tests.draft_service.drafters.played_session import (
    GREEDY,
    HIDDEN,
    LAYERS,
    VOCAB,
    PlayedSession,
    load,
    play,
)
from tests.tiny_models import (
    FILE,
    LATENT,
    reconfigure,
    rename_tensors,
    replace_tensors,
    rewrite_as_speculators,
    write_tiny_eagle3,
)
from training.export import convert

SGLANG, SPECULATORS, MLA = CheckpointFormat
sizes = {"hidden": HIDDEN, "vocab": VOCAB, "target_layers": LAYERS}
DRAFTERS = {
    "as_it_comes": {},
    "eagle_3.1": {"fc_norm": True, "norm_output": True},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_before_residual": {"norm_before_residual": True},
    "draft_vocab": {"draft_vocab_size": 50},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "other_target_width": {"target_hidden_size": 48},
    "layers_that_sglang_reads_otherwise": {"eagle_aux_hidden_state_layer_ids": [3, 6, 9]},
    "layers_in_sglangs_words": {
        "eagle_aux_hidden_state_layer_ids": None,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]},
    },
    "default_layers": {"eagle_aux_hidden_state_layer_ids": None},
    "old_words": {"use_aux_norm": True, "intermediate_size_mlp": 64, "fc_norm": True},
    "yarn": {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": None}},
    "shared_head": {"without": ["lm_head.weight", "embed_tokens.weight"]},
}


def tiny(path, **config):
    return write_tiny_eagle3(path, **sizes, **config)


def files_of(path):
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def meaning_of(path):
    return Eagle3Config.from_json(read_config(path), LAYERS)


def same_tensors(one, other):
    ours, theirs = open_drafter(one), open_drafter(other)
    names = set(ours) - {"t2d"}
    assert names == set(theirs) - {"t2d"}
    return all(torch.equal(ours[name], theirs[name]) for name in names)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("first", [SGLANG, SPECULATORS])
def test_there_and_back_gives_the_same_bytes(tmp_path, drafter, first):
    """A to B to A, and B to A to B, of what this program wrote."""
    second = {SGLANG: SPECULATORS, SPECULATORS: SGLANG}[first]
    convert(tiny(tmp_path / "raw", **DRAFTERS[drafter]), tmp_path / "one", first)

    convert(tmp_path / "one", tmp_path / "two", second)
    convert(tmp_path / "two", tmp_path / "back", first)

    assert files_of(tmp_path / "back") == files_of(tmp_path / "one")
    assert files_of(tmp_path / "two") != files_of(tmp_path / "one")


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("target_format", [SGLANG, SPECULATORS])
def test_a_drafter_of_another_writer_keeps_its_meaning_and_its_bits(
    tmp_path, drafter, target_format
):
    raw = tiny(tmp_path / "raw", **DRAFTERS[drafter])

    convert(raw, tmp_path / "out", target_format)

    assert meaning_of(tmp_path / "out") == meaning_of(raw)
    assert same_tensors(tmp_path / "out", raw)


def test_a_qwen3_layer_comes_back_from_nowhere_but_its_own_format(tmp_path):
    raw = rewrite_as_speculators(tiny(tmp_path / "raw", qk_norm=True), {"model_type": "qwen3"})

    convert(raw, tmp_path / "out", SPECULATORS)

    assert meaning_of(tmp_path / "out") == meaning_of(raw)
    assert read_config(tmp_path / "out")["transformer_layer_config"]["model_type"] == "qwen3"
    with pytest.raises(ValueError, match=r"sglang has no norms of queries and keys \(qk_norm\)"):
        convert(raw, tmp_path / "flat", SGLANG)
    assert not (tmp_path / "flat").exists()


@pytest.mark.parametrize("target_format", [SGLANG, SPECULATORS])
def test_an_export_drafts_what_its_source_drafts(tmp_path, target_format):
    raw = tiny(tmp_path / "raw", draft_vocab_size=50, fc_norm=True, norm_before_residual=True)

    convert(raw, tmp_path / "out", target_format)

    drafts = [list(play(load(path), PlayedSession(), GREEDY)) for path in (raw, tmp_path / "out")]
    assert drafts[0] == drafts[1]


def test_every_format_has_the_names_its_readers_look_for(tmp_path):
    raw = tiny(tmp_path / "raw", draft_vocab_size=50)
    convert(raw, tmp_path / "a", SGLANG)
    convert(raw, tmp_path / "b", SPECULATORS, verifier="org/model")

    flat, nested = read_config(tmp_path / "a"), read_config(tmp_path / "b")

    assert flat["architectures"] == ["LlamaForCausalLMEagle3"]
    assert "midlayer.hidden_norm.weight" in load_file(tmp_path / "a" / FILE)
    assert flat["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
    assert flat["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 5, 8]
    assert nested["architectures"] == ["Eagle3Speculator"]
    assert nested["speculators_model_type"] == "eagle3"
    assert "layers.0.hidden_norm.weight" in load_file(tmp_path / "b" / FILE)
    assert nested["eagle_aux_hidden_state_layer_ids"] == [2, 6, 9]
    assert nested["draft_vocab_size"] == 50
    assert nested["norm_before_residual"] is False
    assert nested["speculators_config"]["verifier"]["name_or_path"] == "org/model"
    assert "architectures" not in nested["transformer_layer_config"]
    assert nested["transformer_layer_config"]["hidden_size"] == HIDDEN


def test_the_target_that_a_speculators_checkpoint_names_survives_the_flat_format(tmp_path):
    convert(tiny(tmp_path / "raw"), tmp_path / "b", SPECULATORS, verifier="org/model")

    convert(tmp_path / "b", tmp_path / "a", SGLANG)
    convert(tmp_path / "a", tmp_path / "again", SPECULATORS)

    assert files_of(tmp_path / "again") == files_of(tmp_path / "b")


def test_layers_that_sglang_may_read_in_two_ways_are_not_told_it(tmp_path):
    """It adds 1 for some targets, and for others not."""
    raw = tiny(tmp_path / "raw", eagle_aux_hidden_state_layer_ids=[3, 6, 9])

    convert(raw, tmp_path / "a", SGLANG)

    assert "eagle_config" not in read_config(tmp_path / "a")
    assert read_config(tmp_path / "a")["eagle_aux_hidden_state_layer_ids"] == [3, 6, 9]


def test_the_mask_is_written_with_the_map_and_neither_where_all_tokens_are_known(tmp_path):
    """Trainers want t2d; a map of all tokens to themselves says nothing."""
    some = tiny(tmp_path / "some", draft_vocab_size=50)
    replace_tensors(some, {"t2d": None})
    every = tiny(tmp_path / "every")
    nothing = {"d2t": torch.zeros(VOCAB, dtype=torch.int64), "t2d": torch.ones(VOCAB).bool()}
    replace_tensors(every, nothing)

    convert(some, tmp_path / "a", SGLANG)
    convert(every, tmp_path / "b", SGLANG)

    tensors = load_file(tmp_path / "a" / FILE)
    chosen = (tensors["d2t"] + torch.arange(50)).tolist()
    assert tensors["t2d"].nonzero().flatten().tolist() == chosen
    assert not {"d2t", "t2d"} & set(load_file(tmp_path / "b" / FILE))


def test_what_is_of_use_in_training_only_is_left_behind(tmp_path):
    raw = tiny(tmp_path / "raw")
    replace_tensors(raw, {"verifier_lm_head.weight": torch.ones(VOCAB, HIDDEN)})

    convert(raw, tmp_path / "out", SPECULATORS)

    assert "verifier_lm_head.weight" not in load_file(tmp_path / "out" / FILE)


def test_names_of_all_exporters_are_written_as_one(tmp_path):
    raw = tiny(tmp_path / "raw", fc_norm=True)
    plain = files_of(tmp_path / "raw")
    convert(raw, tmp_path / "one", SGLANG)

    rename_tensors(raw, lambda name: f"model.{name.replace('midlayer.', 'layers.0.')}")
    convert(raw, tmp_path / "two", SGLANG)

    assert files_of(raw) != plain
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")


def test_the_tokenizer_goes_with_the_drafter(tmp_path):
    raw = tiny(tmp_path / "raw")
    (raw / "tokenizer.json").write_text("{}")

    convert(raw, tmp_path / "out", SGLANG)

    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("config", "without", "message"),
    [
        ({"bias": True}, [], "format speculators has no bias of fc"),
        (
            {"tie_word_embeddings": True},
            ["lm_head.weight"],
            "format speculators has no tie_word_embeddings",
        ),
        (
            {"eagle_config": {"use_last_layernorm": False}},
            ["norm.weight"],
            r"has no eagle_config\.use_last_layernorm False",
        ),
        (
            {"eagle_config": {"use_input_layernorm_in_first_layer": False}},
            ["midlayer.input_layernorm.weight"],
            r"has no eagle_config\.use_input_layernorm_in_first_layer False",
        ),
    ],
)
def test_what_speculators_would_skip_is_not_written_for_it(tmp_path, config, without, message):
    raw = tiny(tmp_path / "raw", without=without, **config)

    with pytest.raises(ValueError, match=message):
        convert(raw, tmp_path / "out", SPECULATORS)
    convert(raw, tmp_path / "flat", SGLANG)

    assert not (tmp_path / "out").exists()
    assert meaning_of(tmp_path / "flat") == meaning_of(raw)


def test_a_bias_on_some_layers_of_a_part_is_refused(tmp_path):
    raw = tiny(tmp_path / "raw", attention_bias=True)
    replace_tensors(raw, {"midlayer.self_attn.o_proj.bias": None})

    with pytest.raises(ValueError, match=r"only .*k_proj.* have a bias"):
        convert(raw, tmp_path / "out", SGLANG)


def test_a_drafter_that_cannot_be_run_is_not_exported(tmp_path):
    raw = tiny(tmp_path / "raw", draft_vocab_size=50)
    replace_tensors(raw, {"t2d": torch.zeros(VOCAB, dtype=torch.bool)})
    with pytest.raises(ValueError, match="t2d and d2t disagree"):
        convert(raw, tmp_path / "out", SGLANG)

    reconfigure(raw, quantization_config={"bits": 8})
    with pytest.raises(ValueError, match="quantization_config"):
        convert(raw, tmp_path / "out", SGLANG)


def test_a_pickle_is_refused_with_the_command_that_converts_it_elsewhere(tmp_path):
    raw = tiny(tmp_path / "raw")
    (raw / FILE).rename(raw / "pytorch_model.bin")

    with pytest.raises(ValueError, match=r"safetensors\.torch\.save_file"):
        convert(raw, tmp_path / "out", SGLANG)


def test_nothing_is_written_over(tmp_path):
    raw = tiny(tmp_path / "raw")

    with pytest.raises(ValueError, match="raw is not empty"):
        convert(raw, raw, SPECULATORS)


def test_configs_are_text_that_a_person_can_read(tmp_path):
    convert(tiny(tmp_path / "raw"), tmp_path / "out", SGLANG)

    text = (tmp_path / "out" / "config.json").read_text()

    assert list(json.loads(text)) == sorted(json.loads(text))
    assert "\n  " in text
    assert text.endswith("}\n")


@pytest.mark.parametrize("target_format", [SGLANG, MLA])
def test_a_drafter_with_latent_attention_keeps_its_format_and_drafts_the_same(
    tmp_path, target_format
):
    raw = tiny(tmp_path / "raw", **LATENT, draft_vocab_size=50)

    convert(raw, tmp_path / "one", target_format)
    convert(tmp_path / "one", tmp_path / "two", target_format)

    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")
    assert meaning_of(tmp_path / "one") == meaning_of(raw)
    assert same_tensors(tmp_path / "one", raw)
    assert "layers.0.self_attn.kv_b_proj.weight" in load_file(tmp_path / "one" / FILE)
    drafts = [list(play(load(path), PlayedSession(), GREEDY)) for path in (raw, tmp_path / "one")]
    assert drafts[0] == drafts[1]


def test_a_fused_down_projection_is_written_as_two(tmp_path):
    """SGLang itself makes one of them, and skips one that is made already."""
    raw = tiny(tmp_path / "raw", **LATENT)
    convert(raw, tmp_path / "separate", MLA)
    attention, stored = "midlayer.self_attn.", load_file(raw / FILE)
    parts = [f"{attention}{part}.weight" for part in ("q_a_proj", "kv_a_proj_with_mqa")]
    fused = {f"{attention}fused_qkv_a_proj_with_mqa.weight": torch.cat([stored[p] for p in parts])}
    replace_tensors(raw, dict.fromkeys(parts) | fused)

    convert(raw, tmp_path / "out", MLA)

    assert files_of(tmp_path / "out") == files_of(tmp_path / "separate")


def test_formats_that_do_not_know_an_attention_are_refused(tmp_path):
    latent, llama = tiny(tmp_path / "latent", **LATENT), tiny(tmp_path / "llama")

    with pytest.raises(ValueError, match=r"has no latent attention \(Eagle3DeepseekV2ForCausalLM"):
        convert(latent, tmp_path / "out", SPECULATORS)
    with pytest.raises(ValueError, match="format mla is for drafters with latent attention"):
        convert(llama, tmp_path / "out", MLA)
