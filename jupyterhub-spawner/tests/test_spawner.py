"""The spawner's pure parts, and its life against stand-ins for Slurm's commands at the process boundary."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, SERVER, alive, launcher, wait_for
from gresshopper_jupyter import server_job, slurm
from gresshopper_jupyter.failures import Failure
from gresshopper_jupyter.offer import Book, Partition, Site
from gresshopper_jupyter.slurm import Job, parse_jobs
from gresshopper_jupyter.spawner import GresshopperSpawner, describe


def test_jobs_are_read_as_squeue_prints_them() -> None:
    jobs = parse_jobs(
        "m|12|RUNNING|None|2026-11-21T10:00:00|n1|gresshopper ended \nm|13|PENDING|Resources|N/A||(null)\nnot a job\n",
        "m",
    )
    assert jobs["12"] == Job("12", "RUNNING", "None", "2026-11-21T10:00:00", "n1", True)
    assert not jobs["12"].alive, "the hub is to take the route away while the port is held"
    assert jobs["13"].pending
    assert jobs["13"].alive
    assert len(jobs) == 2


def squeue(argv: list[str], *rows: str) -> str:
    """As squeue answers: each row begins as the format asked for does."""
    mark, _, _ = argv[argv.index("-o") + 1].partition("%")
    return "".join(f"{mark}{row}\n" for row in rows)


async def test_nobodys_comment_passes_for_another_users_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of the servers' name, with a comment of two lines: the second would send alice's hub to another node, or end
    her server."""
    comment = "x\n12|RUNNING|None|N/A|evil|gresshopper ended"

    async def run(argv: list[str], **more: Any) -> str:
        return squeue(argv, "12|RUNNING|None|N/A|n1|(null)", f"13|RUNNING|None|N/A|evil|{comment}", comment)

    monkeypatch.setattr(slurm, "run", run)
    job = await slurm.JobTable("jupyter").get("12", 0)
    assert job == Job("12", "RUNNING", "None", "N/A", "n1")


