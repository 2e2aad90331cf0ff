"""How the shell shows results, and the notebook's own magics, aliases and formatters are there again after a restore."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import child

for package in ("numpy", "IPython", "cloudpickle"):
    pytest.importorskip(package)

CELLS = [
    "from IPython.core.interactiveshell import InteractiveShell\nInteractiveShell.ast_node_interactivity = 'all'",
    "from IPython.core.magic import register_line_magic, register_cell_magic\n@register_line_magic\ndef hello(line):\n    return 'hello ' + line + mark\nmark = '!'",
    "@register_cell_magic\ndef double(line, cell):\n    return cell * 2\ndel double",
    "%precision 3\n%xmode Plain\n%alias_magic t timeit\n%alias hop_say echo said",
    "%load_ext autoreload\n%autoreload 2",
    "class A: pass\nget_ipython().display_formatter.formatters['text/plain'].for_type(A, lambda o, p, c: p.text('AAA'))\nimport fractions\nfractions.SEED = 4",
    "calls = []\ndef tally(result): calls.append(1)\nget_ipython().events.register('post_run_cell', tally)",
    "def euro(lines): return [line.replace('EURO', '1.5') for line in lines]\nget_ipython().input_transformers_cleanup.append(euro)",
]
ASKED = """
mark = '?'
ip = get_ipython()
magics = ip.magics_manager.magics
out = [
    ip.ast_node_interactivity, ip.run_line_magic('hello', 'al'), ip.run_cell_magic('double', '', 'ab'),
    ip.display_formatter.format(3.14159)[0]['text/plain'], ip.InteractiveTB.mode, magics['line']['t'].magic_name,
    ip.alias_manager.get_alias('hop_say').cmd, any('autoreload' in n for n in ip.extension_manager.loaded),
    magics['line']['autoreload'].__self__._reloader.check_all, ip.display_formatter.format(A())[0]['text/plain'],
    fractions.SEED, EURO * 2, sum(f is tally for f in ip.events.callbacks['post_run_cell']),
]
"""
SCRIPT = """
import contextlib, io, json, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from gresshopper.state.agent import Agent
base, cells, asked = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
ip = InteractiveShell.instance()
agent = Agent(ip, base / "store")
with contextlib.redirect_stdout(io.StringIO()):
    if cells:
        agent.watch()
        for cell in cells:
            assert ip.run_cell(cell, store_history=True).success, cell
        agent.save(base / "state", durable=False)
    else:
        agent.restore(base / "state")
    ip.run_cell(asked)
print("\\x1e" + json.dumps(ip.user_ns.get("out")))
"""


def run(base: Path, cells: list[str]) -> Any:
    return child.answer(SCRIPT, str(base), json.dumps(cells), ASKED, base=base)


def test_the_shell_is_as_the_notebook_set_it(tmp_path: Path) -> None:
    before, _ = run(tmp_path, CELLS)
    assert before[:4] == ["all", "hello al?", "abab", "3.142"]
    assert before[4:] == ["Plain", "timeit", "echo said", True, True, "AAA", 4, 3.0, 1]
    after, told = run(tmp_path, [])
    assert after == before, told
    assert "couldn't be" not in told


def test_pandas_finds_a_kernel_where_a_restore_imports_it(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    script = SCRIPT.replace("agent = Agent", "ip.kernel = None\nagent = Agent")
    cell = "import pandas as pd\npd.set_option('display.max_columns', 20)\ns = pd.Series([1])"
    asked = "out = [pd.get_option('display.max_columns')]\npd.reset_option('all')\nout += [pd.get_option('display.max_columns')]"
    for cells in ([cell], []):
        found, told = child.answer(script, str(tmp_path), json.dumps(cells), asked, base=tmp_path)
        assert found == [20, 20], told
        assert "defaults" not in told


HUNG_IN = [
    "import functools\nip = get_ipython()\nseen, text = [], ip.display_formatter.formatters['text/plain']",
    """
class Watch:
    n = 0
    def before(self): self.n += 1
    @classmethod
    def after(cls, result): cls.n += 100
class Money:
    def __call__(self, lines): return [line.replace('EURO', '1.5') for line in lines]
class A: pass
class B: pass
class Magic:
    def mag(self, line): return 'mag ' + line
watch, money, magic = Watch(), Money(), Magic()
def shown(letter, o, p, c, ends='!'): p.text(letter + ends)
""",
    """
