"""Delta tables as a source: a window is a range of versions, read from the change data feed or as appended files.

Owns which versions a window means and whether they can be read exactly. Planning reads logs through delta-rs, several
at once and without a JVM; Spark is asked for only when rows move, or to find a catalog's tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from strandline.core.compare import Comparison, Form, spark_form
from strandline.core.errors import ChangedError, ConfigError, SourceError, StrandlineError, WindowError
from strandline.core.position import Horizon
from strandline.core.protocols import Spark
from strandline.core.table import Mode, Table, TableInfo
from strandline.core.watermark import Kind, Watermark
from strandline.core.window import Extent, Slice, Window, by_cursor
from strandline.endpoint import Endpoint
from strandline.sources.delta_log import DOCS, READERS, Commit, ExpiredError, Log, Metadata, stamp
from strandline.sources.delta_places import MissingError, feed_on, open_places, wild
from strandline.sources.delta_schema import again, incompatible, settled, table_info
from strandline.sources.names import nearest

if TYPE_CHECKING:
    from strandline.sources.delta_changes import DeltaChanges
    from strandline.sources.delta_side import DeltaSourceSide

T = TypeVar("T")
_FEED_OFF = "the change data feed is off: added rows are read, and the first update or delete will stop the table"


class DeltaSource:
    """The tables of one folder, object prefix or catalog schema.

    `as_of`: read no further than what was committed at this moment, in every table; a time in UTC unless it says
    otherwise.
    """

    def __init__(self, endpoint: Endpoint, *, as_of: str | None = None, spark: Spark | None = None) -> None:
        self.places = open_places(endpoint, spark)
        self.as_of = None if as_of is None else _millis(as_of, "as_of")
        self.warnings: list[tuple[str, str]] = []
        self._spark = spark
        self._logs: dict[str, Log] = {}  # by the source's name of a table
        self._sides: list[DeltaSourceSide] = []
        self._new: set[str] = set()  # logs that no horizon was taken from yet

    def identity(self) -> str:
        return self.places.identity

    def tables(self, patterns: Sequence[str], queries: Mapping[str, str]) -> dict[str, TableInfo | StrandlineError]:
        named = [name for name in patterns if not wild(name)]
        matched = dict.fromkeys(name for text in patterns if wild(text) for name in self.places.matching(text))
        found = self._each([*named, *(name for name in matched if name not in named)], self._look)
        missing = {name for name, info in found.items() if isinstance(info, MissingError)}
        answers = {name: info for name, info in found.items() if name in named or name not in missing}
        for name in missing & set(named):
            answers[name] = self._nearest(name, found[name])
        for name in queries:
            answers[name] = SourceError(
                "a Delta source reads tables, not queries",
                remedy="Name the table, and use columns, where or transform.",
            )
        return answers

    def resolve(self, table: Table, info: TableInfo, zone: str | None) -> Table:
        """`initial` becomes a version, whatever it was given as."""
        try:
            log = self._log(info.name)
            table = settled(table, info, log.metadata, zone)
            if table.mode is Mode.MERGE and not log.metadata.feed:
                told = (table.name, f"{_FEED_OFF}\n{feed_on(log.place)};")
                self.warnings += [] if told in self.warnings else [told]
            return replace(table, initial=self._initial(log, table.initial))
        except SourceError as error:
            raise error.at(table.where_text) from None

    def horizons(self, tables: Sequence[Table]) -> dict[str, Horizon | StrandlineError]:
        """A version is complete when it shows, so all up to the last one can be read. The columns that a table was
        resolved with are those of the very version that its horizon comes from."""
        by_name = {table.name: table for table in tables}

        def horizon(name: str) -> Horizon:
            source = by_name[name].source
            if source not in self._new:
                self._look(source)
            self._new.discard(source)
            return self._horizon(self._logs[source])

        return self._each(by_name, horizon)

    def pending(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, int | StrandlineError | None]:
        """By the numbers in the log. 0 where versions only moved rows about, as compaction does."""

        def waiting(name: str) -> int | None:
            table, window = windows[name]
            log = self._log(table.source)
            try:
                if window.low is None:
                    return log.at(_last(window)).rows()
                if table.mode is Mode.SNAPSHOT:
                    return log.at(_last(window)).rows() or None if _differs(log, window) else 0
            except ExpiredError as error:
                error.remedy = again(table) if self.as_of is None else "Choose a later as_of."
                raise
            return sum(commit.rows for commit in self._readable(table, window))

        return self._each(windows, waiting)

    def fingerprints(self, windows: Mapping[str, tuple[Table, Window]]) -> dict[str, str | StrandlineError]:
        """Versions never change: which they are, of which table, is all there is to tell."""

        def fingerprint(name: str) -> str:
            table, window = windows[name]
            text = f"{self._log(table.source).metadata.id} {window}"
            return hashlib.sha256(text.encode()).hexdigest()[:16]

        return self._each(windows, fingerprint)

    def slices(self, table: Table, window: Window, rows: int | None, limit: int | None) -> tuple[Slice, ...]:
        """Whole versions, of about `slice_rows`; none is read partly by the feed and partly by files. What the whole
        table is read for is one slice."""
        if window.low is None or table.mode is Mode.SNAPSHOT or rows == 0:
            return (Slice(window),)
        cuts: list[Watermark] = []
        total = held = 0
        fed: bool | None = None
        for commit, metadata in self._log(table.source).metadata_of(self._readable(table, window)):
            if limit is not None and total >= max(limit, 1):
                window = Window(window.low, version(commit.version))
                break
            full = held and held + commit.rows > table.slice_rows
            turned = fed is not None and fed is not metadata.feed
            if full or turned:
                cuts.append(version(commit.version))
                held = 0
            held, total, fed = held + commit.rows, total + commit.rows, metadata.feed
        return by_cursor(window, cuts)

    def changes(self, table: Table, slice: Slice) -> DeltaChanges:
        """Looked at again: the table may have been dropped or replaced since it was planned."""
        from strandline.sources.delta_changes import DeltaChanges

        log = self._again(table)
        whole = slice.low is None or slice.repair is not None or table.mode is Mode.SNAPSHOT
        pairs = [] if whole else list(log.metadata_of(self._readable(table, Window(slice.low, slice.window.high))))
        return DeltaChanges(log.place, table, slice, pairs)

    def extent(self, table: Table, window: Window) -> Extent:
        """From when to when its versions were committed, after the version before them; as far as the log tells."""
        log = self._log(table.source)
        before = int(window.low.text) - 1 if window.low else -1
        since, until = (log.committed(number) if number >= 0 else "" for number in (before, _last(window)))
        return Extent(window.low, window.high, _moment(since), _moment(until))

    def forms(self, table: Table) -> dict[str, Form | None]:
        return {column.name: spark_form(column.type) for column in table.columns}

    def hashes(self) -> tuple[str, ...]:
        return ("crc32", "md5")

    def ranged(self, table: Table) -> bool:
        kinds = {column.name: column.type for column in table.columns}
        return len(table.key) == 1 and kinds[table.key[0]] in ("tinyint", "smallint", "int", "bigint")

    def side(self, comparison: Comparison) -> DeltaSourceSide:
        """The last version below the watermark; where the target began later, only keys that changed since."""
        from strandline.sources.delta_side import DeltaSourceSide

        table, spark = comparison.table, self._spark
        if spark is None:
            raise SourceError("comparing a Delta table needs a Spark session", where=table.where_text)
        high, low = comparison.high, comparison.low
        if table.initial == "latest" or (low is not None and not table.key):
            raise SourceError(
                "it was not copied from the beginning, and where the copy begins cannot be told",
                where=table.where_text,
                remedy=f"Load it from the beginning (without initial):   strandline sync --full -t {table.name}",
            )
        window = Window(None, high or version(self._log(table.source).version + 1))
        whole = self.changes(table, Slice(window))
        since = self.changes(table, Slice(Window(low, window.high))) if low and int(low.text) else None
        side = DeltaSourceSide(spark(), lambda session: whole.living(session, since), comparison)
        self._sides.append(side)
        return side

    def close(self) -> None:
        for side in self._sides:
            side.close()
        self._sides.clear()

    def _look(self, name: str) -> TableInfo:
        log = Log(self.places.place(name))
        self._logs[name] = log
        self._new.add(name)
        return table_info(name, log)

    def _log(self, name: str) -> Log:
        if name not in self._logs:
            self._look(name)
        return self._logs[name]

    def _again(self, table: Table) -> Log:
        log = self._log(table.source).reopened()
        if table.identity and log.metadata.id != table.identity:
            raise ChangedError(
                f"{log.place.uri} was replaced by another table since it was planned",
                where=table.where_text,
                remedy=again(table),
                docs=f"{DOCS}#replaced",
            )
        self._logs[table.source] = log
        return log

    def _horizon(self, log: Log) -> Horizon:
        high = reach = log.version
        note = ""
        if self.as_of is not None:
            last = log.last_at(self.as_of)
            note = f"as of {stamp(self.as_of)}"
            if last is None and log.earliest:
                raise ExpiredError(
                    f"which version there was at {stamp(self.as_of)} is no longer in the log: it begins at "
                    f"{log.earliest}",
                    remedy=f"Choose a later as_of, from {log.committed(log.earliest)} on.",
                    docs=f"{DOCS}#expired",
                )
            if last is None:
                return Horizon(None, note=f"{note}: no version is so old", reach=version(reach + 1))
            high = last
        return Horizon(version(high + 1), log.committed(high), note=note, reach=version(reach + 1))

    def _initial(self, log: Log, given: str | None) -> str | None:
        if given is None or given == "latest" or given.strip().isdigit():
            return given
        return str(log.first_from(_millis(given, "initial")))

    def _readable(self, table: Table, window: Window) -> list[Commit]:
        """The commits of a window that says where it begins. SourceError where their changes cannot be had exactly."""
        assert window.low is not None
        log = self._log(table.source)
        try:
            commits = log.commits(int(window.low.text), int(window.high.text))
            _check(table, log, list(log.metadata_of(commits)))
        except SourceError as error:
            if isinstance(error, ExpiredError):
                error.remedy = again(table)
            raise error.at(table.where_text) from None
        return commits

    def _nearest(self, name: str, error: object) -> StrandlineError:
        assert isinstance(error, MissingError)
        above, _, _ = name.rpartition(".")
        try:
            known = self.places.matching(f"{above}.*" if above else "*")
        except StrandlineError:
            known = []
        error.remedy = error.remedy or nearest(name, known)
        return error

    def _each(self, names: Iterable[str], ask: Callable[[str], T]) -> dict[str, T | StrandlineError]:
        """One answer per table, `READERS` of them at once; one table's trouble is its own."""

        def one(name: str) -> T | StrandlineError:
            try:
                return ask(name)
            except StrandlineError as error:
                return error

        asked = list(names)
        with ThreadPoolExecutor(READERS) as pool:
            return dict(zip(asked, pool.map(one, asked), strict=True))


