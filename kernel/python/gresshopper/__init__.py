"""GPUs on demand, from inside a notebook's kernel.

In a cell of its own: ``%%gpu 1``. In the middle of one::

    import gresshopper

    with gresshopper.gpu():
        model.fit(data)

``%gpu`` says how the kernel stands towards its GPU and its memory limit, :func:`status` and :func:`memory` the same
to a program.

Gresshopper itself puts this package into the kernel, where it speaks with the kernel's supervisor. Elsewhere an import
works, and a request for a GPU raises an error that says so.
"""

from typing import Any

from gresshopper.memory import Memory, memory
from gresshopper.need import BadNeed, Grant, LeaseRefused, cpu, gpu
from gresshopper.overview import HopError, Status, Waiting, queue, release, status
from gresshopper.revoked import LeaseRevoked

__all__ = [
    "BadNeed",
    "Grant",
    "HopError",
    "LeaseRefused",
    "LeaseRevoked",
    "Memory",
    "Status",
    "Waiting",
    "cpu",
    "gpu",
    "memory",
    "queue",
    "release",
    "status",
]
__version__ = "0.1.0"


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext gresshopper`, in a kernel that nobody supervises: the magics, `hop state` and `hop gpu`."""
    from gresshopper import extension

    extension.load_ipython_extension(shell)
