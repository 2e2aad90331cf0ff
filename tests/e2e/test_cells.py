"""A cell that waits, runs or lingers, and what becomes of it when somebody changes their mind or memory runs out.

Two GPUs on one node, two users: so that there is always one who waits. Each test says what its user reads.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from harness import OPENABLE, Cluster, Failed, Notebook, notebook, until

REASON = "it needs 1 GPU and all 2 that fit on {node} are in use"
HOLD = (
    "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\nos.remove('go')\nprint(len(openable()))"
)


@pytest.fixture(scope="module")
def books(two_gpus: Cluster) -> Iterator[tuple[Notebook, Notebook]]:
    """Alice's and bob's notebooks, each with a variable that has to survive."""
    with notebook(two_gpus, "alice") as alice, notebook(two_gpus, "bob") as bob:
        for book in (alice, bob):
            prepare(book)
        yield alice, bob


@pytest.fixture
def alice(two_gpus: Cluster, books: tuple[Notebook, Notebook]) -> Iterator[Notebook]:
    yield books[0]
    nothing_left(two_gpus)


@pytest.fixture
def bob(books: tuple[Notebook, Notebook]) -> Notebook:
    return books[1]


def prepare(book: Notebook) -> None:
    book.execute(OPENABLE)
    book.execute("x = 41")


def queue(cluster: Cluster, user: str) -> list[dict[str, Any]]:
    rows = cluster.hop("queue", "-a")["rows"]
    return [row for row in rows if row["user"] == user]


def go(cluster: Cluster, user: str) -> None:
    """Lets the cell with `HOLD` come to its end."""
    (cluster.base / "home" / user / "go").touch(mode=0o666)


@contextlib.contextmanager
def both_gpus(cluster: Cluster, bob: Notebook) -> Iterator[str]:
    """While bob's cell runs on both GPUs. It notices nothing of what others do meanwhile."""
    cell: str = bob.submit(f"%%gpu 2\n{HOLD}")["cell"]
    until("bob's cell runs", lambda: [r["state"] for r in queue(cluster, "bob")] == ["RUNNING"])
    try:
        yield cell
    finally:
        go(cluster, "bob")
        got = bob.wait(cell)
    assert (got["status"], got["text"]) == ("ok", "2\n"), got


def waiting(cluster: Cluster, alice: Notebook) -> tuple[str, dict[str, Any]]:
    """A cell of alice's that waits, and its row in the queue; she has been told why by the notebook."""
    cell: str = alice.submit("%%gpu 1\nprint(len(openable()), x)")["cell"]

    def told() -> bool:
        said = alice.notices(cell)["notices"]
        return bool(said) and said[-1].get("reason", "").endswith("in use")

    until("alice is told that she waits", told)
    (row,) = queue(cluster, "alice")
    assert (row["cell_id"], row["state"], row["position"]) == (cell, "PENDING", 1)
    assert row["reason"] == REASON.format(node=cluster.env["HOP_DEV_NODES"])
    return cell, row


def next_cell_works(alice: Notebook) -> None:
    got = alice.execute("%%gpu 1\nprint(len(openable()), x)")
    assert (got["status"], got["text"]) == ("ok", "1 41\n"), got


def nothing_left(cluster: Cluster) -> None:
    """But for idle leases, which are ended."""
    for row in cluster.hop("queue", "-a")["rows"]:
        if row["state"] == "LINGERING":
            cluster.run("root", "hop", "cancel", row["lease_id"], check=False)
    until("no cell waits, no lease lives", lambda: not cluster.hop("queue", "-a")["rows"], 20)
    until("no lease step is left", cluster.quiet, 20)


def test_two_leases_of_one_pilot_have_different_devices(two_gpus: Cluster, alice: Notebook, bob: Notebook) -> None:
    """By what Slurm tells each step, by what each kernel's cgroup lets open, and by what we say of them."""
    cells = [(book, book.submit(f"%%gpu 1\nprint(openable())\n{HOLD}")["cell"]) for book in (alice, bob)]
    until("both leases are there", lambda: len(two_gpus.steps()) == 2)
    until("both cells run", lambda: {r["state"] for r in two_gpus.hop("queue", "-a")["rows"]} == {"RUNNING"})
    rows = {row["user"]: row for row in two_gpus.hop("queue", "-a")["rows"]}
    by_slurm = {lease: environ["SLURM_STEP_GPUS"] for lease, environ in holders(two_gpus).items()}
    assert sorted(by_slurm.values()) == ["0", "1"]
    assert by_slurm == {row["lease_id"]: row["gpus"] for row in rows.values()}
    steps = two_gpus.run("root", "squeue", "-h", "-s", "-u", "gresshopper", "-o", "%b %j")
    assert sorted(line.split("/")[0] for line in steps.splitlines() if "gpu" in line) == [
        "gres:gpu:1 alice",
        "gres:gpu:1 bob",
    ]
    for user in ("alice", "bob"):
        go(two_gpus, user)
    node = two_gpus.env["HOP_DEV_NODES"]
    for book, cell in cells:
        got = book.wait(cell)
        assert got["text"] == f"['/dev/fakegpu-{node}-{by_slurm[str(got['lease']['lease'])]}']\n1\n"


