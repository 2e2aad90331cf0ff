"""The kernel provisioner: starts ``hop-front`` for a kernel, and again after a kill.

jupyter_client sees a process as long as the kernel lives. This process stands for the front, which binds the five
sockets; the kernel itself is elsewhere. A killed front is replaced on the same ports: clients notice nothing. A dead
kernel is reported as dead: Jupyter restarts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any, Callable, TypeVar

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.multikernelmanager import MultiKernelManager
from jupyter_client.provisioning import KernelProvisionerBase
from traitlets import Bool, Dict, Enum, Integer, Unicode

from gresshopper_jupyter.programs import find_program

_VERSION = 2
_PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
_CONNECTION_FILE = "{connection_file}"
#: An absolute path for jupyter_client while it makes the command.
_STAND_IN = "/gresshopper/connection-file"

#: How long a front may take to bind its sockets, and to end a kernel, in seconds. A front first waits for the end of a
#: front that saves the notebook's kernel (`PARTS` in kernel/front/src/claim.rs).
_LAUNCH = 60.0
_END = 12.0

#: How long a kernel may take to be saved.
_SAVED = 45.0

#: Most time for another front to close a kernel whose closing front was lost.
_CLOSED = 15.0

#: How many times a front is followed by another within a minute.
_FOLLOWERS = 5

#: Time before a front follows one that didn't come up, in seconds. The kernel waits for a minute at least.
_PAUSE = 10.0

T = TypeVar("T")


#: Stands in a kernel's environment in place of the provisioner's own `durable`.
DURABLE = "GRESSHOPPER_DURABLE"

#: Names the notebook of a kernel in its environment, where no Jupyter server has started the kernel.
NOTEBOOK = "GRESSHOPPER_NOTEBOOK"

#: Stands in a kernel's environment in place of the provisioner's own `replicas`.
REPLICAS = "GRESSHOPPER_REPLICAS"
#: The same for `hot_standby`: 1 or 0.
HOT_STANDBY = "GRESSHOPPER_HOT_STANDBY"


class FrontError(RuntimeError):
    """The front could not be started. The text is for the user."""


class Front:
    """A kernel's front, and its successors."""

    def __init__(self, argv: list[str], start: dict[str, Any], env: dict[str, str]) -> None:
        start.setdefault("tenure", 0)
        self._argv, self._start, self._env = argv, start, env
        self._lock = threading.Lock()
        self._launched = threading.Event()
        self._over = threading.Event()
        self._reason = ""
        self._returncode: int | None = None
        self._wanted = True
        # The user is done with the kernel, and nothing of it is to be kept.
        self._closing = False
        self._saved = False
        self._was_up = False
        self._was_dismissed = False
        self._is_dead = False
        # A front records here which outputs pages may lack, and what was delivered; the next front reads the records.
        self._memory = {name: os.memfd_create(f"hop-front-{name}") for name in ("heirs", "delivered")}
        start.update({name: f"/proc/{os.getpid()}/fd/{fd}" for name, fd in self._memory.items()})
        self._process = self._spawn(resume=False)
        # A thread, not a task: clients without an event loop are to keep their kernel, too.
        threading.Thread(target=self._watch, name="hop-front-watch", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def kernel(self) -> str:
        """The kernel's id: the requested id, or the id of the notebook's saved kernel."""
        return str(self._start["kernel"])

    @property
    def beside(self) -> str | None:
        """The notebook's first kernel, if it ran elsewhere when this kernel began."""
        beside: str | None = self._start["beside"]
        return beside

    @property
    def tenure(self) -> int:
        """The highest tenure of the kernel so far. The next start goes on above it. A restart may remove every other
        record of the number."""
        return int(self._start["tenure"])

    @property
    def was_up(self) -> bool:
        """Whether the kernel ran at all."""
        return self._was_up

    @property
    def was_dismissed(self) -> bool:
        """Whether somebody asked for the kernel's end or restart. The kernel's death is no dismissal."""
        return self._was_dismissed

    def wait_launched(self) -> dict[str, int]:
        """The ports, as soon as all sockets are bound."""
        if not self._launched.wait(_LAUNCH):
            self.end()
            raise FrontError(f"hop-front didn't come up within {_LAUNCH:.0f} s")
        if self._returncode is not None:
            raise FrontError(self._reason or f"hop-front exited with status {self._returncode}")
        return {name: self._start["ports"][name] for name in _PORTS}

    @property
    def listens(self) -> bool:
        """Whether the front reads its owner's lines. A front that saves its kernel reads none."""
        return not self._saved and self._returncode is None and self._process.poll() is None

    @property
    def reason(self) -> str:
        """Why it is over, where it said."""
        return self._reason

    def poll(self) -> int | None:
        """None while the kernel lives."""
        return self._returncode

    def wait(self, timeout: float | None = None) -> int | None:
        self._over.wait(timeout)
        return self._returncode

    def send_signal(self, signum: int) -> None:
        with self._lock:
            if self._process.poll() is None:
                self._process.send_signal(signum)

    def release(self, close: bool = False, asked: bool = False) -> None:
        """The kernel is to go: its front is not to be followed by another. ``close``: it is not restarted. ``asked``: a
        client asked for it, even if the kernel is dead. Jupyter's restarter only clears away the dead."""
        self._wanted = False
        self._was_dismissed |= asked or (self._returncode is None and not self._saved)
        self._closing |= close and not self._saved

    def end(self, close: bool = False) -> None:
        """Ends the kernel and waits until it is over."""
        self.release(close)
        # A front that is there closes the kernel itself.
        is_left = close and self._is_dead and self._process.poll() is not None
        self.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGKILL)
            self._process.wait()
        self._over.wait(_CLOSED + 1)
        if is_left:
            self._forget()

    def hibernate(self) -> None:
        """Has the kernel saved, and waits until its front has ended. A kernel that no opening could find again ends."""
        # The front's end isn't the kernel's, however the server goes on.
        self._saved = True
        self.release()
        self._say("hibernate")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_SAVED)
        self._over.wait(1)

    def renamed(self, path: str) -> None:
        """The notebook has another path: the next opening looks for the kernel under the new path."""
        # The next front is started with the new path; the present front is told.
        self._start["notebook"] = {**self._start["notebook"], "path": path}
        self._start["launch"] = {**self._start["launch"], "name": os.path.basename(path)}
        self._say(f"notebook {json.dumps(path)}")

    def _say(self, line: str) -> None:
        """Writes a line to the front. A front that has ended needs none."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            pipe = self._process.stdin
            if pipe is not None:
                pipe.write(line + "\n")
                pipe.flush()

    def _spawn(self, resume: bool) -> subprocess.Popen[str]:
        start = {**self._start, "resume": resume}
        process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._env,
            text=True,
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(start) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # It tells why below.
        return process

    def _watch(self) -> None:
        followed: list[float] = []
        while True:
            dead, came_up = self._listen(self._process)
            code = self._process.wait()
            with self._lock:
                _close_pipes(self._process)
            followed = [t for t in followed if time.monotonic() - t < 60]
            # 0 and 1 are the front's own ends; other codes come from outside. A successor that never came up has ended
            # nothing: its home may have had no room, and the kernel lives.
            befallen = code not in (0, 1) or not came_up
            launched = self._launched.is_set()
            if dead or not (befallen and launched and self._wanted) or len(followed) >= _FOLLOWERS:
                break
            followed.append(time.monotonic())
            if not came_up:
                time.sleep(_PAUSE)
                if not self._wanted:
                    break
            self._start["epoch"] += 1
            with self._lock:
                self._process = self._spawn(resume=True)
        if befallen and launched and self._closing and not dead:
            self._close_in_its_place()
        self._finish(code if code else 0)

    def _close_in_its_place(self) -> None:
        """The front was lost during the close of the kernel: another front only finishes the close."""
        start = {**self._start, "epoch": self._start["epoch"] + 1, "resume": True, "close": True}
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                self._argv,
                input=json.dumps(start) + "\n",
                stdout=subprocess.DEVNULL,
                env=self._env,
                text=True,
                start_new_session=True,
                timeout=_CLOSED,
                check=False,
            )

    def _forget(self) -> None:
        """Removes the state of a dead kernel after its front's end. The front has kept the state for a restart. Nobody
        else comes back for a kernel without a notebook."""
        if self._start.get("notebook") is None and not self._saved:
            self._is_dead = False
            # Their descriptors are closed.
            for name in self._memory:
                self._start.pop(name, None)
            self._close_in_its_place()

    def _listen(self, process: subprocess.Popen[str]) -> tuple[bool, bool]:
        """What the front says, until it ends. Returns whether the kernel is dead, and whether the front came up."""
        assert process.stdout is not None
        dead = came_up = False
        for line in process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            event = said.get("event")
            if event == "launched":
                self._start["ports"] = {name: said[name] for name in _PORTS}
                self._start["kernel"] = said["kernel"]
                self._start["beside"] = said.get("beside")
                came_up = True
                self._launched.set()
            elif event == "tenure":
                self._start["tenure"] = max(self._start["tenure"], int(said["tenure"]))
            elif event == "up":
                self._was_up = True
            elif event == "failed":
                self._reason = said.get("reason", "")
            elif event == "dead":
                dead = self._is_dead = True
                self._reason = said.get("reason", "")
                # The front stays a little to answer what the kernel was asked; the kernel doesn't.
                self._returncode = 1
                self._over.set()
        return dead, came_up

    def _finish(self, code: int) -> None:
        for fd in self._memory.values():
            os.close(fd)
        if self._returncode is None:
            self._returncode = code
        self._launched.set()
        self._over.set()


def _close_pipes(process: subprocess.Popen[str]) -> None:
    """Close the pipes of a process that has ended. Python would close them itself, with a warning that some clients
    take for an error."""
    for pipe in (process.stdin, process.stdout):
        # The process never read this input: it is lost.
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()


class GresshopperProvisioner(KernelProvisionerBase):  # type: ignore[misc, unused-ignore]
    """Kernels on compute nodes, with GPUs for cells that ask for them."""

    local = Bool(False, config=True, help="Without Slurm, for development: on this host, no GPUs.")
    front_program = Unicode("", config=True, help="hop-front; empty: as installed.")
    need = Dict(config=True, help='What a cell needs that says nothing itself, as {"gpus": 1}.')
    mem_mib = Integer(0, config=True, help="Memory of the kernel in MiB; 0: the site's default.")
    cpus = Integer(0, config=True, help="Cores of the kernel; 0: the site's default.")
    account = Unicode("", config=True, help="The Slurm account that is charged; empty: the default.")
    durable = Enum(
        ["no", "after-reply", "before-reply"],
        default_value="after-reply",
        config=True,
        help="When the kernel's state is saved, by which it outlives its process and its node.",
    )
    replicas = Enum(
        [1, 3],
        default_value=None,
        allow_none=True,
        config=True,
        help="How many replicas the kernel has, on as many nodes; without it, as its pool says. "
        "With three it loses nothing with one of its nodes.",
    )
    hot_standby = Bool(
        None,
        allow_none=True,
        config=True,
        help="One of three replicas keeps the variables while another one runs the cells, and goes on at once: worth its "
        "memory where reading them takes long. Without it, as the kernel's pool says.",
    )
    interrupt = Enum(
        ["message", "signal"],
        default_value="message",
        config=True,
        help="How the kernel itself is interrupted: as its own kernelspec says. An ipykernel takes the message.",
    )
    pool = Unicode("", config=True, help="The pool whose GPUs are lent; empty: the default.")

    _front: Front | None = None
    _died_of = ""
    #: The kernel's id for `hop`, if it isn't Jupyter's.
    _kernel = ""
    #: The kernel that ran here last was restarted by its user. A kernel that died is started again with its variables.
    _fresh = False
    #: The notebook's path, where a server has started the kernel. A rename changes it.
    _path = ""
    #: The notebook's first kernel, if it ran elsewhere when this kernel began.
    _beside: str | None = None
    _incarnation = 0
    #: The highest tenure of the kernel so far, by the reports of its fronts.
    _tenure = 0
    _ports: dict[str, int] = {}

    @property
    def has_process(self) -> bool:
        return self._front is not None

    @property
    def pid(self) -> int | None:
        return self._front.pid if self._front else None

    @property
    def kernel(self) -> str:
        """The kernel's id for `hop`: the id of the notebook's saved kernel, or Jupyter's."""
        return self._kernel or self.kernel_id

    @property
    def hears_renames(self) -> bool:
        """Whether a front writes down each new path that it is told."""
        return self._front is not None and self._front.listens

    @property
    def died_of(self) -> str:
        """Why the kernel died, or did not start; empty while it lives."""
        return self._front.reason if self._front else self._died_of

    async def poll(self) -> int | None:
        return self._front.poll() if self._front else 0

    async def wait(self) -> int | None:
        if self._front is None:
            return 0
        return await _in_thread(self._front.wait)

    async def send_signal(self, signum: int) -> None:
        if self._front is None:
            return
        if signum == signal.SIGINT:
            self._front.send_signal(signum)
        elif signum in (signal.SIGTERM, signal.SIGKILL):
            # Some clients restart a kernel this way: the next call launches the kernel again, or cleans up.
            await self.kill(restart=True)

    async def kill(self, restart: bool = False) -> None:
        if self._front is not None:
            await _in_thread(partial(self._front.end, close=not restart))

    async def hibernate(self) -> None:
        """The server ends: a notebook's kernel is saved, and the notebook's next opening goes on with the kernel."""
        if self._front is not None:
            await _in_thread(self._front.hibernate)

    async def terminate(self, restart: bool = False) -> None:
        await self.kill(restart)

    async def shutdown_requested(self, restart: bool = False) -> None:
        if self._front is not None:
            self._front.release(close=not restart, asked=True)

    def renamed(self, old: str, new: str) -> None:
        """A notebook, or a folder, has another path. Paths of other notebooks change nothing."""
        # The old path may be the notebook's, or that of a folder above it.
        if f"{self._path}/".startswith(f"{old}/"):
            self._path = new + self._path[len(old) :]
            if self._front is not None:
                self._front.renamed(self._path)

    async def cleanup(self, restart: bool = False) -> None:
        if self._front is not None:
            await _in_thread(partial(self._front.end, close=not restart))
            self._died_of = self._front.reason
            self._tenure = self._front.tenure
            # A kernel that ran is restarted afresh, by its user. A saved kernel after a failed start keeps its state, and
            # so does a kernel that died: the restart is Jupyter's own.
            if self._front.was_up:
                self._fresh = self._front.was_dismissed
            self._front = None
        if not restart:
            self._ports = {}

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        extra = kwargs.pop("extra_arguments", [])
        # The replica chooses the connection file's path: the path's place in argv stays open.
        file, self.parent.connection_file = self.parent.connection_file, _STAND_IN
        try:
            argv = self.parent.format_kernel_cmd(extra_arguments=extra)
        finally:
            self.parent.connection_file = file
        argv = _own_command([a.replace(_STAND_IN, _CONNECTION_FILE) for a in argv])
        prepared: dict[str, Any] = await super().pre_launch(cmd=argv, **kwargs)
        return prepared

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        if sys.platform != "linux":
            raise FrontError("kernels of Gresshopper need a Jupyter server on Linux: connect to one by its address")
        env = {os.fsdecode(name): os.fsdecode(value) for name, value in (kwargs.get("env") or os.environ).items()}
        # Some clients restart a kernel without ending the old kernel: the ports are needed.
        await self.cleanup(restart=True)
        self._incarnation += 1
        key = self.parent.session.key.decode()
        start = {
            "version": _VERSION,
            "kernel": self.kernel,
            "incarnation": self._incarnation,
            "fresh": self._fresh,
            "tenure": self._tenure,
            "notebook": self._notebook(env),
            "beside": self._beside,
            "epoch": 1,
            "ports": self._ports,
            "key": key,
            "launch": self._launch(cmd, kwargs.get("cwd"), env),
            "mem_mib": self.mem_mib or None,
            "cpus": self.cpus or None,
            "replicas": _count(env.get(REPLICAS)) or self.replicas,
            "hot_standby": _flag(env.get(HOT_STANDBY), self.hot_standby),
        }
        front = await _in_thread(partial(Front, [find_program("hop-front", self.front_program)], start, env))
        self._front = front
        if self._path != (start["notebook"] or {}).get("path", ""):
            front.renamed(self._path)  # since its order was written
        self._ports = await _in_thread(front.wait_launched)
        self._kernel, self._beside = front.kernel, front.beside
        info = {"transport": "tcp", "ip": "127.0.0.1", **self._ports}
        self.connection_info = {**info, "signature_scheme": "hmac-sha256", "key": key.encode()}
        return self.connection_info

    def _launch(self, cmd: list[str], cwd: str | os.PathLike[str] | None, env: dict[str, str]) -> dict[str, Any]:
        launch: dict[str, Any] = {
            # Clients may give what `subprocess.Popen` takes: paths that are no texts, and a relative folder.
            "argv": [os.fsdecode(argument) for argument in cmd],
            "cwd": os.path.join(os.getcwd(), os.fsdecode(cwd)) if cwd else os.getcwd(),
            "name": os.path.basename(self._path or env.get("JPY_SESSION_NAME", "")),
            "local": self.local,
            "durable": env.get(DURABLE, self.durable),
        }
        if self.interrupt == "signal":
            launch["interrupt"] = "signal"
        if self.need:
            launch["default_need"] = dict(self.need)
        if self.account:
            launch["account"] = self.account
        if self.pool:
            launch["pool"] = self.pool
        return launch

    def _notebook(self, env: dict[str, str]) -> dict[str, str] | None:
        """The kernel's notebook. None for a program's kernels: nobody comes back for them."""
        # The environment of a restart may still have the path of the first start.
        path = self._path or env.get(NOTEBOOK, "")
        if not path and isinstance(self.parent.parent, MultiKernelManager):
            # A console has no file, and in each page the first one is called "Console 1". The file of a notebook on a
            # separate drive (jupyter-collaboration's, for instance) may be elsewhere. A path below some server's root
            # is no path: a notebook below another root may have the same.
            named = env.get("JPY_SESSION_NAME", "")
            is_file = named.endswith(".ipynb") or os.path.isfile(named)
            path = named if is_file and os.path.isabs(named) else ""
        self._path = path
        return {"path": path, "kernelspec": self.parent.kernel_name} if path else None

    def get_shutdown_wait_time(self, recommended: float = 5.0) -> float:
        # The kernel itself gets five seconds, then its node's supervisor and the front end.
        return max(recommended, 8.0)


def _count(text: str | None) -> int | None:
    """A number of replicas from the environment. hop-front says which numbers a kernel can have."""
    return int(text) if text and text.isdecimal() else None


def _flag(text: str | None, default: bool | None) -> bool | None:
    return {"0": False, "1": True}.get(text or "", default)


def _own_command(argv: list[str]) -> list[str]:
    """The kernel's command, without the launcher for clients that know no provisioners."""
    if os.path.basename(argv[0]) == "hop-front" and argv[1:2] == ["kernel"] and "--" in argv:
        return argv[argv.index("--") + 1 :]
    return argv


async def _in_thread(work: Callable[[], T]) -> T:
    """Runs the call on a separate thread: the loop's pool doesn't survive some clients' forks."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result, error = work(), None
        except Exception as failed:
            result, error = None, failed
        # A closed loop has no waiter left.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="gresshopper", daemon=True).start()
    return await done
