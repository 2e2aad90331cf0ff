"""Kernels of a dev cluster's user that hibernate: their servers end while they have nothing to do."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/e2e"))
from harness import Cluster, Notebook, until

#: Kernels that are started and fall asleep together.
TOGETHER = 10


def asleep(cluster: Cluster) -> list[str]:
    """The kernels that sleep."""
    rows = cluster.hop("kernels", user="alice")["rows"]
    return [row["kernel_id"] for row in rows if row["state"] == "ASLEEP"]


def put_to_sleep(cluster: Cluster, which: range, **env: str) -> None:
    """Starts these kernels, with these variables, and kills their servers. Those before them sleep already."""

    def opened(number: int) -> Notebook:
        book = Notebook(cluster, "alice")
        path = f"{cluster.base}/home/alice/asleep-{number}.ipynb"
        book.start(env={"GRESSHOPPER_NOTEBOOK": path, "JPY_SESSION_NAME": path, **env})
        got = book.execute("x = 41", timeout=120)
        assert got["status"] == "ok", got
        return book

    for first in which[::TOGETHER]:
        with ThreadPoolExecutor(4) as pool:
            books = list(pool.map(opened, range(first, min(first + TOGETHER, which.stop))))
        for book in books:
            book.process.kill()
            book.process.wait()
        count = first + len(books)
        until("the kernels are asleep", lambda count=count: len(asleep(cluster)) == count, 120)
