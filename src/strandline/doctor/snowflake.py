"""Checks of Snowflake as an end of a pipeline: whether the warehouse and the role are there, and what the URL says."""

from __future__ import annotations

from collections.abc import Iterator

from strandline.config import PipelineSpec
from strandline.core.errors import StrandlineError
from strandline.doctor.finding import Finding, Level, fail, ok
from strandline.endpoint import Endpoint

_DOCS = "docs/snowflake.md#setup"


def check_snowflake(spec: PipelineSpec) -> Iterator[Finding]:
    for area, ends in (("source", [spec.source]), ("target", list(spec.targets.values()))):
        for end in ends:
            if end.scheme == "snowflake":
                yield from _session(end, area, spec.name)


def _session(endpoint: Endpoint, area: str, pipeline: str) -> Iterator[Finding]:
    """A warehouse or database that cannot be used is passed over in silence when a session begins."""
    from strandline.sinks.snowflake import SnowflakeTarget
    from strandline.sources.snowflake_session import SnowflakeSession

    try:
        session = (SnowflakeTarget if area == "target" else SnowflakeSession)(endpoint)
        asked = "SELECT CURRENT_WAREHOUSE(), CURRENT_ROLE(), CURRENT_DATABASE()"
        try:
            ((warehouse, role, database),) = session.rows(asked)
        finally:
            session.close()
    except StrandlineError as error:
        yield fail(area, error, pipeline)
        return
    wanted = endpoint.options.get("warehouse", ""), endpoint.options.get("role", ""), session.database
    found = [_missing("warehouse", wanted[0] or "a warehouse", warehouse, wanted[0] or warehouse, role)]
    found += [_missing("role", wanted[1], role, wanted[1] or role, role)]
    found += [_missing("database", wanted[2], database, wanted[2], role)]
    for text, remedy in filter(None, found):
        yield Finding(Level.FAIL, area, f"{endpoint}: {text}", remedy, _DOCS, pipeline)
    if not any(found):
        yield ok(area, f"{endpoint}: warehouse {warehouse}, role {role}", pipeline)


def _missing(kind: str, name: str, now: str | None, wanted: str | None, role: str | None) -> tuple[str, str] | None:
    """What is wrong with the one that the session has, and what to do."""
    if now is not None and str(now).upper() == str(wanted).upper().strip('"'):
        return None
    text = f"the session has {'no ' + kind if now is None else f'{kind} {now}'}, and not {name}"
    if kind == "role":
        return text, f"GRANT ROLE {name} to the user, or name another one:   ?role=…"
    grant = f"GRANT USAGE ON {kind.upper()} {name} TO ROLE {role};   or name another one: SHOW {kind.upper()}S"
    return text, grant if wanted else f"Name one in the URL:   ?{kind}=…   SHOW {kind.upper()}S lists them."
