from protos import speculation_pb2 as _speculation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetTargetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTargetResponse(_message.Message):
    __slots__ = ("model_name", "pairing", "num_layers", "max_context_len", "max_tree_nodes", "weights", "device", "load", "kernels")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    PAIRING_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_TREE_NODES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    pairing: _speculation_pb2.Pairing
    num_layers: int
    max_context_len: int
    max_tree_nodes: int
    weights: str
    device: str
    load: TargetLoad
    kernels: str
    def __init__(self, model_name: _Optional[str] = ..., pairing: _Optional[_Union[_speculation_pb2.Pairing, _Mapping]] = ..., num_layers: _Optional[int] = ..., max_context_len: _Optional[int] = ..., max_tree_nodes: _Optional[int] = ..., weights: _Optional[str] = ..., device: _Optional[str] = ..., load: _Optional[_Union[TargetLoad, _Mapping]] = ..., kernels: _Optional[str] = ...) -> None: ...

class TargetLoad(_message.Message):
    __slots__ = ("sessions", "queued", "kv_tokens_reserved", "kv_tokens_total", "tap_subscriptions", "kv_tokens_cached", "preemptions", "steps", "prompt_rows", "root_rows", "draft_rows", "committed_tokens", "accepted_by_position", "prompt_tokens", "cached_prompt_tokens")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_RESERVED_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TAP_SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    KV_TOKENS_CACHED_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ROWS_FIELD_NUMBER: _ClassVar[int]
    ROOT_ROWS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_ROWS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_POSITION_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    queued: int
    kv_tokens_reserved: int
    kv_tokens_total: int
    tap_subscriptions: int
    kv_tokens_cached: int
    preemptions: int
    steps: int
    prompt_rows: int
    root_rows: int
    draft_rows: int
    committed_tokens: int
    accepted_by_position: _containers.RepeatedScalarFieldContainer[int]
    prompt_tokens: int
    cached_prompt_tokens: int
    def __init__(self, sessions: _Optional[int] = ..., queued: _Optional[int] = ..., kv_tokens_reserved: _Optional[int] = ..., kv_tokens_total: _Optional[int] = ..., tap_subscriptions: _Optional[int] = ..., kv_tokens_cached: _Optional[int] = ..., preemptions: _Optional[int] = ..., steps: _Optional[int] = ..., prompt_rows: _Optional[int] = ..., root_rows: _Optional[int] = ..., draft_rows: _Optional[int] = ..., committed_tokens: _Optional[int] = ..., accepted_by_position: _Optional[_Iterable[int]] = ..., prompt_tokens: _Optional[int] = ..., cached_prompt_tokens: _Optional[int] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("open", "verify", "run")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    VERIFY_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    open: OpenSession
    verify: _speculation_pb2.DraftTree
    run: Run
    def __init__(self, open: _Optional[_Union[OpenSession, _Mapping]] = ..., verify: _Optional[_Union[_speculation_pb2.DraftTree, _Mapping]] = ..., run: _Optional[_Union[Run, _Mapping]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("until_len",)
    UNTIL_LEN_FIELD_NUMBER: _ClassVar[int]
    until_len: int
    def __init__(self, until_len: _Optional[int] = ...) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("opened", "verdict")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    opened: SessionOpened
    verdict: _speculation_pb2.Verdict
    def __init__(self, opened: _Optional[_Union[SessionOpened, _Mapping]] = ..., verdict: _Optional[_Union[_speculation_pb2.Verdict, _Mapping]] = ...) -> None: ...

class OpenSession(_message.Message):
    __slots__ = ("session_id", "prompt_token_ids", "max_new_tokens", "sampling", "expect_taps", "stop_token_ids", "priority", "run", "recordable", "forced_accept_length")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    EXPECT_TAPS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    RECORDABLE_FIELD_NUMBER: _ClassVar[int]
    FORCED_ACCEPT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    max_new_tokens: int
    sampling: _speculation_pb2.SamplingParams
    expect_taps: bool
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    run: Run
    recordable: bool
    forced_accept_length: float
    def __init__(self, session_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., max_new_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_speculation_pb2.SamplingParams, _Mapping]] = ..., expect_taps: _Optional[bool] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ..., run: _Optional[_Union[Run, _Mapping]] = ..., recordable: _Optional[bool] = ..., forced_accept_length: _Optional[float] = ...) -> None: ...

class SessionOpened(_message.Message):
    __slots__ = ("cached_prompt_tokens",)
    CACHED_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    cached_prompt_tokens: int
    def __init__(self, cached_prompt_tokens: _Optional[int] = ...) -> None: ...

class StreamTapsRequest(_message.Message):
    __slots__ = ("session_id", "pairing", "known_len", "min_rows", "stored")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PAIRING_FIELD_NUMBER: _ClassVar[int]
    KNOWN_LEN_FIELD_NUMBER: _ClassVar[int]
    MIN_ROWS_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    pairing: _speculation_pb2.Pairing
    known_len: int
    min_rows: int
    stored: bool
    def __init__(self, session_id: _Optional[str] = ..., pairing: _Optional[_Union[_speculation_pb2.Pairing, _Mapping]] = ..., known_len: _Optional[int] = ..., min_rows: _Optional[int] = ..., stored: _Optional[bool] = ...) -> None: ...

class WatchSessionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchSessionsResponse(_message.Message):
    __slots__ = ("session_id", "prompt_len", "sampling")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LEN_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    prompt_len: int
    sampling: _speculation_pb2.SamplingParams
    def __init__(self, session_id: _Optional[str] = ..., prompt_len: _Optional[int] = ..., sampling: _Optional[_Union[_speculation_pb2.SamplingParams, _Mapping]] = ...) -> None: ...

class StreamTapsResponse(_message.Message):
    __slots__ = ("attached", "frame")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    attached: TapsAttached
    frame: _speculation_pb2.TapFrame
    def __init__(self, attached: _Optional[_Union[TapsAttached, _Mapping]] = ..., frame: _Optional[_Union[_speculation_pb2.TapFrame, _Mapping]] = ...) -> None: ...

class TapsAttached(_message.Message):
    __slots__ = ("tokens", "first_row")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    first_row: int
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., first_row: _Optional[int] = ...) -> None: ...
