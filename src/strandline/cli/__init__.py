"""The command line: one file per command group, rendering apart in `render`, `progress` and `bars`.

Command modules import click and nothing heavy, so that `--help` is quick; projects are loaded inside functions.
"""

from __future__ import annotations

from collections.abc import Sequence


def run(argv: Sequence[str]) -> int:
    """A command for spark-submit and job runners: `run(["sync", "-p", "shop"])`. Raises on failure, never exits.

    Returns 0, or 3 for `plan --detailed-exitcode` with work. StrandlineError says what is wrong; RunFailedError that
    a run failed, with its first error.
    """
    from strandline.cli.app import call

    return call(argv)
