"""Kernels with three replicas on three nodes. Each test says what the user sees; nothing is left over after it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from groups import (
    AWAKE,
    HOT,
    KEEPER,
    SAVED,
    THREE,
    grown,
    hot_node,
    is_grown,
    kernel_row,
    paused,
    processes,
    seats_of,
    send,
    without_hopd,
)
from harness import (
    OPENABLE,
    UNTIL_GO,
    Cluster,
    Notebook,
    lose_in_a_cell,
    lost_node,
    node_of,
    notebook,
    nothing_is_left,
    stream,
    until,
    without_slurmctld,
)


@pytest.fixture
def alice(cluster: Cluster) -> Iterator[Notebook]:
    with notebook(cluster, "alice", env=THREE) as book:
        book.execute(OPENABLE)
        book.execute("x = 41")
        until("the kernel has three replicas", lambda: is_grown(cluster), 60)
        yield book
    nothing_is_left(cluster)


def runs_with_a_gpu(book: Notebook) -> None:
    got = book.execute("%%gpu 1\nprint(len(openable()), x)", timeout=90)
    assert (got["status"], stream(got, "stdout")) == ("ok", "1 41\n"), got


def spares(cluster: Cluster) -> list[int]:
    """The supervisors of the spare interpreters that wait: each has an interpreter below it."""
    return cluster.pids(r"^\S+/hop-replica spare", "alice")


def two_spares(cluster: Cluster, executor: int) -> set[int]:
    """Those of the two standbys' seats, once they are there; the executor may have been one."""

    def others() -> set[int]:
        return set(spares(cluster)) - {executor}

    until("two spares wait", lambda: len(others()) == 2, 90)
    return others()


def executes_in(cluster: Cluster, book: Notebook) -> int:
    """The supervisor of the kernel's process."""
    got = book.execute("print(os.getppid(), os.environ['GRESSHOPPER_KERNEL'])", timeout=90)
    pid, kernel = stream(got, "stdout").split()
    assert kernel == kernel_row(cluster)["kernel_id"]
    return int(pid)


def test_a_spare_interpreter_takes_over_once(cluster: Cluster, alice: Notebook) -> None:
    """The process that waited becomes the kernel, with the notebook's variables and folder; another one waits then."""
    folder = stream(alice.execute("print(os.getcwd())"), "stdout")
    for _ in range(4):
        waited = two_spares(cluster, executes_in(cluster, alice))
        # A spare that isn't ready on a busy host costs a fresh start, not the takeover.
        time.sleep(4)
        node = node_of(alice)
        with lost_node(cluster, node):
            assert node_of(alice) != node
        pid = executes_in(cluster, alice)
        if pid in waited:
            break
    assert pid in waited
    assert stream(alice.execute("print(os.getcwd())"), "stdout") == folder
    runs_with_a_gpu(alice)
    assert pid not in two_spares(cluster, pid)
    # The next process of the kernel is started by a supervisor that was a spare, and has its kernel's name as well.
    alice.restart()
    alice.execute("import os")
    executes_in(cluster, alice)


def test_a_move_is_prepared_while_cells_go_on(cluster: Cluster, alice: Notebook) -> None:
    """The process that the kernel moves to has waited for it, and has what each cell of before has left."""
    alice.execute("n, y = 0, [x]; z = {'y': y}")
    first = node_of(alice)
    cells = 0
    for to in [sorted(grown(cluster) - {first})[0], first]:
        cluster.run("alice", "hop", "migrate", kernel_row(cluster)["kernel_id"], "--to", to, "--no-wait")
        node, deadline = "", time.monotonic() + 90
        while node != to:
            assert time.monotonic() < deadline
            got = alice.execute("n += 1; y.append(n); print(os.environ['SLURMD_NODENAME'])", timeout=90)
            assert got["status"] == "ok" and not stream(got, "stderr"), got
            node, cells = stream(got, "stdout").strip(), cells + 1
        supervisor = executes_in(cluster, alice)
        assert "--standby" in cluster.argv(supervisor), "it was there before"
        got = alice.execute("print(n, y == [x, *range(1, n + 1)], z['y'] is y)")
        assert stream(got, "stdout") == f"{cells} True True\n"
        runs_with_a_gpu(alice)
        grown(cluster)


