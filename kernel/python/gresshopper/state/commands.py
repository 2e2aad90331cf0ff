"""The operations of a kernel that `hop state` asks for (docs/agent-wire.md, "For commands")."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gresshopper import between, operations, typenames
from gresshopper.operations import Answer, Call, OperationError

from . import form, recovery
from . import restore as restoring
from .agent import Agent, agent
from .lost import LostError
from .store import StoreError

_log = logging.getLogger("gresshopper")


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Errors of the engine as errors of the channel.

    # Errors
    `OperationError`.
    """
    try:
        yield
    except form.VersionError as e:
        raise OperationError("version", str(e)) from e
    except form.FormError as e:
        raise OperationError("damaged", str(e)) from e
    except StoreError as e:
        raise OperationError("store", str(e)) from e


def register(shell: Any) -> None:
    """Answer `hop state` from now on, as `gresshopper.saving.offer` does in a kernel without the engine."""
    for name in _COMMANDS:
        operations.register(f"state.{name}", partial(carry_out, shell, name), between.of(shell).post)


def carry_out(shell: Any, name: str, call: Call) -> Answer:
    """Carry out a command.

    # Errors
    `OperationError`.
    """
    call.progress("")  # no cell runs any more
    asked = [call.body.get("store"), *call.body.get("others", ())]
    stores = [Path(store) for store in asked if store]
    if relative := [store for store in stores if not store.is_absolute()]:
        raise OperationError("invalid", f"the store {relative[0]} is no absolute path")
    try:
        with told():
            of = agent(shell, stores[0] if stores else None)
            # The kernel may keep its content elsewhere than the asker: its store was chosen when it began.
            of.store.read_also(stores)
            of.recovery.progress = call.progress
            try:
                answer: Answer = _COMMANDS[name](of, call.body)
            finally:
                of.recovery.progress = None
            return answer
    except OperationError:
        raise
    except (LostError, OSError) as e:
        raise OperationError("failed", str(e)) from e
    except Exception as e:  # the asker is told, and not the notebook
        _log.debug("state.%s failed", name, exc_info=True)
        raise OperationError("failed", f"{typenames.name_of(type(e))}: {e}") from e


def _folder(asked: Mapping[str, Any], key: str) -> Path:
    if not isinstance(asked.get(key), str):
        raise OperationError("invalid", f"the request has no folder {key!r}")
    return Path(asked[key])


def _show(of: Agent, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"groups": of.show()}


def _save(of: Agent, asked: Mapping[str, Any]) -> dict[str, Any]:
    return of.save(_folder(asked, "to"), asked.get("durable", True), asked.get("whole", False))


def _load(of: Agent, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Restore a saved state. Without `anyway` a different environment's is left alone."""
    folder = _folder(asked, "folder")
    differences = restoring.differences(recovery.read(folder).environment)
    if differences and not asked.get("anyway"):
        return {"differences": differences}
    wait = asked.get("wait", True)
    told = of.restore(folder, wait=wait, shown=wait)
    return {
        "names": told.names,
        "lost": told.lost,
        "notices": told.notices,
        "seconds": told.seconds,
        "differences": differences,
    }


def _spent(of: Agent, asked: Mapping[str, Any]) -> dict[str, Any]:
    took = of.watcher.pace
    seconds = {"ran": took.ran, "spent": took.spent, "between": took.between, "thought": took.thought}
    return {**seconds, "trouble": of.watcher.failures.texts}


_COMMANDS: dict[str, Any] = {"show": _show, "save": _save, "load": _load, "spent": _spent}
