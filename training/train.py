"""Train an EAGLE-3 drafter on recordings of its target.

    choose the draft vocabulary: the tokens the target chose, and would choose, most often
    begin with copies of the target's final norm and head
    train: guess on from the drafter's own output, as when it serves
    write a checkpoint that every engine reads

Legend: N drafter's vocabulary, V target's vocabulary.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from draft_service.drafters.checkpoint_config import CheckpointFormat
from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.drafters.trained_with import SECTION
from draft_service.weights import read_config
from training.curves import Curves, plot_training
from training.dataset import Dataset
from training.draft_module import DraftModule
from training.draft_vocab import DraftVocab
from training.drafter_config import drafter_config
from training.export import Checkpoint, write_checkpoint
from training.objective import Objective
from training.ranks import rank
from training.recording import Source
from training.tap_columns import columns_of
from training.target_weights import TargetWeights
from training.teacher import ChosenTokens, TargetHead, Teacher
from training.token_weights import token_weights
from training.trainer import Schedule, Trainer
from training.warm_start import warm_start


@dataclass(frozen=True)
class Recipe:
    """What is trained, on what. What a recipe and its recordings are decides the drafter."""

    tap_layers: tuple[int, ...] = ()
    """Input-of-layer ids; none: all recorded ones but the target's last output."""
    draft_vocab_size: int = 8192
    max_len: int = 768
    num_steps: int = 5
    step_decay: float = 0.8
    fc_norm: bool = False
    norm_output: bool = False
    warm: bool = True
    config: Path | None = None
    """A drafter's config.json, for what does not have its target's shape."""
    drafter: Path | None = None
    """A drafter to begin with, which decides all about shape and vocabulary."""
    max_data_tokens: int = 0
    """Use so much of the recordings only; 0: all."""


def train(
    recordings: Sequence[Path],
    model_dir: Path,
    recipe: Recipe,
    schedule: Schedule,
    directory: Path,
    told: Callable[[Mapping[str, Any]], None],
) -> Path:
    """Train, or go on with what was begun in `directory`; return the drafter's directory.

    Raises ValueError if recordings, target and recipe do not fit each other, or if another recipe
    was begun there.
    """
    dataset = Dataset(recordings, held_out=False, max_len=recipe.max_len)
    if recipe.max_data_tokens:
        dataset = dataset.limited(recipe.max_data_tokens)
    directory.mkdir(parents=True, exist_ok=True)
    _check_same_recipe(directory, recipe, schedule, dataset)
    target = TargetWeights.read(model_dir, dataset.source)
    torch.manual_seed(schedule.seed)
    begun = _begin(recipe, target, dataset)
    module, config, vocab = begun.module, begun.config, begun.vocab
    told({"data_tokens": dataset.num_tokens, "draft_vocab_coverage": vocab.coverage})
    objective = _objective(module.config, recipe, target, vocab, dataset.source)
    Trainer(module, objective, schedule, directory).train(dataset, told)
    if rank():
        return directory / "drafter"
    plot_training(Curves(directory / "training.csv").columns(), directory / "training.png")
    return _write(module, config, vocab, dataset.source, directory / "drafter")


def _write(
    module: DraftModule,
    config: dict[str, Any],
    vocab: DraftVocab,
    source: Source,
    directory: Path,
) -> Path:
    """Write the drafter as SafeAILab and SGLang do, over an older one if it is there."""
    tensors = {name: value.detach().bfloat16() for name, value in module.named_parameters()}
    paired = {
        "target_model": source.model_name,
        "target_fingerprint": source.target_fingerprint,
        "tokenizer_digest": source.tokenizer_digest,
    }
    checkpoint = Checkpoint(config | {SECTION: paired}, tensors | vocab.tensors())
    shutil.rmtree(directory, ignore_errors=True)
    write_checkpoint(checkpoint, directory, CheckpointFormat.SGLANG)
    return directory


def _config(recipe: Recipe, target: TargetWeights, source: Source) -> dict[str, Any]:
    if recipe.config is not None:
        return read_config(recipe.config)
    layers = recipe.tap_layers or tuple(
        layer for layer in source.tap_layers if layer != source.num_layers
    )
    return drafter_config(
        target.config,
        layers,
        recipe.draft_vocab_size,
        fc_norm=recipe.fc_norm,
        norm_output=recipe.norm_output,
    )


@dataclass(frozen=True)
class _Begun:
    """A drafter before its training."""

    module: DraftModule
    config: dict[str, Any]
    vocab: DraftVocab


def _begin(recipe: Recipe, target: TargetWeights, dataset: Dataset) -> _Begun:
    counts_V = dataset.token_counts(dataset.source.vocab_size)
    if recipe.drafter is not None:
        return _go_on_with(recipe.drafter, recipe, counts_V, dataset.source)
    weights_V = token_weights(dataset, target)
    vocab = DraftVocab.choose(weights_V, counts_V, recipe.draft_vocab_size)
    config = _config(recipe, target, dataset.source)
    module = _module(config, recipe, dataset.source)
    if recipe.warm:
        warm_start(module, target.norm_H, target.head_VH[vocab.ids_N])
    return _Begun(module, config, vocab)


def _go_on_with(drafter: Path, recipe: Recipe, counts_V: torch.Tensor, source: Source) -> _Begun:
    """Begin with a drafter that exists: its shape, its vocabulary, its weights."""
    checkpoint = Checkpoint.read(drafter)
    tensors, config = dict(checkpoint.tensors), dict(checkpoint.config)
    ids_N = torch.arange(source.vocab_size)
    if "d2t" in tensors:
        ids_N = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    module = _module(config, recipe, source)
    ours = dict(module.named_parameters())
    if missing := ours.keys() - tensors.keys():
        raise ValueError(f"{drafter} has no {', '.join(sorted(missing))}: it cannot be trained on")
    module.load_state_dict({name: tensors[name].float() for name in ours})
    return _Begun(module, config, DraftVocab.of(ids_N, counts_V))


def _module(config: Mapping[str, Any], recipe: Recipe, source: Source) -> DraftModule:
    return DraftModule(Eagle3Config.from_json(config, source.num_layers), recipe.max_len)


def _objective(
    config: Eagle3Config, recipe: Recipe, target: TargetWeights, vocab: DraftVocab, source: Source
) -> Objective:
    final = [source.num_layers] if source.num_layers in source.tap_layers else []
    teacher: Teacher = ChosenTokens(len(vocab.ids_N))
    if final:
        teacher = TargetHead(target.norm_H, target.eps, target.head_VH[vocab.ids_N])
    return Objective(
        target.embedding_VH,
        teacher,
        vocab.draft_ids(),
        columns_of(config.tap_layers, source),
        columns_of(final, source),
        recipe.num_steps,
        recipe.step_decay,
    )


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _check_same_recipe(
    directory: Path, recipe: Recipe, schedule: Schedule, dataset: Dataset
) -> None:
    """A training that goes on must be the one that was begun."""
    path = directory / "recipe.json"
    now = {
        "recipe": {name: _plain(value) for name, value in asdict(recipe).items()},
        "schedule": asdict(schedule),
        "source": asdict(dataset.source),
        "data_tokens": dataset.num_tokens,
        "samples": len(dataset.entries),
    }
    text = json.dumps(now, indent=1) + "\n"
    if not path.exists():
        path.write_text(text)
    elif path.read_text() != text:
        raise ValueError(
            f"{path} was begun with another recipe or other data: choose another directory, "
            "or delete this one"
        )
