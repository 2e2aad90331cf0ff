"""Choices that Slurm grants a user for a server: accounts, QOS, partitions with their bounds, reservations.

An answer of Slurm's serves all users of the hub for a minute. While slurmdbd is away or slow, its last answer stands,
marked as old. The answer fills the form, and the user's choice is checked against the same data. If the data forbid a
choice, Slurm is asked again, since an administrator may have allowed the choice meanwhile.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .failures import Failure, refused
from .programs import NotInstalled, find_program
from .slurm import Shared, SlurmError, run

FRESH_S = 60.0
#: Before a choice is refused, or while slurmdbd is away, Slurm is asked again if its answer is older than this. A
#: younger answer is kept: forged choices and impatient users must not become a load on slurmdbd.
SURE_S = 5.0
#: Nobody waits longer for the form because of the number of free GPUs.
HOP_S = 3.0
#: Nobody waits longer for a newer answer while an older one is known.
SOON_S = 5.0
#: From this series of Slurm on, a partition's rule on an account also holds for the accounts below.
INHERITS = (23, 2)
#: Fields for the user, in the form's order.
FIELDS = ("partition", "account", "qos", "reservation", "cpus", "mem_mib", "time_limit_min")


@dataclass(frozen=True)
class Rule:
    """Names admitted by Slurm: the allowed names, else all but the denied. Their case means nothing."""

    allowed: frozenset[str] | None = None
    denied: frozenset[str] = frozenset()

    def admits(self, *names: str) -> bool:
        """Whether a name is admitted. An account comes with the names of the accounts above it."""
        folded = {name.lower() for name in names}
        return not folded & self.denied if self.allowed is None else bool(folded & self.allowed)


@dataclass(frozen=True)
class Partition:
    name: str
    accounts: Rule = Rule()
    qos: Rule = Rule()
    #: None: as long as one likes.
    max_min: int | None = None
    is_default: bool = False
    #: Most cores and memory of a node of the partition.
    cpus: int = 0
    mem_mib: int = 0
    nodes: int = 0
    idle: int = 0


@dataclass(frozen=True)
class Association:
    """A user in an account, for one partition; an empty partition means all."""

    user: str
    account: str
    partition: str
    qos: tuple[str, ...]


@dataclass(frozen=True)
class Reservation:
    name: str
    users: Rule
    accounts: Rule


@dataclass(frozen=True)
class Gpus:
    """A pool's GPUs, which cells are lent, as `hop info` shows them to everybody."""

    pool: str
    free: int
    total: int
    types: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.free} of {self.total}" + (f" ({', '.join(self.types)})" if self.types else "")


@dataclass(frozen=True)
class Site:
    """Slurm's answers, for all users."""

    partitions: Mapping[str, Partition] = field(default_factory=dict)
    associations: tuple[Association, ...] = ()
    default_accounts: Mapping[str, str] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    #: The account above each account.
    parents: Mapping[str, str] = field(default_factory=dict)
    #: A partition's rule on an account holds for those below it.
    inherits: bool = False
    #: Empty where the hub's host can't ask.
    gpus: tuple[Gpus, ...] = ()
    #: The accounting database didn't answer, or not yet: its last known data are used.
    stale: bool = False

    def line(self, account: str) -> tuple[str, ...]:
        """The account and those above it."""
        line = [account.lower()]
        while (above := self.parents.get(line[-1])) and above not in line:
            line.append(above)
        return tuple(line)

    def admits(self, partition: Partition, account: str) -> bool:
        """Whether the partition takes jobs of this account."""
        return partition.accounts.admits(*(self.line(account) if self.inherits else (account,)))

    def free_gpus(self) -> str:
        """A sentence on the GPUs that are free for cells; empty if nobody knows."""
        pools = [str(own) if len(self.gpus) == 1 else f"{own.pool} {own}" for own in self.gpus]
        return f"GPUs that are free for cells now: {'; '.join(pools)}." if pools else ""

    def offer(self, user: str) -> Offer:
        own = tuple(a for a in self.associations if a.user == user)
        accounts = {a.account for a in own}
        first = self.default_accounts.get(user, "")
        lines = [self.line(account) for account in accounts]
        reservations = tuple(
            r.name
            for r in self.reservations
            if r.users.admits(user) and (r.accounts == Rule() or any(r.accounts.admits(*line) for line in lines))
        )
        ordered = sorted(accounts, key=lambda name: (name != first, name))
        return Offer(self, own, tuple(ordered), reservations)


