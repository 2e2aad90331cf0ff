# %%
import atexit, decimal, faulthandler, gc, io, logging, logging.handlers, os, resource, signal, sys, tempfile, threading, time, tracemalloc, warnings
from pathlib import Path
# %%
caught = []
def on_usr1(sig, frame): caught.append(sig)
signal.signal(signal.SIGUSR1, on_usr1)
os.kill(os.getpid(), signal.SIGUSR1)
time.sleep(0.01)
caught
# %%
old_umask = os.umask(0o027)
sys.setrecursionlimit(4321)
gc.set_threshold(500, 5, 5)
sys.setswitchinterval(0.01)
oct(old_umask)
# %%
h = Path("made.txt"); h.write_text("x")
oct(h.stat().st_mode & 0o777), sys.getrecursionlimit(), gc.get_threshold(), sys.getswitchinterval()
# %%
warnings.filterwarnings("error", message="bad idea")
try:
    warnings.warn("a bad idea indeed"); print("passed")
    warnings.warn("bad idea")
except UserWarning as e: print("raised", e)
# %%
try:
    warnings.warn("bad idea"); print("not raised")
except UserWarning as e: print("raised", e)
# %%
buffer = io.StringIO()
log = logging.getLogger("room")
log.setLevel("DEBUG")
handler = logging.StreamHandler(buffer)
handler.setFormatter(logging.Formatter("%(levelname)s:%(message)s"))
log.addHandler(handler)
log.propagate = False
memory = logging.handlers.MemoryHandler(10, target=handler)
log.addHandler(memory)
log.info("one")
buffer.getvalue()
# %%
log.info("two"); memory.flush(); buffer.getvalue()
# %%
def shout(kind, value, tb): print("SHOUT", value)
sys.excepthook = shout
old_display = sys.displayhook
shown = []
get_ipython().set_custom_exc((KeyError,), lambda shell, et, ev, tb, tb_offset=None: print("custom", ev))
{}["k"]
# %%
{}["l"]
# %%
real_out = sys.stdout
kept = io.StringIO()
sys.stdout = kept
print("into the buffer")
# %%
print("more")
# %%
sys.stdout = real_out
print(kept.getvalue())
# %%
import builtins, json, random, time as clock
real_sleep = clock.sleep
clock.sleep = lambda s: caught.append(("sleep", s))
random.random = lambda: 0.5
clock.sleep(3), caught[-1], random.random()
# %%
clock.sleep(2), caught[-1], random.random()
# %%
clock.sleep = real_sleep
clock.sleep(0.01)
len(caught)
# %%
with decimal.localcontext() as ctx:
    ctx.prec = 5
    a = decimal.Decimal(1) / 7
ctx.prec, str(a), decimal.getcontext().prec
# %%
decimal.getcontext().prec = 11
decimal.setcontext(decimal.Context(prec=9))
str(decimal.Decimal(1) / 7)
# %%
str(decimal.Decimal(1) / 7), ctx.prec
# %%
box = tempfile.TemporaryDirectory()
Path(box.name, "a").write_text("kept")
nt = tempfile.NamedTemporaryFile("w+", suffix=".dat")
nt.write("hello"); nt.flush()
os.path.exists(nt.name)
# %%
try:
    print(Path(box.name, "a").read_text())
    nt.seek(0); print(nt.read())
except Exception as e: print(type(e).__name__)
# %%
ev = threading.Event()
done = []
def waiter():
    ev.wait(5); done.append("ran")
t = threading.Thread(target=waiter); t.start()
t.is_alive()
# %%
try:
    ev.set(); t.join(2); print(done, t.is_alive())
except Exception as e: print(type(e).__name__)
# %%
resource.setrlimit(resource.RLIMIT_NOFILE, (512, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
resource.getrlimit(resource.RLIMIT_NOFILE)[0]
# %%
resource.getrlimit(resource.RLIMIT_NOFILE)[0], oct(os.umask(0o027)), sys.getrecursionlimit(), os.nice(0)
# %%
signal.getsignal(signal.SIGUSR1) is on_usr1
