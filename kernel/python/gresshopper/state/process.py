"""The state of the process outside the namespace: random states, environment, paths, options, figures.

Each section is read only if its library is loaded, and only a changed section is written. `apply` sets the values
again, paths first: modules beside the notebook can then be imported before any load.
"""

from __future__ import annotations

import array
import builtins
import contextlib
import copyreg
import functools
import gc
import hashlib
import io
import locale
import os
import pickle
import random
import signal
import sys
import threading
import time
import types
import warnings
from typing import Any, Callable

from . import contexts, loggers, settings, unswept, yielding
from .session import reason

#: Set by Jupyter, Slurm or Gresshopper for this process alone.
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


def _environ() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(OWN_ENV)}


def _random() -> Any:
    version, numbers, gauss = random.getstate()
    return version, array.array("I", numbers).tobytes(), gauss


def _set_random(state: Any) -> None:
    version, numbers, gauss = state
    if isinstance(numbers, bytes):
        numbers = tuple(array.array("I", numbers))
    random.setstate((version, numbers, gauss))


def _numpy() -> Any:
    np = sys.modules["numpy"]
    found = {"random": _numpy_random(np), "print": np.get_printoptions(), "err": np.geterr()}
    call = np.geterrcall()
    if call is not None:
        found["call"] = call
    if hasattr(np, "set_string_function") and repr(np.bool_(0).reshape(1)) != "array([False])":
        found["shown"] = True
    return found


def _numpy_random(np: Any) -> Any:
    """The state of numpy's global generator; its seed alone, while nothing was drawn."""
    state = np.random.get_state()
    made_of = getattr(getattr(np.random.mtrand._rand, "_bit_generator", None), "_seed_seq", None)
    entropy = getattr(made_of, "entropy", None)
    if isinstance(entropy, int) and isinstance(state, tuple) and _same_state(_numpy_made_of(np, entropy), state):
        return {"entropy": entropy}
    return state


@functools.lru_cache(maxsize=2)
def _numpy_made_of(np: Any, entropy: int) -> Any:
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(entropy))).get_state()


def _same_state(one: Any, other: Any) -> bool:
    return bool(one[0] == other[0] and one[2:] == other[2:] and one[1].tobytes() == other[1].tobytes())


def _torch() -> Any:
    torch = sys.modules["torch"]
    state, seed = bytes(torch.get_rng_state().numpy()), torch.initial_seed()
    return {
        **({"seed": seed} if _torch_seeded(torch, seed) == state else {"rng": state}),
        "dtype": str(torch.get_default_dtype()),
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "print": {name: getattr(torch._tensor_str.PRINT_OPTS, name) for name in _TORCH_PRINT},
    }


_TORCH_PRINT = ("precision", "threshold", "edgeitems", "linewidth", "sci_mode")


@functools.lru_cache(maxsize=2)
def _torch_seeded(torch: Any, seed: int) -> bytes:
    """The state of torch's generator after it was seeded, until something is drawn."""
    return bytes(torch.Generator().manual_seed(seed).get_state().numpy())


class _Defaults:
    """Default options of a library, the same wherever its version is. Only plain values: others may have been
    changed in place, here and in the library's own defaults."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._values = {key: value for key, value in found.items() if type(value) in _PLAIN}
        self.digest = hashlib.blake2b(repr(sorted(self._values.items())).encode(), digest_size=16).digest()

    def apart(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options as what they differ in."""
        return {
            "defaults": self.digest,
            "set": {key: value for key, value in options.items() if not self._is(key, value)},
            "unset": [key for key in self._values if key not in options],
        }

    def _is(self, key: str, value: Any) -> bool:
        default = self._values.get(key, _Defaults)
        return type(value) is type(default) and bool(value == default)

    def whole(self, saved: dict[str, Any]) -> dict[str, Any]:
        """What `apart` was given."""
        unset = frozenset(saved["unset"])
        return {**{k: v for k, v in self._values.items() if k not in unset}, **saved["set"]}


_PLAIN = (str, int, float, bool, type(None))


@functools.lru_cache(maxsize=2)
def _matplotlib_defaults(matplotlib: Any) -> _Defaults:
    return _Defaults({k: v for k, v in dict.items(matplotlib.rcParamsDefault) if k != "backend"})


