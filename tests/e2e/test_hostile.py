"""A user who means harm, beside another one at a notebook: by jobs of their own, and by what they export."""

from __future__ import annotations

import subprocess

from harness import HUB_PYTHON, Cluster, Failed, notebook, until

#: Says in a file of its user's who runs it.
LIBRARY = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    char path[4096];
    snprintf(path, sizeof path, "HOME/loaded.%d.%d", (int)geteuid(), (int)getpid());
    FILE *file = fopen(path, "w");
    if (file) fclose(file);
}
"""

ASK = "import asyncio; from gresshopper_jupyter import slurm; print(asyncio.run(slurm.JobTable('servers').get('{}', 0)))"


def job(cluster: Cluster, user: str, *argv: str, script: str = "sleep 600") -> str:
    """A running job of the user's."""
    submitted = cluster.run(user, "sbatch", "--parsable", "-p", "notebook", *argv, "--wrap", script).strip()
    until(
        "it runs", lambda: cluster.run("root", "squeue", "-h", "-j", submitted, "-o", "%T").strip() == "RUNNING", 60
    )
    return submitted


def test_nobodys_comment_passes_for_another_users_server(cluster: Cluster) -> None:
    alices = job(cluster, "alice", "--job-name=servers")
    row = f"{alices}|RUNNING|None|N/A|evil|gresshopper ended"
    bobs = job(cluster, "bob", "--job-name=servers", f"--comment=x\n{row}")
    try:
        shown = cluster.run("root", "squeue", "-h", "-j", bobs, "-o", "%k").splitlines()
        assert shown == ["x", row], "squeue writes it as it is"
        seen = cluster.run("root", HUB_PYTHON, "-c", ASK.format(alices))
        assert f"id='{alices}'" in seen
        assert "evil" not in seen
        assert "server_ended=False" in seen
    finally:
        cluster.run("root", "scancel", alices, bobs)


def test_nothing_of_a_users_environment_runs_as_root(cluster: Cluster) -> None:
    home = cluster.base / "home/bob"
    source, library = home / "evil.c", home / "evil.so"
    source.write_text(LIBRARY.replace("HOME", str(home)))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    exported = {
        "LD_PRELOAD": library,
        "SPANK_LD_PRELOAD": library,
        "SLURM_SPANK_LD_PRELOAD": library,
        "GRESSHOPPER_KERNEL": "../../../../tmp/k",
        "SLURMD_NODENAME": "../../tmp",
        "SLURM_STEP_GPUS": "0-65535",
    }
    exports = " ".join(f"{name}={value}" for name, value in exported.items())
    steps = "; ".join(
        f"GRESSHOPPER_LEASE={token} srun --overlap -n1 true"
        for token in ("x", "MUNGE:AAAA:", "$(head -c 20000 /dev/zero | tr '\\0' x)", "$(munge -n)")
    )
    bobs = job(cluster, "bob", script=f"export {exports}; {steps}; touch {home}/done; sleep 600")
    until("the steps are over", (home / "done").exists, 120)
    cluster.run("root", "scancel", bobs)
    until("it is over", lambda: bobs not in cluster.run("root", "squeue", "-h", "-o", "%A").split(), 60)
    uids = {path.name.split(".")[1] for path in home.glob("loaded.*")}
    assert uids == {cluster.run("bob", "id", "-u").strip()}
    records = cluster.base / "run/gresshopper"
    assert {path.name for path in records.iterdir()} <= set(cluster.env["HOP_DEV_NODES"].split(","))


def test_a_users_own_jobs_are_no_part_of_the_pool(cluster: Cluster) -> None:
    names = ("hop-pool.main.7", "kernels", "look", "take-back 7", "alice/x.ipynb")
    bobs = [job(cluster, "bob", f"--job-name={name}") for name in names]
    try:
        pilots = {row["pilot"] for row in cluster.hop("info")["rows"]}
        for each in bobs:
            for change in (["update", f"jobid={each}", "name=x\ny|z", "comment=\x1b[2J"], ["hold", each]):
                cluster.run("bob", "scontrol", *change, check=False)
        with notebook(cluster, "alice") as alice:
            assert alice.execute("%%gpu 1\n1 + 1")["status"] == "ok"
        assert pilots == set(cluster.pilots()) == {row["pilot"] for row in cluster.hop("info")["rows"]}
        assert not pilots & set(bobs)
        (daemon,) = cluster.hop("info", "--daemon")["rows"]
        assert not daemon["problems"], daemon
    finally:
        for each in bobs:
            try:
                cluster.run("root", "scancel", each)
            except Failed:
                continue
