# %%
import io, warnings
import numpy as np
import pandas as pd
rng = np.random.default_rng(11)
pd.set_option("display.width", 100)
# %%
stock = pd.DataFrame({
    "part": pd.Categorical(rng.choice(["bolt", "nut", "gear"], 30), categories=["nut", "bolt", "gear", "rod"], ordered=True),
    "shelf": rng.integers(1, 5, 30),
    "price": rng.gamma(2.0, 3.0, 30).round(2),
    "since": pd.date_range("2024-03-30", periods=30, freq="6H", tz="Europe/Berlin"),
})
stock = stock.set_index(pd.CategoricalIndex(rng.choice(list("xyz"), 30), name="hall"))
stock.attrs["owner"] = "depot"
stock.head(3)
# %%
stock.loc["x", "price"].sum().round(2), stock.part.cat.codes.iloc[:5].tolist(), stock.part.min()
# %%
stock["part"] = stock["part"].cat.remove_unused_categories()
stock.index = stock.index.reorder_categories(["z", "x", "y"], ordered=True)
stock.sort_index(kind="stable").groupby(level=0)["price"].agg(["size", "mean"]).round(3)
# %%
halls = stock.groupby(["hall", "part"], observed=False)
each = iter(halls)
next(each)[0], halls.ngroups
# %%
next(each)[0], halls["price"].max().round(2).unstack()
# %%
bins = pd.cut(stock["price"], pd.interval_range(0, 20, periods=4))
wide = stock.assign(bin=bins.values).pivot_table(index="hall", columns="bin", values="price", aggfunc="count", observed=False)
wide, bins.cat.categories.dtype
# %%
wide.columns[1].mid, wide.columns.get_loc(7.0), stock.attrs
# %%
values = np.zeros((4, 3))
frame = pd.DataFrame(values, columns=list("abc"), copy=False)
column = frame["a"]
values[0, 0] = 5
frame.iat[1, 1] = 7
frame.a.tolist(), values[1, 1], column.iloc[0]
# %%
values[2, 0] = 9
column.iloc[3] = 4
frame.a.tolist(), values[:, 0].tolist()
# %%
part = frame[frame.a > 4]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    part["b"] = 1
frame.loc[frame.a > 4, "c"] = -1
part, frame.c.tolist()
# %%
csv = "n,word,when\n" + "\n".join(f"{n},w{n % 3},2024-01-{n + 1:02d}" for n in range(9))
reader = pd.read_csv(io.StringIO(csv), chunksize=4, parse_dates=["when"])
first = reader.get_chunk()
first.dtypes.astype(str).tolist()
# %%
try:
    print(reader.get_chunk().word.tolist())
except Exception as error:
    print(type(error).__name__)
# %%
nullable = pd.DataFrame({
    "i": pd.array([1, None, 3], dtype="Int64"), "s": pd.array(["a", None, "c"], dtype="string"),
    "b": pd.array([True, None, False], dtype="boolean"), "f": pd.arrays.SparseArray([0.0, 0, 2]),
})
nullable, nullable.dtypes.astype(str).tolist()
# %%
nullable["i"] += 1
nullable.loc[1, "s"] = "B"
nullable.i.sum(), nullable.s.str.upper().tolist(), nullable.f.sparse.density
# %%
periods = pd.period_range("2024-01", periods=6, freq="M")
series = pd.Series(range(6), index=periods, name="units")
window = series.rolling(3)
ewm = series.ewm(alpha=0.5)
resampled = series.resample("Q")
window.mean().tolist(), resampled.sum()
# %%
series.iloc[0] = 60
window.sum().tolist(), ewm.mean().round(3).tolist()
# %%
resampled.max(), series.index.freqstr
# %%
@pd.api.extensions.register_dataframe_accessor("depot")
class Depot:
    looks = 0
    def __init__(self, frame): self.frame = frame
    def worth(self):
        Depot.looks += 1
        return (self.frame.price * self.frame.shelf).sum().round(2)
stock.depot.worth(), Depot.looks
# %%
limit = 5
stock.query("price > @limit and shelf == 2").shape, stock.depot.worth(), Depot.looks
# %%
stock.eval("total = price * shelf", inplace=True)
expanding = stock["total"].expanding(min_periods=2)
stock.depot.worth(), expanding.max().iloc[-1].round(2)
# %%
stock.iloc[0, stock.columns.get_loc("total")] = 1000
expanding.max().iloc[-1].round(2), stock.depot.worth(), Depot.looks
# %%
index = pd.MultiIndex.from_product([["p", "q"], pd.to_datetime(["2024-01-01", "2024-02-01"]), [True, False]], names=["k", "t", "b"])
deep = pd.Series(np.arange(8), index=index)
view = deep.xs("p", level="k")
deep.loc["q"] = 0
deep.unstack("b"), view.sum()
# %%
deep.index = deep.index.set_levels(["P", "Q"], level="k")
deep.swaplevel().sort_index().head(3), deep.index.is_monotonic_increasing
# %%
masked = np.ma.array([1.0, 2, 3], mask=[0, 1, 0])
half = masked[1:]
record = np.rec.array([(1, "a"), (2, "b")], dtype=[("n", int), ("s", "U3")])
masked[2] = np.ma.masked
masked, half.sum(), record.s[1]
# %%
record[0].n = 10
record.n.tolist(), masked.filled(0), half
# %%
disk = np.memmap("room.bin", dtype="f4", mode="w+", shape=(3,))
disk[:] = [1, 2, 3]
disk.flush()
stacked = np.lib.stride_tricks.sliding_window_view(np.arange(6), 3)
poly = np.poly1d([1, 0, -1])
old = np.seterr(divide="raise")
disk.sum(), stacked.shape, poly(3)
# %%
try:
    np.ones(1) / 0
except FloatingPointError as error:
    print(error)
disk[0] = 7
np.fromfile("room.bin", dtype="f4").tolist(), stacked[-1]
# %%
try:
    np.ones(1) / 0
except FloatingPointError as error:
    print(error)
disk[1] = 8
disk.flush()
np.fromfile("room.bin", dtype="f4").tolist(), poly.roots
# %%
cube = np.vectorize(lambda n: n ** 3, otypes=[int])
piped = stock.pipe(lambda f: f[f.shelf > 2]).reset_index().melt(id_vars="hall", value_vars=["price", "total"])
cube([1, 2, 3]), piped.variable.value_counts().to_dict(), stock.flags.allows_duplicate_labels
# %%
piped["hall"].cat.categories.tolist(), piped.hall.cat.ordered, cube(4), stock.since.iloc[4].isoformat()
# %%
stock.since.dt.tz_convert("UTC").dt.floor("D").nunique(), stock.since.diff().max(), stock.memory_usage(index=False)["shelf"]
