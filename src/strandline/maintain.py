"""Housekeeping of targets, `maintain: every 1d`: small merges make small files, and replaced files stay behind."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from strandline.core.books import stamp
from strandline.core.errors import StrandlineError
from strandline.core.events import Maintained, Warned
from strandline.core.protocols import Record
from strandline.core.run import Hop
from strandline.core.table import Table


def maintain_due(hop: Hop, tables: Iterable[Table], every: timedelta) -> None:
    """Maintain each table's target whose last time is longer ago than `every`. Trouble is said; the rows are in."""
    state = hop.books.state
    for table in tables:
        where = (hop.run_id, hop.pipeline, table.name, table.stage)
        key = (f"maintained {table.where_text}",)
        known = state.read("meta", key)
        if known and state.now() - datetime.fromisoformat(str(known[0].fields["value"])) < every:
            continue
        try:
            hop.sink.maintain(table)
            revision = known[0].revision if known else 0
            state.put([Record("meta", key, {"value": stamp(state.now())}, revision)])
            hop.emit(Maintained(*where))
        except StrandlineError as error:
            hop.emit(Warned(*where, hop.redact(f"maintenance did not finish: {error}")))
