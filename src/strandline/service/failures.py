"""Syncs of this service that failed before they became a run: a source that is away leaves no trace in the state."""

from __future__ import annotations

from strandline.core.books import stamp
from strandline.operations.health import Finding, Health, looked_at
from strandline.operations.status import PipelineStatus
from strandline.service.desk import EventLog


class Failures:
    def __init__(self) -> None:
        self._seen = 0
        self._found: dict[str, tuple[str, str, str]] = {}  # when, why and what to do, by pipeline

    def catch_up(self, log: EventLog) -> None:
        for entry in log.since(self._seen):
            self._seen = entry.number
            fields = entry.fields
            if fields["event"] == "job_failed" and fields["action"] == "sync" and not fields["run_id"]:
                self._found[fields["pipeline"]] = stamp(entry.at), fields["error"], fields.get("remedy", "")

    def of(self, part: PipelineStatus) -> list[Finding]:
        """Until a table has been looked at again, by whoever."""
        at, error, remedy = self._found.get(part.pipeline, ("", "", ""))
        if not error or looked_at(part, at):
            return []
        said = error.removeprefix(f"{part.pipeline}: ").split("\n")[0]
        return [Finding(Health.ERROR, "run", said, remedy=remedy)]
