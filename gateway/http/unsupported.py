"""Fields of OpenAI's and vLLM's requests that we do not have.

Those that change nothing in the answer are passed over. The others are refused unless they say what
we do anyway: an answer that silently lacks what was asked for is worse than none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_PASSED_OVER = frozenset(
    (
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    )
)
_NEUTRAL: Mapping[str, Collection[Any]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "length_penalty": (1,),
    "modalities": (["text"],),
    "n": (1,),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_PASSED_OVER_IN_MESSAGES = frozenset(("name",))
_NEUTRAL_IN_MESSAGES: Mapping[str, Collection[Any]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": ("",),
    "tool_call_id": (),
    "tool_calls": ([],),
}


def supported(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that mean something. Raises ValueError for what we lack."""
    return _rest(body, _PASSED_OVER, _NEUTRAL)


def supported_in_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The same for one message of a chat."""
    return _rest(message, _PASSED_OVER_IN_MESSAGES, _NEUTRAL_IN_MESSAGES)


def _rest(
    fields: Mapping[str, Any],
    passed_over: Collection[str],
    neutral: Mapping[str, Collection[Any]],
) -> dict[str, Any]:
    """To OpenAI null is the same as leaving a field out."""
    given = {name: value for name, value in fields.items() if value is not None}
    for name in given.keys() & neutral.keys():
        if given[name] not in neutral[name]:
            raise ValueError(
                f"{name} is not supported{_only(neutral[name])}, got {given[name]!r:.80}"
            )
    return {
        name: value
        for name, value in given.items()
        if name not in neutral and name not in passed_over
    }


def _only(values: Collection[Any]) -> str:
    return f" (only {' or '.join(map(repr, values))})" if values else ""
