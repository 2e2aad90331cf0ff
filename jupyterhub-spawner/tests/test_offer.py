"""What users may choose: Slurm's answers read, profiles in kubespawner's shape, and what comes back checked."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from gresshopper_jupyter import offer, profiles, slurm
from gresshopper_jupyter.failures import Failure
from gresshopper_jupyter.offer import SURE_S, Book, Offer, Site

PARTITIONS = """\
PartitionName=notebook AllowGroups=ALL AllowAccounts=physics,bio AllowQos=ALL Default=YES DenyQos=none MaxTime=1-00:00:00 State=UP
PartitionName=long AllowGroups=ALL DenyAccounts=bio AllowQos=calm Default=NO MaxTime=UNLIMITED State=UP
PartitionName=broken AllowAccounts=ALL AllowQos=ALL Default=NO MaxTime=UNLIMITED State=DOWN
"""
SINFO = "notebook|8|16000|1/2/0/3\nnotebook|16+|32000+|0/1/0/1\nlong|8|16000|0/0/0/0\n"
ASSOCIATIONS = (
    "|physics||normal|root\nalice|physics||calm,normal|\nalice|bio|notebook|normal|\nbob|bio||normal|\n"
    "root|root||normal|\n"
)


@pytest.fixture
def alice() -> Offer:
    site = Site(
        offer.parse_partitions(PARTITIONS, SINFO),
        offer.parse_associations(ASSOCIATIONS),
        {"alice": "physics"},
        offer.parse_reservations(
            "ReservationName=course Accounts=bio Users=(null) State=ACTIVE\nReservationName=old Users=alice State=INACTIVE"
        ),
    )
    return site.offer("alice")


def test_partitions_are_read_with_their_bounds() -> None:
    found = offer.parse_partitions(PARTITIONS, SINFO)
    assert set(found) == {"notebook", "long"}
    notebook = found["notebook"]
    assert (notebook.cpus, notebook.mem_mib, notebook.nodes, notebook.idle) == (16, 32000, 4, 3)
    assert (notebook.max_min, found["long"].max_min) == (1440, None)


def test_free_gpus_are_told_by_pool() -> None:
    rows = "main|UP|4|1|h100\nmain|UP|4|4|a100\nmain|DRAINING|4|4|a100\nmain|PENDING|0|0|\nempty|PENDING|0|0|\n"
    told = Site(gpus=offer.parse_gpus(rows)).free_gpus()
    assert told == "GPUs that are free for cells now: 5 of 12 (a100, h100)."
    both = Site(gpus=offer.parse_gpus(rows + "big|UP|8|0|\n")).free_gpus()
    assert both == "GPUs that are free for cells now: big 0 of 8; main 5 of 12 (a100, h100)."
    assert Site().free_gpus() == ""


def test_each_sees_their_own(alice: Offer) -> None:
    assert alice.accounts == ("physics", "bio")
    assert alice.reservations == ("course",)
    assert alice.site.offer("bob").accounts == ("bio",)
    assert [p.name for p in alice.partitions()] == ["notebook", "long"]
    assert [p.name for p in alice.site.offer("bob").partitions()] == ["notebook"]
    assert alice.qos(alice.partition("long")) == ["calm"]
    assert alice.qos(alice.partition("notebook"), "bio") == ["normal"]


def test_what_is_allowed_comes_back_as_traits(alice: Offer) -> None:
    chosen = {"account": "bio", "qos": "normal", "mem_mib": "2000", "time_limit_min": "60"}
    assert alice.check(chosen, "", "") == {**chosen, "mem_mib": 2000, "time_limit_min": 60}


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"account": "chemistry"}, "account 'chemistry' isn't yours; yours are: physics, bio"),
        ({"account": "bio", "partition": "long"}, "partition long doesn't take account bio"),
        ({"qos": "calm", "account": "bio"}, "QOS 'calm' isn't to be had with account bio"),
        ({"qos": "normal", "partition": "long"}, "it may be: calm"),
        ({"partition": "broken"}, "isn't open to you; those that are: notebook, long"),
        ({"mem_mib": "999999"}, "more than partition notebook gives a server, which is 32000"),
        ({"cpus": "0"}, "a whole number above 0"),
        ({"cpus": "1; rm"}, "a whole number above 0"),
        ({"time_limit_min": "1441"}, "which is 1440"),
        ({"reservation": "old"}, "isn't active, or not for you"),
    ],
)
def test_what_isnt_allowed_is_refused_in_a_sentence(alice: Offer, chosen: dict[str, str], says: str) -> None:
    with pytest.raises(Failure) as raised:
        alice.check(chosen, "", "")
    assert says in raised.value.jupyterhub_message
    assert raised.value.status_code == 400


TREE = (
    "|physics||normal|root\n|physics_ml||normal|physics\n|physics_ml_x||normal|physics_ml\n|bio||normal|root\n"
    "ada|physics_ml||high,normal|\neve|bio||high|\nMax|physics_ml_x||normal|\n"
)
GPU = "PartitionName=gpu AllowAccounts=Physics AllowQos=High Default=YES MaxTime=UNLIMITED State=UP\n"
NOT_BIO = "PartitionName=gpu DenyAccounts=PHYSICS DenyQos=HIGH Default=YES MaxTime=UNLIMITED State=UP\n"


def tree(partition: str, series: tuple[int, int], reservations: str = "") -> Site:
    return Site(
        offer.parse_partitions(partition, ""),
        offer.parse_associations(TREE),
        {},
        offer.parse_reservations(reservations),
        offer.parse_parents(TREE),
        series >= offer.INHERITS,
    )


def test_a_rule_on_an_account_holds_for_those_below_it_and_no_names_case_counts() -> None:
    site = tree(GPU, (24, 11))
    for user, qos in {"ada": ["high"], "Max": [], "eve": ["high"]}.items():
        mine = site.offer(user)
        assert [p.name for p in mine.partitions()] == ([] if user == "eve" else ["gpu"])
        assert mine.qos(mine.partition("gpu")) == qos
    chosen = {"partition": "gpu", "account": "Physics_ML", "qos": "HIGH"}
    made = site.offer("ada").check(chosen, "", "")
    assert made == {"partition": "gpu", "account": "physics_ml", "qos": "high"}, "as Slurm spells them"
    with pytest.raises(Failure, match="partition gpu doesn't take account bio"):
        site.offer("eve").check({"account": "bio"}, "gpu", "")


def test_a_denied_account_denies_those_below_it() -> None:
    site = tree(NOT_BIO, (24, 11))
    assert [site.offer(user).partitions() != [] for user in ("ada", "Max", "eve")] == [False, False, True]
    eve = site.offer("eve")
    assert eve.qos(eve.partition("gpu")) == []


def test_before_2302_a_rule_is_for_the_account_alone() -> None:
    assert tree(GPU, (22, 5)).offer("ada").partitions() == []
    assert [p.name for p in tree(NOT_BIO, (22, 5)).offer("ada").partitions()] == ["gpu"]


def test_slurm_heeds_no_denial_where_something_is_allowed() -> None:
    both = "PartitionName=gpu AllowAccounts=physics DenyAccounts=physics_ml Default=YES State=UP\n"
    assert tree(both, (24, 11)).offer("ada").partitions() != []


def test_reservations_are_for_whom_slurm_lets_in() -> None:
    every = {
        "above": "Users=(null) Groups=(null) Accounts=Physics",
        "but_ada": "Users=-ada Accounts=(null)",
        "but_bio": "Users=(null) Accounts=-bio",
        "both": "Users=ada,eve Accounts=physics",
        "her": "Users=Max",
        "groups": "Users=(null) Groups=staff Accounts=(null)",
    }
    shown = "".join(f"ReservationName={name} {who} State=ACTIVE\n" for name, who in every.items())
    for series in ((22, 5), (24, 11)):
        site = tree(GPU, series, shown)
        assert site.offer("ada").reservations == ("above", "but_bio", "both")
        assert site.offer("Max").reservations == ("above", "but_ada", "but_bio", "her")
        assert site.offer("eve").reservations == ("but_ada",)


def test_the_cluster_is_read_as_scontrol_shows_it() -> None:
    shown = "ClusterName             = lab\nSLURM_CONF = /etc/slurm/slurm.conf\nSLURM_VERSION           = 24.11.5\n"
    assert offer.parse_cluster(shown) == offer.Cluster("lab", (24, 11))
    assert offer.parse_cluster("") == offer.Cluster()


IMAGE: dict[str, Any] = {
    "slug": "lab",
    "display_name": "Lab",
    "override": {"mem_mib": 1},
    "profile_options": {
        "size": {
            "choices": {
                "s": {"override": {"mem_mib": 2}},
                "m": {"default": True, "override": {"mem_mib": 3}},
            }
        },
        "feature": {
            "display_name": "Feature",
            "choices": {"any": {}},
            "unlisted_choice": {
                "enabled": True,
                "display_name": "Another feature",
                "validation_regex": "[a-z]+",
                "validation_message": "small letters",
                "override": {"constraint": "{value}"},
            },
        },
    },
}


def test_options_of_a_profile() -> None:
    every = [IMAGE, {"slug": "staff", "display_name": "Staff", "groups": ["staff"]}]
    mine = profiles.offered(every, [])
    assert profiles.overrides(mine, {}) == {"mem_mib": 3}
    assert profiles.overrides(mine, {"profile": "lab", "size": "s"}) == {"mem_mib": 2}
    free = {"feature": profiles.OTHER, "feature" + profiles.UNLISTED: "fast"}
    assert profiles.overrides(mine, free) == {"mem_mib": 3, "constraint": "fast"}
    assert profiles.overrides(profiles.offered(every, ["staff"]), {"profile": "staff"}) == {}


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ({"profile": "staff"}, "there is no profile 'staff' here, or not for you"),
        ({"size": "xl"}, "size has no choice 'xl'; it has s, m"),
        (
            {"feature": "unlisted-choice", "feature--unlisted-choice": "A;b"},
            "Another feature can't be 'A;b': small letters",
        ),
    ],
)
def test_what_no_profile_offers_is_refused(chosen: dict[str, str], says: str) -> None:
    every = [IMAGE, {"slug": "staff", "display_name": "Staff", "groups": ["staff"]}]
    with pytest.raises(Failure) as raised:
        profiles.overrides(profiles.offered(every, []), chosen)
    assert says in raised.value.jupyterhub_message


def test_no_text_of_a_users_becomes_shell() -> None:
    unlisted = {"enabled": True, "validation_regex": ".*", "override": {"prologue": "{value}"}}
    every = [{"slug": "a", "profile_options": {"x": {"unlisted_choice": unlisted}}}]
    with pytest.raises(Failure, match="never done"):
        profiles.overrides(every, {"x--unlisted-choice": "rm -r ~"})


def test_the_forms_fields_become_what_the_api_takes() -> None:
    form = {
        "profile": ["lab"],
        "profile-lab--size": ["s"],
        "profile-other--size": ["x"],
        "field-account": ["bio"],
        "field-qos": [""],
        "field-mem_mib": ["5"],
        "_xsrf": ["t"],
    }
    assert profiles.from_form(form, ["account", "qos"]) == {"profile": "lab", "size": "s", "account": "bio"}


async def test_a_choice_is_refused_by_an_answer_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def ask(book: Book) -> Site:
        nonlocal asked
        asked += 1
        return Site(associations=offer.parse_associations("alice|physics||normal|\nalice|new||normal|\n"))

    monkeypatch.setattr(Book, "_ask", ask)
    book = Book()
    before = Site(associations=offer.parse_associations("alice|physics||normal|\n"))
    book._site.last, book._site._at = before, time.monotonic() - SURE_S - 1
    await book.check("alice", {"account": "physics"}, "", "")
    assert asked == 0, "what is allowed is allowed by the answer of before"
    await book.check("alice", {"account": "new"}, "", "")
    assert asked == 1
    with pytest.raises(Failure, match="account 'forged' isn't yours"):
        await book.check("alice", {"account": "forged"}, "", "")
    assert asked == 1, "Slurm is not asked at each forged choice"


class Slurm:
    """Stands in for Slurm's commands at the process boundary, with the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.asked: list[list[str]] = []
        #: slurmdbd hangs until this is set, then it gives up; slurmctld is there, or is not.
        self.hangs: asyncio.Event | None = None
        self.is_there = True
        monkeypatch.setattr(offer, "run", self.run)
        monkeypatch.setattr(offer, "_gpus", self.no_gpus)
        monkeypatch.setattr(slurm.time, "monotonic", lambda: self.now)

    async def no_gpus(self) -> tuple[()]:
        return ()

    async def run(self, argv: list[str]) -> str:
        self.asked.append(argv)
        if not self.is_there:
            raise slurm.SlurmError(f"{argv[0]} failed: Unable to contact slurm controller")
        if argv[0] != "sacctmgr":
            shown = {"partition": GPU, "config": "ClusterName = lab\nSLURM_VERSION = 24.11.5\n"}
            return shown.get(argv[2], "") if argv[0] == "scontrol" else ""
        if self.hangs:
            await self.hangs.wait()
            raise slurm.SlurmError("sacctmgr did not answer within 30 s")
        return TREE if argv[3] == "associations" else "ada|physics_ml\n"

    def times(self, program: str) -> int:
        return len([argv for argv in self.asked if argv[0] == program])


