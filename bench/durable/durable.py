"""bench `durable`: a saved kernel beside an unsaved kernel, and the user's wait after a loss.

    durable.py --ours KERNELSPEC [--plain KERNELSPEC] [--large KERNELSPEC] [--cluster BASE]

Without a cluster, on this host (`--local`), with plain ipykernel by turns:

- `one_plus_one_p50|p99`: a cell, from request to reply; each cell is saved after the reply.
- `failover_process_p50|p95`: from SIGKILL of ipykernel to the reply of the next cell, which reads a variable; beside it the
  start of a plain ipykernel to its first reply. `failover_replica_*`: the same for the supervisor.
- `restore_1gb_s`, with `--large` (a kernel with numpy): from SIGKILL of ipykernel to the reply of the next cell, which
  reads an array of 1 GB. The peer is `cp` of a file of 1 GB, by turns. Neither is in the page cache.

With a cluster:

- `migrate_idle_p50|p95`: from the order (`hop migrate`) to its end; the kernel is idle.
- `blackout_p50|p95`: the longest wait of a cell among cells sent one after the other during such a move.
- `wake_p50|p95`: from a cell's request to a hibernating kernel to the reply; the seat is still there.
- `drain_s`: from the order to drain a node with `--kernels` kernels until all are elsewhere.
- `hibernated_N_*`, with `--asleep N` kernels whose servers are gone. `processes` are their user's; `cpu_percent` is of
  `hopd`, beside that with no kernel asleep. For each kernel: `hopd_bytes` of `hopd`'s resident memory, and `disk_kib`
  of the user's home.
- `failover_node_p50|p95`: from the loss of everything on the node to the reply of the next cell, which another node gives.

Prints a measured line per case (see hop-bench).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from figures import figure, percentile  # noqa: E402

#: All that was answered is on disk by then.
SAVED = 1.5


class Kernel:
    """A kernel with one client."""

    def __init__(self, name: str) -> None:
        self.km, self.kc = start_new_kernel(kernel_name=name, startup_timeout=120)

    def reply(self, code: str) -> dict[str, Any]:
        asked = self.kc.execute(code)
        while (reply := self.kc.get_shell_msg(timeout=120))["parent_header"].get("msg_id") != asked:
            pass
        content: dict[str, Any] = reply["content"]
        assert content["status"] == "ok", content
        return content

    def pid(self, which: str) -> int:
        content = {"k": f"__import__('os').get{which}()"}
        asked = self.kc.execute("", user_expressions=content)
        while (reply := self.kc.get_shell_msg(timeout=120))["parent_header"].get("msg_id") != asked:
            pass
        return int(reply["content"]["user_expressions"]["k"]["data"]["text/plain"])

    def close(self) -> None:
        self.kc.stop_channels()
        self.km.shutdown_kernel(now=True)


def timed(kernel: Kernel, code: str) -> float:
    begin = time.perf_counter()
    kernel.reply(code)
    return time.perf_counter() - begin


def say(case: str, unit: str, share: float, ours: list[float], peer: tuple[str, list[float]] | None = None) -> None:
    scale = 1e3 if unit == "ms" else 1.0
    value = (peer[0], scale * percentile(peer[1], share)) if peer else None
    figure("durable", case, unit, scale * percentile(ours, share), len(ours), peer=value)


def round_trips(ours: str, plain: str, n: int) -> None:
    kernels = Kernel(ours), Kernel(plain)
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(n):
        for kernel, times in zip(kernels, took, strict=True):
            times.append(timed(kernel, "1 + 1"))
            # A person's pace: the capture after the reply doesn't meet the next cell.
            time.sleep(0.02)
    spread("one_plus_one", took[0], "ms", 99, ("plain ipykernel", took[1]))
    for kernel in kernels:
        kernel.close()


def starts(plain: str, n: int) -> list[float]:
    took = []
    for _ in range(n):
        begin = time.perf_counter()
        kernel = Kernel(plain)
        kernel.reply("1 + 1")
        took.append(time.perf_counter() - begin)
        kernel.close()
    return took


def failovers(ours: str, plain: str, n: int) -> None:
    begun = starts(plain, n)
    for what, which in (("process", "pid"), ("replica", "ppid")):
        took: list[float] = []
        while len(took) < n:
            # Deaths within a minute are counted, so a kernel has two.
            kernel = Kernel(ours)
            kernel.reply("x = list(range(1000))")
            for _ in range(2):
                pid = kernel.pid(which)
                time.sleep(SAVED)
                begin = time.perf_counter()
                os.kill(pid, signal.SIGKILL)
                kernel.reply("assert len(x) == 1000")
                took.append(time.perf_counter() - begin)
            kernel.close()
        spread(f"failover_{what}", took, peer=("start of plain ipykernel", begun))


#: Bytes of the array that is restored.
LARGE = 1 << 30


def forget(folder: Path) -> None:
    """Take files out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.fdatasync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def bytes_in(folder: Path) -> int:
    """Room on the disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def restores(large: str, n: int) -> None:
    home = Path(os.environ["HOME"])
    store, beside = home / ".local/share/gresshopper/store", home / "copied"
    ours: list[float] = []
    copied: list[float] = []
    for _ in range(n):
        shutil.rmtree(store, ignore_errors=True)
        kernel = Kernel(large)
        kernel.reply(f"import numpy as np\nx = np.random.default_rng().integers(0, 256, {LARGE}, dtype=np.uint8)")
        while not store.is_dir() or bytes_in(store) < LARGE:
            time.sleep(0.2)
        time.sleep(SAVED)
        copied.append(copy(beside))
        pid = kernel.pid("pid")
        forget(store)
        begin = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        kernel.reply("assert x[::4096].any()")
        ours.append(time.perf_counter() - begin)
        kernel.close()
    say("restore_1gb_s", "s", 0.5, ours, ("cp", copied))


def copy(beside: Path) -> float:
    """Copies as many random bytes, in a folder of its own."""
    beside.mkdir()
    with (beside / "from").open("wb") as file:
        for _ in range(LARGE >> 24):
            file.write(os.urandom(1 << 24))
    forget(beside)
    begin = time.perf_counter()
    subprocess.run(["cp", beside / "from", beside / "to"], check=True)
    took = time.perf_counter() - begin
    shutil.rmtree(beside)
    return took


def on_a_cluster(base: str, n: int, kernels: int, asleep: int) -> None:
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    from harness import Cluster

    index = int(os.environ.get("HOP_E2E_INDEX", "19"))
    cluster = Cluster(base, index, os.environ.get("HOP_E2E_VARIANT", "auto"))
    try:
        cluster.up()
        if n:
            moved(cluster, n)
        if kernels:
            say("drain_s", "s", 0.5, [drain(cluster, kernels)])
        if asleep:
            hibernated(cluster, asleep)
    finally:
        cluster.down()


def moved(cluster: Any, n: int) -> None:
    from harness import notebook

    with notebook(cluster, "alice", env={"JPY_SESSION_NAME": "bench.ipynb"}) as book:
        book.execute("x = 41")
        spread("migrate_idle", [migration(cluster) for _ in range(n)])
        spread("blackout", [blackout(cluster, book) for _ in range(n)])
        spread("wake", [wake(cluster, book) for _ in range(n)])
    with notebook(cluster, "alice") as book:
        book.execute("x = 41")
        spread("failover_node", [node_failover(cluster, book) for _ in range(n)])


#: A seat without kernels ends within this time.
SEAT_ENDS = 90.0
#: Seconds for which `hopd`'s use of the processor is looked at.
LOOK = 30.0


def hibernated(cluster: Any, n: int) -> None:
    """`hopd`'s memory is that of the second half's kernels: it grows for whatever is done the first time."""
    from sleepers import asleep, put_to_sleep

    (hopd,) = cluster.pids(r"/opt/bin/hopd", "gresshopper")
    states = cluster.base / "home/alice/.local/share/gresshopper/states"
    before = cpu_percent(hopd)
    used, half = bytes_in(states), n // 2
    put_to_sleep(cluster, range(half))
    resident = resident_bytes(hopd)
    put_to_sleep(cluster, range(half, n))
    grown = resident_bytes(hopd) - resident
    # A seat that has no kernel any more ends by itself.
    time.sleep(SEAT_ENDS)
    case = f"hibernated_{n}"
    figure("durable", f"{case}_processes", "processes", len(cluster.pids(".", "alice")), n)
    figure("durable", f"{case}_cpu_percent", "percent of a core", cpu_percent(hopd), n, peer=("none asleep", before))
    figure("durable", f"{case}_hopd_bytes", "bytes", grown / (n - half), n - half)
    figure("durable", f"{case}_disk_kib", "KiB", (bytes_in(states) - used) / n / 1024, n)
    cluster.run("alice", "hop", "forget", *asleep(cluster), timeout=300)


def cpu_percent(pid: int) -> float:
    def seconds() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    begin = seconds()
    time.sleep(LOOK)
    return 100 * (seconds() - begin) / LOOK


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def spread(
    case: str, took: list[float], unit: str = "s", high: int = 95, peer: tuple[str, list[float]] | None = None
) -> None:
    """Says the median and a high percentile, each beside the same one of the peer."""
    for percent in (50, high):
        say(f"{case}_p{percent}", unit, percent / 100, took, peer)


def answered(book: Any, code: str = "assert x == 41") -> float:
    begin = time.perf_counter()
    got = book.execute(code, timeout=120)
    assert got["status"] == "ok", got
    return time.perf_counter() - begin


def rows(cluster: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.hop("kernels", user="alice")["rows"]
    return found


def is_saved(cluster: Any, name: str = "bench.ipynb") -> None:
    """Waits until hopd knows the kernel as movable."""
    from harness import until

    until("its state is saved", lambda: any(r["name"] == name and r["captured"] == "yes" for r in rows(cluster)))


def migration(cluster: Any) -> float:
    is_saved(cluster)
    begin = time.perf_counter()
    cluster.run("alice", "hop", "migrate", "bench.ipynb", timeout=120)
    return time.perf_counter() - begin


def blackout(cluster: Any, book: Any) -> float:
    is_saved(cluster)
    cluster.run("alice", "hop", "migrate", "bench.ipynb", "--no-wait")
    before, longest = node_of(book), 0.0
    node = before
    while node == before:
        begin = time.perf_counter()
        node = node_of(book)
        longest = max(longest, time.perf_counter() - begin)
    return longest


def node_of(book: Any) -> str:
    text: str = book.execute("import os; print(os.environ['SLURMD_NODENAME'])", timeout=120)["text"]
    return text.rsplit(maxsplit=1)[-1]


def wake(cluster: Any, book: Any) -> float:
    is_saved(cluster)
    cluster.run("alice", "hop", "hibernate", "bench.ipynb", timeout=120)
    time.sleep(SAVED)
    return answered(book)


def drain(cluster: Any, kernels: int) -> float:
    from harness import notebook

    with contextlib.ExitStack() as stack:
        names = [f"drain-{n}.ipynb" for n in range(kernels)]
        books = [stack.enter_context(notebook(cluster, "alice", env={"JPY_SESSION_NAME": name})) for name in names]
        for book in books:
            book.execute("x = 41")
        node = node_of(books[0])

        def there() -> list[str]:
            return [row["name"] for row in rows(cluster) if row["name"] in names and row["node"] == node]

        for name in names:
            is_saved(cluster, name)
        for name in set(names) - set(there()):
            cluster.run("alice", "hop", "migrate", name, "--to", node, timeout=120)
        time.sleep(SAVED)
        begin = time.perf_counter()
        cluster.run("root", "scontrol", "update", f"nodename={node}", "state=drain", "reason=bench")
        while there():
            time.sleep(0.1)
        took = time.perf_counter() - begin
        for book in books:
            answered(book)
        cluster.run("root", "scontrol", "update", f"nodename={node}", "state=resume")
    cluster.wait_for_pilots()
    return took


def node_failover(cluster: Any, book: Any) -> float:
    from harness import lost_node

    node = node_of(book)
    time.sleep(SAVED)
    with lost_node(cluster, node):
        return answered(book)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ours", required=True)
    parser.add_argument("--plain", default="python3")
    parser.add_argument("--large", help="a kernel with numpy")
    parser.add_argument("--restores", type=int, default=3)
    parser.add_argument("--cluster", metavar="BASE", help="also lose nodes of a dev cluster made there")
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--deaths", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--kernels", type=int, default=10, help="on the node that is drained")
    parser.add_argument("--asleep", type=int, default=300, help="kernels that hibernate together")
    args = parser.parse_args()
    if args.n:
        round_trips(args.ours, args.plain, args.n)
    if args.deaths:
        failovers(args.ours, args.plain, args.deaths)
    if args.large and args.restores:
        restores(args.large, args.restores)
    if args.cluster:
        on_a_cluster(args.cluster, args.nodes, args.kernels, args.asleep)
    return 0


if __name__ == "__main__":
    sys.exit(main())
