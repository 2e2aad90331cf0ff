"""What a site offers may change: what users chose before is no reason to lock them out, and a site's slip is named."""

from __future__ import annotations

import re
from typing import Any

import pytest
from gresshopper_jupyter import profiles, slurm
from gresshopper_jupyter.failures import Failure
from gresshopper_jupyter.offer import Association, Book, Partition, Site
from gresshopper_jupyter.spawner import GresshopperSpawner
from test_docs import PAGE
from test_spawner import book, spawner
from traitlets import TraitError
from traitlets.config import Config

SMALL: dict[str, Any] = {
    "slug": "small",
    "display_name": "Small",
    "override": {"mem_mib": 512},
    "profile_options": {
        "cores": {"choices": {"one": {}, "four": {"override": {"cpus": 4}}}},
        "feature": {
            "choices": {"any": {}},
            "unlisted_choice": {"enabled": True, "validation_regex": "[a-z]+", "override": {"constraint": "{value}"}},
        },
    },
}
CHOSEN = {
    "profile": "small",
    "cores": "four",
    "feature": "unlisted-choice",
    "feature--unlisted-choice": "fast",
    "account": "physics",
    "cpus": "2",
}
SITE = Site({"main": Partition("main", is_default=True, cpus=8)}, (Association("alice", "physics", "", ("normal",)),))


