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

from groups import KEEPER
from harness import Cluster, Failed, Notebook, until

#: The group of the people's own processes: clients and fronts.
PEOPLE = "people"

#: Where the second version of cgroups may be.
ROOTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))

Way = tuple[str, str]


def root() -> Path | None:
    return next((path for path in ROOTS if (path / "cgroup.controllers").exists()), None)


def can_cut(variant: str) -> str:
    """Why links can't be cut here. Empty: they can be."""
    for program, package in (("nft", "nftables"), ("ss", "iproute2")):
        if shutil.which(program) is None:
            return f"{package} isn't installed"
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
        another call. The sockets that a process has already can't be cut, nor what a listener among them accepts."""

        def all_are_in() -> bool:
            strays = self.strays()
            for node, pid in strays:
                self.move(self.folder(node), [pid])
            return not strays

        try:
            until("each node's processes are in its group", all_are_in, 10)
        except Failed as failed:
            strays = [(node, self.cluster.argv(pid)) for node, pid in self.strays()]
            raise Failed(f"{failed}: {strays}") from None

    def strays(self) -> list[tuple[str, int]]:
        """The nodes' processes outside their node's group."""
        found = []
        for pid in self.cluster.pids(""):
            for node in self.sides[:-1]:
                if self.is_on(pid, node) and not self.is_in(pid, node):
                    found.append((node, pid))
        return found

    def is_on(self, pid: int, node: str) -> bool:
        with contextlib.suppress(OSError):
            daemon = re.search(rf"slurmd\b.* -N {node}(?!\S)", " ".join(self.cluster.argv(pid)))
            return bool(daemon) or self.cluster.environ(pid).get("SLURMD_NODENAME") == node
        return False

    def is_in(self, pid: int, side: str) -> bool:
        """Whether the process is in the side's group, or has ended."""
        try:
            groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            return True
        return f"0::/{self.folder(side).name}" in groups

    def seats_can_be_cut(self, user: str) -> None:
        """Each listener of the user's seats is in its node's group. A seat that was started before its node was taken in
        has another."""
        of_pid = {int(pid): line for line in self.sockets("-l") for pid in re.findall(r"pid=(\d+)", line)}
        for pid in self.cluster.pids(KEEPER, user):
            node, line = self.cluster.environ(pid).get("SLURMD_NODENAME", ""), of_pid.get(pid, "")
            if not line.endswith(f"cgroup:/{self.folder(node).name}"):
                raise Failed(f"the links of a seat on {node} can't be cut: {line or 'it has no listener'}")

    def sockets(self, *which: str) -> list[str]:
        """Sockets of the cluster's replicas and fronts, with their groups."""
        said = subprocess.run(["ss", "-Htnp", "--cgroup", *which], capture_output=True, text=True, check=True)
        ours = {f"pid={pid}," for pid in self.cluster.pids(r"hop-replica|hop-front")}
        return [line.strip() for line in said.stdout.splitlines() if ours & set(re.findall(r"pid=\d+,", line))]

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

    def rules(self) -> str:
        listed = ["nft", "list", "table", *self.table.split()]
        return subprocess.run(listed, capture_output=True, text=True, check=True).stdout

    def dropped(self) -> int:
        """Packets that were dropped since the last cut."""
        return sum(int(n) for n in re.findall(r"counter packets (\d+)", self.rules()))

    def drops(self, cut: str, seconds: float) -> None:
        """Waits until a packet was dropped. A failure shows the rules and the groups of all sockets."""
        try:
            until(f"a packet is dropped: {cut}", self.dropped, seconds)
        except Failed as failed:
            raise Failed("\n".join([str(failed), self.rules(), *self.sockets("-a")])) from None

    @contextlib.contextmanager
    def without(self, ways: Iterable[Way]) -> Iterator[None]:
        self.cut(ways)
        try:
            yield
        finally:
            self.heal()
