"""The torture set: what a notebook's namespace may hold, and every way to change it.

Each case says what must come out after a restore: the same, or a report that it can't be (`reported`). A case that
comes out different without a report is the failure that must not happen.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass


@dataclass
class Case:
    """Cells, a check that sets `out`, and what is expected."""

    name: str
    cells: list[str]
    check: str
    reported: bool = False
    audit: bool = False
    hidden: str = ""
    fails: bool = False
    needs: tuple[str, ...] = ()
    since: tuple[int, int] = (3, 9)

    def possible(self) -> bool:
        """Whether this Python and its packages have what the case is about."""
        return sys.version_info >= self.since and all(importlib.util.find_spec(n) for n in self.needs)


CASES: list[Case] = []


def case(
    name: str,
    *cells: str,
    check: str,
    reported: bool = False,
    fails: bool = False,
    needs: str = "",
    since: tuple[int, int] = (3, 9),
) -> None:
    CASES.append(Case(name, list(cells), check, reported, fails=fails, needs=tuple(needs.split()), since=since))


def hidden(name: str, *cells: str, change: str, check: str, needs: str = "", reported: bool = False) -> None:
    """A change that the names of its cell don't show; found by the audit."""
    CASES.append(Case(name, list(cells), check, reported, audit=True, hidden=change, needs=tuple(needs.split())))


NP, PD, TORCH = "numpy", "numpy pandas", "torch"

# --- plain values ----------------------------------------------------------------------------------------------------
for label, value in {
    "int": "42",
    "big int": "10**300",
    "float": "0.1",
    "inf": "float('inf')",
    "nan": "float('nan')",
    "complex": "1+2j",
    "str": "'ünï'",
    "surrogate str": "'\\ud800'",
    "bytes": "b'\\x00\\xff'",
    "none": "None",
    "bool": "True",
    "ellipsis": "...",
    "notimplemented": "NotImplemented",
    "tuple": "(1, (2, 'x'))",
    "list": "[1, [2], {}]",
    "dict": "{'a': 1, 2: [3]}",
    "set": "{1, 2, 3}",
    "frozenset": "frozenset({1, 2})",
    "range": "range(3, 9, 2)",
    "slice": "slice(1, None, 2)",
    "bytearray": "bytearray(b'abc')",
}.items():
    case(f"value/{label}", f"x = {value}", check="out = (type(x).__name__, repr(x))")

case("value/large str", "x = 'abc' * 100_000", check="import hashlib\nout = hashlib.sha1(x.encode()).hexdigest()")
case(
    "value/large bytearray",
    "x = bytearray(range(256)) * 1000",
    "x[77] = 1",
    check="import hashlib\nout = hashlib.sha1(x).hexdigest(), x[77]",
)
case(
    "value/deep nesting",
    "x = []\nfor _ in range(20_000):\n    x = [x]",
    check="n = 0\ny = x\nwhile y:\n    y = y[0]; n += 1\nout = n",
)
case("value/self-containing list", "x = [1]\nx.append(x)", check="out = x[1] is x")
case("value/self-containing dict", "x = {}\nx['x'] = x", check="out = x['x'] is x")
case("value/cycle of two", "a = []\nb = [a]\na.append(b)", check="out = a[0] is b and b[0] is a")

# --- the standard library --------------------------------------------------------------------------------------------
for label, setup, value in [
    ("datetime", "import datetime as d", "d.datetime(2020, 1, 2, tzinfo=d.timezone.utc)"),
    ("timedelta", "import datetime as d", "d.timedelta(1, 2)"),
    ("zoneinfo", "import zoneinfo", "zoneinfo.ZoneInfo('UTC')"),
    ("decimal", "from decimal import Decimal", "Decimal('1.10')"),
    ("fraction", "from fractions import Fraction", "Fraction(1, 3)"),
    ("uuid", "import uuid", "uuid.UUID(int=5)"),
    ("path", "import pathlib", "pathlib.Path('/a/b')"),
    ("pattern", "import re", "re.compile('a+', re.I)"),
    ("ordered dict", "from collections import OrderedDict", "OrderedDict(b=1, a=2)"),
    ("counter", "from collections import Counter", "Counter('abca')"),
    ("deque", "from collections import deque", "deque([1, 2], 3)"),
    ("chain map", "from collections import ChainMap", "ChainMap({1: 2}, {3: 4})"),
    ("array", "import array", "array.array('d', [1, 2])"),
    ("simple namespace", "from types import SimpleNamespace", "SimpleNamespace(a=[1])"),
    ("ip address", "import ipaddress", "ipaddress.ip_address('10.0.0.1')"),
    ("partial", "import functools", "functools.partial(int, base=2)"),
    ("itemgetter", "import operator", "operator.itemgetter(1, 2)"),
    ("path pure", "import pathlib", "pathlib.PurePosixPath('x')"),
    ("time struct", "import time", "time.gmtime(0)"),
    ("mapping proxy", "import types", "types.MappingProxyType({'a': 1})"),
    ("exception", "", "ValueError('x', 3)"),
    ("key error", "", "KeyError('k')"),
    ("os error", "", "FileNotFoundError(2, 'no', '/x')"),
    ("unicode error", "", "UnicodeDecodeError('utf8', b'x', 0, 1, 'bad')"),
    ("ast", "import ast", "ast.dump(ast.parse('a+1'))"),
    ("generic alias", "", "list[int]"),
    ("typing", "import typing", "typing.Optional[typing.Dict[str, int]]"),
    ("module", "import json", "json"),
    ("builtin function", "", "len"),
    ("builtin type", "", "dict"),
    ("type none", "", "type(None)"),
    ("random instance", "import random", "random.Random(3).getstate()[1][:3]"),
    ("logger", "import logging", "logging.getLogger('a.b')"),
]:
    case(f"stdlib/{label}", f"{setup}\nx = {value}", check="out = (type(x).__name__, repr(x))")

