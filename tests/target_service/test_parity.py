"""Our models compute what `transformers` computes, from the same files."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from protos.messages import SamplingParams
from target_service.models import LLAMA_FAMILY
from target_service.models.llama import Llama
from tests.target_service.played_session import PlayedSession, forward_chain, load_model
from tests.tiny_llama import write_tiny_llama

VOCAB = 211
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
}
CASES = {
    "llama": ("Llama", {}),
    "tied": ("Llama", {"tie_word_embeddings": True}),
    "every head its own keys": ("Llama", {"num_key_value_heads": 6}),
    "one key head": ("Llama", {"num_key_value_heads": 1}),
    "attention_bias": ("Llama", {"attention_bias": True}),
    "mlp_bias": ("Llama", {"mlp_bias": True}),
    "norm epsilon": ("Llama", {"rms_norm_eps": 0.1}),
    "rope theta": ("Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0}}),
    "yarn": ("Llama", {"rope_parameters": YARN}),
    "yarn by ratio": ("Llama", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}),
    "yarn amplitude": ("Qwen3", {"rope_parameters": YARN | {"attention_factor": 1.2}}),
    "yarn betas": ("Llama", {"rope_parameters": YARN | {"beta_fast": 2.0, "beta_slow": 0.5}}),
    "yarn to the last dimension": (
        "Llama",
        {"rope_parameters": YARN | {"rope_theta": 5.0, "original_max_position_embeddings": 200}},
    ),
    "yarn exact": ("Llama", {"rope_parameters": YARN | {"truncate": False}}),
    "mistral": ("Mistral", {"sliding_window": 400}),
    "mistral without window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3 with biases": ("Qwen3", {"attention_bias": True}),
}


def random_tokens(length: int, vocab_size: int = VOCAB) -> list[int]:
    rng = random.Random(length)
    return [rng.randrange(vocab_size) for _ in range(length)]


def write_reference(path: Path, family: str, **config: object) -> PreTrainedModel:
    """Save a random model of transformers with weights that matter; return it."""
    settings = SIZES | {"rope_theta": 10000.0} | config
    if settings.get("rope_parameters"):
        settings["rope_parameters"] = {"rope_theta": 10000.0} | settings["rope_parameters"]
        settings.pop("rope_theta")
    full = getattr(transformers, f"{family}Config")(**settings, attn_implementation="eager")
    model = getattr(transformers, f"{family}ForCausalLM")(full).eval()
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        mean = float("norm" in name)
        size = 0.3 if parameter.ndim == 1 else (3 / parameter.shape[-1]) ** 0.5
        parameter.data = mean + size * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(path, max_shard_size="40KB")
    return model


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    return model(torch.tensor([token_ids])).logits[0].float()


def repetition(tokens: list[int]) -> tuple[list[int], range]:
    """Return drafts that repeat what followed the last token before: fewer steps, same answer."""
    before = max((i for i, token in enumerate(tokens[:-1]) if token == tokens[-1]), default=-16)
    drafts = tokens[before + 1 : before + 16]
    return drafts, range(len(drafts))


def assert_greedy_answers_agree(
    ours: Llama, reference: PreTrainedModel, prompt: list[int], num_new: int
) -> None:
    """Assert that at every place of our answer the reference would have said the same."""
    session = PlayedSession(ours, prompt, SamplingParams(temperature=0), chunk_len=64)
    while session.session.num_new_tokens < num_new:
        session.verify(*repetition(session.session.tokens))
    answer = session.told.tokens
    assert len(set(answer)) > 5
    choices = reference_logits(reference, prompt + answer).argmax(-1).tolist()
    assert answer == choices[len(prompt) - 1 : -1]


@pytest.fixture(scope="module", params=list(CASES))
def pair(request, tmp_path_factory) -> tuple[Llama, PreTrainedModel]:
    family, config = CASES[request.param]
    path = tmp_path_factory.mktemp("reference")
    reference = write_reference(path, family, **config)
    return load_model(path), reference


@pytest.mark.parametrize("length", [1, 70, 200])
def test_logits_agree(pair, length):
    ours, reference = pair
    tokens = random_tokens(length)
    expected = reference_logits(reference, tokens)
    assert expected.std() > 0.5
    torch.testing.assert_close(forward_chain(ours, tokens)[0], expected, atol=2e-4, rtol=0)


def test_greedy_answers_agree(pair):
    assert_greedy_answers_agree(*pair, random_tokens(100), 48)


@pytest.mark.parametrize("change", [{"rope_parameters": YARN}, {"rms_norm_eps": 0.1}])
def test_a_setting_that_is_missed_is_seen(tmp_path, change):
    """Negative control: the tolerance above tells models apart that differ in one setting."""
    changed = reference_logits(write_reference(tmp_path, "Llama", **change), random_tokens(70))
    usual = load_model(tmp_path / "usual") if write_reference(tmp_path / "usual", "Llama") else None
    assert (forward_chain(usual, random_tokens(70))[0] - changed).abs().max() > 0.02


@pytest.mark.parametrize("scaling", [LLAMA3, YARN])
def test_the_old_spelling_of_rope_means_the_same(tmp_path, scaling):
    """`rope_scaling` with `type` beside `rope_theta`, as checkpoints before transformers 5 say."""
    reference = write_reference(tmp_path, "Llama", rope_parameters=scaling)
    config = json.loads((tmp_path / "config.json").read_text())
    old = dict(config.pop("rope_parameters"))
    config["rope_theta"], old["type"] = old.pop("rope_theta"), old.pop("rope_type")
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_scaling": old}))
    tokens = random_tokens(70)
    expected = reference_logits(reference, tokens)
    ours = forward_chain(load_model(tmp_path), tokens)[0]
    torch.testing.assert_close(ours, expected, atol=2e-4, rtol=0)


def test_shards_make_one_model(tmp_path):
    reference = write_reference(tmp_path, "Llama")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    tokens = random_tokens(20)
    expected = reference_logits(reference, tokens)
    ours = forward_chain(load_model(tmp_path), tokens)[0]
    torch.testing.assert_close(ours, expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("architecture", LLAMA_FAMILY)
def test_the_checkpoints_that_the_tests_write_are_read_alike(tmp_path, architecture):
    write_tiny_llama(tmp_path, architecture=architecture, shards=2)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    expected = reference_logits(reference, random_tokens(70))
    ours = forward_chain(load_model(tmp_path), random_tokens(70))[0]
    torch.testing.assert_close(ours, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close(tmp_path, dtype):
    """Rounding differs, the model does not: the error is that of the format."""
    reference = write_reference(tmp_path, "Qwen3")
    tokens = random_tokens(70)
    exact = reference_logits(reference, tokens)
    theirs = reference_logits(reference.to(dtype), tokens)
    ours = forward_chain(load_model(tmp_path, dtype), tokens)[0]
    assert (ours - exact).std() < 1.5 * (theirs - exact).std()


@pytest.fixture(scope="module")
def embedded(smollm2) -> tuple[Llama, PreTrainedModel]:
    reference = AutoModelForCausalLM.from_pretrained(
        smollm2, dtype=torch.float32, attn_implementation="eager"
    )
    return load_model(smollm2, torch.float32), reference.eval()


PROMPT_LENS = [1, 24, 150]


@pytest.mark.model
@pytest.mark.parametrize("prompt_len", PROMPT_LENS)
def test_the_embedded_model_agrees(embedded, prompt_len):
    ours, reference = embedded
    tokens = random_tokens(prompt_len, ours.config.vocab_size)
    expected = reference_logits(reference, tokens)
    torch.testing.assert_close(forward_chain(ours, tokens)[0], expected, atol=2e-3, rtol=0)
    assert_greedy_answers_agree(ours, reference, tokens, 64)
