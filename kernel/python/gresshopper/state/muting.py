"""Output of the user's own pickling code during a capture is dropped: the capture comes beside the cells.

The notebook's streams stay the same objects, and print the output of other threads meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .streams import STREAMS

#: Name of the thread in which a capture goes on where nesting is deep.
DEEP_THREAD = "gresshopper-deep"


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Have this thread print nothing."""
    ours = threading.get_ident()
    on = [True]

    def is_quiet() -> bool:
        return bool(on) and (threading.get_ident() == ours or threading.current_thread().name == DEEP_THREAD)

    with contextlib.ExitStack() as undone:
        undone.callback(on.clear)
        for name in STREAMS.keys() - {"stdin"}:
            _silence(STREAMS[name], is_quiet, undone)
        yield


def _silence(stream: Any, is_quiet: Callable[[], bool], undone: contextlib.ExitStack) -> None:
    try:
        attributes = vars(stream)
        write = stream.write
    except (AttributeError, TypeError):  # a stream of a kind that Python's own kernels don't have
        return

    def quietly(text: str) -> Any:
        return len(text) if is_quiet() else write(text)

    before = {name: value for name, value in attributes.items() if name == "write"}

    def undo() -> None:
        if attributes.get("write") is quietly:  # else a thread of the user's set its own
            del attributes["write"]
            attributes.update(before)

    attributes["write"] = quietly
    undone.callback(undo)
