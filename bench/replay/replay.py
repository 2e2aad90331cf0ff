"""bench `replay`: hours of a real trace at 60 times the speed on the dev cluster, and in the simulator.

For each hour, the simulator's example `live_replay` cuts the hour out of the trace. It drops sessions by seed until
four nodes of 8 GPUs are just too few. Each remaining session then has a real kernel, opened beforehand in the order
of names. It submits its cells at the trace's times through the real hopd, agents and lease steps of Slurm. Cells sleep,
to spare this machine's cores; only the GPU's device file is a fake.

The simulator then gets the same sessions, with this run's latencies from hopd's log. The figures are: from a lease's
order to its start, from the order of its end to the end, from a submission to its arrival at hopd, and from the grant
to the cell's first instruction. Kernels have one replica, nothing migrates, and pilots stay.

In both, GPU-hours held are from the order of a lease to its end. A delay is from the submission, by the person's
clock, to the cell's first instruction. A cell has waited if it was delayed by more than half a second. Prints a
measured line per case (see hop-bench): ours is the live run, the peer the simulator (mean of ten seeds of its
latencies).
"""

from __future__ import annotations

import argparse
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/e2e"))
from harness import HUB_PYTHON, REPO, Cluster, Failed, until

TRACE = "/work/shared/data/adobe-june-2021.csv"
# Hours of the month with the most submissions, once sessions are dropped (215 and 216 are alike).
HOURS = (719, 50, 216)
NODES, GPUS, LINGER = 4, 8, 2.0
SEEDS = 10
WAITS = 0.5

Cells = dict[str, list[dict[str, Any]]]


