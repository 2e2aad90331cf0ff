"""A user's content in several stores: the site names a place while kernels run that keep theirs elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gresshopper import private
from gresshopper.state import agent, native
from gresshopper.state import store as content
from gresshopper.state.store import Store, StoreError

import child

for package in ("IPython", "cloudpickle"):
    pytest.importorskip(package)

CELL = "import os\nlarge = os.urandom(12 << 20)\nx = 41"
SCRIPT = """
import hashlib, json, os, sys
from pathlib import Path
base, do = Path(sys.argv[1]), json.loads(sys.argv[2])
os.environ["XDG_DATA_HOME"] = str(base)
os.environ.pop("GRESSHOPPER_STORE", None)
from IPython.core.interactiveshell import InteractiveShell
from gresshopper.state import agent, commands, supervised
shell = InteractiveShell.instance()
class Asked:
    body, attachments = do["body"], []
    def progress(self, text): pass
if do["root"] is not None:
    agent.agent(shell, Path(do["root"]))
if begin := do["body"].pop("begin", None):
    class Begin:
        body, attachments = begin, []
    supervised.Supervised(shell, None)._begin(Begin())
for cell in do["cells"]:
    shell.run_cell(cell, store_history=True)
said = commands.carry_out(shell, do["command"], Asked())
large = shell.user_ns.get("large")
said["sha"] = hashlib.sha256(large).hexdigest() if isinstance(large, bytes) else repr(large)
said["root"] = str(agent.agent(shell).store.root)
print("\\x1e" + json.dumps(said))
"""


def ask(base: Path, command: str, root: Path | None, cells: Sequence[str] = (), **body: Any) -> dict[str, Any]:
    """What a command answers in a kernel whose content lies in `root`, if it has an agent before the command."""
    do = {"command": command, "root": root, "cells": cells, "body": body}
    said, _ = child.answer(SCRIPT, str(base), json.dumps(do, default=str), base=base)
    answer: dict[str, Any] = said
    return answer


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, Path]:
    """The home's, the site's and the user's own."""
    (tmp_path / "gresshopper").mkdir(mode=0o700)
    return {
        "home": tmp_path / "gresshopper" / "store",
        "site": tmp_path / "scratch" / "alice",
        "own": tmp_path / "mine",
    }


@pytest.mark.parametrize(
    ("saves", "loads"),
    [("site", "home"), ("home", "site"), ("site", "own"), ("home", "own"), ("own", "home")],
)
def test_a_state_is_restored_from_the_asker_s_stores(
    tmp_path: Path, stores: dict[str, Path], saves: str, loads: str
) -> None:
    state = tmp_path / "gresshopper" / "states" / "work"
    named, others = stores["own" if "own" in (saves, loads) else "site"], [stores["site"], stores["home"]]
    kept = ask(tmp_path, "save", stores[saves], [CELL], to=state, store=named, others=others)
    assert (kept["lost"], kept["root"]) == ({}, str(stores[saves])), "a kernel's content stays in one place"
    back = ask(tmp_path, "load", stores[loads], folder=state, anyway=True, store=named, others=others)
    assert (back["lost"], back["root"]) == ({}, str(stores[loads]))
    assert back["sha"] == kept["sha"]


def test_a_kernel_without_an_agent_keeps_its_content_in_the_asker_s_store(
    tmp_path: Path, stores: dict[str, Path]
) -> None:
    said = ask(tmp_path, "save", None, [CELL], to=tmp_path / "work", store=stores["site"], others=[stores["home"]])
    assert said["root"] == str(stores["site"])
    assert not stores["home"].exists()


def test_content_is_asked_for_where_it_lies_packed_or_not(
    tmp_path: Path, stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    home, site, own = (Store(stores[name]) for name in ("home", "site", "own"))

    def put(store: Store, text: bytes) -> str:
        return store.put(native.address(memoryview(text)), len(text))[0]

    names = [put(home, bytes(1 << 20)), put(site, b"site"), put(own, b"own"), put(home, b"both"), put(own, b"both")]
    packed = home.path(names[0]).with_name(home.path(names[0]).name + ".z")
    found = []

    def asked(path: Path) -> bool:
        found.extend([path] if path.exists() else [])
        return path.exists()

    monkeypatch.setattr(content, "ask_for", asked)
    own.read_also([stores["site"]])
    own.ask_for(names[:4])
    assert found == [packed, site.path(names[1]), own.path(names[2]), own.path(names[3])]


def test_all_of_a_file_is_asked_for_by_windows_that_linux_reads_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _, at, length, advice: asked.append((at, length)))
    chunk = tmp_path / "chunk"
    chunk.write_bytes(bytes(native.CHUNK - 1))
    assert content.ask_for(chunk)
    window = 128 * 1024
    assert asked == [(at, window) for at in range(0, native.CHUNK, window)]
    assert not content.ask_for(tmp_path / "none")