case(
    "stdlib/default dict of lambda",
    "from collections import defaultdict\nk = 5\nx = defaultdict(lambda: k)\nx[1]",
    "k = 6",
    check="out = x[1], x[2]",
)
case("stdlib/string io", "import io\nx = io.StringIO('abc\\ndef')\nx.readline()", check="out = x.read()")
case("stdlib/bytes io", "import io\nx = io.BytesIO(b'abcdef')\nx.read(2)", check="out = x.read()")
case("stdlib/random generator", "import random\nx = random.Random(1)\nx.random()", check="out = x.random()")
case(
    "stdlib/bound random",
    "import random\nfrom random import random as r\nrandom.seed(4)",
    check="random.seed(9)\nout = r(), r.__self__ is random._inst",
)
case("stdlib/environ alias", "import os\ne = os.environ", check="out = e is os.environ")
case(
    "stdlib/lru cache",
    "from functools import lru_cache\n@lru_cache(maxsize=7)\ndef f(x): return x + k\nk = 1\nf(1)",
    "k = 1",
    check="out = f(5), f.cache_parameters()",
)
case(
    "stdlib/cached property",
    "from functools import cached_property\nclass A:\n    @cached_property\n    def p(self): return [1]\na = A()\na.p",
    check="out = a.p, 'p' in a.__dict__",
)
case(
    "stdlib/single dispatch",
    "from functools import singledispatch\n@singledispatch\ndef f(x): return 'any'\n@f.register(int)\ndef _(x): return 'int'",
    check="out = f(1), f('')",
)
case("stdlib/lock", "import threading\nx = threading.Lock()", check="out = x.acquire(False)")
case("stdlib/rlock", "import threading\nx = threading.RLock()", check="out = x.acquire(False)")
case(
    "stdlib/held lock", "import threading\nx = threading.Lock()\nx.acquire()", check="out = x.locked()", reported=True
)
case(
    "stdlib/holder of lock",
    "import threading\nclass A:\n    def __init__(self): self.l = threading.Lock(); self.n = [1]\na = A()",
    check="out = a.l.acquire(False), a.n",
)
case("stdlib/event", "import threading\nx = threading.Event()\nx.set()", check="out = x.is_set()")
case("stdlib/condition", "import threading\nx = threading.Condition()", check="out = type(x).__name__")
case("stdlib/queue", "import queue\nx = queue.Queue()\nx.put(3)", check="out = x.get()")
case("stdlib/simple queue", "import queue\nx = queue.SimpleQueue()\nx.put(3)", check="out = x.get()", reported=True)
case("stdlib/weakref", "class A: pass\na = A()\nr = __import__('weakref').ref(a)", check="out = r() is a")
case("stdlib/dead weakref", "class A: pass\nr = __import__('weakref').ref(A())", check="out = r()")
case(
    "stdlib/weak value dict",
    "import weakref\nclass A: pass\na = A()\nd = weakref.WeakValueDictionary(k=a)",
    check="out = d['k'] is a",
)
case(
    "stdlib/weak key dict",
    "import weakref\nclass A: pass\na = A()\nd = weakref.WeakKeyDictionary()\nd[a] = 5",
    check="out = d[a]",
)
case("stdlib/weak set", "import weakref\nclass A: pass\na = A()\ns = weakref.WeakSet([a])", check="out = a in s")
case(
    "stdlib/weak proxy",
    "import weakref\nclass A:\n    v = 1\na = A()\np = weakref.proxy(a)",
    check="out = p.v",
    reported=True,
)
case(
    "stdlib/dict views",
    "d = {'a': 1}\nk, v, i = d.keys(), d.values(), d.items()",
    "d['b'] = 2",
    check="d['c'] = 3\nout = list(k), list(v), list(i)",
)
case("stdlib/list iterator", "l = [1, 2, 3]\ni = iter(l)\nnext(i)", check="l.append(4)\nout = list(i)")
case("stdlib/dict iterator", "i = iter({'a': 1, 'b': 2})\nnext(i)", check="out = list(i)")
case("stdlib/zip", "z = zip([1, 2, 3], 'abc')\nnext(z)", check="out = list(z)")
case("stdlib/enumerate", "z = enumerate('abc')\nnext(z)", check="out = list(z)")
case("stdlib/map", "k = 2\nz = map(lambda x: x * k, [1, 2, 3])\nnext(z)", check="out = list(z)")
case("stdlib/reversed", "z = reversed([1, 2, 3])\nnext(z)", check="out = list(z)")
case("stdlib/generator", "g = (i * i for i in range(5))\nnext(g)", check="out = list(g)")
case(
    "stdlib/generator advanced later",
    "g = (i for i in range(9))",
    "next(g)",
    "x = 1",
    "next(g)",
    check="out = list(g)",
)
case(
    "stdlib/generator of random",
    "import random\ng = (random.random() for _ in range(3))\nnext(g)",
    check="out = type(g).__name__",
)
case(
    "stdlib/generator of the clock",
    "import time\ng = (time.time() for _ in range(3))\nx = next(g)",
    check="out = x, type(g).__name__",
    reported=True,
)
case("stdlib/generator in a list", "x = [1, (i for i in range(3))]", check="out = list(x[1])")
case("stdlib/coroutine", "async def f(): return 1\nc = f()", check="out = type(c).__name__")
case(
    "stdlib/text file",
    "open('f.txt', 'w').write('a\\nb\\nc\\n')",
    "h = open('f.txt')\nh.readline()",
    check="out = h.read()",
)
case(
    "stdlib/binary file",
    "open('f.bin', 'wb').write(b'abcdef')",
    "h = open('f.bin', 'rb')\nh.read(3)",
    check="out = h.read()",
)
case(
    "stdlib/changed file",
    "open('g.txt', 'w').write('abc')",
    "h = open('g.txt')\nh.read(1)",
    "w = open('g.txt', 'w')\nw.write('xyzw')\nw.close()\ndel w",
    check="out = h.read()",
    reported=True,
)
case("stdlib/file for writing", "h = open('w.txt', 'w')\nh.write('a')", check="out = h.name", reported=True)
case(
    "stdlib/closed file",
    "open('c.txt', 'w').write('a')\nh = open('c.txt')\nh.close()",
    check="out = h.closed",
    reported=True,
)
case("stdlib/stdout", "import sys\no = sys.stdout", check="out = hasattr(o, 'write')")
case("stdlib/thread", "import threading\nt = threading.Thread(target=print)", check="out = t.name", reported=True)
case(
    "stdlib/executor",
    "from concurrent.futures import ThreadPoolExecutor\ne = ThreadPoolExecutor(1)\ne.submit(int).result()",
    check="out = e._max_workers",
    reported=True,
)
case(
    "stdlib/done future",
    "from concurrent.futures import Future\nf = Future()\nf.set_result(5)",
    check="out = f.result()",
)
case(
    "stdlib/pending future",
    "from concurrent.futures import Future\nf = Future()",
    check="out = f.done()",
    reported=True,
)
case("stdlib/socket", "import socket\ns = socket.socket()", check="out = s.type", reported=True)
case("stdlib/sqlite", "import sqlite3\nc = sqlite3.connect(':memory:')", check="out = c.total_changes", reported=True)
case(
    "stdlib/popen",
    "import subprocess\np = subprocess.Popen(['true'])\np.wait()",
    check="out = p.returncode",
    reported=True,
)
case("stdlib/mmap", "import mmap\nm = mmap.mmap(-1, 4096)\nm[0] = 5", check="out = m[0]", reported=True)
case("stdlib/hash", "import hashlib\nh = hashlib.sha256(b'a')", check="out = h.hexdigest()", reported=True)
case("stdlib/ctypes array", "import ctypes\nx = (ctypes.c_int * 3)(1, 2, 3)", check="out = list(x)")
case("stdlib/ctypes library", "import ctypes\nx = ctypes.CDLL(None)", check="out = type(x).__name__", reported=True)
case(
    "stdlib/context variable",
    "import contextvars\nv = contextvars.ContextVar('v')\nv.set(3)",
    check="out = v.get()",
    reported=True,
)
case("stdlib/match", "import re\nm = re.search('b(.)', 'abcbd')", check="out = m.groups(), m.span()")
case(
    "stdlib/match at a place", "import re\nm = list(re.finditer('b.', 'abcbd'))[1]", check="out = m.group(), m.span()"
)
case("stdlib/struct", "import struct\ns = struct.Struct('<I')", check="out = s.pack(5)")
case("stdlib/memoryview", "b = bytearray(b'abcdef')\nm = memoryview(b)[2:4]", check="m[0] = 90\nout = bytes(b)")
case("stdlib/thread local", "import threading\nl = threading.local()\nl.x = 1", check="out = l.x", reported=True)
case(
    "stdlib/temporary directory",
    "import tempfile\nt = tempfile.TemporaryDirectory()",
    check="out = t.name\nt.cleanup()",
    reported=True,
)
case(
    "stdlib/csv reader",
    "import csv\nr = csv.reader(['a,b', 'c,d'])\nnext(r)",
    check="out = next(r)",
)
case(
    "stdlib/element tree",
    "import xml.etree.ElementTree as E\nx = E.fromstring('<a><b/></a>')",
    check="out = E.tostring(x)",
)
case("stdlib/tee", "import itertools\na, b = itertools.tee([1, 2, 3])\nnext(a)", check="out = list(a), list(b)")
case("stdlib/count", "import itertools\nc = itertools.count(5)\nnext(c)", check="out = next(c)")

