"""Every mutant of `make mutants` still fits the product: a mistake that cannot be planted is not looked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "mutants"))

from mutants import MUTANTS, PACKAGE, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_and_its_tests_exist(mutant: Mutant) -> None:
    text = (PACKAGE / mutant.file).read_text()
    assert mutant.applied(text) != text
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file()
        wanted = name.split("::")[-1]
        sources = [ROOT / path, *PACKAGE.glob("testing/*.py")]
        assert not wanted or any(f"{wanted}(" in source.read_text() for source in sources)


def test_no_two_mutants_are_the_same() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
