"""What each weight format and the native kernels cost in quality, on a text of 2,000 tokens.

Every token is predicted from all before it, by the float32 reference and by each format on the
kernels in use: perplexity, how often the likeliest token is the reference's, and how far logits are
off. `python -m benchmarks.quality --text FILE` prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from kernels import native
from kernels.attention import lay_out_rows
from kernels.kv_pages import num_pages_for, whole_pages
from kernels.quantized_linear import WEIGHT_FORMATS
from slipstream.model_cache import resolve_model
from target_service.kv_cache import KvCache
from target_service.models import build_model, model_config
from target_service.models.target_model import TargetModel
from target_service.weights import Weights, read_config

_CHUNK = 128


@torch.inference_mode()
def logits_of(model: TargetModel, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the logits after every token of a text, [R, V]."""
    cache = KvCache(model.kv_shape, num_pages_for(len(token_ids)), 0)
    pages_X = cache.pages(range(cache.num_pages))
    parts = []
    for start in range(0, len(token_ids), _CHUNK):
        chunk = token_ids[start : start + _CHUNK]
        layout = lay_out_rows(pages_X, start, range(-1, len(chunk) - 1))
        parts.append(model.logits(model.forward(chunk, [layout], cache.kv, ())[0]))
    return torch.cat(parts)


def perplexity(logits_RV: torch.Tensor, token_ids: torch.Tensor) -> float:
    """Return exp of the mean surprise at every token but the first."""
    return float(F.cross_entropy(logits_RV[:-1], token_ids[1:]).exp())


def compare(
    logits_RV: torch.Tensor, reference_RV: torch.Tensor, token_ids: torch.Tensor
) -> dict[str, float]:
    """Return what a format costs."""
    difference_RV = logits_RV - reference_RV
    agreed_R = logits_RV.argmax(-1) == reference_RV.argmax(-1)
    return {
        "perplexity": round(perplexity(logits_RV, token_ids), 3),
        "greedy_agreement": round(float(agreed_R.float().mean()), 4),
        "relative_error": round(float(difference_RV.norm() / reference_RV.norm()), 5),
        "largest_error": round(float(difference_RV.abs().max()), 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = resolve_model(options.model)
    config = model_config(read_config(path))
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    token_ids = torch.tensor(tokenizer.encode(options.text.read_text()).ids)
    longest = whole_pages(len(token_ids))
    reference_RV = logits_of(build_model(config, Weights(path, torch.float32), longest), token_ids)
    report: dict[str, Any] = {
        "what": "formats against the float32 reference, teacher-forced",
        "tokens": len(token_ids),
        "kernels": native.select("auto", options.threads).name,
        "float32_perplexity": round(perplexity(reference_RV, token_ids), 3),
    }
    for weight_format in WEIGHT_FORMATS:
        model = build_model(config, Weights(path, torch.bfloat16), longest, weight_format)
        report[weight_format] = compare(logits_of(model, token_ids), reference_RV, token_ids)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
