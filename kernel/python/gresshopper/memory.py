"""How much of its memory limit a kernel uses. `free` and psutil see the node; Slurm's limit is the memory cgroup's, of
version 1 or 2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Memory:
    """Bytes. Of files in the page cache only what is in use counts: the rest is let go before anybody is killed."""

    used: int
    limit: int

    def __str__(self) -> str:
        return f"{self.used >> 20} of {self.limit >> 20} MiB of memory are used"


def memory(proc: Path = Path("/proc/self")) -> Memory | None:
    """The tightest limit for this kernel, and the use under the limit; ``None`` means no limit."""
    try:
        cgroups, mounts = (proc / "cgroup").read_text(), (proc / "mountinfo").read_text()
    except OSError:
        return None
    found = [limit for folder in _folders(cgroups, mounts) for limit in _of(folder)]
    return min(found, key=lambda memory: memory.limit, default=None)


def _folders(cgroups: str, mounts: str) -> Iterator[Path]:
    """The memory cgroup's folder and those above it."""
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in cgroups.splitlines())}
    v1 = next((path for controllers, path in paths.items() if "memory" in controllers.split(",")), None)
    path = paths.get("") if v1 is None else v1
    root = _mount(
        mounts,
        (lambda kind, _: kind == "cgroup2")
        if v1 is None
        else (lambda kind, options: kind == "cgroup" and "memory" in options),
    )
    if path is None or root is None:
        return
    below = Path(path.lstrip("/"))
    yield from (root / part for part in (below, *below.parents))


def _mount(mounts: str, wanted: Callable[[str, list[str]], bool]) -> Path | None:
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if wanted(kind, options.split(",")):
            return Path(left.split(" ")[4])
    return None


def _of(folder: Path) -> Iterator[Memory]:
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most = (folder / limit).read_text().strip()
            # Version 1 says "no limit" with a number near the largest.
            if most.isdigit() and int(most) < 1 << 60:
                stat = dict(line.split(" ") for line in (folder / "memory.stat").read_text().splitlines())
                total = int((folder / used).read_text())
                yield Memory(used=max(0, total - int(stat.get(cache, 0))), limit=int(most))
        except (OSError, ValueError):
            continue
