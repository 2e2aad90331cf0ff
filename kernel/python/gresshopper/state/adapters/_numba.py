"""numba: typed containers. Compiled functions are compiled again."""

from __future__ import annotations

from typing import Any

from .. import recipes
from ..writing import Writing
from . import Adapter, Rule, rules_of

# --- writing ---


def _nb_dispatcher(dump: Writing, made: Any) -> Any:
    if made.signatures and getattr(made, "_can_compile", True):
        dump.notes.append("numba compiles a function again when it is called: until then it has no signatures")
    return NotImplemented


def _nb_dict(dump: Writing, made: Any) -> Any:
    if not made._typed:
        return NotImplemented
    kinds = made._dict_type.key_type, made._dict_type.value_type
    return nb_dict, kinds, None, None, iter(list(made.items()))


def _nb_list(dump: Writing, made: Any) -> Any:
    if not made._typed:
        return NotImplemented
    return nb_list, (made._list_type.item_type,), None, iter(list(made))


# --- loading ---


@recipes.recipe
def nb_dict(keys: Any, values: Any) -> Any:
    """A typed dictionary of numba, still empty."""
    from numba import typed

    return typed.Dict.empty(keys, values)


@recipes.recipe
def nb_list(items: Any) -> Any:
    """A typed list of numba, still empty."""
    from numba import typed

    return typed.List.empty_list(items)


def _bases() -> list[tuple[Any, Rule]]:
    return [
        *rules_of("numba.core.dispatcher", {"Dispatcher": _nb_dispatcher}),
        *rules_of("numba.typed", {"Dict": _nb_dict, "List": _nb_list}),
    ]


_COMPILED = "what numba compiled belongs to this process"

ADAPTER = Adapter(
    modules=("numba.core.dispatcher", "numba.typed"),
    bases=_bases,
    bound=(
        ("numba.core.ccallback", _COMPILED),
        ("numba.stencils", _COMPILED),
        ("numba.experimental.jitclass", _COMPILED),
    ),
    # numba pickles a compiled function with a random id: the Python function counts in its place.
    wraps=(("numba.", "py_func"),),
)
