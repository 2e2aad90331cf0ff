"""Choice of recipes by kind of object: the dispatch, functions and classes, and the standard library.

Objects that pickle or cloudpickle save rightly have no recipe. The recipes are in `recipes`; `adapters` has the parts
that concern other libraries.
"""

from __future__ import annotations

import builtins
import copyreg
import ctypes
import enum
import functools
import operator
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple, TypeVar

from gresshopper import typenames

from . import (
    adapters,
    containers,
    dynamic_attributes,
    names,
    places,
    recipes,
    settings,
    shapes,
    singles,
)
from .adapters import Adapter, Rule, _stdlib
from .kinds import bound_kind
from .lost import Lost, Pending, parts, value_of
from .session import COMPILERS, ENDLESS, MAIN, NotYet, Overlap, Session, importable, own_module
from .setorder import Order
from .shipped import cloudpickle
from .streams import STREAMS
from .user_modules import of_notebook
from .writing import Writing

_CArrayType: type = type(ctypes.c_int * 1)
_FunctionType = types.FunctionType


class _Made(NamedTuple):
    """How pickle writes and makes instances of a type."""

    #: With their `__dict__` as it is.
    plain: bool
    #: By a `__new__` of the notebook's, without its arguments.
    itself: bool
    #: They answer for their attributes themselves.
    answers: bool
    #: The same, and they can be written without a question to them.
    unasked: bool
    #: Their attributes can be set after all else that holds them.
    flat: bool
    #: They are a container's with methods that pickle would call.
    contained: containers.Kind | None


class NotFlat(Exception):
    """A dump met an object whose own code may look at others as it is loaded: these must be whole then."""


class States:
    """Written after all else of a dump without nesting: the attributes of its instances."""


