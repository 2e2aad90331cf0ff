#!/usr/bin/env python3
"""Check that each browser test runs in a lane: tags share the tests between the lanes (tests/browser/support/lanes.ts).

Playwright lists the tests of each lane, once as tags share them and once with `HOP_BROWSER_ALL=1`. Each test that no
lane runs is a line on standard error with its cure; the exit status is then 1. Without a fault, each lane's number of
tests is printed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BROWSER = Path(__file__).resolve().parents[1] / "browser"
LANES = ("hub", "hub5")


def of_suite(suite: dict[str, Any], above: tuple[str, ...]) -> Iterator[str]:
    """Titles of the suite's tests that would run, each below the titles of its groups."""
    titles = (*above, suite["title"])
    for spec in suite.get("specs", []):
        if any(test["expectedStatus"] != "skipped" for test in spec["tests"]):
            yield " > ".join((*titles, spec["title"]))
    for inner in suite.get("suites", []):
        yield from of_suite(inner, titles)


def listed(lane: str, every: bool) -> set[str]:
    """The tests that Playwright runs in the lane."""
    done = subprocess.run(
        ["node_modules/.bin/playwright", "test", "--list", "--reporter", "json"],
        cwd=BROWSER,
        env={**os.environ, "HOP_BROWSER_ENV": lane, "HOP_BROWSER_ALL": "1" if every else "0"},
        stdout=subprocess.PIPE,
        check=True,
    )
    report = json.loads(done.stdout)
    if report["errors"]:
        sys.exit(f"lanes: {report['errors'][0].get('message', 'the tests can not be listed')}")
    return {title for suite in report["suites"] for title in of_suite(suite, ())}


def main() -> int:
    shared = {lane: listed(lane, every=False) for lane in LANES}
    every = set[str]().union(*(listed(lane, every=True) for lane in LANES))
    lost = every - set[str]().union(*shared.values())
    for title in sorted(lost):
        print(f"lanes: {title}: its tags leave it out of each lane: take one away", file=sys.stderr)
    both = len(set.intersection(*shared.values()))
    if not lost:
        counts = ", ".join(f"{lane} {len(tests)}" for lane, tests in shared.items())
        print(f"lanes: {len(every)} tests: {counts}, {both} of them in both")
    return 1 if lost or not every else 0


if __name__ == "__main__":
    sys.exit(main())
