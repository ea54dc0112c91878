from protos import speculation_pb2 as _speculation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DrafterState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFTER_STATE_UNSPECIFIED: _ClassVar[DrafterState]
    DRAFTER_STATE_LOADING: _ClassVar[DrafterState]
    DRAFTER_STATE_READY: _ClassVar[DrafterState]
    DRAFTER_STATE_DRAINING: _ClassVar[DrafterState]
    DRAFTER_STATE_REFUSED: _ClassVar[DrafterState]
    DRAFTER_STATE_ALARM: _ClassVar[DrafterState]
DRAFTER_STATE_UNSPECIFIED: DrafterState
DRAFTER_STATE_LOADING: DrafterState
DRAFTER_STATE_READY: DrafterState
DRAFTER_STATE_DRAINING: DrafterState
DRAFTER_STATE_REFUSED: DrafterState
DRAFTER_STATE_ALARM: DrafterState

class ListDraftersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDraftersResponse(_message.Message):
    __slots__ = ("drafters", "default_drafter_id", "load", "canary", "shadow")
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    CANARY_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    drafters: _containers.RepeatedCompositeFieldContainer[DrafterInfo]
    default_drafter_id: str
    load: DraftLoad
    canary: Canary
    shadow: Shadow
    def __init__(self, drafters: _Optional[_Iterable[_Union[DrafterInfo, _Mapping]]] = ..., default_drafter_id: _Optional[str] = ..., load: _Optional[_Union[DraftLoad, _Mapping]] = ..., canary: _Optional[_Union[Canary, _Mapping]] = ..., shadow: _Optional[_Union[Shadow, _Mapping]] = ...) -> None: ...

class DrafterInfo(_message.Message):
    __slots__ = ("drafter_id", "kind", "pairing", "refusal", "state", "sessions", "score")
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAIRING_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    drafter_id: str
    kind: str
    pairing: _speculation_pb2.Pairing
    refusal: str
    state: DrafterState
    sessions: int
    score: DrafterScore
    def __init__(self, drafter_id: _Optional[str] = ..., kind: _Optional[str] = ..., pairing: _Optional[_Union[_speculation_pb2.Pairing, _Mapping]] = ..., refusal: _Optional[str] = ..., state: _Optional[_Union[DrafterState, str]] = ..., sessions: _Optional[int] = ..., score: _Optional[_Union[DrafterScore, _Mapping]] = ...) -> None: ...

class DrafterScore(_message.Message):
    __slots__ = ("rounds", "drafted_rounds", "accepted", "accepted_by_position", "accept_length", "accept_length_low", "accept_length_high", "scored_sessions")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LENGTH_LOW_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_LENGTH_HIGH_FIELD_NUMBER: _ClassVar[int]
    SCORED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    drafted_rounds: int
    accepted: int
    accepted_by_position: _containers.RepeatedScalarFieldContainer[int]
    accept_length: float
    accept_length_low: float
    accept_length_high: float
    scored_sessions: int
    def __init__(self, rounds: _Optional[int] = ..., drafted_rounds: _Optional[int] = ..., accepted: _Optional[int] = ..., accepted_by_position: _Optional[_Iterable[int]] = ..., accept_length: _Optional[float] = ..., accept_length_low: _Optional[float] = ..., accept_length_high: _Optional[float] = ..., scored_sessions: _Optional[int] = ...) -> None: ...

class Canary(_message.Message):
    __slots__ = ("drafter_id", "share")
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    drafter_id: str
    share: float
    def __init__(self, drafter_id: _Optional[str] = ..., share: _Optional[float] = ...) -> None: ...

class Shadow(_message.Message):
    __slots__ = ("candidate_id", "incumbent_id", "share", "promote_if", "running", "outcome", "sessions", "dropped_sessions", "rounds", "candidate_accept_length", "incumbent_accept_length", "gain", "gain_low", "gain_high")
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    INCUMBENT_ID_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_IF_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    INCUMBENT_ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    GAIN_LOW_FIELD_NUMBER: _ClassVar[int]
    GAIN_HIGH_FIELD_NUMBER: _ClassVar[int]
    candidate_id: str
    incumbent_id: str
    share: float
    promote_if: PromotionRule
    running: bool
    outcome: str
    sessions: int
    dropped_sessions: int
    rounds: int
    candidate_accept_length: float
    incumbent_accept_length: float
    gain: float
    gain_low: float
    gain_high: float
    def __init__(self, candidate_id: _Optional[str] = ..., incumbent_id: _Optional[str] = ..., share: _Optional[float] = ..., promote_if: _Optional[_Union[PromotionRule, _Mapping]] = ..., running: _Optional[bool] = ..., outcome: _Optional[str] = ..., sessions: _Optional[int] = ..., dropped_sessions: _Optional[int] = ..., rounds: _Optional[int] = ..., candidate_accept_length: _Optional[float] = ..., incumbent_accept_length: _Optional[float] = ..., gain: _Optional[float] = ..., gain_low: _Optional[float] = ..., gain_high: _Optional[float] = ...) -> None: ...

class PromotionRule(_message.Message):
    __slots__ = ("better_by", "confidence", "max_rounds")
    BETTER_BY_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    MAX_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    better_by: float
    confidence: float
    max_rounds: int
    def __init__(self, better_by: _Optional[float] = ..., confidence: _Optional[float] = ..., max_rounds: _Optional[int] = ...) -> None: ...

class DraftLoad(_message.Message):
    __slots__ = ("sessions", "tap_subscriptions", "kv_tokens_reserved", "kv_tokens_total", "batches", "extended_rows", "grown_rows", "dropped_for_memory")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    TAP_SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_RESERVED_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    EXTENDED_ROWS_FIELD_NUMBER: _ClassVar[int]
    GROWN_ROWS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FOR_MEMORY_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    tap_subscriptions: int
    kv_tokens_reserved: int
    kv_tokens_total: int
    batches: int
    extended_rows: int
    grown_rows: int
    dropped_for_memory: int
    def __init__(self, sessions: _Optional[int] = ..., tap_subscriptions: _Optional[int] = ..., kv_tokens_reserved: _Optional[int] = ..., kv_tokens_total: _Optional[int] = ..., batches: _Optional[int] = ..., extended_rows: _Optional[int] = ..., grown_rows: _Optional[int] = ..., dropped_for_memory: _Optional[int] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("open", "plan")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    open: OpenDraft
    plan: _speculation_pb2.Plan
    def __init__(self, open: _Optional[_Union[OpenDraft, _Mapping]] = ..., plan: _Optional[_Union[_speculation_pb2.Plan, _Mapping]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("opened", "tree")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    opened: DraftOpened
    tree: _speculation_pb2.DraftTree
    def __init__(self, opened: _Optional[_Union[DraftOpened, _Mapping]] = ..., tree: _Optional[_Union[_speculation_pb2.DraftTree, _Mapping]] = ...) -> None: ...

class OpenDraft(_message.Message):
    __slots__ = ("session_id", "drafter_id", "token_ids", "sampling", "plan", "prompt_len")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    drafter_id: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _speculation_pb2.SamplingParams
    plan: _speculation_pb2.Plan
    prompt_len: int
    def __init__(self, session_id: _Optional[str] = ..., drafter_id: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_speculation_pb2.SamplingParams, _Mapping]] = ..., plan: _Optional[_Union[_speculation_pb2.Plan, _Mapping]] = ..., prompt_len: _Optional[int] = ...) -> None: ...

class DraftOpened(_message.Message):
    __slots__ = ("drafter_id",)
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    drafter_id: str
    def __init__(self, drafter_id: _Optional[str] = ...) -> None: ...
