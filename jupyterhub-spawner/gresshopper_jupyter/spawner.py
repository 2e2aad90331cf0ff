"""The JupyterHub spawner: each single-user server is a Slurm job of its user, without a GPU.

Thin on purpose. The job is submitted as the user (`server_job submit`), one squeue serves all users, the server's
port comes back in the job's comment, and kernels are the provisioner's business.
"""

from __future__ import annotations

import asyncio
import html
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from jupyterhub.spawner import Spawner
from traitlets import Dict, Float, Integer, List, Unicode, default

from .slurm import Job, JobTable, SlurmError, node_address, run

JOB_NAME = "gresshopper-server"
ANSWER_AGE_S = 10.0
STARTING_AGE_S = 0.4

# Slurm's reason words, as a person at the spawn page would say them.
REASONS = {
    "Priority": "other jobs come first",
    "Resources": "no node has room yet",
    "QOSMaxJobsPerUserLimit": "you have as many jobs as your QOS allows",
    "AssocMaxJobsLimit": "your account has as many jobs as it may",
    "AssocGrpCpuLimit": "your account uses as many cores as it may",
    "PartitionDown": "the partition is down",
    "ReqNodeNotAvail": "the nodes are not available (maintenance?)",
    "Licenses": "licences are used up",
    "BeginTime": "Slurm is about to start it",
    "None": "Slurm is about to start it",
}


