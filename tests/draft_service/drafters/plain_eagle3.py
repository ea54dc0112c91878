"""EAGLE-3 once more, in plain torch, from the description of its forward: what drafts should be.

Nothing is kept between calls. Every guess is made by recomputing all rows from their inputs, with a
softmax over a causal mask. Shares no code with what it judges, not even the noise.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from protos.messages import SamplingParams


@dataclass
class PlainEagle3:
    """A checkpoint, with embedding and head taken from `shared` where it has none."""

    directory: Path
    shared: dict[str, torch.Tensor] | None = None

    def __post_init__(self) -> None:
        self.config = json.loads((self.directory / "config.json").read_text())
        self.w = load_file(self.directory / "model.safetensors")
        self.nested = self.config.get("eagle_config", {})
        vocab = self.config["vocab_size"]
        offsets = self.w.get("d2t", torch.zeros(vocab, dtype=torch.int64))
        self.ids = [i + int(offset) for i, offset in enumerate(offsets)]
        if self.shared:
            self.w.setdefault("embed_tokens.weight", self.shared["embed"])
            self.w.setdefault("lm_head.weight", self.shared["head"][self.ids])

    @property
    def rotated_dim(self) -> int:
        return self.config["head_dim"]

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        """[T, 3 * target hidden] -> [T, hidden]."""
        if self.config.get("fc_norm"):
            width = self.config["target_hidden_size"]
            taps = torch.cat(
                [
                    self.norm(taps[:, start : start + width], f"fc_norm.{start // width}")
                    for start in range(0, taps.shape[1], width)
                ],
                dim=1,
            )
        if self.config.get("norm_before_fc"):
            taps = self.norm(taps, "input_norm")
        return F.linear(taps, self.w["fc.weight"], self.w.get("fc.bias"))

    def chain(
        self,
        tokens: list[int],
        h: torch.Tensor,
        first_row: int,
        num_drafts: int,
        sampling: SamplingParams,
    ) -> tuple[list[int], list[float], torch.Tensor]:
        """Return drafts after `tokens`, their log-probabilities, and the rows' hidden inputs.

        h[i] is the hidden input of the row at position first_row + i, which reads the token after
        it.
        """
        tokens, logprobs = list(tokens), []
        committed = len(tokens)
        for _ in range(num_drafts):
            normed, prenorm = self.forward(tokens[first_row + 1 :], h, first_row)
            logits = self.full_logits(normed[-1])
            tokens.append(choose(logits, len(tokens), sampling))
            logprobs.append(float(logits.log_softmax(0)[tokens[-1]]))
            feedback = normed if self.config.get("norm_output") else prenorm
            h = torch.cat([h, feedback[-1:]])
        return tokens[committed:], logprobs, h

    def forward(
        self, tokens: list[int], h: torch.Tensor, first_row: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        embedded = self.w["embed_tokens.weight"][tokens]
        if self.nested.get("use_input_layernorm_in_first_layer", True):
            embedded = self.norm(embedded, "midlayer.input_layernorm")
        normed_h = self.norm(h, "midlayer.hidden_norm")
        residual = normed_h if self.config.get("norm_before_residual") else h
        x = torch.cat([embedded, normed_h], dim=1)
        h = residual + self.attention(x, first_row)
        x = self.norm(h, "midlayer.post_attention_layernorm")
        gated = F.silu(self.linear(x, "mlp.gate_proj")) * self.linear(x, "mlp.up_proj")
        prenorm = h + self.linear(gated, "mlp.down_proj")
        last_norm = self.nested.get("use_last_layernorm", True)
        return (self.norm(prenorm, "norm") if last_norm else prenorm), prenorm

    def attention(self, x: torch.Tensor, first_row: int) -> torch.Tensor:
        rows, dim = len(x), self.config["head_dim"]
        positions = range(first_row, first_row + rows)
        q = self.linear(x, "self_attn.q_proj").view(rows, -1, dim)
        k = self.linear(x, "self_attn.k_proj").view(rows, -1, dim)
        v = self.linear(x, "self_attn.v_proj").view(rows, -1, dim)
        if self.config.get("qk_norm"):
            q, k = (
                self.norm(q, "midlayer.self_attn.q_norm"),
                self.norm(k, "midlayer.self_attn.k_norm"),
            )
        q, k = (torch.stack([self.turn(y[i], p) for i, p in enumerate(positions)]) for y in (q, k))
        group = q.shape[1] // k.shape[1]
        seen = torch.ones(rows, rows, dtype=torch.bool).tril()
        heads = []
        for head in range(q.shape[1]):
            scores = q[:, head] @ k[:, head // group].T / math.sqrt(dim)
            heads.append(scores.masked_fill(~seen, -math.inf).softmax(1) @ v[:, head // group])
        return self.linear(torch.cat(heads, dim=1), "self_attn.o_proj")

    def turn(self, heads: torch.Tensor, position: int) -> torch.Tensor:
        """Rotate [heads, dim] to a position: dimension i pairs with i + dim / 2."""
        half = heads.shape[1] // 2
        angles = torch.tensor([position * rate for rate in self.rates()], dtype=torch.float32)
        a, b = heads[:, :half], heads[:, half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=1) * self.amplitude()

    def rates(self) -> list[float]:
        theta, dim = self.config["rope_theta"], self.rotated_dim
        plain = [theta ** (-2 * i / dim) for i in range(dim // 2)]
        yarn = self.config.get("rope_scaling")
        if not yarn:
            return plain

        def crossing(turns: float) -> float:
            length = yarn["original_max_position_embeddings"] / (turns * 2 * math.pi)
            return dim * math.log(length) / (2 * math.log(theta))

        low = max(math.floor(crossing(yarn["beta_fast"])), 0)
        high = min(math.ceil(crossing(yarn["beta_slow"])), dim - 1)
        ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(dim // 2)]
        return [r - m * (r - r / yarn["factor"]) for r, m in zip(plain, ramp, strict=True)]

    def amplitude(self) -> float:
        """YaRN's factor on cos and sin, as a ratio."""
        yarn = self.config.get("rope_scaling")
        if not yarn:
            return 1.0
        over, under = (
            0.1 * yarn[name] * math.log(yarn["factor"]) + 1 for name in ("mscale", "mscale_all_dim")
        )
        return over / under

    def full_logits(self, normed: torch.Tensor) -> torch.Tensor:
        full = torch.full((self.config["vocab_size"],), -math.inf)
        full[self.ids] = self.w["lm_head.weight"] @ normed
        return full

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = self.w[f"midlayer.{name}.weight"], self.w.get(f"midlayer.{name}.bias")
        return F.linear(x, weight, bias)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        mean = x.pow(2).mean(dim=-1, keepdim=True)
        return x / torch.sqrt(mean + self.config["rms_norm_eps"]) * self.w[f"{name}.weight"]


