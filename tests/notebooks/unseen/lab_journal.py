# %%
import csv, gzip, io, json, os, shelve, sqlite3, subprocess, sys, tempfile, zipfile
from datetime import date, datetime
from pathlib import Path
# %%
notes = open("journal.txt", "w")
notes.write("day 1\n")
notes.flush()
buffer = io.StringIO("alpha\nbeta\ngamma\n")
buffer.readline()
# %%
class Probe:
    def __init__(self, x, y): self.x, self.y = x, y
    def __repr__(self): return f"Probe({self.x}, {self.y})"
sqlite3.register_adapter(Probe, lambda p: f"{p.x};{p.y}")
sqlite3.register_converter("probe", lambda raw: Probe(*map(int, raw.split(b";"))))
db = sqlite3.connect("lab.db", detect_types=sqlite3.PARSE_DECLTYPES)
db.execute("create table seen (day text, at probe)")
db.execute("insert into seen values ('mon', ?)", (Probe(1, 2),))
db.commit()
# %%
with sqlite3.connect("lab.db", detect_types=sqlite3.PARSE_DECLTYPES) as again:
    again.execute("insert into seen values ('tue', ?)", (Probe(3, 4),))
    found = again.execute("select * from seen order by day").fetchall()
found
# %%
notes.write("day 2\n")
# %%
notes.close()
Path("journal.txt").read_text()
# %%
with sqlite3.connect("lab.db", detect_types=sqlite3.PARSE_DECLTYPES) as again:
    again.execute("insert into seen values ('wed', ?)", (Probe(5, 6),))
    print(again.execute("select at from seen").fetchall(), buffer.readline())
# %%
scratch = tempfile.TemporaryDirectory(dir=".")
part = Path(scratch.name, "part.json")
part.write_text(json.dumps({"a": 1}))
part.exists()
# %%
with shelve.open("kept") as kept:
    kept["list"] = [1, 2]
rows = csv.DictReader(open("journal.csv", "w+"))
with open("table.csv", "w", newline="") as out:
    csv.writer(out, delimiter=";").writerows([["n", "square"]] + [[n, n * n] for n in range(5)])
table = open("table.csv", newline="")
reader = csv.DictReader(table, delimiter=";")
next(reader)
# %%
part.exists() and json.loads(part.read_text())
# %%
next(reader)["square"], shelve.open("kept")["list"]
# %%
with zipfile.ZipFile("all.zip", "w") as archive:
    archive.writestr("a.txt", "in the zip")
inside = zipfile.ZipFile("all.zip")
squeezed = gzip.open("x.gz", "wt"); squeezed.write("squeezed"); squeezed.close()
inside.namelist()
# %%
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdin.write("one\n"); child.stdin.flush()
child.stdout.readline()
# %%
inside.read("a.txt"), gzip.open("x.gz", "rt").read()
# %%
try:
    child.stdin.write("two\n"); child.stdin.flush()
    said = child.stdout.readline()
finally:
    print("asked")
said
# %%
log = open("events.log", "a+")
print("first", file=log, flush=True)
log.seek(0)
log.read()
# %%
print("second", file=log, flush=True)
log.seek(0)
log.read()
# %%
os.makedirs("runs", exist_ok=True)
os.environ["RUNS"] = os.path.abspath("runs")
os.chdir("runs")
subprocess.run("basename $RUNS; pwd | xargs basename", shell=True, capture_output=True, text=True).stdout
# %%
Path("out.txt").write_text("x"), os.path.basename(os.getcwd()), os.path.exists("../table.csv")
# %%
subprocess.run([sys.executable, "-c", "import os; print(os.path.basename(os.environ['RUNS']))"], capture_output=True, text=True).stdout
# %%
table.read() if not table.closed else "closed"
