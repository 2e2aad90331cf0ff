"""The door of a server: its port, whose it is before, during and after the server's life."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import SERVER, launcher, wait_for
from gresshopper_jupyter import doorway
from tornado.netutil import bind_sockets


def test_the_port_is_told_once_the_server_listens_and_held_when_it_has_gone(tmp_path: Path) -> None:
    process = launcher(tmp_path, [sys.executable, "-c", SERVER, "3"])
    port = json.loads(wait_for(tmp_path / "x.port"))["port"]
    told = wait_for(tmp_path / "told")
    assert told == "update JobId=7 Comment=gresshopper ended\n"
    # Nobody else can have it, and nobody is answered there.
    with pytest.raises(OSError), socket.create_server(("127.0.0.1", port)):
        pass
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        assert client.recv(1) == b""
    process.terminate()
    assert process.wait(10) == 3
    assert not list(tmp_path.glob("x.*"))


IPV6 = ("::", "::1")


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


with_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")

#: As somebody who looks for the server's port on IPv6, with each option there is; then as the server.
NEIGHBOUR = """
import os, socket
from urllib.parse import urlsplit
port = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]).port
for address in ("::1", "::"):
    for options in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
        s = socket.socket(socket.AF_INET6)
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        for option in options:
            s.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            s.bind((address, port))
            s.listen()
            raise SystemExit(f"somebody else listens on [{address}]:{port}, with {options}")
        except OSError as error:
            print(error.strerror, flush=True)
