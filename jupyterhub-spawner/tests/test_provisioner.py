"""The provisioner where it can start no kernel."""

from __future__ import annotations

import sys

import pytest
from gresshopper_jupyter import provisioner


async def test_on_a_mac_it_can_be_imported_and_a_launch_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    made = provisioner.GresshopperProvisioner()
    with pytest.raises(provisioner.FrontError, match="need a Jupyter server on Linux"):
        await made.launch_kernel(["python"])
    assert not made.has_process