def test_a_follower_that_is_lost_costs_no_move(cluster: Cluster, alice: Notebook) -> None:
    """The kernel goes to the standby without a process that is prepared, and a lost executor's kernel to any standby."""
    node = node_of(alice)
    to = sorted(grown(cluster) - {node})[0]
    cell = alice.submit("import time; time.sleep(6); y = 7")["cell"]
    cluster.run("alice", "hop", "migrate", kernel_row(cluster)["kernel_id"], "--to", to, "--no-wait")
    cluster.kill(r"hop-replica run .*--standby", "alice")
    assert alice.wait(cell, 60)["status"] == "ok"
    until("the kernel has moved", lambda: node_of(alice) == to, 60)
    assert stream(alice.execute("print(x, y)"), "stdout") == "41 7\n"
    cell = alice.submit("time.sleep(60)")["cell"]
    cluster.run("alice", "hop", "migrate", kernel_row(cluster)["kernel_id"], "--to", node, "--no-wait")
    until("a process is prepared", lambda: cluster.pids(r"hop-replica run .*--standby", "alice"), 30)
    with lost_node(cluster, to):
        assert alice.wait(cell, 60)["reply"]["ename"] == "CellLost"
        assert stream(alice.execute("print(x, y)", timeout=90), "stdout") == "41 7\n"
        runs_with_a_gpu(alice)


def test_spares_that_were_killed_or_stand_still_only_delay_a_takeover(cluster: Cluster, alice: Notebook) -> None:
    node, waited = node_of(alice), sorted(two_spares(cluster, executes_in(cluster, alice)))
    # One has died with its interpreter, the other one hears nothing.
    os.kill(waited[0], signal.SIGKILL)
    os.kill(waited[1], signal.SIGSTOP)
    try:
        with lost_node(cluster, node):
            assert node_of(alice) != node
            assert executes_in(cluster, alice) not in waited
            runs_with_a_gpu(alice)
    finally:
        os.kill(waited[1], signal.SIGCONT)


def test_the_executors_node_is_lost_and_another_replica_goes_on(cluster: Cluster, alice: Notebook) -> None:
    node, members = node_of(alice), grown(cluster)
    with lost_node(cluster, node):
        now = node_of(alice)
        assert now in members - {node}, "another replica executes"
        runs_with_a_gpu(alice)
        grown(cluster, without=node)
    # The one that took over is lost as well.
    with lost_node(cluster, now):
        assert node_of(alice) != now
        runs_with_a_gpu(alice)


def tenure_on(cluster: Cluster, node: str) -> int:
    """The tenure of the executor there, once `hopd` knows it."""

    def found() -> int:
        row = kernel_row(cluster)
        return int(row["tenure"]) if row["node"] == node else 0

    return int(until("hopd knows the kernel's executor", found, 30))


def test_a_deposed_executor_is_lent_no_gpu_though_its_connections_stand(cluster: Cluster, alice: Notebook) -> None:
    node, members = node_of(alice), grown(cluster)
    runs_with_a_gpu(alice)
    with paused(cluster, node):
        now = node_of(alice)
        assert now in members - {node}, "another replica executes"
        tenure = tenure_on(cluster, now)
        runs_with_a_gpu(alice)
    # It goes on, and hears that its tenure is over. A host that stands still for a second has the group elect once more.
    for _ in range(5):
        at = node_of(alice)
        assert at == now or tenure_on(cluster, at) > tenure
        runs_with_a_gpu(alice)
    grown(cluster)


def test_a_node_that_falls_silent_between_two_cells_is_not_waited_for_as_in_a_cell(
    cluster: Cluster, alice: Notebook
) -> None:
    """A running cell is waited for ten seconds. Between two cells nothing would be lost, and its user waits less."""
    node, members = node_of(alice), grown(cluster)
    # The others hear that the kernel is at rest.
    time.sleep(3)
    with paused(cluster, node):
        began = time.monotonic()
        now = node_of(alice)
        assert time.monotonic() - began < 10 and now in members - {node}
    grown(cluster)


FOLLOWS = r"^\S+/hop-replica run .*--follows"


def follower(cluster: Cluster, book: Notebook) -> int:
    """The supervisor of the hot standby; the executor may have been one."""
    (pid,) = set(cluster.pids(FOLLOWS, "alice")) - {executes_in(cluster, book)}
    return pid


