"""bench `replay`: hours of a real trace at 30 times the speed on the dev cluster, and in the simulator.

For each hour, the simulator's example `live_replay` cuts the hour out of the trace. The example drops sessions by seed
until all sessions open at once ask for no more GPUs than four nodes of 8 have. A waiting cell then waits for a place,
not for a GPU. Each remaining session has a real kernel, opened beforehand in the order of names. It submits its cells
at the trace's times through the real hopd, agents and lease steps of Slurm. Cells sleep, to spare this machine's cores;
only the GPU's device file is a fake.

The hour runs in three ways. The kernel of `one_off` has a single replica and stays on the node. In `one_on` policy
moves the single replica; in `three` the kernel has three replicas. The pool's `takes_s` and `margin_s` are 1 and 0, as
time is short here. Pilots stay.

The simulator then gets the same sessions, with this run's latencies from hopd's log: from a lease's order to its start,
from the order of its end to the end, from a submission to its arrival at hopd with the time from the grant to the
cell's first instruction, and from the order of a move to the new executor's report, in a new seat and in a standby's.

In both, GPU-hours held are from the order of a lease to its end. A delay is from the submission, by the person's
clock, to the cell's first instruction. A cell is granted at once if it was never queued. Prints a measured line per
case (see hop-bench). Ours is the live run, the peer the simulator (mean of ten seeds of its latencies). In `moves_p99`
and `three_p99` the peer is the live run without moves.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests/e2e")]
from figures import percentile  # noqa: E402
from harness import HUB_PYTHON, REPO, Cluster, Failed, until  # noqa: E402

TRACE = "/work/shared/data/adobe-june-2021.csv"
# Hours of the month in which the most cells are submitted, once sessions are dropped.
HOURS = (719, 50)
SPEED = 30.0
NODES, GPUS, LINGER = 4, 8, 2.0
SEEDS = 10
SPEC = "replay"
# As policy moves kernels here; by default a move has to save 5 s, and is expected to take 10.
MOVES = {"takes_s": 1, "margin_s": 0}


@dataclasses.dataclass(frozen=True)
class Way:
    name: str
    replicas: int
    moves: bool


WAYS = (Way("one_off", 1, False), Way("one_on", 1, True), Way("three", 3, True))

Cells = dict[str, list[dict[str, Any]]]


def simulator(*argv: str, given: str | None = None) -> list[dict[str, Any]]:
    program = os.environ.get("LIVE_REPLAY")
    cargo = ["cargo", "run", "-q", "--release", "--locked", "-p", "hop-sim", "--example", "live_replay", "--"]
    command = [program] if program else cargo
    done = subprocess.run([*command, *argv], input=given, capture_output=True, text=True, check=False, cwd=REPO)
    if done.returncode != 0:
        raise SystemExit(f"the simulator failed: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def cut(args: argparse.Namespace, hour: float) -> list[dict[str, Any]]:
    """The hour's sessions by name, with their users and cells; seconds from its start."""
    sessions: dict[str, dict[str, Any]] = {}
    for line in simulator("cut", args.trace, str(hour), str(args.seed), str(args.speed)):
        new = {"id": line["session"], "user": line["user"], "cells": []}
        session = sessions.setdefault(line["session"], new)
        session["cells"].append({key: line[key] for key in ("submit", "run", "gpus")})
    return [sessions[name] for name in sorted(sessions)]