class State:
    """One instance's attributes."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts


class Rules(Writing):
    """Recipes, mixed into cloudpickle's C pickler, and into Python's pickler for nesting that C's stack can't hold."""

    #: Types with reducers of `copyreg` or cloudpickle.
    dispatch_table: Mapping[type, Any]

    def prepare(self, session: Session, owned: set[str], bad: dict[int, str]) -> None:
        """Begin a dump."""
        super().prepare(session, owned, bad)
        self.ordinary = _ordinary()
        self.endless = frozenset(session.endless)
        self.shapes: list[tuple[Any, shapes.Shape]] = []  # of suspects, before their own pickling ran
        self.suspected: set[type] = set()  # their types
        self.states: Any = None  # attributes that are still to be written, in a queue
        self.flatly: set[type] = set()  # types whose instances are written without their attributes
        self.plainly: set[type] = set()  # ordinary types whose instances need no other look in this dump

    # The order matters: cheap and frequent kinds first.
    def reducer_override(self, obj: Any) -> Any:
        self.last = obj
        t = type(obj)
        if self.endless and not self.endless.isdisjoint(t.__mro__):
            return self.lose(obj, ENDLESS)
        if t in self.plainly:
            return NotImplemented
        if t in self.ordinary and id(obj) not in _SINGLETONS and id(obj) not in self.bad:
            self.seen.add(t)
            if t in _ATTRIBUTED:
                return self._attributes(obj)
            if t in _UNASKED:
                return self._unasked(obj)
            if t in _LEAVING:
                return self.with_left_out(obj, t)
            if not self.bad and t not in _SINGLE_TYPES:
                self.plainly.add(t)
            return NotImplemented
        if self.bad and id(obj) in self.bad:
            return self.lose(obj, self.bad[id(obj)])
        if t in self.flatly:
            return self._flat(obj)
        if t is _FunctionType:
            return self._function(obj)
        if issubclass(t, type):
            return self._class(obj)
        held = _SINGLETONS.get(id(obj)) if t in _SINGLE_TYPES else None
        if held is not None and held[0] is obj:
            return self._by_place(obj)
        rule = _RULES.get(t)
        if rule is not None:
            return rule(self, obj)
        if t in self.ordinary:
            self.seen.add(t)
            return NotImplemented
        if obj is self.session.namespace:
            return recipes.namespace, ()
        if t is TypeVar and getattr(obj, "__infer_variance__", False):
            return recipes.type_variable, (obj.__name__, obj.__constraints__, obj.__bound__)
        if issubclass(t, enum.Enum):
            return recipes.enum_member, (t, obj.name) if obj.name is not None and obj.name in t.__members__ else (
                t,
                obj.value,
            )
        self.seen.add(t)
        ruled, own = False, self.session.by_value(t)
        unasked = own or own_module(sys.modules.get(typenames.module_of(t)))  # the user's aren't asked for a class
        for base, later in library_rules():
            if issubclass(t, base) if unasked else isinstance(obj, base):
                ruled = True
                reduced = later(self, obj)
                if reduced is not NotImplemented:
                    return reduced
        if issubclass(t, BaseException):
            return _stdlib.exception(self, obj)
        named = _by_name.get(typenames.name_of(t))
        if named is not None and typenames.module_of(t).startswith(named[0]):
            return named[1](self, obj)
        why = bound_kind(t)
        if why is not None:
            return self.lose(obj, why)
        if not own:
            if _may_be_single(t):
                _find_singles(t)
                if id(obj) in _SINGLETONS:
                    return self._by_place(obj)
            if not ruled:
                self._learn(t)
        elif any(own_hook(t, hook) for hook in _HOOKS) or self._hashes(t):
            self._suspect(obj)
        return self._instance(obj, self._made(t))

    def _learn(self, t: Any) -> None:
        """Notes a library's type whose instances need no recipe, and how they are written."""
        made = self._made(t)
        if made.contained is not None or made.itself or issubclass(t, (dict, TypeVar)):
            return
        self.ordinary.add(t)
        if made.unasked:
            _UNASKED.add(t)
        elif _has_plain_state(t):
            _ATTRIBUTED.add(t)
        elif t.__dictoffset__ != 0:
            _LEAVING.add(t)

    def _instance(self, obj: Any, made: _Made) -> Any:
        if self.states is not None and made.flat:
            if type(obj) not in _SINGLE_TYPES:
                self.flatly.add(type(obj))
            return self._flat(obj)
        if made.contained is not None:
            return self._contained(obj, made.contained)
        if made.unasked:
            return self._unasked(obj)
        reduced = self._attributes(obj) if made.plain else self.with_left_out(obj, type(obj))
        if reduced is NotImplemented and made.itself:
            reduced = obj.__reduce_ex__(5)
        if reduced is not NotImplemented:
            return _bare(reduced) if made.itself else reduced
        if made.answers and self.session.by_value(type(obj)) and (not self.suspects or self.suspects[-1] is not obj):
            self._suspect(obj)
        return cloudpickle.CloudPickler.reducer_override(self, obj)

    def _suspect(self, obj: Any) -> None:
        if self.states is not None:
            raise NotFlat
        self.session.check()  # its own code may take long, and write little
        self.suspects.append(obj)
        if len(self.shapes) < MANY:
            self.shapes.append((obj, shapes.of(obj)))
            if type(obj) not in self.suspected:
                self.suspected.add(type(obj))
                self.shapes.append((type(obj), shapes.of(type(obj))))

    def _by_place(self, obj: Any) -> Any:
        where = _SINGLETONS[id(obj)][1]
        if not _is_marker(obj, where[0]):
            return self._own_single(obj, where)
        if id(obj) not in _STATEFUL:
            self.unlinked.add(id(obj))  # each group finds the very object again
            return recipes.module_value, where
        return recipes.module_value, where, singles.state_of(obj), None, None, recipes.set_single

    def _own_single(self, obj: Any, where: singles.Place) -> Any:
        """Writes an object that a module of the user's own holds as the module's, with its content."""
        if vars(sys.modules[where[0]]).get(where[1]) is not obj:  # not any more
            del _SINGLETONS[id(obj)]
            return self.reducer_override(obj)
        self.seen.add(singles.Content)
        content = singles.Content.of(obj)
        if content.attrs is not None and any(held is content.attrs for held in self.session.namespace.values()):
            self.notes.append("what vars() gives of a module's object isn't its attributes any more")
        return recipes.own_single, (*where, type(obj)), tuple(content), None, None, recipes.set_own_single

    def _made(self, t: type) -> _Made:
        found = self.made.get(t)
        if found is None:
            answers = dynamic_attributes.answers(t)
            unasked = answers and dynamic_attributes.is_plain(t)
            kind = containers.kind(t)
            own = kind is not None and (self.session.by_value(t) or users_own(typenames.module_of(t)))
            if kind is not None and not containers.differs(t, kind, own):
                kind = None
            found = self.made[t] = _Made(_has_plain_state(t), _makes_itself(t), answers, unasked, _is_flat(t), kind)
        return found

    def _flat(self, obj: Any) -> Any:
        """Writes an instance without attributes: the attributes follow after all else, and nothing is nested in the
        instance."""
        t = type(obj)
        attrs = object.__getattribute__(obj, "__dict__") if t.__dictoffset__ else None
        others = _dict_refs(obj) - _ALONE - 1 if t.__dictoffset__ else 0
        shared = others > 0 and others > self.session.holding(obj, in_tuple=True)
        self.states.append((obj, attrs, containers.slots_of(obj), shared))
        return recipes.bare, (t,)

    def _states(self, _: States) -> Any:
        return list, (), None, self._following()

    def _following(self) -> Iterator[State | None]:
        while self.states:
            yield State(self.states.popleft())
            if not self.states:
                yield None  # the pickler asks for the second before it has written the first

    def _state(self, made: State) -> Any:
        return recipes.set_state, made.parts

    def _contained(self, obj: Any, kind: containers.Kind) -> Any:
        t = type(obj)
        others = _dict_refs(obj) - _ALONE if t.__dictoffset__ else 0
        shared = others > 0 and others > self.session.holding(obj, in_tuple=True)
        if kind.base is set:
            self.sets.append(obj)
        made = containers.by_its_new(obj)
        if made is None:
            bare = not isinstance(t.__new__, _FunctionType) or _is_past(t.__new__)
            made = (recipes.bare if bare else _NEWOBJ), (t, *containers.given(obj, kind))
        return *made, tuple(containers.read(obj, kind, shared)), None, None, recipes.set_contained

    def _unasked(self, obj: Any) -> Any:
        shared = self._attributes(obj) if type(obj).__dictoffset__ else NotImplemented
        return dynamic_attributes.written(obj) if shared is NotImplemented else shared

    def _attributes(self, obj: Any) -> Any:
        """Writes an instance with its very `__dict__`, if others hold that too: by `vars(obj)`, or as their own."""
        others = _dict_refs(obj) - _ALONE
        if others <= 0 or others <= self.session.holding(obj):
            return NotImplemented
        if issubclass(type(obj), types.SimpleNamespace):
            self.notes.append("what vars() gives of a SimpleNamespace isn't its attributes any more")
            return NotImplemented
        return _sharing(obj, self._made(type(obj)).unasked)

    def with_left_out(self, obj: Any, t: Any) -> Any:
        """As `Writing.with_left_out`: `frame.note`, or the attributes of a notebook's subclass of `Counter`."""
        own = self.session.by_value(t)
        attrs = object.__getattribute__(obj, "__dict__") if t.__dictoffset__ != 0 else {}
        if not own and settings.attributes.isdisjoint(attrs) and not (attrs and _selects(t)):
            return NotImplemented
        if t in self.dispatch_table or (own and any(own_hook(t, hook) for hook in _HOOKS)):
            return NotImplemented
        reduced: Any = obj.__reduce_ex__(5)
        if not isinstance(reduced, tuple) or len(reduced) > 5:
            return reduced
        make, args, state, *items = (*reduced, None, None, None)[:5]
        if make is not t and (not args or args[0] is not t):
            return reduced  # found again by a name, as a logger
        within = state if type(state) is dict else ()
        out = {name: value for name, value in attrs.items() if name not in within}
        if not own:
            return self._selected(obj, reduced, (make, args, state, *items), out)
        left = {name: value for name, value in out.items() if name in settings.attributes or name[:1] != "_"}
        if make is t and (own_hook(t, "__init__") or own_hook(t, "__new__")):
            base = next(b for b in t.__mro__ if not self.session.by_value(b))
            make, args = recipes.based, (base, t, *args)
        if not left and (state is None or not self._made(t).answers):
            return (make, args, state, *items)
        return (make, args, (state, left), *items, recipes.set_left_out)

    def _selected(self, obj: Any, reduced: Any, parts: Any, out: dict[str, Any]) -> Any:
        """Writes a library's instance with attributes that its class's own pickling leaves `out`: the cells' own, and
        plain ones. Others are told if they aren't there after the load."""
        make, args, state, *items = parts
        left = {name: out[name] for name in settings.attributes.intersection(out)}
        others = []
        for name, value in out.items() if type(state) is dict else ():
            if "cache" in name or hasattr(type(obj), name):  # made again when asked for
                continue
            if singles.is_plain(value):
                left[name] = value
            elif name not in left:
                others.append(name)
        if others:
            return make, args, (state, left, others), *items, recipes.set_selected
        return (make, args, (state, left), *items, recipes.set_left_out) if left else reduced

    def _hashes(self, t: type) -> bool:
        """Whether the notebook defines the instances' hash. A changed instance may then be a key that isn't found."""
        if len(self.suspects) >= MANY or not own_hook(t, "__hash__"):
            return False
        params = getattr(t, "__dataclass_params__", None)
        return params is None or not params.frozen

    # --- functions and classes ---

    def _function(self, f: types.FunctionType) -> Any:
        scope = f.__globals__
        live = scope is self.session.namespace
        if not live and importable(f):  # a notebook's may replace a library's under its name: `json.dumps`
            return NotImplemented
        self.seen.add(_FunctionType)
        self.functions.append(f)
        if not live:
            module = sys.modules.get(str(scope.get("__name__")))
            own = module is None or settings.held_by(module) is not scope or of_notebook(module)
            if own or scope["__name__"] == MAIN:
                return self._detached_function(f)
            foreign: Any = self.scopes.setdefault(id(scope), _ModuleScope(scope["__name__"]))
        else:
            foreign = None
            touched = names.names_of_code(f.__code__)
            self.touches |= touched.names
            self.dynamic = self.dynamic or touched.dynamic
        made = (f.__code__, f.__name__, live, foreign, f.__closure__)
        return recipes.function, made, self._function_state(f), None, None, recipes.set_function

    def _function_state(self, f: types.FunctionType) -> dict[str, Any]:
        state: dict[str, Any] = {
            "dict": f.__dict__,
            "defaults": f.__defaults__,
            "kwdefaults": f.__kwdefaults__,
            "doc": f.__doc__,
            "module": f.__module__,
            "qualname": f.__qualname__,
            "annotations": _annotations(f),
        }
        params = getattr(f, "__type_params__", None)
        if params:
            state["type_params"] = params
        return state

    def _detached_function(self, f: types.FunctionType) -> Any:
        scope = f.__globals__
        for held in self.session.namespace.values():
            if type(held) is types.ModuleType and vars(held) is scope and of_notebook(held):
                foreign = self.scopes.setdefault(id(scope), _MadeScope(held))
                made = (f.__code__, f.__name__, False, foreign, f.__closure__)
                return recipes.function, made, self._function_state(f), None, None, recipes.set_function
        if any(held is scope for held in self.session.namespace.values()):
            # A namespace given to `exec` by the user is written first, for its functions to refer to.
            if id(scope) not in self.leads:
                raise Overlap(scope)
            made = (f.__code__, f.__name__, False, scope, f.__closure__)
            return recipes.function, made, self._function_state(f), None, None, recipes.set_function
        # A library made the function with globals of its own (namedtuple's, dataclass's, exec's). cloudpickle copies
        # the globals.
        return self._dynamic_function_reduce(f)  # type: ignore[attr-defined]

    def _class(self, cls: type) -> Any:
        if cls in _BUILTIN_CLASSES:
            return cloudpickle.CloudPickler.reducer_override(self, cls)
        if type(cls) is _CArrayType:
            return operator.mul, (cls._type_, cls._length_)  # type: ignore[attr-defined]
        why = None if type(cls) is type else bound_kind(type(cls))
        if why is not None:
            return self.lose(cls, why)
        if not self.session.by_value(cls):
            if (home := typenames.module_of(cls)).startswith(COMPILERS):
                return recipes.module_value, (home, typenames.qualname_of(cls))
            return cloudpickle.CloudPickler.reducer_override(self, cls)
        cid = self.session.class_id(cls)
        if cid in self.owned:
            reduced = cloudpickle.CloudPickler.reducer_override(self, cls)
            if reduced is NotImplemented:  # of a module that only `sys.modules` has
                reduced = cloudpickle.cloudpickle._dynamic_class_reduce(cls)
            return _quietly(cls, _whole_class(cls, reduced))
        self.classes.add(cid)
        return recipes.class_of, (cid,)

    def _cell(self, made: Any) -> Any:
        try:
            content: tuple[Any, ...] = (made.cell_contents,)
        except ValueError:
            content = ()
        return recipes.cell, (), content, None, None, recipes.set_cell

    def _lru(self, f: Any) -> Any:
        if importable(f) and typenames.home_of(f) != MAIN:
            return NotImplemented
        params = f.cache_parameters()
        if f.cache_info().currsize:
            self.notes.append("what an lru_cache held is computed again after a restore")
        attrs = {k: v for k, v in f.__dict__.items() if k != "__wrapped__"}
        return (
            recipes.cached,
            (f.__wrapped__, params["maxsize"], params["typed"]),
            attrs,
            None,
            None,
            recipes.attributes,
        )

    def _lost(self, made: Lost) -> Any:
        return Lost, parts(made)

    def _pending(self, made: Pending) -> Any:
        value = value_of(made)
        if not value:
            raise NotYet
        return operator.getitem, (value, 0)  # code copied the placeholder before its group was read

    def _order(self, order: Order) -> Any:
        return recipes.set_order, tuple(order)

    def _held(self, made: places.Held) -> Any:
        known = places.Known(made)
        self.unlinked.update(map(id, (known, made.held)))
        self.dynamic = self.dynamic or made.dynamic
        return made.make, made.given, known, None, None, recipes.set_held

    def _known(self, made: places.Known) -> Any:
        made.take_its_place(self)
        return tuple, ()


