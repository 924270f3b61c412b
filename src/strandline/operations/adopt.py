"""Watermarks that people already keep: the JSON documents that a hand-made MySQL → S3 → Redshift job writes per table,
and the control table in which a stored procedure notes its syncs.

Owns what those mean to us; every check is that of `watermark set`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from strandline.core.errors import ConfigError
from strandline.core.table import EXTRACT, Mode
from strandline.core.watermark import Kind
from strandline.operations.change import Change
from strandline.operations.positions import set_watermark
from strandline.operations.resting import configured
from strandline.pipeline import some_stages
from strandline.project import Project

_MARK = "last_mysql_data_timestamp"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*){0,2}")
_CONTROL = "SELECT TABLE_NAME, MAX(WATERMARK_TO) FROM {} WHERE SYNC_STATUS = 'SUCCESS' GROUP BY TABLE_NAME"


def is_foreign(document: Any) -> bool:
    """Whether this is one table's document, or several of them by table."""
    return bool(_documents(document))


def adopt(project: Project, document: Any, pipeline: str = "", *, wait: bool = False) -> list[Change]:
    """One change per table. The other tool reads `> value`, so all below it is done; we read from it on, inclusive."""
    return [_adopted(project, raw, pipeline, wait) for raw in _documents(document)]


def adopt_control(project: Project, pipeline: str, control: str, *, wait: bool = False) -> list[Change]:
    """One change per table of a control table in the pipeline's target: where its last good sync ended."""
    from strandline.sinks.sql import SqlSink

    if not NAME.fullmatch(control):
        raise ConfigError(f'"{control}" is not the name of a table', where=pipeline)
    spec = project.pipeline(pipeline)
    with project.opened(pipeline, some_stages(spec, ())[-1]) as opened:
        if not isinstance(opened.sink, SqlSink):
            raise ConfigError("the control table is looked for in the target, which is no database", where=pipeline)
        found = opened.sink.ask(_CONTROL.format(control))
    if not found:
        raise ConfigError(f"{control} notes no sync that ended in SUCCESS", where=pipeline)
    return [taken(project, str(theirs), _text(value), pipeline, wait) for theirs, value in found]


def _text(value: object) -> str | None:
    return value.isoformat(" ") if isinstance(value, datetime) else None if value is None else str(value)


def _documents(document: Any) -> list[Mapping[str, Any]]:
    if not isinstance(document, dict):
        return []
    if _MARK in document:
        return [document]
    parts: list[Mapping[str, Any]] = [
        {"table_name": name, **raw} for name, raw in document.items() if isinstance(raw, dict) and _MARK in raw
    ]
    return parts if len(parts) == len(document) else []


def taken(project: Project, theirs: str, value: str | None, pipeline: str, wait: bool) -> Change:
    """The change that takes over a table's time, which the other tool has read up to and with."""
    home, table = our_table(project, theirs, pipeline)
    if value is None:
        raise ConfigError(
            f"{theirs}: it has moved nothing yet",
            where=f"{home}.{table}",
            remedy=f"There is nothing to take over: strandline sync -p {home} -t {table}",
        )
    change = set_watermark(project, home, table, value, kind=Kind.TIMESTAMP, wait=wait)
    note = f"the other tool's `> {value}` is our `>=`: rows at exactly that value are read once more"
    claims = _filled(project, home, table)
    filled = "the target's rows that it brought become ours: the next sync merges into them"
    notes = (*change.notes, note, filled) if claims else (*change.notes, note)
    return replace(change, action="import", notes=notes, claims=claims)


def _filled(project: Project, pipeline: str, table: str) -> tuple[str, ...]:
    """The stages whose target has rows of the other tool. Appending to those would bring rows at the edge twice."""
    from strandline.sinks.sql import SqlSink

    found = []
    for stage in some_stages(project.pipeline(pipeline), ()):
        with project.opened(pipeline, stage) as opened:
            ours = configured(opened, table)
            if stage != EXTRACT and isinstance(opened.sink, SqlSink) and opened.sink.foreign(ours):
                found.append(stage)
                if ours.mode is Mode.APPEND:
                    raise ConfigError(
                        "mode append would add rows at the watermark that the target holds already",
                        where=ours.where_text,
                        remedy="Give it a key and `mode: merge`. Or set `shared: true`, and say which value comes "
                        f"next:   strandline watermark set -p {pipeline} -t {table}",
                    )
    return tuple(found)


def _adopted(project: Project, raw: Mapping[str, Any], pipeline: str, wait: bool) -> Change:
    value = raw[_MARK]
    change = taken(project, str(raw.get("table_name", "")), None if value is None else str(value), pipeline, wait)
    notes = list(change.notes)
    if files := raw.get("processed_s3_files"):
        notes.append(f"what it staged stays its own (files: {len(files)}): only what we extract is loaded")
    for name in ("mysql_status", "redshift_status"):
        if raw.get(name) not in (None, "success"):
            notes.append(f"its {name} is {raw[name]}: {raw.get('last_error') or 'no error is noted'}")
    if raw.get("redshift_status") not in (None, "success"):
        notes.append("what it extracted and did not load is NOT read again: let it load that, or give an earlier value")
    return replace(change, notes=tuple(notes))


def our_table(project: Project, theirs: str, pipeline: str) -> tuple[str, str]:
    """Our pipeline and table for the other tool's name: the same name, without its schema, or in small letters."""
    short = theirs.rpartition(".")[2]
    specs = [project.pipeline(pipeline)] if pipeline else project.config.pipelines.values()
    for wanted in (theirs, short, theirs.lower(), short.lower()):
        found = [(spec.name, wanted) for spec in specs if any(part.name == wanted for part in spec.tables)]
        if len(found) == 1:
            return found[0]
        if found:
            homes = ", ".join(home for home, _ in found)
            raise ConfigError(f'table "{wanted}" is in several pipelines: {homes}', remedy="Say which: -p PIPELINE")
    raise ConfigError(
        f'no pipeline has a table "{theirs}" or "{short}"',
        remedy="Name it under `tables:` first; a glob does not tell which table is meant.",
    )
