"""Errors, grouped by what the user can do about them.

    StrandlineError
    ├── ConfigError            fix strandline.yml (also: unknown pipeline or table, unset variable)
    ├── SetupError             install something: Java, a driver, a jar
    ├── ConnectError           a server cannot be reached or refuses the login
    ├── SourceError            the source table cannot be read exactly: missing column, cursor, key, type
    ├── TargetError            the target is not what the position says: lost, restored, foreign
    │   ├── BatchConflictError the target holds another batch under this number
    │   └── SchemaError        the target's columns cannot take the batch
    ├── ChangedError           what the position measures has changed: choose reset, backfill or accept
    ├── StateError             the state store is corrupt, too new, or refuses
    │   ├── ConflictError      compare-and-set lost: somebody else wrote first
    │   └── LeaseError         another run holds the table, or ours was lost
    ├── WindowError            a range or value that cannot be
    ├── TransientError         worth trying again as it is: connection lost, deadlock, commit conflict
    │   └── CommitUnknownError the outcome of a commit cannot be told; ask the sink again
    └── RunFailedError         raised by `main()` and `sync(raise_on_failure=True)` after everything else was tried

Every error says what happened and to which pipeline and table; `remedy` says what to do, `docs` where to read on.
"""

from __future__ import annotations

from typing import Self


class StrandlineError(Exception):
    """Root of everything Strandline raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, *, where: str = "", why: str = "", remedy: str = "", docs: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where  # "pipeline.table", filled in by whoever knows it
        self.why = why
        self.remedy = remedy
        self.docs = docs

    def at(self, where: str) -> Self:
        """Name the pipeline and table, unless somebody nearer already did."""
        self.where = self.where or where
        return self

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    @property
    def advice(self) -> str:
        """Why, what to do, where to read: what is kept beside the message."""
        tail = "\n".join(filter(None, (self.remedy, f"Docs: {self.docs}" if self.docs else "")))
        return "\n\n".join(filter(None, (self.why, tail)))

    def explain(self) -> str:
        """The whole text a person sees."""
        return explained(str(self), self.advice)


def explained(message: str, advice: str) -> str:
    """What happened, and below it what to do about it."""
    return f"{message}\n\n{_indent(advice)}" if advice else message


def _indent(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


class ConfigError(StrandlineError):
    exit_code = 2


class SetupError(StrandlineError):
    exit_code = 2


class ConnectError(StrandlineError):
    pass


class SourceError(StrandlineError):
    pass


class TargetError(StrandlineError):
    pass


class BatchConflictError(TargetError):
    pass


class SchemaError(TargetError):
    pass


class ChangedError(StrandlineError):
    pass


class StateError(StrandlineError):
    pass


class ConflictError(StateError):
    pass


class LeaseError(StateError):
    pass


class WindowError(StrandlineError):
    exit_code = 2


class TransientError(StrandlineError):
    def __init__(self, message: str, *, where: str = "", why: str = "", remedy: str = "", docs: str = "") -> None:
        remedy = remedy or "Check that everything it needs is up; the next run goes on from here."
        super().__init__(message, where=where, why=why, remedy=remedy, docs=docs)


class CommitUnknownError(TransientError):
    pass


class RunFailedError(StrandlineError):
    pass