async def test_no_setting_in_the_hubs_environment_changes_slurms_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SQUEUE_USERS, say, running servers would be missing in the answer."""
    rust = (ROOT / "slurm-plugin/slurm/src/run.rs").read_text()
    listed = re.search(r"SLURMS_OWN: .*? = \[(.*?)\];", rust, re.DOTALL)
    assert listed is not None
    assert tuple(re.findall(r'"(\w+)"', listed[1])) == server_job.SLURMS_OWN, "hopd's commands are asked alike"
    for name in ("SQUEUE_USERS", "SINFO_FORMAT", "SACCTMGR_X", "SCONTROL_ALL", "SCANCEL_STATE", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/x/slurm.conf")
    for user in (None, ME):
        names = {line.partition("=")[0] for line in (await slurm.run(["env"], user=user)).splitlines()}
        assert {name for name in names if name.startswith(server_job.SLURMS_OWN)} == {"SLURM_CONF"}
        assert "PATH" in names


def test_the_spawn_page_says_why_a_job_waits() -> None:
    event = describe(Job("7", "PENDING", "(Resources)", "2026-11-21T12:00:00", ""))
    assert event["message"] == "Job 7 waits: no node has room yet; Slurm expects to start it at 2026-11-21T12:00:00"
    assert describe(Job("7", "PENDING", "Weird", "N/A", ""))["message"] == "Job 7 waits: Weird"
    assert "n2" in describe(Job("7", "RUNNING", "", "", "n2"))["message"]


def book(site: Site) -> Book:
    """One that has just asked."""
    made = Book()
    made._site.last, made._site._at = site, time.monotonic()
    return made


class User:
    def __init__(self, name: str) -> None:
        self.name = name
        self.url = "/user/x"
        self.groups: list[Group] = []


def spawner(**settings: Any) -> GresshopperSpawner:
    made = GresshopperSpawner(**settings)
    made.user = User("alice")
    return made


async def test_sbatch_gets_what_the_profile_says_and_no_more() -> None:
    every = [
        {"slug": "small", "display_name": "Small", "override": {"mem_mib": 512}},
        {
            "slug": "big",
            "display_name": "Big <b>",
            "override": {
                "mem_mib": 4096,
                "partition": "long",
                "sbatch_options": ["--exclusive", "--mail-type=BEGIN"],
            },
        },
    ]
    made = spawner(profile_list=every, sbatch_options=["--nice"])
    for name, value in (await made.choose({"profile": "big"})).items():
        setattr(made, name, value)
    argv = made.sbatch_argv()
    assert "--mem=4096M" in argv
    assert "--partition=long" in argv
    assert argv[-2:] == ["--exclusive", "--mail-type=BEGIN"]
    assert spawner(sbatch_options=["--nice"]).sbatch_argv()[-1] == "--nice"
    assert await made.choose({}) == {"mem_mib": 512}
    made._book = book(Site())
    assert "Big &lt;b&gt;" in await made.render_form()


async def test_certificates_are_for_the_nodes_of_the_chosen_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    async def addresses(partition: str) -> list[str]:
        return {"long": ["n7", "10.0.0.7"]}[partition]

    async def hubs(self: object) -> dict[str, str]:
        return {}

    monkeypatch.setattr("gresshopper_jupyter.spawner.addresses", addresses)
    monkeypatch.setattr("jupyterhub.spawner.Spawner.create_certs", hubs)
    profile = {"slug": "big", "display_name": "Big", "override": {"partition": "long"}}
    made = spawner(profile_list=[profile], ssl_alt_names=["DNS:proxy"])
    made.user_options = {"profile": "big"}
    for _ in range(2):
        await made.create_certs()
        assert made.ssl_alt_names == ["DNS:proxy", "DNS:n7", "IP:10.0.0.7"]


async def test_a_profile_cant_change_how_the_hub_acts_as_its_user() -> None:
    made = spawner(profile_list=[{"slug": "a", "display_name": "A", "override": {"exec_prefix": ["sh"]}}])
    with pytest.raises(Failure, match="can't set 'exec_prefix'"):
        await made.choose({})


@pytest.mark.parametrize("option", ["--job-name=mine", "--comment=x", "-o/tmp/x"])
def test_options_that_would_lose_the_job_are_refused(option: str) -> None:
    with pytest.raises(Failure, match="sbatch_options can't have"):
        spawner(sbatch_options=[option]).sbatch_argv()


async def test_a_profiles_dictionary_adds_to_the_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: object) -> str:
        return ""

    monkeypatch.setattr(GresshopperSpawner, "submit", nothing)
    monkeypatch.setattr(GresshopperSpawner, "_up", nothing)
    every = [
        {"slug": "a", "display_name": "A", "override": {"environment": {"B": "2"}, "sbatch_options": ["--nice"]}}
    ]
    made = spawner(profile_list=every, environment={"A": "1"}, sbatch_options=["--exclusive"])
    await made.start()
    assert made.environment == {"A": "1", "B": "2"}
    assert made.sbatch_options == ["--nice"]


class Group:
    def __init__(self, name: str) -> None:
        self.name = name


async def test_the_form_shows_and_checks_what_the_users_group_will_have() -> None:
    overrides = {"a": {"groups": ["course", "other"], "spawner_override": {"partition": "teaching"}}}
    site = Site({name: Partition(name, is_default=name == "main", cpus=cpus, nodes=cpus) for name, cpus in SIZES})
    made = spawner(group_overrides=overrides, form_fields=["cpus"])
    made._book = book(site)
    assert "0 of 8 nodes of partition main" in await made.render_form()
    assert await made.choose({"cpus": "8"}) == {"cpus": 8}
    made.user.groups = [Group("course")]
    assert "0 of 2 nodes of partition teaching" in await made.render_form()
    assert made.partition == "", "a member's settings aren't kept beyond the start"
    with pytest.raises(Failure, match="8 cores are more than partition teaching gives"):
        await made.choose({"cpus": "8"})


async def test_a_choice_asks_once_for_the_groups_settings_and_the_start_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def by_site(of: GresshopperSpawner) -> dict[str, Any]:
        asked.append(of)
        return {"a": {"groups": ["course"], "spawner_override": {"partition": lambda of: "teaching"}}}

    async def nothing(self: object) -> str:
        return ""

    monkeypatch.setattr(GresshopperSpawner, "submit", nothing)
    monkeypatch.setattr(GresshopperSpawner, "_up", nothing)
    made = spawner(group_overrides=by_site, form_fields=["cpus"])
    made.user.groups = [Group("course")]
    made._book = book(Site({name: Partition(name, cpus=cpus) for name, cpus in SIZES}))
    with pytest.raises(Failure, match="partition teaching"):
        await made.choose({"cpus": "8"})
    assert asked == [made]
    # As the hub starts it.
    await made.apply_group_overrides()
    made.user_options = {"cpus": "2"}
    await made.start()
    assert (made.partition, made.cpus) == ("teaching", 2)
    assert asked == [made, made], "the hub itself asked"


SIZES = (("main", 8), ("teaching", 2))


async def test_a_spawner_around_ours_has_the_choice_and_keeps_our_state() -> None:
    made = spawner()
    made.user.spawners = {"": made}
    with pytest.raises(Failure, match="there is no profile 'job'"):
        await made.choose({"profile": "job"})
    around = spawner(job_name="around")
    made.user.spawners = {"": around}
    assert await made.choose({"profile": "job"}) == {}
    assert made._held is around


async def test_an_unknown_profile_is_refused() -> None:
    made = spawner(profile_list=[{"slug": "a", "display_name": "A"}])
    with pytest.raises(Failure, match="there is no profile") as raised:
        await made.choose({"profile": "a\n#SBATCH --gres=gpu:8"})
    assert raised.value.status_code == 400


async def test_a_field_that_isnt_in_the_form_is_refused() -> None:
    with pytest.raises(Failure, match="account isn't yours to choose"):
        await spawner(form_fields=["qos"]).choose({"account": "physics"})


@pytest.mark.parametrize("marked", [None, 0, 1, 2])
async def test_form_api_and_link_have_one_default(marked: int | None) -> None:
    every = [{"slug": s, "display_name": s, "override": {"mem_mib": 100 + at}} for at, s in enumerate("abc")]
    if marked is not None:
        every[marked]["default"] = True
    made = spawner(profile_list=every)
    made._book = book(Site())
    form = await made.render_form()
    (ticked,) = re.findall(r'value="(\w)" checked', form)
    assert await made.choose({"profile": ticked}) == await made.choose({}) == {"mem_mib": 100 + (marked or 0)}


def test_the_state_survives_a_restart_of_the_hub() -> None:
    made = spawner()
    made.job_id = "42"
    other = spawner()
    other.load_state(made.get_state())
    assert other.job_id == "42"
    other.clear_state()
    assert other.job_id == ""


async def test_silence_of_slurm_is_no_reason_to_give_a_session_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(self: object, job_id: str, age: float) -> Job | None:
        raise slurm.SlurmError("squeue failed: Unable to contact slurm controller")

    monkeypatch.setattr(slurm.JobTable, "get", away)
    made = spawner()
    made.job_id = "42"
    assert await made.poll() is None


def pipes() -> set[str]:
    """Those that this process holds."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return {name for name in found if name.startswith("pipe:")}