class _ModuleScope:
    """Written in place of the globals of a function that a module holds under no name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return recipes.module_value, (self.name, "__dict__")


class _MadeScope:
    """Written in place of the globals of a function that a module of the notebook holds."""

    def __init__(self, module: types.ModuleType) -> None:
        self.module = module

    def __reduce__(self) -> Any:
        return recipes.module_scope, (self.module,)


#: Most instances with a hash of their own that are looked at more closely.
MANY = 200
#: Methods with which a class controls its pickling.
_HOOKS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")


def own_hook(cls: type, hook: str) -> bool:
    found = getattr(cls, hook, None)
    return isinstance(found, _FunctionType) and typenames.home_of(found) == MAIN


def users_own(module: str) -> bool:
    """Whether a module's name is the notebook's or that of a module of the user's own."""
    return module == MAIN or own_module(sys.modules.get(module))


_NO_STATE = getattr(object, "__getstate__", None)
#: Libraries' types whose instances are pickled with their `__dict__` as it is.
_ATTRIBUTED: set[type] = set()
#: Libraries' types whose instances are written without a question to them.
_UNASKED: set[type] = set()
#: Libraries' types with pickling of their own, which may leave out attributes.
_LEAVING: set[type] = set()


def _has_plain_state(t: Any) -> bool:
    """Whether pickle takes the instances' attributes unchanged from their `__dict__`."""
    return bool(
        t.__dictoffset__ != 0
        and t.__reduce_ex__ is object.__reduce_ex__
        and t.__reduce__ in (object.__reduce__, types.SimpleNamespace.__reduce__)
        and getattr(t, "__getstate__", None) is _NO_STATE
        and not hasattr(t, "__setstate__")
        and t not in copyreg.dispatch_table
        and not issubclass(t, (type, BaseException, types.ModuleType))
    )


