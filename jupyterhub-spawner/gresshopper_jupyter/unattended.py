"""Runs a whole notebook with nbclient, for ``hop run``, which plans and tells people (``hop/src/run``).

Standard input is an end of a socket pair; both sides write a JSON object a line. ``hop`` says ``open`` (the notebook
and its output), ``go``, ``cell`` (how to run the cell in question), ``stop`` and ``end``. This side says ``opened``,
``warning``, ``kernel``, ``cell``, ``waiting``, ``running``, ``cell-over``, ``written``, ``over`` and ``refused``.

After a failure the kernel may be kept for a while, with its variables. A record names the place, and the next ``hop run
--resume`` connects there and goes on. The process ends after its kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import json
import keyword
import math
import os
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Callable

import nbformat
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

from . import files

VERSION = 1
#: `hop kernelspec install`'s default name for a kernel.
_DEFAULT = "gresshopper-python3"
_SKIP = "skip-execution"
_SKIP_AGAIN = "skip-on-resume"
#: How long a kernel may take to heed an interrupt before it is ended, in seconds.
_HEED = 10.0
#: How long another run on the same output may take to end when it was told to.
_HAND_OVER = 20.0
#: The most bytes of a notebook and of a file with parameters.
_NOTEBOOK, _PARAMETERS = 1 << 30, 1 << 24


class Refused(Exception):
    """It can't be done as asked. The text is for the user."""


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


# The notebook.


def literal(value: Any) -> str:
    """The value as Python's source."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal, value)) + "]"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    # Dates, of YAML.
    return repr(str(value))


def parse_word(text: str) -> Any:
    """A parameter of a command line, as papermill's ``-p`` takes it."""
    constants = {"True": True, "False": False, "None": None, "null": None}
    if text in constants:
        return constants[text]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def read_parameters(order: dict[str, Any]) -> dict[str, Any]:
    """Files first, then single ones; the later wins."""
    found: dict[str, Any] = {}
    for path in order.get("parameter_files", []):
        found.update(_read_parameter_file(path))
    found.update({name: parse_word(text) for name, text in order.get("parameters", [])})
    found.update(order.get("raw_parameters", []))
    for name in found:
        if not (isinstance(name, str) and name.isidentifier()) or keyword.iskeyword(name):
            raise Refused(f"{name!r} can't be the name of a parameter: it must be one of Python's")
    return found


