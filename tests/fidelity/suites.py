#!/usr/bin/env python3
"""nbclient's and papermill's own tests, and those of ipykernel that are a client's, against plain ipykernel and against our
kernel under the same name.

    suites.py BIN [SUITE..]     BIN: the folder of hop, hop-front and hop-replica; SUITE: nbclient, papermill, ipykernel
    suites.py --replicas N [SUITE..]

Their tests are in their source packages, which pip fetches in the versions that are installed here; what the tests import
comes into a folder of its own. The first form asks no Slurm: our kernelspec is a local one. The second one runs them as a
user of a dev cluster of its own (as the end-to-end tests do: PROFILE, HOP_E2E_INDEX, HOP_E2E_BASE), with kernels of so many
replicas. The exit status is 1 where a test passes against plain ipykernel and fails against ours, twice in a row, and isn't
one of `BY_DESIGN`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

REPO = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Suite:
    name: str
    #: Files with tests, below the package's source.
    tests: tuple[str, ...]
    #: Packages that the tests import beside it.
    needs: tuple[str, ...]


SUITES = (
    Suite(
        "nbclient", ("tests/test_client.py", "tests/test_cli.py"), ("flaky", "testpath", "xmltodict", "ipywidgets")
    ),
    Suite(
        "papermill",
        tuple(
            f"papermill/tests/test_{part}.py"
            for part in ("execute", "engines", "clientwrap", "autosave", "cli", "inspect")
        ),
        (
            "boto3",
            "moto",
            "pytest-mock",
            "pytest-env",
            "azure-identity",
            "azure-storage-blob",
            "gcsfs",
            "pyarrow",
            "ipywidgets",
        ),
    ),
    Suite(
        "ipykernel",
        tuple(f"tests/test_{part}.py" for part in ("kernel", "message_spec", "debugger", "subshells")),
        ("flaky", "trio", "pytest-cov", "matplotlib"),
    ),
)

BY_DESIGN = {
    # Their cell kills its kernel, and they expect a dead one: ours goes on, and the cell's error is `CellLost`.
    "tests.test_client.TestExecute::test_error_notebook_hook",
    "tests.test_client.TestExecute::test_kernel_death_during_execution",
    # A cell begins with the front's word, so questions that are sent right behind it are answered first. The second test
    # reads a reply that the first one left.
    "tests.test_message_spec::test_non_execute_stop_on_error",
    "tests.test_message_spec::test_user_expressions",
}


def pip(*argv: str) -> None:
    quiet = ["-q", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", argv[0], *quiet, *argv[1:]], check=True, stdout=sys.stderr)


def source(suite: Suite, place: Path) -> Path:
    """The unpacked source package."""
    wanted = f"{suite.name}=={version(suite.name)}"
    pip("download", "--no-deps", "--no-binary", suite.name, "-d", str(place), wanted)
    (archive,) = place.glob(f"{suite.name}-*.tar.gz")
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(place)], check=True)
    return place / archive.name.removesuffix(".tar.gz")


#: Runs a command in a folder with an environment.
Runner = Callable[[list[str], Path, dict[str, str]], None]


def here(argv: list[str], folder: Path, env: dict[str, str]) -> None:
    subprocess.run(argv, cwd=folder, env=os.environ | env, stdout=sys.stderr, check=False)


@dataclass(frozen=True)
class Ours:
    """Where `python3` is our kernel."""

    python: Path
    env: dict[str, str]
    run: Runner = here


def local(binaries: Path, place: Path) -> Ours:
    """On this machine, without Slurm."""
    overlay = place / "venv"
    subprocess.run([str(REPO / "tests/setup/overlay.sh"), sys.prefix, str(overlay)], check=True, stdout=sys.stderr)
    env = {
        "PATH": f"{binaries}:{overlay}/bin:{os.environ['PATH']}",
        "JUPYTER_PATH": str(place / "share/jupyter"),
        "GRESSHOPPER_PYTHON": str(REPO / "kernel/python"),
    }
    hop = [str(binaries / "hop"), "kernelspec", "install", "--prefix", str(place), "--local"]
    spec = [*hop, "--python", sys.executable, "--name", "python3"]
    subprocess.run(spec, check=True, env=os.environ | env, stdout=sys.stderr)
    return Ours(overlay / "bin/python", env)


@contextlib.contextmanager
def clustered(replicas: int) -> Iterator[Callable[[Path], Ours]]:
    """On a dev cluster, as alice, whose kernels have so many replicas."""
    sys.path.insert(0, str(REPO / "tests/e2e"))
    from harness import Cluster  # type: ignore[import-not-found]

    base = os.environ.get("HOP_E2E_BASE", "/srv/gresshopper-suites")
    index = int(os.environ.get("HOP_E2E_INDEX", "8"))
    cluster = Cluster(base, index, os.environ.get("HOP_E2E_VARIANT", "auto"), REPLICAS=str(replicas))

    def run(argv: list[str], folder: Path, env: dict[str, str]) -> None:
        subprocess.run(["chown", "-R", "alice", str(folder), str(Path(env["IPYTHONDIR"]).parent)], check=True)
        process = cluster.popen("alice", ["env", "-C", str(folder), *argv], env=env, stdout=sys.stderr)
        process.wait()

    def ours(place: Path) -> Ours:
        prefix = cluster.base / "opt/suites"
        shutil.rmtree(prefix, ignore_errors=True)
        cluster.run(
            "root",
            "hop",
            "kernelspec",
            "install",
            "--prefix",
            str(prefix),
            "--python",
            sys.executable,
            "--name",
            "python3",
        )
        path = f"{cluster.base}/opt/bin:{sys.prefix}/bin:{os.environ['PATH']}"
        below = f"{place.parent}:{cluster.base}/opt/jupyter"
        env = {"JUPYTER_PATH": f"{prefix}/share/jupyter", "PATH": path, "PYTHONPATH": below}
        # Seats look for the user's kernels in the home that Slurm knows.
        env["HOME"] = str(cluster.base / "home/alice")
        return Ours(Path(sys.executable), env, run)

    try:
        cluster.up()
        yield ours
    finally:
        cluster.down()


PYTEST = "-m pytest -q -p no:cacheprovider -o addopts= -o asyncio_default_fixture_loop_scope=function --timeout 120 --tb short"


def outcomes(
    python: Path, folder: Path, tests: Iterable[str], env: dict[str, str], run: Runner = here
) -> dict[str, bool]:
    """Which tests passed, by their names. Skipped ones are left out."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    run([str(python), *PYTEST.split(), f"--junitxml={report}", *tests], folder, env)
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if "skipped" not in kinds:
            found[f"{case.get('classname')}::{case.get('name')}"] = not kinds & {"failure", "error"}
    return found


