"""Checks of a Kafka target that a run would meet only in the middle of its first batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strandline.core.errors import StrandlineError
from strandline.core.table import Table
from strandline.doctor.finding import Finding, Level, fail
from strandline.pipeline import Pipeline

_DOCS = "docs/targets-kafka.md#rights"


def check_kafka(hop: Pipeline, tables: Sequence[Table]) -> Iterator[Finding]:
    from strandline.sinks.kafka import KafkaSink

    name = hop.spec.name
    try:
        assert isinstance(hop.sink, KafkaSink)
        for words in hop.sink.lacking(tables):
            remedy = "cleanup.policy=compact" if "compacted" in words else "Give the target's user what it needs"
            yield Finding(Level.FAIL, "target", words, remedy, _DOCS, name)
    except StrandlineError as error:
        yield fail("target", error, name)
