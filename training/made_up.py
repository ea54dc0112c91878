"""Scripts whose turns the target makes up itself: first words by task, and nothing else.

The tasks are those by which drafters are judged. First words steer the target, which goes on alone;
"" lets it begin as it likes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from training.script import Script, Turn

OPENINGS: Mapping[str, Sequence[str]] = {
    "chat": (
        *("", "", "", ""),
        *("What is", "How do I", "Can you explain", "Tell me about", "Why", "I want to", "Write a"),
        *("Give me some tips", "Who was", "Describe", "Help me", "What are the benefits of"),
        *("Write a short story about", "Write an email", "Hi! I'm", "List", "Compare", "Is it"),
    ),
    "code": (
        *("Write a Python function", "Write a function that", "Write a Python program to"),
        *("How can I", "Create a class", "Fix this code:\n\n```python\n", "Explain this code:\n\n"),
        *("Implement", "Write a SQL query", "Write code to", "def ", "In Python, how"),
        *("Complete this function:\n\n```python\ndef ", "Write a JavaScript function"),
    ),
    "maths": (
        *("Solve", "Calculate", "What is the sum", "If", "A train", "Find the", "John has"),
        *("How many", "A rectangle", "What is the value of", "Mary bought", "The price of"),
        *("Simplify", "A store sells", "There are", "In a class of", "What is"),
    ),
    "summarising": (
        *("Summarize the following text:\n\n", "Summarize this article in one sentence:\n\n"),
        *("Please summarize:\n\n", "What is the main idea of this passage?\n\n"),
        *("Give a short summary of the following paragraph.\n\n", "Rewrite this text:\n\n"),
        *("Make this email more concise.\n\n", "Extract the key points:\n\n"),
    ),
}
_SYSTEM_PROMPTS = (
    *(None,) * 6,
    "You are a helpful assistant.",
    "You are a patient teacher.",
    "Answer briefly.",
    "You are an expert programmer.",
)
_SHARE_WITH_A_FOLLOW_UP = 0.25
_FOLLOW_UPS = ("", "", "Can you", "Thanks!", "What about", "Why", "Now", "Give an example")


def made_up_scripts(seed: int) -> Iterator[Script]:
    """Yield scripts without end, the same for the same seed; tasks take turns."""
    tasks = list(OPENINGS)
    for number in count():
        yield _script(f"made-up-{seed}-{number:07d}", tasks[number % len(tasks)])


def _script(sample_id: str, task: str) -> Script:
    choices = random.Random(sample_id)
    turns = [Turn(choices.choice(OPENINGS[task]), open_ended=True)]
    if choices.random() < _SHARE_WITH_A_FOLLOW_UP:
        turns.append(Turn(choices.choice(_FOLLOW_UPS), open_ended=True))
    return Script(sample_id, task, tuple(turns), choices.choice(_SYSTEM_PROMPTS))
