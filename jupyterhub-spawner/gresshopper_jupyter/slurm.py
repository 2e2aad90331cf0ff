"""The spawner's requests to Slurm: submit as a user, look at all jobs at once, cancel.

Slurm's own commands do the work, without a shell, as the job's user. The output formats are set explicitly, to mean the
same in every Slurm release.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import os
import pwd
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .server_job import ENDED, without_slurms_own

COMMAND_TIMEOUT_S = 30.0
#: Most bytes that a command run as a user may write, on standard output and standard error: the user may have it write
#: anything.
OUT_MOST, ERR_MOST = 2 << 20, 64 << 10
#: How long the host's user database may take to answer: it may lie far away, as with LDAP.
USERS_S = 5.0
#: How long a server may take to accept a connection.
ANSWER_S = 5.0
#: The job's owner may write any comment: no more of it is asked for than the length of ours.
_FIELDS = f"%i|%T|%r|%S|%N|%{len(ENDED) + 1}k"

PENDING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"})


class SlurmError(Exception):
    """A failed Slurm command; the text names the command, with its output."""


@dataclass(frozen=True)
class Job:
    """A job as squeue shows it."""

    id: str
    state: str
    reason: str
    start: str
    node: str
    #: The server there has ended, and its launcher holds the port until the hub has noticed.
    server_ended: bool = False

    @property
    def pending(self) -> bool:
        return self.state in PENDING

    @property
    def alive(self) -> bool:
        return (self.pending or self.state in RUNNING) and not self.server_ended


def parse_jobs(text: str, mark: str) -> dict[str, Job]:
    """The jobs in squeue's output, by id. A foreign comment means nothing: if a line of it looks like another job's,
    the line lacks this question's mark."""
    jobs = {}
    for line in text.splitlines():
        fields = line.split("|", 6)
        if len(fields) != 7 or fields[0] != mark:
            continue
        job_id, state, reason, start, node, comment = fields[1:]
        jobs[job_id] = Job(job_id, state, reason, start, node, comment.strip() == ENDED)
    return jobs


async def _jobs(*which: str, **how: Any) -> dict[str, Job]:
    """The jobs from squeue with these options."""
    mark = secrets.token_hex(8)
    return parse_jobs(await run(["squeue", "-h", *which, "-t", "all", "-o", f"{mark}|{_FIELDS}"], **how), mark)


class _Command(asyncio.SubprocessProtocol):
    """A running command, with its output up to a limit for each pipe. A command that writes more, or takes longer than
    `patience_s`, is given up, even if its caller has stopped waiting.
    """

    def __init__(self, stdin: bytes, patience_s: float, most: tuple[float, float]) -> None:
        self.out, self.err = bytearray(), bytearray()
        self._stdin, self._patience_s, self._most = stdin, patience_s, most
        self._loop = asyncio.get_running_loop()
        #: Why it was given up, or None: it has ended by itself.
        self.over: asyncio.Future[str | None] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        late = f"did not answer within {self._patience_s:.0f} s"
        self._timer = self._loop.call_later(self._patience_s, self._give_up, late)
        pipe = transport.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport)
        pipe.write(self._stdin)
        pipe.write_eof()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        written, most = (self.out, self._most[0]) if fd == 1 else (self.err, self._most[1])
        written += data
        if len(written) > most:
            written.clear()
            self._give_up(f"wrote more than {int(most) >> 10} KiB")

    def connection_lost(self, exc: Exception | None) -> None:
        """The command has ended, and nobody holds its pipes."""
        self._timer.cancel()
        self._transport.close()
        self._settle(None)

    def _give_up(self, why: str) -> None:
        # sudo may be root's by now, and its child holds our pipes after sudo's death: this code waits for neither. A
        # number is the group's own while its leader hasn't been waited for.
        if self._transport.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)
        for fd in range(3):
            pipe = self._transport.get_pipe_transport(fd)
            if isinstance(pipe, asyncio.WriteTransport) and pipe.get_write_buffer_size():
                pipe.abort()
            elif pipe is not None:
                pipe.close()
        self._settle(why)

    def _settle(self, why: str | None) -> None:
        if not self.over.done():
            self.over.set_result(why)


