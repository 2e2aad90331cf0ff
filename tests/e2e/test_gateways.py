"""Servers that start kernels themselves, with our kernelspec: Jupyter Enterprise Gateway and jupyverse.

Neither is installed for CI. By hand, each into an environment of its own that every user can read:

    for it in 'enterprise-gateway jupyter_enterprise_gateway==3.3.0' 'jupyverse jupyverse[auth,jupyterlab]==0.14.18'; do
        set -- $it; /usr/bin/python3 -m venv /opt/gateways/$1; /opt/gateways/$1/bin/pip install "$2"
    done
    HOP_TEST_GATEWAYS=/opt/gateways PROFILE=debug pytest tests/e2e/test_gateways.py
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
from harness import HUB_PYTHON, OPENABLE, Cluster, until

GATEWAYS = Path(os.environ.get("HOP_TEST_GATEWAYS", "/opt/gresshopper-dev/gateways"))
SPEC = "gresshopper-python3"


@dataclass(frozen=True)
class Server:
    #: Its environment below `GATEWAYS`.
    name: str
    program: str
    options: tuple[str, ...]
    #: What it answers once it is up.
    ready: str


ALL = (
    Server(
        "enterprise-gateway",
        "jupyter-enterprisegateway",
        ("--ip=127.0.0.1", "--port={port}", "--port_retries=0", "--EnterpriseGatewayApp.list_kernels=True"),
        "api/kernelspecs",
    ),
    Server(
        "jupyverse",
        "jupyverse",
        ("--host=127.0.0.1", "--port={port}", "--timeout=100", "--set", "auth.mode=noauth"),
        "api/kernelspecs",
    ),
)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.ConnectionError:
        return False


@pytest.mark.parametrize("server", ALL, ids=lambda server: server.name)
def test_a_kernel_of_ours_is_started_interrupted_restarted_and_ended(two_gpus: Cluster, server: Server) -> None:
    program = GATEWAYS / server.name / "bin" / server.program
    if not program.exists():
        pytest.skip(f"{server.name} isn't installed below {GATEWAYS}: the head of this file says how")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = (two_gpus.base / f"log/{server.name}.log").open("w")
    argv = [str(program), *(option.format(port=port) for option in server.options)]
    process = two_gpus.popen("bob", argv, stdout=log, stderr=subprocess.STDOUT)
    try:
        until("the server answers", lambda: answers(f"{url}/{server.ready}"), 120, every=0.5)
        client = str(two_gpus.lend("tests/e2e/gateways.py"))
        probe = "%%gpu 1" + OPENABLE + "print(len(openable()))"
        out = two_gpus.run("bob", HUB_PYTHON, client, url, SPEC, probe, timeout=200)
        leased, interrupted, forgotten, again = json.loads(out.splitlines()[-1])
        assert leased == again == ["ok", None, "1\n"]
        assert interrupted == ["error", "KeyboardInterrupt", "begun\n"]
        assert forgotten == ["error", "NameError", ""]
        until("the kernel is gone", lambda: not two_gpus.pids("hop-(front|replica)", "bob"), 60)
        until("its leases are over", lambda: not two_gpus.leases_live(), 60)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        log.close()
