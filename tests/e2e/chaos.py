"""Seeded chaos: notebooks with three replicas run cells while parts of the cluster die. By hand: `make chaos`.

    chaos.py [--seed N] [--minutes M] [--lanes K] [--events NAME,..] [--json FILE]

An oracle knows what each notebook's kernel must have. Each of these is a fault: a cell that was answered and whose effect is
gone, unless the user was told so; a cell that ran twice; an effect of a cell that was told to be lost; a GPU that two kernels
have open at once; a cell without an answer; a lease or a process that is left over. The seed decides what happens, the
machine decides when: a run with the same seed is similar, not equal. With more lanes than one, as many things happen at a
time. The exit status is 1 after a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import disks
from groups import THREE
from harness import Cluster, Failed, Notebook, no_process_spins, stream, until
from links import PEOPLE, Links, both, can_cut
from opens import Recorder, shared

USERS = ("alice", "alice", "bob")

#: The first cell of each kernel. A cell's beginning is noted in a file, so that the second one is seen.
SETUP = """
import glob, os, time
seen = []
def begins(n):
    with open({notes!r}, "a") as notes:
        notes.write(f"{{n}}\\n")
def hold(seconds):
    held = []
    for path in glob.glob(f"/dev/fakegpu-{{os.environ['SLURMD_NODENAME']}}-*"):
        try:
            held.append(os.open(path, os.O_RDWR | os.O_NOCTTY))
        except OSError:
            pass
    time.sleep(seconds)
    for fd in held:
        os.close(fd)
    return len(held)
"""

#: What a person does, and how often.
KINDS = {"quick": 34, "long": 12, "gpu": 20, "some": 6, "large": 8, "look": 18, "restart": 2}

#: Seconds within which every cell is answered: the longest wait is that for a group that has lost its majority.
ANSWER = 150.0
#: Seconds around its front's death in which a cell may be in a socket that nobody read.
AT_ONCE = 0.5
GONE = re.compile(r"so their effects are gone: (.*)")


@dataclasses.dataclass
class Tally:
    """Counts of events, cells and faults."""

    events: Counter[str] = dataclasses.field(default_factory=Counter)
    cells: int = 0
    with_gpu: int = 0
    cell_lost: int = 0
    #: Answered cells whose user was told that their effects are gone.
    told: int = 0
    #: Cells without an answer, sent at the moment in which their front was killed: its socket had not read them.
    unknown: int = 0
    restarts: int = 0
    waits: list[float] = dataclasses.field(default_factory=list)
    faults: list[str] = dataclasses.field(default_factory=list)


class Oracle:
    """Where the faults of a run are gathered."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.tally = Tally()
        self.over = threading.Event()
        self.fronts_killed: dict[str, list[float]] = {user: [] for user in USERS}
        self.began = time.monotonic()

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s  {what}", file=sys.stderr, flush=True)

    def fault(self, what: str) -> None:
        self.say(f"FAULT {what}")
        self.tally.faults.append(f"{time.monotonic() - self.began:.0f} s: {what}")


