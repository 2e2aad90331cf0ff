"""`hop run`: whole notebooks unattended, with leases, by deadlines; what goes wrong, and going on after it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from harness import HUB_PYTHON, OPENABLE, Cluster, until

SPEC = {"name": "gresshopper-python3", "language": "python", "display_name": "Python 3"}


class Runs:
    """Alice's notebooks and her runs of them."""

    def __init__(self, cluster: Cluster, folder: str) -> None:
        self.cluster = cluster
        self.home = cluster.base / "home" / "alice" / folder
        self.env = {"GRESSHOPPER_JUPYTER_PYTHON": HUB_PYTHON, "XDG_STATE_HOME": str(self.home / "state")}
        cluster.run("alice", "sh", "-c", f"rm -rf {self.home} && mkdir {self.home}")

    def write(self, name: str, *cells: str | tuple[str, str]) -> Path:
        """A notebook; a cell may be a pair of its text and its tag."""
        made: list[dict[str, Any]] = []
        for i, cell in enumerate(cells):
            source, tags = (cell[0], [cell[1]]) if isinstance(cell, tuple) else (cell, [])
            made.append(
                {
                    "cell_type": "code",
                    "id": f"cell-{i}",
                    "source": source,
                    "metadata": {"tags": tags},
                    "outputs": [],
                    "execution_count": None,
                }
            )
        path = self.home / name
        path.write_text(
            json.dumps({"cells": made, "metadata": {"kernelspec": SPEC}, "nbformat": 4, "nbformat_minor": 5})
        )
        path.chmod(0o644)
        return path

    def start(self, *argv: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return self.cluster.popen("alice", ["hop", "run", *argv], env=self.env, stdout=pipe, stderr=pipe)

    def run(self, *argv: str, status: int = 0) -> tuple[dict[str, Any], str]:
        """The report and what was said besides."""
        process = self.start(*argv, "--json")
        out, err = process.communicate(timeout=120)
        assert process.returncode == status, err + out
        return (json.loads(out) if out else {}), err

    def cells(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.home / name).read_text())["cells"]
        return found

    def texts(self, name: str) -> list[str]:
        """What each cell printed."""
        return ["".join("".join(o.get("text", "")) for o in c["outputs"]) for c in self.cells(name)]

    def workers(self) -> list[int]:
        return self.cluster.pids("gresshopper_jupyter.unattended", "alice")


def wait_for_text(runs: Runs, name: str, text: str) -> None:
    def there() -> bool:
        with contextlib.suppress(OSError, ValueError):
            return any(text in t for t in runs.texts(name))
        return False

    until(f"{name} has {text!r}", there, 60)


def test_a_notebook_runs_with_parameters_and_a_lease_for_each_cell_that_asks(cluster: Cluster) -> None:
    runs = Runs(cluster, "plain")
    book = runs.write(
        "a.ipynb",
        ("n = 1\nname = 'nobody'", "parameters"),
        OPENABLE,
        "%%gpu 2\nprint(name, n, len(openable()))",
        "print(n)",
        ("1 / 0", "raises-exception"),
        ("print('never')", "skip-execution"),
        "import gresshopper\nwith gresshopper.gpu() as g:\n    print(len(openable()) > 0)",
    )
    report, err = runs.run(str(book), "-p", "n=7", "-r", "name=42", "-o", str(runs.home / "o.ipynb"))
    assert report["status"] == "ok"
    assert report["deadline_met"] is None
    assert "not known: none of its cells ran before" in err
    assert runs.texts("o.ipynb")[3:5] == ["42 7 2\n", "7\n"]
    assert runs.texts("o.ipynb")[6:] == ["", "True\n"]
    cells = runs.cells("o.ipynb")
    assert cells[1]["metadata"]["tags"] == ["injected-parameters"]
    assert cells[1]["source"] in ("# Parameters\nn = 7\nname = '42'", ["# Parameters\n", "n = 7\n", "name = '42'"])
    assert cells[5]["outputs"][0]["ename"] == "ZeroDivisionError"
    states = [c["metadata"]["papermill"]["status"] for c in cells]
    assert states == ["completed"] * 6 + ["pending", "completed"]
    with_lease = next(c for c in report["cells"] if c["n_gpus"] == 2)
    rows = [r for r in cluster.hop("acct", "-a")["rows"] if r["kernel_id"] == report["kernel_id"]]
    assert str(with_lease["lease"]) in {str(r["lease_id"]) for r in rows}
    until("nothing is left of the run", lambda: cluster.quiet() and not runs.workers(), 30)

    # The second time it is known how long it takes.
    argv = [str(book), "-p", "n=7", "-r", "name=42", "-o", str(runs.home / "o.ipynb"), "--dry-run"]
    report, _ = runs.run(*argv, "--deadline", "+1h")
    assert report["expected"]["verdict"] == "holds"
    assert report["expected"]["unknown_cells"] == 0
    report, err = runs.run(*argv, "--deadline", "+1s", status=5)
    assert report["expected"]["verdict"] == "missed"
    assert "not expected to hold" in err


