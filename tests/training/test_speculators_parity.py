"""vLLM's speculators computes from our exports what we compute, up to the rounding of float32.

It cannot be installed beside our pins (docs/decisions.md), so these tests run where somebody has
installed it without its dependencies: `pip install --no-deps speculators==0.9.0 hs-connectors`, and
then what its import asks for. Everywhere else the judge is the transcription in
tests/draft_service/drafters/plain_eagle3.py.
"""

import json

import pytest
import torch

from draft_service.drafters.checkpoint_config import CheckpointFormat
from draft_service.drafters.draft_vocabulary import known_tokens
from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.eagle3_follower import Eagle3Follower
from draft_service.drafters.eagle3_model import Eagle3Model
from draft_service.drafters.eagle3_tensors import Eagle3Tensors
from draft_service.drafters.target_side import TargetSide
from draft_service.kv_pool import KvPool
from draft_service.weights import open_drafter, read_config
from tests.tiny_llama import VOCAB, write_tiny_llama
from tests.tiny_models import rewrite_as_speculators, write_tiny_eagle3
from training.export import convert

pytestmark = pytest.mark.filterwarnings("default")
HIDDEN, LAYERS, ROWS = 64, 12, 23
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
}
DRAFTERS = {
    "as_it_comes": {},
    "norm_before_residual": {"norm_before_residual": True},
    "eagle_3.1": {"fc_norm": True, "norm_output": True},
    "norm_before_fc": {"norm_before_fc": True},
    "draft_vocab": {"draft_vocab_size": 50},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "shared_embedding": {"without": ["embed_tokens.weight"]},
    "shared_head": {"without": ["lm_head.weight"], "draft_vocab_size": 50},
    "qwen3": {"qk_norm": True},
    "yarn": {"rope_scaling": YARN},
}
# Its converter of other formats drops the norms of EAGLE-3.1, and reads no norm_before_residual.
USUAL = ("as_it_comes", "draft_vocab", "yarn")


@pytest.fixture
def target(tmp_path):
    return write_tiny_llama(tmp_path / "target", layers=LAYERS)


@pytest.fixture
def theirs():
    """Load a checkpoint with speculators, to compute without flex attention."""
    speculators = pytest.importorskip("speculators", reason="speculators is not installed")

    def load(path):
        config = speculators.SpeculatorModelConfig.from_pretrained(path)
        config.transformer_layer_config._attn_implementation = "eager"
        model = speculators.SpeculatorModel.from_pretrained(path, config=config)
        # It tells what is missing by NaN, which transformers 5.24 no longer leaves there.
        missing = {"embed_tokens.weight", "lm_head.weight"} - set(open_drafter(path))
        model._load_verifier_weights(
            overwrite_embed_tokens="embed_tokens.weight" in missing,
            overwrite_lm_head="lm_head.weight" in missing,
        )
        return model

    return load


def write(path, **config):
    raw = write_tiny_eagle3(path, hidden=HIDDEN, vocab=VOCAB, target_layers=LAYERS, **config)
    if config.get("qk_norm"):
        rewrite_as_speculators(raw, {"model_type": "qwen3", "qk_norm": None})
    return raw


def rows():
    """Return tokens and taps. The last token is what speculators feeds to the last guess: 0."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCAB, (ROWS,), generator=generator).tolist()
    return tokens, torch.randn(ROWS, 3 * HIDDEN, generator=generator)


@torch.inference_mode()
def our_logits(path, target):
    """Return logits of rows with taps, and of one that goes on from the last of them."""
    config = Eagle3Config.from_json(read_config(path), LAYERS)
    side = TargetSide(LAYERS, VOCAB, HIDDEN, max_context_len=128, model_dir=target)
    model = Eagle3Model(Eagle3Tensors(config, open_drafter(path), side), 128)
    kv = model.new_kv(128)
    follower = Eagle3Follower(KvPool(kv.num_pages), 0)
    follower.reserve(ROWS + 1)
    tokens, taps = rows()
    real = model.forward(tokens, model.fuse(taps), [follower.chain(ROWS)], kv)
    guess = model.forward([0], real[-1:], [follower.chain(1, ROWS)], kv)
    ids = known_tokens(open_drafter(path), config.draft_vocab_size, VOCAB)
    logits = model.logits(torch.cat((real, guess)))
    return logits if ids is None else logits[:, ids]


@torch.inference_mode()
def their_logits(model):
    """Return the same of speculators: of the first step, and of the last row of the second."""
    tokens, taps = rows()
    steps = []
    model.lm_head.register_forward_hook(lambda *call: steps.append(call[-1][0]))
    document = torch.zeros(1, ROWS, dtype=torch.long)
    model(taps[None], torch.tensor([tokens]), document_ids=document, ttt_steps=2)
    return torch.cat((steps[0], steps[1][-1:]))


def assert_equal_up_to_rounding(ours, expected):
    """A float32 sum of n products errs by n eps at most; the longest here has 3 hidden of them,
    and four such layers follow one another.
    """
    bound = 4 * 3 * HIDDEN * torch.finfo(torch.float32).eps * expected.abs().max()

    assert ours.shape == expected.shape
    assert (ours - expected).abs().max() < bound


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_logits_of_an_export_are_those_that_speculators_computes(tmp_path, target, theirs, drafter):
    raw = write(tmp_path / "raw", **DRAFTERS[drafter])
    convert(raw, tmp_path / "out", CheckpointFormat.SPECULATORS, verifier=str(target))

    expected = their_logits(theirs(tmp_path / "out"))

    assert_equal_up_to_rounding(our_logits(tmp_path / "out", target), expected)
    assert_equal_up_to_rounding(our_logits(raw, target), expected)


@pytest.mark.parametrize("drafter", USUAL)
def test_speculators_converts_our_flat_export_to_the_same(tmp_path, target, theirs, drafter):
    """With its own converter, from the names that SafeAILab and SGLang use."""
    raw = write(tmp_path / "raw", **DRAFTERS[drafter])
    convert(raw, tmp_path / "flat", CheckpointFormat.SGLANG)
    pytest.importorskip("speculators")
    from speculators.convert.eagle.eagle3_converter import Eagle3Converter

    converter = Eagle3Converter()
    converter.convert(tmp_path / "flat", tmp_path / "out", str(target), validate=False)

    expected = their_logits(theirs(tmp_path / "out"))
    assert_equal_up_to_rounding(our_logits(tmp_path / "flat", target), expected)


def test_a_switch_that_is_lost_is_noticed(tmp_path, target, theirs):
    """The comparison is not so coarse that it would pass."""
    raw = write(tmp_path / "raw", norm_before_residual=True)
    convert(raw, tmp_path / "out", CheckpointFormat.SPECULATORS, verifier=str(target))
    path = tmp_path / "out" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"norm_before_residual": False}))

    expected = their_logits(theirs(tmp_path / "out"))

    with pytest.raises(AssertionError):
        assert_equal_up_to_rounding(our_logits(raw, target), expected)
