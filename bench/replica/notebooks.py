"""bench `replica`: cells of real notebooks with three replicas on a dev cluster.

    notebooks.py [--pause S] [--keep FILE] [--durable WHEN] [NAME..]

Each notebook of `tests/notebooks` (or those named) runs once, in a kernel of its own whose group has three members.
Each cell is sent S seconds (0.3) after the reply to the previous cell.

- `notebooks_sync_p50|p90|p99`: from the end of a cell's code until its reply leaves: capture, and commit on a majority's
  disks. The peer is one fdatasync of 4 KiB on that disk, between the notebooks.
- `notebooks_durable`: share of the cells whose effects were durable before their reply.
- `notebooks_lag_p50|p99`: from the reply of the others until their effects are durable.

`--durable before-reply` measures kernels whose replies wait for their effects: the cases are `notebooks_before_*` then.

The replica itself measures (`kernel/replica/src/progress.rs`); this script reads its log. `--keep` writes each cell's line
there. Prints a measured line per case (see hop-bench).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from pathlib import Path

from replica import say, spread

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/e2e"))
from harness import Cluster, Failed, Notebook, until
from lost_notebooks import CELL, Place, all_names, cells_of

BASE = "/srv/gresshopper-bench-notebooks"
LOG = "warn,hop_replica::progress=debug"
ANSWERED = re.compile(r"a cell is answered cell=\S+ held_us=(\d+) durable=(true|false)")
DURABLE = re.compile(r"a cell is durable lag_us=(\d+)")
CASES = {
    "after-reply": ("notebooks_sync", "notebooks_durable", "notebooks_lag"),
    "before-reply": ("notebooks_before_sync", "notebooks_before_durable", "notebooks_before_lag"),
}
#: Seconds within which a cell's effects are durable, else its lag isn't known.
LAGS = 2.0


def fdatasync_ms(folder: Path) -> float:
    path = folder / "fdatasync"
    with path.open("wb") as file:
        file.write(bytes(4096))
        file.flush()
        begin = time.perf_counter()
        os.fdatasync(file.fileno())
        took = 1e3 * (time.perf_counter() - begin)
    path.unlink()
    return took


def lines_of(place: Place, name: str, pause: float, durable: str) -> list[str]:
    """Runs the notebook once the kernel's group is whole. Returns what the replica logs meanwhile."""
    place.fresh_folder()
    book = Notebook(place.cluster, "alice")
    try:
        place.open(book, name, GRESSHOPPER_LOG=LOG, GRESSHOPPER_DURABLE=durable)
        until("the kernel runs", lambda: place.row(name), 60)
        place.wait_until_whole(name)
        before = len(book.log.read_text())
        for source in cells_of(name):
            if not book.execute(source, timeout=CELL, stop_on_error=False)["done"]:
                raise Failed(f"{name}: a cell has no answer")
            time.sleep(pause)
        time.sleep(LAGS)
        return book.log.read_text()[before:].splitlines()
    finally:
        book.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--pause", type=float, default=0.3)
    parser.add_argument("--keep", metavar="FILE")
    parser.add_argument("--durable", choices=CASES, default="after-reply")
    args = parser.parse_args()
    index = int(os.environ.get("HOP_E2E_INDEX", "19"))
    base = os.environ.get("HOP_E2E_BASE", BASE)
    cluster = Cluster(base, index, os.environ.get("HOP_E2E_VARIANT", "auto"))
    held: list[float] = []
    lags: list[float] = []
    syncs: list[float] = []
    durable = 0
    try:
        cluster.up()
        place = Place(cluster, "node", 3, 3)
        for name in args.names or all_names():
            syncs += [fdatasync_ms(cluster.base) for _ in range(20)]
            lines = lines_of(place, name, args.pause, args.durable)
            answered = [found for line in lines if (found := ANSWERED.search(line))]
            held += [int(found[1]) / 1e3 for found in answered]
            durable += sum(found[2] == "true" for found in answered)
            lags += [int(found[1]) / 1e3 for line in lines if (found := DURABLE.search(line))]
            print(f"{name}: {len(cells_of(name))} cells, {len(answered)} answered", file=sys.stderr, flush=True)
            if args.keep:
                with Path(args.keep).open("a") as file:
                    file.writelines(f"{name} {line}\n" for line in lines if "progress" in line)
    finally:
        cluster.down()
    sync, whole, lag = CASES[args.durable]
    spread(sync, held, "ms", (50, 90, 99), ("fdatasync_4k", syncs))
    say(whole, "share", durable / len(held), len(held))
    if lags:
        spread(lag, lags, "ms", (50, 99))
    return 0


if __name__ == "__main__":
    sys.exit(main())
