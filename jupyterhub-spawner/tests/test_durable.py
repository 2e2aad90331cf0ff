"""A kernel that outlives its process and its supervisor, as its user meets it. Nodes are lost in tests/e2e."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BIN, TIMEOUT, Kernel, SmallDisk, alive, eventually, of_type, outputs, write_spec
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

#: The processes of the kernel that are killed.
WHO = pytest.mark.parametrize("who", ["kernel", "replica"])


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.close()


def kill(kernel: Kernel, who: str) -> None:
    os.kill(kernel.pids()[who], signal.SIGKILL)


def saved(home: Path) -> None:
    """Waits until what has been answered is in the store."""
    states = home / "data" / "gresshopper" / "states"

    def lengths() -> list[int]:
        return [p.stat().st_size for p in sorted(states.rglob("log")) if p.is_file()]

    last, since = lengths(), time.monotonic()
    while time.monotonic() - since < 1.5:
        time.sleep(0.1)
        if lengths() != last:
            last, since = lengths(), time.monotonic()


def error_of(kernel: Kernel, code: str) -> tuple[dict[str, Any], str]:
    """A cell that fails: its reply, and all that stood on stderr."""
    reply, seen = kernel.run(code)
    assert reply["status"] == "error", reply
    return reply, "".join(c["text"] for c in of_type(seen, "stream") if c["name"] == "stderr")


@WHO
def test_variables_functions_and_imports_come_back(kernel: Kernel, home: Path, who: str) -> None:
    kernel.run(
        "import math, collections\nx = {'a': [1, 2]}\nx['self'] = x\ndef f(n):\n    return math.sqrt(n) + len(x)"
    )
    kernel.run("class P:\n    def __init__(self): self.v = 7\np = q = P()\nc = collections.Counter('aab')")
    saved(home)
    kill(kernel, who)
    assert (
        kernel.value("(f(16), x['self'] is x, p is q, p.v, c)") == "(6.0, True, True, 7, Counter({'a': 2, 'b': 1}))"
    )


@WHO
def test_a_cell_in_its_middle_is_an_error_that_says_so(kernel: Kernel, home: Path, who: str) -> None:
    kernel.run("x = 1")
    saved(home)
    pids = kernel.pids()
    asked = kernel.kc.execute("x = 2\nimport time; time.sleep(60)")
    time.sleep(1)
    os.kill(pids[who], signal.SIGKILL)
    while (reply := kernel.kc.get_shell_msg(timeout=TIMEOUT))["parent_header"].get("msg_id") != asked:
        pass
    assert reply["content"]["ename"] == "CellLost"
    assert "variables as they were saved before this cell" in reply["content"]["evalue"]
    assert kernel.value("x") == "1"
    assert kernel.km.is_alive()


def test_a_client_never_has_to_reconnect(kernel: Kernel, home: Path) -> None:
    ports = kernel.km.get_connection_info()
    for n in range(3):
        kernel.run(f"y{n} = {n}")
        saved(home)
        kill(kernel, "replica")
        assert kernel.value(f"y{n}") == str(n)
    assert kernel.km.get_connection_info() == ports
    assert kernel.value("(y0, y1, y2)") == "(0, 1, 2)"


def test_execution_counts_go_on(kernel: Kernel, home: Path) -> None:
    pid = kernel.pids()["kernel"]
    for _ in range(3):
        reply, _ = kernel.run("1 + 1")
    saved(home)
    os.kill(pid, signal.SIGKILL)
    after, _ = kernel.run("1 + 1")
    assert after["execution_count"] == reply["execution_count"] + 1


def test_retry_runs_the_cell_again(kernel: Kernel, home: Path) -> None:
    mark = home / "mark"
    code = (
        "%%retry\nimport os, pathlib, signal\n"
        f"mark = pathlib.Path({str(mark)!r})\nfirst = not mark.exists()\nmark.touch()\n"
        "if first: os.kill(os.getpid(), signal.SIGKILL)\nprint('second time')"
    )
    out, err = outputs(kernel, code)
    assert out == "second time\n" and "The cell runs again (%%retry)" in err
    reply, _ = error_of(kernel, "%%retry\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert reply["ename"] == "CellLost", "it isn't tried for ever"
    assert kernel.value("40 + 2") == "42"


def test_retry_leaves_the_rest_of_the_cell_as_it_is(kernel: Kernel) -> None:
    assert kernel.text("%%retry\nprint('plain')") == "plain\n"
    assert kernel.text("%%retry\n%%bash\necho from bash") == "from bash\n"
    reply, seen = kernel.run("%%retry\n\n1/0")
    assert "line 3" in "".join(of_type(seen, "error")[0]["traceback"])
    reply, seen = kernel.run("1\n%%retry")
    assert reply["ename"] == "UsageError"


def test_what_can_not_come_back_is_told_and_stands_in_its_place(kernel: Kernel, home: Path) -> None:
    kernel.run("import socket\nsock = socket.socket()\nx = 5")
    saved(home)
    kill(kernel, "kernel")
    out, err = outputs(kernel, "print(x)")
    assert out == "5\n" and "could not be brought back" in err and "sock" in err
    reply, _ = error_of(kernel, "sock.fileno()")
    assert "LostError" in reply["ename"]


def tenure(home: Path) -> int:
    """The tenure that the kernel's front has opened."""
    (file,) = home.glob("data/gresshopper/kernels/*/front.json")
    return int(json.loads(file.read_text())["state"]["tenure"])