@pytest.fixture
def hot(cluster: Cluster) -> Iterator[Notebook]:
    with notebook(cluster, "alice", env=HOT) as book:
        book.execute(OPENABLE)
        book.execute("x = 41; n, y = 0, [x]; z = {'y': y}")
        grown(cluster)
        yield book
    nothing_is_left(cluster)


def test_a_hot_standby_has_the_variables_before_it_is_needed(cluster: Cluster, hot: Notebook) -> None:
    """Its process becomes the kernel, restores nothing, and another standby is hot then."""
    node, ready = node_of(hot), hot_node(cluster)
    pid, kernel = follower(cluster, hot), kernel_row(cluster)["kernel_id"]
    assert ready in grown(cluster) - {node}
    assert f"on {ready} has its variables as well" in cluster.run("alice", "hop", "explain", kernel)
    for _ in range(5):
        hot.execute("n += 1; y.append(n)")
    with lost_node(cluster, node):
        got = hot.execute("print(n, y == [x, *range(1, n + 1)], z['y'] is y)", timeout=90)
        assert stream(got, "stdout") == "5 True True\n", got
        assert (executes_in(cluster, hot), node_of(hot)) == (pid, ready)
        runs_with_a_gpu(hot)
        hot_node(cluster, without=ready)
        assert follower(cluster, hot) != pid


SLOW = """
class Slow:
    def __getstate__(self): return {'n': 41}
    def __setstate__(self, state):
        import time
        time.sleep(6)
        self.__dict__.update(state)
slow = Slow()
"""


@pytest.mark.thorough
def test_a_standby_that_still_reads_is_not_waited_for(cluster: Cluster, hot: Notebook) -> None:
    """It is elected all the same, in the same group, and a fresh process goes on in its place."""
    hot_node(cluster)
    before = follower(cluster, hot)
    hot.execute(SLOW)
    time.sleep(SAVED)
    os.kill(before, signal.SIGKILL)
    until("another one reads", lambda: set(cluster.pids(FOLLOWS, "alice")) - {before}, 60)
    node, row = node_of(hot), kernel_row(cluster)
    reads = follower(cluster, hot)
    with lost_node(cluster, node):
        assert stream(hot.execute("print(x, z['y'] is y)", timeout=90), "stdout") == "41 True\n"
        assert executes_in(cluster, hot) != reads
        assert int(kernel_row(cluster)["tenure"]) // 1_000_000 == int(row["tenure"]) // 1_000_000
        runs_with_a_gpu(hot)
        hot_node(cluster)


def test_a_hot_standby_that_ends_is_followed_by_another(cluster: Cluster, hot: Notebook) -> None:
    """Large data come along from the store, and a move goes to it at once."""
    hot_node(cluster)
    before = follower(cluster, hot)
    hot.execute("large = os.urandom(16 << 20)")
    time.sleep(5)
    assert follower(cluster, hot) == before, "a record of large data names the store's"
    os.kill(before, signal.SIGKILL)
    until("the log says so", lambda: not kernel_row(cluster)["hot"], 30)
    to = hot_node(cluster)
    pid = follower(cluster, hot)
    assert pid != before
    cluster.run("alice", "hop", "migrate", kernel_row(cluster)["kernel_id"], "--to", to)
    assert (node_of(hot), executes_in(cluster, hot)) == (to, pid)
    assert stream(hot.execute("print(len(large), z['y'] is y)"), "stdout") == f"{16 << 20} True\n"
    hot_node(cluster, without=to)


def test_the_node_of_a_standby_is_lost_and_nobody_notices(cluster: Cluster, alice: Notebook) -> None:
    node, members = node_of(alice), grown(cluster)
    standby = sorted(members - {node})[0]
    with lost_node(cluster, standby):
        for _ in range(20):
            assert node_of(alice) == node
        grown(cluster, without=standby)


def test_a_lost_replica_is_replaced_on_its_own_node_where_no_other_is_left(cluster: Cluster, alice: Notebook) -> None:
    node, members = node_of(alice), grown(cluster)
    (fourth,) = set(cluster.env["HOP_DEV_NODES"].split(",")) - members
    standby = sorted(members - {node})[0]

    there = ("-t", "R", "-w", standby)
    before = seats_of(cluster, *there)
    with lost_node(cluster, fourth):
        cluster.devcluster("lose-node", standby)
        cluster.bring_back(standby)
        until("the group has another seat there", lambda: seats_of(cluster, *there) - before, 90)
        assert grown(cluster) == members
        assert node_of(alice) == node


