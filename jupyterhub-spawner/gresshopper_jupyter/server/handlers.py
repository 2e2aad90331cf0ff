"""The endpoints below ``/gresshopper/api/v1/``. Their answers are the types of ``lab/src/api.ts``."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import ensure_async, url_path_join
from tornado.web import authenticated

from gresshopper_jupyter.programs import NotInstalled
from gresshopper_jupyter.server.hop import Away, Hop, HopError
from gresshopper_jupyter.server.ids import HopId, hops_id, hops_id_of, ours
from gresshopper_jupyter.server.overview import Local, kernels, with_gpus
from gresshopper_jupyter.server.session import Session
from gresshopper_jupyter.server.usage import Usage

#: How old answers may be, in seconds: of what changes by the second, of sums.
QUEUE_AGE_S, ACCT_AGE_S = 2.0, 60.0

_KERNEL = r"(?P<kernel>[0-9a-zA-Z-]{1,64})"


def add_handlers(serverapp: Any, hop: Hop) -> None:
    """Adds the endpoints to the server."""
    base = url_path_join(serverapp.base_url, "gresshopper/api/v1")
    with_hop = {"hop": hop, "session": Session(hop), "usage": Usage()}
    serverapp.web_app.add_handlers(
        ".*$",
        [
            (f"{base}/kernels", Kernels, with_hop),
            (f"{base}/server/more-time", MoreTime, with_hop),
            (f"{base}/kernels/{_KERNEL}/explanation", Explanation, with_hop),
            (f"{base}/kernels/{_KERNEL}/(?P<action>release|end|hibernate|wake|move|forget)", Act, with_hop),
        ],
    )


class _Handler(APIHandler):  # type: ignore[misc, unused-ignore]
    auth_resource = "kernels"
    # The panel's polling is no activity of its user's.
    _track_activity = False

    def initialize(self, hop: Hop, session: Session, usage: Usage) -> None:
        self.hop, self.session, self.usage = hop, session, usage

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """A failure of ``hop`` is its sentence, not a stack trace."""
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        if isinstance(error, (HopError, NotInstalled)):
            self.set_status(503 if isinstance(error, (Away, NotInstalled)) else 400)
            self.finish({"message": str(error)})
        else:
            super().write_error(status_code, **kwargs)

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, (HopError, NotInstalled)):
            super().log_exception(typ, value, tb)


class Kernels(_Handler):
    """All own kernels, with their waits, leases and use."""

    @authenticated
    @authorized
    async def get(self) -> None:
        queue: list[dict[str, Any]] = []
        acct: list[dict[str, Any]] = []
        known: list[dict[str, Any]] = []
        away = None
        try:
            queue = await self.hop.rows("queue", "--me", max_age_s=QUEUE_AGE_S)
            known = await self.hop.rows("kernels", "--me", "-o", _KNOWN, max_age_s=QUEUE_AGE_S)
            since = ("-X", "--me", "-S", "now-7days", "-o", "kernelid,gputimeraw,waitraw")
            acct = await self.hop.rows("acct", *since, max_age_s=ACCT_AGE_S)
        except (HopError, NotInstalled) as error:
            away = str(error)
        here = await local(self.kernel_manager, self.session_manager, self.usage, with_gpus(queue))
        rows = kernels(here, queue, acct, known)
        self.finish({"kernels": rows, "server_ends": await self.session.end(), "away": away})


async def local(manager: Any, sessions: Any, usage: Usage, lent: Set[HopId]) -> list[Local]:
    """This server's kernels. ``lent``: those with GPUs in hand."""
    listed = await ensure_async(sessions.list_sessions())
    paths = {session["kernel"]["id"]: session["path"] for session in listed if session.get("kernel")}
    here = ours(manager)
    used = await usage.of(here.items(), {k for k, kernel in here.items() if hops_id(kernel) in lent})
    return [Local(hops_id(kernel), k, paths.get(k, ""), used.get(k)) for k, kernel in here.items()]


class MoreTime(_Handler):
    """Asks Slurm for more time for the server's job."""

    @authenticated
    @authorized
    async def post(self) -> None:
        self.finish({"server_ends": await self.session.more_time()})


class Explanation(_Handler):
    """Why a kernel's cell waits, in sentences. A notebook's page knows its kernel by Jupyter's id."""

    @authenticated
    @authorized
    async def get(self, kernel: str) -> None:
        sentences = (await self.hop.run("explain", hops_id_of(self.kernel_manager, kernel))).splitlines()
        self.finish({"sentences": [sentence for sentence in sentences if sentence]})


#: The columns read from `hop kernels`.
_KNOWN = "kernelid,name,state,time,node,mem,replicas,captured,reason"
#: Actions of a single command. A long action is only asked for: the panel shows its progress.
_COMMANDS = {
    "end": ("cancel", "--kernel"),
    "hibernate": ("hibernate", "--no-wait"),
    "wake": ("wake",),
    "move": ("migrate", "--no-wait"),
    "forget": ("forget",),
}


class Act(_Handler):
    """Ends the idle lease of the kernel with that id of ``hop``, or the kernel; has the kernel sleep, wake or move."""

    @authenticated
    @authorized
    async def post(self, kernel: str, action: str) -> None:
        if action in _COMMANDS:
            await self.hop.run(*_COMMANDS[action], kernel)
        else:
            queue = await self.hop.rows("queue", "--me", max_age_s=0)
            lingering = [row for row in queue if row["kernel_id"] == kernel and row["state"] == "LINGERING"]
            for row in lingering:
                await self.hop.run("cancel", str(row["lease_id"]))
        self.set_status(204)
        self.finish()
