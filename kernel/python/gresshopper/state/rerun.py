"""Rebuilding unsavable values by running their cells again, from the record of each cell.

`effects` decides which cells may run again. A re-run happens in a scratch namespace, with the versions of inputs
that the cell saw then. Other results must equal the recorded ones, else the re-run is not used.
"""

from __future__ import annotations
import __future__

import contextlib
import functools
import hashlib
import io
import operator
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from . import effects, form, pickling, process, restore, user_modules
from .session import reason, title
from .store import Store, StoreError

#: Most cells to run again for one group.
MOST = 50


def recover(
    snapshot: restore.Snapshot,
    store: Store,
    session: pickling.Session,
    set_names: Callable[[dict[str, Any]], None],
    told: restore.Told,
) -> restore.Told:
    """Run the cells of lost variables again. A variable whose re-run isn't right stays a placeholder, with the
    reason."""
    lost = dict(told.lost)
    notices = list(told.notices)
    for uid, entry in snapshot.units.items():
        wanted = [name for name in entry.names if name in lost]
        if not wanted:
            continue
        try:
            values = _chain(snapshot, uid, entry, store, session, notices.append)
        except _Barred as e:
            for name in wanted:
                lost[name] += f"; {e}"
            continue
        except pickling.Unpicklable as e:  # the same as when it was saved: there is nothing to compare
            for name in wanted:
                lost[name] += f"; running its cells again gave what can't be compared: {e}"
            continue
        set_names(values)
        for name in wanted:
            del lost[name]
        notices.append(f"{', '.join(wanted)}: rebuilt by running the cells again")
    return restore.Told(told.names, lost, notices, told.seconds)


class _Barred(Exception):
    """A variable can't be rebuilt by running cells; says why."""


def _cells(records: Sequence[form.Record], wanted: set[str]) -> list[int]:
    """Records of the cell that made a group, whatever its number then, and of cells that may have touched the group."""
    owner: dict[str, int] = {}
    found: list[int] = []
    for i, record in enumerate(records):
        held = {owner[name] for name in wanted if name in owner}
        cell = record.head["cell"]
        if cell is not None and held & set(cell["touched"]):
            found.append(i)
        gone = set(record.head["gone"])
        owner = {name: uid for name, uid in owner.items() if uid not in gone}
        for said in record.head["units"]:
            owner.update({m[2:]: said["u"] for m in said["m"] if m[2:] in wanted})
        if not held and any(name in owner for name in wanted):
            found = [i]
    return found


def _is_whole(records: Sequence[form.Record], wanted: set[str]) -> bool:
    """Whether the makings of variables are as recorded: a compaction of the log kept them, or they are younger."""
    made: set[str] = set()
    for record in records:
        made |= {m[2:] for said in record.head["units"] for m in said["m"]} & wanted
        if not made <= set(record.head.get("compacted", made)):
            return False
    return True


def _chain(
    snapshot: restore.Snapshot,
    uid: int,
    entry: restore.Entry,
    store: Store,
    session: pickling.Session,
    notice: Callable[[str], None],
) -> dict[str, Any]:
    """Run, in order, each cell that may have touched the unit, from its maker on."""
    if (why := effects.belonging(entry.said["gone"])) is not None:
        raise _Barred(why)
    records = snapshot.records
    wanted = {name for name in entry.names if not effects.shown(name)} or set(entry.names)
    cells = _cells(records, wanted)
    if not cells or records[cells[0]].head.get("full") or records[cells[0]].head["cell"] is None:
        raise _Barred("the cell that made it wasn't recorded")
    if not _is_whole(records, wanted):
        raise _Barred("the cells that made it are no longer recorded with what they found")
    if len(cells) > MOST:
        raise _Barred("too many cells touched it")
    for i in cells:
        why = effects.barred(records[i].head["cell"])
        if why:
            raise _Barred(why)
        if any(m.startswith("c:") for u in records[i].head["units"] for m in u["m"]):
            raise _Barred("its cell also made a class, which must stay the same")
    stood: Sequence[Any] = ()
    with contextlib.suppress(Exception):  # a placeholder may be where its holder can't be loaded around it
        stood = restore.Loader(snapshot, store, session, lazy=False, live={}).load(uid)
    state: dict[str, Any] = {}
    live = dict(session.namespace)
    aside = process.Aside()
    try:
        with emptied(session.namespace, snapshot):
            for i in cells:
                state = _run_cell(records, i, wanted, state, store, session, live, snapshot, aside)
            aside.back()
            _fill_shown(entry, stood, state)
            _same(entry, state, session, store)
    finally:
        left = aside.end()
        if left:
            notice(left_over(entry.names, left))
    return state


