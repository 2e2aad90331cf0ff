"""``hop state`` finds the kernel that is meant: in a notebook its own, else the one that is named. With the real command and kernels."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
HOP = next((p for p in (TARGET / "debug/hop", TARGET / "release/hop") if p.exists()), TARGET / "debug/hop")

MINE, OTHER = "aaaaaaaa-1111-4111-8111-111111111111", "bbbbbbbb-2222-4222-8222-222222222222"


class Notebook:
    """A plain ipykernel, mostly with our extension, for a notebook of that name."""

    def __init__(self, home: Path, env: dict[str, str], kernel: str, name: str, loads: bool = True) -> None:
        manager_of = pytest.importorskip("jupyter_client.manager").KernelManager
        self.manager = manager_of(kernel_name="python3", connection_file=str(home / f"run/kernel-{kernel}.json"))
        self.manager.kernel_spec.argv[0] = sys.executable
        self.manager.start_kernel(env={**env, "JPY_SESSION_NAME": str(home / name)})
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        if loads:
            self.run(f"__import__('sys').path.insert(0, {str(ROOT / 'kernel/python')!r})")
            self.run("%load_ext gresshopper")

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
        "GRESSHOPPER_RUN_DIR": str(tmp_path / "run"),
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
    assert unknown.returncode == 1 and 'no kernel or saved state is called "nosuch.ipynb"' in unknown.stderr

    # In a notebook it is the notebook's own, by the magic; the command alone would wait for itself.
    said, end = mine.run("!hop state save --to w2")
    assert "write `%hop state ..`" in said and "mine.ipynb" in said and end == "ok"
    said, end = mine.run("%hop state save --to w2")
    assert (end, "saved mine.ipynb (aaaaaaaa)" in said) == ("ok", True), (said, end)
    # What was just saved can be shown, and comes back where it is asked for.
    said, end = other.run("%hop state show w2")
    assert end == "ok" and "whose" in said
    said, end = other.run("%hop state restore w2")
    # The other one is IPython's `_exit_code` of `!hop`.
    assert end == "ok" and "restored 2 variables into other.ipynb" in said and "the program" not in said, said
    assert other.run("print(whose)") == ("MINE", "ok")
    said, end = mine.run("%hop state restore nosuch")
    assert end == "hop ended with status 1"

    # The only one that runs needs no name.
    other.end()
    assert "saved mine.ipynb" in hop(env, "save").stderr


def test_a_kernel_that_loaded_nothing_of_ours(tmp_path: Path, env: dict[str, str]) -> None:
    plain = Notebook(tmp_path, env, MINE, "mine.ipynb", loads=False)
    try:
        told = hop(env, "save")
        assert told.returncode == 1 and "mine.ipynb (aaaaaaaa) can't be asked" in told.stderr, told.stderr
        assert "%load_ext gresshopper" in told.stderr
        # The sentence's own cell.
        found = re.search("`(import sys; .*?)`", told.stderr)
        assert found is not None
        assert plain.run(found[1] + "\nx = 1\n%load_ext gresshopper")[1] == "ok"
        assert "saved mine.ipynb" in hop(env, "save").stderr
    finally:
        plain.end()


def test_a_cell_that_runs_is_waited_for_and_a_command_that_gave_up_changes_nothing(
    tmp_path: Path, env: dict[str, str], notebooks: tuple[Notebook, Notebook]
) -> None:
    mine, other = notebooks
    other.end()
    mine.run("x = 1\nimport os, time")
    busy = mine.client.execute(f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.05)")
    told = hop(env, "save", "--to", "early", "--timeout", "1")
    assert told.returncode == 1 and "a cell runs" in told.stderr, told.stderr
    waiting = subprocess.Popen(
        [str(HOP), "state", "save", "--to", "late"], env=env, stderr=subprocess.PIPE, text=True
    )
    time.sleep(0.5)
    (tmp_path / "go").touch()
    _, said = waiting.communicate(timeout=60)
    assert waiting.returncode == 0 and "saved mine.ipynb" in said, said
    mine.client.get_shell_msg(timeout=60)
    assert busy
    assert hop(env, "show", "late").returncode == 0
    assert not (tmp_path / "data/gresshopper/states/early").exists()


def test_a_killed_kernels_door_is_removed(
    tmp_path: Path, env: dict[str, str], notebooks: tuple[Notebook, Notebook]
) -> None:
    mine, other = notebooks
    doors = set((tmp_path / "run").glob("process-*.sock"))
    assert len(doors) == 2
    os.kill(mine.manager.provisioner.pid, signal.SIGKILL)
    mine.manager.provisioner.process.wait(timeout=20)
    assert "saved other.ipynb" in hop(env, "save", "other.ipynb").stderr
    assert len(set((tmp_path / "run").glob("process-*.sock"))) == 1
    assert other.run("x = 1")[1] == "ok"


def test_a_site_that_names_its_store_later_loses_nothing(
    tmp_path: Path, env: dict[str, str], notebooks: tuple[Notebook, Notebook]
) -> None:
    old, new = notebooks
    large = "import hashlib, os; large = os.urandom(6 << 20); was = hashlib.sha256(large).hexdigest()"
    same = "print(hashlib.sha256(large).hexdigest() == was, was)"

    def done(*args: str) -> str:
        said = hop(env, *args)
        assert said.returncode == 0, said.stderr
        return said.stderr

    def chunks(store: Path) -> int:
        return sum(path.is_file() for path in (store / "chunks").rglob("*"))

    old.run(large)
    done("save", "mine.ipynb", "--to", "before")
    home, site = tmp_path / "data/gresshopper/store", tmp_path / "scratch"
    in_home = chunks(home)
    Path(env["GRESSHOPPER_CONF"]).write_text(f'[seat]\nstore = "{site}/{{user}}/content"\n')
    new.run(large)
    done("save", "other.ipynb", "--to", "after")
    (store,) = site.glob("*/content")
    assert chunks(store) >= 2 and chunks(home) == in_home
    was = {name: notebook.run("print(was)")[0] for name, notebook in (("before", old), ("after", new))}

    # By the kernel from before and by the new one, from each other's store.
    for state, name, notebook in (("after", "mine.ipynb", old), ("before", "other.ipynb", new)):
        assert "couldn't be restored" not in done("restore", state, name, "--anyway")
        assert notebook.run(same) == (f"True {was[state]}", "ok")
    remote = tmp_path / "remote"
    remote.mkdir(mode=0o700)
    for state in was:
        done("copy", state, f"file://{remote}/{state}")
        done("export", state, str(tmp_path / state), "--python", sys.executable)
        assert '"large": "large.pkl"' in (tmp_path / state / "index.json").read_text()
    # What comes from far lies in the site's store.
    shutil.rmtree(home)
    done("restore", f"file://{remote}/before", "mine.ipynb", "--anyway")
    assert old.run(same) == (f"True {was['before']}", "ok")
