"""What of a table can be compared, and in which form; what cannot is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.core.compare import Comparison, Form
from strandline.core.errors import TargetError
from strandline.core.position import Position
from strandline.core.table import Mode, Table
from strandline.core.watermark import Kind, Watermark


@dataclass(frozen=True)
class Scope:
    comparison: Comparison
    notes: tuple[str, ...] = ()


def scope(
    table: Table,
    position: Position,
    source: Mapping[str, Form | None],
    target: Mapping[str, Form | None],
    ranged: bool,
    hash: str = "md5",
) -> Scope:
    """The comparison of a table that has a watermark. TargetError where even its keys cannot be compared."""
    there = {name.lower(): form for name, form in target.items()}
    notes: list[str] = []
    versions = table.mode is Mode.APPEND
    key = table.key
    cursor = None if table.cursor is None or table.cursor.kind is Kind.VERSION else table.cursor
    if versions and (cursor is None or cursor.column.lower() not in there):
        key = ()  # which version is the last cannot be told
    keyed = [(name, _key_form(table, name, source, there)) for name in key]
    columns = _columns(table, key, source, there, notes)
    if not key:
        notes.append("without a key rows are compared as a whole: one that differs is missing and extra")
    kept = sorted(set(there) - {name.lower() for name in source})
    if kept and not table.transform:
        notes.append(f"kept in the target, no longer in the source, not compared: {', '.join(kept)}")
    if table.cursor is not None and table.nulls == "include":
        notes.append("rows without a cursor value are not compared: they are read with every run")
    if table.shared:
        notes.append("the target is shared: rows that this source does not have may be another's, and are not told")
    comparison = Comparison(
        table,
        _low(table, position, notes),
        None if table.mode is Mode.SNAPSHOT else position.watermark,
        tuple(keyed),
        columns,
        ranged=ranged and len(key) == 1,
        versions=versions or table.shared,
        hash=hash,
    )
    return Scope(comparison, tuple(notes))


def _key_form(table: Table, name: str, source: Mapping[str, Form | None], there: Mapping[str, Form | None]) -> Form:
    own, copy = source.get(name), there.get(name.lower())
    form = own and own.shared(copy)
    if form is None:
        raise TargetError(
            f'key column "{name}" cannot be compared: {_named(own)} here, {_named(copy)} in the target',
            where=table.where_text,
            remedy=f"Load the table again:   strandline sync --full -t {table.name}",
        )
    return form


def _columns(
    table: Table,
    key: Sequence[str],
    source: Mapping[str, Form | None],
    there: Mapping[str, Form | None],
    notes: list[str],
) -> tuple[tuple[str, Form], ...]:
    if table.transform:
        notes.append("transform: only keys are compared; rows it leaves out are missing")
        return ()
    found, unlike, absent = [], [], []
    for name, own in source.items():
        if name in key:
            continue
        if name.lower() not in there:
            absent.append(name)
            continue
        form = own and own.shared(there[name.lower()])
        if form is None:
            unlike.append(f"{name} ({_named(own)} here, {_named(there[name.lower()])} there)")
        else:
            found.append((name, form))
    if unlike:
        notes.append(f"not compared, for want of a common form: {', '.join(unlike)}")
    if absent:
        notes.append(f"not in the target yet, not compared: {', '.join(absent)}")
    return tuple(found)


def _named(form: Form | None) -> str:
    return "no comparable type" if form is None else str(form)


def _low(table: Table, position: Position, notes: list[str]) -> Watermark | None:
    low = lowest(table, position)
    if low is not None:
        notes.append(f"compared from {low} on (initial)")
    return low


def lowest(table: Table, position: Position) -> Watermark | None:
    """Rows below `initial` were never asked for. (`latest` leaves no trace: see `from_oldest`.)"""
    if table.initial is None or table.initial == "latest" or table.cursor is None or table.mode is Mode.SNAPSHOT:
        return None
    kind = position.watermark.kind if position.watermark else table.cursor.kind
    return Watermark.parse(kind, table.initial, table.cursor.zone)