def node(name: str) -> str:
    """A test's name as pytest takes it."""
    classes, _, test = name.partition("::")
    parts = classes.split(".")
    modules = [part for part in parts if not part[:1].isupper()]
    below = [part for part in parts if part[:1].isupper()]
    return "::".join([f"{'/'.join(modules)}.py", *below, test])


def compare(suite: Suite, make_ours: Callable[[Path], Ours], place: Path) -> list[str]:
    """Runs a suite against both kernels. Returns what fails with ours alone."""
    folder = source(suite, place)
    needs = place / "needs"
    pip("install", "--no-compile", "--target", str(needs), *suite.needs)
    # Packages of this environment go before the newer ones that were fetched for the tests.
    (place / "sitecustomize.py").write_text(f"import sys\nsys.path.append({str(needs)!r})\n")
    home = place / "home"
    home.mkdir()
    common = {
        "HOME": str(home),
        "IPYTHONDIR": str(home / "ipython"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PYTHONPATH": str(place),
        "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
    }
    plain = outcomes(Path(sys.executable), folder, suite.tests, common)
    ours = make_ours(place / "ours")
    env = common | ours.env
    with_ours = outcomes(ours.python, folder, suite.tests, env, ours.run)

    def worse(found: dict[str, bool]) -> list[str]:
        return sorted(name for name, passed in plain.items() if passed and not found.get(name, False))

    again = worse(with_ours)
    if again:
        # Some of these tests are about time.
        with_ours |= outcomes(ours.python, folder, [node(name) for name in again], env, ours.run)
    print(
        f"{suite.name} {version(suite.name)}: {len(plain)} tests; {sum(plain.values())} pass against plain ipykernel, "
        f"{sum(with_ours.values())} against ours"
    )
    return worse(with_ours)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--replicas", type=int, help="on a dev cluster, with so many of each kernel")
    parser.add_argument("words", nargs="*", metavar="[BIN] SUITE")
    args = parser.parse_args()
    lost = []
    with contextlib.ExitStack() as stack:
        if args.replicas:
            names, make = args.words, stack.enter_context(clustered(args.replicas))
        else:
            names, make = args.words[1:], partial(local, Path(args.words[0]).resolve())
        for suite in SUITES:
            if not names or suite.name in names:
                with tempfile.TemporaryDirectory() as place:
                    # The cluster's user reads it.
                    os.chmod(place, 0o755)
                    lost += compare(suite, make, Path(place))
    for name in lost:
        how = ", by design" if name in BY_DESIGN else ""
        print(f"passes against plain ipykernel alone{how}: {name}")
    return int(not BY_DESIGN.issuperset(lost))


if __name__ == "__main__":
    sys.exit(main())
