"""Runs as the user: submits the single-user server's job, is the job's program, and reports on the job.

`submit` reads a JSON request on standard input, keeps its secrets (the hub's API token, the key of internal SSL) in a
file of mode 0600, and calls sbatch. The job's script calls `run FILE`. This command reads and removes the file, starts
the server on a port, and reports the port once the listening socket is the user's own (`doorway`). The hub asks with
`port NAME` and `tail PATH`, and ends a server without Slurm with `end NAME`. All files lie in the user's home, which the
hub's host and the nodes share.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from . import doorway

#: The job's comment once the server is over and its port is still held.
ENDED = "gresshopper ended"
#: Logs kept of a user's ended servers, and of all servers, the newest.
LOGS_KEPT, LOGS_MOST = 3, 16
LOG_LINES = 20
#: Most bytes that the hub is given of a log and of a secret: their owner may have put anything in their place.
LOG_MOST, SECRET_MOST = 64 << 10, 1 << 20
#: How old the secrets of a job that hasn't begun may become.
SECRETS_KEPT_S = 14 * 86400
#: How long sbatch may take.
SBATCH_S = 25.0
#: How often a server looks whether it is to end without Slurm.
END_LOOK_S = 10.0
#: How long `port` waits for the server before it lets the hub look at the job again.
PORT_WAIT_S = 5.0
#: Seconds to hold a dead server's port: the hub notices before another process takes the port.
HOLD_S = 120.0
#: How long a server may take to end that has to try another port.
END_WAIT_S = 10.0
_TRIES = 8


def state_dir() -> Path:
    """The folder of this user's servers, made with mode 0700."""
    base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    path = Path(base) / "gresshopper" / "servers"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_secret(path: Path, text: str) -> None:
    """A new file readable by its owner alone; never an existing file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)


def read_secret(path: Path) -> str:
    """The text of a file that is the caller's own and nobody else's to read."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(fd) as file:
        info = os.fstat(fd)
        if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
            raise PermissionError(f"{path} is not a private file of uid {os.getuid()}")
        return file.read(SECRET_MOST)


# Submitting.


def batch_script(shell: str, python: str, env_file: Path, prologue: str) -> str:
    """The job's script, without secrets and without text from a form."""
    return f'#!{shell}\n{prologue}\nexec "{python}" -m gresshopper_jupyter.server_job run "{env_file}"\n'


#: Beginnings of the names of variables that would change how Slurm's commands act.
SLURMS_OWN = (
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SRUN_",
    "SALLOC_",
    "SQUEUE_",
    "SINFO_",
    "SACCT_",
    "SACCTMGR_",
    "SCANCEL_",
    "SCONTROL_",
    "SSHARE_",
    "SPANK_",
)


def without_slurms_own() -> dict[str, str]:
    """Our environment without leftover Slurm settings of another job or an admin's shell."""
    return {k: v for k, v in os.environ.items() if not k.startswith(SLURMS_OWN) or k == "SLURM_CONF"}


def clean_environment() -> dict[str, str]:
    """Our environment without Slurm's settings, and without folders on PATH that are closed to this user."""
    kept = without_slurms_own()
    if "PATH" in kept:
        kept["PATH"] = ":".join(p for p in kept["PATH"].split(":") if p and os.access(p, os.X_OK)) or os.defpath
    return kept


def prune(folder: Path) -> None:
    """Keeps the newest servers' logs, nothing else of earlier servers, and no secret of a job that never ran."""
    for path in (*folder.glob("*.json"), *folder.glob("*.end")):
        if time.time() - path.stat().st_mtime > SECRETS_KEPT_S:
            path.unlink(missing_ok=True)
    logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
    # A waiting or running server has other files there, too. A killed server has left files behind.
    over = [log for log in logs if not any(log.with_suffix(suffix).exists() for suffix in (".json", ".port"))]
    for log in {*over[LOGS_KEPT:], *logs[LOGS_MOST:]}:
        for path in folder.glob(f"{log.stem}.*"):
            path.unlink(missing_ok=True)


