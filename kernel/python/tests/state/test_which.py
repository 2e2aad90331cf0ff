"""``hop state`` finds the kernel that is meant: in a notebook its own, else the one that is named. With the real command and kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
HOP = next((p for p in (TARGET / "debug/hop", TARGET / "release/hop") if p.exists()), TARGET / "debug/hop")

MINE, OTHER = "aaaaaaaa-1111-4111-8111-111111111111", "bbbbbbbb-2222-4222-8222-222222222222"


class Notebook:
    """A plain ipykernel with our extension, for a notebook of that name."""

    def __init__(self, home: Path, env: dict[str, str], kernel: str, name: str) -> None:
        manager_of = pytest.importorskip("jupyter_client.manager").KernelManager
        self.manager = manager_of(kernel_name="python3", connection_file=str(home / f"run/kernel-{kernel}.json"))
        self.manager.kernel_spec.argv[0] = sys.executable
        self.manager.start_kernel(env={**env, "JPY_SESSION_NAME": str(home / name)})
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.run(f"__import__('sys').path.insert(0, {str(ROOT / 'kernel/python')!r})")
        self.run("%load_ext gresshopper.extension")

    def run(self, code: str) -> tuple[str, str]:
        """What it printed, and how it ended: ``ok`` or the error."""
        texts: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                texts.append(message["content"]["text"])

        reply = self.client.execute_interactive(code, timeout=60, output_hook=hear)["content"]
        return "".join(texts).strip(), reply.get("evalue", "ok")

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    pytest.importorskip("cloudpickle")
    if not HOP.exists():
        pytest.skip("hop isn't built")
    (tmp_path / "run").mkdir(mode=0o700)
    shutil.copy(HOP, tmp_path / "hop")
    return {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "run"),
        "GRESSHOPPER_PYTHON": str(ROOT / "kernel/python"),
        "GRESSHOPPER_CONF": str(tmp_path / "none.toml"),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }


@pytest.fixture
def notebooks(tmp_path: Path, env: dict[str, str]) -> Iterator[tuple[Notebook, Notebook]]:
    both = [Notebook(tmp_path, env, MINE, "mine.ipynb"), Notebook(tmp_path, env, OTHER, "other.ipynb")]
    yield both[0], both[1]
    for notebook in both:
        notebook.end()


def hop(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(HOP), "state", *args], env=env, capture_output=True, text=True, timeout=90, check=False
    )


def test_the_kernel_that_is_meant(tmp_path: Path, env: dict[str, str], notebooks: tuple[Notebook, Notebook]) -> None:
    mine, other = notebooks
    mine.run("whose = 'MINE'")
    other.run("whose = 'OTHER'")

    # Outside of a notebook, with several: it asks.
    asked = hop(env, "save", "--to", "w0")
    assert asked.returncode == 2
    assert "mine.ipynb (aaaaaaaa), other.ipynb (bbbbbbbb)" in asked.stderr
    # A notebook's name, also of one that lies there, is a kernel.
    (tmp_path / "other.ipynb").write_text("{}")
    for word in ("other.ipynb", str(tmp_path / "other.ipynb"), OTHER[:8]):
        done = hop(env, "save", word, "--to", "w1")
        assert done.returncode == 0, done.stderr
        assert "saved other.ipynb (bbbbbbbb): 1 group of variables" in done.stderr
    unknown = hop(env, "show", "nosuch.ipynb")
    assert unknown.returncode == 1 and 'no kernel or saved state "nosuch.ipynb"' in unknown.stderr

    # In a notebook it is the notebook's own, by the magic; the command alone would wait for itself.
    said, end = mine.run("!hop state save --to w2")
    assert "write `%hop state ..`" in said and "mine.ipynb" in said and end == "ok"
    said, end = mine.run("%hop state save --to w2")
    assert (end, "saved mine.ipynb (aaaaaaaa)" in said) == ("ok", True), (said, end)
    # What was just saved can be shown, and comes back where it is asked for.
    said, end = other.run("%hop state show w2")
    assert end == "ok" and "whose" in said
    said, end = other.run("%hop state restore w2")
    assert end == "ok" and "restored 1 variable into other.ipynb" in said, said
    assert other.run("print(whose)") == ("MINE", "ok")
    said, end = mine.run("%hop state restore nosuch")
    assert end == "hop ended with status 1"

    # The only one that runs needs no name.
    other.end()
    assert "saved mine.ipynb" in hop(env, "save").stderr
