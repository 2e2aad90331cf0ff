"""Kill each part in turn. Each test says what the user sees; afterwards nothing is left over, the next cell works,
and all variables are alive."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator

import disks
import pytest
from harness import (
    OPENABLE,
    Cluster,
    Notebook,
    no_process_is_left,
    notebook,
    stream,
    until,
    without_slurmctld,
)

#: What a kernel with one replica goes through: test_replicas.py and test_matrix.py have those with three.
pytestmark = pytest.mark.usefixtures("one_replica")

LONG = "%%gpu 1\nimport time\nfor i in range(40):\n    time.sleep(0.1)\nprint('through', x)"


@pytest.fixture
def alice(cluster: Cluster) -> Iterator[Notebook]:
    with notebook(cluster, "alice") as book:
        book.execute(OPENABLE)
        book.execute("x = 41")
        yield book


@pytest.fixture(scope="module", autouse=True)
def abandoned(cluster: Cluster) -> float:
    """When carol's whole client died: provisioner, front and all. Her replica has a minute."""
    with notebook(cluster, "carol", env={"GRESSHOPPER_REPLICAS": "1"}) as carol:
        carol.execute("x = 1")
        assert cluster.pids(r"hop-replica run", "carol")
        # The front first: it ends its kernel when its client is gone.
        for pid in [*cluster.pids(r"hop-front", "carol"), carol.process.pid]:
            os.kill(pid, signal.SIGKILL)
        return time.monotonic()


def running(cluster: Cluster, book: Notebook, code: str = LONG) -> str:
    """A cell that has its lease and runs."""
    cell: str = book.submit(code)["cell"]
    until("the cell has its lease", lambda: cluster.steps(book.user), 30)
    time.sleep(0.5)
    return cell


def next_cell_works(cluster: Cluster, book: Notebook) -> None:
    """The next cell gets a lease and sees the variables; then nothing is left over."""
    got = book.execute("%%gpu 1\nprint(len(openable()), x)", timeout=90)
    assert (got["status"], stream(got, "stdout")) == ("ok", "1 41\n"), got
    nothing_left(cluster)


def the_cell_goes_on(cluster: Cluster, book: Notebook, cell: str) -> None:
    """The running cell ends as if nothing had happened."""
    got = book.wait(cell)
    assert (got["status"], got["text"]) == ("ok", "through 41\n")
    next_cell_works(cluster, book)


def the_kernel_comes_back(cluster: Cluster, book: Notebook, cell: str, within: float) -> None:
    """The running cell gets an error that says so; the kernel goes on with its variables, and its client stays."""
    got = book.wait(cell, within)
    assert (got["status"], got["reply"]["ename"]) == ("error", "CellLost"), got
    assert book.is_alive()["alive"]
    next_cell_works(cluster, book)


def nothing_left(cluster: Cluster) -> None:
    until("no lease step is left", cluster.quiet, 40)
    until("no lease is left in the books", lambda: not cluster.leases_live(), 20)
    until("no holder is left", lambda: not cluster.pids(r"hop-agent hold"), 20)
    cluster.wait_for_pilots()
    drained = cluster.run("root", "sinfo", "-h", "-N", "-p", "notebook", "-t", "drain,draining,down", "-o", "%N %E")
    assert drained == ""


def test_front_killed_while_a_cell_runs_and_the_cell_goes_on(cluster: Cluster, alice: Notebook) -> None:
    cell = running(cluster, alice)
    cluster.kill(r"hop-front", "alice")
    the_cell_goes_on(cluster, alice, cell)


def test_each_subscriber_of_a_killed_front_hears_everything(cluster: Cluster, alice: Notebook) -> None:
    """As a Jupyter server, which subscribes for itself and for each page: one of them is back first."""
    cell = alice.submit("import time\nfor n in range(1000):\n    print(n)\n    time.sleep(0.005)")["cell"]
    for _ in range(4):
        cluster.kill(r"hop-front", "alice")
        time.sleep(1)
    lines = "".join(f"{n}\n" for n in range(1000))
    got = alice.wait(cell, 60)
    assert (got["status"], got["text"]) == ("ok", lines)
    until("the other one hears of the end", lambda: "idle" in alice.watched(cell)["states"], 10)
    assert alice.watched(cell)["text"] == lines
    next_cell_works(cluster, alice)


