"""The kinds of records a state store holds: key parts and fields. SQL and Delta backends make columns of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KindSpec:
    """`text` fields hold any length, `integers` 64 bits. Times are ISO text in UTC: they sort as they are."""

    key: tuple[str, ...]
    text: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    history: bool = False  # may be pruned by the age of its first key part


COUNTS = ("rows_read", "rows_inserted", "rows_updated", "rows_deleted")

KINDS: dict[str, KindSpec] = {
    "meta": KindSpec(("name",), ("value",)),
    "position": KindSpec(
        ("pipeline", "table_name", "stage"),
        (
            "watermark",
            "last_value",
            "kind",
            "last_kind",
            "status",
            "error",
            "remedy",
            "run_id",
            "observed",
            "marks",
            "batch",
            "intent",
            "plan",
            "measures",
            "schema_text",
            "updated_at",
        ),
        ("epoch", "batches", "files", *COUNTS),
    ),
    "lease": KindSpec(("pipeline", "table_name"), ("holder", "run_id", "acquired_at", "expires_at"), ("token",)),
    "pipeline": KindSpec(("pipeline",), ("suspended_at", "suspended_by", "why")),
    "verification": KindSpec(
        ("pipeline", "table_name", "stage"),
        ("status", "error", "verified_at"),
        ("missing", "extra", "different", "duplicate"),
    ),
    "lag": KindSpec(("pipeline",), ("points",)),
    "run": KindSpec(
        ("run_id",),
        (
            "pipeline",
            "status",
            "trigger_name",
            "user_name",
            "host",
            "job_id",
            "started_at",
            "ended_at",
            "error",
            "remedy",
        ),
        ("tables", "milliseconds", *COUNTS),
        history=True,
    ),
    "table_run": KindSpec(
        ("run_id", "table_name", "stage"),
        ("pipeline", "status", "low", "high", "reason", "started_at", "ended_at", "error", "remedy", "held_by"),
        ("batches", "milliseconds", *COUNTS),
        history=True,
    ),
    "change": KindSpec(
        ("change_id",),
        ("pipeline", "table_name", "stage", "action", "old", "new", "who", "why", "changed_at"),
        ("epoch",),
        history=True,
    ),
}
