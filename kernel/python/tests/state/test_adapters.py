"""Libraries are named in their adapters alone."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import gresshopper.state
from gresshopper.state import adapters, process, restore

ENGINE = Path(gresshopper.state.__file__).parent
#: IPython's shell is what the engine works in.
SHELL = {"IPython", "ipykernel"}


def libraries() -> set[str]:
    """Roots of the modules that adapters name."""
    named = {name for adapter in adapters.known() for name in adapter.modules}
    for part in ("threads", "distributions", "of_kernel", "lends", "works_on"):
        named |= set(adapters.entries(part, adapters.known()))
    named |= {prefix for part in ("bound", "wraps") for prefix, _ in adapters.entries(part, adapters.known())}
    standard = getattr(sys, "stdlib_module_names", {"argparse", "concurrent", "decimal"})
    return {name.partition(".")[0] for name in named} - set(standard) - SHELL


def named_in(file: Path) -> Iterator[tuple[int, str]]:
    """Modules that a file imports, and texts that may name one."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield node.lineno, node.value


def test_the_engine_names_no_library() -> None:
    known = libraries()
    assert {"numpy", "pandas", "torch", "matplotlib", "ipywidgets", "zmq", "numba", "sklearn"} <= known
    found = [
        f"{file.name}:{line}: {name}"
        for file in ENGINE.glob("*.py")
        for line, name in named_in(file)
        if name.partition(".")[0] in known
    ]
    assert not found


def test_a_library_that_is_not_loaded_has_its_package() -> None:
    assert "sklearn" not in sys.modules
    assert [adapters.distribution(name) for name in ("sklearn", "numpy")] == ["scikit-learn", "numpy"]
    assert restore.differences({"python": "", "packages": {"sklearn": "0.1"}}) != []


def test_cells_run_again_with_settings_of_the_process_and_of_libraries() -> None:
    sections = process._sections(adapters.known())
    assert {name for name, section in sections.items() if section.again} == {
        *("paths", "environ", "python", "logging", "interpreter", "logs", "csv", "calendar", "codecs", "decimal"),
        *(
            "xml.etree.ElementTree",
            "random",
            "numpy",
            "torch",
            "pandas._config.config",
            "matplotlib",
            "sklearn._config",
        ),
    }
    assert {name for name, section in sections.items() if section.draws} == {"random", "numpy", "torch"}
