"""Memory that arrays and tensors may have in common."""

from __future__ import annotations

from typing import Any

from .. import native
from ..session import Overlap
from ..writing import Writing


def storage_of(dump: Writing, tensor: Any) -> Any:
    """The memory of a tensor, one object however many tensors are over it."""
    storage = untyped(tensor)
    return dump.storages.setdefault(storage.data_ptr() or storage._cdata, storage)


def find_root(dump: Writing, address: int, nbytes: int) -> Any | None:
    """An already written root with this memory, though no object says so."""
    if not nbytes or dump.roots.free(address, address + nbytes):
        return None
    for low, high, root in dump.roots.near(address, address + nbytes):
        if low <= address and address + nbytes <= high:
            return root
        raise Overlap(dump.last)
    return None


def is_writeable(a: Any) -> bool:
    """Whether an array can be written. `flags.writeable` warns the user of what became of a broadcast array."""
    return bool(a.flags.num & _WRITEABLE)


#: `NPY_ARRAY_WRITEABLE`.
_WRITEABLE = 0x0400


_array_data_known: bool | None = None


def data_of(a: Any) -> int:
    """The address of an array's first element. It is read from the array's C structure, if a probe confirms the layout:
    asking numpy takes ten times as long.
    """
    global _array_data_known  # noqa: PLW0603 - all arrays of a process are laid out alike
    if _array_data_known is None:
        import numpy as np

        probes = (np.arange(3), np.zeros((2, 2))[1:])
        _array_data_known = all(native.second_word(p) == int(p.__array_interface__["data"][0]) for p in probes)
    return native.second_word(a) if _array_data_known else int(a.__array_interface__["data"][0])


def extent_of(a: Any) -> tuple[int, int]:
    """The lowest address of an array's elements, and the bytes up to the highest one."""
    low = high = data_of(a)
    for extent, stride in zip(a.shape, a.strides):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    return low, high + a.itemsize - low


def is_dense(a: Any) -> bool:
    """Whether an array's elements fill its memory without gaps, from the first one on."""
    low, length = extent_of(a)
    return low == data_of(a) and length == a.nbytes


def bytes_storage(storage: Any) -> Any:
    """The untyped storage, under the name given by this version of torch."""
    return getattr(storage, "_storage", None) or storage


def storage_nbytes(storage: Any) -> int:
    return int(storage.nbytes())


def untyped(tensor: Any) -> Any:
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    typed = tensor.storage()
    return typed._storage if hasattr(typed, "_storage") else typed.untyped()
