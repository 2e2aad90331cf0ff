"""The messages of `state.*`, in a real ipykernel over a real pair of sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gresshopper.wire import Frames

from supervisor import Kernel, Refused

for package in ("ipykernel", "jupyter_client", "cloudpickle"):
    pytest.importorskip(package)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Kernel]]:
    made: list[Kernel] = []

    def one(**environment: str) -> Kernel:
        made.append(Kernel(tmp_path, **environment))
        return made[-1]

    yield one
    for kernel in made:
        kernel.close()


def numbers(kernel: Kernel) -> list[int]:
    return [said["record"] for said, _, _ in kernel.records()]


def test_each_cell_is_told_once_and_before_its_reply(start: Callable[..., Kernel]) -> None:
    kernel = start()
    assert kernel.begin()["form"] == 7
    cells = ["a = [1]", "a.append(2)", "", "import asyncio\nawait asyncio.sleep(0.01)\nb = a", "b", "1 / 0"]
    for i, source in enumerate(cells):
        number, _ = kernel.run(source)
        told = kernel.of("cell")
        assert len(told) == i + 1  # there by the time of the reply
        said, attachments = told[-1]
        assert (said["msg_id"], said["seq"], said["through"], said["status"]) == (number, i + 1, i + 1, "whole")
        assert json.loads(attachments[0])["cell"]["source"].strip() == source and len(attachments) == 2
    assert numbers(kernel) == list(range(1, len(cells) + 2))
    assert [said["cause"] for said, _ in kernel.of("record")] == ["begin"]


def test_a_plain_reply_is_told_before_it_is_made(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    plain = ["1", "", "print(1)", "get_ipython().run_cell('1/0'); 2", "%%capture\nx = 3"]
    others = ["1 / 0", "syntax error", "int?", "%load_next", "raise SystemExit", "get_ipython().set_next_input('x')"]
    for source in [*plain, *others]:
        kernel.run(source)
        told = kernel.of("cell")[-1][0].get("plain")
        reply = kernel.replied
        assert told == (reply["execution_count"] if source in plain else None), source
        if source in plain:
            assert reply == {"status": "ok", "execution_count": told, "user_expressions": {}, "payload": []}
    kernel.run("x = 1", store_history=False)
    assert kernel.of("cell")[-1][0]["plain"] == kernel.replied["execution_count"]
    kernel.run("x", user_expressions={"y": "x + 1"})
    assert "plain" not in kernel.of("cell")[-1][0]


def test_cells_within_cells_are_not_told(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    number, status = kernel.run("get_ipython().run_cell('x = [1]'); get_ipython().run_cell(''); y = x\nx.append(2)")
    assert status == "ok"
    assert [said["msg_id"] for said, _ in kernel.of("cell")] == [number]


def test_a_capture_calls_no_transformer_of_the_users(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    kernel.run(
        "seen = []\ndef see(lines):\n    seen.append(lines[0])\n    return [line.replace('EURO', '1.5') for line in lines]\n"
        "get_ipython().input_transformers_cleanup.append(see)"
    )
    kernel.run("price = EURO")
    # The cell that counts isn't captured yet.
    said = kernel.printed("print(seen.count(seen[0]) - seen.count(seen[-1]), price)")
    assert said == "0 1.5\n"
    cells = [json.loads(text)["cell"] for _, text, _ in kernel.records()]
    assert "price = 1.5\n" in [cell["source"] for cell in cells if cell]


def test_aborted_and_silent_requests_are_not_told(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    first = kernel.client.execute("import time; time.sleep(0.5); 1 / 0")
    second = kernel.client.execute("never = 1")
    assert (kernel.reply(first), kernel.reply(second)) == ("error", "aborted")
    kernel.run("silently = 1", silent=True)
    number, _ = kernel.run("shown = 1", store_history=False)
    assert [said["msg_id"] for said, _ in kernel.of("cell")] == [first, number]
    assert "silently" in json.dumps([json.loads(text)["units"] for _, text, _ in kernel.records()])


#: Nothing is captured between cells.
NEVER = """
import sys
watcher, pace, a = sys.modules['gresshopper.state.watcher'], sys.modules['gresshopper.state.pace'], [1]
pace.THINK, watcher.Watcher._promptly = 600, lambda self: None
"""


def completed(kernel: Kernel) -> list[list[str]]:
    """The requests that each record completes."""
    return [[cell["msg_id"] for cell in said["cells"]] for said, _, _ in kernel.records()]


def test_a_silent_request_is_named_by_the_record_of_its_effects(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    number, _ = kernel.run("silently = 1", silent=True)
    kernel.eventually(lambda: [number] in completed(kernel))
    said, (text, _) = kernel.of("record")[1]
    head = json.loads(text)
    assert (said["through"], said["cause"], head["cell"], head["before"]) == (0, "cells", None, [])
    assert [u["m"] for u in head["units"]] == [["n:silently"]]
    assert kernel.of("cell") == []
    second, _ = kernel.run("silently = 2", silent=True)
    number, _ = kernel.run("shown = 1")
    assert completed(kernel)[2:] == [[second], [number]]


def test_silent_requests_are_named_with_the_next_cell(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    kernel.run(NEVER)
    sent = [kernel.run(source, silent=True)[0] for source in ("a.append(2)", "", "1 / 0", "syntax error")]
    last, _ = kernel.run("b = 1")
    assert completed(kernel)[-1] == [*sent, last]
    said, (text, _) = kernel.of("cell")[-1]
    head = json.loads(text)
    assert (said["seq"], said["through"], head["before"]) == (2, 2, [])
    assert sorted(m for u in head["units"] for m in u["m"]) == ["n:a", "n:b"]
    assert head["cell"]["joint"]  # a second run would not give the same
    number, _ = kernel.run("", silent=True)
    last, _ = kernel.run("c = 1")
    assert completed(kernel)[-1] == [number, last]
    assert not json.loads(kernel.of("cell")[-1][1][0])["cell"]["joint"]


@pytest.mark.parametrize("source", ["", "a.append(2)", "get_ipython().run_cell('a.append(2)')", "!"])
def test_a_flush_leaves_no_silent_request_unnamed(start: Callable[..., Kernel], source: str) -> None:
    kernel = start()
    kernel.begin()
    kernel.run(NEVER)
    number, _ = kernel.run(source, silent=True)
    assert kernel.ask("flush")["whole"]
    kernel.settle()
    assert number in [ids[-1] for ids in completed(kernel) if ids]
    before = len(kernel.events)
    kernel.ask("flush")
    assert len(kernel.events) == before


def test_a_cell_that_no_transformer_could_read_is_captured(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    kernel.run(
        "def fails(lines):\n    if 'never' in lines[0]: raise ValueError\n    return lines\n"
        "get_ipython().input_transformers_cleanup.append(fails)"
    )
    for how in ({}, {"store_history": False}):
        assert kernel.run("never = 1", **how)[1] == "error"
        assert kernel.of("cell")[-1][0]["status"] == "whole", how
    kernel.run("never = 1", silent=True)
    assert kernel.ask("flush")["whole"]


def test_what_does_not_fit_comes_later(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin(patience_ms=25)
    number, _ = kernel.run("lists = [[i] for i in range(200_000)]")
    said, attachments = kernel.of("cell")[-1]
    assert (said["status"], attachments) == ("later", []) and said["why"]
    kernel.eventually(lambda: len(kernel.of("record")) == 2)
    later, parts = kernel.of("record")[-1]
    assert later["cells"] == [{"msg_id": number, "seq": 1}] and (later["through"], later["cause"]) == (1, "cells")
    assert later["record"] == 2 and len(parts) == 2


@pytest.mark.parametrize("patience_ms", [None, 0.001])
def test_each_cell_is_captured_before_the_next_though_all_were_sent_at_once(
    start: Callable[..., Kernel], patience_ms: float | None
) -> None:
    kernel = start()
    kernel.begin(patience_ms=patience_ms)
    kernel.run("import sys; sys.modules['gresshopper.state.pace'].SHORT = 60  # this machine may be slow")
    sent = [kernel.client.execute(f"x = [{i}]; y = x") for i in range(12)]
    last = kernel.client.execute("import os; os.kill(os.getpid(), 9)", allow_stdin=False)
    assert [kernel.reply(number) for number in sent] == ["ok"] * 12
    kernel.process.wait(60)
    kernel.settle()
    told = [(op, body) for op, body, _ in kernel.events if op != "state.notice"]
    assert [body.get("status", body.get("cause")) for _, body in told] == ["begin"] + ["later", "cells"] * 13
    cells = [[cell["msg_id"] for cell in body["cells"]] for op, body in told[3:] if op == "state.record"]
    assert cells == [[number] for number in sent] and last not in sent
    assert kernel.begun[-13:] == [*sent, last]  # also the one that ended the process at once


#: A capture that keeps the interpreter until the file is there. A call by `PyDLL` doesn't let go of it.
KEEPING = """
import ctypes, sys, time
watcher = sys.modules['gresshopper.state.watcher']
watcher.LEAVES = 60
work_off = watcher.Watcher.work_off
def keeping(*args, **more):
    before, until = sys.getswitchinterval(), time.monotonic() + 40
    sys.setswitchinterval(1000)
    while ctypes.PyDLL(None).access({path!r}, 0) and time.monotonic() < until:
        pass
    sys.setswitchinterval(before)
    return work_off(*args, **more)
