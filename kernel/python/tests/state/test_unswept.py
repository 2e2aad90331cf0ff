"""The pause of the collector is ours: what is captured and restored is what the notebook set."""

from __future__ import annotations

import gc

import pytest
from gresshopper.state import unswept


@pytest.mark.parametrize("on", [True, False])
def test_a_pause_doesnt_show_and_ends(on: bool) -> None:
    before = gc.isenabled()
    try:
        unswept.enable(on)
        with unswept.Unswept(), unswept.Unswept():
            assert unswept.enabled() == on and not gc.isenabled()
        assert gc.isenabled() == on
        with pytest.raises(ZeroDivisionError), unswept.Unswept():
            unswept.enable(not on)
            assert not gc.isenabled() and unswept.enabled() != on
            raise ZeroDivisionError
        assert gc.isenabled() != on
    finally:
        unswept.enable(before)
