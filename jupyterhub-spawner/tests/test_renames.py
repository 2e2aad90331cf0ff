"""A notebook that gets another path: its kernel follows, told by the server extension. A real Jupyter Server's managers."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import BIN, Kernel, eventually, outputs
from gresshopper_jupyter.provisioner import GresshopperProvisioner
from gresshopper_jupyter.server import hop, renames
from gresshopper_jupyter.server.hibernation import save_all
from gresshopper_jupyter.server.ids import ours
from gresshopper_jupyter.server.renames import follow_renames
from jupyter_server.services.contents.filemanager import AsyncFileContentsManager
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyter_server.services.sessions.sessionmanager import SessionManager


@pytest.fixture
async def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """The managers of a Jupyter Server for the folder `work`, with the extension."""
    monkeypatch.setenv("GRESSHOPPER_PREFIX", str(home / "prefix"))
    (home / "prefix").mkdir()
    (home / "prefix" / "bin").symlink_to(BIN)
    root = home / "work"
    (root / "a").mkdir(parents=True)
    contents = AsyncFileContentsManager(root_dir=str(root))
    kernels = AsyncMappingKernelManager(root_dir=str(root), default_kernel_name="python3")
    sessions = SessionManager(kernel_manager=kernels, contents_manager=contents)
    app = SimpleNamespace(
        kernel_manager=kernels,
        session_manager=sessions,
        contents_manager=contents,
        event_logger=contents.event_logger,
        log=logging.getLogger(),
        root=root,
    )
    follow_renames(app)
    yield app
    await kernels.shutdown_all()


async def opened(server: Any, path: str, code: str) -> str:
    """Opens a notebook as JupyterLab does, and runs a cell. Its session's id."""
    (server.root / path).write_text("{}")
    session, _ = await ran(server, path, os.path.basename(path), "notebook", code)
    return session


async def ran(server: Any, path: str, name: str | None, kind: str, code: str) -> tuple[str, str]:
    """Begins a session, and runs a cell in it. The session's id, and what the cell printed."""
    session = await server.session_manager.create_session(path=path, name=name, type=kind, kernel_name="python3")
    client = server.kernel_manager.get_kernel(session["kernel"]["id"]).client()
    texts: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            texts.append(message["content"]["text"])

    client.start_channels()
    await client.wait_for_ready(timeout=30)
    await client._async_execute_interactive(code, timeout=30, output_hook=hear)
    client.stop_channels()
    return str(session["id"]), "".join(texts)


