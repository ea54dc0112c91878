"""Shipped drafters are found by name, and by the target that they were trained on."""

import json

import pytest

from draft_service import shelf
from draft_service.shelf import SHELF, made_for, shipped_drafters
from protos.pairing import fingerprint


@pytest.fixture
def filled(tmp_path):
    for name, target in (("one", "f00d"), ("two", "beef"), ("foreign", None)):
        (tmp_path / name).mkdir()
        config = {"slipstream": {"target_fingerprint": target}} if target else {}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    (tmp_path / "half").mkdir()
    return tmp_path


def test_a_directory_with_a_config_is_a_drafter(filled):
    assert list(shipped_drafters(filled)) == ["foreign", "one", "two"]
    assert shipped_drafters(filled)["one"] == filled / "one"


def test_a_drafter_is_made_for_the_target_it_was_trained_on(filled):
    assert made_for("f00d", filled) == ["one"]
    assert made_for("0000", filled) == []


def test_an_empty_shelf_is_no_error(tmp_path):
    assert shipped_drafters(tmp_path / "nowhere") == {}


def test_the_shelf_lies_beside_the_packages():
    assert SHELF.parent == type(SHELF)(shelf.__file__).parent.parent


@pytest.mark.model
def test_the_embedded_model_has_a_drafter(smollm2):
    assert made_for(fingerprint(smollm2)) == ["smollm2-135m-eagle3"]
