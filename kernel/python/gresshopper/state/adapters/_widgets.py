"""ipywidgets, traitlets and comm: widgets under their model ids, observers of traits, and a notebook's own comms."""

from __future__ import annotations

import sys
from typing import Any

from gresshopper import typenames

from .. import recipes
from ..session import MAIN, check_hung_in
from ..writing import Writing
from . import Adapter, Rule, Section, rules_of

# --- writing ---


def _traits(dump: Writing, made: Any) -> Any:
    found: dict[str, Any] = {}
    for name, by_type in made._trait_notifiers.items():
        for kind, handlers in by_type.items():
            mine = [h for h in handlers if not _own_handler(h, made) and not _is_observer(h)]
            if mine:
                found.setdefault(name, {})[kind] = mine
    plain: Any = made.__reduce_ex__(5) if found else ()
    if len(plain) < 3 or any(plain[3:]):
        return NotImplemented
    return plain[0], plain[1], (plain[2], found), None, None, set_traits


def _widget(dump: Writing, w: Any) -> Any:
    traits: dict[str, Any] = {}
    for key in w.keys:
        if key.startswith(("_model_", "_view_")) or key == "comm":
            continue
        trait = w.traits().get(key)
        if trait is None or trait.read_only:
            continue
        traits[key] = getattr(w, key)
    if "options" in w.traits():
        traits = {"options": w.options, **traits}  # what its index counts in
    notifiers: dict[str, Any] = {}
    for name, by_type in w._trait_notifiers.items():
        for kind, handlers in by_type.items():
            mine = [h for h in handlers if not _own_handler(h, w)]
            if mine:
                notifiers.setdefault(name, {})[kind] = mine
    attrs = {
        k: v
        for k, v in w.__dict__.items()
        if k in ("_click_handlers", "_submission_callbacks", "_msg_callbacks", "_display_callbacks")
        and getattr(v, "callbacks", None)
    }
    own = dump.session.by_value(type(w))
    if own or typenames.module_of(type(w)).startswith("ipywidgets."):
        attrs.update((k, v) for k, v in w.__dict__.items() if k not in _OF_WIDGETS)
    state = (w.model_id if w.comm is not None else None, traits, notifiers, attrs)
    if own or typenames.module_of(type(w)) in _COMPOSED:
        unsent = {k: v for k, v in w._trait_values.items() if k not in w.keys and k not in _OF_WIDGETS}
        return widget, (type(w), state[0]), (*state, unsent), None, None, set_composed
    return widget, (type(w), state[0]), state, None, None, set_widget


def _is_observer(handler: Any) -> bool:
    """Whether a class's decorator made the handler: the class makes it again."""
    return typenames.name_of(type(handler)) in ("ObserveHandler", "_CallbackWrapper")


def _is_link(holder: Any) -> bool:
    return typenames.name_of(type(holder)) in ("link", "directional_link", "interactive")


#: Modules of widgets whose `__init__` makes other widgets.
_COMPOSED = frozenset({"ipywidgets.widgets.interaction", "ipywidgets.widgets.widget_templates"})

#: Attributes that belong to a widget's own process.
_OF_WIDGETS = frozenset(
    {
        "_trait_values",
        "_trait_notifiers",
        "_trait_validators",
        "_cross_validation_lock",
        "_all_trait_default_generators",
        "_static_immutable_initial_values",
        "_property_lock",
        "_holding_sync",
        "_states_to_send",
        "_msg_callbacks",
        "_display_callbacks",
        "_click_handlers",
        "_submission_callbacks",
        "_repr_mimebundle_",
        "_config",
        "_model_id",
        "comm",
        "keys",
        "log",
    }
)


def _own_handler(handler: Any, w: Any) -> bool:
    """Whether a widget's class, not the user, set the handler."""
    if getattr(handler, "__func__", None) is not None:
        holder = handler.__self__
        if holder is w and typenames.home_of(handler.__func__) == MAIN:
            return False
        return holder is w or (typenames.module_of(type(holder)).startswith("ipywidgets") and not _is_link(holder))
    module = typenames.home_of(handler) or typenames.module_of(type(handler))
    return module.startswith(("traitlets", "ipywidgets"))


# --- loading ---


@recipes.recipe
def set_traits(made: Any, state: tuple[Any, dict[str, Any]]) -> None:
    """An object with traits, and what observes them."""
    made.__setstate__(state[0])
    for name, by_type in state[1].items():
        for kind, handlers in by_type.items():
            there = made._trait_notifiers.setdefault(name, {}).setdefault(kind, [])
            there.extend(handler for handler in handlers if handler not in there)


@recipes.recipe
def widget(cls: Any, model_id: str | None) -> Any:
    """A widget, not yet open."""
    return cls.__new__(cls)


@recipes.recipe
def set_composed(made: Any, state: Any) -> None:
    """A composed widget, without its `__init__`, whose work was done."""
    *plain, unsent = state
    base = next(
        c for c in type(made).__mro__ if "__init__" in vars(c) and typenames.module_of(c) in _simple_widgets()
    )
    made._trait_values.update(unsent)
    set_widget(made, tuple(plain), base)
    made._trait_values.update(unsent)  # what the observers of its own traits did is undone


def _simple_widgets() -> set[str]:
    composed = ("ipywidgets.widgets.interaction", "ipywidgets.widgets.widget_templates")
    return {name for name in sys.modules if name.startswith("ipywidgets.widgets.") and name not in composed}


@recipes.recipe
def set_widget(
    made: Any, state: tuple[str | None, dict[str, Any], dict[str, Any], dict[str, Any]], base: Any = None
) -> None:
    """Traits, observers and attributes of a widget, opened under its old model id."""
    model_id, traits, notifiers, attrs = state
    begin = (base or type(made)).__init__
    if model_id is not None:
        begin(made, model_id=model_id, **traits)
    else:
        begin(made, **traits)
    for key, value in attrs.items():
        made.__dict__[key] = value
    for name, by_type in notifiers.items():
        for kind, handlers in by_type.items():
            there = made._trait_notifiers.setdefault(name, {}).setdefault(kind, [])
            there.extend(handler for handler in handlers if handler not in there)


def _bases() -> list[tuple[Any, Rule]]:
    """Widgets before other objects with traits: they have traits, too."""
    return [*rules_of("ipywidgets", {"Widget": _widget}), *rules_of("traitlets", {"HasTraits": _traits})]


# --- comms ---


def _comms() -> dict[str, str]:
    """The notebook's own comms, by what it gave them: only named, not kept. Those of widgets come back with these."""
    manager = sys.modules["comm"].get_comm_manager()
    found: dict[str, str] = {}

    def look(where: str, handler: Any) -> None:
        if typenames.is_by_notebook(handler):
            found[where] = typenames.called(handler)

    for target, handler in list(manager.targets.items()):
        look(f"the comm target {target}", handler)
    for made in list(manager.comms.values()):
        held = getattr(made, "__dict__", {})
        for name, callback in (("on_msg", "_msg_callback"), ("on_close", "_close_callback")):
            look(f"{name} of a comm", held.get(callback))
    return found


def _set_comms(state: dict[str, str]) -> None:
    check_hung_in(state, _comms())


ADAPTER = Adapter(
    modules=("traitlets", "ipywidgets"),
    sections={"comm": Section(_comms, _set_comms)},
    bases=_bases,
    events=("ipywidgets.",),
    of_kernel=("comm", "ipywidgets", "traitlets"),
)
