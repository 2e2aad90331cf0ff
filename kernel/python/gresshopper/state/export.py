"""Writes a saved state as files that other tools read: npy, parquet, pickle. `python -m gresshopper.state.export`."""

from __future__ import annotations

import json
import pickle
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gresshopper import typenames

from . import adapters, form, pickling, process, restore
from .lost import Lost
from .session import reason
from .store import Store, StoreError


def export(state: Path, store: Path, target: Path, others: Sequence[Path] = ()) -> list[tuple[str, str]]:
    """Write each variable to a file below `target`; gives variable and file, or variable and why not. Content lies in
    `store` or in one of the `others`.

    # Errors
    `FormError`, `StoreError` or `OSError`.
    """
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    snapshot = restore.Snapshot(form.read(state, form.owner_key(make=False)))
    for text in restore.differences(snapshot.environment):
        print(f"hop: {text}", file=sys.stderr)
    chunks = Store(store, others)
    session = pickling.Session(module.__dict__)
    loader = restore.Loader(snapshot, chunks, session, lazy=False)
    process.apply_early({k: v for k, v in snapshot.process(chunks).items() if k == "paths"}, loader.notice)
    values = loader.load_all()
    module.__dict__.update(values)
    target.mkdir(parents=True, exist_ok=True)
    done = [(name, _write(name, value, target)) for name, value in sorted(values.items())]
    (target / "index.json").write_text(json.dumps(dict(done), indent=1))
    return done


def _write(name: str, value: Any, target: Path) -> str:
    file = re.sub(r"\W", "_", name)
    if isinstance(value, Lost):
        return f"not exported: {value!r}"
    try:
        kind = f"{typenames.module_of(type(value)).partition('.')[0]}.{typenames.name_of(type(value))}"
        for adapter in adapters.loaded():
            write = adapter.exports.get(kind)
            done = None if write is None else write(value, target / file)
            if done is not None:
                return done.name
        (target / f"{file}.pkl").write_bytes(pickle.dumps(value))
        return f"{file}.pkl"
    except Exception as e:  # whatever a library's own writing code raises
        return f"not exported: {reason(e)}"


def main() -> int:
    """The command."""
    try:
        state, store, target, *others = map(Path, sys.argv[1:])
        done = export(state, store, target, others)
    except (form.FormError, StoreError, OSError) as e:
        print(f"hop: {e}", file=sys.stderr)
        return 1
    for name, file in done:
        print(f"{name}\t{file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