class GresshopperSpawner(Spawner):  # type: ignore[misc, unused-ignore]
    """Runs the user's Jupyter server as a Slurm job; its kernels get GPUs cell by cell."""

    partition = Unicode("", config=True, help="Slurm partition of the server's job; empty: the cluster's default.")
    account = Unicode("", config=True, help="Slurm account; empty: the user's default.")
    qos = Unicode("", config=True, help="Slurm QOS; empty: the default.")
    mem_mib = Integer(1024, config=True, help="Memory of the server's job in MiB (kernels have their own).")
    cpus = Integer(1, config=True, help="Cores of the server's job.")
    time_limit_min = Integer(0, config=True, help="Time limit in minutes; 0: the partition's.")
    sbatch_options = List(Unicode(), config=True, help="Further options for sbatch, one item each.")
    prologue = Unicode("", config=True, help="Shell lines that the job runs first (module load, say).")
    node_python = Unicode(
        config=True,
        help="The Python on the compute nodes that has gresshopper_jupyter; default: the hub's own.",
    )
    exec_prefix = List(
        Unicode(),
        config=True,
        help="How to act as {username} when the hub is not root, e.g. sudo -E -u {username}.",
    )
    log_dir = Unicode("", config=True, help="Folder for the jobs' output ({username} allowed); empty: discarded.")
    profiles = List(
        Dict(),
        config=True,
        help="""Choices of the spawn page. Each: {"slug", "display_name", "description", "default", "settings"};
        settings may set partition, account, qos, mem_mib, cpus, time_limit_min.""",
    )
    poll_age_s = Float(
        ANSWER_AGE_S, config=True, help="How old squeue's answer may be for a running server, seconds."
    )

    _table: ClassVar[JobTable | None] = None
    _settable = frozenset({"partition", "account", "qos", "mem_mib", "cpus", "time_limit_min"})

    job_id = ""

    @default("node_python")
    def _node_python(self) -> str:
        return sys.executable

    @default("start_timeout")
    def _start_timeout(self) -> int:
        return 300

    @default("ip")
    def _ip(self) -> str:
        return "0.0.0.0"

    @default("env_keep")
    def _env_keep(self) -> list[str]:
        # PATH and libraries of the node come from the job; what names this installation goes along.
        return ["PATH", "LANG", "LC_ALL", "SLURM_CONF", "GRESSHOPPER_CONF", "JUPYTER_PATH"]

    # What the user chose.

    @default("options_form")
    def _options_form(self) -> str:
        if not self.profiles:
            return ""
        rows = []
        for at, profile in enumerate(self.profiles):
            checked = " checked" if profile.get("default", at == 0) else ""
            rows.append(
                f'<label class="form-check"><input class="form-check-input" type="radio" name="profile" '
                f'value="{html.escape(profile["slug"])}"{checked}> <b>{html.escape(profile["display_name"])}</b><br>'
                f"<small>{html.escape(profile.get('description', ''))}</small></label>"
            )
        return "\n".join(rows)

    def options_from_form(self, formdata: dict[str, list[str]]) -> dict[str, Any]:
        return {"profile": formdata.get("profile", [""])[0]}

    def settings(self) -> dict[str, Any]:
        """The job's settings: the profile's over ours. An unknown profile is the user's error, not a default."""
        chosen: dict[str, Any] = {name: getattr(self, name) for name in self._settable}
        slug = self.user_options.get("profile") or next(
            (p["slug"] for at, p in enumerate(self.profiles) if p.get("default", at == 0)), ""
        )
        if slug:
            profile = next((p for p in self.profiles if p["slug"] == slug), None)
            if profile is None:
                raise ValueError(f"there is no profile {slug!r} here")
            chosen.update({k: v for k, v in profile.get("settings", {}).items() if k in self._settable})
        return chosen

    # The job.

    def sbatch_argv(self) -> list[str]:
        """The options for sbatch: ours first, so that a site's own can override them."""
        want = self.settings()
        out = (
            os.path.join(self.log_dir.format(username=self.user.name), "server-%j.log")
            if self.log_dir
            else "/dev/null"
        )
        argv = [
            f"--job-name={JOB_NAME}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={want['cpus']}",
            f"--mem={want['mem_mib']}M",
            "--export=ALL",
            "--no-requeue",
            f"--output={out}",
        ]
        argv += [f"--{name}={want[name]}" for name in ("partition", "account", "qos") if want[name]]
        if want["time_limit_min"]:
            argv.append(f"--time={want['time_limit_min']}")
        return argv + list(self.sbatch_options)

    def as_user(self) -> list[str]:
        return [part.format(username=self.user.name) for part in self.exec_prefix]

    @classmethod
    def table(cls) -> JobTable:
        if GresshopperSpawner._table is None:
            GresshopperSpawner._table = JobTable(JOB_NAME)
        return GresshopperSpawner._table

    async def submit(self) -> str:
        """Submit the server's job as the user; its id."""
        request = {
            "options": self.sbatch_argv(),
            "python": self.node_python,
            "prologue": self.prologue,
            "env": self.get_env(),
            "cmd": [*self.cmd, *self.get_args()],
        }
        # The caller's environment is the user's own business; only what finds Slurm and Python goes along.
        home = os.path.expanduser(f"~{self.user.name}")
        env = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "SLURM_CONF", "PYTHONPATH")}
        env.update({"HOME": home, "USER": self.user.name, "LOGNAME": self.user.name})
        out = await run(
            [self.node_python, "-m", "gresshopper_jupyter.server_job", "submit"],
            user=self.user.name,
            stdin=json.dumps(request).encode(),
            env=env,
            prefix=self.as_user(),
        )
        job_id = out.strip()
        if not job_id.isdigit():
            raise SlurmError(f"sbatch gave no job id but {job_id[:100]!r}")
        return job_id

    async def start(self) -> str:
        """Submit, wait for the job and for its port; the server's URL."""
        try:
            self.job_id = await self.submit()
        except SlurmError as error:
            raise RuntimeError(f"Slurm did not take the server's job: {error}") from error
        self.log.info("server of %s is job %s", self.user.name, self.job_id)
        while True:
            job = await self._look(STARTING_AGE_S)
            if job is not None and not job.alive:
                raise RuntimeError(f"job {self.job_id} ended ({job.state}) before the server was up")
            if job is not None and job.node and job.port:
                break
            await asyncio.sleep(STARTING_AGE_S)
        return f"http://{await node_address(job.node)}:{job.port}"

    async def _look(self, max_age_s: float) -> Job | None:
        """The job now. None while Slurm can't be asked: silence is no reason to give a session up."""
        try:
            job = await self.table().get(self.job_id, max_age_s)
        except SlurmError as error:
            self.log.warning("squeue: %s", error)
            return None
        return job or Job(self.job_id, "GONE", "", "", "", None)

    async def poll(self) -> int | None:
        if not self.job_id:
            return 0
        job = await self._look(self.poll_age_s)
        if job is None or job.alive:
            return None
        return 0 if job.state in ("COMPLETED", "CANCELLED", "GONE") else 1

    async def stop(self, now: bool = False) -> None:
        """Cancel the job and wait until it is gone."""
        if not self.job_id:
            return
        signal = ["--signal=KILL"] if now else []
        try:
            await run(["scancel", *signal, self.job_id], user=self.user.name, prefix=self.as_user())
        except SlurmError as error:
            self.log.warning("scancel %s: %s", self.job_id, error)
        for _ in range(150):
            job = await self._look(STARTING_AGE_S)
            if job is not None and (not job.alive or job.state == "COMPLETING"):
                return
            await asyncio.sleep(STARTING_AGE_S)
        raise RuntimeError(f"job {self.job_id} is still there a minute after scancel")

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """What the spawn page shows: Slurm's reason while the job waits, in a sentence."""
        yield {"progress": 10, "message": "Asking Slurm for a place for your Jupyter server"}
        last = ""
        while True:
            job = await self._look(1.0) if self.job_id else None
            if job is not None:
                event = describe(job)
                if event["message"] != last:
                    last = event["message"]
                    yield event
            await asyncio.sleep(1.0)

    # What survives a restart of the hub.

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self.job_id:
            state["job_id"] = self.job_id
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.job_id = state.get("job_id", "")

    def clear_state(self) -> None:
        super().clear_state()
        self.job_id = ""


def describe(job: Job) -> dict[str, Any]:
    """A job's state as an event of the spawn page."""
    if job.pending:
        # "ReqNodeNotAvail, UnavailableNodes:..." has its detail behind the word.
        word = job.reason.split(",")[0].strip("() ")
        why = REASONS.get(word, word)
        when = f"; Slurm expects to start it at {job.start}" if job.start not in ("", "N/A") else ""
        return {"progress": 30, "message": f"Job {job.id} waits: {why}{when}"}
    if job.alive and job.port:
        return {"progress": 90, "message": f"Your server answers on {job.node}"}
    if job.alive:
        return {"progress": 60, "message": f"Job {job.id} runs on {job.node}; your server starts"}
    return {"progress": 100, "message": f"Job {job.id} ended: {job.state}"}
