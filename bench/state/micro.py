"""Cost of a capture beside large and many variables, and the store's speed for large arrays.

Prints one JSON object a line for `hop-bench record`. `HOP_BENCH_GB` says how much lies in the namespace (10).
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "kernel" / "python")]


def emit(case: str, ours: float, unit: str, n: int, peer: str | None = None, value: float | None = None) -> None:
    print(
        json.dumps(
            {"bench": "state", "case": case, "ours": ours, "peer": peer, "peer_value": value, "unit": unit, "n": n}
        ),
        flush=True,
    )


def agent_in(directory: Path) -> tuple[Any, Any]:
    from gresshopper.state.agent import Agent
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    quiet = Config()
    quiet.HistoryManager.enabled = False
    shell = InteractiveShell(config=quiet)
    agent = Agent(shell, directory / "store")
    agent.watch(directory / "log")
    agent.watcher.pace.patience = float("inf")  # what is measured is the capture, not the waiting for think time
    return shell, agent


def cell(shell: Any, agent: Any, source: str) -> float:
    """Seconds that the hooks took around a cell."""
    before = agent.watcher.pace.spent
    result = shell.run_cell(source, store_history=True)
    result.raise_error()
    if agent.watcher.failures.texts:
        raise RuntimeError(agent.watcher.failures.texts[-1])
    return agent.watcher.pace.spent - before


def idle(directory: Path, gigabytes: int) -> None:
    """Three cells beside large arrays: the first changes no array, the second names an array, the third writes 8 bytes
    of an array."""
    shell, agent = agent_in(directory)
    # Each array repeats a single value and takes little room in the store: the store isn't measured here.
    cell(
        shell,
        agent,
        f"import numpy as np\nbig = [np.full(1 << 27, float(i)) for i in range({gigabytes})]\na0 = big[0]\nk = 0",
    )
    agent.watcher.audit()
    agent.watcher.audit()
    counter = [cell(shell, agent, "k = k + 1") for _ in range(30)]
    named = [cell(shell, agent, "k = float(a0[5])") for _ in range(10)]
    written = [cell(shell, agent, f"a0[{i * 1000}] = -1.0") for i in range(10)]
    emit("idle_capture_ms_10gb", 1e3 * statistics.median(counter), "ms", len(counter))
    emit("idle_capture_ms_10gb_p90", 1e3 * sorted(counter)[26], "ms", len(counter))
    emit("named_capture_ms_10gb", 1e3 * statistics.median(named), "ms", len(named))
    emit("eight_bytes_capture_ms_10gb", 1e3 * statistics.median(written), "ms", len(written))
    started = time.perf_counter()
    agent.watcher.audit()
    emit("audit_ms_10gb", 1e3 * (time.perf_counter() - started), "ms", 1)
    agent.unwatch()


def scaling(directory: Path) -> None:
    """The same cell beside 10 to 10,000 variables; drawn into `scaling.svg`."""
    found: list[tuple[int, float, float]] = []
    for n in (10, 100, 1_000, 10_000):
        shell, agent = agent_in(directory / str(n))
        cell(shell, agent, f"for i in range({n}):\n    globals()[f'v{{i}}'] = [i, str(i)]\ndel i")
        one = [cell(shell, agent, "v3.append(1)") for _ in range(40)]
        audits = []
        for _ in range(3):
            started = time.perf_counter()
            agent.watcher.audit()
            audits.append(time.perf_counter() - started)
        found.append((n, 1e3 * statistics.median(one), 1e3 * statistics.median(audits)))
        emit(f"capture_ms_{n}_variables", found[-1][1], "ms", len(one))
        emit(f"audit_ms_{n}_variables", found[-1][2], "ms", len(audits))
        agent.unwatch()
    draw(found)


def draw(found: list[tuple[int, float, float]]) -> None:
    """Cost of a capture and of an audit, by the number of variables."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "hop", "font.size": 9})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    counts = [n for n, _, _ in found]
    axes.loglog(counts, [c for _, c, _ in found], "o-", label="after a cell that changed one of them")
    axes.loglog(counts, [a for _, _, a in found], "s-", label="audit of all, in think time")
    axes.axhline(5, color="grey", linestyle=":", label="5 ms")
    axes.set(xlabel="variables (each a list)", ylabel="ms")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(HERE / "scaling.svg", metadata={"Date": None})


def forget(path: Path) -> None:
    """Take files out of the page cache: on another host, or later, the cache has none of these files."""
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.fdatasync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def _by_cp(memory: Path, target: Path) -> tuple[float, float]:
    started = time.perf_counter()
    subprocess.run(["cp", str(memory), str(target)], check=True)
    subprocess.run(["sync", "-f", str(target)], check=True)
    out = time.perf_counter() - started
    forget(target)
    back = memory.with_suffix(".back")
    started = time.perf_counter()
    subprocess.run(["cp", str(target), str(back)], check=True)
    spent = time.perf_counter() - started
    back.unlink()
    target.unlink()
    return out, spent


def _by_agent(array: Any, directory: Path) -> tuple[float, float]:
    import numpy as np

    shell, agent = agent_in(directory)
    agent.unwatch()
    shell.user_ns["array"] = array
    started = time.perf_counter()
    agent.save(directory / "state", durable=True)
    out = time.perf_counter() - started
    agent.saver.packed()
    forget(directory)
    fresh, other = agent_in(directory)
    other.unwatch()
    started = time.perf_counter()
    other.restore(directory / "state")
    spent = time.perf_counter() - started
    if not np.array_equal(fresh.user_ns["array"], array):
        raise RuntimeError("the array came back different")
    shutil.rmtree(directory)
    return out, spent


def through(directory: Path, megabytes: int, rounds: int) -> None:
    """An array of random bytes to the store and back, beside `cp` and `sync` of the same bytes, in turns."""
    import numpy as np

    memory = Path("/dev/shm") / f"hop-bench-{os.getpid()}"
    ours_out, ours_in, cp_out, cp_in = [], [], [], []
    rng = np.random.default_rng(1)
    try:
        for i in range(rounds):
            array = rng.integers(0, 256, megabytes << 20, dtype=np.uint8)
            memory.write_bytes(array.data)
            # In turns: the second system finds the pages freed by the first.
            for whose in ("cp", "ours") if i % 2 else ("ours", "cp"):
                if whose == "cp":
                    out, back = _by_cp(memory, directory / f"cp{i}")
                    cp_out.append(out)
                    cp_in.append(back)
                else:
                    out, back = _by_agent(array, directory / f"ours{i}")
                    ours_out.append(out)
                    ours_in.append(back)
    finally:
        memory.unlink(missing_ok=True)
    emit("array_checkpoint_s", statistics.median(ours_out), "s", rounds, "cp and sync", statistics.median(cp_out))
    emit("array_restore_s", statistics.median(ours_in), "s", rounds, "cp", statistics.median(cp_in))


def main() -> None:
    base = Path(tempfile.mkdtemp(prefix="hop-bench-", dir=os.environ.get("HOP_BENCH_DIR")))
    os.environ["XDG_CONFIG_HOME"] = str(base / "config")
    try:
        scaling(base / "scaling")
        through(base, 512, 5)
        idle(base / "idle", int(os.environ.get("HOP_BENCH_GB", "10")))
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
