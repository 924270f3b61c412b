"""What `init` proposes: cursor, key and zone of every table it finds, each with its reason, and a config of them.

Reads the database, decides by what is there, and says why; a person decides. Knows nothing of prompts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from strandline.core.errors import ConfigError, ConnectError, SourceError
from strandline.core.table import SYNC, Column, Mode, Table, TableInfo
from strandline.core.watermark import Cursor, Kind
from strandline.endpoint import Endpoint
from strandline.pipeline import within
from strandline.secrets import looks_secret
from strandline.sources import open_source
from strandline.sources.database import DatabaseSource
from strandline.sources.inspection import Catalog, Stamp, catalog_of, newest, quick
from strandline.sources.zones import age, is_utc, zone_info

FEW_ROWS = 100_000
"""Up to so many rows a table that tells no changes is better replaced whole."""
_FRESH_SECONDS = 3600.0
_WARM = "spark: {warm: 10m}"
_CHANGED = re.compile(r"upd|mod|chang|edit|touch|version|^ts$|last_", re.I)
_CREATED = re.compile(r"creat|insert|born|added|register", re.I)


@dataclass(frozen=True)
class Proposal:
    """One table as it could stand in the config, and why."""

    name: str
    mode: Mode
    cursor: str | None
    key: tuple[str, ...]
    zone: str | None
    rows: int | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    column: Column
    cursor: Cursor
    stamp: Stamp
    indexed: bool | None  # None: the database has no indexes

    @property
    def tells_changes(self) -> bool:
        """Whether an update of a row can be expected to move it."""
        if self.cursor.kind is Kind.INTEGER:
            return bool(self.stamp.updated)
        return bool(self.stamp.updated) or bool(_CHANGED.search(self.column.name))

    @property
    def rank(self) -> tuple[bool, ...]:
        named = bool(_CHANGED.search(self.column.name))
        created = bool(_CREATED.search(self.column.name))
        exact = self.cursor.kind is Kind.TIMESTAMP
        quick = self.indexed is not False
        return (bool(self.stamp.updated), named, exact, not created, quick, not self.column.nullable)

    def text(self) -> str:
        facts = [self.column.type]
        if self.indexed is not None:
            facts.append("indexed" if self.indexed else "no index")
        facts.append("may be NULL" if self.column.nullable else "NOT NULL")
        if self.stamp.updated:
            facts.append(f"set by {self.stamp.updated}")
        return f"{self.column.name}: {', '.join(facts)}"


def propose(endpoint: Endpoint, tables: Sequence[str] = ("*",)) -> list[Proposal]:
    """A proposal for every table that a name or glob matches. ConnectError if the database cannot be reached."""
    source = open_source(endpoint, guard=timedelta())
    try:
        if not isinstance(source, DatabaseSource):
            raise ConfigError(f"{endpoint}: only databases can be inspected")
        catalog = catalog_of(source)
        found = source.tables(list(tables), {})
        for info in found.values():
            if not isinstance(info, TableInfo):
                raise info
        infos = {name: info for name, info in found.items() if isinstance(info, TableInfo)}
        return [_proposal(source, catalog, name, info) for name, info in sorted(infos.items())]
    finally:
        source.close()


def _proposal(source: DatabaseSource, catalog: Catalog, name: str, info: TableInfo) -> Proposal:
    candidates = _candidates(source, catalog, info)
    best = max(candidates, key=lambda candidate: candidate.rank, default=None)
    few = info.estimated_rows is not None and info.estimated_rows <= FEW_ROWS
    if best is None or info.kind in ("materialized view", "foreign table"):
        why = "no column can order its changes" if best is None else f"it is a {info.kind}"
        return _snapshot(name, info, f"{why}: replaced whole every time")
    if best.tells_changes and info.key:
        return _incremental(source, name, info, best, Mode.MERGE)
    why = f"{best.column.name} tells new rows, not changed ones" if info.key else "it has no key"
    if few:
        return _snapshot(name, info, f"{why}; {info.estimated_rows:,} rows are few: replaced whole every time")
    proposal = _incremental(source, name, info, best, Mode.APPEND)
    return replace(proposal, warnings=(*proposal.warnings, f"{why}: only new rows are added, changes are not seen"))


def _candidates(source: DatabaseSource, catalog: Catalog, info: TableInfo) -> list[_Candidate]:
    found = []
    for column in info.columns:
        cursor = source.dialect.cursor(column)
        if cursor is None or (cursor.kind is Kind.INTEGER and (column.name,) not in info.unique):
            continue  # an integer orders rows only if each has its own
        indexed = None if info.indexed is None else column.name in info.indexed
        found.append(_Candidate(column, cursor, catalog.stamp(info, column.name), indexed))
    return found


def _snapshot(name: str, info: TableInfo, why: str) -> Proposal:
    return Proposal(name, Mode.SNAPSHOT, None, info.key, None, info.estimated_rows, (why,))


def _incremental(source: DatabaseSource, name: str, info: TableInfo, best: _Candidate, mode: Mode) -> Proposal:
    reasons = [best.text()]
    warnings = []
    if best.column.nullable:
        warnings.append(f"{best.column.name} may be NULL: rows without a value stop the table (see `nulls`)")
    if best.indexed is False and info.kind == "table":
        warnings.append(f"{best.column.name} has no index: every sync reads the whole table")
    if mode is Mode.MERGE and not best.stamp.updated and info.kind == "table":
        warnings.append(f"nothing in the database moves {best.column.name} on update; the application must")
    zone = None
    if best.cursor.zone is not None:
        zone, evidence = _zone(source, name, info, best)
        (reasons if zone else warnings).append(evidence)
    return Proposal(name, mode, best.column.name, info.key, zone, info.estimated_rows, tuple(reasons), tuple(warnings))


def _zone(source: DatabaseSource, name: str, info: TableInfo, best: _Candidate) -> tuple[str | None, str]:
    """The zone under which the newest row is not in the future, with what speaks for it; None: nothing does."""
    server = source.server()
    told = f"{best.column.name} has no time zone; the server runs in {server.zone}"
    if not quick(info, best.column.name):
        return server.zone, f"{told}; its rows were not looked at, since it has no index"
    zones = list(dict.fromkeys([server.zone, "UTC"]))
    table = Table("init", name, info.name, name, SYNC, Mode.MERGE, replace(best.cursor, zone="UTC"))
    value = newest(source, table)
    if value is None:
        return server.zone, f"{told}, and the table is empty"
    ages = {zone: value.seconds_before(_clock(zone, server.now)) or 0.0 for zone in zones}
    said = ", ".join(f"{age(value.text, zone, server.now)} read as {zone}" for zone in zones)
    said = f"{told}, and the newest row is {said}"
    past = [zone for zone in zones if ages[zone] >= 0]
    if not past:
        return None, f"{said}: add the writers' zone yourself (zone: …)"
    fresh = [zone for zone in past if ages[zone] < _FRESH_SECONDS]  # an old row speaks for no zone
    return (fresh or past)[0], said


def _clock(zone: str, now: str) -> datetime:
    """What clocks in the zone show, as the cursor writes it."""
    return datetime.fromisoformat(now).replace(tzinfo=UTC).astimezone(zone_info(zone)).replace(tzinfo=UTC)


def write_config(
    endpoint: Endpoint,
    proposals: Sequence[Proposal],
    *,
    target: str = "delta:lake",
    pipeline: str = "main",
    password_variable: str = "SOURCE_PASSWORD",
    target_variable: str = "TARGET_PASSWORD",
    state: str = "",
    inside: bool = False,
) -> str:
    """The text of a strandline.yml. Passwords are not in it: they are read from the variables named.

    `inside`: source and target are one database, so its rows need not leave it.
    """
    if not proposals:
        raise SourceError("there is no table to write a config for")
    lines = ["# Made by strandline init. The cursors decide what counts as changed: check them.", ""]
    if state:
        lines += [f"state: {_scalar(state)}"]
    if not inside:
        lines += ["# Spark stays for ten minutes after a run that needed it: the next one need not start it.", _WARM]
    lines += [
        "pipelines:",
        f"  {_scalar(pipeline)}:",
        f"    source: {_scalar(source_url(endpoint, password_variable))}",
        f"    target: {_scalar(_target(target, target_variable))}",
    ]
    if Endpoint.parse(target).scheme == "redshift":
        told = "redshift loads from S3: name a bucket in its region, which the target's iam_role may read"
        lines += [f"    # {told}", "    stage: s3://bucket/strandline"]
    if inside:
        lines += ["    # source and target are one database: rows move inside it, without Spark", "    via: server"]
    lines.append("    tables:")
    for proposal in proposals:
        lines += [f"      # {_comment(reason)}" for reason in proposal.reasons]
        lines += [f"      # careful: {_comment(warning)}" for warning in proposal.warnings]
        lines.append(f"      - {{{', '.join(f'{key}: {value}' for key, value in _keys(proposal).items())}}}")
    return "\n".join(lines) + "\n"


def _target(url: str, variable: str) -> str:
    end = Endpoint.parse(url)
    return source_url(end, variable) if end.password else url


def one_database(source: Endpoint, target: str) -> bool:
    """Whether the target is the source's own database, as the servers say; False where it cannot be reached."""
    end = Endpoint.parse(target)
    if end.scheme != source.scheme or end.scheme not in ("postgresql", "mysql"):
        return False
    from strandline.sinks import open_sink
    from strandline.sinks.sql import SqlSink

    def no_spark() -> Any:
        raise AssertionError("nothing is moved here")

    with closing(open_source(source, guard=timedelta(0))) as origin, closing(open_sink(end, no_spark)) as sink:
        assert isinstance(sink, SqlSink)
        try:
            return within(origin.identity(), sink.server())
        except ConnectError:
            return False