def variable(server: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """`x` at the next opening of a notebook."""
    monkeypatch.setenv("GRESSHOPPER_NOTEBOOK", str(server.root / path))
    kernel = Kernel()
    try:
        return outputs(kernel, "print(globals().get('x'))")[0].strip()
    finally:
        kernel.close()


async def ends(server: Any) -> None:
    """As Jupyter Server with the extension ends."""
    await save_all(server.kernel_manager)
    await server.kernel_manager.shutdown_all()


async def renamed_in_lab(server: Any, session: str, old: str, new: str) -> None:
    """The file gets its name, and the page that shows it tells first the path and then the name."""
    await server.contents_manager.rename(old, new)
    await server.session_manager.update_session(session, path=new)
    await server.session_manager.update_session(session, name=os.path.basename(new))


async def test_the_kernel_of_a_renamed_notebook_is_found_by_the_new_name_alone(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await opened(server, "Untitled.ipynb", "x = 'first'")
    await renamed_in_lab(server, session, "Untitled.ipynb", "analysis.ipynb")
    await opened(server, "Untitled.ipynb", "x = 'second'")
    await ends(server)
    assert await asyncio.to_thread(variable, server, "analysis.ipynb", monkeypatch) == "first"
    assert await asyncio.to_thread(variable, server, "Untitled.ipynb", monkeypatch) == "second"


async def test_a_folder_above_notebooks_is_renamed(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await opened(server, "a/one.ipynb", "x = 1")
    await opened(server, "ab.ipynb", "x = 2")
    await server.contents_manager.rename("a", "b")
    await asyncio.sleep(0)
    await ends(server)
    assert await asyncio.to_thread(variable, server, "b/one.ipynb", monkeypatch) == "1"
    assert await asyncio.to_thread(variable, server, "ab.ipynb", monkeypatch) == "2"


async def test_a_page_that_saves_as_another_file_takes_its_kernel_along(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await opened(server, "one.ipynb", "x = 1")
    shutil.copy(server.root / "one.ipynb", server.root / "two.ipynb")
    await server.session_manager.update_session(session, path="two.ipynb", name="two.ipynb")
    await ends(server)
    assert await asyncio.to_thread(variable, server, "one.ipynb", monkeypatch) == "None"
    assert await asyncio.to_thread(variable, server, "two.ipynb", monkeypatch) == "1"


async def test_a_notebook_is_renamed_while_its_kernel_is_saved(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await opened(server, "one.ipynb", "x = 1")
    await ends(server)
    await server.contents_manager.rename("one.ipynb", "two.ipynb")
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
    assert await asyncio.to_thread(variable, server, "one.ipynb", monkeypatch) == "None"
    assert await asyncio.to_thread(variable, server, "two.ipynb", monkeypatch) == "1"


async def test_a_rename_while_hopd_is_away_is_kept_in_the_home(
    server: Any, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await opened(server, "one.ipynb", "x = 1")
    await opened(server, "two.ipynb", "x = 2")
    await ends(server)
    conf = home / "gresshopper.toml"
    conf.write_text('service_user = "root"\n[hopd]\nconnect = ["127.0.0.1:1"]\n')
    with monkeypatch.context() as site:
        site.setenv("GRESSHOPPER_CONF", str(conf))
        site.setenv("GRESSHOPPER_LOG", "info")
        for old, new in [("one.ipynb", "x.ipynb"), ("two.ipynb", "one.ipynb"), ("x.ipynb", "two.ipynb")]:
            await server.contents_manager.rename(old, new)
            await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
    assert "don't know its new name" not in caplog.text
    assert await asyncio.to_thread(variable, server, "one.ipynb", monkeypatch) == "2"
    assert await asyncio.to_thread(variable, server, "two.ipynb", monkeypatch) == "1"


#: Two notebooks that swap their names.
SWAP = [("one.ipynb", "x.ipynb"), ("two.ipynb", "one.ipynb"), ("x.ipynb", "two.ipynb")]


def delay(monkeypatch: pytest.MonkeyPatch, late: int) -> None:
    """The programs that tell saved kernels run at once, but for one, which runs late."""
    calls = itertools.count()

    async def run(*argv: str) -> Any:
        await asyncio.sleep(1 if next(calls) == late else 0)
        return await hop.run(*argv)

    monkeypatch.setattr(renames, "run", run)


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("saved", [False, True])
async def test_two_notebooks_swap_names_and_keep_their_kernels(
    server: Any, monkeypatch: pytest.MonkeyPatch, saved: bool, late: int
) -> None:
    await opened(server, "one.ipynb", "x = 1")
    await opened(server, "two.ipynb", "x = 2")
    if saved:
        await ends(server)
    delay(monkeypatch, late)
    for old, new in SWAP:
        await server.contents_manager.rename(old, new)
        await asyncio.sleep(0.2)
    await asyncio.sleep(1.5)
    if not saved:
        await ends(server)
    for path, value in [("one.ipynb", "2"), ("two.ipynb", "1")]:
        _, text = await ran(server, path, path, "notebook", "print(globals().get('x'))")
        assert text.endswith(f"{value}\n"), path


async def test_renames_are_told_in_the_order_of_their_making(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await opened(server, "one.ipynb", "x = 1")
    await opened(server, "two.ipynb", "x = 2")
    checkpoints = server.contents_manager.checkpoints
    rename_all = checkpoints.rename_all_checkpoints

    async def rename_late(old: str, new: str) -> None:
        await asyncio.sleep(1 if old == "one.ipynb" else 0)
        await rename_all(old, new)

    monkeypatch.setattr(checkpoints, "rename_all_checkpoints", rename_late)
    first = asyncio.create_task(server.contents_manager.rename(*SWAP[0]))
    await asyncio.to_thread(eventually, lambda: not (server.root / "one.ipynb").exists(), "the first is renamed")
    await server.contents_manager.rename(*SWAP[1])
    await first
    await asyncio.sleep(0)
    paths = [kernel.provisioner._path for kernel in ours(server.kernel_manager).values()]
    assert paths == [str(server.root / "x.ipynb"), str(server.root / "one.ipynb")]


async def test_an_opening_right_after_a_rename_finds_the_kernel(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await opened(server, "one.ipynb", "x = 1")
    await ends(server)
    delay(monkeypatch, 0)
    await server.contents_manager.rename("one.ipynb", "two.ipynb")
    await asyncio.sleep(0)
    _, text = await ran(server, "two.ipynb", "two.ipynb", "notebook", "print(globals().get('x'))")
    assert text.endswith("1\n")


@pytest.mark.parametrize("late", [False, True])
async def test_a_notebook_is_renamed_while_it_is_being_opened(
    server: Any, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    await opened(server, "one.ipynb", "x = 1")
    await ends(server)
    # Its front is started after the rename, or before.
    launch = GresshopperProvisioner.launch_kernel

    async def launch_late(self: Any, cmd: list[str], **kwargs: Any) -> Any:
        await asyncio.sleep(0 if late else 1)
        info = await launch(self, cmd, **kwargs)
        await asyncio.sleep(1 if late else 0)
        return info

    monkeypatch.setattr(GresshopperProvisioner, "launch_kernel", launch_late)
    code = "print(globals().get('x'))"
    opening = asyncio.create_task(ran(server, "one.ipynb", "one.ipynb", "notebook", code))
    await asyncio.sleep(0.5)
    await server.contents_manager.rename("one.ipynb", "two.ipynb")
    assert (await opening)[1].endswith("1\n")
    (kernel,) = ours(server.kernel_manager).values()
    assert kernel.provisioner._path == str(server.root / "two.ipynb")


async def test_a_session_without_a_name_has_the_notebook_at_its_path(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [None, "", "a/one.ipynb"]:
        (server.root / "a/one.ipynb").write_text("{}")
        _, text = await ran(
            server, "a/one.ipynb", name, "notebook", "import os; print(os.environ['JPY_SESSION_NAME'])"
        )
        assert text.strip() == str(server.root / "a" / "one.ipynb"), name
        (kernel,) = ours(server.kernel_manager).values()
        await server.contents_manager.rename("a/one.ipynb", "two.ipynb")
        await asyncio.sleep(0)
        assert kernel.provisioner._path == str(server.root / "two.ipynb"), name
        (server.root / "two.ipynb").unlink()
        await server.kernel_manager.shutdown_all()


async def test_a_path_below_an_unknown_root_is_no_notebooks(
    server: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "one.ipynb").write_text("{}")
    monkeypatch.chdir(home)
    # As without the extension.
    env = {**os.environ, "JPY_SESSION_NAME": "one.ipynb"}
    await server.kernel_manager.start_kernel(env=env)
    (kernel,) = ours(server.kernel_manager).values()
    assert kernel.provisioner._path == ""


async def test_a_renamed_notebook_has_its_new_name_for_hop(server: Any, home: Path) -> None:
    session = await opened(server, "Untitled.ipynb", "x = 1")

    def kernel() -> tuple[int, str]:
        """Number of its front, and its name; of a kernel that is still to come 0 and none."""
        for file in home.glob("data/gresshopper/kernels/*/front.json"):
            told = json.loads(file.read_text())
            return told["epoch"], told["launch"]["name"]
        return 0, ""

    async def becomes(wanted: tuple[int, str]) -> None:
        await asyncio.to_thread(eventually, lambda: kernel() == wanted, f"{wanted}, not {kernel()}")

    assert kernel() == (1, "Untitled.ipynb")
    await renamed_in_lab(server, session, "Untitled.ipynb", "train.ipynb")
    await becomes((1, "train.ipynb"))
    # A front that follows knows it as well, and so does a restarted kernel.
    (id,) = server.kernel_manager.list_kernel_ids()
    os.kill(server.kernel_manager.get_kernel(id).provisioner.pid, signal.SIGKILL)
    await becomes((2, "train.ipynb"))
    await server.kernel_manager.restart_kernel(id)
    await becomes((1, "train.ipynb"))


async def test_a_console_is_no_notebook_of_its_name(server: Any, home: Path) -> None:
    for code, printed in [("x = 1", ""), ("print('x' in globals())", "False\n")]:
        _, text = await ran(server, "console-1-a", "Console 1", "console", code)
        assert text == printed
        await ends(server)
    states = home / "data" / "gresshopper" / "states"
    assert not (states.is_dir() and any(states.iterdir()))
