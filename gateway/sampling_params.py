"""A request as the gateway understands it: checked, tokenized, every default filled in."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from gateway.chat_template import ChatTemplate
from gateway.plans import NO_DRAFTS, NO_LIMIT
from gateway.policy import FIXED_STEPS, Wish
from gateway.tokenizer import Tokenizer
from protos import gateway_pb2 as pb
from protos.messages import MAX_TREE_NODES, Plan, SamplingParams, check_id

DEFAULT_MAX_NEW_TOKENS = 4096
_ROLES = ("system", "user", "assistant")
_MAX_STOP_STRINGS = 16
_MAX_STOP_STRING_LEN = 256
_MAX_STOP_TOKEN_IDS = 256
# Of one, when a share of requests is drawn.
_PARTS = 1_000_000
_Mode = pb.Speculation.Mode


@dataclass(frozen=True)
class ModelText:
    """What the gateway knows of the model: its tokenizer, its chat template and its limits."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    vocab_size: int
    max_context_len: int


@dataclass(frozen=True)
class Stopping:
    """When an answer ends."""

    max_new_tokens: int
    min_new_tokens: int
    stop_token_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    include_stop_strings: bool


@dataclass(frozen=True)
class Generation:
    """A request ready to run."""

    request_id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    stopping: Stopping
    speculation: Wish
    drafter_id: str
    priority: int = 0
    recordable: bool = False
    # For measurements: the text is not the model's then.
    forced_accept_length: float | None = None

    @property
    def simulated(self) -> bool:
        """Whether the text is not the model's."""
        return self.forced_accept_length is not None


def parse_request(
    request: pb.GenerateRequest, model: ModelText, record_share: float = 0.0
) -> Generation:
    """Check a request against the model. Raises ValueError naming field, value and limit.

    `record_share` of those that do not say whether they may be recorded may be.
    """
    asked = request.recordable if request.HasField("recordable") else None
    prompt = _prompt(request, model)
    stopping = _stopping(request.stopping, len(prompt), model)
    drafter_id = request.speculation.drafter_id
    return Generation(
        request_id=check_id("request_id", request.request_id or secrets.token_hex(8)),
        prompt=tuple(prompt),
        sampling=_sampling(request, stopping),
        stopping=stopping,
        speculation=_wish(request.speculation),
        drafter_id=check_id("drafter_id", drafter_id) if drafter_id else "",
        priority=request.priority,
        recordable=secrets.randbelow(_PARTS) < record_share * _PARTS if asked is None else asked,
        forced_accept_length=_forced_accept_length(request.speculation),
    )


def _forced_accept_length(speculation: pb.Speculation) -> float | None:
    """Return what is forced. The target alone knows whether it allows that, and up to what."""
    given = speculation.HasField("forced_accept_length")
    return speculation.forced_accept_length if given else None


def _prompt(request: pb.GenerateRequest, model: ModelText) -> list[int]:
    match request.WhichOneof("prompt"):
        case "text":
            prompt = model.tokenizer.encode(request.text, add_special_tokens=True)
        case "token_ids":
            prompt = list(request.token_ids.ids)
        case "chat":
            prompt = _chat_prompt(request.chat, model)
        case _:
            raise ValueError("prompt must be text, token_ids or chat, got nothing")
    if not prompt:
        raise ValueError("prompt needs at least one token, got none")
    if max(prompt) >= model.vocab_size:
        raise ValueError(f"prompt token_ids must be in [0, {model.vocab_size}), got {max(prompt)}")
    return prompt


def _chat_prompt(chat: pb.Chat, model: ModelText) -> list[int]:
    if not chat.messages:
        raise ValueError("chat needs at least one message, got none")
    for message in chat.messages:
        if message.role not in _ROLES:
            raise ValueError(f"role must be one of {', '.join(_ROLES)}, got {message.role!r:.80}")
    messages = [{"role": message.role, "content": message.content} for message in chat.messages]
    text = model.chat_template.render(messages, add_generation_prompt=True)
    return model.tokenizer.encode(text, add_special_tokens=False)


