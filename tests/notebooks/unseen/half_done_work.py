# %%
import array, asyncio, ctypes, functools, gc, heapq, itertools, mmap, random, threading, time, weakref
from collections import ChainMap, Counter, defaultdict, deque
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
import numpy as np
# %%
def counting(start):
    n = start
    while True:
        got = yield n
        n = got if got is not None else n + 1
def pairs(rows):
    for a in rows:
        for b in a:
            yield b
count, flat = counting(5), pairs([[1, 2], [3]])
next(count), count.send(10), next(flat)
# %%
def account(total=0):
    history = []
    def add(n):
        nonlocal total
        total += n
        history.append(total)
        return total
    def undo():
        nonlocal total
        history.pop()
        total = history[-1] if history else 0
        return total
    return add, undo, history
add, undo, history = account()
add(3), add(4)
# %%
add(1), undo(), history
# %%
try:
    print(next(count), next(flat))
except Exception as error:
    print(type(error).__name__)
# %%
undo(), history, add.__closure__[0].cell_contents is undo.__closure__[0].cell_contents
# %%
ones, twos = itertools.tee(x * x for x in range(6))
next(ones), next(ones), next(twos)
# %%
next(ones), next(twos), list(zip(ones, twos))
# %%
@dataclass
class Node:
    name: str
    _: KW_ONLY
    parent: "weakref.ref | None" = None
    children: list = field(default_factory=list, repr=False)
    stamp: int = field(default_factory=itertools.count(1).__next__, compare=False)
    def grow(self, name):
        child = Node(name, parent=weakref.ref(self))
        self.children.append(child)
        return child
@dataclass(frozen=True, slots=True, order=True)
class Mark:
    rank: int
    text: str = field(default="", compare=False)
root = Node("root")
leaf = root.grow("a").grow("b")
leaf.parent().name, leaf.stamp, leaf.parent().parent() is root
# %%
Node("c").stamp, leaf.parent() is root.children[0], asdict(Mark(1, "x"))
# %%
marks = [Mark(3), Mark(1, "low"), Mark(2)]
heapq.heapify(marks)
heapq.heappush(marks, replace(Mark(0), text="new"))
heapq.heappop(marks).text, hash(Mark(2)) == hash(Mark(2, "other"))
# %%
gone = []
doomed = Node("doomed")
weakref.finalize(doomed, gone.append, "doomed")
by_name = weakref.WeakValueDictionary({n.name: n for n in (root, leaf, doomed)})
sizes = weakref.WeakKeyDictionary()
class Key: pass
key = Key()
sizes[key] = 3
sorted(by_name), sizes[key], gone
# %%
heapq.heappop(marks), sorted(by_name), sizes[key], len(sizes)
# %%
del key
gc.collect()
len(sizes), leaf.parent().children[0] is leaf
# %%
base = np.arange(12.0)
rows, evens, turned = base.reshape(3, 4), base[::2], base.reshape(3, 4).T
same = {"rows": rows, "again": [rows, evens]}
rows[1] *= 10
evens[0] = -1
base, turned[0]
# %%
turned[0] += 100
np.add(evens, 1, out=evens)
base.tolist(), same["again"][0] is rows, np.shares_memory(base, turned)
# %%
raw = bytearray(b"0123456789")
window = memoryview(raw)[2:6]
window[0] = ord("X")
numbers = array.array("i", range(5))
seen_as = np.frombuffer(numbers, dtype=np.int32)
bytes(raw), bytes(window), seen_as.sum()
# %%
window[1] = ord("Y")
numbers[0] = 50
bytes(raw), seen_as[0], type(window.obj).__name__
# %%
class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_int), ("y", ctypes.c_double)]
point, many = Point(1, 2.5), (Point * 3)()
many[1].x = 7
table = defaultdict(lambda: len(table))
[table[word] for word in "to be or not to be".split()]
# %%
try:
    print(point.x, point.y, [p.x for p in many])
except Exception as error:
    print(type(error).__name__)
table["question"], list(table)
# %%
ring = deque(range(7), maxlen=4)
ring.rotate(1)
views = ChainMap({}, {"a": 1})
views["b"] = 2
tally = Counter("mississippi")
rest = tally - Counter("miss")
ring, views.maps[0], rest.most_common(1)
# %%
ring.append(9)
views.maps[1]["a"] += 1
ring, views["a"], (tally & rest).total()
# %%
@functools.singledispatch
def told(x): return "something"
@told.register
def _(x: int): return f"int {x}"
@told.register(list)
def _(x): return [told(y) for y in x]
calls = []
class Meter:
    made = 0
    def __init_subclass__(cls, unit="m", **more):
        super().__init_subclass__(**more)
        cls.unit = unit
        calls.append(cls.__name__)
    def __set_name__(self, owner, name): self.name = name
    def __get__(self, obj, kind=None): return obj.__dict__.get(self.name, 0) if obj else self
    def __set__(self, obj, value): obj.__dict__[self.name] = value * 2
class Foot(Meter, unit="ft"): pass
class Room:
    width, depth = Meter(), Foot()
room = Room()
room.width = 4
room.width, Foot.unit, calls, told([1, "a"])
# %%
room.depth = 1
told.register(float, lambda x: "float")
Room.area = property(lambda self: self.width * self.depth)
told(1.5), room.area, vars(room)
# %%
@told.register
def _(x: dict): return {k: told(v) for k, v in x.items()}
told({"a": 1.0, "b": [2]}), room.area, Room.width.name
# %%
@contextmanager
def noted(name):
    calls.append("in " + name)
    yield name
    calls.append("out " + name)
stack = ExitStack()
stack.callback(calls.append, "last")
stack.enter_context(noted("room"))
calls
# %%
try:
    stack.close()
    print(calls[-2:])
except Exception as error:
    print(type(error).__name__)
# %%
dice = random.Random(7)
rng = np.random.default_rng(7)
children = rng.spawn(2) if hasattr(rng, "spawn") else [np.random.default_rng(s) for s in rng.bit_generator._seed_seq.spawn(2)]
old = np.random.RandomState(3)
dice.random(), rng.integers(100), children[1].integers(100), round(old.rand(), 4)
# %%
dice.gauss(0, 1), rng.integers(100), children[1].integers(100), round(old.randn(), 4)
# %%
dice.gauss(0, 1), round(rng.normal(), 6), children[0].integers(100), round(old.randn(), 4), random.Random(1).random()
# %%
async def slow(n):
    await asyncio.sleep(0.01 * n)
    return n
tasks = [asyncio.create_task(slow(n)) for n in (1, 2)]
await asyncio.wait(tasks)
[t.result() for t in tasks]
# %%
try:
    print([t.result() for t in tasks], tasks[0].done())
except Exception as error:
    print(type(error).__name__)
# %%
results = {}
lock = threading.Lock()
def fill(n):
    with lock:
        results[n] = n * n
threads = [threading.Thread(target=fill, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
sorted(results.items())
# %%
lock.locked(), [t.is_alive() for t in threads], results[3]
# %%
partial = functools.partial(room.__class__.width.__set__, room)
bound = {"add": add, "undo": undo, "up": "abc".upper, "pop": history.append}
partial(8)
bound["pop"](99)
room.width, history, bound["up"]()
# %%
bound["add"](1), bound["undo"](), history, room.width
