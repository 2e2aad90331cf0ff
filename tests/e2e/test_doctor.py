"""`hop doctor` on a real Slurm: nothing to say where all is right, and each of these breaks named with its mend."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Cluster, notebook, until
from test_limits import refresh

#: As with a plain kernel, one process of it is there.
pytestmark = pytest.mark.usefixtures("one_replica")


def nodes(cluster: Cluster) -> list[str]:
    return cluster.env["HOP_DEV_NODES"].split(",")


def doctor(cluster: Cluster, *more: str, env: dict[str, str] | None = None) -> list[dict[str, Any]]:
    argv = ["hop", "doctor", "--json", "--node", nodes(cluster)[0], *more]
    process = cluster.popen("root", argv, env=env or {}, stdout=-1, stderr=-1)
    out, err = process.communicate(timeout=90)
    rows: list[dict[str, Any]] = json.loads(out)["rows"]
    assert process.returncode == int(any(row["result"] == "failed" for row in rows)), err
    return rows


def failed(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['node']}: {row['check']}: {row['says']}" for row in rows if row["result"] == "failed"]


def test_where_all_is_right_nothing_is_named_on_host_and_nodes(cluster: Cluster) -> None:
    rows = doctor(cluster, "--nodes")
    assert failed(rows) == []
    looked_at = {row["node"] for row in rows if row["check"] == "munge-back"}
    assert looked_at == set(nodes(cluster))
    of_n2 = {row["check"] for row in rows if row["node"] == nodes(cluster)[1]}
    assert {
        "configuration",
        "munge",
        "munge-here",
        "plugin",
        "gres",
        "agent-state",
        "seat-log",
        "hopd",
        "lease",
    } <= of_n2
    leases = {row["node"]: row["result"] for row in rows if row["check"] == "lease"}
    assert leases == dict.fromkeys(nodes(cluster), "ok"), [row for row in rows if row["check"] == "lease"]


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Copies of the configuration that a test may spoil: nobody else reads them."""
    folder = cluster.base / "doctor"
    shutil.copytree(cluster.base / "etc", folder)
    yield folder
    shutil.rmtree(folder)


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def spoil(site: Path) -> None:
        text = (site / name).read_text()
        assert old in text
        (site / name).write_text(text.replace(old, new))

    return spoil


def no_line(site: Path) -> None:
    (site / "plugstack.conf").write_text("# nothing\n")


def hide(site: Path) -> None:
    (site / "gresshopper.toml").chmod(0o600)


def theirs(site: Path) -> None:
    """The plugin where everybody may write, as a copy into a shared folder is."""
    line = (site / "plugstack.conf").read_text().split()
    copy = site / "gresshopper.so"
    shutil.copy(line[line.index("optional") + 1], copy)
    copy.chmod(0o777)
    (site / "plugstack.conf").write_text(f"optional {copy}\n")


def no_library(site: Path) -> None:
    library = site / "gresshopper.so"
    library.write_text("not this one")
    library.chmod(0o755)
    (site / "plugstack.conf").write_text(f"optional {library}\n")


def no_pickler(site: Path) -> None:
    whole, lacking = site.parent / "opt", site / "opt"
    lacking.mkdir()
    for name in ("bin", "lib"):
        (lacking / name).symlink_to(whole / name)
    shutil.copytree(whole / "python", lacking / "python", ignore=shutil.ignore_patterns("shipped"))
    edit(TOML, '/opt"', '/doctor/opt"')(site)


