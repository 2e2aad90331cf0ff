"""A kernel behind hop-front and hop-replica, as its user meets it. No Slurm: leases have tests of their own."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from conftest import TIMEOUT, Kernel, alive, eventually, of_type, write_spec
from jupyter_client.manager import start_new_kernel


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    pids = kernel.pids()
    yield kernel
    kernel.close()
    eventually(lambda: not any(alive(p) for p in pids.values()), f"all are gone: {pids}")


# What a plain kernel does.


def test_no_trace_of_us_is_in_the_namespace_the_path_or_the_environment(kernel: Kernel) -> None:
    names = "[k for k in globals() if 'gress' in k.lower() or 'need' in k]"
    assert kernel.value(names) == "[]"
    assert kernel.value("[p for p in __import__('sys').path if p.endswith('kernel/python')]") == "[]"
    left = "[k for k in __import__('os').environ if k in ('PYTHONPATH', 'GRESSHOPPER_AGENT_FD')]"
    assert kernel.value(left) == "[]"
    assert kernel.value("__import__('gresshopper').__name__") == "gresshopper"


def test_a_magic_changes_nothing_else_in_its_cell(kernel: Kernel) -> None:
    reply, seen = kernel.run("%%cpu\nimport asyncio\nawait asyncio.sleep(0)\n40 + 2")
    assert of_type(seen, "execute_result")[0]["data"]["text/plain"] == "42"
    reply, seen = kernel.run("%%cpu\n\n1/0")
    assert "line 3" in "".join(of_type(seen, "error")[0]["traceback"])
    reply, seen = kernel.run("%%cpu\n%%bash\necho from bash")
    assert of_type(seen, "stream")[0]["text"] == "from bash\n"


@pytest.mark.parametrize("relative", [False, True])
def test_a_client_starts_it_with_what_popen_takes(
    tmp_path: Path, relative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`jupyter execute` gives the notebook's folder as a Path."""
    monkeypatch.chdir(tmp_path.parent)
    cwd = Path(tmp_path.name) if relative else tmp_path
    kernel = Kernel(cwd=cwd, env={**os.environ, "SOME_PATH": tmp_path})
    try:
        assert kernel.value("__import__('os').getcwd()") == str(tmp_path)
        assert kernel.value("__import__('os').environ['SOME_PATH']") == str(tmp_path)
    finally:
        kernel.close()


def test_a_bad_magic_is_an_error_without_a_traceback(kernel: Kernel) -> None:
    reply, seen = kernel.run("%%gpu two\nprint('not run')")
    assert (reply["status"], reply["ename"]) == ("error", "UsageError")
    (shown,) = of_type(seen, "stream")
    assert shown["name"] == "stderr" and shown["text"].startswith("UsageError: %%gpu:")
    assert "Traceback" not in shown["text"]
    assert kernel.value("'fine'") == "fine"


def test_without_a_scheduler_a_gpu_is_refused_with_the_reason(kernel: Kernel) -> None:
    reply, seen = kernel.run("%%gpu 1\nprint('not run')")
    assert reply["ename"] == "LeaseRefused" and "without Slurm" in reply["evalue"]
    reply, _ = kernel.run("import gresshopper\nwith gresshopper.gpu():\n    pass")
    assert reply["ename"] == "LeaseRefused" and "without Slurm" in reply["evalue"]


def test_gpu_says_how_the_kernel_stands(kernel: Kernel) -> None:
    assert kernel.text("%gpu").startswith("This kernel holds no GPU.")
    assert kernel.text("%gpu release") == "There is no GPU that is kept for the next cell.\n"
    assert kernel.value("__import__('gresshopper').status().state") == "cpu"
    reply, _ = kernel.run("1\n%%gpu 1")
    assert reply["ename"] == "UsageError" and "first line" in reply["evalue"]


def test_an_announced_client_is_told_and_the_kernel_is_not_asked(kernel: Kernel) -> None:
    """The answer comes while a cell runs; the kernel has no comm of ours."""
    asked = kernel.kc.execute("import time; time.sleep(3)")
    content = {"comm_id": "c1", "target_name": "gresshopper", "data": {"version": 1}}
    kernel.kc.shell_channel.send(kernel.kc.session.msg("comm_open", content))
    while True:
        message = kernel.kc.get_iopub_msg(timeout=TIMEOUT)
        assert message["content"].get("execution_state") != "idle", "told before the cell has ended"
        if message["msg_type"] == "comm_msg":
            break
    assert message["content"] == {"comm_id": "c1", "data": {"state": "cpu"}}
    while kernel.kc.get_shell_msg(timeout=TIMEOUT)["parent_header"].get("msg_id") != asked:
        pass
    assert kernel.value("len(__import__('comm').get_comm_manager().comms)") == "0"


