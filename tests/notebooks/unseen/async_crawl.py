# %%
import asyncio
import contextvars
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from collections import Counter, ChainMap, OrderedDict
# %%
who = contextvars.ContextVar("who", default="nobody")
pages = {"/": ["/a", "/b"], "/a": ["/b", "/c"], "/b": ["/"], "/c": []}
seen = Counter()
# %%
async def fetch(page):
    await asyncio.sleep(0.01)
    seen[page] += 1
    return pages[page]

async def crawl(start):
    todo, done = [start], []
    while todo:
        found = await asyncio.gather(*map(fetch, todo))
        done += todo
        todo = sorted({p for links in found for p in links} - set(done))
    return done

await crawl("/")
# %%
seen
# %%
@asynccontextmanager
async def session(name):
    token = who.set(name)
    try:
        yield name.upper()
    finally:
        who.reset(token)

async with session("ann") as loud:
    print(loud, who.get())
# %%
who.get()
# %%
gate = asyncio.Semaphore(2)
inside = []

async def guarded(n):
    async with gate:
        inside.append(n)
        await asyncio.sleep(0.01)
    return n * n

await asyncio.gather(*(guarded(n) for n in range(5)))
# %%
len(inside), gate.locked()
# %%
settings = ChainMap({"depth": 2}, {"depth": 1, "agent": "x"})
settings["agent"] = "y"
settings.maps, settings.parents["agent"]
# %%
recent = OrderedDict((n, n * n) for n in range(4))
recent.move_to_end(0)
list(recent)
# %%
async def ticking():
    for n in range(4):
        yield n
        await asyncio.sleep(0)

ticks = ticking()
[await ticks.__anext__(), await ticks.__anext__()]
# %%
with suppress(StopAsyncIteration):
    print(await ticks.__anext__())
# %%
recent.popitem(last=False), seen.most_common(1), settings["depth"]
# %%
later = asyncio.get_running_loop().create_task(asyncio.sleep(0.01, result="slept"))
await later
# %%
later.done()
# %%
@contextmanager
def timed(label):
    before = len(inside)
    yield
    print(label, len(inside) - before)

with timed("more"):
    await guarded(9)
# %%
await crawl("/a"), seen["/b"]
