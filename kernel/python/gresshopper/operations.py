"""Operations, by name, for requests over the agent channel or the door.

A module registers its operations here, in its own namespace (``state.``, ``gpu.``). Each operation names its runner: a
thread of its own, or the kernel's main thread between cells (`between`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, Union

from gresshopper.wire import Attachment

_log = logging.getLogger("gresshopper")


class OperationError(Exception):
    """An operation can't be carried out. ``kind`` is for programs (docs/agent-wire.md), the text for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Call:
    """A request: its body and attachments, a way to report progress, and whether anybody still waits for the answer."""

    body: dict[str, Any]
    attachments: list[bytes]
    progress: Callable[[str], None] = lambda text: None
    wanted: Callable[[], bool] = lambda: True


#: An answer's body, with or without attachments.
Answer = Union["dict[str, Any]", "tuple[dict[str, Any], Sequence[Attachment]]"]
Operation = Callable[[Call], Answer]
#: Has work done, now or later, in whatever thread that is.
Runner = Callable[[Callable[[], None]], None]


def in_thread(work: Callable[[], None]) -> None:
    """Run on a separate thread, to let an operation send requests itself."""
    threading.Thread(target=work, name="gresshopper-op", daemon=True).start()


_known: dict[str, tuple[Operation, Runner]] = {}


def register(name: str, operation: Operation, runner: Runner = in_thread) -> None:
    """Answer requests for ``name`` with ``operation``."""
    _known[name] = (operation, runner)


def namespaces() -> list[str]:
    """The namespaces of what is registered."""
    return sorted({name.partition(".")[0] for name in _known})


def carry_out(
    name: str,
    call: Call,
    answer: Callable[[dict[str, Any], Sequence[Attachment]], None],
    refuses: Sequence[str] = (),
    runner: Runner | None = None,
) -> None:
    """Run an operation, here or elsewhere, and hand its outcome (``ok`` or ``error``) to ``answer``. Names in ``refuses`` are
    for others to ask. ``runner`` is used in place of the operation's own. Unwanted work that hasn't begun is dropped."""
    if name in refuses:
        return answer({"error": {"kind": "refused", "message": f"{name} is for the kernel's supervisor alone"}}, ())
    found = _known.get(name)
    if found is None:
        return answer({"error": {"kind": "unknown", "message": f"there is no operation {name}"}}, ())
    operation, own = found

    def work() -> None:
        if call.wanted():
            answer(*_outcome(name, operation, call))

    (runner or own)(work)
    return None


def _outcome(name: str, operation: Operation, call: Call) -> tuple[dict[str, Any], Sequence[Attachment]]:
    try:
        said = operation(call)
    except OperationError as error:
        return {"error": {"kind": error.kind, "message": str(error)}}, ()
    except Exception as error:
        _log.warning("operation %s failed", name, exc_info=True)
        return {"error": {"kind": "failed", "message": f"{type(error).__name__}: {error}"}}, ()
    body, attachments = said if isinstance(said, tuple) else (said, ())
    return {"ok": body}, attachments
