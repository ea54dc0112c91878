"""A shipped drafter says what it is, how good it is and how it was made."""

import json

import pytest

from training.model_card import ship

RECIPE = {
    "recipe": {"num_steps": 5, "step_decay": 0.8, "draft_vocab_size": 40},
    "schedule": {"num_tokens": 4000, "batch_tokens": 200, "learning_rate": 0.002},
    "source": {"model_name": "tiny", "target_fingerprint": "f00d", "weights": "bfloat16"},
    "data_tokens": 900,
    "samples": 30,
}
CARD = {
    "accept_length": 2.5,
    "between": [2.4, 2.6],
    "rounds": 100,
    "sessions": 5,
    "accepted_by_position": [0.8, 0.7],
}
FOUND = {
    "steps": 2,
    "scores": {"all": CARD, "chat, greedy": CARD | {"between": None}},
    "calibration": {
        "temperature": 1.5,
        "expected_error": 0.1,
        "expected_error_calibrated": 0.02,
    },
}


@pytest.fixture
def parts(tmp_path):
    training, report = tmp_path / "training", tmp_path / "report"
    (training / "drafter").mkdir(parents=True)
    report.mkdir()
    for path in (
        training / "drafter" / "config.json",
        training / "drafter" / "model.safetensors",
        training / "training.png",
        report / "evaluation.png",
    ):
        path.write_bytes(path.name.encode())
    (training / "recipe.json").write_text(json.dumps(RECIPE))
    (report / "evaluation.json").write_text(json.dumps(FOUND))
    return training, report


def test_everything_is_gathered_and_the_card_has_the_figures(parts, tmp_path):
    out = tmp_path / "tiny-eagle3"
    ship(*parts, out, "MIT")
    assert (out / "model.safetensors").read_bytes() == b"model.safetensors"
    card = (out / "README.md").read_text()
    assert "| all | 2.50 [2.40, 2.60] | 0.800 | 0.700 | 100 | 5 |" in card
    assert "| chat, greedy | 2.50 | 0.800 | 0.700 | 100 | 5 |" in card
    for said in ("# tiny-eagle3", "f00d", "900 tokens", "temperature 1.50", "MIT, as its target's"):
        assert said in card


def test_a_drafter_that_was_trained_on_is_named_and_no_path_is_given_away(parts, tmp_path):
    made = RECIPE["recipe"] | {"drafter": "/home/ann/drafters/older", "config": None}
    (parts[0] / "recipe.json").write_text(json.dumps(RECIPE | {"recipe": made}))
    ship(*parts, tmp_path / "out", "MIT")
    assert "begun with the weights of another drafter, `older`; 4000 tokens" in (
        (tmp_path / "out" / "README.md").read_text()
    )
    recipe = json.loads((tmp_path / "out" / "recipe.json").read_text())
    assert recipe == RECIPE | {"recipe": made | {"drafter": "older"}}


def test_a_drafter_that_was_shipped_is_replaced_and_nothing_else_is(parts, tmp_path):
    out = tmp_path / "out"
    ship(*parts, out, "MIT")
    ship(*parts, out, "MIT")
    (out / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"has 'thesis\.tex' in it"):
        ship(*parts, out, "MIT")


def test_an_unfinished_training_is_named(parts, tmp_path):
    training, report = parts
    (training / "training.png").unlink()
    with pytest.raises(ValueError, match=r"training\.png missing"):
        ship(training, report, tmp_path / "out", "MIT")
    assert not (tmp_path / "out").exists()
