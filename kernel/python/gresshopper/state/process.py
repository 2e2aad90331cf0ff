"""The state of the process outside the namespace: random states, environment, paths, options, figures.

Each section is read only if its library is loaded, and only a changed section is written. `apply` sets the values
again, paths first: modules beside the notebook can then be imported before any load.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import array
import builtins
import contextlib
import copyreg
import functools
import gc
import locale
import os
import pickle
import random
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterable
from typing import Any, Callable

from gresshopper import started, typenames

from . import (
    adapters,
    context_variables,
    contexts,
    gc_pause,
    libraries,
    loggers,
    module_entries,
    recipes,
    recursion,
    settings,
    standard,
    switch_interval,
    user_modules,
)
from .adapters import Adapter, Section
from .session import NotHereError, check_hung_in, reason

#: Left out of the records of former versions, which held the whole environment.
OWN_ENV = (
    "JPY_",
    "JUPYTER_",
    "IPYTHON",
    "SLURM",
    "GRESSHOPPER_",
    "PYDEVD_",
    "SSH_",
    "XDG_RUNTIME",
    "DISPLAY",
    "CUDA_VISIBLE_DEVICES",
    "MPLBACKEND",
    "HOSTNAME",
    "TMPDIR",
    "KERNEL_",
    "PWD",
    "OLDPWD",
    "SHLVL",
)


#: Variables set since the start, and names of variables deleted since.
_Changes = tuple["dict[str, str]", "list[str]"]

#: The environment as it was last read, and the section.
_environ_read: tuple[dict[Any, Any] | None, _Changes] = (None, ({}, []))


def _environ() -> _Changes:
    """Variables that differ from those at the process's start: the others are the job's."""
    global _environ_read  # noqa: PLW0603 - a process has one environment
    held = getattr(os.environ, "_data", None)  # without decoding all of it again
    if held is None or held != _environ_read[0]:
        was = started.start().environment
        made = {name: value for name, value in os.environ.items() if was.get(name) != value}
        deleted = sorted(name for name in was if name not in os.environ and not name.startswith(_OURS))
        _environ_read = (None if held is None else dict(held), (made, deleted))
    return _environ_read[1]


#: The prefix of variables that this package reads and then deletes.
_OURS = "GRESSHOPPER_"


#: The last state of the random numbers, and its section.
_random_read: tuple[Any, Any] = (None, None)


def _random() -> Any:
    global _random_read  # noqa: PLW0603 - a process has one such state
    state = random.getstate()
    if state != _random_read[0]:
        version, numbers, gauss = state
        _random_read = state, (version, array.array("I", numbers).tobytes(), gauss)
    return _random_read[1]


def _set_random(state: Any) -> None:
    version, numbers, gauss = state
    if isinstance(numbers, bytes):
        numbers = tuple(array.array("I", numbers))
    random.setstate((version, numbers, gauss))


def _decimal() -> Any:
    import decimal

    c = decimal.getcontext()
    traps = [signal.__name__ for signal, on in c.traps.items() if on]
    return (c.prec, c.rounding, c.Emin, c.Emax, c.capitals, c.clamp, traps)


def _interpreter() -> Any:
    found: dict[str, Any] = {
        "gc": (gc_pause.enabled(), gc.get_threshold()),
        "switch": switch_interval.seconds(),
        "stack": _stack_size(),
        "locale": {c: locale.setlocale(getattr(locale, c)) for c in _LOCALES},
    }
    with (
        contextlib.suppress(OSError, IndexError),
        open("/proc/self/status", "rb") as said,
    ):
        found["umask"] = int(said.read().partition(b"Umask:")[2].split()[0], 8)
    if not started.is_given(sys.argv):
        found["argv"] = list(sys.argv)
    if hasattr(sys, "get_int_max_str_digits"):
        found["digits"] = sys.get_int_max_str_digits()
    net = sys.modules.get("socket")
    if net is not None and net.getdefaulttimeout() is not None:
        found["timeout"] = net.getdefaulttimeout()
    children = sys.modules.get("multiprocessing")
    if children is not None and (how := children.get_start_method(allow_none=True)) is not None:
        found["children"] = how
    table = sys.modules.get("csv")
    if table is not None and (longest := table.field_size_limit()) != _FIELD:
        found["field"] = longest
    return found


def _stack_size() -> int:
    size = threading.stack_size()  # which sets the default
    if size:
        threading.stack_size(size)
    return size


#: The longest field of CSV without a word of the notebook's.
_FIELD = 131_072


_LOCALES = ("LC_CTYPE", "LC_COLLATE", "LC_TIME", "LC_MONETARY", "LC_NUMERIC", "LC_MESSAGES")


#: `sys.argv` as it was before a state was set.
_argv: list[str] = []


def _set_interpreter(state: Any) -> None:
    global _argv  # noqa: PLW0603 - a process has one
    if "argv" in state:
        _argv = _argv or list(sys.argv)
        sys.argv[:] = state["argv"]
    elif _argv:
        sys.argv[:], _argv = _argv, []
    enabled, threshold = state["gc"]
    gc_pause.enable(enabled)
    gc.set_threshold(*threshold)
    switch_interval.set_seconds(state["switch"])
    threading.stack_size(state.get("stack", 0))
    if "umask" in state:
        os.umask(state["umask"])
    if "digits" in state and hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(state["digits"])
    if "timeout" in state:
        import socket

        socket.setdefaulttimeout(state["timeout"])
    if "children" in state:
        import multiprocessing

        multiprocessing.set_start_method(state["children"], force=True)
    if "field" in state:
        import csv

        csv.field_size_limit(state["field"])
    for category, value in state["locale"].items():
        if locale.setlocale(getattr(locale, category)) != value:
            locale.setlocale(getattr(locale, category), value)


def _hung_in() -> dict[str, str]:
    """The notebook's hooks in the interpreter and its libraries, by place: only named, not kept."""
    found: dict[str, str] = {}
    for name in ("excepthook", "displayhook", "unraisablehook"):
        _by_notebook(found, f"sys.{name}", getattr(sys, name))
    _by_notebook(found, "threading.excepthook", threading.excepthook)
    for name in ("profile", "trace"):
        _by_notebook(found, f"sys.set{name}", getattr(sys, f"get{name}")())
        # Python before 3.10 has no function that gives it.
        _by_notebook(found, f"threading.set{name}", getattr(threading, f"_{name}_hook", None))
    for i, callback in enumerate(gc.callbacks):
        _by_notebook(found, f"gc.callbacks[{i}]", callback)
    for i, finder in enumerate(sys.meta_path):
        _by_notebook(found, f"sys.meta_path[{i}]", finder)
    for i, hook in enumerate(sys.path_hooks):
        _by_notebook(found, f"sys.path_hooks[{i}]", hook)
    _signals_hung_in(found)
    tracemalloc = sys.modules.get("tracemalloc")
    if tracemalloc is not None and tracemalloc.is_tracing():
        found["tracemalloc"] = "it traces"
    if (priority := os.getpriority(os.PRIO_PROCESS, 0)) != _PRIORITY:
        found["os.nice"] = str(priority)
    for cls, how in list(copyreg.dispatch_table.items()):
        if typenames.is_by_notebook(how):
            found[f"copyreg.dispatch_table[{typenames.qualname_of(cls)}]"] = typenames.called(how)
    for name in vars(builtins).keys() - _BUILTINS:
        value = vars(builtins)[name]
        if name[:2] != "__" or settings.is_mine(value):
            found[f"builtins.{name}"] = typenames.name_of(type(value))
    translates = getattr(vars(builtins).get("_"), "__self__", None)
    if typenames.module_of(type(translates)) == "gettext":  # `gettext.install`
        found["builtins._"] = typenames.name_of(type(translates))
    for name, limit in _limits().items():
        if _LIMITS.get(name) not in (None, limit):
            found[f"resource.{name}"] = str(limit)
    for logger in loggers.known().values():
        if logger.handlers:
            found[f"the handlers of the logger {logger.name}"] = ", ".join(
                f"{typenames.name_of(type(h))} {getattr(h.formatter, '_fmt', '')}" for h in logger.handlers
            )
        if logger.filters:
            found[f"the filters of the logger {logger.name}"] = ", ".join(
                typenames.name_of(type(f)) for f in logger.filters
            )
    return found


