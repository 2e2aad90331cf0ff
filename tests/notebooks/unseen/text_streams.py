# %%
import abc, codecs, collections, hashlib, heapq, html.parser, io, itertools, operator, re, struct, textwrap, types, zlib
from xml.etree import ElementTree
from lxml import etree
# %%
poem = "the cat sat on the mat; the cat ran, the bat sat".split()
words = iter(poem)
next(words), next(words)
# %%
ahead, behind = itertools.tee(words)
next(ahead), next(ahead), next(behind)
# %%
numbered = enumerate(zip(ahead, itertools.cycle("ab")), start=10)
next(numbered)
# %%
next(numbered), next(behind)
# %%
digest = hashlib.sha256()
digest.update(b"first")
squeezed = zlib.compressobj()
start = squeezed.compress(b"first" * 50)
digest.hexdigest()[:8]
# %%
try:
    digest.update(b"second")
    print(digest.hexdigest()[:8])
except Exception as error:
    print(type(error).__name__)
# %%
match = re.search(r"(?P<who>cat) (?P<what>\w+)", " ".join(poem))
found = re.finditer(r"\w+at\b", " ".join(poem))
next(found).group(), match.groupdict()
# %%
next(found).span(), match.expand(r"\2 \1"), match.re.groups
# %%
table = collections.defaultdict(lambda: collections.Counter())
for a, b in zip(poem, poem[1:]):
    table[a][b] += 1
recent = collections.deque(poem, maxlen=4)
table["the"].most_common(1), recent
# %%
recent.append("end")
table["new"]["x"] += 1
list(recent), len(table)
# %%
merged = heapq.merge([1, 4, 9], [2, 3, 10])
next(merged), next(merged)
# %%
try:
    print(next(merged))
except Exception as error:
    print(type(error).__name__)
# %%
pairs = itertools.groupby(sorted(poem, key=len), key=len)
length, group = next(pairs)
length, next(group)
# %%
try:
    print(next(group), next(pairs)[0])
except Exception as error:
    print(type(error).__name__)
# %%
class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.links = []
    def handle_starttag(self, tag, attrs):
        self.links += [v for k, v in attrs if k == "href"]
page = Links()
page.feed("<p><a href='one'>x</a><a hr")
page.links
# %%
page.feed("ef='two'>")
page.links, page.getpos()
# %%
decoder = codecs.getincrementaldecoder("utf-8")()
decoder.decode("né".encode()[:2])
# %%
decoder.decode("né".encode()[2:]), decoder.getstate()[0]
# %%
tree = ElementTree.fromstring("<a><b n='1'>x</b><c/></a>")
second = tree.find("b")
lx = etree.fromstring("<r><i k='v'/></r>")
item = lx[0]
second.attrib["n"] = "2"
ElementTree.tostring(tree)
# %%
second.text = "changed"
ElementTree.tostring(tree), tree[0] is second
# %%
try:
    item.set("k", "w")
    print(etree.tostring(lx))
except Exception as error:
    print(type(error).__name__)
# %%
class Sized(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other): return hasattr(other, "size") or NotImplemented
class Bag: size = 3
class Named(abc.ABC): pass
Named.register(str)
isinstance(Bag(), Sized), isinstance("x", Named)
# %%
isinstance("y", Named), isinstance(3, Named), issubclass(Bag, Sized)
# %%
chunks = iter(io.StringIO("abcdefgh").read, "")
by_two = struct.iter_unpack("<H", bytes(range(8)))
halves = map(operator.itemgetter(0), iter(textwrap.wrap("a b c d", 3)))
next(by_two), next(halves)
# %%
try:
    print(next(by_two), next(halves), sum(1 for _ in by_two))
except Exception as error:
    print(type(error).__name__)
# %%
frozen = types.MappingProxyType({"a": [1]})
frozen["a"].append(2)
keys = table.keys()
len(keys), frozen
# %%
table["more"]
len(keys), frozen["a"], [w for w in numbered][-1]
