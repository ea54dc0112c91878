from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[Dtype]
    DTYPE_F32: _ClassVar[Dtype]
    DTYPE_BF16: _ClassVar[Dtype]
    DTYPE_F16: _ClassVar[Dtype]
DTYPE_UNSPECIFIED: Dtype
DTYPE_F32: Dtype
DTYPE_BF16: Dtype
DTYPE_F16: Dtype

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "inline")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    dtype: Dtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    inline: bytes
    def __init__(self, dtype: _Optional[_Union[Dtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., inline: _Optional[bytes] = ...) -> None: ...

class DraftTree(_message.Message):
    __slots__ = ("committed_len", "tokens", "parents", "logprobs", "drafter_id", "timings")
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    committed_len: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    drafter_id: str
    timings: DraftTimings
    def __init__(self, committed_len: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., drafter_id: _Optional[str] = ..., timings: _Optional[_Union[DraftTimings, _Mapping]] = ...) -> None: ...

class DraftTimings(_message.Message):
    __slots__ = ("queue_us", "extend_us", "grow_us")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    EXTEND_US_FIELD_NUMBER: _ClassVar[int]
    GROW_US_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    extend_us: int
    grow_us: int
    def __init__(self, queue_us: _Optional[int] = ..., extend_us: _Optional[int] = ..., grow_us: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("committed_len", "path", "tokens", "logprobs", "top_logprobs", "timings")
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    committed_len: int
    path: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_logprobs: _containers.RepeatedCompositeFieldContainer[TopLogprobs]
    timings: VerifyTimings
    def __init__(self, committed_len: _Optional[int] = ..., path: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., top_logprobs: _Optional[_Iterable[_Union[TopLogprobs, _Mapping]]] = ..., timings: _Optional[_Union[VerifyTimings, _Mapping]] = ...) -> None: ...

class TopLogprobs(_message.Message):
    __slots__ = ("token_ids", "logprobs")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class VerifyTimings(_message.Message):
    __slots__ = ("queue_us", "forward_us", "accept_us", "rows")
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    FORWARD_US_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_US_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    queue_us: int
    forward_us: int
    accept_us: int
    rows: int
    def __init__(self, queue_us: _Optional[int] = ..., forward_us: _Optional[int] = ..., accept_us: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class TapFrame(_message.Message):
    __slots__ = ("base_len", "committed_len", "tokens", "taps")
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LEN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TAPS_FIELD_NUMBER: _ClassVar[int]
    base_len: int
    committed_len: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    taps: Tensor
    def __init__(self, base_len: _Optional[int] = ..., committed_len: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., taps: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "suppressed_token_ids", "min_new_tokens", "top_logprobs")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    suppressed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    min_new_tokens: int
    top_logprobs: int
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., suppressed_token_ids: _Optional[_Iterable[int]] = ..., min_new_tokens: _Optional[int] = ..., top_logprobs: _Optional[int] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("steps", "top_k", "draft_tokens")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    top_k: int
    draft_tokens: int
    def __init__(self, steps: _Optional[int] = ..., top_k: _Optional[int] = ..., draft_tokens: _Optional[int] = ...) -> None: ...

class Pairing(_message.Message):
    __slots__ = ("protocol_version", "target_fingerprint", "hidden_size", "vocab_size", "tap_layers", "tap_dtype", "tokenizer_digest")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_SIZE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    TAP_LAYERS_FIELD_NUMBER: _ClassVar[int]
    TAP_DTYPE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    target_fingerprint: str
    hidden_size: int
    vocab_size: int
    tap_layers: _containers.RepeatedScalarFieldContainer[int]
    tap_dtype: Dtype
    tokenizer_digest: str
    def __init__(self, protocol_version: _Optional[int] = ..., target_fingerprint: _Optional[str] = ..., hidden_size: _Optional[int] = ..., vocab_size: _Optional[int] = ..., tap_layers: _Optional[_Iterable[int]] = ..., tap_dtype: _Optional[_Union[Dtype, str]] = ..., tokenizer_digest: _Optional[str] = ...) -> None: ...
