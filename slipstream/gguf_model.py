"""A Llama GGUF file turned into a Hugging Face model folder in bfloat16.

Weights are dequantised exactly in float32 and rounded once. Every figure of config.json is read
from the GGUF's metadata. Knows nothing of where the file came from.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from safetensors import SafetensorError
from safetensors.torch import save_file

from slipstream.gguf_tokenizer import build_tokenizer, special_roles, tokenizer_settings

Track = Callable[[list[ReaderTensor]], Iterable[ReaderTensor]]
"""Passes the tensors on one by one and may show how far the loop is."""

MODEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Metadata(dict[str, Any]):
    """The GGUF's key-value pairs; a key that is missing is the file's fault, so ValueError."""

    def __missing__(self, key: str) -> Any:
        raise ValueError(f"the GGUF file has no metadata key {key!r}")


def convert_gguf(gguf: Path, directory: Path, track: Track = iter) -> None:
    """Write the model in `gguf` to the existing folder `directory`.

    ValueError where the file is not a plain Llama, or has a tensor or a tokenizer not known here;
    OSError where the folder cannot be written.
    """
    reader = GGUFReader(gguf)
    metadata = Metadata({key: field.contents() for key, field in reader.fields.items()})
    config = model_config(metadata, {tensor.name for tensor in reader.tensors})
    weights = dict(converted_tensor(tensor, config) for tensor in track(reader.tensors))
    save_weights(weights, directory / "model.safetensors")
    write_json(directory / "config.json", config)
    write_json(directory / "generation_config.json", generation_config(config))
    roles = special_roles(metadata)
    build_tokenizer(metadata).save(str(directory / "tokenizer.json"))
    write_json(directory / "special_tokens_map.json", roles)
    write_json(directory / "tokenizer_config.json", roles | tokenizer_settings(metadata))
    # safetensors writes for the owner alone; a shared cache is for everyone.
    shutil.copymode(directory / "config.json", directory / "model.safetensors")


def model_config(metadata: Metadata, tensor_names: set[str]) -> dict[str, Any]:
    """config.json of a LlamaForCausalLM, read from the GGUF's metadata."""
    if metadata["general.architecture"] != "llama":
        raise ValueError(f"architecture {metadata['general.architecture']!r} is not 'llama'")
    heads = metadata["llama.attention.head_count"]
    head_dim = metadata["llama.rope.dimension_count"]
    if heads * head_dim != metadata["llama.embedding_length"]:
        raise ValueError(
            f"{heads} heads × {head_dim} rotary dimensions differ from the hidden size "
            f"{metadata['llama.embedding_length']}: partial rotary embedding is not supported"
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": head_dim,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "max_position_embeddings": metadata["llama.context_length"],
        "rope_theta": shortest(metadata["llama.rope.freq_base"]),
        "rms_norm_eps": shortest(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in tensor_names,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "bfloat16",
    }


def generation_config(config: dict[str, Any]) -> dict[str, Any]:
    """The token ids that begin, end and pad an answer."""
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def converted_tensor(tensor: ReaderTensor, config: dict[str, Any]) -> tuple[str, torch.Tensor]:
    """Hugging Face name and bfloat16 weight `[out, in]` (norms `[hidden]`) of one GGUF tensor."""
    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise ValueError(f"{tensor.name}: cannot dequantise {tensor.tensor_type.name}") from error
    if tensor.name.endswith("attn_q.weight"):
        values = half_split_rows(values, config["num_attention_heads"])
    elif tensor.name.endswith("attn_k.weight"):
        values = half_split_rows(values, config["num_key_value_heads"])
    return hugging_face_name(tensor.name), torch.tensor(values).to(torch.bfloat16)


def save_weights(weights: dict[str, torch.Tensor], path: Path) -> None:
    """One safetensors file; a full disk is an OSError here as everywhere else."""
    try:
        save_file(weights, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error


def half_split_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a q or k projection `[heads · head_dim, in]` in Hugging Face's rotary order.

    llama.cpp rotates neighbouring rows (2i, 2i+1) of a head, Hugging Face the rows (i, i + half),
    so llama.cpp's converter interleaves the halves; this undoes it.
    """
    pairs = weight.reshape(heads, -1, 2, weight.shape[-1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`."""
    if name in MODEL_NAMES:
        return MODEL_NAMES[name]
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if layer is None or layer[2] not in LAYER_NAMES:
        raise ValueError(f"tensor {name!r} is not part of a plain Llama")
    return f"model.layers.{layer[1]}.{LAYER_NAMES[layer[2]]}.weight"


def shortest(value: float) -> float:
    """The shortest decimal that names the same float32: 9.99999974e-06 → 1e-05."""
    return float(str(np.float32(value)))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """One readable JSON file, UTF-8."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