def test_a_relative_store_is_no_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("GRESSHOPPER_STORE", "mine")
    assert agent.default_store() == tmp_path / "gresshopper" / "store"
    assert "GRESSHOPPER_STORE is mine, which is no absolute path: it isn't used" in caplog.text
    monkeypatch.setenv("GRESSHOPPER_STORE", "/mine")
    assert agent.default_store() == Path("/mine")


def test_a_folder_may_have_been_made_meanwhile(tmp_path: Path) -> None:
    private.make(tmp_path / "new" / ".." / "store")
    assert (tmp_path / "store").is_dir()
    made, apart = tmp_path / "made" / "store", private.os.mkdir

    def beside(path: Path, mode: int) -> None:
        apart(path, mode)
        if path == made.parent:  # another process is as quick
            apart(made, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private.os, "mkdir", beside)
        private.make(made)
    assert made.stat().st_mode & 0o777 == 0o700


def test_a_store_is_private_to_its_user_and_nobody_else_can_replace_it(tmp_path: Path) -> None:
    store, link = tmp_path / "disk" / "store", tmp_path / "link"
    link.symlink_to(store)
    for root in (store, link):
        Store(root)
        for above in (store.parent, root.parent):
            above.chmod(0o777)
            with pytest.raises(StoreError, match=f"may replace what is in {above}:"):
                Store(root)
            above.chmod(0o1777)
            Store(root)
            above.chmod(0o700)
        store.chmod(0o750)
        with pytest.raises(StoreError, match="is open to other users"):
            Store(root)
        store.chmod(0o700)
    if os.geteuid() == 0:
        os.lchown(link, 1, -1)
        with pytest.raises(StoreError, match="belongs to another user"):
            Store(link)


def test_a_supervisor_names_further_stores(tmp_path: Path, stores: dict[str, Path]) -> None:
    state = tmp_path / "gresshopper" / "states" / "work"
    kept = ask(tmp_path, "save", stores["site"], [CELL], to=state)
    begin = {"capture": "nothing", "record": 1, "store": stores["own"], "others": [stores["site"], stores["home"]]}
    back = ask(tmp_path, "load", stores["own"], begin=begin, folder=state, anyway=True)
    assert (back["lost"], back["root"]) == ({}, str(stores["own"]))
    assert back["sha"] == kept["sha"]


CLOSED = """
import json, os, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from gresshopper import door
from gresshopper.state.agent import Agent
base = Path(sys.argv[1])
os.environ["GRESSHOPPER_RUN_DIR"] = str(base / "run")
os.umask(0o777)
ip = InteractiveShell.instance()
agent = Agent(ip, base / "data" / "store")
agent.watch(base / "log")
for cell in ("import os, random; a = [1]", "b = random.Random(1).randbytes(9_000_000); c = bytearray(b)"):
    assert ip.run_cell(cell, store_history=True).success
agent.save(base / "state")
agent.recorder.journal.close()
held = door.Door()
found = {}
for name in ("data", "log", "state", "run", "config/gresshopper"):
    for folder, _, files in os.walk(base / name):
        made = [folder, *(os.path.join(folder, file) for file in files)]
        found.update({path[len(str(base)) :]: os.stat(path).st_mode & 0o777 for path in made})
print("\\x1e" + json.dumps(found))
"""


def test_what_is_made_under_any_umask_is_its_owners(tmp_path: Path) -> None:
    found, told = child.answer(CLOSED, str(tmp_path), base=tmp_path)
    assert {mode for mode in found.values()} == {0o700, 0o600}, {p: oct(m) for p, m in found.items()}
    assert any("/chunks/" in path for path in found) and any(path.startswith("/config") for path in found), told


def test_closed_folders_of_the_store_are_opened_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    for name in ("chunks", "places"):
        (tmp_path / "store" / name).mkdir(exist_ok=True)
        (tmp_path / "store" / name).chmod(0)
    store = Store(tmp_path / "store")
    store.keep_content_of(tmp_path / "state")
    modes = [(tmp_path / "store" / name).stat().st_mode & 0o777 for name in ("chunks", "places")]
    assert modes == [0o700, 0o700]
