"""`/metrics` for Prometheus: what the state says, read when it is asked for. Never a run id as a label."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from strandline import __version__
from strandline.core.position import Status
from strandline.core.protocols import Record
from strandline.operations.health import Health
from strandline.operations.runs import moved, seconds
from strandline.project import Project
from strandline.web.views import PipelineView, Views

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
_LATE = timedelta(minutes=10)  # a run may be written down this much later than its id says: clocks differ
_TABLE = ("pipeline", "table", "stage")
_GOOD = (Status.COMPLETED, Status.SKIPPED)


class Runs:
    """Runs that ended since the service began, whoever ran them: counted from the history, each once."""

    def __init__(self, began: datetime) -> None:
        self._from = began - _LATE
        self._began = began
        self._counted: set[str] = set()
        self.ended: dict[tuple[str, str], int] = {}  # by pipeline and status
        self.rows: dict[str, int] = {}
        self.spans: dict[str, list[int]] = {}  # by pipeline: how many took at most so long
        self.span_sums: dict[str, float] = {}
        self._lock = threading.Lock()

    def catch_up(self, project: Project, now: datetime) -> None:
        with self._lock:
            found = project.books.state.read("run", since=f"{self._from:%Y%m%d-%H%M%S}")
            open_from = now - _LATE
            for run in found:
                started = datetime.fromisoformat(str(run.fields["started_at"]))
                if not run.fields["ended_at"]:
                    open_from = min(open_from, started)
                elif run.key[0] not in self._counted:
                    self._counted.add(run.key[0])
                    if datetime.fromisoformat(str(run.fields["ended_at"])) >= self._began:
                        self._count(run)
            self._from = max(self._from, min(open_from, now - _LATE))
            self._counted &= {run.key[0] for run in found}

    def _count(self, run: Record) -> None:
        pipeline, status, took = str(run.fields["pipeline"]), str(run.fields["status"]), seconds(run) or 0.0
        self.ended[pipeline, status] = self.ended.get((pipeline, status), 0) + 1
        self.rows[pipeline] = self.rows.get(pipeline, 0) + moved(run)
        spans = self.spans.setdefault(pipeline, [0] * (len(_BUCKETS) + 1))
        for number, limit in enumerate((*_BUCKETS, float("inf"))):
            spans[number] += took <= limit
        self.span_sums[pipeline] = self.span_sums.get(pipeline, 0.0) + took


class Metrics(Collector):
    def __init__(self, views: Views) -> None:
        self._views = views
        self._runs = Runs(views.now())
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return []  # what there is, the state says at each collection

    def collect(self) -> Iterator[Metric]:
        project, now = self._views.project, self._views.now()
        self._runs.catch_up(project, now)
        yield self._build()
        yield from self._of_runs()
        yield self._of_deliveries()
        yield from self._of_pipelines(self._views.pipelines(runs=3), now)

    @staticmethod
    def _build() -> Metric:
        family = GaugeMetricFamily("strandline_build_info", "The version that runs.", labels=("version",))
        family.add_metric([__version__], 1)
        return family

    def _of_deliveries(self) -> Metric:
        family = CounterMetricFamily(
            "strandline_deliveries", "Alerts and lineage events since the service began.", labels=("channel", "status")
        )
        for (channel, status), number in sorted(self._views.desk.deliveries().items()):
            family.add_metric([channel, status], number)
        return family

    def _of_runs(self) -> Iterator[Metric]:
        runs = self._runs
        ended = CounterMetricFamily(
            "strandline_runs", "Runs that ended since the service began.", labels=("pipeline", "status")
        )
        for (pipeline, status), number in sorted(runs.ended.items()):
            ended.add_metric([pipeline, status.lower()], number)
        rows = CounterMetricFamily(
            "strandline_rows_written", "Rows inserted, updated and deleted in targets.", labels=("pipeline",)
        )
        for pipeline, number in sorted(runs.rows.items()):
            rows.add_metric([pipeline], number)
        spans = HistogramMetricFamily("strandline_run_duration_seconds", "How long runs took.", labels=("pipeline",))
        for pipeline, counts in sorted(runs.spans.items()):
            limits = [*(str(limit) for limit in _BUCKETS), "+Inf"]
            buckets = [(limit, float(number)) for limit, number in zip(limits, counts, strict=True)]
            spans.add_metric([pipeline], buckets, runs.span_sums[pipeline])
        yield from (ended, rows, spans)

    def _of_pipelines(self, found: Iterable[PipelineView], now: datetime) -> Iterator[Metric]:
        mark = _gauge("watermark_timestamp_seconds", "The watermark as a time, where the cursor is one.", *_TABLE)
        lag = _gauge("lag_seconds", "Now less the watermark, where the cursor is a time.", *_TABLE)
        held = _gauge("held_seconds", "How long an open transaction has held the table; 0: nothing does.", *_TABLE)
        success = _gauge("last_success_timestamp_seconds", "When all of its tables were last well.", "pipeline")
        suspended = _gauge("suspended", "1 while the schedule is suspended.", "pipeline")
        health = _gauge("health", "0 well, 1 never run, 2 warning, 3 error.", "pipeline")
        for view in found:
            suspended.add_metric([view.name], 1 if view.timetable.suspended_at else 0)
            health.add_metric([view.name], list(Health).index(view.health))
            if (at := self._success(view)) is not None:
                success.add_metric([view.name], at)
            for table in view.status.tables:
                labels = [view.name, table.table, table.stage]
                held.add_metric(labels, table.held_seconds or 0)
                if table.lag_seconds is not None:
                    lag.add_metric(labels, table.lag_seconds)
                    mark.add_metric(labels, now.timestamp() - table.lag_seconds)
        yield from (mark, lag, held, success, suspended, health)

    def _success(self, view: PipelineView) -> float | None:
        """The latest moment at which every table was well: now seen, or the last run that completed."""
        tables = view.status.tables
        if tables and all(table.status in _GOOD for table in tables):
            return max(datetime.fromisoformat(table.updated_at) for table in tables).timestamp()
        where = {"pipeline": view.name, "status": Status.COMPLETED.value}
        found = self._views.project.books.state.read("run", where=where, newest=1)
        return datetime.fromisoformat(str(found[0].fields["ended_at"])).timestamp() if found else None


def _gauge(name: str, says: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"strandline_{name}", says, labels=labels)
