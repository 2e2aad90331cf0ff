"""The content-addressed store of chunks, as the kernel's own process reads and writes it.

`kernel/blobs` owns the layout (docs/state-format.md): `chunks/<2 hex>/<62 hex>`, or the same with `.z` when packed.
Chunks are named by the BLAKE3 of their content.
A chunk is whole or absent: it is written under another name and renamed. Content read is checked against its name.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gresshopper import clock, private

from . import native

CHUNK = native.CHUNK
#: Number of chunks read faster than a thread gets its turn.
FEW = 8
#: Bytes that are asked for in one call. Linux reads no more for a call than the device's read-ahead (128 KiB unless its
#: administrator has changed it) or largest request, and drops the rest.
_WINDOW = 128 * 1024


def ask_for(path: Path) -> bool:
    """Have the file system read a file ahead; returns whether the file exists."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        for at in range(0, os.fstat(handle).st_size, _WINDOW):
            os.posix_fadvise(handle, at, _WINDOW, os.POSIX_FADV_WILLNEED)
    os.close(handle)
    return True


class StoreError(RuntimeError):
    """The store can't take or give a chunk; says which and why."""


class StoreHangs(StoreError):
    """The store doesn't answer, like a home over a network whose server is away."""


#: The library's answer for such a store.
_HANGS = -2


def home_store() -> Path:
    """The store of a user for whom neither the site nor the user has named another."""
    base = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".local", "share")
    return Path(base) / "gresshopper" / "store"


def _make(root: Path) -> None:
    """Make the store's folder. Folders above it are made only within the user's own: where a file system isn't
    mounted, nothing is written beneath its mount point (`hop_protocol::content` does the same before a kernel
    starts).
    """
    nearest = next((above for above in root.parents if above.exists()), Path("/"))
    if nearest != root.parent and nearest.stat().st_uid != os.geteuid():
        raise StoreError(f"{root.parent} is missing: its file system may not be mounted on this host")
    private.make(root)


def _check(root: Path) -> None:
    """Check that the store is a private folder of the user's, and that nobody else can put another in its place
    (`hop_protocol::content` checks the same). A link must be the user's as well: another's may lead elsewhere tomorrow.
    """
    if root.lstat().st_uid != os.geteuid() or root.stat().st_uid != os.geteuid():
        raise StoreError(f"the store {root} belongs to another user")
    if root.stat().st_mode & 0o077:
        raise StoreError(f"the store {root} is open to other users: chmod 700 {root}")
    for above in {root.parent, root.resolve().parent}:
        if above.stat().st_mode & 0o1002 == 0o002:
            raise StoreError(f"other users may replace what is in {above}: chmod o-w {above}")


