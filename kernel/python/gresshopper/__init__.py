"""GPUs on demand, from inside a notebook's kernel.

In a cell of its own: ``%%gpu 1``. In the middle of one::

    import gresshopper

    with gresshopper.gpu():
        model.fit(data)

This package is put into the kernel by Gresshopper itself and speaks with the kernel's supervisor;
elsewhere it can be imported, and says so when a GPU is asked for.
"""

from gresshopper.need import Grant, LeaseRefused, cpu, gpu

__all__ = ["Grant", "LeaseRefused", "cpu", "gpu"]
__version__ = "0.1.0"
