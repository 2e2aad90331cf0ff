"""The GPU half of a kernel whose supervisor lends GPUs. The first import of a framework with GPU support loads this
module: other kernels carry nothing of it.

A lease is for one cell here. A cell came with a lease if the supervisor wrote so into the request's metadata. Any
other cell that is found to need a GPU gets a lease for its rest, as by `with gresshopper.gpu():`.
"""

from __future__ import annotations

import os
import sys
import threading
from types import ModuleType
from typing import Any

from gresshopper.imports import after_import

#: Set by a supervisor that lends.
VARIABLE = "GRESSHOPPER_LENDS"
FRAMEWORKS = ("torch", "cupy", "jax", "tensorflow", "numba", "pycuda")


class Watch:
    """The part of the half that exists before any framework."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._threads = [thread.ident for thread in threading.enumerate()]
        self._in_cell = False
        self._made = False
        shell.events.register("pre_run_cell", self._begins)
        shell.events.register("post_run_cell", self._over)
        for name in FRAMEWORKS:
            after_import(name, self._arrived)

    def _begins(self, info: Any) -> None:
        self._in_cell = True

    def _over(self, result: Any) -> None:
        self._in_cell = False

    def _arrived(self, module: ModuleType) -> None:
        if self._made or (module.__name__ == "torch" and not _has_cuda(module)):
            return
        self._made = True
        try:
            from gresshopper.gpu import _supervised

            _supervised.install(self._shell, self._threads, self._in_cell)
        except Exception as error:
            # The user's import goes on; its cost is told.
            print(
                f"gresshopper: GPUs can't be given back while this kernel lives ({error}): at the end of a lease it "
                "would be ended. Restart it.",
                file=sys.stderr,
            )


def _has_cuda(torch: ModuleType) -> bool:
    return getattr(getattr(torch, "version", None), "cuda", None) is not None


def watch(shell: Any) -> None:
    """Begins to watch for frameworks, if the supervisor lends."""
    if os.environ.pop(VARIABLE, None):
        Watch(shell)
