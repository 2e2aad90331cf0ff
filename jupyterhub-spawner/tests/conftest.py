"""Kernels for the tests: the same ipykernel behind Gresshopper (`--local`, no Slurm), and plain.

`HOP_BIN` names the folder with hop-front and hop-replica (default: the workspace's target/debug).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gresshopper_jupyter import server_job
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("HOP_BIN", ROOT / "target" / "debug"))


TIMEOUT = 30


class Kernel:
    """A started kernel with one client."""

    def __init__(self, **start: Any) -> None:
        self.km: KernelManager
        self.kc: BlockingKernelClient
        self.km, self.kc = start_new_kernel(kernel_name="python3", **start)

    def run(self, code: str, **kwargs: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The reply's content and what iopub said."""
        seen: list[dict[str, Any]] = []
        reply = self.kc.execute_interactive(code, timeout=TIMEOUT, output_hook=seen.append, **kwargs)
        return reply["content"], seen

    def text(self, code: str) -> str:
        reply, seen = self.run(code)
        assert reply["status"] == "ok", reply
        said = (m["content"] for m in seen if m["msg_type"] == "stream")
        return "".join(c["text"] for c in said if c["name"] == "stdout")

    def value(self, expression: str) -> str:
        return self.text(f"print({expression}, end='')")

    def pids(self) -> dict[str, int]:
        """The processes behind it, by name."""
        front = self.km.provisioner.pid
        assert front is not None
        pid = int(self.value("__import__('os').getpid()"))
        return {"front": front, "kernel": pid, "replica": int(self.value("__import__('os').getppid()"))}

    def close(self) -> None:
        self.kc.stop_channels()
        self.km.shutdown_kernel(now=True)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(") ", 1)[1][0] != "Z"


def of_type(seen: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [m["content"] for m in seen if m["msg_type"] == kind]


def outputs(kernel: Kernel, code: str) -> tuple[str, str]:
    """What a cell printed, and what stood on stderr."""
    reply, seen = kernel.run(code)
    assert reply["status"] == "ok", reply
    said = of_type(seen, "stream")
    return (
        "".join(c["text"] for c in said if c["name"] == "stdout"),
        "".join(c["text"] for c in said if c["name"] == "stderr"),
    )


def write_spec(folder: Path, **config: Any) -> None:
    """A kernelspec named python3 in front of the native one."""
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3 (GPU on demand)",
        "language": "python",
        "interrupt_mode": "message",
        "metadata": {
            "debugger": True,
            "kernel_provisioner": {
                "provisioner_name": "gresshopper",
                "config": {"local": True, "front_program": str(BIN / "hop-front"), **config},
            },
        },
    }
    place = folder / "kernels" / "python3"
    place.mkdir(parents=True, exist_ok=True)
    (place / "kernel.json").write_text(json.dumps(spec))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of the test's own, in which nothing may be left at the end."""
    if not (BIN / "hop-front").is_file():
        pytest.skip(f"no hop-front in {BIN}: cargo build -p hop-front -p hop-replica, or set HOP_BIN")
    write_spec(tmp_path / "overlay")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "overlay"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("GRESSHOPPER_PYTHON", str(ROOT / "kernel" / "python"))
    yield tmp_path
    kernels = tmp_path / "data" / "gresshopper" / "kernels"
    eventually(lambda: not (kernels.is_dir() and any(kernels.iterdir())), "the kernel's folder is removed", 5)


class SmallDisk:
    """A file system of 30 MB in place of a home's data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", str(folder)], check=False)
        if mounted.returncode != 0:
            pytest.skip("only root mounts a file system")

    def fill(self) -> None:
        for size in (1 << 16, 1):
            with contextlib.suppress(OSError), open(self._folder / f"fill-{size}", "wb", 0) as file:
                while True:
                    file.write(b"x" * size)

    def free(self) -> None:
        for path in self._folder.glob("fill-*"):
            path.unlink()

    def umount(self) -> None:
        subprocess.run(["umount", "-l", str(self._folder)], check=True)


class HangingDisk:
    """A file system that hangs for a while: each write to it waits in the kernel, and no signal ends the wait."""

    def __init__(self, folder: Path, image: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        with open(image, "wb") as file:
            file.truncate(300 << 20)
        made = ["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]
        try:
            for command in made:
                subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system on a loop device can be had here: {error}")

    def hang(self, seconds: float) -> subprocess.Popen[bytes]:
        """Freezes it. The process that thaws it runs already, and outlives a killed test."""
        thaw = f"sleep {seconds}; exec fsfreeze -u '{self._folder}'"
        nothing = subprocess.DEVNULL
        thawing = subprocess.Popen(
            ["sh", "-c", thaw], start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing
        )
        subprocess.run(["fsfreeze", "-f", str(self._folder)], check=True)
        return thawing

    def umount(self) -> None:
        subprocess.run(["fsfreeze", "-u", str(self._folder)], check=False, capture_output=True)
        subprocess.run(["umount", "-l", str(self._folder)], check=True)


@pytest.fixture
def hanging_home(home: Path) -> Iterator[HangingDisk]:
    """The disk of the home."""
    disk = HangingDisk(home / "data", home / "image")
    yield disk
    disk.umount()


@pytest.fixture
def hanging_store(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingDisk]:
    """The disk of the store alone."""
    disk = HangingDisk(home / "other", home / "image")
    monkeypatch.setenv("GRESSHOPPER_STORE", str(home / "other" / "store"))
    yield disk
    disk.umount()


@pytest.fixture
def disk(home: Path) -> Iterator[SmallDisk]:
    """The disk of the home."""
    disk = SmallDisk(home / "data")
    yield disk
    disk.umount()


def eventually(true: Callable[[], object], what: str, seconds: float = 20) -> None:
    """Waits until it is so."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.05)


#: A server on the port that it is told, for so long.
SERVER = """
import os, socket, sys, time
from urllib.parse import urlsplit
port = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]).port
s = socket.create_server(("127.0.0.1", port))
print("listening", port, flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


def launcher(
    tmp_path: Path, cmd: list[str], ports: list[int] | None = None, ip: str = "127.0.0.1", **more: str
) -> subprocess.Popen[str]:
    """What a server's job starts, with a stand-in for scontrol at the process boundary."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir(exist_ok=True)
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\n')
    scontrol.chmod(0o755)
    env_file = tmp_path / "x.json"
    request = {"env": {"JUPYTERHUB_SERVICE_URL": f"http://{ip}:0/user/a/"}, "cmd": cmd, "certs": None}
    server_job.write_secret(env_file, json.dumps({**request, "ports": ports, "shell": "/bin/sh", **more}))
    env = {**os.environ, "PATH": f"{scontrol.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    return subprocess.Popen(
        [sys.executable, "-m", "gresshopper_jupyter.server_job", "run", str(env_file)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(path: Path) -> str:
    """The file's text, once there is some."""
    eventually(lambda: path.exists() and path.read_text(), f"{path.name} is written", 30)
    return path.read_text()
