"""Other threads get the interpreter at once while ours works, and nobody sees it afterwards."""

from __future__ import annotations

import sys

import pytest
from gresshopper.state import process, switch_interval


@pytest.mark.parametrize("turn", [0.005, 0.01, 0.000123, 0.0001])
def test_the_users_turn_is_seen_in_the_work_and_stands_after_it(turn: float) -> None:
    before = sys.getswitchinterval()
    try:
        switch_interval.set_seconds(turn)
        users = sys.getswitchinterval()  # in whole microseconds
        with switch_interval.Shortened(), switch_interval.Shortened():
            assert sys.getswitchinterval() <= switch_interval.SHORT
            assert switch_interval.seconds() == process._interpreter()["switch"] == users
        assert sys.getswitchinterval() == users
        with pytest.raises(ZeroDivisionError), switch_interval.Shortened():
            switch_interval.set_seconds(2 * turn)
            assert sys.getswitchinterval() <= switch_interval.SHORT
            raise ZeroDivisionError
        assert sys.getswitchinterval() == pytest.approx(2 * turn, abs=1.1e-6)
    finally:
        sys.setswitchinterval(before)