class Person:
    """One notebook, and what its kernel must have."""

    def __init__(self, chaos: Oracle, user: str, number: int, seed: int) -> None:
        self.chaos, self.user, self.number = chaos, user, number
        self.rng = random.Random(seed)
        self.kinds = dict(KINDS)
        self.book = Notebook(chaos.cluster, user)
        self.notes = chaos.cluster.base / "home" / user / f"chaos-{number}"
        #: Cells whose effect has to be there, with their counts, and those of which nobody can know. After a loss that
        #: nobody was told of, the next cell has the lost one's count.
        self.kept: dict[int, int] = {}
        self.maybe: set[int] = set()
        self.last = 0
        self.ready = threading.Event()
        #: The count of the first cell, which all others need.
        self.setup: int | None = None

    def fault(self, what: str) -> None:
        self.chaos.fault(f"{self.user}/{self.number}: {what}")

    def begin(self) -> None:
        self.notes.unlink(missing_ok=True)
        # The first one has a hot standby.
        self.book.start(env=THREE | {"GRESSHOPPER_HOT_STANDBY": str(int(self.number == 0))})
        self.set_up()

    def set_up(self) -> None:
        got = self.execute(SETUP.format(notes=str(self.notes)))
        self.setup = int(got["reply"]["execution_count"]) if got and got["status"] == "ok" else None

    def live(self) -> None:
        try:
            self.begin()
        except Exception as error:
            self.fault(f"the notebook's driver failed: {error}")
            return
        finally:
            self.ready.set()
        self.work()

    def work(self) -> None:
        """Runs cells until it is enough."""
        try:
            while not self.chaos.over.is_set():
                self.step()
            self.look()
        except Exception as error:
            self.fault(f"the notebook's driver failed: {error}")

    def step(self) -> None:
        if self.setup is None:
            # Its loss was told, as that of all since: a person would run it again.
            self.set_up()
            return
        what = self.rng.choices(list(self.kinds), list(self.kinds.values()))[0]
        if what == "look":
            self.look()
        elif what == "restart":
            self.restart()
        else:
            self.run(what)
        time.sleep(self.rng.uniform(0.0, 0.6))

    def run(self, what: str) -> None:
        self.last += 1
        n = self.last
        body = {
            "quick": "",
            "long": f"; time.sleep({self.rng.uniform(0.5, 4):.1f})",
            "gpu": f"; assert hold({self.rng.uniform(0.05, 1):.2f}) == 1",
            # The log's segments are full soon.
            "some": f"; some = os.urandom({self.rng.randrange(1, 60_000)})",
            "large": f"; big = os.urandom({self.rng.randrange(1, 3_000_000)})",
        }[what]
        magic = "%%gpu 1\n" if what == "gpu" else ""
        got = self.execute(f"{magic}begins({n}){body}; seen.append({n})")
        self.chaos.tally.with_gpu += what == "gpu"
        if got is None:
            self.maybe.add(n)
        elif got["status"] == "ok":
            self.kept[n] = int(got["reply"]["execution_count"])
        elif got["reply"]["ename"] == "CellLost":
            self.chaos.tally.cell_lost += 1
        elif self.setup is None:
            self.chaos.say(f"{self.user}/{self.number}: cell {n} ran without the first cell, whose loss it told")
        else:
            self.fault(f"cell {n} ({what}) ended with {got['reply'].get('ename')}: {got['reply'].get('evalue')}")
            self.maybe.add(n)

    def execute(self, code: str) -> dict[str, Any] | None:
        """Run a cell. `None`: it has no answer, and its front was killed under it."""
        sent = time.monotonic()
        got = self.book.execute(code, timeout=ANSWER)
        self.chaos.tally.cells += 1
        self.chaos.tally.waits.append(time.monotonic() - sent)
        self.hear(stream(got, "stderr"))
        if got["done"]:
            return got
        # What a front had taken before its death is the next front's.
        is_known = got["idle"] or got["reply"] or got["outputs"]
        kills = [kill - sent for kill in self.chaos.fronts_killed[self.user]]
        had = f"status {got['status']}, idle {got['idle']}, {len(got['outputs'])} outputs"
        if is_known or not any(abs(kill) < AT_ONCE for kill in kills):
            self.fault(f"no whole answer within {ANSWER:.0f} s to {code.splitlines()[-1]!r}: {had}")
        later = [f"{kill:.1f}" for kill in kills if -10 < kill < ANSWER]
        self.chaos.say(
            f"{self.user}/{self.number}: a cell of {ANSWER:.0f} s ago has {had}; its front was killed {later} s later"
        )
        self.chaos.tally.unknown += 1
        return None

    def hear(self, text: str) -> None:
        """Losses that the user is told of hold from now on."""
        for names in GONE.findall(text):
            for count in re.findall(r"\[(\d+)\]", names):
                gone = [n for n, kept in self.kept.items() if kept == int(count)]
                if gone:
                    del self.kept[gone[-1]]
                    self.chaos.tally.told += 1
                if int(count) == self.setup:
                    self.setup = None

    def look(self) -> None:
        got = self.execute("print(seen)")
        if got is None:
            return
        if got["status"] != "ok":
            reply = got["reply"]
            if reply["ename"] != "CellLost" and self.setup is not None:
                self.fault(f"the namespace can't be read: {reply}")
            return
        there = json.loads(stream(got, "stdout"))
        should = list(self.kept)
        if missing := [n for n in should if n not in there]:
            self.fault(f"answered cells are gone, and nobody was told: {missing}\n{self.evidence(got, missing)}")
        if strange := [n for n in there if n not in should and n not in self.maybe]:
            self.fault(f"cells that were told to be lost have left effects: {strange}")
        if len(set(there)) != len(there):
            self.fault(f"effects are there twice: {there}")
        # From here on the oracle knows what the kernel has.
        self.kept = {n: count for n, count in self.kept.items() if n in there}
        self.maybe = {n for n in self.maybe if n in there}

    def evidence(self, looked: dict[str, Any], missing: list[int]) -> str:
        """What the kernel knows of cells that are gone: of a cell among its inputs the record is there."""
        counts = [self.kept[n] for n in missing]
        got = self.execute(f"print(len(In), [(n, In[n]) for n in {counts} if n < len(In)], In[-4:], seen[-4:])")
        return f"counts {counts}; {stream(looked, 'stderr')!r}; {got and stream(got, 'stdout')}"

    def restart(self) -> None:
        self.book.restart()
        self.chaos.tally.restarts += 1
        self.kept, self.maybe = {}, set()
        self.set_up()

    def close(self) -> None:
        self.book.close()
        began = self.notes.read_text().split() if self.notes.exists() else []
        twice = sorted(n for n, times in Counter(began).items() if times > 1)
        if twice:
            self.fault(f"cells began twice: {twice}")


