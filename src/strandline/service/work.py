"""One job of a service, carried out: what it does to its project, and how it ended. Knows no schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.core.books import Caller
from strandline.core.errors import LeaseError, StrandlineError
from strandline.core.events import Listener
from strandline.core.position import Status
from strandline.core.run import told
from strandline.project import Project
from strandline.result import RunResult
from strandline.running import Unattended
from strandline.service.desk import Job
from strandline.verify.verdict import Verdict


@dataclass(frozen=True)
class Done:
    """`quiet`: there was nothing to do, or (`taken`) somebody else does it."""

    failed: bool = False
    error: str = ""
    run_id: str = ""
    quiet: bool = False
    taken: bool = False
    remedy: str = ""


def carry_out(
    project: Project,
    job: Job,
    unattended: Unattended,
    listener: Listener,
    result: Callable[[RunResult], None] | None = None,
) -> Done:
    """Whatever happens is told, not raised. A Spark session that turns out to be dead is replaced, and the job is done
    again: what it did is not undone, and not repeated."""
    replaced = project.own_spark.replaced
    done = _once(project, job, unattended, listener, result)
    if done.failed and project.own_spark.gave_up(replaced):
        unattended.warm.close()
        done = _once(project, job, unattended, listener, result)
    if done.failed:
        unattended.warm.close(job.pipeline)
    return done


def _once(
    project: Project, job: Job, unattended: Unattended, listener: Listener, result: Callable[[RunResult], None] | None
) -> Done:
    caller = Caller.here(job.trigger)
    caller = Caller(caller.trigger, job.who or caller.user, caller.host, caller.job_id)
    try:
        match job.action:
            case "verify":
                found = project.verify(
                    job.pipeline, tables=job.tables, repair=job.repair, listener=listener, caller=caller
                )
                return _compared(found)
            case "maintain":
                project.maintain(job.pipeline, tables=job.tables, listener=listener)
                return Done()
        run = project.sync(
            job.pipeline,
            tables=job.tables,
            stages=job.stages,
            listener=listener,
            caller=caller,
            unattended=unattended,
            resume=job.resume,
        )
    except LeaseError as error:
        return Done(error=str(error), quiet=True, taken=True)
    except Exception as error:  # a service outlives its jobs
        said = told(error, job.pipeline, project.config.redactor.redact)
        return Done(True, str(said), remedy=said.advice)
    if result:
        result(run)
    quiet = run.status is Status.SKIPPED
    return Done(run.failed, project.config.redactor.redact(run.failure) if run.failed else "", run.run_id, quiet)


def _compared(verdicts: tuple[Verdict, ...]) -> Done:
    bad = [verdict for verdict in verdicts if not verdict.good]
    if not bad:
        return Done()
    first = bad[0].error or StrandlineError(bad[0].answer.value, where=f"{bad[0].pipeline}.{bad[0].table}")
    return Done(True, f"{len(bad)} of {len(verdicts)} tables are not as they should be: {first}")
