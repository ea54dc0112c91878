"""Training: it learns, one seed gives one drafter, and an interruption changes nothing."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_service.drafters.eagle3 import Eagle3Drafter
from draft_service.drafters.target_side import TargetSide
from protos.pairing import fingerprint
from tests.tiny_llama import VOCAB, write_tiny_llama
from tests.training.made_samples import made_sample, record_samples, source_of
from training import train as train_module
from training.checkpoint import load_checkpoint
from training.tap_columns import columns_of
from training.train import Recipe, train
from training.trainer import Schedule

LAYERS, HIDDEN, DRAFT_VOCAB = 6, 64, 40
RECIPE = Recipe(draft_vocab_size=DRAFT_VOCAB, max_len=64, num_steps=3)
SCHEDULE = Schedule(num_tokens=4000, batch_tokens=200, learning_rate=3e-3, report_every=2)


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("m") / "tiny"
    return write_tiny_llama(path, hidden=HIDDEN, layers=LAYERS, seed=1, intermediate_size=96)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, target_dir):
    """Texts that count upwards: whoever learns anything learns that."""
    samples = []
    for number in range(30):
        sample = made_sample(f"s{number}", 30, 5, width=4 * HIDDEN, seed=number, vocab=VOCAB)
        counting = (torch.arange(30, dtype=torch.int32) + number) % 30
        samples.append(type(sample)(sample.facts, counting, sample.taps_TX))
    source = source_of(
        HIDDEN,
        (2, 3, 5, LAYERS),
        num_layers=LAYERS,
        vocab_size=VOCAB,
        target_fingerprint=fingerprint(target_dir),
    )
    return record_samples(tmp_path_factory.mktemp("r"), samples, source)


def hard_labels(monkeypatch):
    """Let the recorded tokens teach: the taps are random, and so is what they say."""
    monkeypatch.setattr(
        train_module, "TargetHead", lambda *_: train_module.ChosenTokens(DRAFT_VOCAB)
    )


def tensors_of(directory):
    return load_file(directory / "model.safetensors")


def trained(recorded, target_dir, directory, told=None, recipe=RECIPE, schedule=SCHEDULE):
    reports = []
    drafter = train([recorded], target_dir, recipe, schedule, directory, told or reports.append)
    return drafter, reports


def test_a_drafter_learns_what_is_to_be_learnt(recorded, target_dir, tmp_path, monkeypatch):
    hard_labels(monkeypatch)
    schedule = Schedule(num_tokens=40_000, batch_tokens=400, learning_rate=1e-2)
    _, reports = trained(recorded, target_dir, tmp_path / "t", schedule=schedule)
    assert reports[-1]["acceptance_3"] > 0.9
    assert reports[-1]["loss"] < 0.2 * reports[1]["loss"]


def test_what_is_trained_loads_where_drafters_are_served(recorded, target_dir, tmp_path):
    drafter, _ = trained(recorded, target_dir, tmp_path / "t")
    side = TargetSide(LAYERS, VOCAB, HIDDEN, 128, model_dir=target_dir)
    served = Eagle3Drafter.load("ours", drafter, side, kv_tokens=256)
    assert served.pairing.tap_layers == (2, 3, 5)
    assert served.pairing.tokenizer_digest == "cafe"
    assert (tmp_path / "t" / "training.png").stat().st_size > 1000


def test_an_interrupted_training_ends_in_the_same_drafter(recorded, target_dir, tmp_path):
    """Bit for bit, wherever it was interrupted."""
    whole, _ = trained(recorded, target_dir, tmp_path / "whole")
    for stop in (4, 10):

        def interrupt(report, stop=stop):
            if report.get("step", 0) >= stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            trained(recorded, target_dir, tmp_path / "parts", told=interrupt)
    parts, _ = trained(recorded, target_dir, tmp_path / "parts")
    one, other = tensors_of(whole), tensors_of(parts)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    curves = [(tmp_path / d / "training.csv").read_text().split() for d in ("whole", "parts")]
    steps = [[line.split(",")[0] for line in lines] for lines in curves]
    assert steps[0] == steps[1]


def test_another_recipe_is_not_mixed_in(recorded, target_dir, tmp_path):
    trained(recorded, target_dir, tmp_path)
    with pytest.raises(ValueError, match="begun with another recipe"):
        trained(recorded, target_dir, tmp_path, recipe=Recipe(draft_vocab_size=41, max_len=64))


def test_another_target_is_refused(recorded, tmp_path):
    other = write_tiny_llama(tmp_path / "other", hidden=HIDDEN, layers=LAYERS, seed=2)
    with pytest.raises(ValueError, match="has fingerprint"):
        trained(recorded, other, tmp_path / "t")


def test_layers_that_were_not_recorded_are_named():
    with pytest.raises(ValueError, match=r"missing \[3\]"):
        columns_of((2, 3), source_of(tap_layers=(1, 2, 4)))


def written_config(path, **sizes):
    """A drafter's config of its own, beside the one that would be made from the target's."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": HIDDEN,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "intermediate_size": 32,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "eagle_aux_hidden_state_layer_ids": [2, 5],
    }
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config | sizes))
    return Recipe(draft_vocab_size=DRAFT_VOCAB, max_len=64, num_steps=3, config=path)


