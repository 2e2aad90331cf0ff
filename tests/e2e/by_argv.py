"""A client that starts a kernelspec's command itself and knows no provisioners: as VS Code, Zed, Positron or Enterprise
Gateway does it by its source.

    by_argv.py KERNELSPEC CLIENT PROBE

CLIENT is a key of `CLIENTS`. It runs PROBE, the code of a cell, and a cell that it interrupts; it ends the kernel, and
prints what the two cells said as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file
from jupyter_client.kernelspec import get_kernel_spec

PLACEHOLDER = "{connection_file}"


def vscode_ipykernel(argv: list[str], file: str) -> list[str]:
    """VS Code's Jupyter extension (2026.6.1, kernelProcess.node.ts `updateConnectionArgs`) with an ipykernel of its own."""
    at = first(argv)
    quoted = f'"{file}"' if " " in file else file
    return [*argv[: at - 1], *argv[at + 1 :], f"--f={quoted}"]


def vscode(argv: list[str], file: str) -> list[str]:
    """The same with all other kernels. Its test for an ipykernel is in helpers.node.ts."""
    module = argv[argv.index("-m") + 1] if "-m" in argv[:-1] else ""
    if Path(argv[0]).name.lower() in ("python", "python3") and "ipykernel" in module.lower():
        return vscode_ipykernel(argv, file)
    at = first(argv)
    glued = "--connection-file" in argv[at] or (f"={PLACEHOLDER}" in argv[at] and not argv[at].startswith("="))
    quoted = f'"{file}"' if " " in file and glued else file
    return [*argv[:at], argv[at].replace(PLACEHOLDER, quoted, 1), *argv[at + 1 :]]


def zed(argv: list[str], file: str) -> list[str]:
    """Zed's crates/repl/src/kernels/native_kernel.rs."""
    assert PLACEHOLDER in argv
    return [argv[0], *(file if word == PLACEHOLDER else word for word in argv[1:])]


def positron(argv: list[str], file: str) -> list[str]:
    """Positron's supervisor Kallichore, crates/kcserver/src/kernel_session/startup.rs."""
    return [word.replace(PLACEHOLDER, file) for word in argv]


def gateway(argv: list[str], file: str) -> list[str]:
    """Enterprise Gateway 3.3 without a process proxy: jupyter_client's `format_kernel_cmd`."""
    names = {"connection_file": os.path.realpath(file), "prefix": sys.prefix}
    return [re.sub(r"\{([A-Za-z0-9_]+)\}", lambda m: names.get(m[1], m[0]), word) for word in argv]


def first(argv: list[str]) -> int:
    return next(at for at, word in enumerate(argv) if PLACEHOLDER in word)


def terminate(process: subprocess.Popen[bytes], client: BlockingKernelClient) -> None:
    """VS Code: each child and the process itself have a SIGTERM."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in [*map(int, children), process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def kill(process: subprocess.Popen[bytes], client: BlockingKernelClient) -> None:
    """Zed."""
    process.kill()


def shut_down(process: subprocess.Popen[bytes], client: BlockingKernelClient) -> None:
    """Positron and Enterprise Gateway ask the kernel, and kill what hasn't ended."""
    client.shutdown()


class Client(NamedTuple):
    fill: Callable[[list[str], str], list[str]]
    end: Callable[[subprocess.Popen[bytes], BlockingKernelClient], None]


CLIENTS = {
    "vscode": Client(vscode, terminate),
    "vscode-ipykernel": Client(vscode_ipykernel, terminate),
    "zed": Client(zed, kill),
    "positron": Client(positron, shut_down),
    "gateway": Client(gateway, shut_down),
}


def run(client: BlockingKernelClient, code: str, interrupt: bool = False) -> tuple[str, str | None, str]:
    said = []

    def hook(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])
            if interrupt:
                client.control_channel.send(client.session.msg("interrupt_request", {}))

    reply = client.execute_interactive(code, timeout=90, output_hook=hook)["content"]
    return reply["status"], reply.get("ename"), "".join(said)


def main(name: str, chosen: str, probe: str) -> None:
    spec, way = get_kernel_spec(name), CLIENTS[chosen]
    # A folder's name with a space is quoted by some.
    file, _ = write_connection_file(os.path.abspath("by argv.json"), key=os.urandom(16).hex().encode())
    argv = way.fill(spec.argv, file)
    process = subprocess.Popen(argv, env={**os.environ, **spec.env}, start_new_session=True)
    client = BlockingKernelClient(connection_file=file)
    client.load_connection_file()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    told = [
        run(client, probe),
        run(client, "import time\nprint('begun', flush=True)\ntime.sleep(60)", interrupt=True),
    ]
    way.end(process, client)
    process.wait(30)
    os.unlink(file)
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
