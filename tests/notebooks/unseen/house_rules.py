# %%
import builtins, codecs, decimal, json, locale, logging, math, mimetypes, os, random, string, sys, time
import xml.etree.ElementTree as ET
from functools import wraps
from os import environ
import mpmath
import numpy as np
import yaml
from mpmath import mp
# %%
mp.dps = 40
ET.register_namespace("lab", "http://lab.example/ns")
mimetypes.add_type("text/x-lab", ".lab")
environ["LAB_MODE"] = "strict"
mp.pi
# %%
logging.addLevelName(25, "NOTICE")
logging.captureWarnings(True)
logging.disable(logging.INFO)
lab = logging.getLogger("lab")
lab.setLevel(logging.DEBUG)
lines = []
class Lines(logging.Handler):
    def emit(self, record): lines.append(self.format(record))
shown = Lines()
shown.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
lab.addHandler(shown)
lab.log(25, "begun"); lab.info("not shown")
lines
# %%
mp.sqrt(2), os.environ["LAB_MODE"], mimetypes.guess_type("a.lab")[0]
# %%
ET.tostring(ET.Element("{http://lab.example/ns}probe"))
# %%
lab.log(25, "again"); lab.info("not shown either"); lab.warning("seen")
lines, logging.getLevelName(25)
# %%
class Money:
    def __init__(self, cents): self.cents = cents
yaml.add_representer(Money, lambda dumper, m: dumper.represent_scalar("!money", str(m.cents)))
yaml.add_constructor("!money", lambda loader, node: Money(int(node.value)), Loader=yaml.SafeLoader)
def swapped(error): return "?", error.end
codecs.register_error("swapped", swapped)
yaml.dump({"price": Money(5)})
# %%
environ["LAB_MODE"] = "loose"
os.environ["LAB_MODE"], os.getenv("LAB_MODE"), environ is os.environ
# %%
"naïve".encode("ascii", errors="swapped"), yaml.safe_load("!money 7").cents, yaml.dump([Money(3)])
# %%
mp.dps, mp is mpmath.mp, mpmath.sqrt(3) == mp.sqrt(3)
# %%
environ["AFTER"] = "yes"
os.environ.get("AFTER"), mpmath.nstr(mpmath.pi, 30)
# %%
decimal.getcontext().rounding = decimal.ROUND_UP
np.seterr(divide="raise")
locale.setlocale(locale.LC_ALL, "C.UTF-8")
os.environ["TZ"] = "Asia/Tokyo"
time.tzset()
random.seed(11); np.random.seed(11)
round(decimal.Decimal("1.21"), 1), time.strftime("%H %Z", time.localtime(0))
# %%
round(decimal.Decimal("1.21"), 1), time.strftime("%H %Z", time.localtime(0)), locale.getlocale()
# %%
random.random(), np.random.rand(), random.choice(string.ascii_letters)
# %%
try:
    print(np.array([1.0]) / 0)
except FloatingPointError as error:
    print("raised", error)
# %%
plain_dumps = json.dumps
@wraps(plain_dumps)
def dumps(*args, **more): return plain_dumps(*args, **{"sort_keys": True, **more})
json.dumps = dumps
math.tau_squared = math.tau ** 2
round_half = builtins.round
json.dumps({"b": 1, "a": 2})
# %%
json.dumps({"d": 1, "c": 2}), round(math.tau_squared, 3), json.dumps is dumps, dumps.__wrapped__ is plain_dumps
# %%
sys.setrecursionlimit(4321)
sys.path.insert(0, "extra")
os.umask(0o027)
np.set_printoptions(precision=3, suppress=True)
np.array([math.pi, 1e-9])
# %%
open("made", "w").close()
oct(os.stat("made").st_mode & 0o777), sys.getrecursionlimit(), sys.path[0], np.array([math.e])
# %%
mp.dps, len(lines), lab.handlers == [shown], random.random(), os.environ["TZ"]
