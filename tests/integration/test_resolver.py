"""Jars through Spark's own resolver, behind a mirror that is a folder: no network is needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strandline.core.errors import SetupError
from strandline.spark.jars import PINNED, jars

(DRIVER,) = PINNED["postgresql"]
SETTINGS = """<ivysettings>
  <settings defaultResolver="mirror"/>
  <resolvers><ibiblio name="mirror" m2compatible="true" root="{root}"/></resolvers>
</ivysettings>"""
POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>org.postgresql</groupId><artifactId>postgresql</artifactId><version>{version}</version></project>"""


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository in a folder; returns where the driver's jar belongs."""
    version = DRIVER.coordinates.split(":")[2]
    place = tmp_path / "mirror" / "org" / "postgresql" / "postgresql" / version
    place.mkdir(parents=True)
    (place / f"postgresql-{version}.pom").write_text(POM.format(version=version))
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(SETTINGS.format(root=(tmp_path / "mirror").as_uri() + "/"))
    monkeypatch.setenv("STRANDLINE_IVY_SETTINGS", str(settings))
    return place / DRIVER.file


def test_a_jar_is_fetched_once_through_the_mirror(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (known,) = jars(["postgresql"])
    shutil.copy(known, mirror)
    cache = tmp_path / "cache"
    assert jars(["postgresql"], cache=cache) == [cache / DRIVER.file]
    assert [file.name for file in cache.iterdir()] == [DRIVER.file]
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "no-spark-here"))
    assert jars(["postgresql"], cache=cache) == [cache / DRIVER.file]


def test_a_mirror_that_serves_something_else_is_refused(mirror: Path, tmp_path: Path) -> None:
    mirror.write_bytes(b"something else")
    with pytest.raises(SetupError, match="SHA-256 differs"):
        jars(["postgresql"], cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_jar_nobody_has_is_an_error_with_both_ways_out(mirror: Path, tmp_path: Path) -> None:
    assert not mirror.exists()
    with pytest.raises(SetupError, match="could not be fetched") as caught:
        jars(["postgresql"], cache=tmp_path / "cache")
    assert "STRANDLINE_IVY_SETTINGS" in caught.value.remedy
    assert "STRANDLINE_JARS" in caught.value.remedy
    assert DRIVER.file in caught.value.remedy
