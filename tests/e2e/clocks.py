"""Sets the wall clocks of a cluster's nodes apart, for our own programs alone: `clocks.c` is preloaded into them.

All of a dev cluster's nodes have the machine's clock, and a time namespace has only clocks of its own that nobody sets. A
person's environment reaches fronts and kernels. A seat's is a clean one, so a script in its program's place sets it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness import REPO, Cluster

#: The clock of what runs on no node: clients, fronts and `hopd`.
ELSEWHERE = "elsewhere"

HOUR = 3600


def can_step() -> str:
    """Why no clock can be set here. Empty: they can be."""
    return "" if shutil.which("cc") else "no C compiler"


class Clocks:
    """The clocks of the processes that were started with `env`."""

    def __init__(self, cluster: Cluster) -> None:
        self.folder = cluster.base / "opt/clocks"
        self.folder.mkdir(exist_ok=True)
        self.program = cluster.base / "opt/bin/hop-replica"
        library = self.folder / "clocks.so"
        source = REPO / "tests/e2e/clocks.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source], check=True)
        self.nodes = cluster.env["HOP_DEV_NODES"].split(",")
        self.env = {"LD_PRELOAD": str(library), "HOP_TEST_CLOCKS": str(self.folder)}
        for place in (*self.nodes, ELSEWHERE):
            self.file(place).write_bytes(bytes(8))

    def file(self, place: str) -> Path:
        return self.folder / place

    def step(self, seconds: int, *places: str) -> None:
        """From now on these clocks are ahead of the machine's by so much."""
        for place in places or (*self.nodes, ELSEWHERE):
            with self.file(place).open("r+b") as file:
                file.write(struct.pack("=q", seconds))

    @contextlib.contextmanager
    def in_new_seats(self) -> Iterator[None]:
        """Seats that are started meanwhile have these clocks."""
        # As far below the installation as the program itself: it finds its neighbours by its own path.
        real = self.folder / self.program.name
        real.unlink(missing_ok=True)
        os.link(self.program, real)
        exports = "".join(f"export {name}='{value}'\n" for name, value in self.env.items())
        script = self.program.with_suffix(".clocks")
        script.write_text(f"#!/bin/sh\n{exports}exec '{real}' \"$@\"\n")
        script.chmod(0o755)
        script.rename(self.program)
        try:
            yield
        finally:
            # Of two names of one file, renaming removes neither.
            self.program.unlink()
            os.link(real, self.program)
