"""pandas: blocks and indexes with what copy-on-write counts, options and accessors."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import sys
import warnings
from pathlib import Path
from typing import Any

from gresshopper import typenames

from .. import recipes
from ..session import NotHereError
from ..settings import attributes, of_notebook
from ..writing import Writing
from . import Adapter, Rule, Section
from ._defaults import Defaults, are_others

# --- writing ---


def _pd_refs(dump: Writing, refs: Any) -> Any:
    return pd_refs, ()


def _pd_manager(dump: Writing, manager: Any) -> Any:
    blocks = []
    for block in manager.blocks:
        where = block.mgr_locs
        sliced = where.as_slice if where.is_slice_like else None
        spec: Any = (sliced.start, sliced.stop, sliced.step) if sliced is not None else where.as_array.copy()
        blocks.append((block.values, spec, block.ndim, block.refs))
    return pd_manager, (type(manager), list(manager.axes), blocks)


def _pd_looked_up(dump: Writing, index: Any) -> Any:
    if len(index) > LOOKED_UP or not _looked_up(index):
        return NotImplemented
    reduced = index.__reduce__()
    plain = len(reduced[1]) == 2 and not any(reduced[2:])
    return (pd_index, (reduced[0], *reduced[1])) if plain else reduced


def _pd_index(dump: Writing, index: Any) -> Any:
    # An index copies on write by counts absent in restored memory: the index's data are written separately.
    reduced = index.__reduce__()
    if len(reduced) == 2 and isinstance(reduced[1][1], dict):
        data = reduced[1][1].get("data")
        if data is not None and typenames.name_of(type(data)) == "ndarray":
            dump.session.room(data.nbytes)
            own = data.copy()
            dump.detached[id(own)] = own
            made = (reduced[1][0], dict(reduced[1][1], data=own))
            looked_up = len(index) <= LOOKED_UP and _looked_up(index)
            return (pd_index, (reduced[0], *made)) if looked_up else (reduced[0], made)
    return reduced


def _pd_frame(dump: Writing, frame: Any) -> Any:
    """A frame or series without `_metadata`, which pandas' pickling takes along: a list of the class, which would link
    all frames of the notebook. Without it the class's own is found again, as before."""
    t = type(frame)
    if dump.session.by_value(t) or t in copyreg.dispatch_table:  # its class is written too, or it has another way
        return NotImplemented
    dump.seen.add(t)
    reduced = dump.with_left_out(frame, t)
    if reduced is NotImplemented:
        reduced = frame.__reduce_ex__(5)
    state = reduced[2] if type(reduced) is tuple and len(reduced) > 2 else None
    state = state[0] if type(state) is tuple else state
    if type(state) is dict and state.get("_metadata") is t._metadata:
        del state["_metadata"]  # of a dictionary that was made for the pickling
    return reduced


def _pd_plain_dtype(dump: Writing, dtype: Any) -> Any:
    return type(dtype), ()


def _pd_zone(dump: Writing, zone: Any) -> Any:
    dump.unlinked.add(id(zone))  # there is one of each in the process, and nobody changes it
    return NotImplemented


#: Size from which an index keeps a table after a lookup, counted by its `memory_usage`.
LOOKED_UP = 1000


def _looked_up(index: Any) -> bool:
    cache = getattr(index, "_cache", None)
    engine = cache.get("_engine") if isinstance(cache, dict) else None
    return bool(getattr(engine, "is_mapping_populated", False)) and getattr(index, "nlevels", 2) == 1


# --- loading ---


@recipes.recipe
def pd_index(make: Any, cls: type, state: dict[str, Any]) -> Any:
    """An index in which something was looked up."""
    made = make(cls, state)
    with contextlib.suppress(Exception):  # that makes its table, whatever it finds
        made.get_loc(made[0])
    return made


@recipes.recipe
def pd_refs() -> Any:
    """A fresh count of the frames that share a block."""
    from pandas._libs.internals import BlockValuesRefs

    return BlockValuesRefs()


@recipes.recipe
def pd_manager(cls: Any, axes: list[Any], blocks: list[tuple[Any, Any, int, Any]]) -> Any:
    """A frame's or series' blocks, with the reference counts that copy-on-write asks."""
    from pandas.core.internals.blocks import new_block

    made = []
    for values, placement, ndim, refs in blocks:
        block = new_block(values, _placement(placement), ndim=ndim, refs=refs)
        made.append(block)
    if cls.__name__ == "SingleBlockManager":
        return cls(made[0], axes[0])
    return cls(tuple(made), axes, verify_integrity=False)


def _placement(spec: Any) -> Any:
    from pandas._libs.internals import BlockPlacement

    return BlockPlacement(slice(*spec) if isinstance(spec, tuple) else spec)


# --- the process ---


@functools.lru_cache(maxsize=2)
def _pandas_defaults(config: Any, count: int) -> Defaults:
    """`count`: options are registered when parts of pandas are imported."""
    known = list(config._registered_options.items())
    return Defaults({key: option.defval for key, option in known if key not in _OF_TERMINAL})


