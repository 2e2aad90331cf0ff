"""scikit-learn: its configuration."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from . import Adapter, Section


def sklearn() -> dict[str, Any]:
    return dict(sys.modules["sklearn"].get_config())


def set_sklearn(state: dict[str, Any]) -> None:
    library: Any = importlib.import_module("sklearn")
    known = library.get_config()
    library.set_config(**{k: v for k, v in state.items() if k in known and known[k] != v})


ADAPTER = Adapter(
    modules=("sklearn",),
    sections={"sklearn._config": Section(sklearn, set_sklearn, again=True)},
    distributions={"sklearn": "scikit-learn"},
)
