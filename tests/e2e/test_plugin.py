"""Taking the plugin out with `hop plugin` while leases live, and putting it in again: nothing breaks."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator

import pytest
from harness import OPENABLE, Cluster, Failed, Notebook, notebook, until

FOREIGN = ["srun", "-Q", "--mem=16", "--gres=gpu:1", "sh", "-c", 'echo "mine $SLURM_STEP_GPUS"']


@pytest.fixture
def plugstack(two_gpus: Cluster) -> Iterator[str]:
    """plugstack.conf, which is afterwards as it was."""
    path = two_gpus.base / "etc/plugstack.conf"
    before = path.read_text()
    yield str(path)
    path.write_text(before)


def prepared(book: Notebook) -> Notebook:
    book.execute(OPENABLE)
    book.execute("x = 41")
    return book


def test_the_plugin_is_taken_out_while_a_lease_lives_and_put_in_again(two_gpus: Cluster, plugstack: str) -> None:
    hop = (two_gpus, plugstack)
    with notebook(two_gpus, "alice") as alice:
        prepared(alice)
        begun = two_gpus.base / "home/alice/begun"
        begun.unlink(missing_ok=True)
        slow = f"%%gpu 1\nimport time\nopen('{begun}', 'w').close()\ntime.sleep(3)\nprint(len(openable()), x)"
        cell = alice.submit(slow)["cell"]
        until("the cell runs with its lease", begun.exists)
        line = plugin(*hop, "status").strip()
        assert line.startswith("optional ")
        plugin(*hop, "remove")
        with pytest.raises(Failed, match="the plugin is not in"):
            plugin(*hop, "status")

        # The step that runs has loaded it: the cell ends well, and its device is taken back.
        got = alice.wait(cell)
        assert (got["status"], got["text"]) == ("ok", "1 41\n")
        two_gpus.run("root", "hop", "cancel", str(got["lease"]["lease"]))
        until("the lease is over", two_gpus.quiet)
        assert alice.execute("print(openable(), x)")["text"] == "[] 41\n"

        # Jobs that aren't ours, a GPU job among them, run as ever; one GPU is free beside the pilot on no node, so
        # that job waits for none: it takes what the pilot leaves.
        assert two_gpus.run("bob", "srun", "-Q", "--mem=16", "echo", "hello") == "hello\n"

        # A lease without the plugin is not handed over, and the user reads so, soon.
        began = time.monotonic()
        refused = alice.execute("%%gpu 1\nprint('never')")
        assert (refused["status"], refused["reply"]["ename"]) == ("error", "LeaseRefused"), refused
        assert "ran without the plugin" in refused["reply"]["evalue"]
        assert "plugstack.conf" in refused["reply"]["evalue"]
        assert time.monotonic() - began < 25
        assert alice.execute("print(openable(), x)")["text"] == "[] 41\n"
        until("no step is left", two_gpus.quiet)

        # Kernels start without it too; their cells run, and have no GPU.
        with notebook(two_gpus, "carol") as carol:
            assert carol.execute("print(1 + 1)")["text"] == "2\n"

        # With the plugin back, the next cell gets its GPU, in the same kernel.
        words = shlex.split(line)
        plugin(*hop, "install", "--plugin", words[1], "--", *words[2:])
        assert plugin(*hop, "status").strip() == line
        again = alice.execute("%%gpu 1\nprint(len(openable()), x)")
        assert (again["status"], again["text"]) == ("ok", "1 41\n"), again
        two_gpus.run("root", "hop", "cancel", str(again["lease"]["lease"]))
        until("no step is left", two_gpus.quiet)
    info = two_gpus.hop("info")["rows"]
    assert [(row["state"], row["blocked"]) for row in info] == [("UP", 0)], info


def plugin(cluster: Cluster, plugstack: str, verb: str, *more: str) -> str:
    return cluster.run("root", "hop", "plugin", verb, plugstack, *more)