# --- functions, closures, classes ------------------------------------------------------------------------------------
case("function/plain", "def f(x): return x + 1", check="out = f(1), f.__name__, f.__module__")
case("function/global bound live", "k = 1\ndef f(): return k", "k = 2", check="a = f()\nk = 3\nout = a, f()")
case(
    "function/changes a global",
    "n = 0\ndef inc():\n    global n\n    n += 1",
    "inc()",
    "inc()",
    check="inc()\nout = n",
)
case("function/appends to a global", "l = []\ndef add(x): l.append(x)", "add(1)", "add(2)", check="add(3)\nout = l")
case("function/through two functions", "l = []\ndef a(x): l.append(x)\ndef b(x): a(x)", "b(1)", check="out = l")
case(
    "function/defaults", "d = [1]\ndef f(x=d, *, y={}): d.append(1); return x", "f()", check="out = f() is d, len(d)"
)
case("function/attributes", "def f(): f.n += 1\nf.n = 0", "f()", check="f()\nout = f.n")
case("function/recursive", "def fact(n): return 1 if n < 2 else n * fact(n - 1)", check="out = fact(10)")
case("function/lambda", "f = lambda x: x * 2", check="out = f(4)")
case(
    "function/closure cell",
    "def make():\n    n = 0\n    def inc():\n        nonlocal n\n        n += 1\n        return n\n    return inc\nc = make()",
    "c()",
    "c()",
    check="out = c()",
)
case(
    "function/two closures, one cell",
    "def make():\n    n = [0]\n    def a(): n.append(1); return len(n)\n    def b(): return len(n)\n    return a, b\na, b = make()",
    "a()",
    check="a()\nout = b()",
)
case(
    "function/cells shared by variables",
    "def make():\n    n = 0\n    def s(v):\n        nonlocal n\n        n = v\n    def g(): return n\n    return s, g\ns, g = make()",
    "s(5)",
    check="x = g()\ns(6)\nout = x, g()",
)
case(
    "function/empty cell",
    "def make():\n    def g(): return later\n    if False: later = 1\n    return g\ng = make()",
    check="try:\n    g()\n    out = 'no'\nexcept NameError:\n    out = 'unbound'",
)
case(
    "function/decorated",
    "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def w(*a): return f(*a) + 1\n    return w\n@deco\ndef g(x): return x",
    check="out = g(1), g.__name__, g.__wrapped__(1)",
)
case("function/annotations", "def f(x: int) -> str: 'doc'", check="out = f.__annotations__, f.__doc__")
case("function/generator function", "def g():\n    yield 1", check="out = list(g())")
case("function/in a dict", "l = []\nd = {'f': lambda x: l.append(x)}", "d['f'](1)", check="d['f'](2)\nout = l")
case("function/made by exec", "exec('def f(): return 7')", check="out = f()")
case("function/redefined", "def f(): return 1\ng = f", "def f(): return 2", check="out = f(), g()")
case(
    "function/type params", "def f[T](x: T) -> T: return x", check="out = f(1), str(f.__type_params__)", since=(3, 12)
)
case(
    "class/plain",
    "class A:\n    def __init__(self, x): self.x = x\na = A(1)",
    check="out = a.x, isinstance(a, A), A.__module__",
)
case(
    "class/method uses a global", "k = 1\nclass A:\n    def m(self): return k\na = A()", "k = 2", check="out = a.m()"
)
case(
    "class/instance changed by method",
    "class A:\n    def __init__(self): self.l = []\n    def add(self, x): self.l.append(x)\na = A()",
    "a.add(1)",
    check="out = a.l",
)
case("class/same class in two variables", "class A: pass\na, b = A(), A()", check="out = type(a) is type(b) is A")
case(
    "class/redefined",
    "class A:\n    v = 1\na = A()",
    "class A:\n    v = 2\nb = A()",
    check="out = a.v, b.v, isinstance(a, A), isinstance(b, A)",
)
case("class/attribute changed later", "class A:\n    n = 0\na = A()", "A.n = 5", check="out = a.n")
case(
    "class/counter in class",
    "class A:\n    n = 0\n    def __init__(self): A.n += 1",
    "A(); A()",
    check="A()\nout = A.n",
)
case(
    "class/registry shared with a variable",
    "reg = {}\nclass A:\n    r = reg",
    "A.r['x'] = 1",
    check="out = reg, A.r is reg",
)
case(
    "class/inheritance",
    "class A:\n    def m(self): return 'a'\nclass B(A):\n    def m(self): return super().m() + 'b'\nb = B()",
    check="out = b.m(), isinstance(b, A)",
)
case(
    "class/dataclass",
    "from dataclasses import dataclass, field\n@dataclass\nclass P:\n    x: int\n    l: list = field(default_factory=list)\np = P(1)",
    "p.l.append(2)",
    check="out = p, p == P(1, [2])",
)
case("class/slots", "class S:\n    __slots__ = ('a', 'b')\ns = S()\ns.a = [1]", check="out = s.a, hasattr(s, 'b')")
case(
    "class/enum",
    "import enum\nclass C(enum.Enum):\n    R = 1\n    G = 2\nr = C.R\nd = {C.G: 1}",
    check="out = r is C.R, d[C.G], list(C)",
)
case(
    "class/flag",
    "import enum\nclass F(enum.Flag):\n    A = 1\n    B = 2\nf = F.A | F.B",
    check="out = f == F.A | F.B, F.A in f",
)
case(
    "class/named tuple",
    "from collections import namedtuple\nP = namedtuple('P', 'x y')\np = P(1, 2)",
    check="out = p, p.x, type(p) is P",
)
case(
    "class/typed named tuple",
    "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 3\np = P(1)",
    check="out = p, type(p) is P",
)
case(
    "class/generic",
    "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass B(Generic[T]):\n    def __init__(self, x: T): self.x = x\nb = B[int](3)",
    check="out = b.x, type(b) is B",
)
case(
    "class/abstract",
    "import abc\nclass A(abc.ABC):\n    @abc.abstractmethod\n    def m(self): ...\nclass B(A):\n    def m(self): return 1\nb = B()",
    check="out = b.m(), isinstance(b, A)",
)
case(
    "class/metaclass",
    "class M(type):\n    def __call__(cls, *a): o = super().__call__(*a); o.tag = 'm'; return o\nclass A(metaclass=M): pass\na = A()",
    check="out = a.tag, type(A) is M, A().tag",
)
case(
    "class/property and static",
    "class A:\n    @property\n    def p(self): return 1\n    @staticmethod\n    def s(): return 2\n    @classmethod\n    def c(cls): return cls\na = A()",
    check="out = a.p, A.s(), a.c() is A",
)
case("class/nested", "class A:\n    class B:\n        v = 3\nb = A.B()", check="out = b.v, type(b) is A.B")
case(
    "class/local",
    "def make():\n    class L:\n        v = 4\n    return L\nL = make()\nl = L()",
    check="out = l.v, type(l) is L",
)
case(
    "class/bound method",
    "class A:\n    def __init__(self): self.n = 0\n    def inc(self): self.n += 1\na = A()\nm = a.inc",
    "m()",
    check="m()\nout = a.n, m.__self__ is a",
)
case(
    "class/own eq raises",
    "class A:\n    def __eq__(self, o): raise RuntimeError\n    __hash__ = object.__hash__\na = A()\na.x = 1",
    "a.x = 2",
    check="out = a.x",
)
case(
    "class/own getattr",
    "class A:\n    def __getattr__(self, n): return n\na = A()",
    check="out = a.foo",
    since=(3, 11),
)
case(
    "class/property with side effect",
    "hits = []\nclass A:\n    @property\n    def p(self): hits.append(1)\na = A()",
    "x = 1",
    check="out = hits",
)
case(
    "class/own exception",
    "class E(Exception):\n    def __init__(self, a, b): super().__init__(a); self.b = b\ntry:\n    raise E(1, [2])\nexcept E as e:\n    x = e",
    check="out = x.args, x.b, type(x) is E",
)
case(
    "class/exception with cause",
    "try:\n    try:\n        1 / 0\n    except ZeroDivisionError as a:\n        raise KeyError('k') from a\nexcept KeyError as b:\n    e = b",
    check="out = repr(e)",
)
case(
    "class/list subclass",
    "class L(list): pass\nl = L([1])\nl.x = 2",
    "l.append(3)",
    check="out = list(l), l.x, type(l) is L",
)
case(
    "class/dict subclass",
    "class D(dict):\n    def __missing__(self, k): return k\nd = D(a=1)",
    check="out = d['a'], d['b'], type(d) is D",
)
case("class/int subclass", "class I(int): pass\ni = I(3)\ni.x = 1", check="out = i + 1, i.x")
case(
    "class/own reduce",
    "class R:\n    def __init__(self, x): self.x = x\n    def __reduce__(self): return R, (self.x,)\nr = R([1])",
    check="out = r.x",
)
case(
    "class/getstate",
    "class G:\n    def __init__(self): self.a = 1\n    def __getstate__(self): return {'a': self.a}\n    def __setstate__(self, s): self.a = s['a']\ng = G()",
    check="out = g.a",
)
case(
    "class/getstate that drops",
    "class G:\n    def __init__(self): self.a = 1; self.b = 2\n    def __getstate__(self): return {'a': self.a}\ng = G()",
    check="out = sorted(g.__dict__)",
    reported=True,
)
case(
    "class/reduce that raises",
    "class R:\n    def __reduce__(self): raise TypeError('never')\nr = R()\nl = [r, 5]",
    check="out = l[1], type(l[0]).__name__",
    reported=True,
)
case(
    "stdlib/generator over a variable",
    "l = [1, 2]\ng = (x for x in l)\nnext(g)",
    "l.append(3)",
    check="l.append(4)\nout = list(g)",
)
case(
    "stdlib/generator over a changed global",
    "k = 1\ng = (x * k for x in range(4))\nnext(g)",
    "k = 5",
    check="a = next(g)\nk = 7\nout = a, next(g)",
)
case(
    "stdlib/generator of a function",
    "def f(l):\n    for x in l:\n        yield x + k\nk = 1\nl = [1, 2, 3]",
    "g = f(l)\nnext(g)",
    check="k = 10\nl.append(5)\nout = list(g)",
)

case(
    "class/setstate that fails",
    "class R:\n    def __setstate__(self, s): raise ValueError('no')\n    def __init__(self): self.a = 1\nr = R()",
    check="out = r.a",
    reported=True,
)
case(
    "class/mutual",
    "class A:\n    def b(self): return B()\nclass B:\n    def a(self): return A()\nx = A()",
    check="out = type(x.b().a()) is A",
)
case("class/instance in own class", "class A: pass\nA.one = A()\nx = A.one", check="out = type(x) is A, A.one is x")
case(
    "class/classes that hold each other",
    "class A: pass\nclass B: pass\nA.b = B()\nB.a = A()",
    check="out = type(A.b) is B, type(B.a) is A",
)
case(
    "class/mixin of stdlib",
    "import json\nclass E(json.JSONEncoder):\n    def default(self, o): return 'x'\ne = E()",
    check="out = e.encode({1: {2}})",
)
case("class/type alias", "from typing import Dict\nT = Dict[str, int]", check="out = T")
case(
    "class/protocol",
    "from typing import Protocol\nclass P(Protocol):\n    def m(self): ...\nclass A:\n    def m(self): return 1\na = A()",
    check="out = a.m()",
)

# --- aliases ---------------------------------------------------------------------------------------------------------
case("alias/two names", "a = [1]\nb = a", "b.append(2)", check="a.append(3)\nout = b, a is b")
case("alias/nested", "cfg = {'h': [1]}\nh = cfg['h']", "h.append(2)", check="h.append(3)\nout = cfg")
case(
    "alias/through an attribute",
    "class A: pass\na = A()\na.l = [1]\nl = a.l",
    "l.append(2)",
    check="l.append(3)\nout = a.l",
)
case("alias/cut", "a = [1]\nb = a", "b = [1]", check="b.append(2)\nout = a, b")
case("alias/joined", "a = [1]\nb = [1]", "b = a", check="b.append(2)\nout = a, b")
case("alias/joined inside, same content", "a = {'x': [1]}\nb = [1]", "a['x'] = b", check="b.append(2)\nout = a")
case("alias/cut inside, same content", "b = [1]\na = {'x': b}", "a['x'] = [1]", check="b.append(2)\nout = a")
case("alias/three", "a = [1]\nb = (a,)\nc = {'b': b}", "a.append(2)", check="c['b'][0].append(3)\nout = a, b")
case("alias/deleted name", "a = [1]\nb = a", "del a", check="out = b, 'a' in globals()")
case("alias/loop target", "l = [[1], [2]]\nfor x in l:\n    x.append(0)", check="x.append(9)\nout = l")
case("alias/method of a container", "l = []\nadd = l.append", "add(1)", check="add(2)\nout = l")
case("alias/partial", "import functools\nl = []\nf = functools.partial(l.append)", "f(1)", check="f(2)\nout = l")
case("alias/property of shared tuple", "t = ([1], 2)\nu = t", "t[0].append(2)", check="u[0].append(3)\nout = t")