def test_a_move_to_another_replica_is_an_election(cluster: Cluster, alice: Notebook) -> None:
    """The one that is wanted executes from the next cell on; all three stay, and no seat is started."""
    node, members = node_of(alice), grown(cluster)
    seats = seats_of(cluster)
    # In the end back to the first one, which has only just left.
    for to in [*sorted(members - {node}), node, sorted(members - {node})[0]]:
        cluster.run("alice", "hop", "migrate", kernel_row(cluster)["kernel_id"], "--to", to)
        assert node_of(alice) == to
        runs_with_a_gpu(alice)
        assert (grown(cluster), seats_of(cluster)) == (members, seats)


def test_a_cell_goes_to_the_replica_beside_a_free_gpu_without_anybodys_order(
    roaming: Cluster, alice: Notebook
) -> None:
    """Another user's long cell has the GPUs of the executor's node: the group elects a standby, and stays as it is."""
    cluster = roaming
    node, members, seats = node_of(alice), grown(cluster), seats_of(cluster)
    runs_with_a_gpu(alice)
    until("no lease lingers", lambda: not cluster.leases_live(), 20)
    go = cluster.base / "home/bob/go"
    go.unlink(missing_ok=True)
    with notebook(cluster, "bob", env={"GRESSHOPPER_REPLICAS": "1"}) as bob:
        bob.execute("import os; x = 41")
        if node_of(bob) != node:
            (row,) = cluster.hop("kernels", "-t", AWAKE, user="bob")["rows"]
            cluster.run("bob", "hop", "migrate", row["kernel_id"], "--to", node)
        assert node_of(bob) == node
        held = bob.submit(f"%%gpu 2\n{UNTIL_GO}")["cell"]
        until("it holds the node's GPUs", cluster.leases_live)
        now = node
        for _ in range(3):
            got = alice.execute("%%gpu 1\nprint(os.environ['SLURMD_NODENAME'], x, len(openable()))", timeout=90)
            assert (got["status"], stream(got, "stderr")) == ("ok", ""), got
            at, x, count = stream(got, "stdout").split()
            assert (x, count) == ("41", "1")
            assert at in members - {node}, "on a standby's node"
            assert now in (node, at), "and there it stays"
            now = at
        assert not bob.wait(held, 0.1)["done"]
        assert (grown(cluster), seats_of(cluster)) == (members, seats), "no seat was started for it"
        go.touch(mode=0o666)
        assert bob.wait(held, 30)["status"] == "ok"
    nothing_is_left(cluster, "bob")


def test_a_node_is_lost_in_a_cell_and_its_user_reads_so(cluster: Cluster, alice: Notebook) -> None:
    lose_in_a_cell(cluster, alice)


def test_what_was_answered_in_the_last_moment_is_there(cluster: Cluster, alice: Notebook) -> None:
    """No second passes between the reply and the loss: the record is in the log of the others, or its loss is told."""
    node = node_of(alice)
    for n in range(30):
        alice.execute(f"y = {n}")
    with lost_node(cluster, node):
        got = alice.execute("print(y)", timeout=90)
        told = "is not in the saved state" in stream(got, "stderr") or "lost" in stream(got, "stderr")
        assert stream(got, "stdout") == "29\n" or told, got


def test_the_first_replicas_node_is_lost_while_the_group_grows(cluster: Cluster) -> None:
    """What it answered is there, or its user is told; the group grows all the same."""
    with notebook(cluster, "alice", env=THREE) as book:
        book.execute("import os; x = 41")
        node = node_of(book)
        with lost_node(cluster, node):
            got = book.execute("print(x)", timeout=120)
            told = "lost" in stream(got, "stderr") or "gone" in stream(got, "stderr")
            assert stream(got, "stdout") == "41\n" or told, got
            book.execute("import os; x = 41")
            assert node_of(book) != node
            grown(cluster, without=node)
    nothing_is_left(cluster)


