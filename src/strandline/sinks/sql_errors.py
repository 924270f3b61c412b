"""What went wrong while Spark filled a staging table, in terms of what the user can do.

Source and target may be of one kind, and Spark reads and writes in one task: where the error rose tells whose it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from strandline.core.errors import SourceError, StrandlineError, TransientError
from strandline.core.protocols import Changes
from strandline.core.table import Table
from strandline.sinks.delta_errors import ours
from strandline.sinks.postgres_copy import FAILED
from strandline.sources.dialect import REFUSED

_NUL = re.compile(rf"{REFUSED} column ([^\n]*?) with a NUL character(?!')")
_NO_CONNECTION = "FAILED_JDBC.CONNECTION"


@contextmanager
def told(table: Table, changes: Changes, translate: Callable[[str], StrandlineError | None]) -> Iterator[None]:
    """Raise what Spark raised as one of ours. Nothing is committed in here that a target's reader could see."""
    try:
        yield
    except StrandlineError as error:
        raise error.at(table.where_text) from error.__cause__
    except Exception as error:
        text = str(error)
        found: StrandlineError | None = _refused(text)
        if found is None:
            found = translate(text) if _by_target(text) else changes.translate(error) or translate(text)
        if found is None and _NO_CONNECTION in text:
            found = TransientError("Spark cannot connect to the target")
        found = found or ours(error)
        if found is None:
            raise
        raise found.at(table.where_text) from error


def _by_target(text: str) -> bool:
    """Whether the innermost cause rose where Spark writes: a row that could not be read passes through there, too."""
    if "BatchUpdateException" in text or re.search(FAILED, text):
        return True
    return "savePartition" in text and "JDBCRDD" not in text.rpartition("Caused by:")[2]


def _refused(text: str) -> SourceError | None:
    found = _NUL.search(text)
    if found is None:
        return None
    return SourceError(
        f'column "{found[1]}" holds a text with the character NUL, which PostgreSQL cannot store',
        remedy="Remove it at the source, or in `query:` or `transform:`: replace(column, chr(0), '').",
    )