def test_input_is_asked_of_the_client_that_runs_the_cell(kernel: Kernel) -> None:
    asked = kernel.kc.execute("x = input('name? ')", allow_stdin=True)
    request = kernel.kc.get_stdin_msg(timeout=TIMEOUT)
    assert request["content"]["prompt"] == "name? "
    kernel.kc.input("hopper")
    while kernel.kc.get_shell_msg(timeout=TIMEOUT)["parent_header"].get("msg_id") != asked:
        pass
    assert kernel.value("x") == "hopper"


def test_an_interrupt_stops_a_cell_and_its_children(kernel: Kernel) -> None:
    kernel.kc.execute("import subprocess\nsubprocess.run(['sleep', '60'])")
    time.sleep(0.5)
    kernel.km.interrupt_kernel()
    reply = kernel.kc.get_shell_msg(timeout=TIMEOUT)
    assert reply["content"]["ename"] == "KeyboardInterrupt"


def test_an_error_aborts_the_cells_behind_it_as_in_a_plain_kernel(kernel: Kernel) -> None:
    ids = [kernel.kc.execute(code) for code in ("import time; time.sleep(0.3); 1/0", "2", "%%gpu nonsense", "3")]
    replies = {}
    while len(replies) < len(ids):
        reply = kernel.kc.get_shell_msg(timeout=TIMEOUT)
        replies[reply["parent_header"]["msg_id"]] = reply["content"]["status"]
    assert [replies[i] for i in ids] == ["error", "aborted", "aborted", "aborted"]
    idle = {}
    while len(idle) < len(ids):
        message = kernel.kc.get_iopub_msg(timeout=TIMEOUT)
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            idle[message["parent_header"]["msg_id"]] = True


def test_comms_carry_binary_buffers_both_ways(kernel: Kernel) -> None:
    code = (
        "def opened(comm, msg):\n"
        "    comm.on_msg(lambda m: comm.send({}, buffers=[bytes(b) for b in m['buffers']]))\n"
        "get_ipython().kernel.comm_manager.register_target('echo', opened)"
    )
    kernel.run(code)
    session, channel = kernel.kc.session, kernel.kc.shell_channel
    channel.send(session.msg("comm_open", {"comm_id": "c", "target_name": "echo", "data": {}}))
    message = session.msg("comm_msg", {"comm_id": "c", "data": {}})
    session.send(channel.socket, message, buffers=[b"\0\1", b"x" * 1_000_000])
    while (said := kernel.kc.get_iopub_msg(timeout=TIMEOUT))["msg_type"] != "comm_msg":
        pass
    assert [bytes(b) for b in said["buffers"]] == [b"\0\1", b"x" * 1_000_000]


def test_subshells_and_the_debugger_pass_through(kernel: Kernel) -> None:
    session, control = kernel.kc.session, kernel.kc.control_channel
    control.send(session.msg("create_subshell_request", {}))
    created = kernel.kc.get_control_msg(timeout=TIMEOUT)
    subshell = created["content"]["subshell_id"]
    kernel.kc.execute("import time; time.sleep(1)")
    message = session.msg("execute_request", {"code": "beside = 1", "silent": False})
    message["header"]["subshell_id"] = subshell
    kernel.kc.shell_channel.send(message)
    first = kernel.kc.get_shell_msg(timeout=TIMEOUT)
    assert first["parent_header"]["msg_id"] == message["header"]["msg_id"], "it doesn't wait for the main shell"
    kernel.kc.get_shell_msg(timeout=TIMEOUT)
    start = {"type": "request", "seq": 1, "command": "initialize", "arguments": {"clientID": "t", "adapterID": "x"}}
    control.send(session.msg("debug_request", start))
    assert kernel.kc.get_control_msg(timeout=TIMEOUT)["content"]["success"]


def test_a_restart_keeps_ports_and_key_and_clears_the_namespace(kernel: Kernel) -> None:
    before = kernel.km.get_connection_info()
    kernel.run("x = 1")
    kernel.km.restart_kernel()
    kernel.kc.wait_for_ready(timeout=TIMEOUT)
    assert kernel.km.get_connection_info() == before
    reply, _ = kernel.run("x")
    assert reply["ename"] == "NameError"