ip.events.register('pre_execute', watch.before)
ip.events.register('post_run_cell', Watch.after)
ip.input_transformers_cleanup.append(money)
text.for_type(A, functools.partial(shown, 'P', ends='?'))
text.for_type(B, functools.partial(text_of := shown, watch.__class__.__name__))
text.for_type_by_name('fractions', 'Fraction', lambda o, p, c: p.text('half'))
ip.register_magic_function(magic.mag, 'line', 'mag')
""",
    "1",
]
ASKED_HUNG_IN = """
import fractions
was, show = watch.n, ip.display_formatter.format
ip.events.trigger('pre_execute')
out = [
    watch.n - was, Watch.n >= 100, EURO * 2, sum(f is money for f in ip.input_transformers_cleanup),
    [show(o)[0]['text/plain'] for o in (A(), B(), fractions.Fraction(1, 2))], ip.run_line_magic('mag', 'x'),
    magic.mag('y'), sum(f == Watch.after for f in ip.events.callbacks['post_run_cell']),
]
"""


def test_methods_and_objects_of_the_notebook_hang_in_the_shell_again(tmp_path: Path) -> None:
    before, _ = child.answer(SCRIPT, str(tmp_path), json.dumps(HUNG_IN), ASKED_HUNG_IN, base=tmp_path)
    shown = ["P?", "Watch!", "half"]
    assert before == [1, True, 3.0, 1, shown, "mag x", "mag y", 1]
    after, said = child.answer(SCRIPT, str(tmp_path), "[]", ASKED_HUNG_IN, base=tmp_path)
    assert after == before, said
    assert "run its cell again" not in said


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("ip.events.register('pre_run_cell', [W()][0].seen)", "the callback of pre_run_cell W.seen"),
        ("ip.input_transformers_post.append(textwrap.wrap)", "the transformer of input wrap"),
        ("import operator\nip.register_magic_function(operator.itemgetter(0), 'line', 'a')", "the magic a"),
        ("text.for_type(W, string.Formatter().format)", "a formatter of string"),
        ("text.for_type(W, functools.partial(W.shown, [1]))", "a formatter of __main__"),
        ("%logstart log.py", "the log of %logstart"),
    ],
)
def test_what_hangs_in_the_shell_and_is_not_kept_is_told(tmp_path: Path, cell: str, said: str) -> None:
    start = (
        "import functools, string, textwrap\nip = get_ipython()\ntext = ip.display_formatter.formatters['text/plain']"
    )
    of_notebook = "class W:\n    def seen(self, info): pass\n    def shown(self, o, p, c): p.text('w')"
    cells = [start, of_notebook, cell]
    child.answer(SCRIPT, str(tmp_path), json.dumps(cells), "out = 1", base=tmp_path)
    _, heard = child.answer(SCRIPT, str(tmp_path), "[]", "out = 1", base=tmp_path)
    assert f"{said}: the notebook " in heard, heard
    assert heard.count("run its cell again") == 1, heard


def test_what_pyplot_hangs_in_the_shell_is_not_told(tmp_path: Path) -> None:
    """Its function is not the notebook's: of other globals."""
    cell = (
        "import types\ndef _draw_all_if_interactive(): pass\nf = types.FunctionType(_draw_all_if_interactive.__code__, {})\n"
        "get_ipython().events.register('post_execute', f)\ndel f"
    )
    child.answer(SCRIPT, str(tmp_path), json.dumps([cell]), "out = 1", base=tmp_path)
    _, heard = child.answer(SCRIPT, str(tmp_path), "[]", "out = 1", base=tmp_path)
    assert "run its cell again" not in heard


EXTENSION = """
from IPython.core.magic import Magics, line_magic, magics_class
@magics_class
class Desk(Magics):
    tickets = 0
    @line_magic
    def ticket(self, line):
        self.tickets += 1
        return self.tickets
def load_ipython_extension(shell):
    shell.register_magics(Desk)
"""


