"""What the end-to-end tests stand on: a dev cluster with Gresshopper deployed, people at notebooks, a look around."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
PROFILE = os.environ.get("PROFILE", "release")
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target")) / PROFILE
HUB_PYTHON = os.environ.get("HUB_PYTHON", "/opt/gresshopper-dev/hub/bin/python")


#: Replicas of each kernel that doesn't say otherwise, on a cluster that names no other number.
REPLICAS = int(os.environ.get("HOP_E2E_REPLICAS", "1"))


class Failed(Exception):
    """A command that should have worked did not."""


def until(what: str, true: Callable[[], Any], timeout: float = 20.0, every: float = 0.05) -> Any:
    """Wait until `true()` is truthy and return it; fail with `what` after `timeout` seconds.

    The pauses are four times as long as the look, at least: a look that starts programs would take the cores of what is
    waited for.
    """
    end = time.monotonic() + timeout
    while True:
        begun = time.monotonic()
        got = true()
        if got:
            return got
        now = time.monotonic()
        if now > end:
            raise Failed(f"after {timeout:.0f} s still not so: {what}")
        time.sleep(max(every, 4 * min(now - begun, LONGEST_LOOK)))


#: Seconds of a look, beyond which the pause doesn't grow.
LONGEST_LOOK = 0.1


class Cluster:
    """A dev cluster of this test run's own, by `devcluster`, with Gresshopper in it, by `deploy.sh`."""

    def __init__(self, base: str, index: int, variant: str = "auto", *options: str, **deploy: str) -> None:
        self.base = Path(base)
        self.index = index
        self.variant = variant
        self.options = options
        self.deploy_env = {"PROFILE": PROFILE, "REPLICAS": str(REPLICAS), "MIGRATE": "false", **deploy}
        self.env: dict[str, str] = {}
        #: Variables of whatever users start.
        self.users_env: dict[str, str] = {}

    @property
    def replicas(self) -> int:
        """Replicas of each kernel that doesn't say otherwise."""
        return int(self.users_env.get("GRESSHOPPER_REPLICAS", self.deploy_env["REPLICAS"]))

    def devcluster(self, *args: str, check: bool = True, timeout: float = 180) -> str:
        done = subprocess.run(
            [TARGET / "devcluster", args[0], "--base", str(self.base), *args[1:]],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise Failed(f"devcluster {' '.join(args)}: {done.stderr[-2000:]}")
        return done.stdout

    def up(self) -> None:
        # Device numbers for fake GPUs are few, so no burst nodes; and a chroot must see the tests' own programs.
        fixed = ["--index", str(self.index), "--burst-nodes", "0", "--bind", str(REPO)]
        # They come free as other lanes' clusters end.
        patient = ["--patience", "200"]
        self.devcluster("up", "--variant", self.variant, *patient, *fixed, *self.options, timeout=280)
        text = self.devcluster("env")
        self.env = dict(re.findall(r"^export (\w+)='(.*)'$", text, re.M))
        self.variant = self.env["HOP_DEV_VARIANT"]
        ports = self.env.get("HOP_DEV_PORTS", "17900-17901").split("-")
        self.deploy_env["HOPD_PORT"] = ports[0]
        self.deploy("up")
        self.wait_for_pilots()

    def down(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.deploy("down")
        self.devcluster("down", "--purge")

    def deploy(self, verb: str) -> None:
        done = subprocess.run(
            [REPO / "tests/setup/deploy.sh", verb, str(self.base)],
            env={**os.environ, **self.deploy_env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(f"deploy.sh {verb}: {done.stderr[-2000:]}")

    def popen(self, user: str, argv: list[str], under: Sequence[str] = (), **more: Any) -> subprocess.Popen[str]:
        """Start a command as that user inside the cluster, in its home; the process becomes the command.

        ``under`` is a command outside the cluster that becomes all this.
        """
        env = {
            "GRESSHOPPER_CONF": str(self.base / "etc/gresshopper.toml"),
            "JUPYTER_PATH": str(self.base / "opt/share/jupyter"),
            "PYTHONPATH": str(self.base / "opt/jupyter"),
            **self.users_env,
            **more.pop("env", {}),
        }
        home = str(self.base / "home" / user) if user != "root" else "/root"
        into = [str(TARGET / "devcluster"), "exec", "--base", str(self.base), "--user", user, "--chdir", home]
        pairs = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
        return subprocess.Popen([*under, *into, *pairs, "--", *argv], text=True, **more)

    def run(self, user: str, *argv: str, check: bool = True, timeout: float = 60, under: Sequence[str] = ()) -> str:
        process = self.popen(user, list(argv), under, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        if check and process.returncode != 0:
            raise Failed(f"{user}: {' '.join(argv)} ended with {process.returncode}: {err[-1500:]}{out[-500:]}")
        return out

    def lend(self, path: str) -> Path:
        """A copy of one of our files that the cluster's users can read, wherever this checkout lies."""
        copy = self.base / "opt/tests" / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        # Complete or not at all: several people may begin at once.
        new = copy.with_suffix(f".{time.monotonic_ns()}")
        new.write_bytes((REPO / path).read_bytes())
        new.chmod(0o644)
        new.rename(copy)
        return copy

    # What the cluster says.

    def hop(self, *argv: str, user: str = "root") -> Any:
        return json.loads(self.run(user, "hop", *argv, "--json"))

    def pilots(self) -> list[str]:
        out = self.run("root", "squeue", "-h", "-t", "R", "-u", "gresshopper", "-o", "%i")
        return out.split()

    def wait_for_pilots(self, count: int | None = None) -> None:
        want = count or int(self.deploy_env.get("PILOTS", "4"))

        def ready() -> bool:
            out = self.run("root", "hop", "info", "-n", "-P", "-o", "state", check=False)
            return out.split().count("UP") >= want

        until(f"{want} pilots are up", ready, 60, every=0.3)

    @property
    def has_stepmgr(self) -> bool:
        """Pilots have step managers of their own: their steps need no slurmctld."""
        return self.variant == "trixie"

    def steps(self, name: str = "") -> list[str]:
        """Live steps of the service account's jobs, `job.step name`, but for batch, extern and an agent's looks and guards."""
        if self.has_stepmgr:
            steps = self.managed_steps()
        else:
            out = self.run("root", "squeue", "-h", "-s", "-u", "gresshopper", "-o", "%i %j")
            steps = [s for s in out.splitlines() if re.match(r"\d+\.\d+ ", s)]
        return [s for s in steps if name in s and not s.endswith((" look", " blocked GPU"))]

    def managed_steps(self) -> list[str]:
        """As `steps`, where pilots have step managers: 24.11's squeue doesn't know their steps."""
        live = set()
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                title = (entry / "cmdline").read_bytes().decode(errors="replace")
                found = re.match(r"slurmstepd: \[(\d+\.\d+)\]", title)
                if found and (entry / "root").readlink().is_relative_to(self.base):
                    live.add(found[1])
        if not live:
            return []
        out = self.run("root", "sacct", "-n", "-P", "-u", "gresshopper", "-o", "JobID,JobName")
        names = dict(line.split("|", 1) for line in out.splitlines())
        own = set(self.pilots())
        return [f"{step} {names.get(step, '')}" for step in sorted(live) if step.split(".")[0] in own]

    def leases_live(self) -> list[str]:
        """Leases in hopd's books that are not over."""
        out = self.run("root", "hop", "queue", "-a", "-n", "-P", "-o", "leaseid")
        return [lease for lease in out.split() if lease]

    def quiet(self) -> bool:
        """No lease step is left."""
        return not self.steps()

    def pids(self, pattern: str, user: str | None = None) -> list[int]:
        """Pids of this cluster's processes whose command line matches."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environ = (entry / "environ").read_bytes()
                uid = entry.stat().st_uid
            except OSError:
                continue
            # Another cluster's folder may begin like ours.
            marked = f"HOP_DEV_CLUSTER={self.base}".encode() in environ.split(b"\0")
            ours = marked or re.search(rf"{re.escape(str(self.base))}(?![\w.-])", line)
            if ours and re.search(pattern, line) and (user is None or uid == uid_of(user)):
                found.append(int(entry.name))
        return found

    def environ(self, pid: int) -> dict[str, str]:
        """What the process was started with."""
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        pairs = (entry.split("=", 1) for entry in text.split("\0"))
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def argv(self, pid: int) -> list[str]:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")

    def bring_back(self, node: str) -> None:
        """A lost node is there again, without what ran on it."""
        # As slurmctld does by itself when the node has been away for SlurmdTimeout: its jobs have failed.
        self.run("root", "scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
        self.devcluster("start-slurmd", node)
        self.run("root", "scontrol", "update", f"nodename={node}", "state=resume", check=False)

    def kill(self, pattern: str, user: str | None = None, sig: int = signal.SIGKILL) -> list[int]:
        pids = until(f"a process matches {pattern}", lambda: self.pids(pattern, user), 10)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)
        return list(pids)


@contextlib.contextmanager
def lost_node(cluster: Cluster, *nodes: str) -> Iterator[None]:
    """Everything on the nodes is killed at once; they come back at the end."""
    for node in nodes:
        cluster.devcluster("lose-node", node)
    try:
        yield
    finally:
        for node in nodes:
            cluster.bring_back(node)
        cluster.wait_for_pilots()


@contextlib.contextmanager
def without_slurmctld(cluster: Cluster, how: str) -> Iterator[None]:
    """Slurm's controller is stopped, or hangs."""
    if how == "stopped":
        cluster.devcluster("stop-slurmctld")
    else:
        cluster.kill(r"slurmctld", "slurm", signal.SIGSTOP)
    try:
        yield
    finally:
        if how == "stopped":
            cluster.devcluster("start-slurmctld")
        else:
            cluster.kill(r"slurmctld", "slurm", signal.SIGCONT)


def uid_of(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_uid


def stream(got: dict[str, Any], name: str) -> str:
    """What a cell wrote to `stdout`, or to `stderr` beside the sentences of ours that stand there."""
    return "".join(o["text"] for o in got["outputs"] if o.get("name") == name)


class Notebook:
    """A person with one notebook open: `notebook_driver.py` as that user."""

    def __init__(self, cluster: Cluster, user: str) -> None:
        self.cluster = cluster
        self.user = user
        self.log = cluster.base / "log" / f"notebook-{user}-{time.monotonic_ns()}.log"
        self.process = cluster.popen(
            user,
            [HUB_PYTHON, str(cluster.lend("tests/e2e/notebook_driver.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            bufsize=1,
        )

    def __getattr__(self, verb: str) -> Callable[..., dict[str, Any]]:
        def call(*args: Any, **more: Any) -> dict[str, Any]:
            names = ("code" if verb in ("execute", "submit") else "cell", "timeout")
            more.update(zip(names, args, strict=False))
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.write(json.dumps({"op": verb, **more}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            if not line:
                raise Failed(f"the driver ended: {self.log.read_text()[-2000:]}")
            answer: dict[str, Any] = json.loads(line)
            if not answer.pop("ok"):
                raise Failed(f"{verb}: {answer['error']}\n{self.log.read_text()[-3000:]}")
            return answer

        return call

    def close(self) -> None:
        with contextlib.suppress(Failed, BrokenPipeError, OSError):
            self.shutdown()
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


@contextlib.contextmanager
def notebook(cluster: Cluster, user: str = "alice", **start: Any) -> Iterator[Notebook]:
    """An open notebook with a kernel that is ready."""
    book = Notebook(cluster, user)
    try:
        book.start(**start)
        yield book
        no_process_spins(cluster)
    finally:
        book.close()


@contextlib.contextmanager
def all_gpus_held(cluster: Cluster, seconds: float) -> Iterator[None]:
    """Somebody's cell runs on both of the cluster's GPUs for so long."""
    with notebook(cluster, "alice") as holder:
        holder.execute("1")
        held = holder.submit(f"%%gpu 2\nimport time; time.sleep({seconds})")
        until("the GPUs are held", cluster.leases_live, 30)
        yield
        assert holder.wait(held["cell"], 60)["status"] == "ok"


def no_process_is_left(cluster: Cluster, user: str = "alice", timeout: float = 20.0, front: bool = False) -> None:
    """Waits until every process of the user's kernels has ended, but for their fronts where there are to be any. A failure
    names those that are left."""

    def left() -> list[int]:
        return cluster.pids(r"hop-replica (run|spare)|ipykernel" + ("" if front else "|hop-front"), user)

    try:
        until("no process is left", lambda: not left(), timeout)
    except Failed as failed:
        raise Failed(f"{failed}: {[' '.join(cluster.argv(pid)) for pid in left()]}") from None


def nothing_is_left(cluster: Cluster, user: str = "alice", timeout: float = 20.0) -> None:
    """Waits until every process of the user's kernels has ended, and every lease."""
    no_process_is_left(cluster, user, timeout)
    until("no lease is left", lambda: not cluster.leases_live() and cluster.quiet(), 40)


def no_process_spins(cluster: Cluster) -> None:
    """None of our own processes has used a tenth of a core over its life: they wait nearly all of the time."""
    for pid in cluster.pids(OWN):
        with contextlib.suppress(OSError):  # it has ended
            used, age = time_of(pid)
            if used > STARTS_IN + BUSY * age:
                raise Failed(f"{used:.1f} s of CPU in {age:.1f} s: {' '.join(cluster.argv(pid))}")


#: Our own programs, by their command lines.
OWN = r"^\S*/(hopd|hop-[a-z]+)( |$)"
#: Seconds of CPU that a process may need beside what it does now and then.
STARTS_IN = 2.0
#: Cores that a process may use on average.
BUSY = 0.1


def time_of(pid: int) -> tuple[float, float]:
    """Seconds of CPU that a process has used, and its age in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    a_second = os.sysconf("SC_CLK_TCK")
    used, began = int(fields[11]) + int(fields[12]), int(fields[19])
    return used / a_second, float(Path("/proc/uptime").read_text().split()[0]) - began / a_second


#: Prints the kernel's node, and a variable that the test has set to 41.
WHERE = "import os; print(os.environ['SLURMD_NODENAME'], x)"


#: Runs until its user says so by a file.
UNTIL_GO = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\nprint('through', x)"


def node_of(book: Notebook) -> str:
    """The kernel's node; its variables are alive."""
    got = book.execute(WHERE, timeout=90)
    assert got["status"] == "ok", got
    node, x = stream(got, "stdout").split()
    assert x == "41"
    return str(node)


def lose_in_a_cell(cluster: Cluster, book: Notebook) -> str:
    """Loses the kernel's node in the middle of a cell: the kernel goes on elsewhere. Returns the cell's error."""
    node = node_of(book)
    cell = book.submit("x = 0\nimport time\ntime.sleep(120)")["cell"]
    until("the cell runs", lambda: not book.wait(cell, 1)["done"])
    with lost_node(cluster, node):
        got = book.wait(cell, 60)
        assert (got["status"], got["reply"]["ename"]) == ("error", "CellLost"), got
        assert node_of(book) != node
    return str(got["reply"]["evalue"])


# Cells that say which of their node's GPU files open. They hold nothing afterwards. (The dev cluster's nodes share one
# host; each slurmd constrains its own devices alone.)
OPENABLE = """
import glob, os
def openable():
    found = []
    for path in sorted(glob.glob(f"/dev/fakegpu-{os.environ['SLURMD_NODENAME']}-*")):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NOCTTY))
        except OSError:
            continue
        found.append(path)
    return found
"""
