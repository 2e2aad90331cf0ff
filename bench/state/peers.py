"""The compared systems, behind a common interface: track a shell, checkpoint, restore.

Each is used as its documentation says. Each class names the repairs needed for its system to run here.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
import time
import types
from pathlib import Path
from typing import Any


def _size(path: Path) -> int:
    return sum(p.stat().st_size for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file())


class Peer:
    """No tracking, no checkpoint: what running alone costs."""

    name = "none"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tracking = 0.0
        self.thought = 0.0

    def attach(self, ip: Any) -> None:
        self.ip = ip

    def begin(self, ip: Any) -> None:
        """Prepare the kernel for a restore."""
        self.ip = ip

    def run(self, source: str) -> Any:
        return self.ip.run_cell(source, store_history=True)

    def think(self) -> None:
        """The user looks at what a cell gave."""

    def rest(self) -> None:
        """The last cell is over for a second when somebody asks for a checkpoint."""

    def checkpoint(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def restore(self) -> None:
        pass

    def settle(self) -> None:
        """Read what is left to think time."""

    def size(self) -> int:
        return _size(self.directory)


class Ours(Peer):
    name = "ours"

    def attach(self, ip: Any) -> None:
        super().attach(ip)
        from gresshopper.state import form
        from gresshopper.state.agent import Agent

        form.owner_key()  # a user's first state makes it, once
        self.agent = Agent(ip, self.directory / "store")
        self.agent.watch()

    def run(self, source: str) -> Any:
        result = super().run(source)
        self.tracking = self.agent.watcher.pace.spent
        return result

    def think(self) -> None:
        self.agent.watcher.idle()
        self.thought = self.agent.watcher.pace.thought

    def rest(self) -> None:
        self.agent.watcher.rest()
        self.thought = self.agent.watcher.pace.thought

    def checkpoint(self) -> None:
        self.agent.save(self.directory / "state", durable=False)

    def finish(self) -> None:
        self.agent.saver.packed()

    def begin(self, ip: Any) -> None:
        from gresshopper.state.agent import Agent

        super().begin(ip)
        self.agent = Agent(ip, self.directory / "store")

    def restore(self) -> None:
        # All variables. Displayed values, which no other system keeps, follow in think time.
        with contextlib.redirect_stderr(io.StringIO()):
            self.agent.restore(self.directory / "state", lazy=False, shown=False)

    def settle(self) -> None:
        self.agent.unread.read_all()


class OursPerCell(Ours):
    """A checkpoint after every cell, as Kishu does."""

    name = "ours_per_cell"

    def attach(self, ip: Any) -> None:
        Peer.attach(self, ip)
        from gresshopper.state.agent import Agent

        self.agent = Agent(ip, self.directory / "store")
        self.agent.watch(self.directory / "state")

    def checkpoint(self) -> None:
        self.agent.watcher.audit()


class _Whole(Peer):
    """All variables in one dictionary."""

    def _variables(self) -> dict[str, Any]:
        hidden = self.ip.user_ns_hidden
        return {
            k: v
            for k, v in self.ip.user_ns.items()
            if not k.startswith("_")
            and k not in ("In", "Out", "exit", "quit", "get_ipython", "open")
            and not (k in hidden and hidden[k] is v)
            and not isinstance(v, types.ModuleType)
        }


class CloudPickle(_Whole):
    name = "cloudpickle"

    def checkpoint(self) -> None:
        import cloudpickle

        with open(self.directory / "all.pkl", "wb") as out:
            cloudpickle.dump(self._variables(), out)

    def restore(self) -> None:
        with open(self.directory / "all.pkl", "rb") as stream:
            self.ip.user_ns.update(pickle.load(stream))


class CloudPickleOut(CloudPickle):
    """With displayed values (`Out`), as ours keeps them: the cost of equal content without our other work."""

    name = "cloudpickle_out"

    def _variables(self) -> dict[str, Any]:
        out = self.ip.user_ns.get("_oh") or {}
        return {**super()._variables(), **{f"_{number}": value for number, value in out.items()}}


class Dill(_Whole):
    """`dill.dump_module`; IPython's own objects, unwritable for dill, are taken out of the module for the time."""

    name = "dill"

    def checkpoint(self) -> None:
        import dill

        main = sys.modules["__main__"]
        kept = dict(vars(main))
        mine = self._variables()
        for key in list(vars(main)):
            if key not in mine and not key.startswith("__"):
                del vars(main)[key]
        try:
            dill.dump_module(str(self.directory / "all.dill"), module=main)
        finally:
            vars(main).update(kept)

    def restore(self) -> None:
        import dill

        dill.load_module(str(self.directory / "all.dill"), module=sys.modules["__main__"])


