"""The tables of a state store, made from the kinds of records, and what a record must be to fit every store.

Owns the schema version. A new store gets the tables as KINDS has them now; an older one gets the tables and columns it
lacks and then the STEPS of each version it has not seen. Whoever changes KINDS raises VERSION.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from strandline.core.errors import ConflictError, StateError
from strandline.core.protocols import Record, Value
from strandline.core.records import KINDS, KindSpec
from strandline.state.dialect import Cursor, Dialect

VERSION = 4
STEPS: dict[int, tuple[str, ...]] = {}
"""SQL that brings the rows to a version, after the columns are there. MySQL commits each DDL statement by itself, so a
step must bear being repeated."""

KEY_LENGTH = 190  # what MySQL can index of three utf8mb4 columns
_RESTORE = "Somebody edited it. Restore it from a backup: Strandline does not guess."
_INTEGERS = range(-(2**63), 2**63)


def spec_of(kind: str) -> KindSpec:
    try:
        return KINDS[kind]
    except KeyError:
        raise StateError(f"the state holds no records of kind {kind!r}") from None


def table_of(kind: str) -> str:
    return "strandline_meta" if kind == "meta" else f"strandline_{kind}s"


def fields_of(spec: KindSpec) -> tuple[str, ...]:
    return (*spec.text, *spec.integers)


def checked(record: Record) -> Record:
    """The record with every field of its kind (None where it gave none), or StateError if a store could not hold it
    exactly."""
    spec = spec_of(record.kind)
    given = dict(record.fields)
    fields: dict[str, Value] = {name: given.pop(name, None) for name in fields_of(spec)}
    if given:
        raise StateError(f"{label(record)} has no field {', '.join(map(repr, given))}")
    if len(record.key) != len(spec.key):
        raise StateError(f"{label(record)}: the key has {len(spec.key)} parts: {', '.join(spec.key)}")
    for name, part in zip(spec.key, record.key, strict=True):
        if not _is_text(part) or len(part) > KEY_LENGTH:
            raise StateError(f"{label(record)}: {name} must be text of at most {KEY_LENGTH} characters")
    for name in spec.text:
        if fields[name] is not None and not _is_text(fields[name]):
            raise StateError(f"{label(record)}: {name} must be text without NUL, not {fields[name]!r:.60}")
    for name in spec.integers:
        if fields[name] is not None and not (type(fields[name]) is int and fields[name] in _INTEGERS):
            raise StateError(f"{label(record)}: {name} must be an integer of 64 bits, not {fields[name]!r:.60}")
    return replace(record, key=tuple(record.key), fields=fields)


def _is_text(value: object) -> bool:
    """PostgreSQL holds no NUL, and nothing holds half a surrogate pair."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_all(records: Sequence[Record]) -> list[Record]:
    """Each of them checked; one key twice is a conflict with itself."""
    result = [checked(record) for record in records]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for record in result:
        if (record.kind, record.key) in seen:
            raise ConflictError(f"{label(record)} is written twice at once")
        seen.add((record.kind, record.key))
    return result


def check_prune(kind: str) -> KindSpec:
    spec = spec_of(kind)
    if not spec.history:
        raise StateError(f"records of kind {kind!r} are no history and cannot be pruned")
    return spec


def check_read(kind: str, prefix: Sequence[str], where: Sequence[str], since: str | None) -> KindSpec:
    spec = spec_of(kind)
    unknown = [name for name in where if name not in fields_of(spec)]
    if unknown:
        raise StateError(f"records of kind {kind!r} have no field {', '.join(map(repr, unknown))}")
    if len(prefix) + (since is not None) > len(spec.key):
        raise StateError(f"the key of kind {kind!r} has only {len(spec.key)} parts: {', '.join(spec.key)}")
    return spec


def label(record: Record) -> str:
    return f"{record.kind} {'/'.join(map(str, record.key))}"


def conflict(record: Record, stored: int) -> ConflictError:
    return ConflictError(
        f"{label(record)} was written by somebody else: revision {stored} is stored, {record.revision} was expected",
        remedy="Another run got there first. Run again: it starts from what is stored now.",
    )


