"""Watermarks that people already keep in a Delta table of their own: versions by table, or a time by pipeline.

By table (`table_name`, `last_processed_version`, `start_version`, `end_version`, `status`): bounds are inclusive, so
the watermark is the last version that was done, plus one. By pipeline (`pipeline_name`, `last_processed_ts`): one time
for all its tables; `last_processed_version` is that time in milliseconds there, no version of anything. Read without a
JVM; every check is that of `watermark set`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from strandline.core.errors import ConfigError
from strandline.core.table import Mode
from strandline.core.watermark import Kind
from strandline.endpoint import Endpoint
from strandline.operations.adopt import our_table, taken
from strandline.operations.change import Change
from strandline.operations.positions import set_watermark
from strandline.project import Project

_FINISHED = ("COMPLETED", "SUCCESS")
_DONE = (*_FINISHED, "READY")
_TIMES = ("updated_at", "update_ts", "updated_ts", "created_at", "created_ts")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Noted = dict[str, Any]
"""A row of theirs, by column in small letters."""


def adopt_delta(project: Project, address: str, pipeline: str = "", *, wait: bool = False) -> list[Change]:
    """One change per table that the Delta table at this address speaks of."""
    columns, rows = _read(address)
    if {"table_name", "last_processed_version"} <= columns:
        return _by_table(project, address, rows, pipeline, wait)
    if {"pipeline_name", "last_processed_ts"} <= columns:
        return _by_pipeline(project, address, rows, pipeline, wait)
    raise ConfigError(
        f"{address} is no table of watermarks: it has {', '.join(sorted(columns))}",
        remedy="Known are tables with table_name and last_processed_version, or pipeline_name and last_processed_ts.",
    )


def _read(address: str) -> tuple[set[str], list[Noted]]:
    from strandline.sinks.delta_log import DeltaLog
    from strandline.spark.storage import delta_options

    endpoint = Endpoint.parse(address if address.startswith("delta:") else f"delta:{address}").resolved(Path.cwd())
    found = DeltaLog.open(endpoint.path, delta_options(endpoint))
    if found is None:
        raise ConfigError(f"there is no Delta table at {endpoint.path}")
    from deltalake import QueryBuilder

    data = QueryBuilder().register("theirs", found.delta).execute("SELECT * FROM theirs").read_all()
    names = [name.lower() for name in data.column_names]
    columns = [data.column(name).to_pylist() for name in data.column_names]
    return set(names), [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _by_table(project: Project, address: str, rows: list[Noted], pipeline: str, wait: bool) -> list[Change]:
    theirs = {row["pipeline_name"] for row in rows if row.get("pipeline_name")}
    if pipeline in theirs:
        rows = [row for row in rows if row["pipeline_name"] == pipeline]
    elif len(theirs) > 1:
        listed = ", ".join(sorted(theirs))
        raise ConfigError(f"{address} speaks of several pipelines: {listed}", remedy="Say which: -p PIPELINE")
    newest = _newest(rows, "table_name")
    if not newest:
        raise ConfigError(f"{address} notes no table")
    return [_version(project, row, pipeline, wait) for _, row in sorted(newest.items())]


def _version(project: Project, row: Noted, pipeline: str, wait: bool) -> Change:
    """The last version that is done: of a finished run its end, otherwise what stood before its start. Some note 0 for
    a table that has done nothing yet: version 0 is done when a run that read it is."""
    home, table = our_table(project, row["table_name"], pipeline)
    status, start, end = _status(row), row.get("start_version"), row.get("end_version")
    done = row["last_processed_version"]
    if done is None and status in _FINISHED:
        done = end
    if status not in _DONE and start is not None:
        done = start - 1 if done is None else min(done, start - 1)
    if done is None or done < 0 or (done == 0 and status not in _FINISHED and not start):
        raise ConfigError(
            f"{row['table_name']}: it has moved nothing yet",
            where=f"{home}.{table}",
            remedy=f"There is nothing to take over: strandline sync -p {home} -t {table}",
        )
    change = set_watermark(project, home, table, str(done + 1), kind=Kind.VERSION, wait=wait)
    notes = [*change.notes, f"its last version {done} is done: we go on at {done + 1}"]
    if status not in _DONE:
        notes.append(f"its run of versions {start} to {end} is {status}: those are planned anew")
    return replace(change, action="import", notes=tuple(notes))


def _by_pipeline(project: Project, address: str, rows: list[Noted], pipeline: str, wait: bool) -> list[Change]:
    newest = _newest(rows, "pipeline_name")
    if pipeline and pipeline not in newest and len(newest) == 1:
        newest = {pipeline: next(iter(newest.values()))}
    chosen = {pipeline: newest[pipeline]} if pipeline in newest else {} if pipeline else newest
    if not chosen:
        known = ", ".join(sorted(newest)) or "none"
        raise ConfigError(f"{address} notes nothing of {pipeline or 'any pipeline'}", remedy=f"Noted are: {known}")
    return [change for name, row in sorted(chosen.items()) for change in _times(project, name, row, wait)]


def _times(project: Project, pipeline: str, row: Noted, wait: bool) -> Iterable[Change]:
    spec = project.pipeline(pipeline)
    at, number = row["last_processed_ts"], row.get("last_processed_version")
    if at is None and number is not None:
        at = _EPOCH + timedelta(milliseconds=number)
    for part in spec.tables:
        if part.mode is Mode.SNAPSHOT:
            continue
        if part.glob:
            remedy = f"Name the tables that {part.name} stands for, each by itself."
            raise ConfigError(f'"{part.name}" does not tell which tables are meant', where=pipeline, remedy=remedy)
        change = taken(project, part.name, None if at is None else at.isoformat(" "), pipeline, wait)
        notes = list(change.notes)
        if number is not None:
            notes.append(f"its last_processed_version {number} is that time in milliseconds, and no version of Delta's")
        if _status(row) not in _DONE:
            notes.append(f"its last run is {_status(row)}: what it read is read again")
        yield replace(change, notes=tuple(notes))


def _status(row: Mapping[str, Any]) -> str:
    return str(row.get("status") or "").upper() or "of no status"


def _newest(rows: Iterable[Noted], by: str) -> dict[str, Noted]:
    """The row that was written last, by name; where no time is noted, the one that goes furthest."""

    def age(row: Noted) -> tuple[datetime, int, int]:
        times = [_aware(row[name]) for name in _TIMES if isinstance(row.get(name), datetime)]
        end, done = row.get("end_version"), row.get("last_processed_version")
        return max(times, default=_EPOCH), -1 if end is None else end, -1 if done is None else done

    found: dict[str, Noted] = {}
    for row in sorted(rows, key=age):
        if row[by]:
            found[str(row[by])] = row
    return found


def _aware(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)
