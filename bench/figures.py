"""Percentiles, and measured lines as `hop-bench record` reads them, for the benchmarks in Python."""

from __future__ import annotations

import json


def percentile(values: list[float], share: float) -> float:
    """The value of which `share` of the values are below."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def figure(bench: str, case: str, unit: str, ours: float, n: int, *, peer: tuple[str, float] | None = None) -> None:
    line = {
        "bench": bench,
        "case": case,
        "ours": round(ours, 4),
        "peer": peer[0] if peer else None,
        "peer_value": round(peer[1], 4) if peer else None,
        "unit": unit,
        "n": n,
    }
    print(json.dumps(line), flush=True)
