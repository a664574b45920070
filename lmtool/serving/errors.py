"""Errors of the API: what a client is told where its request is not answered."""

_ERRORS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""Types of errors by the status of HTTP, where it is not a range of them that decides."""


class ApiError(Exception):
    """A request that is not answered.

    status: of HTTP.
    param: the field at fault, if one is.
    code: for programs.
    body: the error object, as clients expect it.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class BadRequest(ApiError):
    """The client is at fault."""


class QueueFull(ApiError):
    """Too many requests wait."""

    def __init__(self) -> None:
        super().__init__(429, "too many requests wait already; try again later", code="queue_full")


class ShuttingDown(ApiError):
    """The server takes and completes no more requests."""

    def __init__(self) -> None:
        super().__init__(503, "the server is about to end")
