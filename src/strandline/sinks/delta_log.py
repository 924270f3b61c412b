"""A Delta table's log, read through delta-rs: whose table it is, its columns, and the last batch it holds. No JVM.

Owns the form in which a batch's identity travels in a commit's `userMetadata`. Writes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from strandline.core.batch import Applied, Batch, Receipt
from strandline.core.errors import SetupError, TargetError, WindowError
from strandline.core.table import Table
from strandline.core.watermark import Kind, Watermark

try:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError
except ImportError as error:
    raise SetupError("the package deltalake is not installed", remedy="pip install 'strandline[delta]'") from error

PIPELINE, TABLE = "strandline.pipeline", "strandline.table"
_RETENTION = "delta.deletedFileRetentionDuration"
_HOURS = {"week": 168.0, "day": 24.0, "hour": 1.0, "minute": 1 / 60, "second": 1 / 3600}
_NUMBER = 0xFFFFFFFF
_LOOKS = (1, 50, 1000, None)  # how many commits to look back over, one after the other; None: all there are


def app_id(table: Table) -> str:
    """The name under which the table's log counts our batches: one for ever, or an old writer could still commit."""
    return f"strandline/{table.pipeline}/{table.name}/{table.stage}"


def txn_version(batch: Batch) -> int:
    return batch.epoch << 32 | batch.number


def note(table: Table, batch: Batch, applied: Applied | None = None, *, carried: int | None = None) -> str:
    """What a commit's `userMetadata` says. `applied`: what is known before the write; `carried`: by maintenance, when
    our count stood there."""
    content: dict[str, Any] = {"strandline": json.loads(batch.to_json()), "app": app_id(table)}
    if applied is not None:
        last = applied.last_value
        content["rows"] = applied.rows_read
        content["last_value"] = None if last is None else [last.kind.value, last.text]
        if carried is not None:
            content["fence"] = carried
            content["carried"] = [applied.rows_inserted, applied.rows_updated, applied.rows_deleted]
    return json.dumps(content, sort_keys=True)


def fence_note(table: Table, version: int) -> str:
    """What a commit says that only raises the count of our batches."""
    return json.dumps({"app": app_id(table), "fence": version}, sort_keys=True)


def retention_hours(properties: Mapping[str, str]) -> float:
    """How long the table keeps files that no current version needs; a week unless its property says otherwise."""
    spans = re.findall(r"(\d+)\s*(week|day|hour|minute|second)", properties.get(_RETENTION, "interval 1 week").lower())
    return sum(int(count) * _HOURS[unit] for count, unit in spans)


@dataclass(frozen=True)
class DeltaLog:
    """One table's log as it was when it was opened."""

    delta: DeltaTable

    @classmethod
    def open(cls, uri: str, options: Mapping[str, str]) -> DeltaLog | None:
        """None where there is nothing yet; TargetError where there is something that is not a Delta table."""
        try:
            return cls(DeltaTable(uri, storage_options=dict(options) or None))
        except TableNotFoundError:
            pass
        except (DeltaError, OSError, ValueError) as error:
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise TargetError(f"the target {uri} cannot be read as a Delta table: {first}") from error
        if "://" not in uri and _something_else(Path(uri)):
            raise TargetError(
                f"{uri} is not empty and not a Delta table",
                why="Writing there would mix a table with files that belong to something else.",
                remedy="Move the files away, or give the table another `target:`.",
            )
        return None

    def check_owner(self, table: Table) -> None:
        """TargetError unless this table was made for ours, or the user says that it is shared. It says whose it is; or
        its first batch made it, and then our count is there."""
        if table.shared:
            return
        owner: tuple[str | None, str | None] = (self.properties.get(PIPELINE), self.properties.get(TABLE))
        if owner == (None, None):
            if self.txn_version(table) is not None:
                return
            owner = next(filter(None, map(_writer, self.delta.history(_LOOKS[1]))), owner)
        if owner == (table.pipeline, table.name):
            return
        whose = "somebody else: Strandline did not make it" if owner == (None, None) else f"{owner[0]}.{owner[1]}"
        raise TargetError(
            f"{self.delta.table_uri} belongs to {whose}",
            where=table.where_text,
            remedy="Give the table another `target:`, or set `shared: true` if several may write to it.",
        )

    @property
    def properties(self) -> dict[str, str]:
        return dict(self.delta.metadata().configuration)

    @property
    def features(self) -> frozenset[str]:
        """The table features a writer must know."""
        return frozenset(self.delta.protocol().writer_features or ())

    @property
    def schema_json(self) -> str:
        return self.delta.schema().to_json()

    def may_exceed(self, column: str, value: Watermark) -> bool:
        """Whether a row may lie there that is above this value. Files tell bounds; of one that does not,
        anything is possible."""
        files = self.delta.get_add_actions(flatten=True)
        names = [f"max.{column}", f"null_count.{column}", "num_records"]
        if not files.num_rows or not set(names) <= set(files.schema.names):
            return bool(files.num_rows)
        told = zip(*(files.column(name).to_pylist() for name in names), strict=True)
        return any(_above(highest, value) if highest is not None else unset != rows for highest, unset, rows in told)

    def txn_version(self, table: Table) -> int | None:
        return self.delta.transaction_version(app_id(table))

    def receipt(self, table: Table) -> Receipt | None:
        """The last batch of this table and stage that the target holds.

        Delta counts our batches for ever, but forgets a commit's metadata when its log is cleaned (30 days). Our own
        maintenance carries the identity on; where only others wrote for so long, the receipt is not `exact`.
        """
        version = self.txn_version(table)
        if version is None or version & _NUMBER == 0:  # never counted, or only a fence stands there
            return None
        seen = 0
        for limit in _LOOKS:
            commits = self.delta.history(limit)
            found = _search(commits, app_id(table), version)
            if found is not None:
                return replace(found, epoch=version >> 32)
            if len(commits) == seen:
                break
            seen = len(commits)
        unknown = Watermark(Kind.VERSION, "0")
        return Receipt(Batch("", version >> 32, version & _NUMBER, None, unknown, None, ""), Applied(), exact=False)


