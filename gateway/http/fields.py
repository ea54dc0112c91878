"""The fields that both requests share, checked and bounded, and what they are in gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from protos import gateway_pb2 as pb
from protos.speculation_pb2 import SamplingParams

_MODES = {
    "auto": pb.Speculation.MODE_AUTO,
    "off": pb.Speculation.MODE_OFF,
    "fixed": pb.Speculation.MODE_FIXED,
}
# A key of logit_bias is a string; more digits than any token id has are not worth parsing.
_MAX_KEY_DIGITS = 10
_MAX_BIASES = 1024
# Of an object. Each wrong one costs a kilobyte, and a body has room for a million.
_MAX_FIELDS = 100


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _by_token_id(biases: Any) -> Any:
    """Return {"123": bias} as {123: bias}. Raises ValueError for another key, and for too many."""
    if not isinstance(biases, dict):
        return biases
    if len(biases) > _MAX_BIASES:
        raise ValueError(f"takes at most {_MAX_BIASES} entries, got {len(biases)}")
    for key in biases:
        if not (key.isascii() and key.isdecimal() and len(key) <= _MAX_KEY_DIGITS):
            raise ValueError(f"keys must be token ids, got {key!r:.80}")
    return {int(key): bias for key, bias in biases.items()}


# What a field of the wire can hold; the limits proper are checked for both fronts in one place.
UInt32 = Annotated[int, Field(ge=0, lt=2**32)]
UInt64 = Annotated[int, Field(ge=0, lt=2**64)]
Int32 = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Number = Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False)]
Biases = Annotated[dict[UInt32, Number], BeforeValidator(_by_token_id)]
# A wrong one ends the list.
TokenIds = Annotated[list[UInt32], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True), BeforeValidator(_as_list)]


class Fields(BaseModel):
    """Nothing is converted, nothing unknown is taken: a misspelt field must not go unnoticed."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _bounded(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > _MAX_FIELDS:
            raise ValueError(f"an object has at most {_MAX_FIELDS} fields, got {len(given)}")
        return given


class StreamOptions(Fields):
    """`include_obfuscation` pads chunks against eavesdroppers; we have nothing to hide there."""

    include_usage: bool = False
    include_obfuscation: bool = False


class SpeculationFields(Fields):
    """Ours: how far to speculate, as in gateway.proto."""

    mode: str = "auto"
    steps: UInt32 | None = None
    top_k: UInt32 | None = None
    draft_tokens: UInt32 | None = None
    drafter_id: str = ""
    forced_accept_length: Number | None = None

    def to_proto(self) -> pb.Speculation:
        """Raises ValueError for an unknown mode."""
        if self.mode not in _MODES:
            raise ValueError(
                f"speculation.mode must be one of {', '.join(_MODES)}, got {self.mode!r:.80}"
            )
        return pb.Speculation(**{**self.model_dump(exclude_none=True), "mode": _MODES[self.mode]})


class SharedFields(Fields):
    """What a chat and a completion have in common."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: UInt32 | None = None
    stop: Strings = []
    seed: UInt64 | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: Biases = {}
    # As vLLM has them.
    top_k: Int32 | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    min_tokens: UInt32 | None = None
    stop_token_ids: TokenIds = []
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool = False
    priority: Int32 = 0
    # Ours.
    speculation: SpeculationFields = SpeculationFields()
    recordable: bool | None = None
    timeout_s: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None

    def to_proto(self, max_new_tokens: int | None, top_logprobs: int | None) -> pb.GenerateRequest:
        """Return all but the prompt. Raises ValueError."""
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream")
        return pb.GenerateRequest(
            sampling=self._sampling(top_logprobs),
            stopping=self._stopping(max_new_tokens),
            speculation=self.speculation.to_proto(),
            priority=self.priority,
            recordable=self.recordable,
        )

    def _sampling(self, top_logprobs: int | None) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            top_logprobs=top_logprobs or None,
        )

    def _stopping(self, max_new_tokens: int | None) -> pb.StoppingCriteria:
        return pb.StoppingCriteria(
            max_new_tokens=max_new_tokens,
            min_new_tokens=self.min_tokens,
            stop_token_ids=self.stop_token_ids,
            stop_strings=self.stop,
            include_stop_strings=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
        )


def wrong_field(error: ValidationError) -> tuple[str, str]:
    """Return the field that is wrong, and in one line how."""
    # Where a field may be this or that, the most is known of what was nearly right.
    found = max(error.errors(), key=lambda one: len(one["loc"]))
    name = ".".join(str(part) for part in found["loc"] if _is_name(part))
    if found["type"] == "extra_forbidden":
        return name, f"{name} is not a field we know"
    reason = found["msg"].removeprefix("Value error, ")
    if found["type"] in ("missing", "value_error"):
        return name, f"{name}: {reason}" if name else reason
    if found["type"] == "model_type":
        reason = "Input should be an object"
    return name, f"{name}: {reason}, got {found['input']!r:.80}"


def _is_name(part: int | str) -> bool:
    """Whether a part of an error's place is from the request, not one of pydantic's own words."""
    return isinstance(part, int) or part.replace("_", "").isalnum()


def without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested objects without what is null, which is the same as left out."""
    return {
        name: without_nulls(value) if isinstance(value, dict) else value
        for name, value in fields.items()
        if value is not None
    }
