# %%
import asyncio
import contextlib
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
# %%
readings = asyncio.Queue()
seen, stop = [], asyncio.Event()
async def sensor(name, values):
    for value in values:
        await readings.put((name, value))
        await asyncio.sleep(0)
await asyncio.gather(sensor("a", [1, 2]), sensor("b", [3]))
readings.qsize()
# %%
while not readings.empty():
    seen.append(await readings.get())
sorted(seen)
# %%
async def watch():
    while not stop.is_set():
        seen.append(await readings.get())
watching = asyncio.create_task(watch())
await sensor("c", [4, 5])
await asyncio.sleep(0.05)
len(seen)
# %%
try:
    await sensor("d", [6])
    await asyncio.sleep(0.05)
    print(len(seen))
except Exception as error:
    print(type(error).__name__)
# %%
stop.set()
try:
    print(stop.is_set(), watching.done())
except Exception as error:
    print(type(error).__name__)
# %%
lock, ready = threading.RLock(), threading.Event()
jobs, done = queue.Queue(), []
def worker():
    while True:
        job = jobs.get()
        if job is None:
            return
        with lock:
            done.append(job * job)
        jobs.task_done()
thread = threading.Thread(target=worker, daemon=True)
thread.start()
for n in range(3):
    jobs.put(n)
jobs.join()
done
# %%
jobs.put(None)
thread.join()
thread.is_alive(), thread.name.split()[0]
# %%
jobs.qsize(), jobs.unfinished_tasks, lock.acquire(blocking=False)
# %%
lock.release()
lock.acquire(timeout=0.1), ready.is_set()
# %%
lock.release()
pool = ThreadPoolExecutor(2, thread_name_prefix="lab")
futures = [pool.submit(pow, n, 2) for n in range(4)]
[f.result() for f in futures]
# %%
ready.set()
[f.result() for f in futures], ready.wait(0.1)
# %%
try:
    print(list(pool.map(abs, [-1, -2])))
except Exception as error:
    print(type(error).__name__)
    pool = ThreadPoolExecutor(2)
# %%
list(pool.map(abs, [-3]))
# %%
limit = asyncio.Semaphore(1)
turns = asyncio.Condition()
async def once(n):
    async with limit:
        async with turns:
            turns.notify_all()
        return n
await once(5)
# %%
async def slowly():
    async with asyncio.timeout(0.05):
        await asyncio.sleep(5)
try:
    await slowly()
except TimeoutError:
    print("timed out")
await once(6)
# %%
tls = threading.local()
tls.name = "main"
async def stream(n):
    for k in range(n):
        yield k
        await asyncio.sleep(0)
[k async for k in stream(3)], tls.name
# %%
@contextlib.asynccontextmanager
async def open_line(name):
    seen.append(("open", name))
    try:
        yield name
    finally:
        seen.append(("shut", name))
line = contextlib.AsyncExitStack()
await line.enter_async_context(open_line("x"))
# %%
seen[-1]
# %%
try:
    await line.aclose()
    print(seen[-1])
except Exception as error:
    print(type(error).__name__)
# %%
loop = asyncio.get_running_loop()
fired = []
loop.call_soon(fired.append, 1)
await asyncio.sleep(0.01)
fired
# %%
try:
    loop.call_soon(fired.append, 2)
    await asyncio.sleep(0.01)
    print(fired)
except Exception as error:
    print(type(error).__name__)
# %%
await asyncio.wait_for(once(7), 1), len(done)
