"""Other threads get the interpreter at once while ours works, and nobody sees it afterwards."""

from __future__ import annotations

import sys

import pytest
from gresshopper.state import process, yielding


@pytest.mark.parametrize("turn", [0.005, 0.01, 0.000123, 0.0001])
def test_the_users_turn_is_seen_in_the_work_and_stands_after_it(turn: float) -> None:
    before = sys.getswitchinterval()
    try:
        yielding.set_turn(turn)
        users = sys.getswitchinterval()  # in whole microseconds
        with yielding.Yielding(), yielding.Yielding():
            assert sys.getswitchinterval() <= yielding.TURN
            assert yielding.turn() == process._interpreter()["switch"] == users
        assert sys.getswitchinterval() == users
        with pytest.raises(ZeroDivisionError), yielding.Yielding():
            yielding.set_turn(2 * turn)
            assert sys.getswitchinterval() <= yielding.TURN
            raise ZeroDivisionError
        assert sys.getswitchinterval() == pytest.approx(2 * turn, abs=1.1e-6)
    finally:
        sys.setswitchinterval(before)
