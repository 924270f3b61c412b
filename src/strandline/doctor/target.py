"""Checks of a target: is it ours, can it be written, does it agree with the positions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from strandline.core.errors import ChangedError, StateError, StrandlineError, TargetError
from strandline.core.plan import check_unchanged
from strandline.core.position import Position
from strandline.core.reconcile import reconcile
from strandline.core.table import Table
from strandline.doctor.finding import Finding, Level, fail, ok, warn
from strandline.endpoint import Endpoint
from strandline.operations.resting import stored
from strandline.pipeline import Pipeline
from strandline.project import Project

_AREA = "target"
_LITTLE_SPACE = 1 << 30


def check_target(project: Project, opened: Pipeline, tables: Sequence[Table]) -> Iterator[Finding]:
    name = opened.spec.name
    for endpoint in opened.spec.targets.values():
        yield from _place(endpoint, name)
    held = 0
    for table in tables:
        try:
            position, unreadable = stored(project.books, table.pipeline, table.name, table.stage)
            receipt = opened.sink.applied(table)
            if not unreadable:
                reconcile(receipt, position)
                _check_unchanged(opened, table, position)
            held += receipt.batch.number if receipt else 0
        except StateError:
            return  # the state has its own findings
        except (TargetError, ChangedError) as error:
            yield fail(_AREA, error.at(table.where_text), name)
        except StrandlineError as error:
            yield fail(_AREA, error.at(table.where_text), name)
            return
    yield ok(_AREA, f"{', '.join(map(str, opened.spec.targets.values()))}: {held:,} batches", name)


def _check_unchanged(opened: Pipeline, table: Table, position: Position) -> None:
    check_unchanged(table, position, opened.measures(table))


def _place(endpoint: Endpoint, pipeline: str) -> Iterator[Finding]:
    if endpoint.scheme != "delta":
        return
    if "://" in endpoint.path:
        if endpoint.path.startswith("s3"):
            yield warn(
                _AREA,
                f"{endpoint}: on S3 two Spark drivers can overwrite each other's commits",
                "Let one machine at a time write it; the lease keeps runs of one state apart.",
                pipeline=pipeline,
            )
        return
    folder = next(path for path in (Path(endpoint.path), *Path(endpoint.path).parents) if path.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        what = "cannot be written" if folder.is_dir() else "is no folder"
        yield Finding(Level.FAIL, _AREA, f"{folder} {what}", "Name another folder under target:", pipeline=pipeline)
    elif shutil.disk_usage(folder).free < _LITTLE_SPACE:
        free = shutil.disk_usage(folder).free >> 20
        yield warn(_AREA, f"{folder}: only {free:,} MiB are free", "Make room before a first load.", pipeline=pipeline)