def test_after_a_failure_it_goes_on_from_there_on_the_kernel_that_was_kept(cluster: Cluster) -> None:
    runs = Runs(cluster, "fails")
    cells = ["import os\npid = os.getpid()\nprint(pid)", "%%gpu 1\nx = 41", "x += 1\nboom", "print(x, pid)"]
    book = runs.write("f.ipynb", *cells)
    report, err = runs.run(str(book), "--keep", "5m", status=1)
    assert "cell 3 of 4 failed: NameError: name 'boom' is not defined" in err
    assert "--resume goes on from this cell" in err
    assert report["kept_until"] > time.time()
    until("a kept kernel holds no GPU", cluster.quiet, 30)
    (record,) = (cluster.base / "home/alice/.local/share/gresshopper/run").glob("*.json")
    room = Path(json.loads(record.read_text())["socket"]).parent
    assert stat.S_IMODE(room.stat().st_mode) == 0o700

    cells[2] = "y = x"
    runs.write("f.ipynb", *cells)
    report, err = runs.run(str(book), "--resume")
    assert "on the kernel that was kept" in err
    assert [c["index"] for c in report["cells"]] == [2, 3]
    pid = runs.texts("f.out.ipynb")[0].strip()
    assert runs.texts("f.out.ipynb")[3] == f"42 {pid}\n"
    until("nothing is left of the run", lambda: not runs.workers(), 30)
    assert not record.exists()
    assert not room.exists()


def test_a_lost_kernel_is_told_and_the_run_goes_on_with_another(cluster: Cluster) -> None:
    runs = Runs(cluster, "lost")
    book = runs.write(
        "l.ipynb",
        ("open('made', 'a').write('x')", "skip-on-resume"),
        "y = 5\nprint('ready')",
        "import time, os\ntime.sleep(0 if os.path.exists('quick') else 90)",
        "print(y)",
    )
    process = runs.start(str(book))
    wait_for_text(runs, "l.out.ipynb", "ready")
    cluster.run("alice", "scancel", "-u", "alice", "--name", seat_name(cluster))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 6, err
    assert re.search(r"the kernel was lost at cell 3 of 4: \S", err), err
    (runs.home / "quick").touch()
    report, err = runs.run(str(book), "--resume")
    assert "of them again, for their variables" in err
    assert [c["index"] for c in report["cells"]] == [1, 2, 3]
    assert runs.texts("l.out.ipynb")[3] == "5\n"
    assert (runs.home / "made").read_text() == "x"


def seat_name(cluster: Cluster) -> str:
    names = cluster.run("root", "squeue", "-h", "-u", "alice", "-o", "%j").split()
    return names[0]


