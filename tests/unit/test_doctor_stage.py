"""What `doctor` says of a stage that is well, and of one that was damaged, left behind or cleaned too early."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline import load
from strandline.core.position import Position
from strandline.core.watermark import Kind, Watermark
from strandline.doctor import Finding, Level
from strandline.doctor.stage import check_stage
from strandline.endpoint import Endpoint
from strandline.objects import Objects, open_objects
from strandline.stage.ledger import Ledger
from strandline.testing.sink import batch
from strandline.testing.stage import LAYOUT, staged

CONFIG = """\
state: sqlite:///{folder}/state.db
pipelines:
  shop:
    source: postgresql://reader@db/shop
    stage: {folder}/stage
    targets: {{lake: "delta:{folder}/lake", copy: "delta:{folder}/copy"}}
    tables: [{{name: orders, cursor: at}}]
"""


class Clinic:
    """Three batches, and how far each target has come."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "strandline.yml"
        self.config.write_text(CONFIG.format(folder=folder))
        self.objects: Objects = open_objects(Endpoint.parse(str(folder / "stage")))
        for number in (1, 2, 3):
            staged(self.objects, batch(number), rows=number * 1000)

    def loaded(self, lake: int, copy: int, error: str = "") -> None:
        """The last batch that each has."""
        with load(self.config) as project:
            known = project.books.positions("shop")
            for target, number in (("lake", lake), ("copy", copy)):
                at = Watermark(Kind.VERSION, str(number + 1))
                before = known.get(("shop", "orders", f"load:{target}"))
                revision = before.revision if before else 0
                position = Position("shop", "orders", f"load:{target}", watermark=at, error=error, revision=revision)
                project.books.write([position])

    def files(self, number: int) -> Path:
        (entry,) = (entry for entry in self.objects.list(LAYOUT.data) if LAYOUT.data_number(entry.key) == number)
        return self.config.parent / "stage" / entry.key

    def findings(self) -> list[Finding]:
        with load(self.config) as project:
            return list(check_stage(project, project.pipeline("shop")))

    def only(self, level: Level) -> Finding:
        (finding,) = self.findings()
        assert finding.level is level, finding
        assert finding.area == "stage" and (finding.remedy or level is Level.OK)
        return finding


@pytest.fixture
def clinic(tmp_path: Path) -> Clinic:
    clinic = Clinic(tmp_path)
    clinic.loaded(3, 3)
    return clinic


def test_all_is_loaded_and_every_file_is_there(clinic: Clinic) -> None:
    assert "batch 3 is the last, all are loaded; 3 files with 6,000 rows" in clinic.only(Level.OK).text


def test_what_is_staged_and_not_loaded_is_counted_for_each_target(clinic: Clinic) -> None:
    clinic.loaded(3, 1, error="the warehouse is away\nand more")
    finding = clinic.only(Level.WARN)
    assert "2 batches with 5,000 rows, staged and not loaded into copy" in finding.text
    assert "The last try: the warehouse is away" in finding.text
    assert "strandline sync --load-only -p shop -t orders" in finding.remedy


def test_a_lost_file_stops_who_has_not_loaded_it_and_nobody_else(clinic: Clinic) -> None:
    clinic.files(2).unlink()
    assert "cannot be loaded again" in clinic.only(Level.WARN).text
    clinic.loaded(3, 1)
    (lost, _) = clinic.findings()
    assert (lost.level, lost.docs) == (Level.FAIL, "docs/doctor.md#files-of-the-stage")
    assert "batch 2, not loaded yet" in lost.text and "is missing" in lost.text
    assert "sync --full -p shop -t orders" in lost.remedy


def test_a_file_that_was_cut_short_is_found_by_its_length(clinic: Clinic) -> None:
    path = clinic.files(3)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])
    assert "bytes instead of" in clinic.only(Level.WARN).text


def test_files_of_dead_attempts_are_pointed_out(clinic: Clinic) -> None:
    clinic.objects.create(f"{LAYOUT.attempt(3, 'empty')}/_SUCCESS", b"")
    clinic.objects.create(f"{LAYOUT.attempt(2, 'dead')}/part-0.parquet", b"left behind")
    clinic.objects.create(f"{LAYOUT.attempt(4, 'alive')}/part-0.parquet", b"being written")
    finding = clinic.only(Level.WARN)
    assert "1 file (0.0 MB) that no batch names" in finding.text
    assert "stage clean -p shop -t orders" in finding.remedy


def test_a_manifest_that_is_missing_or_was_edited_is_a_failure(clinic: Clinic) -> None:
    manifest = clinic.config.parent / "stage" / LAYOUT.manifest(1, 2)
    manifest.chmod(0o600)
    manifest.write_text(manifest.read_text().replace("2000", "2001"))
    assert "its checksum is wrong" in clinic.only(Level.FAIL).text
    manifest.unlink()
    assert "is missing" in clinic.only(Level.FAIL).text


def test_a_stage_that_was_emptied_or_cleaned_before_a_target_had_loaded_it(clinic: Clinic) -> None:
    clinic.loaded(9, 3)
    assert "lake has loaded batch 9, and the stage ends at 3" in clinic.only(Level.FAIL).text
    clinic.loaded(3, 1)
    Ledger(clinic.objects, LAYOUT).raise_floor(4)
    for number in (1, 2, 3):
        clinic.files(number).unlink()
    finding = clinic.only(Level.FAIL)
    assert "batch 2 was cleaned away before copy had loaded it" in finding.text