def left_over(names: Sequence[str], sections: Sequence[str]) -> str:
    """A notice on settings that cells left behind as they ran again."""
    return f"{', '.join(names)}: running its cells again changed the process's {', '.join(sections)} settings"


def _fill_shown(entry: restore.Entry, stood: Sequence[Any], state: dict[str, Any]) -> None:
    """Sets displayed values to the variables in whose place the same placeholder stood."""
    by_name = {m[2:]: value for m, value in zip(entry.said["m"], stood)}
    for name in entry.names:
        if name not in state and effects.shown(name):
            same = [other for other in state if name in by_name and by_name.get(other) is by_name[name]]
            if same:
                state[name] = state[same[0]]


@contextlib.contextmanager
def emptied(namespace: dict[str, Any], snapshot: restore.Snapshot) -> Iterator[None]:
    """The live namespace as scratch: new functions keep their globals. Its variables are put back after."""
    kept = dict(namespace)
    for entry in snapshot.units.values():
        for name in entry.names:
            namespace.pop(name, None)
    try:
        yield
    finally:
        namespace.clear()
        namespace.update(kept)


def _same(entry: restore.Entry, state: dict[str, Any], session: pickling.Session, store: Store) -> None:
    """The rest of the group, beside its lost parts, must be unchanged; all of a group whose content isn't readable."""
    if sorted(state) != sorted(entry.names):
        raise _Barred("running its cells again gave other variables")
    again = pickling.dump(session, [state[m[2:]] for m in entry.said["m"]], first=entry.first)
    if hashlib.blake2b(again.stream, digest_size=16).hexdigest() != entry.said["dig"]:
        raise _Barred("running its cells again didn't give the same")
    if not entry.said["gone"] and not _same_content(again.buffers, entry.said["b"], store):
        raise _Barred("running its cells again didn't give the same")


def _same_content(buffers: Sequence[pickling.Buffer], blobs: Sequence[Any], store: Store) -> bool:
    """Whether buffers, but for items, have the recorded content: its names are its hashes."""
    plain = ((buffer, blob[2]) for buffer, blob in zip(buffers, blobs) if buffer.items is None)
    return all(store.put(buffer.address, buffer.nbytes) == names for buffer, names in plain)


def _run_cell(
    records: Sequence[form.Record],
    at: int,
    wanted: set[str],
    state: dict[str, Any],
    store: Store,
    session: pickling.Session,
    live: Mapping[str, Any],
    snapshot: restore.Snapshot,
    aside: process.Aside,
) -> dict[str, Any]:
    before = restore.Snapshot(records[:at])
    cell = records[at].head["cell"]
    scratch = session.namespace
    fixed = set(scratch)
    loader = restore.Loader(before, store, session, lazy=False, live=live)
    own = {u for u, e in before.units.items() if not wanted.isdisjoint(e.names)}
    for other in _needed(before, cell, own):
        if any(m.startswith("c:") for m in before.units[other].said["m"]) and not _as_now(before, snapshot, other):
            raise _Barred(f"it needs {title(before.units[other].said['m'])} as it was then")
        if before.units[other].said["gone"]:
            raise _Barred(f"it needs {title(before.units[other].said['m'])}, which can't be saved either")
        scratch.update(loader._values(other, before.units[other]))
        if other in loader.failed:
            raise _Barred(f"it needs {title(before.units[other].said['m'])}: {loader.failed[other]}")
    scratch.update(state)
    try:
        sections = before.process(store)
    except StoreError as e:
        raise _Barred(f"it needs what the process kept: {reason(e)}") from None
    aside.back()
    why = other_modules(cell, snapshot, store) or aside.set(sections)
    if why is not None:
        raise _Barred(why)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            file, flags = cell.get("file") or "<re-run>", flags_of(lambda: sections[FUTURES])
            exec(compile(cell["source"], file, "exec", flags, dont_inherit=True), scratch)
        _same_rest(records[at], wanted, scratch, session, store)
        return {name: scratch[name] for name in wanted if name in scratch}
    except _Barred:
        raise
    except BaseException as e:
        raise _Barred(f"running its cell again failed: {reason(e)}") from None
    finally:
        for name in set(scratch) - fixed:
            del scratch[name]


