"""States in S3, end to end: a real ipykernel, `hop state`, and an S3 server on this machine (moto's)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
PACKAGE = ROOT / "kernel/python"
HOP = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / os.environ.get("PROFILE", "debug") / "hop"
SERVER = Path(os.environ.get("HOP_TEST_S3_PYTHON", "/opt/gresshopper-dev/s3/bin/python"))
SECRET = "a-secret-that-nobody-may-see"
WORK = "s3://bucket/me/work"

pytestmark = pytest.mark.skipif(
    not HOP.exists() or not SERVER.exists(), reason="hop isn't built, or tests/setup/install.sh didn't run"
)


class Server:
    """The S3 server."""

    def __init__(self, certificate: Path) -> None:
        self.certificate = certificate
        command = [str(SERVER), str(Path(__file__).parent / "s3_server.py"), str(certificate)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        self.encrypted = f"https://127.0.0.1:{int(self.process.stdout.readline())}"
        self.ask("PUT", "/bucket")

    def ask(self, method: str, path: str, data: bytes | None = None) -> bytes:
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request")
        request.add_header("Content-Type", "application/octet-stream")  # else a form is seen in it
        with urllib.request.urlopen(request, timeout=30) as answer:
            return bytes(answer.read())

    def fault(self, kind: str, after: int = 0) -> None:
        self.ask("POST", f"/-/fault?after={after}&kind={kind}")

    def log(self) -> list[str]:
        return self.ask("GET", "/-/log").decode().splitlines()

    def objects(self) -> dict[str, bytes]:
        listed = self.ask("GET", "/bucket?list-type=2&max-keys=1000").decode()
        return {key: self.ask("GET", f"/bucket/{key}") for key in re.findall("<Key>(.*?)</Key>", listed)}

    def put(self, key: str, data: bytes) -> None:
        self.ask("PUT", f"/bucket/{key}", data)


class User:
    """A user with a home, kernels and `hop`."""

    def __init__(self, home: Path, url: str) -> None:
        self.home = home
        run = home / "run"
        run.mkdir(mode=0o700)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("AWS_")},
            "HOME": str(home),
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTER_RUNTIME_DIR": str(run),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "GRESSHOPPER_PYTHON": str(PACKAGE),
            "GRESSHOPPER_RUN_DIR": str(run),
            "PYTHONPATH": str(PACKAGE),
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.kernels: list[Any] = []
        self.client: Any = None

    def kernel(self) -> None:
        """A fresh kernel in the place of the one that was there."""
        manager_of = pytest.importorskip("jupyter_client.manager").KernelManager
        self.stop()
        file = self.home / f"run/kernel-{time.time_ns()}.json"
        manager = manager_of(kernel_name="python3", connection_file=str(file))
        manager.kernel_spec.argv[0] = sys.executable
        manager.start_kernel(env={k: v for k, v in self.env.items() if not k.startswith("AWS_")})
        self.kernels.append(manager)
        self.client = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.run("%load_ext gresshopper")

    def stop(self) -> None:
        if self.client is not None:
            self.client.stop_channels()
            self.client = None
        for manager in self.kernels:
            manager.shutdown_kernel(now=True)
        self.kernels.clear()

    def run(self, code: str) -> str:
        texts: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                texts.append(message["content"]["text"])

        reply = self.client.execute_interactive(code, timeout=60, output_hook=hear)["content"]
        assert reply["status"] == "ok", reply
        return "".join(texts).strip()

    def hop(self, *args: str, status: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        command = [str(HOP), "state", *args]
        done = subprocess.run(
            command, env={**self.env, **env}, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == status, done.stderr
        assert SECRET not in done.stdout + done.stderr
        assert "panicked" not in done.stderr
        return done

    def wipe(self) -> None:
        """Nothing is here any more but the key."""
        shutil.rmtree(self.home / "data/gresshopper", ignore_errors=True)

    def states(self) -> list[str]:
        return sorted(p.name for p in (self.home / "data/gresshopper/states").glob("*"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("s3") / "certificate.pem")
    yield made
    assert made.process.stdin is not None
    made.process.stdin.close()
    made.process.wait(timeout=10)


@pytest.fixture
def user(server: Server, tmp_path: Path) -> Iterator[User]:
    pytest.importorskip("cloudpickle")
    pytest.importorskip("numpy")
    server.fault("none")
    for key in server.objects():
        server.ask("DELETE", f"/bucket/{key}")
    made = User(tmp_path, server.url)
    yield made
    made.stop()


MAKE = """
import numpy as np
noise = np.random.default_rng(1).bytes(5_000_000)
array = np.frombuffer(noise, dtype=np.uint8).copy()
view = array[10:20]
zeros = np.zeros(1_000_000)
def double(x):
    return 2 * x
