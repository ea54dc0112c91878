"""The models, prompts and sampling parameters that the engine's laws are held against."""

import random

import torch

from protos.messages import SamplingParams
from target_service.models.llama import Llama
from tests.target_service.played_session import PlayedSession

VOCAB = 1500
TAPS = (0, 1, 3)
NUM_NEW = 24
EVEN = tuple(range(0, VOCAB, 2))
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0, top_logprobs=5),
    "nucleus": SamplingParams(temperature=0.8, top_p=0.95, seed=2**40 + 7, top_logprobs=1),
    "everything": SamplingParams(
        temperature=1.0,
        seed=11,
        presence_penalty=0.5,
        frequency_penalty=0.7,
        repetition_penalty=1.3,
        logit_bias={5: 4.0, 6: 4.0, 7: -100.0},
        suppressed_token_ids=EVEN,
        min_new_tokens=7,
        top_logprobs=20,
    ),
}
PROMPT_LENS = (1, 17, 63, 64, 130)
SIZES = {
    "float32": {"hidden": 64, "heads": 4, "kv_heads": 2, "dtype": torch.float32},
    "bfloat16": {"hidden": 96, "heads": 6, "kv_heads": 2, "head_dim": 32, "dtype": torch.bfloat16},
}


def prompt_of(length: int) -> list[int]:
    rng = random.Random(length)
    return [rng.randrange(VOCAB) for _ in range(length)]


def play(model: Llama, sampling: str, prompt_len: int, chunk_len: int = 1) -> PlayedSession:
    return PlayedSession(
        model, prompt_of(prompt_len), SAMPLINGS[sampling], tap_layers=TAPS, chunk_len=chunk_len
    )
