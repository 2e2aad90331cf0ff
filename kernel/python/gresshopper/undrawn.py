"""Keeps libraries of the kernel from drawing from the notebook's `random` numbers.

A kernel answers requests beside its cells. IPython picks a tip for each banner, and jupyter_client forgets old messages, with
numbers from the generator that the notebook may have seeded. Both get numbers from elsewhere.
"""

from __future__ import annotations

import random
import sys
from typing import Any


def install() -> None:
    """Have what is loaded of these libraries draw nothing of the notebook's."""
    _tip()
    session: Any = sys.modules.get("jupyter_client.session")
    if getattr(session, "random", None) is random:
        session.random = random.Random()


def _tip() -> None:
    """One tip for the process: `pick_tip` draws from the module, in any thread, where no state could be put back."""
    shell: Any = sys.modules.get("IPython.core.interactiveshell")
    pick = getattr(shell, "pick_tip", None)
    if pick is None or getattr(pick, "__module__", None) == __name__:  # IPython before 9 has none
        return
    state = random.getstate()
    try:
        tip = pick()
    finally:
        random.setstate(state)

    def pick_tip() -> Any:
        return tip

    shell.pick_tip = pick_tip
