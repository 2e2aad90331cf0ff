"""The saved form: what is torn, cut, changed, another's or too large for its disk is refused, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from gresshopper import clock
from gresshopper.state import form, native, pickling, rerun, restore
from gresshopper.state.store import Store, StoreError, home_store

from harness import Kernel


def saved(base: Path, *cells: str) -> Kernel:
    kernel = Kernel(base)
    kernel.log.create()
    for source in cells:
        assert kernel.run(source), kernel.error
        kernel.snap(source)
        kernel.log.commit(False)
    kernel.log.close()
    return kernel


def load(base: Path) -> dict[str, Any]:
    kernel = Kernel(base)
    kernel.restore()
    return kernel.ns


def test_every_cut_and_every_changed_byte_of_a_log_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "x = [1, 2]", "y = 'a' * 10")
    log = tmp_path / "log" / "log"
    whole = log.read_bytes()
    for at in range(0, len(whole), 7):
        for bad in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            log.write_bytes(bad)
            with pytest.raises(form.FormError):
                load(tmp_path)
    log.write_bytes(whole + b"half a record")
    assert load(tmp_path)["x"] == [1, 2]


def test_one_torn_place_of_a_head_leaves_the_other(tmp_path: Path) -> None:
    saved(tmp_path, "x = 1", "x = 2")
    head = tmp_path / "log" / "head"
    whole = head.read_bytes()
    values = set()
    for place in (0, form.SLOT):
        head.write_bytes(whole[:place] + b"\0" * 100 + whole[place + 100 :])
        values.add(load(tmp_path)["x"])
    assert values == {1, 2}
    head.write_bytes(b"\0" * len(whole))
    with pytest.raises(form.FormError, match="tampered"):
        load(tmp_path)


def test_another_key_another_user_and_an_open_key_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, "x = 1")
    key = tmp_path / "key"
    was = key.read_bytes()
    key.write_bytes(b"k" * 32)
    with pytest.raises(form.FormError, match="tampered"):
        load(tmp_path)
    key.write_bytes(was)
    key.chmod(0o644)
    with pytest.raises(form.FormError, match="open to other users"):
        load(tmp_path)
    key.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(tmp_path / "log", 12345, -1)
        with pytest.raises(form.FormError, match="another user"):
            load(tmp_path)


def test_a_changed_or_missing_chunk_is_never_used_and_costs_its_group_alone(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    saved(tmp_path, "import os, numpy as np\nx = np.frombuffer(os.urandom(400_000), dtype='u1').copy()", "y = [1]")
    chunks = [p for p in (tmp_path / "store" / "chunks").rglob("*") if p.is_file()]
    chunk = next(p for p in chunks if p.stat().st_size == 400_000)
    whole = chunk.read_bytes()
    for bad in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-1], b"", None):
        chunk.unlink() if bad is None else chunk.write_bytes(bad)
        kernel = Kernel(tmp_path)
        told, _ = kernel.restore()
        assert list(told.lost) == ["x"] and type(kernel.ns["x"]).__name__ == "Lost"
        assert kernel.ns["y"] == [1]
    chunk.write_bytes(whole)
    assert load(tmp_path)["x"].tobytes() == whole


def test_what_is_missing_is_made_again_only_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    saved(tmp_path, "import numpy as np", "x = np.arange(200_000)", "n = 3")
    other = saved(tmp_path / "other", "import numpy as np", "x = np.arange(200_000) * 2")
    for chunk in (tmp_path / "store" / "chunks").rglob("*"):
        if chunk.is_file():
            chunk.unlink()
    assert load(tmp_path)["x"].sum() == sum(range(200_000))
    # The content alone tells the two apart.
    entries = [
        restore.Snapshot(form.read(base / "log", form.owner_key(base / "key"))).units
        for base in (tmp_path, tmp_path / "other")
    ]
    of_x, of_other = (next(e for e in units.values() if e.names == ["x"]) for units in entries)
    state = {"x": other.ns["x"]}
    rerun._same(of_other, state, other.capture.session, other.store)
    assert of_x.said["dig"] == of_other.said["dig"]
    with pytest.raises(rerun._Barred, match="didn't give the same"):
        rerun._same(of_x, state, other.capture.session, other.store)


def test_a_state_elsewhere_is_known_to_its_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    named = tmp_path / "share" / "gresshopper" / "states"
    for place in (tmp_path / "mine", tmp_path / "mine", named / "one", named / "two"):
        store.keep_content_of(place)
    places = (os.readlink(link) for link in (store.root / "places").iterdir())
    assert sorted(places) == [str(tmp_path / "mine"), str(named)]


@pytest.fixture
def moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, Store]:
    """The store in the user's home, and the one in the place that the site named later."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return Store(home_store()), Store(tmp_path / "scratch" / "store")


def three_chunks() -> bytearray:
    return bytearray(os.urandom(2 * native.CHUNK + 100))


@pytest.mark.skipif(native.lib is None, reason="the library isn't built")
def test_content_from_before_the_store_had_another_place_is_read_from_the_home(moved: tuple[Store, Store]) -> None:
    before, after = moved
    content = three_chunks()
    at = native.address(memoryview(content))
    names = before.put(at, len(content))
    found = bytearray(len(content))
    after.get(names, found)
    assert found == content
    assert not after.holds(names)  # a capture stores what it relies on in the new place