@dataclass(frozen=True)
class Offer:
    """What one user may choose."""

    site: Site
    associations: tuple[Association, ...]
    #: The user's default account is the first.
    accounts: tuple[str, ...]
    reservations: tuple[str, ...]

    def partition(self, name: str) -> Partition | None:
        if name:
            return self.site.partitions.get(name)
        return next((p for p in self.site.partitions.values() if p.is_default), None)

    def partitions(self) -> list[Partition]:
        """Partitions that admit an account of the user's."""
        every = self.site.partitions.values()
        return [p for p in every if not self.accounts or any(self.site.admits(p, a) for a in self.accounts)]

    def qos(self, partition: Partition | None = None, account: str = "") -> list[str]:
        """The user's QOS admitted by the partition, in the account if one is named."""
        names = {
            name
            for own in self.associations
            if account in ("", own.account)
            if partition is None or own.partition in ("", partition.name)
            for name in own.qos
        }
        return sorted(name for name in names if partition is None or partition.qos.admits(name))

    def check(self, chosen: Mapping[str, str], partition: str, account: str) -> dict[str, object]:
        """The traits set by the fields, in the partition and account valid where the user named none."""
        name = chosen.get("partition") or partition
        where = self.partition(name)
        if "partition" in chosen and where not in self.partitions():
            raise refused(
                f"partition {name!r} isn't open to you; those that are: {_list(p.name for p in self.partitions())}"
            )
        made: dict[str, object] = dict(chosen)
        account = _spelled(chosen.get("account") or account or next(iter(self.accounts), ""), self.accounts)
        made.update(self._who_pays(chosen, where, account))
        if "reservation" in chosen and chosen["reservation"] not in self.reservations:
            raise refused(f"reservation {chosen['reservation']!r} isn't active, or not for you")
        bounds = (where.cpus, where.mem_mib, where.max_min) if where else (0, 0, 0)
        words = ("cores", "MiB of memory", "minutes")
        for one, bound, unit in zip(("cpus", "mem_mib", "time_limit_min"), bounds, words):
            if one in chosen:
                made[one] = _number(chosen[one], bound or 0, unit, where.name if where else "")
        return made

    def _who_pays(self, chosen: Mapping[str, str], where: Partition | None, account: str) -> dict[str, str]:
        """The chosen account and QOS as Slurm spells them."""
        made = {}
        if "account" in chosen:
            if account not in self.accounts:
                raise refused(f"account {account!r} isn't yours; yours are: {_list(self.accounts)}")
            if where and not self.site.admits(where, account):
                raise refused(f"partition {where.name} doesn't take account {account}")
            made["account"] = account
        if "qos" in chosen:
            ours = self.qos(where, account)
            made["qos"] = _spelled(chosen["qos"], ours)
            if made["qos"] not in ours:
                raise refused(
                    f"QOS {chosen['qos']!r} isn't to be had with account {account or 'none'}"
                    f"{f' in partition {where.name}' if where else ''}; it may be: {_list(ours)}"
                )
        return made


