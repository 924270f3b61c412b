"""Positions and plans as flat records, and back. Owns the stored form; knows no store."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from strandline.core.batch import Applied, Batch
from strandline.core.errors import StateError, WindowError
from strandline.core.position import Gap, Holder, Overlap, Position, Reason, Stall, Status, TablePlan
from strandline.core.protocols import Record
from strandline.core.records import COUNTS
from strandline.core.table import SYNC
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import KeyHash, KeyRange, Part, Repair, Slice, Window

Json = dict[str, Any]


def position_record(position: Position) -> Record:
    last = position.last_value
    kind = position.watermark.kind.value if position.watermark else ""
    if not kind and position.plan and position.plan.window:
        kind = position.plan.window.high.kind.value
    fields = {
        "watermark": _text(position.watermark),
        "last_value": _text(last),
        "kind": kind or (last.kind.value if last else ""),
        "last_kind": last.kind.value if last else "",
        "status": position.status.value,
        "error": position.error,
        "remedy": position.remedy if position.error else "",
        "run_id": position.run_id,
        "observed": position.observed,
        "marks": json.dumps({**_marks_json(position), **_said(position)}, sort_keys=True),
        "batch": position.batch.to_json() if position.batch else None,
        "intent": position.intent.to_json() if position.intent else None,
        "plan": json.dumps(plan_json(position.plan)) if position.plan else None,
        "measures": json.dumps(position.measures, sort_keys=True),
        "schema_text": position.schema,
        "updated_at": position.updated_at,
        "epoch": position.epoch,
        "batches": position.batches,
        "files": position.totals.files,
        **{name: getattr(position.totals, name) for name in COUNTS},
    }
    return Record("position", (position.pipeline, position.table, position.stage), fields, position.revision)


def record_position(record: Record) -> Position:
    """Raises StateError on a record that `position_record` did not write: it is never guessed over."""
    fields: Json = dict(record.fields)
    pipeline, table, stage = record.key
    if record.damage:
        raise _unreadable(record, record.damage)
    try:
        kind = Kind(fields["kind"]) if fields["kind"] else None
        last_kind = Kind(fields["last_kind"]) if fields["last_kind"] else kind  # a load counts batches, its rows do not
        last_value = _watermark(last_kind, fields["last_value"])
        return Position(
            pipeline,
            table,
            stage,
            watermark=_watermark(kind, fields["watermark"]),
            last_value=last_value,
            batch=Batch.from_json(fields["batch"]) if fields["batch"] else None,
            intent=Batch.from_json(fields["intent"]) if fields["intent"] else None,
            epoch=int(fields["epoch"]),
            plan=json_plan(json.loads(fields["plan"])) if fields["plan"] else None,
            status=Status(fields["status"]),
            totals=Applied(
                **{name: int(fields[name]) for name in COUNTS}, last_value=last_value, files=fields["files"] or 0
            ),
            batches=int(fields["batches"]),
            measures=dict(json.loads(fields["measures"])),
            schema=fields["schema_text"],
            observed=fields["observed"],
            **_json_marks(marks := json.loads(fields["marks"] or "{}")),
            due=marks.get("due", ""),
            patience=marks.get("patience", 0.0),
            strategy=marks.get("strategy", ""),
            error=fields["error"],
            remedy=fields["remedy"] or "",
            run_id=fields["run_id"],
            updated_at=fields["updated_at"],
            revision=record.revision,
        )
    except (ValueError, KeyError, TypeError, WindowError) as error:
        raise _unreadable(record, str(error)) from error


def _unreadable(record: Record, why: str) -> StateError:
    pipeline, table, stage = record.key
    which = f"-p {pipeline} -t {table}" + ("" if stage in (SYNC, "") else f" --stage {stage}")
    return StateError(
        f"the stored position of stage {stage or 'unknown'} cannot be read ({why})",
        where=f"{pipeline}.{table}",
        remedy=f"Take the target's word:   strandline watermark import --from-target {which}\n"
        f"Or say where to go on:   strandline watermark set {which}",
    )


def plan_json(plan: TablePlan) -> Json:
    window = plan.window
    return {
        "table": plan.table,
        "stage": plan.stage,
        "run_id": plan.run_id,
        "kind": window.high.kind.value if window else None,
        "window": _window_json(window) if window else None,
        "reason": plan.reason.value,
        "estimated_rows": plan.estimated_rows,
        "done": plan.done,
        "first": plan.first,
        "replace": plan.replace,
        "observed": plan.observed,
        **_marks_json(plan),
        "proven": plan.proven,
        "note": plan.note,
        "columns": plan.columns,
        "held_by": asdict(plan.held_by) if plan.held_by else None,
        "slices": [_slice_json(part) for part in plan.slices],
    }


def json_plan(raw: Json) -> TablePlan:
    kind = Kind(raw["kind"]) if raw["kind"] else None
    return TablePlan(
        raw["table"],
        raw["stage"],
        _json_window(kind, raw["window"]) if kind else None,
        tuple(_json_slice(kind, part) for part in raw["slices"]) if kind else (),
        Reason(raw["reason"]),
        estimated_rows=raw["estimated_rows"],
        run_id=raw["run_id"],
        done=raw["done"],
        first=raw["first"],
        replace=raw["replace"],
        observed=raw["observed"],
        **_json_marks(raw),
        proven=raw["proven"],
        note=raw["note"],
        columns=raw.get("columns", ""),
        held_by=Holder(**raw["held_by"]) if raw["held_by"] else None,
    )


def _said(position: Position) -> Json:
    """What the config says of its runs, for whoever looks at the state alone."""
    said = {"due": position.due, "patience": position.patience, "strategy": position.strategy}
    return {name: value for name, value in said.items() if value}


def _marks_json(of: Position | TablePlan) -> Json:
    """What a position and a plan say alike of the range that is looked at again."""
    stall, gap, overlap = of.stall, of.gap, of.overlap
    low = gap.low if gap else None
    return {
        "observed_at": of.observed_at,
        "stall": [stall.since, asdict(stall.holder)] if stall else None,
        "gap": [low.kind.value if low else None, _text(low), gap.why, gap.back] if gap else None,
        "overlap": [overlap.window.high.kind.value, _window_json(overlap.window), overlap.fingerprint]
        if overlap
        else None,
    }


def _json_marks(raw: Json) -> Json:
    """A store of schema version 1 knew none of them."""
    stall, gap, overlap = raw.get("stall"), raw.get("gap"), raw.get("overlap")
    return {
        "observed_at": raw.get("observed_at", ""),
        "stall": Stall(stall[0], Holder(**stall[1])) if stall else None,
        "gap": Gap(_watermark(Kind(gap[0]) if gap[0] else None, gap[1]), *gap[2:]) if gap else None,
        "overlap": Overlap(_json_window(Kind(overlap[0]), overlap[1]), overlap[2]) if overlap else None,
    }


def _slice_json(part: Slice) -> Json:
    keys = part.keys
    return {
        **_window_json(part.window),
        "keys": [keys.column, keys.low, keys.high] if keys else None,
        "read_from": _text(part.read_from),
        "nulls": part.nulls,
        "last": part.last,
        "repair": repair_json(part.repair),
    }


def _json_slice(kind: Kind, raw: Json) -> Slice:
    return Slice(
        _json_window(kind, raw),
        keys=KeyRange(*raw["keys"]) if raw["keys"] else None,
        read_from=_watermark(kind, raw["read_from"]),
        nulls=raw["nulls"],
        last=raw["last"],
        repair=json_repair(raw.get("repair")),
    )


def repair_json(repair: Repair | None) -> list[Any] | None:
    return [_part_json(repair.part), repair.deletes] if repair else None


def json_repair(raw: list[Any] | None) -> Repair | None:
    return Repair(_json_part(raw[0]), raw[1]) if raw else None


def _part_json(part: Part) -> Json:
    if isinstance(part, KeyRange):
        return {"column": part.column, "low": part.low, "high": part.high}
    return {"forms": part.forms, "modulo": part.modulo, "remainders": part.remainders, "hash": part.hash}


def _json_part(raw: Json) -> Part:
    if "column" in raw:
        return KeyRange(raw["column"], raw["low"], raw["high"])
    return KeyHash(tuple(raw["forms"]), raw["modulo"], tuple(raw["remainders"]), raw["hash"])


def _window_json(window: Window) -> Json:
    return {"low": _text(window.low), "high": window.high.text}


def _json_window(kind: Kind, raw: Json) -> Window:
    return Window(_watermark(kind, raw["low"]), Watermark(kind, raw["high"]))


def _text(value: Watermark | None) -> str | None:
    return None if value is None else value.text


def _watermark(kind: Kind | None, text: str | None) -> Watermark | None:
    if text is None:
        return None
    if kind is None:
        raise ValueError(f'value "{text}" without a kind')
    return Watermark(kind, text)


def resumed(plan: TablePlan) -> TablePlan:
    """An unfinished plan, carried out again exactly as it was written."""
    return replace(plan, reason=Reason.RESUMED)
