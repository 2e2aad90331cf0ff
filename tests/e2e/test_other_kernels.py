"""Kernels that aren't IPython: R, bash and Octave. The same kernel with and without us, and a GPU for a cell.

Octave has 80 Debian packages, so CI is without it. By hand, in a copy of the environment `kernels`:

    apt-get install --no-install-recommends octave
    bin/pip install octave_kernel==1.1.1
    sed -i "s|\"python\"|\"$PWD/bin/python\"|" share/jupyter/kernels/octave/kernel.json
    HOP_TEST_KERNELS=$PWD PROFILE=debug pytest tests/e2e/test_other_kernels.py -k octave

The name `python` is jupyter_client's own interpreter.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import HUB_PYTHON, Cluster, all_gpus_held, until

KERNELS = Path(os.environ.get("HOP_TEST_KERNELS", "/opt/gresshopper-dev/kernels"))

#: How many of the node's GPU files open, by a shell: it is in the cgroup of the kernel that starts it.
COUNT = "n=0; for f in /dev/fakegpu-$SLURMD_NODENAME-*; do (: <>$f) 2>/dev/null && n=$((n+1)); done; echo devices: $n"


def octave(text: str) -> str:
    """A string of Octave's, in which nothing is special but the quote."""
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class Kernel:
    #: The kernelspec that its package brings.
    spec: str
    language: str
    suffix: str
    hello: str
    #: Counts the GPU files.
    count: str
    #: Says that it has begun, and sleeps.
    sleep: str
    comment: str = "#"


ALL = (
    Kernel("bash", "bash", ".sh", "echo hello, world", COUNT, "echo begun; sleep 60"),
    Kernel(
        "ir",
        "R",
        ".r",
        'cat("hello, world\\n")',
        f"cat(system({json.dumps(COUNT)}, intern = TRUE))",
        'cat("begun\\n"); flush.console(); Sys.sleep(60)',
    ),
    Kernel(
        "octave",
        "octave",
        ".m",
        'disp("hello, world")',
        f"[~, said] = system({octave(COUNT)}); disp(said)",
        'disp("begun"); fflush(stdout); pause(60)',
    ),
)

KERNEL_TEST = """
import jupyter_kernel_test as jkt

class Kernel(jkt.KernelTests):
    kernel_name = {name!r}
    language_name = {language!r}
    file_extension = {suffix!r}
    code_hello_world = {hello!r}
"""

CELLS = """
import json, queue, sys
from jupyter_client.manager import start_new_kernel
km, kc = start_new_kernel(kernel_name=sys.argv[1], startup_timeout=60)

def interrupt():
    kc.control_channel.send(kc.session.msg("interrupt_request", {}))

def run(code, stop=None):
    request = kc.execute(code)
    said, asked = [], False
    while True:
        try:
            m = kc.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if m["parent_header"].get("msg_id") != request:
            continue
        if m["msg_type"] == "stream":
            said.append(m["content"]["text"])
        if m["msg_type"] == "status" and m["content"]["execution_state"] == "idle":
            break
        waits = m["metadata"].get("gresshopper", {}).get("state") == "queued"
        if not asked and ((stop == "running" and "begun" in "".join(said)) or (stop == "queued" and waits)):
            asked = True
            interrupt()
    reply = kc.get_shell_msg(timeout=30)
    while reply["parent_header"].get("msg_id") != request:
        reply = kc.get_shell_msg(timeout=30)
    return [reply["content"]["status"], "".join(said), asked]

for line in sys.stdin:
    code, stop = json.loads(line)
    print(json.dumps(run(code, stop)), flush=True)
kc.stop_channels()
km.shutdown_kernel(now=True)
"""


#: One of them stands for all in `make test`.
KERNELSPECS = [pytest.param(k, id=k.spec, marks=() if k.spec == "bash" else pytest.mark.thorough) for k in ALL]


