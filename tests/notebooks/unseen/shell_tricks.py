# %%
%load_ext autoreload
%autoreload 2
import os
from IPython.core.magic import register_line_magic, register_cell_magic, register_line_cell_magic
# %%
%%writefile helper.py
SCALE = 2
def scaled(n):
    return n * SCALE
class Tool:
    def use(self): return "old"
# %%
import helper
tool = helper.Tool()
helper.scaled(4), tool.use()
# %%
%%writefile helper.py
SCALE = 3
def scaled(n):
    return n * SCALE + 1
class Tool:
    def use(self): return "new"
# %%
helper.scaled(4), tool.use()
# %%
@register_line_magic
def twice(line): return 2 * int(line)
@register_cell_magic
def shout(line, cell): return cell.upper().strip()
%twice 4
# %%
%%shout
quiet words
# %%
%mkdir -p work
%cd -q work
os.path.basename(os.getcwd())
# %%
%env LAB=seven
files = !ls ..
"helper.py" in files, files.grep("helper").n
# %%
!echo $LAB
%alias where basename
%where /a/b
# %%
%where /c/d
%twice 5
# %%
%precision 3
3.14159265
# %%
2.718281828
# %%
_ + 1, len(Out) > 3, In[2][:12]
# %%
%%capture caught
print("kept aside")
1 + 1
# %%
caught.stdout, [o.data["text/plain"] for o in caught.outputs]
# %%
class Temp:
    def __init__(self, c): self.c = c
def plainly(t, p, cycle): p.text(f"{t.c} degrees")
get_ipython().display_formatter.formatters["text/plain"].for_type(Temp, plainly)
Temp(4)
# %%
[Temp(5)], Temp(6)
# %%
handle = display({"step": 1}, display_id="progress")
steps = [1]
# %%
handle.update({"step": 2})
handle.display_id
# %%
def tally(result): steps.append(result.success)
get_ipython().events.register("post_run_cell", tally)
# %%
len(steps)
# %%
len(steps)
# %%
%xmode Minimal
1 / 0
# %%
{}["missing"]
# %%
%config InlineBackend.figure_format = "svg"
%config InlineBackend.close_figures = False
import matplotlib.pyplot as plt
plt.figure(figsize=(2, 1))
plt.plot([1, 2]);
# %%
plt.title("more"); plt.gcf().number, len(plt.gca().lines)
# %%
plt.plot([2, 1]); len(plt.gca().lines), plt.gca().get_title()
# %%
%macro -q again 5
%pushd -q ..
# %%
os.path.basename(os.getcwd()), sorted(os.listdir("."))[:1]
# %%
%popd -q
os.path.basename(os.getcwd())
# %%
def blanked(lines): return [line.replace("EURO", "1.1") for line in lines]
get_ipython().input_transformers_cleanup.append(blanked)
# %%
EURO * 2
# %%
%run -i ../helper.py
scaled(1), SCALE, EURO
# %%
%unload_ext autoreload
%twice 6
# %%
EURO, type(again).__name__, _i[:5]
