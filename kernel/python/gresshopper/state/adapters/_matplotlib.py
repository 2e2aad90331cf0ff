"""matplotlib: figures, callbacks and colour cycles, `rcParams`, colormaps and how figures are shown."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import itertools
import operator
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from .. import recipes
from ..session import MAIN, NotHereError
from ..writing import Writing
from . import Adapter, Rule, Section
from ._defaults import Defaults, are_others
from ._ipython import get_shell

# --- writing ---


def _figure(dump: Writing, figure: Any) -> Any:
    manager = getattr(figure.canvas, "manager", None)
    registry = getattr(figure.canvas, "callbacks", None)
    connected = [f for by in getattr(registry, "callbacks", {}).values() for f in by.values()]
    if any(getattr(f() if callable(f) else None, "__module__", "") == MAIN for f in connected):
        dump.notes.append("what was connected to a figure's events isn't connected any more")
    if manager is None:
        return NotImplemented
    plain: Any = figure.__reduce_ex__(5)
    state = (plain[2], manager.num)
    return plain[0], plain[1], state, None, None, set_figure


def _region(dump: Writing, region: Any) -> Any:
    dump.notes.append("pixels that were kept of a canvas aren't kept")
    return no_region, ()


def _callbacks(dump: Writing, registry: Any) -> Any:
    """Callbacks of artists, norms, axes and widgets, most of which matplotlib drops. Callbacks of canvases for
    events are connected by their present owners.
    """
    kind: Any = type(registry)
    numbered = _numbers_callbacks(kind)
    if numbered is None:
        return NotImplemented
    state = {**vars(registry), "_func_cid_map": None}
    if numbered:  # its own `__getstate__` takes a number each time
        state["_cid_gen"] = int(repr(registry._cid_gen)[len("count(") : -1])
    state["callbacks"] = {
        signal: {
            cid: function
            for cid, function in ((cid, proxy()) for cid, proxy in by.items())
            if function is not None and (cid in registry._pickled_cids or not str(signal).endswith("_event"))
        }
        for signal, by in registry.callbacks.items()
    }
    return copyreg.__newobj__, (kind,), state  # type: ignore[attr-defined]


def _plot_args(dump: Writing, made: Any) -> Any:
    """The position in the colour cycle of an axes, which matplotlib drops, and the owner of the colours."""
    state = dict(vars(made))
    place = _place_in_cycle(state.pop("prop_cycler", None))
    if place is None:
        return NotImplemented
    kind: Any = type(made)
    return copyreg.__newobj__, (kind,), (state, *place), None, None, set_plot_args  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4)
def _numbers_callbacks(kind: Any) -> bool | None:
    """Whether a registry of callbacks is pickled with the next number instead of what counts; nothing if it is another
    kind than is known."""
    try:
        fresh = kind()
        state = fresh.__getstate__()
        known = state.keys() == vars(fresh).keys() and repr(fresh._cid_gen).startswith("count(")
        return isinstance(state["_cid_gen"], int) if known and state["_func_cid_map"] is None else None
    except (AttributeError, KeyError, TypeError):
        return None


def _place_in_cycle(cycle: Any) -> tuple[list[Any], int] | None:
    """Items of a cycle over a `Cycler` or a list, and the number taken; nothing if unknown."""
    if type(cycle) is not itertools.cycle:
        return None
    reduced: Any = cycle.__reduce__()
    (inner,), (taken, round_again) = reduced[1:]
    if round_again:
        return list(taken), len(taken) - operator.length_hint(inner)
    if type(inner) is type(iter([])):
        return list(inner.__reduce__()[1][0]) or list(taken), len(taken)
    over = getattr(getattr(inner, "gi_frame", None), "f_locals", {}).get("self")
    return None if over is None else (list(over), len(taken))


# --- loading ---


@recipes.recipe
def set_figure(made: Any, state: tuple[Any, Any]) -> None:
    """A figure's state, under its former number if free."""
    from matplotlib._pylab_helpers import Gcf

    made.__setstate__(state[0])
    _is_not_drawn(made)
    manager = getattr(made.canvas, "manager", None)
    if manager is None or manager.num == state[1] or state[1] in Gcf.figs:
        return
    if Gcf.figs.get(manager.num) is manager:
        del Gcf.figs[manager.num]
    manager.num = state[1]
    Gcf.figs[state[1]] = manager
    vars(made)["_number" if "_number" in vars(made) else "number"] = state[1]


def _is_not_drawn(figure: Any) -> None:
    """The end of the cell shows what the cell drew, and takes a figure that came back for drawn."""
    show: Any = getattr(sys.modules.get("matplotlib_inline.backend_inline"), "show", None)
    if figure in getattr(show, "_to_draw", ()):
        show._to_draw.remove(figure)
        show._draw_called = bool(show._to_draw)


@recipes.recipe
def set_plot_args(made: Any, state: tuple[dict[str, Any], list[Any], int]) -> None:
    """An axes' colour cycle, at its position."""
    attrs, items, taken = state
    made.__dict__.update(attrs)
    made.prop_cycler = itertools.cycle(items)
    for _ in range(taken):
        next(made.prop_cycler)


@recipes.recipe
def no_region() -> None:
    """A canvas's stored pixels; the next drawing stores them again."""


# --- the process ---


