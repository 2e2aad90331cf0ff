"""matplotlib: figures, callbacks and colour cycles, `rcParams`, colormaps and how figures are shown."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import functools
import itertools
import operator
import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Callable

from gresshopper import typenames

from .. import recipes
from ..session import MAIN, NotHereError
from ..writing import Writing
from . import Adapter, Rule, Section, rules_of
from ._defaults import Defaults, are_others
from ._ipython import get_shell
from ._shared import is_writeable

# --- writing ---


def _figure(dump: Writing, figure: Any) -> Any:
    manager = getattr(figure.canvas, "manager", None)
    registry = getattr(figure.canvas, "callbacks", None)
    # Artists hold the very lists of `rcParams`.
    dump.unlinked.update(id(one) for one in dict.values(sys.modules["matplotlib"].rcParams) if type(one) is list)
    connected = [f for by in getattr(registry, "callbacks", {}).values() for f in by.values()]
    if any(typenames.home_of(f() if callable(f) else None) == MAIN for f in connected):
        dump.notes.append("what was connected to a figure's events isn't connected any more")
    if manager is None:
        return NotImplemented
    plain: Any = figure.__reduce_ex__(5)
    state = (plain[2], manager.num)
    return plain[0], plain[1], state, None, None, set_figure


def _path(dump: Writing, path: Any) -> Any:
    """A path that matplotlib keeps for all figures once it was asked for, such as a circle, would link them."""
    if path.readonly:
        dump.unlinked.update(map(id, (path, vars(path), *vars(path).values())))
    elif path.codes is not None and not is_writeable(path.codes):  # such a circle's, of a marker
        dump.unlinked.add(id(path.codes))
    return NotImplemented


def _colormap(dump: Writing, made: Any) -> Any:
    """A colormap, whose colours are often a table of matplotlib's."""
    own = getattr(sys.modules["matplotlib"], "colormaps", None)
    if own is None or made.name not in getattr(own, "_builtin_cmaps", ()):
        return NotImplemented
    named: Any = getattr(sys.modules.get("matplotlib.cm"), made.name, None)
    if made is named and (made._rgba_bad, made._rgba_under, made._rgba_over) == _UNSET:
        dump.unlinked.add(id(made))
        return recipes.module_value, ("matplotlib.cm", made.name)  # `plt.cm.viridis`
    for name in ("colors", "_segmentdata"):
        table = vars(made).get(name)
        if table is not None and table is vars(own._cmaps[made.name]).get(name):
            dump.unlinked.update(map(id, (table, *(table.values() if type(table) is dict else table))))
    return NotImplemented


#: A colormap's colours for what lies outside, as long as nobody sets one.
_UNSET = ((0.0, 0.0, 0.0, 0.0), None, None)


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


#: The figures that came back last under a number.
_came: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


@recipes.recipe
def set_figure(made: Any, state: tuple[Any, Any]) -> None:
    """A figure's state, under its former number unless the notebook has made another figure of that number since. A
    standby that follows has the figure of the record before under this number."""
    from matplotlib._pylab_helpers import Gcf

    made.__setstate__(state[0])
    _is_not_drawn(made)
    manager, number = getattr(made.canvas, "manager", None), state[1]
    if manager is None:
        return
    there = Gcf.figs.get(number, manager)
    if there is not manager and there.canvas.figure is not _came.get(number):
        return
    if Gcf.figs.get(manager.num) is manager:
        del Gcf.figs[manager.num]
    manager.num = number
    Gcf.figs[number] = manager
    vars(made)["_number" if "_number" in vars(made) else "number"] = number
    _came[number] = made


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
    """If the inline backend can't be set up at the import, matplotlib sets the backend up after the first cell. After a
    restore the first cell lies in an earlier life: the notebook's later settings, like `plt.ioff()`, would be
    undone."""
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
    return {**found, "figure_formats": sorted(found["figure_formats"]), "shown": _formats(get_shell())}