def simulator(*argv: str, given: str | None = None) -> list[dict[str, Any]]:
    program = os.environ.get("LIVE_REPLAY")
    cargo = ["cargo", "run", "-q", "--release", "--locked", "-p", "hop-sim", "--example", "live_replay", "--"]
    command = [program] if program else cargo
    done = subprocess.run([*command, *argv], input=given, capture_output=True, text=True, check=False, cwd=REPO)
    if done.returncode != 0:
        raise SystemExit(f"the simulator failed: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def cut(trace: str, hour: float, seed: int) -> list[dict[str, Any]]:
    """The hour's sessions by name, with their users and cells; seconds from its start, 60 times as fast."""
    sessions: dict[str, dict[str, Any]] = {}
    for line in simulator("cut", trace, str(hour), str(seed)):
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


def spec_of(session: dict[str, Any]) -> str:
    return f"gpus{max(cell['gpus'] for cell in session['cells'])}"


def live(cluster: Cluster, people: dict[str, People], sessions: list[dict[str, Any]]) -> tuple[float, Cells]:
    """Runs an hour; returns the start of its clock, and the results of each session's cells."""
    for session in sessions:
        people[session["user"]].ask(op="open", session=session["id"], spec=spec_of(session))
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
        self.granted: dict[str, tuple[float, str, bool]] = {}
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
        elif kind == "EndLease" and lease:
            self.ending.setdefault(lease[1], at)
        elif kind == "LeaseStarted" and lease:
            self.begun.setdefault(lease[1], at)
        elif kind == "LeaseEnded" and lease:
            self.over.setdefault(lease[1], at)
        elif kind == "Submit" and cell:
            self.heard.setdefault(cell[1], at)
        elif kind == "Granted" and cell and lease:
            self.granted[cell[1]] = (at, lease[1], "lingering: true" in rest)

    def held_hours(self, since: float, to: float) -> float:
        leases = [(at, lease, gpus) for lease, (at, gpus) in self.ordered.items() if since <= at < to]
        return sum(gpus * (self.over[lease] - at) for at, lease, gpus in leases) / 3600


def share(delays: list[float]) -> float:
    """Of the cells that waited."""
    return statistics.mean(delay > WAITS for delay in delays)


def of_waiters(delays: list[float]) -> float:
    return statistics.median([delay for delay in delays if delay > WAITS])


def quantile(values: list[float], at: float) -> float:
    return sorted(values)[min(len(values) - 1, int(at * len(values)))]


def spread(values: list[float]) -> dict[str, float]:
    return {"p50": round(statistics.median(values), 6), "p99": round(quantile(values, 0.99), 6)}


def latencies(log: Log, start: float, to: float, done: Cells) -> dict[str, Any]:
    """As the simulator takes them."""
    leases = [lease for lease, (at, _) in log.ordered.items() if start <= at < to]
    messages = []
    for cells in done.values():
        for cell in cells:
            hopd_knows = log.heard[cell["cell"]] - cell["submitted"]
            messages.append(hopd_knows + cell["began"] - log.granted[cell["cell"]][0])
    return {
        "lease": spread([log.begun[lease] - log.ordered[lease][0] for lease in leases if lease in log.begun]),
        "take_back": spread([log.over[lease] - log.ending[lease] for lease in leases if lease in log.ending]),
        "message": spread(messages),
        # These kernels have nothing to park.
        "vram_gb": {"p50": 0.0, "p99": 0.0},
    }


def run(cluster: Cluster, people: dict[str, People], hour: float, args: argparse.Namespace) -> dict[str, Any]:
    sessions = cut(args.trace, hour, args.seed)
    load = os.getloadavg()[0]
    begun = time.time()
    start, done = live(cluster, people, sessions)
    to = time.time()
    time.sleep(1)
    booked = [row for row in cluster.hop("acct", "-a")["rows"] if row.get("cell") is None]
    if args.keep:
        Path(args.keep, f"acct-{hour}.json").write_text(json.dumps(booked))
    log = Log(cluster.base / "log/hopd.log")
    cells = [cell for those in done.values() for cell in those]
    delays = [cell["began"] - cell["submitted"] for cell in cells]
    latency = latencies(log, start, to, done)
    job = {"latency": latency, "linger_s": LINGER, "seeds": SEEDS, "sessions": sessions}
    runs = simulator("run", given=json.dumps(job))
    found = {
        "hour": hour,
        "sessions": len(sessions),
        "used": sum(c["gpus"] * c["run"] for s in sessions for c in s["cells"]) / 3600,
        "held": log.held_hours(start, to),
        "delays": delays,
        "sim_held": [run["held_h"] for run in runs],
        "sim_delays": [[cell["delay"] for cell in run["cells"]] for run in runs],
        "latency": latency,
        "load": [load, os.getloadavg()[0]],
        "opening_s": start - begun,
        "replied": [cell["replied"] - cell["ended"] for cell in cells],
    }
    if args.keep:
        Path(args.keep, f"hopd-{hour}.log").write_bytes((cluster.base / "log/hopd.log").read_bytes())
        keep = {**found, "start": start, "done": done, "plan": sessions, "runs": runs}
        Path(args.keep, f"hour-{hour}.json").write_text(json.dumps(keep))
    say(found)
    return found


def say(found: dict[str, Any]) -> None:
    live_p50 = statistics.median(found["delays"])
    sim_p50 = statistics.mean(statistics.median(run) for run in found["sim_delays"])
    p90s = quantile(found["delays"], 0.9), statistics.mean(quantile(run, 0.9) for run in found["sim_delays"])
    sim_held = statistics.mean(found["sim_held"])
    waited = share(found["delays"]), statistics.mean(map(share, found["sim_delays"]))
    lines = [
        f"hour {found['hour']}: {found['sessions']} sessions, {len(found['delays'])} cells, load {found['load']}",
        f"  waited {waited[0]:.2f}, simulated {waited[1]:.2f}",
        f"  held {found['held']:.4f} GPU-h, simulated {sim_held:.4f}, used {found['used']:.4f}",
        f"  delay p50 {live_p50:.3f} s, simulated {sim_p50:.3f}; p90 {p90s[0]:.2f}, {p90s[1]:.2f}",
        f"  latencies {json.dumps(found['latency'])}",
    ]
    print("\n".join(lines), file=sys.stderr, flush=True)


def line(case: str, ours: float, sim: float, unit: str, n: int) -> None:
    row = {"bench": "replay", "case": case, "ours": round(ours, 4), "peer": "simulator", "peer_value": round(sim, 4)}
    print(json.dumps({**row, "unit": unit, "n": n}), flush=True)


def report(hours: list[dict[str, Any]]) -> None:
    """All hours together."""
    delays = [delay for hour in hours for delay in hour["delays"]]
    # Seed by seed: a run of all hours.
    runs = [[delay for hour in hours for delay in hour["sim_delays"][seed]] for seed in range(SEEDS)]
    n = len(delays)
    sim_held = sum(statistics.mean(hour["sim_held"]) for hour in hours)
    line("held", sum(hour["held"] for hour in hours), sim_held, "GPU-h", n)
    line("delay_p50", statistics.median(delays), statistics.mean(map(statistics.median, runs)), "s", n)
    line("delay_p90", quantile(delays, 0.9), statistics.mean(quantile(run, 0.9) for run in runs), "s", n)
    line("delay_mean", statistics.mean(delays), statistics.mean(map(statistics.mean, runs)), "s", n)
    line(
        "waited_p50", of_waiters(delays), statistics.mean(map(of_waiters, runs)), "s", sum(d > WAITS for d in delays)
    )
    line("waiting_share", share(delays), statistics.mean(map(share, runs)), "share", n)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", default=TRACE)
    parser.add_argument("--hours", type=float, nargs="+", default=HOURS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--base", default="/srv/gresshopper-bench")
    parser.add_argument("--index", type=int, default=9)
    parser.add_argument("--keep", help="a folder for everything that was measured")
    args = parser.parse_args()
    report([measure(args, hour) for hour in args.hours])


def measure(args: argparse.Namespace, hour: float) -> dict[str, Any]:
    """On a cluster of its own, whose fair share remembers nobody."""
    options = ("--nodes", str(NODES), "--gpus-per-node", str(GPUS))
    deploy = {"PILOTS": str(NODES), "GPUS_PER_PILOT": str(GPUS), "CPUS_PER_PILOT": "16"}
    deploy |= {"LINGER_MS": str(int(LINGER * 1000)), "GRESSHOPPER_LOG": "debug"}
    cluster = Cluster(args.base, args.index, "auto", *options, **deploy)
    try:
        cluster.up()
        for gpus in range(1, GPUS + 1):
            spec = ["kernelspec", "install", "--name", f"gpus{gpus}", "--gpus", str(gpus), "--mem", "300"]
            where = ["--prefix", str(cluster.base / "opt"), "--python", "/opt/gresshopper-dev/user/bin/python"]
            cluster.run("root", "hop", *spec, *where)
        program = cluster.lend("bench/replay/people.py")
        people = {user: People(cluster, user, program) for user in ("alice", "bob", "carol")}
        return run(cluster, people, hour, args)
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
