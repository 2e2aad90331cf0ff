"""Effects of cells outside the process, and those of the kernel's own threads."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from gresshopper.state import effects


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[effects.Effects]:
    assert tmp_path.is_dir()  # made before
    watching = effects.Effects()
    watching.start()
    yield watching
    watching.stop()


def write_and_remove(path: Path) -> None:
    path.write_text("a")
    path.unlink()


@pytest.mark.parametrize(("name", "seen"), [("gresshopper-op", []), ("mine", ["open for writing", "os.remove"])])
def test_threads_of_the_kernel_have_no_effects_of_a_cell(
    watching: effects.Effects, tmp_path: Path, name: str, seen: list[str]
) -> None:
    thread = threading.Thread(target=write_and_remove, args=(tmp_path / "a",), name=name)
    thread.start()
    thread.join()
    assert watching.stop()["did"] == seen


def test_the_first_look_for_temporary_files_is_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    watching = effects.Effects()
    watching.start()
    assert tempfile.gettempdir()
    assert watching.stop()["did"] == []


def test_a_cells_own_effects_are_seen(watching: effects.Effects, tmp_path: Path) -> None:
    write_and_remove(tmp_path / "a")
    assert watching.stop()["did"] == ["open for writing", "os.remove"]


@pytest.mark.parametrize(
    ("source", "barred"), [("x = 1", False), ("g = agen(); await g.__anext__()", True), ("async with y: pass", True)]
)
def test_a_cell_that_awaits_is_not_run_again(source: str, barred: bool) -> None:
    why = effects.barred({"ok": True, "source": source, "effects": {"did": [], "read": {}}})
    assert (why == "its cell awaits something, and only the kernel runs such a cell") == barred


def test_a_file_that_a_library_in_c_leaves_open_counts(tmp_path: Path) -> None:
    """As HDF5 does: a re-run of `h5py.File(path, "w")` would empty the user's file."""
    library = ctypes.CDLL(None)
    (tmp_path / "read").write_text("x")
    for name, flags, did in (("read", os.O_RDONLY, []), ("written", os.O_RDWR | os.O_CREAT, ["open for writing"])):
        watching = effects.Effects()
        watching.start()
        handle = library.open(str(tmp_path / name).encode(), flags, 0o600)
        found = watching.stop()
        os.close(handle)
        assert found["did"] == did
        assert did or list(found["read"]) == [str(tmp_path / name)]


@pytest.mark.parametrize(
    ("source", "barred"),
    [
        ("with h5py.File('a.h5', 'w') as f: f['x'] = 1", True),
        ("d = Dataset('a.nc', mode='a')", True),
        ("f = h5py.File('w')", False),
        ("f = h5py.File('a.h5', 'r')", False),
        ("f = Filed('a.h5', 'w')", False),
    ],
)
def test_a_cell_that_names_a_mode_of_writing_is_not_run_again(source: str, barred: bool) -> None:
    why = effects.barred({"ok": True, "source": source, "effects": {"did": [], "read": {}}})
    assert why == ("its cell did what mustn't be done twice (open for writing)" if barred else None)


def in_a_process(script: str) -> str:
    """What a script writes in a Python of its own: a hook stays until the process ends."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{script}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_events_that_do_not_count_cost_no_call_in_python() -> None:
    """`copy.deepcopy` asks for the `id` of each object, and each is an event."""
    script = """
from gresshopper.state import effects
heard = []
effects._hook = lambda event, args: heard.append((event, args[:1]))
effects.Effects().start()
id(3), sys._getframe(), compile("1", "", "eval")
open("/dev/null").close()
print(heard)
"""
    assert in_a_process(script) == "[('open', ('/dev/null',))]"


@pytest.mark.parametrize("hook", ["the library's", "Python's"])
def test_an_interrupt_in_the_hook_reaches_the_cell(hook: str) -> None:
    script = """
from gresshopper.state import effects
def interrupted(event, args):
    if args[0] == "/dev/null":
        raise KeyboardInterrupt
effects._hook = interrupted
if HOOK == "Python's":
    effects.native.hear = lambda kinds, told: False
effects.Effects().start()
try:
    open("/dev/null")
except KeyboardInterrupt:
    print("interrupted")
"""
    assert in_a_process(f"HOOK = {hook!r}\n{script}") == "interrupted"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python can't hide a call before 3.11")
def test_a_profiler_of_the_users_does_not_see_the_hook() -> None:
    script = """
from gresshopper.state import effects
effects.Effects().start()
seen = []
sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_filename))
open("/dev/null").close()
sys.setprofile(None)
print([name for name in seen if "effects" in name])
"""
    assert in_a_process(script) == "[]"


def test_another_interpreter_of_the_process_is_not_listened_to() -> None:
    interpreters = pytest.importorskip("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    script = f"""
import {interpreters.__name__} as interpreters
from gresshopper.state import effects
heard = []
effects._hook = lambda event, args: heard.append(args[:1])
effects.Effects().start()
interpreters.run_string(interpreters.create(), "open('/dev/null').close()")
open("/dev/zero").close()
print(heard)
"""
    assert "/dev/null" not in (told := in_a_process(script)) and "/dev/zero" in told