class Chaos(Oracle):
    """Kills parts of the cluster and cuts its links, in the order that the seed gives."""

    def __init__(self, cluster: Cluster, seed: int, only: frozenset[str] = frozenset(), lanes: int = 1) -> None:
        super().__init__(cluster)
        self.only = only
        self.rng = random.Random(seed)
        self.lanes = lanes
        self.nodes = cluster.env["HOP_DEV_NODES"].split(",")
        self.links: Links | None = None
        self.people = [Person(self, user, i, self.rng.randrange(1 << 32)) for i, user in enumerate(USERS)]
        #: What only one lane may disturb at a time. A node is brought back by slurmctld.
        self.alone = {what: threading.Lock() for what in ("hopd", "slurmctld", "links", "disks", *self.nodes)}

    def run(self, seconds: float) -> Tally:
        if why := disks.can_slow():
            self.say(f"no disk is slow: {why}")
        if why := can_cut(self.cluster.variant):
            self.say(f"no links are cut: {why}")
            return self.live(seconds)
        with Links(self.cluster) as self.links:
            for person in self.people:
                self.links.take_in(person.book)
            return self.live(seconds)

    def live(self, seconds: float) -> Tally:
        recorder = Recorder([str(p) for node in self.nodes for p in Path("/dev").glob(f"fakegpu-{node}-*")])
        recorder.start()
        threads = [threading.Thread(target=p.live, daemon=True) for p in self.people]
        for thread in threads:
            thread.start()
        # Chaos begins beside kernels that are there.
        for person in self.people:
            person.ready.wait(ANSWER)
        self.began = time.monotonic()
        lanes = [threading.Thread(target=self.disturb, args=(seconds,), daemon=True) for _ in range(self.lanes)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        self.over.set()
        for thread, person in zip(threads, self.people, strict=True):
            thread.join(2 * ANSWER)
            if thread.is_alive():
                person.fault("the notebook hangs")
        try:
            no_process_spins(self.cluster)
        except Failed as error:
            self.fault(str(error))
        for person in self.people:
            person.close()
        self.nothing_is_left()
        recorder.stop()
        for sentence in shared(recorder.seen):
            self.fault(sentence)
        return self.tally

    def disturb(self, seconds: float) -> None:
        while time.monotonic() - self.began < seconds:
            time.sleep(self.rng.uniform(2, 8))
            try:
                self.event()
            except Exception as error:
                self.fault(f"chaos itself failed: {error!r}")

    @contextlib.contextmanager
    def a_node(self) -> Iterator[str]:
        """A node that no other lane has."""
        for node in self.rng.sample(self.nodes, len(self.nodes)):
            if self.alone[node].acquire(blocking=False):
                break
        else:
            self.alone[node].acquire()
        try:
            yield node
        finally:
            self.alone[node].release()

    def event(self) -> None:
        events: dict[str, tuple[int, Callable[[], None]]] = {
            "process killed": (16, lambda: self.kill(r"ipykernel_launcher")),
            "supervisor killed": (14, lambda: self.kill(r"hop-replica run")),
            "front killed": (10, self.kill_front),
            "two killed": (14, self.kill_two),
            # Shorter and longer than a replica waits for its front, and than a seat counts as lost.
            "front stands still": (6, lambda: self.pause(r"hop-front", (1, 12, 40, 75))),
            "seat stands still": (6, lambda: self.pause(r"hop-replica seat", (1, 5, 20, 40))),
            "supervisor stands still": (6, lambda: self.pause(r"hop-replica run", (1, 5, 20, 40))),
            "hopd stands still": (4, lambda: self.pause(r"opt/bin/hopd", (1, 12, 30), "gresshopper")),
            "slurmctld stands still": (3, lambda: self.pause(r"^\S*slurmctld", (1, 12, 30), "slurm")),
            "seat cancelled": (10, self.cancel_seat),
            "node lost": (12, self.lose_node),
            "node paused": (8, self.pause_node),
            "kernel moved": (14, self.migrate),
            "hopd killed": (6, self.kill_hopd),
            "agent killed": (6, lambda: self.kill(r"hop-agent run", "gresshopper")),
            "slurmctld away": (4, self.without_slurmctld),
            "links cut": (20 if self.links else 0, self.cut_links),
            "disk full": (8, self.fill_disk),
            "disk slow": (0 if disks.can_slow() else 6, self.slow_disk),
        }
        names = [name for name in events if not self.only or name in self.only]
        name = self.rng.choices(names, [events[name][0] for name in names])[0]
        self.say(name)
        self.tally.events[name] += 1
        try:
            events[name][1]()
        except Failed as error:
            self.fault(f"{name}: the cluster didn't come back: {error}")

    def kill(self, pattern: str, user: str = "") -> None:
        pids = self.cluster.pids(pattern, user or self.rng.choice(USERS))
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(pids), 9)

    def kill_front(self, user: str = "") -> None:
        user = user or self.rng.choice(USERS)
        for pid in self.cluster.pids(r"hop-front", user)[:1]:
            self.fronts_killed[user].append(time.monotonic())
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)

    def kill_two(self) -> None:
        """Two parts of a user's kernels within a second of each other."""
        user = self.rng.choice(USERS)
        parts: dict[str, Callable[[], None]] = {
            part: lambda part=part: self.kill(part, user)  # type: ignore[misc]
            for part in (r"ipykernel_launcher", r"hop-replica run", r"hop-replica seat")
        }
        parts["front"] = lambda: self.kill_front(user)
        first, second = self.rng.sample(list(parts), 2)
        gap = self.rng.choice((0.0, 0.1, 1.0))
        self.say(f"  {first}, and {second} after {gap} s")
        parts[first]()
        time.sleep(gap)
        parts[second]()

    def pause(self, pattern: str, seconds: Sequence[float], user: str = "") -> None:
        """One of these processes stands still, as where a machine swaps or a laptop sleeps."""
        kind = {"gresshopper": "hopd", "slurm": "slurmctld"}.get(user)
        pids = self.cluster.pids(pattern, user or self.rng.choice(USERS))
        with self.alone[kind] if kind else contextlib.nullcontext(), contextlib.suppress(ProcessLookupError):
            if pids:
                pid = self.rng.choice(pids)
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self.rng.choice(seconds))
                os.kill(pid, signal.SIGCONT)

    def cancel_seat(self) -> None:
        user = self.rng.choice(USERS)
        seats = self.cluster.run(user, "squeue", "-h", "-u", user, "-t", "R", "-o", "%i", check=False).split()
        if seats:
            self.cluster.run(user, "scancel", self.rng.choice(seats), check=False)

    def lose_node(self) -> None:
        with self.a_node() as node:
            self.cluster.devcluster("lose-node", node)
            time.sleep(self.rng.uniform(1, 15))
            # Unlike after `lost_node` nobody waits for its pilot.
            with self.alone["slurmctld"]:
                self.cluster.bring_back(node)
            if self.links:
                self.links.adopt()

    def cut_links(self) -> None:
        """A node, or a node and the fronts, for a moment or for long, one way or both; or again and again."""
        assert self.links
        node = self.rng.choice(self.nodes)
        others = [other for other in self.nodes if other != node]
        ways = self.rng.choice((both(node, others), both(node, [PEOPLE]), both(node, [*others, PEOPLE])))
        going = self.rng.choice(("both ways", "from it", "to it"))
        if going != "both ways":
            ways = [way for way in ways if way[going == "to it"] == node]
        times, seconds = self.rng.choice(((1, 3.0), (1, 14.0), (1, 40.0), (6, 1.5)))
        with self.alone["links"]:
            self.say(f"  {node}: {len(ways)} ways cut, {going}, {times} x {seconds:.1f} s")
            for _ in range(times):
                with self.links.without(ways):
                    time.sleep(seconds)
                time.sleep(1)

    def fill_disk(self) -> None:
        for pid in self.a_seat():
            with self.alone["disks"], self.of_no_effect("disk full"), disks.full(pid):
                time.sleep(self.rng.uniform(5, 20))

    def slow_disk(self) -> None:
        for pid in self.a_seat():
            writes = self.rng.choice((4, 20))
            with self.alone["disks"], self.of_no_effect("disk slow"), disks.slow(self.cluster, writes, pid):
                time.sleep(self.rng.uniform(5, 20))

    @contextlib.contextmanager
    def of_no_effect(self, event: str) -> Iterator[None]:
        """An event that found nothing to disturb doesn't count as one."""
        try:
            yield
        except disks.NoLog as why:
            self.say(f"  nothing: {why}")
            self.tally.events[event] -= 1
            self.tally.events[f"{event}: nothing there"] += 1

    def a_seat(self) -> list[int]:
        there = disks.seats(self.cluster, self.rng.choice(USERS))
        return [self.rng.choice(there)] if there else []

    def pause_node(self) -> None:
        with self.a_node() as node:
            self.cluster.devcluster("pause-node", node)
            time.sleep(self.rng.choice((1, 5, 20, 40)))
            self.cluster.devcluster("resume-node", node)

    def migrate(self) -> None:
        user = self.rng.choice(USERS)
        try:
            with self.alone["hopd"]:
                rows = self.cluster.hop("kernels", "-t", "running,waiting,idle", user=user)["rows"]
        except Failed:
            # hopd was started a moment ago.
            return
        if rows:
            kernel = self.rng.choice(rows)["kernel_id"]
            self.cluster.run(user, "hop", "migrate", kernel, "--to", self.rng.choice(self.nodes), check=False)

    def kill_hopd(self) -> None:
        with self.alone["hopd"]:
            self.cluster.kill(r"opt/bin/hopd")
            time.sleep(self.rng.uniform(0, 4))
            self.cluster.deploy("hopd")

    def without_slurmctld(self) -> None:
        with self.alone["slurmctld"]:
            self.cluster.devcluster("stop-slurmctld")
            time.sleep(self.rng.uniform(1, 10))
            self.cluster.devcluster("start-slurmctld")

    def nothing_is_left(self) -> None:
        processes = r"hop-replica run|ipykernel|hop-front"
        for what, true in (
            ("no lease step is left", self.cluster.quiet),
            ("no lease is left in the books", lambda: not self.cluster.leases_live()),
            ("no process of a kernel is left", lambda: not self.cluster.pids(processes)),
        ):
            try:
                until(what, true, 90)
            except Failed as error:
                left = ",".join(map(str, self.cluster.pids(processes))) or "1"
                self.fault(
                    f"{error}\n{self.cluster.run('root', 'ps', '-o', 'user,pid,ppid,etimes,args', '-p', left)}"
                )


