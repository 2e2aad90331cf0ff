"""A client that knows a Hub's URL, a user and a password: the requests of VS Code's JupyterHub and Jupyter extensions.

    by_url.py HUB USER PASSWORD KERNEL

Names, order, headers and bodies are those extensions' own, as read in their source. The websocket is that of
@jupyterlab/services, with its binary protocol. Prints what two cells said, as JSON.
"""

from __future__ import annotations

import json
import struct
import sys
import time
import uuid
from typing import Any

import requests
import websocket

HUB, USER, PASSWORD, KERNEL = sys.argv[1:]
PROTOCOL = "v1.kernel.websocket.jupyter.org"


class Hub:
    """The Hub's REST API, as `jupyterHubApi.ts` asks it."""

    def __init__(self) -> None:
        assert requests.get(f"{HUB}/hub/api", allow_redirects=False).json()["version"]
        body = {
            "auth": {"username": USER, "password": PASSWORD},
            "note": "Requested by JupyterHub extension in VSCode",
        }
        # Node's fetch calls a text a text.
        headers = {"Content-Type": "text/plain;charset=UTF-8"}
        said = requests.post(f"{HUB}/hub/api/users/{USER}/tokens", data=json.dumps(body), headers=headers)
        self.token: str = said.json()["token"]
        self._token_id: str = said.json()["id"]
        self.headers = {"Authorization": f"token {self.token}"}

    def user(self) -> dict[str, Any]:
        said = requests.get(f"{HUB}/hub/api/users/{USER}?include_stopped_servers", headers=self.headers)
        found: dict[str, Any] = said.json()
        return found

    def server(self) -> str:
        """Starts the server; its URL once it is ready."""
        started = requests.post(f"{HUB}/hub/api/users/{USER}/server", headers=self.headers)
        assert started.status_code in (201, 202), started.text
        until = time.monotonic() + 180
        while not self.user()["servers"][""]["ready"]:
            assert time.monotonic() < until
            time.sleep(0.5)
        return HUB + str(self.user()["servers"][""]["url"])

    def forget(self) -> None:
        requests.delete(f"{HUB}/hub/api/users/{USER}/tokens/{self._token_id}", headers=self.headers)


class Kernel:
    """A kernel's websocket."""

    def __init__(self, server: str, kernel: str, token: str) -> None:
        self._session = uuid.uuid4().hex
        place = f"{server.replace('http', 'ws', 1)}api/kernels/{kernel}/channels"
        self._socket = websocket.create_connection(
            f"{place}?session_id={self._session}&token={token}",
            subprotocols=[PROTOCOL],
            timeout=120,
            # Both, since JupyterHub 5 takes a token in a URL from browsers alone.
            header={"Authorization": f"token {token}"},
            suppress_origin=True,
        )
        assert self._socket.subprotocol == PROTOCOL

    def send(self, kind: str, content: dict[str, Any], metadata: dict[str, Any]) -> str:
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": kind,
            "session": self._session,
            "username": "",
            "version": "5.2",
        }
        parts = [b"shell", *(json.dumps(part).encode() for part in (header, {}, metadata, content))]
        ends = [8 * (len(parts) + 2)]
        for part in parts:
            ends.append(ends[-1] + len(part))
        self._socket.send_binary(struct.pack(f"<{len(ends) + 1}Q", len(ends), *ends) + b"".join(parts))
        return header["msg_id"]

    def receive(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """A message's header, with its parent's id, and its content."""
        data = self._socket.recv()
        (count,) = struct.unpack_from("<Q", data)
        ends = struct.unpack_from(f"<{count}Q", data, 8)
        header, parent, _, content = (json.loads(data[a:b]) for a, b in zip(ends[1:5], ends[2:6]))
        return parent.get("msg_id", ""), header, content

    def run(self, code: str, on_output: Any = None) -> tuple[str, str]:
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": True}
        cell = {"cellId": f"vscode-notebook-cell:x#{uuid.uuid4().hex}"}
        asked = self.send("execute_request", {**content, "stop_on_error": True}, cell)
        said, status = "", ""
        idle = False
        while not (status and idle):
            parent, header, content = self.receive()
            if parent != asked:
                continue
            if header["msg_type"] == "stream":
                said += content["text"]
                if on_output:
                    on_output()
            elif header["msg_type"] == "execute_reply":
                status = content["status"]
            elif header["msg_type"] == "status":
                idle = content["execution_state"] == "idle"
        return status, said

    def close(self) -> None:
        self._socket.close()


def main() -> None:
    hub = Hub()
    server = hub.server()

    def ask(method: str, place: str, body: Any = None) -> Any:
        said = requests.request(method, f"{server}api/{place}", headers=hub.headers, json=body)
        said.raise_for_status()
        return said.json() if said.content else None

    assert KERNEL in ask("GET", "kernelspecs")["kernelspecs"]
    ask("GET", "sessions")
    path = f"work-jvsc-{uuid.uuid4()}.ipynb"
    session = ask("POST", "sessions", {"path": path, "name": path, "type": "notebook", "kernel": {"name": KERNEL}})
    kernel_id = session["kernel"]["id"]
    kernel = Kernel(server, kernel_id, hub.token)
    info = kernel.send("kernel_info_request", {}, {})
    while True:
        parent, header, _ = kernel.receive()
        if (parent, header["msg_type"]) == (info, "kernel_info_reply"):
            break
    told = {
        "leased": kernel.run("%%gpu 1\nprint('with', 'a GPU')"),
        "interrupted": kernel.run(
            "import time\nprint('begun', flush=True)\ntime.sleep(60)",
            lambda: ask("POST", f"kernels/{kernel_id}/interrupt", {}),
        ),
    }
    ask("DELETE", f"sessions/{session['id']}")
    kernel.close()
    print(json.dumps({**told, "kernels": len(ask("GET", "kernels"))}))
    hub.forget()


if __name__ == "__main__":
    main()
