"""Code of the notebook's that a page runs without a cell: the callbacks of widgets, by messages of their comms."""

from __future__ import annotations

import functools
from typing import Any, Callable

#: Messages that call what the notebook has registered. IPython has events for the second alone.
_KINDS = ("comm_open", "comm_msg", "comm_close")


class Comms:
    """Tells of each such message once its callbacks have run, in the thread in which they ran. The kernel's own handlers
    are called as before.
    """

    def __init__(self, shell: Any, ran: Callable[[], None]) -> None:
        self._shell, self._ran = shell, ran
        #: The kernel's own handlers, and those in their places.
        self._handlers: dict[str, tuple[Any, Any]] = {}

    def begin(self) -> None:
        """Tell from now on."""
        table = self._table()
        for kind in _KINDS:
            if kind in table and kind not in self._handlers:
                self._handlers[kind] = table[kind], self._telling(table[kind])
                table[kind] = self._handlers[kind][1]

    def end(self) -> None:
        """Tell no more. A handler that somebody has put in the place since stays."""
        table = self._table()
        for kind, (own, told) in self._handlers.items():
            if table.get(kind) is told:
                table[kind] = own
        self._handlers.clear()

    def _table(self) -> dict[str, Any]:
        return getattr(getattr(self._shell, "kernel", None), "shell_handlers", None) or {}

    def _telling(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(handler)
        def told(*args: Any, **more: Any) -> Any:
            try:
                return handler(*args, **more)
            finally:
                self._ran()

        return told
