"""Verifying the tables of a pipeline, one after the other; one table's trouble is its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from strandline.core.compare import KINDS, Differences
from strandline.core.errors import StrandlineError, TargetError, TransientError
from strandline.core.events import Compared, Comparing, Listener, Retrying
from strandline.core.plan import Ask, Planned, check_unchanged
from strandline.core.protocols import Sink, Source, TargetSide
from strandline.core.reconcile import reconcile
from strandline.core.retry import retried
from strandline.core.run import Outcome
from strandline.core.table import Mode, Table
from strandline.core.window import Window
from strandline.verify.repair import DELETE_FRACTION, planned
from strandline.verify.scope import Scope, lowest, scope
from strandline.verify.table import Findings, compare_parts, compare_table
from strandline.verify.verdict import Answer, Verdict


@dataclass(frozen=True)
class Verified:
    """A table's verdict, with what a repair needs to know."""

    ask: Ask
    verdict: Verdict
    scope: Scope | None = None
    findings: Findings | None = None


@dataclass(frozen=True)
class Deleting:
    """What a repair may do with rows that the source does not have."""

    allowed: bool = False
    fraction: float = DELETE_FRACTION  # of the target's rows, at most


@dataclass(frozen=True)
class Verifier:
    """Compares what a source and a sink hold of the same tables. Writes nothing."""

    run_id: str
    source: Source
    sink: Sink
    emit: Listener
    redact: Callable[[str], str] = str
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def verify(self, ask: Ask) -> Verified:
        """Whatever goes wrong is in the verdict, not raised."""
        table, started = ask.table, self.clock()
        mark = ask.position.watermark
        found = Verified(ask, Verdict(table.pipeline, table.name, Answer.NOT_LOADED, mark, stage=table.stage))
        try:
            if ask.error:
                raise ask.error
            if ask.position.watermark is not None:
                found = self._compared(found)
        except StrandlineError as error:
            found = replace(found, verdict=self.failed(found.verdict, error))
        verdict = replace(found.verdict, seconds=self.clock() - started)
        told = str(verdict.error) if verdict.error else ""
        counts = (verdict.answer.value, verdict.rows, verdict.differences, verdict.seconds)
        self.emit(Compared(*self._where(table), *counts, told))
        return replace(found, verdict=verdict)

    def repair(
        self,
        found: Sequence[Verified],
        deleting: Deleting,
        carry_out: Callable[[list[Planned]], Sequence[Outcome]],
        beside: Sequence[Verified] = (),
    ) -> tuple[Verdict, ...]:
        """Repair the tables that differ, by one run; `carry_out` is the ordinary way of plans.

        `beside`: what was found in other targets that are given the same batches.
        """
        verdicts: dict[str, Verdict] = {}
        work: dict[str, Planned] = {}
        for part in found:
            name = part.ask.table.name
            verdicts[name] = part.verdict
            if part.verdict.answer is not Answer.DIFFERENT or part.scope is None or part.findings is None:
                continue
            try:
                plan = planned(
                    part.ask,
                    part.scope.comparison,
                    part.findings,
                    self.run_id,
                    delete=deleting.allowed,
                    delete_fraction=deleting.fraction,
                    beside=_elsewhere(name, beside) if deleting.allowed else (),
                )
            except StrandlineError as error:
                verdicts[name] = self.failed(part.verdict, error)
                continue
            if plan is None:
                verdicts[name] = _noted(part.verdict, "extra rows are deleted only with --delete")
            else:
                work[name] = plan
        outcomes = {outcome.table: outcome for outcome in carry_out(list(work.values()))} if work else {}
        for part in found:
            if outcome := outcomes.get(part.ask.table.name):
                verdicts[outcome.table] = self._repaired(part, outcome)
        return tuple(verdicts[part.ask.table.name] for part in found)

    def _repaired(self, found: Verified, outcome: Outcome) -> Verdict:
        applied = outcome.applied
        changed = applied.rows_inserted + applied.rows_updated + applied.rows_deleted
        verdict = replace(found.verdict, repaired=changed)
        try:
            if outcome.error:
                raise outcome.error
            left = self._left(found)
        except StrandlineError as error:
            return self.failed(verdict, error)
        if not left:
            return replace(verdict, answer=Answer.REPAIRED)
        words = ", ".join(f"{getattr(left, kind):,} {kind}" for kind in KINDS if getattr(left, kind))
        return _noted(verdict, f"left after the repair: {words}")

    def failed(self, verdict: Verdict, error: StrandlineError) -> Verdict:
        error.at(f"{verdict.pipeline}.{verdict.table}")
        error.message = self.redact(error.message)
        return replace(verdict, answer=Answer.FAILED, error=error)

    def _left(self, verified: Verified) -> Differences:
        """What still differs in the parts that did, after a repair."""
        assert verified.scope is not None and verified.findings is not None
        comparison = verified.scope.comparison
        target = self.sink.side(comparison)
        try:
            return compare_parts(self.source.side(comparison), target, comparison, verified.findings.parts)
        finally:
            target.close()

    def _compared(self, found: Verified) -> Verified:
        ask, table = found.ask, found.ask.table
        check_unchanged(table, ask.position, ask.measures)
        if not ask.busy:  # another run may be ahead of the position by now
            reconcile(self.sink.applied(table), ask.position)
        copy = self.sink.forms(table)
        if not copy and ask.position.batch is None:
            return replace(found, verdict=self._without_target(found.verdict, ask))
        known = self.sink.hashes()
        agreed = scope(
            table,
            ask.position,
            self.source.forms(table),
            copy,
            self.source.ranged(table),
            next(name for name in self.source.hashes() if name in known),
        )

        def again(error: TransientError, wait: float) -> None:
            self.emit(Retrying(*self._where(table), self.redact(str(error)), wait))
            self.sleep(wait)

        agreed, findings = retried(lambda: self._find(table, agreed), again)
        verdict = replace(
            found.verdict,
            answer=Answer.DIFFERENT if findings.differences or not findings.complete else Answer.EQUAL,
            rows=findings.rows,
            differences=findings.differences,
            complete=findings.complete,
            notes=agreed.notes,
        )
        return Verified(ask, verdict, agreed, findings)

    def _without_target(self, verdict: Verdict, ask: Ask) -> Verdict:
        """The watermark moved though no row ever came, so there is no target: right, if the source has none, either."""
        table, mark = ask.table, ask.position.watermark
        if table.initial == "latest" or table.mode is Mode.SNAPSHOT or mark is None:
            return verdict
        window = Window(lowest(table, ask.position), mark)
        waiting = self.source.pending({table.name: (table, window)})[table.name]
        if isinstance(waiting, StrandlineError):
            raise waiting
        if waiting == 0:
            return replace(verdict, answer=Answer.EQUAL)
        raise TargetError(
            f"there is no target, and the source has rows below the watermark {mark}",
            remedy=f"Load it from the beginning:   strandline sync --full -t {table.name}",
        )

    def _find(self, table: Table, agreed: Scope) -> tuple[Scope, Findings]:
        def tell(step: str, done: int, of: int) -> None:
            self.emit(Comparing(*self._where(table), step, done, of))

        agreed, target = self._target(agreed)
        try:
            return agreed, compare_table(self.source.side(agreed.comparison), target, agreed.comparison, tell)
        finally:
            target.close()

    def _target(self, agreed: Scope) -> tuple[Scope, TargetSide]:
        """The target's side; where `initial: latest` left no trace of where it began, from its oldest row on."""
        target = self.sink.side(agreed.comparison)
        table = agreed.comparison.table
        oldest = target.oldest() if table.initial == "latest" and table.cursor else None
        if oldest is None:
            return agreed, target
        target.close()
        agreed = Scope(
            replace(agreed.comparison, low=oldest),
            (*agreed.notes, f"compared from {oldest} on, the oldest row of the target (initial: latest)"),
        )
        return agreed, self.sink.side(agreed.comparison)

    def _where(self, table: Table) -> tuple[str, str, str, str]:
        return (self.run_id, table.pipeline, table.name, table.stage)


def _elsewhere(table: str, beside: Sequence[Verified]) -> list[Findings]:
    """What was found of a table in other targets; TargetError where that is not known."""
    others = [part for part in beside if part.ask.table.name == table]
    if unknown := next((part for part in others if part.verdict.answer is Answer.FAILED), None):
        raise TargetError(
            f"rows would be deleted in every target, and one could not be compared: {unknown.verdict.error}",
            remedy="Put that right first, or repair without --delete.",
        )
    return [part.findings for part in others if part.findings is not None]


def _noted(verdict: Verdict, note: str) -> Verdict:
    return replace(verdict, notes=(*verdict.notes, note))