def _stopping(stopping: pb.StoppingCriteria, prompt_len: int, model: ModelText) -> Stopping:
    room = model.max_context_len - prompt_len
    if room < 1:
        raise ValueError(
            f"the prompt has {prompt_len} tokens, the context takes {model.max_context_len} "
            "with at least one of the answer"
        )
    longest = min(room, DEFAULT_MAX_NEW_TOKENS)
    most = stopping.max_new_tokens if stopping.HasField("max_new_tokens") else longest
    if not 1 <= most <= room:
        raise ValueError(
            f"max_new_tokens must be in [1, {room}] after a prompt of {prompt_len} tokens, "
            f"got {most}"
        )
    if stopping.min_new_tokens > most:
        raise ValueError(
            f"min_new_tokens must be at most max_new_tokens {most}, got {stopping.min_new_tokens}"
        )
    _check_stops(stopping, model.vocab_size)
    eos = frozenset() if stopping.ignore_eos else model.tokenizer.eos_token_ids
    return Stopping(
        max_new_tokens=most,
        min_new_tokens=stopping.min_new_tokens,
        stop_token_ids=eos | frozenset(stopping.stop_token_ids),
        stop_strings=tuple(stopping.stop_strings),
        include_stop_strings=stopping.include_stop_strings,
    )


def _check_stops(stopping: pb.StoppingCriteria, vocab_size: int) -> None:
    if len(stopping.stop_strings) > _MAX_STOP_STRINGS:
        raise ValueError(
            f"at most {_MAX_STOP_STRINGS} stop_strings, got {len(stopping.stop_strings)}"
        )
    for stop in stopping.stop_strings:
        if not 1 <= len(stop) <= _MAX_STOP_STRING_LEN:
            raise ValueError(
                f"stop_strings have 1 to {_MAX_STOP_STRING_LEN} characters each, got {len(stop)}"
            )
    if len(stopping.stop_token_ids) > _MAX_STOP_TOKEN_IDS:
        raise ValueError(
            f"at most {_MAX_STOP_TOKEN_IDS} stop_token_ids, got {len(stopping.stop_token_ids)}"
        )
    for token in stopping.stop_token_ids:
        if token >= vocab_size:
            raise ValueError(f"stop_token_ids must be in [0, {vocab_size}), got {token}")


def _sampling(request: pb.GenerateRequest, stopping: Stopping) -> SamplingParams:
    """Fill in a seed, and what the target must know about stop tokens."""
    given = request.sampling
    filled = type(given)()
    filled.CopyFrom(given)
    if not given.HasField("seed"):
        filled.seed = secrets.randbits(64)
    if given.suppressed_token_ids or given.HasField("min_new_tokens"):
        raise ValueError("say stopping.min_new_tokens; sampling.min_new_tokens is set from it")
    filled.min_new_tokens = stopping.min_new_tokens
    if stopping.min_new_tokens:
        filled.suppressed_token_ids.extend(sorted(stopping.stop_token_ids))
    return SamplingParams.from_proto(filled)


def _wish(speculation: pb.Speculation) -> Wish:
    match speculation.mode:
        case _Mode.MODE_OFF:
            return Wish("off", NO_DRAFTS)
        case _Mode.MODE_FIXED:
            return Wish("fixed", _fixed_plan(speculation))
        case _Mode.MODE_AUTO | _Mode.MODE_UNSPECIFIED:
            return Wish("auto", _plan(speculation, NO_LIMIT))
    raise ValueError(f"speculation.mode must be one of {_Mode.keys()}, got {speculation.mode}")


def _fixed_plan(speculation: pb.Speculation) -> Plan:
    """Return the plan as given, sensible values for what is not.

    A chain needs no draft_tokens: it has steps + 1 nodes.
    """
    steps = speculation.steps if speculation.HasField("steps") else FIXED_STEPS
    is_chain = not speculation.HasField("top_k") or speculation.top_k == 1
    nodes = min(steps + 1, MAX_TREE_NODES) if is_chain else MAX_TREE_NODES
    return _plan(speculation, Plan(min(steps, MAX_TREE_NODES - 1), 1, nodes))


def _plan(speculation: pb.Speculation, default: Plan) -> Plan:
    given = {
        name: getattr(speculation, name) if speculation.HasField(name) else getattr(default, name)
        for name in ("steps", "top_k", "draft_tokens")
    }
    try:
        return Plan(**given)
    except ValueError as error:
        raise ValueError(str(error).replace("plan.", "speculation.")) from None
