"""Choice of recipes for objects of numpy, pandas, torch, matplotlib and ipywidgets.

Objects with shared memory are written over the root that owns the memory. Others have a recipe only if a library's own
pickling loses something.
"""

from __future__ import annotations

import array
import copyreg
import ctypes
import functools
import itertools
import operator
import os
import sys
from typing import Any

from . import native, recipes
from .session import MAIN, Overlap
from .writing import INBAND, Writing

#: Arrays of objects with at least this many elements, all immutable, are written apart and tracked by their pointers.
ATOMS = 4096
#: Seconds, roughly, for a look at an element of such an array.
ELEMENT = 2e-8


class LibraryRules(Writing):
    """Recipes for libraries' objects."""

    def _ndarray(self, a: Any) -> Any:
        import numpy as np

        t = type(a)
        self.seen.add(t)
        if t is np.memmap:
            return self._memmap(a)
        if isinstance(a, np.ma.MaskedArray):
            if t is not np.ma.MaskedArray:
                return NotImplemented
            return recipes.np_masked, (a.data.view(np.ndarray), a._mask, a._fill_value, a._hardmask, a._sharedmask)
        if t is not np.ndarray:
            if t is np.matrix or t is np.recarray or t.__reduce__ is np.ndarray.__reduce__:
                if type(a.base) is t:
                    self.notes.append("what the view of an array of a subclass calls its base is a plain array")
                return (
                    recipes.np_as,
                    (a.view(np.ndarray), t),
                    dict(a.__dict__) or None,
                    None,
                    None,
                    recipes.attributes,
                )
            return NotImplemented
        if a.dtype.hasobject and a.dtype != object:
            self.notes.append("a structured array of objects is saved as a copy")
            return NotImplemented
        if id(a) in self.frames:
            return self._np_root(a) if self.frames[id(a)] is None else self._np_foreign(a, self.frames[id(a)])
        root = a
        while root.base is not None:
            base = root.base
            if not isinstance(base, np.ndarray):
                inner = getattr(base, "base", None)
                if type(base).__name__ == "DummyArray" and isinstance(inner, np.ndarray):
                    base = inner
                else:
                    break
            root = base
            if type(base) is np.memmap and not isinstance(base.base, np.memmap):
                break
        if root is a:
            return self._np_root(a) if a.base is None else self._np_foreign(a, a.base)
        if type(root) is not np.ndarray and type(root) is not np.memmap:
            root = self._frame(root)
        return self._np_view(a, root)

    def _np_void(self, scalar: Any) -> Any:
        """An element of a structured array: a view of the array."""
        import numpy as np

        if not isinstance(scalar.base, np.ndarray) or scalar.dtype.names is None or scalar.dtype.hasobject:
            return NotImplemented
        at = native.address(memoryview(scalar))
        view = np.asarray(DummyArray(at, scalar.dtype.itemsize, scalar.base)).view(scalar.dtype)
        return recipes.np_element, (view,)

    def _frame(self, root: Any) -> Any:
        """A plain array over the whole memory of an array of a subclass; in the stream the plain array takes that
        memory's place."""
        import numpy as np

        made = self.plain.get(id(root))
        if made is None:
            made = self.plain[id(root)] = root.view(np.ndarray)
            self.frames[id(made)] = root.base
        return made

    def _np_view(self, a: Any, root: Any) -> Any:
        offset = data_of(a) - data_of(root)
        if not (root.flags.c_contiguous or root.flags.f_contiguous) or offset < 0:
            return self._np_copy(a, "a view of memory with gaps is saved as a copy")
        return recipes.np_view, (root, offset, a.shape, a.strides, a.dtype, bool(a.flags.writeable))

    def _np_copy(self, a: Any, note: str | None) -> Any:
        if note:
            self.notes.append(note)
        self.session.room(a.nbytes)
        fresh = a.copy(order="C")
        if a.dtype == object:
            return self._np_objects(fresh)
        return self._np_own(fresh, bool(a.flags.writeable))

    def _np_root(self, a: Any) -> Any:
        if a.dtype == object:
            return self._np_objects(a)
        if id(a) not in self.detached:
            over = self._find_root(data_of(a), a.nbytes)
            if over is not None:
                return self._np_over_root(a, over)
        return self._np_own(a, bool(a.flags.writeable))

    def _np_own(self, a: Any, writeable: bool) -> Any:
        nbytes = a.nbytes
        dense = a.flags.c_contiguous or a.flags.f_contiguous
        if not dense and not _dense(a):
            return self._np_copy(a, None)
        address = data_of(a)
        if nbytes:
            self.ranges.append((address, address + nbytes))
            if id(a) not in self.detached:
                self.roots.add(address, address + nbytes, a)
        if nbytes < INBAND and dense:
            order = "C" if a.flags.c_contiguous else "F"
            return recipes.np_small, (a.tobytes(order), a.dtype, a.shape, order, writeable)
        index = self.add_buffer(address, nbytes, a)
        return recipes.np_root, (index, nbytes, a.dtype, a.shape, a.strides, writeable)

    def _np_objects(self, a: Any) -> Any:
        dense = a.flags.c_contiguous or a.flags.f_contiguous
        if not dense:
            return self._np_copy(a, None)
        order = "C" if a.flags.c_contiguous else "F"
        flat = a.reshape(-1) if order == "C" else a.T.reshape(-1)
        items: Any
        if a.size >= ATOMS:
            self.session.expect(a.size * ELEMENT)
        if a.size >= ATOMS and (
            self.session.unchanged(data_of(a), a.nbytes) or native.all_atoms(data_of(a), a.size, flat)
        ):
            items = self.add_buffer(data_of(a), a.nbytes, a, flat)
        else:
            items = flat.tolist()
        state = (items, bool(a.flags.writeable))
        return recipes.np_objects, (a.shape, order), state, None, None, recipes.set_np_objects

    def _foreign_owner(self, base: Any) -> Any | None:
        while isinstance(base, memoryview):
            base = base.obj
        owns = (bytes, bytearray, array.array, ctypes.Array)
        return base if isinstance(base, owns) else None

    def _np_foreign(self, a: Any, base: Any) -> Any:
        """An array over memory of something that isn't an array."""
        owner = self._foreign_owner(base)
        if owner is not None and a.dtype != object:
            offset = data_of(a) - native.address(memoryview(owner))
            return recipes.np_over, (owner, offset, a.shape, a.strides, a.dtype, bool(a.flags.writeable))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(base, torch.Tensor) and base.device.type == "cpu":
            storage = self._torch_storage(base)
            offset = data_of(a) - storage.data_ptr()
            return recipes.np_of_tensor, (storage, offset, a.shape, a.strides, a.dtype)
        if a.dtype == object:
            return self._np_objects(a)
        over = self._find_root(*_extent(a))
        if over is not None:
            return self._np_over_root(a, over)
        if not (a.flags.c_contiguous or a.flags.f_contiguous):
            return self._np_copy(a, "a view of foreign memory is saved as a copy")
        return self._np_own(a, bool(a.flags.writeable))

    def _np_over_root(self, a: Any, over: Any) -> Any:
        if type(over).__module__.startswith("torch"):
            return recipes.np_of_tensor, (over, data_of(a) - over.data_ptr(), a.shape, a.strides, a.dtype)
        return recipes.np_view, (
            over,
            data_of(a) - data_of(over),
            a.shape,
            a.strides,
            a.dtype,
            bool(a.flags.writeable),
        )

    def _find_root(self, address: int, nbytes: int) -> Any | None:
        """An already written root with this memory, though no object says so."""
        if not nbytes or self.roots.free(address, address + nbytes):
            return None
        for low, high, root in self.roots.near(address, address + nbytes):
            if low <= address and address + nbytes <= high:
                return root
            raise Overlap(self.last)
        return None

    def _memmap(self, a: Any) -> Any:
        import numpy as np

        if a.base is not None and isinstance(a.base, np.memmap):
            root = a.base
            while isinstance(root.base, np.memmap):
                root = root.base
            return recipes.np_as, (recipes_view(self, a, root), np.memmap)
        path = getattr(a, "filename", None)
        if path is None or not (a.flags.c_contiguous or a.flags.f_contiguous):
            return self.lose(a, "a memory map without a file")
        address = data_of(a)
        if a.nbytes:
            self.ranges.append((address, address + a.nbytes))
        index = self.add_buffer(address, a.nbytes, a)
        order = "C" if a.flags.c_contiguous else "F"
        return recipes.np_memmap, (os.fspath(path), a.dtype, a.mode, a.offset, a.shape, order, index, a.nbytes)

    def _npz(self, archive: Any) -> Any:
        own = getattr(archive, "fid", None)
        held = own if own is not None else getattr(getattr(archive, "zip", None), "fp", None)
        if held is None:
            return self.lose(archive, "it was closed")
        limits = {"max_header_size": archive.max_header_size} if hasattr(archive, "max_header_size") else {}
        how = (bool(archive.allow_pickle), archive.pickle_kwargs, limits)
        return recipes.np_npz_over, (type(archive), held, own is not None, *how)

    def _np_generator(self, made: Any) -> Any:
        return recipes.np_generator, (type(made), made.bit_generator)

    def _np_random_state(self, made: Any) -> Any:
        legacy = made.get_state(legacy=False)
        drawn = {k: legacy[k] for k in ("has_gauss", "gauss")}
        return (
            recipes.np_random_state,
            (type(made), made._bit_generator),
            drawn,
            None,
            None,
            recipes.set_np_random_state,
        )

    # --- torch ---

    def _torch_storage(self, tensor: Any) -> Any:
        storage = recipes._untyped(tensor)
        return self.storages.setdefault(storage.data_ptr() or storage._cdata, storage)

    def _torch_untyped(self, storage: Any) -> Any:
        nbytes = recipes._storage_nbytes(storage)
        device = str(storage.device)
        address = storage.data_ptr()
        self.storages.setdefault(address or storage._cdata, storage)
        copy = self.session.device.copy(storage) if self.session.device is not None else None
        if copy is not None:
            self.on_device = True
            at = native.address(copy)
            self.ranges.append((at, at + copy.nbytes))
            index = self.add_buffer(at, copy.nbytes, copy)
            return recipes.torch_storage, (index, copy.nbytes, device)
        if device != "cpu" or self.session.device is not None:
            self.on_a_device(storage.device.type)
        if device == "cpu" and nbytes:
            over = self._find_root(address, nbytes)
            if over is not None and not type(over).__module__.startswith("torch"):
                return recipes.torch_storage_over, (over, address - data_of(over), nbytes)
            self.ranges.append((address, address + nbytes))
            self.roots.add(address, address + nbytes, storage)
            index = self.add_buffer(address, nbytes, storage)
        elif nbytes:
            import torch

            self.session.room(nbytes)
            raw = torch.empty(0, dtype=torch.uint8, device=storage.device)
            host = raw.set_(storage, 0, (nbytes,), (1,)).cpu().numpy()
            self.ranges.append((address, address + nbytes))  # on the device: what shares it is one group
            index = self.add_buffer(data_of(host), nbytes, host)
        else:
            index = self.add_buffer(0, 0, storage)
        return recipes.torch_storage, (index, nbytes, device)

    def _tensor(self, t: Any) -> Any:
        import torch

        cls = type(t)
        self.seen.add(cls)
        plain = cls is torch.Tensor or cls is torch.nn.Parameter
        if t.is_quantized:
            self.notes.append("a quantised tensor is saved as a copy")
        elif t.is_inference():
            self.notes.append("a tensor of inference mode is an ordinary one after a restore")
        if not plain or t.layout != torch.strided or t.is_quantized or t.device.type == "meta":
            return NotImplemented
        if t.is_conj() or t.is_neg():
            kind = "conj" if t.is_conj() else "neg"
            return recipes.torch_lazy, (recipes.torch_lazy(t, kind), kind)
        history = t.grad_fn is not None
        if history:
            self.notes.append("a tensor's history of operations isn't saved")
        storage = self._torch_storage(t)
        made = (
            storage,
            t.dtype,
            t.storage_offset(),
            tuple(t.size()),
            tuple(t.stride()),
            bool(t.requires_grad),
            cls is torch.nn.Parameter,
            history,
        )
        grad = t.grad if t.is_leaf else None
        attrs = {k: v for k, v in getattr(t, "__dict__", {}).items()}
        hooks = {k: getattr(t, k) for k in recipes.TORCH_HOOKS if getattr(t, k, None)} if t.is_leaf else {}
        state: Any = {"grad": grad, "dict": attrs, "hooks": hooks} if grad is not None or attrs or hooks else None
        if t.has_names():
            state = {**(state or {"grad": None, "dict": {}, "hooks": {}}), "names": t.names}
        return recipes.torch_tensor, made, state, None, None, recipes.set_torch_tensor

    def _torch_typed(self, storage: Any) -> Any:
        self.notes.append("a storage of torch is saved as a copy")
        return NotImplemented

    def _torch_generator(self, g: Any) -> Any:
        import torch

        default = g is torch.default_generator
        return recipes.torch_generator, (str(g.device), None if default else g.get_state(), default)

    # --- pandas ---

    def _pd_refs(self, refs: Any) -> Any:
        return recipes.pd_refs, ()

    def _pd_manager(self, manager: Any) -> Any:
        blocks = []
        for block in manager.blocks:
            where = block.mgr_locs
            sliced = where.as_slice if where.is_slice_like else None
            spec: Any = (sliced.start, sliced.stop, sliced.step) if sliced is not None else where.as_array.copy()
            blocks.append((block.values, spec, block.ndim, block.refs))
        return recipes.pd_manager, (type(manager), list(manager.axes), blocks)

    def _pd_looked_up(self, index: Any) -> Any:
        if len(index) > LOOKED_UP or not _looked_up(index):
            return NotImplemented
        reduced = index.__reduce__()
        plain = len(reduced[1]) == 2 and not any(reduced[2:])
        return (recipes.pd_index, (reduced[0], *reduced[1])) if plain else reduced

    def _pd_index(self, index: Any) -> Any:
        # An index copies on write by counts absent in restored memory: the index's data are written separately.
        reduced = index.__reduce__()
        if len(reduced) == 2 and isinstance(reduced[1][1], dict):
            data = reduced[1][1].get("data")
            if data is not None and type(data).__name__ == "ndarray":
                self.session.room(data.nbytes)
                own = data.copy()
                self.detached[id(own)] = own
                made = (reduced[1][0], dict(reduced[1][1], data=own))
                looked_up = len(index) <= LOOKED_UP and _looked_up(index)
                return (recipes.pd_index, (reduced[0], *made)) if looked_up else (reduced[0], made)
        return reduced

    # --- arrays on devices ---

    def _device_array(self, array: Any) -> Any:
        """cupy's and jax's own pickling reads the device."""
        self.on_a_device()
        return NotImplemented

    # --- numba ---

    def _nb_dispatcher(self, made: Any) -> Any:
        if made.signatures and getattr(made, "_can_compile", True):
            self.notes.append("numba compiles a function again when it is called: until then it has no signatures")
        return NotImplemented

    def _nb_dict(self, made: Any) -> Any:
        if not made._typed:
            return NotImplemented
        kinds = made._dict_type.key_type, made._dict_type.value_type
        return recipes.nb_dict, kinds, None, None, iter(list(made.items()))

    def _nb_list(self, made: Any) -> Any:
        if not made._typed:
            return NotImplemented
        return recipes.nb_list, (made._list_type.item_type,), None, iter(list(made))

    # --- figures ---

    def _figure(self, figure: Any) -> Any:
        manager = getattr(figure.canvas, "manager", None)
        registry = getattr(figure.canvas, "callbacks", None)
        connected = [f for by in getattr(registry, "callbacks", {}).values() for f in by.values()]
        if any(getattr(f() if callable(f) else None, "__module__", "") == MAIN for f in connected):
            self.notes.append("what was connected to a figure's events isn't connected any more")
        if manager is None:
            return NotImplemented
        plain: Any = figure.__reduce_ex__(5)
        state = (plain[2], manager.num)
        return plain[0], plain[1], state, None, None, recipes.set_figure

    def _region(self, region: Any) -> Any:
        self.notes.append("pixels that were kept of a canvas aren't kept")
        return recipes.no_region, ()

    def _callbacks(self, registry: Any) -> Any:
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

    def _plot_args(self, made: Any) -> Any:
        """The position in the colour cycle of an axes, which matplotlib drops, and the owner of the colours."""
        state = dict(vars(made))
        place = _place_in_cycle(state.pop("prop_cycler", None))
        if place is None:
            return NotImplemented
        kind: Any = type(made)
        return copyreg.__newobj__, (kind,), (state, *place), None, None, recipes.set_plot_args  # type: ignore[attr-defined]

    # --- widgets ---

    def _traits(self, made: Any) -> Any:
        found: dict[str, Any] = {}
        for name, by_type in made._trait_notifiers.items():
            for kind, handlers in by_type.items():
                mine = [h for h in handlers if not _own_handler(h, made) and not _is_observer(h)]
                if mine:
                    found.setdefault(name, {})[kind] = mine
        plain: Any = made.__reduce_ex__(5) if found else ()
        if len(plain) < 3 or any(plain[3:]):
            return NotImplemented
        return plain[0], plain[1], (plain[2], found), None, None, recipes.set_traits

    def _widget(self, w: Any) -> Any:
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
        own = self.session.by_value(type(w))
        if own or type(w).__module__.startswith("ipywidgets."):
            attrs.update((k, v) for k, v in w.__dict__.items() if k not in _OF_WIDGETS)
        state = (w.model_id if w.comm is not None else None, traits, notifiers, attrs)
        if own or type(w).__module__ in _COMPOSED:
            unsent = {k: v for k, v in w._trait_values.items() if k not in w.keys and k not in _OF_WIDGETS}
            return recipes.widget, (type(w), state[0]), (*state, unsent), None, None, recipes.set_composed
        return recipes.widget, (type(w), state[0]), state, None, None, recipes.set_widget


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


