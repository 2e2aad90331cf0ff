"""A part of the torture set: objects that hold one another in chains beyond the depth of C's stack."""

from __future__ import annotations

from cases import case

CHAIN = """
class Node:
    def __init__(self, v, nx=None): self.v, self.nx, self.pv = v, nx, None
head = None
for i in range(5000):
    nd = Node(i, head)
    if head: head.pv = nd
    head = nd
def walk(n, by):
    found = []
    while n is not None: found.append(n); n = getattr(n, by)
    return found
"""
case(
    "deep/a chain with two names",
    CHAIN,
    "head.v = 'x'",
    check="all = walk(head, 'nx'); back = walk(all[-1], 'pv')\nout = len(all), head.v, all[-1].v, back[-1] is head is nd, back == all[::-1]",
)
case(
    "deep/a chain with all kinds of holders",
    CHAIN
    + """
import weakref, functools, collections
class Slots:
    __slots__ = ('a', 'b', '__weakref__')
class New:
    def __new__(cls, n): made = super().__new__(cls); made.n = n; return made
mid = walk(head, 'nx')[2500]
attrs, last = vars(mid), walk(head, 'nx')[-1]
s = Slots(); s.a = last
mid.holders = [{last: 1, s: 2}, {mid, last}, weakref.ref(mid), functools.partial(walk, last), lambda: mid, New(last), s]
mid.holders += [collections.OrderedDict(m=mid), collections.deque([mid]), (mid, (last,)), [[mid]]]
""",
    "attrs['late'] = [mid]",
    check="""
h = mid.holders
out = [vars(mid) is attrs, mid.late[0] is mid, h[0][last], h[0][h[6]], last in h[1], h[2]() is mid, len(h[3]('pv'))]
out += [h[4]() is mid, h[5].n is last, h[6].a is last, hasattr(h[6], 'b'), h[7]['m'] is mid, h[8][0] is mid, h[9][0] is mid]
out += [h[10][0][0] is mid, h[9][1][0] is last, len(walk(head, 'nx')), sorted(vars(mid))]
""",
)
case(
    "deep/a chain beside what is asked while it is loaded",
    CHAIN
    + """
class Key:
    def __init__(self, node): self.node = node
    def __hash__(self): return hash(self.node.v)
    def __eq__(self, other): return self.node.v == other.node.v
class Counted:
    def __init__(self, node): self.node = node
    def __setstate__(self, state): vars(self).update(state); self.v = self.node.v
keys = {Key(head): 1}
counted = Counted(head); counted.v = head.v
""",
    "x = 1",
    check="out = keys[Key(head)], counted.v, counted.node is head, next(iter(keys)).node is head, len(walk(head, 'nx'))",
)
