"""Clients that show no notices: they see a text while their cell waits, and nothing of it afterwards."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import HUB_PYTHON, Cluster, notebook, until

SPEC = "gresshopper-python3"


@contextmanager
def all_gpus_held(cluster: Cluster, seconds: float) -> Iterator[None]:
    """Somebody's cell runs on both of the cluster's GPUs for so long."""
    with notebook(cluster, "alice") as holder:
        holder.execute("1")
        held = holder.submit(f"%%gpu 2\nimport time; time.sleep({seconds})")
        until("the GPUs are held", cluster.leases_live, 30)
        yield
        assert holder.wait(held["cell"], 60)["status"] == "ok"


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
