#!/usr/bin/env python3
"""Check docs/promises.md: each test, file, bench case and command named as a proof exists, and statuses agree with rows.
The tables of docs/ecosystem.md are checked as well.

    promises.py           check; each fault is a line on standard error, and the exit status is then 1
    promises.py --list    print status and promise of each row, separated by a tab

A name in backticks is looked up by its form: a path, a target of the Makefile, a title in a browser spec, a test's or a
module's name (`beginning...` for a long one), else any text of the tree. A promise that holds has no part that is *open*
or **missed**, and names a proof; one that is kept partly names what is *open*, a missed one has its figure in bold.
Whether a test proves its sentence stays with the reader. A feature of the ecosystem that we have names its proof, one that
we don't have says that this is on purpose, and the sums above a table are those of its rows.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/promises.md"
ECOSYSTEM = "docs/ecosystem.md"
FEATURE = ["feature", "ours", "where it is tested, or what is missing"]
STANDINGS = ("have", "part", "no")
SUMS = re.compile(r"(\d+) features: (\d+) have, (\d+) in part, (\d+) not\.")
HEAD = ["promise", "status", "proof", "newest figure"]
STATUSES = ("holds", "partly", "missed", "open")
# A test is named in a source; pages and recorded results only repeat its name.
SOURCES = (".", ":!docs", ":!bench/*.md", ":!bench/results.jsonl")
A_FILE = re.compile(r"[\w./-]*\w\.(?:py|rs|ts|md|json|html)")
A_FOLDER = re.compile(r"[\w.-]+(/[\w.-]+)+")
# Shorter names are words of the language as well (`log`, `names`): any place in the tree will do.
UNDERSCORES_OF_A_TEST = 2
# A bench computes its percentiles by one name.
PERCENTILE = re.compile(r"_p\d+$")


class Promise(NamedTuple):
    """A row of the page, on `line`."""

    line: int
    sentence: str
    status: str
    proof: str
    figure: str


class Feature(NamedTuple):
    """A row of a table of the ecosystem, on `line`; empty cells but for `proof`: the line with the sums of a table."""

    line: int
    name: str
    ours: str
    proof: str


class Named(NamedTuple):
    """`name` stands in the proof of the promise on `line`; titles of a browser test have their `spec`."""

    line: int
    name: str
    spec: str | None


def promises(page: str) -> Iterator[Promise]:
    """The rows of the tables whose head is that of promises."""
    inside = False
    for line, text in enumerate(page.splitlines(), 1):
        cells = [cell.strip() for cell in text.strip().strip("|").split(" | ")]
        if not text.startswith("|"):
            inside = False
        elif cells == HEAD:
            inside = True
        elif inside and not text.startswith("|---"):
            if len(cells) != len(HEAD):
                sys.exit(f"promises: {PAGE}:{line}: a row has {len(cells)} cells and not {len(HEAD)}")
            yield Promise(line, *cells)


def features(page: str) -> Iterator[Feature]:
    """The rows of the ecosystem's tables, and the lines with their sums. A group's heading has no standing."""
    for line, text in enumerate(page.splitlines(), 1):
        cells = [cell.strip() for cell in text.strip().removeprefix("|").removesuffix("|").split(" | ")]
        if SUMS.match(text):
            yield Feature(line, "", "", text)
        elif text.startswith("|") and len(cells) == len(FEATURE) and cells != FEATURE and cells[1].strip("|- "):
            yield Feature(line, cells[0], cells[1].strip("*"), cells[2])


def wrong_features(rows: list[Feature]) -> Iterator[tuple[int, str]]:
    """Line and fault of each row that disagrees with itself, and of sums that aren't those of the rows below."""
    for at, row in enumerate(rows):
        if not row.name:
            table = list(takewhile(lambda below: below.name, rows[at + 1 :]))
            counts = [len(table), *(sum(below.ours == standing for below in table) for standing in STANDINGS)]
            if list(map(int, SUMS.findall(row.proof)[0])) != counts:
                yield row.line, f"the rows below are {', '.join(map(str, counts))}"
        elif row.ours not in STANDINGS:
            yield row.line, f"it is one of {', '.join(STANDINGS)}"
        elif row.ours == "have" and "`" not in row.proof:
            yield row.line, "what we have names its proof"
        elif row.ours == "no" and "on purpose" not in row.proof:
            yield row.line, "what we don't have, we don't have on purpose, or it is a task"


def named(promise: Promise | Feature) -> Iterator[Named]:
    """What the proof names in backticks."""
    for part in promise.proof.split(";"):
        spec = None
        for name in re.findall(r"`([^`]+)`", part):
            if name.endswith(".spec"):
                spec = name
                yield Named(promise.line, f"{name}.ts", None)
            else:
                yield Named(promise.line, name, spec)