async def test_a_command_that_hangs_below_sudo_is_left_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_root(group: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "killpg", of_root)
    note, before = tmp_path / "pid", pipes()
    command = ["sh", "-c", f"echo $$ > {note}.new; mv {note}.new {note}; exec sleep 60"]
    with pytest.raises(slurm.SlurmError, match="did not answer"):
        # Of which it reads nothing.
        await slurm.run(command, patience_s=2, stdin=b"x" * (1 << 20))
    monkeypatch.undo()
    pid = int(note.read_text())
    assert alive(pid), "it isn't waited for"
    await until(lambda: pipes() <= before, "nor are its pipes held")
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not alive(pid), "it is waited for once it ends")


async def until(true: Callable[[], object], what: str) -> None:
    """As `eventually`, while the loop goes on."""
    for _ in range(400):
        if true():
            return
        await asyncio.sleep(0.05)
    pytest.fail(what)


ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.parametrize(("number", "most"), [(1, "2048 KiB"), (2, "64 KiB")])
async def test_a_users_command_that_writes_without_end_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, most: str
) -> None:
    """`~/.bashrc` of a user, say, on the host to which exec_prefix leads."""
    bashrc = f"sleep 600 & echo $! > {tmp_path}/child; cat /dev/zero >&{number}"
    made = spawner(node_python="python", exec_prefix=["sh", "-c", bashrc, "{username}"])
    made.user = User(ME)
    before = pipes()
    with pytest.raises(slurm.SlurmError, match=f"python wrote more than {most}"):
        await made.job_program("port", "x")
    child = int((tmp_path / "child").read_text())
    await until(lambda: not alive(child), "its children are ended")
    await until(lambda: pipes() <= before, "its pipes are closed")


