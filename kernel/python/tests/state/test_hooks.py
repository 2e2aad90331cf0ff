"""Changes by code that a cell doesn't name are in the cell's own record: hooks, callbacks, threads and tasks that ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import Kernel

for package in ("ipykernel", "jupyter_client", "cloudpickle"):
    pytest.importorskip(package)

#: Cells that hang a hook in, and a cell that fires it without a word of the list `NAME`.
HOOKS: dict[str, tuple[str, str]] = {
    "after a cell": ("def f(r): NAME.append(1)\nget_ipython().events.register('post_run_cell', f)", "1"),
    "before a cell": ("get_ipython().events.register('pre_run_cell', lambda i: NAME.append(1))", "1"),
    "handler": (
        "import logging\nclass L(logging.Handler):\n    def emit(self, r): NAME.append(r.msg)\n"
        "logging.getLogger('a').addHandler(L())",
        "logging.getLogger('a').error('one')",
    ),
    "stream": (
        "NAME = io.StringIO()\nlogging.getLogger('b').addHandler(logging.StreamHandler(NAME))",
        "logging.getLogger('b').error('one')",
    ),
    "tee": (
        "class Tee:\n    def __init__(s, o): s.o = o\n    def write(s, t): NAME.append(t); return s.o.write(t)\n"
        "    def __getattr__(s, n): return getattr(s.o, n)\nsys.stdout = Tee(sys.stdout)",
        "print('one')",
    ),
    "tee set unseen": (
        "setattr(*[sys, 'stderr'], type('T', (), dict(write=lambda s, t: NAME.append(t), flush=lambda s: None))())",
        "print('one', file=sys.stderr)",
    ),
    "warnings": (
        "def f(m, c, w, l, file=None, line=None): NAME.append(m)\nwarnings.showwarning = f",
        "warnings.simplefilter('always'); warnings.warn('one')",
    ),
    "builtin": (
        "print_ = print\ndef f(*a, **k): NAME.append(a); print_(*a, **k)\nbuiltins.print = f",
        "print('one')",
    ),
    "function": (
        "dumps_ = json.dumps\ndef f(*a, **k): NAME.append(1); return dumps_(*a, **k)\njson.dumps = f",
        "json.dumps(1)",
    ),
    "attribute": ("json.cb = lambda x: NAME.append(x)", "json.cb(1)"),
    "formatter": (
        "get_ipython().display_formatter.formatters['text/plain'].for_type("
        "complex, lambda o, p, c: (NAME.append(o), p.text('c')))",
        "1j",
    ),
    "transformer": ("get_ipython().input_transformers_post.append(lambda ls: NAME.append(1) or ls)", "1"),
    "errors": ("get_ipython().set_custom_exc((LookupError,), lambda *a, **k: NAME.append(1))", "{}[1]"),
    "signal": ("signal.signal(signal.SIGUSR1, lambda *a: NAME.append(1))", "signal.raise_signal(signal.SIGUSR1)"),
    "timer": (
        "signal.signal(signal.SIGALRM, lambda *a: NAME.append(1)); signal.setitimer(signal.ITIMER_REAL, .1)",
        "time.sleep(.3)",
    ),
    "database": (
        "con = sqlite3.connect(':memory:')\ncon.create_function('note', 1, lambda x: NAME.append(x))",
        "con.execute('select note(1)').fetchall()",
    ),
    "adapter": (
        "class D: pass\nsqlite3.register_adapter(D, lambda d: NAME.append(1))\nd = D()",
        "sqlite3.connect(':memory:').execute('select ?', (d,)).fetchall()",
    ),
    "callback in C": ("CB = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: NAME.append(1) or 1)", "CB(1)"),
    "future": (
        "fut = concurrent.futures.Future(); fut.add_done_callback(lambda x: NAME.append(1))",
        "fut.set_result(5)",
    ),
    "end": ("class A:\n    def __del__(s): NAME.append(1)\na = A(); a.me = a", "del a\ngc.collect()"),
    "end in a later cell": (
        "class B:\n    def __del__(s): NAME.append(1)\ngc.disable(); b = B(); b.me = b\ndel b",
        "gc.collect(); gc.enable()",
    ),
    "finalizer": ("class C: pass\nc = C(); weakref.finalize(c, lambda: NAME.append(1))", "del c"),
    "generator": (
        "def mk():\n    L = []\n    def g():\n        for i in range(9): L.append(i); yield i\n    return L, g()\n"
        "NAME, it = mk()",
        "next(it)",
    ),
    "audit hook": ("sys.addaudithook(lambda e, a: e == 'myev' and NAME.append(1))", "sys.audit('myev', 1)"),
    "own module": ("hmod.reg(lambda x: NAME.append(x))", "hmod.fire(1)"),
}
#: Those that fire once.
ONCE = {"timer", "future", "end", "end in a later cell", "finalizer"}
#: What runs beside the cells for a while, a cell that waits for its end, and another one.
BESIDE = {
    "thread": (
        "def w(): time.sleep(.2); NAME.append(1)\nt = threading.Thread(target=w); t.start()\ndel w",
        "t.join()",
    ),
    "pool": (
        "def w(): time.sleep(.2); NAME.append(1)\np = concurrent.futures.ThreadPoolExecutor(1)\nr = p.submit(w)\ndel w",
        "r.result()",
    ),
    "Timer": ("threading.Timer(.2, lambda: NAME.append(1)).start()", "time.sleep(.4)"),
    "task": (
        "async def w(): await asyncio.sleep(.2); NAME.append(1)\nt = asyncio.create_task(w())\ndel w",
        "await t",
    ),
    "call_later": ("asyncio.get_running_loop().call_later(.2, lambda: NAME.append(1));", "await asyncio.sleep(.4)"),
    "processes": (
        "pp = concurrent.futures.ProcessPoolExecutor(1)\nr = pp.submit(time.sleep, .2)\n"
        "r.add_done_callback(lambda f: NAME.append(1))",
        "time.sleep(.6)",
    ),
}
IMPORTS = (
    "import asyncio, builtins, concurrent.futures, ctypes, gc, io, json, logging, signal, sqlite3, sys, threading, time, "
    "warnings, weakref\nimport hmod"
)
HMOD = "cb = []\ndef reg(f): cb.append(f)\ndef fire(x):\n    for f in cb: f(x)\n"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: Any) -> Iterator[Kernel]:
    base: Path = tmp_path_factory.mktemp("hooks")
    (base / "hmod.py").write_text(HMOD)
    made = Kernel(base, PYTHONPATH=f"{Path(__file__).parents[2]}:{base}")
    made.begin(patience_ms=60_000)
    made.run(IMPORTS)
    yield made
    made.close()


def captured(kernel: Kernel) -> set[str]:
    """Variables in the record of the last cell."""
    said, attachments = kernel.of("cell")[-1]
    units = json.loads(attachments[0])["units"] if attachments else []
    return {member[2:] for unit in units for member in unit["m"]}


@pytest.mark.parametrize("hook", HOOKS)
def test_changes_by_hooks_are_in_the_cells_record(kernel: Kernel, hook: str) -> None:
    hang, fire = HOOKS[hook]
    name = "got_" + hook.replace(" ", "_")
    kernel.run(f"{name} = []")
    kernel.run(hang.replace("NAME", name), 20)
    for _ in range(1 if hook in ONCE else 2):
        kernel.run(fire, 20)
        assert name in captured(kernel)


@pytest.mark.parametrize("beside", BESIDE)
def test_changes_by_what_ran_and_ended_are_in_the_next_record(kernel: Kernel, beside: str) -> None:
    begin, end = BESIDE[beside]
    kernel.run("seen = []")
    kernel.run(begin.replace("NAME", "seen"))
    kernel.run(end)
    assert "seen" in captured(kernel)
