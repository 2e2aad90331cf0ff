"""The Jupyter server extension: what ``hop`` says of one's own kernels, for the panel in JupyterLab.

The extension has no protocol of its own towards the scheduler: each answer is a ``hop ... --json`` run as the user. It
also keeps the server from being culled while a cell runs or waits, saves the kernels at the server's end, and tells them their
notebooks' new names.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "gresshopper_jupyter.server"}]


def _load_jupyter_server_extension(serverapp: Any) -> None:
    # Imported here: the package is importable without Jupyter Server.
    from gresshopper_jupyter.server.activity import watch_activity
    from gresshopper_jupyter.server.handlers import add_handlers
    from gresshopper_jupyter.server.hibernation import save_at_the_end
    from gresshopper_jupyter.server.hop import Hop
    from gresshopper_jupyter.server.renames import follow_renames

    add_handlers(serverapp, Hop())
    watch_activity(serverapp)
    save_at_the_end(serverapp)
    follow_renames(serverapp)