def test_replica_killed_and_the_kernel_goes_on(cluster: Cluster, alice: Notebook) -> None:
    cell = running(cluster, alice)
    cluster.kill(r"hop-replica run", "alice")
    the_kernel_comes_back(cluster, alice, cell, 20)


def test_ipykernel_killed_and_the_kernel_goes_on(cluster: Cluster, alice: Notebook) -> None:
    cell = running(cluster, alice)
    cluster.kill(r"ipykernel_launcher", "alice")
    the_kernel_comes_back(cluster, alice, cell, 20)


def test_agent_killed_and_the_cell_goes_on(cluster: Cluster, alice: Notebook) -> None:
    cell = running(cluster, alice)
    pilot = cluster.steps("alice")[0].split(".", maxsplit=1)[0]
    cluster.kill(r"hop-agent run")
    the_cell_goes_on(cluster, alice, cell)
    both_gpus_are_lent_by(cluster, alice, pilot)


def test_hopd_killed_and_running_cells_go_on_and_waiting_ones_wait(cluster: Cluster, alice: Notebook) -> None:
    with notebook(cluster, "bob") as bob:
        bob.execute(OPENABLE)
        bob.execute("x = 41")
        cell = running(cluster, alice)
        cluster.kill(r"opt/bin/hopd")
        waiting = bob.submit("%%gpu 1\nprint(len(openable()), x)")["cell"]
        time.sleep(1)
        cluster.deploy("hopd")
        got = alice.wait(cell)
        assert (got["status"], got["text"]) == ("ok", "through 41\n")
        late = bob.wait(waiting, 60)
        assert (late["status"], late["text"]) == ("ok", "1 41\n")
    next_cell_works(cluster, alice)


def test_srun_of_the_lease_killed_and_the_cell_goes_on(cluster: Cluster, alice: Notebook) -> None:
    cell = running(cluster, alice)
    pilot = cluster.steps("alice")[0].split(".", maxsplit=1)[0]
    cluster.kill(r"srun .*--gres=gpu")
    the_cell_goes_on(cluster, alice, cell)
    both_gpus_are_lent_by(cluster, alice, pilot)


def both_gpus_are_lent_by(cluster: Cluster, book: Notebook, pilot: str) -> None:
    """What was killed has cost the pilot nothing."""
    cell = book.submit("%%gpu 2\nimport time\ntime.sleep(0.5)\nprint(len(openable()))")["cell"]
    step = until("the lease is there", lambda: cluster.steps(book.user))[0]
    assert step.split(".", maxsplit=1)[0] == pilot
    assert book.wait(cell)["text"] == "2\n"


def test_srun_of_the_seats_step_killed_and_the_kernel_lives(cluster: Cluster, alice: Notebook) -> None:
    cell = running(cluster, alice)
    cluster.kill(r"srun .*hop-replica", "alice")
    the_cell_goes_on(cluster, alice, cell)


def test_slurmstepd_of_the_lease_killed_and_the_device_is_cleaned_before_anybody_gets_it(
    cluster: Cluster, alice: Notebook
) -> None:
    cell = running(cluster, alice)
    step = cluster.steps("alice")[0].split()[0]
    cluster.kill(rf"slurmstepd: \[{step}\]")
    got = alice.wait(cell)
    assert got["done"], got
    assert alice.execute("print(x)")["text"] == "41\n"
    until("the device doesn't open any longer", lambda: alice.execute("print(openable())")["text"] == "[]\n", 60)
    until("the pilot of that step is gone", lambda: step.split(".", maxsplit=1)[0] not in cluster.pilots(), 60)
    next_cell_works(cluster, alice)


def test_slurmd_killed_and_cells_go_on(cluster: Cluster, alice: Notebook) -> None:
    cell = running(cluster, alice)
    where = cluster.run("alice", "hop", "queue", "-n", "-P", "-o", "node").split()[0]
    try:
        cluster.devcluster("kill-slurmd", where)
        got = alice.wait(cell)
        assert (got["status"], got["text"]) == ("ok", "through 41\n")
    finally:
        cluster.devcluster("start-slurmd", where)
    next_cell_works(cluster, alice)