def test_a_restarted_kernel_has_higher_tenures_than_before(kernel: Kernel, home: Path) -> None:
    highest = tenure(home)
    for who in ("replica", "restart", "kernel", "restart"):
        kernel.run("x = 1")
        saved(home)
        if who == "restart":
            kernel.km.restart_kernel()
            kernel.kc.wait_for_ready(timeout=TIMEOUT)
            assert tenure(home) > highest
        else:
            kill(kernel, who)
        assert kernel.value("'x' in globals()") == str(who != "restart")
        highest = max(highest, tenure(home))


@pytest.mark.thorough
def test_a_kernel_that_is_restarted_again_and_again_has_higher_tenures_each_time(kernel: Kernel, home: Path) -> None:
    """The home has lost what it had of the kernel: its owner alone knows the numbers."""
    highest = tenure(home)
    for _ in range(3):
        shutil.rmtree(home / "data" / "gresshopper" / "states")
        kernel.km.restart_kernel()
        kernel.kc.wait_for_ready(timeout=TIMEOUT)
        assert tenure(home) > highest
        highest = tenure(home)
    kernel.run("x = 1")
    for who in ("replica", "kernel"):
        saved(home)
        kill(kernel, who)
        assert kernel.value("x") == "1"
        assert tenure(home) >= highest
        highest = tenure(home)


def test_a_restart_by_the_user_is_fresh(kernel: Kernel, home: Path) -> None:
    kernel.run("x = 1")
    saved(home)
    kernel.km.restart_kernel()
    kernel.kc.wait_for_ready(timeout=TIMEOUT)
    assert kernel.value("'x' in globals()") == "False"
    kernel.run("y = 2")
    saved(home)
    kill(kernel, "kernel")
    assert kernel.value("('x' in globals(), y)") == "(False, 2)"


def test_cells_that_wait_behind_a_lost_one_are_aborted_and_later_ones_run(kernel: Kernel) -> None:
    kernel.run("x = 1")
    pid = kernel.pids()["kernel"]
    first = kernel.kc.execute("import time; time.sleep(60)")
    second = kernel.kc.execute("x = 2")
    time.sleep(1)
    os.kill(pid, signal.SIGKILL)
    said: dict[str, str] = {}
    while len(said) < 2:
        reply = kernel.kc.get_shell_msg(timeout=TIMEOUT)
        if (asked := reply["parent_header"].get("msg_id")) in (first, second):
            said[asked] = reply["content"]["status"]
    assert said == {first: "error", second: "aborted"}
    assert kernel.value("40 + 2") == "42"


def test_a_cell_that_is_sent_while_the_replica_is_away_runs_once(kernel: Kernel, home: Path) -> None:
    kernel.run("n = 0")
    saved(home)
    pids = kernel.pids()
    os.kill(pids["replica"], signal.SIGKILL)
    assert kernel.text("n += 1; print(n)") == "1\n"
    assert kernel.value("n") == "1"


def test_a_kernel_that_dies_over_and_over_is_given_up(kernel: Kernel) -> None:
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    for _ in range(5):
        reply, _ = error_of(kernel, suicide)
        assert reply["ename"] == "CellLost"
    reply, _ = error_of(kernel, suicide)
    assert reply["ename"] == "KernelDied" and "6 times within a minute" in reply["evalue"]
    eventually(lambda: not kernel.km.is_alive(), "the death is reported", 5)


def test_a_segmentation_fault_and_an_exit_are_told_as_what_they_were(kernel: Kernel, home: Path) -> None:
    kernel.run("x = 1")
    saved(home)
    reply, _ = error_of(kernel, "import ctypes; ctypes.string_at(0)")
    assert "segmentation fault" in reply["evalue"]
    reply, _ = error_of(kernel, "import os; os._exit(3)")
    assert "exited with status 3" in reply["evalue"]
    assert kernel.value("x") == "1"