def marks(cursor: Cursor, dialect: Dialect) -> tuple[int | None, str | None]:
    """The schema version and the store's identity, None where there is none."""
    table = dialect.name(table_of("meta"))
    cursor.execute(f"SELECT name, value FROM {table} WHERE name IN ('schema_version', 'store')")
    found = {row[0]: row[1] for row in cursor.fetchall()}
    version = found.get("schema_version")
    if version is not None and not version.isdecimal():
        raise StateError(f"the state {dialect.address} says its schema version is {version!r}", remedy=_RESTORE)
    return None if version is None else int(version), found.get("store")


def migrate(cursor: Cursor, dialect: Dialect) -> None:
    """Make the store, or bring it to VERSION. The caller lets only one process in; another may have been here before.
    The version is written last, and what was done before it bears being repeated."""
    cursor.execute(dialect.existing)
    existing = {row[0] for row in cursor.fetchall()}
    if existing and not dialect.shared and table_of("meta") not in existing:
        raise StateError(
            f"{dialect.address} is a database of something else: it has tables, but none of a state",
            remedy="Name a file of its own under `state:`. This one was left as it is.",
        )
    version, _ = marks(cursor, dialect) if table_of("meta") in existing else (None, None)
    if version is None and table_of("position") in existing:
        cursor.execute(f"SELECT 1 FROM {dialect.name(table_of('position'))} LIMIT 1")
        if cursor.fetchall():
            raise StateError(f"the state {dialect.address} has positions but no schema version", remedy=_RESTORE)
    if version is not None and version >= VERSION:
        return
    _complete(cursor, dialect, existing)
    for number in range((version or 0) + 1, VERSION + 1):
        for statement in STEPS.get(number, ()) if version is not None else ():
            cursor.execute(statement)
    meta, row = dialect.name(table_of("meta")), dialect.row(3)
    if version is None:
        insert = f"INSERT INTO {meta} (name, value, revision) VALUES {row}, {row}"
        cursor.execute(insert, ("store", str(uuid.uuid4()), 1, "schema_version", str(VERSION), 1))
    else:
        update = f"UPDATE {meta} SET value = {dialect.placeholder}, revision = revision + 1"
        cursor.execute(f"{update} WHERE name = 'schema_version'", (str(VERSION),))


def _complete(cursor: Cursor, dialect: Dialect, existing: set[str]) -> None:
    """Make what KINDS asks for and the store lacks."""
    for kind, spec in KINDS.items():
        table = table_of(kind)
        if table not in existing:
            cursor.execute(_table(table, spec, dialect))
        cursor.execute(f"SELECT * FROM {dialect.name(table)} WHERE 1 = 0")
        cursor.fetchall()
        columns = {column[0] for column in cursor.description or ()}
        for name in fields_of(spec):
            if name not in columns:
                cursor.execute(f"ALTER TABLE {dialect.name(table)} ADD COLUMN {_column(name, spec, dialect)}")
        for name, parts in _indexes(table, spec, dialect).items():
            if name not in existing:
                cursor.execute(f"CREATE INDEX {dialect.name(name)} ON {dialect.name(table)} ({parts})")


def _table(table: str, spec: KindSpec, dialect: Dialect) -> str:
    columns = [_column(name, spec, dialect) for name in (*spec.key, *fields_of(spec))]
    columns += [f"{dialect.name('revision')} BIGINT NOT NULL", f"PRIMARY KEY ({dialect.names(spec.key)})"]
    return f"CREATE TABLE {dialect.name(table)} ({', '.join(columns)}) {dialect.table_options}"


def _column(name: str, spec: KindSpec, dialect: Dialect) -> str:
    if name in spec.key:
        return f"{dialect.name(name)} {dialect.key_type} NOT NULL"
    return f"{dialect.name(name)} {dialect.text_type if name in spec.text else 'BIGINT'}"


def _indexes(table: str, spec: KindSpec, dialect: Dialect) -> dict[str, str]:
    """History is asked for by pipeline, newest first, and by day."""
    text = {name: dialect.name(name) + dialect.index_length for name in spec.text} if spec.history else {}
    indexes = {}
    if "pipeline" in text:
        indexes[f"{table}_by_pipeline"] = f"{text['pipeline']}, {dialect.name(spec.key[0])}"
    if "started_at" in text:
        indexes[f"{table}_by_start"] = text["started_at"]
    return indexes