def _above(highest: object, value: Watermark) -> bool:
    if isinstance(highest, datetime):
        highest = highest.replace(tzinfo=None) + timedelta(milliseconds=1)  # Delta keeps no more of a time
    try:
        return Watermark(value.kind, str(highest)) > value
    except WindowError:  # of another kind than the cursor
        return True


def _something_else(path: Path) -> bool:
    """Whether files lie there that no table was to be made of. Delta makes the folder of a table's log first."""
    if not path.is_dir():
        return path.exists()
    return not (path / "_delta_log").is_dir() and any(path.iterdir())


def _search(commits: list[dict[str, Any]], app: str, version: int) -> Receipt | None:
    """The newest receipt that counts. A restored table holds what it held then, though Delta's count goes on."""
    restored = fenced = False
    for commit, jumped in _effective(commits):
        content = _content(commit, app)
        if content is None:
            continue
        restored, fenced = restored or jumped, fenced or content.get("fence") == version
        receipt = _receipt(commit, content)
        if receipt is not None and (restored or fenced or txn_version(receipt.batch) == version):
            return receipt
    return None


def _effective(commits: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Commits from the newest back, without those that a RESTORE undid, and whether one lies behind."""
    below: int | None = None
    before: int | None = None
    for commit in commits:
        if (below is not None and commit["version"] > below) or (before is not None and commit["timestamp"] > before):
            continue
        if commit.get("operation") == "RESTORE":
            to = commit.get("operationParameters", {})
            if to.get("version") is not None:
                below, before = int(to["version"]), None
            else:
                below, before = None, _millis(to["timestamp"])
            continue
        yield commit, below is not None or before is not None


def _millis(stamp: str) -> int:
    at = datetime.fromisoformat(stamp)
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _content(commit: Mapping[str, Any], app: str) -> dict[str, Any] | None:
    """What a commit of ours says; None: it is not one of ours."""
    content = _said(commit)
    return content if content.get("app") == app else None


def _writer(commit: Mapping[str, Any]) -> tuple[str, str] | None:
    """The pipeline and table whose commit it is; None: somebody else's."""
    match str(_said(commit).get("app")).split("/"):
        case ["strandline", pipeline, table, _]:
            return pipeline, table
    return None


def _said(commit: Mapping[str, Any]) -> dict[str, Any]:
    try:
        content = json.loads(commit.get("userMetadata") or "null")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _receipt(commit: Mapping[str, Any], content: Mapping[str, Any]) -> Receipt | None:
    """The batch that a commit of ours brought, or carried on; None: a fence."""
    if "strandline" not in content:
        return None
    batch = Batch.from_json(json.dumps(content["strandline"]))
    metrics = {name: int(value) for name, value in commit.get("operationMetrics", {}).items() if str(value).isdigit()}
    if "carried" in content:
        inserted, updated, deleted = content["carried"]
    elif commit.get("operation") == "MERGE":
        inserted, updated, deleted = (metrics.get(f"numTargetRows{what}", 0) for what in _MERGED)
    else:
        inserted, updated, deleted = metrics.get("numOutputRows", 0), 0, 0
        if "replaceOnCond" in commit.get("operationParameters", {}):
            inserted -= metrics.get("numCopiedRows", 0)  # those that stay in a file of which others were deleted
            updated = min(inserted, metrics.get("numDeletedRows", 0))
            inserted -= updated
    last = content.get("last_value")
    last_value = None if last is None else Watermark(Kind(last[0]), last[1])
    return Receipt(batch, Applied(content.get("rows", inserted), inserted, updated, deleted, last_value))


_MERGED = ("Inserted", "Updated", "Deleted")
