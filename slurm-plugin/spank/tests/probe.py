"""Stands in for a kernel's replica on the dev cluster: does what a line on stdin says, answers with a JSON line.

It is the adversary as well: each way of holding on to a device that a user's program has is a command here.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable

libc = ctypes.CDLL(None, use_errno=True)
CLONE_FILES = 0x400
FLAGS = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK
CLONE_NEWNS, CLONE_NEWUSER, NOSUID_NODEV = 0x20000, 0x10000000, 6
FUSE_LOOKUP, FUSE_GETATTR, FUSE_OPEN, FUSE_INIT = 1, 3, 14, 26
#: Forget, read, interrupt, forget many.
FUSE_UNANSWERED = (2, 15, 36, 42)
FUSE_DIRECT, FUSE_KEEP_CACHE = 1, 2
kept: list[Any] = []


def try_open(path: str) -> str:
    """What opening the device gives: "ok" or the name of the error."""
    try:
        os.close(os.open(path, FLAGS))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def hold(path: str) -> int:
    """Holds a plain descriptor in this process."""
    kept.append(os.open(path, FLAGS))
    return os.getpid()


def hold_in_child(path: str) -> int:
    """A child that was forked during the lease."""
    fd = os.open(path, FLAGS)
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    os.close(fd)
    return pid


def hold_in_daemon(path: str) -> int:
    """A daemon of its own session whose parents are gone, deaf to SIGTERM and SIGHUP."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        fd = os.open(path, FLAGS)
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            os.write(write, struct.pack("i", os.getpid()))
            while True:
                signal.pause()
        os.close(fd)
        os._exit(0)
    os.wait()
    return int(struct.unpack("i", os.read(read, 4))[0])


def hold_in_thread(path: str) -> int:
    """A thread with a table of descriptors of its own, in a child; the process's own table shows nothing."""

    def hold(ready: Callable[[], None]) -> None:
        def work() -> None:
            with contextlib.suppress(BaseException):
                libc.unshare(CLONE_FILES)
                os.open(path, FLAGS)
                ready()
                while True:
                    time.sleep(1)
            os._exit(1)

        threading.Thread(target=work).start()

    return in_child(hold)


def hold_in_flight(path: str) -> int:
    """A child with a socket pair in which the only descriptor waits."""

    def work(ready: Callable[[], None]) -> None:
        here, there = socket.socketpair()
        fd = os.open(path, FLAGS)
        socket.send_fds(here, [b"x"], [fd])
        os.close(fd)
        kept.extend([here, there])
        ready()

    return in_child(work)


def hold_in_backlog(path: str) -> int:
    """A child that listens and has sent itself the descriptor over a connection that it never accepts."""

    def work(ready: Callable[[], None]) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.bind(f"\0backlog-{os.getpid()}")
        server.listen()
        client = socket.socket(socket.AF_UNIX)
        client.connect(server.getsockname())
        fd = os.open(path, FLAGS)
        socket.send_fds(client, [b"x"], [fd])
        os.close(fd)
        client.close()
        kept.append(server)
        ready()

    return in_child(work)


def fly_harmless() -> int:
    """A child in whose sockets descriptors of no device wait, for ever."""

    def work(ready: Callable[[], None]) -> None:
        here, there = socket.socketpair()
        with open("/proc/self/status", encoding="utf-8") as file, open("/dev/null", encoding="utf-8") as null:
            socket.send_fds(here, [b"x"], [file.fileno(), null.fileno()])
        kept.extend([here, there])
        ready()

    return in_child(work)


def end_child(pid: int) -> str:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "ended"


def hold_in_ring(path: str) -> int:
    """A child whose io_uring has the file registered, and no descriptor of it."""

    def work(ready: Callable[[], None]) -> None:
        ring = Ring()
        fd = os.open(path, FLAGS)
        ring.register(fd)
        os.close(fd)
        kept.append(ring)
        ready()

    return ring_child(work)


def in_child(work: Callable[[Callable[[], None]], None]) -> int:
    """Does it in a child, and returns when that says that it holds; none of it is in this process."""
    return try_in_child(work)[0]