class ElasticNotebook(Peer):
    """From its repository. Mended:

    - `lightgbm` and `polars`, imported for a look at their types, are empty modules where not installed.
    - `elastic.core.io.migrate` adds to a tuple as soon as three variables overlap, and writes nothing: it is a set.
    - A cell is run plainly if the look before the run fails (magics, functions whose source is indented).
    """

    name = "elastic"

    def begin(self, ip: Any) -> None:
        self.attach(ip)

    def attach(self, ip: Any) -> None:
        super().attach(ip)
        sys.path.insert(0, os.environ["HOP_BENCH_ELASTIC"])
        for missing in ("lightgbm", "polars"):
            try:
                __import__(missing)
            except ImportError:
                stand = types.ModuleType(missing)
                stand.__getattr__ = lambda name: type(name, (), {})  # type: ignore[attr-defined]
                sys.modules[missing] = stand
        self._mend()
        from ElasticNotebook import ElasticNotebook as Magics

        self.magics = Magics(ip)
        ip.register_magics(self.magics)
        self.magics.SetMigrationSpeed("1000000000")
        self.ran = False
        ip.events.register("pre_run_cell", self._runs)

    @staticmethod
    def _mend() -> None:
        import elastic.core.io.migrate as module

        source, wrong = Path(module.__file__).read_text(), "new_set = (vs1, vs2)"
        if wrong not in source:
            raise RuntimeError(f"{module.__file__} isn't the ElasticNotebook that this mends")
        exec(compile(source.replace(wrong, "new_set = {vs1, vs2}"), module.__file__, "exec"), vars(module))

    def _runs(self, info: Any) -> None:
        self.ran = True

    def run(self, source: str) -> Any:
        self.ran = False
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self.magics.RecordEvent("", source)
        except Exception:
            if not self.ran:
                return super().run(source)
        self.tracking = self.magics.total_recordevent_time
        return None

    def checkpoint(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self.magics.Checkpoint(str(self.directory / "all.elastic"))

    def restore(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self.magics.LoadCheckpoint(str(self.directory / "all.elastic"))


class Kishu(Peer):
    """From the package index, in its own test mode (no notebook file to save): a commit after every cell."""

    name = "kishu"

    def begin(self, ip: Any) -> None:
        self.attach(ip)

    def attach(self, ip: Any) -> None:
        super().attach(ip)
        os.environ["ENV_KISHU_TEST_MODE"] = "1"
        os.environ["HOME"] = str(self.directory)
        from kishu import jupyterint
        from kishu.notebook_id import NotebookId
        from kishu.storage.path import KishuPath

        KishuPath.ROOT = str(self.directory)
        jupyterint.enclosing_platform = lambda: "jupyternb"
        jupyterint.KishuForJupyter._read_and_fill_notebook_state = lambda self, entry: None
        book = self.directory / "book.ipynb"
        if not book.exists():
            book.write_text('{"cells":[],"metadata":{},"nbformat":4,"nbformat_minor":4}')
        self.kishu = jupyterint.KishuForJupyter(NotebookId("bench", book, "kernel"), ip=ip)

    def run(self, source: str) -> Any:
        if not getattr(self, "hooked", False):
            self.hooked = True
            self.ip.events.register("pre_run_cell", self._timed(self.kishu.pre_run_cell))
            self.ip.events.register("post_run_cell", self._timed(self.kishu.post_run_cell))
        return super().run(source)

    def _timed(self, hook: Any) -> Any:
        def timed(argument: Any) -> None:
            started = time.perf_counter()
            try:
                hook(argument)
            finally:
                self.tracking += time.perf_counter() - started

        return timed

    def finish(self) -> None:
        head = self.kishu._kishu_branch.get_head() if hasattr(self.kishu._kishu_branch, "get_head") else None
        (self.directory / "head").write_text(getattr(head, "commit_id", "") or "")

    def restore(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self.kishu.checkout((self.directory / "head").read_text(), skip_notebook=True)


PEERS = {p.name: p for p in (Ours, OursPerCell, CloudPickle, CloudPickleOut, Dill, ElasticNotebook, Kishu)}