@pytest.mark.parametrize(
    ("sig", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.thorough), (signal.SIGKILL, -9)],
)
def test_a_run_that_is_stopped_keeps_what_it_has(cluster: Cluster, sig: int, status: int) -> None:
    runs = Runs(cluster, f"stop{status}")
    book = runs.write("s.ipynb", "print('ready')", "%%gpu 1\nimport time; time.sleep(60)", "print('end')")
    process = runs.start(str(book))
    wait_for_text(runs, "s.out.ipynb", "ready")
    until("its cell has a lease", lambda: cluster.steps("alice/"), 30)
    process.send_signal(sig)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    until("the lease is given back", cluster.quiet, 30)
    states = [c["metadata"]["papermill"]["status"] for c in runs.cells("s.out.ipynb")]
    assert states == ["completed", "failed", "pending"]
    if sig == signal.SIGKILL:
        runs.write("s.ipynb", "print('ready')", "%%gpu 1\npass", "print('end')")
        _, err = runs.run(str(book), "--resume")
        assert "on the kernel that was kept" in err
    until("nothing is left of the run", lambda: not runs.workers(), 30)


def test_a_run_goes_on_when_its_front_is_killed(cluster: Cluster) -> None:
    runs = Runs(cluster, "front")
    book = runs.write("k.ipynb", "import time\nprint('ready')", "time.sleep(4)\nprint('slept')", "print('end')")
    process = runs.start(str(book))
    wait_for_text(runs, "k.out.ipynb", "ready")
    cluster.kill("bin/hop-front", "alice")
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert runs.texts("k.out.ipynb") == ["ready\n", "slept\n", "end\n"]


def test_hopd_may_go_and_come_back_during_a_run(cluster: Cluster) -> None:
    runs = Runs(cluster, "away")
    # The second cell waits for hopd's end: however slow the machine, the third one asks while nobody answers.
    gone = "import os, time\nwhile not os.path.exists('gone'):\n    time.sleep(0.05)"
    book = runs.write("h.ipynb", "print('ready')", gone, "%%gpu 1\nprint('with')")
    process = runs.start(str(book))
    wait_for_text(runs, "h.out.ipynb", "ready")
    kill_hopd(cluster)
    (runs.home / "gone").touch()
    said = told_by(process, "the scheduler is away", 60)
    cluster.deploy("hopd")
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, said + err
    kill_hopd(cluster)
    _, err = runs.run(str(book), status=3)
    assert "hopd does not answer" in err
    cluster.deploy("hopd")
    cluster.wait_for_pilots()


def kill_hopd(cluster: Cluster) -> None:
    hopd = f"^{cluster.base}/opt/bin/hopd"
    cluster.kill(hopd, "gresshopper")
    until("hopd is gone", lambda: not cluster.pids(hopd, "gresshopper"))


def told_by(process: subprocess.Popen[str], text: str, timeout: float) -> str:
    """What the run has said on its standard error, once this is in it."""
    assert process.stderr is not None
    descriptor = process.stderr.fileno()
    said = ""
    end = time.monotonic() + timeout
    while text not in said:
        ready, _, _ = select.select([descriptor], [], [], max(0, end - time.monotonic()))
        piece = os.read(descriptor, 65536) if ready else b""
        assert piece, f"{text!r} was not said: {said}"
        said += piece.decode(errors="replace")
    return said


@pytest.mark.thorough
def test_auto_takes_the_gpus_that_the_deadline_needs(cluster: Cluster) -> None:
    runs = Runs(cluster, "auto")
    book = runs.write("g.ipynb", OPENABLE, "%%gpu 1\nprint(len(openable()))")
    for gpus in (1, 2):
        report, _ = runs.run(str(book), "--gpus", str(gpus))
        assert report["cells"][1]["n_gpus"] == gpus
    history = runs.home / "state/gresshopper/run-history.jsonl"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    ran = [json.loads(line) for line in history.read_text().splitlines()]

    def expecting(*argv: str, status: int = 0) -> tuple[dict[str, Any], str]:
        """As if the cell had taken 1000 s with one GPU and 500 s with two."""
        took = [{**one, "seconds": 1000 / one["gpus"]} if one["gpus"] else one for one in ran]
        history.write_text("".join(json.dumps(one) + "\n" for one in took))
        return runs.run(str(book), *argv, status=status)

    report, _ = expecting("--deadline", "+800s", "--dry-run", status=5)
    assert report["expected"]["would_hold_with_gpus"] == 2
    for deadline, gpus in (("+1h", 1), ("+800s", 2)):
        report, err = expecting("--gpus", "auto", "--deadline", deadline)
        assert report["cells"][1]["n_gpus"] == gpus, err
        assert report["deadline_met"] is True


