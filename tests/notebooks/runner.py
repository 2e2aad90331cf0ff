"""Runs a notebook undisturbed, and again with its kernel saved, killed and restored after every cell.

Each process is forked from one that has only imported libraries, so that a restore needs no second for imports; the
shell is made in the child. A cell's output is what it printed, its result, its error and its figures, with addresses
blanked.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).parent
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}|ipykernel_\d+/\d+|IPY_MODEL_\w+")


def notebooks() -> list[str]:
    return sorted(p.stem for p in (HERE / "books").glob("*.ipynb"))


def cells_of(name: str) -> list[str]:
    book = json.loads((HERE / "books" / f"{name}.ipynb").read_text())
    return ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == "code"]


def preload() -> None:
    """The imports of a data-science notebook, once, before anything forks."""
    warnings.simplefilter("ignore")
    import matplotlib

    matplotlib.use("agg")
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    for name in (
        "numpy",
        "pandas",
        "sklearn.linear_model",
        "sklearn.ensemble",
        "sklearn.svm",
        "torch",
        "ipywidgets",
        "matplotlib.pyplot",
        "scipy.stats",
        "IPython.core.interactiveshell",
        "dill",
        "kishu.jupyter.namespace",
    ):
        with contextlib.suppress(ImportError):
            __import__(name)
    from gresshopper.state import restore
    from traitlets.config import Config

    restore.environment()  # what is installed doesn't change: it is asked once
    quiet = Config()
    quiet.HistoryManager.enabled = False
    shell(quiet)


def in_child(work: Callable[[], Any], limit: float = 300.0) -> Any:
    """Run in a forked process; what it returns comes back as JSON."""
    handle, path = tempfile.mkstemp()
    os.close(handle)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        try:
            said: Any = work()
        except BaseException:
            said = {"crash": traceback.format_exc()}
        try:
            Path(path).write_text(json.dumps(said))
        finally:
            os._exit(0)
    deadline = time.monotonic() + limit
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)  # also what a cell has started
            os.waitpid(child, 0)
            return {"crash": f"took more than {limit} s"}
        time.sleep(0.002)
    text = Path(path).read_text()
    os.unlink(path)
    return json.loads(text) if text else {"crash": "the process ended without a word"}


def shell(config: Any = None) -> Any:
    """The shell, in which nothing was run before the fork."""
    from IPython.core.interactiveshell import InteractiveShell

    class Shell(InteractiveShell):
        """As a kernel's: it has no window system to turn on."""

        def enable_gui(self, gui: Any = None) -> None: ...

    made = InteractiveShell if InteractiveShell.initialized() else Shell
    return made.instance(config=config) if config else made.instance()


def run_cell(ip: Any, source: str) -> dict[str, Any]:
    """One cell and its output."""
    import matplotlib.pyplot as plt

    out, results = io.StringIO(), []
    real = ip.displayhook.write_format_data
    ip.displayhook.write_format_data = lambda data, meta=None: results.append(data.get("text/plain", ""))
    started = time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = ip.run_cell(source, store_history=True)
    seconds = time.perf_counter() - started
    ip.displayhook.write_format_data = real
    error = result.error_before_exec or result.error_in_exec
    figures = []
    for number in plt.get_fignums():
        raw = io.BytesIO()
        with contextlib.suppress(Exception):
            plt.figure(number).savefig(raw, format="raw", dpi=40)
        figures.append(hashlib.sha1(raw.getvalue()).hexdigest()[:12])
    plt.close("all")
    said = [
        out.getvalue() if error is None else "",
        *results,
        f"{type(error).__name__}: {error}" if error else "",
        *figures,
    ]
    return {"out": [_ADDRESS.sub("0x", text)[:20000] for text in said], "seconds": seconds}


def workdir() -> Path:
    """A directory with the notebooks' data, which each run may write into."""
    made = Path(tempfile.mkdtemp(prefix="hop-notebook-"))
    for part in (HERE / "data").iterdir():
        (shutil.copytree if part.is_dir() else shutil.copy)(part, made / part.name)
    return made


