"""Two users, three notebooks each, two GPUs, and an adversary who tries all the time."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

from harness import Cluster, Notebook, notebook, uid_of, until
from opens import Recorder, shared

# Each open is held, so that each is an event of its own: fanotify merges what one process does in quick succession.
HOLD = """
import glob, os, time
def use(seconds):
    held = {}
    for path in sorted(glob.glob(f"/dev/fakegpu-{os.environ['SLURMD_NODENAME']}-*")):
        try:
            held[path] = os.open(path, os.O_RDWR | os.O_NOCTTY)
        except OSError:
            continue
    time.sleep(seconds)
    for fd in held.values():
        os.close(fd)
    (path,) = held
    return path
"""

ROUNDS = 5

# Runs as carol, on the same node, outside and inside Slurm steps: any open that succeeds is printed.
ADVERSARY = """
import glob, os, sys, time
end = time.time() + float(sys.argv[1])
while time.time() < end:
    for path in glob.glob(f"/dev/fakegpu-{os.environ['SLURMD_NODENAME']}-*"):
        try:
            os.open(path, os.O_RDWR | os.O_NOCTTY)
            print("opened", path, flush=True)
        except OSError:
            pass
    time.sleep(0.001)
print("tried", flush=True)
"""


def test_cells_queue_nobody_starves_and_no_gpu_is_ever_open_in_two_kernels(two_gpus: Cluster, tmp_path: Path) -> None:
    devices = sorted(
        str(p) for p in Path("/dev").glob(f"fakegpu-{two_gpus.env['HOP_DEV_NODES'].split(',')[0][:-1]}*")
    )
    recorder = Recorder(devices)
    recorder.start()
    adversary = in_a_step(two_gpus, tmp_path)
    with contextlib.ExitStack() as stack:
        books = []
        for user in ("alice", "bob"):
            for _ in range(3):
                book = Notebook(two_gpus, user)
                stack.callback(book.close)
                book.start()
                book.execute(HOLD)
                books.append(book)
        began = time.time()
        cells = [
            (book, [book.submit(f"%%gpu 1\nprint(use(0.2), {n})")["cell"] for n in range(ROUNDS)]) for book in books
        ]
        for book, submitted in cells:
            for n, cell in enumerate(submitted):
                got = book.wait(cell, 120)
                assert got["status"] == "ok", got
                assert got["text"].split()[1] == str(n)
        took = time.time() - began
        until("no lease is left", two_gpus.quiet, 30)
    out, _ = adversary.communicate(timeout=120)
    recorder.stop()
    assert "tried" in out
    assert "opened" not in out, "the adversary opened a device"
    opened = [e for e in recorder.seen if e.opened]
    assert len(opened) == 6 * ROUNDS, "the recorder must have seen the cells' own opens, and no other"
    assert shared(recorder.seen) == []
    print(f"{len(opened)} opens by {len({e.kernel for e in opened})} kernels in {took:.1f} s", file=sys.stderr)
    the_books_add_up(two_gpus)


# Runs as carol in a step beside alice's kernel that has a GPU: prints what it should not have got.
STRANGER = """
import ctypes, glob, os, re, socket, stat, subprocess, sys, time
alice, service, base = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
ports = [int(p) for p in sys.argv[4].split(",")]
libc = ctypes.CDLL(None, use_errno=True)
def got(what, attempt):
    try:
        if attempt():
            print("got", what, flush=True)
    except OSError:
        pass
def shown(path):
    try:
        return open(f"{path}/cmdline", "rb").read()
    except OSError:
        return b""
def owner(path):
    try:
        return os.stat(path).st_uid
    except OSError:
        return os.getuid()
def opened(path):
    return os.open(path, os.O_RDWR | os.O_NOCTTY) >= 0
def made(path, device):
    os.mknod(path, stat.S_IFCHR | 0o666, device)
    return opened(path)
TRY = "import os, stat, sys\\nfor f in (lambda: os.mknod('made', stat.S_IFCHR | 0o666, int(sys.argv[2])), " \\
      "lambda: os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY), lambda: open('v1/devices.allow', 'w').write('a')):" \\
      "\\n  try:\\n    f()\\n    print('got')\\n  except OSError: pass\\n"
for path in glob.glob(f"/dev/fakegpu-{os.environ['SLURMD_NODENAME']}-*"):
    device = os.stat(path).st_rdev
    got(f"open {path}", lambda: opened(path))
    got(f"mknod {path}", lambda: made("carols-own", device))
    mounts = "mkdir -p v1; mount -t cgroup -o devices none v1 2>/dev/null; "
    argv = ["unshare", "-UrmC", "sh", "-c", mounts + 'exec python3 -c "$0" "$@"', TRY, path, str(device)]
    got(f"namespaces {path}", lambda: "got" in subprocess.run(argv, capture_output=True, text=True).stdout)
