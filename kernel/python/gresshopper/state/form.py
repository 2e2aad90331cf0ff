"""The saved form: a log of records, authenticated by a key of its owner (docs/state-format.md).

A state is a directory: `log`, to which each capture adds a record, and `head`, which proves the log and counts its
valid part. A record is JSON (the changes) and bytes (small streams); its authentication covers the record before. The
native library writes; this module proves and reads. It knows nothing of Python objects: nothing here unpickles.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gresshopper import private

from . import native

#: Numbers are never used twice: a state of another version is refused by its number, rather than misread.
VERSION = 7
#: Length of a log's start.
_START = 16
_SIZES = struct.Struct("<QQ")
MAC = 32
#: The way in which a state is authenticated: keyed BLAKE3.
KIND = b"b3\0\0"
#: Length of each of the two places in `head`, which are written in turns: a torn write leaves the other.
SLOT = 512
#: Set in the length of a part that is compressed (zlib).
DEFLATED = 1 << 63
#: Streams up to this many bytes lie in the record itself.
INLINE = 64 * 1024


class FormError(RuntimeError):
    """A saved state can't be read or written; says why and what to do."""


class VersionError(FormError):
    """The state is of another version of the form."""


def key_path() -> Path:
    """Path of the owner's key: in the home, outside every store."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "gresshopper" / "state.key"


def owner_key(path: Path | None = None, make: bool = True) -> bytes:
    """The owner's key, made at the first use.

    # Errors
    `FormError` when the file is another user's, readable by others, or not a key.
    """
    path = path or key_path()
    if make and not path.exists():
        _make_key(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as e:
        raise FormError(f"the key {path} can't be read: {e.strerror}") from e
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        key = file.read(33)
    if found.st_uid != os.geteuid():
        raise FormError(f"the key {path} belongs to another user")
    if found.st_mode & 0o077:
        raise FormError(f"the key {path} is open to other users: remove it, or chmod 600 it if nobody read it")
    if len(key) != 32:
        raise FormError(f"{path} isn't a key of 32 bytes")
    return key


def _make_key(path: Path) -> None:
    try:
        private.make(path.parent)
        handle, temp = tempfile.mkstemp(prefix=".key-", dir=path.parent)
        os.fchmod(handle, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(os.urandom(32))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another kernel may have made it meanwhile: then theirs counts
            os.link(temp, path)
        os.unlink(temp)
    except OSError as e:
        raise FormError(f"the key {path} can't be made: {e.strerror}") from e


def _mac(key: bytes, data: bytes) -> bytes:
    out = ctypes.create_string_buffer(MAC)
    native.lib.hop_keyed(key, data, len(data), out)
    return out.raw


class Record(NamedTuple):
    """One capture: its description and its bytes."""

    head: dict[str, Any]
    body: bytes

    def inline(self, ref: Mapping[str, Any]) -> bytes:
        """Bytes of a stream in this record."""
        at, length = ref["in"]
        return self.body[at : at + length]


class Log:
    """The log of one state, open for adding. The native library writes it (`hop_state::log`)."""

    def __init__(self, directory: Path, key: bytes) -> None:
        self.directory, self._key = directory, key
        private.make(directory)
        #: The library's number for it; 0 while it isn't open.
        self._number = 0

    def create(self) -> None:
        """Start an empty log beside an existing log; `commit` replaces the old log."""
        self._open(False)

    def resume(self) -> None:
        """Go on after the last record that counts."""
        read_head(self.directory, self._key)
        self._open(True)

    def _open(self, resumed: bool) -> None:
        self.close()
        self._number = self._done(native.lib.hop_log_open(os.fsencode(self.directory), self._key, resumed))

    def add(self, text: bytes, body: bytes, compress: bool = False) -> int:
        """Add a record, its head as JSON; the record counts from `commit` on. Returns its length in bytes.

        # Errors
        `FormError`; what was committed before is kept.
        """
        return self._done(native.lib.hop_log_add(self._number, text, len(text), body, len(body), compress))

    def commit(self, durable: bool) -> None:
        """Make the records added so far count, as a whole."""
        self._done(native.lib.hop_log_commit(self._number, durable))

    def _done(self, result: int) -> int:
        if result < 0:
            raise FormError(
                f"the state {self.directory} can't be written: {native.error()}; what was saved before is kept"
            )
        return result

    def close(self) -> None:
        """Close the log; what wasn't committed doesn't count."""
        if self._number:
            native.lib.hop_log_close(self._number)
            self._number = 0


def _content(path: str) -> bytes:
    """All of a file."""
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def read_head(directory: Path, key: bytes) -> dict[str, Any]:
    """Content of a state's proven `head`."""
    try:
        found = os.stat(directory)
        raw = _content(os.path.join(directory, "head"))
    except OSError as e:
        raise FormError(f"there is no saved state in {directory}: {e.strerror}") from e
    if found.st_uid != os.geteuid():
        raise FormError(f"the state {directory} belongs to another user, and isn't read")
    if len(raw) != 2 * SLOT:
        raise FormError(f"the state {directory} is damaged or was tampered with: its head has another length")
    proven: list[dict[str, Any]] = []
    why = FormError(f"the state {directory} was tampered with, or saved under another key: refused")
    for place in {raw[:SLOT], raw[SLOT:]}:
        try:
            proven.append(_prove_head(place, directory, key))
        except FormError as e:
            why = e
    if not proven:
        raise why
    return max(proven, key=lambda state: int(state["records"]))