async def test_a_users_command_for_which_nobody_waits_any_more_fills_no_memory(tmp_path: Path) -> None:
    note, before = tmp_path / "pid", pipes()
    endless = f"echo $$ > {note}.new; mv {note}.new {note}; sleep 1; exec cat /dev/zero"
    asked = asyncio.ensure_future(slurm.run(["sh", "-c", endless], user=ME))
    await until(note.exists, "it runs")
    asked.cancel()
    await until(lambda: not alive(int(note.read_text())), "it is ended")
    await until(lambda: pipes() <= before, "its pipes are closed")


async def test_slurms_word_on_all_servers_may_be_long_and_a_users_answer_up_to_the_limit() -> None:
    assert len(await slurm.run(["head", "-c", str(slurm.OUT_MOST + 1), "/dev/zero"])) == slurm.OUT_MOST + 1
    assert len(await slurm.run(["head", "-c", str(slurm.OUT_MOST), "/dev/zero"], user=ME)) == slurm.OUT_MOST
    long = b"x" * (1 << 20)
    assert await slurm.run(["cat"], user=ME, stdin=long) == long.decode()
    # One that reads nothing of it, and one that fails.
    assert await slurm.run(["echo", "done"], user=ME, stdin=long) == "done\n"
    with pytest.raises(slurm.SlurmError, match=r"^sh failed: why$"):
        await slurm.run(["sh", "-c", "echo why >&2; exit 3"], user=ME)


def home_with_a_module(home: Path, python: str) -> Path:
    """A home whose `usercustomize` is run by each start of that Python. Returns the file that says so."""
    env, ran = {"HOME": str(home)}, home / "ran"
    where = subprocess.run(
        [python, "-m", "site", "--user-site"], env=env, capture_output=True, text=True, check=False
    )
    site = Path(where.stdout.strip())
    site.mkdir(parents=True)
    (site / "usercustomize.py").write_text(f"open({str(ran)!r}, 'w')")
    subprocess.run([python, "-c", ""], env=env, check=True)
    assert ran.exists()
    ran.unlink()
    return ran


async def test_no_module_of_the_users_runs_on_the_hubs_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = "/usr/bin/python3"  # The one of a virtual environment looks into no home.
    ran = home_with_a_module(tmp_path, python)
    monkeypatch.setattr("os.path.expanduser", lambda path: str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(server_job.__file__).parents[1]))
    made = spawner(node_python=python)
    made.user = User(ME)
    (tmp_path / "log").write_text("said")
    assert await made.job_program("tail", str(tmp_path / "log")) == "said"
    assert not ran.exists()