def test_what_the_magics_of_an_extension_of_ones_own_keep_is_told(tmp_path: Path) -> None:
    (tmp_path / "desk_magics.py").write_text(EXTENSION)
    cells = [f"import sys\nsys.path.insert(0, {str(tmp_path)!r})", "%load_ext desk_magics"]
    for used, missing in (([], False), (["%ticket"], True)):
        base = tmp_path / str(missing)
        base.mkdir()
        before, _ = child.answer(SCRIPT, str(base), json.dumps(cells + used), "out = %ticket", base=base)
        told = "print(*agent.restore(base / 'state').notices, file=sys.stderr)"
        script = SCRIPT.replace('agent.restore(base / "state")', told)
        after, said = child.answer(script, str(base), "[]", "out = %ticket", base=base)
        assert (before, after) == (2 if missing else 1, 1)
        assert ("Desk.tickets: what a class of magics" in said) == missing, said


MAGICS = EXTENSION.partition("def load_ipython")[0] + "get_ipython().register_magics(Desk)"


def test_what_the_notebooks_own_magics_keep_is_told(tmp_path: Path) -> None:
    before, _ = child.answer(SCRIPT, str(tmp_path), json.dumps([MAGICS]), "out = %ticket", base=tmp_path)
    told = "print(*agent.restore(base / 'state').notices, file=sys.stderr)"
    script = SCRIPT.replace('agent.restore(base / "state")', told)
    after, said = child.answer(script, str(tmp_path), "[]", "out = %ticket", base=tmp_path)
    assert (before, after) == (1, None)
    assert "Desk: what a class of magics holds isn't saved, run its cells again" in said


def test_what_a_library_wrapped_and_put_into_a_class_is_told(tmp_path: Path) -> None:
    """As xarray does with an accessor."""
    cell = (
        "import fractions, functools\nsetattr(fractions.Fraction, 'hop', functools.cached_property(lambda self: 5))"
    )
    child.answer(SCRIPT, str(tmp_path), json.dumps([cell]), "out = 1", base=tmp_path)
    told = "import fractions\n    print(*agent.restore(base / 'state').notices, file=sys.stderr)"
    script = SCRIPT.replace('    agent.restore(base / "state")', f"    {told.replace(chr(10), chr(10) + '    ')}")
    _, said = child.answer(script, str(tmp_path), "[]", "out = 1", base=tmp_path)
    assert "fractions.Fraction.hop: the notebook put a function of its own there, run its cell again" in said


def test_what_a_cell_gave_the_shell_for_errors_is_told(tmp_path: Path) -> None:
    cell = "ip = get_ipython()\nip.set_custom_exc((KeyError,), lambda *a, **k: None)\nhook = ip.displayhook"
    child.answer(SCRIPT, str(tmp_path), json.dumps([cell]), "out = 1", base=tmp_path)
    told = "print(*agent.restore(base / 'state').notices, file=sys.stderr)"
    script = SCRIPT.replace('agent.restore(base / "state")', told)
    after, said = child.answer(script, str(tmp_path), "[]", "out = hook is get_ipython().displayhook", base=tmp_path)
    assert after and "the handler of KeyError: the notebook set this, run its cell again" in said


def test_inputs_are_as_they_were_typed(tmp_path: Path) -> None:
    cells = ["%precision 3\nx = 1", "!true", "y = 2"]
    asked = "out = [_i1, _i3, In[1], _i, get_ipython().history_manager.input_hist_raw[1:4]]\n%xdel x\nout.append('x' in dir())"
    before, _ = child.answer(SCRIPT, str(tmp_path), json.dumps(cells), asked, base=tmp_path)
    after, said = child.answer(SCRIPT, str(tmp_path), "[]", asked, base=tmp_path)
    assert before == after, said
    assert before[0] == cells[0] != before[2] and before[5] is False


def test_a_limit_of_the_process_is_told(tmp_path: Path) -> None:
    cell = "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))"
    for cells, asked in (([cell], "out = 1"), ([], "out = 1")):
        told = "print(*agent.restore(base / 'state').notices, file=sys.stderr)"
        script = SCRIPT.replace('agent.restore(base / "state")', told)
        script = "import resource\nresource.setrlimit(resource.RLIMIT_CORE, (4096, 4096))\n" + script
        _, said = child.answer(script, str(tmp_path), json.dumps(cells), asked, base=tmp_path)
    assert "resource.RLIMIT_CORE: the notebook set this" in said


def test_modules_of_a_package_that_cells_import_come_back_with_it(tmp_path: Path) -> None:
    asked = "out = [xml.dom.minidom.parseString('<a/>').documentElement.tagName, html.escape('<')]"
    cells = ["import html, xml", "import xml.dom.minidom\nfrom html import parser\ndel parser"]
    before, _ = child.answer(SCRIPT, str(tmp_path), json.dumps(cells), asked, base=tmp_path)
    after, told = child.answer(SCRIPT, str(tmp_path), "[]", asked, base=tmp_path)
    assert before == after == ["a", "&lt;"], told


