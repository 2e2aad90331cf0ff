"""A client of a server that starts kernels itself, by Jupyter's REST API and websocket.

    gateways.py URL KERNELSPEC PROBE

Runs PROBE in a kernel, interrupts a cell, restarts the kernel, runs PROBE again and ends the kernel. Prints what the
cells said as JSON.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from typing import Any

import requests
import websocket

SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(60)"


class Kernel:
    def __init__(self, url: str, spec: str) -> None:
        self._url = url
        # jupyverse knows a kernel by the notebook that it was started for.
        name = f"{uuid.uuid4()}.ipynb"
        body = {"path": name, "name": name, "type": "notebook", "kernel": {"name": spec}}
        self._session: dict[str, Any] = self.ask("POST", "sessions", body)
        self.id: str = self._session["kernel"]["id"]
        self._listen()

    def ask(self, method: str, place: str, body: Any = None) -> Any:
        said = requests.request(method, f"{self._url}/api/{place}", json=body, timeout=90)
        assert said.ok, f"{method} {place}: {said.status_code} {said.text}"
        return said.json() if said.content else None

    def _listen(self) -> None:
        self._me = uuid.uuid4().hex
        place = f"{self._url.replace('http', 'ws', 1)}/api/kernels/{self.id}/channels?session_id={self._me}"
        self._socket = websocket.create_connection(place, timeout=90)
        # A client asks who the kernel is until it answers.
        until = time.monotonic() + 90
        self._socket.settimeout(5)
        while True:
            assert time.monotonic() < until, "the kernel doesn't answer"
            asked = self._send("kernel_info_request", {})
            try:
                while self._receive(asked)["header"]["msg_type"] != "kernel_info_reply":
                    pass
                break
            except websocket.WebSocketTimeoutException:
                continue
        self._socket.settimeout(90)

    def _send(self, kind: str, content: dict[str, Any]) -> str:
        header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, "session": self._me, "username": "", "version": "5.3"}
        header["date"] = "2026-01-01T00:00:00Z"
        message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}, "content": content}
        self._socket.send(json.dumps({**message, "buffers": []}))
        return header["msg_id"]

    def _receive(self, asked: str) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = json.loads(self._socket.recv())
            if message["parent_header"].get("msg_id") == asked:
                return message

    def run(self, code: str, interrupt: bool = False) -> tuple[str, str | None, str]:
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
        asked = self._send("execute_request", content)
        said, reply, idle = "", None, False
        while reply is None or not idle:
            message = self._receive(asked)
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "stream":
                said += content["text"]
                if interrupt:
                    self.ask("POST", f"kernels/{self.id}/interrupt")
            elif kind == "execute_reply":
                reply = content
            elif kind == "status":
                idle = content["execution_state"] == "idle"
        return reply["status"], reply.get("ename"), said

    def restart(self) -> None:
        self.ask("POST", f"kernels/{self.id}/restart")
        self._socket.close()
        self._listen()

    def end(self) -> None:
        self._socket.close()
        self.ask("DELETE", f"sessions/{self._session['id']}")


def main(url: str, spec: str, probe: str) -> None:
    kernel = Kernel(url, spec)
    told = [kernel.run(probe), kernel.run(SLEEPS, interrupt=True)]
    kernel.run("x = 1")
    kernel.restart()
    told += [kernel.run("print(x)"), kernel.run(probe)]
    kernel.end()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
