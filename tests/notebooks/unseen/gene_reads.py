# %%
import collections, csv, gzip, hashlib, io, itertools, os, pickle, random, re, shelve, sqlite3, subprocess, tarfile, zipfile
random.seed(4)
with gzip.open("reads.fq.gz", "wt") as out:
    for n in range(200):
        s = "".join(random.choices("ACGT", k=30))
        out.write(f"@r{n}\n{s}\n+\n{'I' * 30}\n")
# %%
def reads(path):
    with gzip.open(path, "rt") as f:
        while chunk := list(itertools.islice(f, 4)):
            yield chunk[0].strip()[1:], chunk[1].strip()
stream = reads("reads.fq.gz")
first = [next(stream) for _ in range(5)]
first[-1]
# %%
kmers = collections.Counter()
for name, seq in itertools.islice(stream, 50):
    kmers.update(seq[i:i + 3] for i in range(len(seq) - 2))
kmers.most_common(2), name
# %%
try: print(next(stream)[0])
except Exception as e: print(type(e).__name__)
# %%
fh = open("table.tsv", "w+")
w = csv.writer(fh, delimiter="\t")
w.writerow(["kmer", "n"]); w.writerows(kmers.most_common(5))
fh.flush(); fh.tell() > 0
# %%
try:
    w.writerow(["end", 0]); fh.seek(0); print(len(fh.read().splitlines()))
except Exception as e: print(type(e).__name__)
# %%
rd = open("reads.fq.gz", "rb"); magic = rd.read(2)
gz = gzip.open("reads.fq.gz", "rt"); gz.readline(); line2 = gz.readline()
magic, len(line2)
# %%
try: print(rd.tell(), rd.read(1))
except Exception as e: print(type(e).__name__)
try: print(gz.readline().strip(), gz.readline()[:2])
except Exception as e: print(type(e).__name__)
# %%
db = sqlite3.connect(":memory:")
db.row_factory = sqlite3.Row
db.execute("create table k (kmer text primary key, n int)")
db.executemany("insert into k values (?, ?)", kmers.items())
db.create_function("gc", 1, lambda s: sum(c in "GC" for c in s))
cur = db.execute("select kmer, n from k order by kmer")
cur.fetchone()["kmer"]
# %%
try: print(cur.fetchone()["kmer"], db.execute("select max(gc(kmer)) from k").fetchone()[0])
except Exception as e: print(type(e).__name__)
# %%
sh = shelve.open("shelf", writeback=True)
sh["a"] = [1]; sh["a"].append(2); sh.sync()
dict(sh)
# %%
try: sh["a"].append(3); print(dict(sh))
except Exception as e: print(type(e).__name__)
# %%
zf = zipfile.ZipFile("x.zip", "w"); zf.writestr("one.txt", "1")
zf.close()
zr = zipfile.ZipFile("x.zip"); member = zr.open("one.txt")
zr.namelist()
# %%
try: print(member.read(), zr.namelist())
except Exception as e: print(type(e).__name__)
# %%
proc = subprocess.Popen(["sh", "-c", "while read l; do echo got $l; done"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
proc.stdin.write("one\n"); proc.stdout.readline()
# %%
try:
    proc.stdin.write("two\n"); print(proc.stdout.readline())
except Exception as e: print(type(e).__name__)
# %%
digest = hashlib.sha256(b"abc"); pat = re.compile(r"(?P<b>[ACGT])\1+")
m = pat.search("ATTTG")
digest.hexdigest()[:6], m.group(), m.span()
# %%
try: digest.update(b"d"); print(digest.hexdigest()[:6])
except Exception as e: print(type(e).__name__)
try: print(m.group("b"), m.re is pat)
except Exception as e: print(type(e).__name__)
# %%
groups = itertools.groupby(sorted("mississippi"))
key, grp = next(groups)
pairs = zip(iter("abc"), itertools.count(3)); en = enumerate("xyz", 1); cyc = itertools.cycle([1, 2]); ch = itertools.chain("ab", [1])
key, next(pairs), next(en), next(cyc), next(ch)
# %%
try: print(next(pairs), next(en), next(cyc), next(ch))
except Exception as e: print(type(e).__name__)
try: print(next(groups)[0])
except Exception as e: print(type(e).__name__)
# %%
with open("kmers.pkl", "wb") as f: pickle.dump({"k": kmers, "pat": pat}, f)
lines = iter(["a", "b", "c"]); rev = reversed([1, 2, 3]); mp_ = map(str.upper, lines); fl = filter(None, [0, 1, 2])
next(lines), next(rev), next(mp_), next(fl)
# %%
next(rev), next(mp_), next(fl), list(lines), len(kmers)