@pytest.mark.parametrize("knows_cells", [False, True])
@pytest.mark.thorough
def test_a_stream_of_the_notebooks_shows_under_the_cell_that_prints(
    kernel: Kernel, home: Path, knows_cells: bool
) -> None:
    tee = "import sys\nclass Tee:\n    def __init__(self, of): self.of, self.seen = of, []\n"
    tee += "    def write(self, text): self.seen.append(text); return self.of.write(text)\n"
    tee += "    def flush(self): self.of.flush()\n"
    if knows_cells:
        tee += "    def set_parent(self, parent): self.of.set_parent(parent)\n"
    kernel.run(tee + "tee = sys.stdout = Tee(sys.stdout)")
    saved(home)
    error_of(kernel, "import os; os._exit(3)")
    for n in range(2):
        assert kernel.value(f"len([0] * {n}), sys.stdout is tee") == f"{n} True"


def test_front_and_replica_die_together_between_cells(kernel: Kernel, home: Path) -> None:
    kernel.run("x = 1")
    saved(home)
    pids = kernel.pids()
    os.kill(pids["front"], signal.SIGKILL)
    os.kill(pids["replica"], signal.SIGKILL)
    eventually(lambda: kernel.km.provisioner.pid != pids["front"], "another front follows")
    time.sleep(1)
    assert kernel.value("x") == "1"


def test_a_front_is_followed_in_a_home_without_room(disk: SmallDisk) -> None:
    kernel = Kernel()
    kernel.run("x = 1")
    disk.fill()
    kernel.run("x = 2")
    front = kernel.pids()["front"]
    # A message that the client has in this moment may not be noted as delivered, and would come twice.
    time.sleep(0.5)
    os.kill(front, signal.SIGKILL)
    eventually(lambda: kernel.km.provisioner.pid != front, "another front follows")
    assert kernel.value("x") == "2"
    disk.free()
    assert kernel.value("x") == "2"
    kernel.close()


def test_before_reply_loses_no_answered_cell(home: Path) -> None:
    write_spec(home / "overlay", durable="before-reply")
    kernel = Kernel()
    kernel.run("n = 0")
    for n in range(4):
        pid = kernel.pids()["kernel"]
        kernel.run("n += 1")
        os.kill(pid, signal.SIGKILL)
        assert kernel.value("n") == str(n + 1)
    kernel.close()


def test_a_store_that_can_not_be_written_is_told_once_and_the_kernel_goes_on(home: Path) -> None:
    kernel = Kernel()
    pids = kernel.pids()
    resource = f"import resource; resource.prlimit({pids['replica']}, resource.RLIMIT_FSIZE, (1000, 1000))"
    subprocess.run([sys.executable, "-c", resource], check=True)
    told = ""
    for n in range(10):
        out, err = outputs(kernel, f"x{n} = list(range(2000)); print({n})")
        assert out == f"{n}\n"
        told += err
        time.sleep(0.3)
    assert told.count("this kernel is not saved") == 1, told
    assert kernel.value("len(x9)") == "2000"
    assert alive(pids["replica"])
    kernel.close()


def test_nothing_is_left_of_a_kernel_that_was_shut_down(home: Path) -> None:
    kernel = Kernel()
    kernel.run("x = list(range(1000))")
    saved(home)
    states = home / "data" / "gresshopper" / "states"
    assert any(states.iterdir())
    kernel.kc.stop_channels()
    kernel.km.shutdown_kernel()
    eventually(lambda: not any(states.iterdir()), "its state is removed", 5)


def test_nothing_is_left_where_the_front_is_killed_while_it_closes_the_kernel(home: Path) -> None:
    """Else the notebook's next opening would bring back what its user has ended."""
    kernel = Kernel()
    kernel.run("x = list(range(1000))")
    pids = kernel.pids()
    saved(home)
    states = home / "data" / "gresshopper" / "states"
    asyncio.run(kernel.km.provisioner.shutdown_requested())  # type: ignore[union-attr]
    os.kill(pids["front"], signal.SIGKILL)
    kernel.close()
    assert not any(states.iterdir())
    eventually(lambda: not alive(pids["kernel"]), "its replica has noticed", 90)


def test_a_kernel_that_was_started_by_argv_comes_back_as_well(home: Path) -> None:
    """As VS Code, Zed and Enterprise Gateway start it: the kernelspec's command, and no provisioner."""
    file, _ = write_connection_file(str(home / "by-argv.json"), key=os.urandom(16).hex().encode())
    options = json.dumps({"local": True})
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", file]
    front = subprocess.Popen([BIN / "hop-front", "kernel", "-f", file, "--options", options, "--", *command])
    client = BlockingKernelClient(connection_file=file)
    client.load_connection_file()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=TIMEOUT)
        kernel = Kernel.__new__(Kernel)
        kernel.kc = client
        kernel.run("x = [1, 2]")
        saved(home)
        os.kill(int(kernel.value("__import__('os').getpid()")), signal.SIGKILL)
        assert kernel.value("x") == "[1, 2]"
    finally:
        client.stop_channels()
        front.terminate()
        front.wait(TIMEOUT)
    assert not any((home / "data" / "gresshopper" / "states").iterdir())
