"""A GGUF file and the folder made from it hold the same model, to the last bit."""

import json
import struct

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from slipstream.gguf_model import convert_gguf, half_split_rows, hugging_face_name, shortest
from tests.slipstream.tiny_model import (
    F32,
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    Q4_1,
    Q8_0,
    TinyGguf,
    vocabulary,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The tiny file's raw tensors and the folder made from it."""
    folder = tmp_path_factory.mktemp("tiny")
    raw = TinyGguf().write(folder / "tiny.gguf")
    convert_gguf(folder / "tiny.gguf", folder)
    return raw, folder


def read_json(folder, name):
    return json.loads((folder / name).read_text())


def convert(folder, gguf):
    gguf.write(folder / "tiny.gguf")
    convert_gguf(folder / "tiny.gguf", folder)


def float32_of(raw, kind):
    """Values of a raw tensor, block by block, as ggml's quants.c reads them."""
    if kind in (Q4_1, Q8_0):
        return np.array([row_of(row.tobytes(), kind) for row in raw], dtype=np.float32)
    return raw.astype(np.float32)


def row_of(row, kind):
    size, read = {Q4_1: (20, q4_1_block), Q8_0: (34, q8_0_block)}[kind]
    blocks = [read(row[start : start + size]) for start in range(0, len(row), size)]
    return np.concatenate(blocks)


def q4_1_block(block):
    """32 values: scale and minimum in float16, low nibbles before high ones."""
    scale, minimum = np.float32(struct.unpack("<2e", block[:4]))
    nibbles = [byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]
    return [scale * np.float32(nibble) + minimum for nibble in nibbles]


def q8_0_block(block):
    """32 values: scale in float16, then signed bytes."""
    scale = np.float32(struct.unpack("<e", block[:2])[0])
    return [scale * np.float32(value) for value in struct.unpack("<32b", block[2:])]


def bfloat16_bits(values):
    """Round float32 to nearest, ties to even, on the bit pattern."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def interleave_rows(weight, heads):
    """llama.cpp's `permute` in convert_hf_to_gguf.py: Hugging Face rows → GGUF rows."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def rotate_neighbours(vector, angles):
    """ggml's rotary embedding of one head: pairs (2i, 2i + 1)."""
    even, odd = vector[0::2], vector[1::2]
    turned = np.empty_like(vector)
    turned[0::2] = even * np.cos(angles) - odd * np.sin(angles)
    turned[1::2] = even * np.sin(angles) + odd * np.cos(angles)
    return turned


def rotate_halves(vector, angles):
    """Hugging Face's rotary embedding of one head: pairs (i, i + half)."""
    low, high = np.split(vector, 2)
    return np.concatenate(
        [low * np.cos(angles) - high * np.sin(angles), low * np.sin(angles) + high * np.cos(angles)]
    )


def expected_weights(raw):
    """Hugging Face name → bfloat16 bit patterns, all worked out in this file."""
    weights = {}
    for name, (data, kind) in raw.items():
        values = float32_of(data, kind)
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
        if heads is not None:
            rows = interleave_rows(np.arange(len(values)), heads)
            values = values[np.argsort(rows)]
        weights[hugging_face_name(name)] = bfloat16_bits(values)
    return weights


def test_every_weight_is_bit_equal_to_an_independent_dequantisation(tiny):
    raw, folder = tiny
    weights = load_file(folder / "model.safetensors")
    expected = expected_weights(raw)

    assert weights.keys() == expected.keys()
    for name, bits in expected.items():
        assert weights[name].dtype == torch.bfloat16
        assert np.array_equal(weights[name].view(torch.uint16).numpy(), bits), name


@given(heads=st.integers(1, 6), half=st.integers(1, 5), columns=st.integers(1, 3))
def test_half_split_rows_undoes_the_interleaving(heads, half, columns):
    weight = np.arange(heads * 2 * half * columns).reshape(-1, columns)

    assert np.array_equal(half_split_rows(interleave_rows(weight, heads), heads), weight)


def attention_score(query, key, hidden, rotate):
    """q · k of one head at positions 5 and 2, rotated by `rotate`."""
    angles = np.arange(1, HEAD_DIM // 2 + 1) / 10
    return rotate(query @ hidden, 5 * angles) @ rotate(key @ hidden, 2 * angles)


def test_half_split_rows_keep_the_attention_scores():
    """The file's rows under ggml's rotation and the converted rows under Hugging Face's agree;
    without the reordering they do not."""
    random = np.random.default_rng(1)
    query, key = random.standard_normal((2, HEAD_DIM, HIDDEN))
    hidden = random.standard_normal(HIDDEN)
    score = attention_score(query, key, hidden, rotate_neighbours)
    converted = half_split_rows(query, 1), half_split_rows(key, 1)

    assert np.isclose(attention_score(*converted, hidden, rotate_halves), score)
    assert not np.isclose(attention_score(query, key, hidden, rotate_halves), score)


def test_config_is_read_from_the_file(tiny):
    config = read_json(tiny[1], "config.json")

    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": len(vocabulary()),
        "max_position_embeddings": 256,
        "rope_theta": 12345.0,
        "rms_norm_eps": 3e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "torch_dtype": "bfloat16",
    }


def test_generation_config_names_the_ids_that_end_an_answer(tiny):
    expected = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}

    assert read_json(tiny[1], "generation_config.json") == expected


