"""Brings the dev cluster up once for the whole run, and takes it down again."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from harness import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Four nodes with two fake GPUs each, Gresshopper deployed, in the variant that HOP_E2E_VARIANT names."""
    made = Cluster(
        os.environ.get("HOP_E2E_BASE", "/srv/gresshopper-e2e"),
        int(os.environ.get("HOP_E2E_INDEX", "8")),
        os.environ.get("HOP_E2E_VARIANT", "auto"),
    )
    try:
        made.up()
        yield made
    finally:
        if not os.environ.get("HOP_E2E_KEEP"):
            made.down()
