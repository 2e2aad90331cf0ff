"""bench `durable`: a saved kernel beside an unsaved one, and how long its user waits after a loss.

    durable.py --ours KERNELSPEC [--plain KERNELSPEC] [--cluster BASE]

Without a cluster, on this host (`--local`), with plain ipykernel by turns:

- `one_plus_one_p50|p99`: a cell, from its request to its reply, where each cell is saved after its reply.
- `failover_process_p50|p95`: from SIGKILL of ipykernel to the reply of the next cell, which reads a variable; beside it the
  start of a plain ipykernel to its first reply. `failover_replica_*`: the same for the supervisor.

With a cluster: `failover_node_p50|p95`: from the loss of everything on the node to the reply of the next cell, which another
node gives. Prints a measured line per case (see hop-bench).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parents[2]
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


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def say(case: str, unit: str, share: float, ours: list[float], peer: tuple[str, list[float]] | None = None) -> None:
    scale = 1e3 if unit == "ms" else 1.0
    print(
        json.dumps(
            {
                "bench": "durable",
                "case": case,
                "ours": round(scale * percentile(ours, share), 4),
                "peer": peer[0] if peer else None,
                "peer_value": round(scale * percentile(peer[1], share), 4) if peer else None,
                "unit": unit,
                "n": len(ours),
            }
        ),
        flush=True,
    )


def round_trips(ours: str, plain: str, n: int) -> None:
    kernels = Kernel(ours), Kernel(plain)
    took: tuple[list[float], list[float]] = ([], [])
    for _ in range(n):
        for kernel, times in zip(kernels, took, strict=True):
            times.append(timed(kernel, "1 + 1"))
            # A person's pace: the capture after the reply doesn't meet the next cell.
            time.sleep(0.02)
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        say(f"one_plus_one_{name}", "ms", share, took[0], ("plain ipykernel", took[1]))
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
        for share, name in ((0.5, "p50"), (0.95, "p95")):
            say(f"failover_{what}_{name}", "s", share, took, ("start of plain ipykernel", begun))


def node_failovers(base: str, n: int) -> None:
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    from harness import Cluster, lost_node, notebook

    cluster = Cluster(base, 19, os.environ.get("HOP_E2E_VARIANT", "auto"))
    took = []
    try:
        cluster.up()
        with notebook(cluster, "alice") as book:
            book.execute("x = 41")
            for _ in range(n):
                node = book.execute("import os; print(os.environ['SLURMD_NODENAME'])")["text"].strip().split()[-1]
                time.sleep(SAVED)
                begin = time.perf_counter()
                with lost_node(cluster, node):
                    got = book.execute("assert x == 41", timeout=120)
                    took.append(time.perf_counter() - begin)
                    assert got["status"] == "ok", got
    finally:
        cluster.down()
    for share, name in ((0.5, "p50"), (0.95, "p95")):
        say(f"failover_node_{name}", "s", share, took)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ours", required=True)
    parser.add_argument("--plain", default="python3")
    parser.add_argument("--cluster", metavar="BASE", help="also lose nodes of a dev cluster made there")
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--deaths", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=10)
    args = parser.parse_args()
    round_trips(args.ours, args.plain, args.n)
    failovers(args.ours, args.plain, args.deaths)
    if args.cluster:
        node_failovers(args.cluster, args.nodes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