def _selects(t: Any) -> bool:
    """Whether a class says itself what pickle takes of its instances."""
    return (
        t.__reduce_ex__ is not object.__reduce_ex__
        or t.__reduce__ is not object.__reduce__
        or getattr(t, "__getstate__", None) is not _NO_STATE
    )


def _dict_refs(obj: Any) -> int:
    return sys.getrefcount(object.__getattribute__(obj, "__dict__"))


class _Probe:
    pass


#: Number of references to an instance's `__dict__` that nobody else holds.
_ALONE = _dict_refs(_Probe())


def _sharing(obj: Any, unasked: bool) -> Any:
    """Writes an instance with the very dictionary of its attributes."""
    reduced: Any = dynamic_attributes.written(obj) if unasked else obj.__reduce_ex__(5)
    attrs = object.__getattribute__(obj, "__dict__")
    state = reduced[2] if len(reduced) > 2 else None
    slots = state[1] if isinstance(state, tuple) else None
    if (state[0] if isinstance(state, tuple) else state) is not attrs and attrs:
        return NotImplemented
    items = (*reduced[3:5], None, None)[:2]
    return (*reduced[:2], (attrs, slots), *items, recipes.set_shared)


def _makes_itself(t: Any) -> bool:
    """Whether a class of the user's has a `__new__` that pickle would run, without its arguments."""
    return (
        isinstance(t.__new__, _FunctionType)
        and _is_past(t.__new__)
        and t.__reduce_ex__ is object.__reduce_ex__
        and t.__reduce__ is object.__reduce__
        and not any(
            isinstance(getattr(t, hook, None), _FunctionType) for hook in ("__getnewargs__", "__getnewargs_ex__")
        )
    )


