"""`slipstream demo`: one prompt, plain and speculated, through three processes."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.table import Table

from slipstream.chat import summary
from slipstream.client import Client, Completion
from slipstream.generate import Options, Prompt

# A list to copy with a small change: what prompt lookup is made for.
PROMPT = """\
Here is a to-do list:
- water the plants in the kitchen
- call the electrician about the broken lamp
- buy bread, milk and two dozen eggs
- send the birthday card to Aunt Rosa

Write the same list again with numbers instead of dashes."""

PLAIN = Options(
    sampling={"temperature": 0.0}, stopping={"max_new_tokens": 120}, speculation={}, mode="off"
)


# Answers in which auto finds out what rounds cost here, and which drafter suits the text.
_LEARNING = 6


def run_demo(client: Client, console: Console, *, repeats: int = 3) -> bool:
    """Answer the prompt in both ways, in turn, and compare. Returns whether the texts are equal."""
    prompt = Prompt(PROMPT, "demo")
    for _ in range(_LEARNING):
        client.complete(replace(PLAIN, mode="auto").request(prompt))
    copying = replace(PLAIN, mode="fixed", speculation={"drafter_id": _copier(client)})
    ways = {"plain": PLAIN, "prompt lookup": copying, "auto": replace(PLAIN, mode="auto")}
    runs: dict[str, list[Completion]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, completions in runs.items():
            completions.append(client.complete(ways[name].request(prompt)))
    middle = {name: sorted(done, key=_speed)[len(done) // 2] for name, done in runs.items()}
    plain = middle["plain"]
    equal = all(one.token_ids == plain.token_ids for done in runs.values() for one in done)
    console.print(f"[bold]Prompt[/]\n{PROMPT}\n\n[bold]Answer[/]\n{plain.text}\n")
    table = Table("", "what happened", "over plain")
    for name, one in middle.items():
        table.add_row(name, summary(one), f"{_speed(one) / _speed(plain):.2f} x")
    console.print(table)
    console.print(
        f"texts identical: {'yes' if equal else 'NO'} (medians of {repeats} interleaved runs)"
    )
    return equal


def _copier(client: Client) -> str:
    """Return the drafter for a text that copies; the default where it is not served."""
    return "ngram" if "ngram" in client.info().drafter_ids else ""


def _speed(completion: Completion) -> float:
    speed: float = completion.statistics()["tokens_per_second"]
    return speed
