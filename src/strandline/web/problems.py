"""What can be wrong with a request, as problem JSON (RFC 9457): the message and the remedy, never a trace."""

from __future__ import annotations

from typing import Any

from strandline.core.errors import (
    ChangedError,
    ConfigError,
    ConflictError,
    LeaseError,
    RunFailedError,
    SourceError,
    StrandlineError,
    TargetError,
    WindowError,
)


class NotFoundError(StrandlineError):
    """There is no pipeline, table, run or job of this name."""


class RefusedError(StrandlineError):
    """It cannot be done as things are now."""


class BusyError(StrandlineError):
    """Too much is asked at once."""


_STATUS: tuple[tuple[type[StrandlineError], int], ...] = (
    (NotFoundError, 404),
    (BusyError, 429),
    (RefusedError, 409),
    (ConflictError, 409),
    (LeaseError, 409),
    (ChangedError, 409),
    (SourceError, 409),
    (TargetError, 409),
    (RunFailedError, 409),
    (ConfigError, 422),
    (WindowError, 422),
    (StrandlineError, 503),  # a server that is away, a state that cannot be read
)
_TITLES = {
    400: "The request cannot be understood",
    401: "A token is needed",
    403: "Not allowed",
    404: "There is no such thing",
    405: "This method is not known here",
    409: "Not as things are now",
    413: "The request is too large",
    422: "That cannot be",
    429: "Too many requests",
    500: "Something went wrong",
    503: "Not at the moment",
}


def status_of(error: StrandlineError) -> int:
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def problem(status: int, detail: str, remedy: str = "", why: str = "", docs: str = "") -> dict[str, Any]:
    optional = {"why": why, "remedy": remedy, "docs": docs}
    return {
        "type": "about:blank",
        "title": _TITLES.get(status, "Something went wrong"),
        "status": status,
        "detail": detail,
        **{name: text for name, text in optional.items() if text},
    }


def problem_of(error: StrandlineError) -> dict[str, Any]:
    return problem(status_of(error), str(error), error.remedy, error.why, error.docs)
