"""Prompts are read whole before any is answered, and a wrong line is named."""

from __future__ import annotations

import pytest

from slipstream.generate import Options, Prompt, read_prompts


def test_a_prompt_file_gives_prompts_and_tasks_in_order(tmp_path):
    """Empty lines are skipped; a task may be left out."""
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "one", "task": "t"}\n\n{"prompt": "two"}\n')

    assert read_prompts(None, path) == [Prompt("one", "t"), Prompt("two", "")]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("nonsense\n", ":1 is not JSON"),
        ('{"prompt": 1}', ":1 needs"),
        ("[]", ":1"),
        ("\n", "no pr"),
    ],
)
def test_a_bad_file_is_refused_naming_the_line(tmp_path, content, named):
    """File, line, and what it needs."""
    path = tmp_path / "p.jsonl"
    path.write_text(content)

    with pytest.raises(ValueError, match=named):
        read_prompts(None, path)


@pytest.mark.parametrize(("raw", "kind"), [(True, "text"), (False, "chat")])
def test_raw_leaves_the_template_out(raw, kind):
    """Otherwise a prompt is a user's message."""
    options = Options({}, {}, {}, "auto", raw=raw)

    assert options.request(Prompt("x", "")).to_proto().WhichOneof("prompt") == kind
