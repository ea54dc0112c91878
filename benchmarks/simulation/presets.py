"""Machines to plan for. Every time is physics or somebody's measurement; see each preset.

A drafter reads all of its weights at every step, so that is what a step takes. The drafters are
those of the targets: for Kimi-K2.5 one of 1.84 B parameters with its full vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.simulation.architecture import H200, RTX_PRO_6000, Architecture, Gpus
from benchmarks.simulation.hardware import Drafting, Forward, Hardware, Network

# 384 experts of 44.0 M parameters in 60 layers, at 4.5 bit; all else is part of the fixed time.
KIMI_K2_5 = Architecture(60, 10.55, 4.5 / 8, experts=384, per_token=8, expert=0.0440)
# What few rows of INT4 experts get of the bandwidth. H200: vLLM with TP8 does 91.2 and 70.3 tok/s
# for each of 4 and 8 users (SemiAnalysis, 8k tokens in, 1k out); the steps differ by 3.26 ms, of
# which prompts and KV cache are 1.26 in this model: 28.5 more experts of every layer take 2.0 ms.
# From 8 to 16 users it would be 41 %, with prompts weighing more; the smaller step was taken.
# RTX PRO 6000: Kimi-K2.6 does 907 tok/s for 16 users with 3 drafts (rtx6kpro wiki,
# benchmarks/kimi-glm-ar-benchmark-20260425), rounds of about 51 ms if 2.9 tokens are accepted.
_H200_INT4_SHARE = 0.55
_RTX_PRO_6000_INT4_SHARE = 0.8
# 61 layers of 1152 bytes a token, read by every GPU for itself; a session has 4,096 tokens.
_KIMI_KV_BYTES = 61 * 1152 * 4096
_KIMI_DRAFTER_BYTES = 1.84e9 * 2
_LLAMA_DRAFTER_BYTES = 1.5e9
# Launches and the host, a step of a drafter in CUDA graphs.
_LAUNCH_MS = 0.1


def scaled_to_plain(forward: Forward, tokens_per_second: float) -> Forward:
    """Return a step whose fixed time is such that one session decodes plainly so fast.

    Raises ValueError if what is not fixed takes longer than that.
    """
    fixed_ms = forward.fixed_ms + 1000 * (1 / tokens_per_second - forward.seconds(1, 1))
    if fixed_ms <= forward.accept_ms:
        least_s = forward.seconds(1, 1) - forward.fixed_ms / 1000
        raise ValueError(
            f"plain decoding must be below {1 / least_s:.0f} tok/s here, got {tokens_per_second:g}"
        )
    return replace(forward, fixed_ms=fixed_ms)


def kimi_k2_5(gpus: Gpus, plain_tokens_per_second: float) -> Forward:
    """Return a step of Kimi-K2.5 that decodes one session plainly so fast."""
    forward = KIMI_K2_5.forward(gpus, layer_ms=0.0)
    session_ms = Gpus(1, gpus.bytes_s).read_ms(_KIMI_KV_BYTES)
    return scaled_to_plain(replace(forward, session_ms=session_ms), plain_tokens_per_second)


def drafter_on(gpu_bytes_s: float, weight_bytes: float) -> Drafting:
    """Return a drafter on a GPU of its own: every step reads its weights once."""
    step_ms = Gpus(1, gpu_bytes_s).read_ms(weight_bytes) + _LAUNCH_MS
    return Drafting(extend_ms=step_ms, step_ms=step_ms, row_ms=0.004)


def _dense_70b() -> Forward:
    """Llama-3.3-70B in bf16: 64.8 tok/s plain with TP8 (SpecActor, arXiv 2511.16193)."""
    forward = Architecture(80, 70.0, 2).forward(Gpus(8, H200), layer_ms=0.0)
    # 80 layers of 8 heads of 128, keys and values in bf16, split over the GPUs.
    session_ms = Gpus(8, H200).read_ms(80 * 2 * 8 * 128 * 2 * 4096)
    return scaled_to_plain(replace(forward, session_ms=session_ms), 64.8)


KIMI_ON_H200 = Gpus(8, H200, _H200_INT4_SHARE)
KIMI_ON_RTX_PRO_6000 = Gpus(8, RTX_PRO_6000, _RTX_PRO_6000_INT4_SHARE)

# 90 tok/s plain is the story of docs/tuning.md. No plain figure for RTX PRO 6000 was found: the
# same is assumed.
PRESETS = {
    hardware.name: hardware
    for hardware in (
        Hardware(
            "kimi-k2.5-8xh200",
            kimi_k2_5(KIMI_ON_H200, 90.0),
            drafter_on(H200, _KIMI_DRAFTER_BYTES),
            Network(),
        ),
        Hardware(
            "kimi-k2.5-8xpro6000",
            kimi_k2_5(KIMI_ON_RTX_PRO_6000, 90.0),
            drafter_on(RTX_PRO_6000, _KIMI_DRAFTER_BYTES),
            Network(),
        ),
        Hardware(
            "dense-70b",
            _dense_70b(),
            drafter_on(H200, _LLAMA_DRAFTER_BYTES),
            Network(tap_bytes=3 * 8192 * 2),
        ),
    )
}
