"""Files of this user alone, beside the jar cache: what one process of ours leaves there for another."""

from __future__ import annotations

import os
from pathlib import Path

from strandline.core.errors import SetupError
from strandline.spark.jars import cache_folder


def private_folder(name: str) -> Path:
    """Made if it is not there. SetupError if it cannot be, or if others could look into it, or made it."""
    place = cache_folder().parent / name
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"{place} cannot be made: {error.strerror}", remedy="Set XDG_CACHE_HOME to a folder that you can write to."
        ) from error
    check_private(place)
    return place


def check_private(path: Path, file: int | None = None) -> None:
    """`file`: as it was opened, whatever lies at the path by now."""
    found = path.lstat() if file is None else os.fstat(file)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SetupError(
            f"{path} is not yours alone",
            why="Who has what lies there can act in your name, and who put it there could make you do anything.",
            remedy=f"If you made it: chmod -R go= '{path}'. If not, remove it, or set XDG_CACHE_HOME elsewhere.",
        )
