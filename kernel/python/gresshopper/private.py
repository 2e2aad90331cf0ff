"""Folders and files for their owner alone, whatever umask a cell has set (`hop_blobs::private` does the same).

A folder made under an umask that takes the owner's rights away would be closed to the user's other kernels as well.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_FOLDER = 0o700


def make(path: Path, mend: bool = False) -> None:
    """Make a folder, and those above it, if need be. An existing one stays as it is; with `mend`, for folders of this
    package's own, it gets its owner's rights.

    # Errors
    `OSError`.
    """
    try:
        os.mkdir(path, _FOLDER)
    except FileExistsError:
        if not path.is_dir():
            raise
        if mend:
            with contextlib.suppress(OSError):  # whoever writes there hears of it
                _give(path)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make(path.parent)
        # Once: where nothing can be made, as in `/proc`, the folder is missing at each try.
        with contextlib.suppress(
            FileExistsError
        ):  # made meanwhile: by another process, or with its parent (`new/..`)
            os.mkdir(path, _FOLDER)
            _give(path)
    else:
        _give(path)


def _give(path: Path) -> None:
    """Give a folder of the user's its owner's rights. No link is followed, and nothing changed that came into its place."""
    held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(held)
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if is_ours and found.st_mode & _FOLDER != _FOLDER:
            # A handle without rights to the content has no other way.
            os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(found.st_mode) | _FOLDER)
    finally:
        os.close(held)
