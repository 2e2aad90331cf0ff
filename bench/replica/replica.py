"""bench `replica`: a kernel with three replicas on a dev cluster, beside plain ipykernel on this host, by turns.

    replica.py [--n N] [--losses N] [--silences N] [--starts N] [--moves N] [--crowd N]
        [--asleep N]

The group's log is on this host's disk, synced by a majority before a reply (three logs on one disk).

- `one_plus_one_r3_p50|p99`: a cell, from request to reply; the peer is plain ipykernel.
- `first_cell_r3_over_r1`: from the launch to the first reply, medians, with three replicas over one.
- `grown_s`: from that reply until three replicas count.
- `election_p50|p95`: the longest wait of a cell among cells sent one after the other during another replica's election.
- `failover_warm_p50|p95`: from the loss of the executor's node to the next cell's reply, by another replica.
- `failover_silence_p50|p95`: the same where the node falls silent without closing its connections: all of it stands still.
- `midcell_error_p50|p95`: from that loss, in the middle of a cell, to the cell's error.
- `midcell_silence_p50|p95`: the same where the node falls silent.
- `seat_mib`, `spare_mib`: memory (RSS) of the largest seat then, and of the largest spare with its interpreter.
- `crowd_one_plus_one_p50|p99`: a cell of one of many kernels with three replicas each and a cell a second, while other
  kernels are hibernated.
- `crowd_cores`, `crowd_mib`: time and memory (PSS) of all the user's processes then, ipykernels and clients as well.
- `asleep_kib`: memory of `hopd` (RSS) for each hibernated kernel.

`run` beside this script also measures what needs no cluster: commits, and quiet groups. Prints a measured line per case (see
hop-bench).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests/e2e")]
from figures import figure, percentile  # noqa: E402
from groups import AWAKE  # noqa: E402
from harness import Cluster, Notebook, lost_node, notebook, until  # noqa: E402
from sleepers import put_to_sleep  # noqa: E402

BASE = "/srv/gresshopper-bench-replica"
#: A lost seat is replaced after this time, and a new seat has to start.
GROWS_WITHIN = 120
#: How a node is lost.
Without = Callable[[Cluster, str], AbstractContextManager[None]]


def say(case: str, unit: str, ours: float, n: int, peer: tuple[str, float] | None = None) -> None:
    figure("replica", case, unit, ours, n, peer=peer)


def spread(
    case: str,
    took: list[float],
    unit: str = "s",
    percents: tuple[int, ...] = (50, 95),
    peer: tuple[str, list[float]] | None = None,
) -> None:
    """Says the percentiles, each beside the same one of the peer."""
    for percent in percents:
        share = percent / 100
        beside = (peer[0], percentile(peer[1], share)) if peer else None
        say(f"{case}_p{percent}", unit, percentile(took, share), len(took), beside)


def row(cluster: Cluster) -> dict[str, Any]:
    rows = cluster.hop("kernels", "-t", AWAKE, user="alice")["rows"]
    found: dict[str, Any] = next(r for r in rows if r["name"] == "bench.ipynb")
    return found


@contextlib.contextmanager
def replicated(cluster: Cluster, replicas: int = 3, hot: bool = False) -> Iterator[Notebook]:
    env = {"GRESSHOPPER_REPLICAS": str(replicas), "JPY_SESSION_NAME": "bench.ipynb"}
    env["GRESSHOPPER_HOT_STANDBY"] = str(int(hot))
    with notebook(cluster, "alice", env=env) as book:
        answered(book, "x = 41")
        yield book


def grow(cluster: Cluster, without: str = "") -> float:
    """Waits for three replicas, none of them on the lost node: a replica there counts until replaced."""

    def whole() -> bool:
        now = row(cluster)
        return int(now["replicas"]) == 3 and without not in now["nodes"].split(",")

    begin = time.perf_counter()
    until("the kernel has three replicas", whole, GROWS_WITHIN)
    return time.perf_counter() - begin


def answered(book: Notebook, code: str = "assert x == 41") -> float:
    begin = time.perf_counter()
    got = book.execute(code, timeout=120)
    assert got["status"] == "ok", got
    return time.perf_counter() - begin


def node_of(book: Notebook) -> str:
    text: str = book.execute("import os; print(os.environ['SLURMD_NODENAME'])", timeout=120)["text"]
    return text.rsplit(maxsplit=1)[-1]


def round_trips(cluster: Cluster, book: Notebook, n: int) -> None:
    with notebook(cluster, "alice", kernel="python3") as plain:
        took: tuple[list[float], list[float]] = ([], [])
        for _ in range(n):
            for kernel, times in zip((book, plain), took, strict=True):
                times.append(1e3 * answered(kernel, "1 + 1"))
                # A person's pace: the capture after the reply doesn't meet the next cell.
                time.sleep(0.02)
    spread("one_plus_one_r3", took[0], "ms", (50, 99), ("plain ipykernel", took[1]))


def first_cells(cluster: Cluster, n: int) -> None:
    took: dict[int, list[float]] = {1: [], 3: []}
    for _ in range(n):
        for replicas, times in took.items():
            begin = time.perf_counter()
            with replicated(cluster, replicas):
                times.append(time.perf_counter() - begin)
    ours, peer = (statistics.median(took[replicas]) for replicas in (3, 1))
    say("first_cell_r3_over_r1", "s", ours, n, ("one replica", peer))


def settle(cluster: Cluster) -> None:
    """Waits for the standbys' spare interpreters, as a kernel that is used at a person's pace has them."""
    until("two spares wait", lambda: len(cluster.pids(r"^\S+/hop-replica spare", "alice")) >= 2, 60)
    time.sleep(2)


def election(cluster: Cluster, book: Notebook) -> float:
    settle(cluster)
    node = node_of(book)
    to = next(n for n in row(cluster)["nodes"].split(",") if n != node)
    until("its state is saved", lambda: row(cluster)["captured"] == "yes")
    cluster.run("alice", "hop", "migrate", "bench.ipynb", "--to", to, "--no-wait")
    longest = 0.0
    while node != to:
        begin = time.perf_counter()
        node = node_of(book)
        longest = max(longest, time.perf_counter() - begin)
    return longest


def failover(cluster: Cluster, book: Notebook, without: Without = lost_node) -> float:
    settle(cluster)
    node = node_of(book)
    # The keepers hear that a kernel is at rest once it has been for half a second.
    time.sleep(1)
    with without(cluster, node):
        took = answered(book)
        grow(cluster, without=node)
    return took


def hot_failover(cluster: Cluster, book: Notebook) -> float:
    until("a standby is hot", lambda: row(cluster)["hot"], GROWS_WITHIN)
    time.sleep(2)
    return failover(cluster, book)


@contextlib.contextmanager
def silent_node(cluster: Cluster, node: str) -> Iterator[None]:
    cluster.devcluster("pause-node", node)
    try:
        yield
    finally:
        cluster.devcluster("resume-node", node)


def midcell(cluster: Cluster, book: Notebook, without: Without = lost_node) -> float:
    node = node_of(book)
    cell = book.submit("import time; time.sleep(120)")["cell"]
    time.sleep(1)
    with without(cluster, node):
        begin = time.perf_counter()
        got = book.wait(cell, 60)
        took = time.perf_counter() - begin
        assert got["reply"]["ename"] == "CellLost", got
        answered(book)
        grow(cluster, without=node)
    return took


def rss_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def seat_mib(cluster: Cluster) -> float:
    return max(rss_kib(pid) for pid in cluster.pids(r"^\S+/hop-replica seat", "alice")) / 1024


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def spare_mib(cluster: Cluster) -> float:
    spares = cluster.pids(r"^\S+/hop-replica spare", "alice")
    return max(sum(map(rss_kib, [pid, *children(pid)])) for pid in spares) / 1024


def of_user(uid: int) -> list[Path]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == uid:
                found.append(process)
    return found


def memory_mib(uid: int) -> float:
    total = 0
    for process in of_user(uid):
        with contextlib.suppress(OSError):
            total += int((process / "smaps_rollup").read_text().partition("\nPss:")[2].split()[0])
    return total / 1024


def cpu_s(uid: int) -> float:
    total = 0
    for process in of_user(uid):
        with contextlib.suppress(OSError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def hopd_kib(cluster: Cluster) -> int:
    return rss_kib(cluster.pids("opt/bin/hopd", "gresshopper")[0])


def measure_sleepers(cluster: Cluster, n: int) -> None:
    """`hopd` grows for whatever is done the first time, so its memory is that of the second half's kernels."""
    half = n // 2
    put_to_sleep(cluster, range(half), GRESSHOPPER_REPLICAS="3")
    before = hopd_kib(cluster)
    put_to_sleep(cluster, range(half, n), GRESSHOPPER_REPLICAS="3")
    say("asleep_kib", "KiB", (hopd_kib(cluster) - before) / (n - half), n - half)