@functools.lru_cache(maxsize=2)
def _pandas_defaults(config: Any, count: int) -> _Defaults:
    """`count`: options are registered when parts of pandas are imported."""
    return _Defaults({key: option.defval for key, option in list(config._registered_options.items())})


def _matplotlib() -> Any:
    params = dict(dict.items(sys.modules["matplotlib"].rcParams))
    backend = params.pop("backend", None)
    # An unchosen backend is a marker object, and stays unchosen.
    if isinstance(backend, str) and "inline" in backend and "matplotlib.pyplot" in sys.modules:
        params["backend"] = backend
        params["hooked"] = _hooked()
    return _matplotlib_defaults(sys.modules["matplotlib"]).apart(params)


def _hooked() -> bool:
    """Whether the shell shows figures at the end of each cell."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    after = shell.events.callbacks.get("post_execute", ()) if shell is not None else ()
    return any(getattr(hook, "__name__", "") == "flush_figures" for hook in after)


def _pandas() -> Any:
    return _defaults_of_pandas().apart(_pandas_options())


def _defaults_of_pandas() -> _Defaults:
    config = sys.modules["pandas._config.config"]
    return _pandas_defaults(config, len(config._registered_options))


def _pandas_options() -> dict[str, Any]:
    return dict(_flat(sys.modules["pandas._config.config"]._global_config))


def _flat(tree: Any, prefix: str = "") -> Any:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _figures() -> Any:
    gcf = sys.modules["matplotlib._pylab_helpers"].Gcf
    active = gcf.get_active()
    hook = getattr(sys.modules.get("matplotlib.pyplot"), "_REPL_DISPLAYHOOK", None)
    return {
        "numbers": list(gcf.figs),
        "current": None if active is None else active.num,
        "shell": getattr(hook, "name", "") == "IPYTHON",
    }


def _decimal() -> Any:
    import decimal

    c = decimal.getcontext()
    traps = [signal.__name__ for signal, on in c.traps.items() if on]
    return (c.prec, c.rounding, c.Emin, c.Emax, c.capitals, c.clamp, traps)


def _interpreter() -> Any:
    found: dict[str, Any] = {
        "gc": (unswept.enabled(), gc.get_threshold()),
        "switch": yielding.turn(),
        "locale": {c: locale.setlocale(getattr(locale, c)) for c in _LOCALES},
    }
    with (
        contextlib.suppress(OSError, IndexError),
        open("/proc/self/status", "rb") as said,
    ):
        found["umask"] = int(said.read().partition(b"Umask:")[2].split()[0], 8)
    if hasattr(sys, "get_int_max_str_digits"):
        found["digits"] = sys.get_int_max_str_digits()
    net = sys.modules.get("socket")
    if net is not None and net.getdefaulttimeout() is not None:
        found["timeout"] = net.getdefaulttimeout()
    return found


_LOCALES = ("LC_CTYPE", "LC_COLLATE", "LC_TIME", "LC_MONETARY", "LC_NUMERIC")


def _set_interpreter(state: Any) -> None:
    enabled, threshold = state["gc"]
    unswept.enable(enabled)
    gc.set_threshold(*threshold)
    yielding.set_turn(state["switch"])
    if "umask" in state:
        os.umask(state["umask"])
    if "digits" in state and hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(state["digits"])
    if "timeout" in state:
        import socket

        socket.setdefaulttimeout(state["timeout"])
    for category, value in state["locale"].items():
        if locale.setlocale(getattr(locale, category)) != value:
            locale.setlocale(getattr(locale, category), value)


def _hung_in() -> dict[str, str]:
    """The notebook's hooks in the interpreter and its libraries, by place: only named, not kept."""
    found: dict[str, str] = {}
    for name in ("excepthook", "displayhook", "unraisablehook"):
        _by_notebook(found, f"sys.{name}", getattr(sys, name))
    _by_notebook(found, "threading.excepthook", threading.excepthook)
    for i, callback in enumerate(gc.callbacks):
        _by_notebook(found, f"gc.callbacks[{i}]", callback)
    for i, finder in enumerate(sys.meta_path):
        _by_notebook(found, f"sys.meta_path[{i}]", finder)
    for number in _SIGNALS:
        _by_notebook(found, f"the handler of {number.name}", signal.getsignal(number))
    for cls, how in list(copyreg.dispatch_table.items()):
        _by_notebook(found, f"copyreg.dispatch_table[{cls.__qualname__}]", how)
    for name, value in vars(builtins).items():
        if name not in _BUILTINS and name != "_":
            found[f"builtins.{name}"] = type(value).__name__
    for logger in loggers.known().values():
        if logger.handlers:
            found[f"the handlers of the logger {logger.name}"] = ", ".join(
                f"{type(h).__name__} {getattr(h.formatter, '_fmt', '')}" for h in logger.handlers
            )
        if logger.filters:
            found[f"the filters of the logger {logger.name}"] = ", ".join(type(f).__name__ for f in logger.filters)
    return found


