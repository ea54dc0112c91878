"""The training loop: batches in an order that a seed decides, AdamW, a cosine, checkpoints.

Several processes (`torchrun`) each take every n-th batch and average their gradients.

Legend: S steps of the unroll.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from training.checkpoint import load_checkpoint, save_checkpoint
from training.curves import Curves
from training.dataset import Batch, Dataset, padded_tokens
from training.draft_module import DraftModule
from training.objective import Objective, Progress
from training.ranks import rank, world_size

_CLIP = 1.0


@dataclass(frozen=True)
class Schedule:
    """How long, how fast, and in what bites."""

    num_tokens: int
    """Tokens seen, with padding, those seen again among them."""
    batch_tokens: int = 1024
    learning_rate: float = 2e-3
    warmup: float = 0.02
    weight_decay: float = 0.0
    seed: int = 0
    checkpoint_every_s: float = 300.0
    report_every: int = 10

    def __post_init__(self) -> None:
        """Raises ValueError for what teaches nothing."""
        if not 0 < self.learning_rate < 1:
            raise ValueError(f"learning_rate must be in (0, 1), got {self.learning_rate}")

    def rate_at(self, tokens: int) -> float:
        """Return the learning rate once so many tokens were seen: warm-up, then a cosine to 1 %."""
        share = min(tokens / self.num_tokens, 1.0)
        if share < self.warmup:
            return self.learning_rate * (share / self.warmup + 1e-3)
        cosine = 0.5 + 0.5 * math.cos(math.pi * (share - self.warmup) / (1 - self.warmup))
        return self.learning_rate * (0.01 + 0.99 * cosine)

    def steps_at(self, tokens: int, num_steps: int) -> int:
        """Return how many guesses in a row are trained: two at first, all in the last third.

        What comes later in a chain can only be learnt when what comes first is right.
        """
        share = 1.25 * tokens / self.num_tokens
        return min(max(2, math.ceil(share * num_steps)), num_steps)


@dataclass
class Tally:
    """What batches since the last report came to."""

    loss: float = 0.0
    batches: int = 0
    accepted_S: torch.Tensor | int = 0
    started_S: torch.Tensor | int = 0
    since: float = field(default_factory=time.perf_counter)
    tokens: int = 0

    def add(self, progress: Progress, tokens: int) -> None:
        self.loss += progress.loss.item()
        self.batches += 1
        self.accepted_S = self.accepted_S + progress.accepted_S
        self.started_S = self.started_S + progress.started_S
        self.tokens += tokens

    def report(self) -> dict[str, float]:
        """Return means by name. `acceptance_s`: the first s guesses were all right."""
        acceptance_S = torch.as_tensor(self.accepted_S) / torch.as_tensor(self.started_S).clamp(
            min=1
        )
        return {
            "loss": self.loss / self.batches,
            "tokens_per_second": self.tokens / (time.perf_counter() - self.since),
            **{f"acceptance_{s}": float(share) for s, share in enumerate(acceptance_S, 1)},
        }


class Trainer:
    """Trains a module on a data set, from its checkpoint on if there is one."""

    def __init__(
        self, module: DraftModule, objective: Objective, schedule: Schedule, directory: Path
    ) -> None:
        self.module = module
        self._objective = objective
        self._schedule = schedule
        self._checkpoint = directory / "checkpoint.safetensors"
        self._curves = Curves(directory / "training.csv")
        self._optimizer = torch.optim.AdamW(
            module.parameters(), betas=(0.9, 0.95), weight_decay=schedule.weight_decay, fused=True
        )
        self._place = {"step": 0, "tokens": 0, "epoch": 0, "batch": 0}
        if self._checkpoint.exists():
            self._place = load_checkpoint(self._checkpoint, module, self._optimizer)
            if not rank():
                self._curves.cut(self._place["step"])

    def train(self, dataset: Dataset, told: Callable[[dict[str, float]], None]) -> None:
        """Train until enough tokens were seen; `told` reports from time to time.

        The last checkpoint is written however this ends, so nothing is lost by Ctrl-C.
        """
        place, tally = self._place, Tally()
        saved = time.perf_counter()
        try:
            for batch, num_tokens in self._batches(dataset):
                progress = self._step(batch, num_tokens)
                tally.add(progress, num_tokens)
                if place["step"] % self._schedule.report_every == 0:
                    self._report(tally, told)
                    tally = Tally()
                if time.perf_counter() - saved > self._schedule.checkpoint_every_s:
                    self._save()
                    saved = time.perf_counter()
            if tally.batches:
                self._report(tally, told)
        finally:
            self._save()

    def _batches(self, dataset: Dataset) -> Iterator[tuple[Batch, int]]:
        """Yield our batches that are still to come, and the tokens of all processes' batches.

        All processes count alike, so they end together.
        """
        place, schedule = self._place, self._schedule
        while True:
            groups = dataset.groups(schedule.batch_tokens, schedule.seed + place["epoch"])
            if len(groups) < world_size():
                raise ValueError(f"{len(groups)} batches are too few for {world_size()} processes")
            for first in range(place["batch"], len(groups) - world_size() + 1, world_size()):
                if place["tokens"] >= schedule.num_tokens:
                    return
                together = groups[first : first + world_size()]
                yield dataset.batch(together[rank()]), sum(map(padded_tokens, together))
            place["epoch"] += 1
            place["batch"] = 0

    def _step(self, batch: Batch, num_tokens: int) -> Progress:
        place, module = self._place, self.module
        for group in self._optimizer.param_groups:
            group["lr"] = self._schedule.rate_at(place["tokens"])
        with torch.autocast(module.fc.weight.device.type, torch.bfloat16):
            num_steps = self._schedule.steps_at(place["tokens"], self._objective.num_steps)
            progress = self._objective(module, batch, num_steps)
        if not progress.loss.isfinite():
            raise ValueError(
                f"the loss is {progress.loss.item()} at step {place['step']}: "
                f"a learning rate below {self._schedule.learning_rate:g} may help"
            )
        progress.loss.backward()
        _average_gradients(module)
        torch.nn.utils.clip_grad_norm_(module.parameters(), _CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad()
        place["step"] += 1
        place["batch"] += world_size()
        place["tokens"] += num_tokens
        return progress

    def _report(self, tally: Tally, told: Callable[[dict[str, float]], None]) -> None:
        if rank():
            return
        place = self._place
        report = {
            "step": place["step"],
            "tokens": place["tokens"],
            "learning_rate": self._schedule.rate_at(place["tokens"]),
            **tally.report(),
        }
        self._curves.add(report)
        told(report)

    def _save(self) -> None:
        if not rank() and self._place["step"]:
            save_checkpoint(self._checkpoint, self.module, self._optimizer, self._place)


def _average_gradients(module: DraftModule) -> None:
    if world_size() == 1:
        return
    for parameter in module.parameters():
        assert parameter.grad is not None, "every parameter takes part"
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= world_size()
