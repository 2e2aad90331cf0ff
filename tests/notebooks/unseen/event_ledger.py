# %%
import enum
import itertools
import functools
from abc import ABC, abstractmethod
from decimal import Decimal, getcontext
from fractions import Fraction
# %%
class Kind(enum.Flag):
    DEBIT = enum.auto()
    CREDIT = enum.auto()
    BOTH = DEBIT | CREDIT

class Entry(ABC):
    made = itertools.count(1)

    def __init__(self, amount):
        self.number = next(Entry.made)
        self.amount = Decimal(amount)

    @abstractmethod
    def signed(self): ...

    def __repr__(self):
        return f"{type(self).__name__}({self.number}, {self.amount})"
# %%
class Paid(Entry):
    kind = Kind.DEBIT

    def signed(self):
        return -self.amount

class Got(Entry):
    kind = Kind.CREDIT

    def signed(self):
        return self.amount

ledger = [Got("10.50"), Paid("3.25"), Got("1")]
ledger
# %%
class Account:
    __slots__ = ("entries", "__weakref__", "_limit")

    def __init__(self, entries):
        self.entries, self._limit = entries, Fraction(1, 3)

    @property
    def balance(self):
        return sum((e.signed() for e in self.entries), Decimal(0))

    @functools.cached_property
    def never(self):
        return 0

account = Account(ledger)
account.balance, account._limit
# %%
import weakref
watch = weakref.ref(account)
names = weakref.WeakValueDictionary(main=account)
watch() is account, list(names)
# %%
calls = []

def logged(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        inner.count += 1
        calls.append((function.__name__, args))
        return function(*args, **kwargs)

    inner.count = 0
    return inner

@logged
@functools.lru_cache(maxsize=8)
def share(n):
    return Fraction(1, n) + (share(n - 1) if n > 1 else 0)

share(5)
# %%
share.count, len(calls), share.__wrapped__.cache_info()
# %%
account.entries.append(Paid("0.05"))
account.entries is ledger, account.balance, ledger[-1].number
# %%
share(6), share.count, share.__wrapped__.cache_info().hits
# %%
getcontext().prec = 6
Decimal(1) / Decimal(7)
# %%
Decimal(2) / Decimal(7), watch() is account, names["main"] is account
# %%
def running():
    total = Decimal(0)
    while True:
        got = yield total
        total += got or 0

till = running()
next(till), till.send(Decimal("1.5"))
# %%
[till.send(Decimal(n)) for n in range(3)]
# %%
(Kind.DEBIT | Kind.CREDIT) is Kind.BOTH, [e.kind.name for e in ledger]
# %%
evens = itertools.islice(itertools.count(0, 2), 3, None)
next(evens), next(evens)
# %%
next(evens), next(Entry.made)
# %%
try:
    account.never
except TypeError as error:
    kept = error
type(kept).__name__, kept.args[0][:20]
