"""A part of the torture set: subclasses of Python's containers whose methods do more than theirs."""

from __future__ import annotations

from cases import case

case(
    "container/items that are converted as they are put in",
    """
from collections import *
class Scaled(dict):
    def __setitem__(self, k, v): super().__setitem__(k, v * 2)
class Celsius(list):
    def append(self, f): super().append((f - 32) / 2)
    def extend(self, fs):
        for f in fs: self.append(f)
class Last(OrderedDict):
    def __setitem__(self, k, v): super().__setitem__(k, v); self.move_to_end(k, last=False)
class Tally(defaultdict):
    def __setitem__(self, k, v): super().__setitem__(k, v + 1)
class Low(set):
    def __init__(self, items=()): super().__init__(i.lower() for i in items)
a, b, c, d, e = Scaled(), Celsius(), Last(), Tally(int), Low('A')
a['x'] = 1
b.append(212)
c['x'], c['y'] = 1, 2
d['x'] = 1
e.add('B')
""",
    "x = 1",
    check="out = a, b, c, d, sorted(e), [type(i).__name__ for i in (a, b, c, d, e)]",
)
case(
    "container/items that are dropped, refused or told of",
    """
from collections import *
class Unique(list):
    def extend(self, items):
        for i in items:
            if i not in self: super().append(i)
class Frozen(dict):
    def __setitem__(self, k, v): raise TypeError('frozen')
class Limited(OrderedDict):
    def __init__(self, size): super().__init__(); self.size = size
    def __setitem__(self, k, v):
        super().__setitem__(k, v)
        if len(self) > self.size: self.popitem(last=False)
class Votes(Counter):
    def __init__(self, *a): self.calls = 0; super().__init__(*a)
    def update(self, *a, **k): self.calls += 1; super().update(*a, **k)
class Told(list):
    def extend(self, items): log.extend(items); super().extend(items)
log = []
a, b, c, d, e = Unique([1, 1, 2]), Frozen(a=1), Limited(2), Votes('ab'), Told()
c[1], c[2], c[3] = 1, 2, 3
e.extend([1])
""",
    "x = 1",
    check="out = a, b, c, c.size, d, d.calls, e, log",
)
case(
    "container/items that are answered otherwise than they are kept",
    """
from collections import *
class L(list):
    def __iter__(self): return iter([0])
class D(dict):
    def items(self): return []
class O(OrderedDict):
    def items(self): return []
class S(set):
    def __iter__(self): return iter([])
    def __len__(self): return 0
class Q(deque):
    def __iter__(self): return iter([9])
class F(frozenset):
    def __iter__(self): return iter([])
class C(Counter):
    def __getitem__(self, k): return super().__getitem__(k) * 2
a, b, c, d, e, f, g = L([1]), D(a=1), O(a=1), S([3, 1000, 4, 70000]), Q([1, 2], 2), F([1]), C('aab')
""",
    "x = 1",
    check="""
out = [list.__repr__(a), dict.__repr__(b), list(OrderedDict.items(c)), list(set.__iter__(d)), list(deque.__iter__(e))]
out += [e.maxlen, list(frozenset.__iter__(f)), dict.__repr__(g)]
""",
)
case(
    "container/attributes, slots and circles",
    """
from collections import *
class L(list):
    __slots__ = ('me',)
    def extend(self, items): self.me; super().extend(items)
class S(set):
    __slots__ = ('k', '__dict__')
    def __init__(self, k): self.k = k
class Q(deque):
    __slots__ = ('total', 'me')
    def __init__(self, n): super().__init__(maxlen=n); self.total = 0
    def append(self, x): self.total += x; super().append(x)
class D(defaultdict):
    def __init__(self, f, step): super().__init__(f); self.step = step
    def __setitem__(self, k, v): super().__setitem__(k, v + self.step)
class Me(dict):
    def __init__(self): self.__dict__ = self
    def __setitem__(self, k, v): raise TypeError
class P(dict):
    def __setitem__(self, k, v): super().__setitem__(k, [v])
a, b, c, d, e, f = L([1]), S(1), Q(2), D(int, 5), Me(), P()
a.me = a; a.append(a)
b.k = [b]; b.add(2); b.x = 3
c.append(4); c.append(5); c.append(6); c.me = c
d['a'] = 1
e.x = 1
f['a'] = 1; held = vars(f); f.me = f
""",
    "x = 1",
    check="""
out = [a[0], a[1] is a, a.me is a, b, b.k[0] is b, b.x, list(c), c.total, c.maxlen, c.me is c, dict(d), d.step]
out += [d.default_factory, dict(e), e.x, vars(e) is e, dict(f), vars(f) is held, f.me is f]
""",
)
case(
    "container/made with arguments",
    """
from collections import *
class F(frozenset):
    def __new__(cls, a, b): made = super().__new__(cls, [a, b]); made.ab = a, b; return made
class T(tuple):
    def __new__(cls, a, b): return super().__new__(cls, [a, b])
class B(bytearray):
    def __init__(self, n, step): super().__init__(n); self.n = step
class O(OrderedDict):
    def __new__(cls, size): made = super().__new__(cls); made.size = size; return made
    def __init__(self, size): super().__init__()
class N(dict):
    def __new__(cls, a): made = super().__new__(cls); made.a = [a]; return made
    def __init__(self, a): super().__init__()
    def __getnewargs__(self): return self.a[0],
    def __setitem__(self, k, v): super().__setitem__(k, v * 2)
a, b, c, d, e = F(1, 2), T(1, 2), B(3, 4), O(3), N(4)
d[2] = 1; d[1] = 2
e['x'] = 1
""",
    "x = 1",
    check="out = a, a.ab, b, type(b).__name__, c, c.n, d, d.size, e, e.a",
)
case(
    "container/that pickles itself",
    """
class State(dict):
    def __setitem__(self, k, v): super().__setitem__(k, v * 2)
    def __getstate__(self): return {'n': 1}
class Set(list):
    def extend(self, items): raise TypeError
    def __setstate__(self, state): vars(self).update(state); self.seen = len(self)
class Reduced(dict):
    def __setitem__(self, k, v): super().__setitem__(k, v * 2)
    def __reduce__(self): return make, (list(self.items()),)
def make(items):
    made = Reduced()
    for item in items: dict.__setitem__(made, *item)
    made.how = 1
    return made
a, b, c = State(), Set([1, 2]), make([('a', 1)])
a['x'] = 1; a.n = 1; b.x, b.seen = 1, 2
""",
    "x = 1",
    check="out = a, vars(a), b, vars(b), c, vars(c)",
)
case(
    "container/of a module of the users own",
    """
open('hop_kept.py', 'w').write('''
from collections import *
class D(dict):
    def __new__(cls, a): return super().__new__(cls)
    def __init__(self, a): self.a = a
    def __setitem__(self, k, v): super().__setitem__(k, v * 2)
class S(set):
    def __init__(self, k): self.k = k
class T(tuple):
    def __new__(cls, a, b): return super().__new__(cls, [a, b])
class X:
    def __new__(cls, a): return super().__new__(cls)
    def __init__(self, a): self.a = a
class One(dict):
    one = None
    def __new__(cls):
        if cls.one is None: cls.one = super().__new__(cls)
        return cls.one
class Tree(defaultdict): pass
''')
import sys, os
sys.path.insert(0, os.getcwd())
import hop_kept
a, b, c, d, e, f = hop_kept.D(5), hop_kept.S(3), hop_kept.T(1, 2), hop_kept.X(3), hop_kept.One(), hop_kept.Tree(list)
a['x'] = 1
b.add(4)
e['x'] = 1
f.note = 2
""",
    "x = 1",
    check="out = a, a.a, b, b.k, c, d.a, e, e is hop_kept.One(), f, f.note",
)
case(
    "container/of a library, by a subclass of its own",
    "from traitlets.config import Config\nc = Config()\nc.A.b = 1\nc['C'] = Config(d=[1])",
    "c.C.d.append(2)",
    check="out = dict(c), type(c.A).__name__, c.C.d",
    needs="traitlets",
)