def choose(logits: torch.Tensor, position: int, sampling: SamplingParams) -> int:
    """Gumbel-max over what min_p, top_k and top_p leave, with the session's own noise."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    kept = (logits / sampling.temperature).tolist()
    floor = max(kept) + math.log(sampling.min_p) if sampling.min_p else -math.inf
    ranked = sorted((value for value in kept if value >= floor), reverse=True)
    if sampling.top_k > 0:
        ranked = ranked[: sampling.top_k]
    mass = [math.exp(value - max(kept)) for value in ranked]
    count = next(
        n
        for n in range(1, len(mass) + 1)
        if sum(mass[:n]) >= sampling.top_p * sum(mass) or n == len(mass)
    )
    least = ranked[count - 1]
    noisy = {
        token: value + gumbel(sampling.seed, position, token)
        for token, value in enumerate(kept)
        if value >= least
    }
    return max(noisy, key=lambda token: noisy[token])


def gumbel(seed: int, position: int, token: int) -> float:
    """Philox4x32-10 at counter (token // 4, position), key = seed; its word token % 4."""
    c, key = [token // 4, position, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [
            (b >> 32) ^ c[1] ^ key[0],
            b & 0xFFFFFFFF,
            (a >> 32) ^ c[3] ^ key[1],
            a & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    uniform = (c[token % 4] + 0.5) / 2**32
    return -math.log(-math.log1p(-uniform))
