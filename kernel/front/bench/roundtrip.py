"""Ours beside plain ipykernel, in a single run, by turns: time for a cell and its outputs.

    roundtrip.py --ours KERNELSPEC [--plain KERNELSPEC] [--n 300] [--lines 100000] [--mb 100]

Prints one JSON object a line: bench, case, ours, peer, peer_value, ratio, unit, n.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "bench"))
from figures import percentile


class Kernel:
    """A kernel with a client that reads iopub without delay."""

    def __init__(self, name: str) -> None:
        self.km, self.kc = start_new_kernel(kernel_name=name, startup_timeout=120)

    def cell(self, code: str) -> float:
        """Seconds from the request to the reply and the last output."""
        begin = time.perf_counter()
        asked = self.kc.execute(code)
        self._until_idle(asked)
        self._until_reply(asked)
        return time.perf_counter() - begin

    def reply(self, code: str) -> float:
        """Seconds from the request to its reply."""
        begin = time.perf_counter()
        asked = self.kc.execute(code)
        self._until_reply(asked)
        took = time.perf_counter() - begin
        self._until_idle(asked)
        return took

    def _until_reply(self, asked: str) -> None:
        # What start-up asked may still be answered.
        while self.kc.get_shell_msg(timeout=300)["parent_header"].get("msg_id") != asked:
            pass

    def _until_idle(self, asked: str) -> None:
        while True:
            said = self.kc.get_iopub_msg(timeout=300)
            if said["parent_header"].get("msg_id") == asked and said["content"].get("execution_state") == "idle":
                return

    def close(self) -> None:
        self.kc.stop_channels()
        self.km.shutdown_kernel()


def say(name: tuple[str, str], values: tuple[float, float], unit: str, n: int) -> None:
    (bench, case), (ours, peer) = name, values
    row: dict[str, Any] = {
        "bench": bench,
        "case": case,
        "ours": round(ours, 4),
        "peer": "plain ipykernel",
        "peer_value": round(peer, 4),
        "ratio": round(ours / peer, 4),
        "unit": unit,
        "n": n,
    }
    print(json.dumps(row), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ours", required=True)
    parser.add_argument("--plain", default="python3")
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    kernels = [Kernel(args.ours), Kernel(args.plain)]
    try:
        for kernel in kernels:
            for _ in range(20):
                kernel.reply("1+1")
        times: list[list[float]] = [[], []]
        for _ in range(args.n):
            for kernel, into in zip(kernels, times):
                into.append(kernel.reply("1+1") * 1000)
        medians = [statistics.median(t) for t in times]
        say(("roundtrip", "one_plus_one_p50"), (medians[0], medians[1]), "ms", args.n)
        p99 = (percentile(times[0], 0.99), percentile(times[1], 0.99))
        say(("roundtrip", "one_plus_one_p99"), p99, "ms", args.n)
        lines = f"for i in range({args.lines}): print(i, flush=True)"
        show = (
            f"from IPython.display import display\ndisplay({{'text/plain': 'x' * {args.mb * 1_000_000}}}, raw=True)"
        )
        many = f"lines_{args.lines // 1000}k"
        for case, code, rounds in ((many, lines, 1), (f"display_{args.mb}mb", show, args.rounds)):
            took: list[list[float]] = [[], []]
            for _ in range(rounds):
                for kernel, into in zip(kernels, took):
                    into.append(kernel.cell(code))
            say(("stream", case), (statistics.median(took[0]), statistics.median(took[1])), "s", rounds)
    finally:
        for kernel in kernels:
            kernel.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