def test_a_head_of_its_own_unties_the_embeddings(tmp_path):
    head = np.ones((len(vocabulary()), HIDDEN), dtype=np.float32)
    convert(tmp_path, TinyGguf(extra_tensors={"output.weight": (head, F32)}))

    assert read_json(tmp_path, "config.json")["tie_word_embeddings"] is False
    assert "lm_head.weight" in load_file(tmp_path / "model.safetensors")


def test_everyone_who_may_read_the_config_may_read_the_weights(tiny):
    modes = {(tiny[1] / name).stat().st_mode for name in ("config.json", "model.safetensors")}

    assert len(modes) == 1


def test_a_folder_that_cannot_be_written_is_an_os_error(tmp_path):
    TinyGguf().write(tmp_path / "tiny.gguf")

    with pytest.raises(OSError, match=r"cannot write .*missing/model\.safetensors"):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "missing")


def test_each_tensor_is_announced_once(tmp_path):
    seen = []
    raw = TinyGguf().write(tmp_path / "tiny.gguf")
    convert_gguf(tmp_path / "tiny.gguf", tmp_path, lambda tensors: seen.extend(tensors) or tensors)

    assert [tensor.name for tensor in seen] == list(raw)


NOISE = np.zeros((1, 32), dtype=np.float32)


@pytest.mark.parametrize(
    ("gguf", "named"),
    [
        (TinyGguf(context_length=None), "no metadata key 'llama.context_length'"),
        (TinyGguf(rope_dimensions=8), "partial rotary"),
        (TinyGguf(pre="llama-bpe"), "'llama-bpe' is not supported, only 'smollm'"),
        (TinyGguf(add_bos=True), "add_bos_token = True"),
        (TinyGguf(extra_tensors={"rope_freqs.weight": (NOISE, F32)}), "'rope_freqs.weight'"),
        (TinyGguf(extra_tensors={"blk.0.attn_q.bias": (NOISE, F32)}), "'blk.0.attn_q.bias'"),
        (TinyGguf(extra_tensors={"blk.0.ssm_a.weight": (NOISE, F32)}), "'blk.0.ssm_a.weight'"),
    ],
)
def test_what_is_not_a_plain_llama_is_refused_by_name(tmp_path, gguf, named):
    with pytest.raises(ValueError, match=named):
        convert(tmp_path, gguf)


def test_another_architecture_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="'gemma' is not 'llama'"):
        convert(tmp_path, TinyGguf(architecture="gemma"))


def test_a_format_that_gguf_cannot_read_is_refused_by_name(tmp_path):
    kind = GGMLQuantizationType.I32
    extra = {"output.weight": (np.zeros((1, 32), dtype=np.int32), kind)}

    with pytest.raises(ValueError, match=r"output\.weight: cannot dequantise I32"):
        convert(tmp_path, TinyGguf(extra_tensors=extra))


@given(st.floats(2.0**-30, 2.0**30, width=32))
def test_shortest_names_the_same_float32(value):
    assert np.float32(shortest(value)) == np.float32(value)


def test_shortest_drops_the_noise_of_float32():
    assert shortest(float(np.float32(1e-5))) == 1e-5


@pytest.mark.model
def test_the_embedded_model_has_its_published_figures(smollm2):
    config = read_json(smollm2, "config.json")
    figures = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rope_theta": 1e5,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    weights = load_file(smollm2 / "model.safetensors")

    assert figures.items() <= config.items()
    assert sum(weight.numel() for weight in weights.values()) == 134_515_008


@pytest.mark.slow
@pytest.mark.model
def test_transformers_loads_the_embedded_model_and_it_knows_the_answer(smollm2):
    """No weight is missing or left over, and a wrong row order would give noise here."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2, dtype=torch.float32, output_loading_info=True
    )
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    tokens = tokenizer(prompt, return_tensors="pt")
    answer = model.generate(**tokens, max_new_tokens=32, do_sample=False)

    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert tokenizer.decode(answer[0, tokens.input_ids.shape[1] :]) == (
        "The capital of France is Paris.<|im_end|>"
    )