def holders(cluster: Cluster) -> dict[str, dict[str, str]]:
    """The environment that Slurm gave the task of each lease's step, by lease."""
    found = {}
    for pid in cluster.pids(r"^\S*hop-agent hold "):
        environ = cluster.environ(pid)
        argv = cluster.argv(pid)
        found[argv[argv.index("--lease") + 1]] = environ
    return found


def test_a_cell_is_told_that_a_block_of_an_earlier_one_is_in_its_way(two_gpus: Cluster, alice: Notebook) -> None:
    opens = "import gresshopper, threading\nleave = threading.Event()\ndef train():\n    with gresshopper.gpu():\n        leave.wait()"
    start = "trains = threading.Thread(target=train, daemon=True)\ntrains.start()\nimport time; time.sleep(2)"
    assert alice.execute(f"{opens}\n{start}")["status"] == "ok"
    got = alice.execute("%%gpu\nprint('never')", 10)
    assert got["reply"]["ename"] == "LeaseRefused", got
    assert "block of an earlier cell still holds lease" in got["reply"]["evalue"]
    assert alice.execute("leave.set(); trains.join()")["status"] == "ok"
    assert alice.execute("%%gpu\nprint(len(openable()), x)")["text"] == "1 41\n"
    # A magic that the supervisor doesn't read runs nothing without its GPU.
    got = alice.execute("%%time\n%%gpu\nx = 0")
    assert (got["status"], got["lease"]) == ("error", None), got
    assert alice.execute("x")["status"] == "ok"


def test_a_generator_that_stands_in_a_block_keeps_no_gpu_after_its_cell(two_gpus: Cluster, alice: Notebook) -> None:
    lends = "import gresshopper\ndef lends():\n    with gresshopper.gpu():\n        yield len(openable())\n        yield len(openable())"
    got = alice.execute(f"{lends}\nopen_block = lends(); print(next(open_block))")
    said = "".join(o["text"] for o in got["outputs"] if o.get("name") == "stderr")
    assert got["status"] == "ok"
    assert "1\n" in got["text"]
    assert "GPUs were given back" in said, got
    until(
        "its lease only lingers", lambda: [r["state"] for r in two_gpus.hop("queue", "-a")["rows"]] == ["LINGERING"]
    )
    # The generator goes on with what the cell has that goes on with it, and its end takes nothing from that.
    got = alice.execute("%%gpu\nprint(next(open_block)); open_block.close(); print(len(openable()))")
    assert (got["status"], got["text"]) == ("ok", "1\n1\n"), got


def test_interrupt_of_a_cell_that_waits(two_gpus: Cluster, alice: Notebook, bob: Notebook) -> None:
    with both_gpus(two_gpus, bob):
        cell, _ = waiting(two_gpus, alice)
        behind = alice.submit("x = 0")["cell"]
        # The interrupt goes by another channel: it may be there before the cell.
        time.sleep(0.5)
        alice.interrupt()
        got = alice.wait(cell, 10)
        assert (got["status"], got["reply"]["ename"]) == ("error", "KeyboardInterrupt")
        assert "interrupted while it waited for its lease" in got["reply"]["evalue"]
        assert alice.wait(behind, 10)["status"] == "aborted", "as ipykernel does with what is behind an error"
        until("nothing of alice's waits", lambda: not queue(two_gpus, "alice"), 5)
        assert alice.execute("print(x)")["text"] == "41\n"
    next_cell_works(alice)


def test_restart_while_a_cell_waits(two_gpus: Cluster, alice: Notebook, bob: Notebook) -> None:
    with both_gpus(two_gpus, bob):
        waiting(two_gpus, alice)
        alice.restart()
        until("nothing of alice's waits", lambda: not queue(two_gpus, "alice"), 5)
        assert alice.execute("x")["reply"]["ename"] == "NameError", "a new kernel"
        prepare(alice)
    time.sleep(0.5)
    assert not queue(two_gpus, "alice"), "no lease for a cell that nobody waits for"
    next_cell_works(alice)


