"""The JupyterHub spawner: each single-user server is a Slurm job of its user, without a GPU.

Thin on purpose. The job is submitted as the user (`server_job submit`), and one squeue serves all users. The server
writes its port into its user's own folder, and kernels are the provisioner's business. `profiles` and `offer` decide
what users may choose.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections import ChainMap
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import jinja2
from jupyterhub.spawner import Spawner
from sqlalchemy.orm import object_session
from traitlets import Any as AnyTrait
from traitlets import (
    Bool,
    Callable,
    Dict,
    Enum,
    Float,
    Integer,
    List,
    TraitError,
    Unicode,
    Union,
    default,
    validate,
)

from . import profiles
from .failures import Failure, refused
from .offer import FIELDS, FRESH_S, Book, Offer, Partition
from .slurm import (
    Job,
    JobTable,
    SlurmError,
    addresses,
    answers,
    call_node_of,
    is_silent,
    job_of,
    node_address,
    numeric,
    of_users,
    run,
)

ANSWER_AGE_S = 10.0
STARTING_AGE_S = 0.4
#: A job may wait for hours: looks at it become rarer and rarer, up to this pause.
WAITING_AGE_S = 3.0
#: If only its user sees a job, each look is a command of the user's (sudo).
HIDDEN_AGE_S = 3.0
#: How long a start waits for the job's id: longer than `server_job` waits for sbatch.
SUBMIT_S = 60.0
#: How long a submission that nobody waits for any more is followed, for its job to be cancelled.
LATE_S = 3600.0
#: How long a stop repeats scancel until Slurm takes it: several times `COMMAND_TIMEOUT_S`.
TAKEN_S = 120.0
#: How long a stop waits for the job's end once Slurm has taken scancel.
GONE_S = 60.0

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

LABELS = {
    "partition": ("Partition", "the default"),
    "account": ("Account", ""),
    "qos": ("QOS", "the default"),
    "reservation": ("Reservation", "none"),
    "cpus": ("Cores", "the default"),
    "mem_mib": ("Memory in MiB", "the default"),
    "time_limit_min": ("Minutes", "as long as the partition allows"),
}

#: Traits that no profile sets: the hub's way to act as the user, and the parts of the form.
_NOT_BY_PROFILE = frozenset(
    {"exec_prefix", "log_dir", "job_name", "profile_list", "form_fields", "form_template", "form_age_s"}
)


class GresshopperSpawner(Spawner):  # type: ignore[misc, unused-ignore]
    """Runs the user's Jupyter server as a Slurm job; its kernels get GPUs cell by cell."""

    partition = Unicode("", config=True, help="Slurm partition of the server's job; empty: the cluster's default.")
    account = Unicode("", config=True, help="Slurm account of the server's job; empty: the user's default.")
    qos = Unicode("", config=True, help="Slurm QOS; empty: the default.")
    reservation = Unicode("", config=True, help="Slurm reservation; empty: none.")
    constraint = Unicode("", config=True, help="Features that the node must have, as sbatch's --constraint.")
    gres = Unicode("", config=True, help="A GPU for the whole session, as sbatch's --gres; empty: none is needed.")
    kernel_account = Unicode("", config=True, help="Slurm account of the kernels; empty: the server's.")
    kernel_qos = Unicode("", config=True, help="Slurm QOS of the kernels; empty: the account's default.")
    kernel_reservation = Unicode("", config=True, help="Slurm reservation of the kernels; empty: none.")
    mem_mib = Integer(1024, config=True, help="Memory of the server's job in MiB (kernels have their own).")
    cpus = Integer(1, config=True, help="Cores of the server's job.")
    time_limit_min = Integer(0, config=True, help="Time limit in minutes; 0: the partition's.")
    sbatch_options = List(Unicode(), config=True, help="Further options for sbatch, one item each.")
    prologue = Unicode("", config=True, help="Shell lines that the job runs first (module load, say).")
    epilogue = Unicode(
        "", config=True, help="Shell lines that the job runs last; of a cancelled job within KillWait."
    )
    login_shell = Bool(
        False,
        config=True,
        help="Run prologue and epilogue in a login shell, which has the user's environment and knows `module`.",
    )
    job_name = Unicode("jupyter-gresshopper", config=True, help="Name of the servers' jobs.")
    port_range = Union(
        [List(Integer(), minlen=2, maxlen=2), Enum([None])],
        default_value=None,
        allow_none=True,
        config=True,
        help="First and last port that a server may listen on, for firewalls; None: any that is free.",
    )
    node_python = Unicode(
        config=True,
        help="The Python on the compute nodes that has gresshopper_jupyter; default: the hub's own.",
    )
    exec_prefix = List(
        Unicode(),
        config=True,
        help="How to act as {username} when the hub is not root, e.g. sudo -E -u {username}.",
    )
    log_dir = Unicode(
        "",
        config=True,
        help="Folder for the servers' logs ({username} allowed); empty: the user's ~/.local/share/gresshopper/servers, "
        "where those of the three newest that are over are kept.",
    )
    profile_list = Union(
        [List(Dict()), Callable()],
        config=True,
        help="Choices of the spawn page in kubespawner's shape, or a function of the spawner that returns them.",
    )
    form_fields = List(
        Enum(FIELDS),
        config=True,
        help="What users choose themselves, from what Slurm allows them: " + ", ".join(FIELDS) + ".",
    )
    form_template = Unicode("", config=True, help="A Jinja2 template instead of the form's own.")
    form_age_s = Float(FRESH_S, config=True, help="How old Slurm's answers in the form may be, seconds.")
    poll_age_s = Float(
        ANSWER_AGE_S, config=True, help="How old squeue's answer may be for a running server, seconds."
    )

    lost_node_s = Float(
        60.0,
        config=True,
        help="How long neither the hub nor Slurm may hear of a server's node before the server is given up, seconds; "
        "0: as long as Slurm waits (SlurmdTimeout).",
    )

    _tables: ClassVar[dict[str, JobTable]] = {}
    _book: ClassVar[Book] = Book()
    #: Submissions whose starts were given up before Slurm answered.
    _late: ClassVar[set[asyncio.Task[None]]] = set()

    job_id = ""
    #: The server's name in its user's folder, and the server's log.
    _name = ""
    _log = ""
    _certs = AnyTrait(None, allow_none=True)
    #: The job in its user's view, if the hub doesn't see the job.
    _seen: Job | None = None
    _seen_at = float("-inf")
    #: Since when the server hasn't answered.
    _silent_since: float | None = None
    #: The choice that a form or a link has just named.
    _named: dict[str, Any] | None = None
    #: A sentence that names the parts of the last choice that aren't offered any more.
    _left_out = ""

    @default("profile_list")
    def _profile_list(self) -> list[Any]:
        return []

    @validate("profile_list")
    def _checked_profiles(self, proposal: Any) -> Any:
        every = proposal["value"]
        if callable(every):
            return every
        try:
            return profiles.checked(every)
        except ValueError as error:
            raise TraitError(f"GresshopperSpawner.profile_list: {error}") from None

    @validate("port_range")
    def _checked_ports(self, proposal: Any) -> Any:
        ports = proposal["value"]
        if ports is not None and not 1 <= ports[0] <= ports[1] <= 65535:
            raise TraitError(
                f"GresshopperSpawner.port_range can't be {ports}: it is the first and the last port, from 1 to 65535"
            )
        return ports

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
        # PATH and libraries come from the job on its node; names of this installation go along.
        return ["LANG", "LC_ALL", "SLURM_CONF", "GRESSHOPPER_CONF", "JUPYTER_PATH"]

    # What the user chose.

    @default("apply_user_options")
    def _apply_user_options(self) -> Any:
        # `start` applies them, once they are checked.
        return lambda spawner, options: None

    async def offered(self) -> list[profiles.Profile]:
        """Those that are offered to this user."""
        every = self.profile_list
        if callable(every):
            every = every(self)
            if asyncio.iscoroutine(every):
                every = await every
            try:
                every = profiles.checked(every)
            except ValueError as error:
                raise refused(f"profile_list: {error}; tell your administrator", "configuration") from None
        return profiles.offered(every, {group.name for group in self.user.groups})

    @default("options_form")
    def _options_form(self) -> Any:
        return GresshopperSpawner.render_form if self.profile_list or self.form_fields else ""

    async def _of_groups(self) -> dict[str, Any]:
        """The settings that the hub will set by the user's groups at the start: the hub's own rule, applied to a
        stand-in for this spawner."""
        made: dict[str, Any] = {}
        every = self.group_overrides
        stand_in = SimpleNamespace(
            user=self.user,
            log=logging.Logger("nobody's"),
            group_overrides=(lambda _: every(self)) if callable(every) else every,
            _apply_overrides=made.update,
        )
        await Spawner.apply_group_overrides(stand_in)
        return made

    def _setting(self, name: str, *over: Mapping[str, Any]) -> Any:
        """A setting at the coming start: from the first of these that names the setting, else the site's."""
        value = ChainMap(*map(dict, over), {name: getattr(self, name)})[name]
        return value(self) if callable(value) else value

    async def render_form(self) -> str:
        """The spawn page's form, from Slurm's present offer to this user."""
        every = await self.offered()
        partition = self._setting("partition", await self._of_groups())
        chosen = dict(self.user_options or {})
        slug = chosen.get("profile")
        if slug not in [p["slug"] for p in every]:
            slug = profiles.default_profile(every)
        notes, fields = [], []
        try:
            offer = await self._book.offer(self.user.name, self.form_age_s)
            where = offer.partition(partition)
            fields = self._fields(offer, where)
            if offer.site.stale:
                notes.append("Slurm's accounting doesn't answer: accounts and QOS are the last that are known.")
            if where is not None:
                notes.append(f"{where.idle} of {where.nodes} nodes of partition {where.name} are idle.")
            notes.append(offer.site.free_gpus())
        except SlurmError as error:
            self.log.warning("the form can't ask Slurm: %s", error)
            notes.append("Slurm doesn't answer now; the site's defaults will be used.")
        text = self.form_template or Path(__file__).with_name("form.html").read_text()
        template = jinja2.Environment(autoescape=True).from_string(text)
        return template.render(
            profiles=every,
            profile=slug,
            chosen=chosen,
            fields=fields,
            notes=notes,
            default_choice=profiles.default_choice,
        )

    def _fields(self, offer: Offer, where: Partition | None) -> list[dict[str, Any]]:
        choices: dict[str, list[str]] = {
            "partition": [p.name for p in offer.partitions()],
            "account": list(offer.accounts),
            # Another partition may allow others: the choice is checked against its own partition.
            "qos": offer.qos(None if "partition" in self.form_fields else where),
            "reservation": list(offer.reservations),
        }
        bounds = {"cpus": where.cpus, "mem_mib": where.mem_mib, "time_limit_min": where.max_min} if where else {}
        made = []
        for name in FIELDS:
            if name not in self.form_fields or (name in choices and not choices[name]):
                continue
            label, empty = LABELS[name]
            given = [(value, value) for value in choices[name]] if name in choices else None
            made.append({"name": name, "label": label, "empty": empty, "choices": given, "bound": bounds.get(name)})
        return made

    async def options_from_form(self, formdata: dict[str, list[str]]) -> dict[str, Any]:
        chosen = profiles.from_form(formdata, self.form_fields)
        await self.choose(chosen)
        self._named = chosen
        return chosen

    async def options_from_query(self, query_data: dict[str, list[str]]) -> dict[str, Any]:
        """A link says what the API says: `?opt-profile=small&opt-account=physics`."""
        # JupyterHub 5 leaves the beginning to us.
        chosen = {
            name[4:] if name.startswith("opt-") else name: values[0] for name, values in query_data.items() if values
        }
        await self.choose(chosen)
        self._named = chosen
        return chosen

    @property
    def _held(self) -> Spawner:
        """The spawner known to the hub: this spawner, or its wrapper (wrapspawner)."""
        return getattr(self.user, "spawners", {}).get(self.name) or self

    async def choose(self, chosen: dict[str, Any], starts: bool = False) -> dict[str, Any]:
        """Traits set by the user's choice. A choice beyond the user's rights is refused."""
        if self._held is not self:
            # The choice was another spawner's to offer, and was us.
            return {}
        made = profiles.overrides(await self.offered(), chosen)
        for name in made:
            if name in _NOT_BY_PROFILE or name not in self.traits(config=True):
                raise refused(f"a profile can't set {name!r}; tell your administrator", "configuration")
        wanted = {name: str(chosen[name]) for name in FIELDS if chosen.get(name)}
        forbidden = sorted(set(wanted) - set(self.form_fields))
        if forbidden:
            raise refused(f"{', '.join(forbidden)} isn't yours to choose here")
        if wanted:
            # At the start the hub has set them already.
            groups = {} if starts else await self._of_groups()
            where, who = (self._setting(name, made, groups) for name in ("partition", "account"))
            try:
                made.update(await self._book.check(self.user.name, wanted, where, who, self.form_age_s))
            except SlurmError as error:
                raise Failure(f"Slurm doesn't answer: {error}", reason="slurm", status_code=503) from error
        return made

    def _is_named(self) -> bool:
        """Whether this start names its choice. Without one the hub takes the last choice."""
        if self.user_options == self._named:
            return True
        # The API's request comes here unseen.
        read = getattr(getattr(self, "handler", None), "get_json_body", None)
        body = read() if read else None
        if isinstance(body, dict) and body.keys() & {"user_options", "display_name"}:
            body = body.get("user_options")
        return bool(body) and body == self.user_options

    async def choice(self) -> dict[str, Any]:
        """Traits set by the choice of this start. Of a choice that the hub only remembers, parts that aren't offered any
        more are left out: the user may have no form to choose anew."""
        before, self._left_out = self.user_options or {}, ""
        try:
            return await self.choose(before, starts=True)
        except Failure as failure:
            if not failure.is_of_choice or self._is_named():
                raise
        kept: dict[str, Any] = {}
        made = await self.choose(kept, starts=True)
        left: list[str] = []
        for name in sorted(before, key=_place):
            try:
                if "profile" in left and name not in FIELDS:
                    # An option of the profile.
                    continue
                made = await self.choose({**kept, name: before[name]}, starts=True)
                kept[name] = before[name]
            except Failure as failure:
                if not failure.is_of_choice:
                    raise
                left.append(name)
        if not left:
            # Slurm has come to allow it meanwhile.
            return made
        told = ", ".join(f"{name} {before[name]}" for name in left)
        self._left_out = f"Not offered any more, and left out of your last choice: {told}"
        self.log.warning("server of %s: not offered any more, and left out: %s", self._log_name, told)
        return made

    # The job.

    def sbatch_argv(self) -> list[str]:
        """Options for sbatch: ours first, for a site's own to override."""
        for option in self.sbatch_options:
            if option.startswith(("--job-name", "-J", "--comment", "--output", "-o")):
                raise refused(f"sbatch_options can't have {option!r}: see job_name and log_dir", "configuration")
        argv = [
            f"--job-name={self.job_name}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={self.cpus}",
            f"--mem={self.mem_mib}M",
            "--export=ALL",
            "--no-requeue",
        ]
        for name in ("partition", "account", "qos", "reservation", "constraint", "gres"):
            if getattr(self, name):
                argv.append(f"--{name}={getattr(self, name)}")
        if self.time_limit_min:
            argv.append(f"--time={self.time_limit_min}")
        return argv + list(self.sbatch_options)

    def as_user(self) -> list[str]:
        return [part.format(username=self.user.name) for part in self.exec_prefix]

    def table(self) -> JobTable:
        return self._tables.setdefault(self.job_name, JobTable(self.job_name))

    async def job_program(self, *argv: str, stdin: str = "", patience_s: float | None = None) -> str:
        """What `server_job` prints, run as the user."""
        # The caller's environment is the user's own business; only what finds Slurm and Python goes along.
        home = await of_users(_home, self.user.name)
        env = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LC_ALL", "SLURM_CONF", "PYTHONPATH")}
        env.update({"USER": self.user.name, "LOGNAME": self.user.name})
        # If only the nodes know this user, the path isn't absolute: commands behind the prefix find the home.
        if os.path.isabs(home):
            env["HOME"] = home
        return await run(
            # Without the modules in the user's home, which would run on the hub's host.
            [self.node_python, "-s", "-m", "gresshopper_jupyter.server_job", *argv],
            user=self.user.name,
            stdin=stdin.encode(),
            env=env,
            prefix=self.as_user(),
            patience_s=patience_s,
        )

    def get_env(self) -> dict[str, str]:
        env: dict[str, str] = super().get_env()
        # Accounts for the server's kernels, unless their kernelspec names others.
        charged = {"account": self.kernel_account or self.account, "qos": self.kernel_qos}
        charged["reservation"] = self.kernel_reservation
        env.update({f"GRESSHOPPER_{name.upper()}": value for name, value in charged.items() if value})
        return env

    async def submit(self) -> None:
        """Submit the server's job as the user, and note the job where a restarted hub finds the note."""
        self.mem_limit, self.cpu_limit = self.mem_mib * 2**20, float(self.cpus)
        log = os.path.join(self.log_dir.format(username=self.user.name), "server-%j.log") if self.log_dir else ""
        request = {
            "options": self.sbatch_argv(),
            "python": self.node_python,
            "shell": "/bin/bash -l" if self.login_shell else "/bin/sh",
            "prologue": self.prologue,
            "epilogue": self.epilogue,
            "env": self.get_env(),
            "cmd": [*self.cmd, *self.get_args()],
            "certs": self._certs,
            "ports": self.port_range,
            "log": log,
        }
        said = await self._submitted(json.dumps(request))
        self.job_id, self._name, self._log = said["job"], said["name"], said["log"]
        session = object_session(self.orm_spawner) if self.orm_spawner else None
        if session is not None:
            self.orm_spawner.state = self._held.get_state()
            session.commit()

    async def _submitted(self, request: str) -> dict[str, str]:
        """The words of the user's half about the job that Slurm took."""
        told = asyncio.ensure_future(self.job_program("submit", stdin=request, patience_s=LATE_S))
        try:
            await asyncio.wait([told], timeout=SUBMIT_S)
        except asyncio.CancelledError:
            self._call_off(told)
            raise
        try:
            if not told.done():
                self._call_off(told)
                raise SlurmError(f"sbatch did not answer within {SUBMIT_S:.0f} s")
            said: dict[str, str] = json.loads(told.result())
        except SlurmError as error:
            raise refused(f"Slurm did not take the server's job: {error}", "slurm") from error
        return said

    def _call_off(self, told: asyncio.Task[str]) -> None:
        """Cancel the job if Slurm takes it after all: nobody else knows its id."""

        async def cancel() -> None:
            try:
                said = json.loads(await told)
            except SlurmError as error:
                self.log.warning("server of %s, whose start was given up: %s", self._log_name, error)
            else:
                await self._end(said["job"], said["name"])

        task = asyncio.ensure_future(cancel())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def start(self) -> str:
        """Submit, wait for the job and for its port; the server's URL."""
        # JupyterHub applies its own overrides in the same way: a dictionary adds to the present one.
        made = await self.choice()
        try:
            self._apply_overrides(made)
        except TraitError as error:
            raise refused(
                f"a profile can't be meant so: {error}; tell your administrator", "configuration"
            ) from error
        await self.submit()
        self.log.info("server of %s is job %s", self._log_name, self.job_id)
        return await self._up()

    async def _up(self) -> str:
        """Wait until the server listens; its URL."""
        pause = STARTING_AGE_S
        while True:
            job = await self._look(pause)
            if job is not None and not job.alive:
                raise await self._failure(job)
            pause = min(pause * 1.1, WAITING_AGE_S) if job is not None and job.pending else STARTING_AGE_S
            if job is not None and job.state == "RUNNING" and job.node:
                said = await self.job_program("port", self._name)
                if said.strip():
                    break
            await asyncio.sleep(pause)
        proto, host = "https", await node_address(job.node)
        if not self.internal_ssl:
            # Certificates have the names.
            proto, host = "http", await numeric(host, self.ip)
        host = f"[{host}]" if ":" in host else host
        return f"{proto}://{host}:{int(json.loads(said)['port'])}"

    async def _failure(self, job: Job) -> Failure:
        """Why the server isn't up, with the end of its log."""
        log = ""
        try:
            log = await self.job_program("tail", self._log)
        except SlurmError as error:
            self.log.warning("the log of job %s: %s", self.job_id, error)
        how = "is no longer there" if job.state == "GONE" else f"ended ({job.state})"
        sentence = f"Job {self.job_id} {how} before your server was up"
        if log:
            sentence += f". Its log, {self._log}, ends with:"
        return Failure(sentence, reason="job", status_code=500, log=log)

    async def get_url(self) -> str:
        """After a restart of the hub: the server's URL, also if its job still waited when the hub went."""
        if self.server and self.server.ip and self.server.port:
            url: str = self.server.url
            return url
        try:
            return await asyncio.wait_for(self._up(), self.start_timeout)
        except (Failure, SlurmError, asyncio.TimeoutError) as error:
            self.log.error("server of %s, job %s: %s", self._log_name, self.job_id, error)
            return "http://127.0.0.1:1"

    async def _look(self, max_age_s: float) -> Job | None:
        """The job now. None while Slurm can't be asked: silence is no reason to give a session up."""
        try:
            job = await self.table().get(self.job_id, max_age_s)
            job = job or await self._as_its_user_sees(max(max_age_s, HIDDEN_AGE_S))
        except SlurmError as error:
            self.log.warning("squeue: %s", error)
            return None
        return job or Job(self.job_id, "GONE", "", "", "")

    async def _as_its_user_sees(self, max_age_s: float) -> Job | None:
        if self._seen is None or self._seen_at < time.monotonic() - max_age_s:
            self._seen = await job_of(self.user.name, self.job_id, self.as_user())
            self._seen_at = time.monotonic()
        return self._seen

    async def poll(self) -> int | None:
        if not self.job_id:
            return 0
        job = await self._look(self.poll_age_s)
        if job is None:
            return None
        if job.alive:
            return 1 if job.state == "RUNNING" and await self._is_lost(job.node) else None
        return 0 if job.state in ("COMPLETED", "CANCELLED", "GONE") else 1

    async def _is_lost(self, node: str) -> bool:
        """Whether the server is lost with its node, for whose return Slurm waits. Two witnesses are asked: the server,
        and Slurm's controller. A single silent witness may be behind a broken network.
        """
        server = self.server
        if not (self.lost_node_s and server and server.port) or await answers(server.ip, server.port):
            self._silent_since = None
            return False
        first, now = self._silent_since is None, time.monotonic()
        since = self._silent_since = now if self._silent_since is None else self._silent_since
        waited = now - since >= self.lost_node_s
        try:
            lost = waited and await is_silent(node)
            # Not at each poll: for a node that Slurm calls silent, scancel takes half a minute.
            if first or (waited and not lost):
                await call_node_of(self.job_id, self.user.name, self.as_user())
        except SlurmError as error:
            self.log.warning("node %s of job %s: %s", node, self.job_id, error)
            return False
        if lost:
            self.log.warning("server of %s, job %s: node %s is lost", self._log_name, self.job_id, node)
        return lost

    async def stop(self, now: bool = False) -> None:
        """Cancel the job and wait until it is gone, but not as long as Slurm may be silent: `run_post_stop_hook` does
        without it."""
        if not self.job_id:
            return
        problem = await self._cancel(self.job_id)
        until = time.monotonic() + (TAKEN_S if problem else GONE_S)
        while True:
            job = await self._look(STARTING_AGE_S)
            if job is not None and (not job.alive or job.state == "COMPLETING"):
                return
            if time.monotonic() >= until:
                break
            await asyncio.sleep(WAITING_AGE_S if problem else STARTING_AGE_S)
            if problem:
                problem = await self._cancel(self.job_id)
                until = until if problem else time.monotonic() + GONE_S
        if job is not None:
            how = f": {problem}" if problem else f" {GONE_S:.0f} s after scancel"
            raise RuntimeError(f"job {self.job_id} is still there{how}")

    async def _cancel(self, job_id: str) -> str:
        """Why Slurm doesn't cancel the job; empty once it does."""
        try:
            await run(["scancel", job_id], user=self.user.name, prefix=self.as_user())
        except SlurmError as error:
            self.log.warning("scancel %s: %s", job_id, error)
            return str(error)
        return ""

    async def _end(self, job_id: str, name: str) -> None:
        """Cancel the job that the hub is about to forget. If Slurm doesn't, the server ends by itself."""
        if not await self._cancel(job_id):
            return
        try:
            await self.job_program("end", name)
            self.log.warning("server of %s: Slurm doesn't cancel job %s, so it ends itself", self._log_name, job_id)
        except SlurmError as error:
            self.log.error("server of %s: job %s may go on, as nothing ends it: %s", self._log_name, job_id, error)

    async def run_post_stop_hook(self) -> None:
        """Ends what is left of the server, once the hub has taken the route away and before it forgets the job.

        Nobody needs the port of an ended server any more, a server whose node comes back, or a job that starts once
        Slurm answers again."""
        if self.job_id:
            job = await self._look(self.poll_age_s)
            if job is None or job.server_ended or (job.alive and job.state != "COMPLETING"):
                await self._end(self.job_id, self._name)
        self._named = None
        hook = super().run_post_stop_hook()
        if hook is not None:
            await hook

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Messages of the spawn page: Slurm's reason while the job waits, in a sentence."""
        yield {"progress": 10, "message": "Asking Slurm for a place for your Jupyter server"}
        last = told = ""
        while True:
            if self._left_out not in ("", told):
                told = self._left_out
                yield {"progress": 15, "message": told}
            job = await self._look(1.0) if self.job_id else None
            if job is not None:
                event = describe(job)
                if event["message"] != last:
                    last = event["message"]
                    yield event
            await asyncio.sleep(1.0)

    # Internal SSL: the certificate is of the nodes on which the server may come to run.

    async def create_certs(self) -> dict[str, str]:
        # The hub asks before `start`, where the user's choice is made to count.
        made = await self.choice()
        names = await addresses(self._setting("partition", made))
        kinds = ("IP" if name.replace(".", "").isdigit() or ":" in name else "DNS" for name in names)
        if not callable(self.ssl_alt_names):
            own = list(self.ssl_alt_names)
            found = [f"{kind}:{name}" for kind, name in zip(kinds, names)]
            self.set_trait("ssl_alt_names", own + [name for name in found if name not in own])
        paths: dict[str, str] = await super().create_certs()
        return paths

    async def move_certs(self, paths: dict[str, str]) -> dict[str, str]:
        """The certificates travel with the job's secrets; the launcher reports their places."""
        self._certs = {what: await asyncio.to_thread(Path(path).read_text) for what, path in paths.items()}
        return paths

    # What survives a restart of the hub.

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self.job_id:
            state.update(job_id=self.job_id, name=self._name, log=self._log)
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.job_id, self._name, self._log = (state.get(key, "") for key in ("job_id", "name", "log"))

    def clear_state(self) -> None:
        super().clear_state()
        self.job_id = self._name = self._log = self._left_out = ""
        self._silent_since = self._seen = None


def _home(user: str) -> str:
    """A user's home. If the host doesn't know the user, the path isn't absolute."""
    return os.path.expanduser(f"~{user}")


def _place(name: str) -> tuple[int, bool]:
    """A key for trying the names of a choice in the order of their dependence: the profile, an option's text, the
    option's choice, the fields."""
    if name in FIELDS:
        return FIELDS.index(name) + 2, True
    return int(name != "profile"), not name.endswith(profiles.UNLISTED)


def describe(job: Job) -> dict[str, Any]:
    """A job's state as an event of the spawn page."""
    if job.pending:
        # "ReqNodeNotAvail, UnavailableNodes:..." has its detail behind the word.
        word = job.reason.split(",")[0].strip("() ")
        why = REASONS.get(word, word)
        when = f"; Slurm expects to start it at {job.start}" if job.start not in ("", "N/A") else ""
        return {"progress": 30, "message": f"Job {job.id} waits: {why}{when}"}
    if job.alive:
        return {"progress": 60, "message": f"Job {job.id} runs on {job.node}; your server starts"}
    return {"progress": 100, "message": f"Job {job.id} ended: {job.state}"}
