"""Where the programs of this installation lie."""

from __future__ import annotations

import os
import shutil

#: Gresshopper's folder unless ``GRESSHOPPER_PREFIX`` names another.
PREFIX = "/opt/gresshopper"


class NotInstalled(RuntimeError):
    """A program of Gresshopper's is nowhere on this host. The text is for the user."""


def find_program(name: str, named: str = "") -> str:
    """The path of one of our programs: as ``named`` by the site, in the installation, or on PATH."""
    prefix = os.environ.get("GRESSHOPPER_PREFIX", PREFIX)
    candidates = [named, os.path.join(prefix, "bin", name)]
    found = next((c for c in candidates if c and os.access(c, os.X_OK)), None) or shutil.which(name)
    if found is None:
        raise NotInstalled(
            f"{name} is not installed on this host: looked in {prefix}/bin and on PATH. "
            "Ask your administrator, or set GRESSHOPPER_PREFIX."
        )
    return found
