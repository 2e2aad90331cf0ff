"""An interpreter waiting to become a kernel: a kernel's first imports are done, and no user's code has run.

The supervisor starts the spare like the kernel, by the same command. A module of ipykernel's launcher's name is on the
path before the real one (`launcher/`), and waits here. Told to, the process runs the real launcher, in the environment
and folder of the kernel's. A spare serves once, and only if nothing was installed since the spare's start.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import socket
import sys
from typing import Any

from gresshopper import channel
from gresshopper.wire import Frames, WireError

#: Imports of each kernel, which take most of a kernel's start.
_NEEDED = (
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.zmqshell",
    "gresshopper.extension",
)
#: The same, where the environment has it.
_USUAL = (
    "gresshopper.state.setorder",
    "gresshopper.state.supervised",
    "ipykernel.debugger",
    "debugpy",
    "faulthandler",
    "sqlite3",
    "tornado.platform.asyncio",
    "tornado.queues",
    "traitlets.config.argcomplete_config",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "pydoc",
)


def run(launcher: str) -> None:
    """Waits, and becomes the kernel; returns when that has ended. `launcher` is the folder to take off the path."""
    # As `python -m` has put the entry there; the launcher takes the entry off again.
    has_cwd = bool(sys.path) and sys.path[0] == os.getcwd()
    if has_cwd:
        del sys.path[0]
    sys.path[:] = [p for p in sys.path if p != launcher]
    sock = socket.socket(fileno=int(os.environ[channel.FD_VARIABLE]))
    sock.set_inheritable(False)
    frames = Frames(sock)
    # Installations during the imports count as well.
    early = _installed()
    _import()
    before = _installed() | early
    try:
        frames.send({"op": "spare.ready", "body": {}})
        asked, _ = frames.receive()
    except WireError:
        return
    if _installed() != before:
        refusal = {"kind": "refused", "message": "something was installed since the interpreter's start"}
        _send(frames, {"re": asked["id"], "error": refusal})
        return
    _take_over(asked["body"])
    if has_cwd:
        sys.path.insert(0, os.getcwd())
    _send(frames, {"re": asked["id"], "ok": {}})
    sock.detach()
    del frames, sock, asked, early, before
    runpy.run_module("ipykernel_launcher", run_name="__main__", alter_sys=True)


def _send(frames: Frames, message: dict[str, Any]) -> None:
    # Without a supervisor the process is about to end.
    with contextlib.suppress(WireError):
        frames.send(message)


def _import() -> None:
    for name in _NEEDED:
        importlib.import_module(name)
    for name in _USUAL:
        # An unimportable module hinders no kernel, whatever the import raises.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _installed() -> dict[str, int]:
    """When the folders of all modules here, and those on the path, were changed: an installation changes one of them."""
    folders = {path or "." for path in sys.path}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            folders.add(os.path.dirname(file))
    found = {}
    for folder in folders:
        try:
            found[folder] = os.stat(folder).st_mtime_ns
        except OSError:
            found[folder] = 0
    return found


def _take_over(order: dict[str, Any]) -> None:
    """The kernel's folder and environment. A value of None removes the variable."""
    for name, value in order["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.chdir(order["cwd"])
    importlib.invalidate_caches()
