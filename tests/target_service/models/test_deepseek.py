"""The DeepSeek-V3 family computes what `transformers` computes, from the same files."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from target_service.kv_cache import KvCache
from target_service.models import build_model, model_config
from target_service.models.target_model import TargetModel
from target_service.weights import Weights, read_config
from tests.target_service.played_session import forward_chain, load_model
from tests.target_service.test_parity import (
    assert_greedy_answers_agree,
    random_tokens,
    reference_logits,
)
from tests.target_service.test_weights import mapped_file
from tests.tiny_deepseek import (
    YARN,
    dequantized,
    is_linear,
    nested,
    quantized,
    write_checkpoint,
    write_tiny_deepseek,
)

TOKENS = random_tokens(70)
GROUPS = {"n_routed_experts": 12, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4}
CASES = {
    "as_kimi": {"rope_scaling": YARN},
    "no_q_lora": {"q_lora_rank": None},
    "no_yarn": {},
    "yarn_of_one_beta": {"rope_scaling": YARN | {"beta_fast": 1.0}},
    "yarn_uneven_mscale": {"rope_scaling": YARN | {"mscale": 0.5}},
    "groups_of_experts": GROUPS,
    "experts_everywhere": {"first_k_dense_replace": 0},
    "dense_everywhere": {"first_k_dense_replace": 3},
    "two_shared": {"n_shared_experts": 2},
    "weights_as_they_are": {"norm_topk_prob": False},
    "scale_of_experts": {"routed_scaling_factor": 0.7},
    "biases": {"attention_bias": True},
    "values_wider_than_keys": {"v_head_dim": 30},
    "tied": {"tie_word_embeddings": True},
    "rope_theta": {"rope_theta": 77.0},
}


def load_reference(path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()


@pytest.fixture(scope="module", params=list(CASES))
def pair(request, tmp_path_factory) -> tuple[TargetModel, PreTrainedModel]:
    path = write_tiny_deepseek(tmp_path_factory.mktemp("pair"), **CASES[request.param])
    return load_model(path), load_reference(path)


@pytest.mark.parametrize("length", [1, 200])
def test_logits_agree(pair, length):
    ours, reference = pair
    tokens = random_tokens(length)
    expected = reference_logits(reference, tokens)
    assert expected.std() > 0.5
    torch.testing.assert_close(forward_chain(ours, tokens)[0], expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("case", ["as_kimi", "no_q_lora", "groups_of_experts", "no_yarn"])
def test_greedy_answers_agree(tmp_path, case):
    path = write_tiny_deepseek(tmp_path, **CASES[case])
    assert_greedy_answers_agree(load_model(path), load_reference(path), random_tokens(100), 64)


def test_taps_are_the_inputs_of_layers(pair):
    ours, reference = pair
    with torch.inference_mode():
        found = reference(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    expected = torch.cat([found[layer][0] for layer in (0, 1, 2)], dim=-1)
    _, taps_RX = forward_chain(ours, TOKENS, (0, 1, 2))
    torch.testing.assert_close(taps_RX, expected, atol=2e-3, rtol=0)


def logits_of(path, dtype: torch.dtype | None = None) -> torch.Tensor:
    return forward_chain(load_model(path, dtype), TOKENS)[0]


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("no_yarn", "no_q_lora")])
def test_a_setting_that_is_missed_is_seen(tmp_path, case):
    """Negative control: the tolerance above tells models apart that differ in one setting."""
    usual = load_file(write_tiny_deepseek(tmp_path / "usual") / "model.safetensors")
    path = write_tiny_deepseek(tmp_path / "changed", **CASES[case])
    changed = load_file(path / "model.safetensors")
    # Where the setting is one of shapes, other weights are compared, too.
    same = changed.keys() == usual.keys() and all(usual[k].shape == changed[k].shape for k in usual)
    if same:
        assert all(torch.equal(usual[name], changed[name]) for name in usual)
    assert (logits_of(path) - logits_of(tmp_path / "usual")).abs().max() > 0.02


def test_norms_of_latents_have_the_models_epsilon(tmp_path):
    """As SGLang and vLLM run it; the class in transformers has 1e-6 there, whatever is stated."""
    path = write_tiny_deepseek(tmp_path, rms_norm_eps=0.1)
    reference = load_reference(path)
    otherwise = reference_logits(reference, TOKENS)
    for layer in reference.model.layers:
        for norm in (layer.self_attn.q_a_layernorm, layer.self_attn.kv_a_layernorm):
            norm.variance_epsilon = 0.1
    expected = reference_logits(reference, TOKENS)
    assert (expected - otherwise).abs().max() > 0.02
    torch.testing.assert_close(logits_of(path), expected, atol=2e-3, rtol=0)


def rewritten(path, config, tensors):
    write_checkpoint(path, config, tensors)
    return path


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def plain_checkpoint(request, tmp_path):
    """A checkpoint's path, config and tensors."""
    path = write_tiny_deepseek(tmp_path / "plain", dtype=request.param, rope_scaling=YARN)
    return path, read_config(path), load_file(path / "model.safetensors")


