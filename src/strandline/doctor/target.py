"""Checks of a target: is it ours, can it be written, does it agree with the positions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from strandline.core.errors import ChangedError, StateError, StrandlineError, TargetError
from strandline.core.plan import check_unchanged
from strandline.core.reconcile import reconcile
from strandline.core.table import EXTRACT, Table
from strandline.doctor.columns import check_columns
from strandline.doctor.finding import Finding, Level, fail, many, ok, warn
from strandline.doctor.kafka import check_kafka
from strandline.endpoint import Endpoint
from strandline.operations.resting import stored
from strandline.pipeline import Pipeline, stages
from strandline.project import Project

_LITTLE_SPACE = 1 << 30


def check_targets(project: Project, origin: Pipeline, tables: Sequence[Table]) -> Iterator[Finding]:
    """The end of every hop: what it holds against its position, and whether it can take what the source has now.

    `tables` as the source of `origin`, the first hop, has them; a load knows its own from the stage.
    """
    spec = origin.spec
    for stage in stages(spec):
        with nullcontext(origin) if stage == origin.stage else project.opened(spec.name, stage) as hop:
            extract = spec.stage is not None and stage == EXTRACT
            place = spec.stage if extract and spec.stage else spec.targets[hop.target]
            area = "stage" if extract else "target"
            yield from _place(place, area, spec.name)
            own = [replace(table, stage=stage) for table in tables]
            if hop.staged:
                own = yield from _staged(hop)
            yield from _held(project, hop, own, area, place)
            if place.scheme == "kafka":
                yield from check_kafka(hop, own)
            if not extract:
                yield from check_columns(origin, hop, tables)


def _staged(hop: Pipeline) -> Generator[Finding, None, list[Table]]:
    """The tables that have been staged. What is wrong with the stage is found by its own check."""
    try:
        return [part.table for part in hop.tables() if not part.error and part.table.columns]
    except StrandlineError as error:
        yield fail("stage", error, hop.spec.name)
        return []


def _held(project: Project, hop: Pipeline, tables: Sequence[Table], area: str, place: Endpoint) -> Iterator[Finding]:
    """Whether the target holds the batch that the position says, and the position measures what the config says."""
    name, held, well = hop.spec.name, 0, True
    for table in tables:
        try:
            position, unreadable = stored(project.books, table.pipeline, table.name, table.stage)
            receipt = hop.sink.applied(table)
            if not unreadable:
                reconcile(receipt, position)
                check_unchanged(table, position, hop.measures(table))
            held += receipt.batch.number if receipt else 0
        except StateError:
            return  # the state has its own findings
        except (TargetError, ChangedError) as error:
            well = False
            yield fail(area, error.at(table.where_text), name)
        except StrandlineError as error:
            yield fail(area, error.at(table.where_text), name)
            return
    if well:
        yield ok(area, f"{place}: {many(held, 'batch')}", name)


def _place(endpoint: Endpoint, area: str, pipeline: str) -> Iterator[Finding]:
    if endpoint.scheme not in ("delta", "file"):
        return
    if "://" in endpoint.path:
        if endpoint.path.startswith("s3"):
            yield warn(
                area,
                f"{endpoint}: on S3 two Spark drivers can overwrite each other's commits",
                "Let one machine at a time write it; the lease keeps runs of one state apart.",
                pipeline=pipeline,
            )
        return
    folder = next(path for path in (Path(endpoint.path), *Path(endpoint.path).parents) if path.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        what = "cannot be written" if folder.is_dir() else "is no folder"
        yield Finding(Level.FAIL, area, f"{folder} {what}", f"Name another folder under {area}:", pipeline=pipeline)
    elif shutil.disk_usage(folder).free < _LITTLE_SPACE:
        free = shutil.disk_usage(folder).free >> 20
        yield warn(area, f"{folder}: only {free:,} MiB are free", "Make room before a first load.", pipeline=pipeline)
