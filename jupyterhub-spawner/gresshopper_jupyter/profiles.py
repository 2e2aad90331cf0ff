"""A site's offers on the spawn page, and the user's choice: kubespawner's shape, checked. Pure.

A profile is `{"slug", "display_name", "description", "default", "groups", "override", "profile_options"}`. An option of
a profile is `{"display_name", "choices": {slug: {"display_name", "default", "override"}}, "unlisted_choice":
{"enabled", "display_name", "display_name_in_choices", "validation_regex", "validation_message", "override"}}`;
`{value}` in the latter's override is what the user wrote. An override sets traits of the spawner. Without a slug, a
profile has one from its display name.

A choice is a flat dictionary, the same from form, link and API: `{"profile": slug, OPTION: CHOICE,
"OPTION--unlisted-choice": TEXT, FIELD: VALUE}`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .failures import refused

Profile = Mapping[str, Any]
UNLISTED = "--unlisted-choice"
#: The choice's value if the user writes a free text beside it.
OTHER = "unlisted-choice"
#: Traits that become shell or programs: users' text is never taken for these.
_NO_TEXT = frozenset({"prologue", "epilogue", "cmd", "args", "node_python", "environment"})


#: The keys that a site may write. Others are mistyped.
_KEYS = {
    "profile": ("slug", "display_name", "description", "default", "groups", "override", "profile_options"),
    "option": ("display_name", "choices", "unlisted_choice"),
    "choice": ("display_name", "default", "override"),
    "unlisted_choice": (
        "enabled",
        "display_name",
        "display_name_in_choices",
        "validation_regex",
        "validation_message",
        "override",
    ),
}
_DICTIONARIES = frozenset({"override", "profile_options", "choices", "unlisted_choice"})


def checked(profiles: Sequence[Any]) -> list[Profile]:
    """A site's profiles, each with its slug.

    # Raises
    ValueError: a sentence that names the profile and its mistake.
    """
    made: list[Profile] = []
    for at, profile in enumerate(profiles, 1):
        _check(profile, "profile", f"profile {at}")
        slug = str(profile.get("slug") or slug_of(str(profile.get("display_name") or "")))
        if not slug:
            raise ValueError(f"profile {at} has neither a slug nor a display_name to make one of")
        if slug in [other["slug"] for other in made]:
            raise ValueError(f"two profiles have the slug {slug!r}")
        what = f"profile {slug!r}"
        if isinstance(profile.get("groups"), str):
            raise ValueError(f"{what} has a text as its groups: a list is needed")
        for name, option in profile.get("profile_options", {}).items():
            _check_option(option, f"option {name!r} of {what}")
        made.append({**profile, "slug": slug})
    return made


def _check_option(option: Any, what: str) -> None:
    _check(option, "option", what)
    for name, choice in option.get("choices", {}).items():
        _check(choice, "choice", f"choice {name!r} of {what}")
    unlisted = option.get("unlisted_choice", {})
    _check(unlisted, "unlisted_choice", f"the unlisted_choice of {what}")
    if not option.get("choices") and not unlisted.get("enabled"):
        raise ValueError(f"{what} has no choices")
    try:
        re.compile(unlisted.get("validation_regex", ""))
    except (re.error, TypeError) as error:
        raise ValueError(f"the validation_regex of {what} can't be read: {error}") from None


def _check(thing: Any, kind: str, what: str) -> None:
    if not isinstance(thing, Mapping):
        raise ValueError(f"{what} is no dictionary")
    keys = _KEYS[kind]
    for key, value in thing.items():
        if key not in keys:
            raise ValueError(f"{what} has {key!r}, which means nothing here; it may have {', '.join(keys)}")
        if key in _DICTIONARIES and not isinstance(value, Mapping):
            raise ValueError(f"{key} of {what} is no dictionary")


def slug_of(display_name: str) -> str:
    """The slug that kubespawner gives a profile of this name; letters outside of ASCII stay."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", display_name) if not unicodedata.combining(c))
    return re.sub(r"[\W_]+", "-", re.sub(r"(?<=\d),(?=\d)", "", plain.lower())).strip("-")


def offered(profiles: Sequence[Profile], groups: Collection[str]) -> list[Profile]:
    """The profiles for a member of these groups of the hub's."""
    return [p for p in profiles if not p.get("groups") or set(p["groups"]) & set(groups)]


def first(choices: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """The choice without a selection: the one marked as default, else the first."""
    return next((slug for slug, choice in choices if choice.get("default")), choices[0][0] if choices else "")


def default_profile(profiles: Sequence[Profile]) -> str:
    return first([(p["slug"], p) for p in profiles])


def default_choice(option: Mapping[str, Any]) -> str:
    return first(list(option.get("choices", {}).items()))


def overrides(profiles: Sequence[Profile], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The traits that this choice sets. What isn't offered is refused."""
    slug = str(chosen.get("profile") or default_profile(profiles))
    if not slug:
        return {}
    profile: Profile | None = next((p for p in profiles if p["slug"] == slug), None)
    if profile is None:
        raise refused(f"there is no profile {slug!r} here, or not for you; choose one of the list")
    result = dict(profile.get("override", {}))
    for name, option in profile.get("profile_options", {}).items():
        result.update(_option(name, option, chosen))
    return result


def _option(name: str, option: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    unlisted = option.get("unlisted_choice", {})
    choice = str(chosen.get(name) or "")
    text = str(chosen.get(name + UNLISTED) or "")
    if unlisted.get("enabled") and (choice == OTHER or (text and not choice)):
        return _free_text(name, unlisted, text)
    choices = option.get("choices", {})
    choice = choice or default_choice(option)
    if choice not in choices:
        raise refused(f"{option.get('display_name', name)} has no choice {choice!r}; it has {', '.join(choices)}")
    return dict(choices[choice].get("override", {}))


def _free_text(name: str, unlisted: Mapping[str, Any], text: str) -> dict[str, Any]:
    if not re.fullmatch(unlisted.get("validation_regex", r"[\w./:@-]+"), text):
        message = unlisted.get("validation_message", "it has a character that isn't allowed here")
        raise refused(f"{unlisted.get('display_name', name)} can't be {text!r}: {message}")
    made = {}
    for trait, value in unlisted.get("override", {}).items():
        if trait in _NO_TEXT:
            raise refused(
                f"the site lets users write into {trait}, which is never done; tell your administrator",
                "configuration",
            )
        made[trait] = value.replace("{value}", text) if isinstance(value, str) else value
    return made


def from_form(form: Mapping[str, Sequence[str]], fields: Collection[str]) -> dict[str, Any]:
    """The flat dictionary, from the fields of the form that `form.html` makes."""
    sent = {name: values[0].strip() for name, values in form.items() if values}
    slug = sent.get("profile", "")
    chosen = {"profile": slug} if slug else {}
    prefix = f"profile-{slug}--"
    chosen.update({name[len(prefix) :]: value for name, value in sent.items() if name.startswith(prefix) and value})
    chosen.update({name: sent[f"field-{name}"] for name in fields if sent.get(f"field-{name}")})
    return chosen
