"""A user's people at their notebooks, for bench `replay`: runs as that user and follows standard input.

Reads and writes a JSON object a line. `open` starts a session's kernel and waits for its answer. `go` has every
session submit its cells by the session's clock, but never before the last reply. `close` shuts all down.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from ast import literal_eval
from typing import Any

from jupyter_client.manager import KernelManager

# A cell with no work but its hold on the GPUs, and notes of start and end.
CELL = "%%gpu {gpus}\nimport time\n_began = time.time()\ntime.sleep({run!r})\n_ended = time.time()"
PATIENCE = 900.0


class Session:
    def __init__(self, spec: str) -> None:
        self.manager: Any = KernelManager(kernel_name=spec)
        self.manager.start_kernel()
        self.client: Any = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def reply(self, cell: str) -> dict[str, Any]:
        end = time.time() + PATIENCE
        while True:
            message: dict[str, Any] = self.client.get_shell_msg(timeout=end - time.time())
            if message["parent_header"].get("msg_id") == cell:
                return message

    def go(self, start: float, cells: list[dict[str, Any]], done: list[dict[str, Any]]) -> None:
        """Appends what became of each cell to `done`, times in seconds since the epoch."""
        for cell in cells:
            time.sleep(max(0.0, start + cell["submit"] - time.time()))
            submitted = time.time()
            sent = self.client.execute(CELL.format(**cell), user_expressions={"at": "(_began, _ended)"})
            message = self.reply(sent)
            content = message["content"]
            if content["status"] != "ok":
                raise RuntimeError(f"a cell failed: {content}")
            began, ended = literal_eval(content["user_expressions"]["at"]["data"]["text/plain"])
            lease = message["metadata"]["gresshopper"]
            times = {"submitted": submitted, "began": began, "ended": ended, "replied": time.time()}
            done.append({"cell": sent, "node": lease["node"], "waited_ms": lease["waited_ms"], **times})

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)


def together(jobs: list[threading.Thread]) -> None:
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()


def main() -> None:
    sessions: dict[str, Session] = {}
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        if request["op"] == "open":
            sessions[request["session"]] = Session(request["spec"])
        elif request["op"] == "go":
            answer = {name: [] for name in request["cells"]}
            jobs = [
                (sessions[name], request["start"], cells, answer[name]) for name, cells in request["cells"].items()
            ]
            together([threading.Thread(target=Session.go, args=job) for job in jobs])
        else:
            together([threading.Thread(target=session.close) for session in sessions.values()])
            sessions.clear()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
