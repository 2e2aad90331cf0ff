"""A context of the fake libcuda in this process, as a library without a framework would have it."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_held: list[Any] = []


def hold() -> None:
    """Opens the device."""
    driver = ctypes.CDLL(os.environ["GRESSHOPPER_LIBCUDA"])
    context = ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    _held.append(driver)