async def test_a_user_database_that_hangs_holds_up_neither_the_hub_nor_a_start_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, answers = [], threading.Event()

    def hangs(user: str) -> object:
        asked.append(user)
        answers.wait(20)
        raise KeyError(user)

    monkeypatch.setattr("pwd.getpwnam", hangs)
    monkeypatch.setattr(slurm, "USERS_S", 0.5)
    began = time.monotonic()
    starts = [asyncio.ensure_future(slurm.run(["true"], user="far")) for _ in range(3)]
    await asyncio.sleep(0)
    assert time.monotonic() - began < 0.4, "the hub goes on"
    for start in starts:
        with pytest.raises(slurm.SlurmError, match="user database does not answer when asked for far"):
            await start
    assert asked == ["far"]
    monkeypatch.setattr(slurm, "USERS_S", 20.0)
    again = asyncio.ensure_future(slurm.run(["true"], user="far"))
    await asyncio.sleep(0)
    answers.set()
    with pytest.raises(slurm.SlurmError, match="doesn't know the user far"):
        await again
    assert slurm._asked == {}


async def test_one_squeue_serves_all_servers_as_the_hub_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], dict[str, Any]]] = []

    async def run(argv: list[str], **more: Any) -> str:
        asked.append((argv, more))
        return squeue(argv, *(f"{job}|RUNNING|None|N/A|n1|" for job in range(20)))

    monkeypatch.setattr(slurm, "run", run)
    table = slurm.JobTable("jupyter")
    jobs = await asyncio.gather(*(table.get(str(job), 60) for job in range(20)))
    assert [job.state for job in jobs if job] == ["RUNNING"] * 20
    ((argv, more),) = asked
    assert (argv[0], more) == ("squeue", {}), "no user to become"


async def test_a_hidden_job_is_asked_for_as_its_user_and_not_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], dict[str, Any]]] = []

    async def run(argv: list[str], **more: Any) -> str:
        if "-a" in argv:
            return ""
        asked.append((argv, more))
        return squeue(argv, "42|PENDING|Resources|N/A||")

    monkeypatch.setattr(slurm, "run", run)
    made = spawner(job_name="hidden", poll_age_s=0, exec_prefix=["sudo", "-u", "{username}"])
    made.job_id = "42"
    assert [await made.poll() for _ in range(20)] == [None] * 20
    ((argv, more),) = asked
    assert argv[:4] == ["squeue", "-h", "-j", "42"], "as sudoers allows it"
    assert more == {"user": "alice", "prefix": ["sudo", "-u", "alice"]}
    made.clear_state()
    made.job_id = "43"
    await made.poll()
    assert asked[-1][0][3] == "43"


async def test_a_node_is_reached_where_slurm_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(argv: list[str]) -> str:
        assert argv == ["scontrol", "show", "node", "-o", "n1"]
        return "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=other Version=24.11"

    monkeypatch.setattr(slurm, "run", run)
    assert await slurm.node_address("n1") == "10.0.0.7"