def submit() -> int:
    """Submit the job described on standard input; print its id, name and log path."""
    request = json.load(sys.stdin)
    folder = state_dir()
    prune(folder)
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    env_file = folder / f"{name}.json"
    log = request.get("log") or str(folder / f"{name}.log")
    kept = {key: request.get(key) for key in ("env", "cmd", "certs", "ports", "shell", "epilogue")}
    is_known = False
    try:
        write_secret(env_file, json.dumps(kept))
        if not request.get("log"):
            # Made here, hidden from other users; the job appends.
            write_secret(Path(log), "")
        script = batch_script(request["shell"], request["python"], env_file, request["prologue"])
        job = sbatch([f"--output={log}", *request["options"]], script)
        is_known = tell_hub(job, {"name": name, "log": log.replace("%j", job)})
    except RuntimeError as problem:
        print(problem, file=sys.stderr)
    finally:
        if not is_known:
            # Should Slurm have taken the job all the same, the job has nothing to run.
            for path in folder.glob(f"{name}.*"):
                path.unlink(missing_ok=True)
    return 0 if is_known else 1


def sbatch(options: Sequence[str], script: str) -> str:
    """The id of the job that Slurm took."""
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", "--open-mode=append", *options],
            input=script,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=SBATCH_S,
        )
    except OSError as error:
        raise RuntimeError(f"sbatch can't be run: {error.strerror or error}") from error
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"sbatch did not answer within {SBATCH_S:.0f} s") from None
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"sbatch ended with {done.returncode}")
    return done.stdout.strip().split(";")[0]


def tell_hub(job: str, what: dict[str, str]) -> bool:
    """Print the job's id and the rest. If the hub has gone, nobody else knows the job, and it is cancelled."""
    try:
        print(json.dumps({"job": job, **what}), flush=True)
    except OSError:
        # Python would try once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        subprocess.run(["scancel", job], check=False, env=clean_environment(), timeout=SBATCH_S)
        return False
    return True


# What the hub asks.


def port(name: str) -> int:
    """Print the server's port, or nothing if it isn't known within some seconds."""
    path = state_dir() / f"{os.path.basename(name)}.port"
    until = time.monotonic() + PORT_WAIT_S
    while True:
        # Listing makes a network file system look again.
        if path.name in os.listdir(path.parent):
            print(read_secret(path))
            return 0
        if time.monotonic() > until:
            return 0
        time.sleep(0.1)


def tail(path: str) -> int:
    """Print the end of a server's log."""
    with open(path, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - LOG_MOST, 0))
        lines = file.read(LOG_MOST).decode(errors="replace").splitlines(keepends=True)
    sys.stdout.writelines(lines[-LOG_LINES:])
    return 0


def end(name: str) -> int:
    """End a server that Slurm doesn't cancel: a running one sees the note, and a waiting job finds nothing to run."""
    note = state_dir() / f"{os.path.basename(name)}.end"
    note.touch(mode=0o600)
    note.with_suffix(".json").unlink(missing_ok=True)
    return 0


# Running.


def clean(env_file: Path) -> None:
    """Remove all files of a server but its log."""
    for path in env_file.parent.glob(f"{env_file.stem}.*"):
        if path.suffix != ".log":
            path.unlink(missing_ok=True)


