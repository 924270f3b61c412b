"""A shop that is well, the config over it, and what `doctor` says of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from strandline import doctor, load
from strandline.doctor import Finding, Level
from strandline.project import Project

HEALTHY = """
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.updated_at := now(); RETURN NEW; END $$;
CREATE TABLE orders (id bigint PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now());
CREATE INDEX ON orders (updated_at);
CREATE TRIGGER touch_orders BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION touch();
INSERT INTO orders VALUES (1), (2);
ANALYZE;
"""
HEALTHY_MARIADB = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, "
    "updated_at timestamp(6) NOT NULL DEFAULT now(6) ON UPDATE now(6), KEY (updated_at))",
    "INSERT INTO orders (id) VALUES (1)",
)
ROOT = Path(__file__).parents[2]


def configured(folder: Path, url: str, table: str = "{name: orders, cursor: updated_at}") -> Callable[[], Project]:
    text = f"pipelines:\n  shop:\n    source: {url}\n    target: delta:lake\n    tables:\n      - {table}\n"
    (folder / "strandline.yml").write_text(text)
    return lambda: load(folder / "strandline.yml")


def examine(load_project: Callable[[], Project]) -> list[Finding]:
    """What `doctor` finds. Whatever is not well must say what to do, and where to read on must exist."""
    findings = list(doctor.examine(load_project))
    for finding in findings:
        assert finding.remedy or finding.area == "config" or finding.level in (Level.OK, Level.NOTE), finding
        page, _, anchor = finding.docs.partition("#")
        assert finding.docs or finding.level is Level.OK, finding
        assert not anchor or anchor in _anchors(ROOT / page), finding
    return findings


def found(load_project: Callable[[], Project], level: Level = Level.FAIL) -> list[str]:
    return [finding.text for finding in examine(load_project) if finding.level is level]


def only(findings: list[Finding], words: str) -> Finding:
    (one,) = [finding for finding in findings if words in finding.text]
    return one


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}