#: Options whose defaults pandas takes from the terminal, or the lack of one, at its import.
_OF_TERMINAL = frozenset({"display.max_columns", "display.encoding"})


def _pandas() -> Any:
    return _defaults_of_pandas().apart(_pandas_options())


def _defaults_of_pandas() -> Defaults:
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


def _set_pandas(state: Any) -> None:
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = _defaults_of_pandas()
        other = are_others(here, state)
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


def accessors() -> list[tuple[str, str, Any]]:
    """Accessors that the notebook gave to pandas' classes."""
    pd: Any = sys.modules["pandas"]
    found = [
        (of, name, vars(cls)[name]._accessor)
        for of, cls in (("dataframe", pd.DataFrame), ("series", pd.Series), ("index", pd.Index))
        for name in sorted(cls._accessors)
        if of_notebook(getattr(vars(cls).get(name), "_accessor", None))
    ]
    attributes.update(name for _, name, _ in found)  # pandas hangs one into each frame on which it was used
    return found


def set_accessors(state: list[tuple[str, str, Any]]) -> None:
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that one of this name was there
        for of, name, accessor in state:
            getattr(pd.api.extensions, f"register_{of}_accessor")(name)(accessor)


def _copies_on_write() -> dict[type, Rule]:
    """Copy-on-write pandas: its managers and reference counts. Older ones need none of that."""
    try:
        from pandas._libs.internals import BlockValuesRefs
        from pandas.core.internals import BlockManager, SingleBlockManager
    except ImportError:
        return {}
    return {BlockValuesRefs: _pd_refs, BlockManager: _pd_manager, SingleBlockManager: _pd_manager}


def _exact() -> dict[type, Rule]:
    pd: Any = sys.modules["pandas"]
    if not hasattr(pd, "Index"):  # half imported
        return {}
    rules = _copies_on_write()
    if hasattr(pd, "DataFrame") and hasattr(pd, "Series"):
        rules |= {pd.DataFrame: _pd_frame, pd.Series: _pd_frame}
    return rules | dict.fromkeys(_plain_dtypes(), _pd_plain_dtype)


def _plain_dtypes() -> set[type]:
    """Kinds of values without parameters, such as `Int64`."""
    homes = map(sys.modules.get, ("pandas.core.dtypes.dtypes", "pandas.core.arrays.masked"))
    found = (getattr(home, "BaseMaskedDtype", None) for home in homes)
    return {t for base in found if base is not None for t in _below(base)}


def _below(base: type) -> set[type]:
    """The classes of pandas below one."""
    below: list[type] = type.__subclasses__(base)
    own = (t for t in below if typenames.module_of(t).partition(".")[0] == "pandas")
    return set(own).union(*map(_below, below))


def _bases() -> list[tuple[Any, Rule]]:
    pd: Any = sys.modules["pandas"]
    if not hasattr(pd, "Index"):
        return []
    rules: list[tuple[Any, Rule]] = [(pd.Index, _pd_index if _copies_on_write() else _pd_looked_up)]
    zones: Any = sys.modules.get("pytz.tzinfo")
    if zones is not None and hasattr(zones, "BaseTzInfo"):
        rules.append((zones.BaseTzInfo, _pd_zone))
    if hasattr(pd, "DataFrame") and hasattr(pd, "Series"):  # a library's frames, as geopandas'
        rules += [(pd.DataFrame, _pd_frame), (pd.Series, _pd_frame)]
    return rules


def _harmless() -> set[type]:
    pd: Any = sys.modules["pandas"]
    kinds: Any = sys.modules.get("pandas.core.dtypes.dtypes")
    offsets: Any = sys.modules.get("pandas._libs.tslibs.offsets")
    found = {pd.Timestamp, pd.Timedelta, pd.Period, type(pd.NaT), type(getattr(pd, "NA", None)), *_plain_dtypes()}
    found.update(getattr(kinds, name) for name in ("PeriodDtype", "DatetimeTZDtype") if hasattr(kinds, name))
    if hasattr(offsets, "BaseOffset"):
        found |= _below(offsets.BaseOffset)
    return found


def _export_frame(frame: Any, target: Path) -> Path:
    file = target.with_name(f"{target.name}.parquet")
    try:
        frame.to_parquet(file)
    except (ImportError, ValueError, TypeError):
        file = target.with_name(f"{target.name}.pkl")
        frame.to_pickle(file)
    return file


ADAPTER = Adapter(
    modules=("pandas",),
    exact=_exact,
    bases=_bases,
    harmless=_harmless,
    exports={"pandas.DataFrame": _export_frame},
    distributions={"dateutil": "python-dateutil"},
    accessors=("pandas.",),
    sections={
        "pandas._config.config": Section(_pandas, _set_pandas, know=_defaults_of_pandas, again=True),
        "pandas.core.accessor": Section(accessors, set_accessors),
    },
)
