"""The torture set: what numba compiled, and its own containers."""

from __future__ import annotations

from cases import case

NB = "numpy numba"

case(
    "numba/signatures of a compiled function are gone, and told",
    "import numba\n@numba.njit\ndef f(x): return x + 1",
    "f(1); f(2.0)",
    check="out=f.signatures,f(5)",
    reported=True,
    needs=NB,
)
case(
    "numba/signatures that a variable holds",
    "import numba\n@numba.njit\ndef f(x): return x + 1",
    "f(1); f(2.0); held=f.signatures; one=held[0][0]",
    check="out=str(held),one is held[0][0],held[0][0]==numba.types.int64,f(5)",
    needs=NB,
)
case(
    "numba/functions that call each other, one with a signature given",
    "import numba\n@numba.njit\ndef f(x): return x + 1\n@numba.njit('float64(float64)')\ndef g(x): return f(x)*2\nk=3",
    "g(1.0)",
    check="out=f(1),g(2),g.signatures",
    needs=NB,
)
case(
    "numba/vectorized functions",
    "import numba, numpy as np\n@numba.vectorize(['float64(float64)'])\ndef v(x): return x * 2\n"
    "@numba.guvectorize(['(float64[:], float64[:])'], '(n)->(n)')\ndef gu(a, r):\n    for i in range(a.shape[0]): r[i] = a[i] + 1",
    "v(np.ones(2)); gu(np.ones(3))",
    check="out=v(np.arange(3.0)).tolist(),gu(np.ones(2)).tolist(),v.types,gu.types",
    needs=NB,
)
case(
    "numba/typed containers",
    "import numba\nfrom numba import typed, types\nd=typed.Dict.empty(types.unicode_type,types.int64); d['a']=1\nl=typed.List([1,2])",
    "d['b']=2; l.append(3); also=l; e=typed.List(); n=typed.Dict.empty(types.int64,types.float64[:])",
    check="also.append(4)\nout=dict(d),list(l),str(d),len(e),str(n),type(l).__name__",
    needs=NB,
)
case(
    "numba/a typed list whose arrays are others' memory",
    "import numpy as np\nfrom numba import typed\na=np.arange(5.0); l=typed.List(); l.append(a); l.append(a[1:3])",
    "a[0]=7",
    check="a[1]=9\nout=[x.tolist() for x in l]",
    needs=NB,
)
case(
    "numba/compiled classes are gone, and told",
    "import numba\n@numba.experimental.jitclass([('v', numba.types.float64)])\nclass P:\n    def __init__(self, v): self.v = v",
    "p=P(2.0); held=[p]",
    check="out=held[0].v",
    reported=True,
    needs=NB,
)
case(
    "numba/callbacks for C and stencils are gone, and told",
    "import numba\n@numba.cfunc('float64(float64)')\ndef cf(x): return x * 4\n@numba.stencil\ndef st(a): return a[-1] + a[1]",
    check="out=cf.ctypes(2.0),st(__import__('numpy').ones(4)).tolist()",
    reported=True,
    needs=NB,
)
