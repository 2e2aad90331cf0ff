"""Files that users name: read and written so that a pipe, a device or an endless file does no harm.

A symbolic link stands for the file that it leads to. Files are replaced whole. A pipe or a character device is written
to in place. Nothing is put in the place of anything else.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from pathlib import Path

#: How long the reader of a pipe may read nothing, in seconds.
_READER = 30.0


def is_stream(path: Path) -> bool:
    """Whether a pipe or a character device stands at the path, such as ``/dev/null`` or a terminal.

    Raises OSError if something else than that or a regular file stands there, or if it can't be found out.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISREG(mode):
        return False
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        return True
    raise _no_file(mode)


def _no_file(mode: int) -> OSError:
    kinds = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return OSError(errno.EINVAL, f"it is a {kinds.get(stat.S_IFMT(mode), 'device')}, not a file")


def replace(path: Path, text: str) -> None:
    """Writes under another name and renames: a reader finds the old file or the new one.

    Raises OSError if it can't be done. The old file stays then.
    """
    real = Path(os.path.realpath(path))
    new = real.with_name(f".{real.name}.{os.getpid()}.new")
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            new.chmod(mode)
        new.replace(real)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def pour(path: Path, text: str) -> None:
    """Writes to a pipe or a character device, as long as somebody reads.

    Raises OSError if nobody does.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise _nobody() if error.errno == errno.ENXIO else error from None
    try:
        left = memoryview(text.encode())
        until = time.monotonic() + _READER
        while left:
            if not select.select([], [handle], [], max(until - time.monotonic(), 0))[1]:
                raise _nobody()
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(handle, left) :]
                until = time.monotonic() + _READER
    finally:
        os.close(handle)


def _nobody() -> OSError:
    return OSError(errno.ENXIO, "nobody reads it")


def read(path: str | Path, most: int) -> str:
    """The text of a regular file. Doesn't wait for a pipe's writer.

    Raises OSError for anything but a regular file and for more than `most` bytes; UnicodeDecodeError if the text isn't
    UTF-8.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise _no_file(mode)
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB")
    return content.decode()
