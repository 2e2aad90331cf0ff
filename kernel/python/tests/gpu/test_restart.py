"""Rung (d) for real: a running ipykernel, `hop gpu`, `hop state`, and the fake libcuda and NVML, whose device is a MIG
instance, which the driver can't checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
PACKAGE = ROOT / "kernel/python"
HOP = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / os.environ.get("PROFILE", "debug") / "hop"

pytestmark = pytest.mark.skipif(
    not HOP.exists() or not shutil.which("cc"), reason="hop isn't built, or there is no C compiler"
)


class Kernel:
    """A kernel on a fake GPU, as on a workstation."""

    def __init__(self, tmp: Path) -> None:
        manager = pytest.importorskip("jupyter_client.manager")
        pytest.importorskip("cloudpickle")
        fakes, run = tmp / "fakes", tmp / "run"
        subprocess.run([ROOT / "tests/fakes/build.sh", fakes], check=True)
        run.mkdir(mode=0o700)
        # A library, not a module of the user's own.
        packages = tmp / "site-packages"
        packages.symlink_to(PACKAGE / "tests/gpu/fake_framework")
        self.fakes, self.home = fakes, tmp
        self.env = {
            **os.environ,
            "HOME": str(tmp),
            "IPYTHONDIR": str(tmp / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(run),
            "XDG_DATA_HOME": str(tmp / "data"),
            "XDG_CONFIG_HOME": str(tmp / "config"),
            "GRESSHOPPER_RUN_DIR": str(run),
            "GRESSHOPPER_HOP": str(HOP),
            "GRESSHOPPER_PYTHON": str(PACKAGE),
            "FAKE_GPU_DIR": str(fakes / "gpu"),
            "GRESSHOPPER_LIBCUDA": str(fakes / "libcuda.so.1"),
            "GRESSHOPPER_LIBNVML": str(fakes / "libnvidia-ml.so.1"),
            "GRESSHOPPER_DEV_PREFIX": str(fakes / "gpu/dev/nvidia"),
            "PYTHONPATH": f"{PACKAGE}:{packages}",
        }
        self.manager = manager.KernelManager(kernel_name="python3")
        self.manager.kernel_spec.argv[0] = sys.executable
        self.manager.start_kernel(env=self.env)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.run("%load_ext gresshopper.gpu\nimport os")
        self.pid = int(self.value("os.getpid()"))

    def run(self, code: str, ok: bool = True) -> dict[str, Any]:
        texts: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                texts.append(message["content"]["text"])

        reply = self.client.execute_interactive(code, timeout=60, output_hook=hear, user_expressions={})
        content: dict[str, Any] = {**reply["content"], "text": "".join(texts)}
        assert not ok or content["status"] == "ok", content
        return content

    def value(self, expression: str) -> str:
        return str(self.run(f"print({expression})")["text"]).strip()

    def hop(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = [str(HOP), "gpu", "--json", *args, str(self.pid)]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=90, check=False)

    def holds_device(self) -> bool:
        fds = Path(f"/proc/{self.pid}/fd")
        return any(os.readlink(fd).endswith("nvidia0") for fd in fds.iterdir() if fd.exists())


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    made = Kernel(tmp_path)
    yield made
    made.client.stop_channels()
    made.manager.shutdown_kernel(now=True)


def test_the_variables_are_alive_after_the_restart(kernel: Kernel) -> None:
    kernel.run("import fake_context\nfake_context.hold()\nnumbers = list(range(5))\nboth = [numbers, numbers]")
    kernel.run("def double(x):\n    return [2 * n for n in x]\nos.environ['MINE'] = 'kept'")
    assert kernel.holds_device()
    (kernel.fakes / "gpu/mig").touch()
    done = kernel.hop("park")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["rung"], report["outcome"]) == ("restart", "parked")
    reasons = json.dumps(report["passed_over"])
    assert "mig" in reasons
    assert not kernel.holds_device()
    assert kernel.manager.is_alive()
    # The next cell needs its variables, which come back with their device.
    assert kernel.value("double(numbers), both[0] is both[1], os.environ['MINE']") == ("[0, 2, 4, 6, 8] True kept")
    assert int(kernel.value("os.getpid()")) == kernel.pid
    assert kernel.run("numbers.append(5)\nassert both[1][-1] == 5")["execution_count"] > 4
    assert not list((kernel.home / "data/gresshopper/states").iterdir()), "what is alive again isn't kept twice"
    assert "isn't parked" in kernel.hop("unpark").stderr


def test_without_the_device_the_cell_does_not_run(kernel: Kernel) -> None:
    kernel.run("numbers = [1, 2]\nimport fake_context\nfake_context.hold()")
    (kernel.fakes / "gpu/mig").touch()
    assert kernel.hop("park").returncode == 0
    kernel.run("import gresshopper.gpu as gpu", ok=False)
    (kernel.fakes / "gpu/mig").unlink()
    assert kernel.value("numbers") == "[1, 2]"


def test_what_would_be_lost_is_named_and_nothing_is_done(kernel: Kernel) -> None:
    kernel.run(
        "import fake_context, socket\nfake_context.hold()\nnumbers = [1, 2]\nmade, other = socket.socketpair()"
    )
    (kernel.fakes / "gpu/mig").touch()
    done = kernel.hop("park")
    assert done.returncode == 1
    assert "a restart would lose" in done.stderr and "made" in done.stderr
    assert kernel.value("other.send(b'x') and made.recv(1)") == "b'x'"


def test_a_cell_that_runs_keeps_the_interpreter(kernel: Kernel) -> None:
    asked = "import gresshopper.gpu as gpu\ngpu.keeper().requests()['restart']({'state': '/nowhere'})"
    assert "a cell is running" in kernel.run(asked, ok=False)["evalue"]