def _by_notebook(found: dict[str, str], where: str, value: Any) -> None:
    if getattr(value, "__module__", None) == "__main__" or type(value).__module__ == "__main__":
        found[where] = str(getattr(value, "__qualname__", type(value).__qualname__))


def patched(scope: dict[str, Any]) -> list[str]:
    """Functions of the notebook that stand in a library's modules and classes: only named, not kept."""
    found: list[str] = []
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if type(module) is not types.ModuleType or name == "__main__" or vars(module) is scope:
            continue
        mine, held = _scanned(_modules, id(module), vars(module), scope)
        found += [f"{name}.{attr}" for attr in mine]
        for attr, kind in held:
            if id(kind) not in seen:
                seen.add(id(kind))
                members = type.__dict__["__dict__"].__get__(kind)
                found += [f"{name}.{attr}.{of}" for of in _scanned(_classes, id(kind), members, scope)[0]]
    return sorted(found)


#: The names of the notebook's functions, and the classes of a module.
_Scan = tuple[list[str], list[tuple[str, Any]]]
#: Findings in modules and classes, with a fingerprint of their content: a look at each value is slow.
_modules: dict[int, tuple[int, _Scan]] = {}
_classes: dict[int, tuple[int, _Scan]] = {}


def _scanned(known: dict[int, tuple[int, _Scan]], key: int, members: Any, scope: dict[str, Any]) -> _Scan:
    mark = hash((id(scope), *map(id, members.values())))
    before = known.get(key)
    if before is not None and before[0] == mark:
        return before[1]
    mine: list[str] = []
    held: list[tuple[str, Any]] = []
    for attr, value in list(members.items()):
        if type(value) is types.FunctionType:
            if value.__globals__ is scope:
                mine.append(attr)
        elif known is _modules and issubclass(type(value), type) and value.__module__ != "__main__":
            held.append((attr, value))
    known[key] = (mark, (mine, held))
    return mine, held


#: Folders of modules that aren't the user's own.
INSTALLED = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.__file__), "/usr/lib/python3"})


def own_module(module: Any) -> bool:
    """Whether a module is the user's own, of files beside the notebook."""
    if type(module) is not types.ModuleType or vars(module).get("__name__") == "__main__":
        return False
    file = vars(module).get("__file__")
    if not isinstance(file, str) or file.startswith(INSTALLED) or "-packages/" in file:
        return False
    return not file.startswith(_OURS)


_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: What is larger isn't compared.
_COMPARED = 1 << 20


class _Short(io.BytesIO):
    """Takes little."""

    def write(self, data: Any) -> int:
        if self.tell() > _COMPARED:
            raise ValueError("too large")
        return super().write(data)


def _mark(value: Any) -> str:
    """Tag that tells the value of a module's variable from another, the same in every process; empty if none
    exists."""
    if isinstance(value, (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)):
        return ""
    if type(value) in (set, frozenset):
        value = sorted(map(repr, value))
    out = _Short()
    try:
        pickler = pickle.Pickler(out, protocol=5)
        pickler.fast = True  # which strings are one object differs from process to process
        pickler.dump(value)
    except Exception:  # what can't be pickled, holds itself, or is too large
        return ""
    return hashlib.blake2b(out.getvalue(), digest_size=8).hexdigest()


def _marks(module: types.ModuleType) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in list(vars(module).items()):
        if name.startswith("__"):
            continue
        if isinstance(value, type) and value.__module__ == module.__name__:
            inside = type.__dict__["__dict__"].__get__(value).items()
            found.update({f"{name}.{k}": _mark(v) for k, v in list(inside) if not k.startswith("__")})
        else:
            found[name] = _mark(value)
    return {name: mark for name, mark in found.items() if mark}


#: The user's own modules, found anew after a load of modules; and each module's content at the first look.
_own: tuple[Any, list[types.ModuleType]] = (None, [])
_first: dict[str, dict[str, str]] = {}