def test_a_kernel_that_is_lost_between_cells_is_there_for_the_next(two_gpus: Cluster, alice: Notebook) -> None:
    two_gpus.kill(r"hop-replica run", "alice")
    got = alice.execute("%%gpu 1\nprint(len(openable()), x)")
    assert (got["status"], got["outputs"][-1]["text"]) == ("ok", "1 41\n"), got


def test_restart_ends_a_lingering_lease_at_once(two_gpus: Cluster, alice: Notebook) -> None:
    alice.execute("%%gpu 1\n1")
    assert [r["state"] for r in queue(two_gpus, "alice")] == ["LINGERING"]
    alice.restart()
    until("the lease has ended", lambda: not queue(two_gpus, "alice"), 4)
    prepare(alice)
    next_cell_works(alice)


def test_restart_of_a_running_cell_gives_its_lease_back(two_gpus: Cluster, alice: Notebook) -> None:
    alice.submit("%%gpu 2\nimport time; time.sleep(60)")
    until("the cell runs", lambda: [r["state"] for r in queue(two_gpus, "alice")] == ["RUNNING"])
    alice.revive()
    until("the lease has ended", lambda: not queue(two_gpus, "alice"), 10)
    prepare(alice)
    next_cell_works(alice)


@pytest.mark.parametrize("when", ["waiting", "lingering"])
def test_shutdown_leaves_nothing(two_gpus: Cluster, bob: Notebook, when: str) -> None:
    with contextlib.ExitStack() as stack:
        if when == "waiting":
            stack.enter_context(both_gpus(two_gpus, bob))
        with notebook(two_gpus, "carol") as carol:
            if when == "waiting":
                carol.submit("%%gpu 1\n1")
                until("it waits", lambda: [r["state"] for r in queue(two_gpus, "carol")] == ["PENDING"])
            else:
                carol.execute("%%gpu 1\n1")
                assert [r["state"] for r in queue(two_gpus, "carol")] == ["LINGERING"]
        until("nothing of carol's is in the queue", lambda: not queue(two_gpus, "carol"), 5)
        until(
            "no process of carol's kernel is left", lambda: not two_gpus.pids(r"replica run|ipykernel|front", "carol")
        )
    nothing_left(two_gpus)


@pytest.mark.parametrize("by", ["alice", "root"])
def test_hop_cancel_of_a_cell_that_waits(two_gpus: Cluster, alice: Notebook, bob: Notebook, by: str) -> None:
    with both_gpus(two_gpus, bob):
        cell, row = waiting(two_gpus, alice)
        name = f"{row['kernel_id']}/{cell}"
        with pytest.raises(Failed, match=r"there is no kernel .* of yours"):
            two_gpus.run("bob", "hop", "cancel", name)
        assert [r["cell_id"] for r in queue(two_gpus, "alice")] == [cell]
        two_gpus.run(by, "hop", "cancel", name)
        got = alice.wait(cell, 10)
        assert (got["status"], got["reply"]["ename"]) == ("error", "LeaseRefused")
        assert got["reply"]["evalue"] == f"cancelled by {by}"
        assert not queue(two_gpus, "alice")
    next_cell_works(alice)


@pytest.mark.parametrize("by", ["alice", "root"])
def test_hop_cancel_of_a_cell_that_runs(two_gpus: Cluster, alice: Notebook, by: str) -> None:
    """Alice names the cell, root the lease: it is the same. The kernel and its variables live on."""
    cell = alice.submit("%%gpu 1\nimport time\nprint(len(openable()), flush=True)\ntime.sleep(60)")["cell"]
    until("the cell runs", lambda: [r["state"] for r in queue(two_gpus, "alice")] == ["RUNNING"])
    (row,) = queue(two_gpus, "alice")
    lease = row["lease_id"]
    names = {"alice": f"{row['kernel_id'][:8]}/{cell}", "root": lease}
    for refused in (names["root"], names["alice"]):
        with pytest.raises(Failed, match="of yours"):
            two_gpus.run("bob", "hop", "cancel", refused)
    assert [r["state"] for r in queue(two_gpus, "alice")] == ["RUNNING"]
    two_gpus.run(by, "hop", "cancel", names[by])
    got = alice.wait(cell, 10)
    assert (got["status"], got["reply"]["ename"]) == ("error", "LeaseRevoked"), got
    assert "the lease was cancelled" in got["reply"]["evalue"]
    assert "gresshopper: the GPU was taken away: the lease was cancelled" in got["text"]
    assert got["notices"][-1] == {"state": "revoked", "lease": int(lease), "reason": "the lease was cancelled"}
    assert got["lease"]["revoked"] == "the lease was cancelled"
    until("the lease is over", lambda: not queue(two_gpus, "alice"), 10)
    assert alice.execute("print(openable(), x)")["text"] == "[] 41\n"
    (told,) = two_gpus.hop("acct", "-a", "-X", "-j", lease)["rows"]
    assert told["state"] == "CANCELLED"
    next_cell_works(alice)


