"""These tests need root and a dev cluster: HOP_E2E=1. Without, they say so and are skipped.

HOP_E2E_BASE: the cluster's directory (default /srv/hop-plugin); it is brought up if it is not, with the index
HOP_E2E_INDEX (default 1) and the options HOP_E2E_UP. HOP_E2E_PLUGIN: the library (default target/debug, built with
the feature test-panic).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import harness


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("HOP_E2E") != "1" or os.geteuid() != 0:
        skip = pytest.mark.skip(reason="needs root and a dev cluster: HOP_E2E=1")
        for item in items:
            item.add_marker(skip)


def build(*arguments: str, **environment: str) -> None:
    """Against the headers of the cluster's own series, where the environment says so."""
    command = ["cargo", "build", "-q", *arguments]
    subprocess.run(command, cwd=harness.REPOSITORY, env=os.environ | environment, check=True, timeout=900)


@pytest.fixture(scope="session")
def up() -> harness.Cluster:
    if "HOP_E2E_DEVCLUSTER" not in os.environ:
        build("-p", "devcluster")
    cluster = harness.Cluster(Path(os.environ.get("HOP_E2E_BASE", "/srv/hop-plugin")))
    options = os.environ.get("HOP_E2E_UP", "").split()
    cluster.devcluster("up", "--index", os.environ.get("HOP_E2E_INDEX", "1"), *options)
    if "HOP_E2E_PLUGIN" not in os.environ:
        include = cluster.variable("HOP_SLURM_INCLUDE")
        build("-p", "hop-spank", "--features", "test-panic", HOP_SLURM_INCLUDE=include)
    cluster.install()
    cluster.restart_slurmds()
    return cluster


@pytest.fixture
def cluster(up: harness.Cluster) -> Iterator[harness.Cluster]:
    up.plugstack(up.plugin_line())
    with harness.tidied(up):
        yield up


@pytest.fixture
def alice(cluster: harness.Cluster) -> harness.Kernel:
    return harness.kernel(cluster, "alice", cluster.submit("alice", "--mem=256"))


@pytest.fixture
def pilot(cluster: harness.Cluster) -> harness.Pilot:
    return harness.pilot(cluster)


@pytest.fixture
def taker() -> Iterator[harness.Taker]:
    """Root, who takes what is sent."""
    with harness.Taker() as taker:
        yield taker