def _formats(shell: Any) -> dict[str, dict[str, Any]]:
    """The formats in which the shell shows figures, with their keywords: `set_matplotlib_formats` leaves the backend's own
    setting as it was."""
    figure, found = getattr(sys.modules.get("matplotlib.figure"), "Figure", None), {}
    for formatter in shell.display_formatter.formatters.values() if shell is not None else ():
        printer = formatter.type_printers.get(figure)
        if isinstance(printer, functools.partial) and typenames.home_of(printer.func) == "IPython.core.pylabtools":
            words = {name: value for name, value in printer.keywords.items() if name != "base64"}
            found[words.pop("fmt", "retina")] = words
    return found


def set_inline(state: dict[str, Any]) -> None:
    from matplotlib_inline.config import InlineBackend

    shell = get_shell()
    backend = InlineBackend.instance(parent=shell)
    if backend.shell is None:
        backend.shell = shell
    shown = state.get("shown", {})
    for name, value in {**state, "figure_formats": set(state["figure_formats"])}.items():
        if name in _INLINE and getattr(backend, name) != value:
            setattr(backend, name, value)
    if shown and shell is not None and _formats(shell) != shown:
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, set(shown), **next(iter(shown.values())))


def _exact() -> dict[type, Rule]:
    return {
        **dict(rules_of("matplotlib.cbook", {"CallbackRegistry": _callbacks})),
        **dict(rules_of("matplotlib.axes._base", {"_process_plot_var_args": _plot_args})),
        **dict(rules_of("matplotlib.path", {"Path": _path})),
    }


def _bases() -> list[tuple[Any, Rule]]:
    return [
        *rules_of("matplotlib.figure", {"Figure": _figure}),
        *rules_of("matplotlib.colors", {"Colormap": _colormap}),
    ]


def _marked(made: Any) -> Any:
    """The reduced form of a colormap, with the table otherwise made at the first use."""
    if not made._isinit:
        made = copy.copy(made)
        made._init()
    return made.__reduce_ex__(5)


def _marks() -> list[tuple[Any, Callable[[Any], Any]]]:
    colormap = getattr(sys.modules.get("matplotlib.colors"), "Colormap", None)
    return [] if colormap is None else [(colormap, _marked)]


def _know() -> None:
    _matplotlib_defaults(sys.modules["matplotlib"])


#: Paths that `MarkerStyle` has for all its instances.
_MARKERS_PATHS = [
    "triangle_path",
    "triangle_path_u",
    "triangle_path_d",
    "triangle_path_l",
    "triangle_path_r",
    "line_marker_path",
    "tickhoriz_path",
    "tickvert_path",
    "tri_path",
    "caret_path",
    "caret_path_base",
    "plus_path",
    "x_path",
    "plus_filled_path",
    "plus_filled_path_t",
    "x_filled_path",
    "x_filled_path_t",
]
ADAPTER = Adapter(
    modules=("matplotlib", "matplotlib.figure"),
    exact=_exact,
    bases=_bases,
    marks=_marks,
    singles=(
        ("matplotlib", "rcParams"),
        ("matplotlib.markers", "_empty_path"),
        ("matplotlib.transforms", "IdentityTransform._mtx"),
        ("matplotlib.collections", "Collection._transforms"),
        *(("matplotlib.markers", f"MarkerStyle._{path}") for path in _MARKERS_PATHS),
    ),
    # Not each version of matplotlib names its type.
    by_name={"BufferRegion": _region},
    elsewhere=(("matplotlib", "rcParams"), ("matplotlib.pyplot", "rcParams")),
    # Through pyplot.
    unnamed=("matplotlib.figure.",),
    distributions={"mpl_toolkits": "matplotlib"},
    lends=("matplotlib_inline",),
    sections={
        "matplotlib": Section(_matplotlib, _set_matplotlib, know=_know, again=True),
        "matplotlib.cm": Section(colormaps, set_colormaps),
        "matplotlib_inline.config": Section(inline, set_inline),
        # After all others: figures are made current once their library is set.
        "matplotlib._pylab_helpers": Section(_figures, _set_figures, last=True),
    },
)
