"""The command line from an empty folder to a second sync: PostgreSQL → Delta, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from strandline import cli

PASSWORD = "tide-and-time-4711"


class Shell:
    """A user's shell in a folder of its own, with the password where the config expects it."""

    def __init__(self, folder: Path, database: str, source: str) -> None:
        self.folder = folder
        self.database = database
        self.source = source
        self.password = PASSWORD

    def run(self, *argv: str, code: int = 0) -> tuple[str, str]:
        environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2]), "SOURCE_PASSWORD": self.password}
        environment.pop("STRANDLINE_CONFIG", None)
        done = subprocess.run(
            [sys.executable, "-m", "strandline", *argv],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, done.stderr
        assert PASSWORD not in done.stdout + done.stderr
        return done.stdout, done.stderr

    def json(self, *argv: str, code: int = 0) -> Any:
        return json.loads(self.run(*argv, "--json", code=code)[0])

    def execute(self, sql: str) -> None:
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(sql.encode())


@pytest.fixture
def shell(pg_database: str, tmp_path: Path) -> Iterator[Shell]:
    """A database with orders and customers, and a reader who logs in with a password."""
    parts = urlsplit(pg_database)
    role = f"reader_{parts.path.strip('/')}"
    address = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    shell = Shell(tmp_path, pg_database, urlunsplit((parts.scheme, f"{role}@{address}", parts.path, "", "")))
    shell.execute(
        f"""
        CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}';
        GRANT pg_monitor TO {role};
        CREATE TABLE orders (id bigint PRIMARY KEY, value text, updated_at timestamptz NOT NULL DEFAULT now());
        CREATE INDEX ON orders (updated_at);
        CREATE TABLE customers (id bigint PRIMARY KEY, name text, updated_at timestamptz NOT NULL DEFAULT now());
        CREATE INDEX ON customers (updated_at);
        INSERT INTO orders SELECT n, 'new', now() - interval '1 hour' FROM generate_series(1, 500) n;
        INSERT INTO customers VALUES (1, 'Ada', now() - interval '1 hour');
        GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role};
        """
    )
    yield shell
    shell.run("spark", "stop")
    shell.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_from_an_empty_folder_to_a_second_sync(shell: Shell) -> None:
    out, err = shell.run("init", "--source", shell.source, "-p", "shop")
    assert "updated_at" in out
    assert "strandline.yml written" in err
    config = shell.folder / "strandline.yml"
    assert "${SOURCE_PASSWORD}" in config.read_text()
    config.write_text(config.read_text().replace("    tables:", "    guard: 100ms\n    tables:"))

    findings = shell.json("doctor")["findings"]
    assert not [finding for finding in findings if finding["level"] == "fail"]

    (pipeline,) = shell.json("plan", "--detailed-exitcode", code=3)["pipelines"]
    assert {table["reason"] for table in pipeline["tables"]} == {"first load"}

    first = shell.json("sync")
    assert {table["table"].split(".")[-1]: table["rows_inserted"] for table in first["tables"]} == {
        "orders": 500,
        "customers": 1,
    }
    shell.execute("UPDATE orders SET value = 'changed', updated_at = now() WHERE id <= 3")
    second = shell.json("sync")
    assert [table["rows_updated"] for table in second["tables"] if table["table"].endswith("orders")] == [3]

    (spark,) = shell.json("spark", "status")["sparks"]  # what init wrote keeps it for the next sync
    assert spark["config"] == str(config)

    idle, _ = shell.run("sync")
    assert "2 up to date" in idle
    assert len(shell.json("runs", "list")["runs"]) == 2
    (status,) = shell.json("status")["pipelines"]
    assert {table["table"].split(".")[-1]: table["rows"] for table in status["tables"]} == {
        "orders": 503,
        "customers": 1,
    }


def test_a_wrong_password_exits_with_1_and_says_so_without_repeating_it(shell: Shell) -> None:
    shell.run("init", "--source", shell.source)
    shell.password = "not-the-password-99"
    out, err = shell.run("plan", code=1)
    assert out == ""
    assert err.startswith("error: ")
    assert "not-the-password-99" not in err