async def test_the_form_asks_for_this_cluster_and_its_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Slurm(monkeypatch)
    ada = await Book().offer("ada")
    assert [p.name for p in ada.partitions()] == ["gpu"]
    assert ["sacctmgr", "-nP", "show", "associations", "cluster=lab"] in [argv[:5] for argv in now.asked]


async def test_viewers_with_older_data_dont_wait_for_a_slurmdbd_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Slurm(monkeypatch)
    book = Book()
    assert not (await book.offer("ada")).site.stale
    now.hangs, now.asked[:] = asyncio.Event(), []
    now.now += offer.FRESH_S + 1
    viewers = await asyncio.gather(*(book.offer("ada", patience_s=0) for _ in range(20)))
    assert {(v.accounts, v.site.stale) for v in viewers} == {(("physics_ml",), True)}
    assert now.times("sacctmgr") <= 1
    # All those who must have an answer of now wait for the same one.
    refused = [asyncio.ensure_future(book.check("ada", {"account": "forged"}, "", "")) for _ in range(20)]
    now.hangs.set()
    answers = await asyncio.gather(*refused, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Failure] * 20
    assert now.times("sacctmgr") == 1


async def test_while_slurmdbd_is_away_it_is_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Slurm(monkeypatch)
    book = Book()
    await book.offer("ada")
    now.hangs, now.asked[:] = asyncio.Event(), []
    now.hangs.set()
    now.now += offer.FRESH_S + 1
    for _ in range(20):
        now.now += 0.1
        ada = await book.offer("ada")
        assert (ada.accounts, ada.site.stale) == (("physics_ml",), True)
    assert now.times("sacctmgr") == 1
    now.hangs = None
    now.now += SURE_S + 1
    assert not (await book.offer("ada")).site.stale, "that it is back is seen before the minute is over"


async def test_a_slurmctld_that_is_away_is_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Slurm(monkeypatch)
    now.is_there = False
    book = Book()
    for _ in range(20):
        now.now += 0.1
        with pytest.raises(slurm.SlurmError):
            await book.offer("ada")
    assert now.times("sinfo") == 1
    now.is_there = True
    now.now += SURE_S + 1
    assert (await book.offer("ada")).accounts == ("physics_ml",)
