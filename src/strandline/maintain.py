"""Housekeeping of targets, `maintain: every 1d`: small merges make small files, and replaced files stay behind."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from strandline.core.books import stamp
from strandline.core.errors import StrandlineError
from strandline.core.events import Maintained, Warned
from strandline.core.protocols import Record
from strandline.core.run import Hop
from strandline.core.table import Table
from strandline.service.schedule import Timed


def maintain_due(hop: Hop, tables: Iterable[Table], when: Timed | None) -> None:
    """Maintain each table's target that is due since its last time; without a schedule each. Trouble is said; the rows
    are in."""
    state = hop.books.state
    for table in tables:
        where = (hop.run_id, hop.pipeline, table.name, table.stage)
        key = (f"maintained {table.where_text}",)
        known = state.read("meta", key)
        if known and when and when.next(datetime.fromisoformat(str(known[0].fields["value"]))) > state.now():
            continue
        try:
            hop.sink.maintain(table)
            revision = known[0].revision if known else 0
            state.put([Record("meta", key, {"value": stamp(state.now())}, revision)])
            hop.emit(Maintained(*where))
        except StrandlineError as error:
            hop.emit(Warned(*where, hop.redact(f"maintenance did not finish: {error}")))