def try_in_child(work: Callable[[Callable[[], None]], None]) -> tuple[int, bool]:
    """As `in_child`, with whether the child has said so before its end."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        with contextlib.suppress(BaseException):
            work(lambda: kept.append(os.write(write, b"r")))
            while True:
                time.sleep(60)
        os._exit(1)
    os.close(write)
    held = os.read(read, 1) != b""
    os.close(read)
    return pid, held


def asleep(work: Callable[[], Any]) -> None:
    """Starts a thread, and returns when it sleeps in a system call."""
    begins = threading.Event()

    def run() -> None:
        begins.set()
        work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    begins.wait()
    seen = 0
    while seen < 10:
        time.sleep(0.02)
        stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text(encoding="utf-8")
        seen = seen + 1 if stat[stat.rindex(")") + 2] == "S" else 0


def hold_in_fork_chain(path: str) -> int:
    """A process that forks and ends, over and over: whoever is looked at has gone."""

    def chain(ready: Callable[[], None]) -> None:
        os.open(path, FLAGS)
        ready()
        while True:
            if os.fork() != 0:
                os._exit(0)

    return in_child(chain)


def hold_in_dance(path: str) -> int:
    """A descriptor that moves between places far apart in a large table."""

    def dance(ready: Callable[[], None]) -> None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        null = os.open("/dev/null", FLAGS)
        here, there = 20, min(most, 20_000) - 1
        for number in range(here, there):
            os.dup2(null, number)
        fd = os.open(path, FLAGS)
        os.dup2(fd, here)
        os.close(fd)
        ready()
        while True:
            os.dup2(here, there)
            os.close(here)
            here, there = there, here

    return in_child(dance)


def hold_in_duplicates(path: str) -> int:
    """Some 800,000 descriptors of one open file, in as many processes as that takes. Gives how many."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = 800_000 // most + 1

    def duplicate(ready: Callable[[], None]) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        fd = os.open(path, FLAGS)
        for number in range(20, most):
            os.dup2(fd, number)
        for _ in range(count - 1):
            if os.fork() == 0:
                break
        else:
            ready()
        signal.pause()

    in_child(duplicate)
    return count


def hold_in_blocked_send(path: str, kind: int = socket.SOCK_STREAM) -> int:
    """The only reference is on the stack of a thread that sleeps in sendmsg."""

    def work(ready: Callable[[], None]) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, kind)
        kept.extend([here, there])
        here.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                here.send(b"x" * 4096)
        here.setblocking(True)
        fd = os.open(path, FLAGS)
        asleep(lambda: socket.send_fds(here, [b"x" * 4096], [fd]))
        os.close(fd)
        ready()

    return in_child(work)


def hold_in_blocked_poll(path: str) -> int:
    """A thread sleeps in poll on the device, whose descriptor another closes."""

    def work(ready: Callable[[], None]) -> None:
        fd = os.open(path, FLAGS)
        poll = select.poll()
        poll.register(fd, 0)
        asleep(poll.poll)
        os.close(fd)
        ready()

    return in_child(work)


def hold_traced(path: str) -> int:
    """A process whose tracer holds it at its exit, so that SIGKILL frees nothing."""

    def tracer(ready: Callable[[], None]) -> None:
        def hold(ready: Callable[[], None]) -> None:
            os.open(path, FLAGS)
            ready()

        holder = in_child(hold)
        seize, option_exit = 0x4206, 0x40
        if libc.ptrace(seize, holder, None, ctypes.c_void_p(option_exit)) != 0:
            os._exit(1)
        ready()
        while True:
            os.waitpid(holder, 0)  # It stands at its exit, and nobody lets it go on.
            time.sleep(60)

    return in_child(tracer)


class Ring:
    """An io_uring with one call: its numbers are the same on every architecture that we know."""

    def __init__(self) -> None:
        parameters = ctypes.create_string_buffer(120)
        self.fd = libc.syscall(425, 4, parameters)
        if self.fd < 0:
            os._exit(1)

    def register(self, fd: int) -> None:
        files = (ctypes.c_int * 1)(fd)
        if libc.syscall(427, self.fd, 2, files, 1) < 0:
            os._exit(1)


def hold_in_ring_by_socket(path: str) -> int:
    """In flight in a socket that only a ring has."""

    def work(ready: Callable[[], None]) -> None:
        here, there = socket.socketpair()
        fd = os.open(path, FLAGS)
        socket.send_fds(here, [b"x"], [fd])
        os.close(fd)
        ring = Ring()
        kept.extend([ring, here])
        ring.register(there.fileno())
        there.close()
        ready()

    return ring_child(work)


