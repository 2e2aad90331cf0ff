"""Notebooks whose kernel loses its node after every third cell, on a real Slurm. By hand: `make notebooks-lost`.

    lost_notebooks.py [--by node|seat] [--every 3] [--replicas N] [--json FILE] [NAME..]

NAME is a notebook of `tests/notebooks/books` (those of the table of peers) or of `tests/notebooks/unseen`, in which cells
begin with `# %%`; without any, all run, the shortest first. Each runs twice undisturbed, in a kernel of its own, and once
with losses. A cell on which the undisturbed runs agree has to show the same in the third, unless its user was told of a loss
that explains the difference: a variable by name, or the cell itself. Prints a line for each notebook, then those cells, then
the share of looks at which policy might have moved the kernel (`movable_share`). The exit status is 1 after a difference
that was not told.

With three replicas the executor's node is lost, and the next loss waits until three replicas count again: half a minute.
A run that was broken off goes on with the same FILE: the notebooks in it aren't run again, and count.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from harness import REPLICAS, REPO, Cluster, Failed, Notebook, until

HOME = REPO / "tests/notebooks"
#: What differs between two runs by chance.
CHANCE = re.compile(r"0x[0-9a-f]{6,}|ipykernel_\d+/\d+|IPY_MODEL_\w+|\b[0-9a-f]{32}\b")
#: Seconds within which the effects of a cell that was answered are on disk.
SAVED = 1.5
CELL = 300.0
#: Seconds within which a lost replica is replaced: it is waited for half a minute, and a new seat has to start.
WHOLE_WITHIN = 120.0
LOST = ("CellLost", "LostError", "KernelDied")


@dataclasses.dataclass
class Run:
    """One run of a notebook."""

    outputs: list[list[str]] = dataclasses.field(default_factory=list)
    #: Sentences of ours, by cell.
    told: list[str] = dataclasses.field(default_factory=list)
    losses: int = 0
    looks: int = 0
    movable: int = 0
    #: From the submission of the first cell after a loss to its reply, less what the undisturbed cell took.
    delays: list[float] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)


def all_names() -> list[str]:
    names = sorted(p.stem for p in [*(HOME / "unseen").glob("*.py"), *(HOME / "books").glob("*.ipynb")])
    return sorted(names, key=lambda name: len(cells_of(name)))


def cells_of(name: str) -> list[str]:
    unseen = HOME / "unseen" / f"{name}.py"
    if unseen.exists():
        parts = re.split(r"^# %%.*\n", unseen.read_text(), flags=re.M)[1:]
        return [part.strip("\n") for part in parts]
    book = json.loads((HOME / "books" / f"{name}.ipynb").read_text())
    return ["".join(c["source"]) for c in book["cells"] if c["cell_type"] == "code"]


def shown(got: dict[str, Any]) -> list[str]:
    """What the cell's user saw, but for stderr and for what differs by chance."""
    texts = ["".join(o["text"] for o in got["outputs"] if o["type"] == "stream" and o["name"] == "stdout")]
    for output in got["outputs"]:
        if output["type"] == "error":
            texts.append(f"{output['ename']}: {output['evalue']}")
        elif output["type"] != "stream":
            picture = output["data"].get("image/png")
            texts.append(output["data"].get("text/plain", ""))
            texts += [hashlib.sha1(picture.encode()).hexdigest()[:12]] if picture else []
    return [CHANCE.sub("0x", text)[:20000] for text in texts]