def test_a_config_of_its_own_decides_the_drafters_shape(recorded, target_dir, tmp_path):
    recipe = written_config(tmp_path / "config")
    drafter, _ = trained(recorded, target_dir, tmp_path / "t", recipe=recipe)
    tensors = tensors_of(drafter)
    assert tensors["midlayer.mlp.up_proj.weight"].shape == (32, HIDDEN)
    assert tensors["fc.weight"].shape == (HIDDEN, 2 * HIDDEN)


def test_a_drafter_of_another_width_than_its_target_is_refused(recorded, target_dir, tmp_path):
    """It would need an embedding of its own."""
    recipe = written_config(tmp_path / "config", hidden_size=32, target_hidden_size=HIDDEN)
    with pytest.raises(ValueError, match="hidden_size 32 beside a target's of 64"):
        trained(recorded, target_dir, tmp_path / "t", recipe=recipe)


def test_a_drafter_that_exists_is_gone_on_with(recorded, target_dir, tmp_path):
    """It begins where the other ended, with its vocabulary: without a step nothing changes."""
    first, _ = trained(recorded, target_dir, tmp_path / "first")
    still = Schedule(num_tokens=1, batch_tokens=200, learning_rate=1e-12)
    recipe = Recipe(max_len=64, num_steps=3, drafter=first)
    second, _ = trained(recorded, target_dir, tmp_path / "second", recipe=recipe, schedule=still)
    one, other = tensors_of(first), tensors_of(second)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert one.keys() == other.keys()


@pytest.mark.parametrize("rate", [0.0, 1.0, float("inf"), float("nan")])
def test_a_rate_that_teaches_nothing_is_refused(rate):
    with pytest.raises(ValueError, match=r"learning_rate must be in \(0, 1\)"):
        Schedule(num_tokens=100, learning_rate=rate)


def test_a_training_that_bursts_says_so(recorded, target_dir, tmp_path, monkeypatch):
    """And writes no drafter of what is no number."""

    class Bursting(train_module.ChosenTokens):
        def probs(self, final_RW, draft_tokens_R):
            return torch.full((len(draft_tokens_R), DRAFT_VOCAB), torch.inf)

    monkeypatch.setattr(train_module, "TargetHead", lambda *_: Bursting(DRAFT_VOCAB))
    with pytest.raises(ValueError, match=r"the loss is (inf|nan) at step 0"):
        trained(recorded, target_dir, tmp_path / "t")
    assert not (tmp_path / "t" / "drafter").exists()


def test_longer_chains_are_trained_later():
    steps = [Schedule(num_tokens=100).steps_at(tokens, 5) for tokens in (0, 32, 33, 50, 65, 99)]
    assert steps == [2, 2, 3, 4, 5, 5]
    assert Schedule(num_tokens=100).steps_at(0, 1) == 1


def test_a_checkpoint_of_another_drafter_is_refused(tmp_path):
    module = torch.nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(module.parameters())
    save_file({"weight": torch.zeros(3, 4)}, tmp_path / "c.safetensors", {"step": "1"})
    with pytest.raises(ValueError, match="checkpoint of another drafter: weight does not fit"):
        load_checkpoint(tmp_path / "c.safetensors", module, optimizer)
