# %%
%config Application.verbose_crash = False
a = 3
a * 2
# %%
_ + 1
# %%
_, __, ___
# %%
Out[2], _2, In[1][-5:], _i1[-3:]
# %%
%history -n 1-3
# %%
%macro double 1
%store a
# %%
double
# %%
a = 5
%store a
%who_ls int
# %%
%rerun 1
# %%
%%python3
print("in another python", 1 + 1)
# %%
%%script bash --out said --err complained
echo hello
echo bad >&2
# %%
said, complained
# %%
%%bash
export INNER=1
echo "shell $INNER" > out.txt
# %%
x = %sx cat out.txt
x, type(x).__name__
# %%
t = %timeit -n 2 -r 2 -o -q pass
t.loops, t.repeat
# %%
x.s, t.loops, len(t.all_runs)
# %%
%%timeit -n 1 -r 1 z = 1
z += 1
# %%
"z" in dir()
# %%
%prun -q -T prof.txt sum(range(100))
import os; os.path.exists("prof.txt")
# %%
ip = get_ipython()
ip.user_ns["hidden"] = 42
ip.push({"pushed": [1, 2]})
ip.ex("pushed.append(hidden)")
hidden, pushed
# %%
pushed.append(3); ip.ev("pushed"), ip is get_ipython()
# %%
ip.run_cell("inner = hidden + 1\nprint('nested', inner)");
# %%
inner
# %%
%xdel hidden
"hidden" in dir(), "hidden" in ip.user_ns
# %%
%reset_selective -f pus
"pushed" in dir(), inner
# %%
%save -f saved.py 1-2
%cat saved.py
# %%
%load_ext storemagic
%store -r a
a
# %%
from IPython.core.magic import Magics, magics_class, line_magic, cell_magic, needs_local_scope
@magics_class
class Lab(Magics):
    def __init__(self, shell): super().__init__(shell); self.count = 0
    @line_magic
    def tally(self, line): self.count += 1; return self.count
    @needs_local_scope
    @line_magic
    def peek(self, line, local_ns=None): return local_ns.get(line, self.shell.user_ns.get(line))
ip.register_magics(Lab)
%tally
# %%
%tally
# %%
v = %peek inner
v, %tally
# %%
w = %tally
w
# %%
ip.display_formatter.formatters["text/plain"].for_type(int, lambda n, p, c: p.text(f"<{n}>"))
7
# %%
8, [9]
# %%
ip.display_formatter.formatters["text/plain"].pop(int)
10
# %%
%%capture cap --no-stderr
print("caught"); 5
# %%
cap.show(); _
# %%
%%writefile stats_mod.py
from collections import Counter
seen = Counter()
def note(w): seen[w] += 1; return seen[w]
# %%
%load_ext autoreload
%autoreload 1
%aimport stats_mod
from stats_mod import note
stats_mod.note("a"), note("a")
# %%
note("a"), stats_mod.seen, note is stats_mod.note
# %%
%%writefile stats_mod.py
from collections import Counter
seen = Counter({"fresh": 1})
def note(w): seen[w] += 10; return seen[w]
# %%
note("a"), stats_mod.note("fresh"), sorted(stats_mod.seen)
# %%
note("a"), sorted(stats_mod.seen)
# %%
len(In), sorted(k for k in Out)[:4], _i3
# %%
get_ipython().execution_count