def _is_flat(t: Any) -> bool:
    """Whether nothing of an instance's class is asked for when others are loaded that hold the instance."""
    return (
        dynamic_attributes.is_plain(t)
        and not hasattr(t, "__setstate__")
        and t.__hash__ is object.__hash__
        and not issubclass(t, (list, dict))
        and (t.__new__ is object.__new__ or _makes_itself(t))
    )


def _is_past(new: types.FunctionType) -> bool:
    """Whether a `__new__` isn't run again: the notebook's, and one of the user's modules that needs arguments. Without
    any, the latter may give the module's one instance."""
    if typenames.home_of(new) == MAIN:
        return True
    needed = new.__code__.co_argcount - 1 - len(new.__defaults__ or ())
    return own_module(sys.modules.get(typenames.home_of(new))) and needed > 0


def _bare(reduced: Any) -> Any:
    """Writes an instance to be made without the class's own `__new__`: the work of `__new__` was done before."""
    return (recipes.bare, *reduced[1:]) if reduced[0] is _NEWOBJ else reduced


_NEWOBJ: Any = copyreg.__newobj__  # type: ignore[attr-defined]


def _may_be_single(t: Any) -> bool:
    if t.__reduce_ex__ is not object.__reduce_ex__ or t.__reduce__ is not object.__reduce__:
        return False
    return bool(t.__basicsize__ <= _LARGEST or t.__dictoffset__ != 0)


