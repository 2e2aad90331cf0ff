# %%
"""A shop's queue, as in a course on simulation: generators, random states, closures, and a figure at the end."""
import heapq, itertools, random, statistics
from collections import deque
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import sympy
from tqdm.auto import tqdm
# %%
dice = random.Random(3)
def arrivals(rate):
    now = 0.0
    while True:
        now += dice.expovariate(rate)
        yield now
come = arrivals(0.5)
[round(next(come), 3) for _ in range(2)]
# %%
try:
    print(round(next(come), 3))
except Exception as error:
    print(type(error).__name__)
# %%
events, ticket = [], itertools.count(1)
def plan(when, what, *args):
    heapq.heappush(events, (when, next(ticket), what, args))
waiting, waits = deque(), []
def arrive(now):
    waiting.append(now)
    if len(waiting) == 1:
        plan(now + dice.uniform(0.5, 2), leave)
def leave(now):
    waits.append(now - waiting.popleft())
    if waiting:
        plan(now + dice.uniform(0.5, 2), leave)
for n in range(6):
    plan(n * 1.1, arrive)
len(events)
# %%
def run(n):
    for _ in range(n):
        if events:
            when, _, what, args = heapq.heappop(events)
            what(when, *args)
    return len(events)
run(5)
# %%
run(3), round(sum(waits), 4), next(ticket)
# %%
run(100), round(statistics.mean(waits), 4), dice.random()
# %%
city = nx.Graph()
city.add_weighted_edges_from([("a", "b", 2), ("b", "c", 1), ("a", "c", 5)])
inside = city.subgraph(["a", "b"])
paths = nx.all_simple_paths(city, "a", "c")
sorted(inside.edges), next(paths)
# %%
city.add_edge("a", "d", weight=1)
city.remove_edge("a", "b")
sorted(inside.edges), nx.shortest_path(city, "a", "c", weight="weight")
# %%
try:
    print(list(paths))
except Exception as error:
    print(type(error).__name__)
# %%
sympy.var("t k")
decay = sympy.Function("decay")
rule = sympy.Eq(decay(t).diff(t), -k * decay(t))
solved = sympy.dsolve(rule, decay(t))
solved.rhs
# %%
fast = sympy.lambdify((t, k), solved.rhs.subs("C1", 1), "numpy")
fast(np.array([0.0, 1.0]), 0.5).round(4)
# %%
t * 2, fast(2.0, 1.0).round(4), solved.rhs.free_symbols >= {t, k}
# %%
seen = []
bar = tqdm(range(6), disable=True)
for n in bar:
    seen.append(n)
    if n == 2:
        break
bar.n, seen
# %%
def make_counters():
    return {name: (lambda name=name: (totals.__setitem__(name, totals.get(name, 0) + 1), totals[name])[1]) for name in "ab"}
totals = {}
counters = make_counters()
counters["a"](), counters["a"](), counters["b"]()
# %%
counters["a"](), totals
# %%
walk = np.cumsum(np.random.RandomState(2).choice([-1, 1], 200))
fig = plt.figure(figsize=(4, 2))
ax = fig.add_subplot()
ax.plot(walk, lw=0.8)
ax.set(title="walk", xlabel="step")
twin = ax.twinx()
twin.plot(np.abs(walk), "r:")
fig.tight_layout()
# %%
twin.set_ylim(0, 40)
mark = ax.annotate("start", (0, walk[0]), (40, -5), arrowprops={"arrowstyle": "->"})
fig
# %%
mark.set_text("begin")
ax.lines[0].set_color("green")
fig
# %%
fig.axes[1] is twin, ax.get_shared_x_axes().joined(ax, twin), twin.get_ylim()
# %%
globals()["made"] = [1]
exec("made.append(2); hidden = made")
made
# %%
hidden.append(3)
vars()["made"] is hidden, made
# %%
del hidden
try:
    hidden
except NameError as error:
    print(error)
made, "hidden" in globals()
