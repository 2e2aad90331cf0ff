# %%
import re
import string
import unicodedata
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
# %%
plain = ["the cat sat on the mat", "a dog barked at the cat", "dogs and cats play", "the mat is red"]
sea = ["the ship left the harbour", "a sailor saw the storm", "waves broke on the ship", "the harbour is calm"]
texts, labels = plain * 3 + sea * 3, [0] * 12 + [1] * 12
# %%
word = re.compile(r"(?P<first>\w)\w*")
found = word.finditer(texts[0])
next(found).group("first"), next(found).span()
# %%
next(found).group()
# %%
model = Pipeline([("words", TfidfVectorizer(token_pattern=r"\w+")), ("line", LogisticRegression(random_state=0))])
model.fit(texts, labels)
model.predict(["a calm storm", "a red dog"])
# %%
sorted(model["words"].vocabulary_)[:5], model["line"].coef_.shape
# %%
search = GridSearchCV(model, {"line__C": [0.1, 1, 10]}, cv=3)
search.fit(texts, labels)
search.best_params_, round(search.best_score_, 4)
# %%
cross_val_score(search.best_estimator_, texts, labels, cv=3).round(3)
# %%
table = str.maketrans({c: None for c in string.punctuation})
clean = [unicodedata.normalize("NFKD", t).translate(table) for t in ["Ça va?", "naïve!"]]
clean
# %%
class Stem:
    rules = [(re.compile("s$"), ""), (re.compile("ed$"), "")]
    seen = {}

    def __call__(self, token):
        for pattern, end in self.rules:
            token = pattern.sub(end, token)
        return Stem.seen.setdefault(token, token)

    def __eq__(self, other):
        return isinstance(other, Stem)

    __hash__ = None

stem = Stem()
[stem(t) for t in "cats barked waves".split()]
# %%
Stem.rules.append((re.compile("e$"), ""))
stem("waves"), list(Stem.seen), stem == Stem()
# %%
Stem.double = lambda self, token: self(self(token))
stem.double("wavess"), type(stem) is Stem
# %%
exec("def made(n):\n    return n + offset")
offset = 5
made(1)
# %%
offset = 7
made(1), made.__globals__ is globals()
# %%
search.best_estimator_["words"].idf_.round(3)[:4], model["line"] is not search.best_estimator_["line"]
# %%
In[-2][:10], _[0].shape