def _spelled(name: str, names: Iterable[str]) -> str:
    """The name as it is among these."""
    return next((one for one in names if one.lower() == name.lower()), name)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _number(text: str, bound: int, unit: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", str(text)) or int(text) < 1:
        raise refused(f"{text!r} {unit}: a whole number above 0 is needed")
    if bound and int(text) > bound:
        raise refused(f"{text} {unit} are more than partition {where} gives a server, which is {bound}")
    return int(text)


# Reading Slurm's answers.


def _fields(line: str) -> dict[str, str]:
    """The pairs of a line of `scontrol show -o`."""
    return dict(re.findall(r"(\S+?)=(\S*)", line))


def _names(text: str) -> frozenset[str]:
    return frozenset(name.lower() for name in text.split(",") if name and name != "(null)")


def _rule(allowed: str, denied: str) -> Rule:
    return Rule(None if allowed in ("", "ALL", "(null)") else _names(allowed), _names(denied))


def _signed(text: str) -> Rule:
    """The rule of a list in which a minus denies."""
    names = _names(text)
    allowed = frozenset(name for name in names if name[0] != "-")
    return Rule(allowed or None, frozenset(name[1:] for name in names if name[0] == "-"))


@dataclass(frozen=True)
class Cluster:
    name: str = ""
    #: The release's series, (24, 11) for 24.11.5.
    series: tuple[int, int] = (0, 0)


def parse_cluster(text: str) -> Cluster:
    """From `scontrol show config`."""
    name = re.search(r"^ClusterName\s*=\s*(\S+)", text, re.MULTILINE)
    series = re.search(r"^SLURM_VERSION\s*=\s*(\d+)\.(\d+)", text, re.MULTILINE)
    return Cluster(name[1] if name else "", (int(series[1]), int(series[2])) if series else (0, 0))


def minutes(text: str) -> int | None:
    """Slurm's `days-hours:minutes:seconds` in minutes; None if it is unlimited."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if not match:
        return None
    days, hours, mins, _ = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + mins


def parse_partitions(shown: str, sinfo: str) -> dict[str, Partition]:
    """From `scontrol show partition -o` and `sinfo -h -o %R|%c|%m|%F`."""
    found = {}
    for line in shown.splitlines():
        f = _fields(line)
        if "PartitionName" in f and f.get("State", "UP") == "UP":
            found[f["PartitionName"]] = Partition(
                f["PartitionName"],
                _rule(f.get("AllowAccounts", ""), f.get("DenyAccounts", "")),
                _rule(f.get("AllowQos", ""), f.get("DenyQos", "")),
                minutes(f.get("MaxTime", "")),
                f.get("Default") == "YES",
            )
    for line in sinfo.splitlines():
        name, *rest = line.strip().split("|")
        if name in found and len(rest) == 3:
            cpus, mem = (int(re.sub(r"\D.*", "", text) or 0) for text in rest[:2])
            _, idle, _, total = (int(part) for part in rest[2].split("/"))
            p = found[name]
            found[name] = replace(
                p, cpus=max(p.cpus, cpus), mem_mib=max(p.mem_mib, mem), nodes=p.nodes + total, idle=p.idle + idle
            )
    return found


def parse_associations(text: str) -> tuple[Association, ...]:
    """From `sacctmgr -nP show associations format=user,account,partition,qos,parentname`."""
    own = (row for row in _rows(text, 5) if row[0])
    return tuple(Association(row[0], row[1], row[2], tuple(q for q in row[3].split(",") if q)) for row in own)


def parse_parents(text: str) -> dict[str, str]:
    """From the same: the account above each account."""
    return {row[1].lower(): row[4].lower() for row in _rows(text, 5) if not row[0] and row[4]}


def _rows(text: str, columns: int) -> list[list[str]]:
    return [row for line in text.splitlines() if len(row := line.split("|")) == columns]


def parse_reservations(text: str) -> tuple[Reservation, ...]:
    """Active reservations from `scontrol show reservation -o`."""
    found = []
    for f in map(_fields, text.splitlines()):
        users, accounts = _signed(f.get("Users", "")), _signed(f.get("Accounts", ""))
        # slurmctld alone knows the users of a reservation for groups: the hub doesn't offer it.
        if "ReservationName" in f and f.get("State") == "ACTIVE" and (users, accounts) != (Rule(), Rule()):
            found.append(Reservation(f["ReservationName"], users, accounts))
    return tuple(found)


def parse_gpus(text: str) -> tuple[Gpus, ...]:
    """From `hop info -n -P -o pool,state,gpus,gpusfree,gputypes`. A pool without a pilot has none to show."""
    pools: dict[str, Gpus] = {}
    for line in text.splitlines():
        pool, state, gpus, free, types = line.split("|")
        if int(gpus) > 0:
            known = pools.get(pool, Gpus(pool, 0, 0))
            named = sorted({*known.types, *(name for name in types.split(",") if name)})
            lent = int(free) if state == "UP" else 0
            pools[pool] = Gpus(pool, known.free + lent, known.total + int(gpus), tuple(named))
    return tuple(pools[name] for name in sorted(pools))


class Book:
    """The site's answers, asked again when they are old."""

    def __init__(self) -> None:
        self._known = Site()
        self._site = Shared(self._ask)

    async def offer(self, user: str, max_age_s: float = FRESH_S, patience_s: float | None = SOON_S) -> Offer:
        """The user's choices. Slurm's answer behind them is no older than `max_age_s`, unless a new one takes longer than
        `patience_s`."""
        last = self._site.last
        if not isinstance(last, Site) or last.stale:
            max_age_s = min(max_age_s, SURE_S)
        site, is_late = await self._site.soon(max_age_s, patience_s)
        return replace(site, stale=site.stale or is_late).offer(user)

    async def check(
        self, user: str, chosen: Mapping[str, str], partition: str, account: str, max_age_s: float = FRESH_S
    ) -> dict[str, object]:
        """The traits set by the fields. A choice is refused by an answer of now."""
        try:
            return (await self.offer(user, max_age_s)).check(chosen, partition, account)
        except Failure:
            offer = await self.offer(user, min(max_age_s, SURE_S), None)
            try:
                return offer.check(chosen, partition, account)
            except Failure as failure:
                # Without any answer of the accounting, nobody knows whose account it is.
                is_unknown = offer.site.stale and not offer.site.associations
                if is_unknown and chosen.keys() & {"account", "qos", "reservation"}:
                    raise SlurmError("its accounting has not answered since the hub began") from failure
                raise

    async def _ask(self) -> Site:
        shown, sinfo, reserved, config, gpus = await asyncio.gather(
            run(["scontrol", "show", "partition", "-o"]),
            run(["sinfo", "-h", "-o", "%R|%c|%m|%F"]),
            _or_nothing(["scontrol", "show", "reservation", "-o"]),
            _or_nothing(["scontrol", "show", "config"]),
            _gpus(),
        )
        cluster = parse_cluster(config)
        site = replace(
            self._known,
            partitions=parse_partitions(shown, sinfo),
            reservations=parse_reservations(reserved),
            inherits=cluster.series >= INHERITS,
            gpus=gpus,
        )
        try:
            whose = [f"cluster={cluster.name}"] if cluster.name else []
            columns = "format=user,account,partition,qos,parentname"
            associations = await run(["sacctmgr", "-nP", "show", "associations", *whose, columns])
            users = await run(["sacctmgr", "-nP", "show", "user", "format=user,defaultaccount"])
        except SlurmError:
            return replace(site, stale=True)
        self._known = replace(
            site,
            associations=parse_associations(associations),
            parents=parse_parents(associations),
            default_accounts=_pairs(users.splitlines()),
        )
        return self._known


def _pairs(lines: Sequence[str]) -> dict[str, str]:
    return {user: account for user, _, account in (line.partition("|") for line in lines)}


async def _gpus() -> tuple[Gpus, ...]:
    try:
        argv = [find_program("hop"), "info", "-n", "-P", "-o", "pool,state,gpus,gpusfree,gputypes"]
        return parse_gpus(await run(argv, patience_s=HOP_S))
    except (NotInstalled, SlurmError):
        return ()


async def _or_nothing(argv: Sequence[str]) -> str:
    try:
        return await run(argv)
    except SlurmError:
        return ""
