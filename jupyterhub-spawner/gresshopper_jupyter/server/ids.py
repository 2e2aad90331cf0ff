"""The two ids of a kernel: Jupyter's on this server, and ``hop``'s.

Both are the same text at first. A kernel that was saved has a new id for Jupyter after its notebook's next opening, and
keeps its id for ``hop``. A separate type for each keeps either id from being taken for the other.
"""

from __future__ import annotations

from typing import Any, NewType

from gresshopper_jupyter.provisioner import GresshopperProvisioner

HopId = NewType("HopId", str)
JupyterId = NewType("JupyterId", str)


def ours(manager: Any) -> dict[JupyterId, Any]:
    """The kernels of Gresshopper among those of this server."""
    kernels = {JupyterId(kernel_id): manager.get_kernel(kernel_id) for kernel_id in manager.list_kernel_ids()}
    return {kernel_id: kernel for kernel_id, kernel in kernels.items() if _is_ours(kernel)}


def hops_id(kernel: Any) -> HopId:
    """The id of a kernel of this server for ``hop``."""
    return HopId(kernel.provisioner.kernel)


def hops_id_of(manager: Any, named: str) -> HopId:
    """``hop``'s id of the kernel with this id of Jupyter's. An id that Jupyter doesn't know here is ``hop``'s already."""
    kernel = ours(manager).get(JupyterId(named))
    return HopId(named) if kernel is None else hops_id(kernel)


def _is_ours(kernel: Any) -> bool:
    return isinstance(getattr(kernel, "provisioner", None), GresshopperProvisioner)
