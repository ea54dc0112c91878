"""What goes wrong, in OpenAI's words: a status, and a body with message, type, param and code."""

from __future__ import annotations

from typing import Any

from grpc import StatusCode

from gateway.refusal import RefusalError

RETRY_AFTER_S = 1
_STATUS = {
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DEADLINE_EXCEEDED: 504,
}
_WORDS = {
    404: ("invalid_request_error", "not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    500: ("server_error", "internal_error"),
    503: ("server_error", "service_unavailable"),
    504: ("server_error", "timeout"),
}


class HttpError(Exception):
    """Raised instead of an answer, or in the middle of one."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.kind, usual_code = _WORDS.get(status, ("invalid_request_error", None))
        self.code = code or usual_code

    @classmethod
    def of(cls, refusal: RefusalError) -> HttpError:
        """Return what the generator's refusal is here."""
        return cls(_STATUS.get(refusal.code, 500), refusal.message)

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(RETRY_AFTER_S)} if self.status == 429 else {}

    def body(self) -> dict[str, Any]:
        """Return the JSON that OpenAI's clients read."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }
