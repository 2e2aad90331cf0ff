"""In a real ipykernel, asked as a client asks it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

for package in ("ipykernel", "jupyter_client", "cloudpickle"):
    pytest.importorskip(package)

HERE = Path(__file__).parent


class Client:
    """A client of one kernel."""

    def __init__(self, base: Path) -> None:
        from jupyter_client.manager import KernelManager

        base.chmod(0o700)
        self.manager = KernelManager()
        env = {
            "PYTHONPATH": str(HERE.parent.parent),
            "XDG_CONFIG_HOME": str(base / "config"),
            "GRESSHOPPER_STORE": str(base / "store"),
            "IPYTHONDIR": str(base / "ipython"),
        }
        import os

        self.manager.start_kernel(env={**os.environ, **env}, cwd=str(base))
        self.channels: Any = self.manager.client()
        self.channels.start_channels()
        self.channels.wait_for_ready(timeout=60)

    def run(self, source: str, timeout: float = 30) -> str:
        """The status of the reply; a `TimeoutError` when there is none in time."""
        reply = self.channels.execute_interactive(source, timeout=timeout, output_hook=lambda message: None)
        return str(reply["content"]["status"])

    def close(self) -> None:
        self.channels.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    made = Client(tmp_path)
    yield made
    made.close()


def test_each_cell_is_answered_while_captures_go_on(client: Client) -> None:
    """60,000 small lists take longer to capture than the client takes to ask again."""
    assert client.run("%load_ext gresshopper.state\nlists = [[i] for i in range(60_000)]; x = 0") == "ok"
    chance = random.Random(1)
    for _ in range(60):
        time.sleep(chance.uniform(0.05, 0.11))
        assert client.run("lists[5].append(1); x += 1", timeout=20) == "ok"
    assert client.run("assert x == 60 and len(lists[5]) == 61") == "ok"
