"""The source's password is in no output, log, plan, state, error or process list, raw or encoded."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, quote_plus, urlsplit

import psycopg
import pytest
from lake_shop import Shop

import strandline
from strandline.cli.app import execute

PASSWORD = "s3a/b:c@d e%f?g#h&i=ü'\"+\\z"
SPELLINGS = (PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD), quote_plus(PASSWORD), repr(PASSWORD)[1:-1])
COMMANDS = (
    ("plan",),
    ("sync",),
    ("sync", "--dry-run"),
    ("doctor",),
    ("status",),
    ("watermark", "get", "-t", "orders"),
    ("watermark", "list"),
    ("watermark", "export"),
    ("runs", "list"),
)
LEAK = """
def loudly(frame):
    from pathlib import Path
    from strandline.config import load_config
    secret = load_config(Path({config!r})).pipelines["shop"].source.password
    assert secret == {password!r}
    raise ValueError(f"cannot log in with {{secret}}, {{secret!r}}")
"""


@pytest.fixture
def shop(pg_database: str, tmp_path: Path) -> Iterator[Shop]:
    """A shop whose reader has a password that every place spells in its own way."""
    shop = Shop(pg_database, tmp_path)
    address = urlsplit(pg_database)
    reader = f"reader_{address.path.strip('/')}"
    literal = psycopg.sql.Literal(PASSWORD).as_string(shop.database)
    shop.execute(f"CREATE ROLE {reader} LOGIN PASSWORD {literal}; GRANT pg_monitor TO {reader}")
    shop.execute(f"GRANT SELECT ON orders TO {reader}")
    shop.url = f"postgresql://{reader}:{quote(PASSWORD, safe='')}@{address.hostname}:{address.port}{address.path}"
    yield shop
    shop.execute(f"DROP OWNED BY {reader}; DROP ROLE {reader}")
    shop.close()


def shown(text: str) -> list[str]:
    """The spellings of the password that a text holds."""
    return [spelling for spelling in SPELLINGS if spelling in text]


def stored(shop: Shop) -> str:
    (file,) = (shop.folder / ".strandline").glob("*.db")
    state = sqlite3.connect(file)
    dump = "\n".join(state.iterdump())
    state.close()
    assert "strandline_meta" in dump
    return dump


@pytest.mark.parametrize("flags", [(), ("--debug",), ("--json",), ("--json", "--debug")], ids=" ".join)
def test_in_what_commands_say_and_store(shop: Shop, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        code = execute([*command, *flags, "-c", str(shop.config)])
        said = capsys.readouterr()
        assert (code, shown(said.out + said.err)) == (0, []), (command, said.err)
    assert shown(stored(shop)) == []


@pytest.mark.parametrize("flags", [(), ("--debug", "--json")], ids=" ".join)
def test_in_the_error_of_a_wrong_password(
    shop: Shop, flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    shop.execute(f"ALTER ROLE {urlsplit(shop.url).username} PASSWORD 'changed since'")
    for command in ("plan", "sync", "doctor"):
        assert execute([command, *flags, "-c", str(shop.config)]) == 1
        said = capsys.readouterr()
        assert "was refused" in said.out + said.err
        assert shown(said.out + said.err) == []


def test_in_what_is_said_of_a_state_that_lies_behind_the_password(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    address = urlsplit(shop.url)
    shop.execute(f"GRANT CREATE ON SCHEMA public TO {address.username}")
    config = shop.config.with_name("shared.yml")
    config.write_text(f"state: {shop.url}\n{shop.config.read_text()}")
    named = f"postgresql://{address.username}@{address.hostname}"
    for password, code, words in ((PASSWORD, 0, "strandline_positions"), ("changed since", 1, named)):
        literal = psycopg.sql.Literal(password).as_string(shop.database)
        shop.execute(f"ALTER ROLE {address.username} PASSWORD {literal}")
        for command in ("plan", "sync", "status"):
            assert execute([command, "--debug", "-c", str(config)]) == code
            said = capsys.readouterr()
            assert words in said.err
            assert shown(said.out + said.err) == []


def test_in_the_error_of_a_wrong_password_for_mariadb(
    mariadb_database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = urlsplit(mariadb_database)
    url = f"mysql://{address.username}:{quote(PASSWORD, safe='')}@{address.hostname}:{address.port}{address.path}"
    config = tmp_path / "strandline.yml"
    config.write_text(f"pipelines: {{shop: {{source: '{url}', target: 'delta:lake', tables: [orders]}}}}")
    for command in ("plan", "sync"):
        assert execute([command, "--debug", "--json", "-c", str(config)]) == 1
        said = capsys.readouterr()
        assert f"shop: mysql://{address.username}@{address.hostname}" in said.err and "refused" in said.err
        assert shown(said.out + said.err) == []


@pytest.mark.parametrize("spelled", ["tables: [", "tabels: [orders]", "guard: {url}"], ids=["syntax", "key", "value"])
def test_in_the_error_of_a_config(shop: Shop, spelled: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = shop.folder / "broken.yml"
    pipeline = f"    source: {shop.url}\n    target: delta:lake\n    {spelled.format(url=shop.url)}\n"
    config.write_text(f"pipelines:\n  shop:\n{pipeline}")
    assert execute(["plan", "--debug", "-c", str(config)]) == 2
    said = capsys.readouterr()
    assert "broken.yml" in said.err
    assert shown(said.out + said.err) == []


def test_in_the_process_list_logs_and_state_of_a_run_whose_transform_raises_it(shop: Shop, tmp_path: Path) -> None:
    shop.insert(1)
    shop.tables = [{"name": "orders", "transform": "leak:loudly"}]
    config, log = str(shop.config), tmp_path / "spark.log"
    (shop.folder / "leak.py").write_text(LEAK.format(config=config, password=PASSWORD))
    paths = {"PYTHONPATH": str(Path(strandline.__file__).parents[1]), "STRANDLINE_SPARK_LOG": str(log)}
    output = (tmp_path / "output").open("w+")
    run = subprocess.Popen(
        [sys.executable, "-m", "strandline", "sync", "--debug", "-c", config],
        env={**os.environ, **paths},
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd="/",
    )
    seen: set[str] = set()
    while run.returncode is None:
        seen |= command_lines()
        with suppress(subprocess.TimeoutExpired):
            run.wait(0.05)
    output.seek(0)
    said = output.read()
    output.close()
    assert run.returncode == 1
    assert "shop.orders: transform leak:loudly failed: cannot log in with ***" in said
    assert "Traceback" in said
    assert any("java" in line for line in seen)
    places = {"said": said, "state": stored(shop), "log": log.read_text(), "processes": "\n".join(seen)}
    assert {place: found for place, text in places.items() if (found := shown(text))} == {}


def test_in_the_words_and_logs_of_a_run_that_cannot_write_to_its_target(shop: Shop, tmp_path: Path) -> None:
    shop.insert(1)
    shop.execute(f"CREATE SCHEMA copy AUTHORIZATION {urlsplit(shop.url).username}")
    shop.execute(
        "CREATE TABLE copy.orders (id bigint PRIMARY KEY, status varchar(1), amount numeric(12,2), "
        f"updated_at timestamptz); ALTER TABLE copy.orders OWNER TO {urlsplit(shop.url).username}"
    )
    shop.pipeline["target"] = f"{shop.url}?schema=copy"
    log = tmp_path / "spark.log"
    paths = {"PYTHONPATH": str(Path(strandline.__file__).parents[1]), "STRANDLINE_SPARK_LOG": str(log)}
    command = [sys.executable, "-m", "strandline", "sync", "--debug", "-c", str(shop.config)]
    run = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, cwd="/", check=False)
    said = run.stdout + run.stderr
    assert (run.returncode, "value too long for type character varying(1)" in said) == (1, True), said
    assert "COPY[22001] value too long" in log.read_text()
    places = {"said": said, "state": stored(shop), "log": log.read_text()}
    assert {place: found for place, text in places.items() if (found := shown(text))} == {}


def command_lines() -> set[str]:
    """Every process of this machine, as `ps` shows it to anybody."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.add(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it ended meanwhile
    return found
