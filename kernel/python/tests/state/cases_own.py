"""A part of the torture set: what the modules beside the notebook hold, and all ways to change it."""

from __future__ import annotations

from cases import case, hidden

#: A module with members of every kind.
MODULE = """
import collections, dataclasses, enum, functools, itertools, os, re, threading, typing
import logging as log
from pathlib import Path
RATE, NAMES, SEEN = 1.5, ["a"], {"a", "b", "c"}
TABLE = None
LEVELS = {name: {name, "x"} for name in {"a", "b", "c"}}
LOCK, LOCAL, EVENT = threading.Lock(), threading.local(), threading.Event()
LOG, HERE, WORD, NUMBERS = log.getLogger("hop"), Path("."), re.compile("a+"), itertools.count(5)
GROUPS = collections.defaultdict(set, a={"x", "y"})
QUEUE, ITEMS = collections.deque(["a"]), iter([1, 2])
class Color(enum.Enum):
    RED = 1
    BLUE = frozenset({"a", "b"})
@dataclasses.dataclass
class Point:
    x: int = 0
    tags: list = dataclasses.field(default_factory=list)
class Pair(typing.NamedTuple):
    a: int = 1
class Registry:
    made = {"p": Point(1)}
    __slots__ = ("lock", "d", "__dict__")
    def __init__(self):
        self.lock, self.d, self.me = threading.Lock(), {"k": {"a", "b"}}, self
    @property
    def size(self): return len(self.d)
    @classmethod
    def make(cls, n=[0]): return cls()
    @functools.cached_property
    def long(self): return 3
reg = Registry()
WORKER = type("Worker", (threading.Thread,), {"__module__": __name__})(target=EVENT.wait, daemon=True)
WORKER.start()
def counter():
    n = 0
    def step():
        nonlocal n
        n += 1
        return n
    return step
next_id = counter()
def keep(x, into=[], *, names={"a", "b"}):
    into.append(x)
    return len(into)
def one_of(names, x): return x in names
def known(x): return x in {"a", "b", "c"}
@functools.lru_cache
def slow(x): return x
@functools.singledispatch
def shown(x): return "?"
@shown.register
def _(x: collections.abc.Sequence): return "s"
half = functools.partial(one_of, {"a"})
names = functools.partial(dict, a=[1])
tenth = lambda x: x / 10
def setup(n):
    global TABLE
    TABLE = {"n": n}
def table(): return TABLE["n"]
def one(): return 1
def at_once(x):
    global json
    import json
    return json.dumps(x)
"""


#: By a case's name: the names that have to be told, of the module or in it. None: nothing may be.
NAMED: dict[str, str] = {}


LIBRARIES = ("numpy", "pandas", "networkx", "matplotlib", "sympy", "scipy", "torch")


def module(name: str, change: str, check: str, named: str = "", more: str = "") -> None:
    """A change to the module above, and what `more` adds to it."""
    path = "hop_" + "".join(ch for ch in name if ch.isalpha())
    begin = (
        f"import sys,os\nopen('{path}.py','w').write({MODULE + more!r})\nsys.dont_write_bytecode=True\n"
        f"sys.path.insert(0,os.getcwd())\nimport {path} as m"
    )
    NAMED[f"own module/{name}"] = named and f"{path}.{named}"
    needs = " ".join(library for library in LIBRARIES if f"import {library}" in more)
    hidden(f"own module/{name}", begin, change=change, check=check, needs=needs, reported=bool(named))


ARRAY, TABLE = "import numpy as np\nA=np.zeros(1_000_000)\n", "T={n: str(n) for n in range(100_000)}\n"
ANOTHER, COMMENTED = MODULE.replace("return 1", "return 222"), MODULE.replace("def one", "# a word\ndef one")
USED = "m.slow(1); m.shown([1]); m.at_once(1); m.LOG.info('x'); m.known('a'); m.reg.size"

