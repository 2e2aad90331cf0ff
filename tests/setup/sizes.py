#!/usr/bin/env python3
"""Check that functions and files stay small: functions of Rust and Python, files of the pure cores, the replica's shell.

    sizes.py           check; each thing that is too long is a line on standard error, and the exit status is then 1
    sizes.py --list    print the longest functions

A function counts from its `fn` or `def` to its end, comments and blank lines included. Tests, benches and examples are
left out. A limit shows a good division and is no way to one: a cut that only fits the limit makes the code worse.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

FUNCTION_MOST = 80
FILE_MOST = 800
# Modules that decide, and do nothing else: each a folder and the file beside it.
CORES = (
    "scheduler/core/src",
    "scheduler/agent/src/state",
    "kernel/front/src/core",
    "kernel/front/src/life",
    "kernel/front/src/termination",
    "kernel/gpu/src/machine",
    "kernel/log/src",
    "kernel/replica/src/core",
)
SHELLS = {"kernel/replica/src/run.rs": 500}

LISTED = 30

OF_TESTS = re.compile(r"(^|/)(tests?|benches|examples)(/|\.rs$)|_test\.|(^|/)tests?_|conftest")
# Texts and comments of Rust, in which a brace means nothing. A lifetime has no second quote, and stays.
TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|(?<!\w)[bc]?r(\#*)".*?"\1|[bc]?"(?:\\.|[^"\\])*"|b?'(?:\\(?:u\{\w+\}|x\w\w|.)|[^'\\\n])'""",
    re.DOTALL,
)
TEST_ITEM = re.compile(r"#\[(?:cfg\((?:all\()?test\b|(?:\w+::)?test\b|rstest\b)")
FUNCTION = re.compile(r"\bfn\s+(\w+)")
OPENING, CLOSING = "([{", ")]}"


class Function(NamedTuple):
    lines: int
    place: str
    name: str


def functions() -> Iterator[Function]:
    for file in tracked("*.rs", "*.py"):
        if OF_TESTS.search(file):
            continue
        text = (ROOT / file).read_text()
        found = of_rust(text) if file.endswith(".rs") else of_python(text)
        for name, first, last in found:
            yield Function(last - first + 1, f"{file}:{first}", name)


def of_rust(text: str) -> Iterator[tuple[str, int, int]]:
    """Each function with its first and its last line."""
    code = without_tests(TOKENS.sub(lambda token: re.sub(r"[^\n]", " ", token[0]), text))
    for found in FUNCTION.finditer(code):
        end = item_end(code, found.end())
        if code[end - 1] == "}":
            yield found[1], line_of(code, found.start()), line_of(code, end - 1)


def without_tests(code: str) -> str:
    """The code, with the items for tests blanked."""
    while found := TEST_ITEM.search(code):
        end = item_end(code, code.index("]", found.end()) + 1)
        code = code[: found.start()] + re.sub(r"[^\n]", " ", code[found.start() : end]) + code[end:]
    return code


def item_end(code: str, at: int) -> int:
    """Where the item ends: behind its semicolon, or behind its body."""
    depth = 0
    while at < len(code):
        letter = code[at]
        depth += (letter in OPENING) - (letter in CLOSING)
        at += 1
        if depth == 0 and letter in ";}":
            return at
    return at


def line_of(code: str, at: int) -> int:
    return code.count("\n", 0, at) + 1


def of_python(text: str) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno or node.lineno


def long_files() -> Iterator[str]:
    limits = {file: FILE_MOST for core in CORES for file in tracked(f"{core}.rs", f"{core}/*.rs")} | SHELLS
    for file, most in sorted(limits.items()):
        if OF_TESTS.search(file):
            continue
        lines = (ROOT / file).read_text().count("\n")
        if lines > most:
            yield f"{file} has {lines} lines, {most} at most: part it by purpose"


def tracked(*patterns: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def main() -> int:
    found = sorted(functions(), reverse=True)
    if sys.argv[1:] == ["--list"]:
        for function in found[:LISTED]:
            print(*function)
        return 0
    long = (function for function in found if function.lines > FUNCTION_MOST)
    faults = [f"{place}: {name} has {lines} lines, {FUNCTION_MOST} at most" for lines, place, name in long]
    faults += long_files()
    for fault in faults:
        print(f"sizes: {fault}", file=sys.stderr)
    return 1 if faults or not found else 0


if __name__ == "__main__":
    sys.exit(main())
