# %%
import asyncio, contextvars, http.server, socket, subprocess, sys, threading, time, urllib.request, functools, os
# %%
ticks = []
async def ticker(n):
    for k in range(n):
        ticks.append(k); await asyncio.sleep(0.02)
    return "finished"
task = asyncio.create_task(ticker(5))
await asyncio.sleep(0.3)
task.done(), ticks
# %%
task.result(), len(ticks)
# %%
forever = asyncio.create_task(ticker(10**6)); q = asyncio.Queue(); await q.put(1); lock = asyncio.Lock(); ev = asyncio.Event(); ev.set()
await asyncio.sleep(0.05); len(ticks) > 5
# %%
try: print(forever.done()); forever.cancel()
except Exception as e: print(type(e).__name__)
# %%
try: print(await asyncio.wait_for(q.get(), 1), q.empty(), ev.is_set(), lock.locked())
except Exception as e: print(type(e).__name__)
# %%
user = contextvars.ContextVar("user", default="nobody")
tok = user.set("alice"); ctx = contextvars.copy_context()
user.get(), ctx.run(user.get)
# %%
user.get(), ctx[user], len(ctx) > 0
# %%
try: user.reset(tok); print(user.get())
except Exception as e: print(type(e).__name__)
# %%
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b"hi")
    def log_message(self, *a): pass
srv = http.server.ThreadingHTTPServer(("127.0.0.1", 0), H)
thr = threading.Thread(target=srv.serve_forever, daemon=True); thr.start()
url = f"http://127.0.0.1:{srv.server_address[1]}/"
urllib.request.urlopen(url).read()
# %%
try: print(urllib.request.urlopen(url, timeout=2).read()); srv.shutdown()
except Exception as e: print(type(e).__name__)
# %%
counter = 0
def bump():
    global counter
    while counter < 10**9 and alive:
        counter += 1; time.sleep(0.005)
alive = True
th = threading.Thread(target=bump, daemon=True); th.start(); time.sleep(0.1)
counter > 3
# %%
c0 = counter; time.sleep(0.1)
print("grows" if counter > c0 else "stands"); alive = False
# %%
timer = threading.Timer(0.05, lambda: ticks.append("timer")); timer.start(); time.sleep(0.2)
ticks[-1]
# %%
ticks[-1], timer.is_alive()
# %%
sl = subprocess.Popen(["sleep", "300"]); sl.poll()
# %%
try: print(sl.poll()); sl.kill(); print(sl.wait())
except Exception as e: print(type(e).__name__)
# %%
a, b = socket.socketpair(); a.send(b"x"); r, wfd = os.pipe(); os.write(wfd, b"y")
b.recv(1)
# %%
try: print(os.read(r, 1))
except Exception as e: print(type(e).__name__)
# %%
try: a.send(b"z"); print(b.recv(1))
except Exception as e: print(type(e).__name__)
# %%
async def agen():
    for k in range(5): yield k
g = agen(); await g.__anext__()
# %%
try: print(await g.__anext__())
except Exception as e: print(type(e).__name__)
# %%
async def later(): return 5
co = later()
# %%
try: print(await co)
except Exception as e: print(type(e).__name__)
# %%
loop = asyncio.get_running_loop(); fut = loop.create_future(); handle = loop.call_later(100, print, "never")
fut.done()
# %%
try: fut.set_result(3); print(await fut)
except Exception as e: print(type(e).__name__)
# %%
loop is asyncio.get_running_loop(), await asyncio.gather(later(), later())
