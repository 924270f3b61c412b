"""The history of syncs as a table in the target, for those who watch it there with SQL (`history: target`).

One row per table and run: RUNNING while it moves, then SUCCESS or FAILED. A listener; the state keeps the history that
Strandline itself goes by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from strandline.core.batch import Applied
from strandline.core.events import Event, Planned, TableEvent, TableFinished
from strandline.core.position import Status, TablePlan
from strandline.core.watermark import Watermark
from strandline.core.window import Extent
from strandline.sinks.sql_dialect import Database, Place, TargetDialect

HISTORY = "strandline_history"
_GONE = "the run ended without saying how (killed?)"


def create_text(dialect: TargetDialect, place: Place) -> str:
    name, short = dialect.name_type(190), dialect.name_type(64)
    found = ", UNIQUE (table_name, stage, run_id)" if dialect.keys else ""  # by the row's end, and by the next run
    return (
        f"CREATE TABLE IF NOT EXISTS {dialect.place(place)} (\n"
        f"  sync_run_id {dialect.serial} PRIMARY KEY, table_name {name} NOT NULL,\n"
        f"  sync_start_timestamp {dialect.stamp} NOT NULL, sync_end_timestamp {dialect.stamp},\n"
        f"  watermark_from {dialect.stamp}, watermark_to {dialect.stamp},\n"
        "  rows_inserted bigint, rows_updated bigint, rows_processed bigint,\n"
        f"  sync_status {short} NOT NULL, error_message {dialect.long_text},\n"
        f"  run_id {short} NOT NULL, pipeline {name} NOT NULL, stage {short} NOT NULL, rows_deleted bigint,\n"
        f"  cursor_from {short}, cursor_to {short}{found})"
    )


class TargetHistory:
    """Hears what a run does and writes it down. Raises what keeps it from being written."""

    def __init__(self, database: Database, extent: Callable[[TablePlan], Extent]) -> None:
        self._database = database
        self._extent = extent
        self._dialect = database.dialect
        self._place = Place(database.schema, HISTORY)
        self._name = self._dialect.place(self._place)
        self._there = False

    def hear(self, event: Event) -> None:
        match event:
            case Planned():
                self._began(event, event.plan)
            case TableFinished():
                self._ended(event, event.status, event.applied, event.error)

    def _began(self, where: TableEvent, plan: TablePlan) -> None:
        if not self._there:
            self._database.run(create_text(self._dialect, self._place))
            self._there = True
        if plan.work:  # the table is ours now: whoever had it before is gone
            self._close_abandoned(where)
        extent = self._extent(plan)
        values = {
            **self._key(where),
            "pipeline": self._text(where.pipeline),
            "sync_start_timestamp": self._dialect.now,
            "watermark_from": self._time(extent.since),
            "watermark_to": self._time(extent.until),
            "cursor_from": self._text(extent.low.text if extent.low else None),
            "cursor_to": self._text(extent.high.text if extent.high else None),
            "sync_status": "'RUNNING'",
        }
        self._database.run(f"INSERT INTO {self._name} ({', '.join(values)}) VALUES ({', '.join(values.values())})")

    def _close_abandoned(self, where: TableEvent) -> None:
        """Should one of them be alive after all, its own word is the last: `_ended` writes over this."""
        known = {"table_name": where.table, "stage": where.stage, "pipeline": where.pipeline, "sync_status": "RUNNING"}
        self._update(
            {
                "sync_end_timestamp": self._dialect.now,
                "sync_status": "'FAILED'",
                "error_message": self._text(_GONE),
            },
            {name: self._text(value) for name, value in known.items()},
        )

    def _ended(self, where: TableEvent, status: Status, applied: Applied, error: str) -> None:
        changed = applied.rows_inserted + applied.rows_updated + applied.rows_deleted
        values = {
            "sync_end_timestamp": self._dialect.now,
            "rows_inserted": str(applied.rows_inserted),
            "rows_updated": str(applied.rows_updated),
            "rows_deleted": str(applied.rows_deleted),
            "rows_processed": str(changed),
            "sync_status": "'FAILED'" if status is Status.FAILED else "'SUCCESS'",
            "error_message": self._text(error or None),
        }
        self._update(values, self._key(where))

    def _update(self, values: Mapping[str, str], known: Mapping[str, str]) -> None:
        listed = ", ".join(f"{name} = {value}" for name, value in values.items())
        found = " AND ".join(f"{name} = {value}" for name, value in known.items())
        self._database.run(f"UPDATE {self._name} SET {listed} WHERE {found}")

    def _key(self, where: TableEvent) -> dict[str, str]:
        named = {"run_id": where.run_id, "table_name": where.table, "stage": where.stage}
        return {name: self._text(value) for name, value in named.items()}

    def _text(self, value: str | None) -> str:
        return "NULL" if value is None else self._dialect.string(value)

    def _time(self, value: Watermark | None) -> str:
        """Never later than it is: a database would round more digits than it keeps."""
        return "NULL" if value is None else self._text(value.floor(6).text)
