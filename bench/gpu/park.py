"""The benchmark `park`: off the GPU and back on, on one machine, in a few minutes, without a network.

Prints one JSON line for each measured case on stdout (bench, case, ours, peer, peer_value, unit, n: the input of
`hop-bench record`). Checks, refusals and skips go to stderr and, with --out, to cases.json. Everything has a time
limit. Calls that the machine's sandbox forbids are named, and the rest goes on.

    park.py --hop PATH [--out DIR] [--sizes 1,4,16,64] [--parts PART,..] [--for S] [--host-gib N] [--fake DIR]
            [--uid UID]

--fake DIR: a dry run against the fakes of tests/fakes built in DIR, with tiny sizes; it measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
GIB = 1 << 30
#: No single request may take longer.
LIMIT_S = 180.0


#: Time for a killed process to go: a process stuck in the driver never does.
DYING_S = 10.0
OVER = "the time of the run was over"


class Failed(Exception):
    """A step failed; the text says which and how."""


class NotRun(Exception):
    """It couldn't be tried; the text says why."""


class Done(NamedTuple):
    """What a program said."""

    stdout: str
    stderr: str

    def report(self) -> dict[str, Any] | None:
        return json.loads(self.stdout.splitlines()[-1]) if self.stdout.strip() else None


def run(command: list[str], limit_s: float, env: dict[str, str], uid: int | None = None) -> Done:
    """Runs a program for a limited time, even a program beyond any kill."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, user=uid, group=uid
    )
    try:
        return Done(*process.communicate(timeout=limit_s))
    except subprocess.TimeoutExpired:
        end(process)
        raise too_long(f"{' '.join(command[:4])} has not ended", limit_s) from None


def too_long(what: str, after_s: float) -> Exception:
    """A hang, unless the run's end cut it short."""
    return Failed(f"{what} after {after_s:.0f} s: it hangs") if after_s >= LIMIT_S else NotRun(OVER)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(DYING_S)