def summary(tally: Tally, seed: int) -> dict[str, object]:
    waits = sorted(tally.waits) or [0.0]
    fields = {f.name: getattr(tally, f.name) for f in dataclasses.fields(tally) if f.name != "waits"}
    shares = {"wait_p50_s": 0.5, "wait_p99_s": 0.99, "wait_max_s": 1.0}
    at = {name: round(waits[int(share * (len(waits) - 1))], 2) for name, share in shares.items()}
    return {"seed": seed, **fields, **at}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--lanes", type=int, default=1, help="so many things happen at a time")
    parser.add_argument("--events", default="", help="only these, by name")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    only = frozenset(name for name in asked.events.split(",") if name)
    base = os.environ.get("HOP_E2E_BASE", "/srv/gresshopper-chaos")
    variant = os.environ.get("HOP_E2E_VARIANT", "auto")
    cluster = Cluster(base, int(os.environ.get("HOP_E2E_INDEX", "11")), variant)
    try:
        cluster.up()
        said = summary(Chaos(cluster, asked.seed, only, asked.lanes).run(asked.minutes * 60), asked.seed)
    finally:
        if not os.environ.get("HOP_E2E_KEEP"):
            cluster.down()
    text = json.dumps(said, indent=1)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")
    sys.exit(1 if said["faults"] else 0)


if __name__ == "__main__":
    main()
