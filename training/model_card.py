"""A trained drafter made ready to be given away: checkpoint, report, pictures and a model card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CHECKPOINT = ("config.json", "model.safetensors")
_REPORT = ("evaluation.json", "evaluation.png")
# Of a recipe: where something lay on the machine that trained.
_DIRECTORIES = ("drafter", "config")


def ship(training: Path, report: Path, out: Path, model_licence: str) -> None:
    """Gather a training's drafter and its report in `out`, with a README that says it all.

    What was shipped there before is replaced. Raises ValueError for a directory in which something
    is missing, and for an `out` in which there is something else.
    """
    parts = [
        *(training / "drafter" / name for name in _CHECKPOINT),
        *(report / name for name in _REPORT),
        training / "training.png",
        training / "recipe.json",
    ]
    if missing := [str(part) for part in parts if not part.is_file()]:
        raise ValueError(f"not a finished training with a report: {', '.join(missing)} missing")
    if foreign := {path.name for path in out.glob("*")} - {*(p.name for p in parts), "README.md"}:
        raise ValueError(f"{out} has {sorted(foreign)[0]!r} in it: a drafter needs its own")
    out.mkdir(parents=True, exist_ok=True)
    for part in parts:
        shutil.copyfile(part, out / part.name)
    recipe = _without_paths(json.loads((training / "recipe.json").read_text()))
    (out / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n")
    found = json.loads((report / "evaluation.json").read_text())
    (out / "README.md").write_text(model_card(out.name, recipe, found, model_licence))


def _without_paths(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe that names directories as others know them."""
    made = recipe["recipe"]
    names = {key: Path(made[key]).name for key in _DIRECTORIES if made.get(key) is not None}
    return {**recipe, "recipe": {**made, **names}}


def model_card(
    name: str, recipe: Mapping[str, Any], found: Mapping[str, Any], model_licence: str
) -> str:
    """Return the README of a drafter."""
    source, made, schedule = recipe["source"], recipe["recipe"], recipe["schedule"]
    lines = [
        f"# {name}",
        "",
        f"An EAGLE-3 drafter for {source['model_name']} (fingerprint "
        f"`{source['target_fingerprint']}`, weights {source['weights']}). "
        "Format: SafeAILab, SGLang. It shares its target's embedding.",
        "",
        "## How good it is",
        "",
        f"Chains of {found['steps']} drafts on conversations that were held out (one of twenty, by "
        "a hash of their ids). Positions: the share of rounds in which all drafts up to there were "
        "accepted. In brackets: 95 % confidence, from the spread between conversations.",
        "",
        *_table(found),
        "",
        *_calibration(found),
        "![acceptance](evaluation.png)",
        "",
        "## How it was made",
        "",
        f"- Data: {recipe['samples']} conversations of {recipe['data_tokens']} tokens, made up and "
        "answered by the target itself (`slipstream record`); no data set.",
        f"- Training: {_beginning(made)}{schedule['num_tokens']} tokens seen, "
        f"{schedule['batch_tokens']} a step, AdamW, learning rate "
        f"{schedule['learning_rate']:g} with a cosine, unrolled over up to "
        f"{made['num_steps']} guesses with weights {made['step_decay']}^i, cross entropy against "
        "the target's own distribution (`slipstream train`); all in `recipe.json`.",
        f"- Draft vocabulary: {made['draft_vocab_size']} tokens, those that the target chose, "
        "and would choose, most.",
        "",
        "![training](training.png)",
        "",
        "## Licence",
        "",
        f"{model_licence}, as its target's: it was trained on nothing but what that said.",
        "",
    ]
    return "\n".join(lines)


def _beginning(made: Mapping[str, Any]) -> str:
    drafter = made.get("drafter")
    return "" if drafter is None else f"begun with the weights of another drafter, `{drafter}`; "


def _table(found: Mapping[str, Any]) -> list[str]:
    positions = [str(position) for position in range(1, found["steps"] + 1)]
    heads = ["", "accept length", *positions, "rounds", "conversations"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for name, card in found["scores"].items():
        between = "" if card["between"] is None else " [{:.2f}, {:.2f}]".format(*card["between"])
        rates = [f"{rate:.3f}" for rate in card["accepted_by_position"]]
        counts = [str(card["rounds"]), str(card["sessions"])]
        lines.append(_row([name, f"{card['accept_length']:.2f}{between}", *rates, *counts]))
    return lines


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _calibration(found: Mapping[str, Any]) -> list[str]:
    if "calibration" not in found:
        return []
    calibration = found["calibration"]
    before, after = calibration["expected_error"], calibration["expected_error_calibrated"]
    return [
        f"Its probabilities are off by {before:.3f} on average (ECE), and by {after:.3f} at "
        f"temperature {calibration['temperature']:.2f}, which `evaluation.json` states for whoever "
        "plans by them.",
        "",
    ]
