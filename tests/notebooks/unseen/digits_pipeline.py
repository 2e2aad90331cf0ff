# %%
import joblib
import numpy as np
from sklearn import set_config
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import make_scorer
from sklearn.model_selection import KFold, GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
# %%
digits = load_digits(n_class=4)
X, Y, x_labels, y_labels = train_test_split(digits.data, digits.target, random_state=1)
random = np.random.RandomState(5)
X.shape
# %%
class Halves(BaseEstimator, TransformerMixin):
    def __init__(self, side="left"):
        self.side = side
    def fit(self, X, y=None):
        self.columns_ = [n for n in range(64) if (n % 8 < 4) == (self.side == "left")]
        return self
    def transform(self, X):
        return X[:, self.columns_]

seen = []
def counted(X):
    seen.append(len(X))
    return X
model = make_pipeline(Halves(), FunctionTransformer(counted), StandardScaler(), SGDClassifier(random_state=random))
model.fit(X, x_labels).score(Y, y_labels).round(3)
# %%
cache = joblib.Memory("cache", verbose=0)
@cache.cache
def slow_sum(array):
    seen.append("ran")
    return float(array.sum())
slow_sum(X[:3]), slow_sum(X[:3])
# %%
folds = KFold(4, shuffle=True, random_state=2).split(X)
train, test = next(folds)
len(train), test[:4]
# %%
seen, slow_sum(X[:3])
# %%
def fewest(labels, guesses):
    return min(np.mean(guesses[labels == n] == n) for n in range(4))
search = GridSearchCV(model, {"halves__side": ["left", "right"]}, scoring=make_scorer(fewest), cv=3)
search.fit(X, x_labels)
search.best_params_, round(search.best_score_, 3)
# %%
next(folds)[1][:4]
# %%
class Halves(BaseEstimator, TransformerMixin):
    """Redefined: the models of before keep theirs."""
    def __init__(self, side="left", keep=3):
        self.side, self.keep = side, keep
    def fit(self, X, y=None):
        self.columns_ = [n for n in range(64) if (n % 8 < 4) == (self.side == "left")][: self.keep]
        return self
    def transform(self, X):
        return X[:, self.columns_]
isinstance(model[0], Halves), isinstance(search.best_estimator_[0], type(model[0]))
# %%
thin = make_pipeline(Halves(keep=12), SGDClassifier(random_state=random)).fit(X, x_labels)
thin.score(Y, y_labels).round(3), model.score(Y, y_labels).round(3)
# %%
online = SGDClassifier(random_state=3, warm_start=True)
for part in np.array_split(np.arange(len(X)), 5)[:3]:
    online.partial_fit(X[part], x_labels[part], classes=range(4))
online.t_
# %%
set_config(display="text")
online.partial_fit(X[-50:], x_labels[-50:])
online
# %%
online.t_, random is model[-1].random_state, random is thin[-1].random_state
# %%
thin[-1].coef_[0][:3].round(2), random.randint(1000)
# %%
[len(b) for a, b in folds], len(seen) > 5
# %%
parallel = joblib.Parallel(n_jobs=2, prefer="threads")
parallel(joblib.delayed(fewest)(y_labels, m.predict(Y)) for m in (model, search, online))[0] == fewest(y_labels, model.predict(Y))
# %%
model.set_params(halves__side="right").fit(X, x_labels).score(Y, y_labels).round(3), random.rand().round(6)
