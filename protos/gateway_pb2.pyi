from protos import speculation_pb2 as _speculation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "text", "token_ids", "chat", "sampling", "stopping", "speculation", "priority", "recordable")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RECORDABLE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    text: str
    token_ids: TokenIds
    chat: Chat
    sampling: _speculation_pb2.SamplingParams
    stopping: StoppingCriteria
    speculation: Speculation
    priority: int
    recordable: bool
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., sampling: _Optional[_Union[_speculation_pb2.SamplingParams, _Mapping]] = ..., stopping: _Optional[_Union[StoppingCriteria, _Mapping]] = ..., speculation: _Optional[_Union[Speculation, _Mapping]] = ..., priority: _Optional[int] = ..., recordable: _Optional[bool] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class StoppingCriteria(_message.Message):
    __slots__ = ("max_new_tokens", "min_new_tokens", "stop_token_ids", "stop_strings", "include_stop_strings", "ignore_eos")
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    max_new_tokens: int
    min_new_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop_strings: _containers.RepeatedScalarFieldContainer[str]
    include_stop_strings: bool
    ignore_eos: bool
    def __init__(self, max_new_tokens: _Optional[int] = ..., min_new_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., stop_strings: _Optional[_Iterable[str]] = ..., include_stop_strings: _Optional[bool] = ..., ignore_eos: _Optional[bool] = ...) -> None: ...

class Speculation(_message.Message):
    __slots__ = ("mode", "steps", "top_k", "draft_tokens", "drafter_id", "forced_accept_length")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[Speculation.Mode]
        MODE_AUTO: _ClassVar[Speculation.Mode]
        MODE_OFF: _ClassVar[Speculation.Mode]
        MODE_FIXED: _ClassVar[Speculation.Mode]
    MODE_UNSPECIFIED: Speculation.Mode
    MODE_AUTO: Speculation.Mode
    MODE_OFF: Speculation.Mode
    MODE_FIXED: Speculation.Mode
    MODE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    FORCED_ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    mode: Speculation.Mode
    steps: int
    top_k: int
    draft_tokens: int
    drafter_id: str
    forced_accept_length: float
    def __init__(self, mode: _Optional[_Union[Speculation.Mode, str]] = ..., steps: _Optional[int] = ..., top_k: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., drafter_id: _Optional[str] = ..., forced_accept_length: _Optional[float] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("request_id", "prompt_info", "token_ids", "text", "logprobs", "top_logprobs", "accepted_tokens", "finish", "accepted_text_len", "timings", "simulated")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_INFO_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TEXT_LEN_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_info: PromptInfo
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    text: str
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_logprobs: _containers.RepeatedCompositeFieldContainer[_speculation_pb2.TopLogprobs]
    accepted_tokens: int
    finish: FinishInfo
    accepted_text_len: int
    timings: RoundTimings
    simulated: bool
    def __init__(self, request_id: _Optional[str] = ..., prompt_info: _Optional[_Union[PromptInfo, _Mapping]] = ..., token_ids: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[float]] = ..., top_logprobs: _Optional[_Iterable[_Union[_speculation_pb2.TopLogprobs, _Mapping]]] = ..., accepted_tokens: _Optional[int] = ..., finish: _Optional[_Union[FinishInfo, _Mapping]] = ..., accepted_text_len: _Optional[int] = ..., timings: _Optional[_Union[RoundTimings, _Mapping]] = ..., simulated: _Optional[bool] = ...) -> None: ...

class RoundTimings(_message.Message):
    __slots__ = ("round_us", "verify", "draft")
    ROUND_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    round_us: int
    verify: _speculation_pb2.VerifyTimings
    draft: _speculation_pb2.DraftTimings
    def __init__(self, round_us: _Optional[int] = ..., verify: _Optional[_Union[_speculation_pb2.VerifyTimings, _Mapping]] = ..., draft: _Optional[_Union[_speculation_pb2.DraftTimings, _Mapping]] = ...) -> None: ...

class PromptInfo(_message.Message):
    __slots__ = ("token_ids", "seed")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    seed: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., seed: _Optional[int] = ...) -> None: ...

class FinishInfo(_message.Message):
    __slots__ = ("reason", "stop_token_id", "stop_string", "usage", "speculation")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[FinishInfo.Reason]
        REASON_STOP: _ClassVar[FinishInfo.Reason]
        REASON_LENGTH: _ClassVar[FinishInfo.Reason]
    REASON_UNSPECIFIED: FinishInfo.Reason
    REASON_STOP: FinishInfo.Reason
    REASON_LENGTH: FinishInfo.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    reason: FinishInfo.Reason
    stop_token_id: int
    stop_string: str
    usage: Usage
    speculation: SpeculationStats
    def __init__(self, reason: _Optional[_Union[FinishInfo.Reason, str]] = ..., stop_token_id: _Optional[int] = ..., stop_string: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., speculation: _Optional[_Union[SpeculationStats, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_prompt_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ...) -> None: ...

class SpeculationStats(_message.Message):
    __slots__ = ("rounds", "drafted", "accepted", "accept_length", "accepted_by_position", "missed", "drafter_id", "time_to_first_token_us", "decode_us", "verify", "draft", "drafter_trouble", "plans", "simulated")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    PLANS_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    drafted: int
    accepted: int
    accept_length: float
    accepted_by_position: _containers.RepeatedScalarFieldContainer[int]
    missed: int
    drafter_id: str
    time_to_first_token_us: int
    decode_us: int
    verify: _speculation_pb2.VerifyTimings
    draft: _speculation_pb2.DraftTimings
    drafter_trouble: str
    plans: _containers.RepeatedCompositeFieldContainer[PlanUse]
    simulated: bool
    def __init__(self, rounds: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., accept_length: _Optional[float] = ..., accepted_by_position: _Optional[_Iterable[int]] = ..., missed: _Optional[int] = ..., drafter_id: _Optional[str] = ..., time_to_first_token_us: _Optional[int] = ..., decode_us: _Optional[int] = ..., verify: _Optional[_Union[_speculation_pb2.VerifyTimings, _Mapping]] = ..., draft: _Optional[_Union[_speculation_pb2.DraftTimings, _Mapping]] = ..., drafter_trouble: _Optional[str] = ..., plans: _Optional[_Iterable[_Union[PlanUse, _Mapping]]] = ..., simulated: _Optional[bool] = ...) -> None: ...

class PlanUse(_message.Message):
    __slots__ = ("plan", "rounds")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    plan: _speculation_pb2.Plan
    rounds: int
    def __init__(self, plan: _Optional[_Union[_speculation_pb2.Plan, _Mapping]] = ..., rounds: _Optional[int] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("version", "model_name", "vocab_size", "max_context_len", "max_tree_nodes", "has_chat_template", "drafter_ids", "default_drafter_id", "running_requests")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_IDS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    version: str
    model_name: str
    vocab_size: int
    max_context_len: int
    max_tree_nodes: int
    has_chat_template: bool
    drafter_ids: _containers.RepeatedScalarFieldContainer[str]
    default_drafter_id: str
    running_requests: int
    def __init__(self, version: _Optional[str] = ..., model_name: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_context_len: _Optional[int] = ..., max_tree_nodes: _Optional[int] = ..., has_chat_template: _Optional[bool] = ..., drafter_ids: _Optional[_Iterable[str]] = ..., default_drafter_id: _Optional[str] = ..., running_requests: _Optional[int] = ...) -> None: ...
