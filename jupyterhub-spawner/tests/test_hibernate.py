"""Kernels whose server ends, and the same notebooks opened again. On a real Slurm: tests/e2e."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import BIN, ROOT, TIMEOUT, Kernel, SmallDisk, eventually, outputs, write_spec
from jupyter_client.manager import KernelManager
from jupyter_client.session import Session

SAVED = "this notebook's kernel was saved"


@pytest.fixture(autouse=True)
def notebook(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = home / "a.ipynb"
    monkeypatch.setenv("GRESSHOPPER_NOTEBOOK", str(path))
    return path


@contextmanager
def opened() -> Iterator[Kernel]:
    kernel = Kernel()
    try:
        yield kernel
    finally:
        kernel.close()


def server_ends(kernel: Kernel) -> None:
    """As the server extension does it."""
    provisioner = kernel.km.provisioner
    asyncio.run(provisioner.hibernate())  # type: ignore[union-attr]
    assert not kernel.km.is_alive()
    kernel.close()


def server_is_killed(kernel: Kernel) -> None:
    front = kernel.km.provisioner._front  # type: ignore[union-attr]
    front.release()
    front._process.stdin.close()
    eventually(lambda: not kernel.km.is_alive(), "the front has ended")
    kernel.close()


def server_and_front_are_killed(kernel: Kernel) -> None:
    """At once: no front follows, and nobody tells the replica."""
    front = kernel.km.provisioner._front  # type: ignore[union-attr]
    front.release()
    # A line that the client has in this moment may not be noted as delivered, and would come twice.
    time.sleep(0.05)
    os.kill(front.pid, signal.SIGKILL)
    eventually(lambda: not kernel.km.is_alive(), "the front is gone")


def shown(kernel: Kernel, cell: str, until: str = "") -> str:
    """What the cell's client has seen of it, up to this text or as long as anything comes."""
    text = ""
    with contextlib.suppress(queue.Empty):
        while not until or until not in text:
            message = kernel.kc.get_iopub_msg(timeout=TIMEOUT if until else 0.5)
            if message["parent_header"].get("msg_id") == cell:
                text += message["content"].get("text", "")
    return text


def states(home: Path) -> list[str]:
    folder = home / "data" / "gresshopper" / "states"
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


@pytest.mark.parametrize("ends", [server_ends, server_is_killed])
def test_the_next_opening_has_the_variables(home: Path, ends: object) -> None:
    kernel = Kernel()
    kernel.run("x = {'a': [1, 2]}\nx['self'] = x")
    kernel.run("y = 7")
    ends(kernel)  # type: ignore[operator]
    (saved,) = states(home)
    with opened() as again:
        out, told = outputs(again, "print(x['self'] is x, x['a'], y)")
        assert out == "True [1, 2] 7\n"
        assert SAVED in told
        assert outputs(again, "y += 1; print(y)") == ("8\n", "")
        assert states(home) == [saved]
        assert again.km.provisioner.kernel == saved  # type: ignore[union-attr]
        assert again.km.kernel_id != saved
    assert states(home) == [], "a kernel that is shut down leaves nothing"


@pytest.mark.parametrize("ends", [True, False], ids=["it has ended by then", "it still runs"])
def test_a_cell_of_a_server_and_front_that_were_lost_is_shown_whole_within_the_minute(home: Path, ends: bool) -> None:
    kernel = Kernel()
    kernel.run("x = 40")
    code = "import time\nfor i in range(40):\n    print(i, flush=True); time.sleep(0.1)\nx += 1\nprint('end', flush=True)"
    cell = kernel.kc.execute(code)
    before = shown(kernel, cell, "5\n")
    server_and_front_are_killed(kernel)
    before += shown(kernel, cell)
    kernel.close()
    time.sleep(5 if ends else 1)
    (left,) = states(home)
    with opened() as again:
        out, told = outputs(again, "print('x is', x)")
        assert (before + out).split("\n") == [*map(str, range(40)), "end", "x is 41", ""]
        assert told.count("a cell ran on without a server") == 1
        assert outputs(again, "print(x)") == ("41\n", ""), "it is told once"
        assert again.km.provisioner.kernel == left  # type: ignore[union-attr]
    assert states(home) == []


def test_a_kernel_whose_replica_is_lost_as_well_goes_on_with_what_is_saved(home: Path) -> None:
    kernel = Kernel()
    kernel.run("x = 41")
    pids = kernel.pids()
    eventually(lambda: any((home / "data/gresshopper/states").rglob("log*")), "it is saved")
    time.sleep(2)
    server_and_front_are_killed(kernel)
    for who in ("replica", "kernel"):
        os.kill(pids[who], signal.SIGKILL)
    kernel.close()
    with opened() as again:
        out, told = outputs(again, "print(x)")
        assert (out, SAVED in told) == ("41\n", True)


