"""Scripts: prompt files of every usual form, and scripts that the target makes up itself."""

import json
from itertools import islice

import pytest

from training.made_up import OPENINGS, made_up_scripts
from training.script import Script, Turn, read_scripts


def written(path, *entries):
    path.write_text("\n".join(json.dumps(entry) for entry in entries))
    return path


def test_the_three_usual_forms_say_the_same(tmp_path):
    """A plain prompt, OpenAI's messages and ShareGPT's conversations become equal scripts."""
    file = written(
        tmp_path / "p.jsonl",
        {"prompt": "Hello", "task": "chat"},
        {"messages": [{"role": "user", "content": "Hello"}], "task": "chat"},
        {"conversations": [{"from": "human", "value": "Hello"}], "task": "chat"},
    )
    scripts = list(read_scripts(file))
    assert len(set(scripts)) == 1
    assert (scripts[0].turns, scripts[0].task) == ((Turn("Hello"),), "chat")


def test_answers_are_left_out_and_the_system_prompt_is_kept(tmp_path):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "not the target's own"},
        {"role": "user", "content": "Two"},
    ]
    (script,) = read_scripts(written(tmp_path / "p.jsonl", {"messages": messages}))
    assert (script.system, script.turns) == ("Be brief.", (Turn("One"), Turn("Two")))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object, got list"),
        ('{"text": "x"}', 'needs a "prompt", "messages" or "conversations"'),
        ('{"messages": [{"role": "user"}]}', "every message needs a 'content' string"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "nothing that a user says"),
        ('{"prompt": " "}', "nothing that a user says"),
        ('{"prompt": "bad \\ud83d"}', "not valid Unicode at character 4"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, reason):
    (tmp_path / "p.jsonl").write_text('{"prompt": "good"}\n' + line)
    with pytest.raises(ValueError, match=r"p\.jsonl:2") as refused:
        list(read_scripts(tmp_path / "p.jsonl"))
    assert reason in str(refused.value)


def test_a_file_without_prompts_is_refused(tmp_path):
    """Nobody who gives prompts wants made-up ones."""
    (tmp_path / "p.jsonl").write_text("\n")
    with pytest.raises(ValueError, match=r"p\.jsonl has no prompts"):
        list(read_scripts(tmp_path / "p.jsonl"))


def test_a_script_without_turns_is_refused():
    with pytest.raises(ValueError, match="has no user turns"):
        Script("a", "chat", ())


def test_made_up_scripts_are_the_same_for_a_seed_and_differ_between_seeds():
    first, again, other = (list(islice(made_up_scripts(seed), 40)) for seed in (1, 1, 2))
    assert first == again
    assert not {script.sample_id for script in first} & {script.sample_id for script in other}


def test_tasks_take_turns():
    scripts = islice(made_up_scripts(0), 2 * len(OPENINGS))
    assert [script.task for script in scripts] == 2 * list(OPENINGS)
