"""Random targets of the Llama family, a few hundred kilobytes, written as real checkpoints are."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB = 256 + len(SPECIAL_TOKENS)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_llama(
    path: Path,
    *,
    architecture: str = "LlamaForCausalLM",
    seed: int = 0,
    hidden: int = 64,
    layers: int = 6,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    vocab: int = VOCAB,
    dtype: torch.dtype = torch.float32,
    rope_scaling: Mapping[str, Any] | None = None,
    tie: bool = False,
    shards: int = 1,
    tokenizer: bool = False,
    without: Iterable[str] = (),
    **config: Any,
) -> Path:
    """Write a random model into `path`; return the path.

    `architecture` decides what it has: Qwen2 biases on q, k and v, Qwen3 norms on q and k. `config`
    overrides fields of config.json, and the tensors follow: attention_bias, mlp_bias and
    intermediate_size. `without` names tensors to leave out. More than one shard gets an index.
    `tokenizer` adds a byte-level tokenizer of 259 ids with a ChatML template; `<|im_end|>` ends an
    answer.
    """
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim or hidden // heads,
        "vocab_size": vocab,
        "rope_scaling": dict(rope_scaling) if rope_scaling else None,
        "tie_word_embeddings": tie,
    }
    full = _fixed_config(architecture, dtype) | sizes | config
    tensors = _tensors(full, torch.Generator().manual_seed(seed), dtype)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(full))
    save_shards(path, {n: t for n, t in tensors.items() if n not in set(without)}, shards)
    if tokenizer:
        write_byte_tokenizer(path)
    return path


def write_repeating_llama(path: Path, *, cycle: int = 5, **rest: Any) -> Path:
    """Write a model whose text mostly runs in circles of so many tokens; return the path.

    Its layers add next to nothing, and its head knows each token's successor.
    """
    write_tiny_llama(path, **rest)
    file = path / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor *= 0.003
    embedding = tensors["model.embed_tokens.weight"]
    ids = torch.arange(len(embedding) - len(embedding) % cycle)
    successors = ids - ids % cycle + (ids + 1) % cycle
    tensors["lm_head.weight"][successors] = embedding[ids]
    save_file(tensors, file)
    return path


def _fixed_config(architecture: str, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "eos_token_id": VOCAB - 1,
    }


def save_shards(path: Path, tensors: Mapping[str, torch.Tensor], shards: int) -> None:
    """Write tensors as one file, or as several with the index that names each tensor's file."""
    names = list(tensors)
    if shards == 1:
        save_file(dict(tensors), path / "model.safetensors")
        return
    file_of = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        save_file({name: tensors[name] for name in names[shard::shards]}, path / file)
        file_of |= dict.fromkeys(names[shard::shards], file)
    index = {"metadata": {}, "weight_map": file_of}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def write_byte_tokenizer(path: Path) -> None:
    """Write a tokenizer whose tokens are the 256 bytes and the three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2],
        "chat_template": CHAT_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))


def _tensors(
    config: Mapping[str, Any], generator: torch.Generator, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return norms around 1, small biases, and matrices that keep the size of what they map."""
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for index in range(config["num_hidden_layers"]):
        layer = _layer_shapes(config)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return {name: _random(name, shape, generator).to(dtype) for name, shape in shapes.items()}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("bias"):
        return 0.3 * noise
    return 1 + 0.3 * noise if len(shape) == 1 else noise * (4 / shape[-1]) ** 0.5


def _layer_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    matrices = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": s for name, s in matrices.items()}
    shapes |= {f"{name}.bias": matrices[name][:1] for name in _biased(config, matrices)}
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if "Qwen3" in config["architectures"][0]:
        norms |= dict.fromkeys(("self_attn.q_norm", "self_attn.k_norm"), config["head_dim"])
    return shapes | {f"{name}.weight": (width,) for name, width in norms.items()}


def _biased(config: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return the linear layers that have a bias."""
    prefixes = []
    if config.get("attention_bias"):
        prefixes.append("self_attn.")
    elif "Qwen2" in config["architectures"][0]:
        prefixes += ["self_attn.q", "self_attn.k", "self_attn.v"]
    if config.get("mlp_bias"):
        prefixes.append("mlp.")
    return [name for name in names if name.startswith(tuple(prefixes))]