def test_a_shutdown_request_of_another_kernels_client_costs_nothing_at_the_servers_end(home: Path) -> None:
    """Ports are used again, by a kernel with another key."""
    kernel = Kernel()
    kernel.run("x = 41")
    stranger = Session(key=b"another kernel's")
    socket = kernel.km.connect_control()
    stranger.send(socket, "shutdown_request", {"restart": False})
    # The front reads a client's messages in their order.
    kernel.km.session.send(socket, "interrupt_request", {})
    assert socket.poll(TIMEOUT * 1000), "the front has read both"
    socket.close()
    server_ends(kernel)
    with opened() as again:
        out, told = outputs(again, "print(x)")
        assert (out, SAVED in told) == ("41\n", True)


@contextmanager
def no_replica(home: Path) -> Iterator[Kernel]:
    """A kernel whose replica was lost, and which gets no other one meanwhile."""
    folder = home / "bin"
    shutil.copytree(BIN, folder, ignore=lambda _, names: [n for n in names if n not in ("hop-front", "hop-replica")])
    write_spec(home / "overlay", front_program=str(folder / "hop-front"))
    with opened() as kernel:
        kernel.run("x = 41")
        eventually(lambda: any((home / "data/gresshopper/states").rglob("log*")), "it is saved")
        time.sleep(2)
        replica = kernel.pids()["replica"]
        (folder / "hop-replica").rename(folder / "away")
        os.kill(replica, signal.SIGKILL)
        yield kernel
        (folder / "away").rename(folder / "hop-replica")
        if kernel.km.is_alive():
            assert kernel.value("x") == "41"


def test_an_interrupt_while_the_kernel_has_no_replica_ends_the_waiting_cell(home: Path) -> None:
    with no_replica(home) as kernel:
        first, second = kernel.kc.execute("x = 0"), kernel.kc.execute("x = 1")
        # Behind the cells on their channel: on the control channel it might come before them.
        kernel.kc.shell_channel.send(kernel.kc.session.msg("interrupt_request", {}))
        said = {}
        while len(said) < 3:
            reply = kernel.kc.get_shell_msg(timeout=TIMEOUT)
            said[reply["parent_header"]["msg_id"]] = reply["content"]
        assert (said.pop(first)["ename"], said.pop(second)["status"]) == ("KeyboardInterrupt", "aborted")
        assert list(said.values()) == [{"status": "ok"}]


def test_a_client_ends_a_kernel_that_has_no_replica_and_its_state_goes(home: Path) -> None:
    with no_replica(home) as kernel:
        reply = kernel.kc.shutdown(reply=True, timeout=TIMEOUT)
        assert reply["content"] == {"status": "ok", "restart": False}
        eventually(lambda: not kernel.km.is_alive(), "its front has ended")
        assert states(home) == []


def test_it_is_saved_again_and_again(home: Path) -> None:
    kernel = Kernel()
    kernel.run("x = 0")
    for n in range(1, 4):
        server_ends(kernel)
        kernel = Kernel()
        assert outputs(kernel, "x += 1; print(x)")[0] == f"{n}\n"
    kernel.close()


def test_a_second_tab_gets_a_kernel_of_its_own_and_reads_why(home: Path) -> None:
    with opened() as first:
        first.run("x = 1")
        with opened() as second:
            out, told = outputs(second, "print('x' in globals())")
            assert out == "False\n"
            assert "runs for another tab or server" in told
            assert outputs(second, "x = 2; print(x)") == ("2\n", "")
        assert first.value("x") == "1"


def test_the_notebooks_first_kernel_comes_before_a_second_tabs(home: Path) -> None:
    first, second = Kernel(), Kernel()
    first.run("x = 'hours of work'")
    second.run("x = 'one cell'")
    second.km.restart_kernel(now=True)
    second.kc.wait_for_ready(timeout=30)
    second.run("x = 'one cell'")
    server_ends(first)
    server_ends(second)
    with opened() as again:
        assert outputs(again, "print(x)")[0] == "hours of work\n"
    with opened() as again:
        assert outputs(again, "print(x)")[0] == "one cell\n", "once the first is shut down"


def breakable(home: Path) -> Path:
    """A kernelspec whose environment is missing while the returned file is there."""
    missing, python = home / "missing", home / "python"
    python.write_text(f'#!/bin/sh\n[ ! -e {missing} ] || exit 127\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    spec = home / "overlay" / "kernels" / "python3" / "kernel.json"
    spec.write_text(spec.read_text().replace(sys.executable, str(python)))
    return missing


def dies_of(kernel: Kernel, missing: Path) -> None:
    pid = kernel.pids()["kernel"]
    time.sleep(2)  # A cell that is killed before its save is told as lost.
    missing.touch()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not kernel.km.is_alive(), "the death is reported")
    missing.unlink()


