# %%
%matplotlib inline
import base64, hashlib, io, re, time
import numpy as np
import matplotlib.pyplot as plt
from matplotlib import animation, cm, colors
from IPython.display import HTML, JSON, Markdown, Image, ProgressBar, clear_output, display
# %%
figure, axes = plt.subplots(figsize=(2, 1.5), dpi=50)
line, = axes.plot([], [], lw=1)
axes.set(xlim=(0, 2 * np.pi), ylim=(-1, 1))
xs, drawn = np.linspace(0, 2 * np.pi, 30), []
def step(n):
    drawn.append(n)
    line.set_data(xs, np.sin(xs + n))
    return line,
film = animation.FuncAnimation(figure, step, frames=4, init_func=lambda: (line,), blit=True)
plt.close(figure)
type(film).__name__, drawn
# %%
def frames_of(page): return re.findall(r"frames\[\d+\] = \"data:image/png;base64,(.*?)\"", page, re.S)
frames = frames_of(film.to_jshtml())
len(frames), hashlib.sha1(base64.b64decode(frames[-1])).hexdigest()[:10]
# %%
drawn, line.get_ydata().round(3)[:3]
# %%
bar = ProgressBar(5)
handle = display("0 of 3", display_id="state")
for n in range(3):
    handle.update(f"{n + 1} of 3")
bar.progress = 2
str(bar)
# %%
bar.progress += 1
str(bar), bar.html_width
# %%
for n in range(3):
    clear_output(wait=True)
    print("pass", n)
# %%
seen = iter(bar)
next(seen), bar.progress
# %%
next(seen), bar.progress
# %%
class Swatch:
    def __init__(self, *rgb): self.rgb = rgb
    def _repr_png_(self):
        out = io.BytesIO()
        plt.imsave(out, np.full((2, 2, 3), self.rgb), format="png")
        return out.getvalue()
    def _repr_html_(self): return f"<b style='color:{colors.to_hex(self.rgb)}'>x</b>"
    def _repr_mimebundle_(self, include=None, exclude=None): return {"text/plain": f"Swatch{self.rgb}"}
swatch = Swatch(0.2, 0.4, 0.6)
swatch
# %%
display(swatch, Markdown("*two*"), JSON({"a": [1]}))
HTML("<i>three</i>")
# %%
warm = colors.LinearSegmentedColormap.from_list("warm", ["black", "red", "white"], N=16)
level = colors.BoundaryNorm([0, 1, 4, 9], warm.N)
shade = cm.ScalarMappable(level, warm)
colors.to_hex(shade.to_rgba(2.0))
# %%
grid, places = plt.subplots(1, 2, figsize=(3, 1.5), dpi=50, sharey=True)
image = places[0].imshow(np.arange(9).reshape(3, 3), cmap=warm, norm=level)
beside = places[1].twinx()
beside.plot([3, 1, 2], "r--")
grid.colorbar(image, ax=places[0]);
# %%
image.set_clim(0, 5)
beside.lines[0].set_ydata([1, 2, 3])
grid.canvas.draw()
beside.get_ylim(), image.norm is level, places[0].get_shared_y_axes().joined(places[0], places[1])
# %%
grid
# %%
moved = []
handler = image.callbacks.connect("changed", lambda who: moved.append(who.get_clim()))
image.set_clim(0, 7)
moved
# %%
image.set_clim(0, 8)
len(moved), moved[-1]
# %%
parts = [[plt.Circle((k / 4, 0.5), 0.1)] for k in range(3)]
stage, floor = plt.subplots(figsize=(1, 1), dpi=40)
for (part,) in parts:
    floor.add_patch(part)
reel = animation.ArtistAnimation(stage, parts, interval=50)
plt.close(stage)
len(frames_of(reel.to_jshtml()))
# %%
still = io.BytesIO()
film.save("wave.gif", writer=animation.PillowWriter(fps=10))
open("wave.gif", "rb").read(6), len(drawn) > 4
# %%
from PIL import Image as Photo
photo = Photo.open("wave.gif")
photo.n_frames, photo.size, photo.tell()
# %%
photo.seek(2)
photo.tell(), hashlib.sha1(photo.convert("L").tobytes()).hexdigest()[:10]
# %%
photo.seek(photo.tell() + 1)
photo.tell()
# %%
with plt.style.context("ggplot"), plt.rc_context({"lines.linewidth": 3}):
    small = plt.figure(figsize=(1, 1), dpi=40)
    small.gca().plot([1, 2])
plt.rcParams["lines.linewidth"], small.gca().lines[0].get_linewidth(), small.number
# %%
plt.rcParams["figure.dpi"] = 40
plt.ioff()
held = plt.figure(figsize=(1, 1))
plt.isinteractive(), plt.get_fignums() != []
# %%
plt.isinteractive(), plt.figure(figsize=(1, 1)).dpi
# %%
styled = plt.gca()
styled.plot([1, 3, 2], label="a").pop().set_gid("kept")
[kept.get_label() for kept in styled.findobj(lambda artist: artist.get_gid() == "kept")]
# %%
styled.legend()
[t.get_text() for t in styled.get_legend().get_texts()], styled.figure is plt.gcf()
