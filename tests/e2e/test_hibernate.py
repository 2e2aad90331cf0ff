"""Kernels that hibernate: their server is gone, or somebody asked for it. Each test says what the user sees."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from harness import WHERE, Cluster, Notebook, no_process_is_left, nothing_is_left, stream, until


def start(cluster: Cluster, name: str = "a.ipynb", user: str = "alice") -> Notebook:
    book = Notebook(cluster, user)
    path = f"{cluster.base}/home/{user}/{name}"
    book.start(env={"GRESSHOPPER_NOTEBOOK": path, "JPY_SESSION_NAME": path})
    return book


@contextmanager
def opened(cluster: Cluster, name: str = "a.ipynb", user: str = "alice") -> Iterator[Notebook]:
    book = start(cluster, name, user)
    try:
        yield book
    finally:
        book.close()


def server_dies(cluster: Cluster, book: Notebook, with_front: bool = False) -> None:
    """Jupyter is gone without a word, and its kernel is saved; after a minute where its front is gone as well."""
    os.kill(book.process.pid, signal.SIGKILL)
    if with_front:
        time.sleep(1)  # the replica has heard by then that it is to be saved, and has no front to take its last words
        (front,) = cluster.pids("hop-front", book.user)
        os.kill(front, signal.SIGKILL)
    book.process.wait()
    no_process_is_left(cluster, book.user, 120 if with_front else 40)


def server_dies_in_a_cell(cluster: Cluster, before: str, rest: str, with_front: bool = False) -> None:
    """Runs the cell `before`, and ends the server in the middle of another one."""
    book = start(cluster)
    book.execute(f"import time\n{before}")
    cell = book.submit(f"print('begun', flush=True)\n{rest}")["cell"]
    until("it runs", lambda: "begun" in book.wait(cell, 0.2)["text"])
    server_dies(cluster, book, with_front)
    assert saved(cluster, "kernels") == [], "standbys see by it that the kernel runs no more"


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> Iterator[None]:
    yield
    nothing_is_left(cluster, timeout=40)
    assert saved(cluster) == []


def saved(cluster: Cluster, folder: str = "states") -> list[str]:
    path = cluster.base / "home/alice/.local/share/gresshopper" / folder
    return sorted(p.name for p in path.iterdir()) if path.is_dir() else []


def row(cluster: Cluster, kernel: str) -> dict[str, Any]:
    rows = cluster.hop("kernels", user="alice")["rows"]
    found: dict[str, Any] = next(r for r in rows if r["kernel_id"] == kernel)
    return found


def hop(cluster: Cluster, *argv: str, user: str = "alice") -> tuple[int, str]:
    """Its exit status and what it complained of."""
    process = cluster.popen(user, ["hop", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=150)
    return process.returncode, err


def said(book: Notebook, code: str) -> tuple[str, str]:
    got = book.execute(code, timeout=90)
    assert got["status"] == "ok", got
    return stream(got, "stdout"), stream(got, "stderr")


def test_the_server_is_culled_and_the_notebooks_next_opening_has_the_variables(cluster: Cluster) -> None:
    book = start(cluster)
    book.execute("x = 41")
    assert said(book, "%%gpu 1\nprint(x)")[0] == "41\n"
    server_dies(cluster, book)
    (kernel,) = saved(cluster)
    until("hopd lists it as asleep", lambda: row(cluster, kernel)["state"] == "ASLEEP")
    with opened(cluster) as again:
        out, told = said(again, WHERE)
        assert out.split()[1] == "41"
        assert "was saved, and is back" in told
        assert row(cluster, kernel)["state"] == "IDLE", "under its own id"
        assert said(again, "%%gpu 1\nprint(x)")[0] == "41\n"


@pytest.mark.parametrize(
    "with_front",
    [pytest.param(False, id="server", marks=pytest.mark.thorough), pytest.param(True, id="server and front")],
)
def test_a_cell_that_runs_as_its_server_ends_is_finished_and_its_outputs_are_shown_later(
    cluster: Cluster, with_front: bool
) -> None:
    server_dies_in_a_cell(cluster, "x = 40", "time.sleep(4)\nx += 1\nprint('x is', x)", with_front)
    with opened(cluster) as again:
        out, told = said(again, WHERE)
        assert "ran on without a server" in told
        # What the cell showed stands before the first cell's own output.
        assert out.startswith("x is 41\n"), out
        assert out.split()[-1] == "41"
        assert said(again, WHERE)[1] == "", "it is told once"


def test_a_cell_of_a_lost_server_and_front_goes_on_for_the_notebook_that_is_opened_again(cluster: Cluster) -> None:
    book = start(cluster)
    book.execute("import os, time\nx, pid = 40, os.getpid()")
    code = "print('begun', flush=True)\ntime.sleep(2)\nfor i in range(24):\n    print(i, flush=True)\n    time.sleep(0.5)\n"
    cell = book.submit(f"%%gpu 1\n{code}x += 1\nprint('end')")["cell"]
    until("it runs", lambda: "begun" in book.wait(cell, 0.2)["text"], 60)
    (kernel,) = saved(cluster)
    # At once: a server that lives starts another front, and a front that lives has the kernel saved.
    os.kill(book.process.pid, signal.SIGSTOP)
    (front,) = cluster.pids("hop-front", book.user)
    os.kill(front, signal.SIGKILL)
    os.kill(book.process.pid, signal.SIGKILL)
    book.process.wait()
    time.sleep(6)
    with opened(cluster) as again:
        assert saved(cluster) == [kernel]
        out, told = said(again, "print(x, os.getpid() == pid)")
        assert out.split("\n") == [*map(str, range(24)), "end", "41 True", ""]
        assert told.count("a cell ran on without a server") == 1
        assert said(again, "%%gpu 1\nprint(x)") == ("41\n", "")


def test_a_cell_that_does_not_end_is_lost_with_its_server_and_its_user_reads_so(cluster: Cluster) -> None:
    server_dies_in_a_cell(cluster, "x = 41", "x = 0\ntime.sleep(600)")
    with opened(cluster) as again:
        out, told = said(again, WHERE)
        assert out.split()[-1] == "41"
        assert "it is lost; run it again: print('begun', flush=True)" in told


def test_a_copied_notebook_and_a_second_tab_begin_without_variables(cluster: Cluster) -> None:
    with opened(cluster) as first:
        first.execute("x = 41")
        with opened(cluster) as second:
            out, told = said(second, "print('x' in globals())")
            assert out == "False\n"
            assert "another tab or server" in told
        with opened(cluster, "copy.ipynb") as copy:
            assert said(copy, "print('x' in globals())") == ("False\n", "")
        assert said(first, WHERE)[0].split()[1] == "41"


def test_hop_hibernates_wakes_and_the_next_cell_wakes_too(cluster: Cluster) -> None:
    with opened(cluster) as book:
        book.execute("x = 41")
        (kernel,) = saved(cluster)
        assert hop(cluster, "hibernate", "a.ipynb") == (0, "")
        no_process_is_left(cluster, front=True)
        assert row(cluster, kernel)["state"] == "ASLEEP"
        # The next cell wakes it; the user reads nothing of that.
        out, told = said(book, WHERE)
        assert (out.split()[1], told) == ("41", "")
        assert hop(cluster, "hibernate", "a.ipynb") == (0, "")
        no_process_is_left(cluster, front=True)
        until("its front listens", lambda: hop(cluster, "wake", kernel) == (0, ""), 20)
        until("it is awake", lambda: row(cluster, kernel)["state"] == "IDLE", 40)
        out, told = said(book, WHERE)
        assert (out.split()[1], told) == ("41", "")
        assert book.is_alive()["alive"]


def test_hopd_is_restarted_and_a_node_drained_while_it_sleeps(cluster: Cluster) -> None:
    book = start(cluster)
    book.execute("x = 41")
    node = said(book, WHERE)[0].split()[0]
    server_dies(cluster, book)
    (kernel,) = saved(cluster)
    cluster.kill(r"/opt/bin/hopd", "gresshopper")
    cluster.deploy("hopd")
    cluster.wait_for_pilots()
    until("hopd still knows it", lambda: row(cluster, kernel)["state"] == "ASLEEP", 40)
    cluster.run("root", "scontrol", "update", f"nodename={node}", "state=drain", "reason=a fan is loud")
    try:
        time.sleep(2)
        with opened(cluster) as again:
            out, _ = said(again, WHERE)
            assert out.split()[0] != node
            assert out.split()[1] == "41"
    finally:
        cluster.run("root", "scontrol", "update", f"nodename={node}", "state=resume")
        cluster.wait_for_pilots()


def test_a_node_is_cleared_for_maintenance_and_a_bound_kernel_stays(cluster: Cluster) -> None:
    with opened(cluster) as free, opened(cluster, "b.ipynb") as bound:
        free.execute("x = 41")
        bound.execute("import socket\nx = 41\nsock = socket.socket()")
        until("hopd knows what it holds", lambda: "sock" in str(cluster.hop("kernels", user="alice")["rows"]))
        status, err = hop(cluster, "hibernate", "--all")
        assert status == 1
        assert "sock" in err
        assert said(bound, "print(sock.fileno() > 0)") == ("True\n", "")
        out, told = said(free, WHERE)
        assert (out.split()[1], told) == ("41", "")


def test_a_forgotten_kernel_is_gone(cluster: Cluster) -> None:
    book = start(cluster)
    book.execute("x = 41")
    server_dies(cluster, book)
    (kernel,) = saved(cluster)
    until("hopd lists it as asleep", lambda: row(cluster, kernel)["state"] == "ASLEEP")
    assert hop(cluster, "forget", kernel) == (0, "")
    assert saved(cluster) == []
    with opened(cluster) as again:
        assert said(again, "print('x' in globals())") == ("False\n", "")


def test_a_sleeping_kernel_is_called_by_its_notebooks_present_name(cluster: Cluster) -> None:
    for name, value in [("a.ipynb", 1), ("b.ipynb", 2)]:
        book = start(cluster, name)
        book.execute(f"x = {value}")
        server_dies(cluster, book)

    def names() -> dict[str, str]:
        """As root sees them: root's home doesn't tell the names of alice's notebooks."""
        return {row["kernel_id"]: row["name"] for row in cluster.hop("kernels", "-a", "-t", "asleep")["rows"]}

    until("hopd lists both as asleep", lambda: sorted(names().values()) == ["a.ipynb", "b.ipynb"])
    before, home = names(), f"{cluster.base}/home/alice"
    for old, new in [("a", "c"), ("b", "a"), ("c", "b")]:
        cluster.run("alice", "hop-front", "rename", f"{home}/{old}.ipynb", f"{home}/{new}.ipynb")
    assert names() == {kernel: {"a.ipynb": "b.ipynb", "b.ipynb": "a.ipynb"}[name] for kernel, name in before.items()}
    assert hop(cluster, "forget", "a.ipynb") == (0, "")
    with opened(cluster, "b.ipynb") as first, opened(cluster, "a.ipynb") as second:
        assert said(first, "print(x)")[0] == "1\n"
        assert said(second, "print('x' in globals())") == ("False\n", "")