module("untouched", USED, "out=m.RATE,m.next_id(),m.keep(1),len(m.reg.d),m.Color.RED.value,m.half(1),m.names()")
module("untouched and large", "pass", "out=float(m.A[7]),m.T[70_000]", more=ARRAY + TABLE)
module("a comment in its file", f"open(m.__file__,'w').write({COMMENTED!r})", "out=m.one()")
module("another file", f"open(m.__file__,'w').write({ANOTHER!r})", "out=m.one()", "one")
module("a variable that a function sets", "m.setup(3)", "out=m.table()", "TABLE")
module("a name that a function makes", "exec('NEW=5',vars(m))", "out=m.NEW", "NEW")
module("a name that is deleted", "del m.RATE", "out=hasattr(m,'RATE')", "RATE")
module("an array", "m.A[7]=5", "out=float(m.A[7])", "A", ARRAY)
module("a large table", "m.T[70_000]=5", "out=m.T[70_000]", "T", TABLE)
module("an object with a lock", "m.reg.d['a']=1", "out=sorted(m.reg.d)", "reg")
module("a closure", "m.next_id(); m.next_id()", "out=m.next_id()", "next_id")
module("a default", "m.keep(1)", "out=m.keep(1)", "keep")
module(
    "a keyword's default",
    "m.keep.__kwdefaults__['names'].add('z')",
    "out=len(m.keep.__kwdefaults__['names'])",
    "keep",
)
module(
    "a method's default",
    "m.Registry.make.__defaults__[0].append(1)",
    "out=m.Registry.make.__defaults__",
    "Registry.make",
)
module("a function's attribute", "m.one.calls=3", "out=getattr(m.one,'calls',1)", "one")
module("the iterator of numbers", "next(m.NUMBERS)", "out=next(m.NUMBERS)", "NUMBERS")
module("a set in a dictionary", "m.GROUPS['a'].add('z')", "out=sorted(m.GROUPS['a'])", "GROUPS")
hidden(
    "own module/another file of one that no variable needs",
    f"import sys,os\nopen('hop_unneeded.py','w').write({MODULE!r})\nsys.dont_write_bytecode=True\nsys.path.insert(0,os.getcwd())\ndef one():\n    import hop_unneeded\n    return hop_unneeded.one()\none()",
    change=f"open('hop_unneeded.py','w').write({ANOTHER!r})",
    check="out=one()",
    reported=True,
)
NAMED["own module/another file of one that no variable needs"] = "the module hop_unneeded"

# --- libraries' objects that keep what they were asked for ------------------------------------------------------------

GRAPH = "import networkx as nx\nG=nx.path_graph(4)\n"
FRAME = "import pandas as pd\nDAYS=pd.date_range('2020','2021')\nDF=pd.DataFrame({'a':range(367)},index=DAYS)\n"
COLOURS = "import matplotlib\nMAP=matplotlib.colormaps['viridis']\n"
SYMBOL, NORMAL = "import sympy\nX=sympy.Symbol('x',positive=True)\n", "import scipy.stats\nN=scipy.stats.norm(0,1)\n"
TENSOR = "import numpy\nimport torch\ntorch.manual_seed(0)\nT=torch.ones(3)\nNET=torch.nn.Linear(2,2)\n"

module("a graph that is read", "list(m.G.edges); list(m.G.nodes)", "out=len(m.G.edges)", "", GRAPH)
module("a graph", "m.G.add_edge(0,3)", "out=len(m.G.edges)", "G", GRAPH)
module(
    "a table of days that is read",
    "m.DF.loc['2020-01-02']; m.DAYS.get_loc('2020-01-02')",
    "out=len(m.DF)",
    "",
    FRAME,
)
module("a table of days", "m.DF['b']=3", "out=list(m.DF)", "DF", FRAME)
module("a colormap that is read", "m.MAP(0.3)", "out=m.MAP(0.3)", "", COLOURS)
module("a colormap", "m.MAP.set_bad('red')", "out=m.MAP(float('nan'))", "MAP", COLOURS)
module("a symbol that is read", "hash(m.X+1); m.X.is_real", "out=str(m.X)", "", SYMBOL)
module("a distribution that is read", "m.N.rvs(3); m.N.mean()", "out=m.N.args", "", NORMAL)
module("a distribution", "m.N.kwds['scale']=3", "out=m.N.kwds", "N", NORMAL)
module("a net that is read", "m.T.sum(); m.NET(m.torch.ones(2))", "out=m.T.tolist()", "", TENSOR)
module("a tensor", "m.T[1]=5", "out=m.T.tolist()", "T", TENSOR)
module("a net", "m.NET.weight.data[0,0]=5", "out=m.NET.weight[0,0].item()", "NET", TENSOR)

# --- objects of the user's own classes that a variable holds, too -----------------------------------------------------


def shared(name: str, source: str, change: str, check: str, needs: str = "") -> None:
    """An object `one` of a module: it stays the module's, and its content comes back."""
    path = "hop_" + "".join(ch for ch in name if ch.isalpha())
    check += f"\nout=out,one is sys.modules['{path}'].one"
    NAMED[f"own object/{name}"] = ""
    begin = f"import sys,os\nopen('{path}.py','w').write({source!r})\nsys.dont_write_bytecode=True\nsys.path.insert(0,os.getcwd())"
    cells = [f"{begin}\nimport {path} as m\nfrom {path} import one"] + (["del m"] if "m." not in check else [])
    hidden(f"own object/{name}", *cells, change=change, check=check, needs=needs)


