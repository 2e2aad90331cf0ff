"""Registers of libraries with the notebook's entries: matplotlib's colours, cycles of colours and fonts, pandas' types."""

from __future__ import annotations

import datetime
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from gresshopper import typenames

from ..session import NotHereError
from ..settings import of_notebook
from . import Adapter, Section


@functools.lru_cache(maxsize=1)
def _known_colours() -> dict[str, Any]:
    """matplotlib's own, put together as it does."""
    import matplotlib._color_data as data

    found: dict[str, Any] = dict(data.XKCD_COLORS)
    found.update({k.replace("grey", "gray"): v for k, v in data.XKCD_COLORS.items() if "grey" in k})
    found.update({**data.CSS4_COLORS, **data.TABLEAU_COLORS})
    found.update({k.replace("gray", "grey"): v for k, v in data.TABLEAU_COLORS.items() if "gray" in k})
    found.update(data.BASE_COLORS)
    return found


def _colours() -> dict[str, Any]:
    colours, known = sys.modules["matplotlib.colors"], _known_colours()
    held = colours.get_named_colors_mapping()
    named = {} if dict.__eq__(held, known) else {k: v for k, v in list(held.items()) if known.get(k) != v}
    cycles: Any = getattr(sys.modules["matplotlib"], "color_sequences", None)
    own = () if cycles is None else set(cycles) - set(cycles._BUILTIN_COLOR_SEQUENCES)
    return {"named": named, "cycles": {name: cycles[name] for name in sorted(own)}}


def _set_colours(state: dict[str, Any]) -> None:
    if not any(state.values()):
        return
    import matplotlib
    import matplotlib.colors as colours

    held = colours.get_named_colors_mapping()
    for name, value in state["named"].items():
        held[name] = value
    for name, cycle in state["cycles"].items():
        if name not in matplotlib.color_sequences:
            matplotlib.color_sequences.register(name, cycle)


@functools.lru_cache(maxsize=1)
def _known_fonts() -> frozenset[str]:
    """Files of the fonts that matplotlib finds by itself, as its list of the last time says."""
    import matplotlib

    version = sys.modules["matplotlib.font_manager"].FontManager.__version__
    try:
        said = json.loads(Path(matplotlib.get_cachedir(), f"fontlist-v{version}.json").read_text(encoding="utf-8"))
        entries = [*said["ttflist"], *said["afmlist"]]
        return frozenset(_whole(entry["fname"]) for entry in entries)
    except (OSError, ValueError, KeyError):
        return frozenset(entry.fname for entry in _fonts_here())


def _whole(name: str) -> str:
    """The list has names below matplotlib's data for its own."""
    import matplotlib

    return name if os.path.isabs(name) else str(Path(matplotlib.get_data_path(), name))


def _fonts_here() -> list[Any]:
    manager = sys.modules["matplotlib.font_manager"].fontManager
    return [*manager.ttflist, *manager.afmlist]


#: The number of fonts at the last look, and what was found.
_fonts_seen: tuple[int, list[str]] = (-1, [])


def _fonts() -> list[str]:
    global _fonts_seen  # noqa: PLW0603 - matplotlib has one manager of fonts
    there, known = _fonts_here(), _known_fonts()
    if _fonts_seen[0] != len(there):
        own = dict.fromkeys(entry.fname for entry in there if entry.fname not in known)
        _fonts_seen = len(there), list(own)
    return _fonts_seen[1]


def _set_fonts(state: list[str]) -> None:
    if not state:
        return
    import matplotlib.font_manager as fonts

    missing, there = [], {entry.fname for entry in _fonts_here()}
    for path in state:
        try:
            if path not in there:
                fonts.fontManager.addfont(path)
        except Exception:  # whatever reading it raises
            missing.append(path)
    if missing:
        raise NotHereError(f"{', '.join(missing)}: the notebook gave matplotlib this font, and it can't be read")


def _types() -> list[type]:
    return [kind for kind in sys.modules["pandas.core.dtypes.base"]._registry.dtypes if of_notebook(kind)]


def _set_types(state: list[type]) -> None:
    if not state:
        return
    from pandas.api.extensions import register_extension_dtype

    there = sys.modules["pandas.core.dtypes.base"]._registry.dtypes
    for kind in state:
        if kind not in there:
            register_extension_dtype(kind)


def _converters() -> bool:
    """Whether pandas draws times for matplotlib, as its function has it."""
    drawn = sys.modules["matplotlib.units"].registry.get(datetime.datetime)
    return typenames.module_of(type(drawn)).startswith("pandas.")


def _set_converters(state: bool) -> None:
    from pandas import plotting

    (plotting.register_matplotlib_converters if state else plotting.deregister_matplotlib_converters)()


ADAPTER = Adapter(
    modules=("matplotlib", "pandas"),
    sections={
        "matplotlib.colors": Section(_colours, _set_colours, know=_known_colours),
        "matplotlib.font_manager": Section(_fonts, _set_fonts, know=_known_fonts),
        "pandas.core.dtypes.base": Section(_types, _set_types),
        "matplotlib.units": Section(_converters, _set_converters),
    },
)