def see_modules() -> list[types.ModuleType]:
    """The user's own modules; remembers the content of new ones."""
    global _own  # noqa: PLW0603 - a process has one list of modules
    loaded = (len(sys.modules), next(reversed(sys.modules)))
    if _own[0] != loaded:
        _own = (loaded, [module for module in list(sys.modules.values()) if own_module(module)])
        for module in _own[1]:
            if module.__name__ not in _first:
                _first[module.__name__] = _marks(module)
    return _own[1]


def own_modules() -> dict[str, dict[str, Any]]:
    """Present values of variables in the user's own modules (`is`), and the variables changed since the first look."""
    found: dict[str, dict[str, Any]] = {}
    for module in see_modules():
        marks, first = _marks(module), _first.get(module.__name__, {})
        found[module.__name__] = {
            "is": marks,
            "changed": sorted(k for k, v in first.items() if marks.get(k, "") != v),
        }
    return found


def _set_own_modules(state: dict[str, dict[str, Any]]) -> None:
    others: list[str] = []
    for name, saved in state.items():
        module = sys.modules.get(name)
        here = _marks(module) if own_module(module) and module is not None else None
        differ = saved["changed"] if here is None else [k for k, v in saved["is"].items() if here.get(k, v) != v]
        others += [f"{name}.{attr}" for attr in differ]
    if others:
        raise NotHereError(
            f"{', '.join(others)}: what the notebook's own modules hold isn't saved, run its cells again"
        )


def _set_patched(state: list[str]) -> None:
    missing = [where for where in state if not settings.of_notebook(_found(where))]
    if missing:
        raise NotHereError(f"{', '.join(missing)}: the notebook put a function of its own there, run its cell again")


def _found(where: str) -> Any:
    """A module's value, or that of a class in a module."""
    name, _, attr = where.rpartition(".")
    if name in sys.modules:
        return vars(sys.modules[name]).get(attr)
    module, _, kind = name.rpartition(".")
    return getattr(vars(sys.modules[module]).get(kind), attr, None) if module in sys.modules else None


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
    missing = sorted(where for where, what in state.items() if here.get(where) != what)
    if missing:
        raise NotHereError(f"{', '.join(missing)}: the notebook set this, run its cell again")


class NotHereError(RuntimeError):
    """Names an effect of the notebook outside its variables that is missing here."""


#: IPython takes some away while a cell runs and adds others: what is there at this import says nothing about these.
_BUILTINS = frozenset(dir(builtins)) | {"exit", "quit", "get_ipython", "display"}
_SIGNALS = [s for s in signal.Signals if s not in (signal.SIGKILL, signal.SIGSTOP)]

_READ: dict[str, Callable[[], Any]] = {
    "paths": lambda: {"cwd": _cwd(), "path": list(sys.path)},
    "environ": _environ,
    "random": _random,
    "python": lambda: {"recursion": sys.getrecursionlimit(), "warnings": _filters()},
    "logging": loggers.levels,
    "handlers": loggers.handlers,
    "interpreter": _interpreter,
    "hung in": _hung_in,
    "assigned": settings.assigned,
    "registered": settings.registered,
    "last": settings.last,
}
_LIBRARY: dict[str, Callable[[], Any]] = {
    "numpy": functools.partial(contexts.read, "numpy", _numpy),
    "torch": _torch,
    "matplotlib": _matplotlib,
    "pandas._config.config": _pandas,
    "matplotlib._pylab_helpers": _figures,
    "decimal": functools.partial(contexts.read, "decimal", _decimal),
    "csv": settings.dialects,
    "IPython": settings.ipython,
    "matplotlib_inline.config": settings.inline,
    "matplotlib.cm": settings.colormaps,
    "pandas.core.accessor": settings.accessors,
    "sklearn._config": settings.sklearn,
}


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


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
    for name, reader in _READ.items():
        _add(sections, name, reader)
    for name, reader in _LIBRARY.items():
        if name in sys.modules:
            _add(sections, name, reader)
    return sections


