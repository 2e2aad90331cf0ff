"""A cell whose lease is taken away is stopped by an exception of our own; who interrupts it is heard as ever."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gresshopper import need, revoked

SENTENCE = "the GPU was taken away: its job ended"


class Shell:
    """As much of IPython's shell as is asked."""

    def __init__(self) -> None:
        self.hooks: dict[str, list[Callable[[Any], None]]] = {"pre_run_cell": [], "post_run_cell": []}
        self.events = self
        self.parent: dict[str, Any] = {}

    def register(self, event: str, hook: Callable[[Any], None]) -> None:
        self.hooks[event].append(hook)

    def get_parent(self) -> dict[str, Any]:
        return self.parent

    def tell(self, event: str) -> None:
        for hook in self.hooks[event]:
            hook(None)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(revoked.VARIABLE, str(tmp_path / "revoked"))
    monkeypatch.setattr(revoked, "_watch", None)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield tmp_path / "revoked"
    signal.signal(signal.SIGINT, before)


def leased(place: Path) -> Shell:
    shell = Shell()
    revoked.install(shell)
    assert revoked.VARIABLE not in os.environ
    shell.parent = {"metadata": {"gresshopper": {"lease": {"devices": []}}}}
    return shell


def interrupt() -> None:
    """To this thread: the process's others may take what is sent to the process."""
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(5)


def test_the_cell_reads_why(place: Path) -> None:
    shell = leased(place)
    shell.tell("pre_run_cell")
    place.write_text(SENTENCE)
    with pytest.raises(revoked.LeaseRevoked, match="its job ended"):
        interrupt()
    assert not place.exists()
    # Once: the next interrupt is the user's.
    with pytest.raises(KeyboardInterrupt) as error:
        interrupt()
    assert not isinstance(error.value, revoked.LeaseRevoked)
    shell.tell("post_run_cell")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_came_too_late_is_forgotten(place: Path) -> None:
    shell = leased(place)
    place.write_text(SENTENCE)
    shell.tell("pre_run_cell")
    with pytest.raises(KeyboardInterrupt) as error:
        interrupt()
    assert not isinstance(error.value, revoked.LeaseRevoked)


def test_without_a_lease_and_over_a_users_handler_nothing_is_changed(place: Path) -> None:
    shell = leased(place)
    shell.parent = {"metadata": {}}
    shell.tell("pre_run_cell")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    shell.parent = {"metadata": {"gresshopper": {"lease": {"devices": []}}}}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shell.tell("pre_run_cell")
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_block_is_told_too(place: Path) -> None:
    shell = leased(place)
    shell.parent = {}
    shell.tell("pre_run_cell")
    revoked.block_begins()
    place.write_text(SENTENCE)
    with pytest.raises(revoked.LeaseRevoked):
        interrupt()
    shell.tell("post_run_cell")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_help_names_the_options_and_the_page() -> None:
    said = need.help_text()
    assert "--deadline" in said and "users.md" in said
    assert need.misplaced_magic.__doc__ == said
