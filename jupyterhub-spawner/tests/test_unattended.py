"""What `hop run` makes of a notebook before and after its cells run. Running it is tested on the real cluster."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import pty
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from gresshopper_jupyter import files, unattended
from gresshopper_jupyter.unattended import Book, Refused, choose_kernel, inject, literal, parse_word, read_parameters


def write(path: Path, *cells: str | tuple[str, str]) -> Path:
    nb = nbformat.v4.new_notebook()
    for cell in cells:
        source, tags = (cell[0], [cell[1]]) if isinstance(cell, tuple) else (cell, [])
        nb.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags}))
    nbformat.write(nb, path)
    return path


def order(path: Path, **more: Any) -> dict[str, Any]:
    return {"notebook": str(path), "out": str(path.with_name("out.ipynb")), **more}


def run_well(book: Book, cells: int) -> None:
    """As if the first of them had run."""
    for cell in book.nb.cells[:cells]:
        cell.outputs = [nbformat.v4.new_output("stream", text=f"of {cell.source}")]
        cell.metadata["papermill"]["status"] = "completed"
    assert book.save() is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1.5", 1.5), ("True", True), ("None", None), ("x", "x"), ("", ""), ("1e3", 1000.0)],
)
def test_words_are_read_as_papermill_reads_them(text: str, value: Any) -> None:
    got = parse_word(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    "value", [1, -1.5, True, None, "a'\"\n\\", [1, ["x"]], {"a": {"b": None}, 1: 2.0}, float("-inf")]
)
def test_a_literal_means_the_value(value: Any) -> None:
    assert eval(literal(value)) == value


def test_later_parameters_win_and_bad_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"a": 1, "b": [1]}')
    (tmp_path / "p.yaml").write_text("b: x\nwhen: 2026-11-21\n")
    files = [str(tmp_path / "p.json"), str(tmp_path / "p.yaml")]
    got = read_parameters({"parameter_files": files, "parameters": [("a", "2")], "raw_parameters": [("c", "3")]})
    assert got == {"a": 2, "b": "x", "when": got["when"], "c": "3"}
    assert literal(got["when"]) == "'2026-11-21'"
    (tmp_path / "bad.json").write_text("{")
    for wrong in (
        {"parameters": [("1a", "2")]},
        {"parameters": [("class", "2")]},
        {"parameter_files": [str(tmp_path / "bad.json")]},
        {"parameter_files": [str(tmp_path / "none.json")]},
    ):
        with pytest.raises(Refused):
            read_parameters(wrong)


def test_parameters_go_where_papermill_puts_them(tmp_path: Path) -> None:
    nb = nbformat.read(write(tmp_path / "a.ipynb", "import os", ("n = 1", "parameters"), "n"), as_version=4)
    assert inject(nb, {"n": 2}) == []
    assert [c.source for c in nb.cells] == ["import os", "n = 1", "# Parameters\nn = 2", "n"]
    assert inject(nb, {"m": "x"}) == ["the cell tagged `parameters` has no m"]
    assert [c.source for c in nb.cells] == ["import os", "n = 1", "# Parameters\nm = 'x'", "n"]
    nb = nbformat.read(write(tmp_path / "b.ipynb", "n"), as_version=4)
    (said,) = inject(nb, {"n": 2})
    assert "at its top" in said
    assert nb.cells[0].source == "# Parameters\nn = 2"


def test_a_run_that_goes_on_keeps_what_is_good_still(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", "a", "b", "c", "d")
    book = Book(order(path, parameters=[("n", "1")]))
    run_well(book, 4)
    again = Book(order(path, resume=True))
    assert again.parameters == {"n": 1}, "those of the run that goes on"
    assert again.good == 4
    assert [len(c.outputs) for c in again.nb.cells] == [1, 1, 1, 1, 0]
    write(path, "a", "b, changed", "c", "d")
    changed = Book(order(path, resume=True))
    assert changed.good == 2
    assert [len(c.outputs) for c in changed.nb.cells] == [1, 1, 0, 0, 0]
    assert Book(order(path, resume=True, parameters=[("n", "2")])).good == 0
    assert Book(order(path)).good == 0


def test_how_long_cells_took_is_read_from_the_notebook(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", "a", "b", "c")
    nb = json.loads(path.read_text())
    nb["cells"][0]["metadata"]["papermill"] = {"status": "completed", "duration": 7.5}
    nb["cells"][1]["metadata"]["execution"] = {
        "iopub.execute_input": "2026-11-21T10:00:00.500000Z",
        "shell.execute_reply": "2026-11-21T10:00:02.500000Z",
    }
    path.write_text(json.dumps(nb))
    assert Book(order(path)).prior == [7.5, 2.0, None]


def test_the_output_is_replaced_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", "a")
    book = Book(order(path))
    book.out.write_text("old")
    book.out.chmod(0o640)
    assert book.save() is None
    assert book.out.stat().st_mode & 0o777 == 0o640
    assert nbformat.read(book.out, as_version=4).cells[0].source == "a"
    book.out = tmp_path / "nowhere" / "o.ipynb"
    assert "can't write" in (book.save() or "")
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix == ".new") == []


def test_links_to_the_output_stay_links(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ipynb", "a")
    book = Book(order(path))
    (tmp_path / "real").mkdir()
    for target in ("real/there.ipynb", "real/new.ipynb"):
        (tmp_path / "real" / "there.ipynb").write_text("old")
        book.out.unlink(missing_ok=True)
        book.out.symlink_to(target)
        assert book.save() is None
        assert book.out.is_symlink()
        assert nbformat.read(tmp_path / target, as_version=4).cells[0].source == "a"
    book.out.unlink()
    book.out.symlink_to(book.out.name)
    assert "can't write" in (book.save() or "")
    assert book.out.is_symlink()


def test_a_pipe_gets_the_notebook_once_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.ipynb", "a = '" + "x" * 200_000 + "'")
    book = Book(order(path))
    os.mkfifo(book.out)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(book.out.read_text()))
    reader.start()
    assert book.save() is None
    deadline = time.monotonic() + 10
    while (problem := book.save(last=True)) and time.monotonic() < deadline:
        time.sleep(0.01)  # The reader is not there yet.
    reader.join(10)
    assert problem is None
    assert book.out.is_fifo()
    assert nbformat.reads(got[0], as_version=4).cells[0].source.startswith("a = 'xxx")
    assert "nobody reads it" in (book.save(last=True) or "")
    monkeypatch.setattr(files, "_READER", 0.1)
    idle = os.open(book.out, os.O_RDONLY | os.O_NONBLOCK)
    assert "nobody reads it" in (book.save(last=True) or "")
    os.close(idle)
    with pytest.raises(Refused, match="--resume"):
        Book(order(path, resume=True))


def test_a_device_is_written_to_and_a_folder_or_socket_refused(tmp_path: Path) -> None:
    book = Book(order(write(tmp_path / "a.ipynb", "a")))
    ours, theirs = pty.openpty()
    book.out = Path(os.ttyname(theirs))
    assert (book.save(), book.save(last=True)) == (None, None)
    assert b'"cells"' in os.read(ours, 100)
    os.close(ours)
    os.close(theirs)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        for name, says in (("s", "a socket"), (".", "a folder")):
            book.out = tmp_path / name
            assert says in (book.save() or "")
    assert (tmp_path / "s").is_socket()


def test_what_is_no_file_or_has_no_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.ipynb", "a")
    pipe, long = tmp_path / "pipe", tmp_path / "long.json"
    os.mkfifo(pipe)
    monkeypatch.setattr(unattended, "_PARAMETERS", 1 << 20)
    long.write_text("{" + " " * (1 << 20) + "}")
    for name, says in ((pipe, "it is a pipe"), (Path("/dev/zero"), "it is a device"), (long, "more than 1 MiB")):
        with pytest.raises(Refused, match=says):
            read_parameters({"parameter_files": [str(name)]})
    with pytest.raises(Refused, match="it is a pipe"):
        Book({**order(path), "notebook": str(pipe)})


ODD: list[Any] = [None, 0, float("inf"), "x", [], [None], {}, {"a": 1}, True]


@pytest.mark.filterwarnings("ignore")
def test_what_other_tools_write_into_a_notebook_breaks_nothing(tmp_path: Path) -> None:
    """Each value in it is replaced by odd ones, or left out: it is a notebook still, or refused in a sentence."""
    path, out = tmp_path / "n.ipynb", tmp_path / "out.ipynb"
    cell = {"cell_type": "code", "id": "a", "source": "a = 1", "outputs": [], "execution_count": None}
    timing = {"iopub.execute_input": "2026-01-01T00:00:00Z", "shell.execute_reply": "2026-01-01T00:00:01Z"}
    cell["metadata"] = {
        "tags": ["parameters"],
        "papermill": {"duration": 1, "status": "completed"},
        "gresshopper": {"need": {"gpus": 1}},
        "execution": timing,
    }
    kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    whole = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernelspec}, "cells": [cell]}

    def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, more in inside:
            yield (*above, key)
            yield from places(more, (*above, key))

    for place, odd in itertools.product(list(places(whole)), [*ODD, ...]):
        book = copy.deepcopy(whole)
        around: Any = book
        for key in place[:-1]:
            around = around[key]
        if odd is ...:
            del around[place[-1]]
        else:
            around[place[-1]] = odd
        path.write_text(json.dumps(book))
        out.write_text(json.dumps(book))
        for resume in (False, True):
            with contextlib.suppress(Refused):
                made = Book(order(path, resume=resume, parameters=[("a", "2")]))
                assert all(isinstance(cell.metadata.get("tags", []), list) for cell in made.nb.cells)
                with contextlib.suppress(Refused):
                    choose_kernel(made.nb, None)
                made.finish(True)
                made.save()


def test_what_is_no_notebook_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").write_text("{}")
    for path, said in ((tmp_path / "a.ipynb", "is no notebook"), (tmp_path / "b.ipynb", "can't read")):
        with pytest.raises(Refused, match=said):
            Book(order(path))