def test_a_deadline_is_foretold_with_the_wait_when_all_gpus_are_lent(cluster: Cluster) -> None:
    runs = Runs(cluster, "lent")
    book = runs.write("d.ipynb", "%%gpu 1\npass")
    runs.run(str(book))
    long = runs.write("long.ipynb", "%%gpu 2\nprint('ready')\nimport time; time.sleep(90)")
    taken = [runs.start(str(long), "-o", str(runs.home / f"long{n}.ipynb"), "--keep", "0") for n in range(4)]
    try:
        until("all GPUs are lent", lambda: len(cluster.steps("alice/")) == 4, 60)
        argv = [str(book), "--dry-run", "--deadline"]

        def foretold() -> bool:
            said = runs.start(*argv, "+1h").communicate(timeout=60)[0]
            return "of it the wait for a GPU, for those that fit are lent now" in said

        # Of cells that never ran it is known only how long they have run.
        until("the others outlast the kernel's start", foretold, 80)
        report, err = runs.run(*argv, "+1h")
        assert report["expected"]["verdict"] in {"holds", "tight"}, err
        assert not report["expected"]["queue_unknown"]
        report, _ = runs.run(*argv, "+1s", status=5)
        assert report["expected"]["verdict"] == "missed"
    finally:
        for process in taken:
            process.send_signal(signal.SIGTERM)
        for process in taken:
            process.communicate(timeout=60)
    until("nothing is left of the runs", lambda: cluster.quiet() and not runs.workers(), 60)


def test_a_need_that_nothing_could_ever_serve_fails_at_once_with_what_there_is(cluster: Cluster) -> None:
    runs = Runs(cluster, "never")
    for need, said in (
        ("1 --type nosuch", "a GPU of type nosuch, which no node of pool main has"),
        ("1 --mem 900G", "GPUs with 900 GiB"),
        ("3", "3 GPUs on one node, and pool main has 2 on each"),
        ("1 --cpus 900", "900 cores on one node"),
    ):
        book = runs.write("n.ipynb", f"%%gpu {need}\nprint('never')")
        _, err = runs.run(str(book), "--keep", "0", status=1)
        assert said in err
        assert "wait" not in err, "it was refused, and never queued"


def test_it_runs_in_a_batch_job_too(cluster: Cluster) -> None:
    runs = Runs(cluster, "batch")
    book = runs.write("b.ipynb", OPENABLE, "%%gpu 1\nprint(len(openable()))")
    env = {"GRESSHOPPER_JUPYTER_PYTHON": HUB_PYTHON}
    script = runs.home / "job.sh"
    script.write_text(f"#!/bin/sh\nexec hop run {book}\n")
    script.chmod(0o755)
    argv = ["sbatch", "--wait", "-n1", "--mem=512", "-o", str(runs.home / "job.log"), str(script)]
    process = cluster.popen("alice", argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=120)
    log = runs.home / "job.log"
    assert process.returncode == 0, err + (log.read_text() if log.exists() else "")
    assert runs.texts("b.out.ipynb")[1] == "1\n"


def test_what_cannot_be_run_is_said_in_a_sentence(cluster: Cluster) -> None:
    runs = Runs(cluster, "wrong")
    (runs.home / "no.ipynb").write_text("{}")
    book = runs.write("w.ipynb", "1")
    for argv, said in (
        (["absent.ipynb"], "absent.ipynb: No such file or directory"),
        ([str(runs.home / "no.ipynb")], "is no notebook"),
        ([str(book), "-p", "1x=2"], "can't be the name of a parameter"),
        ([str(book), "--deadline", "2020-01-01T00:00"], "is over already"),
        (
            [str(book), "--gpus", "7"],
            "--gpus 7 can't be had: a lease lies on one node, and pool main has 2 GPUs on each",
        ),
        ([str(book), "-k", "cobol"], "there is no kernel 'cobol'"),
        ([str(book), "-o", "/nowhere/o.ipynb"], "can't write /nowhere/o.ipynb"),
    ):
        _, err = runs.run(*argv, status=2)
        assert said in err
        assert "Traceback" not in err