class Api:
    """A request of the API, as JupyterHub has it at hand while the server starts."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def get_json_body(self) -> Any:
        return self._body


def who_chose(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any], site: Site = SITE, handler: Any = None, **settings: Any
) -> GresshopperSpawner:
    """A spawner as the hub starts it: with this choice, of this request or of before."""

    async def nothing(self: object) -> str:
        return ""

    monkeypatch.setattr(GresshopperSpawner, "submit", nothing)
    monkeypatch.setattr(GresshopperSpawner, "_up", nothing)
    made = spawner(**settings)
    made._book = book(site)
    made.user_options, made.handler = chosen, handler
    return made


async def told(made: GresshopperSpawner) -> list[str]:
    """The first sentences of the spawn page."""
    events = made.progress()
    first = [await events.__anext__()]
    if made._left_out:
        first.append(await events.__anext__())
    await events.aclose()
    return [event["message"] for event in first[1:]]


async def test_what_was_chosen_before_holds_while_it_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    made = who_chose(monkeypatch, CHOSEN, profile_list=[SMALL], form_fields=["account", "cpus"])
    await made.start()
    assert (made.mem_mib, made.cpus, made.constraint, made.account) == (512, 2, "fast", "physics")
    assert await told(made) == []


async def test_who_once_chose_has_a_server_after_the_site_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = who_chose(monkeypatch, CHOSEN)
    await made.start()
    assert (made.mem_mib, made.cpus, made.constraint, made.account) == (1024, 1, "", "")
    assert await told(made) == [
        "Not offered any more, and left out of your last choice: profile small, account physics, cpus 2"
    ]


@pytest.mark.parametrize(
    ("offers", "site", "cpus", "left"),
    [
        ({"profile_list": [{**SMALL, "slug": "tiny"}], "form_fields": ["account", "cpus"]}, SITE, 2, "profile small"),
        ({"profile_list": [SMALL], "form_fields": ["account"]}, SITE, 4, "cpus 2"),
        (
            {"profile_list": [{**SMALL, "profile_options": {}}], "form_fields": ["cpus"]},
            SITE,
            2,
            "account physics",
        ),
        (
            {"profile_list": [SMALL], "form_fields": ["account", "cpus"]},
            Site(SITE.partitions, (Association("alice", "bio", "", ()),)),
            2,
            "account physics",
        ),
    ],
)
async def test_only_what_isnt_offered_any_more_is_left_out(
    monkeypatch: pytest.MonkeyPatch, offers: dict[str, Any], site: Site, cpus: int, left: str
) -> None:
    made = who_chose(monkeypatch, CHOSEN, site, **offers)
    await made.start()
    assert (made.mem_mib, made.cpus) == (512, cpus)
    assert made.constraint == (
        "" if "profile" in left or not offers["profile_list"][0]["profile_options"] else "fast"
    )
    assert await told(made) == [f"Not offered any more, and left out of your last choice: {left}"]


async def test_an_options_text_goes_with_its_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = {"enabled": True, "validation_regex": "[0-9]+", "override": {"constraint": "{value}"}}
    option = {"choices": {"any": {}}, "unlisted_choice": digits}
    options = {**SMALL["profile_options"], "feature": option}
    made = who_chose(monkeypatch, CHOSEN, profile_list=[{**SMALL, "profile_options": options}])
    await made.start()
    assert (made.cpus, made.constraint) == (4, "")


@pytest.mark.parametrize("body", [CHOSEN, {"user_options": CHOSEN}, {"display_name": "mine", "user_options": CHOSEN}])
async def test_what_the_request_names_is_refused(monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]) -> None:
    made = who_chose(monkeypatch, CHOSEN, handler=Api(body))
    with pytest.raises(Failure, match="there is no profile 'small' here"):
        await made.start()


@pytest.mark.parametrize("body", [None, {}, {"display_name": "mine"}, {"user_options": None}])
async def test_a_request_that_names_nothing_has_the_choice_of_before(
    monkeypatch: pytest.MonkeyPatch, body: Any
) -> None:
    made = who_chose(monkeypatch, CHOSEN, handler=Api(body))
    await made.start()
    assert made.mem_mib == 1024


@pytest.mark.parametrize("way", ["form", "link"])
async def test_what_form_or_link_has_just_named_is_refused_if_it_has_gone(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    made = who_chose(monkeypatch, {}, profile_list=[SMALL])
    form = {"profile": ["small"], "profile-small--cores": ["four"]}
    link = {"opt-profile": ["small"], "opt-cores": ["four"]}
    said = await (made.options_from_form(form) if way == "form" else made.options_from_query(link))
    made.user_options = dict(said)
    made.profile_list = []
    with pytest.raises(Failure, match="there is no profile 'small' here"):
        await made.start()
    # The hub cleans up, and the next start names nothing.
    await made.run_post_stop_hook()
    await made.start()
    assert made.mem_mib == 1024


async def test_certificates_are_made_for_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def addresses(partition: str) -> list[str]:
        return {"": ["n1"]}[partition]

    async def hubs(self: object) -> dict[str, str]:
        return {}

    monkeypatch.setattr("gresshopper_jupyter.spawner.addresses", addresses)
    monkeypatch.setattr("jupyterhub.spawner.Spawner.create_certs", hubs)
    made = who_chose(monkeypatch, {"partition": "long"})
    await made.create_certs()
    assert made.ssl_alt_names == ["DNS:n1"]


async def test_silence_of_slurm_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(self: Book) -> Site:
        raise slurm.SlurmError("sinfo did not answer within 30 s")

    monkeypatch.setattr(Book, "_ask", silent)
    made = who_chose(monkeypatch, {"account": "physics"}, form_fields=["account"])
    made._book = Book()
    with pytest.raises(Failure, match="Slurm doesn't answer") as raised:
        await made.start()
    assert raised.value.status_code == 503


async def test_an_accounting_that_never_answered_leaves_no_account_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked(argv: list[str], **_: Any) -> str:
        if argv[0] == "sacctmgr":
            raise slurm.SlurmError("sacctmgr did not answer within 30 s")
        return "PartitionName=long State=UP Default=YES" if "partition" in argv else ""

    monkeypatch.setattr("gresshopper_jupyter.offer.run", asked)
    made = who_chose(monkeypatch, {"account": "physics"}, form_fields=["account"])
    made._book = Book()
    with pytest.raises(Failure, match="accounting has not answered") as raised:
        await made.start()
    assert raised.value.status_code == 503


async def test_a_sites_slip_in_the_last_profile_is_told_and_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [{"slug": "small"}, {"slug": "big", "override": {"mem": 5}}]
    made = who_chose(monkeypatch, {"profile": "big"}, profile_list=offered)
    with pytest.raises(Failure, match="tell your administrator"):
        await made.start()


async def test_what_was_left_out_is_told_at_its_own_start_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = who_chose(monkeypatch, {"profile": "gone"}, profile_list=[{"slug": "small"}])
    await made.choice()
    assert "profile gone" in made._left_out
    made.clear_state()
    assert made._left_out == ""


# A site's slips.


def test_a_profile_without_a_slug_has_kubespawners() -> None:
    made = spawner(profile_list=[{"display_name": "Big GPU, 1,000 GB (A_100)"}, {"display_name": "Größe"}])
    assert [p["slug"] for p in made.profile_list] == ["big-gpu-1000-gb-a-100", "große"]


async def test_a_function_may_leave_the_slug_out_as_well() -> None:
    made = spawner(profile_list=lambda of: [{"display_name": "Small", "override": {"mem_mib": 5}}])
    assert await made.choose({"profile": "small"}) == {"mem_mib": 5}
    made._book = book(Site())
    assert 'value="small" checked' in await made.render_form()


def unlisted(**has: Any) -> list[dict[str, Any]]:
    option = {"unlisted_choice": {"enabled": True, **has}}
    return [{"slug": "a", "profile_options": {"x": option}}]


SLIPS = [
    (
        [{"display_name": "A", "kubespawner_override": {}}],
        "profile 1 has 'kubespawner_override', which means nothing here; it may have slug, display_name, description, "
        "default, groups, override, profile_options",
    ),
    ([{"slug": "a", "overide": {}}], "profile 1 has 'overide'"),
    ([{"slug": "a"}, {"description": "x"}], "profile 2 has neither a slug nor a display_name"),
    ([{"display_name": "A!"}, {"slug": "a"}], "two profiles have the slug 'a'"),
    ([{"slug": "a", "groups": "staff"}], "profile 'a' has a text as its groups: a list is needed"),
    ([{"slug": "a", "override": ["cpus"]}], "override of profile 1 is no dictionary"),
    ([{"slug": "a", "profile_options": {"x": {"choice": {}}}}], "option 'x' of profile 'a' has 'choice'"),
    ([{"slug": "a", "profile_options": {"x": {}}}], "option 'x' of profile 'a' has no choices"),
    (
        [{"slug": "a", "profile_options": {"x": {"choices": {"y": {"overrides": {}}}}}}],
        "choice 'y' of option 'x' of profile 'a' has 'overrides'",
    ),
    (
        [{"slug": "a", "profile_options": {"x": {"choices": {"y": 4}}}}],
        "choice 'y' of option 'x' of profile 'a' is no",
    ),
    (unlisted(regex="x"), "the unlisted_choice of option 'x' of profile 'a' has 'regex'"),
    (unlisted(validation_regex="("), "the validation_regex of option 'x' of profile 'a' can't be read"),
]


@pytest.mark.parametrize(("every", "says"), SLIPS)
def test_a_profile_that_cant_be_meant_so_is_refused_by_name(every: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(TraitError) as raised:
        GresshopperSpawner(config=Config({"GresshopperSpawner": {"profile_list": every}}))
    assert str(raised.value).startswith(f"GresshopperSpawner.profile_list: {says}")


async def test_a_function_that_slips_is_said_to_whom_it_meets() -> None:
    made = spawner(profile_list=lambda of: [{"slug": "a", "overide": {}}])
    with pytest.raises(Failure, match=r"profile_list: profile 1 has 'overide'.*; tell your administrator"):
        await made.choose({})


def test_what_the_page_shows_is_taken() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (shown,) = (block for block in blocks if "profile_list" in block)
    config = Config()
    exec(shown, {"c": config})
    every = config.GresshopperSpawner.profile_list
    assert GresshopperSpawner(config=config).profile_list == profiles.checked(every) == every


@pytest.mark.parametrize("ports", [[41000, 40000], [0, 100], [65000, 65536], [-2, -1]])
def test_a_range_without_ports_is_refused(ports: list[int]) -> None:
    with pytest.raises(TraitError, match=r"GresshopperSpawner.port_range can't be \["):
        GresshopperSpawner(config=Config({"GresshopperSpawner": {"port_range": ports}}))


@pytest.mark.parametrize("ports", [None, [40000, 40000], [1, 65535]])
def test_other_ranges_are_taken(ports: list[int] | None) -> None:
    assert spawner(port_range=ports).port_range == ports


async def test_a_profiles_setting_that_cant_be_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = {"slug": "a", "override": {"port_range": [41000, 40000]}}
    made = who_chose(monkeypatch, {}, profile_list=[profile])
    with pytest.raises(Failure, match=r"port_range can't be.*; tell your administrator"):
        await made.start()
