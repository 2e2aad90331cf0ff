"""A part of the torture set: what libraries' own pickling leaves out, and what libraries keep for the process."""

from __future__ import annotations

from cases import TORCH, case, hidden

case(
    "library/an optimizer that keeps more than its state",
    """
import torch
torch.manual_seed(0)
m = torch.nn.Linear(2, 1)
o = torch.optim.LBFGS(m.parameters(), lr=.5)
def closure():
    o.zero_grad()
    loss = (m(torch.ones(3, 2)) - 1).pow(2).mean()
    loss.backward()
    return loss
""",
    "o.step(closure)",
    check="out = float(o.step(closure)), o._params[0] is m.weight, sorted(vars(o))",
    needs=TORCH,
)
case(
    "library/an optimizer that a schedule counts",
    """
import torch, warnings
class Mine(torch.optim.SGD): pass
m = torch.nn.Linear(2, 1)
os = [torch.optim.SGD(m.parameters(), lr=.5), Mine(m.parameters(), lr=.5)]
ss = [torch.optim.lr_scheduler.StepLR(o, 1) for o in os]
os[1].note = 'x'
""",
    "for o in os: o.step()",
    check="""
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter('always')
    for o, s in zip(os, ss): o.step(); s.step()
out = [str(t.message) for t in told], [(o._step_count, s.get_last_lr(), sorted(vars(o))) for o, s in zip(os, ss)], os[1].note
""",
    needs=TORCH,
)
LIBRARY = """
import os, sys
os.mkdir('hop-packages')
open('hop-packages/hop_library.py', 'w').write('''
import threading
class Selects:
    def __init__(self): self.a, self.b, self.c, self.lock, self.made = [1], 2, (3, {4}), threading.Lock(), object()
    def __getstate__(self): return {'a': self.a}
    def __setstate__(self, state): vars(self).update(state); self.lock = threading.Lock(); self.made = 1
class Drops(Selects):
    def __setstate__(self, state): vars(self).update(state)
class Reduces:
    def __init__(self, a): self.a, self.b = a, 0
    def __reduce__(self): return hop_new, (Reduces,), {'a': self.a}
def hop_new(kind): return object.__new__(kind)
''')
sys.path.append(os.getcwd() + '/hop-packages')
import hop_library
"""
case(
    "library/that leaves out plain attributes",
    LIBRARY + "s, r = hop_library.Selects(), hop_library.Reduces(1)\nr.b = 5",
    "s.b = [5]",
    check="out = s.a, s.b, s.c, r.a, r.b, [type(x).__name__ for x in (s, r)]",
)
case(
    "library/that leaves out what nothing sets again",
    LIBRARY + "s = hop_library.Drops()",
    "s.b = [5]",
    check="out = s.a, s.b, hasattr(s, 'made')",
    reported=True,
)
case(
    "library/hooks that are registered after a restore",
    """
import torch
calls = []
m, n = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
m.register_forward_hook(lambda *a: calls.append('first'))
n.register_forward_hook(lambda *a: calls.append('other'))
""",
    "x = 1",
    check="""
m.register_forward_hook(lambda *a: calls.append('second'))
m(torch.ones(1)); n(torch.ones(1))
out = calls, len(m._forward_hooks)
""",
    needs=TORCH,
)
hidden(
    "library/a hook for all modules, and its handle",
    """
import torch
calls = []
h = torch.nn.modules.module.register_module_forward_hook(lambda *a: calls.append('g'))
hs = [torch.nn.modules.module.register_module_forward_pre_hook(lambda *a: calls.append('p'))]
m = torch.nn.Linear(1, 1)
""",
    change="m(torch.ones(1)); None",
    check="""
m(torch.ones(1)); h.remove(); m(torch.ones(1)); hs[0].remove(); m(torch.ones(1))
out = calls, torch.nn.modules.module._global_forward_hooks
""",
    needs=TORCH,
)
case(
    "library/settings of torch by its functions",
    """
import torch
torch.use_deterministic_algorithms(True, warn_only=True)
torch.set_flush_denormal(True)
torch.set_warn_always(True)
torch.set_float32_matmul_precision('medium')
""",
    "x = 1",
    check="""
out = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
out += torch.is_warn_always_enabled(), torch.get_float32_matmul_precision()
out += float(torch.tensor([1e-323], dtype=torch.float64) / 2 * 2),
torch.use_deterministic_algorithms(False); torch.set_flush_denormal(False); torch.set_warn_always(False)
torch.set_float32_matmul_precision('highest')
""",
    needs=TORCH,
)
case(
    "library/numpy's seeds, of which generators are spawned",
    """
import numpy as np
seed = np.random.SeedSequence(7)
a, b = np.random.default_rng(3), np.random.Generator(np.random.PCG64(seed))
others = [np.random.Generator(kind(5)) for kind in (np.random.MT19937, np.random.Philox, np.random.SFC64)]
bits = others[0].bit_generator
""",
    "a.random(); made = a.bit_generator._seed_seq.spawn(1); others[0].random()",
    check="""
spawned = [g.bit_generator._seed_seq.spawn(2)[1] for g in (a, b, *others)]
out = [np.random.default_rng(s).integers(10**9) for s in spawned], [int(g.integers(10**9)) for g in (a, b, *others)]
out += b.bit_generator._seed_seq is seed, others[0].bit_generator is bits
""",
    needs="numpy",
)
case(
    "library/numpy's other settings",
    """
import numpy as np
np.setbufsize(16384)
np.ma.masked_print_option.set_display('N/A')
np.set_printoptions(legacy='1.13', formatter={'bool': lambda b: 'yes' if b else 'no'})
""",
    "x = 1",
    check="""
out = np.getbufsize(), str(np.ma.array([1, 2], mask=[1, 0])), str(np.array([True])), np.get_printoptions()['legacy']
np.setbufsize(8192); np.ma.masked_print_option.set_display('--'); np.set_printoptions(legacy=False, formatter=None)
""",
    needs="numpy",
)
case(
    "library/pandas' converters for matplotlib",
    "import pandas as pd, matplotlib.units, datetime\npd.plotting.register_matplotlib_converters()",
    "x = 1",
    check="""
out = type(matplotlib.units.registry.get(datetime.datetime)).__module__
pd.plotting.deregister_matplotlib_converters()
""",
    needs="pandas matplotlib",
)
case(
    "library/what a module has for the process",
    "import logging, matplotlib.pyplot as plt\nmanager = logging.Logger.manager\nmaps = [plt.cm.viridis, plt.cm.jet]\nown = plt.cm.viridis.copy()\nown.set_bad('red')",
    "one = maps[0]",
    check="out = manager is logging.Logger.manager, maps[0] is one is plt.cm.viridis, maps[1] is plt.cm.jet, tuple(own._rgba_bad)",
    needs="matplotlib",
)
case(
    "library/a translation among the builtins",
    "import gettext, builtins\ngettext.install('hop')",
    "x = _('a')",
    check="out = hasattr(builtins, '_'), x\nvars(builtins).pop('_', None)",
    reported=True,
)