shared(
    "with what isn't plain",
    "import threading\nclass A:\n    def __init__(s): s.fs,s.seen,s.lock={},{'a'},threading.Lock()\none=A()",
    "one.fs[len]=lambda x: x+1; one.seen.add('b'); one.more=bytearray(b'x')",
    "out=one.fs[len](1),sorted(one.seen),one.more",
)
shared("without content at first", "class A: pass\none=A()", "one.x=[1]", "out=getattr(one,'x',None)")
shared("of a list's class", "class A(list): pass\none=A()", "one.append(3)", "out=list(one)")
shared(
    "of a dictionary's class", "class A(dict): pass\none=A(a=1)", "one['b']=one.pop('a'); one.n=1", "out=one,one.n"
)
shared(
    "which its module's functions use",
    "class A:\n    lr=1\n    __slots__=('rate','__dict__')\none=A()\none.lr,one.old=2,3\ndef get(): return one.lr",
    "one.lr=5; one.rate=[7]; del one.old",
    "before=m.get()\none.lr+=1\nout=before,m.get(),hasattr(one,'old'),one.rate\none.lr-=1",
)
shared(
    "which answers for whatever it is asked",
    "class A:\n    def __init__(s): s.d={}\n    def __getattr__(s,n): return s.__dict__.get('d',{}).get(n)\none=A()",
    "one.d['lr']=5",
    "out=m.one.lr",
)
shared(
    "with attributes that all of its class share",
    "class A:\n    held={'lr':1}\n    def __init__(s): s.__dict__=s.held\none=A()",
    "one.lr=5",
    "out=m.A().lr",
)
shared(
    "with a part that can't be kept",
    "import sqlite3\nclass A:\n    def __init__(s): s.n,s.db=1,sqlite3.connect(':memory:')\none=A()",
    "one.n=2",
    "out=m.one.n,m.one.db.execute('select 1').fetchone()",
)
SET_UP = "class A: pass\nclass B: pass\none=None\ndef setup():\n    global one\n    one=A(); one.x=[1]\n"
hidden(
    "own object/which its module doesn't hold at first",
    f"import sys,os\nopen('hop_set_up.py','w').write({SET_UP!r})\nsys.dont_write_bytecode=True\nsys.path.insert(0,os.getcwd())\nimport hop_set_up\nhop_set_up.setup(); from hop_set_up import one",
    change="one.x.append(2)",
    check="out=one.x",
)
NAMED["own object/which its module doesn't hold at first"] = "hop_set_up.one"
hidden(
    "own object/in whose place its module holds another",
    f"import sys,os\nopen('hop_other.py','w').write({SET_UP!r}+'setup()\\n')\nsys.dont_write_bytecode=True\nsys.path.insert(0,os.getcwd())\nimport hop_other\nfrom hop_other import one\none.x.append(2)",
    change="hop_other.setup()",
    check="out=one.x,hop_other.one.x",
)
NAMED["own object/in whose place its module holds another"] = ""
shared(
    "a net, with its optimiser's parameters",
    "import torch\ntorch.manual_seed(0)\nclass Net(torch.nn.Module):\n    def __init__(s):\n        super().__init__(); s.l=torch.nn.Linear(2,1)\none=Net()",
    "import torch\nopt=torch.optim.SGD(one.parameters(),lr=1)\none.l(torch.ones(2)).sum().backward()\nopt.step()",
    "out=one.l.weight.tolist(),opt.param_groups[0]['params'][0] is one.l.weight",
    "torch numpy",
)

# --- modules that the path doesn't lead to any more --------------------------------------------------------------------

MODEL = "class Model:\n    def __init__(s): s.w=[0]\n    def fit(s): s.w.append(1); return s\n"
WRITE = f"import os,sys\nsys.dont_write_bytecode=True\nos.makedirs('data/hop_part',exist_ok=True); os.makedirs('code/hop_part',exist_ok=True); os.makedirs('src',exist_ok=True)\ndef write(name): open(name,'w').write({MODEL!r})\n"

