"""Jobs that aren't ours don't notice the plugin, whatever is wrong with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import harness
import pytest
from harness import Cluster

JOB = ["srun", "-Q", "--mem=16", "--gres=gpu:1", "sh", "-c", 'echo "hello $SLURM_STEP_GPUS"; exit 7']


def launch(cluster: Cluster, **environment: str) -> tuple[int, str, str]:
    where = ["-w", cluster.node]
    command = cluster.command("bob", [*JOB[:1], *where, *JOB[1:]], environment)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.strip(), done.stderr


def test_a_foreign_job_with_the_plugin(cluster: Cluster) -> None:
    code, out, err = launch(cluster)
    assert (code, out) == (7, "hello 0")
    assert "gresshopper" not in err and "plugstack" not in err
    assert cluster.records("kernels") == {}


def test_a_panic_of_the_plugin(cluster: Cluster) -> None:
    code, out, err = launch(cluster, GRESSHOPPER_TEST_PANIC="1")
    assert (code, out) == (7, "hello 0")
    assert "the plugin failed; the step goes on without it" in err, "it did panic"


def test_a_missing_file(cluster: Cluster) -> None:
    cluster.plugstack(cluster.plugin_line("nowhere.so"))
    assert launch(cluster)[:2] == (7, "hello 0")


def test_a_file_that_is_no_library(cluster: Cluster) -> None:
    (cluster.base / "opt/lib/text.so").write_text("not a library\n", encoding="utf-8")
    cluster.plugstack(cluster.plugin_line("text.so"))
    assert launch(cluster)[:2] == (7, "hello 0")


def test_a_wrong_version(cluster: Cluster) -> None:
    """The same library as if it were built for Slurm 19.05."""
    library = bytearray((cluster.base / "opt/lib/gresshopper.so").read_bytes())
    offset = symbol(cluster.base / "opt/lib/gresshopper.so", "plugin_version")
    major_minor = library[offset + 1 : offset + 3]
    assert bytes(major_minor) != b"\x05\x13"
    library[offset + 1 : offset + 3] = b"\x05\x13"
    (cluster.base / "opt/lib/old.so").write_bytes(library)
    cluster.plugstack(cluster.plugin_line("old.so"))
    assert launch(cluster)[:2] == (7, "hello 0")
    kernel = harness.kernel(cluster, "alice", cluster.submit("alice", "--mem=256"))
    assert kernel.opens() == ["EPERM", "EPERM"]
    assert cluster.records("kernels") == {}, "such a plugin is not loaded"


def symbol(library: Path, name: str) -> int:
    """The file offset of a constant; read-only data lies in the file where it lies in memory."""
    table = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=True).stdout
    return next(int(line.split()[0], 16) for line in table.splitlines() if line.endswith(f" R {name}"))


@pytest.mark.parametrize("extra", ["nonsense", "service_user=nobody-of-that-name"])
def test_wrong_arguments(cluster: Cluster, extra: str) -> None:
    cluster.plugstack(cluster.plugin_line(extra=extra))
    assert launch(cluster)[:2] == (7, "hello 0")
    kernel = harness.kernel(cluster, "alice", cluster.submit("alice", "--mem=256"))
    assert kernel.opens() == ["EPERM", "EPERM"]
    assert cluster.records("kernels") == {}


def test_variables_of_ours_in_a_foreign_job_give_nothing(cluster: Cluster) -> None:
    """A user who sets both: the job runs, its own GPU is denied to it, and nobody else's opens."""
    code, out, err = launch(cluster, GRESSHOPPER_LEASE="MUNGE:x:", GRESSHOPPER_KERNEL="x")
    assert (code, out) == (7, "hello 0")
    assert "was not believed" in err
    assert cluster.records("leases") == {}
