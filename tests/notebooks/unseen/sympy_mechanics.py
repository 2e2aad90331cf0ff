# %%
import sympy as sp
sp.init_printing(use_unicode=False)
# %%
t, m, k, c = sp.symbols("t m k c", positive=True)
x = sp.Function("x")
motion = sp.Eq(m * x(t).diff(t, 2) + k * x(t), 0)
motion
# %%
solution = sp.dsolve(motion, x(t))
print(solution)
# %%
w = sp.Symbol("w", positive=True)
a, b = sp.symbols("C1 C2")
free = solution.rhs.subs(k, m * w**2).simplify()
print(free)
# %%
constants = sp.solve([free.subs(t, 0) - 1, free.diff(t).subs(t, 0)], [a, b], dict=True)[0]
particular = free.subs(constants)
print(particular, sp.integrate(particular**2, (t, 0, 2 * sp.pi / w)))
# %%
energy = m * particular.diff(t) ** 2 / 2 + m * w**2 * particular**2 / 2
print(sp.simplify(energy))
# %%
position = sp.lambdify((t, w), particular, "numpy")
import numpy as np
times = np.linspace(0, 1, 5)
np.round(position(times, 2.0), 4)
# %%
M = sp.Matrix([[2, -1, 0], [-1, 2, -1], [0, -1, 2]])
values = M.eigenvals()
print(sorted(values.items(), key=lambda kv: sp.N(kv[0])))
# %%
M[0, 0] = 3
print(M.det(), M.inv()[0, :])
# %%
np.round(position(times + 1, 1.0), 4), position.__doc__.splitlines()[0]
# %%
sp.Symbol("t", positive=True) is t, sp.Symbol("t") == t, motion.lhs.free_symbols == {t, m, k}
# %%
series = sp.series(sp.sin(t) / t, t, 0, 6)
print(series, sp.limit(sp.sin(t) / t, t, 0))