TOML = "gresshopper.toml"
BROKEN = [
    ("configuration", "not everybody may read", hide),
    ("configuration", "typo", edit(TOML, "[hopd]", "[hopd]\ntypo = 1")),
    (
        "account",
        "knows no user nobody-here",
        edit(TOML, 'service_user = "gresshopper"', 'service_user = "nobody-here"'),
    ),
    ("programs", "lacks bin/hop", edit(TOML, '/opt"', '/nowhere"')),
    ("programs", "lacks python/gresshopper/shipped", no_pickler),
    ("munge", "does not answer", edit(TOML, "/munge/munge.socket", "/munge/no.socket")),
    ("hopd", "", edit(TOML, "connect = [", 'connect = ["127.0.0.1:1"] #')),
    (
        "partition",
        "no partition absent",
        edit(TOML, '[pool.main]\npartition = "notebook"', '[pool.main]\npartition = "absent"'),
    ),
    ("partition", "asks for 7 GPUs", edit(TOML, "gpus_per_pilot = 2", "gpus_per_pilot = 7")),
    ("association", "no association in nowhere", edit(TOML, 'account = "pool"', 'account = "nowhere"')),
    ("seats", "no partition absent", edit(TOML, '[seat]\npartition = "notebook"', '[seat]\npartition = "absent"')),
    ("pilots", "of 9 pilots", edit(TOML, "min_pilots = 4\nmax_pilots = 4", "min_pilots = 9\nmax_pilots = 9")),
    ("agent-state", "is no folder", edit(TOML, "/state/agent", "/state/absent")),
    ("hopd-state", "belongs to uid 0", edit(TOML, "/state/hopd", "/etc")),
    ("plugstack", "no line", no_line),
    ("plugstack", "looks for agents in", edit("plugstack.conf", "/state/agent", "/state/else")),
    ("plugstack", "no argument", edit("plugstack.conf", "agent_dir=", "agent_folder=")),
    ("plugin", "isn't there", edit("plugstack.conf", "/opt/lib/", "/opt/nowhere/")),
    ("plugin", "others than root may change", theirs),
    ("plugin", "is no library", no_library),
    ("gres", "doesn't have", edit("gres.conf", "/dev/fakegpu", "/dev/absentgpu")),
]


@pytest.mark.parametrize(("check", "says", "spoil"), BROKEN, ids=[f"{b[0]}-{i}" for i, b in enumerate(BROKEN)])
def test_what_is_broken_is_named_with_its_mend(
    cluster: Cluster, site: Path, check: str, says: str, spoil: Callable[[Path], None]
) -> None:
    spoil(site)
    env = {"GRESSHOPPER_CONF": str(site / TOML), "SLURM_CONF": str(site / "slurm.conf")}
    rows = doctor(cluster, "--plugstack", str(site / "plugstack.conf"), env=env)
    named = [row for row in rows if row["check"] == check and row["result"] == "failed" and says in row["says"]]
    assert named, failed(rows)
    assert named[0]["mend"]


@pytest.fixture
def hiding(cluster: Cluster) -> Iterator[None]:
    """Slurm hides jobs from all but their users and operators."""
    conf = cluster.base / "etc/slurm.conf"
    text = conf.read_text()

    def reads(text: str) -> None:
        conf.write_text(text)
        cluster.run("root", "scontrol", "reconfigure")

    reads(f"{text}PrivateData=jobs\n")
    try:
        yield
    finally:
        reads(text)
        service_is(cluster, "None")
        os.kill(int((cluster.base / "run/hopd.pid").read_text()), signal.SIGHUP)


def service_is(cluster: Cluster, level: str) -> None:
    cluster.run("root", "sacctmgr", "-i", "modify", "user", "gresshopper", "set", f"adminlevel={level}")


@pytest.mark.thorough
def test_a_site_that_hides_jobs_is_told_at_the_cell_and_goes_on_once_hopd_sees_them(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    check = "private-data"
    with notebook(cluster, "alice") as before:
        assert before.execute("%%gpu 1\n1")["status"] == "ok"
        request.getfixturevalue("hiding")
        refresh(cluster, "Slurm hides jobs from hopd (PrivateData)")
        (row,) = [row for row in doctor(cluster) if row["check"] == check]
        assert (row["result"], row["mend"]) == (
            "failed",
            "sacctmgr -i modify user gresshopper set adminlevel=Operator",
        )
        # A seat of which hopd knew whose it is stays that user's.
        cluster.run("root", "scancel", "-u", "bob", "-n", "kernels")
        with notebook(cluster, "bob") as after:
            cell = after.submit("%%gpu 1\nprint('served')")["cell"]

            def reads() -> bool:
                said = [notice.get("reason") or "" for notice in after.notices(cell)["notices"]]
                return any("Slurm hides its job" in reason and "`hop doctor`" in reason for reason in said)

            until("bob reads why", reads, 60)
            assert before.execute("%%gpu 1\nprint('still')")["text"] == "still\n"
            service_is(cluster, "Operator")
            assert after.wait(cell, 90)["text"] == "served\n"
        until("nothing is wrong", lambda: not failed(doctor(cluster)), 60, every=1)