def test_a_shutdown_leaves_nothing(home: Path) -> None:
    kernel = Kernel()
    pids = kernel.pids()
    child = int(kernel.text("import subprocess as s; p = s.Popen(['setsid', 'sleep', '300']); print(p.pid)"))
    kernel.kc.stop_channels()
    kernel.km.shutdown_kernel()
    gone = [*pids.values(), child]
    eventually(lambda: not any(alive(p) for p in gone), "the kernel and what it started are gone")


# Clients that come, go and stop.


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_a_kernel_that_has_ended_leaves_no_open_file(home: Path) -> None:
    """nbclient's own tests take such a warning for an error."""
    for sudden in (False, True):
        km, kc = start_new_kernel(kernel_name="python3")
        kc.stop_channels()
        km.shutdown_kernel(now=sudden)
        del km, kc
        gc.collect()


def test_what_nobody_heard_is_delivered_on_return(kernel: Kernel) -> None:
    kernel.kc.execute("import time; time.sleep(0.5)\nfor i in range(1000): print(i, flush=True)")
    time.sleep(0.1)
    kernel.kc.stop_channels()
    time.sleep(2.5)
    kernel.kc = kernel.km.client()
    kernel.kc.start_channels()
    text = ""
    while "999\n" not in text:
        message = kernel.kc.get_iopub_msg(timeout=TIMEOUT)
        if message["msg_type"] == "stream":
            text += message["content"]["text"]
    assert text == "".join(f"{i}\n" for i in range(1000))
    reply = kernel.kc.get_shell_msg(timeout=TIMEOUT)
    assert reply["content"]["status"] == "ok"


def test_a_client_that_opens_again_under_its_identity_loses_nothing(kernel: Kernel) -> None:
    for i in range(100):
        kernel.kc.shell_channel.stop()
        kernel.kc._shell_channel = None
        asked = kernel.kc.kernel_info()
        reply = kernel.kc.get_shell_msg(timeout=5)
        assert reply["parent_header"]["msg_id"] == asked, i


