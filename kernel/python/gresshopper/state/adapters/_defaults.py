"""Options of a library, as differences from the defaults."""

from __future__ import annotations

import hashlib
from typing import Any


class Defaults:
    """Default options of a library, the same wherever its version is. Only plain values: others may have been
    changed in place, here and in the library's own defaults."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._values = {key: value for key, value in found.items() if type(value) in _PLAIN}
        self.digest = hashlib.blake2b(repr(sorted(self._values.items())).encode(), digest_size=16).digest()

    def apart(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options as what they differ in."""
        return {
            "defaults": self.digest,
            "set": {key: value for key, value in options.items() if not self._is(key, value)},
            "unset": [key for key in self._values if key not in options],
        }

    def _is(self, key: str, value: Any) -> bool:
        default = self._values.get(key, Defaults)
        return type(value) is type(default) and bool(value == default)

    def whole(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Options from what `apart` returned."""
        unset = frozenset(saved["unset"])
        return {**{k: v for k, v in self._values.items() if k not in unset}, **saved["set"]}


_PLAIN = (str, int, float, bool, type(None))


def are_others(here: Defaults, state: dict[str, Any]) -> bool:
    """Whether the options were saved beside other defaults than those here."""
    return "defaults" in state and state["defaults"] != here.digest