# --- ways to change --------------------------------------------------------------------------------------------------
case("change/tuple unpacking", "a, (b, *c) = 1, (2, 3, 4)", "a, b = b, a", check="out = a, b, c")
case("change/setitem", "x = [1, 2]", "x[0] = 9", check="out = x")
case("change/augmented", "x = [1]\ny = x", "x += [2]", check="out = y, x is y")
case("change/augmented int", "x = 1", "x += 1", check="out = x")
case("change/del item", "x = {1: 2, 3: 4}", "del x[1]", check="out = x")
case("change/del slice", "x = [1, 2, 3]", "del x[1:]", check="out = x")
case("change/del attribute", "class A: pass\na = A()\na.x = 1", "del a.x", check="out = hasattr(a, 'x')")
case("change/del name", "x = 1", "del x", check="out = 'x' in globals()")
case("change/with target", "import io\nwith io.StringIO('q') as h:\n    x = h.read()", check="out = x")
case("change/walrus", "if (n := 5) > 3: m = n", check="out = n, m")
case("change/import", "import math", "from math import pi as p, sqrt", check="out = math.pi, p, sqrt(4)")
case("change/star import", "from math import *", check="out = cos(0)")
case("change/comprehension", "x = [0] * 3\n[x.__setitem__(i, i) for i in range(3)]", check="out = x")
case("change/exec", "x = [1]", "exec('x.append(2)')", check="out = x")
case("change/globals", "x = 1", "globals()['x'] = 2", check="out = x")
case(
    "change/globals, by a built name",
    "variable = [1]",
    "globals()['vari' + 'able'].append(2)",
    check="out = variable",
)
case("change/setattr", "class A: pass\na = A()", "setattr(a, 'x', 1)", check="out = a.x")
case("change/failing cell", "x = [1]", "x.append(2)\n1 / 0", check="out = x", fails=True)
case("change/sort", "x = [3, 1]", "x.sort()", check="out = x")
case("change/through argument", "x = [1]\ndef f(y): y.append(2)", "f(x)", check="out = x")
case("change/through star", "x = [1]\ny = [2]\ndef f(*a): [i.append(0) for i in a]", "f(x, y)", check="out = x, y")
case(
    "change/through module function",
    "import random\nx = [1, 2, 3, 4]",
    "random.Random(3).shuffle(x)",
    check="out = x",
)
case("change/heap", "import heapq\nh = [3, 2, 1]", "heapq.heapify(h)\nheapq.heappush(h, 0)", check="out = h")
case("change/match statement", "match (1, [2]):\n    case (a, [b]): pass", check="out = a, b", since=(3, 10))
case(
    "change/try except name",
    "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    msg = str(e)",
    check="out = msg, 'e' in globals()",
)
case(
    "change/async",
    "async def f():\n    l.append(1)\nl = []",
    "import asyncio\nasyncio.new_event_loop().run_until_complete(f())",
    check="out = l",
)
case("change/class body", "class A:\n    x = []\n    x.append(1)", "A.x.append(2)", check="out = A.x")
case(
    "change/decorator registers",
    "reg = []\ndef r(f): reg.append(f.__name__); return f",
    "@r\ndef g(): pass",
    check="out = reg",
)
case("change/type changes", "x = [1]", "x = (1,)", check="out = x")

# --- process state ---------------------------------------------------------------------------------------------------
case("process/random", "import random\nrandom.seed(1)", "random.random()", check="out = random.random()")
case(
    "process/environ",
    "import os\nos.environ['FOO_X'] = 'bar'",
    "os.environ['FOO_X'] = 'baz'",
    check="out = os.environ['FOO_X']",
)
case(
    "process/cwd",
    "import os\nos.makedirs('sub', exist_ok=True)\nos.chdir('sub')",
    check="out = os.path.basename(os.getcwd())",
)
case("process/sys path", "import sys\nsys.path.append('/nowhere/x')", check="out = '/nowhere/x' in sys.path")
case(
    "process/local module",
    "open('mymod_q.py', 'w').write('class C:\\n    v = 1\\n')\nimport sys, os\nsys.path.insert(0, os.getcwd())\nimport mymod_q\nc = mymod_q.C()",
    check="out = c.v, type(c) is mymod_q.C",
)
case(
    "process/logging",
    "import logging\nlogging.getLogger('q.r').setLevel(10)",
    check="out = logging.getLogger('q.r').level",
)
case("process/recursion limit", "import sys\nsys.setrecursionlimit(4321)", check="out = sys.getrecursionlimit()")
case("process/decimal", "import decimal\ndecimal.getcontext().prec = 7", check="out = decimal.Decimal(1) / 3")
case(
    "process/warnings",
    "import warnings\nwarnings.filterwarnings('ignore', 'abc')",
    check="out = warnings.filters[0][0]",
)

# --- numpy -----------------------------------------------------------------------------------------------------------
for label, value in {
    "vector": "np.arange(5.)",
    "matrix": "np.arange(6).reshape(2, 3)",
    "fortran": "np.asfortranarray(np.arange(6).reshape(2, 3))",
    "scalar": "np.float32(1.5)",
    "zero-dim": "np.array(3)",
    "empty": "np.empty((0, 3))",
    "bool": "np.array([True, False])",
    "complex": "np.array([1 + 2j])",
    "strings": "np.array(['ab', 'c'])",
    "bytes": "np.array([b'ab'])",
    "datetimes": "np.array(['2020-01-01'], dtype='M8[D]')",
    "structured": "np.array([(1, 2.)], dtype=[('a', 'i4'), ('b', 'f8')])",
    "big endian": "np.arange(3, dtype='>i4')",
    "objects": "np.array([1, 'a', None], dtype=object)",
    "dtype": "np.dtype('f4')",
    "half": "np.arange(3, dtype='f2')",
    "negative stride": "np.arange(5)[::-1]",
    "large": "np.arange(100_000)",
    "transposed owner": "np.empty_like(np.ones((2, 3, 4)).transpose(1, 0, 2)) * 0 + 1",
    "masked": "np.ma.masked_array([1, 2, 3], [0, 1, 0])",
    "matrix class": "np.matrix([[1, 2]])",
    "poly": "np.poly1d([1, 2])",
    "ufunc": "np.add",
}.items():
    case(
        f"numpy/{label}",
        f"import numpy as np\nx = {value}",
        check="out = type(x).__name__, repr(x), getattr(x, 'strides', 0), str(getattr(x, 'dtype', 0))",
        needs=NP,
    )
