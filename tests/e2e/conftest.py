"""Brings dev clusters up once for the whole run, and takes them down again.

With `HOP_E2E_KEEP=1` they stay up. The next run installs its own build there, and ends what ran of the one before.
Runs beside each other, with clusters of their own, share the files of tests by `HOP_E2E_SHARED`, a folder: a run takes
the next file that none has taken, so that all end at about the same time.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Cluster, no_process_spins

BASE = os.environ.get("HOP_E2E_BASE", "/srv/gresshopper-e2e")
INDEX = int(os.environ.get("HOP_E2E_INDEX", "8"))
SHARED = os.environ.get("HOP_E2E_SHARED")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thorough: left to `make test-all`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with many tests come first where files are shared: a long one must not be the last."""
    if SHARED:
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: -tests[item.path])


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Passes over a test whose file another run has taken."""
    return None if SHARED is None or is_ours(Path(SHARED) / item.path.name) else True


def is_ours(claim: Path) -> bool:
    """A second try of a run has what its first try took."""
    try:
        with claim.open("x") as new:
            new.write(BASE)
    except FileExistsError:
        return claim.read_text() == BASE
    return True


def deployed(made: Cluster) -> Iterator[Cluster]:
    try:
        made.up()
        yield made
        no_process_spins(made)
    finally:
        if not os.environ.get("HOP_E2E_KEEP"):
            made.down()


def cores_of_v2() -> bool:
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    return controllers.exists() and "cpuset" in controllers.read_text().split()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four nodes with two fake GPUs each, Gresshopper deployed, in the variant that HOP_E2E_VARIANT names. Kernels have as
    many replicas as HOP_E2E_REPLICAS says: three, unless a test asks for one."""
    variant = os.environ.get("HOP_E2E_VARIANT", "auto")
    replicas = os.environ.get("HOP_E2E_REPLICAS", "3")
    yield from deployed(Cluster(BASE, INDEX, variant, REPLICAS=replicas))


@pytest.fixture
def one_replica(cluster: Cluster) -> Iterator[None]:
    """A test's kernels have one replica, unless they ask for more."""
    cluster.users_env["GRESSHOPPER_REPLICAS"] = "1"
    yield
    del cluster.users_env["GRESSHOPPER_REPLICAS"]


@pytest.fixture
def roaming(cluster: Cluster) -> Iterator[Cluster]:
    """Policy moves kernels to free GPUs."""
    conf = cluster.base / "etc/gresshopper.toml"
    text = conf.read_text()
    assert "migrate = false" in text
    conf.write_text(text.replace("migrate = false", "migrate = { takes_s = 1, margin_s = 0, ahead = false }"))
    try:
        anew(cluster)
        yield cluster
    finally:
        conf.write_text(text)
        anew(cluster)


def anew(cluster: Cluster) -> None:
    """`hopd` reads its configuration again."""
    cluster.kill(r"/opt/bin/hopd", "gresshopper")
    cluster.deploy("hopd")
    cluster.wait_for_pilots()


@pytest.fixture(scope="session")
def two_gpus() -> Iterator[Cluster]:
    """One pilot of two GPUs is all that the pool has; leases linger for long where nobody waits. Batch cells have a
    quantum."""
    variant = os.environ.get("HOP_E2E_VARIANT", "auto")
    yield from deployed(
        Cluster(
            f"{BASE}-two",
            INDEX + 20,
            variant,
            "--nodes",
            "1",
            PILOTS="1",
            LINGER_MS="8000",
            POOL_EXTRA="quantum = { batch_s = 2, worth_waiting_s = 0 }",
        )
    )


AFFINITY = pytest.param("--task-affinity", id="task/affinity", marks=pytest.mark.thorough)


@pytest.fixture(scope="module", params=[pytest.param("", id="task/cgroup"), AFFINITY])
def real_cores(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The machine's real cores: one for the seat and one for the pilot."""
    options = ["--real-cores", "--nodes", "1"] + ([request.param] if request.param else [])
    pool = {"PILOTS": "1", "GPUS_PER_PILOT": "1", "CPUS_PER_PILOT": "1", "LINGER_MS": "200"}
    variant = os.environ.get("HOP_E2E_VARIANT", "auto")
    if variant in ("v2", "trixie") and not cores_of_v2():
        pytest.skip("on this host the cpuset controller belongs to cgroup v1: v2 can't constrain cores here")
    yield from deployed(Cluster(f"{BASE}-cores", INDEX + 40, variant, *options, **pool))
