"""`hop metrics` as `hop metrics --help` has a site collect it: by node_exporter's textfile collector and Prometheus."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Cluster, all_gpus_held, until


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Prometheus:
    """A Prometheus that collects a node_exporter's figures each second."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "text" / "gresshopper.prom"
        self.file.parent.mkdir(parents=True)
        self.place = f"127.0.0.1:{free_port()}"
        self.exporter = f"127.0.0.1:{free_port()}"
        config = folder / "prometheus.yml"
        config.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s"},
                    "scrape_configs": [{"job_name": "node", "static_configs": [{"targets": [self.exporter]}]}],
                }
            )
        )
        self.commands = (
            [
                "prometheus-node-exporter",
                f"--web.listen-address={self.exporter}",
                "--collector.disable-defaults",
                "--collector.textfile",
                f"--collector.textfile.directory={self.file.parent}",
            ],
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.place}",
            ],
        )

    def takes(self, text: str) -> None:
        """What cron does: the collector never sees a half-written file."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.rename(self.file)

    def value(self, query: str) -> float | None:
        """A query's only value; None as long as there is none."""
        url = f"http://{self.place}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                rows = json.load(answer)["data"]["result"]
        except OSError:
            return None
        assert len(rows) <= 1, rows
        return float(rows[0]["value"][1]) if rows else None

    def has(self, query: str, value: float) -> None:
        until(f"{query} is {value}", lambda: self.value(query) == value, 30, every=0.3)


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    made = Prometheus(tmp_path)
    with contextlib.ExitStack() as stack:
        for number, command in enumerate(made.commands):
            log = stack.enter_context((tmp_path / f"{number}.log").open("w"))
            process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
            stack.callback(process.wait, 20)
            stack.callback(process.kill)
        yield made


def metrics(cluster: Cluster) -> str:
    text = cluster.run("root", "hop", "metrics")
    linted = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")
    return text


def test_prometheus_has_what_hop_metrics_writes(cluster: Cluster, prometheus: Prometheus) -> None:
    gpus = cluster.hop("info")["rows"]
    every = sum(row["gpus"] for row in gpus)
    prometheus.takes(metrics(cluster))
    prometheus.has("gresshopper_up", 1)
    prometheus.has("sum(gresshopper_gpus)", every)
    prometheus.has("count(count by (node) (gresshopper_gpus))", len(gpus))
    prometheus.has("node_textfile_scrape_error", 0)
    with all_gpus_held(cluster, 4):
        prometheus.takes(metrics(cluster))
        prometheus.has('sum(gresshopper_gpus{state="leased"})', 2)
    # Without hopd there is one figure, and the rest doesn't go on as if all were well.
    nobody = cluster.base / "etc/nobody.toml"
    text = (cluster.base / "etc/gresshopper.toml").read_text()
    nobody.write_text(text.replace("connect = [", 'connect = ["127.0.0.1:1"] #'))
    away = cluster.popen("root", ["hop", "metrics"], env={"GRESSHOPPER_CONF": str(nobody)}, stdout=-1, stderr=-1)
    out, err = away.communicate(timeout=60)
    assert away.returncode == 3, err
    prometheus.takes(out)
    prometheus.has("gresshopper_up", 0)
    prometheus.has("absent(gresshopper_gpus)", 1)