V = "import numpy as np\nx = np.arange(20.)\n"
case("numpy/view", V + "v = x[5:10]", "v[0] = 99", check="v[1] = 98\nout = list(x), v.base is x", needs=NP)
case(
    "numpy/large view",
    "import numpy as np\nx = np.zeros(300_000)\nv = x[100:200]",
    "v[0] = 99",
    check="v[1] = 98\nout = x[100], x[101], v.base is x",
    needs=NP,
)
case(
    "numpy/view of unnamed base",
    "import numpy as np\na = np.arange(9.)\nb, c = a[:5], a[3:]\ndel a",
    "b[4] = -1",
    check="b[3] = -2\nout = list(c)",
    needs=NP,
)
case("numpy/strided view", V + "v = x[1::3]", "v += 1", check="v[0] = 5\nout = list(x)", needs=NP)
case("numpy/reshaped view", V + "v = x.reshape(4, 5)", "v[2] = 0", check="v[0] = 7\nout = list(x)", needs=NP)
case(
    "numpy/transposed",
    "import numpy as np\nm = np.arange(6.).reshape(2, 3)\nt = m.T",
    "t[0, 1] = 9",
    check="t[2, 0] = 8\nout = m.tolist()",
    needs=NP,
)
case(
    "numpy/view of fortran",
    "import numpy as np\nm = np.asfortranarray(np.arange(12.).reshape(3, 4))\nv = m[1:, ::2]",
    "v[0, 0] = 9",
    check="v[1, 1] = 8\nout = m.tolist(), m.flags.f_contiguous",
    needs=NP,
)
case("numpy/dtype view", V + "v = x.view('u1')", "v[0] = 1", check="v[8] = 3\nout = x.tobytes()", needs=NP)
case(
    "numpy/broadcast",
    "import numpy as np\nx = np.arange(3.)\nb = np.broadcast_to(x, (4, 3))",
    "x[0] = 5",
    check="x[1] = 6\nout = b.tolist(), b.flags.writeable",
    needs=NP,
)
case(
    "numpy/read-only",
    "import numpy as np\nx = np.arange(3)\nx.flags.writeable = False",
    check="out = x.flags.writeable",
    needs=NP,
)
case(
    "numpy/read-only view of writeable",
    V + "v = x[:3]\nv.flags.writeable = False",
    "x[0] = 9",
    check="x[1] = 8\nout = list(v), v.flags.writeable",
    needs=NP,
)
case(
    "numpy/writeable view of read-only",
    V + "v = x[:3]\nx.flags.writeable = False",
    "v[0] = 7",
    check="v[1] = 8\nout = list(x), x.flags.writeable",
    needs=NP,
)
case(
    "numpy/owner can grow",
    "import numpy as np\nx = np.arange(3)",
    check="x.resize(5, refcheck=False)\nout = list(x)",
    needs=NP,
)
case(
    "numpy/large owner can grow",
    "import numpy as np\nx = np.arange(300_000)",
    check="x.resize(300_001, refcheck=False)\nout = x[-2:].tolist()",
    needs=NP,
)
case(
    "numpy/view in a dict", V + "d = {'v': x[2:4]}", "d['v'][0] = 77", check="d['v'][1] = 78\nout = list(x)", needs=NP
)
case(
    "numpy/objects shared",
    "import numpy as np\nl = [1]\nx = np.array([l, None], dtype=object)",
    "l.append(2)",
    check="l.append(3)\nout = x[0]",
    needs=NP,
)
case(
    "numpy/objects contain themselves",
    "import numpy as np\nx = np.empty(1, object)\nx[0] = x",
    check="out = x[0] is x",
    needs=NP,
)
case(
    "numpy/view of objects",
    "import numpy as np\nx = np.array(['a', 'b', 'c'], dtype=object)\nv = x[1:]",
    "v[0] = 'q'",
    check="v[1] = 'r'\nout = list(x)",
    needs=NP,
)
case(
    "numpy/many strings",
    "import numpy as np\nx = np.array([f's{i}' for i in range(10_000)], dtype=object)",
    "x[77] = 'changed'",
    "y = x[77]",
    check="out = x[77], len(set(x)), y",
    needs=NP,
)
case(
    "numpy/many strings, then a list",
    "import numpy as np\nx = np.array([f's{i}' for i in range(10_000)], dtype=object)",
    "x[77] = [1]",
    "x[77].append(2)",
    check="out = x[77]",
    needs=NP,
)
case(
    "numpy/over bytearray",
    "import numpy as np\nb = bytearray(64)\nx = np.frombuffer(b, 'u1')",
    "x[0] = 5",
    check="x[1] = 6\nb[2] = 7\nout = bytes(b[:3]), x[2]",
    needs=NP,
)
case(
    "numpy/over bytes",
    "import numpy as np\nx = np.frombuffer(b'abcd', 'u1')",
    check="out = list(x), x.flags.writeable",
    needs=NP,
)
case(
    "numpy/over array",
    "import numpy as np, array\na = array.array('d', [1, 2])\nx = np.frombuffer(a)",
    "x[0] = 5",
    check="x[1] = 6\nout = list(a)",
    needs=NP,
)
case(
    "numpy/masked views",
    "import numpy as np\nd = np.arange(4.)\nm = np.ma.masked_array(d, [0, 0, 1, 0])",
    "m[0] = 9",
    check="m[1] = 8\nout = list(d), str(m)",
    needs=NP,
)
case(
    "numpy/memmap",
    "import numpy as np\nm = np.memmap('mm.bin', dtype='f8', mode='w+', shape=(100,))\nm[:] = 1\nm.flush()",
    "m[3] = 7\nm.flush()",
    check="out = float(m.sum()), type(m).__name__",
    needs=NP,
)
case(
    "numpy/memmap read only",
    "import numpy as np\nnp.arange(50.).tofile('ro.bin')\nm = np.memmap('ro.bin', dtype='f8', mode='r')",
    check="out = float(m.sum()), m.flags.writeable",
    needs=NP,
)
case(
    "numpy/memmap changed by others",
    "import numpy as np\nnp.zeros(50).tofile('ch.bin')\nm = np.memmap('ch.bin', dtype='f8', mode='r')",
    "x = 1",
    "m2 = m.copy()",
    check="out = float(m.sum())",
    needs=NP,
)
case(
    "numpy/view of memmap",
    "import numpy as np\nm = np.memmap('mv.bin', dtype='f8', mode='w+', shape=(100,))\nv = m[10:20]",
    "v[0] = 3",
    check="v[1] = 4\nout = float(m[10]), float(m[11])",
    needs=NP,
)
case(
    "numpy/npz file",
    "import numpy as np\nnp.savez('z.npz', a=np.arange(3))\nz = np.load('z.npz')",
    check="out = z['a'].tolist()",
    needs=NP,
)
case(
    "numpy/generator",
    "import numpy as np\nr = np.random.default_rng(3)\nr.random()",
    check="out = r.random()",
    needs=NP,
)
case(
    "numpy/random state",
    "import numpy as np\nr = np.random.RandomState(3)\nr.rand()",
    check="out = r.rand()",
    needs=NP,
)
case(
    "numpy/global random",
    "import numpy as np\nnp.random.seed(3)",
    "np.random.rand()",
    check="out = np.random.rand()",
    needs=NP,
)
case(
    "numpy/bound global random",
    "import numpy as np\nfrom numpy.random import rand\nnp.random.seed(3)",
    check="np.random.seed(5)\nout = rand()",
    needs=NP,
)
case(
    "numpy/the global random state in a frozen distribution",
    "import numpy as np\nfrom scipy import stats\nd = stats.norm(1, 2)\nu = stats.uniform()",
    check="np.random.seed(5)\na = float(d.rvs())\nnp.random.seed(5)\n"
    "out = a, float(np.random.normal(1, 2)), d.random_state is u.random_state is np.random.mtrand._rand",
    needs="scipy",
)
case(
    "numpy/the global random state in a list",
    "import numpy as np\nr = [np.random.mtrand._rand]",
    "np.random.seed(4)\nr[0].rand()",
    check="a = r[0].rand()\nnp.random.seed(4)\nout = a, r[0].rand(), np.random.rand()",
    needs=NP,
)
case(
    "sklearn/the global random state in an estimator",
    "import numpy as np\nfrom sklearn.neural_network import MLPClassifier\n"
    "m = MLPClassifier((3,), max_iter=2).fit([[0.], [1.]], [0, 1])",
    check="np.random.seed(5)\na = m._random_state.rand()\nnp.random.seed(5)\nout = a == np.random.rand()",
    needs="sklearn",
)
case(
    "torch/the default generator in a list",
    "import torch\ng = [torch.default_generator]\ntorch.manual_seed(3)",
    "torch.rand(1)",
    check="a = float(torch.rand(1))\ntorch.manual_seed(4)\n"
    "out = a, float(torch.rand(1, generator=g[0])), g[0] is torch.default_generator",
    needs=TORCH,
)
case(
    "pandas/frames that share kinds, zones and notes",
    "import pandas as pd\nf = pd.DataFrame({'t': pd.date_range('2020', periods=2, tz='Europe/Berlin'),"
    " 'i': pd.array([1, None], dtype='Int64'), 'p': pd.period_range('2020', periods=2, freq='M')})\n"
    "g = f.copy()\nf.attrs['unit'] = 'K'\nl = [1]\nf.note = l\nf.flags.allows_duplicate_labels = False",
    "f.loc[0, 'i'] = 5",
    "g['x'] = 2",
    check="l.append(2)\nout = (f.to_csv(), g.to_csv(), f.dtypes.astype(str).tolist(), f.attrs, f.note,"
    " f.flags.allows_duplicate_labels, f._metadata is pd.DataFrame._metadata, g.t.dt.tz is not None, f.i.dtype == g.i.dtype)",
    needs=PD,
)
case(
    "pandas/a subclass with metadata",
    "import pandas as pd\nclass F(pd.DataFrame):\n    _metadata = ['unit']\n    @property\n    def _constructor(self): return F\n"
    "f = F({'a': [1]})\nf.unit = 'K'",
    "F._metadata.append('made')\nf.made = 3",
    check="h = f.copy()\nout = h.unit, h.made, type(h) is F, f._metadata is F._metadata, f.a.tolist()",
    needs=PD,
)
case(
    "numpy/structured arrays that share a kind",
    "import numpy as np\nk = np.dtype([('a', 'i4'), ('b', 'f8')], align=True)\nx = np.zeros(2, k)\ny = np.rec.array(x)\n"
    "z = np.zeros(1, np.dtype([(('title', 'm'), 'i4')], metadata={'unit': 'K'}))",
    "x['a'] = 3",
    check="x['b'][0] = 2\nout = (x.tolist(), y.a.tolist(), x.dtype == k, k.isalignedstruct, k.fields['b'][1],"
    " type(y).__name__, z['title'].tolist(), dict(z.dtype.metadata))",
    needs=NP,
)
case(
    "numpy/print options",
    "import numpy as np\nnp.set_printoptions(precision=2)",
    check="out = repr(np.array([1.23456]))",
    needs=NP,
)
case(
    "numpy/error state",
    "import numpy as np\nnp.seterr(divide='raise')",
    check="out = np.geterr()['divide']",
    needs=NP,
)
case("numpy/in place operators", V, "x *= 2\nx[x > 5] = 0", check="out = list(x)", needs=NP)
case("numpy/fill through out", V + "y = np.zeros(20)", "np.add(x, 1, out=y)", check="out = list(y)", needs=NP)
case(
    "numpy/large in place",
    "import numpy as np\nx = np.zeros(1_000_000)",
    "x[123_456] = 5",
    "x[123_457] = 6",
    check="out = x[123_456], x[123_457], float(x.sum())",
    needs=NP,
)
case(
    "numpy/large, many cells",
    "import numpy as np\nx = np.zeros(1_000_000)",
    *[f"x[{i * 90_000}] = {i}" for i in range(9)],
    check="out = float(x.sum())",
    needs=NP,
)
case(
    "numpy/large rewritten",
    "import numpy as np\nx = np.zeros(1_000_000)",
    *["x += 1"] * 8,
    check="out = float(x.sum())",
    needs=NP,
)
case(
    "numpy/replaced at the same place",
    "import numpy as np\nx = np.zeros(1_000_000)",
    "y = float(x[0])",
    "del x\nx = np.ones(1_000_000)",
    "del x\nx = np.full(1_000_000, 3.)",
    check="out = float(x.sum())",
    needs=NP,
)
case(
    "numpy/iterator",
    "import numpy as np\ni = np.nditer(np.arange(3))",
    check="out = [int(v) for v in i]",
)
CASES[-1].needs = ("numpy",)
case(
    "numpy/vectorize",
    "import numpy as np\nf = np.vectorize(lambda a: a + 1)",
    check="out = f([1, 2]).tolist()",
    needs=NP,
)
case(
    "numpy/recarray",
    "import numpy as np\nr = np.rec.array([(1, 2.)], dtype=[('a', 'i4'), ('b', 'f8')])",
    "r.a[0] = 5",
    check="out = r.a.tolist(), type(r).__name__",
    needs=NP,
)
case(
    "numpy/subclass",
    "import numpy as np\nclass A(np.ndarray): pass\na = np.arange(4.).view(A)\na.tag = 'x'",
    check="out = type(a) is A, a.tag, a.tolist()",
    needs=NP,
)
case(
    "numpy/subclass view",
    "import numpy as np\nclass A(np.ndarray): pass\nb = np.arange(4.)\na = b.view(A)",
    "a[0] = 7",
    check="a[1] = 8\nout = b.tolist()",
    needs=NP,
)