def hold_in_ring_alone(path: str) -> int:
    """Registered with a ring that has a mapping and no descriptor."""

    def work(ready: Callable[[], None]) -> None:
        ring = Ring()
        fd = os.open(path, FLAGS)
        ring.register(fd)
        os.close(fd)
        kept.append(mmap.mmap(ring.fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
        os.close(ring.fd)
        ready()

    return ring_child(work)


def ring_child(work: Callable[[Callable[[], None]], None]) -> int:
    pid, held = try_in_child(work)
    if not held:
        os.waitpid(pid, 0)
        raise OSError(errno.ENOSYS, "io_uring is not available")
    return pid


def lock_memory(fuse: str, path: str = "") -> int:
    """A child whose memory nobody can look at: Linux holds its lock while a mapping waits for a page. The page is of a
    file system of the child's own, in a user namespace, and doesn't come."""

    def work(ready: Callable[[], None]) -> None:
        if path:
            kept.append(os.open(path, FLAGS))
        # Newer Linux lists mappings without the lock: whoever wants to know whose file this is needs it.
        kept.append(mmap.mmap(-1, 4096))
        ids = {"uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
            os._exit(1)
        for name, text in {"setgroups": "deny", **ids}.items():
            Path("/proc/self", name).write_text(text, encoding="utf-8")
        server, folder = os.open(fuse, os.O_RDWR), tempfile.mkdtemp()
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"x", folder.encode(), b"fuse", NOSUID_NODEV, options) != 0:
            os._exit(1)
        if os.fork() == 0:
            serve_all_but_reads(server)
        os.close(server)
        file = f"{folder}/file"
        threading.Thread(target=lambda: os.read(os.open(file, os.O_RDONLY), 1), daemon=True).start()
        time.sleep(0.5)
        again = os.open(file, os.O_RDONLY)
        # Not by the module mmap, which would keep the interpreter's lock as well.
        arguments = (None, ctypes.c_size_t(4096), mmap.PROT_READ, mmap.MAP_PRIVATE, again, ctypes.c_long(0))
        threading.Thread(target=lambda: libc.mmap(*arguments), daemon=True).start()
        time.sleep(0.5)
        ready()

    return in_child(work)


def serve_all_but_reads(server: int) -> None:
    """A file system of a file of two pages, by FUSE's own words: the first open of it is by pages, later ones are not."""

    def attributes(node: int) -> bytes:
        mode, size = (0o40755, 0) if node == 1 else (0o100666, 8192)
        return struct.pack("<6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 0, 0)

    flags = FUSE_KEEP_CACHE
    while True:
        _, operation, unique, node = struct.unpack_from("<IIQQ", os.read(server, 1 << 20))
        error, said = 0, b""
        if operation == FUSE_INIT:
            said = struct.pack("<4I2H2I2H8I", 7, 31, 0, 0, 0, 0, 65536, 0, 0, 0, *[0] * 8)
        elif operation == FUSE_LOOKUP:
            said = struct.pack("<4Q2I", 2, 0, 1000, 1000, 0, 0) + attributes(2)
        elif operation == FUSE_GETATTR:
            said = struct.pack("<Q2I", 1000, 0, 0) + attributes(node)
        elif operation == FUSE_OPEN:
            said, flags = struct.pack("<Q2I", 1, flags, 0), FUSE_KEEP_CACHE | FUSE_DIRECT
        elif operation in FUSE_UNANSWERED:
            continue
        else:
            error = -errno.ENOSYS
        os.write(server, struct.pack("<IiQ", 16 + len(said), error, unique) + said)


def freeze_itself(path: str) -> int:
    """A child in a freezer of its user's own, below that of the step, and named like one of Slurm's."""
    text = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    (place,) = [line.split(":", 2)[2] for line in text.splitlines() if ":freezer:" in line] or ["/nowhere"]
    own = Path(f"/sys/fs/cgroup/freezer{place}/step_own")
    own.mkdir()

    def work(ready: Callable[[], None]) -> None:
        os.open(path, FLAGS)
        (own / "tasks").write_text(str(os.getpid()), encoding="utf-8")
        ready()

    pid = in_child(work)
    (own / "freezer.state").write_text("FROZEN", encoding="utf-8")
    return pid


def receive_by_a_long_name(name: str, count: int) -> list[int]:
    """Programs with names of some 4,000 characters that JSON writes as two each, which take a descriptor each."""
    folder, part = tempfile.mkdtemp(), '"' * 250
    back = os.getcwd()
    os.chdir(folder)
    for _ in range(15):
        os.mkdir(part)
        os.chdir(part)
    shutil.copy("/usr/bin/python3", "python3")
    script = """if True:
        import socket, sys, time
        server = socket.socket(socket.AF_UNIX)
        server.bind("\\0" + sys.argv[1])
        server.listen()
        print("ready", flush=True)
        peer, _ = server.accept()
        taken = socket.recv_fds(peer, 1, 4)
        peer.send(b"k")
        time.sleep(1e6)
    """
    takers = []
    for number in range(count):
        arguments = ["./python3", "-c", script, f"{name}-{number}"]
        taker = subprocess.Popen(arguments, stdout=subprocess.PIPE, env={"PYTHONHOME": "/usr"})
        assert taker.stdout
        taker.stdout.readline()
        kept.append(taker)
        takers.append(taker.pid)
    os.chdir(back)
    return takers


def holders(path: str) -> list[int]:
    """Processes of this user that have the device open, as far as they can be seen."""
    number, found = os.stat(path).st_rdev, set()
    for name in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.stat(name).st_rdev == number:
                found.add(int(name.parts[2]))
    return sorted(found)


def name_only(path: str) -> int:
    """A child with an `O_PATH` descriptor, for which nobody needs a permission."""

    def work(ready: Callable[[], None]) -> None:
        kept.append(os.open(path, os.O_PATH))
        ready()

    return in_child(work)


def listen(name: str) -> int:
    """A child that listens and never accepts."""

    def work(ready: Callable[[], None]) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.bind("\0" + name)
        server.listen()
        kept.append(server)
        ready()

    return in_child(work)


def throw(path: str, to: str) -> str:
    """Sends the descriptor to whoever listens, and doesn't wait for it to be taken."""
    fd = os.open(path, FLAGS)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect("\0" + to)
        socket.send_fds(peer, [b"x"], [fd])
    os.close(fd)
    return "sent"


def send_harmless(to: str) -> str:
    return throw("/dev/null", to)


def send(path: str, to: str) -> str:
    """Sends the descriptor to whoever listens on an abstract socket, and keeps none."""
    fd = os.open(path, FLAGS)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect("\0" + to)
        socket.send_fds(peer, [b"x"], [fd])
        peer.recv(1)
    os.close(fd)
    return "sent"


def receive(name: str) -> int:
    """Takes one descriptor from anybody, and holds it in a child."""
    server = socket.socket(socket.AF_UNIX)
    server.bind("\0" + name)
    server.listen()
    pid = os.fork()
    if pid == 0:
        peer, _ = server.accept()
        _, fds, _, _ = socket.recv_fds(peer, 1, 4)
        kept.append(fds)
        peer.send(b"k")
        while True:
            signal.pause()
    server.close()
    return pid


def cores() -> dict[str, list[int]]:
    """The mask of this process, of its threads, of a child from before, and of one that is started now."""
    masks = {"process": sorted(os.sched_getaffinity(0))}
    for tid in os.listdir("/proc/self/task"):
        masks[f"thread {tid}"] = sorted(os.sched_getaffinity(int(tid)))
    masks["old child"] = sorted(os.sched_getaffinity(old_child.pid))
    text = subprocess.run(
        [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    masks["new child"] = json.loads(text)
    return masks


def who() -> dict[str, Any]:
    """What a replica tells of itself."""
    stat = Path("/proc/self/stat").read_text(encoding="utf-8")
    return {
        "pid": os.getpid(),
        "start_time": int(stat[stat.rindex(")") + 2 :].split()[19]),
        "uid": os.getuid(),
        "job": int(os.environ["SLURM_JOB_ID"]),
        "step": int(os.environ["SLURM_STEP_ID"]),
        "cgroup": Path("/proc/self/cgroup").read_text(encoding="utf-8"),
    }


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def mapped(path: str) -> str:
    """Maps a device, where it can be mapped."""
    fd = os.open(path, FLAGS)
    kept.append(mmap.mmap(fd, 4096))
    os.close(fd)
    return "ok"


COMMANDS: dict[str, Callable[..., Any]] = {
    "open": try_open,
    "fork-chain": hold_in_fork_chain,
    "dance": hold_in_dance,
    "duplicates": hold_in_duplicates,
    "blocked-send": hold_in_blocked_send,
    "blocked-datagram": lambda path: hold_in_blocked_send(path, socket.SOCK_DGRAM),
    "blocked-poll": hold_in_blocked_poll,
    "traced": hold_traced,
    "ring-socket": hold_in_ring_by_socket,
    "ring-alone": hold_in_ring_alone,
    "holders": holders,
    "lock-memory": lock_memory,
    "freeze-itself": freeze_itself,
    "receive-by-a-long-name": receive_by_a_long_name,
    "name-only": name_only,
    "listen": listen,
    "throw": throw,
    "send-harmless": send_harmless,
    "hold": hold,
    "child": hold_in_child,
    "daemon": hold_in_daemon,
    "thread": hold_in_thread,
    "in-flight": hold_in_flight,
    "fly-harmless": fly_harmless,
    "end-child": end_child,
    "backlog": hold_in_backlog,
    "ring": hold_in_ring,
    "map": mapped,
    "send": send,
    "receive": receive,
    "cores": cores,
    "who": who,
    "alive": alive,
}

signal.signal(signal.SIGCHLD, signal.SIG_DFL)
old_child = subprocess.Popen(["sleep", "infinity"])
threading.Thread(target=lambda: time.sleep(1e6), daemon=True).start()
for line in sys.stdin:
    name, *arguments = json.loads(line)
    try:
        answer: Any = COMMANDS[name](*arguments)
    except OSError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
old_child.kill()
