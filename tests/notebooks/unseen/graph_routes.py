# %%
import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field
# %%
@dataclass(order=True)
class Stop:
    cost: int
    name: str = field(compare=False)
    path: tuple = field(default=(), compare=False)

roads = [("a", "b", 7), ("a", "c", 9), ("a", "f", 14), ("b", "c", 10), ("b", "d", 15), ("c", "d", 11), ("c", "f", 2),
         ("d", "e", 6), ("e", "f", 9)]
graph = defaultdict(dict)
for one, two, length in roads:
    graph[one][two] = graph[two][one] = length
len(graph), graph["c"]
# %%
def shortest(start, goal):
    queue, seen = [Stop(0, start, (start,))], set()
    while queue:
        stop = heapq.heappop(queue)
        if stop.name == goal:
            return stop
        if stop.name in seen:
            continue
        seen.add(stop.name)
        for other, length in graph[stop.name].items():
            heapq.heappush(queue, Stop(stop.cost + length, other, (*stop.path, other)))
    return None
# %%
best = shortest("a", "e")
best
# %%
queue = deque(["a"], maxlen=4)
order = []
while queue:
    here = queue.popleft()
    if here not in order:
        order.append(here)
        queue.extend(sorted(graph[here]))
order, queue
# %%
graph["e"]["g"] = graph["g"]["e"] = 1
shortest("a", "g").path
# %%
import networkx as nx
g = nx.Graph()
g.add_weighted_edges_from((a, b, w) for a in graph for b, w in graph[a].items())
nx.shortest_path_length(g, "a", "g", weight="weight"), sorted(g.degree)
# %%
g.graph["owner"] = g
g.nodes["a"]["seen"] = {best.name, "z"} - {"z"}
g.graph["owner"] is g, g.nodes["a"]
# %%
central = nx.betweenness_centrality(g, weight="weight")
{name: round(value, 3) for name, value in sorted(central.items())}
# %%
tree = nx.minimum_spanning_tree(g)
sorted(tree.edges(data="weight"))
# %%
del graph["g"]
missing = graph["nowhere"]
sorted(graph), missing is graph["nowhere"], nx.number_of_nodes(g)
