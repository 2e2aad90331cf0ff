"""Keeps other users of the node away from a kernel's debugger.

debugpy's adapter listens on TCP ports of the loopback. Any user may attach while no client is connected, and so run
code in the kernel. We start the adapter with the folder ``adapter`` on the path: code there asks the operating system
for the owner of each connection.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "adapter")


def guard(debugpy: ModuleType) -> None:
    """Called with debugpy, right after its import or later."""
    path = os.pathsep.join(filter(None, [_FOLDER, os.environ.get("PYTHONPATH")]))
    with _undescribed():
        debugpy.configure(pythonEnv={**os.environ, "PYTHONPATH": path})


@contextlib.contextmanager
def _undescribed() -> Iterator[None]:
    """Keep debugpy from reading all installed packages for a log without readers: most of a kernel's start would go
    there.

    The names are debugpy's own. In a release with other names, debugpy reads everything as before.
    """
    log: Any = None
    with contextlib.suppress(Exception):
        from debugpy.common import log
    levels = getattr(getattr(log, "stderr", None), "levels", {"info"})
    described = getattr(log, "describe_environment", None)
    if described is None or getattr(log, "log_dir", "") is not None or "info" in levels:
        yield
        return
    log.describe_environment = lambda header: None
    try:
        yield
    finally:
        log.describe_environment = described
