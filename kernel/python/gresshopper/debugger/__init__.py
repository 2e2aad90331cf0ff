"""Keeps other users of the node away from a kernel's debugger.

debugpy's adapter listens on TCP ports of the loopback. Any user may attach while no client is connected, and so run
code in the kernel. We start it with the folder ``adapter`` on its path: code there makes it ask the operating system
for the owner of each connection.
"""

from __future__ import annotations

import os
from types import ModuleType

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "adapter")


def guard(debugpy: ModuleType) -> None:
    """Called with debugpy, right after its import or later."""
    path = os.pathsep.join(filter(None, [_FOLDER, os.environ.get("PYTHONPATH")]))
    debugpy.configure(pythonEnv={**os.environ, "PYTHONPATH": path})
