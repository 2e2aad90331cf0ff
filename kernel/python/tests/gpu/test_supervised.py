"""The half in a kernel whose supervisor lends: a real IPython, a supervisor that this test plays, and a FAKE framework
named torch (a module with what the guard looks at)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

#: A supervisor in a thread, and a shell whose cells may come with a lease.
PREAMBLE = """
import json, os, socket, struct, sys, threading
ours, theirs = socket.socketpair()
asked, answers = [], []

def supervise():
    def exactly(n):
        out = b""
        while len(out) < n:
            out += ours.recv(n - len(out))
        return out
    while True:
        size, count = struct.unpack(">II", exactly(8))
        wire = json.loads(exactly(size))
        if wire["op"] == "hello":
            answer = {"re": wire["id"], "ok": {"version": 1, "ops": ["need"]}}
        else:
            asked.append((wire["op"], wire["body"].get("need")))
            if "id" not in wire:
                continue
            given = answers.pop(0)
            kind = "ok" if "lease" in given else "error"
            answer = {"re": wire["id"], kind: given}
        text = json.dumps(answer).encode()
        ours.sendall(struct.pack(">II", len(text), 0) + text)

threading.Thread(target=supervise, name="pydevd-played", daemon=True).start()
os.environ["GRESSHOPPER_AGENT_FD"] = str(theirs.detach())
os.environ["GRESSHOPPER_LENDS"] = "1"
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
parent = {"metadata": {}}
shell.get_parent = lambda: parent
shell.run_line_magic("load_ext", "gresshopper.extension")
LEASE = {"lease": 4, "gpus": [0], "devices": ["/dev/fake0"]}

def run(code, lease=None):
    parent["metadata"] = {"gresshopper": {"lease": lease}} if lease else {}
    result = shell.run_cell(code)
    return result.error_before_exec or result.error_in_exec

def all_asked(n):
    # Events have no answer to wait for.
    import time
    for _ in range(500):
        if len(asked) >= n:
            break
        time.sleep(0.01)
    return asked

assert "gresshopper.gpu" not in sys.modules, "nothing of the half is here yet"
"""

FAKE_TORCH = """
import types
calls = []
version = types.SimpleNamespace(cuda="13.0")
cuda = types.SimpleNamespace(
    is_available=lambda: calls.append("is_available") or True, device_count=lambda: 1,
    _lazy_init=lambda: calls.append("init"), is_initialized=lambda: bool(calls),
)
"""


def in_ipython(tmp_path: Path, code: str, torch: str = FAKE_TORCH, run: str | None = None) -> list[Any]:
    pytest.importorskip("IPython")
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake/torch.py").write_text(torch)
    tmp_path.chmod(0o700)
    env = {**os.environ, "GRESSHOPPER_RUN_DIR": run or str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}
    env["PYTHONPATH"] = f"{tmp_path / 'fake'}:{ROOT}"
    script = PREAMBLE + textwrap.dedent(code) + "\nprint('SAID', json.dumps(said))\n"
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SAID ")]
    found: list[Any] = json.loads(line[5:])
    return found


def test_a_cell_with_a_lease_asks_nobody(tmp_path: Path) -> None:
    said = in_ipython(
        tmp_path,
        """
        assert run("import torch\\nx = torch.cuda.is_available()", LEASE) is None
        assert run("x = torch.cuda.is_available()", LEASE) is None
        said = [shell.user_ns["x"], asked]
        """,
    )
    assert said == [True, []]


def test_a_cell_without_one_obtains_it_for_the_rest_of_itself(tmp_path: Path) -> None:
    said = in_ipython(
        tmp_path,
        """
        answers += [LEASE, LEASE]
        assert run("import torch\\nx = [torch.cuda.is_available(), torch.cuda.is_available()]") is None
        import gresshopper.gpu
        keeper = gresshopper.gpu.keeper()
        assert not keeper.usable
        assert run("y = 1") is None
        assert run("torch.cuda._lazy_init()") is None
        said = [shell.user_ns["x"], all_asked(4)]
        """,
    )
    need = {"gpus": 1, "cpus": 0, "gpu_mem_mib": 0}
    assert said == [[True, True], [["need.acquire", need], ["need.release", None]] * 2]


def test_a_refusal_is_the_schedulers_sentence(tmp_path: Path) -> None:
    said = in_ipython(
        tmp_path,
        """
        answers += [{"kind": "refused", "message": "your account may not use GPUs"}]
        error = run("import torch\\nx = torch.cuda.is_available()")
        import torch
        said = [type(error).__name__, str(error), torch.calls]
        """,
    )
    kind, text, calls = said
    assert kind == "GpuUnavailable"
    assert "your account may not use GPUs" in text
    assert calls == [], "the driver was never asked, so no answer is kept"


def test_a_block_holds_it_and_gives_it_back(tmp_path: Path) -> None:
    said = in_ipython(
        tmp_path,
        """
        answers += [LEASE, LEASE]
        block = "import gresshopper\\nwith gresshopper.gpu():\\n  import torch\\n  a = torch.cuda.is_available()"
        assert run(block) is None
        assert run("b = torch.cuda.is_available()") is None
        said = [shell.user_ns["a"], shell.user_ns["b"], [op for op, _ in all_asked(4)]]
        """,
    )
    assert said == [True, True, ["need.acquire", "need.release"] * 2]


def test_beside_the_cells_there_is_a_sentence_at_once(tmp_path: Path) -> None:
    said = in_ipython(
        tmp_path,
        """
        assert run("import torch", LEASE) is None
        found = []
        def work():
            try:
                torch.cuda.is_available()
            except Exception as error:
                found.append(str(error))
        import torch
        worker = threading.Thread(target=work)
        worker.start()
        worker.join(10)
        said = [found, asked]
        """,
    )
    assert "beside the cells" in said[0][0]
    assert said[1] == []


def test_a_copy_out_may_pass_a_cell_that_has_no_lease(tmp_path: Path) -> None:
    said = in_ipython(
        tmp_path,
        """
        assert run("import torch", LEASE) is None
        import gresshopper.gpu
        keeper = gresshopper.gpu.keeper()
        keeper.halves = []
        shell.user_ns.update(out=keeper.requests()["out"])
        refused = run("out({})", LEASE)
        said = [str(refused), run("out({})")]
        """,
    )
    assert said == ["a cell is running", None]


def test_a_torch_that_cannot_use_a_gpu_is_left_alone(tmp_path: Path) -> None:
    said = in_ipython(
        tmp_path,
        """
        assert run("import torch\\nx = torch.cuda.is_available()") is None
        said = [asked, "gresshopper.gpu" in sys.modules]
        """,
        FAKE_TORCH.replace('"13.0"', "None"),
    )
    assert said == [[], False]


def test_the_import_goes_on_where_the_half_cannot_be_made(tmp_path: Path) -> None:
    said = in_ipython(
        tmp_path,
        """
        import contextlib, io
        heard = io.StringIO()
        with contextlib.redirect_stderr(heard):
            assert run("import torch", LEASE) is None
        said = [heard.getvalue()]
        """,
        run="/proc/nowhere",
    )
    assert "can't be given back" in said[0]
