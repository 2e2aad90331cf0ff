"""Makes the disk under a seat's log full, or slow.

The log is a folder of the seat's own. Full: a file system without room lies over the folder, so that no further segment can
be made. Slow: the kernel lets the seat write a few times a second.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from harness import Cluster

BLKIO = Path("/sys/fs/cgroup/blkio")


def seats(cluster: Cluster, user: str) -> list[int]:
    """The processes that keep the logs of a user's kernels."""
    return cluster.pids(r"hop-replica seat", user)


def log_of(pid: int) -> Path | None:
    """The folder of the process's log."""
    with contextlib.suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if (path := fd.readlink()).suffix == ".wal":
                    return path.parent
    return None


@contextlib.contextmanager
def full(pid: int) -> Iterator[None]:
    folder = log_of(pid)
    if folder is None:
        yield
        return
    owner = folder.stat()
    options = f"size=64k,mode=700,uid={owner.st_uid},gid={owner.st_gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        if not Path(f"/proc/{pid}").exists():
            # The seat has ended and could not remove it.
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def slow(cluster: Cluster, pid: int, writes_per_second: int) -> Iterator[None]:
    group = BLKIO / f"hop-disks-{cluster.index}"
    folder = log_of(pid)
    if folder is None or not BLKIO.joinpath("cgroup.procs").exists():
        yield
        return
    device = folder.stat().st_dev
    group.mkdir(exist_ok=True)
    limit = f"{os.major(device)}:{os.minor(device)} {writes_per_second}"
    group.joinpath("blkio.throttle.write_iops_device").write_text(limit)
    group.joinpath("cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        for left in group.joinpath("cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                BLKIO.joinpath("cgroup.procs").write_text(left)
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)
