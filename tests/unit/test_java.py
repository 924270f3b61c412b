"""Which Java is found, and what is said when none is."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.core.errors import SetupError
from strandline.spark import java as module
from strandline.spark.java import find_java


def home(folder: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return folder


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(module, "_FOLDERS", ())


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "named", "21.0.2")))
    monkeypatch.setenv("PATH", str(home(tmp_path / "on-path", "17.0.15") / "bin"))
    assert find_java() == str(tmp_path / "named")


@pytest.mark.parametrize("old", ["1.8.0_392", "11.0.2"])
def test_an_old_java_home_gives_way_to_a_newer_one_on_the_path(
    old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "old", old)))
    monkeypatch.setenv("PATH", str(home(tmp_path / "new", "17") / "bin"))
    assert find_java() == str(tmp_path / "new")


def test_without_java_the_error_says_what_to_install() -> None:
    with pytest.raises(SetupError, match="17 or newer") as caught:
        find_java()
    assert "apt-get install openjdk-17-jre-headless" in caught.value.remedy


def test_a_java_that_spark_cannot_start_on_is_named_with_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home(tmp_path / "small", "17.0.1", modules="java.base")))
    with pytest.raises(SetupError) as caught:
        find_java()
    assert f"{tmp_path / 'small'}: lacks the module jdk.incubator.vector" in caught.value.why