@pytest.mark.parametrize("was_restarted", [False, True], ids=["", "its user restarted it before"])
@pytest.mark.thorough
def test_a_restart_brings_the_variables_of_a_kernel_that_died_of_a_missing_environment(
    home: Path, was_restarted: bool
) -> None:
    missing = breakable(home)
    with opened() as kernel:
        if was_restarted:
            kernel.km.restart_kernel()
            kernel.kc.wait_for_ready(timeout=30)
        kernel.run("x = 41")
        time.sleep(2)
        dies_of(kernel, missing)
        # As Jupyter Server's restarter does it.
        kernel.km.restart_kernel(now=True)
        kernel.kc.wait_for_ready(timeout=30)
        out, told = outputs(kernel, "print(x)")
        assert (out, SAVED in told) == ("41\n", True)
    assert states(home) == []


def test_the_next_opening_has_the_variables_after_one_without_the_environment(home: Path) -> None:
    missing = breakable(home)
    kernel = Kernel()
    kernel.run("x = 41")
    server_ends(kernel)
    missing.touch()
    km = KernelManager(kernel_name="python3")
    km.start_kernel()
    eventually(lambda: not km.is_alive(), "it can't start")
    km.restart_kernel(now=True)
    eventually(lambda: not km.is_alive(), "it can't start")
    asyncio.run(km.provisioner.hibernate())  # type: ignore[union-attr]
    missing.unlink()
    with opened() as again:
        out, told = outputs(again, "print(x)")
        assert (out, SAVED in told) == ("41\n", True)


def test_a_user_restarts_a_dead_kernel_afresh(home: Path) -> None:
    missing = breakable(home)
    with opened() as kernel:
        kernel.run("x = 41")
        time.sleep(2)
        dies_of(kernel, missing)
        kernel.km.restart_kernel()
        kernel.kc.wait_for_ready(timeout=30)
        assert outputs(kernel, "print('x' in globals())") == ("False\n", "")


def test_a_restart_of_a_saved_kernel_that_never_came_up_keeps_its_variables(home: Path) -> None:
    missing = breakable(home)
    python, came = home / "python", home / "came"
    python.write_text(python.read_text().replace("exit 127", f"{{ touch {came}; exec sleep 600; }}"))
    kernel = Kernel()
    kernel.run("x = 41")
    server_ends(kernel)
    missing.touch()
    km = KernelManager(kernel_name="python3")
    km.start_kernel()
    eventually(came.exists, "its process runs")
    time.sleep(1)
    missing.unlink()
    km.restart_kernel()
    kc = km.client()
    kc.start_channels()
    kc.wait_for_ready(timeout=30)
    seen: list[str] = []
    kc.execute_interactive("print(x)", output_hook=lambda m: seen.append(m["content"].get("text", "")), timeout=30)
    kc.stop_channels()
    km.shutdown_kernel(now=True)
    assert "41\n" in seen


#: Stands in for a home on a file system without locks: `flock` fails as on Lustre that is mounted without it.
NO_LOCKS = """
#include <errno.h>
int flock(int fd, int operation) { (void)fd; (void)operation; errno = ENOSYS; return -1; }
"""