def test_a_stopped_subscriber_holds_nobody_up(kernel: Kernel) -> None:
    port = kernel.km.get_connection_info()["iopub_port"]
    code = (
        "import sys, zmq\n"
        f"s = zmq.Context().socket(zmq.SUB); s.connect('tcp://127.0.0.1:{port}'); s.subscribe(b'')\n"
        "s.recv(); print('here', flush=True); s.recv(); input()"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    try:
        time.sleep(0.5)
        kernel.run("1")
        assert other.stdout is not None and other.stdout.readline() == b"here\n"
        other.send_signal(signal.SIGSTOP)
        kernel.kc.execute("for i in range(300):\n    print('x' * 1_000_000, flush=True)")
        size = 0
        while size < 300_000_000:
            message = kernel.kc.get_iopub_msg(timeout=TIMEOUT)
            size += len(message["content"].get("text", "")) // 1_000_000 * 1_000_000
    finally:
        other.kill()
        other.wait()


def test_other_users_can_not_listen(kernel: Kernel) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    port = kernel.km.get_connection_info()["iopub_port"]
    code = (
        "import os, socket\nos.setuid(65534)\n"
        f"s = socket.create_connection(('127.0.0.1', {port})); s.settimeout(5)\n"
        "print(len(s.recv(10)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "0\n", "the connection is closed without a word"


# What is killed.


def test_kill_9_of_the_front_loses_nothing(kernel: Kernel) -> None:
    kernel.run("x = 'still here'")
    pids = kernel.pids()
    asked = kernel.kc.execute("import time\nfor i in range(40):\n    print(i, flush=True); time.sleep(0.05)")
    time.sleep(0.5)
    os.kill(pids["front"], signal.SIGKILL)
    text, done = "", False
    while not done:
        message = kernel.kc.get_iopub_msg(timeout=TIMEOUT)
        if message["parent_header"].get("msg_id") == asked:
            text += message["content"].get("text", "")
            done = message["content"].get("execution_state") == "idle"
    assert text == "".join(f"{i}\n" for i in range(40))
    while kernel.kc.get_shell_msg(timeout=TIMEOUT)["parent_header"].get("msg_id") != asked:
        pass
    assert kernel.value("x") == "still here"
    after = kernel.pids()
    assert (after["kernel"], after["replica"]) == (pids["kernel"], pids["replica"])
    assert after["front"] != pids["front"]


@pytest.mark.parametrize("who", ["kernel", "replica"])
def test_kill_9_of_a_kernel_that_is_not_saved_is_told_and_a_restart_works(home: Path, who: str) -> None:
    write_spec(home / "overlay", durable="no")
    kernel = Kernel()
    pids = kernel.pids()
    asked = kernel.kc.execute("import time; time.sleep(60)")
    time.sleep(0.5)
    os.kill(pids[who], signal.SIGKILL)
    while True:
        message = kernel.kc.get_iopub_msg(timeout=TIMEOUT)
        if message["msg_type"] == "error":
            break
    expected = "killed by signal 9" if who == "kernel" else "supervisor on node localhost was lost"
    assert message["content"]["ename"] == "KernelDied" and expected in message["content"]["evalue"]
    eventually(lambda: not kernel.km.is_alive(), "the death is reported", 5)
    reply = kernel.kc.get_shell_msg(timeout=TIMEOUT)
    assert reply["parent_header"]["msg_id"] == asked and expected in reply["content"]["evalue"]
    eventually(lambda: not any(alive(p) for p in pids.values()), "nothing is left of it")
    kernel.km.restart_kernel()
    kernel.kc.wait_for_ready(timeout=TIMEOUT)
    assert kernel.value("6 * 7") == "42"
    kernel.close()


def test_a_kernel_whose_owner_is_killed_ends(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom jupyter_client.manager import start_new_kernel\n"
        "km, kc = start_new_kernel(kernel_name='python3')\n"
        "r = kc.execute_interactive('import os; print(os.getpid(), os.getppid(), flush=True)')\n"
        "print(km.provisioner.pid, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pids = [int(p) for _ in range(2) for p in owner.stdout.readline().split()]
    assert len(pids) == 3
    owner.kill()
    owner.wait()
    eventually(lambda: not any(alive(p) for p in pids), "front, replica and kernel are gone")


def test_nbclient_calls_a_dead_kernel_dead(home: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    import nbformat

    write_spec(home / "overlay", durable="no")
    cells = [nbformat.v4.new_code_cell("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")]
    with pytest.raises(nbclient.exceptions.DeadKernelError):
        nbclient.NotebookClient(nbformat.v4.new_notebook(cells=cells), kernel_name="python3", timeout=60).execute()


def test_a_kernel_that_can_not_start_says_why(home: Path) -> None:
    write_spec(home / "overlay")
    spec = home / "overlay" / "kernels" / "python3" / "kernel.json"
    spec.write_text(spec.read_text().replace("ipykernel_launcher", "no_such_module"))
    with pytest.raises(RuntimeError, match="Kernel died before replying"):
        start_new_kernel(kernel_name="python3")


def test_a_hundred_megabytes_and_many_lines_arrive_whole(kernel: Kernel) -> None:
    _, seen = kernel.run("from IPython.display import display\ndisplay({'text/plain': 'x' * 100_000_000}, raw=True)")
    assert len(of_type(seen, "display_data")[0]["data"]["text/plain"]) == 100_000_000
    _, seen = kernel.run("for i in range(5000): print(i, flush=True)")
    assert "".join(c["text"] for c in of_type(seen, "stream")) == "".join(f"{i}\n" for i in range(5000))


def test_no_line_is_lost_while_the_kernels_supervisor_gets_no_core(kernel: Kernel, tmp_path: Path) -> None:
    pids = kernel.pids()
    go = tmp_path / "go"
    printing = (
        "import os, time\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "for i in range(5000): print(i, flush=True)\n"
        f"os.rename({str(go)!r}, {str(go)!r} + 'ne')"
    )
    asked = kernel.kc.execute(printing)
    eventually(
        lambda: kernel.kc.get_iopub_msg(timeout=TIMEOUT)["msg_type"] == "execute_input", "the cell runs", TIMEOUT
    )
    os.kill(pids["replica"], signal.SIGSTOP)
    try:
        go.touch()
        eventually(lambda: not go.exists(), "all lines are printed", TIMEOUT)
    finally:
        os.kill(pids["replica"], signal.SIGCONT)
    lines = ""
    while (said := kernel.kc.get_iopub_msg(timeout=TIMEOUT))["content"].get("execution_state") != "idle":
        lines += said["content"].get("text", "")
    assert kernel.kc.get_shell_msg(timeout=TIMEOUT)["parent_header"]["msg_id"] == asked
    assert lines == "".join(f"{i}\n" for i in range(5000))


def test_a_heartbeat_beats(kernel: Kernel) -> None:
    info = kernel.km.get_connection_info()
    socket = zmq.Context.instance().socket(zmq.REQ)
    socket.connect(f"tcp://127.0.0.1:{info['hb_port']}")
    socket.send(b"anything")
    assert socket.poll(5000) and socket.recv() == b"anything"
    socket.close(0)
