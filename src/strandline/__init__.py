"""Strandline: incremental data pipelines on Spark that never lose a row and never apply one twice.

    strandline.yml ─► config ─► plan ──► read ──► apply ──► commit
                                  │        │         │         │
                                Source   Source     Sink     State

`load` gives a Project; `project.plan(name)` shows what would move, `project.sync(name)` moves it. `Tracker` keeps the
same watermarks for a job whose writes are the caller's own. The loop itself is
`core/run.py`; what a source, a sink and a state store promise is `core/protocols.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strandline.core.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.project import Project, load
    from strandline.result import PipelinePlan, RunResult
    from strandline.sources.frame import Frame
    from strandline.tracking.tracker import Tracker

__all__ = ["Frame", "PipelinePlan", "Project", "RunResult", "StrandlineError", "Tracker", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """On first use, so that importing a value of the core stays cheap."""
    if name in ("Project", "load"):
        from strandline import project

        return getattr(project, name)
    if name in ("PipelinePlan", "RunResult"):
        from strandline import result

        return getattr(result, name)
    if name == "Tracker":
        from strandline.tracking.tracker import Tracker

        return Tracker
    if name == "Frame":
        from strandline.sources.frame import Frame

        return Frame
    raise AttributeError(name)