@pytest.mark.parametrize("how", ["scancel", pytest.param("suspend", marks=pytest.mark.thorough)])
def test_pilot_taken_away_and_the_user_is_told(cluster: Cluster, alice: Notebook, how: str) -> None:
    cell = running(cluster, alice)
    pilot = cluster.steps("alice")[0].split(".", maxsplit=1)[0]
    argv = ["scancel", pilot] if how == "scancel" else ["scontrol", "suspend", pilot]
    cluster.run("root", *argv)
    got = alice.wait(cell, 60)
    assert got["done"], got
    assert booked(cluster) == ["PREEMPTED", "PREEMPTED"]
    assert alice.execute("print(x)")["text"] == "41\n"
    until("that pilot is gone", lambda: pilot not in jobs(cluster), 60)
    next_cell_works(cluster, alice)


def test_a_lease_whose_step_is_cancelled_is_booked_so(cluster: Cluster, alice: Notebook) -> None:
    cell = running(cluster, alice)
    step, _ = cluster.steps("alice")[0].split(" ", 1)
    cluster.run("root", "scancel", step)
    assert alice.wait(cell, 60)["done"]
    assert booked(cluster) == ["CANCELLED", "CANCELLED"]
    next_cell_works(cluster, alice)


def test_a_node_without_room_for_the_plugins_records_is_told_and_counted(cluster: Cluster, alice: Notebook) -> None:
    if cluster.variant != "v1":
        pytest.skip("slurmd has mounts of its own here")

    def reason() -> str:
        return next(str(row["reason"]) for row in cluster.hop("info")["rows"] if row["node"] == node)

    node = alice.execute("import os; print(os.environ['SLURMD_NODENAME'])")["text"].strip()
    next_cell_works(cluster, alice)
    with disks.full_of_records(cluster, node):
        got = alice.execute("%%gpu 1\nprint(x)", timeout=90)
        assert got["status"] == "error"
        for told in (got["reply"]["evalue"], reason()):
            assert "the node's records: " in told and "No space left on device" in told, told
        assert re.search(r"its last \d leases did not start: ", reason()), reason()
    next_cell_works(cluster, alice)
    assert reason() == ""


def booked(cluster: Cluster) -> list[str]:
    """How alice's last lease and its last cell ended."""

    def rows() -> list[str]:
        return cluster.run("alice", "hop", "acct", "-n", "-P", "-o", "state").split()

    until("the lease's end is booked", lambda: not {"RUNNING", "LINGERING"} & set(rows()), 30)
    return rows()[-2:]


def jobs(cluster: Cluster) -> list[str]:
    return cluster.run("root", "squeue", "-h", "-o", "%i").split()


def test_seat_cancelled_and_the_kernel_goes_on_in_another(cluster: Cluster, alice: Notebook) -> None:
    cell = running(cluster, alice)
    cluster.run("alice", "scancel", "-u", "alice")
    the_kernel_comes_back(cluster, alice, cell, 30)


def test_a_node_that_slurm_gives_to_nobody_and_the_kernel_starts_on_another(cluster: Cluster) -> None:
    nodes = sorted({row["node"] for row in cluster.hop("info")["rows"]})
    drained = ",".join(nodes[:-1])
    # A seat that is left from another test would serve, on a drained node, too.
    cluster.run("root", "scancel", "-u", "bob", "-n", "kernels")
    until("bob's seats have ended", lambda: not cluster.run("root", "squeue", "-h", "-u", "bob"), 30)
    cluster.run("root", "scontrol", "update", f"nodename={drained}", "state=drain", "reason=test")
    try:
        with notebook(cluster, "bob") as book:
            assert book.execute("import os; print(os.environ['SLURMD_NODENAME'])")["text"] == nodes[-1] + "\n"
    finally:
        cluster.run("root", "scontrol", "update", f"nodename={drained}", "state=resume")
    cluster.wait_for_pilots()


def test_seat_ends_as_the_next_kernel_comes_and_that_one_gets_another(cluster: Cluster) -> None:
    with notebook(cluster, "alice"):
        seat = cluster.run("root", "squeue", "-h", "-u", "alice", "-n", "kernels", "-o", "%i").split()
    # hopd doesn't know yet.
    cluster.run("root", "scancel", *seat)
    with notebook(cluster, "alice") as book:
        assert book.execute("print(1 + 1)")["text"] == "2\n"


