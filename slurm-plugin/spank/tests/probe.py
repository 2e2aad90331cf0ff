"""Stands in for a kernel's replica on the dev cluster: does what a line on stdin says, answers with a JSON line.

It is the adversary as well: each way of holding on to a device that a user's program has is a command here.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

libc = ctypes.CDLL(None, use_errno=True)
CLONE_FILES = 0x400
FLAGS = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK
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
    pid = os.fork()
    if pid == 0:

        def work() -> None:
            libc.unshare(CLONE_FILES)
            os.open(path, FLAGS)
            while True:
                time.sleep(1)

        threading.Thread(target=work).start()
        while True:
            time.sleep(1)
    time.sleep(0.3)
    return pid


def hold_in_flight(path: str) -> int:
    """A child with a socket pair in which the only descriptor waits."""
    pid = os.fork()
    if pid == 0:
        here, there = socket.socketpair()
        fd = os.open(path, FLAGS)
        socket.send_fds(here, [b"x"], [fd])
        os.close(fd)
        kept.extend([here, there])
        while True:
            signal.pause()
    time.sleep(0.3)
    return pid


def hold_in_backlog(path: str) -> int:
    """A child that listens and has sent itself the descriptor over a connection that it never accepts."""
    pid = os.fork()
    if pid == 0:
        server = socket.socket(socket.AF_UNIX)
        server.bind(f"\0backlog-{os.getpid()}")
        server.listen()
        client = socket.socket(socket.AF_UNIX)
        client.connect(server.getsockname())
        fd = os.open(path, FLAGS)
        socket.send_fds(client, [b"x"], [fd])
        os.close(fd)
        client.close()
        while True:
            signal.pause()
    time.sleep(0.3)
    return pid


def fly_harmless() -> int:
    """A child in whose sockets descriptors of no device wait, for ever."""
    pid = os.fork()
    if pid == 0:
        here, there = socket.socketpair()
        with open("/proc/self/status", encoding="utf-8") as file, open("/dev/null", encoding="utf-8") as null:
            socket.send_fds(here, [b"x"], [file.fileno(), null.fileno()])
        kept.extend([here, there])
        while True:
            signal.pause()
    time.sleep(0.3)
    return pid


def end_child(pid: int) -> str:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "ended"


def hold_in_ring(path: str) -> int:
    """A child whose io_uring has the file registered, and no descriptor of it."""
    pid = os.fork()
    if pid == 0:
        parameters = ctypes.create_string_buffer(120)
        ring = libc.syscall(425, 4, parameters)
        fd = os.open(path, FLAGS)
        files = (ctypes.c_int * 1)(fd)
        if ring < 0 or libc.syscall(427, ring, 2, files, 1) < 0:
            os._exit(1)
        os.close(fd)
        while True:
            signal.pause()
    time.sleep(0.3)
    if os.waitpid(pid, os.WNOHANG)[0] == pid:
        raise OSError(errno.ENOSYS, "io_uring is not available")
    return pid


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
