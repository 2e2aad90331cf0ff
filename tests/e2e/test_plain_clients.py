"""Clients that show no notices: they see a text while their cell waits, and nothing of it afterwards."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness import HUB_PYTHON, OPENABLE, Cluster, all_gpus_held, until

SPEC = "gresshopper-python3"


def script(cluster: Cluster, name: str, text: str) -> Path:
    path = cluster.base / "home" / "bob" / name
    path.write_text(text)
    path.chmod(0o644)
    return path


#: What VS Code's Jupyter extension sends for a cell, as far as a kernel can tell: cellId in the metadata, no comm.
LIKE_VSCODE = """
import json, sys
from jupyter_client.manager import start_new_kernel
km, kc = start_new_kernel(kernel_name=sys.argv[1])
content = dict(code="%%gpu 1\\nprint('mine')", silent=False, store_history=True, user_expressions={}, allow_stdin=True,
               stop_on_error=True)
request = kc.session.msg("execute_request", content, metadata={"cellId": "vscode-notebook-cell:x#W0sZmlsZQ=="})
kc.shell_channel.send(request)
seen = []
while True:
    m = kc.get_iopub_msg(timeout=90)
    if m["parent_header"].get("msg_id") != request["header"]["msg_id"]:
        continue
    seen.append([m["msg_type"], m["content"]])
    if m["content"].get("execution_state") == "idle":
        break
print(json.dumps(seen))
kc.stop_channels()
km.shutdown_kernel(now=True)
"""


def test_a_text_is_shown_renewed_and_gone_before_the_cell_begins(two_gpus: Cluster) -> None:
    path = script(two_gpus, "like_vscode.py", LIKE_VSCODE)
    with all_gpus_held(two_gpus, 20):
        out = two_gpus.run("bob", HUB_PYTHON, str(path), SPEC, timeout=120)
    seen: list[tuple[str, dict[str, Any]]] = json.loads(out.splitlines()[-1])
    kinds = [kind for kind, _ in seen if kind != "status"]
    assert kinds[0] == "display_data" and set(kinds[1:-3]) <= {"update_display_data"}
    assert kinds[-3:] == ["clear_output", "execute_input", "stream"]
    shown = [content for kind, content in seen if kind.endswith("display_data")]
    assert len({content["transient"]["display_id"] for content in shown}) == 1
    assert re.match(r"Waiting for 1 GPU: next in the queue", shown[0]["data"]["text/plain"])


NBCLIENT = """
import json, sys, nbformat
from nbclient import NotebookClient
cells = [nbformat.v4.new_code_cell("print('before')"), nbformat.v4.new_code_cell("%%gpu 1\\nprint('mine')")]
nb = nbformat.v4.new_notebook(cells=cells)
NotebookClient(nb, kernel_name=sys.argv[1], timeout=120).execute()
print(json.dumps([c.outputs for c in nb.cells]))
"""


def test_what_nbclient_saves_has_nothing_of_the_wait(two_gpus: Cluster) -> None:
    path = script(two_gpus, "run_nbclient.py", NBCLIENT)
    with all_gpus_held(two_gpus, 15):
        out = two_gpus.run("bob", HUB_PYTHON, str(path), SPEC, timeout=120)
    said = [[output["text"] for output in outputs] for outputs in json.loads(out.splitlines()[-1])]
    assert said == [["before\n"], ["mine\n"]]


def test_a_console_reads_why_its_cell_waits(two_gpus: Cluster) -> None:
    console = str(Path(HUB_PYTHON).with_name("jupyter-console"))
    ours, theirs = pty.openpty()
    with all_gpus_held(two_gpus, 15):
        process = two_gpus.popen(
            "bob",
            [console, "--simple-prompt", "--kernel", SPEC],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.STDOUT,
            env={"TERM": "dumb"},
        )
        os.close(theirs)
        text = ""

        def has(words: str) -> bool:
            nonlocal text
            text += os.read(ours, 65536).decode(errors="replace")
            return words in text

        until("the prompt", lambda: has("In [1]:"), 60)
        os.write(ours, b"%%gpu 1\nprint('sum', 40 + 2)\n\n")
        until("the text", lambda: has("Waiting for 1 GPU"), 60)
        until("the output", lambda: has("sum 42"), 60)
        os.write(ours, b"exit\n")
        assert process.wait(30) == 0
    os.close(ours)


@pytest.mark.parametrize(
    "client",
    [
        "vscode",
        *(pytest.param(c, marks=pytest.mark.thorough) for c in ("vscode-ipykernel", "zed", "positron")),
        "gateway",
    ],
)
def test_a_client_that_starts_argv_itself_has_leases(two_gpus: Cluster, client: str) -> None:
    probe = "%%gpu 1" + OPENABLE + "print(len(openable()))"
    by_argv = str(two_gpus.lend("tests/e2e/by_argv.py"))
    out = two_gpus.run("bob", HUB_PYTHON, by_argv, SPEC, client, probe, timeout=120)
    leased, interrupted = json.loads(out.splitlines()[-1])
    assert leased == ["ok", None, "1\n"]
    assert interrupted == ["error", "KeyboardInterrupt", "begun\n"]
    # A killed front's replica first waits for another one; then nothing of the kernel stays behind.
    until(
        "the kernel's step is over",
        lambda: "kernel-" not in two_gpus.run("bob", "squeue", "-s", "-u", "bob", "-h", "-o", "%j"),
        180,
    )


#: A client that gives a kernel less time than the wait for a node takes, and then runs a cell.
IN_A_HURRY = """
import json, sys
from jupyter_client.manager import start_new_kernel
km, kc = start_new_kernel(kernel_name=sys.argv[1], startup_timeout=30)
print("ready", flush=True)
def hook(message):
    print(json.dumps([message["msg_type"], message["content"]]), flush=True)
reply = kc.execute_interactive("print(6 * 7)", timeout=150, output_hook=hook)
print(json.dumps(["reply", reply["content"]]), flush=True)
kc.stop_channels()
km.shutdown_kernel(now=True)
"""


def test_a_client_that_waits_for_half_a_minute_is_not_lost_to_a_full_cluster(two_gpus: Cluster) -> None:
    path = script(two_gpus, "in_a_hurry.py", IN_A_HURRY)
    # The kernelspec's last kernel, which says what the next one is.
    assert '"reply"' in two_gpus.run("bob", HUB_PYTHON, str(path), SPEC, timeout=120)
    two_gpus.run("root", "scancel", "-u", "bob", "-n", "kernels")
    until("bob has no seat", lambda: not two_gpus.run("root", "squeue", "-h", "-u", "bob"), 40)

    def partition(state: str) -> None:
        two_gpus.run("root", "scontrol", "update", "partitionname=notebook", f"state={state}")

    partition("down")
    try:
        process = two_gpus.popen("bob", [HUB_PYTHON, str(path), SPEC], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        kind, content = json.loads(process.stdout.readline())
        while kind == "status":
            kind, content = json.loads(process.stdout.readline())
    finally:
        partition("up")
    assert kind == "display_data"
    assert content["data"]["text/plain"].endswith("the partition is down")
    out, _ = process.communicate(timeout=150)
    seen = [json.loads(line) for line in out.splitlines()]
    kinds = [kind for kind, _ in seen if kind not in ("status", "update_display_data")]
    assert kinds == ["clear_output", "execute_input", "stream", "reply"]
    assert seen[-1][1]["status"] == "ok"
