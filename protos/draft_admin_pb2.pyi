from protos import draft_pb2 as _draft_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LoadDrafterRequest(_message.Message):
    __slots__ = ("drafter_id", "directory")
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    drafter_id: str
    directory: str
    def __init__(self, drafter_id: _Optional[str] = ..., directory: _Optional[str] = ...) -> None: ...

class LoadDrafterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnloadDrafterRequest(_message.Message):
    __slots__ = ("drafter_id",)
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    drafter_id: str
    def __init__(self, drafter_id: _Optional[str] = ...) -> None: ...

class UnloadDrafterResponse(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    def __init__(self, sessions: _Optional[int] = ...) -> None: ...

class SetDefaultDrafterRequest(_message.Message):
    __slots__ = ("drafter_id",)
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    drafter_id: str
    def __init__(self, drafter_id: _Optional[str] = ...) -> None: ...

class SetDefaultDrafterResponse(_message.Message):
    __slots__ = ("previous_drafter_id",)
    PREVIOUS_DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    previous_drafter_id: str
    def __init__(self, previous_drafter_id: _Optional[str] = ...) -> None: ...

class SetCanaryRequest(_message.Message):
    __slots__ = ("canary",)
    CANARY_FIELD_NUMBER: _ClassVar[int]
    canary: _draft_pb2.Canary
    def __init__(self, canary: _Optional[_Union[_draft_pb2.Canary, _Mapping]] = ...) -> None: ...

class SetCanaryResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartShadowRequest(_message.Message):
    __slots__ = ("drafter_id", "share", "promote_if")
    DRAFTER_ID_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    PROMOTE_IF_FIELD_NUMBER: _ClassVar[int]
    drafter_id: str
    share: float
    promote_if: _draft_pb2.PromotionRule
    def __init__(self, drafter_id: _Optional[str] = ..., share: _Optional[float] = ..., promote_if: _Optional[_Union[_draft_pb2.PromotionRule, _Mapping]] = ...) -> None: ...

class StartShadowResponse(_message.Message):
    __slots__ = ("incumbent_id",)
    INCUMBENT_ID_FIELD_NUMBER: _ClassVar[int]
    incumbent_id: str
    def __init__(self, incumbent_id: _Optional[str] = ...) -> None: ...

class StopShadowRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopShadowResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
