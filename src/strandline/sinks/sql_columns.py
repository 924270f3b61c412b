"""Whether a table that is there can take a batch, whatever way its rows come; and its columns, where they come from a
table of the same database. Needs no Spark."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.core.errors import SchemaError, TargetError
from strandline.core.table import Column, Mode, Table
from strandline.sinks.sql_dialect import Field, Held, TargetDialect

TRIGGERS = "{} has triggers: what they change is not what the source holds"


@dataclass(frozen=True)
class Columns:
    """The target's columns that a batch fills, in the batch's order, and what must be done to have them so."""

    columns: tuple[Column, ...]
    added: tuple[Column, ...] = ()
    widened: tuple[Column, ...] = ()
    changed: tuple[Column, ...] = ()  # to another type: only where every row is replaced
    warnings: tuple[str, ...] = ()


def own(table: Table, dialect: TargetDialect) -> tuple[Column, ...]:
    """The columns of a new table in the database's own words, as the source has them."""
    keyed = table.key if table.mode is Mode.MERGE else ()
    made = []
    for column in table.columns:
        inside = column.name in keyed
        kind = dialect.own(Field("", column.type, len(keyed) if inside else 0))
        if kind is None:
            raise SchemaError(
                f'column "{column.name}" ({column.type}) cannot be made in the target as it is',
                where=table.where_text,
                remedy="Make the table yourself, or leave `via: server` out: Spark converts.",
            )
        made.append(Column(column.name, kind, not inside, comment=column.comment))
    return tuple(made)


def settle_own(table: Table, held: Held, new: tuple[Column, ...], dialect: TargetDialect) -> Columns:
    """How the source's columns fit the table that is there: in the same types, or not at all."""
    check_held(table, held)
    left = {dialect.fold(column.name): column for column in held.columns}
    chosen, added = [], []
    for column, fresh in zip(table.columns, new, strict=True):
        present = left.pop(dialect.fold(column.name), None)
        check_writable(table, held, present)
        if present is None:
            added.append(fresh)
        elif dialect.bare(present.type) != dialect.bare(fresh.type):
            raise SchemaError(
                f'column "{column.name}" is {column.type} in the source and {present.type} in {held.place}',
                where=table.where_text,
                remedy="Give both one type, or leave `via: server` out: Spark converts where it can be done exactly.",
            )
        chosen.append(present or fresh)
    if added and table.schema == "stop":
        raise SchemaError(
            f"the source has new columns: {', '.join(column.name for column in added)} (schema: stop)",
            where=table.where_text,
            remedy="Let them be added:   schema: evolve",
        )
    quiet = held.generated | held.defaulted | held.numbered
    gone = [column.name for column in left.values() if column.name not in quiet]
    if gone and table.schema == "stop":
        raise SchemaError(
            f"the source no longer has {', '.join(gone)} (schema: stop)",
            where=table.where_text,
            remedy="Keep them in the target, NULL in new rows:   schema: evolve",
        )
    told = tuple(f"column {name} is no longer in the source: kept, and NULL in new rows" for name in gone)
    return Columns(tuple(chosen), tuple(added), warnings=told)


def check_key(table: Table, held: Held, dialect: TargetDialect) -> None:
    """In merge mode a unique index over the key keeps two writers from making two rows of one, and finds rows."""
    if table.mode is not Mode.MERGE or not dialect.keys:
        return
    names = {dialect.fold(name) for name in table.key}
    place, listed = dialect.place(held.place), ", ".join(dialect.quote(name) for name in table.key)
    if not any({dialect.fold(name) for name in unique} == names for unique in held.unique):
        raise SchemaError(
            f"{held.place} has no unique index over the key ({', '.join(table.key)})",
            where=table.where_text,
            why="Mode merge finds each row by its key; without an index it could be there twice.",
            remedy=f"Make one:   ALTER TABLE {place} ADD PRIMARY KEY ({listed})",
        )
    for name in held.columns:
        if name.name in held.loose and dialect.fold(name.name) in names:
            raise SchemaError(
                f'key column "{name.name}" of {held.place} takes different texts for one '
                f"(collation {held.loose[name.name]})",
                where=table.where_text,
                why="Two rows whose keys differ in case, accents or trailing blanks only would become one.",
                remedy=f"ALTER TABLE {place} MODIFY {dialect.quote(name.name)} {name.type} "
                f"{dialect.exact_text} NOT NULL;   or let Strandline make the table",
            )


def check_held(table: Table, held: Held) -> None:
    if held.kind != "table":
        raise TargetError(f"{held.place} is a {held.kind}", where=table.where_text, remedy="Name a table as `target:`.")


def check_writable(table: Table, held: Held, column: Column | None) -> None:
    if column is None:
        return
    if column.name in held.generated or (column.name in held.numbered and column.name not in table.key):
        raise SchemaError(
            f'column "{column.name}" of {held.place} is generated by the database',
            where=table.where_text,
            remedy="Leave it out with `columns:`, or make it a plain column.",
        )
