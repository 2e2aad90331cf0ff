"""Who reaches a kernel's debugger: debugpy's real adapter where it is installed, and its guard alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

ADAPTER = Path(__file__).resolve().parents[2] / "gresshopper/debugger/adapter"
NOBODY = 65534

CONNECT = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
sock.sendall(b'Content-Length: 59\\r\\n\\r\\n{"seq":1,"type":"request","command":"initialize","args":{}}')
try:
    print(bool(sock.recv(1)))
except ConnectionError:
    print(False)
"""

SERVE = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    server.accept()[0].sendall(b"x")
"""

LISTEN = """
import debugpy
from gresshopper import debugger
debugger.guard(debugpy)
print(debugpy.listen(("127.0.0.1", 0))[1], flush=True)
import sys
sys.stdin.read()
"""


def reaches(port: str, user: int) -> bool:
    # From a process that has shed its rights: root's own would be let in.
    shed = {} if user == os.getuid() else {"user": user, "group": user, "extra_groups": []}
    done = subprocess.run(
        ["/usr/bin/python3", "-c", CONNECT, port], capture_output=True, text=True, timeout=20, check=True, **shed
    )
    return done.stdout == "True\n"


@pytest.mark.parametrize("program", [SERVE, LISTEN], ids=["guard", "debugpy"])
def test_only_the_kernels_own_user_reaches_the_debugger(program: str) -> None:
    path = str(ADAPTER if program is SERVE else ADAPTER.parents[2])
    if program is LISTEN:
        pytest.importorskip("debugpy")
    server = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        # The stranger first: debugpy's adapter may end with its first client.
        if os.getuid() == 0:
            assert not reaches(port, NOBODY)
        assert reaches(port, os.getuid())
    finally:
        server.kill()
        server.wait()


def test_the_guard_lets_the_sites_own_customization_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.was_here = True")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ADAPTER), str(tmp_path)])}
    code = "import socket; print(was_here, socket.socket.accept.__name__)"
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert out == "True _accept_ours\n"


CONFIGURE = """
import sys
import debugpy
from debugpy.common import log
described = []
log.get_environment_description = lambda header: described.append(header) or ""
from gresshopper import debugger
debugger.guard(debugpy)
print(len(described), log.describe_environment.__name__)
"""


@pytest.mark.parametrize("logs", [False, True])
def test_what_is_installed_is_read_for_a_log_alone(logs: bool, tmp_path: Path) -> None:
    pytest.importorskip("debugpy")
    environ = {**os.environ, "PYTHONPATH": str(ADAPTER.parents[2])} | (
        {"DEBUGPY_LOG_DIR": str(tmp_path)} if logs else {}
    )
    done = subprocess.run([sys.executable, "-c", CONFIGURE], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"{int(logs)} describe_environment\n"
