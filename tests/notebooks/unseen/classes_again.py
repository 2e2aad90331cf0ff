# %%
import dataclasses
import functools
import typing
from collections import namedtuple
from dataclasses import dataclass, field
# %%
class Registry(type):
    known = {}
    def __new__(meta, name, bases, space, **options):
        made = super().__new__(meta, name, bases, space)
        Registry.known.setdefault(name, []).append(made)
        made.options = options
        return made

class Shape(metaclass=Registry, abstract=True):
    count = 0
    def __init_subclass__(cls, **options):
        super().__init_subclass__()
        Shape.count += 1
    def area(self): return 0
# %%
class Square(Shape, sides=4):
    def __init__(self, a): self.a = a
    def area(self): return super().area() + self.a ** 2
old = Square(3)
old.area(), Shape.count, sorted(Registry.known)
# %%
class Square(Shape, sides=4):
    def __init__(self, a): self.a = a
    def area(self): return super().area() - self.a ** 2
new = Square(2)
isinstance(old, Square), old.area(), new.area(), [type(old), type(new)] == Registry.known["Square"]
# %%
Registry.known["Square"][0] is type(old), type(old).options, Shape.count, len(Shape.__subclasses__())
# %%
@dataclass(order=True)
class Point:
    x: int
    y: int = 0
    tags: list = field(default_factory=list, compare=False)
    shared: typing.ClassVar[list] = []
points = [Point(2, 1), Point(1), Point(1, 5, ["a"])]
Point.shared.append(points[0])
sorted(points)
# %%
@dataclass(frozen=True, slots=True)
class Edge:
    start: Point
    end: Point
    weight: float = dataclasses.field(default=1.0, metadata={"unit": "m"})
edges = {name: Edge(points[a], points[b]) for name, a, b in (("one", 0, 1), ("two", 1, 2))}
edges["one"].end is points[1], dataclasses.fields(Edge)[2].metadata["unit"]
# %%
points[0].tags.append("moved")
edges["one"].start.tags, Point.shared[0] is points[0], dataclasses.replace(edges["one"], weight=2).weight
# %%
adders = [lambda n: n + step for step in range(3)]
fixed = [lambda n, step=step: n + step for step in range(3)]
def counter():
    total = 0
    def add(n=1):
        nonlocal total
        total += n
        return total
    def read(): return total
    return add, read
add, read = counter()
[f(10) for f in adders], [f(10) for f in fixed], add(5)
# %%
step = 100
add(), read(), [f(10) for f in adders]
# %%
class Celsius:
    def __set_name__(self, owner, name): self.name = "_" + name
    def __get__(self, of, owner=None): return self if of is None else getattr(of, self.name, 0.0)
    def __set__(self, of, value): setattr(of, self.name, float(value))
class Room:
    now = Celsius()
    @functools.cached_property
    def first(self): return self.now
    @functools.singledispatchmethod
    def say(self, what): return "thing"
    @say.register
    def _(self, what: int): return "number"
room = Room()
room.now = 20
room.first, room.say(1), room.say("x")
# %%
@functools.singledispatch
def show(x): return "any"
@show.register(list)
def _(x): return "list of " + ", ".join(map(show, x))
show([1, []])
# %%
@show.register
def _(x: Point): return f"point {x.x}"
room.now = 25
room.first, room.now, show([points[0], 3])
# %%
Room.say.register(float, lambda self, what: "float")
room.say(1.5), room.say(2), show([points[1]])
# %%
Pair = namedtuple("Pair", "left right", defaults=[None])
class Named(Pair):
    __slots__ = ()
    def __repr__(self): return f"<{self.left}>"
T = typing.TypeVar("T")
class Box(typing.Generic[T]):
    def __init__(self, of: T): self.of = of
boxes = [Box[int](3), Box[str]("x")]
Named(1), Named(1) == Pair(1), boxes[0].__orig_class__
# %%
@functools.total_ordering
class Version:
    def __init__(self, text): self.parts = tuple(map(int, text.split(".")))
    def __eq__(self, other): return self.parts == other.parts
    def __lt__(self, other): return self.parts < other.parts
    def __hash__(self): return hash(self.parts)
found = {Version("1.2"): "old", Version("1.10"): "new"}
found[Version("1.10")], max(found).parts
# %%
def method(self): return f"patched {self.x}"
Point.describe = method
Point.__repr__ = lambda self: f"P{self.x}"
points
# %%
points[0].describe(), Point(7), edges["two"]
# %%
boxes[1].__orig_class__, found[Version("1.2")], room.say([]), add(), type(old).area(old)
