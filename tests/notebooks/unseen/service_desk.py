# %%
import atexit, configparser, decimal, hashlib, locale, logging, logging.handlers, os, queue, re, select, shutil, signal
import socket, sqlite3, string, struct, subprocess, sys, tempfile, warnings, zlib
from pathlib import Path
# %%
%%writefile tool.py
import sys
calls = 0
words = sys.argv[1:]
def bump(n=1):
    global calls
    calls += n
    return calls
class Tool:
    made = []
    def __init__(self): Tool.made.append(bump())
if __name__ == "__main__":
    print("as a program", words)
# %%
%run tool.py one "two words"
bump(), calls, words
# %%
bump(), Tool().made, calls
# %%
%run tool.py again
bump(5), calls, Tool.made
# %%
bump(), calls, bump.__globals__ is globals()
# %%
%%writefile desk_magics.py
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
@magics_class
class Desk(Magics):
    tickets = 0
    @line_magic("tickets")
    def give(self, line):
        self.tickets += 1
        return f"{line} #{self.tickets}"
    @cell_magic
    def lines(self, line, cell):
        return len(cell.splitlines())
def load_ipython_extension(shell): shell.register_magics(Desk)
def unload_ipython_extension(shell): print("unloaded")
# %%
%load_ext desk_magics
%tickets first
# %%
%tickets second
# %%
%%lines
a
b
# %%
%tickets third
# %%
class Keep(logging.Handler):
    def __init__(self): super().__init__(); self.kept = []
    def emit(self, record): self.kept.append(record.getMessage())
keep, box = Keep(), queue.Queue()
desk = logging.getLogger("desk")
desk.setLevel("DEBUG")
desk.propagate = False
desk.addHandler(keep)
rotating = logging.handlers.RotatingFileHandler("desk.log", maxBytes=60, backupCount=2)
rotating.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
desk.addHandler(rotating)
desk.addHandler(logging.handlers.QueueHandler(box))
desk.info("opened %s", "desk")
keep.kept, box.qsize(), Path("desk.log").read_text()
# %%
for n in range(4):
    desk.warning("line %d", n)
keep.kept[-1], box.qsize(), sorted(p.name for p in Path().glob("desk.log*"))
# %%
adapter = logging.LoggerAdapter(desk, {"who": "ann"})
adapter.error("by adapter")
len(desk.handlers), keep.kept[-1], len(keep.kept), Path("desk.log").read_text()
# %%
desk.debug("last"); rotating.flush()
keep.kept[-1], len(desk.handlers), box.qsize(), Path("desk.log").read_text()
# %%
db = sqlite3.connect("desk.db", isolation_level=None)
db.row_factory = sqlite3.Row
db.create_function("twice", 1, lambda n: 2 * n)
db.execute("create table t (n int)")
db.executemany("insert into t values (?)", [(n,) for n in range(5)])
cursor = db.execute("select twice(n) as d from t")
[cursor.fetchone()["d"] for _ in range(2)]
# %%
try:
    print([row["d"] for row in cursor])
except Exception as error:
    print(type(error).__name__)
# %%
memory = sqlite3.connect(":memory:")
memory.execute("create table m (s text)")
memory.execute("insert into m values ('here')")
memory.execute("select * from m").fetchall()
# %%
try:
    print(memory.execute("select count(*) from m").fetchone(), db.execute("select max(n) from t").fetchone()[0])
except Exception as error:
    print(type(error).__name__)
# %%
digest, squeeze = hashlib.sha256(b"one"), zlib.compressobj()
squeezed = squeeze.compress(b"a" * 1000)
layout, crc = struct.Struct("<hd"), zlib.crc32(b"one")
template, word = string.Template("$a and $b"), re.compile(r"(?P<w>\w+)")
digest.hexdigest()[:8], layout.pack(1, 2.0), template.safe_substitute(a=1)
# %%
try:
    digest.update(b"two")
    print(digest.hexdigest()[:8] == hashlib.sha256(b"onetwo").hexdigest()[:8])
except Exception as error:
    print(type(error).__name__)
zlib.crc32(b"two", crc), layout.size, word.match("hey you")["w"]
# %%
found = word.match("match me")
scan = word.finditer("three more words")
next(scan)[0], found.span()
# %%
try:
    print(next(scan)[0], found["w"])
except Exception as error:
    print(type(error).__name__)
# %%
decimal.getcontext().prec = 6
tight = decimal.Context(prec=3, rounding=decimal.ROUND_UP)
config = configparser.ConfigParser(interpolation=configparser.ExtendedInterpolation())
config.read_string("[a]\nx = 1\ny = ${x}2\n")
decimal.Decimal(1) / 7, tight.divide(1, 7), config["a"]["y"]
# %%
config["a"]["x"] = "5"
decimal.Decimal(2) / 7, config.get("a", "y"), tight.flags[decimal.Inexact]
# %%
here, there = socket.socketpair()
here.sendall(b"ping")
there.recv(4)
# %%
try:
    here.sendall(b"pong")
    print(there.recv(4))
except Exception as error:
    print(type(error).__name__)
# %%
scratch = Path(tempfile.mkdtemp(dir="."))
(scratch / "a.txt").write_text("a")
spool = tempfile.SpooledTemporaryFile(max_size=100, mode="w+")
spool.write("in memory")
named = tempfile.NamedTemporaryFile("w+", dir=".", suffix=".txt")
named.write("named"); named.flush()
spool.tell(), Path(named.name).read_text(), sorted(p.name for p in scratch.iterdir())
# %%
try:
    spool.seek(0); print(spool.read(), Path(named.name).exists())
except Exception as error:
    print(type(error).__name__)
shutil.rmtree(scratch); scratch.exists()
# %%
sleeper = subprocess.Popen(["sleep", "600"])
done = subprocess.run(["sh", "-c", "echo out; exit 3"], capture_output=True, text=True)
sleeper.poll(), done
# %%
try:
    print(sleeper.poll(), done.returncode)
    sleeper.kill()
    print(sleeper.wait())
except Exception as error:
    print(type(error).__name__)
# %%
warnings.filterwarnings("error", message="fatal")
warnings.filterwarnings("ignore", message="quiet")
os.umask(0o077)
old = signal.getsignal(signal.SIGUSR1)
sys.setrecursionlimit(2345)
os.environ["DESK"] = "1"
warnings.warn("quiet one")
# %%
try:
    warnings.warn("fatal one")
except UserWarning as error:
    print("raised", error)
Path("private.txt").write_text("x")
oct(os.stat("private.txt").st_mode & 0o777), sys.getrecursionlimit(), os.environ["DESK"]
# %%
try:
    warnings.warn("fatal two")
except UserWarning as error:
    print("raised", error)
Path("second.txt").write_text("x")
oct(os.stat("second.txt").st_mode & 0o777), sys.getrecursionlimit()
# %%
%%bash
echo "in bash $DESK"
# %%
%%time
total = sum(range(1000))
# %%
timing = %timeit -o -q -n 1 -r 1 sum(range(10))
total, timing.loops
# %%
total, timing.repeat, type(timing).__name__
# %%
%%script --out caught sh
echo caught
# %%
caught
