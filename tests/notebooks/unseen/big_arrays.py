# %%
import ctypes
import mmap
import numpy as np
import scipy.sparse as sp
from numpy.lib.stride_tricks import sliding_window_view
from scipy import integrate, linalg, ndimage, signal, stats
# %%
rng = np.random.default_rng(7)
image = rng.random((700, 700))
window, flipped, middle = image[100:200, ::2], image[::-1], image.ravel()[5000:5010]
image.flags.c_contiguous, window.base is image
# %%
window[:] = 0
image[150, 100:104], flipped[-151, 100]
# %%
middle += 10
image.ravel()[5000:5003].round(3), np.shares_memory(middle, image)
# %%
parts = np.zeros(3, dtype=[("name", "U5"), ("pos", "f4", (2,))])
names = parts["name"]
names[1] = "bolt"
ledger = parts.view(np.recarray)
ledger[1], parts[1]["name"]
# %%
ledger.pos[2] = (1, 2)
parts["pos"][2], names
# %%
spin = np.memmap("spin.dat", dtype="i4", mode="w+", shape=(1000,))
spin[:5] = range(5)
spin.flush()
half = spin[::2]
half[:3]
# %%
spin[2] = 70
half[:3], np.fromfile("spin.dat", dtype="i4", count=3)
# %%
masked = np.ma.masked_less(image[:3, :4], 0.5)
hidden = masked.mask
masked.mean().round(4), hidden.sum()
# %%
masked[0, 0] = np.ma.masked
masked.mask[0, 0], masked.data is image, np.ma.count(masked)
# %%
matrix = sp.random(300, 300, density=0.02, random_state=4, format="csr")
solver = sp.linalg.splu(sp.eye(300, format="csc") * 3 + matrix.tocsc())
solver.solve(np.ones(300))[:3].round(4)
# %%
matrix.data[:] = 1
int(matrix.sum()), matrix.has_sorted_indices
# %%
try:
    print(solver.solve(np.ones(300))[:3].round(4))
except Exception as error:
    print(type(error).__name__)
# %%
ode = integrate.ode(lambda t, y, k: -k * y).set_integrator("dopri5").set_initial_value([1.0], 0).set_f_params(0.5)
ode.integrate(1.0).round(5)
# %%
try:
    print(ode.integrate(2.0).round(5), ode.t)
except Exception as error:
    print(type(error).__name__)
# %%
bumps = signal.butter(3, 0.2)
state = signal.lfilter_zi(*bumps)
smooth, state = signal.lfilter(*bumps, image[300], zi=state)
smooth[:3].round(4), state.shape
# %%
smooth, state = signal.lfilter(*bumps, image[301], zi=state)
smooth[:2].round(4)
# %%
class Odd(stats.rv_discrete):
    def _pmf(self, k): return np.where(k % 2 == 1, 0.5 ** ((k + 1) / 2), 0)
odd = Odd(a=1, name="odd")
stats.norm.random_state = np.random.default_rng(3)
odd.pmf([1, 2, 3]), stats.norm.rvs(size=2).round(4)
# %%
odd.cdf(3), stats.norm.rvs(size=2).round(4)
# %%
raw = bytearray(b"abcdef")
seen = np.frombuffer(raw, dtype="u1")
whole = memoryview(raw)[2:]
raw[2] = ord("X")
seen[2], bytes(whole[:1])
# %%
raw[3] = ord("Y")
bytes(seen[:4]), bytes(whole[:2]), seen.flags.owndata
# %%
windows = sliding_window_view(image[0], 4)
image[0, 0] = 42
windows[0, 0], windows.flags.writeable
# %%
image.flags.writeable = False
add_three = np.frompyfunc(lambda a, b, c: a + b + c, 3, 1)
add_three(1, 2, 3)
# %%
try:
    image[0, 0] = 1
except ValueError as error:
    print(error)
add_three([1, 2], 0, 1).tolist(), rng.integers(1000), rng.bit_generator.random_raw() % 1000
# %%
children = rng.bit_generator._seed_seq.spawn(2)
twin = np.random.Generator(np.random.PCG64(children[0]))
twin.normal(size=2).round(4)
# %%
rng.bit_generator._seed_seq.n_children_spawned, twin.normal().round(4), np.random.Generator(np.random.PCG64(children[1])).normal().round(4)
# %%
grid = np.nditer(image[:2, :2], flags=["multi_index"])
next(grid), grid.multi_index
# %%
try:
    print(next(grid), grid.multi_index)
except Exception as error:
    print(type(error).__name__)