def _read_parameter_file(path: str) -> dict[str, Any]:
    try:
        text = files.read(path, _PARAMETERS)
    except OSError as error:
        raise Refused(f"can't read the parameters in {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise Refused(f"can't read the parameters in {path}: it is not UTF-8 text") from None
    try:
        parse = json.loads if path.endswith(".json") else importlib.import_module("yaml").safe_load
        found = parse(text)
    except ImportError:
        raise Refused(
            f"reading {path} needs PyYAML, which {sys.executable} lacks: install it, or write the file as JSON"
        ) from None
    except Exception as error:
        raise Refused(f"the parameters in {path} can't be read: {error}") from None
    if not isinstance(found, dict):
        raise Refused(f"{path} must hold names with their values")
    return found


def _part(metadata: Any, name: str) -> dict[str, Any]:
    """An object within metadata. Other tools may have written anything there."""
    found = metadata.get(name) if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def _tags(cell: Any) -> list[str]:
    tags = cell.metadata.get("tags", [])
    return tags if isinstance(tags, list) else []


def _runs(cell: Any) -> bool:
    return bool(cell.cell_type == "code" and cell.source.strip() and _SKIP not in _tags(cell))


def _tagged(nb: Any, tag: str) -> int | None:
    return next((i for i, cell in enumerate(nb.cells) if tag in _tags(cell)), None)


def inject(nb: Any, parameters: dict[str, Any]) -> list[str]:
    """Puts the parameters where papermill does. Returns what is strange about them."""
    source = "# Parameters\n" + "".join(f"{name} = {literal(value)}\n" for name, value in parameters.items())
    cell = nbformat.v4.new_code_cell(source=source.rstrip("\n"), metadata={"tags": ["injected-parameters"]})
    defaults, injected = _tagged(nb, "parameters"), _tagged(nb, "injected-parameters")
    if injected is not None:
        cell["id"] = nb.cells[injected].get("id", cell["id"])
        nb.cells[injected] = cell
    else:
        nb.cells.insert(0 if defaults is None else defaults + 1, cell)
    if defaults is None:
        return ["the notebook has no cell tagged `parameters`: the parameters are set at its top"]
    known = nb.cells[defaults].source
    strange = [n for n in parameters if not re.search(rf"^\s*{re.escape(n)}\s*[:=]", known, re.M)]
    return [f"the cell tagged `parameters` has no {name}" for name in strange]


def _whole(nb: Any) -> Any:
    """The notebook with all required fields of each cell. nbformat only warns of missing fields.

    Raises ValueError where a cell's kind or text is missing: nobody could say what is to be run.
    """
    if not isinstance(nb.get("cells"), list):
        raise ValueError("it has no list of cells")
    nb["metadata"] = nb.metadata if isinstance(nb.get("metadata"), dict) else nbformat.NotebookNode()
    for number, cell in enumerate(nb.cells, 1):
        if not (isinstance(cell, dict) and isinstance(cell.get("cell_type"), str)):
            raise ValueError(f"its cell {number} has no kind (cell_type)")
        if not isinstance(cell.get("source"), str):
            raise ValueError(f"its cell {number} has no text (source)")
        metadata = cell.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else nbformat.NotebookNode()
        if not isinstance(metadata.get("tags", []), list):
            # nbclient looks for tags without checking whether they exist.
            del metadata["tags"]
        cell["metadata"] = metadata
        if cell["cell_type"] == "code":
            cell["outputs"] = cell["outputs"] if isinstance(cell.get("outputs"), list) else []
            cell.setdefault("execution_count", None)
    return nb


def _read(path: str) -> Any:
    try:
        nb = nbformat.reads(files.read(path, _NOTEBOOK), as_version=4)
        return _whole(nbformat.v4.upgrade(nb))
    except OSError as error:
        raise Refused(f"can't read {path}: {error.strerror or error}") from None
    except Exception as error:
        first = str(error).strip().splitlines()
        raise Refused(f"{path} is no notebook: {first[0] if first else type(error).__name__}") from None


def _read_last(out: Path) -> Any:
    """The last run's output. None: there is none."""
    try:
        stream = files.is_stream(out)
    except OSError as error:
        raise Refused(f"can't read {out}: {error.strerror or error}") from None
    if stream:
        raise Refused(f"--resume goes on from a file, and {out} is none")
    return _read(str(out)) if out.exists() else None


class Book:
    """The running notebook, and its output file."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.out = Path(order["out"])
        self.nb = _read(order["notebook"])
        parameters = read_parameters(order)
        before = _read_last(self.out) if order.get("resume") else None
        if before is not None and not parameters:
            parameters = dict(_part(_part(before.metadata, "papermill"), "parameters"))
        self.parameters = parameters
        self.prior = [_prior(cell) for cell in self.nb.cells]
        self.warnings: list[str] = []
        if parameters:
            was = len(self.nb.cells)
            self.warnings = inject(self.nb, parameters)
            if len(self.nb.cells) > was:
                at = _tagged(self.nb, "injected-parameters")
                self.prior.insert(at or 0, None)
        self._forget()
        #: How many cells from the top are as good as run.
        self.good = self._take_over(before) if before is not None else 0
        self.nb.metadata["papermill"] = {
            "default_parameters": {},
            "environment_variables": {},
            "parameters": parameters,
            "input_path": order["notebook"],
            "output_path": order["out"],
            "version": "gresshopper",
            "start_time": _now(),
            "end_time": None,
            "duration": None,
            "exception": None,
        }
        self._began = time.monotonic()

    def _forget(self) -> None:
        for cell in self.nb.cells:
            if cell.cell_type == "code":
                cell.metadata["papermill"] = _status("pending")
                cell.metadata.pop("execution", None)
                if _runs(cell):
                    cell.outputs, cell.execution_count = [], None

    def _take_over(self, before: Any) -> int:
        """The outputs of the cells from the top that ran well before and are unchanged."""
        for i, cell in enumerate(self.nb.cells):
            old = before.cells[i] if i < len(before.cells) else None
            if old is None or (old.cell_type, old.source) != (cell.cell_type, cell.source):
                return i
            if not _runs(cell):
                continue
            if _part(old.metadata, "papermill").get("status") != "completed":
                return i
            cell.outputs, cell.execution_count = old.outputs, old.execution_count
            for key in ("papermill", "execution", "gresshopper_run"):
                if key in old.metadata:
                    cell.metadata[key] = old.metadata[key]
        return len(self.nb.cells)

    def finish(self, failed: bool) -> None:
        self.nb.metadata["papermill"].update(
            end_time=_now(), duration=time.monotonic() - self._began, exception=failed or None
        )

    def save(self, last: bool = False) -> str | None:
        """Replaces the output file. A pipe or a device in its place gets the last notebook alone. Returns the reason
        of a failure."""
        try:
            text = nbformat.writes(self.nb) + "\n"
            if not files.is_stream(self.out):
                files.replace(self.out, text)
            elif last:
                files.pour(self.out, text)
        except (OSError, ValueError) as error:
            return f"can't write {self.out}: {getattr(error, 'strerror', None) or error}"
        return None


def _status(status: str) -> dict[str, Any]:
    return {"exception": None, "start_time": None, "end_time": None, "duration": None, "status": status}


def _prior(cell: Any) -> float | None:
    """How long the cell ran when the notebook was run last, where it says: papermill's words, or JupyterLab's."""
    papermill = _part(cell.metadata, "papermill")
    took = papermill.get("duration")
    if isinstance(took, (int, float)) and math.isfinite(took) and papermill.get("status") == "completed":
        return max(float(took), 0.0)
    timing = _part(cell.metadata, "execution")
    try:
        begin, end = (
            datetime.fromisoformat(timing[key].replace("Z", "+00:00"))
            for key in ("iopub.execute_input", "shell.execute_reply")
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    return max((end - begin).total_seconds(), 0.0)


# The kernel.


def choose_kernel(nb: Any, wanted: str | None) -> tuple[str, dict[str, Any] | None, list[str]]:
    """The kernelspec's name, the configuration of our provisioner (if the kernel is ours), and a message about
    it."""
    manager = KernelSpecManager()
    own = _part(nb.metadata, "kernelspec").get("name")
    own = own if isinstance(own, str) else None
    name = wanted or own or _DEFAULT
    ours = _ours(manager, name)
    if ours is not None or wanted:
        if ours is None and name not in manager.find_kernel_specs():
            raise Refused(f"there is no kernel {name!r}: `jupyter kernelspec list` shows those that there are")
        return name, ours, []
    language = _part(nb.metadata, "kernelspec").get("language", "python")
    for other in sorted(manager.find_kernel_specs(), key=lambda n: (n != _DEFAULT, n)):
        config = _ours(manager, other)
        if config is not None and manager.get_kernel_spec(other).language == language:
            said = f"the notebook's kernel {name} doesn't run through Gresshopper: {other} is used (--kernel {name}: as it is)"
            return other, config, [said] if own else []
    raise Refused(
        "no kernel here runs through Gresshopper: `hop kernelspec install` makes one, and --kernel names another"
    )


def _ours(manager: Any, name: str) -> dict[str, Any] | None:
    try:
        spec = manager.get_kernel_spec(name)
    except (NoSuchKernel, ValueError):
        return None
    provisioner = spec.metadata.get("kernel_provisioner", {})
    return dict(provisioner.get("config", {})) if provisioner.get("provisioner_name") == "gresshopper" else None


class Client(NotebookClient):  # type: ignore[misc, unused-ignore]
    """nbclient's client with the wish of ``hop`` on each request, and with reports when the cell waits and runs."""

    #: ``metadata.gresshopper`` of the next request.
    said: dict[str, Any] = {}
    nb: Any
    #: Kept, because nbclient forgets its manager when the kernel doesn't come up.
    _provisioner: Any = None
    told: Callable[[str, dict[str, Any]], None]

    async def connect(self, env: dict[str, str]) -> None:
        self.create_kernel_manager()
        # A run goes on after a lost kernel by its own record.
        await self.async_start_new_kernel(env={"GRESSHOPPER_DURABLE": "no", **env})
        self._provisioner = self.km.provisioner
        await self.async_start_new_kernel_client()
        self.kc.execute = self._execute
        info = await self.async_wait_for_reply(self.kc.kernel_info())
        if info and "language_info" in info["content"]:
            self.nb.metadata["language_info"] = info["content"]["language_info"]

    def turn_to(self, nb: Any) -> None:
        """Goes on with another notebook on the same kernel."""
        nb.metadata["language_info"] = self.nb.metadata.get("language_info", {})
        self.nb = nb
        self.reset_execution_trackers()

    def _execute(self, code: str, store_history: bool = True, stop_on_error: bool = True) -> str:
        content = {
            "code": code,
            "silent": False,
            "store_history": store_history,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": stop_on_error,
        }
        message = self.kc.session.msg("execute_request", content, metadata={"gresshopper": self.said})
        self.kc.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "execute_input":
            self.told("running", {})
        elif msg["msg_type"] == "status":
            notice = _part(msg.get("metadata"), "gresshopper")
            if notice.get("state") in ("queued", "parked", "retry"):
                wanted = ("position", "reason", "eta_s")
                self.told("waiting", {key: notice[key] for key in wanted if key in notice})
        return super().process_message(msg, cell, cell_index)

    def died_of(self) -> str:
        """Why the kernel died, if its provisioner knows."""
        return str(getattr(self._provisioner, "died_of", "") or "")


# The conversation.


class Link:
    """The other end: a ``hop run`` that may go at any time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._orders: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.stopped = asyncio.Event()
        #: It went without having said so.
        self.gone = False
        self._pump = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while line := await self._reader.readline():
                order = json.loads(line)
                if order.get("op") == "stop":
                    self.stopped.set()
                else:
                    self._orders.put_nowait(order)
        self.gone = not self.stopped.is_set()
        self.stopped.set()
        self._orders.put_nowait(None)

    async def order(self) -> dict[str, Any] | None:
        return await self._orders.get()

    def say(self, event: str, **more: Any) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps({"event": event, **more}).encode() + b"\n")

    async def close(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.drain()
        self._writer.close()
        self._pump.cancel()


class Outcome:
    """How a run ended."""

    def __init__(self, status: str, reason: str = "") -> None:
        self.status, self.reason = status, reason


class Runner:
    """An output notebook, its kernel, and the successive runs."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.book: Book | None = None
        self.order: dict[str, Any] = {}
        self._lock: Any = None
        self._heard: dict[str, Any] = {}
        self._timed_out = False
        self._ending: asyncio.Future[None] | None = None
        #: Why and until when the kernel is kept.
        self._kept: tuple[Outcome, float] | None = None

    async def serve(self, link: Link) -> None:
        """Serves this link, and later links."""
        following: Link | None = link
        while following is not None:
            current, following = following, None
            try:
                outcome = await self._converse(current)
            except Refused as refused:
                current.say("refused", reason=str(refused))
                outcome = None
            if outcome is not None:
                seconds = float(self.order.get("keep_s", 0)) if self._worth_keeping(outcome, current) else 0.0
                self._kept = (outcome, time.time() + seconds) if seconds > 0 else None
            if self._kept is not None and self.client is not None:
                room = tempfile.mkdtemp(prefix="hop-run.")
                following = await self._keep(current, *self._kept, room)
                shutil.rmtree(room, ignore_errors=True)
            elif outcome is not None:
                await self._end_kernel()
                self._say_over(current, outcome, None)
            await current.close()
        await self._end_kernel()

    async def _converse(self, link: Link) -> Outcome | None:
        while (order := await link.order()) is not None:
            if order["op"] == "open":
                self._open(link, order)
            elif order["op"] == "go":
                return await self._run(link)
            elif order["op"] == "end":
                self._kept = None
                return None
        return None

    def _worth_keeping(self, outcome: Outcome, link: Link) -> bool:
        failed = outcome.status in ("error", "timeout") or (outcome.status == "interrupted" and link.gone)
        return failed and self.client is not None

    def _say_over(self, link: Link, outcome: Outcome, kept_until: float | None) -> None:
        kernel = self.client.km.kernel_id if self.client and kept_until else None
        link.say("over", status=outcome.status, reason=outcome.reason, kept_until=kept_until, kernel=kernel)

    def _open(self, link: Link, order: dict[str, Any]) -> None:
        if order.get("version") != VERSION:
            raise Refused("hop and the package gresshopper-jupyter are of different releases: install the same")
        book = Book(order)
        kernel, ours, said = choose_kernel(book.nb, order.get("kernel"))
        living = self.client is not None
        self.book, self.order = book, {**order, "kernel": kernel}
        cells = [
            {
                "index": i,
                "source": cell.source,
                "need": _part(cell.metadata, "gresshopper").get("need"),
                "seconds": book.prior[i],
                "good": i < book.good,
                "again": i < book.good and not living and _SKIP_AGAIN not in _tags(cell),
            }
            for i, cell in enumerate(book.nb.cells)
            if _runs(cell)
        ]
        link.say(
            "opened",
            kernel=kernel,
            ours=ours is not None,
            local=bool((ours or {}).get("local")),
            pool=(ours or {}).get("pool") or None,
            need=(ours or {}).get("need") or {},
            parameters=json.dumps(book.parameters, sort_keys=True, default=str),
            cells=cells,
            living=living,
            warnings=[*book.warnings, *said],
        )

    async def _run(self, link: Link) -> Outcome:
        assert self.book is not None
        await self._take_lock()
        book = self.book
        if problem := book.save():
            raise Refused(problem)
        outcome = await self._kernel(link) or await self._cells(link)
        book.finish(outcome.status != "ok")
        if problem := book.save(last=True):
            link.say("warning", text=problem)
            outcome = Outcome("unwritten", problem) if outcome.status == "ok" else outcome
        # Ending the kernel takes a moment more, which is nobody's deadline.
        link.say("written")
        return outcome

    async def _take_lock(self) -> None:
        if self._lock is not None:
            return
        path = Path(self.order["record"]).with_suffix(".lock")
        lock = path.open("a+")
        until = time.monotonic() + _HAND_OVER
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                lock.seek(0)
                if not self.order.get("patient") or time.monotonic() > until:
                    raise Refused(
                        f"{self.order['out']} is being written by another hop run ({lock.read()})"
                    ) from None
                await asyncio.sleep(0.1)
        lock.truncate(0)
        lock.write(f"pid {os.getpid()} on {socket.gethostname()}")
        lock.flush()
        self._lock = lock

    async def _kernel(self, link: Link) -> Outcome | None:
        """A kernel for the book. None: it is there."""
        assert self.book is not None
        if self.client is not None:
            self.client.turn_to(self.book.nb)
            self._listen_to(self.client, link)
            return None
        client = Client(
            self.book.nb,
            kernel_name=self.order["kernel"],
            timeout=None,
            startup_timeout=int(self.order["startup_timeout_s"]),
            allow_errors=bool(self.order.get("allow_errors")),
            record_timing=True,
            resources={"metadata": {"path": self.order["cwd"]}},
        )
        self._listen_to(client, link)
        env = {**os.environ, "JPY_SESSION_NAME": self.order["notebook"]}
        self.client = client
        try:
            done = await self._unless_stopped(link, client.connect(env))
        except Exception as error:
            reason = client.died_of() or str(error) or type(error).__name__
            await self._end_kernel()
            return Outcome("not-started", reason)
        if not done:
            await self._end_kernel()
            return Outcome("interrupted")
        link.say("kernel", id=client.km.kernel_id)
        return None

    def _listen_to(self, client: Client, link: Link) -> None:
        def told(what: str, more: dict[str, Any]) -> None:
            if what == "running":
                self._heard.setdefault("running", time.monotonic())
                limit = self._heard.get("timeout_s")
                if limit:
                    timer = asyncio.get_running_loop().call_later(limit, self._time_out)
                    self._heard["timer"] = timer
            link.say(what, index=self._heard.get("index"), **more)

        def executed(cell: Any, cell_index: int, execute_reply: dict[str, Any]) -> None:
            self._heard["lease"] = _part(execute_reply.get("metadata"), "gresshopper") or None

        client.told = told
        client.on_cell_executed = executed

    async def _unless_stopped(self, link: Link, work: Awaitable[Any]) -> bool:
        """Awaits the work, unless the link says stop first."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(link.stopped.wait())
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            task.result()
            return True
        await self._interrupt()
        await asyncio.wait([task], timeout=_HEED)
        task.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await task
        return False

    async def _interrupt(self) -> None:
        with contextlib.suppress(Exception):
            assert self.client is not None
            await asyncio.wait_for(_awaited(self.client.km.interrupt_kernel()), _HEED)

    def _time_out(self) -> None:
        self._timed_out = True
        self._ending = asyncio.ensure_future(self._interrupt_or_end())

    async def _interrupt_or_end(self) -> None:
        index = self._heard.get("index")
        await self._interrupt()
        await asyncio.sleep(_HEED)
        if self._heard.get("index") == index and "over" not in self._heard and self.client is not None:
            await _awaited(self.client.km.shutdown_kernel(now=True))

    async def _cells(self, link: Link) -> Outcome:
        assert self.book is not None
        assert self.client is not None
        for index, cell in enumerate(self.book.nb.cells):
            if not _runs(cell):
                continue
            link.say("cell", index=index)
            order = await link.order()
            if order is None or link.stopped.is_set():
                return Outcome("interrupted")
            if order["run"] is None:
                continue
            outcome = await self._cell(link, index, cell, order)
            if outcome is not None:
                return outcome
        self.client.set_widgets_metadata()
        return Outcome("ok")

    async def _cell(self, link: Link, index: int, cell: Any, order: dict[str, Any]) -> Outcome | None:
        """Runs one cell. None: on to the next."""
        assert self.book is not None
        assert self.client is not None
        self._timed_out = False
        self._heard = {"index": index, "timeout_s": order.get("timeout_s")}
        said: dict[str, Any] = {"run": order["run"]}
        if need := _part(cell.metadata, "gresshopper").get("need"):
            said["need"] = need
        self.client.said = said
        began, at = time.monotonic(), _now()
        cell.metadata["papermill"] = {**_status("running"), "start_time": at}
        outcome: Outcome | None = None
        try:
            if not await self._unless_stopped(link, self.client.async_execute_cell(cell, index)):
                outcome = Outcome("interrupted")
        except CellExecutionError as error:
            status = "timeout" if self._timed_out else "interrupted" if link.stopped.is_set() else "error"
            outcome = Outcome(status, f"{error.ename}: {error.evalue}")
        except DeadKernelError:
            outcome = Outcome("timeout" if self._timed_out else "died", self.client.died_of())
        except Exception as error:
            outcome = Outcome("error", f"{type(error).__name__}: {error}")
        self._heard["over"] = True
        if timer := self._heard.get("timer"):
            timer.cancel()
        ended = time.monotonic()
        started = self._heard.get("running", ended)
        status = outcome.status if outcome else "ok"
        lease = self._heard.get("lease") or None
        cell.metadata["papermill"] = {
            "exception": outcome is not None,
            "start_time": at,
            "end_time": _now(),
            "duration": ended - began,
            "status": "failed" if outcome else "completed",
        }
        if lease:
            cell.metadata["gresshopper_run"] = lease
        link.say(
            "cell-over",
            index=index,
            status=status,
            reason=outcome.reason if outcome else "",
            seconds=ended - started,
            waited=started - began,
            lease=lease,
        )
        if problem := self.book.save():
            link.say("warning", text=problem)
        return outcome

    async def _end_kernel(self) -> None:
        client, self.client = self.client, None
        if client is None or client.km is None:
            return
        with contextlib.suppress(Exception):
            await client._async_cleanup_kernel()

    async def _keep(self, link: Link, outcome: Outcome, until: float, room: str) -> Link | None:
        """Waits with the kernel for the run that goes on. None means that no run came, or the kernel ended."""
        came: asyncio.Queue[Link] = asyncio.Queue()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", peer)[1] == os.getuid():
                came.put_nowait(Link(reader, writer))
            else:
                writer.close()

        path = os.path.join(room, "run")
        server = await asyncio.start_unix_server(connected, path, limit=1 << 26)
        record = Path(self.order["record"])
        assert self.client is not None
        about = {
            "version": VERSION,
            "host": socket.gethostname(),
            "socket": path,
            "kernel": self.client.km.kernel_id,
            "until": until,
            "out": self.order["out"],
        }
        new = record.with_suffix(".new")
        new.write_text(json.dumps(about) + "\n")
        new.replace(record)
        self._say_over(link, outcome, until)
        try:
            while time.time() < until and await _awaited(self.client.km.is_alive()):
                with contextlib.suppress(asyncio.TimeoutError):
                    return await asyncio.wait_for(came.get(), 2)
            return None
        finally:
            server.close()
            with contextlib.suppress(OSError):
                record.unlink()


async def _awaited(work: Any) -> Any:
    return await work if asyncio.iscoroutine(work) or isinstance(work, asyncio.Future) else work


async def _main() -> None:
    loop = asyncio.get_running_loop()
    runner = Runner()
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=os.dup(0)), limit=1 << 26)
    work = asyncio.ensure_future(runner.serve(Link(reader, writer)))
    loop.add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        await runner._end_kernel()


def main() -> None:
    # Not of the terminal's group: hop gets ^C, and says what to do.
    with contextlib.suppress(OSError):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(_main())


if __name__ == "__main__":
    main()
