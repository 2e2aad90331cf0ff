"""``%gpu``, ``status()`` and ``queue()``, against a supervisor and a ``hop`` that these tests play."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gresshopper
from gresshopper import channel, command, overview


class Supervisor:
    """Stands in for the channel: one answer for each operation."""

    def __init__(self) -> None:
        self.notice: dict[str, Any] = {"state": "cpu"}
        self.lingers = False

    def request(self, op: str, body: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        assert body == {}
        if op == "need.status":
            return self.notice, []
        assert op == "need.end_linger"
        ended, self.lingers = self.lingers, False
        return {"ended": ended}, []


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    made = Supervisor()
    monkeypatch.setattr(channel, "get", lambda: made)
    monkeypatch.setattr(overview, "memory", lambda: None)
    yield made


GRANTED = {
    "state": "granted",
    "lease": 12,
    "node": "n3",
    "gpus": [1],
    "models": ["NVIDIA H200"],
    "need": {"gpus": 1},
    "since": 5.0,
    "waited_ms": 1500,
    "a key of a later release": True,
}


def test_status_is_the_notice(supervisor: Supervisor) -> None:
    assert gresshopper.status() == gresshopper.Status("cpu", {})
    supervisor.notice = GRANTED
    found = gresshopper.status()
    assert (found.state, found.lease, found.gpus, found.models) == ("granted", 12, (1,), ("NVIDIA H200",))
    with pytest.raises(AttributeError):
        found.state = "cpu"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("notice", "said"),
    [
        ({"state": "cpu"}, "This kernel holds no GPU. %%gpu 1 on a cell's first line asks for one."),
        (GRANTED, "This cell runs on n3, GPU 1 (NVIDIA H200), lease 12; it waited 1.5 s."),
        (
            {**GRANTED, "gpus": [], "cores": "", "need": {"cpus": 2}},
            "This cell runs on n3, 2 more cores; it waited 1.5 s.",
        ),
        (
            {**GRANTED, "state": "lingering", "models": []},
            "n3, GPU 1, lease 12 is kept for the next cell; %gpu release gives it back now.",
        ),
        (
            {**GRANTED, "state": "lingering", "models": [], "reason": "process 7 (python) holds /dev/nvidia1"},
            "n3, GPU 1, lease 12 stays with this kernel, which can't let go of it (process 7 (python) holds /dev/nvidia1). "
            "You are warned here once somebody waits for it.",
        ),
        (
            {"state": "queued", "position": 2, "eta_s": 40.4, "reason": "all are in use"},
            "A cell of this kernel waits, place 2 in the queue, about 40 s more (all are in use).",
        ),
        (
            {"state": "cpu", "away": "no route"},
            "This kernel holds no GPU. %%gpu 1 on a cell's first line asks for one.\n"
            "The scheduler can't be reached: no route.",
        ),
    ],
)
def test_the_magic_says_it_in_a_sentence(
    supervisor: Supervisor, capsys: pytest.CaptureFixture[str], notice: dict[str, Any], said: str
) -> None:
    supervisor.notice = notice
    overview.line_magic("  # a comment")
    assert capsys.readouterr().out == said + "\n"


def test_the_magic_says_how_much_memory_is_used(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overview, "memory", lambda: gresshopper.Memory(used=300 << 20, limit=2 << 30))
    overview.line_magic("")
    assert capsys.readouterr().out.splitlines()[1:] == ["300 of 2048 MiB of memory are used."]


def test_the_magic_releases_what_lingers(supervisor: Supervisor, capsys: pytest.CaptureFixture[str]) -> None:
    supervisor.lingers = True
    for said in ("The GPU is being given back.", "There is no GPU that is kept for the next cell."):
        overview.line_magic("release")
        assert capsys.readouterr().out == said + "\n"


def test_wrong_words_are_usage_errors(supervisor: Supervisor) -> None:
    from IPython.core.error import UsageError

    for line in ("1", "release now"):
        with pytest.raises(UsageError, match="%%gpu N on its first line"):
            overview.line_magic(line)


def test_elsewhere_the_magic_says_which_kernel_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    from IPython.core.error import UsageError

    monkeypatch.setattr(channel, "_channel", None)
    with pytest.raises(UsageError, match="not a kernel of Gresshopper"):
        overview.line_magic("")


def hop(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A stand-in for the command, at the process boundary."""
    program = folder / "hop"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_the_queue_has_ones_waiting_cells_the_next_one_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = '"kernel_id": "k", "name": "a.ipynb", "n_gpus": 1, "time": 2.5, "estimate": null, "reason": "busy"'
    rows = ", ".join(
        f'{{{row}, "state": "{state}", "position": {at}}}'
        for state, at in (("PENDING", 2), ("RUNNING", "null"), ("PENDING", 1))
    )
    hop(tmp_path, monkeypatch, f'[ "$*" = "queue --me --json" ] && echo \'{{"rows": [{rows}]}}\'')
    found = gresshopper.queue()
    assert [cell.position for cell in found] == [1, 2]
    assert found[0] == gresshopper.Waiting("k", "a.ipynb", 1, 2.5, 1, None, "busy")


def test_a_failure_of_hop_is_its_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hop(tmp_path, monkeypatch, "echo 'hop: no hopd' >&2; exit 3")
    with pytest.raises(gresshopper.HopError, match="hop: no hopd"):
        gresshopper.queue()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(gresshopper.HopError, match="not on PATH"):
        gresshopper.queue()


def test_the_magic_hop_without_words_shows_the_help_and_an_open_quote_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from IPython.core.error import UsageError

    hop(tmp_path, monkeypatch, 'echo "asked: $*"')
    command.line_magic("")
    assert capsys.readouterr().out == "asked: --help\n"
    with pytest.raises(UsageError, match=r"^%hop: No closing quotation$"):
        command.line_magic("run 'train.ipynb")
