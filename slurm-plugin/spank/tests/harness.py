"""A dev cluster with the plugin in it: seats with kernels, pilots with leases, an agent that hears the plugin."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

REPOSITORY = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
DEVCLUSTER = Path(os.environ.get("HOP_E2E_DEVCLUSTER", TARGET / "debug" / "devcluster"))
SERVICE = "gresshopper"
Json = Any


def until(what: str, check: Callable[[], Any], seconds: float = 20) -> Any:
    """Waits for a true value; tells what it waited for."""
    end = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)


class Lines:
    """A process's output lines, read beside it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.queue: queue.Queue[str] = queue.Queue()
        self.process = process
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.queue.put(line.rstrip("\n"))

    def next(self, seconds: float = 20) -> str:
        """The next line."""
        return self.queue.get(timeout=seconds)

    def nothing(self, seconds: float = 0.3) -> bool:
        """Whether no further line comes."""
        try:
            line = self.queue.get(timeout=seconds)
        except queue.Empty:
            return True
        raise AssertionError(f"unexpected: {line}")


@dataclass
class Cluster:
    """A dev cluster that is up."""

    base: Path
    jobs: list[int] = field(default_factory=list)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    last_lease: int = field(default_factory=lambda: int(time.time() * 1000))

    @property
    def node(self) -> str:
        return self.nodes[0]

    @property
    def nodes(self) -> list[str]:
        return self.variable("HOP_DEV_NODES").split(",")

    def variable(self, name: str) -> str:
        text = self.devcluster("env").stdout
        line = next(line for line in text.splitlines() if line.startswith(f"export {name}="))
        return line.split("=", 1)[1].strip("'")

    @property
    def run_dir(self) -> Path:
        return self.base / "run" / "gresshopper"

    def pids(self) -> set[int]:
        """The cluster's processes, which bear its mark in their environment."""
        mark, found = f"HOP_DEV_CLUSTER={self.base}".encode(), set()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.add(int(process.name))
        return found

    def devcluster(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(DEVCLUSTER), arguments[0], "--base", str(self.base), *arguments[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    def command(self, user: str, arguments: list[str], environment: dict[str, str] | None = None) -> list[str]:
        variables = [f"--env={k}={v}" for k, v in (environment or {}).items()]
        head = [str(DEVCLUSTER), "exec", "--base", str(self.base), "--user", user]
        return [*head, *variables, "--", *arguments]

    def run(self, user: str, *arguments: str, timeout: float = 60, check: bool = True) -> str:
        """Runs a command as a user and gives what it printed."""
        done = subprocess.run(
            self.command(user, list(arguments)), capture_output=True, text=True, timeout=timeout, check=False
        )
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def start(self, user: str, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts a command as a user, with pipes."""
        process = subprocess.Popen(
            self.command(user, list(arguments), environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def plugstack(self, line: str) -> None:
        """Replaces plugstack.conf; the next step reads it."""
        path = self.base / "etc" / "plugstack.conf"
        new = path.with_suffix(".new")
        new.write_text(line + "\n", encoding="utf-8")
        new.rename(path)

    def plugin_line(self, name: str = "gresshopper.so", extra: str = "") -> str:
        return (
            f"optional {self.base}/opt/lib/{name} service_user={SERVICE} run_dir={self.run_dir} "
            f"agent_dir={self.agent_dir} {extra}"
        )

    @property
    def agent_dir(self) -> Path:
        return self.base / "home" / SERVICE / "agent"

    def install(self) -> None:
        """Puts the plugin and the programs of these tests where the nodes see them."""
        library = Path(os.environ.get("HOP_E2E_PLUGIN", TARGET / "debug" / "libgresshopper.so"))
        for source, target in [
            (library, "lib/gresshopper.so"),
            (HERE / "probe.py", "lib/probe.py"),
            (HERE / "agent.py", "lib/agent.py"),
        ]:
            path = self.base / "opt" / target
            new = path.with_suffix(".new")
            new.write_bytes(source.read_bytes())
            new.chmod(0o755)
            new.rename(path)
        self.plugstack(self.plugin_line())

    def restart_slurmds(self) -> None:
        """slurmd looks for plugins with an epilog when it starts."""
        for node in self.nodes:
            self.devcluster("kill-slurmd", node)
            self.devcluster("start-slurmd", node)

    def submit(self, user: str, *flags: str, node: str = "") -> int:
        """A job that only holds its resources."""
        where = f"--nodelist={node or self.node}"
        text = self.run(
            user, "sbatch", "--parsable", where, "-o", "/dev/null", *flags, "--wrap", "exec sleep infinity"
        )
        job = int(text.split(";")[0])
        self.jobs.append(job)
        until(f"job {job} runs", lambda: self.state(job) == "RUNNING")
        return job

    def state(self, job: int) -> str:
        return self.run("root", "squeue", "-h", "-j", str(job), "-o", "%T", check=False)

    def cancel(self, *jobs: int) -> None:
        """Cancels jobs and waits until Slurm has forgotten their steps."""
        if jobs:
            self.run("root", "scancel", *map(str, jobs), check=False)
        for job in jobs:
            until(f"job {job} is over", lambda job=job: not self.state(job), 60)  # type: ignore[misc]
            if job in self.jobs:
                self.jobs.remove(job)

    def tidy(self) -> None:
        """Ends what a test left."""
        self.cancel(*self.jobs)
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()

    def records(self, part: str) -> dict[str, Json]:
        """The plugin's records of the first node."""
        directory = self.run_dir / self.node / part
        if not directory.is_dir():
            return {}
        return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in directory.glob("*.json")}

    def state_of(self, index: int) -> Json:
        """What the plugin's record says of a device."""
        records = self.records("gpus").values()
        return next(r["state"] for r in records if r["device"]["index"] == index)

    def gpu(self, index: int, node: str = "") -> str:
        return f"/dev/fakegpu-{node or self.node}-{index}"


@dataclass
class Kernel:
    """A probe in a step of a seat, and what it said of itself."""

    cluster: Cluster
    process: subprocess.Popen[str]
    lines: Lines
    identity: Json

    def ask(self, *words: Any) -> Json:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return json.loads(self.lines.next())

    def opens(self) -> list[str]:
        return [self.ask("open", self.cluster.gpu(i)) for i in (0, 1)]


def kernel(cluster: Cluster, user: str, seat: int, *flags: str, variable: bool = True) -> Kernel:
    """Starts a probe as a kernel's step."""
    name = {"GRESSHOPPER_KERNEL": f"test-{user}"} if variable else {}
    process = cluster.start(
        user,
        "srun", "-Q", f"--jobid={seat}", "--overlap", "--gres=none", "-n1", *flags,
        "/usr/bin/python3", f"{cluster.base}/opt/lib/probe.py",
        environment=name,
    )  # fmt: skip
    lines = Lines(process)
    process.stdin.write('["who"]\n')  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]
    return Kernel(cluster, process, lines, json.loads(lines.next()))


@dataclass
class Pilot:
    """A pilot's job with an agent's ear."""

    cluster: Cluster
    job: int
    heard: Lines
    socket: Path

    def token(self, target: Kernel | None, **changes: Any) -> Json:
        """A token for the next lease; `changes` falsify it."""
        self.cluster.last_lease += 1
        token = {
            "v": 1,
            "op": "take-back",
            "lease": self.cluster.last_lease,
            "epoch": self.cluster.last_lease,
            "pilot": self.job,
            "notify": str(self.socket),
            "grace_ms": 200,
            "issued_at": int(time.time() * 1_000_000),
        }
        if target is not None:
            who = target.identity
            names = {"seat_job": who["job"], "seat_step": who["step"]}
            process = {k: who[k] for k in ("uid", "pid", "start_time")} | names
            process |= changes.pop("kernel", {})
            lend = {"kernel": process, "gpus": changes.pop("gpus", 1), "cpus": changes.pop("cpus", 0)}
            token["op"] = {"lend": lend}
        return token | changes

    def mint(self, token: Json, user: str = SERVICE) -> str:
        """A credential, by munge's own program."""
        done = subprocess.run(
            self.cluster.command(user, ["munge", "-u", "0", "-t", "300", "-S", self.munge()]),
            input=json.dumps(token), capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    def munge(self) -> str:
        return self.cluster.variable("MUNGE_SOCKET")

    def step(self, credential: str, *flags: str, user: str = SERVICE, job: int = 0) -> subprocess.Popen[str]:
        """A lease's step, which lives until its stdin ends."""
        usual = ["--exact", "-n1", "-c1", "--mem=0", "--gres=gpu:1"]
        return self.cluster.start(
            user,
            "srun", "-Q", f"--jobid={job or self.job}", *(flags or usual), "--mpi=none", "--cpu-bind=none",
            "--export=GRESSHOPPER_LEASE,PATH", "cat",
            environment={"GRESSHOPPER_LEASE": credential},
        )  # fmt: skip

    def hear(self, seconds: float = 20) -> Json:
        line = json.loads(self.heard.next(seconds))
        assert line["v"] == 1
        return line["body"]

    def lend(self, target: Kernel, *flags: str, **changes: Any) -> tuple[subprocess.Popen[str], Json]:
        """A lease that must come to be."""
        step = self.step(self.mint(self.token(target, **changes)), *flags)
        told = self.hear()
        assert told["kind"] == "handed-over", told
        return step, told

    def look(self, *again: int, operator: str | None = None, seconds: float = 20) -> Json:
        """A step with `op = "look"`."""
        token = self.token(None, op={"look": {"again": list(again), "operator": operator}})
        step = self.step(self.mint(token), "--overlap", "--gres=none", "-n1", "--mem=0")
        told = self.hear(seconds)
        end(step)
        return told

    def take_back(self, lease: int, grace_ms: int = 200) -> Json:
        """A step with `op = "take-back"`."""
        token = self.token(None, lease=lease, grace_ms=grace_ms)
        step = self.step(self.mint(token), "--overlap", "--gres=none", "-n1", "--mem=0")
        told = self.hear()
        end(step)
        return told


def end(step: subprocess.Popen[str]) -> None:
    """Ends a lease's step the ordinary way."""
    assert step.stdin
    with contextlib.suppress(OSError):
        step.stdin.close()
    step.wait(timeout=60)


def pilot(cluster: Cluster, gpus: int = 2, cpus: int = 4, node: str = "") -> Pilot:
    """Submits a pilot and opens the agent's socket."""
    flags = [f"--gres=gpu:{gpus}"] if gpus else []
    job = cluster.submit(SERVICE, *flags, "-c", str(cpus), "--mem=256", node=node)
    path = cluster.agent_dir / (node or cluster.node) / f"agent.{job}.sock"
    process = cluster.start(SERVICE, "/usr/bin/python3", f"{cluster.base}/opt/lib/agent.py", str(path))
    heard = Lines(process)
    assert heard.next() == "ready"
    return Pilot(cluster, job, heard, path)


class Taker:
    """This process, which is root's, taking one descriptor from whoever sends it."""

    def __init__(self) -> None:
        self.name = f"hop-taker-{os.getpid()}-{time.monotonic_ns()}"
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind("\0" + self.name)
        self.server.listen()
        self.fds: list[int] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            peer, _ = self.server.accept()
            with peer:
                self.fds += socket.recv_fds(peer, 1, 4)[1]
                peer.send(b"k")

    def drop(self) -> None:
        """Lets go of what was taken."""
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()

    def __enter__(self) -> Taker:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
        self.drop()


def uid(user: str) -> int:
    return pwd.getpwnam(user).pw_uid


@contextlib.contextmanager
def tidied(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose jobs end with the test."""
    try:
        yield cluster
    finally:
        cluster.tidy()