both = [zeros, {"view": view}]
"""
CHECK = """
import hashlib
print(hashlib.sha256(array.tobytes()).hexdigest(), zeros.sum(), double(4), both[0] is zeros, view.base is array)
"""


def test_saved_to_s3_wiped_here_and_restored_into_a_fresh_kernel(server: Server, user: User) -> None:
    user.kernel()
    user.run(MAKE)
    before = user.run(CHECK)
    saved = json.loads(user.hop("--json", "save", "--to", WORK).stdout)
    assert saved["sent_to"] == WORK
    kinds = [key.split("/")[1] for key in server.objects()]
    assert sorted(set(kinds)) == ["chunks", "states"]
    assert any(key.endswith(".z") for key in server.objects()), "what compresses goes compressed"

    server.log()
    user.run("array[3] += 1\nmore = 'more'")
    again = json.loads(user.hop("--json", "save", "--to", WORK).stdout)
    assert again["sent_chunks"] == 1, "of two chunks of the array one has changed"
    sent = [line for line in server.log() if line.startswith("PUT") and "/busy/" not in line]
    assert [line.split("/")[3] for line in sent] == ["chunks", "states", "states"]
    assert sent[-1].endswith("/states/work/head"), "the head comes last"
    before = user.run(CHECK)

    user.kernel()
    user.wipe()
    shown = user.hop("show", WORK)
    assert "array, both, view, zeros" in shown.stdout
    assert not (user.home / "data/gresshopper/store/chunks").exists(), "to look needs no content"
    told = user.hop("restore", WORK).stderr
    assert re.search(r"fetched .* from s3://bucket/me/work", told)
    assert user.run(CHECK) == before
    assert user.run("print(more, array[3])").startswith("more")
    assert (user.home / "data/gresshopper/store").stat().st_mode & 0o077 == 0

    # By name, where the environment says where.
    assert "array" in user.hop("show", "work", GRESSHOPPER_REMOTE="s3://bucket/me").stdout
    user.run("del zeros, both")
    user.hop("save", "--to", "later", GRESSHOPPER_REMOTE="s3://bucket/me")
    differ = user.hop("diff", WORK, "s3://bucket/me/later").stdout
    assert "- zeros" in differ and "+ " not in differ
    out = user.home / "out"
    user.hop("export", WORK, str(out), "--python", sys.executable)
    assert (out / "zeros.npy").exists()
    user.hop("copy", WORK, "copied")
    assert "copied" in user.states()
    assert "is there already" in user.hop("copy", WORK, "copied", status=1).stderr

    # Only what no state refers to is removed: the chunk that was changed before the second save.
    assert "removed 0 chunks" in user.hop("gc", "s3://bucket/me").stderr, "young"
    held = len(server.objects())
    assert "removed 1 chunks" in user.hop("gc", "s3://bucket/me", "--age", "0").stderr
    assert len(server.objects()) == held - 1
    user.wipe()
    user.kernel()
    user.hop("restore", WORK, "--wait")
    assert user.run(CHECK) == before


def test_what_was_changed_there_is_refused_before_it_is_unpickled(server: Server, user: User) -> None:
    user.kernel()
    user.run(MAKE)
    user.hop("save", "--to", WORK)
    objects = server.objects()
    for key, whole in objects.items():
        user.wipe()
        at = len(whole) // 3
        server.put(key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        if key.endswith("head"):
            server.put(key, b" " + whole[:-1])
        told = user.hop("restore", WORK, status=1).stderr
        assert re.search("refused|isn't what was stored", told), (key, told)
        assert user.states() == [] if (user.home / "data/gresshopper/states").exists() else True
        server.ask("DELETE", f"/bucket/{key}")
        told = user.hop("restore", WORK, status=1).stderr
        assert re.search("refused|is missing|no saved state", told), (key, told)
        server.put(key, whole)
    (user.home / "config/gresshopper/state.key").write_bytes(b"k" * 32)
    assert "under another key: refused" in user.hop("restore", WORK, status=1).stderr
    before = server.objects()
    assert "isn't replaced" in user.hop("save", "--to", WORK, status=1).stderr
    assert "nothing is removed" in user.hop("gc", "s3://bucket/me", "--age", "0", status=1).stderr
    assert server.objects() == before


def test_a_broken_upload_leaves_the_earlier_state_and_goes_on(server: Server, user: User) -> None:
    user.kernel()
    user.run("import numpy as np\nx = np.arange(1000.)")
    user.hop("save", "--to", WORK)
    earlier = server.objects()
    user.run("y = np.random.default_rng(2).bytes(9_000_000)")
    faults = [("507", 5, "no room left"), ("503", 6, "can't be reached"), ("drop", 7, "can't be reached")]
    for kind, after, why in faults:
        server.fault(kind, after)
        told = user.hop("save", "--to", WORK, status=3).stderr
        server.fault("none")
        assert why in told and "saved here" in told, told
        assert all(server.objects()[key] == data for key, data in earlier.items() if "/busy/" not in key)
        assert "y" not in [v for row in json.loads(user.hop("--json", "show", WORK).stdout) for v in row["names"]]
    kept = re.search("`hop state copy (.*) s3:.*` sends it", told)
    assert kept is not None
    user.stop()  # the kernel may be gone by then
    server.log()
    server.fault("slow")
    # An interrupted one leaves no mark that would hinder others.
    sending = subprocess.Popen([str(HOP), "state", "copy", kept[1], WORK], env=user.env, stderr=subprocess.PIPE)
    seen: list[str] = []
    while len(seen) < 4 and sending.poll() is None:
        time.sleep(0.05)
        seen += server.log()
    sending.send_signal(signal.SIGINT)
    _, said = sending.communicate(timeout=30)
    assert sending.returncode == 1 and b"stopped" in said, said
    server.log()
    told = user.hop("copy", kept[1], WORK).stderr
    server.fault("none")
    assert re.search(r"hop: sending, .* of .*\n", told), "it is told how far it is"
    chunks = [line for line in server.log() if line.startswith("PUT") and "/chunks/" in line]
    assert len(chunks) < 3, "what went before isn't sent again"
    marks = [key for key in server.objects() if "/busy/" in key]
    assert len(marks) <= len(faults), "only stores that were away keep marks"
    user.wipe()
    user.kernel()
    user.hop("restore", WORK)
    assert user.run("print(len(y), x.sum())") == "9000000 499500.0"


def test_what_is_wrong_with_a_store_is_said_in_a_sentence(server: Server, user: User) -> None:
    user.kernel()
    user.run("x = 1")

    def told(status: int, to: str = WORK, **env: str) -> str:
        lines = user.hop("save", "--to", to, status=status, **env).stderr.splitlines()
        assert len([line for line in lines if line.startswith("hop: s3")]) == 1 or status == 2, lines
        assert status == 2 or "saved here" in lines[-1]
        return lines[-1]

    none = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    assert "no credentials: set AWS_ACCESS_KEY_ID" in told(1, **none)
    assert "no such bucket" in told(1, "s3://nobody-has-this/work")
    assert "can't be reached" in told(3, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert "AWS_ALLOW_HTTP" in told(1, AWS_ALLOW_HTTP="false")
    assert "isn't an address" in told(2, "s3://bucket")
    assert "certificate" in told(3, AWS_ENDPOINT_URL=server.encrypted)
    trusted = {"AWS_ENDPOINT_URL": server.encrypted, "AWS_CA_BUNDLE": str(server.certificate), "AWS_ALLOW_HTTP": ""}
    user.hop("save", "--to", "s3://bucket/me/encrypted", **trusted)
    server.fault("403")
    assert "doesn't permit it" in told(1)
    server.fault("stall")
    began = time.monotonic()
    assert "doesn't answer in time" in told(3, AWS_TIMEOUT="1s")
    assert time.monotonic() - began < 15
    server.fault("none")
    assert "no saved state" in user.hop("restore", WORK, status=1).stderr
    folder = f"file://{user.home}/folder/work"
    user.hop("save", "--to", folder)
    assert "x" in user.hop("show", folder).stdout
    assert (user.home / "folder").stat().st_mode & 0o077 == 0
    user.hop("save", "--to", WORK)
    assert "fetched" in user.hop("restore", WORK).stderr
