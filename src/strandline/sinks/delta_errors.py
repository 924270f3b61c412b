"""What went wrong inside a Spark action on a Delta table, in terms of what the user can do.

Spark wraps errors differently on a classic session and on Spark Connect; both keep the words, so words decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from strandline.core.errors import CommitUnknownError, StrandlineError, TargetError, TransientError
from strandline.core.protocols import Changes
from strandline.core.table import Table

_CONFLICT = re.compile(
    r"\[DELTA_(CONCURRENT|METADATA_CHANGED|PROTOCOL_CHANGED)"
    r"|\b(Concurrent(Append|DeleteRead|DeleteDelete|Transaction|Write)|MetadataChanged|ProtocolChanged)Exception"
)
_LOST = re.compile(
    r"StatusCode\.UNAVAILABLE|StatusCode\.DEADLINE_EXCEEDED|Connection reset|Connection refused|Broken pipe"
    r"|Answer from Java side is empty|InterruptedIOException|SocketTimeoutException|NoHttpResponseException"
    r"|Unable to execute HTTP request|ConnectionClosedException"
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)
_DENIED = re.compile(r"AccessControlException|AccessDenied|Permission denied", re.IGNORECASE)
_NOT_EMPTY = re.compile(r"DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION")
_NOISE = re.compile(r"^(An error occurred while calling|\(?org\.apache\.spark\.SparkException\)? *$|Driver stacktrace)")
_LONGEST = 300


@contextmanager
def told(table: Table, changes: Changes | None = None, *, committing: bool = False) -> Iterator[None]:
    """Raise what an action raised as one of ours; `committing`: a lost connection leaves the outcome unknown."""
    try:
        yield
    except StrandlineError:
        raise
    except Exception as error:
        by_source = None if changes is None else changes.translate(error)
        found = by_source or ours(error, committing=committing)
        if found is None:
            raise
        raise found.at(table.where_text) from error


def conflicting(error: Exception) -> bool:
    """Whether another writer committed what this one depends on, so that it was not committed."""
    return bool(_CONFLICT.search("\n".join(_said(error))))


def ours(error: Exception, *, committing: bool = False) -> StrandlineError | None:
    text = "\n".join(_said(error))
    if conflicting(error):
        return TransientError("another writer changed the target at the same moment")
    if _FULL.search(text):
        return TargetError(
            "the disk is full",
            why=short(error),
            remedy="Free some space where the target or Spark's temporary files lie. Nothing was committed.",
        )
    if _LOST.search(text) or isinstance(error, ConnectionError):
        if committing:
            return CommitUnknownError(f"Spark was lost while it wrote the batch: {short(error)}")
        return TransientError(f"the connection to Spark or its storage was lost: {short(error)}")
    if _DENIED.search(text):
        return TargetError(f"no permission on the target: {short(error)}")
    if _NOT_EMPTY.search(text):
        return TargetError(
            "the target's folder is not empty and not a Delta table",
            remedy="Move the files away, or give the table another `target:`.",
        )
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        return TargetError(f"Spark could not write the batch: {short(error)}")
    return None


def short(error: Exception) -> str:
    """The line that says why: the innermost cause of a Java trace, else the first line that says anything."""
    lines = _said(error)
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    telling = [line for line in lines if line and not _NOISE.match(line)]
    line = causes[-1] if causes else next(iter(telling), type(error).__name__)
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def _said(error: Exception) -> list[str]:
    """The lines of an error that are no stack trace."""
    lines = (line.strip().removeprefix(": ") for line in str(error).splitlines())
    return [line for line in lines if not line.startswith(("at ", "\tat "))]