def version(number: int) -> Watermark:
    return Watermark(Kind.VERSION, str(number))


def _last(window: Window) -> int:
    return int(window.high.text) - 1


def _differs(log: Log, window: Window) -> bool:
    """Whether any row may differ after a window; where the log has dropped some of it, one may."""
    assert window.low is not None
    try:
        return any(commit.changes for commit in log.commits(int(window.low.text), int(window.high.text)))
    except ExpiredError:
        return True


def _moment(text: str) -> Watermark | None:
    return Watermark(Kind.TIMESTAMP, text) if text else None


def _millis(text: str, what: str) -> int:
    from datetime import UTC, datetime

    try:
        found = Watermark.parse(Kind.TIMESTAMP, text)
    except WindowError as error:
        raise ConfigError(
            f'{what}: "{text}" is neither a version nor a time', remedy="Write 2026-11-15 08:12:44"
        ) from error
    head, _, fraction = found.text.partition(".")
    at = datetime.fromisoformat(head).replace(tzinfo=UTC)
    return int(at.timestamp()) * 1000 + int(fraction[:3].ljust(3, "0"))


def _check(table: Table, log: Log, pairs: Sequence[tuple[Commit, Metadata]]) -> None:
    for commit, metadata in pairs:
        if not metadata.feed and not commit.appends:
            raise SourceError(
                f"version {commit.version} ({commit.operation or 'unknown operation'}) replaced or removed rows, and "
                "the change data feed was off",
                why="Without the feed only rows in added files can be told; which ones changed or went cannot.",
                remedy=f"Turn it on, for versions to come:   {feed_on(log.place)}\n{again(table)}\n"
                "Or have the whole table read whenever it changes:   mode: snapshot",
                docs=f"{DOCS}#feed",
            )
    before = log.before([commit for commit, _ in pairs])
    if found := incompatible(before, pairs):
        raise SourceError(
            f"{found[1]} in version {found[0]}, within what is to be read",
            why="Rows that were copied before have the old columns, and changes cannot be read across it.",
            remedy=f"{again(table)}\nOr have that done by itself:   schema: reload",
            docs=f"{DOCS}#columns",
        )
