# %%
import csv
import datetime as dt
import io
import json
import random
import sqlite3
import zoneinfo
# %%
rng = random.Random(7)
names = ["ann", "ben", "cyd"]
start = dt.datetime(2024, 3, 30, 22, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
orders = [(rng.choice(names), rng.randrange(1, 9), start + dt.timedelta(hours=i)) for i in range(8)]
orders[3]
# %%
with sqlite3.connect("orders.db") as db:
    db.execute("drop table if exists orders")
    db.execute("create table orders (who text, count int, at text)")
    db.executemany("insert into orders values (?, ?, ?)", [(w, n, a.isoformat()) for w, n, a in orders])
db.close()
# %%
def ask(sql, *args):
    db = sqlite3.connect("orders.db")
    try:
        return db.execute(sql, args).fetchall()
    finally:
        db.close()

ask("select who, sum(count) from orders group by who order by who")
# %%
table = io.StringIO()
writer = csv.writer(table)
writer.writerows(ask("select * from orders order by at"))
table.tell(), table.getvalue().splitlines()[0]
# %%
table.seek(0)
rows = csv.reader(table)
next(rows), next(rows)
# %%
random.seed(3)
random.random()
# %%
random.random(), rng.random()
# %%
state = rng.getstate()
[rng.randrange(100) for _ in range(3)]
# %%
rng.setstate(state)
[rng.randrange(100) for _ in range(3)], random.sample(range(50), 3)
# %%
text = json.dumps({w: [n for who, n, _ in orders if who == w] for w in names}, sort_keys=True)
text
# %%
log = open("log.txt", "a+")
log.write("first\n")
log.flush()
log.tell()
# %%
print(open("log.txt").read(), end="")
# %%
hours = [(a.utcoffset(), a.hour) for _, _, a in orders]
sorted(set(str(o) for o, _ in hours))
# %%
db = sqlite3.connect(":memory:")
db.execute("create table t (n int)")
db.execute("insert into t values (41)")
db.execute("select n from t").fetchall()
# %%
db.execute("select n + 1 from t").fetchall()
# %%
ask("select count(*) from orders"), orders[0][2].tzinfo is orders[1][2].tzinfo