"""


@with_ipv6
def test_nobody_else_listens_at_the_servers_port_on_ipv6_before_during_and_after(tmp_path: Path) -> None:
    process = launcher(tmp_path, [sys.executable, "-c", NEIGHBOUR + SERVER, "3"])
    port = json.loads(wait_for(tmp_path / "x.port"))["port"]
    for _ in ("while it runs", "while its port is held"):
        for address in IPV6:
            with (
                pytest.raises(OSError, match="in use"),
                socket.create_server((address, port), family=socket.AF_INET6),
            ):
                pass
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("::1", port), timeout=10)
        wait_for(tmp_path / "told")
    process.terminate()
    out, _ = process.communicate(timeout=20)
    assert out.count("Address already in use\n") == 8
    assert process.returncode == 3


#: As Jupyter Server listens where it is told no address: on each family, by a socket for each.
EVERYWHERE = """
import os, sys, time
from urllib.parse import urlsplit
from tornado.netutil import bind_sockets
own = bind_sockets(urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]).port, "")
time.sleep(float(sys.argv[1]))
"""


@with_ipv6
def test_the_port_of_a_server_of_both_families_is_held_in_both_when_it_has_gone(tmp_path: Path) -> None:
    process = launcher(tmp_path, [sys.executable, "-c", EVERYWHERE, "3"], ip="")
    port = json.loads(wait_for(tmp_path / "x.port"))["port"]
    wait_for(tmp_path / "told")
    for address, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        with pytest.raises(OSError, match="in use"), socket.create_server((address, port), family=family):
            pass
        with socket.create_connection((address, port), timeout=10) as client:
            assert client.recv(1) == b""
    process.terminate()
    assert process.wait(10) == 0


@with_ipv6
@pytest.mark.parametrize("ip", ["0.0.0.0", "127.0.0.1", "::", "::1", "", "localhost"])
def test_a_server_gets_its_port_and_nobody_else_has_it_in_the_other_family(ip: str) -> None:
    port = doorway.free_port(ip, None)
    assert port is not None
    with contextlib.closing(port):
        assert doorway.is_free(ip, port.number)
        # As Jupyter Server does.
        own = bind_sockets(port.number, ip)
        assert not doorway.is_free(ip, port.number)
        for family, everywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
            with (
                pytest.raises(OSError, match="in use"),
                socket.create_server((everywhere, port.number), family=family),
            ):
                pass
        for one in own:
            one.close()


@with_ipv6
@pytest.mark.parametrize(("ip", "theirs"), [("127.0.0.1", "::1"), ("::1", "127.0.0.1"), ("", "::1")])
def test_a_port_that_somebody_has_in_the_other_family_isnt_free(ip: str, theirs: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in theirs else socket.AF_INET) as taken:
        taken.bind((theirs, 0))  # And listens not, or not yet.
        port = taken.getsockname()[1]
        assert doorway.free_port(ip, [port, port]) is None
    free = doorway.free_port(ip, [port, port])
    assert free is not None
    free.close()


@pytest.mark.parametrize("ip", ["0.0.0.0", "127.0.0.1", ""])
def test_a_node_without_ipv6_has_ports_as_well(monkeypatch: pytest.MonkeyPatch, ip: str) -> None:
    class Socket(socket.socket):
        def __init__(self, family: int = -1, *more: Any, **how: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *more, **how)

    monkeypatch.setattr("socket.socket", Socket)
    port = doorway.free_port(ip, None)
    assert port is not None
    assert (port.number > 0, port.keeper) == (True, None)


#: A server with somebody else at its first port, at another address; they are told apart by their uid.
SHARED = """
import os, subprocess, sys
from urllib.parse import urlsplit
here = sys.argv[2]
port = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]).port
if not os.path.exists(here):
    bob = "import socket, sys; s = socket.create_server(('127.0.0.2', int(sys.argv[1]))); print(flush=True); s.accept()"
    argv = ["/usr/bin/python3", "-c", bob, str(port)]
    started = subprocess.Popen(argv, user=65534, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    started.stdout.readline()
    with open(here, "w") as file:
        file.write(f"{port} {started.pid}")
"""


def started_beside_bob(tmp_path: Path, bobs: str) -> tuple[int, int, str]:
    """Start a server whose first port is taken by ``bobs`` program, and end it; its port, bob's, and the launcher's log."""
    here = tmp_path / "bob"
    process = launcher(tmp_path, [sys.executable, "-c", bobs + SERVER, "60", str(here)])
    try:
        port = json.loads(wait_for(tmp_path / "x.port"))["port"]
        process.terminate()
        out, _ = process.communicate(timeout=20)
    finally:
        taken, bob = map(int, here.read_text().split())
        os.kill(bob, signal.SIGKILL)
        process.terminate()
    return port, taken, out


def test_a_server_beside_whom_somebody_else_listens_gets_another_port(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can be two users")
    port, taken, out = started_beside_bob(tmp_path, SHARED)
    assert port != taken
    assert f"uid 65534 had port {taken}; another is tried" in out


#: Somebody has the first port without listening.
SILENT = """
import os, socket, subprocess, sys
from urllib.parse import urlsplit
here = sys.argv[2]
port = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"]).port
if not os.path.exists(here):
    held = socket.socket()
    held.bind(("127.0.0.1", port))
    started = subprocess.Popen(["sleep", "60"], pass_fds=[held.fileno()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(here, "w") as file:
        file.write(f"{port} {started.pid}")
"""


def test_a_server_that_fails_because_somebody_has_its_port_in_silence_gets_another(tmp_path: Path) -> None:
    port, taken, out = started_beside_bob(tmp_path, SILENT)
    assert port != taken
    assert f"somebody else had port {taken}; another is tried" in out


def test_a_server_that_fails_at_once_is_no_port(tmp_path: Path) -> None:
    process = launcher(tmp_path, [sys.executable, "-c", "raise SystemExit('no such module')"])
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "no such module" in out
    assert not (tmp_path / "told").exists()


def test_a_range_without_a_free_port_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = launcher(tmp_path, ["true"], [port, port])
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 1
    assert f"no free port in {port}-{port}" in out


def test_listeners_are_read_as_the_kernel_writes_them() -> None:
    text = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 4711 1 0 100 0 0 10 0\n"
        "   1: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1002        0 4712 1 0 20 4 30 10 -1\n"
    )
    assert doorway.parse_listeners(text, 8080) == [doorway.Listener(1001, 4711)]
    assert doorway.parse_listeners(text, 8081) == []
