"""The package's docstring says where to look: each module is named there once it exists, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import gresshopper.state


def test_the_docstring_names_each_module() -> None:
    folder = Path(gresshopper.state.__file__).parent
    modules = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    named = set(re.findall(r"`(\w+)`", gresshopper.state.__doc__ or ""))
    assert named - {"adapters"} == modules