def crowd(cluster: Cluster, n: int, seconds: float = 60) -> None:
    uid = pwd.getpwnam("alice").pw_uid
    with contextlib.ExitStack() as stack:
        books = [stack.enter_context(replicated(cluster)) for _ in range(n)]

        def whole() -> bool:
            rows = cluster.hop("kernels", "-t", AWAKE, user="alice")["rows"]
            return len(rows) == n and all(int(r["replicas"]) == 3 for r in rows)

        until("all kernels have three replicas", whole, GROWS_WITHIN)

        def person(book: Notebook, number: int) -> list[float]:
            took = []
            until_ = time.perf_counter() + seconds
            time.sleep(number / n)
            while time.perf_counter() < until_:
                took.append(1e3 * answered(book, "1 + 1"))
                time.sleep(1)
            return took

        begin, used = time.perf_counter(), cpu_s(uid)
        with ThreadPoolExecutor(n) as pool:
            took = [t for times in pool.map(person, books, range(n)) for t in times]
        cores = (cpu_s(uid) - used) / (time.perf_counter() - begin)
        spread("crowd_one_plus_one", took, "ms", (50, 99))
        say("crowd_cores", "cores", cores, n)
        say("crowd_mib", "MiB", memory_mib(uid), n)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--losses", type=int, default=5)
    parser.add_argument("--silences", type=int, default=3)
    parser.add_argument("--crowd", type=int, default=30)
    parser.add_argument("--asleep", type=int, default=100)
    args = parser.parse_args()
    index = int(os.environ.get("HOP_E2E_INDEX", "19"))
    cluster = Cluster(BASE, index, os.environ.get("HOP_E2E_VARIANT", "auto"))
    try:
        cluster.up()
        first_cells(cluster, args.starts)
        with replicated(cluster) as book:
            say("grown_s", "s", grow(cluster), 1)
            round_trips(cluster, book, args.n)
            spread("election", [election(cluster, book) for _ in range(args.moves)])
            warm = [failover(cluster, book) for _ in range(args.losses)]
            spread("failover_warm", warm)
            spread("failover_silence", [failover(cluster, book, silent_node) for _ in range(args.silences)])
            spread("midcell_error", [midcell(cluster, book) for _ in range(args.losses)])
            silences = [midcell(cluster, book, silent_node) for _ in range(args.silences)]
            spread("midcell_silence", silences)
            say("seat_mib", "MiB", seat_mib(cluster), 1)
            settle(cluster)
            say("spare_mib", "MiB", spare_mib(cluster), 1)
        with replicated(cluster, hot=True) as book:
            hot = [hot_failover(cluster, book) for _ in range(args.losses)]
            spread("failover_hot", hot, peer=("warm standby", warm))
        measure_sleepers(cluster, args.asleep)
        crowd(cluster, args.crowd)
    finally:
        cluster.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
