"""A cell's way through everything: what it gets, what others get, what is written down about it."""

from __future__ import annotations

import re

from harness import OPENABLE, Cluster, notebook, until


def test_a_gpu_is_there_for_the_cell_and_only_for_it(cluster: Cluster) -> None:
    with notebook(cluster, "alice") as alice:
        alice.execute(OPENABLE)
        assert alice.execute("print(openable())")["text"] == "[]\n"
        during = alice.execute("%%gpu 1\nprint(openable())")
        lease = during["lease"]
        assert during["text"] == f"{lease['devices']}\n"
        assert len(lease["devices"]) == 1
        until("the lease is over", cluster.quiet, 20)
        assert alice.execute("print(openable())")["text"] == "[]\n"


def test_two_gpus_are_two_different_ones(cluster: Cluster) -> None:
    with notebook(cluster, "alice") as alice:
        alice.execute(OPENABLE)
        got = alice.execute("%%gpu 2\nprint(len(set(openable())))")
        assert got["text"] == "2\n"
        assert len(set(got["lease"]["devices"])) == 2


def test_another_user_never_opens_it(cluster: Cluster) -> None:
    with notebook(cluster, "alice") as alice, notebook(cluster, "bob") as bob:
        for who in (alice, bob):
            who.execute(OPENABLE)
        cell = alice.submit("%%gpu 1\nimport time; time.sleep(3)")["cell"]
        until("alice's lease is there", lambda: cluster.steps("alice"))
        assert bob.execute("print(openable())")["text"] == "[]\n"
        assert alice.wait(cell)["status"] == "ok"


def test_the_next_cell_finds_the_lease_lingering(cluster: Cluster) -> None:
    with notebook(cluster, "alice") as alice:
        first = alice.execute("%%gpu 1\n1")["lease"]
        second = alice.execute("%%gpu 1\n2")["lease"]
        assert second["lingering"]
        assert second["lease"] == first["lease"]


def test_a_lease_asked_for_in_the_middle_of_a_cell(cluster: Cluster) -> None:
    with notebook(cluster, "alice") as alice:
        alice.execute(OPENABLE)
        got = alice.execute(
            "import gresshopper\nbefore = openable()\nwith gresshopper.gpu():\n    inside = openable()\n"
            "print(before, len(inside))"
        )
        assert got["text"] == "[] 1\n"


def test_slurm_shows_the_lease_and_we_account_for_it(cluster: Cluster) -> None:
    with notebook(cluster, "alice") as alice:
        got = alice.execute("%%gpu 1\nimport time; time.sleep(1)")
        lease = got["lease"]["lease"]
        (step,) = cluster.steps("alice")
        job_step, name = step.split(" ", 1)
        assert "alice" in name
        until("the lease is over", cluster.quiet, 20)
        out = cluster.run("root", "sacct", "-a", "-n", "-P", "-j", job_step, "-o", "JobID,AllocTRES,State")
        assert re.search(rf"^{re.escape(job_step)}\|.*gres/gpu=1.*\|COMPLETED", out, re.M), out
        rows = cluster.run("root", "hop", "acct", "-a", "-n", "-P", "-o", "leaseid,user,account,state,slurmjobid")
        ours = [r for r in rows.splitlines() if re.match(rf"{lease}(\.|\|)", r)]
        assert ours == [f"{lease}|alice|lab|COMPLETED|{job_step}", f"{lease}.1|alice|lab|COMPLETED|{job_step}"]


def test_a_user_sees_and_ends_only_their_own(cluster: Cluster) -> None:
    with notebook(cluster, "alice") as alice:
        cell = alice.submit("%%gpu 1\nimport time; time.sleep(4)")["cell"]
        until("alice's lease is there", lambda: cluster.steps("alice"))
        assert "alice" not in cluster.run("bob", "hop", "queue", "-n", "-P")
        assert "alice" not in cluster.run("bob", "hop", "queue", "-a", "-n", "-P", check=False)
        rows = cluster.run("alice", "hop", "queue", "-n", "-P", "-o", "leaseid")
        lease = rows.split()[0]
        cluster.run("bob", "hop", "cancel", lease, check=False)
        assert alice.wait(cell)["status"] == "ok"