@pytest.mark.parametrize("seconds", [5, pytest.param(30, marks=pytest.mark.thorough)])
def test_an_executor_that_stands_still_in_a_cell_runs_it_once(
    cluster: Cluster, alice: Notebook, seconds: float
) -> None:
    """After a short stop the cell ends; after a long one another replica has told its loss. No effect of a lost one stays."""
    notes = cluster.base / "home/alice/stood-still"
    notes.unlink(missing_ok=True)
    cell = alice.submit(f"open({str(notes)!r}, 'a').write('.'); import time; time.sleep(2); y = 42")["cell"]
    until("the cell has begun", notes.exists, 30)
    with paused(cluster, node=kernel_row(cluster)["node"]):
        time.sleep(seconds)
    got = alice.wait(cell, 90)
    assert got["done"], got
    after = alice.execute("print(x, globals().get('y'))", timeout=90)
    if got["status"] == "ok":
        assert stream(after, "stdout") == "41 42\n", (got, after)
    else:
        assert got["reply"]["ename"] == "CellLost", got
        assert stream(after, "stdout") == "41 None\n", (got, after)
    assert notes.read_text() == "."
    grown(cluster)


def all_are_kept(cluster: Cluster) -> bool:
    """Whether the keeper of each of the kernel's replicas runs."""
    nodes = kernel_row(cluster)["nodes"].split(",")
    return all(processes(cluster, [node], KEEPER) for node in nodes)


def only_keeper(cluster: Cluster, node: str) -> int:
    """The node's keeper, once the seats of earlier tests have ended there."""
    until("the node has one keeper", lambda: len(processes(cluster, [node], KEEPER)) == 1, 90)
    (keeper,) = processes(cluster, [node], KEEPER)
    return keeper


def test_the_keeper_is_killed_alone_in_a_cell(cluster: Cluster, alice: Notebook) -> None:
    """The executor's, then a standby's: the cell is answered, and another seat keeps the log."""
    for of_a_standby in (False, True):
        row = kernel_row(cluster)
        standbys = set(row["nodes"].split(",")) - {row["node"]}
        node = sorted(standbys)[0] if of_a_standby else row["node"]
        keeper = only_keeper(cluster, node)
        notes = cluster.base / "home/alice/without-keeper"
        notes.unlink(missing_ok=True)
        cell = alice.submit(f"open({str(notes)!r}, 'a').write('.'); import time; time.sleep(2); y = {row['tenure']}")[
            "cell"
        ]
        until("the cell has begun", notes.exists, 30)
        os.kill(keeper, signal.SIGKILL)
        got = alice.wait(cell, 90)
        assert got["done"] and got["answers"] == 1, got
        assert got["status"] == "ok" or (not of_a_standby and got["reply"]["ename"] == "CellLost"), got
        after = alice.execute("print(x, globals().get('y'))", timeout=90)
        assert stream(after, "stdout") == f"41 {row['tenure'] if got['status'] == 'ok' else None}\n", (got, after)
        assert notes.read_text() == "."
        # The killed one is a member until its place is taken; seats of earlier tests stay for a minute, and keep nothing.
        until("each replica has a keeper", lambda: is_grown(cluster) and all_are_kept(cluster), 90)


def test_an_executor_is_lost_in_a_cell_while_hopd_is_away(cluster: Cluster, alice: Notebook) -> None:
    """A standby takes over by the group's own election; the third replica and GPUs come back with `hopd`."""
    row = kernel_row(cluster)
    with without_hopd(cluster):
        assert stream(alice.execute("y = 42; print(x)"), "stdout") == "41\n"
        cell = alice.submit("y = 0; import time; time.sleep(60)")["cell"]
        until("the cell runs", lambda: not alice.wait(cell, 1)["done"])
        send(processes(cluster, [row["node"]]), signal.SIGKILL)
        got = alice.wait(cell, 60)
        assert (got["status"], got["reply"]["ename"], got["answers"]) == ("error", "CellLost", 1), got
        got = alice.execute("print(x, y, os.environ['SLURMD_NODENAME'])", timeout=90)
        x, y, now = stream(got, "stdout").split()
        assert (x, y) == ("41", "42") and now in set(row["nodes"].split(",")) - {row["node"]}, got
    until("hopd knows the kernel's executor", lambda: kernel_row(cluster)["node"] == now, 30)
    runs_with_a_gpu(alice)
    grown(cluster)


