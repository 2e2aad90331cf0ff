"""Pillow: pictures that are still bound to their file."""

from __future__ import annotations

import sys
from typing import Any

from ..writing import Writing
from . import Adapter, Rule


def _of_file(dump: Writing, picture: Any) -> Any:
    # The file of a picture with a single frame is closed after the reading.
    if getattr(picture, "_close_exclusive_fp_after_loading", True) is False:
        dump.notes.append("a picture of several frames has its present frame, and not its file")
    return NotImplemented


def _bases() -> list[tuple[Any, Rule]]:
    file = sys.modules.get("PIL.ImageFile")
    return [] if file is None else [(file.ImageFile, _of_file)]


ADAPTER = Adapter(modules=("PIL.ImageFile",), bases=_bases, distributions={"PIL": "pillow"})