# --- pandas ----------------------------------------------------------------------------------------------------------
P = "import pandas as pd, numpy as np\ndf = pd.DataFrame({'a': [1, 2, 3], 'b': [1.5, 2.5, 3.5], 'c': list('xyz')})\n"
for label, value in {
    "frame": "df",
    "series": "df['a']",
    "index": "pd.Index([3, 1])",
    "range index": "pd.RangeIndex(5)",
    "multi index": "pd.MultiIndex.from_product([[1, 2], list('ab')])",
    "categorical": "pd.Series(list('aba'), dtype='category')",
    "datetimes": "pd.date_range('2020', periods=3, tz='UTC')",
    "periods": "pd.period_range('2020', periods=3, freq='M')",
    "intervals": "pd.interval_range(0, 3)",
    "timestamp": "pd.Timestamp('2020', tz='Europe/Berlin')",
    "offset": "pd.offsets.BMonthEnd(2)",
    "nullable": "pd.Series([1, None], dtype='Int64')",
    "strings": "pd.Series(['a', None], dtype='string')",
    "sparse": "pd.Series([0, 0, 1], dtype='Sparse[int]')",
    "timedeltas": "pd.to_timedelta([1, 2], unit='h')",
    "empty frame": "pd.DataFrame()",
    "multi columns": "pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([('a', 'x'), ('a', 'y')]))",
}.items():
    case(f"pandas/{label}", P + f"x = {value}", check="out = type(x).__name__, repr(x)", needs=PD)
case("pandas/nat", "import pandas as pd\nx = pd.NaT", check="out = x is pd.NaT", needs=PD)
case("pandas/set item", P, "df.loc[1, 'a'] = 99", check="out = df.to_dict()", needs=PD)
case("pandas/new column", P, "df['d'] = df.a * 2", check="out = df.to_dict()", needs=PD)
case("pandas/drop in place", P, "df.drop(columns='a', inplace=True)", check="out = df.to_dict()", needs=PD)
case(
    "pandas/column then write to frame",
    P + "s = df['a']",
    "df.iloc[0, 0] = 50",
    check="df.iloc[1, 0] = 51\nout = s.tolist(), df.a.tolist()",
    needs=PD,
)
case(
    "pandas/column then write to column",
    P + "s = df['a']",
    "s.iloc[0] = 50",
    check="import warnings\nwarnings.simplefilter('ignore')\ns.iloc[1] = 51\nout = s.tolist(), df.a.tolist()",
    needs=PD,
)
case(
    "pandas/older column of a frame",
    P + "old = df['b']\ndf2 = df[:]",
    "df.iloc[0, 1] = -1",
    check="df.iloc[2, 1] = -2\nout = old.tolist(), df2.b.tolist()",
    needs=PD,
)
case(
    "pandas/shallow copy",
    P + "c = df.copy(deep=False)",
    "c.iloc[0, 0] = 7",
    check="c.iloc[1, 0] = 8\nout = df.a.tolist(), c.a.tolist()",
    needs=PD,
)
case(
    "pandas/renamed frame",
    P + "r = df.rename(columns={'a': 'A'})",
    "r.iloc[0, 0] = 7",
    check="df.iloc[1, 0] = 9\nout = df.a.tolist(), r.A.tolist()",
    needs=PD,
)
case(
    "pandas/over an array",
    "import pandas as pd, numpy as np\nx = np.zeros((3, 2))\ndf = pd.DataFrame(x, copy=False)",
    "x[0, 0] = 5",
    check="x[1, 0] = 6\nout = df[0].tolist()",
    needs=PD,
)
case(
    "pandas/series over an array",
    "import pandas as pd, numpy as np\nx = np.arange(3.)\ns = pd.Series(x, copy=False)",
    "x[0] = 5",
    check="x[1] = 6\nout = s.tolist()",
    needs=PD,
)
case("pandas/values", P + "f = df[['b']].copy()\nv = f.values", check="out = v.tolist(), v.flags.writeable", needs=PD)
case(
    "pandas/index from array",
    "import pandas as pd, numpy as np\na = np.arange(4)\ni = pd.Index(a)\ns = pd.Series(i)",
    "s.iloc[0] = 9",
    check="s.iloc[1] = 8\nout = list(i), s.tolist(), a.tolist()",
    needs=PD,
)
case("pandas/group by", P + "g = df.groupby('c')", check="out = g.a.sum().to_dict()", needs=PD)
case("pandas/rolling", P + "r = df.a.rolling(2)", check="out = r.sum().tolist()[1:]", needs=PD)
case("pandas/attrs", P + "df.attrs['k'] = 1", check="out = df.attrs", needs=PD)
case(
    "pandas/options",
    "import pandas as pd\npd.set_option('display.max_rows', 7)",
    check="out = pd.get_option('display.max_rows')",
    needs=PD,
)
case(
    "pandas/large object column",
    "import pandas as pd\ndf = pd.DataFrame({'s': [f'n{i}' for i in range(20_000)], 'v': range(20_000)})",
    "df.loc[5, 's'] = 'five'",
    "n = len(df)",
    "df.loc[6, 's'] = 'six'",
    check="out = df.s[5], df.s[6], n",
    needs=PD,
)
case("pandas/frame in a list", P + "l = [df]", "l[0]['a'] = 0", check="out = df.a.tolist(), l[0] is df", needs=PD)
case(
    "pandas/accessor",
    "import pandas as pd\ns = pd.Series(['a', 'b']).str",
    check="out = s.upper().tolist()",
    needs=PD,
)

