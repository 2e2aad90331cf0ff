"""The torture set: classes, functions and modules whose names are no text, or are answered by code."""

from __future__ import annotations

from cases import case

META = "class M(type):\n    __module__=property(lambda cls: 5)\n"
ODD = f"{META}class A(metaclass=M):\n    def __init__(s): s.v=[1]\n"

case(
    "names/a metaclass that answers for names",
    f"{ODD}a=A()\nb=a.v",
    "a.v.append(2)",
    check="out=b is a.v,a.v,type(a) is A,type(A) is M,A.__module__",
)
case(
    "names/a class whose module is a property",
    "class A:\n    __module__=property(lambda s: 'x')\na=A()\na.v=[1]",
    "a.v.append(2)",
    check="out=a.v,a.__module__,type(a) is A",
)
case(
    "names/a class, a function and a method without a module",
    "class A:\n    def f(s): return len(held)\nA.__module__=None\na=A()\nheld=[1]\ndef g(): return len(held)\ng.__module__=None\nm=a.f\n"
    "h=lambda: len(held)\nh.__module__=['x']",
    "held.append(2)",
    check="held.append(3)\nout=a.f(),g(),m(),h(),type(a) is A,g.__module__,h.__module__",
)
case(
    "names/a class of numbers as its module, registered and in tables",
    "import abc, collections.abc, copyreg, sqlite3\nclass A: pass\nA.__module__=7\ncollections.abc.Sized.register(A)\nsqlite3.register_adapter(A,str)\nx=[A()]",
    check="out=type(x[0]) is A",
)
case(
    "names/the type of a function that Cython compiled",
    "import zmq.backend.cython._zmq as z\nt=type(z.proxy)\nm=type(t)\nf=z.proxy\nx=[t,m]",
    "x.append(1)",
    check="out=t is type(z.proxy),m is type(t),f is z.proxy,x[0] is t,x[1] is m",
    needs="zmq",
)
case(
    "names/a module without a name",
    "import types\nm=types.ModuleType('m')\ndel m.__name__\nm.v=[1]\nx=m.v\nn=types.ModuleType('n')\nn.__name__=5\nn.v=x",
    "x.append(2)",
    check="out=m.v is x,n.v is x,x,n.__name__,hasattr(m,'__name__')",
    reported=True,
)
case(
    "names/methods of objects that aren't functions",
    "import functools, types\nclass A: pass\na=A()\nm=types.MethodType(functools.partial(lambda s,x: (s,x)),a)",
    check="out=m(1)[0] is a",
)
case(
    "names/an exception of a class that answers for names",
    f"{META}class E(Exception, metaclass=M): pass\ne=E(1)",
    check="out=type(e) is E,e.args",
)
case(
    "names/a thread and a logger's handler of such classes",
    f"import logging, threading\n{META}class H(logging.Handler, metaclass=M):\n    def emit(s,r): s.r.append(r.getMessage())\nh=H()\nh.r=[]\n"
    "class T(threading.Thread, metaclass=M): pass\nlogging.getLogger('odd').addHandler(h)\nx=[1]",
    "x.append(2)",
    check="logging.getLogger('odd').warning('w')\nout=h.r,x",
)
case(
    "names/a metaclass whose own name is a property is gone, and told",
    "class M(type):\n    __name__=property(lambda cls: 1/0)\nclass A(metaclass=M): pass\na=A()",
    check="out=type(a) is A",
    reported=True,
)
