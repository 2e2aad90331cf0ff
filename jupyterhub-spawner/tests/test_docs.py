"""What docs/jupyterhub.md says of the spawner's settings is what they are."""

from __future__ import annotations

from pathlib import Path

from gresshopper_jupyter.spawner import GresshopperSpawner

PAGE = Path(__file__).parents[2] / "docs" / "jupyterhub.md"
#: Defaults that aren't the same on each host.
WORDS = {"node_python": "the hub's"}


def table() -> str:
    rows = ["| setting | default | what it is |", "|---|---|---|"]
    made = GresshopperSpawner()
    for name, trait in sorted(GresshopperSpawner.class_own_traits(config=True).items()):
        value = WORDS.get(name) or f"`{getattr(made, name)!r}`"
        rows.append(f"| `{name}` | {value} | {trait.help} |".replace("''", '""'))
    return "\n".join(rows) + "\n"


def test_the_page_has_each_setting_with_its_default() -> None:
    begin, end = "<!-- settings -->\n", "<!-- end of settings -->\n"
    shown = PAGE.read_text().partition(begin)[2].partition(end)[0]
    assert shown == table(), f"write this between the marks of {PAGE.name}:\n{table()}"
