#!/usr/bin/env python3
"""Check that no two public structs of different crates have the same fields: a noun has one type.

Fields are compared by name and type, whatever their order and attributes. Structs of one field are left out: a newtype
or a message of one value is no copy of another. Each pair is a line on standard error; the exit status is then 1.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

STRUCT = re.compile(r"\bpub\s+struct\s+(\w+)[^{;(]*\{")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|#\[(?:[^\[\]]|\[[^\]]*\])*\]", re.DOTALL)
FIELD = re.compile(r"^(?:pub(?:\([^)]*\))?\s+)?(\w+)\s*:\s*(.+)$", re.DOTALL)


class Struct(NamedTuple):
    crate: str
    place: str
    name: str
    fields: frozenset[tuple[str, str]]


def structs() -> Iterator[Struct]:
    listed = subprocess.run(["git", "ls-files", "-z", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True)
    for file in filter(None, listed.stdout.split("\0")):
        crate, _, inside = file.partition("/src/")
        if not inside or not (ROOT / file).is_file():
            continue
        text = COMMENT.sub("", (ROOT / file).read_text())
        for found in STRUCT.finditer(text):
            fields = frozenset(_fields(text[found.end() : _end(text, found.end())]))
            if len(fields) > 1:
                yield Struct(crate, file, found[1], fields)


def _end(text: str, at: int) -> int:
    """Where the brace closes that was opened before `at`."""
    depth = 1
    while depth and at < len(text):
        depth += (text[at] == "{") - (text[at] == "}")
        at += 1
    return at - 1


def _fields(body: str) -> Iterator[tuple[str, str]]:
    """Names and types; of a type's path only the last name counts."""
    depth, field = 0, ""
    for letter in body + ",":
        depth += (letter in "<([") - (letter in ">)]")
        if letter != "," or depth > 0:
            field += letter
            continue
        if found := FIELD.match(field.strip()):
            yield found[1], re.sub(r"\s+|\b\w+::", "", found[2])
        field = ""


def main() -> int:
    found = [
        (one, other)
        for one, other in combinations(structs(), 2)
        if one.crate != other.crate and one.fields == other.fields
    ]
    for one, other in found:
        print(
            f"twins: {one.name} ({one.place}) and {other.name} ({other.place}) have the same fields: "
            "move one of them to a lower floor, and drop the other",
            file=sys.stderr,
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