def _prove_head(place: bytes, directory: Path, key: bytes) -> dict[str, Any]:
    try:
        text, proof, _ = place.split(b"\n")
        state: dict[str, Any] = json.loads(text)
        version, kind = state["version"], state["kind"]
    except (ValueError, KeyError, TypeError) as e:
        raise FormError(f"the state {directory} is damaged or was tampered with: its head can't be read") from e
    if version != VERSION:
        raise VersionError(f"the state {directory} has version {version} of the form, this is for version {VERSION}")
    if kind != KIND.hex():
        raise FormError("the state is authenticated in a way that this version doesn't know")
    if not hmac.compare_digest(_mac(key, b"head" + text).hex().encode(), proof):
        raise FormError(f"the state {directory} was tampered with, or saved under another key: refused")
    return state


class End(NamedTuple):
    """The valid part of a log: its length, and the last record's proof."""

    length: int
    mac: str


def read(directory: Path, key: bytes, upto: int | None = None, end: End | None = None) -> list[Record]:
    """All records of a state (or the first `upto`), proven before any use. `end` replaces the position that the
    state's head names.

    # Errors
    `FormError` for a state that is truncated, damaged, tampered with, another user's, or of another version.
    """
    head = read_head(directory, key)
    if end is not None:
        head = {**head, "length": end.length, "mac": end.mac, "records": None}
    refused = FormError(f"the state {directory} is truncated or was tampered with: refused")
    try:
        data = _content(os.path.join(directory, "log"))
    except OSError as e:
        raise FormError(f"the state {directory} can't be read: {e.strerror}") from e
    if len(data) < head["length"] or len(data) < _START:
        raise refused
    data = data[: head["length"]]
    mac = _mac(key, data[:_START])
    at = _START
    records: list[Record] = []
    while at < len(data):
        if at + _SIZES.size > len(data):
            raise refused
        sizes = _SIZES.unpack_from(data, at)
        text, body = (size & ~DEFLATED for size in sizes)
        stop = at + _SIZES.size + text + body
        if stop + MAC > len(data):
            raise refused
        framed = data[at:stop]
        mac = _mac(key, mac + framed)
        if not hmac.compare_digest(mac, data[stop : stop + MAC]):
            raise refused
        start = _SIZES.size
        parts = [
            zlib.decompress(part) if size & DEFLATED else part
            for size, part in zip(sizes, (framed[start : start + text], framed[start + text :]))
        ]
        records.append(Record(json.loads(parts[0]), parts[1]))
        at = stop + MAC
    if mac.hex() != head["mac"] or head["records"] not in (None, len(records)):
        raise refused
    return records if upto is None else records[:upto]
