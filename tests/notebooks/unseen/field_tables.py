# %%
import numpy as np, pandas as pd, io, warnings
pd.set_option("display.width", 100); pd.options.display.float_format = "{:.2f}".format
raw = io.StringIO("site,date,t,sp\nA,2020-01-01,1.5,oak\nA,2020-01-02,,ash\nB,2020-01-01,3.0,oak\nB,2020-01-03,4.5,elm\n")
df = pd.read_csv(raw, parse_dates=["date"], dtype={"sp": "category"})
df
# %%
by = df.groupby("site"); idx = df.set_index(["site", "date"]).sort_index()
sub = df.loc[df.t > 2]; col = df["t"]; rows = df.iterrows(); nxt = next(rows)[0]
by.t.mean(), nxt
# %%
next(rows)[0], by.get_group("A").shape, idx.loc["B"].shape
# %%
df["t2"] = df.t * 2; df.at[0, "t"] = 100
col.iloc[0], by.t.max().to_dict(), idx.t.iloc[0]
# %%
roll = col.rolling(2); exp = col.expanding(); ewm = col.ewm(0.5); res = df.set_index("date").sort_index().resample("D")
roll.mean().tolist(), res.t.sum().to_dict()
# %%
df.at[1, "t"] = 8
roll.sum().tolist(), exp.max().tolist(), round(ewm.mean().iloc[-1], 3), len(res.t.sum())
# %%
@pd.api.extensions.register_dataframe_accessor("lab")
class Lab:
    def __init__(self, obj): self._o = obj; self.n = 0
    def warm(self): self.n += 1; return len(self._o[self._o.t > 3]), self.n
df.lab.warm()
# %%
df.lab.warm(), df.lab.n
# %%
df.sp.cat.add_categories(["yew"]).cat.categories.tolist(), df.attrs.setdefault("unit", "C")
# %%
df.attrs, df.attrs["unit"]
# %%
df.flags.allows_duplicate_labels = False
try: pd.concat([df, df])
except Exception as e: print(type(e).__name__)
# %%
df.flags.allows_duplicate_labels
# %%
lazy = (r.t for r in df.itertuples()); next(lazy)
# %%
next(lazy), pd.get_option("display.width")
# %%
a = np.arange(6.0).reshape(3, 2); fr = pd.DataFrame(a, columns=list("xy"), copy=False); s = fr["x"]; v = fr.values
a[0, 0] = 99
fr.iloc[0, 0], s.iloc[0], v[0, 0]
# %%
a[1, 0] = 77
fr.iloc[1, 0], s.iloc[1], v[1, 0], np.shares_memory(a, fr.values)
# %%
frames = {"one": df, "same": df, "part": df[["t"]]}
frames["one"].loc[3, "t"] = -5
df.t.iloc[3], frames["part"].t.iloc[3], frames["same"] is df
# %%
frames["one"].loc[2, "t"] = -6
df.t.iloc[2], frames["part"].t.iloc[2], frames["same"] is df
# %%
reader = pd.read_csv(io.StringIO("a\n1\n2\n3\n4\n"), chunksize=2); c1 = next(reader); c1.a.tolist()
# %%
try: print(next(reader).a.tolist())
except Exception as e: print(type(e).__name__)
# %%
xw = pd.ExcelFile if hasattr(pd, "ExcelFile") else None
iv = pd.interval_range(0, 6, 3); cut = pd.cut([1, 5], iv); per = pd.period_range("2020", periods=2, freq="Q"); tz = pd.Timestamp("2020", tz="Europe/Zurich")
cut[0], per[1], tz.utcoffset()
# %%
cut.categories.equals(iv), per[0] + 1, tz + pd.offsets.BDay(1), pd.NA is pd.array([1, None], dtype="Int64")[1]
# %%
class Frame2(pd.DataFrame):
    _metadata = ["who"]
    @property
    def _constructor(self): return Frame2
f2 = Frame2({"a": [1, 2]}); f2.who = "me"; f3 = f2[f2.a > 1]
type(f3).__name__, getattr(f3, "who", None)
# %%
f2.who, type(f2 * 2).__name__, getattr(f2.head(1), "who", None)
# %%
sty = df.style.format(precision=1) if False else None
pd.Series.twice = lambda self: self * 2; pd.DataFrame.shape_txt = property(lambda self: "x".join(map(str, self.shape)))
df.t.twice().tolist(), df.shape_txt
# %%
df.t.twice().tolist(), df.shape_txt
# %%
with pd.option_context("display.precision", 1):
    print(pd.Series([1.2345]))
warnings.simplefilter("ignore"); ctx = pd.option_context("mode.chained_assignment", None); ctx.__enter__()
pd.get_option("mode.chained_assignment")
# %%
pd.get_option("mode.chained_assignment"), ctx.__exit__(), pd.get_option("mode.chained_assignment")
