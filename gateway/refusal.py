"""Why a request gets no answer, or no more of it, in the words of either front."""

from __future__ import annotations

import grpc
import structlog

log = structlog.get_logger()


class RefusalError(Exception):
    """Raised instead of an answer, or in the middle of one. `code` says whose fault it is."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def refusal_of(error: grpc.aio.AioRpcError) -> RefusalError:
    """Pass the target's refusal on; whatever else went wrong there means that it is gone."""
    code, details = error.code(), error.details() or ""
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED):
        return RefusalError(code, details)
    log.error("target_lost", code=code.name, reason=details)
    return RefusalError(grpc.StatusCode.UNAVAILABLE, f"the target is gone: {details}")
