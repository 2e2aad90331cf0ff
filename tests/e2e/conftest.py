"""Brings the dev cluster up once for the whole run, and takes it down again."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from harness import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Slurm 22.05 on whatever cgroups this host has, four nodes with two fake GPUs, Gresshopper deployed."""
    made = Cluster(os.environ.get("HOP_E2E_BASE", "/srv/gresshopper-e2e"), int(os.environ.get("HOP_E2E_INDEX", "8")))
    try:
        made.up()
        yield made
    finally:
        if not os.environ.get("HOP_E2E_KEEP"):
            made.down()