class People:
    """One user's people: `people.py` as that user."""

    def __init__(self, cluster: Cluster, user: str, program: Path) -> None:
        self.log = cluster.base / "log" / f"people-{user}.log"
        self.process = cluster.popen(
            user,
            [HUB_PYTHON, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            bufsize=1,
        )

    def tell(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"the driver ended: {self.log.read_text()[-3000:]}")
        return json.loads(line)

    def ask(self, **request: Any) -> Any:
        self.tell(**request)
        return self.hear()


def opened(cluster: Cluster, count: int, replicas: int) -> bool:
    """So many kernels are open, with all their replicas."""
    rows = cluster.hop("kernels", "-a")["rows"]
    return len(rows) == count and all(row["replicas"] == replicas for row in rows)


def live(
    cluster: Cluster, people: dict[str, People], sessions: list[dict[str, Any]], replicas: int
) -> tuple[float, Cells]:
    """Runs an hour; returns the start of its clock, and the results of each session's cells."""
    for count, session in enumerate(sessions, 1):
        people[session["user"]].ask(op="open", session=session["id"], spec=SPEC)
        # The next one finds these in place, as in the simulator.
        until("the kernel is there", functools.partial(opened, cluster, count, replicas), 60, every=0.3)
    # The kernels' starts are over.
    time.sleep(5)
    start = time.time() + 2
    for user, those in people.items():
        cells = {s["id"]: s["cells"] for s in sessions if s["user"] == user}
        those.tell(op="go", start=start, cells=cells)
    done: Cells = {}
    for those in people.values():
        done.update(those.hear())
    for session in sessions:
        if len(done[session["id"]]) != len(session["cells"]):
            raise Failed(f"session {session['id']} is not through: {people[session['user']].log.read_text()[-3000:]}")
    until("no lease is left", cluster.quiet, 30)
    for those in people.values():
        those.ask(op="close")
    return start, done


class Log:
    """Inputs and outputs of hopd's core, from hopd's log and by hopd's clock; seconds since the epoch."""

    def __init__(self, path: Path) -> None:
        self.ordered: dict[str, tuple[float, int]] = {}
        self.ending: dict[str, float] = {}
        self.begun: dict[str, float] = {}
        self.over: dict[str, float] = {}
        self.heard: dict[str, float] = {}
        self.granted: dict[str, float] = {}
        self.queued: set[str] = set()
        #: Orders of moves by kernel and new incarnation, and when the kernel was there and whole.
        self.move: dict[tuple[str, str], float] = {}
        self.there: dict[tuple[str, str], float] = {}
        self.settled: set[tuple[str, str]] = set()
        for line in path.read_text().splitlines():
            # A log whose writer took it for a terminal's has colours.
            words = re.sub(r"\x1b\[[0-9;]*m", "", line)
            found = re.match(r"(\S+Z)\s+DEBUG.*? (input|output)=(\w+)(.*)", words)
            if found:
                self._take(datetime.fromisoformat(found[1]).timestamp(), found[3], found[4])

    def _take(self, at: float, kind: str, rest: str) -> None:
        lease = re.search(r"\blease: LeaseId\((\d+)\)", rest)
        cell = re.search(r'\bcell: CellId\("([^"]+)"\)', rest)
        if kind == "StartLease" and lease:
            gpus = re.search(r"\bgpus: (\d+)", rest)
            self.ordered[lease[1]] = (at, int(gpus[1]) if gpus else 0)
            self.settled.update(move for move in self.there if move[0] in rest)
        elif kind == "EndLease" and lease:
            self.ending.setdefault(lease[1], at)
        elif kind == "LeaseStarted" and lease:
            self.begun.setdefault(lease[1], at)
        elif kind == "LeaseEnded" and lease:
            self.over.setdefault(lease[1], at)
        elif kind == "Submit" and cell:
            self.heard.setdefault(cell[1], at)
        elif kind == "Granted" and cell:
            self.granted[cell[1]] = at
        elif kind == "Queued" and cell:
            self.queued.add(cell[1])
        elif kind in ("Migrate", "ReplicaUp"):
            self._move(at, kind, rest)

    def _move(self, at: float, kind: str, rest: str) -> None:
        kernel = re.search(r'\bkernel: KernelId\("([^"]+)"\)', rest)
        incarnation = re.search(r"\bincarnation: Incarnation\((\d+)\)", rest)
        if kernel is None or incarnation is None:
            return
        move = kernel[1], incarnation[1]
        if kind == "Migrate":
            self.move[move] = at
        elif move in self.move and move not in self.settled:
            # A replica taking over is up twice: with the tenure, and with the variables. Later reports tell of others.
            self.there[move] = at

    def moved(self) -> list[float]:
        """How long each move took that was carried out."""
        return [there - self.move[move] for move, there in self.there.items()]

    def held_hours(self, since: float, to: float) -> float:
        leases = [(at, lease, gpus) for lease, (at, gpus) in self.ordered.items() if since <= at < to]
        return sum(gpus * (self.over[lease] - at) for at, lease, gpus in leases) / 3600


def spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {"p50": 0.0, "p99": 0.0}
    return {"p50": round(max(statistics.median(values), 0.0), 6), "p99": round(max(percentile(values, 0.99), 0.0), 6)}


def reuse(nodes: list[list[Any]]) -> list[bool]:
    """Whether each cell ran where its session's last one did."""
    return [here == before for those in nodes for before, here in itertools.pairwise(those)]


def latencies(log: Log, start: float, to: float, done: Cells, replicas: int) -> dict[str, Any]:
    """As the simulator takes them."""
    leases = [lease for lease, (at, _) in log.ordered.items() if start <= at < to]
    messages = []
    for cells in done.values():
        for cell in cells:
            hopd_knows = log.heard[cell["cell"]] - cell["submitted"]
            messages.append(hopd_knows + cell["began"] - log.granted[cell["cell"]])
    return {
        "lease": spread([log.begun[lease] - log.ordered[lease][0] for lease in leases if lease in log.begun]),
        "take_back": spread([log.over[lease] - log.ending[lease] for lease in leases if lease in log.ending]),
        "message": spread(messages),
        # A move to a new seat is measured as a whole, with the restore in it. A standby's election is a restore alone.
        "replica": spread(log.moved() if replicas == 1 else []),
        "restore": spread(log.moved() if replicas > 1 else []),
        # These kernels have nothing to park, and little to copy.
        "vram_gb": {"p50": 0.0, "p99": 0.0},
        "state_gb": {"p50": 0.0, "p99": 0.0},
    }


def run(
    cluster: Cluster, people: dict[str, People], hour: float, way: Way, args: argparse.Namespace
) -> dict[str, Any]:
    sessions = cut(args, hour)
    load = os.getloadavg()[0]
    start, done = live(cluster, people, sessions, way.replicas)
    to = time.time()
    time.sleep(1)
    log = Log(cluster.base / "log/hopd.log")
    cells = [cell for those in done.values() for cell in those]
    latency = latencies(log, start, to, done, way.replicas)
    migrate = MOVES if way.moves else None
    job = {"latency": latency, "linger_s": LINGER, "replicas": way.replicas, "migrate": migrate, "seeds": SEEDS}
    runs = simulator("run", given=json.dumps({**job, "sessions": sessions}))
    found = {
        "hour": hour,
        "way": way.name,
        "load": [load, os.getloadavg()[0]],
        "latency": latency,
        "live": {
            "held": log.held_hours(start, to),
            "moves": len(log.there),
            "moved": log.moved(),
            "delays": [cell["began"] - cell["submitted"] for cell in cells],
            "immediate": [cell["cell"] not in log.queued for cell in cells],
            "reused": reuse([[cell["node"] for cell in those] for those in done.values()]),
        },
        "simulated": [
            {
                "held": run["held_h"],
                "moves": run["moves"],
                "delays": [cell["delay"] for cell in run["cells"]],
                "immediate": [cell["immediate"] for cell in run["cells"]],
                "reused": [cell["reused"] for cell in run["cells"] if cell["reused"] is not None],
            }
            for run in runs
        ],
    }
    if args.keep:
        stem = f"{way.name}-{hour}"
        Path(args.keep, f"hopd-{stem}.log").write_bytes((cluster.base / "log/hopd.log").read_bytes())
        keep = {**found, "start": start, "done": done, "plan": sessions, "runs": runs}
        Path(args.keep, f"{stem}.json").write_text(json.dumps(keep))
    say(found)
    return found


def figures(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Of all hours together."""
    delays = [delay for run in runs for delay in run["delays"]]
    return {
        "held": sum(run["held"] for run in runs),
        "delay_p50": statistics.median(delays),
        "delay_p90": percentile(delays, 0.9),
        "delay_p99": percentile(delays, 0.99),
        "delay_mean": statistics.mean(delays),
        "immediate": statistics.mean(each for run in runs for each in run["immediate"]),
        "reused": statistics.mean(each for run in runs for each in run["reused"]),
        "moves": sum(run["moves"] for run in runs),
    }


def both(hours: list[dict[str, Any]]) -> tuple[dict[str, float], dict[str, float]]:
    """The live figures, and the mean of the simulated ones; seed by seed, a run of all hours."""
    seeds = [figures([hour["simulated"][seed] for hour in hours]) for seed in range(SEEDS)]
    live = figures([hour["live"] for hour in hours])
    return live, {name: statistics.mean(seed[name] for seed in seeds) for name in live}


def say(found: dict[str, Any]) -> None:
    live, simulated = both([found])
    print(
        f"hour {found['hour']}, {found['way']}: {len(found['live']['delays'])} cells, load {found['load']}",
        file=sys.stderr,
    )
    for name, value in live.items():
        print(f"  {name} {value:.4f}, simulated {simulated[name]:.4f}", file=sys.stderr)
    print(f"  latencies {json.dumps(found['latency'])}", file=sys.stderr, flush=True)


UNITS = {"held": "GPU-h", "immediate": "share", "reused": "share", "moves": "moves"}


def line(case: str, ours: float, peer: str | None, value: float | None, n: int) -> None:
    unit = next((unit for name, unit in UNITS.items() if case.endswith(f"_{name}")), "s")
    row = {"bench": "replay", "case": case, "ours": round(ours, 4), "peer": peer, "unit": unit, "n": n}
    print(json.dumps({**row, "peer_value": value and round(value, 4)}), flush=True)


def report(ways: dict[str, list[dict[str, Any]]]) -> None:
    p99 = {}
    for way, hours in ways.items():
        live, simulated = both(hours)
        n = sum(len(hour["live"]["delays"]) for hour in hours)
        for name, value in live.items():
            line(f"{way}_{name}", value, "simulator", simulated[name], n)
        took = [span for hour in hours for span in hour["live"]["moved"]]
        if took:
            line(f"{way}_move_p50", statistics.median(took), None, None, len(took))
            line(f"{way}_move_p99", percentile(took, 0.99), None, None, len(took))
        p99[way] = live["delay_p99"], n
    for case, way in (("moves_p99", "one_on"), ("three_p99", "three")):
        if way in p99 and "one_off" in p99:
            ours, n = p99[way]
            line(case, ours, "one replica, no moves", p99["one_off"][0], n)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", default=TRACE)
    parser.add_argument("--hours", type=float, nargs="+", default=HOURS)
    parser.add_argument("--speed", type=float, default=SPEED)
    parser.add_argument("--ways", nargs="+", choices=[way.name for way in WAYS], default=[way.name for way in WAYS])
    parser.add_argument("--quick", action="store_true", help="one hour at 60 times the speed, to try it out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--base", default="/srv/gresshopper-bench")
    parser.add_argument("--index", type=int, default=9)
    parser.add_argument("--keep", help="a folder for everything that was measured")
    args = parser.parse_args()
    if args.quick:
        args.hours, args.speed = HOURS[:1], 60.0
    ways = [way for way in WAYS if way.name in args.ways]
    report({way.name: [measure(args, hour, way) for hour in args.hours] for way in ways})


def measure(args: argparse.Namespace, hour: float, way: Way) -> dict[str, Any]:
    """On a cluster of its own, whose fair share remembers nobody."""
    options = ("--nodes", str(NODES), "--gpus-per-node", str(GPUS))
    moves = ", ".join(f"{name} = {value}" for name, value in MOVES.items())
    deploy = {"PILOTS": str(NODES), "GPUS_PER_PILOT": str(GPUS), "CPUS_PER_PILOT": "16"}
    deploy |= {"LINGER_MS": str(int(LINGER * 1000)), "GRESSHOPPER_LOG": "debug"}
    deploy |= {"REPLICAS": str(way.replicas), "MIGRATE": f"{{ {moves} }}" if way.moves else "false"}
    cluster = Cluster(args.base, args.index, "auto", *options, **deploy)
    try:
        cluster.up()
        # Nobody knows beforehand what the cells will ask for; nor does the simulator.
        spec = ["kernelspec", "install", "--name", SPEC, "--gpus", "1", "--mem", "300"]
        where = ["--prefix", str(cluster.base / "opt"), "--python", "/opt/gresshopper-dev/user/bin/python"]
        cluster.run("root", "hop", *spec, *where)
        program = cluster.lend("bench/replay/people.py")
        people = {user: People(cluster, user, program) for user in ("alice", "bob", "carol")}
        return run(cluster, people, hour, way, args)
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
