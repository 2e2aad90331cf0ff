"""A renamed notebook keeps its kernel: the kernel is told the new path, at which the next opening looks for it.

Two things happen at a rename. The file, or a folder above it, gets another name in the file browser, even while its
notebook is closed or its kernel is saved. And a page that shows the notebook tells its session's new path, also after
*Save As*. Either may come alone. If both come, the second changes nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import Any

from jupyter_server.utils import ensure_async, to_os_path

from gresshopper_jupyter.programs import NotInstalled, find_program
from gresshopper_jupyter.server.hop import TIMEOUT_S, HopError, run
from gresshopper_jupyter.server.ids import JupyterId, hops_id, ours


def follow_renames(serverapp: Any) -> None:
    """Tells kernels their notebooks' new paths."""
    renames = _Renames(serverapp)
    _name_by_path(serverapp.session_manager, serverapp.kernel_manager)
    sessions, contents = serverapp.session_manager, serverapp.contents_manager
    sessions.update_session = renames.updating(sessions.update_session)
    sessions.start_kernel_for_session = renames.starting(sessions.start_kernel_for_session)
    # A manager without coroutines renames and announces it in one step.
    if inspect.iscoroutinefunction(contents.rename):
        contents.rename = _one_by_one(contents.rename)
    serverapp.event_logger.add_listener(schema_id=contents.event_schema_id, listener=renames.heard)


class _Renames:
    """Renames on their way to the kernels. Fronts are told at once, and saved kernels one rename after another."""

    def __init__(self, serverapp: Any) -> None:
        self._log, self._manager, self._sessions = serverapp.log, serverapp.kernel_manager, serverapp.session_manager
        # Held in the order of asking.
        self._order = _LateLock()
        # For each kernel that is being started: the renames since.
        self._starts: dict[asyncio.Future[None], list[tuple[str, str]]] = {}

    def updating(self, update_session: Any) -> Any:
        async def update_and_tell(session_id: str, **changes: Any) -> None:
            before = await ensure_async(self._sessions.get_session(session_id=session_id))
            await ensure_async(update_session(session_id, **changes))
            new = changes.get("path")
            kernel = ours(self._manager).get(JupyterId(changes.get("kernel_id") or before["kernel"]["id"]))
            if new and kernel is not None:
                kernel.provisioner.renamed(_on_disk(self._manager, before["path"]), _on_disk(self._manager, new))

        return update_and_tell

    def starting(self, start_kernel: Any) -> Any:
        """An opening looks for a saved kernel once all kernels know the names of the notebooks."""

        async def start_and_tell(*args: Any, **kwargs: Any) -> str:
            await asyncio.sleep(0)  # renames that the server has just said are heard first
            async with self._order.lock():
                start = asyncio.get_running_loop().create_future()
                missed = self._starts[start] = []
            try:
                kernel_id: str = await ensure_async(start_kernel(*args, **kwargs))
                kernel = ours(self._manager).get(JupyterId(kernel_id))
                if kernel is not None:
                    for paths in missed:
                        kernel.provisioner.renamed(*paths)
                return kernel_id
            finally:
                del self._starts[start]
                start.set_result(None)

        return start_and_tell

    async def heard(self, logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        if data.get("action") == "rename" and data.get("source_path"):
            old, new = _on_disk(self._manager, data["source_path"]), _on_disk(self._manager, data["path"])
            for kernel in ours(self._manager).values():
                kernel.provisioner.renamed(old, new)
            for missed in self._starts.values():
                missed.append((old, new))
            async with self._order.lock():
                await self._tell_the_saved(old, new)

    async def _tell_the_saved(self, old: str, new: str) -> None:
        """Kernels that are saved have no process to tell."""
        if self._starts:
            # Each of them may be about to find its kernel under the old name.
            await asyncio.wait(list(self._starts), timeout=TIMEOUT_S)
        kernels = ours(self._manager).values()
        told = [f"--told={hops_id(kernel)}" for kernel in kernels if kernel.provisioner.hears_renames]
        try:
            status, _, why = await run(find_program("hop-front"), "rename", old, new, *told)
        except (HopError, NotInstalled, OSError) as error:
            status, why = 1, str(error)
        if status != 0:
            self._log.warning("the saved kernels of %s don't know its new name: %s", old, why.strip())


class _LateLock:
    """A lock that is made at its first use: before Python 3.10 a lock belongs to the loop at its making."""

    def __init__(self) -> None:
        self._lock: asyncio.Lock | None = None

    def lock(self) -> asyncio.Lock:
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock


def _one_by_one(rename: Any) -> Any:
    """The server announces a rename in a later step than it renames. So renames are announced in the order of their
    making."""
    turn = _LateLock()

    async def rename_in_turn(*args: Any, **kwargs: Any) -> Any:
        async with turn.lock():
            return await rename(*args, **kwargs)

    return rename_in_turn


def _name_by_path(sessions: Any, manager: Any) -> None:
    """Gives a kernel its notebook's path on disk in ``JPY_SESSION_NAME`` where the client's name for the session is no
    file's name. Without a name, the server itself gives the path below its root."""
    env_by_name = sessions.get_kernel_env

    def get_kernel_env(path: str, name: str | None = None) -> dict[str, str]:
        env: dict[str, str] = env_by_name(path, name)
        file = _on_disk(manager, path)
        if (not name or os.path.dirname(name)) and (file.endswith(".ipynb") or os.path.isfile(file)):
            env["JPY_SESSION_NAME"] = file
        return env

    sessions.get_kernel_env = get_kernel_env


def _on_disk(manager: Any, path: str) -> str:
    """The path by which a notebook's kernel is found, of a path below the server's root."""
    return str(to_os_path(path, manager.root_dir))