class Subject:
    """A process of subjects.py."""

    def __init__(self, bench: Bench, *args: str, uid: int | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "subjects.py"), *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=bench.log,
            env=bench.env,
            user=uid,
            group=uid,
            text=True,
        )
        self.pid = self._process.pid
        self._bench = bench
        try:
            ready = self._read()
            if "absent" in ready:
                raise NotRun(f"{ready['absent']} isn't installed")
        except BaseException:
            self.close()
            raise

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        limit_s = self._bench.left()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(limit_s):
                raise too_long("the process has not answered", limit_s)
        line = self._process.stdout.readline()
        if not line:
            raise Failed(f"the process ended with {self._process.wait(DYING_S)} (see the log)")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """The whole answer: `ok` or `error`, and `seconds`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def get(self, do: str, **more: Any) -> Any:
        answer = self.ask(do, **more)
        if "ok" not in answer:
            raise Failed(f"{do}: {answer['error']}")
        return answer["ok"]

    def close(self) -> None:
        end(self._process)


class Bench:
    """One run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.hop = str(Path(options.hop).resolve())
        self.fake: Path | None = options.fake
        self._until = time.monotonic() + options.seconds
        self.host = ["--host-gib", str(options.host_gib)] if options.host_gib else []
        self.cases: list[dict[str, Any]] = []
        #: The machine that measures: the lines are recorded on another machine.
        self.machine = ""
        self.out: Path | None = options.out
        self.work = Path(tempfile.mkdtemp(prefix="park-"))
        self.log = open((self.out or self.work) / "subjects.log", "w")  # noqa: SIM115 - as long as the run
        runtime = self.work / "run"
        runtime.mkdir(mode=0o700)
        self.env = {**os.environ, "GRESSHOPPER_RUN_DIR": str(runtime), "GRESSHOPPER_HOP": self.hop}
        if self.fake is not None:
            self.env |= {
                "FAKE_GPU_DIR": str(self.fake / "gpu"),
                "GRESSHOPPER_LIBCUDA": str(self.fake / "libcuda.so.1"),
                "GRESSHOPPER_LIBNVML": str(self.fake / "libnvidia-ml.so.1"),
                "GRESSHOPPER_DEV_PREFIX": str(self.fake / "gpu/dev/nvidia"),
            }

    def left(self) -> float:
        """How long the next request may take."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise NotRun(OVER)
        return LIMIT_S if left > LIMIT_S else left

    # --- what is written ---

    def line(
        self, case: str, ours: float, unit: str = "s", n: int = 1, peer: tuple[str, float] | None = None
    ) -> None:
        name, value = peer if peer is not None else (None, None)
        measured = {
            "bench": "park",
            "case": case,
            "ours": ours,
            "peer": name,
            "peer_value": value,
            "unit": unit,
            "n": n,
            "machine": self.machine,
        }
        if self.fake is None:
            print(json.dumps(measured), flush=True)
        else:
            print(f"dry run, no measurement: {case} {ours:.6f} {unit}", file=sys.stderr)

    @contextmanager
    def case(self, name: str) -> Iterator[dict[str, Any]]:
        """Runs a check: it passes, fails, is forbidden or can't be tried, and never stops the others."""
        noted: dict[str, Any] = {"case": name, "result": "pass"}
        try:
            yield noted
        except Failed as error:
            noted |= {"result": "fail", "why": str(error)}
        except NotRun as error:
            noted |= {"result": "not run", "why": str(error)}
        except PermissionError as error:
            noted |= {"result": "forbidden", "why": f"this machine's sandbox forbids it: {error}"}
        except Exception as error:
            noted |= {"result": "fail", "why": f"{type(error).__name__}: {error}"}
        self.cases.append(noted)
        print(f"{noted['result']:<9} {name}  {noted.get('why', '')}", file=sys.stderr, flush=True)
        if self.out is not None:
            (self.out / "cases.json").write_text(json.dumps(self.cases, indent=1))

    # --- what is done ---

    @contextmanager
    def subject(self, *args: str, uid: int | None = None) -> Iterator[Subject]:
        subject = Subject(self, *args, uid=uid)
        try:
            yield subject
        finally:
            subject.close()

    def gpu(self, *args: str, uid: int | None = None) -> tuple[dict[str, Any] | None, str, float]:
        """`hop gpu ... --json`: the report, the messages, and the run time."""
        start = time.perf_counter()
        command = [self.hop, "gpu", *args, "--json", *self.host]
        done = run(command, self.left(), self.env, uid)
        return done.report(), done.stderr.strip(), time.perf_counter() - start

    def gpu_denied(self, *args: str) -> tuple[dict[str, Any] | None, str, float]:
        """The same by a process that can't open the device, as a take-back leaves a kernel's cgroup."""
        device = self.env.get("GRESSHOPPER_DEV_PREFIX", "/dev/nvidia") + "0"
        inner = 'mount --bind /dev/null "$1" && shift && exec "$@"'
        command = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            inner,
            "sh",
            device,
            self.hop,
            "gpu",
            *args,
            "--json",
            *self.host,
        ]
        done = run(command, self.left(), self.env)
        if not done.stdout.strip() and ("unshare" in done.stderr or "mount" in done.stderr):
            raise PermissionError(done.stderr.strip())
        return done.report(), done.stderr.strip(), 0.0

    def park(self, subject: Subject, *more: str) -> dict[str, Any]:
        report, said, seconds = self.gpu("park", str(subject.pid), *more)
        if report is None or report["outcome"] != "parked":
            raise Failed(f"park: {said or report}")
        return {**report, "wall_s": seconds}

    def unpark(self, subject: Subject) -> dict[str, Any]:
        report, said, seconds = self.gpu("unpark", str(subject.pid))
        if report is None or report["outcome"] != "unparked":
            raise Failed(f"unpark: {said or report}")
        return {**report, "wall_s": seconds}

    def agent(self, subject: Subject, op: str) -> dict[str, Any]:
        """Asks the process's own half, for rung (b) alone (docs/agent-wire.md)."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self.left())
            connection.connect(f"{self.env['GRESSHOPPER_RUN_DIR']}/process-{subject.pid}.sock")
            answered = connection.makefile("rb")
            answer: dict[str, Any] = {}
            for number, asked in enumerate(("hello", f"gpu.{op}")):
                text = json.dumps({"op": asked, "id": number, "body": {"version": 1}}).encode()
                connection.sendall(struct.pack(">II", len(text), 0) + text)
                size, _ = struct.unpack(">II", answered.read(8))
                answer = json.loads(answered.read(size))
        if "error" in answer:
            raise Failed(f"{op}: {answer['error']['message']}")
        ok: dict[str, Any] = answer["ok"]
        return ok

    def holder(self, size: int) -> list[str]:
        return ["fake", str(size)] if self.fake is not None else ["tensors", str(size)]


def same(before: Any, after: Any) -> None:
    if before != after:
        raise Failed(f"before {str(before)[:200]}, after {str(after)[:200]}")


# --- the rungs ---


def rung_a(bench: Bench) -> None:
    with bench.case("rung a: never touched CUDA"), bench.subject("idle") as subject:
        report = bench.park(subject)
        same("nothing", report["rung"])
        bench.line("a_out_s", report["wall_s"])


def driver_alone(bench: Bench, size: int, label: str) -> dict[str, float] | None:
    """Rung (c) of everything, without (b), and the machine's copy bandwidth."""
    with bench.case(f"rung c, {label}"):
        report, said, _ = bench.gpu("bench", "--size", str(size / GIB), "--timeout", "170")
        if report is None:
            raise Failed(said)
        bench.line(f"c_{label}_out_s", report["out_s"], peer=("copy", report["copy_out_s"]))
        bench.line(f"c_{label}_in_s", report["in_s"], peer=("copy", report["copy_in_s"]))
        bench.line(f"pin_{label}_s", report["pin_s_per_gib"] * size / GIB)
        return {"out": report["copy_out_s"], "in": report["copy_in_s"]}
    return None


