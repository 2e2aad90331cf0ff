"""A renamed notebook keeps its kernel: the kernel is told the new path, at which the next opening looks for it.

Two things happen at a rename. The file, or a folder above it, gets another name in the file browser, even while its
notebook is closed or its kernel is saved. And a page that shows the notebook tells its session's new path, also after
*Save As*. Either may come alone. If both come, the second changes nothing.
"""

from __future__ import annotations

from typing import Any

from jupyter_server.utils import ensure_async, to_os_path

from gresshopper_jupyter.programs import NotInstalled, find_program
from gresshopper_jupyter.server.hop import HopError, run
from gresshopper_jupyter.server.ids import JupyterId, ours


def follow_renames(serverapp: Any) -> None:
    """Tells kernels their notebooks' new paths."""
    manager, sessions, contents = serverapp.kernel_manager, serverapp.session_manager, serverapp.contents_manager
    update_session = sessions.update_session

    async def update_and_tell(session_id: str, **changes: Any) -> None:
        before = await ensure_async(sessions.get_session(session_id=session_id))
        await ensure_async(update_session(session_id, **changes))
        new = changes.get("path")
        kernel = ours(manager).get(JupyterId(changes.get("kernel_id") or before["kernel"]["id"]))
        if new and kernel is not None:
            kernel.provisioner.renamed(*_on_disk(manager, before["path"], new))

    sessions.update_session = update_and_tell

    async def told(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        if data.get("action") == "rename" and data.get("source_path"):
            paths = _on_disk(manager, data["source_path"], data["path"])
            for kernel in ours(manager).values():
                kernel.provisioner.renamed(*paths)
            await _tell_the_saved(serverapp.log, *paths)

    serverapp.event_logger.add_listener(schema_id=contents.event_schema_id, listener=told)


async def _tell_the_saved(log: Any, old: str, new: str) -> None:
    """Kernels that are saved have no process to tell."""
    try:
        status, _, why = await run(find_program("hop-front"), "rename", old, new)
    except (HopError, NotInstalled, OSError) as error:
        status, why = 1, str(error)
    if status != 0:
        log.warning("the saved kernels of %s don't know its new name: %s", old, why.strip())


def _on_disk(manager: Any, *paths: str) -> list[str]:
    """Paths as Jupyter Server gives them to kernels in ``JPY_SESSION_NAME``."""
    return [to_os_path(path, manager.root_dir) for path in paths]
