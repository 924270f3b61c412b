"""Every page tells the truth: commands parse, links and anchors exist, examples load, the README's own examples run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import psycopg
import pytest

import strandline
from strandline.cli.app import app
from strandline.config import load_config

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")])
SOURCES = sorted((ROOT / "src" / "strandline").rglob("*.py"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([\w-]+))?\)")
COMMAND = re.compile(r"(?:^|`|:\s+)(strandline (?:[a-z]+)[^`\n]*)", re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def commands(page: Path) -> list[str]:
    """Command lines in code blocks and in backticks, without comments and placeholders' dots."""
    text = page.read_text()
    found = [
        line.strip().removeprefix("$ ")
        for kind, block in BLOCK.findall(text)
        if kind in ("", "sh", "console")
        for line in block.splitlines()
    ]
    found += re.findall(r"`(strandline [a-z][^`\n]*)`", text)
    return [re.split(r"\s{2,}|\s#", line)[0] for line in found if re.match(r"strandline [a-z]", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_on_a_page_parses(page: Path) -> None:
    for line in commands(page):
        if any(mark in line for mark in ("…", "|")):
            continue  # a family of commands, not one
        command: click.Command = app
        context = click.Context(app)
        words = shlex.split(line)[1:]
        while words and isinstance(command, click.Group):
            found = command.get_command(context, words[0])
            assert found is not None, f"{page.name}: {line}"
            command, words = found, words[1:]
        command.make_context("strandline", list(words), resilient_parsing=True)
        options = {name for option in command.params for name in option.opts}
        unknown = [word for word in words if re.match(r"--?[a-z]", word) and word.split("=")[0] not in options]
        assert unknown in ([], ["--help"]), f"{page.name}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for name, anchor in LINK.findall(page.read_text()):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {name}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {name}#{anchor}"


def test_every_page_that_an_error_names_exists() -> None:
    named = {match for source in SOURCES for match in re.findall(r"docs/([\w/-]+\.md)#([\w-]+)", source.read_text())}
    assert named
    for name, anchor in sorted(named):
        assert anchor in anchors(ROOT / "docs" / name), f"docs/{name}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_whole_config_on_a_page_loads(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(block for block in blocks(page, "yaml") if re.search(r"^pipelines:", block, re.M)):
        path = tmp_path / f"{number}.yml"
        path.write_text(text)
        names = set(re.findall(r"\$\{(\w+)\}", text))
        load_config(path, dict.fromkeys(names, "secret-value"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_piece_of_python_on_a_page_parses(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, page.name, "exec")


def test_the_readmes_config_and_python_run(pg_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As printed, with the address of a real database put in; planning needs no Spark."""
    (config,) = blocks(ROOT / "README.md", "yaml")
    code = next(block for block in blocks(ROOT / "README.md", "python") if "import strandline" in block)
    with psycopg.connect(pg_database, autocommit=True) as database:
        for name in ("customers", "orders", "order_items"):
            database.execute(
                f"CREATE TABLE {name} (id bigint PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now())".encode()
            )
    address = re.compile(r"postgresql://\S+")
    (tmp_path / "strandline.yml").write_text(address.sub(lambda _: pg_database, config))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    plan, result = names["plan"], names["result"]
    assert isinstance(plan, strandline.PipelinePlan) and isinstance(result, strandline.RunResult)
    assert [table.table for table in plan.tables] == ["customers", "orders", "order_items"]
    assert not result.failed


def test_every_test_that_a_promise_names_exists() -> None:
    named = re.findall(r"`((?:tests|src)/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "guarantees.md").read_text())
    assert len(named) > 20
    missing = [name for path, name in named if f"def {name}(" not in (ROOT / path).read_text()]
    assert missing == []
