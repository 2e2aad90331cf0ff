"""cloudpickle, where the user's environment has none: the copy that the installation brings.

The user's own cloudpickle goes first, since the user's libraries were tested with it. The copy is loaded under its
own name, to which streams refer, and nothing is added to the path of modules.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

#: Where an installation puts it (docs/operations.md).
FOLDER = Path(__file__).resolve().parent.parent / "shipped"


class MissingError(ImportError):
    """cloudpickle is missing; says how to install it."""


def provide(name: str = "cloudpickle", folder: Path = FOLDER) -> None:
    """Have a package to import.

    # Errors
    `MissingError` where neither the environment nor the installation has it.
    """
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        return
    inside = folder / name
    spec = importlib.util.spec_from_file_location(
        name, inside / "__init__.py", submodule_search_locations=[str(inside)]
    )
    if spec is None or spec.loader is None or not (inside / "__init__.py").is_file():
        raise MissingError(
            f"the kernel's Python environment has no {name}: install it there (pip install {name}), and restart the kernel"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
