"""Cuts links between the nodes of a dev cluster, and between a front and the nodes.

All of a dev cluster's nodes are on one host and share its addresses. So packets are told apart by the cgroups of the two
sockets: each node's processes live in a cgroup (version 2) of their own, the people's in another, and rules of nftables
drop what goes from one to another. A packet that is cut is dropped without an answer, as by a network.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness import Cluster, Notebook, until

#: The group of the people's own processes: clients and fronts.
PEOPLE = "people"

#: Where the second version of cgroups may be.
ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))

Way = tuple[str, str]


def root() -> Path | None:
    return next((path for path in ROOTS if (path / "cgroup.controllers").exists()), None)


def can_cut(variant: str) -> str:
    """Why links can't be cut here. Empty: they can be."""
    if shutil.which("nft") is None:
        return "nftables isn't installed"
    if root() is None:
        return "no cgroups of the second version"
    return "" if variant == "v1" else "Slurm has the cgroups of the second version"


def both(some: str, others: Iterable[str]) -> list[Way]:
    """Every way between one side and the others."""
    return [way for other in others for way in ((some, other), (other, some))]


class Links:
    """The links of a cluster. Use as a context: at its end, all of them work and nothing of this is left."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sides = [*cluster.env["HOP_DEV_NODES"].split(","), PEOPLE]
        self.table = f"inet hop_links_{cluster.index}"
        found = root()
        assert found is not None
        self.root = found

    def __enter__(self) -> Links:
        for side in self.sides:
            self.folder(side).mkdir(exist_ok=True)
        marks = "\n".join(f"{self.is_of(side)} meta mark set {self.mark(side):#x}" for side in self.sides)
        self.nft(f"""
            table {self.table}
            delete table {self.table}
            table {self.table} {{
                chain sent {{
                    type filter hook output priority 0; policy accept
                    oifname != "lo" accept
                    {marks}
                }}
                chain arriving {{
                    type filter hook input priority 0; policy accept
                }}
            }}""")
        self.adopt()
        return self

    def __exit__(self, *_: object) -> None:
        self.nft(f"delete table {self.table}")
        for side in self.sides:
            folder = self.folder(side)
            self.move(self.root, folder.joinpath("cgroup.procs").read_text().split())
            with contextlib.suppress(OSError):
                folder.rmdir()

    def folder(self, side: str) -> Path:
        return self.root / f"hop-links-{self.cluster.index}-{side}"

    def is_of(self, side: str) -> str:
        path = self.folder(side).relative_to("/sys/fs/cgroup")
        return f'socket cgroupv2 level 1 "{path}"'

    def mark(self, side: str) -> int:
        return 0x47000000 | self.cluster.index << 8 | self.sides.index(side) + 1

    def nft(self, script: str) -> None:
        subprocess.run(["nft", "-f", "-"], input=script + "\n", text=True, check=True)

    def move(self, folder: Path, pids: Iterable[int | str]) -> None:
        for pid in pids:
            # The process may have ended.
            with contextlib.suppress(OSError):
                folder.joinpath("cgroup.procs").write_text(str(pid))

    def adopt(self) -> None:
        """Takes in the nodes' processes. What they start is of their node; a slurmd that was started since is taken in by
        another call. The sockets that a process has already can't be cut."""
        there = self.cluster.pids("")
        for node in self.sides[:-1]:
            self.move(self.folder(node), [pid for pid in there if self.is_on(pid, node)])

    def is_on(self, pid: int, node: str) -> bool:
        with contextlib.suppress(OSError):
            daemon = re.search(rf"slurmd\b.* -N {node}(?!\S)", " ".join(self.cluster.argv(pid)))
            return bool(daemon) or self.cluster.environ(pid).get("SLURMD_NODENAME") == node
        return False

    def take_in(self, book: Notebook) -> None:
        """A notebook that isn't open yet: its kernel's front will be on the people's side."""
        folder = self.folder(PEOPLE)
        self.move(folder, [book.process.pid])
        inside = folder.joinpath("cgroup.procs")
        until("the notebook's process is taken in", lambda: str(book.process.pid) in inside.read_text().split())

    def cut(self, ways: Iterable[Way]) -> None:
        """Cuts exactly these ways, each from the first side to the second one."""
        for way in ways:
            assert way[0] != way[1]
        rules = (
            f"add rule {self.table} arriving meta mark {self.mark(a):#x} {self.is_of(b)} counter drop"
            for a, b in ways
        )
        self.nft("\n".join(itertools.chain([f"flush chain {self.table} arriving"], rules)))

    def heal(self) -> None:
        self.cut([])

    def dropped(self) -> int:
        """Packets that were dropped since the last cut."""
        said = subprocess.run(
            ["nft", "list", "table", *self.table.split()], capture_output=True, text=True, check=True
        )
        return sum(int(n) for n in re.findall(r"counter packets (\d+)", said.stdout))

    @contextlib.contextmanager
    def without(self, ways: Iterable[Way]) -> Iterator[None]:
        self.cut(ways)
        try:
            yield
        finally:
            self.heal()
