"""The first thing that a new user sees: one answer in three ways, and that the text is the same."""

import io
from dataclasses import replace

from rich.console import Console

from slipstream.client import Client
from slipstream.demo import PROMPT, run_demo


def test_the_demo_shows_three_ways_and_one_text(tiny_stack):
    shown = io.StringIO()
    with Client(tiny_stack.addresses.gateway) as client:
        equal = run_demo(client, Console(file=shown, width=120), repeats=1)

    assert equal
    text = shown.getvalue()
    assert PROMPT.splitlines()[0] in text
    for way in ("plain", "prompt lookup", "auto"):
        assert way in text
    assert "texts identical: yes" in text


def test_a_text_that_differs_is_said_to(tiny_stack, monkeypatch):
    """The demo compares what came, whatever we promise."""
    shown = io.StringIO()
    with Client(tiny_stack.addresses.gateway) as client:
        complete, count = client.complete, iter(range(1000))

        def other_every_time(request):
            sampling = {"temperature": 5.0, "seed": next(count)}
            return complete(replace(request, sampling=sampling))

        monkeypatch.setattr(client, "complete", other_every_time)
        equal = run_demo(client, Console(file=shown, width=120), repeats=1)

    assert not equal
    assert "texts identical: NO" in shown.getvalue()
