# %%
import ipywidgets as widgets
import traitlets
from IPython.display import display
from ipywidgets import interact, interactive_output, jslink, link
# %%
slider = widgets.IntSlider(3, 0, 10, description="n")
text = widgets.Text("x")
moved = []
def on_change(change):
    moved.append((change["old"], change["new"]))
slider.observe(on_change, "value")
slider.value = 4
moved
# %%
slider.value = 6
moved
# %%
out = widgets.Output()
with out:
    print("inside")
button = widgets.Button(description="go")
pressed = []
button.on_click(lambda b: pressed.append(b.description))
button.click()
pressed, out.outputs[0]["text"]
# %%
button.click()
pressed
# %%
double = widgets.FloatText()
joined = link((slider, "value"), (double, "value"))
slider.value = 9
double.value
# %%
double.value = 2
slider.value, moved[-1]
# %%
joined.unlink()
double.value = 7
slider.value
# %%
class Person(traitlets.HasTraits):
    name = traitlets.Unicode("ann")
    age = traitlets.Int(min=0)
    @traitlets.observe("age")
    def _aged(self, change):
        self.log = getattr(self, "log", []) + [change["new"]]
    @traitlets.validate("name")
    def _lower(self, proposal):
        return proposal["value"].lower()
    @traitlets.default("age")
    def _age(self): return 30
ann = Person(name="ANN")
ann.age, ann.name
# %%
ann.age = 31
ann.name = "BOB"
ann.log, ann.name
# %%
try:
    ann.age = -1
except traitlets.TraitError:
    print("refused", ann.age, ann.log)
# %%
box = widgets.VBox([slider, widgets.HBox([button, text])])
box.children[1].children[0] is button, len(box.children)
# %%
box.children = (*box.children, out)
box.children[0] is slider, box.children[-1].outputs[0]["text"]
# %%
shown = []
view = interactive_output(lambda n, t: shown.append((n, t)), {"n": slider, "t": text})
text.value = "y"
shown[-1]
# %%
text.value = "z"
shown[-1], len(shown)
# %%
class Counter(widgets.VBox):
    def __init__(self):
        self.label = widgets.Label("0")
        self.plus = widgets.Button(description="+")
        self.plus.on_click(self.more)
        super().__init__([self.label, self.plus])
    def more(self, _=None):
        self.label.value = str(int(self.label.value) + 1)
counter = Counter()
counter.plus.click()
counter.label.value
# %%
counter.plus.click(); counter.more()
counter.label.value, counter.children[0] is counter.label
# %%
with slider.hold_trait_notifications():
    slider.value = 1
    slider.value = 5
moved[-1], len(moved)
# %%
with out:
    print("more")
out.outputs
# %%
slider.unobserve_all()
slider.value = 8
moved[-1], button._click_handlers.callbacks != [], slider.model_id == box.children[0].model_id
