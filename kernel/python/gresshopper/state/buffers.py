"""The content of a dump's buffers: told apart by tags, stored in chunks, and looked at again only where it was written.

Large memory is watched by the operating system's write tracking where there is any, else hashed.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable
from typing import NamedTuple

from gresshopper import clock

from . import native
from .session import Buffer
from .store import CHUNK, Store

#: Memory from this many bytes on is tracked by the kernel rather than hashed.
TRACKED = 1024 * 1024
#: Bytes per second, for what is not known yet: an array of objects, memory to be stored, memory to be hashed.
_ITEMS_RATE, _STORE_RATE, _HASH_RATE = 3e7, 7e8, 8e9
#: Seconds for which a disk may let new content wait until the content is there to stay.
_DISK = 0.02
#: Seconds for which stored content stays without a record's mention, of the hour given by collections of garbage.
_FRESH = 20 * 60.0


class Blob(NamedTuple):
    """Content of a buffer: length in bytes, and chunks."""

    nbytes: int
    chunks: tuple[str, ...]
    items: bool

    @property
    def deferred(self) -> bool:
        """Whether the content isn't in the store: then the names are its tags."""
        return bool(self.chunks) and self.chunks[0].startswith("~")


def _deferred(nbytes: int, tags: bytes) -> Blob:
    return Blob(nbytes, tuple("~" + tags[i : i + 16].hex() for i in range(0, len(tags), 16)), False)


def content_tags(buffer: Buffer) -> bytes:
    """Tags that tell a buffer's content from other content, the same in every process."""
    if buffer.items is not None:
        return _items_tags(pickle.dumps(buffer.items.tolist(), protocol=5))
    return _tags(buffer.address, buffer.nbytes)