def source_url(endpoint: Endpoint, password_variable: str) -> str:
    """The endpoint as the config writes it, with `${VARIABLE}` for the password; other secrets are left out."""
    user = quote(endpoint.user, safe="") + (f":${{{password_variable}}}" if endpoint.password else "")
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    port = f":{endpoint.port}" if endpoint.port else ""
    options = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}"
        for name, value in endpoint.options.items()
        if not looks_secret(name)
    )
    return f"{endpoint.scheme}://{f'{user}@' if user else ''}{host}{port}/{quote(endpoint.path, safe='')}" + (
        f"?{options}" if options else ""
    )


def _keys(proposal: Proposal) -> Mapping[str, str]:
    keys = {"name": _scalar(_literal(proposal.name))}
    if proposal.mode is not Mode.MERGE:
        keys["mode"] = proposal.mode.value
    if proposal.cursor:
        keys["cursor"] = _scalar(_literal(proposal.cursor))
    if proposal.key and proposal.mode is Mode.MERGE:
        keys["key"] = f"[{', '.join(_scalar(_literal(column)) for column in proposal.key)}]"
    if proposal.zone:
        keys["zone"] = "UTC" if is_utc(proposal.zone) else _scalar(proposal.zone)
    return keys


def _literal(text: str) -> str:
    """A name with a `$` in it is no variable."""
    return text.replace("$", "$$")


def _scalar(text: str) -> str:
    """Plain where YAML takes it for the same text, else quoted."""
    plain = re.fullmatch(r"[A-Za-z_/.][A-Za-z0-9_/.:@${}-]*", text) and not text.endswith(":")
    words = {"yes", "no", "on", "off", "true", "false", "null", "y", "n", "none"}
    inside = "{" not in text or "://" in text
    return text if plain and inside and text.lower() not in words else json.dumps(text, ensure_ascii=False)


def _comment(text: str) -> str:
    return " ".join(text.split())