@pytest.mark.parametrize(
    ("settings", "addresses", "host"),
    [
        ({}, ["fd00::7", "10.0.0.7"], "10.0.0.7"),
        ({"ip": "::"}, ["fd00::7", "10.0.0.7"], "[fd00::7]"),
        ({"ip": "10.0.0.8"}, ["10.0.0.7", "10.0.0.8"], "10.0.0.8"),
        # Whoever asks chooses: the Hub, and its proxy, which may be elsewhere.
        ({"ip": ""}, ["fd00::7", "10.0.0.7"], "n1.lab"),
        ({"ip": "localhost"}, ["10.0.0.7"], "n1.lab"),
        ({}, ["10.0.0.7", "10.0.0.8"], "n1.lab"),
        ({}, ["127.0.1.1"], "n1.lab"),
        ({}, ["fd00::7"], "n1.lab"),
        # The certificate is of the name.
        ({"internal_ssl": True}, ["10.0.0.7"], "n1.lab"),
    ],
)
async def test_the_hub_asks_a_server_in_the_family_in_which_it_listens(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], addresses: list[str], host: str
) -> None:
    def getaddrinfo(name: str, port: object, family: int, *more: object, **how: object) -> list[Any]:
        assert name == "n1.lab"
        found = [a for a in addresses if (":" in a) == (family == socket.AF_INET6)]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(family, socket.SOCK_STREAM, 6, "", (a, 0)) for a in found]

    async def run(argv: list[str], **more: Any) -> str:
        return "NodeName=n1 NodeAddr=n1.lab" if argv[0] == "scontrol" else squeue(argv, "42|RUNNING|None|N/A|n1|")

    async def port(*argv: str) -> str:
        return '{"port": 81}'

    made = spawner(job_name=f"family-{settings}-{addresses}", **settings)
    made.job_id, made.job_program = "42", port
    monkeypatch.setattr(slurm, "run", run)
    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
    assert await made._up() == f"http{'s' if made.internal_ssl else ''}://{host}:81"


async def test_a_node_named_by_an_ipv6_address_is_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(argv: list[str], **more: Any) -> str:
        return "NodeName=n1 NodeAddr=fd00::7" if argv[0] == "scontrol" else squeue(argv, "42|RUNNING|None|N/A|n1|")

    async def port(*argv: str) -> str:
        return '{"port": 81}'

    made = spawner(job_name="brackets", ip="::")
    made.job_id, made.job_program = "42", port
    monkeypatch.setattr(slurm, "run", run)
    assert await made._up() == "http://[fd00::7]:81"


async def test_a_job_that_is_gone_is_an_ended_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(self: object, job_id: str, age: float) -> Job | None:
        return None

    async def nor_to_its_user(user: str, job_id: str, prefix: object) -> Job | None:
        return None

    monkeypatch.setattr(slurm.JobTable, "get", gone)
    monkeypatch.setattr("gresshopper_jupyter.spawner.job_of", nor_to_its_user)
    made = spawner()
    made.job_id = "42"
    assert await made.poll() == 0
    assert await spawner().poll() == 0


class Door:
    """A server's address as the hub keeps it."""

    ip = "127.0.0.1"

    def __init__(self, port: int) -> None:
        self.port = port


@pytest.mark.parametrize(
    ("answers", "state", "silent_for", "lost"),
    [
        (False, "MIXED+NOT_RESPONDING", 61, True),
        (False, "DOWN*", 61, True),
        (False, "ALLOCATED*+DRAIN", 61, True),
        # One witness alone may be behind a broken network, and a moment is none.
        (True, "MIXED+NOT_RESPONDING", 61, False),
        (False, "MIXED", 61, False),
        (False, "MIXED+NOT_RESPONDING", 30, False),
    ],
)
async def test_a_server_is_lost_when_neither_it_nor_its_node_is_heard(
    monkeypatch: pytest.MonkeyPatch, answers: bool, state: str, silent_for: float, lost: bool
) -> None:
    asked: list[str] = []

    async def run(argv: list[str], **more: Any) -> str:
        asked.append(" ".join(argv[:2]))
        if argv[0] == "scontrol":
            return f"NodeName=n1 NodeAddr=127.0.0.1 State={state} Weight=1"
        return squeue(argv, "42|RUNNING|None|N/A|n1|") if argv[0] == "squeue" else ""

    monkeypatch.setattr(slurm, "run", run)
    monkeypatch.setattr("gresshopper_jupyter.spawner.run", run)
    now = 1000.0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if not answers:
            listener.close()
        made = spawner(job_name=f"lost-{answers}-{state}-{silent_for}", poll_age_s=0)
        made.job_id, made._server = "42", Door(port)
        monkeypatch.setattr("gresshopper_jupyter.spawner.time.monotonic", lambda: now)
        assert await made.poll() is None, "it may be there in a moment"
        now += silent_for
        assert await made.poll() == (1 if lost else None)
        # The hub asks once more before it takes the server away, and then nobody needs the job.
        assert await made.poll() == (1 if lost else None)
    assert ("scancel --signal=CONT" in asked) is not answers
    if lost:
        await made.run_post_stop_hook()
        assert asked[-1] == "scancel 42"