def copy_out(bench: Bench, size: int, label: str, copy: dict[str, float] | None) -> None:
    """Rung (b) alone, then (b) and (c), in one process; the first park page-locks, and the others find the memory
    locked."""
    with bench.case(f"rung b and b+c, {label}") as noted, bench.subject(*bench.holder(size)) as subject:
        before = subject.get("digest")
        moved = [(bench.agent(subject, "out")["moved"], bench.agent(subject, "in")["moved"]) for _ in range(4)]
        same(before, subject.get("digest"))
        bench.line(f"b_{label}_pin_s", moved[0][0]["pin_s"])
        out_s = min(out["copy_s"] for out, _ in moved[1:])
        in_s = min(back["copy_s"] for _, back in moved[1:])
        peer_out, peer_in = (("copy", copy["out"]), ("copy", copy["in"])) if copy else (None, None)
        bench.line(f"b_{label}_out_s", out_s, n=3, peer=peer_out)
        bench.line(f"b_{label}_in_s", in_s, n=3, peer=peer_in)
        if copy:
            bench.line(f"b_{label}_copy_bandwidth_share", copy["out"] / out_s, "share", n=3)
        report = bench.park(subject, "--rung", "copy-out")
        noted["calls_out"] = report["log"]["calls"]
        back = bench.unpark(subject)
        noted["calls_in"] = back["log"]["calls"]
        same(before, subject.get("digest"))
        bench.line(f"b+c_{label}_out_s", report["wall_s"], peer=("b", out_s))
        bench.line(f"b+c_{label}_in_s", back["wall_s"], peer=("b", in_s))


# --- a notebook that trains, while somebody else uses the whole GPU ---


def training(bench: Bench, cells: int = 6) -> None:
    with bench.case("training parked after each cell equals the undisturbed run to the bit"):
        with bench.subject("trainer") as plain:
            for _ in range(cells):
                plain.get("cell")
            expected = plain.get("result")
        with bench.subject("trainer") as parked, bench.subject("hog") as other:
            for _ in range(cells):
                parked.get("cell")
                bench.park(parked)
                same(3.0, other.get("work"))
                bench.unpark(parked)
            same(expected, parked.get("result"))


# --- what the user's code sees ---


def sentences(bench: Bench, subject: Subject, do: str) -> None:
    """Without a lease a touch fails at once, with a sentence; with a lease the code goes on."""
    before = subject.get("digest")
    bench.park(subject)
    answer = subject.ask(do)
    if "GpuUnavailable" not in answer.get("error", ""):
        raise Failed(f"no sentence but {answer}")
    if answer["seconds"] > 1:
        raise Failed(f"the sentence came after {answer['seconds']:.1f} s")
    subject.get("lease", lease=True, hop=bench.hop)
    same(before, subject.get("digest"))