def with_port(url: str, port: int) -> str:
    """The service URL, on another port."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
    return urlunsplit(parts._replace(netloc=f"{host}:{port}"))


def place_certs(env_file: Path, certs: dict[str, str]) -> dict[str, str]:
    """Write key, certificate and authority for internal SSL; the variables that name them."""
    variables = {"keyfile": "KEYFILE", "certfile": "CERTFILE", "cafile": "CLIENT_CA"}
    named = {}
    for what, text in certs.items():
        path = env_file.with_suffix(f".{what}.pem")
        path.unlink(missing_ok=True)
        write_secret(path, text)
        named[f"JUPYTERHUB_SSL_{variables[what]}"] = str(path)
    return named


class Launcher:
    """The server's parent: reports the port, and holds it after the server's death."""

    def __init__(self, env_file: Path) -> None:
        request = json.loads(read_secret(env_file))
        env_file.unlink()
        self._cmd: list[str] = request["cmd"]
        self._range: Sequence[int] | None = request["ports"]
        self._env: dict[str, str] = {**os.environ, **request["env"], **place_certs(env_file, request["certs"] or {})}
        # In the shell of the prologue: a login shell knows `module`.
        shell, epilogue = request["shell"], request.get("epilogue")
        self._epilogue: list[str] = [*shell.split(), "-c", epilogue] if epilogue else []
        self._port_file, self._end_file = env_file.with_suffix(".port"), env_file.with_suffix(".end")
        self._process: subprocess.Popen[bytes] | None = None
        self._told_to_go = False

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._terminate)
        threading.Thread(target=self._watch, daemon=True).start()
        os.chdir(os.path.expanduser("~"))
        try:
            return self._run()
        finally:
            clean(self._port_file)
            if self._epilogue:
                # Without the server's token.
                subprocess.run(self._epilogue, check=False)

    def _run(self) -> int:
        url = self._env["JUPYTERHUB_SERVICE_URL"]
        # JupyterHub means all addresses by none.
        address = urlsplit(url).hostname or ""
        tried: set[int] = set()
        for _ in range(_TRIES):
            free = doorway.free_port(address, self._range, tried)
            if free is None:
                break
            port = free.number
            tried.add(port)
            self._env["JUPYTERHUB_SERVICE_URL"] = with_port(url, port)
            with contextlib.closing(free):
                self._process = subprocess.Popen(self._cmd, env=self._env)
                if self._told_to_go:
                    self._process.terminate()
                who = self._lost(address, port)
                if who is None:
                    return self._stay(port)
            print(f"gresshopper: {who} had port {port}; another is tried", file=sys.stderr, flush=True)
        where = "" if self._range is None else f" in {self._range[0]}-{self._range[1]}"
        print(f"gresshopper: no free port{where} on {socket.gethostname()}", file=sys.stderr, flush=True)
        return 1

    def _lost(self, address: str, port: int) -> str | None:
        """Waits until the server listens alone or has ended; None then. If another user had the server's port, ends the
        server and names the user."""
        assert self._process is not None
        seen: set[int] = set()
        while True:
            ended = self._process.poll() is not None
            uids = {listener.uid for listener in doorway.listeners(port)}
            seen |= uids - {os.getuid()}
            who = ", ".join(f"uid {uid}" for uid in sorted(seen))
            if self._told_to_go and ended:
                return None
            if ended:
                return who or (None if doorway.is_free(address, port) else "somebody else")
            if uids == {os.getuid()}:
                return None
            if os.getuid() in uids:
                # At another address: both would stay.
                self._end_server()
                return who
            time.sleep(0.1)

    def _end_server(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _stay(self, port: int) -> int:
        """Tells the port and waits for the server's end."""
        process = self._process
        assert process is not None
        if process.poll() is not None:
            return process.returncode or 1
        held = doorway.share(port)
        write_secret(self._port_file, json.dumps({"port": port}))
        status = process.wait()
        if held and not self._told_to_go and tell_ended():
            doorway.refuse_all(held, HOLD_S, lambda: self._told_to_go)
        # For Slurm, the script's status decides whether a job failed.
        return status if status >= 0 else 128 - status

    def _watch(self) -> None:
        """In a thread of its own, since a file system may hang."""
        while not os.path.exists(self._end_file):
            time.sleep(END_LOOK_S)
        self._terminate()

    def _terminate(self, *_: Any) -> None:
        self._told_to_go = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()


def tell_ended() -> bool:
    """Say in the job's comment that the server is over."""
    job = os.environ["SLURM_JOB_ID"]
    argv = ["scontrol", "update", f"JobId={job}", f"Comment={ENDED}"]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


def run(env_file: Path) -> int:
    """The job's program."""
    try:
        launcher = Launcher(env_file)
    except FileNotFoundError:
        clean(env_file)
        print("gresshopper: the hub had given this server up before its job began", file=sys.stderr)
        return 1
    return launcher.run()


def main() -> int:
    given = sys.argv[1:]
    if given == ["submit"]:
        # An end as an exception, for `submit` to leave nothing behind.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        return submit()
    if len(given) == 2 and given[0] == "run":
        return run(Path(given[1]))
    if len(given) == 2 and given[0] == "port":
        return port(given[1])
    if len(given) == 2 and given[0] == "tail":
        return tail(given[1])
    if len(given) == 2 and given[0] == "end":
        return end(given[1])
    print("usage: server_job submit < request.json | run FILE | port NAME | tail PATH | end NAME", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