def know() -> None:
    """Look up unchanging facts before a user waits for them."""
    with contextlib.suppress(Exception):  # a half-imported library: then it is found out when it is needed
        if "matplotlib" in sys.modules:
            _matplotlib_defaults(sys.modules["matplotlib"])
        if "pandas._config.config" in sys.modules:
            _defaults_of_pandas()
    see_modules()


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
    order = [
        "paths",
        "environ",
        "python",
        "logging",
        "handlers",
        "interpreter",
        "assigned",
        "registered",
        "csv",
        "last",
        "hung in",
        "patched",
        "own modules",
        "IPython",
        "numpy",
        "torch",
        "matplotlib",
        "matplotlib.cm",
        "matplotlib_inline.config",
        "pandas._config.config",
        "pandas.core.accessor",
        "sklearn._config",
        "decimal",
        "random",
        "matplotlib._pylab_helpers",
    ]
    for name in order:
        if name not in sections:
            continue
        try:
            if name in _SOON_SET or not _is_so(name, sections[name]):
                state = pickle.loads(sections[name])
                if isinstance(state, Unwritten):
                    raise NotHereError(f"the process's {name} settings couldn't be saved: {state.why}")
                _WRITE[name](state)
        except NotHereError as e:
            notice(str(e))
        except Exception as e:
            notice(f"the process's {name} settings couldn't be restored: {e}")


def for_cells(sections: dict[str, bytes]) -> None:
    """Have the next cell find the values set by `apply`: Python keeps some of the values per context."""
    waiting = {}
    for name in OF_CONTEXT:
        with contextlib.suppress(Exception):  # `apply` told it
            state = pickle.loads(sections[name])
            if not isinstance(state, Unwritten):
                waiting[name] = {k: state[k] for k in _MODES if k in state} if isinstance(state, dict) else state
    contexts.wait_for_cell(waiting)


def cell_begins() -> None:
    """Set the value, in the context of the cell that begins here."""
    contexts.cell_begins(lambda name, state: OF_CONTEXT[name](state))


#: The part of numpy's section that newer releases keep for each context.
_MODES = ("print", "err", "call")

#: Sections set faster than read, or never present in another process.
_SOON_SET = frozenset(
    {
        "random",
        "numpy",
        "torch",
        "logging",
        "handlers",
        "hung in",
        "patched",
        "own modules",
        "assigned",
        "registered",
        "last",
        "csv",
    }
)


def _is_so(name: str, section: bytes) -> bool:
    """Whether a section already has its value: setting takes longer than reading."""
    reader = _READ.get(name) or (_LIBRARY.get(name) if name in sys.modules else None)
    now: dict[str, bytes] = {}
    if reader is not None:
        _add(now, name, reader)
    return now.get(name) == section


def apply_early(sections: dict[str, bytes], notice: Callable[[str], None]) -> None:
    """Only what importing depends on."""
    apply({k: v for k, v in sections.items() if k in ("paths", "environ")}, notice)


def apply_late(sections: dict[str, bytes], notice: Callable[[str], None]) -> None:
    """All the rest, after the variables are there."""
    apply({k: v for k, v in sections.items() if k not in ("paths", "environ")}, notice)


def _set_paths(state: Any) -> None:
    sys.path[:] = state["path"] + [p for p in sys.path if p not in state["path"] and "gresshopper" in p]
    os.chdir(state["cwd"])


def _set_environ(state: dict[str, str]) -> None:
    for key in [k for k in os.environ if k not in state and not k.startswith(OWN_ENV)]:
        del os.environ[key]
    os.environ.update({k: v for k, v in state.items() if os.environ.get(k) != v})
    time.tzset()


def _set_python(state: Any) -> None:
    sys.setrecursionlimit(max(state["recursion"], 200))
    warnings.resetwarnings()
    for action, message, category, module, line in reversed(state["warnings"]):
        warnings.filterwarnings(action, message or "", category, module or "", line)


def _set_numpy(state: Any) -> None:
    import numpy as np

    drawn = state["random"]
    made_of = drawn.get("entropy") if isinstance(drawn, dict) else None
    np.random.set_state(drawn if made_of is None else _numpy_made_of(np, made_of))
    _set_numpy_modes(state)
    if state.get("shown"):
        raise NotHereError("numpy.set_string_function: the notebook set this, run its cell again")


def _set_numpy_modes(state: Any) -> None:
    import numpy as np

    np.set_printoptions(**state["print"])
    np.seterr(**state["err"])
    if "call" in state:
        np.seterrcall(state["call"])