def user_cases(bench: Bench) -> None:
    with bench.case("a touch of parked memory"), bench.subject(*bench.holder(1 << 24)) as subject:
        sentences(bench, subject, "digest" if bench.fake else "touch")
    if bench.fake is not None:
        return
    with bench.case("torch.cuda.is_available() while parked"), bench.subject("tensors", str(1 << 24)) as subject:
        sentences(bench, subject, "ask")
    for kind in ("streams", "compiled", "pinned", "autograd", "loader", "cupy", "jax-platform"):
        with bench.case(f"{kind}: parked and back") as noted, bench.subject("special", kind) as subject:
            noted["rung"] = there_and_back(bench, subject)
    for kind, reason in (("graph", "CUDA graph"), ("loader-pin", "pin_memory=True"), ("jax", "jax arrays")):
        name = f"{kind}: refused by name for (b), the driver takes everything"
        with bench.case(name), bench.subject("special", kind) as subject:
            refused_then_driver(bench, subject, reason)
    with bench.case("a thread that touches parked memory"), bench.subject("special", "thread") as subject:
        bench.park(subject)
        alive, *found = subject.get("let")
        if alive or "GpuUnavailable" not in str(found):
            raise Failed(f"alive: {alive}, found: {found}")
    for who in ("guard", "bare"):
        with (
            bench.case(f"a GPU gained after an early question, {who} first") as noted,
            bench.subject("late", who) as subject,
        ):
            noted["answers"] = subject.get("use")
            if who == "guard":
                same([True, 3.0], noted["answers"][1:])
    for framework in ("jax", "cupy"):
        with (
            bench.case(f"a GPU gained after {framework}'s early question is usable, or refused by name") as noted,
            bench.subject("late", framework) as subject,
        ):
            noted["answers"] = subject.get("use")
            first, then, said = noted["answers"]
            same(False, first)
            if not then and "Restart the kernel" not in said:
                raise Failed(f"not usable, and no sentence: {said!r}")


def there_and_back(bench: Bench, subject: Subject) -> str:
    before = subject.get("digest")
    rung: str = bench.park(subject)["rung"]
    bench.unpark(subject)
    same(before, subject.get("digest"))
    return rung


def refused_then_driver(bench: Bench, subject: Subject, reason: str) -> None:
    before = subject.get("digest")
    report = bench.park(subject)
    same("checkpoint", report["rung"])
    if reason not in json.dumps(report["passed_over"]):
        raise Failed(f"{reason!r} is not among the reasons: {report['passed_over']}")
    bench.unpark(subject)
    same(before, subject.get("digest"))


# --- privilege, and room ---


def privilege(bench: Bench, uid: int) -> None:
    """Whether the driver lets an owner without privilege checkpoint, and the helper where it doesn't."""
    if os.geteuid() != 0:
        with bench.case("unprivileged checkpoint"):
            raise PermissionError("only root can be two users")
        return
    runtime = Path(tempfile.mkdtemp(prefix="park-user-"))
    os.chown(runtime, uid, uid)
    mine, bench.env = bench.env, {**bench.env, "GRESSHOPPER_RUN_DIR": str(runtime), "HOME": str(runtime)}
    try:
        with (
            bench.case("checkpoint by an unprivileged owner") as noted,
            bench.subject(*bench.holder(1 << 24), uid=uid) as subject,
        ):
            before = subject.get("digest")
            report, said, _ = bench.gpu("park", str(subject.pid), "--rung", "checkpoint", uid=uid)
            noted["allowed"] = bool(report and report["outcome"] == "parked")
            noted["said"] = said
            if noted["allowed"]:
                bench.gpu("unpark", str(subject.pid), uid=uid)
            same(before, subject.get("digest"))
        helper = shutil.which("hop-gpu-helper", path=str(Path(bench.hop).parent))
        with (
            bench.case("the same through the helper") as noted,
            bench.subject(*bench.holder(1 << 24), uid=uid) as subject,
        ):
            if helper is None:
                raise Failed("hop-gpu-helper doesn't lie beside hop")
            through_helper(bench, helper, subject, uid, noted)
    finally:
        bench.env = mine
        shutil.rmtree(runtime, ignore_errors=True)


def denied(bench: Bench) -> None:
    """Whether a process that may not open the device any more can still be asked to park another, and by whom."""
    with (
        bench.case("parked by a process that can't open the device") as noted,
        bench.subject(*bench.holder(1 << 24)) as subject,
    ):
        before = subject.get("digest")
        report, said, _ = bench.gpu_denied("park", str(subject.pid))
        noted["allowed"] = bool(report and report["outcome"] == "parked")
        noted["said"] = said
        if noted["allowed"]:
            bench.unpark(subject)
        same(before, subject.get("digest"))


