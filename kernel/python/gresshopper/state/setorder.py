"""The iteration order of a set, and its restoration in a new set. Nothing here calls a user's code."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import native, recipes

#: Larger sets come back in the order in which their items are put into a new one.
ORDERED = 50_000
#: Whether all lives of this kernel share a hash seed, and therefore the hashes of strings.
seeded = False
#: Items that the unpickler puts into a set at once.
_BATCH = 1000


class Order(NamedTuple):
    """A set whose items come in another order after they are put into a new set."""

    made: Any
    items: list[Any]
    filling: list[int]
    size: int


def ordered(made: set[Any]) -> list[Order]:
    """Instructions to restore the order of a set, if needed and possible. Sets of numbers, and of tuples of them,
    have the same order in every process; so have sets of strings under the same hash seed (`seeded`).
    """
    if not 1 < set.__len__(made) <= ORDERED:
        return []
    items = list(set.__iter__(made))
    if not all(map(_lasting, items)):
        return []
    plain: set[Any] = set()
    for i in range(0, len(items), _BATCH):
        plain.update(tuple(items[i : i + _BATCH]))
    if list(plain) == items:
        return []
    places = native.set_table(made)
    if places is None:
        return []
    going_in, filling = _insertion(items, places)
    for order in (Order(made, going_in, [], 0), Order(made, going_in, filling, len(places))):
        recipes.set_order(plain, order.items, order.filling, order.size)
        if list(plain) == items and (order.size or len(native.set_table(plain) or ()) == len(places)):
            return [order]
    return []


def _insertion(items: list[Any], places: list[int]) -> tuple[list[Any], list[int]]:
    """An order of insertion to bring each item to the right place: after the items in the way. A suitable number takes
    the place of a removed item.
    """
    by_address = {id(item): item for item in items}
    found = {place: by_address[at] for place, at in enumerate(places) if at in by_address}
    done: dict[int, None] = {}
    filling: dict[int, int] = {}
    for start in found:
        stack = [start]
        while stack:
            top = stack[-1]
            before = [q for q in _round(hash(found[top]), top, len(places)) if q not in done]
            filling.update((q, q + (len(places) << 24)) for q in before if q not in found)
            ahead = next((q for q in before if q in found and q not in stack), None)
            if ahead is not None:
                stack.append(ahead)
            else:
                done[stack.pop()] = None
    # Items that went round nothing come first: a growing table may move them without harm.
    order = sorted(done, key=lambda place: bool(_round(hash(found[place]), place, len(places))))
    return [found[place] for place in order], list(filling.values())


def _round(hashed: int, place: int, size: int) -> list[int]:
    """Places tried by CPython for a hash before the final place."""
    tried: list[int] = []
    perturb = hashed & (2**64 - 1)
    at = perturb & (size - 1)
    while len(tried) < 4 * size:
        for step in range(10 if at + 9 <= size - 1 else 1):
            if at + step == place:
                return tried
            tried.append(at + step)
        perturb >>= 5
        at = (at * 5 + 1 + perturb) & (size - 1)
    return tried


def _lasting(item: Any) -> bool:
    """Whether an item's hash is the same in another process."""
    kind = type(item)
    if kind is int or kind is float or (seeded and (kind is str or kind is bytes)):
        return True
    return kind is tuple and all(map(_lasting, item))
