"""Prompts are read whole before any is answered, and a wrong line is named."""

from __future__ import annotations

import json

import pytest

from protos import gateway_pb2 as pb
from slipstream.chat import summary
from slipstream.client import Completion
from slipstream.generate import Options, Prompt, read_prompts, trouble


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


def test_a_json_string_may_hold_other_line_separators(tmp_path):
    """U+2028 and U+0085 end no line of a JSONL file; a byte order mark is no part of it."""
    path = tmp_path / "p.jsonl"
    path.write_text('\ufeff{"prompt": "a\u2028b\x85c"}\n', encoding="utf-8")

    assert read_prompts(None, path) == [Prompt("a\u2028b\x85c", "")]


@pytest.mark.parametrize("line", [b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}'])
def test_what_is_no_unicode_is_named_with_its_line(tmp_path, line):
    """Stray bytes and lone surrogates: file and line, no codec's message alone."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n' + line)

    with pytest.raises(ValueError, match=r"p\.jsonl:2 is not"):
        read_prompts(None, path)


def test_a_prompt_with_stray_bytes_is_refused():
    """As the command line passes them on: a lone surrogate."""
    with pytest.raises(ValueError, match="the prompt is not valid Unicode at character 2"):
        read_prompts("hi\udcff", None)


def test_a_line_may_have_a_conversation(tmp_path):
    """It is continued through the chat template, which --raw would leave out."""
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"messages": [*said, said[0]], "task": "t"}))
    (prompt,) = read_prompts(None, path)

    asked = Options({}, {}, {}, "auto").request(prompt).to_proto()

    assert [message.content for message in asked.chat.messages] == ["hi", "hello", "hi"]
    with pytest.raises(ValueError, match="--raw"):
        Options({}, {}, {}, "auto", raw=True).request(prompt)


@pytest.mark.parametrize("message", ["hi", {"role": "user"}, {"content": "x"}, {"role": 1}])
def test_a_message_needs_a_role_and_a_content(tmp_path, message):
    """What is wrong is told with its line."""
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"messages": [message]}))

    with pytest.raises(ValueError, match=':1: a message needs a "role" and a "content"'):
        read_prompts(None, path)


@pytest.mark.parametrize(
    ("stats", "told"),
    [
        ({"drafted": 3, "drafter_trouble": "it was late once"}, ""),
        ({"drafter_trouble": "no drafter"}, "no drafts: no drafter"),
        ({}, ""),
        ({"drafted": 3, "simulated": True}, "simulated acceptance: this is not the model's text"),
    ],
)
def test_what_a_reader_must_know_of_the_drafts_is_told(stats, told):
    """That there were none though there should have been, or that the text is nobody's."""
    finish = pb.FinishInfo(speculation=pb.SpeculationStats(**stats))
    answer = Completion((1, 2), "ab", (), finish, pb.PromptInfo())

    assert trouble(answer) == told
    assert ("SIMULATED" in summary(answer)) is bool(stats.get("simulated"))