Found = TypeVar("Found")
#: Questions to the user database that are not answered yet: those that hang take no further thread.
_asked: dict[tuple[asyncio.AbstractEventLoop, Callable[[str], Any], str], asyncio.Future[Any]] = {}


async def of_users(ask: Callable[[str], Found], user: str) -> Found:
    """What the host's user database says of a user. A thread asks: a database that hangs would hold up all of the hub.

    # Errors
    `SlurmError` without an answer in time, and those of `ask`.
    """
    loop = asyncio.get_running_loop()
    key = loop, ask, user
    if key not in _asked:
        answer = _asked[key] = loop.create_future()
        threading.Thread(target=_look_up, args=(*key, answer), daemon=True).start()
    try:
        found: Found = await asyncio.wait_for(asyncio.shield(_asked[key]), USERS_S)
    except asyncio.TimeoutError:
        raise SlurmError(f"the hub's user database does not answer when asked for {user}") from None
    return found


def _look_up(
    loop: asyncio.AbstractEventLoop, ask: Callable[[str], Any], user: str, answer: asyncio.Future[Any]
) -> None:
    def settle() -> None:
        del _asked[loop, ask, user]
        if error is None:
            answer.set_result(found)
        else:
            answer.set_exception(error)
            answer.exception()  # nobody may be waiting any more

    found: Any = None
    error: Exception | None = None
    try:
        found = ask(user)
    except Exception as e:  # the asker's
        error = e
    with contextlib.suppress(RuntimeError):  # the loop is closed by now
        loop.call_soon_threadsafe(settle)


def _account(user: str) -> tuple[pwd.struct_passwd, list[int]]:
    """A user, and the groups in which a process of the user's belongs."""
    entry = pwd.getpwnam(user)
    return entry, os.getgrouplist(user, entry.pw_gid)


async def run(
    argv: Sequence[str],
    *,
    user: str | None = None,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    patience_s: float | None = None,
) -> str:
    """Run a command, as `user` if named, and return its standard output. A user's command may write
    `OUT_MOST` bytes at most. Without `env` its environment is ours, less any settings for Slurm's commands.

    As root we become the user ourselves; otherwise `prefix` (sudo, say) must do it.
    """
    as_user: dict[str, Any] = {}
    if user is not None and not prefix:
        try:
            entry, groups = await of_users(_account, user)
        except KeyError:
            raise SlurmError(
                f"this host doesn't know the user {user}: GresshopperSpawner.exec_prefix has to reach one that does"
            ) from None
        if os.geteuid() == 0:
            as_user = {
                "user": entry.pw_uid,
                "group": entry.pw_gid,
                "extra_groups": groups,
            }
        elif os.geteuid() != entry.pw_uid:
            raise SlurmError(
                f"the hub runs as uid {os.geteuid()} and can't act as {user}: "
                "run it as root, or set GresshopperSpawner.exec_prefix to a sudo command"
            )
    full = [*prefix, *argv]
    most = (math.inf, math.inf) if user is None else (OUT_MOST, ERR_MOST)
    command = _Command(stdin, patience_s or COMMAND_TIMEOUT_S, most)
    try:
        transport, _ = await asyncio.get_running_loop().subprocess_exec(
            lambda: command,
            *full,
            env=dict(env) if env is not None else without_slurms_own(),
            cwd="/",
            # A group of its own, to be ended as a whole.
            start_new_session=True,
            **as_user,
        )
    except OSError as error:
        raise SlurmError(f"{full[0]} can't be run: {error.strerror or error}") from error
    why = await command.over
    if why is not None:
        raise SlurmError(f"{argv[0]} {why}")
    out, err = (text.decode(errors="replace") for text in (command.out, command.err))
    if transport.get_returncode() != 0:
        text = err.strip() or out.strip()
        raise SlurmError(f"{argv[0]} failed: {text[:500] or f'exit status {transport.get_returncode()}'}")
    return out


Answer = TypeVar("Answer")


