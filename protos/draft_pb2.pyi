from protos import speculation_pb2 as _speculation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListDraftersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDraftersResponse(_message.Message):
    __slots__ = ("drafters", "default_drafter_id", "load")
    DRAFTERS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    drafters: _containers.RepeatedCompositeFieldContainer[DrafterInfo]
    default_drafter_id: str
    load: DraftLoad
    def __init__(self, drafters: _Optional[_Iterable[_Union[DrafterInfo, _Mapping]]] = ..., default_drafter_id: _Optional[str] = ..., load: _Optional[_Union[DraftLoad, _Mapping]] = ...) -> None: ...

class DrafterInfo(_message.Message):
    __slots__ = ("drafter_id", "kind", "pairing", "refusal")
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAIRING_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    drafter_id: str
    kind: str
    pairing: _speculation_pb2.Pairing
    refusal: str
    def __init__(self, drafter_id: _Optional[str] = ..., kind: _Optional[str] = ..., pairing: _Optional[_Union[_speculation_pb2.Pairing, _Mapping]] = ..., refusal: _Optional[str] = ...) -> None: ...

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
