"""Errors that the API reports to clients."""

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""Error types of the API by HTTP status; other statuses have the type of their range."""


class ApiError(Exception):
    """An error response.

    status: HTTP status.
    param: the invalid field, if any.
    code: machine-readable code.
    body: the error object of the API.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class BadRequest(ApiError):
    """The request is invalid."""


class QueueFull(ApiError):
    """Too many requests wait."""

    def __init__(self) -> None:
        super().__init__(429, "too many requests wait already; try again later", code="queue_full")


class ShuttingDown(ApiError):
    """The server is shutting down and completes no more requests."""

    def __init__(self) -> None:
        super().__init__(503, "the server is shutting down")
