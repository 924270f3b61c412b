"""The last verification of each table: kept in the state, whoever made it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from strandline.core.books import stamp
from strandline.core.compare import KINDS
from strandline.core.errors import ConflictError
from strandline.core.protocols import Record, State, Value
from strandline.operations.health import Verified
from strandline.verify.verdict import Answer, Verdict

Verifications = Mapping[tuple[str, str], Verified]
"""By table and stage."""
_AGAIN = 5


def note(state: State, verdicts: Sequence[Verdict], redact: Callable[[str], str]) -> None:
    """A table that was never loaded was not compared. ConflictError: somebody else notes theirs, again and again."""
    compared = [verdict for verdict in verdicts if verdict.answer is not Answer.NOT_LOADED]
    for attempt in range(_AGAIN if compared else 0):
        known = {record.key: record for record in state.read("verification", [compared[0].pipeline])}
        try:
            state.put([_record(known, verdict, stamp(state.now()), redact) for verdict in compared])
            return
        except ConflictError:
            if attempt == _AGAIN - 1:
                raise


def verifications(state: State, pipeline: str = "") -> dict[str, Verifications]:
    """By pipeline."""
    found: dict[str, dict[tuple[str, str], Verified]] = {}
    for record in state.read("verification", [pipeline] if pipeline else []):
        name, table, stage = record.key
        found.setdefault(name, {})[table, stage] = _verified(record)
    return dict(found)


def _record(known: Mapping[tuple[str, ...], Record], verdict: Verdict, at: str, redact: Callable[[str], str]) -> Record:
    key = (verdict.pipeline, verdict.table, verdict.stage)
    fields: dict[str, Value] = {
        "status": verdict.answer.value,
        "error": redact(str(verdict.error)) if verdict.error else "",
        "verified_at": at,
        **{kind: getattr(verdict.differences, kind) for kind in KINDS},
    }
    return replace(known.get(key) or Record("verification", key, {}), fields=fields)


def _verified(record: Record) -> Verified:
    fields = record.fields
    gone = fields["status"] in (Answer.EQUAL, Answer.REPAIRED)  # what was found is there no more
    counts = {kind: 0 if gone else int(fields[kind] or 0) for kind in KINDS}
    at = datetime.fromisoformat(str(fields["verified_at"]))
    return Verified(str(fields["status"]), at, **counts, error=str(fields["error"] or ""))
