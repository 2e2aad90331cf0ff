#!/usr/bin/env python3
"""Says which cells weren't immediate, by what came before them: `causes.py ROWS.csv`, the rows of one policy and seed.

The rows are those of `hop sim --csv`, or of the example `run` with `CSV=ROWS.csv`.
"""

import csv
import sys
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One row."""

    session: str
    place: int
    gpus: int
    submit: float
    wait: float
    end: float
    immediate: bool
    migrated: bool


def read(path: str) -> list[Cell]:
    """All cells with GPUs, by session, in order."""
    with open(path, newline="") as file:
        rows = [
            Cell(
                session=row["session"],
                place=int(row["cell"]),
                gpus=int(row["gpus"]),
                submit=float(row["submit_s"]),
                wait=float(row["wait_s"]),
                end=float(row["end_s"]),
                immediate=row["immediate"] == "1",
                migrated=row["migrated"] == "1",
            )
            for row in csv.DictReader(file)
        ]
    return sorted((row for row in rows if row.gpus > 0), key=lambda row: (row.session, row.place))


def cause(cell: Cell, before: Cell | None) -> str:
    """The first cause that holds, by the cell before."""
    if before is None:
        return "the session's first cell"
    if cell.gpus > before.gpus:
        return "more GPUs than the cell before"
    if cell.migrated:
        return "its kernel was moved for it"
    quiet = (cell.submit - before.end) / 60
    for minutes, name in ((5, "under 5 min"), (60, "5 to 60 min"), (240, "1 to 4 h"), (720, "4 to 12 h")):
        if quiet < minutes:
            return f"quiet for {name}"
    return "quiet for over 12 h"


def main() -> None:
    """Prints a table in Markdown."""
    cells = read(sys.argv[1])
    all_of, waited, seconds = Counter[str](), Counter[str](), Counter[str]()
    for before, cell in zip([None, *cells], cells, strict=False):
        own = before if before is not None and before.session == cell.session else None
        name = cause(cell, own)
        all_of[name] += 1
        if not cell.immediate:
            waited[name] += 1
            seconds[name] += round(cell.wait)
    print("| cells that come | all | not immediate | points of all cells | of these cells | mean wait, s |")
    print("|---|---|---|---|---|---|")
    for name, count in waited.most_common():
        points, share = 100 * count / len(cells), 100 * count / all_of[name]
        mean = seconds[name] / count
        print(f"| {name} | {all_of[name]:,} | {count:,} | {points:.2f} | {share:.1f} % | {mean:.0f} |")
    total = sum(waited.values())
    print(f"| all | {len(cells):,} | {total:,} | {100 * total / len(cells):.2f} | | |")


if __name__ == "__main__":
    main()