def _set_torch(state: Any) -> None:
    import torch

    if "seed" in state:
        torch.default_generator.manual_seed(state["seed"])
    else:
        torch.set_rng_state(torch.frombuffer(bytearray(state["rng"]), dtype=torch.uint8))
    torch.set_default_dtype(getattr(torch, state["dtype"].split(".")[1]))
    torch.set_grad_enabled(state["grad"])
    if torch.get_num_threads() != state["threads"]:
        torch.set_num_threads(state["threads"])
    torch.use_deterministic_algorithms(state["deterministic"])
    if state.get("anomaly", False) != torch.is_anomaly_enabled():
        torch.autograd.set_detect_anomaly(state["anomaly"])
    for name, value in state.get("print", {}).items():
        setattr(torch._tensor_str.PRINT_OPTS, name, value)


def _set_matplotlib(state: Any) -> None:
    import matplotlib

    here = _matplotlib_defaults(matplotlib)
    other = _foreign(here, state)
    state = here.whole(state) if "defaults" in state else state
    inline, hooked = state.pop("backend", None), state.pop("hooked", True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if inline is not None and dict.get(matplotlib.rcParams, "backend") != inline:
            _show_inline(inline, hooked)
        dict.update(matplotlib.rcParams, state)
    if other:
        raise NotHereError("matplotlib's own defaults are others here than where the state was saved")


def _foreign(here: _Defaults, state: dict[str, Any]) -> bool:
    return "defaults" in state and state["defaults"] != here.digest


def _know_shell() -> None:
    """Have pyplot draw at the end of cells, as from its first figure on."""
    import matplotlib.pyplot as plt

    with contextlib.suppress(ImportError):  # an older matplotlib looks for what newer IPythons don't have, once
        plt.install_repl_displayhook()


def _show_inline(backend: str, hooked: bool) -> None:
    """`%matplotlib inline` with its hooks in the shell, unless the magic failed where the state was saved."""
    import matplotlib.pyplot as plt
    from IPython.core.getipython import get_ipython

    _know_shell()
    shell = get_ipython()
    if shell is not None and hooked:
        shell.enable_matplotlib("inline")
    else:
        plt.switch_backend(backend)


def _set_pandas(state: Any) -> None:
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = _defaults_of_pandas()
        other = _foreign(here, state)
        state = here.whole(state) if "defaults" in state else state
        now = _pandas_options()  # asking for each option costs more than all the rest
        for key, value in state.items():
            try:
                if key not in now or now[key] != value:
                    pd.set_option(key, value)
            except (KeyError, ValueError, AttributeError):
                continue
    if other:
        raise NotHereError("pandas' own defaults are others here than where the state was saved")


def _set_figures(state: Any) -> None:
    from matplotlib._pylab_helpers import Gcf

    if state.get("shell"):
        _know_shell()
    if state["current"] is not None and state["current"] in Gcf.figs:
        Gcf.set_active(Gcf.figs[state["current"]])


def _set_decimal(state: Any) -> None:
    import decimal

    c = decimal.getcontext()
    c.prec, c.rounding, c.Emin, c.Emax, c.capitals, c.clamp = state[:6]
    for kind in c.traps if len(state) > 6 else ():
        c.traps[kind] = kind.__name__ in state[6]


#: Sections of which Python keeps something for each context.
OF_CONTEXT: dict[str, Callable[[Any], None]] = {"decimal": _set_decimal, "numpy": _set_numpy_modes}

_WRITE: dict[str, Callable[[Any], None]] = {
    "paths": _set_paths,
    "environ": _set_environ,
    "random": _set_random,
    "python": _set_python,
    "logging": loggers.set_levels,
    "handlers": loggers.set_handlers,
    "interpreter": _set_interpreter,
    "hung in": _set_hung_in,
    "patched": _set_patched,
    "own modules": _set_own_modules,
    "numpy": _set_numpy,
    "torch": _set_torch,
    "matplotlib": _set_matplotlib,
    "pandas._config.config": _set_pandas,
    "matplotlib._pylab_helpers": _set_figures,
    "decimal": _set_decimal,
    "assigned": _set_assigned,
    "registered": settings.set_registered,
    "last": _set_last,
    "csv": settings.set_dialects,
    "IPython": settings.set_ipython,
    "matplotlib_inline.config": settings.set_inline,
    "matplotlib.cm": settings.set_colormaps,
    "pandas.core.accessor": settings.set_accessors,
    "sklearn._config": settings.set_sklearn,
}
