# %%
import numpy as np
import pandas as pd
pd.set_option("display.width", 100)
rng = np.random.default_rng(11)
# %%
n = 400
people = pd.DataFrame({
    "age": rng.integers(18, 80, n),
    "town": pd.Categorical(rng.choice(["oslo", "rome", "lima"], n), categories=["rome", "lima", "oslo"], ordered=True),
    "when": pd.date_range("2024-01-01", periods=n, freq="7h", tz="UTC"),
    "score": rng.normal(50, 9, n).round(1),
})
people.loc[::37, "score"] = np.nan
people.head(3)
# %%
people.dtypes
# %%
by_town = people.groupby("town", observed=True)
by_town["score"].agg(["mean", "count"]).round(3)
# %%
people["band"] = pd.cut(people["age"], [0, 30, 50, 120], labels=["young", "middle", "old"])
people.pivot_table(index="town", columns="band", values="score", aggfunc="median", observed=True)
# %%
weekly = people.set_index("when")["score"].resample("W").mean()
weekly.tail(3).round(2)
# %%
people.attrs["source"] = "made up"
old = people[people["band"] == "old"]
len(old), old.attrs
# %%
by_town.size().to_dict(), by_town.ngroups
# %%
wide = people.assign(hour=people["when"].dt.hour).groupby(["town", "hour"], observed=True)["score"].mean().unstack()
wide.shape, wide.loc["oslo"].round(1).head(4).to_list()
# %%
smooth = people["score"].rolling(5, min_periods=1)
smooth.mean().iloc[-3:].round(2).to_list()
# %%
people.iloc[0, 0] = 99
old.iloc[0, 0] == 99, people["age"].max()
# %%
matrix = people[["age", "score"]].dropna().corr()
matrix.round(4)
# %%
index = pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["letter", "number"])
multi = pd.Series(range(4), index=index)
multi.xs(2, level="number")
# %%
rng.integers(0, 1000, 3), smooth.max().iloc[-1]
# %%
people.to_csv("people.csv", index=False)
back = pd.read_csv("people.csv", parse_dates=["when"])
(back["score"].fillna(0) == people["score"].fillna(0)).all(), back["when"].dtype
# %%
chunks = pd.read_csv("people.csv", chunksize=150)
len(next(chunks))
# %%
[len(c) for c in chunks]
# %%
by_town["age"].max().to_dict(), by_town.grouper.names
# %%
periods = pd.period_range("2024-01", periods=3, freq="M")
intervals = pd.arrays.IntervalArray.from_breaks([0, 1, 2])
sparse = pd.arrays.SparseArray([0, 0, 1])
periods, intervals, sparse.density
# %%
weekly.idxmax(), people.attrs