@pytest.fixture(params=KERNELSPECS)
def kernel(request: pytest.FixtureRequest, two_gpus: Cluster) -> Kernel:
    """The kernelspec, and one of ours made from it."""
    found: Kernel = request.param
    if found.spec == "octave" and not (KERNELS / "share/jupyter/kernels/octave").exists():
        pytest.skip("Octave isn't installed: the head of this file says how")
    env = {"JUPYTER_PATH": f"{KERNELS}/share/jupyter"}
    made = two_gpus.popen(
        "root",
        [
            "hop",
            "kernelspec",
            "install",
            "--prefix",
            f"{two_gpus.base}/opt",
            "--from",
            found.spec,
            "--name",
            ours(found),
        ],
        env=env,
    )
    assert made.wait(30) == 0
    return found


def ours(kernel: Kernel) -> str:
    return f"gresshopper-{kernel.spec}"


def paths(cluster: Cluster) -> dict[str, str]:
    return {
        "JUPYTER_PATH": f"{cluster.base}/opt/share/jupyter:{KERNELS}/share/jupyter",
        "PATH": f"{KERNELS}/bin:/usr/local/bin:/usr/bin:/bin",
    }


def put(cluster: Cluster, name: str, text: str) -> str:
    path = cluster.base / "home/bob" / name
    path.write_text(text)
    path.chmod(0o644)
    return str(path)


def test_it_passes_jupyter_kernel_test_as_it_does_alone(two_gpus: Cluster, kernel: Kernel) -> None:
    def outcomes(name: str) -> dict[str, str]:
        text = KERNEL_TEST.format(name=name, language=kernel.language, suffix=kernel.suffix, hello=kernel.hello)
        file = put(two_gpus, f"test_{name.replace('-', '_')}.py", text)
        argv = [HUB_PYTHON, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--timeout", "90", file]
        process = two_gpus.popen("bob", argv, stdout=-1, stderr=-2, env=paths(two_gpus))
        out, _ = process.communicate(timeout=280)
        return dict(re.findall(r"::(test_\w+) (PASSED|FAILED|ERROR|SKIPPED)", out))

    alone, with_us = outcomes(kernel.spec), outcomes(ours(kernel))
    passed = {test for test, outcome in alone.items() if outcome == "PASSED"}
    assert passed
    assert passed <= {test for test, outcome in with_us.items() if outcome == "PASSED"}


def test_a_cell_has_a_gpu_by_magic_and_by_comment_and_is_interrupted(two_gpus: Cluster, kernel: Kernel) -> None:
    process = two_gpus.popen(
        "bob",
        [HUB_PYTHON, put(two_gpus, "cells.py", CELLS), ours(kernel)],
        stdin=-1,
        stdout=-1,
        env=paths(two_gpus),
    )

    def run(code: str, stop: str | None = None) -> list[object]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([code, stop]) + "\n")
        process.stdin.flush()
        answer: list[object] = json.loads(process.stdout.readline())
        return answer

    def devices(code: str) -> str:
        status, said, _ = run(code)
        assert status == "ok", said
        (count,) = re.findall(r"devices: (\d)", str(said))
        return str(count)

    assert devices(kernel.count) == "0"
    assert devices(f"%%gpu 1\n{kernel.count}") == "1"
    assert devices(f"{kernel.comment}%%gpu 2\n{kernel.count}") == "2"
    status, said, asked = run(kernel.sleep, "running")
    assert (asked, str(said).count("begun")) == (True, 1)
    if kernel.language == "bash":
        run("# nothing")  # bash_kernel may take the prompt after an interrupt for the next cell's end.
    assert devices(f"{kernel.comment}%%gpu 1\n{kernel.count}") == "1", "it goes on"
    # All GPUs are another's: an interrupt takes the waiting cell back before it began.
    until("its own lease is over", lambda: not two_gpus.leases_live(), 60)
    with all_gpus_held(two_gpus, 20):
        status, said, asked = run(f"%%gpu 1\n{kernel.hello}", "queued")
    assert (status, asked) == ("error", True)
    assert "hello, world" not in str(said)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
