"""The state half under a supervisor: what it asks of `state.*`, and where records go (docs/agent-wire.md).

Every operation runs in the kernel's main thread, between cells. The supervisor writes the log; the kernel only makes
records, and writes large content to the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gresshopper import between, door, operations
from gresshopper.channel import Channel, ChannelClosed
from gresshopper.operations import Call, OperationError

from . import commands, follow, form, native, recovery
from . import restore as restoring
from .agent import Agent, agent
from .records import Outcome, Ran, Record


class ChannelJournal:
    """Sends records to the supervisor."""

    def __init__(self, channel: Channel, of: Agent, number: int, through: int) -> None:
        self._channel, self._of = channel, of
        self.next, self.through = number, through
        self._held: tuple[dict[str, Any], list[bytes]] | None = None

    def add(self, record: Record) -> None:
        """As `Journal`."""
        if record.cells:
            self.through = record.cells[-1].seq
        said = {
            "record": self.next,
            "through": self.through,
            "cells": [{"msg_id": ran.msg_id, "seq": ran.seq} for ran in record.cells],
            "cause": record.cause,
            "took_ms": round(1e3 * record.seconds, 3),
            "unmovable": self._of.unmovable.reasons(),
        }
        if record.cause != "audit":
            said.update(self._missed())
        self.next += 1
        if record.reply_waits:
            self._held = said, [record.text(), record.body]
        else:
            self._tell("state.record", said, [record.text(), record.body])

    def cell_over(self, ran: Ran, outcome: Outcome, seconds: float) -> None:
        """As `Journal`."""
        held, self._held = self._held, None
        said = {
            "msg_id": ran.msg_id,
            "seq": ran.seq,
            "status": outcome.status,
            "ran_ms": round(1e3 * ran.seconds, 3),
            "took_ms": round(1e3 * seconds, 3),
        }
        if (count := _plain(self._of.shell, ran)) is not None:
            said["plain"] = count
        if held is not None:
            record, attachments = held
            said.update({key: record[key] for key in ("record", "through", "cells", "unmovable")}, **self._missed())
            self._tell("state.cell", said, attachments)
        else:
            said.update(_failure(outcome), unmovable=self._of.unmovable.reasons())
            self._tell("state.cell", said, [])

    def _missed(self) -> dict[str, Any]:
        """Why something stays unsaved beside a record of cells."""
        missed = self._of.watcher.failures.missed
        return {} if missed is None else _failure(missed)

    def failed(self, outcome: Outcome) -> None:
        """As `Journal`."""
        with contextlib.suppress(form.FormError):  # the next cell tells it again
            self._tell("state.failed", _failure(outcome), [])

    def audited(self, after: str) -> None:
        """As `Journal`."""
        with contextlib.suppress(form.FormError):  # the next audit tells it again
            self._tell("state.audited", {"after": after}, [])

    def notice(self, lost: Mapping[str, str], notices: Sequence[str]) -> bool:
        """As `Journal`."""
        self._tell("state.notice", {"lost": dict(lost), "notices": list(notices)}, [])
        return True

    def close(self) -> None:
        """As `Journal`."""

    def _tell(self, event: str, body: dict[str, Any], attachments: list[bytes]) -> None:
        try:
            self._channel.notify(event, body, attachments)
        except ChannelClosed as e:
            raise form.FormError(f"the kernel's supervisor can't be told: {e}") from e


def _failure(outcome: Outcome) -> dict[str, Any]:
    """Why nothing was captured, and from which cell on."""
    since = {} if outcome.since is None else {"since": outcome.since}
    return {"why": outcome.why, **since}


def _plain(shell: Any, ran: Ran) -> int | None:
    """The execution count of a cell whose reply will have nothing beyond the count and `ok`, for telling beforehand."""
    asked = (shell.get_parent() or {}).get("content") or {}
    says_more = asked.get("user_expressions") or shell.payload_manager.read_payload()
    if not ran.ok or says_more:
        return None
    return int(shell.execution_count) - 1


class Supervised:
    """Answers the supervisor."""

    def __init__(self, shell: Any, channel: Channel) -> None:
        self._shell, self._channel = shell, channel
        #: Last record applied to this standby; None right after the restoration.
        self._applied: int | None = None
        post = between.of(shell).post
        for name in ("begin", "restore", "apply", "flush", "forget"):
            operations.register(f"state.{name}", partial(self._guarded, getattr(self, f"_{name}")), post)
        shell.events.register("pre_execute", self._begins)

    def _begins(self) -> None:
        """Tell the supervisor that a cell begins: an unstarted cell of a dead process can run in the next one."""
        header = (self._shell.get_parent() or {}).get("header") or {}
        if header.get("msg_type") == "execute_request":
            with contextlib.suppress(ChannelClosed):
                self._channel.notify("state.begins", {"msg_id": header["msg_id"]}, [])

    @staticmethod
    def _guarded(work: operations.Operation, call: Call) -> operations.Answer:
        try:
            with commands.told():
                return work(call)
        except KeyError as e:
            raise OperationError("invalid", f"the request has no {e}") from e

    @property
    def _of(self) -> Agent:
        return agent(self._shell)

    def _begin(self, call: Call) -> dict[str, Any]:
        asked = call.body
        if asked.get("form", form.VERSION) != form.VERSION:
            raise OperationError(
                "version", f"this kernel writes version {form.VERSION} of the saved form, not {asked['form']}"
            )
        if native.lib is None:
            raise OperationError("refused", f"this kernel's variables aren't saved: {native.MISSING}")
        store = asked.get("store")
        of = agent(self._shell, None if store is None else Path(store))
        if store is not None and of.store.root != Path(store):
            raise OperationError("refused", f"this kernel's content lies in {of.store.root} already")
        of.store.read_also([Path(other) for other in asked.get("others", ())])
        if (opened := door.get()) is not None:
            opened.standby = asked["capture"] == "nothing"
        patience = asked.get("patience_ms")
        of.watcher.pace.patience = None if patience is None else patience / 1000
        if asked["capture"] == "nothing":
            of.unwatch()
        elif isinstance(of.recorder.journal, ChannelJournal):
            of.recorder.next_record(asked["record"] != of.recorder.journal.next or bool(asked.get("anew")))
            of.recorder.journal.next = asked["record"]
        else:
            ended = of.standby.elect()
            of.begin(ChannelJournal(self._channel, of, asked["record"], of.recorder.seq))
            if ended:
                of.recovery.tell({}, ended)
        return {"form": form.VERSION, "python": platform.python_version(), "pid": os.getpid()}

    def _restore(self, call: Call) -> dict[str, Any]:
        asked, of = call.body, self._of
        end = form.End(asked["length"], asked["mac"]) if asked.get("mac") else None
        snapshot = recovery.read(Path(asked["folder"]), asked.get("upto"), end)
        if call.attachments:
            more = _records(call.attachments)
            snapshot = restoring.Snapshot([*snapshot.records, *more])
        lazy = bool(asked.get("lazy", True))
        capturing = of.recorder.journal is not None
        told = of.recovery.rebuild(snapshot, wait=not lazy, shown=not lazy)
        if capturing:
            told = told._replace(notices=[*told.notices, *snapshot.ended()])
            of.watcher.audit()
        else:
            of.recorder.adopt(snapshot)
            of.standby.follow(snapshot)
            self._applied = None
        groups, nbytes = of.unread.size()
        return {
            "names": told.names,
            "lost": of.notices.news(told.lost),
            "notices": told.notices,
            "pending": {"groups": groups, "bytes": nbytes},
            "seq": of.recorder.seq,
            "execution_count": self._shell.execution_count,
            "seconds": told.seconds,
            "unmovable": of.unmovable.reasons(),
        }

    def _apply(self, call: Call) -> dict[str, Any]:
        number, of = call.body["record"], self._of
        if self._applied not in (None, number - 1):
            raise OperationError("rebuild", f"record {number} doesn't follow record {self._applied}")
        lost: dict[str, str] = {}
        notices: list[str] = []
        names: set[str] = set()
        for record in _records(call.attachments):
            try:
                told = of.standby.apply(record)
            except follow.RebuildError as e:
                raise OperationError("rebuild", f"{e}: restore it anew") from e
            lost = {name: why for name, why in lost.items() if name not in told.names}
            lost.update(of.notices.news(told.lost))
            names.update(told.names)
            notices += [notice for notice in told.notices if notice not in notices]
            self._applied, number = number, number + 1
        return {
            "record": self._applied,
            "names": sorted(names),
            "lost": lost,
            "notices": notices,
            "execution_count": self._shell.execution_count,
        }

    def _flush(self, call: Call) -> dict[str, Any]:
        of = self._of
        if not isinstance(of.recorder.journal, ChannelJournal):
            raise OperationError("refused", "nothing is captured in this kernel: begin first")
        outcome = of.watcher.flush(bool(call.body.get("audit", True)))
        return {
            "record": of.recorder.journal.next - 1,
            "seq": of.recorder.journal.through,
            "whole": outcome.status == "whole",
            "why": outcome.why,
            "unmovable": of.unmovable.reasons(),
        }

    def _forget(self, call: Call) -> dict[str, Any]:
        of = self._of
        of.forget()
        self._applied = None
        if isinstance(of.recorder.journal, ChannelJournal):
            of.recorder.journal.next = call.body["record"]
        return {}


def _records(attachments: list[bytes]) -> list[form.Record]:
    """Records as they travel: text and body in turns."""
    if len(attachments) % 2:
        raise OperationError("invalid", "each record has a text and a body")
    return [form.Record(json.loads(text), body) for text, body in zip(attachments[::2], attachments[1::2])]


def serve(shell: Any, channel: Channel) -> None:
    """Begin to answer the supervisor of this kernel."""
    Supervised(shell, channel)
    channel.open()
