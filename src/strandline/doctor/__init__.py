"""`doctor`: everything a run will need, looked at before it does, each finding with its remedy.

One small function per check, in the order in which a run would meet them; a failed check never hides the next. No JVM
is started and nothing is written, except that opening a new state makes its store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from strandline.core.errors import StrandlineError
from strandline.doctor.finding import Finding, Level, fail, many, ok
from strandline.doctor.positions import check_positions
from strandline.doctor.setup import check_setup
from strandline.doctor.snowflake import check_snowflake
from strandline.doctor.source import check_source
from strandline.doctor.stage import check_stage
from strandline.doctor.state import check_state
from strandline.doctor.target import check_targets
from strandline.project import Project
from strandline.sources.inspection import Skew

__all__ = ["Finding", "Level", "examine"]


def examine(load: Callable[[], Project], pipelines: Sequence[str] = ()) -> Iterator[Finding]:
    """Findings as they are made. `load` gives the project, or raises what is wrong with the config."""
    try:
        project = load()
    except StrandlineError as error:
        yield from check_setup(())
        yield fail("config", error)
        return
    with project:
        chosen = [project.pipeline(name) for name in pipelines] or list(project.config.pipelines.values())
        ends = [end for spec in chosen for end in (spec.source, spec.stage, *spec.targets.values()) if end]
        yield from check_setup(ends, project.config.state, project.config.spark.remote)
        tables = sum(len(spec.tables) for spec in chosen)
        yield ok("config", f"{project.config.path}: {many(len(chosen), 'pipeline')}, {many(tables, 'table')}")
        clocks: dict[str, Skew] = {}
        for spec in chosen:
            yield from check_snowflake(spec)
            with project.opened(spec.name) as opened:
                resolved = yield from check_source(opened, clocks)
                yield from check_targets(project, opened, resolved)
                yield from check_stage(project, spec)
                yield from check_positions(project, opened, resolved)
        yield from check_state(project, clocks)
