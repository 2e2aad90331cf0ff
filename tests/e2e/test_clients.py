"""The clients that people use, against our kernelspec on the real cluster, beside plain python3."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import HUB_PYTHON, REPO, Cluster, until

#: As with a plain kernel, one process of it is there.
pytestmark = pytest.mark.usefixtures("one_replica")

SPEC = "gresshopper-python3"
PLAIN = "plain-python3"
USER_PYTHON = os.environ.get("USER_PYTHON", "/opt/gresshopper-dev/user/bin/python")
FAST = ("own_classes", "own_text", "cheryl", "tools_pandas")
BOOKS = REPO / "tests/notebooks/books"
# HOP_NOTEBOOKS=all runs all of them; some take minutes.
NOTEBOOKS = (
    sorted(BOOKS.glob("*.ipynb"))
    if os.environ.get("HOP_NOTEBOOKS") == "all"
    else [BOOKS / f"{n}.ipynb" for n in FAST]
)

KERNEL_TEST = """
import unittest
import jupyter_kernel_test as jkt

class Base:
    kernel_name = "{kernel}"
    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples = [{{"text": "zi", "matches": {{"zip"}}}}]
    complete_code_samples = ["1", "print('hello, world')", "def f(x):\\n  return x*2\\n\\n\\n"]
    incomplete_code_samples = ["print(\'\'\'hello", "def f(x):\\n  x*2"]
    invalid_code_samples = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_execute_result = [{{"code": "1+2+3", "result": "6"}}, {{"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"}}]
    code_display_data = [
        {{"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"}},
        {{"code": "from IPython.display import Math, display; display(Math('\\\\frac{{1}}{{2}}'))", "mime": "text/latex"}},
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "search")
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

class Kernel(Base, jkt.KernelTests):
    pass

class Welcome(jkt.IopubWelcomeTests):
    kernel_name = "{kernel}"
    support_iopub_welcome = True
"""


def as_alice(cluster: Cluster, *argv: str, timeout: float = 300, check: bool = True) -> str:
    return cluster.run("alice", *argv, timeout=timeout, check=check)


def home(cluster: Cluster, *parts: str) -> Path:
    return cluster.base.joinpath("home", "alice", *parts)


@pytest.mark.parametrize("kernel", [pytest.param("python3", marks=pytest.mark.thorough), SPEC])
def test_jupyter_kernel_test_passes_as_against_plain_python3(cluster: Cluster, kernel: str) -> None:
    file = home(cluster, f"test_{kernel.replace('-', '_')}.py")
    file.write_text(KERNEL_TEST.format(kernel=kernel))
    file.chmod(0o644)
    out = as_alice(
        cluster, HUB_PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "90", str(file), check=False
    )
    assert re.search(r"^13 passed, 1 skipped", out.splitlines()[-1]), out[-3000:]


RUN = """
import json, sys, nbformat
from nbclient import NotebookClient
nb = nbformat.read(sys.argv[1], 4)
client = NotebookClient(nb, kernel_name=sys.argv[2], timeout=300, allow_errors=True, resources={"metadata": {"path": sys.argv[3]}})
client.execute()
cells = [c for c in nb.cells if c.cell_type == "code"]
for cell in cells:
    # When it ran is another time in each run; of what there are times is not.
    cell.metadata["execution"] = sorted(cell.metadata.get("execution", {}))
print(json.dumps([*cells, nb.metadata.get("language_info")]))
"""


def saved(cluster: Cluster, path: Path, kernel: str) -> list[Any]:
    """The notebook's code cells as they are saved after a run, and the language that the kernel told."""
    script = home(cluster, "run_notebook.py")
    script.write_text(RUN)
    script.chmod(0o644)
    # The order of a set, which some of them print, is by chance without a seed.
    seeded = ("env", "PYTHONHASHSEED=0", HUB_PYTHON)
    text = as_alice(cluster, *seeded, str(script), str(path), kernel, str(path.parent), timeout=600)
    # Widgets and comms are numbered by chance.
    found: list[Any] = json.loads(re.sub(r"\b[0-9a-f]{32}\b", "ID", text.splitlines()[-1]))
    return found


def lent_home(cluster: Cluster, path: Path) -> Path:
    """The notebook and the data of all of them, in alice's home."""
    place = home(cluster, "notebooks")
    shutil.copytree(BOOKS.parent, place, dirs_exist_ok=True)
    for entry in [place, *place.rglob("*")]:
        shutil.chown(entry, "alice")
    return place / "books" / path.name


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, id=p.stem, marks=() if p.stem in ("own_text", "cheryl") else pytest.mark.thorough)
        for p in NOTEBOOKS
    ],
)
def test_a_saved_notebook_equals_plain_ipykernels_but_for_ids_and_times(cluster: Cluster, path: Path) -> None:
    """Wherever two plain runs agree, ours agrees with them."""
    path = lent_home(cluster, path)
    # The same Python as behind our kernelspec, started by ipykernel's own.
    cluster.run(
        "root", USER_PYTHON, "-m", "ipykernel", "install", "--prefix", str(cluster.base / "opt"), "--name", PLAIN
    )
    plain, again = saved(cluster, path, PLAIN), saved(cluster, path, PLAIN)
    ours = saved(cluster, path, SPEC)
    assert len(ours) == len(plain)
    compared = 0
    for one, two, our in zip(plain, again, ours, strict=True):
        if one == two:
            compared += 1
            assert our == one
    assert compared > len(plain) / 2


def test_papermill_runs_a_notebook_with_leases(cluster: Cluster) -> None:
    book = home(cluster, "digits.ipynb")
    book.write_bytes((REPO / "tests/demo/digits.ipynb").read_bytes())
    book.chmod(0o644)
    papermill = str(Path(HUB_PYTHON).with_name("papermill"))
    as_alice(cluster, papermill, "-k", SPEC, str(book), str(home(cluster, "out.ipynb")), timeout=400)
    done = json.loads(home(cluster, "out.ipynb").read_text())
    last = [c for c in done["cells"] if c["cell_type"] == "code"][-1]
    assert "done:" in "".join(last["outputs"][0]["text"])
    until("no lease is left", cluster.quiet, 30)


def test_jupyter_console_runs_a_cell_with_a_lease(cluster: Cluster) -> None:
    console = str(Path(HUB_PYTHON).with_name("jupyter-console"))
    process = cluster.popen(
        "alice", [console, "--simple-prompt", "--kernel", SPEC], stdin=-1, stdout=-1, stderr=-2, env={"TERM": "dumb"}
    )
    out, _ = process.communicate(
        "import gresshopper\nwith gresshopper.gpu(): print('sum', 40 + 2)\n\n\nexit\n", timeout=120
    )
    assert "sum 42" in out, out
    # Its end is quiet: nothing of srun's broken pipe, of a replica that hangs up, or of debugpy's doubts.
    assert not re.search(r"srun: error|refused a connection|frozen modules", out), out
    until("no lease is left", cluster.quiet, 30)
