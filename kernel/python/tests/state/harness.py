"""Runs cells in a namespace with a capture after each, and restores in another process.

Used as a script, it takes `save` or `restore`, a directory and the name of a module of cases, and writes one JSON
line for each case. A case's check runs where the cells ran and where the state was restored; what it calls `out`
must be the same.
"""

from __future__ import annotations

import builtins
import contextlib
import copyreg
import gc
import importlib
import io
import json
import logging
import os
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from gresshopper.state import (
    capture,
    effects,
    follow,
    form,
    names,
    records,
    rerun,
    restore,
    session,
    streams,
    user_modules,
)
from gresshopper.state.store import Store


class Kernel:
    """A namespace, captured or restored, without a shell around it."""

    def __init__(self, directory: Path) -> None:
        streams.know()
        self.module = types.ModuleType("__main__")
        self.ns = self.module.__dict__
        self.ns["__builtins__"] = __builtins__
        sys.modules["__main__"] = self.module
        self.hidden = set(self.ns)
        self.directory = directory
        self.store = Store(directory / "store")
        self.capture = capture.Capture(self.ns, lambda name, value: name in self.hidden, self.store)
        shell = types.SimpleNamespace(user_ns=self.ns, user_ns_hidden={}, displayhook=None, execution_count=1)
        self.writer = records.Writer(shell, self.capture)
        self.log = form.Log(directory / "log", form.owner_key(directory / "key"))
        self.seq = 0
        self.effects = effects.Effects()

    def run(self, source: str) -> bool:
        self.effects.start()
        ok = True
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(source, f"<cell {self.seq}>", "exec", dont_inherit=True), self.ns)
        except Exception:
            ok = False
            self.error = traceback.format_exc()
        self.did = self.effects.stop()
        self.seq += 1
        return ok

    def snap(self, source: str, ok: bool = True, audit: bool = False) -> capture.Delta:
        found = names.names_of_source(source)
        delta = self.capture.run(None if audit else found, self.seq, arm=audit)
        self.write(
            delta,
            {
                "seq": self.seq,
                "source": source,
                "file": f"<cell {self.seq - 1}>",
                "seconds": 0.0,
                "ok": ok,
                "count": self.seq,
                "names": sorted(n for n in found.names if n in self.ns),
                "touched": self.capture.chosen,
                "effects": self.did,
            }
            if not audit
            else None,
        )
        return delta

    def write(self, delta: capture.Delta, cell: Any) -> None:
        head, body = self.writer.record(delta, [] if cell is None else [cell])
        self.log.add(json.dumps(head).encode(), body)

    def restore(self, upto: Any = None) -> tuple[restore.Told, list[str]]:
        records = form.read(self.directory / "log", form.owner_key(self.directory / "key"), upto)
        snapshot = restore.Snapshot(records)
        told, loader = restore.restore(snapshot, self.store, self.capture.session, self.ns.update)
        if told.lost:
            told = rerun.recover(snapshot, self.store, self.capture.session, self.ns.update, told)
        return told, loader.notices


class Clean:
    """What a case may hang into the interpreter, so that it can be taken out again."""

    def __init__(self) -> None:
        self._builtins = set(vars(builtins))
        self._finders, self._callbacks = list(sys.meta_path), list(gc.callbacks)
        self._handlers = {name: list(logger.handlers) for name, logger in self._loggers().items()}
        self._filters = {name: list(logger.filters) for name, logger in self._loggers().items()}
        self._modules = set(sys.modules)

    @staticmethod
    def _loggers() -> dict[str, logging.Logger]:
        named = {n: v for n, v in logging.root.manager.loggerDict.items() if isinstance(v, logging.Logger)}
        return {"": logging.root, **named}

    def restore(self) -> None:
        for name in set(vars(builtins)) - self._builtins:
            delattr(builtins, name)
        sys.meta_path[:], gc.callbacks[:] = self._finders, self._callbacks
        for name, logger in self._loggers().items():
            logger.handlers[:] = self._handlers.get(name, [])
            logger.filters[:] = self._filters.get(name, [])
        for kind, how in list(copyreg.dispatch_table.items()):
            if getattr(how, "__module__", "") == "__main__":
                del copyreg.dispatch_table[kind]
        for name in set(sys.modules) - self._modules:
            if name.startswith("hop_") or session.own_module(sys.modules[name]):
                del sys.modules[name]


def check(kernel: Kernel, source: str) -> str:
    before = kernel.ns.get("out")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(source, "<check>", "exec", dont_inherit=True), kernel.ns)
        return repr(kernel.ns["out"])
    except BaseException as e:
        return f"raised {type(e).__name__}: {str(e)[:300]}"
    finally:
        kernel.ns["out"] = before


def save_one(case: Any, directory: Path) -> dict[str, Any]:
    kernel = Kernel(directory)
    kernel.log.create()
    for source in case.cells:
        ok = kernel.run(source)
        if not ok and not case.fails:
            return {"error": kernel.error}
        kernel.snap(source, ok)
    if case.audit:
        if case.hidden:
            ok = kernel.run(case.hidden)
            assert ok, kernel.error
            kernel.snap("", ok)
        kernel.snap("", True, audit=True)
    kernel.log.commit(False)
    kernel.log.close()
    lost = {name: g.why for u in kernel.capture.units.values() for g in u.gone for name in u.names}
    notes = [note for u in kernel.capture.units.values() for note in u.notes]
    return {"out": check(kernel, case.check), "lost": lost, "notes": notes}


def restore_one(case: Any, directory: Path) -> dict[str, Any]:
    kernel = Kernel(directory)
    told, notices = kernel.restore()
    return {"out": check(kernel, case.check), "lost": told.lost, "notices": notices + told.notices}


def follow_one(case: Any, directory: Path) -> dict[str, Any]:
    """Restore the first record, then follow record by record."""
    kernel = Kernel(directory)
    records = form.read(kernel.directory / "log", form.owner_key(kernel.directory / "key"))
    snapshot = restore.Snapshot(records[:1])
    told, loader = restore.restore(snapshot, kernel.store, kernel.capture.session, kernel.ns.update)
    lost, notices = dict(told.lost), [*told.notices, *loader.notices]
    follower = follow.Follower(snapshot, kernel.store, kernel.capture.session, kernel.ns.update)
    for record in records[1:]:
        try:
            told = follower.apply(record)
        except follow.RebuildError as e:
            return {"rebuild": str(e)}
        lost.update(told.lost)
        notices += told.notices
    restore.arrange(kernel.ns, snapshot.order)
    return {"out": check(kernel, case.check), "lost": lost, "notices": notices}


def main() -> None:
    do, base, module = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    cases = importlib.import_module(module).CASES
    only = set(sys.argv[4:])
    user_modules._ALL = 60.0  # on a busy machine, too, marks of all modules are made
    for case in cases:
        if (only and case.name not in only) or not case.possible():
            continue
        directory = base / case.name.replace("/", "_").replace(" ", "_")
        directory.mkdir(parents=True, exist_ok=True)
        os.chmod(directory, 0o700)
        cwd = os.getcwd()
        environ, path = dict(os.environ), list(sys.path)
        clean = Clean()
        os.chdir(directory)
        try:
            said = {"save": save_one, "restore": restore_one, "follow": follow_one}[do](case, directory)
        except BaseException:
            said = {"error": traceback.format_exc()}
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environ)
        sys.path[:] = path
        sys.setrecursionlimit(1000)
        clean.restore()
        print("\x1e" + json.dumps({"name": case.name, **said}), file=sys.__stdout__, flush=True)
    os._exit(0)  # cases leave threads and executors behind


if __name__ == "__main__":
    main()
