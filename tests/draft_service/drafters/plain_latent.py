"""Latent attention as DeepSeek-V2 defines it, written out: keys and values of every head."""

import math

import torch

from tests.draft_service.drafters.plain_eagle3 import PlainEagle3


class PlainLatent(PlainEagle3):
    """An MLA drafter."""

    @property
    def rotated_dim(self) -> int:
        return self.config["qk_rope_head_dim"]

    def score_scale(self) -> float:
        """1 / sqrt(head), and with YaRN its mscale squared."""
        scale = 1 / math.sqrt(self.config["qk_nope_head_dim"] + self.rotated_dim)
        yarn = self.config.get("rope_scaling")
        if yarn:
            scale *= (0.1 * yarn["mscale_all_dim"] * math.log(yarn["factor"]) + 1) ** 2
        return scale

    def attention(self, x: torch.Tensor, first_row: int) -> torch.Tensor:
        config, rows, heads = self.config, len(x), self.config["num_attention_heads"]
        nope, rank = config["qk_nope_head_dim"], config["kv_lora_rank"]
        q = self.linear(x, "self_attn.q_a_proj")
        q = self.linear(self.norm(q, "midlayer.self_attn.q_a_layernorm"), "self_attn.q_b_proj")
        q = q.view(rows, heads, -1)
        down = self.linear(x, "self_attn.kv_a_proj_with_mqa")
        c = self.norm(down[:, :rank], "midlayer.self_attn.kv_a_layernorm")
        kv = self.linear(c, "self_attn.kv_b_proj").view(rows, heads, -1)
        seen = torch.ones(rows, rows, dtype=torch.bool).tril()
        positions = range(first_row, first_row + rows)
        shared = torch.stack(
            [self.turn(down[i, None, rank:], p)[0] for i, p in enumerate(positions)]
        )
        turned = torch.stack([self.turn(q[i, :, nope:], p) for i, p in enumerate(positions)])
        outs = []
        for head in range(heads):
            scores = q[:, head, :nope] @ kv[:, head, :nope].T + turned[:, head] @ shared.T
            weights = (scores * self.score_scale()).masked_fill(~seen, -math.inf).softmax(1)
            outs.append(weights @ kv[:, head, nope:])
        return self.linear(torch.cat(outs, dim=1), "self_attn.o_proj")

    def turn(self, heads: torch.Tensor, position: int) -> torch.Tensor:
        """Rotate [heads, dim] to a position: dimension 2 i pairs with 2 i + 1."""
        turned = heads.clone()
        for i, rate in enumerate(self.rates()):
            angle = torch.tensor(position * rate, dtype=torch.float32)
            a, b = heads[:, 2 * i], heads[:, 2 * i + 1]
            turned[:, 2 * i] = a * angle.cos() - b * angle.sin()
            turned[:, 2 * i + 1] = b * angle.cos() + a * angle.sin()
        return turned * self.amplitude()
