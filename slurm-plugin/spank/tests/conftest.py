"""These tests need root and a dev cluster: HOP_E2E=1. Without, they say so and are skipped.

HOP_E2E_BASE: the cluster's directory (default /srv/hop-plugin); it is brought up if it is not, with the index
HOP_E2E_INDEX (default 1) and the options HOP_E2E_UP. HOP_E2E_PLUGIN: the library (default target/debug, built with
the feature test-panic).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import harness  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("HOP_E2E") != "1" or os.geteuid() != 0:
        skip = pytest.mark.skip(reason="needs root and a dev cluster: HOP_E2E=1")
        for item in items:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def up() -> harness.Cluster:
    if "HOP_E2E_PLUGIN" not in os.environ:
        build = ["cargo", "build", "-q", "-p", "gresshopper-spank", "--features", "test-panic", "-p", "devcluster"]
        subprocess.run(build, cwd=harness.REPOSITORY, check=True, timeout=900)
    cluster = harness.Cluster(Path(os.environ.get("HOP_E2E_BASE", "/srv/hop-plugin")))
    options = os.environ.get("HOP_E2E_UP", "").split()
    cluster.devcluster("up", "--index", os.environ.get("HOP_E2E_INDEX", "1"), *options)
    cluster.install()
    cluster.restart_slurmds()
    return cluster


@pytest.fixture
def cluster(up: harness.Cluster) -> Iterator[harness.Cluster]:
    up.plugstack(up.plugin_line())
    with harness.tidied(up):
        yield up
