"""A watermark that another tool keeps in a cache table of the source's database: a key and a value, JSON in bytes.

Its poller reads `> value`. Every check is that of `watermark set`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from strandline.core.errors import ConfigError
from strandline.core.watermark import Kind
from strandline.operations.adopt import NAME
from strandline.operations.change import Change
from strandline.operations.positions import set_watermark
from strandline.operations.resting import configured
from strandline.project import Project
from strandline.sources.database import DatabaseSource


def adopt_cache(project: Project, pipeline: str, table: str, cache: str, *, wait: bool = False) -> Change:
    """`cache`: the table, and after a colon the key where it holds several."""
    name, _, key = cache.partition(":")
    if not NAME.fullmatch(name):
        raise ConfigError(f'"{name}" is not the name of a table', where=pipeline)
    with project.opened(pipeline) as opened:
        if not isinstance(opened.source, DatabaseSource):
            raise ConfigError("the cache table is looked for in the source, which is no database", where=pipeline)
        cursor = configured(opened, table).cursor
        found = opened.source.session.rows(f"SELECT * FROM {name}")
    value = _value(_chosen(found, name, key), cursor.column if cursor else "", f"{pipeline}.{table}")
    if isinstance(value, int):
        change = set_watermark(project, pipeline, table, str(value + 1), kind=Kind.INTEGER, wait=wait)
        note = f"the other tool's `> {value}` is our `>= {value + 1}`"
    else:
        change = set_watermark(project, pipeline, table, value, wait=wait)
        note = f"the other tool's `> {value}` is our `>=`: rows at exactly that value are read once more"
    return replace(change, action="import", notes=(*change.notes, note))


def _chosen(rows: list[tuple[Any, ...]], name: str, key: str) -> str:
    held = {_text(row[0]): _text(row[1]) for row in rows if len(row) == 2}
    if len(held) != len(rows):
        raise ConfigError(f"{name} is no cache: it has more columns than a key and a value")
    if key in held:
        return held[key]
    if not key and len(held) == 1:
        return next(iter(held.values()))
    listed = ", ".join(sorted(held)) or "none"
    raise ConfigError(
        f'{name} holds no key "{key}"' if key else f"{name} holds several keys, or none",
        remedy=f"Say which: --from-cache {name}:KEY\nKeys there: {listed}",
    )


def _value(text: str, column: str, where: str) -> int | str:
    """The whole number or time in it: by the cursor's name, the only one, or as it stands."""
    try:
        found = json.loads(text)
    except ValueError:
        found = text
    if isinstance(found, dict):
        found = found.get(column, next(iter(found.values()), None) if len(found) == 1 else None)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if isinstance(found, bool) or not isinstance(found, int | str) or found == "":
        raise ConfigError(f'the cache says "{text}", which is no value of {column or "a cursor"}', where=where)
    return found


def _text(value: object) -> str:
    return bytes(value).decode("utf-8", "replace") if isinstance(value, bytes | memoryview) else str(value)