class Place:
    """The cluster, and the folder in which each run begins anew."""

    def __init__(self, cluster: Cluster, by: str, every: int, replicas: int) -> None:
        self.cluster, self.by, self.every, self.replicas = cluster, by, every, replicas
        self.folder = cluster.base / "home/alice/lost"
        self.lost: str | None = None

    def fresh_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(HOME / "data", self.folder)
        for entry in [self.folder, *self.folder.rglob("*")]:
            shutil.chown(entry, "alice")

    def run(self, name: str, *, disturbed: bool) -> Run:
        self.fresh_folder()
        run, book = Run(), Notebook(self.cluster, "alice")
        try:
            # A display that a test's user has set makes matplotlib choose another backend.
            self.open(book, name)
            cells = cells_of(name)
            for n, source in enumerate(cells):
                begin = time.monotonic()
                got = book.execute(source, timeout=CELL, stop_on_error=False)
                run.seconds.append(time.monotonic() - begin)
                run.outputs.append(shown(got) if got["done"] else ["no answer"])
                said = "".join(o["text"] for o in got["outputs"] if o.get("name") == "stderr")
                run.told += [f"cell {n}: {line}" for line in said.splitlines() if "gresshopper" in line]
                if not got["done"]:
                    break
                if disturbed and (n + 1) % self.every == 0 and n + 1 < len(cells):
                    self.lose(name, self.look(run, name))
                    run.losses += 1
        except Failed as error:
            run.outputs.append([f"broken off: {error}"])
        finally:
            book.close()
            self.bring_back()
        return run

    def open(self, book: Notebook, name: str, **more: str) -> None:
        env = {"JPY_SESSION_NAME": f"{name}.ipynb", "GRESSHOPPER_REPLICAS": str(self.replicas), **more}
        book.start(cwd=str(self.folder), env=env)

    def row(self, name: str) -> dict[str, Any] | None:
        rows = self.cluster.hop("kernels", user="alice")["rows"]
        # One that another run closed is known for a while, and starts or is lost for ever.
        states = ("ASLEEP", "STARTING", "LOST")
        return next((r for r in rows if r["name"] == f"{name}.ipynb" and r["state"] not in states), None)

    def look(self, run: Run, name: str) -> dict[str, Any]:
        """The kernel's row, which says whether policy might move it now."""
        time.sleep(SAVED)
        ours: dict[str, Any] = until("the kernel is known", lambda: self.row(name))
        run.looks += 1
        run.movable += ours["captured"] == "yes" and not ours["reason"]
        return ours

    def wait_until_whole(self, name: str) -> dict[str, Any]:
        """The kernel's row, once all its replicas count, and none on the node that was lost before."""

        def whole() -> dict[str, Any] | None:
            row = self.row(name) or {"replicas": 0}
            is_whole = int(row["replicas"]) == self.replicas and self.lost not in row["nodes"].split(",")
            return row if is_whole else None

        found: dict[str, Any] = until("all replicas count", whole, WHOLE_WITHIN, every=0.3)
        return found

    def lose(self, name: str, row: dict[str, Any]) -> None:
        if self.replicas > 1:
            row = self.wait_until_whole(name)
        node = row["node"]
        seats = self.cluster.run("root", "squeue", "-h", "-u", "alice", "-t", "R", "-w", node, "-o", "%i").split()
        if self.by == "seat":
            self.cluster.run("root", "scancel", "--full", "--signal=KILL", *seats)
            return
        self.bring_back()
        self.cluster.devcluster("lose-node", node)
        self.lost = node

    def bring_back(self) -> None:
        """The node that was lost before. Its kernel has gone on elsewhere by now."""
        node, self.lost = self.lost, None
        if node is None:
            return
        self.cluster.run("root", "scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
        self.cluster.devcluster("start-slurmd", node)
        self.cluster.run("root", "scontrol", "update", f"nodename={node}", "state=resume", check=False)
        until("the node is back", lambda: self.is_idle(node), 60, every=0.3)

    def is_idle(self, node: str) -> bool:
        state = self.cluster.run("root", "sinfo", "-h", "-n", node, "-o", "%t", check=False).split()
        return bool(state) and not any("*" in s or s.startswith(("down", "drain")) for s in state)


@dataclasses.dataclass
class Verdict:
    name: str
    run: Run
    equal: int = 0
    unstable: int = 0
    #: Differences that the user was told of, and those that nobody told.
    told: list[str] = dataclasses.field(default_factory=list)
    silent: list[str] = dataclasses.field(default_factory=list)


def names_in(source: str, *, assigned: bool) -> set[str]:
    """Names that a cell uses, or those that it assigns."""
    # Magics aren't Python, and assign nothing that is looked at.
    magics = [line for line in source.splitlines() if line.lstrip().startswith(("%", "!"))]
    lines = [line for line in source.splitlines() if line not in magics]
    try:
        tree = ast.parse("\n".join(lines))
    except SyntaxError:
        return set(re.findall(r"[A-Za-z_]\w*", source))
    found = set() if assigned else set(re.findall(r"[A-Za-z_]\w*", "\n".join(magics)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and (not assigned or isinstance(node.ctx, ast.Store)):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
    return found


def judge(name: str, every: int, first: Run, second: Run, third: Run) -> Verdict:
    verdict = Verdict(name, third)
    #: Names that were told to be gone, and what was computed from them.
    gone: set[str] = set()
    for n, source in enumerate(cells_of(name)):
        runs = [r.outputs[n] if n < len(r.outputs) else ["not reached"] for r in (first, second, third)]
        said = [t for t in third.told if t.startswith(f"cell {n}: ")]
        gone |= {word for t in said for word in re.findall(r"[A-Za-z_]\w*", t)} & names_in(
            "\n".join(cells_of(name)), assigned=True
        )
        if runs[0] != runs[1]:
            verdict.unstable += 1
            continue
        if runs[0] == runs[2]:
            verdict.equal += 1
            continue
        text = json.dumps({"cell": n, "want": runs[0], "got": runs[2]})[:900]
        by_name = bool(names_in(source, assigned=False) & gone)
        if by_name or any(out.startswith(LOST) for out in runs[2]):
            verdict.told.append(text)
            gone |= names_in(source, assigned=True)
        else:
            verdict.silent.append(text)
    for n, seconds in enumerate(third.seconds):
        if n and n % every == 0 and n < len(first.seconds):
            third.delays.append(seconds - first.seconds[n])
    return verdict


def report(verdict: Verdict, took: float) -> None:
    run = verdict.run
    delays = sorted(run.delays)
    middle = f"{delays[len(delays) // 2]:.1f} s" if delays else "-"
    print(
        f"{verdict.name}: {run.losses} losses, equal {verdict.equal}, by chance {verdict.unstable}, "
        f"told {len(verdict.told)}, silent {len(verdict.silent)}, movable {run.movable}/{run.looks}, "
        f"longer by {middle} (p50), {took:.0f} s",
        flush=True,
    )
    for kind, texts in (("silent", verdict.silent), ("told", verdict.told)):
        for text in texts:
            print(f"   {kind}: {text}", flush=True)
    for text in sorted(set(run.told)):
        print(f"   said at {text[:400]}", flush=True)


class Book:
    """The verdicts of a run, in a file if it has one."""

    def __init__(self, path: str | None, **settings: Any) -> None:
        self.path, self.settings = Path(path) if path else None, settings
        self.verdicts: dict[str, Verdict] = {}
        if self.path and self.path.exists():
            for line in self.path.read_text().splitlines():
                kept = json.loads(line)
                if all(kept.pop(key) == value for key, value in settings.items()):
                    self.verdicts[kept["name"]] = Verdict(**{**kept, "run": Run(**kept["run"])})

    def add(self, verdict: Verdict) -> None:
        self.verdicts[verdict.name] = verdict
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps({**dataclasses.asdict(verdict), **self.settings}) + "\n")

    def sum_up(self) -> int:
        """Prints the sums. Returns the number of silent differences."""
        all_of = self.verdicts.values()
        looks, movable = sum(v.run.looks for v in all_of), sum(v.run.movable for v in all_of)
        always = sum(v.run.movable == v.run.looks for v in all_of)
        silent = sum(len(v.silent) for v in all_of)
        print(
            f"\n{len(all_of)} notebooks, {sum(v.run.losses for v in all_of)} losses: "
            f"equal {sum(v.equal for v in all_of)}, by chance {sum(v.unstable for v in all_of)}, "
            f"told {sum(len(v.told) for v in all_of)}, silent {silent}; "
            f"movable_share {movable / max(looks, 1):.3f} of {looks} looks, {always} notebooks at each"
        )
        return silent


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--by", choices=["node", "seat"], default="node")
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=REPLICAS)
    parser.add_argument(
        "--json", metavar="FILE", help="also writes each verdict there, a line each, and leaves those out"
    )
    args = parser.parse_args()
    base = os.environ.get("HOP_E2E_BASE", "/srv/gresshopper-lost")
    cluster = Cluster(base, int(os.environ.get("HOP_E2E_INDEX", "8")), os.environ.get("HOP_E2E_VARIANT", "auto"))
    book = Book(args.json, by=args.by, every=args.every, replicas=args.replicas)
    try:
        cluster.up()
        place = Place(cluster, args.by, args.every, args.replicas)
        for name in [name for name in args.names or all_names() if name not in book.verdicts]:
            begin = time.monotonic()
            runs = [place.run(name, disturbed=disturbed) for disturbed in (False, False, True)]
            book.add(judge(name, args.every, *runs))
            report(book.verdicts[name], time.monotonic() - begin)
    finally:
        if not os.environ.get("HOP_E2E_KEEP"):
            with contextlib.suppress(Failed):
                cluster.down()
        silent = book.sum_up()
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
