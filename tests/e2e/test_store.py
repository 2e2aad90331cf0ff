"""A site that names the place of its users' variables (`seat.store`). Each test says what the user sees."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Cluster, Notebook, lost_node, node_of, notebook, nothing_is_left, stream, until

#: Seconds within which the effects of a cell that was answered are on disk.
SAVED = 1.5
#: Content that lies in the store, for it is too large for the log, and its sum.
LARGE = "import hashlib, os\nx = 41\nlarge = os.urandom(12 << 20)\nwas = hashlib.sha256(large).digest()"
SAME = "print(hashlib.sha256(large).digest() == was)"


@pytest.fixture
def scratch(cluster: Cluster) -> Iterator[Path]:
    """A scratch file system on which users make folders of their own."""
    conf = cluster.base / "etc/gresshopper.toml"
    text = conf.read_text()
    above = cluster.base / "scratch"
    above.mkdir()
    above.chmod(0o1777)
    conf.write_text(text.replace("[seat]\n", f'[seat]\nstore = "{above}/{{user}}"\n'))
    try:
        yield above
    finally:
        conf.write_text(text)
        cluster.run("root", "rm", "-rf", str(above), str(above) + ".away")
    nothing_is_left(cluster)


def chunks(store: Path) -> list[Path]:
    return [path for path in (store / "chunks").rglob("*") if path.is_file()] if store.is_dir() else []


def of_home(cluster: Cluster) -> Path:
    return cluster.base / "home/alice/.local/share/gresshopper/store"


def said(book: Notebook, code: str) -> tuple[str, str]:
    got = book.execute(code, timeout=90)
    assert got["status"] == "ok", got
    return stream(got, "stdout"), stream(got, "stderr")


def named(cluster: Cluster) -> dict[str, str]:
    path = f"{cluster.base}/home/alice/stored.ipynb"
    return {"GRESSHOPPER_NOTEBOOK": path, "JPY_SESSION_NAME": path}


def test_a_lost_kernel_is_back_from_the_sites_store(cluster: Cluster, scratch: Path) -> None:
    before = set(chunks(of_home(cluster)))
    with notebook(cluster, "alice") as book:
        said(book, LARGE)
        store = scratch / "alice"
        until("its content is there", lambda: chunks(store))
        assert store.stat().st_mode & 0o7777 == 0o700
        assert set(chunks(of_home(cluster))) == before, "nothing of it lies in the home"
        node = node_of(book)
        time.sleep(SAVED)
        with lost_node(cluster, node):
            assert said(book, SAME)[0] == "True\n"
            assert node_of(book) != node
    with notebook(cluster, "alice", env={"GRESSHOPPER_STORE": str(scratch / "mine")}) as book:
        said(book, LARGE)
        until("the user's own choice counts", lambda: chunks(scratch / "mine"))


def test_content_from_before_the_site_named_a_store_is_found(cluster: Cluster, scratch: Path) -> None:
    conf = cluster.base / "etc/gresshopper.toml"
    text = conf.read_text()
    conf.write_text("\n".join(line for line in text.splitlines() if not line.startswith("store = ")))
    with notebook(cluster, "alice") as book:
        said(book, LARGE)
        said(book, "%hop state save --to before")
    conf.write_text(text)
    try:
        with notebook(cluster, "alice") as book:
            said(book, "%hop state restore before")
            assert said(book, SAME)[0] == "True\n"
            until("it is stored anew where the kernel is saved", lambda: chunks(scratch / "alice"))
            time.sleep(SAVED)
            cluster.kill(r"ipykernel", "alice")
            out, told = said(book, SAME)
            assert out == "True\n"
            assert "has the variables that were saved" in told
    finally:
        cluster.run("alice", "rm", "-r", str(of_home(cluster).parent / "states/before"))


def test_a_missing_store_is_told_and_saved_kernels_are_kept_for_its_return(cluster: Cluster, scratch: Path) -> None:
    book = Notebook(cluster, "alice")
    book.start(env=named(cluster))
    said(book, LARGE)
    time.sleep(SAVED)
    cluster.run("alice", "hop", "hibernate", "stored.ipynb", timeout=120)
    book.process.kill()
    book.process.wait()
    before = set(chunks(of_home(cluster)))

    away = Path(f"{scratch}.away")
    scratch.rename(away)
    with notebook(cluster, "alice", env=named(cluster)) as book:
        _, told = said(book, "x = 1")
        assert "this kernel is not saved" in told
        assert f"{scratch} is missing" in told
        assert "saved kernels are kept" in told
        assert said(book, LARGE)[1] == "", "it is told once"
        time.sleep(SAVED)
        assert not scratch.exists()
        assert set(chunks(of_home(cluster))) == before, "the home is not filled instead"
    away.rename(scratch)

    (scratch / "alice").chmod(0o755)
    with notebook(cluster, "alice", env=named(cluster)) as book:
        assert f"{scratch}/alice is open to other users (mode 755)" in said(book, "1")[1]
    (scratch / "alice").chmod(0o700)

    with notebook(cluster, "alice", env=named(cluster)) as book:
        out, told = said(book, SAME)
        assert out == "True\n"
        assert "was saved, and is back" in told