watcher.Watcher.work_off = keeping
kernel = get_ipython().kernel
"""
BUSY = [
    "kernel.shell_channel_thread.io_loop.add_callback(time.sleep, 0.5)",
    "kernel.iopub_thread.schedule(lambda: time.sleep(0.5))",
]


@pytest.mark.parametrize("busy", BUSY)
def test_a_reply_leaves_before_a_capture_takes_the_interpreter(
    start: Callable[..., Kernel], tmp_path: Path, busy: str
) -> None:
    kernel = start()
    kernel.begin(patience_ms=None)
    path = tmp_path / "replied"
    # The cell that patches is captured so already.
    number = kernel.client.execute(KEEPING.format(path=bytes(path)) + busy)
    assert kernel.reply(number) == "ok"
    while kernel.client.get_iopub_msg(timeout=15)["content"].get("execution_state") != "idle":
        pass
    path.touch()
    kernel.run("x = 1")


@pytest.mark.parametrize("patience", [None, 0.001], ids=["after the reply", "given up before the reply"])
def test_a_capture_after_the_reply_that_fails_is_told_at_once_and_with_the_next_cell(
    start: Callable[..., Kernel], patience: float | None
) -> None:
    pytest.importorskip("numpy")
    kernel = start()
    kernel.begin(patience_ms=patience)
    # Before the first long capture: after one that was given up, as on a busy machine, the next isn't tried at once.
    kernel.run("import sys; sys.modules['gresshopper.state.pace'].SHORT = 60")
    kernel.run("import numpy as np, os; chunks = os.environ['GRESSHOPPER_STORE'] + '/chunks'")
    kernel.run("os.rename(chunks, chunks + '.away'); open(chunks, 'w').close(); a = np.random.rand(200_000)")
    assert kernel.of("cell")[-1][0]["status"] == "later"
    kernel.eventually(lambda: kernel.of("failed"), 5)
    told = kernel.of("failed")[0][0]
    assert "stored" in told["why"] and told["since"] == 3
    for source in ("b = 1", "c = 1"):
        kernel.run(source)
        said, _ = kernel.of("cell")[-1]
        assert said["status"] == "failed" and said["since"] == 3 and "stored" in said["why"], said
    kernel.run("os.remove(chunks); os.rename(chunks + '.away', chunks)")
    assert kernel.ask("flush")["whole"]
    kernel.run("d = 1")
    assert kernel.of("cell")[-1][0]["status"] == "later"
    assert len(kernel.of("failed")) == 1


FAILING = """
import sys, gresshopper.state.store as _stores
_captures = sys.modules['gresshopper.state.capture'].Capture
_looks, _broken = _captures._run, []
def _look(capture, found, *how):
    if found is None and _broken:
        raise _broken[0]
    return _looks(capture, found, *how)