#: Bytes of an instance without slots of its own.
_LARGEST = _Probe.__basicsize__


def _is_marker(value: Any, home: str) -> bool:
    """Whether a variable leaves an object to its module. Of the user's own module, only one without content."""
    if not own_module(sys.modules.get(home)):
        return True
    return singles.is_ordinary(type(value)) and not any(singles.Content.of(value))


def _find_singles(t: type) -> None:
    """Notes the instances of a class held by variables of the class's module: markers for comparisons, and single
    objects of a library."""
    home = typenames.module_of(t)
    held = settings.held_by(sys.modules.get(home, builtins))
    own = own_module(sys.modules.get(home))  # its instances aren't asked
    for name, value in list(held.items()):
        if type(value) is t and (own or not getattr(value, "__dict__", None)) and _is_marker(value, home):
            _keep_single(value, (home, name))
    for value, where in singles.find(t):
        _keep_single(value, where)
        _STATEFUL.add(id(value))


def _quietly(cls: type, reduced: Any) -> Any:
    if not recipes.is_own_kind(type(cls)) and all(recipes.own_hook(b) is None for b in cls.__mro__[1:]):
        return reduced
    return (recipes.made_quietly, (reduced[0], *reduced[1]), *reduced[2:])


def _whole_class(cls: type, reduced: Any) -> Any:
    """Adds the parts of a class that cloudpickle leaves out: slots, the qualified name, and an enumeration's aliases of
    members and combinations of flags."""
    if isinstance(cls, enum.EnumMeta):
        return _whole_enum(cls, reduced)
    if len(reduced) != 6 or not isinstance(reduced[2], tuple) or len(reduced[1]) != 6:
        return reduced
    made, (attrs, rest) = list(reduced[1]), reduced[2]
    slots = attrs.get("__slots__")
    own = {k for k, v in attrs.items() if type(v) is types.MemberDescriptorType and v.__objclass__ is cls}
    attrs = {k: v for k, v in attrs.items() if k not in own}
    # A class of `typing.NamedTuple` gets its own slots during construction.
    given = bool(own) or "__orig_bases__" not in attrs
    if given and isinstance(slots, (str, tuple, list, dict)) and isinstance(made[3], dict):
        made[3] = {**made[3], "__slots__": attrs.pop("__slots__")}
    if type(attrs.get("__module__")) is str and type(made[3]) is dict:
        made[3] = {**made[3], "__module__": attrs.pop("__module__")}  # a metaclass may have made it a property
    if typenames.name_of(type(cls)) == "_TypedDictMeta" and made[2] == (dict,):
        made[2] = ()  # a TypedDict is made with this base, and refuses it
    if typenames.qualname_of(cls) != typenames.name_of(cls):
        attrs["__qualname__"] = typenames.qualname_of(cls)
    return (reduced[0], tuple(made), (attrs, rest), *reduced[3:])


