"""Drafters are loaded for a target; one that does not fit is refused with its reason, not fatal."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from draft_service.drafters.target_side import TargetSide
from draft_service.registry import DrafterRefusedError, DrafterSpec, Registry
from protos.pairing import Pairing, fingerprint
from tests.tiny_models import LATENT, rewrite_as_speculators, write_tiny_eagle3

SIDE = TargetSide(num_layers=8, vocab_size=40, hidden_size=32, max_context_len=64)
TARGET = Pairing(hidden_size=32, vocab_size=40, tap_layers=(2, 4, 5), target_fingerprint="f00d")


@pytest.fixture
def eagle(tmp_path):
    """A drafter that fits."""
    return write_tiny_eagle3(tmp_path / "eagle", hidden=32, vocab=40, target_layers=8)


def loaded(*texts, side=SIDE, target=TARGET):
    registry = Registry([DrafterSpec.parse(text) for text in texts], kv_tokens=128)
    registry.load(side, target)
    return registry


def refusal(registry, drafter_id):
    with pytest.raises(DrafterRefusedError) as refused:
        registry.get(drafter_id)
    (listed,) = [one for one in registry.all if one.spec.drafter_id == drafter_id]
    assert listed.drafter is None
    assert listed.refusal == str(refused.value)
    return listed.refusal


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("ngram", DrafterSpec("ngram", None)),
        ("eagle=/models/e", DrafterSpec("eagle", Path("/models/e"))),
        ("ngram=/models/e", DrafterSpec("ngram", Path("/models/e"))),
        ("a=b=c", DrafterSpec("a", Path("b=c"))),
    ],
)
def test_a_drafter_is_ngram_or_an_id_and_a_directory(text, spec):
    assert DrafterSpec.parse(text) == spec


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("eagle", "must be `ngram` or ID=DIRECTORY, got 'eagle'"),
        ("/models/e", "drafter must be 1 to 64 .*got '/models/e'"),
        ("", "drafter must be 1 to 64 .*got ''"),
        ("=/models/e", "drafter must be 1 to 64 .*got ''"),
        ("a b=/models/e", "drafter must be 1 to 64 .*got 'a b'"),
        # Not the current directory.
        ("eagle=", "must be `ngram` or ID=DIRECTORY, got 'eagle='"),
        ("ngram=", "must be `ngram` or ID=DIRECTORY, got 'ngram='"),
    ],
)
def test_anything_else_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        DrafterSpec.parse(text)


def test_a_registry_needs_a_drafter():
    with pytest.raises(ValueError, match="at least one drafter is needed, got none"):
        Registry([], kv_tokens=64)


def test_two_drafters_cannot_have_the_same_id():
    with pytest.raises(ValueError, match=r"got \['a'\] twice"):
        Registry([DrafterSpec.parse(text) for text in ("a=x", "ngram", "a=y")], kv_tokens=64)


def test_nothing_is_there_before_the_target_is():
    registry = Registry([DrafterSpec.parse("ngram")], kv_tokens=64)

    assert registry.all == []
    with pytest.raises(KeyError, match="ngram"):
        registry.get("")


def test_drafters_are_found_by_id_and_the_first_is_the_default(eagle):
    registry = loaded(f"eagle={eagle}", "ngram")

    assert registry.default_id == "eagle"
    assert registry.get("") is registry.get("eagle")
    assert [registry.get(one).kind for one in ("eagle", "ngram")] == ["eagle3", "ngram"]
    assert [one.refusal for one in registry.all] == ["", ""]
    with pytest.raises(KeyError, match="other"):
        registry.get("other")


def test_drafters_of_all_formats_are_served_beside_each_other(tmp_path, eagle):
    sizes = {"hidden": 32, "vocab": 40, "target_layers": 8}
    speculators = rewrite_as_speculators(write_tiny_eagle3(tmp_path / "speculators", **sizes))
    latent = write_tiny_eagle3(tmp_path / "latent", **sizes, **LATENT)

    registry = loaded(f"a={eagle}", f"b={speculators}", f"c={latent}")

    assert [one.refusal for one in registry.all] == ["", "", ""]
    assert {registry.get(one).kind for one in "abc"} == {"eagle3"}


def test_the_first_drafter_that_fits_is_the_default():
    """A refused one would leave sessions that name none without drafts."""
    registry = loaded("gone=/nowhere", "ngram")

    assert registry.default_id == "ngram"
    assert registry.get("").kind == "ngram"
    assert loaded("gone=/nowhere").default_id == "gone"


@pytest.mark.parametrize(
    ("target", "reasons"),
    [
        ({"tap_layers": (2, 4, 6)}, ["tap_layers", "[2, 4, 5]", "[2, 4, 6]", "missing [5]"]),
        ({"protocol_version": 2}, ["protocol_version", "has 1,", "has 2"]),
        ({"vocab_size": 41}, ["vocab_size", "40", "41"]),
        ({"hidden_size": 33}, ["hidden_size", "32", "33"]),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused_with_both_values(eagle, target, reasons):
    """The others go on."""
    registry = loaded("ngram", f"eagle={eagle}", target=replace(TARGET, **target))

    reason = refusal(registry, "eagle")

    assert all(part in reason for part in reasons)
    assert len(registry.all) == 2


def test_a_target_of_another_size_than_the_drafters_is_refused(eagle):
    side = replace(SIDE, hidden_size=64)
    registry = loaded("ngram", f"eagle={eagle}", side=side, target=replace(TARGET, hidden_size=64))

    reason = refusal(registry, "eagle")

    assert "32" in reason
    assert "64" in reason
    assert registry.get("").kind == "ngram"


BROKEN = {
    "missing": (lambda path: [file.unlink() for file in path.iterdir()], "no config.json"),
    "no weights": (lambda path: (path / "model.safetensors").unlink(), "no .*safetensors"),
    "not JSON": (lambda path: (path / "config.json").write_text("{"), "line 1 column 2"),
    "not an object": (lambda path: (path / "config.json").write_text("[]"), "list"),
    "an empty config": (lambda path: (path / "config.json").write_text("{}"), "got None"),
    "cut weights": (
        lambda path: (path / "model.safetensors").write_bytes(b"\x10"),
        "not a safetensors file",
    ),
}


@pytest.mark.parametrize(("break_it", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_checkpoint_is_refused_and_the_others_go_on(eagle, break_it, reason):
    break_it(eagle)

    registry = loaded("ngram", f"eagle={eagle}")

    assert re.search(reason, refusal(registry, "eagle"))
    assert registry.get("ngram").kind == "ngram"


@pytest.mark.parametrize("name", ["hidden_size", "vocab_size", "num_attention_heads"])
@pytest.mark.parametrize("value", [None, "many", -1, 0])
def test_a_config_with_a_size_that_is_none_is_refused(eagle, name, value):
    path = eagle / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    assert refusal(loaded("ngram", f"eagle={eagle}"), "eagle")


def test_weights_borrowed_from_another_model_than_the_targets_are_refused(eagle, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    side = replace(SIDE, model_dir=model)

    reason = refusal(loaded("ngram", f"eagle={eagle}", side=side), "eagle")
    assert all(part in reason for part in (str(model), fingerprint(model), "f00d"))

    fits = replace(TARGET, target_fingerprint=fingerprint(model))
    assert loaded(f"eagle={eagle}", side=side, target=fits).get("eagle").kind == "eagle3"