def test_hop_cancel_of_a_kernel(two_gpus: Cluster, alice: Notebook) -> None:
    with notebook(two_gpus, "carol") as carol:
        cell = carol.submit("%%gpu 1\nimport time; time.sleep(60)")["cell"]
        until("the cell runs", lambda: [r["state"] for r in queue(two_gpus, "carol")] == ["RUNNING"])
        kernel = queue(two_gpus, "carol")[0]["kernel_id"]
        with pytest.raises(Failed, match="of yours"):
            two_gpus.run("alice", "hop", "cancel", "--kernel", kernel)
        two_gpus.run("root", "hop", "cancel", "--kernel", kernel)
        got = carol.wait(cell, 20)
        assert (got["status"], got["reply"]["ename"]) == ("error", "KernelDied")
        assert "cancelled by root" in got["reply"]["evalue"]
    assert not queue(two_gpus, "carol")


def test_a_kernel_that_goes_by_anothers_id_gets_nothing_and_ends_nothing(two_gpus: Cluster, alice: Notebook) -> None:
    """Carol starts a kernel with the id of alice's, asks for a GPU by it, and closes it."""
    cell = alice.submit(f"%%gpu 1\n{HOLD}\nprint(x)")["cell"]
    until("the cell runs", lambda: [r["state"] for r in queue(two_gpus, "alice")] == ["RUNNING"])
    (row,) = queue(two_gpus, "alice")
    with notebook(two_gpus, "carol", kernel_id=row["kernel_id"]) as carol:
        stolen = carol.submit("%%gpu 1\nprint('mine')")["cell"]
        assert not carol.wait(stolen, 2)["done"]
        assert not queue(two_gpus, "carol")
    assert [r["state"] for r in queue(two_gpus, "alice")] == ["RUNNING"]
    go(two_gpus, "alice")
    got = alice.wait(cell)
    assert (got["status"], got["text"]) == ("ok", "1\n41\n"), got
    next_cell_works(alice)


def test_the_next_in_the_queue_gets_what_a_killed_replica_had(
    two_gpus: Cluster, alice: Notebook, bob: Notebook
) -> None:
    lost = bob.submit("%%gpu 2\nimport time; time.sleep(60)")["cell"]
    until("bob's cell runs", lambda: [r["state"] for r in queue(two_gpus, "bob")] == ["RUNNING"])
    cell, _ = waiting(two_gpus, alice)
    two_gpus.kill(r"hop-replica run", "bob")
    got = alice.wait(cell, 10)
    assert (got["status"], got["text"]) == ("ok", "1 41\n")
    assert bob.wait(lost, 20)["reply"]["ename"] == "CellLost"
    assert bob.execute("print(x)")["outputs"][-1]["text"] == "41\n"


def test_a_lease_of_cores_alone(two_gpus: Cluster, alice: Notebook) -> None:
    got = alice.execute("%%cpu --cpus 4\nprint(openable())")
    assert (got["text"], got["lease"]["devices"]) == ("[]\n", [])
    (row,) = two_gpus.hop("acct", "-a", "-X", "-j", str(got["lease"]["lease"]))["rows"]
    out = two_gpus.run("root", "sacct", "-a", "-n", "-P", "-j", row["slurm_job_id"], "-o", "AllocTRES")
    assert "cpu=4" in out and "gres/gpu" not in out


def test_a_kernel_that_runs_out_of_memory_takes_no_other_down(
    two_gpus: Cluster, alice: Notebook, bob: Notebook
) -> None:
    """Each has a step with a limit of its own, those of one user too. It happens on a lease, which ends."""
    with notebook(two_gpus, "alice") as greedy:
        others = [(book, book.submit(HOLD.replace("openable()", "[1]"))["cell"]) for book in (alice, bob)]
        cell = greedy.submit("%%gpu 1\nbig = [bytes(b'1' * (1 << 20)) for _ in range(3000)]")["cell"]
        got = greedy.wait(cell, 60)
        assert (got["status"], got["reply"]["ename"]) == ("error", "CellLost")
        assert got["reply"]["evalue"].startswith(
            "the kernel ran out of memory (its limit is 2048 MiB) and was killed."
        )
        assert greedy.is_alive()["alive"]
        until("its lease is over", two_gpus.quiet)
        for book, held in others:
            go(two_gpus, book.user)
            after = book.wait(held)
            assert (after["status"], after["text"]) == ("ok", "1\n")
            assert book.execute("print(x)")["text"] == "41\n"
        greedy.revive()
        assert greedy.execute("%%gpu 1\nprint(1 + 1)")["text"] == "2\n"