case(
    "own place/another directory",
    f"{WRITE}write('hop_model.py')\nsys.path.insert(0,'')\nimport hop_model\nm=hop_model.Model().fit()",
    "os.chdir('data')",
    check="out=m.w,hop_model.__file__[-13:]",
)
case(
    "own place/another directory with a file of the same name",
    f"{WRITE}write('hop_same.py')\nopen('data/hop_same.py','w').write('WRONG=1')\nsys.path.insert(0,'')\nimport hop_same\nm=hop_same.Model().fit()",
    "os.chdir('data')",
    check="import hop_same as again\nout=m.w,again is hop_same,hasattr(again,'WRONG')",
)
case(
    "own place/a folder of the path by its relative name",
    f"{WRITE}write('src/hop_relative.py')\nsys.path.append('src')\nfrom hop_relative import Model\nm=Model().fit()",
    "os.chdir('data')",
    check="out=m.w,type(m) is Model",
)
case(
    "own place/a package without a file, and one with another part",
    f"{WRITE}write('code/hop_part/deep.py')\nsys.path.insert(0,'code')\nimport hop_part.deep\nm=hop_part.deep.Model().fit()",
    "os.chdir('data')\nsys.path.insert(0,os.getcwd())",
    check="out=m.w,type(m) is hop_part.deep.Model",
)
case(
    "own place/by its file alone",
    f"{WRITE}write('data/hop_plugin.py')\nimport importlib.util\nspec=importlib.util.spec_from_file_location('hop_by_file','data/hop_plugin.py')\nplugin=sys.modules['hop_by_file']=importlib.util.module_from_spec(spec)\nspec.loader.exec_module(plugin)\nm=plugin.Model().fit()",
    check="out=m.w,type(m) is plugin.Model",
)
BY_FILE = "import importlib.util\nspec=importlib.util.spec_from_file_location('hop_no_name','data/hop_nameless.py')\nplugin=importlib.util.module_from_spec(spec)\nspec.loader.exec_module(plugin)\n"
case(
    "own place/by its file alone, under no name",
    f"{WRITE}write('data/hop_nameless.py')\n{BY_FILE}x=1",
    check="out=x,plugin.Model().fit().w,plugin.__file__[-15:],plugin.__spec__.name",
)
case(
    "own place/by its file alone, under no name, with what its functions set",
    f"{WRITE}open('data/hop_nameless.py','w').write('n=1\\ndef add():\\n    global n\\n    n+=1\\n    return n\\n')\n{BY_FILE}add=plugin.add",
    "plugin.add()",
    check="out=plugin.add(),add(),plugin.n,plugin.add is add\nplugin.n=2",
)
case(
    "own place/by its file alone, under no name, with an object of its class",
    f"{WRITE}write('data/hop_nameless.py')\n{BY_FILE}m=plugin.Model()",
    "m.fit()",
    check="out=m.w,type(m) is plugin.Model",
)
case(
    "own place/by its file alone, under no name, with a part that can't be kept",
    f"{WRITE}open('data/hop_nameless.py','w').write('import sqlite3\\nn,db=[1],sqlite3.connect(\\':memory:\\')')\n{BY_FILE}n=plugin.n",
    check="out=n,plugin.n is n,plugin.db.execute('select 1').fetchone()",
    reported=True,
)
hidden(
    "own place/by its file alone, under no name, changed out of sight",
    f"{WRITE}open('data/hop_nameless.py','w').write('n=[1]')\n{BY_FILE}",
    change="plugin.n.append(2)",
    check="out=plugin.n",
)

# --- what the interpreter and the notebook both hold ------------------------------------------------------------------

case(
    "held/of the interpreter",
    "import sys\nfrom sys import path, meta_path as finders, argv\nmods=sys.modules",
    "path.append('/hop')",
    check="path.append('/hop2')\nout=path is sys.path,sys.path[-2:],mods is sys.modules,finders is sys.meta_path,argv is sys.argv",
)
case(
    "held/the context of decimals",
    "import decimal\nctx=decimal.getcontext()\nctx.prec=5",
    "both=[ctx,decimal.Context(prec=3)]",
    check="ctx.prec=4\nout=str(decimal.Decimal(1)/3),both[0] is decimal.getcontext(),both[1].prec\nctx.prec=28",
)
case(
    "held/the namespace and the interpreters, within objects",
    "import sys,code\nclass A:\n    def __init__(s): s.ns=globals(); s.path=[sys.path]\na=A(); g=globals(); c=code.InteractiveInterpreter(g); x=1",
    "x=2",
    "g['y']=[x]",
    check="c.runsource('x+=1')\na.ns['y'].append(4)\nout=x,y,g is globals(),a.ns is g,c.locals is g,a.path[0] is sys.path",
)
hidden(
    "held/of the users module, by a generator that is made again",
    "import sys,os\nopen('hop_hist.py','w').write('HIST=[1]')\nsys.path.insert(0,os.getcwd())\nfrom hop_hist import HIST",
    "def gen(n):\n    yield n\n    yield 2",
    "g=gen(len(HIST)); first=next(g)",
    change="HIST.append(100); HIST.append(200)",
    check="out=HIST,next(g)",
    reported=True,
)
case(
    "attributes/a number of many digits in what compares by its own rules",
    "class Key:\n    def __init__(self,n): self.n=n\n    def __eq__(self,o): return self.n==o.n\n    def __hash__(self): return 7\nk=Key(7**20000); mine=[k,1]",
    check="out=k.n==7**20000,mine[0] is k",
)