# --- torch -----------------------------------------------------------------------------------------------------------
T = "import torch\nx = torch.arange(6.)\n"
case("torch/tensor", T, check="out = x.tolist(), str(x.dtype)", needs=TORCH)
case("torch/view", T + "v = x[2:4]", "v[0] = 9", check="v[1] = 8\nout = x.tolist()", needs=TORCH)
case(
    "torch/reshaped",
    T + "v = x.view(2, 3).t()",
    "v[0, 1] = 9",
    check="v[2, 0] = 8\nout = x.tolist(), v.stride()",
    needs=TORCH,
)
case("torch/in place", T, "x.add_(1)", check="out = x.tolist()", needs=TORCH)
case(
    "torch/large in place",
    "import torch\nx = torch.zeros(1_000_000)",
    "x[5] = 1",
    "x[6] = 2",
    check="out = float(x.sum())",
    needs=TORCH,
)
case(
    "torch/numpy shares",
    "import torch\nx = torch.zeros(4)\na = x.numpy()",
    "a[0] = 5",
    check="a[1] = 6\nout = x.tolist()",
    needs=TORCH,
)
case(
    "torch/from numpy",
    "import torch, numpy as np\na = np.zeros(4)\nx = torch.from_numpy(a)",
    "x[0] = 5",
    check="x[1] = 6\nout = a.tolist()",
    needs=TORCH,
)
case(
    "torch/from numpy, tensor first",
    "import torch, numpy as np\nz = np.zeros(4)\na = torch.from_numpy(z)",
    "a[0] = 5",
    check="a[1] = 6\nout = z.tolist()",
    needs=TORCH,
)
case(
    "torch/from numpy slice",
    "import torch, numpy as np\nz = np.zeros(8)\na = torch.from_numpy(z[2:6])",
    "a[0] = 5",
    check="a[1] = 6\nout = z.tolist()",
    needs=TORCH,
)
case(
    "torch/leaf with grad",
    "import torch\nw = torch.ones(3, requires_grad=True)\n(w * 2).sum().backward()",
    check="out = w.grad.tolist(), w.requires_grad, w.is_leaf",
    needs=TORCH,
)
case(
    "torch/grad accumulates",
    "import torch\nw = torch.ones(3, requires_grad=True)\n(w * 2).sum().backward()",
    check="(w * 3).sum().backward()\nout = w.grad.tolist()",
    needs=TORCH,
)
case(
    "torch/non-leaf",
    "import torch\nw = torch.ones(3, requires_grad=True)\ny = (w * 2).sum()",
    check="y.backward()\nout = w.grad.tolist()",
    reported=True,
    needs=TORCH,
)
case(
    "torch/parameter",
    "import torch\np = torch.nn.Parameter(torch.ones(2))",
    check="out = type(p).__name__, p.requires_grad",
    needs=TORCH,
)
case(
    "torch/module and optimizer",
    "import torch\ntorch.manual_seed(1)\nm = torch.nn.Linear(2, 1)\no = torch.optim.SGD(m.parameters(), lr=.1, momentum=.9)\nx = torch.ones(4, 2)",
    "l = m(x).pow(2).mean()\nl.backward()\no.step()\no.zero_grad()\ndel l",
    check="l = m(x).pow(2).mean()\nl.backward()\no.step()\nout = m.weight.tolist(), o.param_groups[0]['params'][0] is m.weight",
    needs=TORCH,
)
case(
    "torch/shared parameter",
    "import torch\nm = torch.nn.Linear(2, 2)\nw = m.weight",
    "with torch.no_grad(): w.fill_(3)",
    check="with torch.no_grad(): w.fill_(4)\nout = m.weight.tolist()",
    needs=TORCH,
)
case(
    "torch/own module",
    "import torch\nclass N(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.l = torch.nn.Linear(1, 1)\n    def forward(self, x): return self.l(x) * k\nk = 2\ntorch.manual_seed(0)\nn = N()",
    check="out = n(torch.ones(1)).tolist()",
    needs=TORCH,
)
case(
    "torch/rng",
    "import torch\ntorch.manual_seed(3)",
    "torch.rand(1)",
    check="out = torch.rand(1).tolist()",
    needs=TORCH,
)
case(
    "torch/generator",
    "import torch\ng = torch.Generator().manual_seed(3)\ntorch.rand(1, generator=g)",
    check="out = torch.rand(1, generator=g).tolist()",
    needs=TORCH,
)
case("torch/sparse", "import torch\nx = torch.eye(2).to_sparse()", check="out = x.to_dense().tolist()", needs=TORCH)
case(
    "torch/bool and half",
    "import torch\na, b = torch.tensor([True]), torch.ones(2, dtype=torch.half)",
    check="out = a.tolist(), b.tolist(), str(b.dtype)",
    needs=TORCH,
)
case(
    "torch/default dtype",
    "import torch\ntorch.set_default_dtype(torch.float64)",
    check="out = str(torch.zeros(1).dtype)\ntorch.set_default_dtype(torch.float32)",
    needs=TORCH,
)
case(
    "torch/dataset and loader",
    "import torch\nfrom torch.utils.data import TensorDataset, DataLoader\nx = torch.arange(4.)\nd = DataLoader(TensorDataset(x), batch_size=2)",
    "x[0] = 9",
    check="x[1] = 8\nout = [b[0].tolist() for b in d]",
    needs=TORCH,
)
case(
    "torch/loader iterator",
    "import torch\nfrom torch.utils.data import TensorDataset, DataLoader\ni = iter(DataLoader(TensorDataset(torch.arange(4.)), batch_size=2))\nnext(i)",
    check="out = next(i)[0].tolist()",
    needs=TORCH,
)
case("torch/empty tensor", "import torch\nx = torch.empty(0, 3)", check="out = x.shape", needs=TORCH)

# --- other libraries -------------------------------------------------------------------------------------------------
S = "import numpy as np\nrng = np.random.RandomState(0)\nX = rng.rand(40, 3)\ny = (X[:, 0] > .5).astype(int)\n"
for label, setup in {
    "linear": "from sklearn.linear_model import LogisticRegression as M",
    "forest": "from sklearn.ensemble import RandomForestClassifier as M0\nM = lambda: M0(5, random_state=1)",
    "svm": "from sklearn.svm import SVC as M",
    "tree": "from sklearn.tree import DecisionTreeClassifier as M",
    "bayes": "from sklearn.naive_bayes import GaussianNB as M",
    "neighbours": "from sklearn.neighbors import KNeighborsClassifier as M",
    "boosting": "from sklearn.ensemble import GradientBoostingClassifier as M0\nM = lambda: M0(n_estimators=3, random_state=0)",
    "pipeline": "from sklearn.pipeline import make_pipeline\nfrom sklearn.preprocessing import StandardScaler\nfrom sklearn.linear_model import SGDClassifier\nM = lambda: make_pipeline(StandardScaler(), SGDClassifier(random_state=0))",
}.items():
    case(
        f"sklearn/{label}",
        S + setup + "\nm = M().fit(X, y)",
        check="out = m.predict(X).tolist()",
        needs="numpy sklearn",
    )
case(
    "sklearn/vectorizer",
    "from sklearn.feature_extraction.text import TfidfVectorizer\nv = TfidfVectorizer().fit(['a bc', 'bc d'])",
    check="out = v.transform(['bc']).toarray().tolist()",
    needs="sklearn",
)
case(
    "sklearn/refitted",
    S + "from sklearn.linear_model import LinearRegression\nm = LinearRegression().fit(X, y)",
    "m.fit(X, 1 - y)",
    check="out = m.predict(X).round(6).tolist()",
    needs="numpy sklearn",
)
case(
    "scipy/sparse",
    "import scipy.sparse as s\nm = s.csr_matrix([[0, 1], [2, 0]])",
    "m[0, 1] = 5",
    check="out = m.toarray().tolist()",
    needs="scipy",
)
case(
    "scipy/sparse shares",
    "import scipy.sparse as s\nm = s.csr_matrix([[0, 1], [2, 0]])\nd = m.data",
    "d[0] = 7",
    check="d[1] = 8\nout = m.toarray().tolist()",
    needs="scipy",
)
case("scipy/distribution", "import scipy.stats as s\nn = s.norm(1, 2)", check="out = n.cdf(0)", needs="scipy")
case(
    "scipy/interpolation",
    "from scipy.interpolate import interp1d\nf = interp1d([0, 1], [0, 2])",
    check="out = float(f(.5))",
    needs="scipy",
)
M = "import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt\n"
case(
    "matplotlib/figure",
    M + "f, a = plt.subplots()\nl, = a.plot([1, 2], [3, 4])",
    "a.set_title('t')",
    check="out = a.get_title(), a.lines[0] is l, l.get_ydata().tolist() if hasattr(l.get_ydata(), 'tolist') else list(l.get_ydata())",
    needs="matplotlib",
)
case(
    "matplotlib/current figure",
    M + "f, a = plt.subplots()",
    check="out = plt.gcf() is f, plt.gca() is a, plt.get_fignums()",
    needs="matplotlib",
)
case(
    "matplotlib/rc",
    M + "plt.rcParams['lines.linewidth'] = 7",
    check="out = plt.rcParams['lines.linewidth']",
    needs="matplotlib",
)
case(
    "matplotlib/figures that share matplotlib's own paths and colours",
    M
    + "f, a = plt.subplots()\ng, b = plt.subplots()\nfor ax in a, b:\n    s = ax.scatter([1], [2], c=[3], cmap='RdBu')\n"
    "    ax.errorbar([1, 2], [2, 3], 1, fmt='o-')\n    ax.figure.colorbar(ax.imshow([[1, 2]], cmap='viridis'))",
    "a.set_title('one')",
    "b.set_title('other')",
    check="import io, hashlib\nfrom matplotlib.markers import MarkerStyle\nout = []\nfor made in f, g:\n    to = io.BytesIO()\n"
    "    made.savefig(to, format='raw')\n    out.append(hashlib.sha1(to.getvalue()).hexdigest())\n"
    "tick = a.xaxis.get_major_ticks()[0].tick1line\ntick.set_marker('_')\n"
    "out += [a.get_title(), b.get_title(), s in b.collections, plt.get_cmap('viridis')(0.5), plt.get_fignums(),"
    " tick.get_marker(), float(MarkerStyle('|').get_path().vertices.sum())]",
    needs="matplotlib",
)
case(
    "matplotlib/paths",
    M + "from matplotlib.markers import MarkerStyle\nfrom matplotlib.path import Path\nc = Path.unit_circle()\n"
    "m = [MarkerStyle('o'), MarkerStyle('|'), MarkerStyle('+')]\np = Path([[0, 0], [1, 1]])\nq = p",
    "p.vertices[0] = 5",
    check="out = (c.readonly, c.vertices.sum(), c.codes.tolist(), [one.get_path().vertices.tolist() for one in m],"
    " q is p, q.vertices.tolist(), c.vertices.flags.writeable)",
    needs="matplotlib",
)
case(
    "matplotlib/draw again",
    M + "f, a = plt.subplots(1, 2)\na[0].hist([1, 2, 2])",
    check="import io, hashlib\nb = io.BytesIO()\nf.savefig(b, format='raw')\nout = hashlib.sha1(b.getvalue()).hexdigest()",
    needs="matplotlib",
)
case(
    "widgets/slider",
    "import ipywidgets as w\ns = w.IntSlider(value=3, max=9)",
    "s.value = 5",
    check="out = s.value, s.max",
    needs="ipywidgets",
)
case(
    "widgets/observer",
    "import ipywidgets as w\nl = []\ns = w.IntSlider()\ndef h(c): l.append(c['new'])\ns.observe(h, 'value')",
    "s.value = 5",
    check="s.value = 6\nout = l",
    needs="ipywidgets",
)
case(
    "widgets/button",
    "import ipywidgets as w\nl = []\nb = w.Button(description='go')\nb.on_click(lambda b: l.append(1))",
    "b.click()",
    check="b.click()\nout = l, b.description",
    needs="ipywidgets",
)
case(
    "widgets/box",
    "import ipywidgets as w\na = w.IntText(value=1)\nb = w.HBox([a])",
    "a.value = 4",
    check="out = b.children[0].value, b.children[0] is a",
    needs="ipywidgets",
)