@functools.lru_cache(maxsize=2)
def _matplotlib_defaults(matplotlib: Any) -> Defaults:
    return Defaults({k: v for k, v in dict.items(matplotlib.rcParamsDefault) if k != "backend"})


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


def _figures() -> Any:
    gcf = sys.modules["matplotlib._pylab_helpers"].Gcf
    active = gcf.get_active()
    hook = getattr(sys.modules.get("matplotlib.pyplot"), "_REPL_DISPLAYHOOK", None)
    return {
        "numbers": list(gcf.figs),
        "current": None if active is None else active.num,
        "shell": getattr(hook, "name", "") == "IPYTHON",
    }


def _set_matplotlib(state: Any) -> None:
    import matplotlib

    here = _matplotlib_defaults(matplotlib)
    other = are_others(here, state)
    state = here.whole(state) if "defaults" in state else state
    inline, hooked = state.pop("backend", None), state.pop("hooked", True)
    with warnings.catch_warnings(), _figures_open():
        warnings.simplefilter("ignore")
        # ipykernel names the backend in the environment: a new process has its name long before its hooks.
        if inline is not None and (dict.get(matplotlib.rcParams, "backend") != inline or (hooked and not _hooked())):
            _show_inline(inline, hooked)
        if inline is not None:
            _configure_now()
        dict.update(matplotlib.rcParams, state)
    if other:
        raise NotHereError("matplotlib's own defaults are others here than where the state was saved")


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


@contextlib.contextmanager
def _figures_open() -> Iterator[None]:
    """A change of backends closes all figures, and those that came back are open."""
    gcf = getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None)
    figures = {} if gcf is None else dict(gcf.figs)
    if gcf is not None:
        gcf.figs.clear()
    try:
        yield
    finally:
        if gcf is not None:
            gcf.figs.update(figures)


def _configure_now() -> None:
    """Where the inline backend can't be set up at its import, it is after the first cell. That cell was another life's: what
    the notebook has set since, `plt.ioff()` for one, would be undone."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    for hook in list(shell.events.callbacks.get("post_run_cell", ()) if shell is not None else ()):
        if getattr(hook, "__name__", "") == "configure_once" and "inline" in str(hook.__module__):
            hook()


def _set_figures(state: Any) -> None:
    from matplotlib._pylab_helpers import Gcf

    if state.get("shell"):
        _know_shell()
    if state["current"] is not None and state["current"] in Gcf.figs:
        Gcf.set_active(Gcf.figs[state["current"]])
    lost = [number for number in state["numbers"] if number not in Gcf.figs]
    if lost:
        raise NotHereError(f"pyplot's figures that no variable held: {', '.join(map(str, lost))}; draw them again")


def colormaps() -> dict[str, Any]:
    """Colormaps that were registered beside matplotlib's own."""
    registry = getattr(sys.modules["matplotlib"], "colormaps", None)
    own = getattr(registry, "_builtin_cmaps", None)
    if own is None or registry is None or len(registry) == len(own):
        return {}
    return {name: registry[name] for name in set(registry).difference(own)}


def set_colormaps(state: dict[str, Any]) -> None:
    import matplotlib as mpl

    for name, made in state.items():
        mpl.colormaps.register(made, name=name, force=True)


_INLINE = ("figure_formats", "print_figure_kwargs", "close_figures")


def inline() -> dict[str, Any]:
    """How figures are shown beside the cells."""
    backend = sys.modules["matplotlib_inline.config"].InlineBackend
    if not backend.initialized():
        raise LookupError("not in use")
    found = {name: getattr(backend.instance(), name) for name in _INLINE}
    return {**found, "figure_formats": sorted(found["figure_formats"])}


def set_inline(state: dict[str, Any]) -> None:
    from matplotlib_inline.config import InlineBackend

    shell = get_shell()
    backend = InlineBackend.instance(parent=shell)
    if backend.shell is None:
        backend.shell = shell
    for name, value in {**state, "figure_formats": set(state["figure_formats"])}.items():
        if getattr(backend, name) != value:
            setattr(backend, name, value)


def _exact() -> dict[type, Rule]:
    rules: dict[type, Rule] = {}
    cbook: Any = sys.modules.get("matplotlib.cbook")
    if cbook is not None and hasattr(cbook, "CallbackRegistry"):
        rules[cbook.CallbackRegistry] = _callbacks
    plot_args = getattr(sys.modules.get("matplotlib.axes._base"), "_process_plot_var_args", None)
    if plot_args is not None:
        rules[plot_args] = _plot_args
    return rules


def _bases() -> list[tuple[Any, Rule]]:
    figures: Any = sys.modules.get("matplotlib.figure")
    return [(figures.Figure, _figure)] if figures is not None and hasattr(figures, "Figure") else []


def _know() -> None:
    _matplotlib_defaults(sys.modules["matplotlib"])


ADAPTER = Adapter(
    modules=("matplotlib", "matplotlib.figure"),
    exact=_exact,
    bases=_bases,
    singles=(("matplotlib", "rcParams"),),
    # Not each version of matplotlib names its type.
    by_name={"BufferRegion": _region},
    sections={
        "matplotlib": Section(_matplotlib, _set_matplotlib, know=_know),
        "matplotlib.cm": Section(colormaps, set_colormaps),
        "matplotlib_inline.config": Section(inline, set_inline),
        # After all others: figures are made current once their library is set.
        "matplotlib._pylab_helpers": Section(_figures, _set_figures, last=True),
    },
)