def test_a_cell_begins_and_ends_with_hopd_and_has_none_between(cluster: Cluster, alice: Notebook) -> None:
    """Its GPU stays its own; one that waits for a GPU has it once `hopd` is there again."""
    row = kernel_row(cluster)
    cell = alice.submit("%%gpu 1\nimport time; time.sleep(4); print(len(openable()), x)")["cell"]
    until("the cell has its GPU", cluster.leases_live, 30)
    with without_hopd(cluster):
        time.sleep(1)
        waits = alice.submit("%%gpu 1\nprint(len(openable()), x)")["cell"]
        time.sleep(1)
    for asked in (cell, waits):
        got = alice.wait(asked, 90)
        assert (got["status"], stream(got, "stdout"), got["answers"]) == ("ok", "1 41\n", 1), got
    now = kernel_row(cluster)
    assert (now["node"], now["tenure"], now["replicas"]) == (row["node"], row["tenure"], 3)


#: Writes where it runs and when, twenty times a second: the first attempt for a minute, the next one for two seconds.
RETRIED = """%%retry
import os, time
path = {path!r}
began, first = time.time(), not os.path.exists(path)
with open(path, "a", buffering=1) as lines:
    while time.time() - began < (60 if first else 2):
        lines.write(f"{{os.environ['SLURMD_NODENAME']}} {{os.getpid()}} {{time.time()}}\\n")
        time.sleep(0.05)
print("ended")"""


def attempts(path: Path) -> list[tuple[float, float]]:
    """The beginning and the end of each process's lines, in their order."""
    times: dict[str, list[float]] = {}
    for line in path.read_text().splitlines():
        process, at = line.rsplit(maxsplit=1)
        times.setdefault(process, []).append(float(at))
    return sorted((min(found), max(found)) for found in times.values())


@pytest.mark.parametrize("what", [pytest.param("seat and supervisor", marks=pytest.mark.thorough), "node"])
def test_a_retried_cell_never_runs_beside_its_former_run(cluster: Cluster, alice: Notebook, what: str) -> None:
    """Its executor falls silent. Where the supervisor stands still, the kernel's process would run on by itself."""
    path = cluster.base / "home/alice/attempts"
    path.unlink(missing_ok=True)
    node = kernel_row(cluster)["node"]
    cell = alice.submit(RETRIED.format(path=str(path)))["cell"]
    until("the cell has begun", path.exists, 30)
    time.sleep(3)
    with contextlib.ExitStack() as stack:
        if what == "node":
            cluster.devcluster("pause-node", node)
            stack.callback(cluster.devcluster, "resume-node", node)
        else:
            stack.enter_context(paused(cluster, node))
        got = alice.wait(cell, 90)
        assert (got["status"], stream(got, "stdout")) == ("ok", "ended\n"), got
    time.sleep(5)
    former, later = attempts(path)
    assert former[1] < later[0], (former, later)
    assert "retry" in [notice.get("state") for notice in got["notices"]], got
    assert alice.execute("print(x)", timeout=90)["status"] == "ok"
    grown(cluster)


def test_the_supervisor_is_killed_and_its_seat_starts_another(cluster: Cluster, alice: Notebook) -> None:
    assert cluster.kill(r"hop-replica run", "alice")
    assert node_of(alice)
    runs_with_a_gpu(alice)
    grown(cluster)


def test_the_executors_seat_is_cancelled_and_the_kernel_is_handed_over(cluster: Cluster, alice: Notebook) -> None:
    members = grown(cluster)
    seat = stream(alice.execute("print(os.environ['SLURM_JOB_ID'])"), "stdout").strip()
    alice.execute("y = [x, x]")
    cluster.run("alice", "scancel", seat)
    until("the seat has ended", lambda: seat not in cluster.run("root", "squeue", "-h", "-o", "%i").split(), 40)
    got = alice.execute("print(os.environ['SLURMD_NODENAME'], y)", timeout=90)
    now, y = stream(got, "stdout").split(maxsplit=1)
    assert now in members and y == "[41, 41]\n", got
    grown(cluster)


def test_two_of_three_are_lost_and_the_kernel_comes_back_from_the_store(cluster: Cluster, alice: Notebook) -> None:
    node, members = node_of(alice), grown(cluster)
    time.sleep(SAVED)
    standby = sorted(members - {node})[0]
    with lost_node(cluster, standby, node):
        assert node_of(alice) not in (node, standby)
        runs_with_a_gpu(alice)
    grown(cluster)


def test_both_standbys_are_lost_and_the_executor_gives_its_group_up(cluster: Cluster, alice: Notebook) -> None:
    node, members = node_of(alice), grown(cluster)
    with lost_node(cluster, *(members - {node})):
        got = alice.execute("y = 42", timeout=90)
        assert (got["status"], got["done"]) == ("ok", True), got
        got = alice.execute("print(x, y)", timeout=90)
        assert (got["status"], stream(got, "stdout")) == ("ok", "41 42\n"), got


