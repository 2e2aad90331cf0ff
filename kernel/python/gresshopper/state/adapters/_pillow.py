"""Pillow: pictures that are still bound to their file."""

from __future__ import annotations

from typing import Any

from ..writing import Writing
from . import Adapter, Rule, rules_of


def _of_file(dump: Writing, picture: Any) -> Any:
    # The file of a picture with a single frame is closed after the reading.
    if getattr(picture, "_close_exclusive_fp_after_loading", True) is False:
        dump.notes.append("a picture of several frames has its present frame, and not its file")
    return NotImplemented


def _bases() -> list[tuple[Any, Rule]]:
    return rules_of("PIL.ImageFile", {"ImageFile": _of_file})


ADAPTER = Adapter(modules=("PIL.ImageFile",), bases=_bases, distributions={"PIL": "pillow"})
