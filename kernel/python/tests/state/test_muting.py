"""During a capture its own thread prints nothing, and the streams stay as they are."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest
from gresshopper.state import muting


class Stream(io.StringIO):
    """A stream that holds attributes, as a kernel's does."""


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    made = Stream()
    monkeypatch.setattr(muting, "STREAMS", {"stdout": made})
    return made


def in_a_thread(work: Any, name: str) -> None:
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


def test_only_the_captures_threads_are_quiet(stream: Stream) -> None:
    with muting.muted():
        print("ours", file=stream)
        in_a_thread(lambda: print("ours", file=stream), muting.DEEP_THREAD)
        in_a_thread(lambda: print("another's", file=stream), "worker")
    print("after", file=stream)
    assert stream.getvalue() == "another's\nafter\n" and "write" not in vars(stream)


def test_what_the_notebook_set_is_there_again(stream: Stream) -> None:
    told: list[str] = []
    own = told.append
    stream.write = own  # type: ignore[method-assign,assignment]
    with muting.muted():
        print("ours", file=stream)
        kept = stream.write
    assert vars(stream)["write"] is own and not told
    kept("later")  # whoever kept it meanwhile
    with muting.muted():
        stream.write = kept  # type: ignore[method-assign]
    assert told == ["later"] and stream.write is kept


def test_a_stream_without_attributes_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muting, "STREAMS", {"stdout": object()})
    with muting.muted():
        pass
