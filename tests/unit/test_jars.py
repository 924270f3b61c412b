"""Jars come from the cache, a given folder or Spark's resolver, and only if they are the pinned ones."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from strandline.core.errors import SetupError
from strandline.spark import jars as module
from strandline.spark.jars import Jar, jars

CONTENT = b"not really a jar"
SMALL = Jar("org.example:small:1.0", hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.PINNED, "small", (SMALL,))
    monkeypatch.delenv("STRANDLINE_JARS", raising=False)


def test_a_filled_cache_is_used_without_starting_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small-1.0.jar").write_bytes(CONTENT)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "no-spark-here"))
    assert jars(["small", "small"], cache=tmp_path) == [tmp_path / "small-1.0.jar"]


def test_a_given_folder_is_used_and_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small-1.0.jar").write_bytes(CONTENT)
    monkeypatch.setenv("STRANDLINE_JARS", str(tmp_path))
    assert jars(["small"]) == [tmp_path / "small-1.0.jar"]
    assert [file.name for file in tmp_path.iterdir()] == ["small-1.0.jar"]


def test_a_given_folder_without_the_jar_names_its_coordinates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRANDLINE_JARS", str(tmp_path))
    with pytest.raises(SetupError, match="is missing") as caught:
        jars(["small"])
    assert "org.example:small:1.0" in caught.value.remedy


def test_a_changed_jar_in_a_given_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small-1.0.jar").write_bytes(CONTENT + b"!")
    monkeypatch.setenv("STRANDLINE_JARS", str(tmp_path))
    with pytest.raises(SetupError, match="SHA-256 differs"):
        jars(["small"])


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="cannot be written") as caught:
        jars(["small"], cache=tmp_path / "file" / "jars")
    assert "XDG_CACHE_HOME" in caught.value.remedy


def test_every_pinned_jar_has_coordinates_and_a_checksum() -> None:
    for jar in (jar for pinned in module.PINNED.values() for jar in pinned):
        assert len(jar.coordinates.split(":")) == 3
        assert len(bytes.fromhex(jar.sha256)) == 32
