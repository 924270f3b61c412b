"""Which tables a caller means: names, globs, schemas, members of an Enum, and what is to be known about each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from fnmatch import fnmatchcase
from typing import TypedDict

from strandline.config import TableSpec, parse_duration
from strandline.config.specs import NULLS, POLICIES
from strandline.core.errors import ConfigError
from strandline.core.table import Mode

Names = str | Enum | type[Enum] | Iterable["str | Enum | type[Enum]"]
_ONE_SLICE = 1 << 62  # rows: a window is read as one
_WORDS = {"mode": tuple(Mode), "nulls": NULLS, "schema": POLICIES}


class Settings(TypedDict, total=False):
    """What a table of `strandline.yml` may say, as far as reading is concerned."""

    cursor: str
    key: str | Sequence[str]
    zone: str
    mode: str
    initial: str | int
    lookback: timedelta | int | str
    columns: str | Sequence[str]
    where: str
    deleted: str
    nulls: str
    schema: str


def names(tables: Names) -> list[str]:
    """Every name once, in the given order."""
    return list(dict.fromkeys(_names(tables)))


def _names(tables: Names) -> Iterator[str]:
    if isinstance(tables, Enum):  # before str: a member of a StrEnum is both
        yield tables.value if isinstance(tables.value, str) else tables.name
    elif isinstance(tables, str):
        yield tables
    else:
        for table in tables:
            yield from _names(table)


def specs(wanted: Sequence[str], settings: Settings, overrides: Mapping[str, Settings]) -> tuple[TableSpec, ...]:
    """The tables as a config would have them; one that a glob matches may have settings of its own."""
    own = [name for name in overrides if any(name != glob and fnmatchcase(name, glob) for glob in wanted)]
    every = dict.fromkeys([*wanted, *own])
    return tuple(_spec(name, {**settings, **overrides.get(name, {})}) for name in every)


def _spec(name: str, given: Settings) -> TableSpec:
    unknown = set(given) - set(Settings.__annotations__)
    if unknown:
        raise ConfigError(
            f'there is no setting "{min(unknown)}"',
            where=name,
            remedy=f"Settings are {', '.join(sorted(Settings.__annotations__))}.",
        )
    lookback, initial = given.get("lookback"), given.get("initial")
    for setting, words in _WORDS.items():
        word = given.get(setting, words[0])
        if word not in words:
            raise ConfigError(f'there is no {setting} "{word}"', where=name, remedy=f"It is {' or '.join(words)}.")
    return TableSpec(
        name=name,
        key=_several(given.get("key", ())),
        cursor=given.get("cursor"),
        zone=given.get("zone"),
        mode=Mode(given.get("mode", Mode.MERGE)),
        initial=None if initial is None else str(initial),
        lookback=parse_duration(lookback) if isinstance(lookback, str) else lookback,
        columns=_several(given.get("columns", ())) or None,
        where=given.get("where"),
        deleted=given.get("deleted"),
        nulls=given.get("nulls", "refuse"),
        schema=given.get("schema", "evolve"),
        slice_rows=_ONE_SLICE,
    )


def _several(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
