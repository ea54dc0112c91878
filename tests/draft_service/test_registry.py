"""Drafters are loaded for a target; one that does not fit is refused with its reason, not fatal."""

import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters.target_side import TargetSide
from draft_service.loader import DrafterRefusedError, DrafterSpec
from draft_service.outbox import Outbox
from draft_service.registry import Canary, DrafterExistsError, Registry
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
    registry.load_first(side, target)
    return registry


def refusal(registry, drafter_id):
    with pytest.raises(DrafterRefusedError) as refused:
        registry.entry(drafter_id)
    (listed,) = [one for one in registry.all if one.spec.drafter_id == drafter_id]
    assert listed.drafter is None
    assert listed.refusal == str(refused.value)
    return listed.refusal


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
        registry.route("s", "")


def test_drafters_are_found_by_id_and_the_first_is_the_default(eagle):
    registry = loaded(f"eagle={eagle}", "ngram")

    assert registry.default_id == "eagle"
    assert registry.route("s", "") is registry.entry("eagle")
    assert [registry.entry(one).loaded.kind for one in ("eagle", "ngram")] == ["eagle3", "ngram"]
    assert [one.refusal for one in registry.all] == ["", ""]
    with pytest.raises(KeyError, match="other"):
        registry.entry("other")


def test_drafters_of_all_formats_are_served_beside_each_other(tmp_path, eagle):
    sizes = {"hidden": 32, "vocab": 40, "target_layers": 8}
    speculators = rewrite_as_speculators(write_tiny_eagle3(tmp_path / "speculators", **sizes))
    latent = write_tiny_eagle3(tmp_path / "latent", **sizes, **LATENT)

    registry = loaded(f"a={eagle}", f"b={speculators}", f"c={latent}")

    assert [one.refusal for one in registry.all] == ["", "", ""]
    assert {registry.entry(one).loaded.kind for one in "abc"} == {"eagle3"}


def test_the_first_drafter_that_fits_is_the_default():
    """A refused one would leave sessions that name none without drafts."""
    registry = loaded("gone=/nowhere", "ngram")

    assert registry.default_id == "ngram"
    assert registry.route("s", "").loaded.kind == "ngram"
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
    assert registry.route("s", "").loaded.kind == "ngram"


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
    assert registry.entry("ngram").loaded.kind == "ngram"


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
    assert loaded(f"eagle={eagle}", side=side, target=fits).entry("eagle").loaded.kind == "eagle3"


def test_a_default_that_was_chosen_is_the_default_while_it_takes_sessions(eagle):
    registry = loaded("ngram", f"eagle={eagle}", "gone=/nowhere")
    registry.choose_default("eagle")
    assert registry.route("s", "").drafter_id == "eagle"

    with pytest.raises(DrafterRefusedError, match="nowhere"):
        registry.choose_default("gone")
    with pytest.raises(KeyError, match="other"):
        registry.choose_default("other")
    assert registry.default_id == "eagle"

    registry.take_out(registry.entry("eagle"), "it is never right")
    assert registry.default_id == "ngram"
    with pytest.raises(DrafterRefusedError, match="it is never right"):
        registry.route("s", "eagle")


def test_a_drafter_is_unloaded_with_its_last_session(eagle):
    registry = loaded("ngram", f"eagle={eagle}")
    entry = registry.entry("eagle")
    with registry.serving(entry, Outbox()):
        with registry.serving(entry, Outbox()):
            registry.begin_unload("eagle")
        assert not entry.gone.is_set()
        with pytest.raises(DrafterRefusedError, match="it is being unloaded"):
            registry.route("s", "eagle")
        with pytest.raises(DrafterExistsError, match="'eagle' is there already"):
            registry.begin_load(DrafterSpec("eagle", eagle))

    assert entry.gone.is_set()
    assert [one.drafter_id for one in registry.all] == ["ngram"]


def test_the_default_cannot_be_unloaded():
    """Unless it takes no sessions anyway."""
    registry = loaded("ngram")
    with pytest.raises(ValueError, match="'ngram' is the default: choose another one first"):
        registry.begin_unload("ngram")
    registry.take_out(registry.entry("ngram"), "wrong")
    registry.begin_unload("ngram")

    assert registry.all == []


def test_a_drafter_that_was_refused_may_be_loaded_again_or_unloaded(eagle):
    registry = loaded("ngram", "eagle=/nowhere", "gone=/nowhere")
    entry = registry.begin_load(DrafterSpec("eagle", eagle))
    assert refusal(registry, "eagle") == "it is being loaded"
    with pytest.raises(ValueError, match="'eagle' is being loaded"):
        registry.begin_unload("eagle")
    entry.become_ready(registry.loader.load(entry.spec))
    registry.begin_unload("gone")

    assert registry.route("s", "eagle") is entry
    assert len(registry.all) == 2


@given(st.floats(0, 1))
def test_a_canary_takes_its_share_and_always_the_same_sessions(share):
    registry = loaded("ngram", "other=/nowhere")
    registry.begin_load(DrafterSpec("other", None)).become_ready(registry.entry("ngram").loaded)
    registry.set_canary(Canary("other", share))
    sessions = [str(number) for number in range(500)]
    taken = [registry.route(session, "").drafter_id == "other" for session in sessions]

    # Four standard deviations.
    assert abs(sum(taken) / 500 - share) <= 4 * math.sqrt(share * (1 - share) / 500) + 1e-9
    assert taken == [registry.route(session, "").drafter_id == "other" for session in sessions]
    assert {registry.route(session, "ngram").drafter_id for session in sessions} == {"ngram"}


@pytest.mark.parametrize("how", ["unloaded", "taken out", "ended"])
def test_a_canary_that_ends_takes_nothing_more(how):
    registry = loaded("ngram", "other=/nowhere")
    entry = registry.begin_load(DrafterSpec("other", None))
    entry.become_ready(registry.entry("ngram").loaded)
    registry.set_canary(Canary("other", 1.0))
    assert registry.route("s", "").drafter_id == "other"
    match how:
        case "unloaded":
            registry.begin_unload("other")
        case "taken out":
            registry.take_out(entry, "wrong")
        case "ended":
            registry.set_canary(Canary("other", 0.0))

    assert registry.route("s", "").drafter_id == "ngram"
    assert registry.canary is None
