"""GPU errors, as sentences for the person at the notebook."""

from __future__ import annotations


class GpuUnavailable(RuntimeError):
    """The code asked for a GPU, and none is available now. The text names the reason and the cure."""


class ParkRefused(RuntimeError):
    """The frameworks' memory can't be copied out or in. Everything is where it was."""
