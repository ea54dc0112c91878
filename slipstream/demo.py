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


def run_demo(client: Client, console: Console, *, repeats: int = 3) -> bool:
    """Answer the prompt in both ways, in turn, and compare. Returns whether the texts are equal."""
    prompt = Prompt(PROMPT, "demo")
    client.complete(replace(PLAIN, stopping={"max_new_tokens": 4}).request(prompt))  # warm up
    runs: dict[str, list[Completion]] = {"off": [], "auto": []}
    for _ in range(repeats):
        for mode, completions in runs.items():
            completions.append(client.complete(replace(PLAIN, mode=mode).request(prompt)))
    plain, speculated = (sorted(done, key=_speed)[len(done) // 2] for done in runs.values())
    equal = all(done.token_ids == plain.token_ids for done in runs["auto"] + runs["off"])
    console.print(f"[bold]Prompt[/]\n{PROMPT}\n\n[bold]Answer[/]\n{speculated.text}\n")
    console.print(_table(plain, speculated))
    console.print(f"drafter: {speculated.finish.speculation.drafter_id or 'none'}")
    console.print(
        f"texts identical: {'yes' if equal else 'NO'}, "
        f"speculated / plain speed: {_speed(speculated) / _speed(plain):.2f} x "
        f"(medians of {repeats} interleaved runs)"
    )
    return equal


def _speed(completion: Completion) -> float:
    speed: float = completion.statistics()["tokens_per_second"]
    return speed


def _table(plain: Completion, speculated: Completion) -> Table:
    table = Table("", "what happened")
    table.add_row("plain", summary(plain))
    table.add_row("speculated", summary(speculated))
    return table
