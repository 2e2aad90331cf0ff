# %%
%matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
from scipy import interpolate, optimize, stats
# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(6, 2.5))
left.plot([1, 2, 3], [2, 1, 2], label="first")
plt.close(fig)
# %%
line, = left.plot([1, 2, 3], [1, 2, 1], "r--", label="second")
left.legend()
len(left.lines)
# %%
fig
# %%
line.set_ydata([0, 3, 0])
left.relim(); left.autoscale_view()
fig
# %%
def bump(x, a, b):
    return a * np.exp(-((x - b) ** 2))

xs = np.linspace(-2, 2, 40)
ys = bump(xs, 2.0, 0.3) + 0.01 * np.cos(9 * xs)
best, cov = optimize.curve_fit(bump, xs, ys)
best.round(4)
# %%
right.plot(xs, ys, ".", xs, bump(xs, *best))
right.set_title("fit")
fig
# %%
spline = interpolate.CubicSpline(xs, ys)
spline(0.123).round(6), spline.derivative()(0.123).round(6)
# %%
frozen = stats.norm(loc=1, scale=2)
frozen.cdf(0).round(6), frozen.rvs(3, random_state=3).round(4)
# %%
result = optimize.minimize(lambda p: (p[0] - 1) ** 2 + (p[1] + 2) ** 2, [0, 0])
result.x.round(3), result.success
# %%
plt.rcParams["lines.linewidth"] = 5
plt.plot([1, 2])
plt.show()
# %%
plt.plot([2, 1])
plt.show()
# %%
tree = __import__("scipy.spatial", fromlist=["KDTree"]).KDTree(np.random.default_rng(2).random((50, 2)))
tree.query([[0.5, 0.5]])[1]
# %%
right.get_title(), line.get_ydata(), frozen.mean(), spline(1.0).round(5)