def test_the_users_variables_come_back_and_the_jobs_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["TMPDIR", "CUDA_VISIBLE_DEVICES", "HOP_MINE", "HOP_GONE", "SCRATCH", "HOP_OLD", "HOP_NEW"]
    asked = f"import os\nout = [os.environ.get(n) for n in {names}]"
    for name, value in (
        ("SCRATCH", "/local/1"),
        ("HOP_GONE", "1"),
        ("HOP_OLD", "1"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
    ):
        monkeypatch.setenv(name, value)
    cells = [
        "import os\nos.environ['TMPDIR'] = '/var/tmp'\nos.environ['HOP_MINE'] = 'x'",
        "os.environ['CUDA_VISIBLE_DEVICES'] = '1'\ndel os.environ['HOP_GONE']",
    ]
    before, _ = child.answer(SCRIPT, str(tmp_path), json.dumps(cells), asked, base=tmp_path)
    assert before == ["/var/tmp", "1", "x", None, "/local/1", "1", None]
    monkeypatch.setenv("SCRATCH", "/local/2")
    monkeypatch.setenv("HOP_NEW", "1")
    monkeypatch.delenv("HOP_OLD")
    after, told = child.answer(SCRIPT, str(tmp_path), "[]", asked, base=tmp_path)
    assert after == ["/var/tmp", "1", "x", None, "/local/2", None, "1"], told


def test_an_environment_that_a_former_version_saved_is_still_set() -> None:
    from gresshopper.state import process

    here = dict(os.environ)
    try:
        process.apply({"environ": pickle.dumps({**here, "HOP_MINE": "x"})}, pytest.fail)
        assert os.environ["HOP_MINE"] == "x"
        process.apply({"environ": pickle.dumps(here)}, pytest.fail)
        assert "HOP_MINE" not in os.environ
    finally:
        os.environ.clear()
        os.environ.update(here)


def test_a_standby_gives_back_a_variable_that_the_user_took_away() -> None:
    from gresshopper.state import process

    here = dict(os.environ)
    try:
        process.apply({"environ": pickle.dumps(({"HOP_MINE": "x", "HOME": "/y"}, ["PATH"]))}, pytest.fail)
        assert (os.environ["HOP_MINE"], os.environ["HOME"], "PATH" in os.environ) == ("x", "/y", False)
        process.apply({"environ": pickle.dumps(({}, []))}, pytest.fail)
        assert ("HOP_MINE" in os.environ, os.environ["HOME"], os.environ["PATH"]) == (
            False,
            here["HOME"],
            here["PATH"],
        )
    finally:
        os.environ.clear()
        os.environ.update(here)


def test_what_a_variable_holds_of_the_shell_and_of_decimals_is_the_kernels_own(tmp_path: Path) -> None:
    cells = [
        "import decimal\nctx = decimal.getcontext()\nctx.prec = 5\nip = get_ipython()",
        "text = ip.display_formatter.formatters['text/plain']\ntext.max_width = 60",
        "completer, tb = ip.Completer, ip.InteractiveTB",
    ]
    asked = (
        "ip = get_ipython()\nfound = ip.display_formatter.formatters\nctx.prec = 4\n"
        "out = [ctx is decimal.getcontext(), str(decimal.Decimal(1) / 3), text is found['text/plain'],"
        " text.max_width, completer is ip.Completer, tb is ip.InteractiveTB]"
    )
    before, _ = child.answer(SCRIPT, str(tmp_path), json.dumps(cells), asked, base=tmp_path)
    after, told = child.answer(SCRIPT, str(tmp_path), "[]", asked, base=tmp_path)
    assert before == after == [True, "0.3333", True, 60, True, True], told


def test_names_of_ipythons_and_the_interpreters_that_the_user_set_come_back(tmp_path: Path) -> None:
    cells = [
        "import sys, io\nsys.argv = ['train.py', '--epochs', '3']\nsys.stdin = io.StringIO('a\\nb\\n')\nsys.stdin.readline()",
        "from codecs import open\n__file__ = 'mynb.py'\nx: int = 5\nquit = 'q'\n__doc__ = 'mine'",
    ]
    asked = (
        "import sys\nout = [sys.argv, sys.stdin.readline(), open.__module__, __file__, __annotations__ == {'x': int},"
        " quit, __doc__, callable(exit), get_ipython() is not None, __name__]"
    )
    before, _ = child.answer(SCRIPT, str(tmp_path), json.dumps(cells), asked, base=tmp_path)
    after, told = child.answer(SCRIPT, str(tmp_path), "[]", asked, base=tmp_path)
    argv = ["train.py", "--epochs", "3"]
    assert before == after == [argv, "b\n", "codecs", "mynb.py", True, "q", "mine", True, True, "__main__"], told


def test_what_nobody_set_is_the_new_kernels_own(tmp_path: Path) -> None:
    asked = "import sys\nout = [sys.argv[1:], sys.stdin is sys.__stdin__]\ntext = sorted(k for k in locals())"
    told = "print(agent.restore(base / 'state'), sorted(ip.user_ns), file=sys.stderr)"
    script = SCRIPT.replace('agent.restore(base / "state")', told)
    before, _ = child.answer(SCRIPT, str(tmp_path), json.dumps(["y = 1"]), asked, base=tmp_path)
    after, said = child.answer(script, str(tmp_path), "[]", asked, base=tmp_path)
    assert before[0][1] != after[0][1] == "[]" and after[1]
    assert "Told(names=['y'], lost={}, notices=[]" in said


def test_what_decides_how_later_cells_are_compiled_and_shown_comes_back(tmp_path: Path) -> None:
    cells = [
        "from __future__ import annotations",
        "%pdb on\n%autoawait off\n%colors nocolor\n%autocall 1",
        "%config IPCompleter.greedy = True\n%config InteractiveShell.display_page = True",
        "%config InlineBackend.figure_format = 'svg'\n%config PlainTextFormatter.max_seq_length = 3",
        "%pushd /\nimport ast\nclass Twice(ast.NodeTransformer): pass",
        "ip = get_ipython()\nip.Completer.omit__names = 0",
    ]
    asked = (
        "def g(y: Undefined1): return y\nip = get_ipython()\n"
        "out = [g(1), ip.call_pdb, ip.autoawait, str(ip.colors).lower(), ip.Completer.greedy, ip.display_page,"
        " ip.config.InlineBackend.figure_format, len(ip.dir_stack), ip.autocall, ip.Completer.omit__names,"
        " ip.display_formatter.formatters['text/plain'].max_seq_length]"
    )
    before, _ = child.answer(SCRIPT, str(tmp_path), json.dumps(cells), asked, base=tmp_path)
    assert before == [1, True, False, "nocolor", True, True, "svg", 1, 1, 0, 3]
    told = "print(agent.restore(base / 'state').notices, file=sys.stderr)"
    after, said = child.answer(
        SCRIPT.replace('agent.restore(base / "state")', told), str(tmp_path), "[]", asked, base=tmp_path
    )
    assert before == after, said
    assert "[]" in said


def test_a_transformer_of_trees_is_told(tmp_path: Path) -> None:
    cells = ["import ast\nclass Twice(ast.NodeTransformer): pass", "get_ipython().ast_transformers.append(Twice())"]
    child.answer(SCRIPT, str(tmp_path), json.dumps(cells), "out = 1", base=tmp_path)
    told = "print(agent.restore(base / 'state').notices, file=sys.stderr)"
    script = SCRIPT.replace('agent.restore(base / "state")', told)
    _, said = child.answer(script, str(tmp_path), "[]", "out = 1", base=tmp_path)
    assert "the transformer of trees Twice: the notebook set this, run its cell again" in said


@pytest.mark.parametrize("futures", [[], ["from __future__ import annotations"]], ids=["plain", "annotations"])
def test_a_cell_that_runs_again_is_compiled_as_it_was(tmp_path: Path, futures: list[str]) -> None:
    """Its functions' annotations are the recorded ones, or the re-run isn't taken."""
    kind = "Later" if futures else "int"
    script = SCRIPT.replace(
        "store_history=True).success, cell", "store_history=True).success, cell\n            agent.watcher.audit()"
    )
    cells = [*futures, f"def g(x: {kind}):\n    yield x\n    yield 2\nit = g(1)\nnext(it)"]
    asked = "out = [next(it), str(g.__annotations__['x'])]"
    before, _ = child.answer(script, str(tmp_path), json.dumps(cells), asked, base=tmp_path)
    after, told = child.answer(script, str(tmp_path), "[]", asked, base=tmp_path)
    assert before == after == [2, "Later" if futures else "<class 'int'>"], told


def test_folders_and_formats_of_figures_are_as_they_were(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib_inline")
    cells = [
        "import os\nos.makedirs('hop_sub')\n%cd -q hop_sub",
        "from matplotlib_inline.backend_inline import set_matplotlib_formats\nimport matplotlib.pyplot",
        "set_matplotlib_formats('svg', 'pdf', bbox_inches=None)",
    ]
    asked = (
        "from matplotlib.figure import Figure\nkinds = get_ipython().display_formatter.formatters\n"
        "out = [sorted(n for n, f in kinds.items() if Figure in f.type_printers)]\n"
        "out.append(kinds['image/svg+xml'].type_printers[Figure].keywords)\n"
        "%cd -q -\nout.append(os.path.basename(os.getcwd()) == 'hop_sub')"
    )
    before, _ = child.answer(SCRIPT, str(tmp_path), json.dumps(cells), asked, base=tmp_path)
    after, said = child.answer(SCRIPT, str(tmp_path), "[]", asked, base=tmp_path)
    assert before[0] == ["application/pdf", "image/svg+xml"] and before[2] is False
    assert before == after, said


NAMED = [
    "'shown'",
    "kept = Out\nIn = 5.0\nOut = {'a': 7}\nsame = Out\n_dh = ['q']\n_exit_code = 7\n_i2 = 'mine'\n_i9 = 'also mine'",
    "_ih = 1\n_oh = 2\nimport html.parser\nx = [1]",
]
ASKED_NAMED = """
manager = get_ipython().history_manager
out = [In, Out, same is Out, _ih, _oh, _dh, _exit_code, _i2, _i9, _i1, _, kept is manager.output_hist, kept, x]
out += [manager.input_hist_raw[1:4], manager.dir_hist[0] != 'q', html.parser.HTMLParser.__name__]
"""


def test_names_of_ipython_are_the_users_once_they_hold_another_object(tmp_path: Path) -> None:
    before, _ = child.answer(SCRIPT, str(tmp_path), json.dumps(NAMED), ASKED_NAMED, base=tmp_path)
    assert before[:9] == [5.0, {"a": 7}, True, 1, 2, ["q"], 7, "mine", "also mine"]
    after, told = child.answer(SCRIPT, str(tmp_path), "[]", ASKED_NAMED, base=tmp_path)
    assert after == before, told


RELOADED = [
    "%load_ext autoreload\n%autoreload 1",
    "%aimport fractions, -decimal",
    "import contextlib, io, sys\nstack, buffer = contextlib.ExitStack(), io.StringIO()",
    "_ = stack.enter_context(contextlib.redirect_stdout(buffer))",
    "import functools\nclass A:\n    @functools.cache\n    def m(self): return 1\na = A(); _ = a.m()",
]
ASKED_RELOADED = """
reloader = get_ipython().magics_manager.magics['line']['aimport'].__self__._reloader
was = sys.stdout is buffer
print('here')
stack.close()
out = [sorted(reloader.modules), sorted(reloader.skip_modules), was, buffer.getvalue(), sys.stdout is not buffer]
"""


def test_modules_to_load_again_and_output_elsewhere(tmp_path: Path) -> None:
    before, _ = child.answer(SCRIPT, str(tmp_path), json.dumps(RELOADED), ASKED_RELOADED, base=tmp_path)
    assert before == [["fractions"], ["decimal"], True, "here\n", True]
    after, told = child.answer(SCRIPT, str(tmp_path), "[]", ASKED_RELOADED, base=tmp_path)
    assert after == before, told
    assert "Gresshopper: the class A: what an lru_cache held" in told


@pytest.mark.parametrize("where", ["sys.setprofile", "sys.settrace", "threading.setprofile", "threading.settrace"])
def test_a_trace_of_the_notebooks_is_told(where: str, tmp_path: Path) -> None:
    cells = ["import sys, threading\ndef seen(*what): pass\nmark = 1", f"{where}(seen)"]
    child.answer(SCRIPT, str(tmp_path), json.dumps(cells), "out = 1", base=tmp_path)
    _, told = child.answer(SCRIPT, str(tmp_path), "[]", "out = 1", base=tmp_path)
    assert f"{where}: the notebook set this, run its cell again" in told