def _signals_hung_in(found: dict[str, str]) -> None:
    for number, where in _SIGNALS:
        handler = _signal.getsignal(number)
        _by_notebook(found, where, handler)
        # ipykernel sets that of SIGINT around each cell. Libraries set functions of their own.
        if number != signal.SIGINT and isinstance(handler, int) and handler != _HANDLERS[number]:
            found[where] = signal.Handlers(handler).name
    if blocked := _signal.pthread_sigmask(signal.SIG_BLOCK, ()) - _BLOCKED:
        found["signal.pthread_sigmask"] = str(sorted(blocked))
    for timer in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"):
        if any(_signal.getitimer(getattr(signal, timer))):
            found[f"signal.setitimer({timer})"] = "it runs"


#: `RLIMIT_OFILE` is another name of one of them.
_LIMITED = [name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"]


def _limits() -> dict[str, tuple[int, int]]:
    return {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITED}


#: The process's limits before any cell has run.
_LIMITS = _limits()


def _by_notebook(found: dict[str, str], where: str, value: Any) -> None:
    if typenames.is_by_notebook(value):
        found[where] = typenames.called(value)


def _set_assigned(state: dict[str, Any]) -> None:
    missing = settings.set_assigned(state)
    if missing:
        raise NotHereError(f"{', '.join(missing)}: the notebook set this, run its cell again")


def _set_last(state: dict[str, Any]) -> None:
    lost = settings.set_last(state)
    if lost:
        raise NotHereError(f"sys.last_value: {lost}")


class Unwritten:
    """Stands for a section that couldn't be pickled."""

    def __init__(self, why: str) -> None:
        self.why = why


def _set_hung_in(state: dict[str, str]) -> None:
    here = _hung_in() if state else {}
    check_hung_in(state, here)


#: IPython takes some builtins away while a cell runs and adds others: the set at the import says nothing about these.
#: The kernel's debugger adds two, after the import in some processes and before the import in others. Libraries in C do
#: the same, with names beginning with two underscores.
_BUILTINS = frozenset(dir(builtins)) | {
    "exit",
    "quit",
    "get_ipython",
    "display",
    "execfile",
    "runfile",
    "_",
}
#: Numbers of signals, and how their handlers are called: `signal.getsignal` makes an enumeration's value of each.
_SIGNALS = [(int(s), f"the handler of {s.name}") for s in signal.Signals if s not in (signal.SIGKILL, signal.SIGSTOP)]
#: Handlers, blocked signals and the priority before any cell has run.
_HANDLERS = {number: _signal.getsignal(number) for number, _ in _SIGNALS}
_BLOCKED = frozenset(_signal.pthread_sigmask(signal.SIG_BLOCK, ()))
_PRIORITY = os.getpriority(os.PRIO_PROCESS, 0)


def _paths() -> dict[str, Any]:
    found: dict[str, Any] = {"path": list(sys.path), "modules": user_modules.places()}
    try:
        return {"cwd": os.getcwd(), **found}
    except OSError:
        return {"cwd": "/", **found, "removed": True}


def _filters() -> list[Any]:
    found = []
    for action, message, category, module, line in warnings.filters:
        found.append(
            (action, getattr(message, "pattern", message), category, getattr(module, "pattern", module), line)
        )
    return found


def read() -> dict[str, bytes]:
    """All sections, pickled. An unreadable section is left out."""
    sections: dict[str, bytes] = {}
    for name, section in _sections(adapters.loaded()).items():
        if name in _ALWAYS or name in sys.modules:
            _add(sections, name, section.read)
    return sections


def look_at_libraries(scope: dict[str, Any]) -> dict[str, bytes]:
    """The sections that take a look at all modules."""
    standard.find_codecs()
    found = {**libraries.look(scope), "types of files": standard.types_of_files(), "own modules": user_modules.read()}
    return {name: pickle.dumps(content, protocol=5) for name, content in found.items()}


def know() -> None:
    """Look up unchanging facts before a user waits for them."""
    for name, section in _sections(adapters.loaded()).items():
        if section.know is not None and name in sys.modules:
            with contextlib.suppress(Exception):  # a half-imported library: then it is found out when it is needed
                section.know()
    user_modules.see()


@recursion.Bounded()
def _add(sections: dict[str, bytes], name: str, reader: Callable[[], Any]) -> None:
    try:
        found = reader()
    except Exception:  # a half-imported library
        return
    try:
        sections[name] = pickle.dumps(found, protocol=5)
    except Exception:  # a function of the notebook among the options
        try:
            sections[name] = settings.dump(found)
        except Exception as e:
            sections[name] = pickle.dumps(Unwritten(reason(e)), protocol=5)


def apply(sections: dict[str, bytes], notice: Callable[[str], None]) -> None:
    """Set what `read` read. A section that can't be set is told and left."""
    known = _sections(adapters.known())
    for name in sorted(known, key=lambda name: known[name].last):
        if name not in sections:
            continue
        try:
            _put(name, known[name], sections[name])
        except NotHereError as e:
            notice(str(e))
        except Exception as e:
            notice(f"the process's {name} settings couldn't be restored: {e}")


def _put(name: str, section: Section, saved: bytes) -> None:
    """
    # Errors
    `NotHereError` names what isn't there; and whatever setting raises.
    """
    if section.soon or not _is_so(name, section, saved):
        state = settings.load(saved)
        if isinstance(state, Unwritten):
            raise NotHereError(f"the process's {name} settings couldn't be saved: {state.why}")
        section.set(state)


class Aside:
    """The process's settings, put aside while cells run again in the settings of their first run."""

    def __init__(self) -> None:
        self._kept = read()
        self._environ = dict(os.environ)
        self._handlers = _handlers()

    def set(self, sections: dict[str, bytes]) -> str | None:
        """Set the settings that were read before a cell. Returns the reason if they can't be set."""
        known = _sections(adapters.known())
        for name in (name for name in known if known[name].again and name in sections):
            try:
                if not _is_of_values(sections[name]):
                    if self._kept.get(name) != sections[name]:
                        return f"the process's {name} settings can't be as they were"
                    continue
                _put(name, known[name], sections[name])
            except NotHereError:  # the restore told it
                pass
            except Exception as e:
                return f"the process's {name} settings can't be as they were: {reason(e)}"
        return None

    def end(self) -> list[str]:
        """Set all that was put aside, once the variables are there. Returns the names of sections that are others all the
        same."""
        self.back()
        others = self._others()
        apply({name: self._kept[name] for name in others}, lambda _: None)
        return others and self._others()

    def _others(self) -> list[str]:
        now = read()
        # The next cell finds its own context variables; `paths` tells of modules that were loaded meanwhile, too.
        told = now.keys() & self._kept.keys() - drawn() - {"contextvars", "paths"}
        return sorted(k for k in told if self._kept[k] != now[k])

    def back(self) -> None:
        """Set what was put aside and holds nothing of the notebook's."""
        for logger in loggers.known().values():
            logger.handlers[:], logger.filters[:] = self._handlers.get(logger, ([], []))
        for name in {*self._environ, *os.environ}:
            _set_variable(name, self._environ.get(name))
        time.tzset()
        names = again()
        apply({k: v for k, v in self._kept.items() if k in names and _is_of_values(v)}, lambda _: None)


def _handlers() -> dict[Any, tuple[list[Any], list[Any]]]:
    return {logger: (list(logger.handlers), list(logger.filters)) for logger in loggers.known().values()}


def _is_of_values(saved: bytes) -> bool:
    """Whether a section holds nothing of the notebook's."""
    return settings.__name__.encode() not in saved and Unwritten.__name__.encode() not in saved


def drawn() -> set[str]:
    """Sections from which cells draw random numbers, of the process and of loaded libraries."""
    return {name for name, section in _sections(adapters.loaded()).items() if section.draws}


def draw_again(sections: dict[str, bytes]) -> None:
    """Have cells draw the saved random numbers: something beside them drew some since the restore, as an import may."""
    known = _sections(adapters.loaded())
    for name in drawn() & sections.keys():
        if not _is_so(name, known[name], sections[name]):
            with contextlib.suppress(Exception):  # the restore told it
                _put(name, known[name], sections[name])


def again() -> set[str]:
    """Sections with which cells run again, of the process and of loaded libraries."""
    return {name for name, section in _sections(adapters.loaded()).items() if section.again}


def for_cells(sections: dict[str, bytes]) -> None:
    """Have the next cell find the values set by `apply`: Python keeps some of the values per context."""
    waiting = {}
    for name, section in of_context().items():
        with contextlib.suppress(Exception):  # `apply` told it
            state = pickle.loads(sections[name])
            if not isinstance(state, Unwritten):
                waiting[name] = {k: state[k] for k in section.modes if k in state} if section.modes else state
    contexts.wait_for_cell(waiting)


def cell_begins() -> list[str]:
    """Set the value, in the context of the cell that begins here. Returns what is missing."""
    known = of_context()
    return contexts.cell_begins(lambda name, state: _set_in_context(known[name], state))


def _set_in_context(section: Section, state: Any) -> None:
    if section.in_context is not None:
        section.in_context(state)


def of_context() -> dict[str, Section]:
    """Sections of which Python keeps something for each context."""
    return {name: section for name, section in _sections(adapters.known()).items() if section.in_context is not None}


def _is_so(name: str, section: Section, saved: bytes) -> bool:
    """Whether a section already has its value: setting takes longer than reading."""
    now: dict[str, bytes] = {}
    if name in _ALWAYS or name in sys.modules:
        _add(now, name, section.read)
    return now.get(name) == saved


#: Sections on which importing depends.
_EARLY = ("paths", "environ", "module names")


def apply_early(sections: dict[str, bytes], notice: Callable[[str], None]) -> None:
    """Only what importing depends on."""
    apply({k: v for k, v in sections.items() if k in _EARLY}, notice)


def apply_late(sections: dict[str, bytes], notice: Callable[[str], None]) -> None:
    """All the rest, after the variables are there."""
    apply({k: v for k, v in sections.items() if k not in _EARLY}, notice)


def apply_anew(sections: dict[str, bytes], changed: Collection[str], notice: Callable[[str], None]) -> None:
    """As `apply_late`, where an earlier state was set with other objects of the notebook's. Only the `changed` sections
    are new to the user: of the others, what isn't there was told.
    """
    known = _sections(adapters.known())
    for name in sections.keys() & known.keys():
        take_out = known[name].take_out
        if take_out is not None:
            with contextlib.suppress(Exception):  # a shell that isn't there
                take_out()
    apply_late({k: v for k, v in sections.items() if k not in changed}, lambda _: None)
    apply_late({k: v for k, v in sections.items() if k in changed}, notice)


#: Sections that only name something, or are set with the variables.
_ONLY_NAMED = frozenset({*_EARLY, "hung in", "patched", "lent functions", "own modules", "last", "random"})


def naming(sections: Iterable[str], read: Callable[[str], bytes], names: Collection[str]) -> dict[str, bytes]:
    """Returns the sections that hold objects of the variables `names`, by name. `read` gives a section's content."""
    found = {name: read(name) for name in sections if names and name not in _ONLY_NAMED}
    return {name: saved for name, saved in found.items() if not _texts(saved).isdisjoint(names)}


@functools.lru_cache(maxsize=256)
def _texts(saved: bytes) -> frozenset[str]:
    """All texts in a section."""
    import pickletools  # a fresh kernel has it no sooner than a spare one

    return frozenset(given for _, given, _ in pickletools.genops(saved) if type(given) is str)


def _set_paths(state: Any) -> None:
    sys.path[:] = state["path"] + [p for p in sys.path if p not in state["path"] and "gresshopper" in p]
    user_modules.set_places(state.get("modules", {}))
    os.chdir(state["cwd"])
    if "removed" in state:
        raise NotHereError("the working directory was removed: it is / now, os.chdir sets another")


#: The changes of the environment in the state that was set last.
_environ_set: _Changes = ({}, [])


def _set_environ(state: _Changes | dict[str, str]) -> None:
    global _environ_set  # noqa: PLW0603 - a process has one environment
    if isinstance(state, dict):  # of a former version: all variables
        for key in [k for k in os.environ if k not in state and not k.startswith(OWN_ENV)]:
            del os.environ[key]
        made, deleted = state, list[str]()
    else:
        made, deleted = state
        was = started.start().environment
        for name in {*_environ_set[0], *_environ_set[1]}.difference(made, deleted):
            _set_variable(name, was.get(name))
        _environ_set = state
    for name, value in (*made.items(), *((name, None) for name in deleted)):
        _set_variable(name, value)
    time.tzset()


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    elif os.environ.get(name) != value:
        os.environ[name] = value


def _set_python(state: Any) -> None:
    recursion.set_limit(max(state["recursion"], 200))
    warnings.resetwarnings()
    for action, message, category, module, line in reversed(state["warnings"]):
        warnings.filterwarnings(action, message or "", category, module or "", line)


def _set_decimal(state: Any) -> None:
    import decimal

    for held in recipes.decimals:
        decimal.setcontext(held)
    c = decimal.getcontext()
    c.prec, c.rounding, c.Emin, c.Emax, c.capitals, c.clamp = state[:6]
    for kind in c.traps if len(state) > 6 else ():
        c.traps[kind] = kind.__name__ in state[6]


def _elsewhere() -> Any:
    """Read by the capture itself: a look at all modules takes long."""
    raise LookupError


#: Sections of the interpreter and the standard library, in the order in which they are set.
_OWN: dict[str, Section] = {
    "paths": Section(_paths, _set_paths, again=True),
    "environ": Section(_environ, _set_environ, again=True),
    "module names": Section(module_entries.other_names, module_entries.set_other_names, soon=True),
    "python": Section(lambda: {"recursion": recursion.limit(), "warnings": _filters()}, _set_python, again=True),
    "logging": Section(loggers.levels, loggers.set_levels, soon=True, again=True),
    "handlers": Section(loggers.handlers, loggers.set_handlers, soon=True, take_out=loggers.take_out_handlers),
    "interpreter": Section(_interpreter, _set_interpreter, again=True),
    # A cell may have set `warnings.showwarning` afterwards, which comes next.
    "logs": Section(standard.logs, standard.set_logs, again=True),
    "made modules": Section(module_entries.entries, module_entries.set_entries, soon=True),
    "assigned": Section(settings.assigned, _set_assigned, soon=True),
    "registered": Section(settings.registered, settings.set_registered, soon=True),
    "csv": Section(settings.dialects, settings.set_dialects, soon=True, again=True),
    "calendar": Section(standard.first_weekday, standard.set_first_weekday, again=True),
    "xml.etree.ElementTree": Section(standard.prefixes, standard.set_prefixes, again=True),
    "codecs": Section(standard.coding, standard.set_coding, know=standard.find_codecs, again=True),
    "last": Section(settings.last, _set_last, soon=True),
    "hung in": Section(_hung_in, _set_hung_in, soon=True),
    "patched": Section(_elsewhere, libraries.set_patched, soon=True),
    "lent functions": Section(_elsewhere, libraries.set_lent, soon=True),
    "library tables": Section(_elsewhere, libraries.set_tables, soon=True),
    "types of files": Section(_elsewhere, standard.set_types_of_files, soon=True),
    "own modules": Section(_elsewhere, user_modules.set_, soon=True),
    "decimal": Section(
        functools.partial(contexts.read, "decimal", _decimal),
        _set_decimal,
        soon=True,
        in_context=_set_decimal,
        again=True,
    ),
    "contextvars": Section(
        functools.partial(contexts.read, "contextvars", context_variables.read),
        context_variables.set_,
        soon=True,
        in_context=context_variables.set_in_context,
    ),
    "random": Section(_random, _set_random, soon=True, again=True, draws=True),
}
#: Those of them that are no module's.
_ALWAYS = frozenset(name for name, section in _OWN.items() if section.read is not _elsewhere) - {
    "csv",
    "calendar",
    "xml.etree.ElementTree",
    "decimal",
}


def _sections(of: Iterable[Adapter]) -> dict[str, Section]:
    found = dict(_OWN)
    for adapter in of:
        found.update(adapter.sections)
    return found
