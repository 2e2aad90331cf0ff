"""A capture's search for the groups: members are written, linked by their shared objects and memory, and written again
together."""

from __future__ import annotations

import array
import bisect
import hashlib
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gresshopper import clock

from . import effects, kinds, pickling
from .lost import Lost
from .units import Unit, Units
from .variables import Look

#: Types whose instances share nothing with others.
ATOMS = (int, float, str, bytes, bool, complex, type(None), type(Ellipsis))


class Grouped(NamedTuple):
    """The groups found, the units replaced by the groups, and room for the groups' own units."""

    blocks: list[Block]
    looked_at: list[int]
    install: list[Unit]


class Block:
    """Members that were written together."""

    __slots__ = ("_digest", "dump", "members", "seconds")

    def __init__(self, members: tuple[str, ...], dump: pickling.Dump, seconds: float) -> None:
        self.members, self.dump, self.seconds = members, dump, seconds
        self._digest = b""

    def digest(self) -> bytes:
        """Digest of the stream, computed once: the stream may be large."""
        self._digest = self._digest or hashlib.blake2b(self.dump.stream, digest_size=16).digest()
        return self._digest


class Search:
    """A search among the units and the variables. `split`: a changed group is searched for its pieces."""

    def __init__(self, session: pickling.Session, units: Units, visible: Look, split: bool) -> None:
        self._session, self._known, self._visible, self._split = session, units, visible, split
        self._fresh: set[str] = set()
        self._units: dict[int, Unit] = {}
        self._done: set[int] = set()
        self._blocks: dict[tuple[str, ...], Block] = {}
        self._placed: set[str] = set()
        self._dissolved: list[int] = []
        self._keep: list[Any] = []  # memos: no address is used twice within one capture
        session.kept = []
        self._linked: set[tuple[str, ...]] = set()

    def fresh(self, member: str) -> None:
        """A member that is new, or now another object."""
        owner = self._known.owner(member)
        if owner is not None:
            self._dissolve(owner)
        self._fresh.add(member)

    def lost_member(self, member: str) -> None:
        """A variable that was deleted."""
        owner = self._known.owner(member)
        if owner is not None:
            self._dissolve(owner)

    def look(self, unit: Unit) -> None:
        """A unit that may have changed."""
        if unit.uid not in self._done:
            self._units[unit.uid] = unit

    def seconds(self) -> float:
        """Seconds that the remaining units took when last written."""
        return sum(unit.seconds for unit in self._units.values())

    def _dissolve(self, unit: Unit) -> None:
        if unit.uid in self._done:
            return
        self._done.add(unit.uid)
        self._units.pop(unit.uid, None)
        self._dissolved.append(unit.uid)
        for member in unit.members:
            if member.startswith("n:") and member[2:] in self._visible:
                self._fresh.add(member)

    def settle(self) -> Grouped:
        """Write until nothing that was written leads to anything else."""
        while self._units or self._fresh:
            while self._units:
                self._write_unit(self._units.popitem()[1])
            while self._fresh:
                self._write_member(self._fresh.pop())
            self._follow()
        # Examined units are kept under their number or have gone into others.
        return Grouped(self._merge(), sorted(self._done), [])

    def _write_unit(self, unit: Unit) -> None:
        self._done.add(unit.uid)
        if not all(
            m[2:] in self._visible if m.startswith("n:") else m[2:] in self._session.classes for m in unit.members
        ):
            self._done.discard(unit.uid)
            self._dissolve(unit)
            return
        block = self._write(unit.members)
        if self._split and len(unit.members) > 1 and block.digest() != unit.digest:
            self._done.discard(unit.uid)
            self._dissolve(unit)
            return
        self._place(block)

    def _write_member(self, member: str) -> None:
        if member in self._placed:
            return
        if member.startswith("c:") and member[2:] not in self._session.classes:
            return
        self._place(self._write((member,)))

    def _place(self, block: Block) -> None:
        self._blocks[block.members] = block
        self._placed.update(block.members)

    def _write(self, members: tuple[str, ...]) -> Block:
        self._session.check()
        started = clock.now()
        values = [self._value_of(m) for m in members]
        owned = {m[2:] for m in members if m.startswith("c:")}
        if len(values) == 1 and type(values[0]) in ATOMS:
            dump = _atom(values)
        else:
            try:
                first = effects.not_only_shown(members)
                dump = pickling.dump(self._session, values, owned, first)
            except pickling.Unpicklable as e:
                dump = self._placeholder(members, values, str(e))
        self._keep.append(dump.keep)
        if dump.keep is not None:
            self._session.kept.append(dump.ids)
        return Block(members, dump, clock.now() - started)

    def _value_of(self, member: str) -> Any:
        """What a member is now."""
        return self._visible[member[2:]] if member.startswith("n:") else self._session.classes[member[2:]]

    def _placeholder(self, members: Sequence[str], values: Sequence[Any], why: str) -> pickling.Dump:
        stands = [Lost(kinds.a_kind(kinds.kind_of(value)), why) for value in values]
        gone = [pickling.Gone(kinds.a_kind(kinds.kind_of(value)), why) for value in values]
        return _plain(pickling.placeholders(stands), gone)

    def _follow(self) -> None:
        """Units with an object or memory in common with written units, and classes still unwritten."""
        new = [b for key, b in self._blocks.items() if key not in self._linked]
        for block in new:
            self._linked.add(block.members)
            for uid in self._known.holders(block.dump.ids, self._done):
                self.look(self._known.by_number[uid])
            for cid in block.dump.classes:
                member = "c:" + cid
                owner = self._known.owner(member)
                if member not in self._placed and (owner is None or owner.uid in self._dissolved):
                    self._fresh.add(member)
        self._follow_memory(new)

    def _follow_memory(self, new: Sequence[Block]) -> None:
        wanted = [r for b in new for r in b.dump.ranges]
        if not wanted:
            return
        others = sorted(
            (low, high, u.uid)
            for u in self._known.by_number.values()
            if u.uid not in self._done
            for low, high in u.ranges
        )
        if not others:
            return
        starts = [o[0] for o in others]
        for low, high in wanted:
            i = max(0, bisect.bisect_right(starts, low) - 1)
            while i < len(others) and others[i][0] < high:
                if others[i][1] > low and others[i][2] not in self._done:
                    self.look(self._known.by_number[others[i][2]])
                i += 1

    def _merge(self) -> list[Block]:
        blocks = list(self._blocks.values())
        parent = list(range(len(blocks)))

        def find(i: int) -> int:
            while parent[i] != i:
                parent[i] = parent[parent[i]]
                i = parent[i]
            return i

        seen: dict[int, int] = {}
        for i, block in enumerate(blocks):
            for at in self._known.checking(block.dump.ids):
                j = seen.setdefault(at, i)
                if j != i:
                    parent[find(i)] = find(j)
        spans = sorted((low, high, i) for i, b in enumerate(blocks) for low, high in b.dump.ranges)
        reach, holder = 0, -1
        for low, high, i in spans:
            if low < reach:
                parent[find(i)] = find(holder)
            if high > reach:
                reach, holder = high, i
        self._join_class_cycles(blocks, parent, find)
        groups: dict[int, list[Block]] = {}
        for i, block in enumerate(blocks):
            groups.setdefault(find(i), []).append(block)
        return [self._final(group) for group in groups.values()]

    def _join_class_cycles(self, blocks: Sequence[Block], parent: list[int], find: Callable[[int], int]) -> None:
        """Groups in mutual need of classes are one: else neither could be read first."""
        where = {m: i for i, b in enumerate(blocks) for m in b.members if m.startswith("c:")}
        edges: dict[int, set[int]] = {}
        for i, block in enumerate(blocks):
            for cid in block.dump.classes:
                j = where.get("c:" + cid)
                if j is not None:
                    edges.setdefault(find(i), set()).add(find(j))
        for start in list(edges):
            for other in self._reachable(edges, start):
                if other != start and start in self._reachable(edges, other):
                    parent[find(start)] = find(other)

    @staticmethod
    def _reachable(edges: dict[int, set[int]], start: int) -> set[int]:
        seen: set[int] = set()
        stack = list(edges.get(start, ()))
        while stack:
            top = stack.pop()
            if top not in seen:
                seen.add(top)
                stack.extend(edges.get(top, ()))
        return seen

    def _final(self, group: list[Block]) -> Block:
        if len(group) == 1:
            return group[0]
        return self._write(effects.members_in_order(m for block in group for m in block.members))


def _plain(stream: bytes, gone: list[pickling.Gone]) -> pickling.Dump:
    return pickling.Dump(stream, [], [], array.array("Q"), [], set(), set(), False, gone, [], set(), [], None)


def _atom(values: list[Any]) -> pickling.Dump:
    return _plain(pickle.dumps(([], values), protocol=5), [])