class Store:
    """A user's chunks below one directory. Content missing there is read from the user's other stores: the site may have
    named another place meanwhile, and kernels from before keep theirs."""

    def __init__(self, root: Path, others: Sequence[Path] = ()) -> None:
        """`others` as for `read_also`.


        # Errors
        `StoreError`, also without the native library: nothing can be captured then.
        """
        if native.lib is None:
            raise StoreError(f"variables can't be saved here: {native.MISSING}")
        self.root = root
        self.chunks = root / "chunks"
        try:
            _make(root)
            private.make(self.chunks, mend=True)
        except OSError as e:
            raise StoreError(f"the store {root} can't be made: {e.strerror}") from e
        _check(root)
        self.written = 0
        self._raw = os.fsencode(self.chunks)
        self._others: list[Path] = []
        self.read_also(others)

    def read_also(self, others: Sequence[Path]) -> None:
        """Have content that isn't in this store read from these, in this order, and then from the home's. Stores named
        earlier stay, behind the new ones.
        """
        self._others = list(dict.fromkeys([*others, *self._others]))
        stores = dict.fromkeys([self.root, *self._others, home_store()])
        #: Folders of chunks to read from, in this order. Writes go to the first.
        self._places = [root / "chunks" for root in stores]

    def keep_content_of(self, directory: Path) -> None:
        """Have collections of garbage find the state in a directory (`hop_state::garbage::register`).

        # Errors
        `StoreError`.
        """
        directory = Path(os.path.abspath(directory))
        if directory.parent.parts[-2:] == ("gresshopper", "states"):
            directory = directory.parent  # the named states' place: once for all of them
        places = self.root / "places"
        mark = hashlib.blake2b(os.fsencode(directory), digest_size=16).hexdigest()
        try:
            _make(self.root)  # its owner may have removed it meanwhile
            private.make(places, mend=True)
            with contextlib.suppress(FileExistsError):
                os.symlink(directory, places / mark)
        except OSError as e:
            raise StoreError(f"the store {self.root} can't be written: {e.strerror}") from e

    def put(
        self, at: int, nbytes: int, dirty: bytearray | None = None, old: Sequence[str] | None = None
    ) -> list[str]:
        """Store memory in chunks; with `dirty` only the chunks marked there, the others keep their `old` name.

        # Errors
        `StoreError`; `StoreHangs` after a second without an answer, and at once until the store answers again.
        """
        count = -(-nbytes // CHUNK)
        names = ctypes.create_string_buffer(32 * count)
        mask: Any = (ctypes.c_char * count).from_buffer(dirty) if dirty is not None else None
        wrote = native.lib.hop_put(self._raw, at, nbytes, CHUNK, mask, names)
        if wrote == _HANGS:
            raise self.hung()
        if wrote < 0:
            raise StoreError(f"{nbytes} bytes can't be stored in {self.root}: {native.error()}")
        self.written += wrote
        raw = names.raw
        return [
            old[i] if dirty is not None and old is not None and not dirty[i] else raw[32 * i : 32 * i + 32].hex()
            for i in range(count)
        ]

    def path(self, name: str) -> Path:
        """Where a chunk lies."""
        if len(name) != 64 or any(c not in "0123456789abcdef" for c in name):
            raise StoreError(f"{name[:80]!r} isn't the name of a chunk")
        return self.chunks / name[:2] / name[2:]

    def rates(self, durable: bool) -> tuple[float, float]:
        """Rates of the store for writing and reading, in bytes per second, measured with one chunk.

        # Errors
        `StoreError` when it can't be written.
        """
        content = os.urandom(CHUNK)
        started = clock.now()
        names = self.put(native.address(memoryview(content)), CHUNK)
        if durable:
            with open(self.path(names[0]), "rb") as chunk:
                os.fsync(chunk.fileno())
        written = clock.now()
        self.get(names, bytearray(CHUNK))
        read = clock.now()
        self.path(names[0]).unlink(missing_ok=True)
        self.written -= CHUNK
        return CHUNK / max(written - started, 1e-6), CHUNK / max(read - written, 1e-6)

    @property
    def hangs(self) -> bool:
        """Whether the store was found hanging, and has not answered since."""
        return bool(native.lib.hop_hangs(self._raw))

    def hung(self) -> StoreHangs:
        """The error of a store that hangs."""
        return StoreHangs(f"the store {self.root} doesn't answer; it is tried again, and you may go on")

    def keeps(self, names: Sequence[str]) -> bool:
        """As `holds`, within the time of `put`.

        # Errors
        `StoreHangs`, as `put`.
        """
        kept = native.lib.hop_keep(self._raw, bytes.fromhex("".join(names)), len(names))
        if kept == _HANGS:
            raise self.hung()
        return bool(kept > 0)

    def holds(self, names: Sequence[str]) -> bool:
        """Whether all of these chunks exist; existing chunks then count as used now, safe from garbage collection."""
        for name in names:
            path = self.path(name)
            for place in (path, path.with_name(path.name + ".z")):
                with contextlib.suppress(OSError):
                    os.utime(place)
                    break
            else:
                return False
        return True

    def ask_for(self, names: Sequence[str]) -> None:
        """Have the file system read chunks ahead, in the background: they will be wanted soon."""
        if len(names) > FEW:
            _thread.start_new_thread(self._ask_for, (list(names),))  # without waiting until it runs
        elif len(names) > 1:
            self._ask_for(names)

    def _ask_for(self, names: Sequence[str]) -> None:
        for name in names:
            self.path(name)
            plain = (place / name[:2] / name[2:] for place in self._places)
            any(ask_for(path) or ask_for(path.with_name(path.name + ".z")) for path in plain)

    def get(self, names: Sequence[str], into: Any) -> None:
        """Read chunks into memory, checking each against its name."""
        target = memoryview(into).cast("B")
        if not target.nbytes:
            return
        for name in names:
            self.path(name)
        if self._read(self.chunks, names, target):
            return
        why = native.error()
        elsewhere = any(self._read(place, names, target) for place in self._places[1:])
        if not elsewhere and not self._read_each(names, target):
            raise StoreError(f"the state can't be read: {why}")

    @staticmethod
    def _read(place: Path, names: Sequence[str], target: memoryview) -> bool:
        raw = bytes.fromhex("".join(names))
        at, nbytes = native.address(target), target.nbytes
        return bool(native.lib.hop_get(os.fsencode(place), raw, len(names), at, nbytes) >= 0)

    def _read_each(self, names: Sequence[str], target: memoryview) -> bool:
        """Read each chunk from the store that has it. A buffer is stored whole in one store, but a site's purge takes the
        older files there, which are the unchanged chunks. The home still has those if the buffer was there before.
        """
        for n, name in enumerate(names):
            part = target[n * CHUNK : (n + 1) * CHUNK]
            if not any(self._read(place, [name], part) for place in self._places):
                return False
        return True

    def map(self, names: Sequence[str], nbytes: int) -> Any | None:
        """The chunks as private memory, read when touched; nothing where that can't be done."""
        raw = bytes.fromhex("".join(names))
        for place in self._places:
            at = native.lib.hop_map(os.fsencode(place), raw, len(names), nbytes)
            if at:
                return _Mapped(at, nbytes)
        return None

    def pack(self) -> None:
        """Compress the content stored since the last call, if that saves space. A failure leaves it as it is."""
        native.lib.hop_pack(self._raw)

    def sync(self) -> None:
        """Make what was written survive a crash of the machine."""
        if native.lib.hop_sync(self._raw) < 0:
            raise StoreError(f"the store {self.root} can't be synchronised: {native.error()}")


class _Mapped:
    """Memory mapped by the library, as numpy takes it; unmapped with the last array over it."""

    def __init__(self, at: int, nbytes: int) -> None:
        self.at, self.nbytes = at, nbytes
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (at, False)}

    def __del__(self) -> None:
        if native is not None:  # the process may be at its end
            native.lib.hop_unmap(self.at, self.nbytes)