def through_helper(bench: Bench, helper: str, subject: Subject, uid: int, noted: dict[str, Any]) -> None:
    path = bench.work / "helper" / "gpu-helper.sock"
    bench.work.chmod(0o755)
    command = [helper, "--socket", str(path)]
    if bench.fake is not None:
        command += ["--libcuda", bench.env["GRESSHOPPER_LIBCUDA"]]
    process = subprocess.Popen(command, env=bench.env, stderr=bench.log, text=True)
    # The fake lets an owner checkpoint unless it is told not to.
    needs_root = bench.fake / "gpu/needs_root" if bench.fake is not None else None
    try:
        if needs_root is not None:
            needs_root.write_text("")
        for _ in range(200):
            if path.exists():
                break
            time.sleep(0.05)
        before = subject.get("digest")
        report, said, _ = bench.gpu("park", str(subject.pid), "--rung", "checkpoint", "--helper", str(path), uid=uid)
        if not report or report["outcome"] != "parked":
            raise Failed(said)
        report, said, _ = bench.gpu("unpark", str(subject.pid), "--helper", str(path), uid=uid)
        if not report or report["outcome"] != "unparked":
            raise Failed(said)
        same(before, subject.get("digest"))
        noted["calls_in"] = report["log"]["calls"]
    finally:
        if needs_root is not None:
            needs_root.unlink(missing_ok=True)
        end(process)


def without_room(bench: Bench, size: int) -> None:
    """A restore without room must wait, not be stuck for ever."""
    with bench.case("no room for the restore"), bench.subject(*bench.holder(size)) as subject:
        before = subject.get("digest")
        bench.park(subject)
        if bench.fake is not None:
            others = bench.fake / "gpu/others"
            others.write_text(str(GIB))
            report, _, _ = bench.gpu("unpark", str(subject.pid))
            others.unlink()
        else:
            with bench.subject("hog") as other:
                other.get("keep")
                report, _, _ = bench.gpu("unpark", str(subject.pid))
        same("still-parked", report and report["outcome"])
        bench.unpark(subject)
        same(before, subject.get("digest"))


def machine(status: dict[str, Any]) -> str:
    """The machine, as `hop-bench` writes it, and its GPUs by `hop gpu status`."""
    nvml = status["nvml"]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    gpus = ", ".join(device["name"] for device in nvml["devices"])
    return f"{os.cpu_count()} cores, {memory} GiB, {gpus}, driver {nvml['driver']}, Linux {os.uname().release}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Off the GPU and back on: measured and checked.")
    parser.add_argument("--hop", required=True, help="the hop binary")
    parser.add_argument("--out", type=Path, help="where cases.json and the log go")
    parser.add_argument("--sizes", default="1,4,16,64", help="GB, with commas")
    parser.add_argument("--fake", type=Path, help="dry run: the directory where tests/fakes/build.sh built the fakes")
    parser.add_argument("--parts", help="only these, with commas: idle,training,cases,privilege,room,sizes")
    parser.add_argument(
        "--for", type=float, default=3600, dest="seconds", help="what hasn't begun by then isn't begun"
    )
    parser.add_argument("--host-gib", type=int, help="host memory, where /proc/meminfo shows less at first")
    parser.add_argument("--uid", type=int, default=65534, help="the unprivileged user")
    options = parser.parse_args()
    bench = Bench(options)
    with bench.case("hop gpu status"):
        report, said, _ = bench.gpu("status")
        if report is None:
            raise Failed(said)
        print(json.dumps(report), file=sys.stderr)
        bench.machine = machine(report)
    sizes = (
        [(1 << 22, "tiny"), (1 << 24, "small")]
        if bench.fake
        else [(int(float(s) * 1e9), f"{s}GB") for s in options.sizes.split(",")]
    )
    # The most decisive parts come first: if the time runs out, only the largest size is missing.
    parts = {
        "idle": lambda: rung_a(bench),
        "training": lambda: training(bench) if bench.fake is None else None,
        "cases": lambda: user_cases(bench),
        "privilege": lambda: [denied(bench), privilege(bench, options.uid)],
        "room": lambda: without_room(bench, sizes[0][0] if bench.fake else 80 * 10**9),
        "sizes": lambda: [copy_out(bench, n, label, driver_alone(bench, n, label)) for n, label in sizes],
    }
    wanted = options.parts.split(",") if options.parts else list(parts)
    if not set(wanted) <= parts.keys():
        parser.error(f"--parts: {options.parts!r} is not of {','.join(parts)}")
    for part in wanted:
        parts[part]()
    bad = [noted["case"] for noted in bench.cases if noted["result"] == "fail"]
    shutil.rmtree(bench.work, ignore_errors=True)
    if bad:
        print(f"park: {len(bad)} of {len(bench.cases)} checks failed: {', '.join(bad)}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
