"""What users may choose: Slurm's answers read, profiles in kubespawner's shape, and what comes back checked."""

from __future__ import annotations

import time
from typing import Any

import pytest
from gresshopper_jupyter import offer, profiles
from gresshopper_jupyter.failures import Failure
from gresshopper_jupyter.offer import SURE_S, Book, Offer, Site

PARTITIONS = """\
PartitionName=notebook AllowGroups=ALL AllowAccounts=physics,bio AllowQos=ALL Default=YES DenyQos=none MaxTime=1-00:00:00 State=UP
PartitionName=long AllowGroups=ALL DenyAccounts=bio AllowQos=calm Default=NO MaxTime=UNLIMITED State=UP
PartitionName=broken AllowAccounts=ALL AllowQos=ALL Default=NO MaxTime=UNLIMITED State=DOWN
"""
SINFO = "notebook|8|16000|1/2/0/3\nnotebook|16+|32000+|0/1/0/1\nlong|8|16000|0/0/0/0\n"
ASSOCIATIONS = (
    "|physics||normal\nalice|physics||calm,normal\nalice|bio|notebook|normal\nbob|bio||normal\nroot|root||normal\n"
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
        return Site(associations=offer.parse_associations("alice|physics||normal\nalice|new||normal\n"))

    monkeypatch.setattr(Book, "_ask", ask)
    book = Book()
    before = Site(associations=offer.parse_associations("alice|physics||normal\n"))
    book._site, book._at = before, time.monotonic() - SURE_S - 1
    await book.check("alice", {"account": "physics"}, "", "")
    assert asked == 0, "what is allowed is allowed by the answer of before"
    await book.check("alice", {"account": "new"}, "", "")
    assert asked == 1
    with pytest.raises(Failure, match="account 'forged' isn't yours"):
        await book.check("alice", {"account": "forged"}, "", "")
    assert asked == 1, "Slurm is not asked at each forged choice"