class Shared(Generic[Answer]):
    """An answer of Slurm's for many: whoever comes while it is asked for shares it, or the failure to get it."""

    def __init__(self, ask: Callable[[], Awaitable[Answer]]) -> None:
        self._ask = ask
        #: The failure, if the last question had no answer.
        self.last: Answer | Exception | None = None
        self._at = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def get(self, max_age_s: float) -> Answer:
        """An answer no older than this."""
        return (await self.soon(max_age_s, None))[0]

    async def soon(self, max_age_s: float, patience_s: float | None) -> tuple[Answer, bool]:
        """An answer, and whether the answer is older than `max_age_s`: the last answer serves if a new answer takes
        longer than `patience_s`."""
        is_late = False
        if time.monotonic() - self._at > max_age_s:
            self._asking = self._asking or asyncio.ensure_future(self._renew())
            # Whoever gives up waiting leaves the question to the others.
            patience_s = None if self.last is None else patience_s
            is_late = bool((await asyncio.wait([self._asking], timeout=patience_s))[1])
        assert self.last is not None
        if isinstance(self.last, Exception):
            raise self.last.with_traceback(None)
        return self.last, is_late

    async def _renew(self) -> None:
        try:
            self.last = await self._ask()
        except Exception as error:
            self.last = error
        finally:
            self._asking = None
        self._at = time.monotonic()


class JobTable:
    """A single squeue for all servers of this hub, however many spawners ask."""

    def __init__(self, job_name: str) -> None:
        self._jobs = Shared(lambda: _jobs("-a", "--name", job_name))

    async def get(self, job_id: str, max_age_s: float) -> Job | None:
        """The job, or None if Slurm doesn't list it to us. SlurmError if Slurm can't be asked now."""
        return (await self._jobs.get(max_age_s)).get(job_id)


async def job_of(user: str, job_id: str, prefix: Sequence[str]) -> Job | None:
    """The job in its user's view: `PrivateData=jobs` hides the job from others. None means that the job doesn't
    exist."""
    try:
        return (await _jobs("-j", job_id, user=user, prefix=prefix)).get(job_id)
    except SlurmError as error:
        if "Invalid job id" in str(error):
            return None
        raise


async def addresses(partition: str) -> list[str]:
    """Names and addresses of a partition's nodes, or of the default one's if none is named."""
    chosen = ["-p", partition] if partition else []
    text = await run(["sinfo", "-h", "-N", "-o", "%N|%o|%P", *chosen])
    rows = [line.strip().split("|") for line in text.splitlines() if line.count("|") == 2]
    found = {word for name, address, part in rows if partition or part.endswith("*") for word in (name, address)}
    return sorted(found)


async def answers(host: str, port: int) -> bool:
    """Whether something listens there."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), ANSWER_S)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True


async def call_node_of(job_id: str, user: str, prefix: Sequence[str]) -> None:
    """Makes Slurm speak to the job's node now, and not only at a third of SlurmdTimeout. The signal changes nothing."""
    await run(["scancel", "--signal=CONT", job_id], user=user, prefix=prefix)


async def is_silent(node: str) -> bool:
    """Whether Slurm itself doesn't hear the node."""
    text = await run(["scontrol", "show", "node", "-o", node])
    match = re.search(r"\bState=(\S+)", text)
    return match is not None and bool(re.search(r"\*|DOWN|NOT_RESPONDING", match.group(1)))


async def node_address(node: str) -> str:
    """Slurm's own address of a node."""
    text = await run(["scontrol", "show", "node", "-o", node])
    match = re.search(r"\bNodeAddr=(\S+)", text)
    if not match:
        raise SlurmError(f"scontrol shows no NodeAddr for {node}")
    return match.group(1)


async def numeric(host: str, ip: str) -> str:
    """The host's address in the family of `ip`, where the server listens: a name may lead to the other family, too. The
    name stays if several addresses are found, or an address with another meaning for a proxy elsewhere."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(ip).version == 6 else socket.AF_INET
        found = await asyncio.get_running_loop().getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM)
    except (ValueError, OSError):
        # `ip` is a name, or there is no address of the family.
        return host
    addresses = {str(entry[4][0]) for entry in found}
    address = ip if ip in addresses else addresses.pop() if len(addresses) == 1 else host
    return host if address == host or ipaddress.ip_address(address).is_loopback else address