def other_modules(cell: Mapping[str, Any], snapshot: restore.Snapshot, store: Store) -> str | None:
    """Why a cell can't run again as it did, if it uses modules of the user's own, and these may have been others then."""
    held = snapshot.sections.get("own modules")
    if effects.LOCAL not in cell.get("uses", ()) or held is None:
        return None
    state = pickle.loads(restore.stream(held, store))
    changed = [f"{name}.{attr}" for name, saved in state.items() for attr in saved["changed"]]
    changed = list(dict.fromkeys(changed + user_modules.others(state)))
    return (
        f"it uses the user's own modules, and {', '.join(changed[: user_modules.NAMED])} changed" if changed else None
    )


#: The section of what cells imported from `__future__`.
FUTURES = "IPython.core.compilerop"


def flags_of(section: Callable[[], bytes]) -> int:
    """The compiler's flags by what cells imported from `__future__`, as the section says."""
    try:
        futures = pickle.loads(section())
    except Exception:  # there was no shell
        return 0
    return functools.reduce(operator.or_, (getattr(__future__, name).compiler_flag for name in futures), 0)


def _as_now(before: restore.Snapshot, after: restore.Snapshot, uid: int) -> bool:
    """Whether a unit is unchanged."""
    now = after.units.get(uid)
    return now is not None and now.said["dig"] == before.units[uid].said["dig"]


def _needed(before: restore.Snapshot, cell: dict[str, Any], own: set[int]) -> list[int]:
    """Units within reach of the cell besides its own, and units within reach of their functions."""
    owner = {name: u for u, e in before.units.items() for name in e.names}
    stack = [u for u in cell["touched"] if u in before.units]
    stack += [owner[n] for n in cell["names"] if n in owner]
    stack += own
    seen: set[int] = set()
    while stack:
        top = stack.pop()
        if top not in seen:
            seen.add(top)
            stack += [owner[n] for n in before.units[top].said["t"] if n in owner]
    return sorted(seen - own)


def _same_rest(
    record: form.Record, wanted: set[str], scratch: dict[str, Any], session: pickling.Session, store: Store
) -> None:
    """The cell's other results must equal the recorded ones."""
    for said in record.head["units"]:
        if (
            said["gone"]
            or not wanted.isdisjoint(m[2:] for m in said["m"])
            or any(m.startswith("c:") for m in said["m"])
        ):
            continue
        own = [m[2:] for m in said["m"]]
        if any(effects.shown(name) for name in own):
            continue  # what the cell displayed, which a re-run doesn't keep
        if not all(name in scratch for name in own):
            raise _Barred("running its cell again gave other variables")
        again = pickling.dump(session, [scratch[name] for name in own])
        if hashlib.blake2b(again.stream, digest_size=16).hexdigest() != said["dig"]:
            raise _Barred(f"running its cell again gave another {', '.join(own)}")
        if not _same_content(again.buffers, said["b"], store):
            raise _Barred(f"running its cell again gave another {', '.join(own)}")
