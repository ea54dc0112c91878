"""Chat messages to a prompt, with the jinja template that came with the model.

The template is foreign code: it runs in jinja's sandbox, set up as transformers does it, so that a
template written for transformers renders the same prompt here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Self

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from gateway.tokenizer import named_special_tokens, read_json

MAX_PROMPT_CHARS = 16 * 2**20
"""Longest prompt a template may render; the longest contexts of today are some 5 million."""
MAX_STEPS = 1_000_000
"""Most loop turns and macro calls in one rendering, so that a faulty template cannot hang us."""

_steps_left: ContextVar[int] = ContextVar("steps_left")


class ChatTemplate:
    """One model's chat template. The guards stop a faulty template from hanging or flooding the
    gateway and keep a hostile one away from the machine; they do not bound the memory a hostile
    one can ask for."""

    def __init__(self, source: str | None, special_tokens: Mapping[str, str] | None = None) -> None:
        """`special_tokens` (`bos_token`, `eos_token`, ...) are variables of the template.

        Raises:
            ValueError: `source` is not a valid template. None, for a model without one, is refused
                only when something is to be rendered.
        """
        self._template = None if source is None else _compile(source)
        self._special_tokens = dict(special_tokens or {})

    @classmethod
    def from_directory(cls, path: str | Path) -> Self:
        """`chat_template.jinja` of a model directory, else its `tokenizer_config.json`'s."""
        directory = Path(path)
        config = read_json(directory / "tokenizer_config.json")
        file = directory / "chat_template.jinja"
        source = file.read_text("utf-8") if file.is_file() else _template_in(config)
        return cls(source, named_special_tokens(config))

    @property
    def exists(self) -> bool:
        """Whether the model has a template at all."""
        return self._template is not None

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> str:
        """The prompt for `[{"role": ..., "content": ...}, ...]`, special tokens written out.

        `add_generation_prompt` ends it with the opening of the assistant's turn.

        Raises:
            ValueError: the model has no template, or the template refused or failed; its own
                message is passed on.
        """
        if self._template is None:
            raise ValueError("this model has no chat template; send text or token ids instead")
        variables = self._special_tokens | {
            "messages": [_without_none(message) for message in messages],
            "add_generation_prompt": add_generation_prompt,
            # Templates ask `is none`, which a variable that does not exist is not.
            "tools": None,
            "documents": None,
        }
        return _render(self._template, variables)


def _render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    _steps_left.set(MAX_STEPS)
    try:
        return "".join(_bounded(template.generate(variables)))
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template refused the messages: {error}") from error
    except Exception as error:  # a template is a program: it can fail in any way
        name = type(error).__name__
        raise ValueError(f"the chat template failed: {name}: {error}") from error


def _bounded(chunks: Iterator[str]) -> Iterator[str]:
    num_chars = 0
    for chunk in chunks:
        num_chars += len(chunk)
        if num_chars > MAX_PROMPT_CHARS:
            raise jinja2.TemplateError(f"more than {MAX_PROMPT_CHARS} characters of output")
        yield chunk


def _template_in(config: Mapping[str, Any]) -> str | None:
    match config.get("chat_template"):
        case None | str() as template:
            return template
        case [*entries]:
            for entry in entries:
                match entry:
                    case {"name": "default", "template": str(template)}:
                        return template
    raise ValueError(
        "tokenizer_config.json: chat_template must be a string, or a list of "
        '{"name": ..., "template": ...} with one named "default"'
    )


def _without_none(message: Mapping[str, Any]) -> dict[str, Any]:
    # Clients send `"content": null` for "none"; templates would print the word.
    return {key: value for key, value in message.items() if value is not None}


def _compile(source: str) -> jinja2.Template:
    environment = _environment()
    try:
        return environment.from_string(_counted(environment, environment.parse(source)))
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template is not valid: {error}") from error


def _environment() -> "_Sandbox":
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, _StepCounter, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda pattern: datetime.now().strftime(pattern),
        # The class itself would give unbound `dict.update`, which the sandbox does not see through.
        "dict": lambda *args, **kwargs: dict(*args, **kwargs),
        "namespace": _Namespace,
    }
    return environment


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses the two operators that make something huge at one stroke."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if _result_size(operator, left, right) > MAX_PROMPT_CHARS:
            raise jinja2.TemplateError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


def _result_size(operator: str, left: Any, right: Any) -> int:
    """Items of a repeated sequence, bits of an integer power; 0 for what cannot grow so fast."""
    match operator, left, right:
        case "*", str() | list() | tuple(), int():
            return len(left) * right
        case "*", int(), str() | list() | tuple():
            return left * len(right)
        case "**", int(), int():
            return left.bit_length() * right
    return 0


class _Namespace(Namespace):
    """jinja's `namespace` without names that mean something to Python."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"namespace attribute {name!r} begins with _")
        super().__setitem__(name, value)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja's declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _StepCounter(Extension):
    """Called by each turn of a loop and each call of a macro."""

    def count(self) -> None:
        left = _steps_left.get() - 1
        if left < 0:
            raise jinja2.TemplateError(f"more than {MAX_STEPS} steps")
        _steps_left.set(left)


def _counted(environment: jinja2.Environment, template: nodes.Template) -> nodes.Template:
    counter = environment.extensions[_StepCounter.identifier]
    step = nodes.ExprStmt(counter.call_method("count"))
    loops = [loop.body for loop in template.find_all(nodes.For)]
    macros = [macro.body for macro in template.find_all(nodes.Macro)]
    for body in loops + macros:
        body.insert(0, step)
    return template


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own `tojson` escapes HTML, which a prompt is not."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