def _tags(at: int, nbytes: int) -> bytes:
    out = bytearray(16 * -(-nbytes // CHUNK))
    native.lib.hop_tags(at, nbytes, CHUNK, native.address(out))
    return bytes(out)


def _items_tags(stream: bytes) -> bytes:
    return hashlib.blake2b(stream, digest_size=16).digest()


class _Memory:
    """Facts on one range of memory."""

    __slots__ = ("armed", "blob", "heat", "kept", "seen", "tags")

    def __init__(self) -> None:
        self.blob: Blob | None = None
        #: When all its chunks were stored or asked for.
        self.kept = clock.now()
        self.tags: bytes = b""
        self.armed = False
        self.heat = 1
        self.seen = 0


class Memories:
    """Content of large buffers, by address: write tracking where there is any, else hashes."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._known: dict[tuple[int, int], _Memory] = {}
        self.tracking = native.lib.hop_track_init() == 0
        #: Whether content is stored at its capture; else content is only told apart, and stored with a save.
        self.ahead = True

    def content(self, buffer: Buffer, arm: bool) -> Blob:
        """The content of a buffer, stored. `arm`: there is time to start tracking."""
        if not buffer.nbytes:
            return Blob(0, (), False)
        key = (buffer.address, buffer.nbytes)
        memory = self._known.get(key)
        items = buffer.items is not None
        if memory is not None and (memory.blob is None or memory.blob.items != items):
            memory = None
        if memory is not None and self.ahead and memory.blob is not None and memory.blob.deferred:
            memory = None
        if memory is None:
            memory = _Memory()
            blob = self._first(memory, buffer)
            self._known[key] = memory
            return blob
        return self._kept(memory, buffer, self._again(memory, buffer, arm))

    def _kept(self, memory: _Memory, buffer: Buffer, blob: Blob) -> Blob:
        """Content that a record is about to name. It may have been stored for a capture that was given up, and collected
        as garbage since."""
        if blob.deferred or clock.now() - memory.kept < _FRESH:
            return blob
        blob = self.keep(buffer, blob)
        memory.kept = clock.now()
        return blob

    def _first(self, memory: _Memory, buffer: Buffer) -> Blob:
        if buffer.items is not None:
            self._arm(memory, buffer.address, buffer.nbytes)
            memory.blob, memory.tags = self._store_items(buffer)
        else:
            memory.tags = _tags(buffer.address, buffer.nbytes)
            if self.ahead or not memory.tags:
                names = self.store.put(buffer.address, buffer.nbytes)
                memory.blob = Blob(buffer.nbytes, tuple(names), False)
            else:
                memory.blob = _deferred(buffer.nbytes, memory.tags)
        return memory.blob

    def keep(self, buffer: Buffer, blob: Blob) -> Blob:
        """Store content so far only told apart, and content lost by the store."""
        if not blob.deferred and self.store.keeps(blob.chunks):
            return blob
        memory = self._known.get((buffer.address, buffer.nbytes))
        if buffer.items is not None:
            stored, _ = self._store_items(buffer)
        else:
            stored = Blob(buffer.nbytes, tuple(self.store.put(buffer.address, buffer.nbytes)), False)
        if memory is not None and memory.blob == blob:
            memory.blob = stored
        return stored

    def tags(self, buffer: Buffer) -> bytes:
        """As `content_tags`, without reading memory whose tags are known."""
        memory = self._known.get((buffer.address, buffer.nbytes))
        known = memory is not None and memory.blob is not None and memory.blob.items == (buffer.items is not None)
        return memory.tags if memory is not None and known and memory.tags else content_tags(buffer)

    def _store_items(self, buffer: Buffer) -> tuple[Blob, bytes]:
        """The content of an array of objects, stored, and its tags."""
        stream = pickle.dumps(buffer.items.tolist(), protocol=5)  # type: ignore[union-attr]
        names = self.store.put(native.address(memoryview(stream)), len(stream))
        return Blob(len(stream), tuple(names), True), _items_tags(stream)

    def _again(self, memory: _Memory, buffer: Buffer, arm: bool) -> Blob:
        assert memory.blob is not None
        dirty = self._scan(memory, buffer.address, buffer.nbytes)
        if dirty is not None and not any(dirty):
            return memory.blob
        if buffer.items is not None:
            if dirty is None:
                self._arm(memory, buffer.address, buffer.nbytes)
            try:
                memory.blob, memory.tags = self._store_items(buffer)
            except BaseException:
                memory.armed = False
                raise
            return memory.blob
        if dirty is None:
            if memory.heat <= 1 or (arm and memory.heat <= 3):
                self._arm(memory, buffer.address, buffer.nbytes)
            dirty = bytearray(b"\1" * -(-buffer.nbytes // CHUNK))
        return self._compare(memory, buffer, dirty)

    def _compare(self, memory: _Memory, buffer: Buffer, dirty: bytearray) -> Blob:
        """Store the chunks among the `dirty` ones whose hash differs."""
        assert memory.blob is not None
        before, tags = memory.tags, bytearray(memory.tags)
        marked = [i for i, is_dirty in enumerate(dirty) if is_dirty]
        if len(marked) > 2:
            tags = bytearray(_tags(buffer.address, buffer.nbytes))
        else:
            for i in marked:
                length = min(CHUNK, buffer.nbytes - i * CHUNK)
                tags[16 * i : 16 * i + 16] = _tags(buffer.address + i * CHUNK, length)
        changed = bytearray(
            1 if before[16 * i : 16 * i + 16] != tags[16 * i : 16 * i + 16] else 0 for i in range(len(dirty))
        )
        if not any(changed):
            memory.heat = max(0, memory.heat - 1)
            memory.tags = bytes(tags)
            return memory.blob
        memory.heat = min(6, memory.heat + (1 if 8 * sum(changed) >= len(changed) else 0))
        if memory.heat >= 4 and memory.armed:
            native.lib.hop_track_drop(buffer.address, buffer.nbytes)
            memory.armed = False
        if not self.ahead:
            memory.blob, memory.tags = _deferred(buffer.nbytes, bytes(tags)), bytes(tags)
            return memory.blob
        try:
            names = self.store.put(buffer.address, buffer.nbytes, changed, memory.blob.chunks)
        except BaseException:
            # The scan's report is known only here: without it everything must be compared next time.
            memory.armed = False
            raise
        memory.blob, memory.tags = Blob(buffer.nbytes, tuple(names), False), bytes(tags)
        return memory.blob

    def _arm(self, memory: _Memory, at: int, nbytes: int) -> None:
        if self.tracking and nbytes >= TRACKED and not memory.armed:
            memory.armed = native.lib.hop_track_arm(at, nbytes) == 0

    def _scan(self, memory: _Memory, at: int, nbytes: int) -> bytearray | None:
        """Chunks written since the last scan; nothing if unknown."""
        if not memory.armed:
            return None
        dirty = bytearray(-(-nbytes // CHUNK))
        if native.lib.hop_track_scan(at, nbytes, CHUNK, native.address(dirty), 1) < 0:
            memory.armed = False
            return None
        return dirty

    def cost(self, buffer: Buffer) -> float:
        """Upper bound in seconds for storing the content: written memory may be unchanged."""
        memory = self._known.get((buffer.address, buffer.nbytes))
        nbytes = buffer.nbytes
        if memory is not None and memory.armed:
            dirty = bytearray(-(-nbytes // CHUNK))
            # Without re-arming, which would lose findings.
            if native.lib.hop_track_scan(buffer.address, nbytes, CHUNK, native.address(dirty), 0) == 0:
                return 0.0
            nbytes = min(nbytes, CHUNK * sum(dirty)) or nbytes
        if buffer.items is not None:
            return buffer.nbytes / _ITEMS_RATE
        stored = nbytes / _STORE_RATE + _DISK
        return nbytes / _HASH_RATE + (stored if self.ahead else 0.0)

    def unchanged(self, at: int, nbytes: int) -> bool:
        """Whether an array of immutable objects is known to hold the same ones as before."""
        memory = self._known.get((at, nbytes))
        if memory is None or memory.blob is None or not memory.blob.items or not memory.armed:
            return False
        dirty = bytearray(-(-nbytes // CHUNK))
        # A scan with re-arming would lose its findings here, so the scan asks without re-arming.
        return bool(native.lib.hop_track_scan(at, nbytes, CHUNK, native.address(dirty), 0) == 0)

    def forget(self, gone: Iterable[tuple[int, int]]) -> None:
        """Stop watching memory that no unit refers to any more."""
        for key in gone:
            memory = self._known.pop(key, None)
            if memory is not None and memory.armed:
                native.lib.hop_track_drop(*key)
