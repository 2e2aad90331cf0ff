"""The pause of the collector is ours: what is captured and restored is what the notebook set."""

from __future__ import annotations

import gc

import pytest
from gresshopper.state import gc_pause


@pytest.mark.parametrize("on", [True, False])
def test_a_pause_doesnt_show_and_ends(on: bool) -> None:
    before = gc.isenabled()
    try:
        gc_pause.enable(on)
        with gc_pause.Paused(), gc_pause.Paused():
            assert gc_pause.enabled() == on and not gc.isenabled()
        assert gc.isenabled() == on
        with pytest.raises(ZeroDivisionError), gc_pause.Paused():
            gc_pause.enable(not on)
            assert not gc.isenabled() and gc_pause.enabled() != on
            raise ZeroDivisionError
        assert gc.isenabled() != on
    finally:
        gc_pause.enable(before)