pids = [p for p in glob.glob("/proc/[0-9]*") if owner(p) != os.getuid()]
hers = [int(p[6:]) for p in pids if owner(p) == alice]
assert hers
for pid in hers:
    got(f"ptrace {pid}", lambda: libc.ptrace(0x4206, pid, 0, 0) == 0)
    got(f"mem {pid}", lambda: open(f"/proc/{pid}/mem", "rb"))
    got(f"descriptors {pid}", lambda: any(libc.syscall(438, libc.syscall(434, pid, 0), n, 0) >= 0 for n in range(3, 40)))
for path in pids:
    got(f"environ {path}", lambda: open(f"{path}/environ", "rb").read())
    # Whoever starts the tests may have names like keys in his command line.
    argv = shown(path)
    if owner(path) in (alice, service) or base in argv:
        got(f"argv {argv[:20]}", lambda: re.search(rb"MUNGE:|[0-9a-f]{32}", argv))
print("tried", flush=True)
end, held, knocks = time.time() + 4, [], 0
while time.time() < end:
    for port in ports:
        knock = socket.socket()
        try:
            knock.connect(("127.0.0.1", port))
            knock.sendall(os.urandom(64))
            knocks += 1
        except OSError:
            pass
        held = [*held[-200:], knock]
print("knocked", knocks, flush=True)
"""


def test_a_stranger_on_the_node_gets_nothing(two_gpus: Cluster) -> None:
    with notebook(two_gpus, "alice") as alice:
        assert alice.execute(HOLD)["status"] == "ok"
        cell = alice.submit("%%gpu 1\nprint(use(10))")["cell"]
        until("alice has a GPU", lambda: two_gpus.steps("alice/"), 30)
        ports = listening(two_gpus.pids("bin/hop-front", "alice"))
        assert len(ports) >= 5
        script = two_gpus.base / "home/carol/stranger.py"
        script.write_text(STRANGER)
        script.chmod(0o644)
        argv = ["srun", "-Q", "-n1", "--mem=256", "python3", str(script), str(uid_of("alice"))]
        argv += [str(uid_of("gresshopper")), str(two_gpus.base), ",".join(map(str, ports))]
        pipe = subprocess.PIPE
        stranger = two_gpus.popen("carol", argv, stdout=pipe, stderr=subprocess.STDOUT)
        assert alice.wait(cell, 60)["status"] == "ok", "her cell goes on beside all that"
        out, _ = stranger.communicate(timeout=60)
    assert "tried" in out, out
    assert "got " not in out, out
    assert int(out.rsplit("knocked ", 1)[1]) > 100, out


def listening(pids: list[int]) -> list[int]:
    """The TCP ports on which these processes listen."""
    found = set()
    for pid in pids:
        links = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        sockets = {link[8:-1] for link in links if link.startswith("socket:")}
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.add(int(fields[1].split(":")[1], 16))
    return sorted(found)


def in_a_step(cluster: Cluster, tmp_path: Path) -> subprocess.Popen[str]:
    """The adversary, in a Slurm job of carol's on the pool's node."""
    script = cluster.base / "home/carol/adversary.py"
    script.write_text(ADVERSARY)
    os.chmod(script, 0o644)
    node = cluster.run("root", "squeue", "-h", "-t", "R", "-u", "gresshopper", "-o", "%N").split()[0]
    argv = ["srun", "-Q", "-w", node, "-n1", "--mem=64", "/usr/bin/python3", str(script), "60"]
    return cluster.popen("carol", argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def the_books_add_up(cluster: Cluster) -> None:
    """One row per lease; each lease a Slurm step with gres/gpu; per device no two at once."""
    rows = [r for r in cluster.hop("acct", "-a", "-X")["rows"] if r["start"] is not None and r["n_gpus"]]
    leases = [r["lease_id"] for r in rows]
    assert len(leases) == len(set(leases))
    sacct = cluster.run("root", "sacct", "-a", "-n", "-P", "-o", "JobID,AllocTRES")
    steps = {line.split("|")[0] for line in sacct.splitlines() if "gres/gpu=" in line}
    by_device: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        assert row["run"] + row["linger"] <= row["held"] + 1e-3, row
        assert row["slurm_job_id"] in steps, f"{row} is not among Slurm's steps"
        for gpu in row["gpus"].split(","):
            by_device.setdefault((row["node"], gpu), []).append((row["start"], row["start"] + row["held"]))
    for spans in by_device.values():
        spans.sort()
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start >= end - 1e-3
