# %%
import numpy as np
import numba
from numba import njit, vectorize
# %%
@njit
def mandel(width, height, limit):
    out = np.zeros((height, width), np.int32)
    for i in range(height):
        for j in range(width):
            c = complex(-2 + 3 * j / width, -1 + 2 * i / height)
            z = 0j
            for n in range(limit):
                z = z * z + c
                if z.real * z.real + z.imag * z.imag > 4:
                    break
                out[i, j] += 1
    return out

image = mandel(30, 20, 40)
image.sum(), image.shape
# %%
len(mandel.signatures), image[10]
# %%
@vectorize(["float64(float64, float64)"])
def blend(a, b):
    return 0.25 * a + 0.75 * b

blend(np.arange(3.0), 1.0)
# %%
@njit
def twice(f, n):
    return f(f(n))

@njit
def inc(n):
    return n + 1

twice(inc, 40)
# %%
view = image[::2, ::3]
view[:] = -1
image[0, :7], view.base is image
# %%
image.flags.writeable = False
try:
    view2 = image[0]
    view2[0] = 3
except ValueError as error:
    print(error)
# %%
gen = np.random.default_rng(5)
gen.integers(0, 100, 4)
# %%
np.random.seed(1)
np.random.rand(2).round(4), gen.random(2).round(4)
# %%
np.random.rand(2).round(4), gen.normal(size=2).round(4)
# %%
masked = np.ma.masked_less(np.arange(6), 3)
record = np.zeros(2, dtype=[("x", "f4"), ("name", "U4")])
record["name"] = ["ab", "cd"]
masked.sum(), record
# %%
mandel(4, 4, 10), len(mandel.signatures)
# %%
mapped = np.memmap("grid.dat", dtype="i4", mode="w+", shape=(4,))
mapped[:] = [1, 2, 3, 4]
mapped.flush()
mapped
# %%
mapped[0] += 10
np.fromfile("grid.dat", "i4")
# %%
blend(record["x"], 2.0), masked.mask, twice(inc, 1)
