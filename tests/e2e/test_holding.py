"""A kernel that keeps a GPU open beyond its lease: nobody ends it while nobody waits, and whoever waits gets the GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from harness import OPENABLE, Cluster, Notebook, notebook, stream, until
from test_cells import nothing_left, queue
from test_hopd import restart

#: `pool.main.grace_ms` of the dev cluster, in seconds: a kernel has it twice.
GRACE = 2
HOLDS = "%%gpu 2\nkept = [open(path, 'rb', buffering=0) for path in openable()]\nprint(len(kept))"


@pytest.fixture
def books(two_gpus: Cluster) -> Iterator[tuple[Notebook, Notebook]]:
    with notebook(two_gpus, "alice") as alice, notebook(two_gpus, "bob") as bob:
        for book in (alice, bob):
            book.execute(OPENABLE)
        yield alice, bob
    nothing_left(two_gpus)


def hold_on(cluster: Cluster, alice: Notebook) -> str:
    """Alice's kernel keeps both GPUs open, and hopd knows that. Returns the lease."""
    got = alice.execute(HOLDS)
    assert (got["status"], got["text"]) == ("ok", "2\n"), got
    is_held(cluster)
    (row,) = queue(cluster, "alice")
    return str(row["lease_id"])


def is_held(cluster: Cluster) -> None:
    def held() -> bool:
        return [(r["state"], r["why"]) for r in queue(cluster, "alice")] == [("LINGERING", "StillHeld")]

    until("the GPUs stay with alice", held, 30)


def lives(alice: Notebook) -> bool:
    """Her kernel has the files that nobody could bring back, open."""
    got = alice.execute("import os; print([os.fstat(f.fileno()).st_rdev > 0 for f in kept])")
    return bool(got["text"] == "[True, True]\n")


def test_it_lives_until_somebody_waits_who_then_gets_the_gpu(
    two_gpus: Cluster, books: tuple[Notebook, Notebook]
) -> None:
    alice, bob = books
    lease = hold_on(two_gpus, alice)
    time.sleep(4 * GRACE)
    assert lives(alice), "nobody waited"
    explained = two_gpus.run("alice", "hop", "explain", queue(two_gpus, "alice")[0]["kernel_id"])
    assert f"can't let go of lease {lease}" in explained, explained
    # Its next cell has the same lease, and holds on again.
    got = alice.execute("%%gpu 2\nprint(len(openable()))")
    assert (got["text"], str(got["lease"]["lease"])) == ("2\n", lease), got
    is_held(two_gpus)
    # One who waits and thinks better of it ends nobody.
    cell = bob.submit("%%gpu 1\n1")["cell"]
    until("alice's lease is to end", lambda: [r["state"] for r in queue(two_gpus, "alice")] == ["ENDING"])
    bob.interrupt()
    assert bob.wait(cell, 10)["status"] == "error"
    is_held(two_gpus)
    assert lives(alice)
    # Nor does hopd, which has to learn of it again.
    restart(two_gpus)
    until("hopd answers", lambda: two_gpus.run("root", "hop", "queue", "-a", check=False))
    is_held(two_gpus)
    assert lives(alice)
    # Bob stays, and gets his GPU; alice's kernel is ended, and says why.
    began = time.time()
    got = bob.execute("%%gpu 1\nprint(len(openable()))", 60)
    took = time.time() - began
    assert (got["status"], got["text"]) == ("ok", "1\n"), got
    assert 2 * GRACE <= took < 2 * GRACE + 10
    print(f"bob waited {took:.1f} s")
    got = alice.execute("print('after')", 60)
    said = stream(got, "stderr")
    assert "still held its GPU after it was warned" in said and "somebody waits for it" in said, got
    (row,) = [r for r in two_gpus.hop("acct", "-a", "-X", "-j", lease)["rows"]]
    assert "what still held its GPU was ended (process " in row["reason"], row
    assert "its kernel held the GPU for" in row["reason"], row


def test_a_cell_that_lets_go_gives_the_gpu_back(two_gpus: Cluster, books: tuple[Notebook, Notebook]) -> None:
    alice, bob = books
    hold_on(two_gpus, alice)
    assert alice.execute("[f.close() for f in kept]; y = 7")["status"] == "ok"
    until("the lease is over", lambda: not queue(two_gpus, "alice"), 15)
    got = bob.execute("%%gpu 2\nprint(len(openable()))", 30)
    assert (got["status"], got["text"]) == ("ok", "2\n"), got
    assert alice.execute("print(y)")["text"] == "7\n"


def test_what_keeps_a_gpu_that_somebody_waits_for_is_ended_and_its_user_reads_why(
    two_gpus: Cluster, books: tuple[Notebook, Notebook]
) -> None:
    alice, bob = books
    hold_on(two_gpus, alice)
    cell = alice.submit("import time; time.sleep(60)")["cell"]
    assert bob.execute("%%gpu 1\n1", 60)["status"] == "ok"
    died = alice.wait(cell, 30)
    assert (died["status"], died["reply"]["ename"]) == ("error", "CellLost")
    assert "still held its GPU" in died["reply"]["evalue"], died
