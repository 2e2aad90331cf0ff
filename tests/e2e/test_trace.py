"""What ran can be exported without anybody's name in it, and replayed."""

from __future__ import annotations

import json
import re
from pathlib import Path

from harness import Cluster, Failed, notebook, until


def cells_of(cluster: Cluster, user: str, *more: str) -> list[dict[str, object]]:
    out = cluster.run(user, "hop", "trace", "export", *more)
    return [json.loads(line) for line in out.splitlines()]


def test_a_months_cells_are_exported_by_pseudonym_and_replayed(cluster: Cluster, tmp_path: Path) -> None:
    before = len(cells_of(cluster, "root"))
    with notebook(cluster, "alice") as a, notebook(cluster, "bob") as b:
        for book, gpus in ((a, 1), (a, 2), (b, 1)):
            assert book.execute(f"%%gpu {gpus}\nimport time; time.sleep(0.5)")["status"] == "ok"
        kernels = {str(r["kernel_id"]) for r in cluster.hop("acct", "-a")["rows"]}
    until("all is on record", lambda: len(cells_of(cluster, "root")) == before + 3, 20)
    text = cluster.run("root", "hop", "trace", "export")
    for name in {"alice", "bob", "lab", *kernels}:
        assert not re.search(rf"\b{re.escape(name)}\b", text), name
    lines = [json.loads(line) for line in text.splitlines()]
    assert {line["v"] for line in lines} == {1}
    last = lines[-3:]
    assert [line["gpus"] for line in last] == [1, 2, 1]
    assert last[0]["user"] == last[1]["user"] != last[2]["user"]
    assert last[0]["session"] == last[1]["session"] != last[2]["session"]
    assert all(0.4 < line["run"] < 5 for line in last)
    assert [line["submit"] for line in lines] == sorted(line["submit"] for line in lines)
    # Another export has other words for the same people; a user has their own cells alone.
    again = [json.loads(line) for line in cluster.run("root", "hop", "trace", "export").splitlines()]
    assert not {line["user"] for line in again} & {line["user"] for line in lines}
    assert len({line["user"] for line in cells_of(cluster, "bob")}) == 1

    trace = cluster.base / "home/alice/trace.jsonl"
    trace.write_text(text)
    summary = cluster.base / "home/alice/summary.json"
    cluster.run("root", "hop", "sim", "--trace", str(trace), "--policy", "ours", "--json", str(summary), timeout=120)
    (ours,) = json.loads(summary.read_text())["policies"]
    used = sum(line["run"] * line["gpus"] for line in lines) / 3600
    assert abs(ours["gpu_hours_used"] - used) < 0.01 * used


def test_nobody_exports_what_is_not_theirs(cluster: Cluster) -> None:
    mine = cells_of(cluster, "carol")
    everybodys = cells_of(cluster, "root")
    assert len(mine) < len(everybodys)
    try:
        cells_of(cluster, "carol", "--starttime", "yesterday-ish")
    except Failed as error:
        assert "Traceback" not in str(error)
    else:
        raise AssertionError("not a time")
