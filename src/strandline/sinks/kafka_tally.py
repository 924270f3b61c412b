"""What passed through the driver, counted there."""

from __future__ import annotations

from strandline.core.batch import Applied
from strandline.core.errors import WindowError
from strandline.core.table import Table
from strandline.core.watermark import Kind, Watermark


class Tally:
    def __init__(self, table: Table) -> None:
        self.read = self.deletes = 0
        self._kind = table.cursor.kind if table.cursor else None
        self._last: tuple[int, str] | None = None

    def see(self, cursor: str | None, *, deleted: bool) -> None:
        """Canonical texts of times and dates sort as their values do."""
        self.read += 1
        self.deletes += deleted
        if cursor is not None:
            value = (int(cursor) if self._kind is Kind.INTEGER else 0, cursor)
            self._last = value if self._last is None else max(self._last, value)

    @property
    def last_value(self) -> Watermark | None:
        if self._last is None or self._kind is None:
            return None
        try:
            return Watermark(self._kind, self._last[1])
        except WindowError:  # a year beyond 9999: nothing to report
            return None

    @property
    def applied(self) -> Applied:
        return Applied(self.read, self.read - self.deletes, 0, self.deletes, self.last_value)