_captures._run = _look
sys.modules['gresshopper.state.pace'].FAILED = 1.0
"""


@pytest.mark.parametrize("why", ["_stores.StoreError('the disk is full')", "KeyError('n:a')"])
def test_an_audit_that_fails_is_told_until_one_does_not(start: Callable[..., Kernel], why: str) -> None:
    kernel = start()
    kernel.begin()
    kernel.run(FAILING)
    kernel.run(f"_broken.append({why})")
    kernel.eventually(lambda: kernel.of("failed"), 20)
    told = kernel.of("failed")[0][0]
    word = "the disk is full" if "Store" in why else "KeyError"
    assert "changes outside of cells" in told["why"] and word in told["why"] and "since" not in told
    kernel.run("x = 1")
    said, attached = kernel.of("cell")[-1]
    assert said["status"] == "whole" and attached and said["why"] == told["why"], "its cell is saved all the same"
    assert kernel.ask("flush")["whole"] is False
    before = len(kernel.of("record"))
    kernel.run("_broken.clear()", silent=True)
    kernel.eventually(lambda: any(said["cause"] == "audit" for said, _ in kernel.of("record")[before:]), 20)
    assert "why" not in kernel.of("record")[-1][0] and len(kernel.of("failed")) == 1
    assert kernel.ask("flush")["whole"]
    kernel.run("y = 1")
    assert "why" not in kernel.of("cell")[-1][0]


def test_a_restored_kernel_goes_on(start: Callable[..., Kernel], tmp_path: Path) -> None:
    kernel = start()
    kernel.begin()
    for source in ("a = [1]; b = a", "def f(): return a, b", "g = open('written', 'w'); import os; os.chdir('/')"):
        kernel.run(source)
    unmovable = kernel.of("cell")[-1][0]["unmovable"]
    assert len(unmovable) == 1 and unmovable[0].startswith("g: a _io.TextIOWrapper: a file that is open for writing")
    kernel.close()

    fresh = start()
    # The folder's part of a state may be empty: all records travel in the request.
    empty = tmp_path / "empty"
    write_log(empty, [])
    fresh.begin(record=99, capture="nothing")
    told = fresh.ask("restore", {"folder": str(empty), "lazy": False}, kernel.attachments())
    assert told["seq"] == 3 and list(told["lost"]) == ["g"]
    fresh.begin(record=5)
    assert fresh.printed("print(a is b, f()[0] is a, os.getcwd(), In[1])").strip() == "True True / a = [1]; b = a"
    fresh.run("a.append(9)")
    said, (text, _) = fresh.of("cell")[-1]
    assert said["seq"] == said["through"] == 5 and numbers(fresh) == [
        5,
        6,
    ]  # nothing of what was restored is sent again
    assert [unit["m"] for unit in json.loads(text)["units"]] == [["n:a", "n:b"]]


def write_log(folder: Path, records: list[tuple[bytes, bytes]], key: Path | None = None) -> dict[str, Any]:
    """A log as a supervisor writes it."""
    import os

    from gresshopper.state import form

    os.environ["XDG_CONFIG_HOME"] = str(folder.parent / "config")
    log = form.Log(folder, form.owner_key())
    log.create()
    for text, body in records:
        log.add(text, body)
    log.commit(True)
    log.close()
    return form.read_head(folder, form.owner_key())


def test_a_log_of_the_supervisors_is_restored_as_far_as_it_counts(
    start: Callable[..., Kernel], tmp_path: Path
) -> None:
    kernel = start()
    kernel.begin()
    for source in ("x = 1", "x = 2", "x = 3"):
        kernel.run(source)
    records = [(text, body) for _, text, body in kernel.records()]
    head = write_log(tmp_path / "two", records[:3])
    write_log(tmp_path / "all", records)
    fresh = start()
    fresh.begin(capture="nothing")
    folder = {"folder": str(tmp_path / "all")}
    told = fresh.ask("restore", {**folder, "length": head["length"], "mac": head["mac"]})
    assert told["seq"] == 2 and fresh.printed("print(x)").strip() == "2"
    with pytest.raises(Refused) as refused:
        fresh.ask("restore", {**folder, "length": head["length"], "mac": "00" * 32})
    assert refused.value.kind == "damaged" and fresh.printed("print(x)").strip() == "2"


def test_what_keeps_a_kernel_from_moving_is_said(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    kernel.run("def gen(): yield from 'ab'")
    kernel.run("g = gen(); next(g)")
    assert kernel.of("cell")[-1][0]["unmovable"] == []  # its cells make it again
    kernel.run(
        "del g; import threading, time\nt = threading.Thread(target=time.sleep, args=(3,), name='worker'); t.start()"
    )
    said = kernel.of("cell")[-1][0]["unmovable"]
    assert any("thread worker runs" in text for text in said) and any(text.startswith("t: ") for text in said)
    kernel.run("t.join(); del t")
    assert kernel.of("cell")[-1][0]["unmovable"] == []


def test_a_module_without_its_file_keeps_a_kernel_from_moving(start: Callable[..., Kernel]) -> None:
    kernel = start()
    (kernel.base / "helpers.py").write_text("class Model: pass\n")
    kernel.begin()
    kernel.run("from helpers import Model; m, x = Model(), 1")
    assert kernel.ask("flush")["unmovable"] == []
    (kernel.base / "helpers.py").unlink()
    kernel.run("x = 2")
    said = kernel.ask("flush")["unmovable"]
    assert said == [f"{name}: the file of the module helpers is gone" for name in ("Model", "m")]
    kernel.run("del Model, m; import importlib.util as found; open('plug.py', 'w').close()")
    kernel.run("plugin = found.module_from_spec(found.spec_from_file_location('another', 'plug.py'))")
    assert kernel.of("cell")[-1][0]["unmovable"] == []  # its cell makes it again


def test_a_flush_finds_what_no_name_showed(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    kernel.run("a = [1]")
    kernel.run("get_ipython().user_ns[chr(97)].append(2)", silent=True)
    told = kernel.ask("flush")
    assert told["whole"] and told["seq"] == 1 and told["record"] == numbers(kernel)[-1]
    said, (text, _) = kernel.of("record")[-1]
    assert (
        said["cause"] == "audit" and said["cells"] == [] and [u["m"] for u in json.loads(text)["units"]] == [["n:a"]]
    )
    before = len(kernel.events)
    again = kernel.ask("flush")
    assert again == told and len(kernel.events) == before  # nothing is new


@pytest.mark.parametrize("patience", [None, 10_000], ids=["captured after the reply", "captured before the reply"])
def test_what_no_name_showed_is_found_while_the_user_thinks(
    start: Callable[..., Kernel], patience: float | None
) -> None:
    kernel = start()
    kernel.begin(patience_ms=patience)
    kernel.run("from threading import Timer; a = [1]; Timer(0.3, get_ipython().user_ns['a'].append, [2]).start()")

    def found() -> bool:
        audits = (text for said, (text, _) in kernel.of("record") if said["cause"] == "audit")
        return any(unit["m"] == ["n:a"] for text in audits for unit in json.loads(text)["units"])

    kernel.eventually(found, 20)


def test_operations_wait_for_the_cell_that_runs(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    for source in ("import time; time.sleep(1); late = 1", "import asyncio; await asyncio.sleep(1); later = 1"):
        number = kernel.client.execute(source)
        time.sleep(0.3)
        kernel.send("flush", {})
        began = time.monotonic()
        assert kernel.answer()["whole"] and time.monotonic() - began > 0.3
        assert kernel.reply(number) == "ok"
    assert kernel.of("cell")[-1][0]["seq"] == 2


def test_a_record_that_is_asked_for_again_holds_everything(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    kernel.run("a = [1]")
    kernel.run("b = [2]")
    kernel.begin(record=2)  # the supervisor lost all but the first
    kernel.run("c = [3]")
    said, (text, _) = kernel.of("cell")[-1]
    assert said["record"] == 2
    head = json.loads(text)
    assert head["full"] and {m for u in head["units"] for m in u["m"]} >= {"n:a", "n:b", "n:c"}
    kernel.run("d = [4]")
    for anew in (False, True):
        kernel.begin(record=kernel.of("cell")[-1][0]["record"] + 1, anew=anew)
        kernel.run("e = [5]")
        assert json.loads(kernel.of("cell")[-1][1][0])["full"] is anew


def test_a_full_store_is_told_and_made_up_for(start: Callable[..., Kernel], tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    kernel = start()
    kernel.begin()
    kernel.run("import numpy as np, os; chunks = os.environ['GRESSHOPPER_STORE'] + '/chunks'")
    kernel.run("os.rename(chunks, chunks + '.away'); open(chunks, 'w').close(); a = np.random.rand(200_000)")
    said, _ = kernel.of("cell")[-1]
    assert said["status"] == "failed" and "stored" in said["why"]
    number, _ = kernel.run("os.remove(chunks); os.rename(chunks + '.away', chunks); b = 1")
    said, (text, _) = kernel.of("cell")[-1]
    assert said["status"] == "whole" and [cell["seq"] for cell in said["cells"]] == [2, 3]
    assert {m for u in json.loads(text)["units"] for m in u["m"]} >= {"n:a", "n:b"}


def test_an_interrupt_leaves_captures_whole(start: Callable[..., Kernel]) -> None:
    import signal

    kernel = start()
    kernel.begin()
    kernel.run("lists = [[i] for i in range(300_000)]; n = 0")
    for _ in range(5):
        number = kernel.client.execute("n += 1; lists[0].append(n)")
        time.sleep(0.15)
        kernel.process.send_signal(signal.SIGINT)
        kernel.reply(number)
    assert kernel.ask("flush")["whole"]
    told = [said["msg_id"] for said, _ in kernel.of("cell")]
    assert len(told) == len(set(told)) == 6
    through = [said["through"] for said, _, _ in kernel.records()]
    assert through == sorted(through) and through[-1] == 6


def test_forgetting_begins_anew(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    kernel.run("a = [1]; import os")
    assert kernel.ask("forget", {"record": 1}) == {}
    kernel.run("b = 'a' in globals()")
    said, (text, _) = kernel.of("cell")[-1]
    head = json.loads(text)
    assert said["record"] == 1 and head["full"] and [u["m"] for u in head["units"]] == [["n:b"]]
    assert kernel.printed("print(b)").strip() == "False"


def test_another_version_and_a_second_log_are_refused(start: Callable[..., Kernel]) -> None:
    kernel = start()
    with pytest.raises(Refused) as refused:
        kernel.begin(form=6)
    assert refused.value.kind == "version"
    with pytest.raises(Refused) as refused:
        kernel.ask("restore", {})
    assert refused.value.kind == "invalid"
    kernel.begin()
    assert "already" in kernel.printed("%load_ext gresshopper.state")


def test_a_kernel_without_the_native_library_says_why_it_keeps_nothing(start: Callable[..., Kernel]) -> None:
    kernel = start(GRESSHOPPER_TRACKER="none")
    with pytest.raises(Refused, match=r"libhop_tracker\.so isn't there") as refused:
        kernel.begin()
    assert refused.value.kind == "refused" and kernel.run("x = 1")[1] == "ok" and not kernel.events


def test_a_kernel_without_cloudpickle_says_why_it_keeps_nothing(start: Callable[..., Kernel], tmp_path: Path) -> None:
    hide_cloudpickle(tmp_path)
    kernel = start(IPYTHONDIR=str(tmp_path / "ipython"))
    with pytest.raises(Refused, match="has no cloudpickle: install it there") as refused:
        kernel.begin()
    assert refused.value.kind == "refused" and kernel.run("x = 1")[1] == "ok"
    assert "Traceback" not in kernel.log.read_text()


def hide_cloudpickle(base: Path) -> None:
    """Have kernels below a folder find none, as in an environment that has none."""
    config = base / "ipython" / "profile_default"
    config.mkdir(parents=True)
    (config / "ipython_kernel_config.py").write_text(
        "import importlib.machinery\n"
        "found = importlib.machinery.PathFinder.find_spec\n"
        "importlib.machinery.PathFinder.find_spec = staticmethod(\n"
        "    lambda name, *where: None if name == 'cloudpickle' else found(name, *where)\n"
        ")\n"
    )


def follow(standby: Kernel, executor: Kernel, tmp_path: Path) -> None:
    """Have a standby follow from what its executor has recorded."""
    write_log(tmp_path / "empty", [])
    standby.begin(capture="nothing")
    standby.ask("restore", {"folder": str(tmp_path / "empty"), "lazy": True}, executor.attachments())


def test_a_standby_follows_and_is_elected(start: Callable[..., Kernel], tmp_path: Path) -> None:
    executor, standby = start(), start()
    executor.begin()
    executor.run("class A:\n    def __init__(self, x): self.x = x\na = A([1]); b = a.x; gone = 1")
    follow(standby, executor, tmp_path)
    cells = [
        "a.x.append(2); del gone",
        "class A:\n    def __init__(self, x): self.x = x\n    def twice(self): return self.x * 2\nc = A(b)",
        "a, b = c, a.x; d = {'a': a}; d['a'].twice()",
        "import random; random.seed(7); random.random()",
    ]
    number = len(executor.records())
    names: set[str] = set()
    for source in cells:
        executor.run(source)
        for said, text, body in executor.records()[number:]:
            number += 1
            told = standby.ask("apply", {"record": said["record"]}, [text, body])
            names.update(told.pop("names"))
            count = executor.replied["execution_count"] + 1
            assert told == {"record": number, "lost": {}, "notices": [], "execution_count": count}
    assert {"a", "b", "c", "d"} <= names and "gone" not in names
    with pytest.raises(Refused, match="doesn't follow record") as refused:
        standby.ask("apply", {"record": number + 3}, executor.attachments()[-2:])
    assert refused.value.kind == "rebuild"
    look = (
        "print('gone' in globals(), a is c, b is a.x is c.x, d['a'] is a, a.twice(), random.random(), In[1:4], Out)"
    )
    standby.begin(record=number + 1)
    assert standby.printed(look) == executor.printed(look)
    standby.run("b.append(3)")
    said, (text, _) = standby.of("cell")[-1]
    head = json.loads(text)
    assert said["seq"] == len(cells) + 3 and said["record"] == number + 2 and not head["full"]
    assert [sorted(m for m in unit["m"] if m[:2] == "n:") for unit in head["units"]] == [
        ["n:a", "n:b", "n:c", "n:d"]
    ], head["units"]


def test_a_standby_that_cannot_follow_says_so(start: Callable[..., Kernel], tmp_path: Path) -> None:
    executor, standby = start(), start()
    executor.begin()
    executor.run("import tempfile; a = [1]; folder = tempfile.TemporaryDirectory()")
    empty = tmp_path / "empty"
    write_log(empty, [])
    standby.begin(capture="nothing")
    with pytest.raises(Refused, match="follows nobody"):
        standby.ask("apply", {"record": 2}, executor.attachments()[-2:])
    standby.ask("restore", {"folder": str(empty)}, executor.attachments())
    executor.run("folder = None")
    for _ in range(2):
        with pytest.raises(Refused, match=r"run code when it goes|a record before it") as refused:
            standby.ask("apply", {"record": 3}, executor.attachments()[-2:])
        assert refused.value.kind == "rebuild"


def test_sets_of_strings_keep_their_order(start: Callable[..., Kernel], tmp_path: Path) -> None:
    seed = {"GRESSHOPPER_HASH_SEED": "1", "PYTHONHASHSEED": "5"}
    kernel = start(**seed)
    kernel.begin()
    kernel.run("s = {f'{i * 7 % 1000}' for i in range(300)}; t = {('a', 1), ('b', 2), ('c', 3)}")
    kernel.run("for i in range(0, 1000, 3): s.discard(str(i))\ns.add('later'); t.discard(('b', 2)); t.add(('d', 4))")
    want = kernel.printed("print(list(s), list(t))")
    empty = tmp_path / "empty"
    write_log(empty, [])
    fresh = start(**seed)
    fresh.begin(capture="nothing")
    fresh.ask("restore", {"folder": str(empty)}, kernel.attachments())
    assert fresh.printed("print(list(s), list(t))") == want


def test_a_loss_is_told_once_while_its_placeholder_stands(start: Callable[..., Kernel], tmp_path: Path) -> None:
    """In a row of processes, as a kernel's that moves: nobody wants to read at each move what they know."""
    empty = tmp_path / "empty"
    write_log(empty, [])
    records: list[bytes] = []

    def goes_on() -> tuple[Kernel, list[str]]:
        kernel = start()
        kernel.begin(capture="nothing")
        told = kernel.ask("restore", {"folder": str(empty), "lazy": True}, records)
        kernel.begin(record=len(records) // 2 + 1)
        return kernel, sorted(told["lost"])

    kernel = start()
    kernel.begin()
    opened = f"open({str(tmp_path / 'file')!r}, 'w')"
    kernel.run(f"f = {opened}; g = {opened}; x = 1")
    records += kernel.attachments()
    told = []
    for cell in ("x += 1", "x += 1", f"f = {opened}", "del g", "x"):
        kernel, lost = goes_on()
        told.append(lost)
        kernel.run(cell)
        kernel.ask("flush")
        records += kernel.attachments()
    assert told == [["f", "g"], [], [], ["f"], []]
    kernel, _ = goes_on()
    assert kernel.run("f.name")[1] == "error", "it is still lost"


def test_output_that_a_cell_sent_elsewhere(start: Callable[..., Kernel], tmp_path: Path) -> None:
    """A kernel whose `sys.stdout` is a lost value would answer nobody any more."""
    empty = tmp_path / "empty"
    write_log(empty, [])
    kernel = start()
    kernel.begin()
    opened = f"log = open({str(tmp_path / 'file')!r}, 'w')"
    kernel.run(f"{opened}; import io, sys; own, kept = sys.stdout, io.StringIO(); sys.stdout = kept; print('a')")
    fresh = start()
    fresh.begin(capture="nothing")
    told = fresh.ask("restore", {"folder": str(empty), "lazy": True}, kernel.attachments())
    assert sorted(told["lost"]) == ["log"]
    fresh.begin(record=len(kernel.records()) + 1)
    assert not fresh.printed("print('b')")
    fresh.run("sys.stdout = own")
    assert fresh.printed("print(kept.getvalue())") == "a\nb\n\n"
    assert "sys.stdout was set to a value that is lost" in fresh.printed("sys.stdout = log")
    assert fresh.run("sys.stdout = log; print('c')")[1] == "error"
    assert fresh.printed("print('d')") == "d\n"


def test_a_standbys_output_goes_where_its_executors_goes(start: Callable[..., Kernel], tmp_path: Path) -> None:
    executor, standby = start(), start()
    executor.begin()
    executor.run("import contextlib, io; stack, kept = contextlib.ExitStack(), io.StringIO()")
    follow(standby, executor, tmp_path)
    number = len(executor.records())
    for source in [
        "o = stack.enter_context(contextlib.redirect_stdout(kept)); print('a')",
        "stack.close(); print('b')",
    ]:
        executor.run(source)
        for said, text, body in executor.records()[number:]:
            number += 1
            standby.ask("apply", {"record": said["record"]}, [text, body])
        if "enter" in source:
            assert not standby.printed("print('c')")
    standby.begin(record=number + 1)
    assert standby.printed("print('d', kept.getvalue())") == "d a\n\n"


def test_an_entry_that_a_library_puts_into_the_table_of_modules(start: Callable[..., Kernel], tmp_path: Path) -> None:
    executor, standby = start(), start()
    executor.begin()
    executor.run(
        "import colorsys, unittest.mock; patch = unittest.mock.patch.dict('sys.modules', {'hop_patched': colorsys}); "
        "patch.start(); del patch"
    )
    follow(standby, executor, tmp_path)
    assert standby.printed("import hop_patched; print(hop_patched is colorsys)") == "True\n"


def test_what_is_lost_later_is_told_later(start: Callable[..., Kernel], tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    kernel = start()
    kernel.begin()
    kernel.run("import numpy as np; a = np.arange(400_000.0); b = [1]; c = np.ones(300_000)")
    empty = tmp_path / "empty"
    write_log(empty, [])
    fresh = start()
    fresh.begin(capture="nothing")
    told = fresh.ask("restore", {"folder": str(empty), "lazy": True}, kernel.attachments())
    assert told["pending"]["groups"] == 2 and told["pending"]["bytes"] > 5_000_000 and not told["lost"]
    fresh.begin(record=3)
    number, _ = fresh.run("b.append(2)")  # captured, though not all is read
    assert fresh.of("cell")[-1][0]["status"] == "whole"
    fresh.eventually(lambda: "Pending" not in fresh.printed("print(type(get_ipython().user_ns['a']))"))
    assert fresh.printed("print(a[-1], c.sum(), b)").strip() == "399999.0 300000.0 [1, 2]"
    units = [u["m"] for _, text, _ in fresh.records() for u in json.loads(text)["units"]]
    assert units == [["n:b"]] and not fresh.of("notice")

    another = start()
    another.begin(capture="nothing")
    another.ask("restore", {"folder": str(empty), "lazy": True}, kernel.attachments())
    for chunk in (tmp_path / "store" / "chunks").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"something else")
    another.begin(record=3)
    another.run("x = c[0]")
    said = another.of("notice")[0][0]
    assert "c" in said["lost"] and "read" in said["lost"]["c"]


def test_the_environment_is_the_users_own(start: Callable[..., Kernel]) -> None:
    kernel = start(GRESSHOPPER_HASH_SEED="1", PYTHONHASHSEED="5")
    kernel.begin()
    said = kernel.printed(
        "import os; print([k for k in os.environ if 'HASH' in k or k in ('GRESSHOPPER_STATE', 'GRESSHOPPER_AGENT_FD')])"
    )
    assert said.strip() == "[]"


def test_replies_wait_for_no_more_than_a_user_has_configured(start: Callable[..., Kernel], tmp_path: Path) -> None:
    code = "print(get_ipython().kernel._execute_sleep)"
    assert start().printed(code).strip() == "0.0"
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    (profile / "ipython_kernel_config.py").write_text("c.IPythonKernel._execute_sleep = 0.002")
    assert start().printed(code).strip() == "0.002"


def test_what_can_not_be_captured_is_looked_through_after_the_reply(start: Callable[..., Kernel]) -> None:
    """Going through the notes of all cells takes the longer, the more cells there were."""
    kernel = start()
    kernel.begin(patience_ms=None)
    kernel.run(
        "written = open('written', 'w')\n"
        "from gresshopper.state import planning\n"
        "class Counted(planning.History):\n"
        "    def __init__(self, notes):\n"
        "        Counted.made += 1; super().__init__(notes)\n"
        "Counted.made = 0; planning.History = Counted"
    )
    for _ in range(5):
        kernel.run("1 + 1")
    kernel.ask("flush", {})
    made = int(kernel.printed("print(Counted.made)"))
    assert kernel.of("cell")[-1][0]["unmovable"], "there is something to look for"
    assert made <= 8, "once for each capture, and not for each reply as well"


def test_commands_come_by_the_door_and_know_a_standby(start: Callable[..., Kernel], tmp_path: Path) -> None:
    kernel = start(GRESSHOPPER_KERNEL="one")
    kernel.begin(capture="nothing")
    door = Door(kernel)
    assert (door.said["kernel"], door.said["pid"], door.said["standby"]) == ("one", kernel.process.pid, True)
    kernel.begin()
    assert not Door(kernel).said["standby"]
    refused = door.ask("state.begin", {"capture": "nothing"})
    assert refused["kind"] == "refused"
    kernel.run("x = [1]; y = x")
    assert [group["names"] for group in door.ask("state.show")["groups"]] == [["x", "y"]]
    assert door.ask("state.save")["kind"] == "invalid"
    saved = door.ask("state.save", {"to": str(tmp_path / "saved")})
    assert (saved["units"], saved["lost"]) == (1, {})
    kernel.run("x = 2")
    came = door.ask("state.load", {"folder": str(tmp_path / "saved")})
    assert (sorted(came["names"]), came["lost"]) == (["x", "y"], {})
    assert kernel.printed("print(x is y, x)").strip() == "True [1]"
    # It is recorded as a change of the kernel that captures.
    kernel.run("x.append(2)")
    assert kernel.of("cell")[-1][0]["status"] == "whole"
    assert door.ask("state.load", {"folder": str(tmp_path / "nothing")})["kind"] == "damaged"


class Door:
    """A command at a kernel's door."""

    def __init__(self, kernel: Kernel) -> None:
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(60)
        self._sock.connect(str(kernel.base / f"process-{kernel.process.pid}.sock"))
        self._frames = Frames(self._sock)
        self.said = self.ask("hello", {"version": 1})

    def ask(self, op: str, body: dict[str, Any] | None = None) -> Any:
        self._frames.send({"op": op, "id": 1, "body": body or {}})
        while True:
            wire, _ = self._frames.receive()
            if "re" in wire:
                return wire.get("ok") or wire["error"]


COMM = """
clicks = []
def opened(comm, message):
    clicks.append('open')
    comm.on_msg(lambda message: clicks.append(message['content']['data']))
    comm.on_close(lambda message: clicks.append('closed'))
get_ipython().kernel.comm_manager.register_target('page', opened)
"""


def test_what_a_widgets_callback_changes_is_saved_without_a_cell(start: Callable[..., Kernel]) -> None:
    kernel = start()
    kernel.begin()
    kernel.run(COMM)

    def says(clicks: str) -> bool:
        return any(
            clicks in body.decode("latin1") for said, _, body in kernel.records() if said.get("cause") == "audit"
        )

    def send(kind: str, **content: Any) -> str:
        session, channel = kernel.client.session, kernel.client.shell_channel
        message = session.msg(kind, {"comm_id": "one", **content})
        channel.send(message)
        return str(message["header"]["msg_id"])

    kernel.settle()
    for kind, more, seen in (
        ("comm_open", {"target_name": "page", "data": {}}, "open"),
        ("comm_msg", {"data": "clicked"}, "clicked"),
        ("comm_close", {"data": {}}, "closed"),
    ):
        sent = send(kind, **more)
        kernel.eventually(lambda seen=seen: says(seen))
        kernel.eventually(lambda sent=sent: kernel.of("audited") and kernel.of("audited")[-1][0] == {"after": sent})
    kernel.run("x = 1")
    assert kernel.ask("flush")["whole"]
    assert len(kernel.of("audited")) == 3, "no widget was called since"


def test_random_numbers_are_the_cells_alone(start: Callable[..., Kernel], tmp_path: Path) -> None:
    executor, standby = start(), start()
    executor.begin()
    executor.run("import random; random.seed(7); random.random()")
    follow(standby, executor, tmp_path)
    standby.printed("random.random()")  # as code of a module does that is imported late
    standby.begin(record=len(executor.records()) + 1)
    cull = "s = get_ipython().kernel.session; s.digest_history = set(map(str, range(100))); s._cull_digest_history()"
    for kernel in (executor, standby):
        for _ in range(3):
            kernel.reply(kernel.client.kernel_info())
        kernel.client.control_channel.send(kernel.client.session.msg("kernel_info_request"))
        kernel.client.get_control_msg(timeout=30)
        assert kernel.printed(cull + "; print(random.random())") == "0.15084917392450192\n"