async def test_a_site_may_leave_lost_nodes_to_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(argv: list[str], **more: Any) -> str:
        return squeue(argv, "42|RUNNING|None|N/A|n1|")

    monkeypatch.setattr(slurm, "run", run)
    made = spawner(job_name="left", lost_node_s=0)
    made.job_id, made._server = "42", Door(1)
    assert await made.poll() is None


def test_the_servers_environment_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token is in one file of mode 0600, not in the script and not in an argument."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    sbatch = bin_dir / "sbatch"  # a stand-in for Slurm's command, at the process boundary
    sbatch.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/argv\ncat > {tmp_path}/script\nenv > {tmp_path}/env\necho "77;c"\n'
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_dir}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    request = {
        "options": ["--mem=1M"],
        "python": "/p",
        "shell": "/bin/sh",
        "prologue": "",
        "env": {"JUPYTERHUB_API_TOKEN": "s3cret"},
        "cmd": ["x"],
    }
    monkeypatch.setattr("sys.stdin", __import__("io").StringIO(json.dumps(request)))
    assert server_job.submit() == 0
    said = json.loads(capsys.readouterr().out)
    log = Path(said["log"])
    assert (said["job"], stat.S_IMODE(log.stat().st_mode)) == ("77", 0o600)
    (env_file,) = (tmp_path / ".local/share/gresshopper/servers").glob("*.json")
    assert stat.S_IMODE(env_file.stat().st_mode) == 0o600
    assert "s3cret" in env_file.read_text()
    for name in ("argv", "script", "env"):
        assert "s3cret" not in (tmp_path / name).read_text()
    assert "SLURM_JOB_ID" not in (tmp_path / "env").read_text()
    env_file.chmod(0o644)
    with pytest.raises(PermissionError):
        server_job.read_secret(env_file)


def test_the_port_goes_into_the_service_url() -> None:
    assert server_job.with_port("http://0.0.0.0:0/user/a/", 81) == "http://0.0.0.0:81/user/a/"
    assert server_job.with_port("http://[::1]:0/x", 81) == "http://[::1]:81/x"


@pytest.mark.parametrize("ending", ["by itself", "told to go"])
def test_the_epilogue_runs_in_the_prologues_shell_however_the_server_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    (tmp_path / ".bash_profile").write_text('module() { echo "module $1"; }\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    own = {"shell": "/bin/bash -l", "epilogue": "module unload; echo key=$JUPYTERHUB_SERVICE_URL"}
    lasts = "3" if ending == "by itself" else "60"
    process = launcher(tmp_path, [sys.executable, "-c", SERVER, lasts], **own)
    wait_for(tmp_path / ("told" if ending == "by itself" else "x.port"))
    process.terminate()
    out, _ = process.communicate(timeout=20)
    assert out.endswith("module unload\nkey=\n"), "without what the server's environment has"


async def test_a_user_whom_only_the_nodes_know_needs_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    made = spawner(node_python="python", exec_prefix=["env"])
    made.user = User("nobody-here")
    asked: dict[str, Any] = {}

    async def run(argv: object, **more: Any) -> str:
        asked.update(more)
        return ""

    monkeypatch.setattr("gresshopper_jupyter.spawner.run", run)
    await made.job_program("port", "x")
    assert (asked["env"]["USER"], asked["prefix"]) == ("nobody-here", ["env"])
    assert "HOME" not in asked["env"]
    with pytest.raises(slurm.SlurmError, match="exec_prefix has to reach one that does"):
        await slurm.run(["true"], user="nobody-here")