def _whole_enum(cls: Any, reduced: Any) -> Any:
    members = dict(cls.__members__)
    if len(reduced) != 6 or len(reduced[1]) != 7 or not set(reduced[1][3]) <= set(members):
        return reduced
    made, (attrs, rest) = list(reduced[1]), reduced[2]
    values = {name: member._value_ for name, member in members.items()}
    content = _CONTENT.get(cls._member_type_) if "__new_member__" in vars(cls) else None
    made[3] = values if content is None else {name: (content(member),) for name, member in members.items()}
    own = {name: {k: v for k, v in vars(m).items() if k not in _OF_MEMBERS} for name, m in members.items()}
    state = ((({k: v for k, v in attrs.items() if k not in members}), rest), reduced[5], own, content and values)
    return (reduced[0], tuple(made), state, None, None, recipes.set_enum)


#: Attributes that each member of an enumeration has.
_OF_MEMBERS = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})
#: The content of a member by its type, for an enumeration with a `__new__` of its own.
_CONTENT: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: lambda m: str.__add__(m, ""),
    bytes: lambda m: bytes.__add__(m, b""),
}


def _annotations(f: types.FunctionType) -> Any:
    try:
        return f.__annotations__
    except Exception:  # a lazily evaluated annotation may use an undefined name
        return None