def test_all_three_are_lost_and_the_kernel_comes_back_from_the_store(cluster: Cluster, alice: Notebook) -> None:
    time.sleep(SAVED)
    cluster.kill(r"hop-replica", "alice")
    assert node_of(alice)
    grown(cluster)


def test_a_restart_is_fresh_and_grows_again(cluster: Cluster, alice: Notebook) -> None:
    alice.restart()
    got = alice.execute("x", timeout=90)
    assert got["reply"]["ename"] == "NameError", got
    alice.execute("import os; x = 41")
    node = node_of(alice)
    grown(cluster)
    with lost_node(cluster, node):
        assert node_of(alice) != node


def test_the_front_is_killed_and_the_group_serves_the_next_one(cluster: Cluster, alice: Notebook) -> None:
    node = node_of(alice)
    killed = cluster.kill(r"hop-front", "alice")
    # A cell that is sent to the dying front is lost in its socket's buffer, as with any server.
    until("another front is there", lambda: set(cluster.pids(r"hop-front", "alice")) - set(killed))
    assert node_of(alice) == node
    with lost_node(cluster, node):
        assert node_of(alice) != node
        runs_with_a_gpu(alice)


#: Becomes a command on a machine where none of the kernels' processes has its door.
ON_ANOTHER_NODE = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /tmp && exec "$@"', "sh"]


def test_commands_in_a_terminal_on_any_node_mean_the_executor_of_three(cluster: Cluster, alice: Notebook) -> None:
    kernel = kernel_row(cluster)["kernel_id"]
    # In the other variants the cluster has a mount namespace of its own, and doors that can't be hidden from a command.
    places: list[list[str]] = [[], ON_ANOTHER_NODE] if cluster.variant == "v1" else [[]]
    for n, place in enumerate(places):
        alice.execute(f"x = {42 + n}")
        shown = json.loads(cluster.run("alice", "hop", "state", "--json", "show", kernel[:8], under=place))
        assert ["x"] in [group["names"] for group in shown], shown
        saved = json.loads(
            cluster.run("alice", "hop", "state", "--json", "save", "--to", "by-the-door", kernel, under=place)
        )
        assert saved["lost"] == {}
        alice.execute("x = 0")
        cluster.run("alice", "hop", "state", "restore", "by-the-door", kernel, under=place)
        got = alice.execute("print(x)")
        assert stream(got, "stdout") == f"{42 + n}\n", got
        said = json.loads(cluster.run("alice", "hop", "gpu", "--json", "status", kernel, under=place))
        assert said.get("elsewhere", False) == bool(place), said
        # Another user sees no such kernel, and has no key of alice's seats.
        other = cluster.run("bob", "hop", "state", "--json", "show", kernel, check=False, under=place)
        assert other == ""


def test_a_node_that_was_silent_for_long_is_a_replicas_home_again(cluster: Cluster, alice: Notebook) -> None:
    """Its seat comes back with a member that was replaced meanwhile, and takes another one when the next node is silent."""
    alice.execute("seen = []")
    silent = []
    for _ in range(2):
        silent.append(node_of(alice))
        cluster.devcluster("pause-node", silent[-1])
        try:
            assert alice.execute("seen.append(len(seen))", timeout=60)["status"] == "ok"
            now = grown(cluster, without=silent[-1])
        finally:
            cluster.devcluster("resume-node", silent[-1])
    assert silent[0] in now
    assert stream(alice.execute("print(seen)", timeout=60), "stdout").strip() == "[0, 1]"


@pytest.mark.parametrize(("how", "seconds"), [("stopped", 8), pytest.param("hangs", 25, marks=pytest.mark.thorough)])
def test_a_restart_while_slurmctld_is_away_waits_for_it(
    cluster: Cluster, alice: Notebook, how: str, seconds: float
) -> None:
    """Neither a seat nor a step is to be had meanwhile."""
    with contextlib.ExitStack() as away:
        away.enter_context(without_slurmctld(cluster, how))
        back = threading.Timer(seconds, away.close)
        back.start()
        alice.restart()
        back.join()
    assert stream(alice.execute("print('x' in globals())", timeout=90), "stdout").strip() == "False"