def test_without_file_locks_the_variables_are_saved_and_the_user_reads_of_it_once(home: Path) -> None:
    source, library, program = home / "no_locks.c", home / "no_locks.so", home / "hop-front"
    source.write_text(NO_LOCKS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    program.write_text(f'#!/bin/sh\nLD_PRELOAD={library} exec {BIN / "hop-front"} "$@"\n')
    program.chmod(0o755)
    write_spec(home / "overlay", front_program=str(program))
    kernel = Kernel()
    _, told = outputs(kernel, "x = 41")
    assert told.count("no file locks (") == 1, told
    assert outputs(kernel, "y = 1") == ("", "")
    with opened() as second:
        out, told = outputs(second, "print('x' in globals())")
        assert out == "False\n" and "may run for another tab or server" in told
    server_ends(kernel)
    with opened() as again:
        out, told = outputs(again, "print(x)")
        assert out == "41\n" and SAVED in told and "no file locks" in told
    assert states(home) == []


def test_a_copy_and_another_kernelspec_begin_anew(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    kernel.run("x = 1")
    server_ends(kernel)
    monkeypatch.setenv("GRESSHOPPER_NOTEBOOK", str(home / "copy.ipynb"))
    with opened() as copy:
        assert outputs(copy, "print('x' in globals())") == ("False\n", "")
    monkeypatch.setenv("GRESSHOPPER_NOTEBOOK", str(home / "a.ipynb"))
    with opened() as again:
        assert again.value("x") == "1"


def test_a_restart_by_the_user_is_fresh(home: Path) -> None:
    kernel = Kernel()
    kernel.run("x = 1")
    server_ends(kernel)
    with opened() as again:
        assert again.value("x") == "1"
        again.km.restart_kernel()
        again.kc.wait_for_ready(timeout=30)
        assert outputs(again, "print('x' in globals())") == ("False\n", "")


def test_a_kernel_without_a_notebook_ends_with_its_owner(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRESSHOPPER_NOTEBOOK")
    kernel = Kernel()
    kernel.run("x = 1")
    server_is_killed(kernel)
    assert states(home) == []


def test_without_the_key_the_user_reads_that_it_is_a_new_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    kernel = Kernel()
    kernel.run("x = 1")
    server_ends(kernel)
    keys = [p for p in (home / "config").rglob("*key*") if p.is_file()]
    assert keys
    for key in keys:
        key.unlink()
    with opened() as again:
        out, told = outputs(again, "print('x' in globals())")
        assert out == "False\n"
        assert "could not be brought back" in told
        again.run("x = 2")
        assert again.value("x") == "2"


def test_a_server_that_ends_saves_all_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gresshopper_jupyter.server.hibernation import save_at_the_end
    from jupyter_client.multikernelmanager import AsyncMultiKernelManager

    monkeypatch.delenv("GRESSHOPPER_NOTEBOOK")

    class App:
        kernel_manager = AsyncMultiKernelManager(default_kernel_name="python3")

    async def open_and_end() -> None:
        import os

        for name in "ab":
            (home / name).write_text("{}")
            env = {**os.environ, "JPY_SESSION_NAME": str(home / name)}
            kernel = await App.kernel_manager.start_kernel(env=env)
            client = App.kernel_manager.get_kernel(kernel).client()
            client.start_channels()
            await client.wait_for_ready(timeout=30)
            await client._async_execute_interactive(f"x = {name!r}", timeout=30)
            client.stop_channels()
        save_at_the_end(App)
        await App.kernel_manager.shutdown_all()

    asyncio.run(open_and_end())
    deadline = time.monotonic() + 10
    while len(states(home)) != 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    for name in "ab":
        monkeypatch.setenv("GRESSHOPPER_NOTEBOOK", str(home / name))
        with opened() as again:
            assert again.value("x") == name


#: The first cell of an opening says so of a kernel whose last cells were not saved.
LACKS = "this notebook's kernel ended before it could be saved once more, and is back with its variables of"


def runs_in_a_full_home(kernel: Kernel, disk: SmallDisk) -> None:
    """The kernel has `x = 1` in its store, and `x = 3` in its process."""
    kernel.run("x = 1")
    time.sleep(2)
    disk.fill()
    kernel.run("x = 2")
    time.sleep(1)
    assert "this kernel is not saved" in outputs(kernel, "x = 3")[1]


def test_a_kernel_whose_home_was_full_is_saved_whole_at_its_servers_end(disk: SmallDisk) -> None:
    kernel = Kernel()
    runs_in_a_full_home(kernel, disk)
    disk.free()
    kernel.run("y = 4")
    since = time.monotonic()
    server_ends(kernel)
    assert time.monotonic() - since < 20
    with opened() as again:
        out, told = outputs(again, "print(x, y)")
        assert out == "3 4\n"
        assert SAVED in told
        assert "effects are gone" not in told


def test_a_kernel_whose_home_stays_full_ends_at_once_and_tells_the_time_of_its_last_save(disk: SmallDisk) -> None:
    kernel = Kernel()
    runs_in_a_full_home(kernel, disk)
    since = time.monotonic()
    server_ends(kernel)
    assert time.monotonic() - since < 20
    disk.free()
    with opened() as again:
        out, told = outputs(again, "print(x)")
        assert out == "1\n"
        assert LACKS in told
        assert SAVED not in told


def test_a_process_that_dies_in_a_home_with_room_again_goes_on_and_names_the_lost_cells(disk: SmallDisk) -> None:
    with opened() as kernel:
        runs_in_a_full_home(kernel, disk)
        disk.free()
        pid = int(outputs(kernel, "import os; print(os.getpid())")[0])
        os.kill(pid, signal.SIGKILL)
        out, told = outputs(kernel, "print(x)")
        # The log had room for a record, and the state beside it had none.
        assert out in ("1\n", "2\n")
        named = told.partition("effects are gone:")[2]
        assert "[3]" in named and ("[2]" in named) == (out == "1\n")


def test_a_kernel_that_can_not_be_saved_ends_with_its_server_at_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The copy has no library beside it.
    shutil.copytree(ROOT / "kernel" / "python", home / "python")
    monkeypatch.setenv("GRESSHOPPER_PYTHON", str(home / "python"))
    kernel = Kernel()
    assert "this kernel is not saved" in outputs(kernel, "x = 1")[1]
    since = time.monotonic()
    server_ends(kernel)
    assert time.monotonic() - since < 20
    assert states(home) == []