def test_the_nested_layout_is_the_same_model(plain_checkpoint, tmp_path):
    path, config, tensors = plain_checkpoint
    other = rewritten(tmp_path / "nested", *nested(config, tensors))
    assert read_config(other)["architectures"] == ["KimiK25ForConditionalGeneration"]
    assert torch.equal(logits_of(other), logits_of(path))


@pytest.mark.parametrize("ignored", [None, ()], ids=["as_kimi", "everything"])
def test_an_int4_checkpoint_is_the_model_with_its_weights_dequantized(
    plain_checkpoint, tmp_path, ignored
):
    """To the bit, also if attention, the shared expert and the head are quantized."""
    path, config, tensors = plain_checkpoint
    small = quantized(config, tensors, *([] if ignored is None else [ignored]))
    names = [name.removesuffix("_packed") for name in small[1] if name.endswith("_packed")]
    dense = rewritten(tmp_path / "dense", config, dequantized(tensors, names))
    assert len(names) == (2 * 8 * 3 if ignored is None else 2 * 9 * 3 + 3 + 5 * 3 + 1)
    expected = logits_of(dense)
    assert torch.equal(logits_of(rewritten(tmp_path / "int4", *small)), expected)
    assert torch.equal(logits_of(rewritten(tmp_path / "kimi", *nested(*small))), expected)
    assert not torch.equal(logits_of(path), expected)


def test_quantization_may_be_stated_beside_the_text_model(tmp_path):
    path = write_tiny_deepseek(tmp_path / "plain")
    config, tensors = nested(*quantized(read_config(path), load_file(path / "model.safetensors")))
    inside = logits_of(rewritten(tmp_path / "inside", config, tensors))
    config["quantization_config"] = config["text_config"].pop("quantization_config")
    assert torch.equal(logits_of(rewritten(tmp_path / "beside", config, tensors)), inside)


def with_weights(path, weight_format: str) -> TargetModel:
    """Load a model with its weights brought to another format."""
    return build_model(model_config(read_config(path)), Weights(path), 128, weight_format)


def test_weights_brought_to_int4_are_those_of_the_dequantized_model(tmp_path):
    """All but the up-projections of latents, which are part of queries and outputs."""
    path = write_tiny_deepseek(tmp_path / "plain")
    tensors = load_file(path / "model.safetensors")
    names = [name for name in tensors if is_linear(name) and "kv_b_proj" not in name]
    near = rewritten(tmp_path / "near", read_config(path), dequantized(tensors, names))
    model = with_weights(path, "int4")
    assert model.weight_format == "int4"
    assert torch.equal(forward_chain(model, TOKENS)[0], logits_of(near))