def undisturbed(name: str, limit: int | None = None) -> list[Any]:
    """Outputs of all cells in one kernel."""
    base = workdir()

    def work() -> Any:
        os.chdir(base)
        ip = shell()
        return [run_cell(ip, source)["out"] for source in cells_of(name)[:limit]]

    try:
        return in_child(work)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def elsewhere(name: str, limit: int | None = None) -> list[Any]:
    """Outputs of an undisturbed run that shares nothing with this process: neither its hashes nor its random state."""
    code = (
        f"import json, runner; runner.preload(); print('\\x1e' + json.dumps(runner.undisturbed({name!r}, {limit!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True, timeout=600, check=True
    )
    found: list[Any] = json.loads(done.stdout.rpartition("\x1e")[2])
    return found


def killed_after_each(name: str, limit: int | None = None) -> dict[str, Any]:
    """Outputs of all cells, each in a process of its own that was restored from what the one before saved."""
    base = workdir()
    state = base / ".state"
    state.mkdir(mode=0o700)
    os.environ["XDG_CONFIG_HOME"] = str(state / "config")
    outs: list[Any] = []
    told: list[str] = []
    spent = ran = restoring = 0.0
    try:
        for i, source in enumerate(cells_of(name)[:limit]):
            said = in_child(functools.partial(_one, base, state, i, source))
            if "crash" in said:
                outs.append(["crash", said["crash"]])
                break
            outs.append(said["out"])
            told += [f"cell {i}: {text}" for text in said["told"]]
            spent, ran, restoring = spent + said["spent"], ran + said["ran"], restoring + said["restoring"]
        return {"outs": outs, "told": told, "spent": spent, "ran": ran, "restoring": restoring}
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _one(base: Path, state: Path, i: int, source: str) -> dict[str, Any]:
    from gresshopper.state.agent import Agent

    os.chdir(base)
    ip = shell()
    agent = Agent(ip, state / "store")
    told: list[str] = []
    started = time.perf_counter()
    if i == 0:
        agent.watch(state / "log")
    else:
        with contextlib.redirect_stderr(io.StringIO()):
            done = agent.resume(state / "log")
        told = [f"{n}: {w}" for n, w in done.lost.items()] + done.notices
    restoring = time.perf_counter() - started
    said = run_cell(ip, source)
    agent.watcher.audit()
    return {
        **said,
        "told": told + agent.watcher.failures.texts,
        "spent": agent.watcher.pace.spent,
        "ran": agent.watcher.pace.ran,
        "restoring": restoring,
    }


def compare(name: str, limit: int | None = None) -> dict[str, Any]:
    """What differs from an undisturbed run, at the cells on which two undisturbed runs agree."""
    first, second = undisturbed(name, limit), elsewhere(name, limit)
    chain = killed_after_each(name, limit)
    wrong, equal, unstable = [], 0, 0
    for i, (a, b) in enumerate(zip(first, second)):
        c = chain["outs"][i] if i < len(chain["outs"]) else ["not reached"]
        if a != b:
            unstable += 1
        elif a == c:
            equal += 1
        else:
            wrong.append({"cell": i, "want": a, "got": c})
    return {
        "name": name,
        "equal": equal,
        "unstable": unstable,
        "wrong": wrong,
        **{k: chain[k] for k in ("told", "spent", "ran", "restoring")},
    }


if __name__ == "__main__":
    preload()
    picked = [a for a in sys.argv[1:] if not a.startswith("-")] or notebooks()
    for name in picked:
        started = time.time()
        said = compare(name)
        print(
            f"{name}: equal {said['equal']}, unstable {said['unstable']}, wrong {len(said['wrong'])}, "
            f"{time.time() - started:.0f} s, restoring {said['restoring']:.1f} s, capture {said['spent']:.2f} s of {said['ran']:.1f} s",
            flush=True,
        )
        for one in said["wrong"]:
            print("   cell", one["cell"], json.dumps(one["want"])[:300], "\n      got", json.dumps(one["got"])[:600])
        if "-v" in sys.argv:
            for text in sorted(set(t.partition(": ")[2] for t in said["told"])):
                print("   told:", text[:250])