@pytest.mark.skipif(native.lib is None, reason="the library isn't built")
def test_chunks_that_a_purge_has_taken_are_read_from_the_home(moved: tuple[Store, Store]) -> None:
    before, after = moved
    content = three_chunks()
    at = native.address(memoryview(content))
    before.put(at, len(content))
    names = after.put(at, len(content))  # the first capture after a restore
    months_ago = time.time() - 90 * 86400
    for name in names:
        os.utime(after.path(name), (months_ago, months_ago))
    content[native.CHUNK] ^= 1  # the second of three chunks
    names = after.put(at, len(content), bytearray([0, 1, 0]), names)
    purged = [
        path for path in after.chunks.rglob("*") if path.is_file() and path.stat().st_mtime < time.time() - 86400
    ]
    assert len(purged) == 3
    for path in purged:
        path.unlink()

    assert not after.path(names[0]).exists() and not before.path(names[1]).exists()
    assert after.map(names, len(content)) is None
    found = bytearray(len(content))
    after.get(names, found)
    assert found == content
    before.path(names[2]).unlink()
    with pytest.raises(StoreError, match=r"the state can't be read: chunk .* is missing"):
        after.get(names, found)


@pytest.mark.skipif(native.lib is None, reason="the library isn't built")
def test_no_store_is_made_beneath_the_mount_point_of_a_missing_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(StoreError, match="alice is missing: its file system may not be mounted"):
        Store(tmp_path / "alice" / "gresshopper")
    assert not (tmp_path / "alice").exists()


def test_content_that_no_record_names_is_asked_for_before_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy")
    kernel = Kernel(tmp_path)
    assert kernel.run("import numpy as np\nx = np.random.rand(300_000)")
    kernel.capture.run(None)

    def found_again() -> bool:
        for chunk in [p for p in kernel.store.chunks.rglob("*") if p.is_file()]:
            chunk.unlink()  # collected as garbage
        buffer = pickling.dump(kernel.capture.session, [kernel.ns["x"]]).buffers[0]
        return kernel.store.holds(kernel.capture.memories.content(buffer, False).chunks)

    assert not found_again(), "content that was stored a moment ago isn't looked for"
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + 1201)
    assert found_again()


def test_a_store_that_others_can_read_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "x = 1")
    (tmp_path / "store").chmod(0o755)
    with pytest.raises(StoreError, match="open to other users"):
        Kernel(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_an_error_and_nothing_is_lost(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", str(tmp_path)], check=True)
    try:
        kernel = Kernel(tmp_path)
        kernel.log.create()
        assert kernel.run("import numpy as np\nx = np.arange(1000.)")
        kernel.snap("x")
        kernel.log.commit(False)
        assert kernel.run("big = np.random.rand(1_000_000)")
        with pytest.raises((StoreError, form.FormError)):
            kernel.snap("big")
        assert float(load(tmp_path)["x"][7]) == 7.0
        assert kernel.run("del big\nx[7] = 8")  # and once there is room again, it goes on
        kernel.snap("big x")
        kernel.log.commit(False)
        assert float(load(tmp_path)["x"][7]) == 8.0
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_record_too_large_for_its_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    key = b"k" * 32
    folder = tmp_path / "state"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(folder)], check=True)
    try:
        log = form.Log(folder, key)
        log.create()
        log.add(b'{"n": 1}', b"one")
        log.commit(False)
        with pytest.raises(form.FormError, match=r"can't be written: .*No space left.*saved before is kept"):
            log.add(b'{"n": 2}', os.urandom(2_000_000))
        log.add(b'{"n": 3}', b"three")
        log.commit(False)
        log.close()
        with pytest.raises(form.FormError, match="isn't open"):
            log.add(b"{}", b"")
        assert [(r.head["n"], r.body) for r in form.read(folder, key)] == [(1, b"one"), (3, b"three")]
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_an_older_state_stays_until_the_new_one_counts(tmp_path: Path) -> None:
    key = b"k" * 32
    for n in (1, 2):
        log = form.Log(tmp_path, key)
        log.create()
        log.add(b'{"n": %d}' % n, b"x" * 5000, compress=True)
        if n == 1:
            log.commit(False)
        log.close()
        assert [(r.head["n"], r.body) for r in form.read(tmp_path, key)] == [(1, b"x" * 5000)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["head", "log"] and (tmp_path / "log").stat().st_size < 500
    log = form.Log(tmp_path, key)
    log.resume()
    log.add(b'{"n": 3}', b"")
    log.commit(True)
    log.close()
    assert [r.head["n"] for r in form.read(tmp_path, key)] == [1, 3]


def test_another_environment_is_told(tmp_path: Path) -> None:
    said = restore.differences({"python": "3.1.0", "packages": {"cloudpickle": "0.0", "no_such_package_q": "1"}})
    assert len(said) == 3


def test_writes_are_seen_or_hashed() -> None:
    assert native.lib.hop_abi() == native.ABI
