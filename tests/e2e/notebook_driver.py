"""A person at a notebook, for the end-to-end tests: runs as the user and does what it reads on standard input.

One JSON object a line in, one a line out. It is an ordinary jupyter_client, so what it sees is what any client sees.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import zmq
from jupyter_client.manager import KernelManager
from jupyter_client.session import Session


class Driver:
    """One kernel and one client. A thread reads each channel, so that nothing is missed while nobody waits."""

    def __init__(self) -> None:
        self.manager: Any = None
        self.client: Any = None
        self.lock = threading.Condition()
        self.outputs: dict[str, list[dict[str, Any]]] = {}
        self.notices: dict[str, list[dict[str, Any]]] = {}
        self.replies: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, int] = {}
        #: The number under which each cell ran.
        self.numbers: dict[str, int] = {}
        self.idle: set[str] = set()
        self.watched: dict[str, list[dict[str, Any]]] = {}
        #: Why messages were no use to the client.
        self.refused: list[str] = []
        self.alive = False

    def start(
        self, kernel: str = "gresshopper-python3", env: dict[str, str] | None = None, **more: Any
    ) -> dict[str, Any]:
        self.manager = KernelManager(kernel_name=kernel)
        self.manager.start_kernel(env={**os.environ, **(env or {})}, **more)
        self.connect()
        return {"kernel_id": self.manager.kernel_id, "connection_file": self.manager.connection_file}

    def connect(self) -> dict[str, Any]:
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=90)
        self.alive = True
        # A new client counts its messages from the start again. Their ids always meet those of the last from here on.
        self.client.session.message_count = 100
        self.outputs.clear()
        self.notices.clear()
        self.replies.clear()
        self.answers.clear()
        self.numbers.clear()
        self.idle.clear()
        self.watched.clear()
        for channel in ("iopub", "shell"):
            threading.Thread(target=self._listen, args=(channel, self.client), daemon=True).start()
        threading.Thread(target=self._watch, args=(self.client,), daemon=True).start()
        return {}

    def _watch(self, client: Any) -> None:
        """A second subscription, as a Jupyter server has for itself. It comes back later than the client's to a front."""
        socket = self.manager.context.socket(zmq.SUB)
        socket.reconnect_ivl = 600
        socket.subscribe(b"")
        socket.connect(self.manager._make_url("iopub"))
        # A message that came twice would be seen twice.
        session = Session(key=client.session.key, digest_history_size=0)
        while self.alive and client is self.client:
            if socket.poll(200):
                _, parts = session.feed_identities(socket.recv_multipart())
                message = session.deserialize(parts)
                with self.lock:
                    self.watched.setdefault(message["parent_header"].get("msg_id", ""), []).append(message)
        socket.close(0)

    def watched_of(self, cell: str) -> dict[str, Any]:
        """What the second subscription heard of a cell."""
        with self.lock:
            messages = self.watched.get(cell, [])
            return {
                "text": "".join(m["content"]["text"] for m in messages if m["msg_type"] == "stream"),
                "states": [m["content"]["execution_state"] for m in messages if m["msg_type"] == "status"],
            }

    def disconnect(self) -> dict[str, Any]:
        self.alive = False
        time.sleep(0.3)
        self.client.stop_channels()
        return {}

    def _listen(self, channel: str, client: Any) -> None:
        get = client.get_iopub_msg if channel == "iopub" else client.get_shell_msg
        while self.alive and client is self.client:
            try:
                message = get(timeout=0.2)
            except queue.Empty:
                continue
            except ValueError as error:  # a message that came twice, or one that isn't signed
                self.refused.append(str(error))
                continue
            except Exception:
                return
            with self.lock:
                self._take(message)
                self.lock.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        parent = message["parent_header"].get("msg_id", "")
        kind, content = message["msg_type"], message["content"]
        if kind == "status":
            if "gresshopper" in message["metadata"]:
                self.notices.setdefault(parent, []).append(message["metadata"]["gresshopper"])
            if content["execution_state"] == "idle":
                self.idle.add(parent)
        elif kind == "execute_reply":
            self.replies[parent] = {"content": content, "metadata": message["metadata"]}
            self.answers[parent] = self.answers.get(parent, 0) + 1
        elif kind == "execute_input":
            self.numbers[parent] = content["execution_count"]
        elif kind in ("stream", "display_data", "execute_result", "error"):
            self.outputs.setdefault(parent, []).append({"type": kind, **content})
        elif kind == "clear_output":
            self.outputs.pop(parent, None)

    def submit(self, code: str, metadata: dict[str, Any] | None = None, stop_on_error: bool = True) -> dict[str, Any]:
        if metadata is None:
            return {"cell": self.client.execute(code, stop_on_error=stop_on_error)}
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": stop_on_error,
        }
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        return {"cell": message["header"]["msg_id"]}

    def wait(self, cell: str, timeout: float = 60.0) -> dict[str, Any]:
        with self.lock:
            done = self.lock.wait_for(lambda: cell in self.replies and cell in self.idle, timeout)
            reply = self.replies.get(cell)
            outputs = list(self.outputs.get(cell, []))
            notices = list(self.notices.get(cell, []))
            idle, answers, number = cell in self.idle, self.answers.get(cell, 0), self.numbers.get(cell)
        return {
            "done": done,
            "answers": answers,
            "number": number,
            "idle": idle,
            "status": reply["content"]["status"] if reply else None,
            "reply": reply["content"] if reply else None,
            "lease": reply["metadata"].get("gresshopper") if reply else None,
            "outputs": outputs,
            "text": "".join(o.get("text", "") for o in outputs if o["type"] == "stream"),
            "notices": notices,
            "refused": list(self.refused),
        }

    def notices_of(self, cell: str) -> dict[str, Any]:
        with self.lock:
            return {"notices": list(self.notices.get(cell, []))}

    def execute(self, code: str, timeout: float = 60.0, **more: Any) -> dict[str, Any]:
        return self.wait(self.submit(code, **more)["cell"], timeout)

    def timed(self, code: str) -> dict[str, Any]:
        """As `execute`, with the moment of the submission by this machine's clock."""
        submitted = time.time()
        return {**self.execute(code), "submitted": submitted}

    def interrupt(self) -> dict[str, Any]:
        self.manager.interrupt_kernel()
        return {}

    def restart(self) -> dict[str, Any]:
        self.alive = False
        time.sleep(0.3)
        self.client.stop_channels()
        self.manager.restart_kernel(now=False)
        return self.connect()

    def usage(self, gpus: bool) -> dict[str, Any]:
        """What the kernel's processes use by its own word, as JupyterLab's panel asks for it."""
        request = self.client.session.msg("usage_request", {"gpus": True} if gpus else {})
        self.client.control_channel.send(request)
        while True:
            reply = self.client.get_control_msg(timeout=10)
            if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
                return {"usage": reply["content"]}

    def is_alive(self) -> dict[str, Any]:
        return {"alive": bool(self.manager.is_alive())}

    def revive(self) -> dict[str, Any]:
        """What JupyterLab's server does when it finds the kernel dead: restart it."""
        self.alive = False
        time.sleep(0.3)
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        return self.connect()

    def shutdown(self) -> dict[str, Any]:
        self.alive = False
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)
        return {}


def main() -> None:
    driver = Driver()
    verbs: dict[str, Callable[..., dict[str, Any]]] = {
        "start": driver.start,
        "connect": driver.connect,
        "disconnect": driver.disconnect,
        "submit": driver.submit,
        "wait": driver.wait,
        "execute": driver.execute,
        "interrupt": driver.interrupt,
        "restart": driver.restart,
        "usage": driver.usage,
        "is_alive": driver.is_alive,
        "revive": driver.revive,
        "shutdown": driver.shutdown,
        "notices": driver.notices_of,
        "watched": driver.watched_of,
        "timed": driver.timed,
    }
    for line in sys.stdin:
        request = json.loads(line)
        verb = request.pop("op")
        try:
            answer = {"ok": True, **verbs[verb](**request)}
        except Exception as error:
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