def disagrees(promise: Promise) -> str | None:
    """What in a row is against its status, or None."""
    rest = promise.proof + promise.figure
    is_open, is_missed = "*open*" in rest, re.search(r"\*\*[^*]*missed", rest) is not None
    holds = promise.status == "holds"
    faults = {
        f"its status is one of {', '.join(STATUSES)}": promise.status not in STATUSES,
        "it doesn't hold: a part of it is open": holds and is_open,
        "it doesn't hold: a part of it is missed": holds and is_missed,
        "it names no proof": holds and promise.proof != "the same" and not any(named(promise)),
        "its row doesn't say what is *open*": promise.status in ("partly", "open") and not is_open,
        "its row has no figure in bold": promise.status == "missed" and "**" not in rest,
    }
    return next((reason for reason, found in faults.items() if found), None)


def git(*args: str) -> str:
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False).stdout


@cache
def paths() -> tuple[str, ...]:
    """Tracked files, each between slashes, so that a path's end or middle is found by whole components."""
    return tuple(f"/{path}/" for path in git("ls-files").splitlines())


@cache
def stems() -> frozenset[str]:
    """Names of files without their ending, and of folders: benches, crates and modules among them."""
    return frozenset(part.split(".")[0] for path in paths() for part in path.strip("/").split("/"))


@cache
def definitions() -> str:
    """Names of functions, modules and crates, one a line."""
    pattern = r"(?:\b(?:fn|def|mod|class)|^name =) \"?([A-Za-z_][\w-]*)"
    lines = git("grep", "-hP", pattern, "--", "*.rs", "*.py", "*Cargo.toml")
    return "\n" + "\n".join(re.findall(pattern, lines, re.MULTILINE)) + "\n"


def somewhere(text: str, *where: str) -> bool:
    return bool(git("grep", "-lF", "-e", text, "--", *where))


def of_a_test(name: str) -> bool:
    return name.endswith("...") or name.startswith("test_") or name.count("_") >= UNDERSCORES_OF_A_TEST


def defined(name: str) -> bool:
    """Whether a function, a module, a file or a bench case is called so."""
    if name.endswith("..."):
        return "\n" + name.removesuffix("...") in definitions()
    return f"\n{name}\n" in definitions() or name in stems() or somewhere(name, *SOURCES)


def exists(what: Named) -> bool:
    name = what.name
    if name.startswith("make "):
        return bool(re.search(rf"^{re.escape(name[5:])}:", (ROOT / "Makefile").read_text(), re.MULTILINE))
    if A_FILE.fullmatch(name) or A_FOLDER.fullmatch(name):
        return any(f"/{name}/" in path for path in paths())
    if "::" in name:
        return all(f"\n{part}\n" in definitions() or part in stems() for part in name.split("::"))
    if what.spec and "_" not in name:
        return somewhere(name, f"tests/browser/*/{what.spec}.ts")
    if PERCENTILE.search(name):
        cases = (name, PERCENTILE.sub("", name))
        return any(somewhere(f'"{case}', "bench/*.py", "bench/*.rs", "bench/*/run") for case in cases)
    return defined(name) if of_a_test(name) else name in stems() or somewhere(name, *SOURCES)


def main() -> int:
    rows = list(promises((ROOT / PAGE).read_text()))
    if sys.argv[1:] == ["--list"]:
        for row in rows:
            print(f"{row.status}\t{row.sentence}")
        return 0
    ours = list(features((ROOT / ECOSYSTEM).read_text()))
    proofs: list[tuple[str, Promise | Feature]] = [(PAGE, row) for row in rows]
    proofs += [(ECOSYSTEM, row) for row in ours if row.ours == "have"]
    gone = [(page, what) for page, row in proofs for what in named(row) if not exists(what)]
    for page, what in gone:
        where = f" in {what.spec}.ts" if what.spec else ""
        print(
            f"promises: {page}:{what.line}: nothing is called `{what.name}`{where}: name what proves this",
            file=sys.stderr,
        )
    against = [(row, reason) for row in rows if (reason := disagrees(row))]
    for row, reason in against:
        print(f"promises: {PAGE}:{row.line}: {reason}", file=sys.stderr)
    wrong = list(wrong_features(ours))
    for line, reason in wrong:
        print(f"promises: {ECOSYSTEM}:{line}: {reason}", file=sys.stderr)
    return 1 if gone or against or wrong or not rows or not ours else 0


if __name__ == "__main__":
    sys.exit(main())