#: Size from which an index keeps a table after a lookup, counted by its `memory_usage`.
LOOKED_UP = 1000


def _looked_up(index: Any) -> bool:
    cache = getattr(index, "_cache", None)
    engine = cache.get("_engine") if isinstance(cache, dict) else None
    return bool(getattr(engine, "is_mapping_populated", False)) and getattr(index, "nlevels", 2) == 1


def recipes_view(pickler: Writing, a: Any, root: Any) -> Any:
    """A plain view of memory-mapped memory, to be written as a view of the map."""
    import numpy as np

    return a.view(np.ndarray) if a is not root else a


def _is_observer(handler: Any) -> bool:
    """Whether a class's decorator made the handler: the class makes it again."""
    return type(handler).__name__ in ("ObserveHandler", "_CallbackWrapper")


def _is_link(holder: Any) -> bool:
    return type(holder).__name__ in ("link", "directional_link", "interactive")


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
        if holder is w and handler.__func__.__module__ == MAIN:
            return False
        return holder is w or (type(holder).__module__.startswith("ipywidgets") and not _is_link(holder))
    module = getattr(handler, "__module__", None) or type(handler).__module__
    return str(module).startswith(("traitlets", "ipywidgets"))


def data_of(a: Any) -> int:
    return native.array_data(a)


class DummyArray:
    """Bytes of an array's memory, as numpy makes them under the same name for views that it can't make otherwise."""

    def __init__(self, at: int, nbytes: int, base: Any) -> None:
        self.__array_interface__ = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (at, False)}
        self.base = base


def _extent(a: Any) -> tuple[int, int]:
    low = high = data_of(a)
    for extent, stride in zip(a.shape, a.strides):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    return low, high + a.itemsize - low


def _dense(a: Any) -> bool:
    low, length = _extent(a)
    return low == data_of(a) and length == a.nbytes
