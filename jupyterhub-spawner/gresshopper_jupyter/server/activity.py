"""Tells JupyterHub that the server is in use while a cell runs or waits for its GPU.

Jupyter Server counts only messages through the server as activity. A cell that computes in silence for an hour, or
waits for its lease, sends none: an idle culler would end the server in the middle of the cell. Jupyter Server takes the
newest of all settings with names ending in ``_last_activity``, ours among them.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from tornado.ioloop import PeriodicCallback

SETTING = "gresshopper_last_activity"
EVERY_S = 20.0


def watch_activity(serverapp: Any) -> None:
    """Looks at the kernels again and again, as long as the server runs."""

    def look() -> None:
        if any_busy(serverapp.kernel_manager):
            serverapp.web_app.settings[SETTING] = datetime.now(timezone.utc)

    PeriodicCallback(look, EVERY_S * 1000).start()


def any_busy(kernel_manager: Any) -> bool:
    """Whether a kernel of this server has a running or waiting cell."""
    kernels = (kernel_manager.get_kernel(kernel_id) for kernel_id in kernel_manager.list_kernel_ids())
    return any(getattr(kernel, "execution_state", "") == "busy" for kernel in kernels)
