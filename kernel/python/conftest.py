"""Ends the tests' own process even if a failed test has left a waiting thread behind."""

from __future__ import annotations

import os
import sys
import threading
import traceback

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thorough: left to `make test-all`")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Python would join such a thread at its end, for ever, and no test's limit reaches the join."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join(5)
    left = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    if not left:
        return
    frames = sys._current_frames()
    for thread in left:
        print(f"a test has left {thread.name}, which doesn't end:", file=sys.stderr)
        traceback.print_stack(frames.get(thread.ident or 0), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
