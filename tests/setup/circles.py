#!/usr/bin/env python3
"""Check that no files import each other in a circle: modules of one crate, and modules of one Python package.

A module and its own submodules count as one here: they are one module in several files. Re-exports (`pub use`) are
followed to the file that has the item. Each circle is a line on standard error; the exit status is then 1.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = ("kernel/python/gresshopper", "jupyterhub-spawner/gresshopper_jupyter")

Module = tuple[str, ...]
Graph = dict[Module, set[Module]]

TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?'(?:\\.|[^'\\])'""",
    re.DOTALL,
)
TESTS = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*(;|\{)")
USE = re.compile(r"(pub(?:\([^)]*\))?\s+)?\buse\s+([^;]+);")
PATH = re.compile(r"\b(crate|super|self|[a-z_]\w*)((?:\s*::\s*[A-Za-z_]\w*)+)")
DEFINES = r"\b(?:struct|enum|union|fn|trait|const|type|static|mod|macro_rules!)\s+{}\b"


class Crate:
    """The modules of a crate's library, or of its program where it has none; without their tests."""

    def __init__(self, root: str, files: list[str]) -> None:
        named = {self._module(file.removeprefix(f"{root}/src/")): file for file in sorted(files, reverse=True)}
        texts = {module: _code(ROOT / file) for module, file in named.items() if module[:1] != ("bin",)}
        tests = {(*module, found[1]) for module, text in texts.items() for found in TESTS.finditer(text)}
        of_tests = {m for m in texts if any(m[: len(test)] == test for test in tests)}
        self.texts = {module: _without_tests(text) for module, text in texts.items() if module not in of_tests}
        self.exports: dict[Module, Module] = {}
        self.globs: dict[Module, list[Module]] = {}
        for module, text in self.texts.items():
            for _, path in _uses(text):
                absolute = self._absolute(module, path)
                if absolute is None:
                    continue
                if absolute[-1] == "*":
                    self.globs.setdefault(module, []).append(absolute[:-1])
                else:
                    self.exports[(*module, absolute[-1])] = absolute

    @staticmethod
    def _module(name: str) -> Module:
        """`lib.rs` and `main.rs` are the root; of two the library, which sorts behind in reverse order."""
        parts = name.removesuffix(".rs").split("/")
        if parts in (["lib"], ["main"]):
            return ()
        return tuple(parts[:-1] if parts[-1] == "mod" else parts)

    def _absolute(self, module: Module, path: Module) -> Module | None:
        """The path from the crate's root, or None for another crate's."""
        if path[0] == "crate":
            return path[1:]
        if path[0] == "self":
            return module + path[1:]
        if path[0] == "super":
            while path and path[0] == "super":
                module, path = module[:-1], path[1:]
            return module + path
        return module + path if (*module, path[0]) in self.texts else None

    def _home(self, path: Module, depth: int = 8) -> Module:
        """The module that has what the path names."""
        size = len(path)
        while size and path[:size] not in self.texts:
            size -= 1
        base = path[:size]
        if size == len(path) or not depth:
            return base
        name = path[: size + 1]
        exported = self.exports.get(name, name)
        if exported != name:
            return self._home(exported + path[size + 1 :], depth - 1)
        for source in self.globs.get(base, []):
            if re.search(DEFINES.format(re.escape(name[-1])), self.texts.get(source, "")):
                return source
        return base

    def graph(self) -> Graph:
        graph: Graph = {module: set() for module in self.texts}
        for module, text in self.texts.items():
            paths = [path for is_public, path in _uses(text) if not is_public]
            for found in PATH.finditer(USE.sub("", text)):
                paths.append((found[1], *re.findall(r"\w+", found[2])))
            for path in paths:
                absolute = self._absolute(module, path)
                if absolute is not None and not _one(module, home := self._home(absolute)):
                    graph[module].add(home)
        return graph


def _one(left: Module, right: Module) -> bool:
    """Whether one is a submodule of the other."""
    size = min(len(left), len(right))
    return left[:size] == right[:size]


def _code(path: Path) -> str:
    return TOKENS.sub(lambda found: " " if found[0].startswith("/") else '""', path.read_text())


def _without_tests(text: str) -> str:
    while found := TESTS.search(text):
        end = found.end()
        depth = int(found[2] == "{")
        while depth and end < len(text):
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        text = text[: found.start()] + text[end:]
    return text


def _uses(text: str) -> Iterator[tuple[bool, Module]]:
    for found in USE.finditer(text):
        for path in _branches(found[2]):
            yield found[1] is not None, path


def _branches(tree: str) -> Iterator[Module]:
    """The paths of `a::{b, c::d as e}`."""
    if "{" not in tree:
        path = re.sub(r"\s+as\s+\w+", "", tree)
        yield tuple(part.strip() for part in path.split("::"))
        return
    stem, inner = tree.split("{", 1)
    depth, branch = 0, ""
    for letter in inner[: inner.rindex("}")] + ",":
        depth += (letter == "{") - (letter == "}")
        if letter != "," or depth:
            branch += letter
            continue
        if branch.strip():
            for rest in _branches(branch):
                yield (*(part.strip() for part in stem.split("::") if part.strip()), *rest)
        branch = ""


def crates() -> Iterator[tuple[str, Graph]]:
    found: dict[str, list[str]] = {}
    for file in _tracked("*.rs"):
        root, _, rest = file.partition("/src/")
        if rest:
            found.setdefault(root, []).append(file)
    for root, files in sorted(found.items()):
        yield root, Crate(root, files).graph()


def packages() -> Iterator[tuple[str, Graph]]:
    for package in PACKAGES:
        parent = package.rpartition("/")[0]
        named = {}
        for file in _tracked(f"{package}/*.py"):
            parts = file.removeprefix(parent + "/").removesuffix(".py").split("/")
            named[tuple(parts[:-1] if parts[-1] == "__init__" else parts)] = file
        yield package, {module: set(_imports(module, file, named)) for module, file in named.items()}


def _imports(module: Module, file: str, named: dict[Module, str]) -> Iterator[Module]:
    package = module if file.endswith("/__init__.py") else module[:-1]
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            targets = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = package[: len(package) - node.level + 1] if node.level else ()
            stem += tuple((node.module or "").split(".")) if node.module else ()
            targets = [(*stem, alias.name) for alias in node.names]
        else:
            continue
        for target in targets:
            while target and target not in named:
                target = target[:-1]  # noqa: PLW2901
            if target and not _one(module, target):
                yield target


def _tracked(pattern: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", pattern],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def circles(graph: Graph) -> Iterator[tuple[str, ...]]:
    """The sets of modules of which each reaches each other one."""
    reached = {module: _reached(graph, module) for module in graph}
    told: set[Module] = set()
    for module in sorted(graph):
        circle = sorted(other for other in reached[module] if module in reached[other])
        if module not in told and circle:
            told.update(circle)
            yield tuple("::".join(member) for member in circle)


def _reached(graph: Graph, start: Module) -> set[Module]:
    reached: set[Module] = set()
    ahead = [start]
    while ahead:
        fresh = graph.get(ahead.pop(), set()) - reached
        reached |= fresh
        ahead.extend(fresh)
    return reached


def main() -> int:
    found = {(root, circle) for root, graph in (*crates(), *packages()) for circle in circles(graph)}
    for root, circle in sorted(found):
        print(f"circles: {root}: {', '.join(circle)} import each other", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
