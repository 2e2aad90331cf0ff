# %%
import calendar
import warnings
from pathlib import Path
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
# %%
rng = np.random.default_rng(20)
Path("grades.csv").write_text("student,course,points\n" + "".join(
    f"s{n % 7},{course},{rng.integers(40, 100)}\n" for n in range(28) for course in ("maths", "physics")[: 1 + n % 2]))
grades = pd.read_csv("grades.csv", dtype={"course": "category"})
grades.shape
# %%
by_course = grades.groupby("course", observed=True)
pieces = pd.read_csv("grades.csv", chunksize=10)
first = next(pieces)
len(first), by_course.ngroups
# %%
warnings.filterwarnings("error", message="old mark")
pd.set_option("display.precision", 2, "display.max_rows", 6)
calendar.setfirstweekday(calendar.SUNDAY)
by_course["points"].describe()
# %%
len(next(pieces))
# %%
print(calendar.month(2024, 5).splitlines()[1])
try:
    warnings.warn("old mark of s3")
except UserWarning as kept:
    warned = kept
warned
# %%
fig, axes = plt.subplots(1, 2, figsize=(6, 2.4), sharey=True)
for ax, (course, part) in zip(axes, by_course):
    ax.hist(part["points"], bins=range(40, 101, 10))
    ax.set_title(course)
# %%
grades.attrs["term"] = "summer"
def mark(points, edges=(50, 65, 80)):
    return 4 - sum(points >= edge for edge in edges)
grades["mark"] = grades["points"].map(mark)
marks = grades.pivot_table(index="student", columns="course", values="mark", aggfunc="mean", observed=True)
marks
# %%
axes[0].axvline(50, color="red", lw=1)
fig
# %%
smooth = grades["points"].rolling(5, min_periods=1)
smooth.mean().tail(3)
# %%
def loud(text, category, *rest, **more):
    print("warned:", category.__name__, text)
warnings.showwarning = loud
warnings.warn("new scale")
# %%
warnings.warn("another scale")
grades.attrs, smooth.max().iloc[-1], by_course.size().to_dict()
# %%
styled = marks.style.format("{:.1f}").highlight_max(color="yellow")
"yellow" in styled.to_html(), styled.data is marks
# %%
marks.loc["s1"] = 9
"9.0" in styled.to_html()
# %%
@pd.api.extensions.register_series_accessor("exam")
class Exam:
    def __init__(self, series):
        self.series = series
    @property
    def passed(self):
        return int((self.series >= 50).sum())
grades["points"].exam.passed
# %%
sum(len(piece) for piece in pieces)
# %%
pd.Series([60, 30, 70]).exam.passed, pd.get_option("display.precision"), fig.axes[1] is axes[1]