def test_a_kernel_whose_front_is_killed_while_it_closes_the_kernel_is_forgotten(cluster: Cluster) -> None:
    """Else `hop kernels` would list it as LOST for a day."""
    book = Notebook(cluster, "bob")
    try:
        book.start()
        (front,) = cluster.pids(r"hop-front", "bob")
        # The provisioner was told that the kernel is to go, and waits for its front.
        os.kill(front, signal.SIGSTOP)
        closing = threading.Thread(target=book.close)
        closing.start()
        time.sleep(1.5)
        os.kill(front, signal.SIGKILL)
        closing.join()
    finally:
        book.process.kill()
    until("hopd has forgotten the kernel", lambda: not cluster.hop("kernels", user="bob")["rows"])
    no_process_is_left(cluster, "bob")


@pytest.mark.parametrize("how", [pytest.param("stopped", marks=pytest.mark.thorough), "frozen"])
def test_slurmctld_away_for_20_s(cluster: Cluster, alice: Notebook, how: str) -> None:
    """Alice's cell runs on. Where pilots have step managers (24.05 on), bob gets fresh leases all the while; else his
    cell waits, and runs when slurmctld is back."""
    with notebook(cluster, "bob") as bob:
        bob.execute(OPENABLE)
        cell = running(cluster, alice, "%%gpu 1\nimport time\ntime.sleep(22)\nprint('through', x)")
        began = time.monotonic()
        served = []
        with without_slurmctld(cluster, how):
            while cluster.has_stepmgr and time.monotonic() < began + 16:
                until("bob's last lease is over", lambda: len(cluster.leases_live()) == 1, 10)
                fresh = bob.execute("%%gpu 1\nprint(len(openable()))", 10)
                assert (fresh["text"], fresh["lease"] and fresh["lease"]["lingering"]) == ("1\n", False), fresh
                served.append(str(fresh["lease"]["lease"]))
            later = bob.submit("%%gpu 1\nprint(len(openable()))")["cell"]
            if not cluster.has_stepmgr:
                # Long before anybody knows that slurmctld is away.
                until(
                    "bob reads what his cell waits for",
                    lambda: "its lease on" in str(bob.wait(later, 0)["notices"]),
                    10,
                )
            time.sleep(max(0.0, began + 20 - time.monotonic()))
            assert bob.wait(later, 0)["done"] == cluster.has_stepmgr
        got = alice.wait(cell)
        assert (got["status"], got["text"]) == ("ok", "through 41\n")
        late = bob.wait(later, 30)
        assert (late["status"], late["text"]) == ("ok", "1\n"), late
    next_cell_works(cluster, alice)
    if cluster.has_stepmgr:
        assert len(served) >= 2
        slurm_has_them_in_its_books(cluster, served)


def slurm_has_them_in_its_books(cluster: Cluster, leases: list[str]) -> None:
    rows = {row["lease_id"]: row["slurm_job_id"] for row in cluster.hop("acct", "-a", "-X")["rows"]}

    def known() -> bool:
        out = cluster.run("root", "sacct", "-a", "-n", "-P", "-o", "JobID,AllocTRES")
        return {rows[lease] for lease in leases} <= {r.split("|")[0] for r in out.splitlines() if "gres/gpu=1" in r}

    until("sacct has the steps that began while slurmctld was away", known)


def test_a_replica_without_a_front_ends_itself_within_a_minute(cluster: Cluster, abandoned: float) -> None:
    """It takes a minute, and its empty seat one more, so it happens beside the other tests."""
    gone = lambda: not cluster.pids(r"hop-replica run|ipykernel", "carol")  # noqa: E731
    until("no process of the kernel is left", gone, max(5.0, abandoned + 75 - time.monotonic()))
    until("hopd knows nothing of it", lambda: cluster.hop("kernels", user="carol")["rows"] == [], 5)
    over = lambda: not cluster.run("root", "squeue", "-h", "-u", "carol")  # noqa: E731
    until("the empty seat has ended too", over, max(5.0, abandoned + 180 - time.monotonic()))