_BUILTIN_CLASSES = {type(None), type(NotImplemented), type(Ellipsis)}

_RULES: dict[type, Rule] = {
    **_stdlib.TYPES,
    Lost: Rules._lost,
    Pending: Rules._pending,
    Order: Rules._order,
    States: Rules._states,
    State: Rules._state,
    places.Held: Rules._held,
    places.Known: Rules._known,
    types.CellType: Rules._cell,
    functools._lru_cache_wrapper: Rules._lru,
}

_ordinary_types: tuple[int, set[type]] = (-1, set())


def _ordinary() -> set[type]:
    """Libraries' types that came up so far and whose instances need no recipe of ours."""
    global _ordinary_types  # noqa: PLW0603 - libraries are loaded once for the process
    if _ordinary_types[0] != len(sys.modules):
        _ordinary_types = (len(sys.modules), set())
    return _ordinary_types[1]


_library_cache: tuple[tuple[str, ...], list[tuple[Any, Rule]]] = ((), [])


_modules_seen = -1


#: Rules for types that are told by name alone: a type's name -> (the beginning of its module's name, the rule).
_by_name: dict[str, tuple[str, Rule]] = {}


def library_rules() -> list[tuple[Any, Rule]]:
    """Rules for the libraries that are loaded, by `isinstance`; exact types go into the table."""
    global _library_cache, _modules_seen  # noqa: PLW0603 - libraries are loaded once for the process
    count = len(sys.modules)
    if count == _modules_seen:
        return _library_cache[1]
    loaded = list(adapters.loaded())
    _modules_seen = len(sys.modules)
    _singletons(loaded)
    found = tuple(name for adapter in loaded for name in adapter.modules if name in sys.modules)
    if _library_cache[0] == found and found:
        return _library_cache[1]
    rules: list[tuple[Any, Rule]] = [(threading.Thread, _stdlib.thread)]
    for out in STREAMS.values():  # those of before any cell: others are saved as any object
        _RULES.setdefault(type(out), _stdlib.file)
    for adapter in loaded:
        _RULES.update(adapter.exact())
        rules += adapter.bases()
        _by_name.update({name: (f"{adapter.modules[0]}.", rule) for name, rule in adapter.by_name.items()})
    _library_cache = (found, rules)
    return rules


#: Objects held by a module for the whole process: id -> (object, its place).
_SINGLETONS: dict[int, tuple[Any, tuple[str, str]]] = {}
_SINGLE_TYPES: set[type] = set()
#: Ids of objects in `_SINGLETONS` with possible changes by cells, told by no section of the process.
_STATEFUL: set[int] = set()


def _keep_single(value: Any, where: tuple[str, str]) -> None:
    _SINGLETONS[id(value)] = (value, where)
    _SINGLE_TYPES.add(type(value))


def _single(module: str, path: str) -> None:
    held: Any = sys.modules.get(module)
    for part in path.split("."):
        held = getattr(held, part, None)
    if held is not None:
        _keep_single(held, (module, path))


#: Parts of the shell that cells may hold: `old = sys.displayhook`. Their content belongs to the process.
_OF_SHELL = (
    "displayhook",
    "display_pub",
    "display_formatter",
    "events",
    "history_manager",
    "magics_manager",
    "alias_manager",
    "extension_manager",
    "payload_manager",
    "Completer",
    "InteractiveTB",
    "kernel",
)


def _singletons(loaded: list[Adapter]) -> None:
    import random

    _single(random.__name__, "_inst")
    _single("os", "environ")
    _single("logging", "Logger.manager")
    for adapter in loaded:
        for module, path in adapter.singles:
            _single(module, path)
    shell = getattr(sys.modules.get("IPython.core.interactiveshell"), "InteractiveShell", None)
    if shell is not None and shell.initialized():
        held = shell.instance()
        _keep_single(held, ("gresshopper.state.recipes", "SHELL"))
        for part in _OF_SHELL:
            _single("gresshopper.state.recipes", f"SHELL.{part}")