# --- changes that no name shows --------------------------------------------------------------------------------------
H = "import numpy as np\n"
hidden(
    "hidden/alias in a closure",
    "def make():\n    l = [1]\n    return l, (lambda: l.append(2))\nx, touch = make()\nhooks = {'t': touch}\ndel touch\nimport builtins\nbuiltins.q_touch = hooks['t']",
    change="q_touch()",
    check="out = x",
)
hidden(
    "hidden/default argument",
    "def f(x, acc=[]):\n    acc.append(x)\n    return acc\nimport builtins\nbuiltins.q_f = f",
    change="q_f(3)",
    check="out = f(4)",
)
hidden(
    "hidden/c buffer",
    H + "x = np.zeros(1000)\nimport ctypes, builtins\nbuiltins.q_at = x.ctypes.data",
    change="import ctypes as c_\nc_.c_double.from_address(q_at).value = 5.0",
    check="out = x[0]",
    needs=NP,
)
hidden(
    "hidden/c buffer of a large array",
    H + "x = np.zeros(1_000_000)\nimport builtins\nbuiltins.q_at = x.ctypes.data",
    change="import ctypes as c_\nc_.c_double.from_address(q_at + 8 * 500_000).value = 5.0",
    check="out = x[500_000]",
    needs=NP,
)
hidden(
    "hidden/memset",
    H + "x = np.zeros(1_000_000)\nimport builtins\nbuiltins.q_at = x.ctypes.data",
    change="import ctypes as c_\nc_.memset(q_at + 4_000_000, 1, 8)",
    check="out = x[500_000]",
    needs=NP,
)
hidden(
    "hidden/memory map",
    H + "m = np.memmap('h.bin', dtype='f8', mode='w+', shape=(1000,))",
    change="open('h.bin', 'r+b').write(b'\\x01' * 8)",
    check="out = m[0]",
    needs=NP,
)
hidden(
    "hidden/large memory map",
    H + "m = np.memmap('hl.bin', dtype='f8', mode='w+', shape=(400_000,))",
    change="open('hl.bin', 'r+b').write(b'\\x01' * 8)",
    check="out = m[0]",
    needs=NP,
)
hidden(
    "hidden/another thread",
    "import threading, builtins\nx = []\nbuiltins.q_go = threading.Event()\nbuiltins.q_done = threading.Event()\ndef work(l=x):\n    q_go.wait(10)\n    l.append(1)\n    q_done.set()\nthreading.Thread(target=work, daemon=True).start()",
    change="q_go.set()\nq_done.wait(10)",
    check="out = x",
)
hidden(
    "hidden/thread writes a large array",
    H
    + "import threading, builtins\nx = np.zeros(1_000_000)\nbuiltins.q_go = threading.Event()\nbuiltins.q_done = threading.Event()\ndef work(a=x):\n    q_go.wait(10)\n    a[7] = 1\n    q_done.set()\nthreading.Thread(target=work, daemon=True).start()",
    change="q_go.set()\nq_done.wait(10)",
    check="out = x[7]",
    needs=NP,
)
hidden(
    "hidden/timer",
    "import threading\nx = []\nt = threading.Timer(.01, x.append, (1,))\nt.daemon = True\nt.start()\ndel t",
    change="import time\ntime.sleep(.1)",
    check="out = x",
)
hidden(
    "hidden/gc callback",
    "import gc\nx = []\ngc.callbacks.append(lambda p, i, x=x: x.append(1) if len(x) < 1 else None)",
    change="import gc as gc_\ngc_.collect()\ngc_.callbacks.clear()",
    check="out = x",
)
hidden(
    "hidden/registry of a module",
    "import atexit, sys\nx = [0]\nsys.q_registry = [x]",
    change="import sys as s_\ns_.q_registry[0].append(1)",
    check="out = x",
)
hidden(
    "hidden/descriptor",
    "log = []\nclass D:\n    def __get__(self, o, t): log.append(1); return 1\nclass A:\n    d = D()\nimport builtins\nbuiltins.q_a = A()",
    change="q_a.d",
    check="out = len(log) > 0",
)
hidden(
    "hidden/weakref callback",
    "import weakref, builtins\nx = []\nclass A: pass\nbuiltins.q_o = A()\nbuiltins.q_r = weakref.ref(q_o, lambda r, x=x: x.append(1))",
    change="import builtins as b_\ndel b_.q_o",
    check="out = x",
)
hidden(
    "hidden/trace of a signal",
    "import signal, builtins\nx = []\nsignal.signal(signal.SIGUSR1, lambda *a, x=x: x.append(1))",
    change="import os as o_, signal as s_\no_.kill(o_.getpid(), s_.SIGUSR1)\ns_.signal(s_.SIGUSR1, s_.SIG_DFL)",
    check="out = x",
)
hidden(
    "hidden/view held by a builtin",
    H + "x = np.zeros(100)\nimport builtins\nbuiltins.q_v = x[5:]",
    change="q_v[0] = 3",
    check="out = x[5]",
    needs=NP,
)
hidden(
    "hidden/frame of a generator",
    "x = []\ndef g(l=x):\n    while True:\n        l.append(1)\n        yield\nimport builtins\nbuiltins.q_g = g()",
    change="next(q_g)",
    check="out = x",
)
hidden(
    "hidden/attribute of a function",
    "def f(): pass\nf.l = []\nimport builtins\nbuiltins.q_l = f.l",
    change="q_l.append(1)",
    check="out = f.l",
)
hidden(
    "hidden/class attribute",
    "class A:\n    l = []\nimport builtins\nbuiltins.q_A = A",
    change="q_A.l.append(1)\nq_A.new = 5",
    check="out = A.l, A.new",
)
hidden(
    "hidden/object array element",
    H + "x = np.array([f's{i}' for i in range(200_000)], dtype=object)\nimport builtins\nbuiltins.q_x = x",
    change="q_x[5] = 'changed'",
    check="out = x[5]",
    needs=NP,
)
hidden(
    "hidden/pandas block",
    "import pandas as pd, numpy as np, builtins\ndf = pd.DataFrame({'a': np.zeros(400_000)})\nbuiltins.q_b = df._mgr.blocks[0].values",
    change="q_b.flags.writeable = True\nq_b[0, 7] = 5",
    check="out = df.a[7]",
    needs=PD,
)
hidden(
    "hidden/torch storage",
    "import torch, builtins\nx = torch.zeros(1_000_000)\nbuiltins.q_t = x[5:6]",
    change="q_t.fill_(2)",
    check="out = float(x[5])",
    needs=TORCH,
)
hidden(
    "hidden/rebinding from outside",
    "x = 1\nimport sys",
    change="import sys as s_\ns_.modules['__main__'].x = 2",
    check="out = x",
)
hidden(
    "hidden/deleting from outside",
    "x = [1]\nimport sys",
    change="import sys as s_\ndel s_.modules['__main__'].x",
    check="out = 'x' in globals()",
)
case(
    "numpy/masked operation",
    "import numpy as np\nm = np.ma.masked_invalid([[1., np.nan], [3., 4.]]) * 2\nv = m[1:]",
    "v[0, 0] = 9",
    check="v[0, 1] = 8\nout = str(m), str(v)",
    needs=NP,
)
case(
    "numpy/view of a subclass",
    "import numpy as np\nm = np.matrix([[1, 2], [3, 4]])\nv = np.asarray(m)\nw = m[0]",
    "v[0, 0] = 9",
    check="w[0, 1] = 8\nout = m.tolist(), v.tolist()",
    needs=NP,
)
case(
    "matplotlib/mesh",
    "import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt, numpy as np\nf, a = plt.subplots()\nc = a.pcolor(np.arange(6.).reshape(2, 3))",
    check="out = c.get_array().tolist()",
    needs="matplotlib",
)
case(
    "stdlib/generator with a display",
    "def f():\n    yield from range(5)\ng = f()\n_ = g\n_1 = g",
    "next(g)",
    "_2 = 5\n_ = 5",
    "next(g)",
    check="out = list(g), _1 is g",
)
case(
    "value/order of a set",
    "a = {(3, 1), (1, 2), (1, 3), (2, 3), (-1, 5)}\nb = {i * 37 % 1009 for i in range(300)}\nc = a | {(x, y) for x in range(5) for y in range(4)}",
    "for i in range(0, 900, 3): b.discard(i)",
    "c.discard((2, 2))\nc.add((77, 1))",
    check="out = list(a), list(b), list(c)\nc.update((i, i) for i in range(50))\nout += (list(c),)",
)

import cases_containers  # noqa: F401 - adds its cases to these
import cases_deep  # noqa: F401
import cases_further  # noqa: F401
import cases_libraries  # noqa: F401
import cases_modules  # noqa: F401
import cases_more  # noqa: F401
import cases_names  # noqa: F401
import cases_numba  # noqa: F401
import cases_own  # noqa: F401
import cases_settings  # noqa: F401
