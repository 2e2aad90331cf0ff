"""Runs as the user: submits the single-user server's job, and is what that job starts.

`python -m gresshopper_jupyter.server_job submit` reads a JSON request on standard input, keeps the server's
environment (it holds the hub's API token) in a file of mode 0600, and calls sbatch. The job's script calls
`... server_job run FILE`: it reads and removes that file, picks a port, says which one in the job's comment, and
becomes the server.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit


def state_dir() -> Path:
    """The folder of this user's pending environments, made with mode 0700."""
    base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    path = Path(base) / "gresshopper" / "servers"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write_secret(path: Path, text: str) -> None:
    """A new file that only its owner reads; never an existing one."""
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
        return file.read()


def batch_script(python: str, env_file: Path, prologue: str) -> str:
    """The job's script. Nothing in it is secret and nothing in it comes from a form."""
    return f'#!/bin/sh\n{prologue}\nexec "{python}" -m gresshopper_jupyter.server_job run "{env_file}"\n'


def clean_environment() -> dict[str, str]:
    """Our environment without what another job or an admin's shell left of Slurm's settings."""
    drop = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_")
    return {k: v for k, v in os.environ.items() if not k.startswith(drop) or k == "SLURM_CONF"}


def submit() -> int:
    """Submit the job that standard input describes; print its id."""
    request = json.load(sys.stdin)
    env_file = state_dir() / f"{secrets.token_hex(8)}.json"
    write_secret(env_file, json.dumps({"env": request["env"], "cmd": request["cmd"]}))
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", *request["options"]],
            input=batch_script(request["python"], env_file, request["prologue"]),
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        env_file.unlink(missing_ok=True)
        print(f"sbatch can't be run: {error}", file=sys.stderr)
        return 1
    if done.returncode != 0:
        env_file.unlink(missing_ok=True)
        print(done.stderr.strip() or f"sbatch ended with {done.returncode}", file=sys.stderr)
        return 1
    print(done.stdout.strip().split(";")[0])
    return 0


def free_port(ip: str) -> int:
    """A port that is free on `ip` now. Should another process take it first, the server fails and says so."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((ip, 0))
        port: int = probe.getsockname()[1]
        return port


def with_port(url: str, port: int) -> str:
    """The service URL, on another port."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
    return urlunsplit(parts._replace(netloc=f"{host}:{port}"))


def run(env_file: Path) -> int:
    """Become the single-user server that the file describes."""
    request = json.loads(read_secret(env_file))
    env_file.unlink()
    env: dict[str, str] = {**os.environ, **request["env"]}
    url = env["JUPYTERHUB_SERVICE_URL"]
    port = free_port(urlsplit(url).hostname or "0.0.0.0")
    env["JUPYTERHUB_SERVICE_URL"] = with_port(url, port)
    job = os.environ["SLURM_JOB_ID"]
    told = subprocess.run(
        ["scontrol", "update", f"JobId={job}", f"Comment=gresshopper port={port}"],
        check=False,
        capture_output=True,
        text=True,
    )
    if told.returncode != 0:
        print(f"scontrol could not note the server's port: {told.stderr.strip()}", file=sys.stderr)
        return 1
    os.chdir(os.path.expanduser("~"))
    os.execvpe(request["cmd"][0], request["cmd"], env)


def main() -> int:
    verb = sys.argv[1:2]
    if verb == ["submit"] and len(sys.argv) == 2:
        return submit()
    if verb == ["run"] and len(sys.argv) == 3:
        return run(Path(sys.argv[2]))
    print("usage: server_job submit < request.json | server_job run FILE", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