def test_weights_brought_to_int8_are_nearer(tmp_path):
    path = write_tiny_deepseek(tmp_path)
    exact_RV = logits_of(path)
    errors = [
        (forward_chain(with_weights(path, name), TOKENS)[0] - exact_RV).abs().mean()
        for name in ("dense", "int8", "int4")
    ]
    assert errors[0] == 0
    assert 0 < errors[1] * 2 < errors[2]


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_weights_that_are_quantized_are_brought_to_nothing_else(tmp_path, weight_format):
    path = write_tiny_deepseek(tmp_path / "plain")
    small = quantized(read_config(path), load_file(path / "model.safetensors"))
    packed = rewritten(tmp_path / "int4", *small)
    assert load_model(packed).weight_format == "int4"
    with pytest.raises(ValueError, match=f"'{weight_format}', but .* quantized to int4 already"):
        with_weights(packed, weight_format)


def test_the_router_is_never_rounded(tmp_path):
    """In bfloat16, experts that differ by less than a step would be chosen by their number."""
    path, gate = write_tiny_deepseek(tmp_path), "model.layers.1.mlp.gate"
    mixture = load_model(path, torch.bfloat16).stack.layers[1].experts
    kept = {"weight": mixture.router.weight_NK, "e_score_correction_bias": mixture.bias_E}
    for name, tensor in kept.items():
        stored = load_file(path / "model.safetensors")[f"{gate}.{name}"]
        assert not torch.equal(stored, stored.bfloat16().float())
        assert torch.equal(tensor, stored)


def test_layers_that_predict_more_tokens_are_not_read(tmp_path):
    with_more = write_tiny_deepseek(tmp_path / "more", num_nextn_predict_layers=1)
    tensors = load_file(with_more / "model.safetensors")
    kept = {name: t for name, t in tensors.items() if not name.startswith("model.layers.3.")}
    assert len(kept) < len(tensors)
    without = rewritten(tmp_path / "without", read_config(with_more), kept)
    assert torch.equal(logits_of(with_more), logits_of(without))


class CountedWeights(Weights):
    """Weights that note what was read of them."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.read: list[str] = []

    def stored(self, name: str) -> torch.Tensor:
        self.read.append(name)
        return super().stored(name)


def test_every_tensor_of_many_shards_is_read_once(tmp_path):
    path = write_tiny_deepseek(tmp_path / "plain", n_routed_experts=48)
    small = quantized(read_config(path), load_file(path / "model.safetensors"))
    write_checkpoint(tmp_path / "shards", *nested(*small), shards=7)
    weights = CountedWeights(tmp_path / "shards")

    build_model(model_config(read_config(tmp_path / "shards")), weights, 128)

    assert len(list((tmp_path / "shards").glob("*.safetensors"))) == 7
    assert sorted(weights.read) == sorted(set(weights) - {"vision_tower.patch_embed.proj.weight"})


def test_int4_weights_stay_in_their_file(tmp_path):
    """No copy of words or scales, let alone a dense one."""
    path = write_tiny_deepseek(tmp_path / "plain")
    small = quantized(read_config(path), load_file(path / "model.safetensors"))
    expert = load_model(rewritten(tmp_path / "int4", *small)).stack.layers[1].experts.experts[5]
    parts = [
        tensor
        for layer in (*expert.gate_up.parts, expert.down)
        for tensor in (layer.words_NX, layer.scale_NG)
    ]
    file = str(tmp_path / "int4" / "model.safetensors")
    assert {mapped_file(tensor.data_ptr()) for tensor in parts} == {file}


def test_a_token_takes_one_key_in_the_cache_and_no_value(tmp_path):
    """Of Kimi-K2.5: 61 layers of 576 elements, 70 272 bytes in bfloat16."""
    model = load_model(write_tiny_deepseek(tmp_path))
    kv = KvCache(model.kv_shape, 2, 0).kv
    assert kv.keys_PLCKD.shape == (2, 3, 1, 64, 20 + 8)
    assert kv.keys_PLCKD.untyped_storage().data_ptr() == (
        kv.values_PLCJD2.untyped_storage().data_ptr()
    )
    assert kv.keys_PLCKD.untyped_storage().nbytes() == 2 * 3 * 64 * 28 * 4
