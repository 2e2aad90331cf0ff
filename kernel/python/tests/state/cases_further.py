"""More of the torture set: attributes that are held by others too, classes that make their instances in a way of their own,
elements of arrays, modules of the user's, and kinds that few notebooks hold.
"""

from __future__ import annotations

import sys

from cases import NP, PD, case, hidden

TORCH_NP = "torch numpy"

case(
    "torch/sparse coo uncoalesced",
    "import torch\ni=torch.tensor([[0,0,1],[2,2,0]])\ns=torch.sparse_coo_tensor(i,torch.tensor([1.,2.,3.]),(2,3))\nv=s._values()",
    "v[0]=10",
    check="out=s.is_coalesced(),s.to_dense().tolist(),s._values().data_ptr()==v.data_ptr()",
    needs=TORCH_NP,
)
case(
    "torch/sparse csr",
    "import torch\ns=torch.tensor([[0.,1],[2,0]]).to_sparse_csr()\nv=s.values()",
    "v[0]=7",
    check="out=s.to_dense().tolist(),s.values()[0].item()",
    needs=TORCH_NP,
)
case(
    "torch/quantised",
    "import torch\nq=torch.quantize_per_tensor(torch.tensor([1.,2.,3.]),0.1,3,torch.quint8)\nw=q[1:]",
    check="w[0]=9.0\nout=q.dequantize().tolist(),q.q_scale(),q.q_zero_point(),q.int_repr().tolist()",
    needs=TORCH_NP,
    reported=True,
)
case(
    "torch/channels last",
    "import torch\nt=torch.arange(24.).reshape(1,2,3,4).contiguous(memory_format=torch.channels_last)",
    check="out=t.stride(),t.is_contiguous(memory_format=torch.channels_last),t.sum().item()",
    needs=TORCH_NP,
)
case(
    "torch/neg and conj bits",
    "import torch\nz=torch.tensor([1+2j,3-1j])\nn=z.conj().imag\nc=z.conj()",
    check="z[0]=5+5j\nout=n.is_neg(),n.tolist(),c.is_conj(),c.resolve_conj().tolist()",
    needs=TORCH_NP,
)
case(
    "torch/view dtype",
    "import torch\nt=torch.zeros(4,dtype=torch.float32)\nu=t.view(torch.int32)",
    "t[0]=1",
    check="u[1]=1065353216\nout=t.tolist(),u.tolist()",
    needs=TORCH_NP,
)
case(
    "torch/tensor attributes",
    "import torch\nt=torch.ones(2)\nt.note=['a']\nl=t.note",
    "l.append('b')",
    check="l.append('c')\nout=t.note,t.note is l",
    needs=TORCH_NP,
)
case(
    "torch/param data replaced under an optimizer",
    "import torch\np=torch.nn.Parameter(torch.ones(2))\no=torch.optim.SGD([p],lr=1.0)\np.data=torch.zeros(2)",
    check="p.grad=torch.ones(2)\no.step()\nout=p.tolist(),o.param_groups[0]['params'][0] is p",
    needs=TORCH_NP,
)
case(
    "torch/detach shares",
    "import torch\na=torch.ones(3,requires_grad=True)\nd=a.detach()",
    check="d[0]=9\nout=a.tolist(),a.requires_grad,a.is_leaf",
    needs=TORCH_NP,
)
case(
    "torch/buffer alias non persistent",
    "import torch\nclass M(torch.nn.Module):\n    def __init__(s):\n        super().__init__()\n        s.register_buffer('b',torch.zeros(2),persistent=False)\n        s.c=s.b\nm=M()",
    check="m.b[0]=3\nout=m.c.tolist(),list(m.state_dict()),m.c is m.b",
    needs=TORCH_NP,
)
case(
    "torch/meta tensor",
    "import torch\nt=torch.empty(3,2,device='meta')",
    check="out=str(t.device),tuple(t.shape)",
    reported=True,
    needs=TORCH_NP,
)
case(
    "torch/random split",
    "import torch\nd=torch.utils.data.TensorDataset(torch.arange(6))\na,b=torch.utils.data.random_split(d,[4,2])",
    check="d.tensors[0][0]=77\nout=a.dataset is b.dataset,a.dataset is d,a.indices,[int(x[0]) for x in a]",
    needs=TORCH_NP,
)
case(
    "torch/storage object",
    "import torch\nt=torch.zeros(4)\ns=t.storage()",
    check="s[0]=5\nout=t.tolist(),len(s)",
    reported=True,
    needs=TORCH_NP,
)
case(
    "torch/inference tensor",
    "import torch\nwith torch.inference_mode():\n    t=torch.ones(2)",
    check="out=t.is_inference(),t.tolist()",
    reported=True,
    needs=TORCH_NP,
)
case(
    "torch/named",
    "import torch\nt=torch.zeros(2,3,names=('a','b'))",
    check="out=t.names,t.sum('a').names",
    needs=TORCH_NP,
)
case(
    "torch/shared over numpy negative",
    "import torch,numpy as np\na=np.arange(6.)\nt=torch.from_numpy(a[::2])\nr=a[::-1]",
    check="r[0]=50\nr[5]=60\nout=a.tolist(),t.tolist()",
    needs=TORCH_NP,
)
case(
    "object/borg",
    "class B:\n    _s={}\n    def __init__(s): s.__dict__=s._s\na=B();b=B()\na.x=1",
    "b.y=[2]",
    check="a.z=3\nb.y.append(4)\nout=b.z,a.y,a.__dict__ is b.__dict__,B._s is a.__dict__,B().z",
)
case(
    "object/instances share a dict",
    "class A: pass\na=A();b=A()\nb.__dict__=a.__dict__",
    check="a.q=5\nout=getattr(b,'q',None),a.__dict__ is b.__dict__",
)
case(
    "object/dict of an instance as a variable",
    "class A: pass\na=A()\na.x=1\nd=a.__dict__",
    "d['y']=2",
    check="d['z']=3\na.w=4\nout=a.z,d['w'],vars(a) is d",
)
case(
    "object/dict of a slotless instance in a list",
    "class A: pass\na=A();l=[a.__dict__]",
    check="l[0]['k']=1\nout=a.k",
)
case(
    "object/dict of a module",
    "import types\nm=types.ModuleType('mm')\nm.x=1\nd=m.__dict__",
    check="d['y']=2\nout=m.y,m.x",
    reported=True,
)
case(
    "object/sentinel",
    "S=object()\ndef f(x=S): return x is S\nclass A:\n    d=S\nl=[S]",
    check="out=f(),A.d is S,l[0] is S,f(1)",
)
case(
    "object/sentinel in dataclass",
    "import dataclasses as D\nS=object()\n@D.dataclass\nclass A:\n    x: object=S\n    y: list=D.field(default_factory=list)\na=A()",
    check="out=a.x is S,A().x is S,A.__dataclass_fields__['y'].default is D.MISSING,D.fields(A)[0].default is S,D.replace(a,y=[1]).y,D.asdict(A(x=1))",
)
case(
    "object/dataclass redefined",
    "import dataclasses as D\n@D.dataclass\nclass A:\n    x:int=1\na=A()\nl=[A]",
    "@D.dataclass\nclass A:\n    x:int=1\n    y:int=2\nb=A()",
    check="out=type(a) is l[0],type(a) is not A,type(b) is A,a==l[0](),[f.name for f in D.fields(a)],[f.name for f in D.fields(b)]",
)
case(
    "object/enum redefined",
    "import enum\nclass E(enum.Enum):\n    A=1\n    B=2\nx=E.A\nd={E.A:'o'}",
    "class E(enum.Enum):\n    A=1\n    C=3\ny=E.A",
    check="out=x==y,x in d,y in d,type(x) is type(y),list(type(x)),list(E),E(3) is E.C,type(x)(1) is x",
)
case(
    "object/enum value shared",
    "import enum\nv=[1]\nclass E(enum.Enum):\n    A=v\nx=E.A",
    check="v.append(2)\nout=E.A.value,x.value is v,E([1,2]) is x",
)
case(
    "object/flag composites",
    "import enum\nclass F(enum.Flag):\n    A=1\n    B=2\nx=F.A|F.B\nz=F(0)",
    check="out=x is (F.A|F.B),x==F(3),z is F(0),F.A in x,repr(x)",
)
case(
    "object/intflag unnamed",
    "import enum\nclass F(enum.IntFlag):\n    A=1\nx=F(9)",
    check="out=int(x),x is F(9),x|F.A",
)
case(
    "object/enum missing",
    "import enum\nclass E(enum.Enum):\n    A=1\n    @classmethod\n    def _missing_(c,v): return c.A\nx=E(99)\nE.extra=[1]",
    check="out=x is E.A,E.extra,E['A'] is x",
)
case(
    "object/int subclass attributes",
    "class I(int):\n    pass\nx=I(5)\nx.note=[1]\ny={'k':x}",
    check="x.note.append(2)\nout=y['k'].note,y['k'] is x,x+1,type(x) is I",
)
case(
    "object/str subclass slots new",
    "class S(str):\n    __slots__=('a',)\n    def __new__(c,v,a):\n        s=str.__new__(c,v)\n        s.a=a\n        return s\nx=S('q',[1])\nl=x.a",
    check="l.append(2)\nout=x,x.a,type(x) is S",
)
case(
    "object/tuple subclass",
    "class P(tuple):\n    def __new__(c,a,b): return tuple.__new__(c,(a,b))\nx=P(1,[2])\nx.tag='t'\ny=x[1]",
    check="y.append(3)\nout=x,x.tag,type(x) is P",
)
case(
    "object/frozenset subclass",
    "class F(frozenset):\n    pass\nx=F({1,2})\nx.me=x",
    check="out=sorted(x),x.me is x,type(x) is F",
)
case(
    "object/set subclass",
    "class S(set):\n    pass\nx=S({1})\nx.o=[x]",
    "x.add(2)",
    check="x.add(3)\nout=sorted(x.o[0]),type(x) is S",
)
case(
    "object/bytearray subclass",
    "class B(bytearray): pass\nx=B(b'abc')\nx.n=[1]\nm=memoryview(x)",
    check="m[0]=90\nout=bytes(x),x.n,type(x) is B",
    reported=True,
)
case(
    "object/float complex bytes subclasses",
    "class F(float): pass\nclass C(complex): pass\nclass Y(bytes): pass\nx=F(1.5);y=C(1j);z=Y(b'a')\nx.a=y.a=z.a=[0]",
    check="x.a.append(1)\nout=y.a,z.a,x,y,z,type(x).__name__",
)
case(
    "object/deque subclass",
    "import collections\nclass D(collections.deque):\n    def __init__(s,*a,**k):\n        super().__init__(*a,**k)\n        s.log=[]\nd=D([1,2],maxlen=3)\nd.log.append('x')",
    check="d.append(3)\nd.append(4)\nout=list(d),d.maxlen,d.log",
)
case(
    "object/array subclass",
    "import array\nclass A(array.array): pass\na=A('i',[1,2])\na.k=[1]",
    check="a.append(3)\nout=list(a),a.k,type(a) is A",
    reported=True,
)
case(
    "object/defaultdict subclass missing",
    "import collections\nclass D(collections.defaultdict):\n    def __missing__(s,k):\n        s[k]=[k]\n        return s[k]\nd=D(list)\nx=d[5]",
    check="x.append(6)\nout=d[5],d[7],d.default_factory is list",
)
case(
    "object/slots unset and mangled",
    "class A:\n    __slots__=('a','__p','c')\n    def __init__(s):\n        s.a=[1]\n        s.__p={'k':s.a}\n    def p(s): return s.__p\nx=A()",
    check="x.p()['k'].append(2)\nout=x.a,hasattr(x,'c')",
)
case(
    "object/slots doc dict and dict",
    "class A:\n    __slots__={'a':'doc','__dict__':'d','__weakref__':'w'}\nx=A()\nx.a=1\nx.b=[x]\nimport weakref\nr=weakref.ref(x)",
    check="out=x.a,x.b[0] is x,r() is x,A.__slots__",
)
case(
    "object/getstate falsy",
    "class A:\n    def __init__(s): s.x=[1]\n    def __getstate__(s): return {}\na=A()\nb=a",
    check="out=hasattr(a,'x'),a is b",
    reported=True,
)
case(
    "object/getstate tuple with slots",
    "class A:\n    __slots__=('x','__dict__')\n    def __getstate__(s): return (s.__dict__,{'x':s.x})\na=A()\na.x=[1];a.y=a.x",
    check="a.x.append(2)\nout=a.y",
)
case(
    "object/getnewargs ex",
    "class A(int):\n    def __new__(c,v,*,k):\n        s=int.__new__(c,v)\n        s.k=k\n        return s\n    def __getnewargs_ex__(s): return (int(s),),{'k':s.k}\nx=A(3,k=[1])\ny=x.k",
    check="y.append(2)\nout=x,x.k",
)
case(
    "object/reduce to a name",
    "class S:\n    def __reduce__(s): return 'one'\none=S()\nl=[one]",
    check="out=l[0] is one,type(one).__name__",
    reported=True,
)
case(
    "object/copyreg",
    "import copyreg\nclass A:\n    def __init__(s,v): s.v=v\ndef mk(v): return A(v)\ncopyreg.pickle(A,lambda a:(mk,(a.v,)))\nx=A([1])\ny=x.v",
    check="y.append(2)\nout=x.v,A in copyreg.dispatch_table",
    reported=True,
)
case(
    "object/class changed of an instance",
    "class A:\n    def w(s): return 'A'\nclass B:\n    def w(s): return 'B'\nx=A()",
    "x.__class__=B",
    check="out=x.w(),type(x) is B",
)
case(
    "object/bases changed",
    "class A:\n    v=1\nclass B:\n    v=2\nclass C(A): pass\nc=C()",
    "C.__bases__=(B,)",
    check="out=c.v,C.__bases__==(B,),issubclass(C,A)",
)
case(
    "object/inner class alias",
    "class A:\n    class I: pass\nB=A.I\nx=A.I()",
    check="out=A.I is B,type(x) is B,B.__qualname__",
)
case(
    "object/typevar identity",
    "import typing\nT=typing.TypeVar('T')\nclass G(typing.Generic[T]): pass\nx=G[int]()",
    check="out=G.__parameters__[0] is T,G[str].__args__,typing.get_type_hints(G)",
)
case(
    "object/parameter specification and tuple",
    "import typing\nP=typing.ParamSpec('P',bound=int)\nTs=typing.TypeVarTuple('Ts')\nC=typing.Callable[P,int]\n"
    "class G(typing.Generic[typing.Unpack[Ts]]): pass\nx=G[int,str]()\nA=P.args",
    check="out=P.__name__,P.__bound__,P.__module__,C.__parameters__[0] is P,G.__parameters__[0] is Ts,Ts.__module__,"
    "A.__origin__ is P,isinstance(x,G)",
    since=(3, 11),
)
case(
    "object/newtype annotated",
    "import typing\nU=typing.NewType('U',int)\ndef f(x:U)->'U': return x\nA=typing.Annotated[U,'m']",
    check="out=U(3),f.__annotations__['x'] is U,A.__metadata__,typing.get_type_hints(f)['x'] is U",
    since=(3, 10),
)
case(
    "object/instance method override",
    "import types\nclass A: pass\na=A()\nl=[]\ndef f(self): l.append(self)\na.m=types.MethodType(f,a)",
    check="a.m()\nout=l[0] is a,a.m.__func__ is f",
)
case(
    "object/property shared",
    "p=property(lambda s:s._v,lambda s,v:setattr(s,'_v',v))\nclass A: x=p\nclass B: y=p\na=A();a.x=3",
    check="b=B();b.y=4\nout=a.x,b.y,A.__dict__['x'] is B.__dict__['y'],A.x is p",
)
case(
    "object/metaclass prepare",
    "class N(dict):\n    pass\nclass M(type):\n    @classmethod\n    def __prepare__(m,n,b): return N()\n    def __new__(m,n,b,d):\n        c=super().__new__(m,n,b,dict(d))\n        c.order=[k for k in d if not k.startswith('__')]\n        return c\nclass A(metaclass=M):\n    z=1\n    a=2",
    check="out=A.order,type(A) is M",
)
case(
    "object/class getitem, call, len of class",
    "class M(type):\n    def __len__(c): return 3\n    def __iter__(c): return iter([1,2])\n    def __bool__(c): return False\nclass A(metaclass=M): pass\nx=A()",
    check="out=len(A),list(A),bool(A),type(x) is A",
)
case(
    "object/del has effects",
    "log=[]\nclass A:\n    def __del__(s): log.append(1)\nx=A()\ny=[x]",
    check="import gc\ngc.collect()\nout=len(log)",
)
case(
    "object/init has effects",
    "log=[]\nclass A:\n    def __init__(s): log.append('i')\n    def __setattr__(s,k,v):\n        log.append(k)\n        object.__setattr__(s,k,v)\nx=A()\nx.a=1",
    check="out=log,x.a",
)
case(
    "object/new counts",
    "class A:\n    n=0\n    def __new__(c,*a):\n        A.n+=1\n        return super().__new__(c)\nx=A();y=A()",
    check="out=A.n,x is not y",
)
case(
    "object/generator in a closure",
    "def mk():\n    g=(i*i for i in range(9))\n    def nx(): return next(g)\n    def rest(): return list(g)\n    return nx,rest\nnx,rest=mk()\nnx()",
    check="out=nx(),rest()",
)
case(
    "object/generator function begun in a closure",
    "def gen():\n    x=0\n    while True:\n        x+=1\n        yield x\ndef mk():\n    g=gen()\n    return lambda: next(g)\nf=mk()\nf()",
    check="out=f()",
    reported=True,
)
case(
    "object/counter closure shared by class",
    "def mk():\n    n=0\n    class C:\n        def up(s):\n            nonlocal n\n            n+=1\n            return n\n    def get(): return n\n    return C,get\nC,get=mk()\nc=C()\nc.up()",
    check="c.up()\nC().up()\nout=get()",
)
case(
    "object/y combinator",
    "fact=(lambda f:(lambda x:x(x))(lambda y:f(lambda *a:y(y)(*a))))(lambda f:lambda n:1 if n<2 else n*f(n-1))",
    check="out=fact(6)",
)
case(
    "object/function of code and own globals",
    "import types\ng={'k':5,'__builtins__':__builtins__}\ndef t(): return k\nf=types.FunctionType(t.__code__,g)\nh=types.FunctionType(t.__code__,g)",
    check="g['k']=6\nout=f(),h(),f.__globals__ is g,h.__globals__ is g",
)
case(
    "object/function annotations and attrs",
    "def f(x:int): return f.n\nf.n=[1]\nf.me=f\nf.__annotations__['y']=f.n\nn=f.n",
    check="n.append(2)\nout=f(1),f.me is f,f.__annotations__['y'] is n",
)
case(
    "object/defaults alias",
    "l=[1]\ndef f(a=l,*,b=l): return a,b",
    check="l.append(2)\nout=f(),f.__kwdefaults__['b'] is l,f.__defaults__[0] is l",
)
case(
    "object/wrapped chain",
    "import functools\ndef d(f):\n    @functools.wraps(f)\n    def w(*a):\n        w.n+=1\n        return f(*a)\n    w.n=0\n    return w\n@d\n@d\ndef f(x): return x\nf(1)",
    check="f(2)\nout=f.n,f.__wrapped__.n,f.__wrapped__.__wrapped__(3),f.__name__",
)
case(
    "object/lru typed",
    "import functools\ncalls=[]\n@functools.lru_cache(maxsize=2,typed=True)\ndef f(x):\n    calls.append(x)\n    return x\nf(1);f(1.0)",
    check="f(1)\nout=f.cache_parameters()",
    reported=True,
)
case(
    "object/cmp to key",
    "import functools\nk=functools.cmp_to_key(lambda a,b:b-a)\nx=[k(3),k(1)]",
    check="out=sorted([1,3,2],key=k),x[0]<x[1]",
    reported=True,
)
case(
    "object/context object",
    "import contextvars\nv=contextvars.ContextVar('v',default=[0])\nv.set([1])\nc=contextvars.copy_context()",
    check="out=c.run(v.get),v.get()",
    reported=True,
)
case(
    "object/weak set",
    "import weakref\nclass A: pass\na=A();b=A()\ns=weakref.WeakSet([a,b])",
    check="n=len(s)\ndel b\nimport gc;gc.collect()\nout=n,len(s),a in s",
    reported=True,
)
case(
    "object/weak key dict value holds key",
    "import weakref\nclass A: pass\na=A()\nw=weakref.WeakKeyDictionary()\nw[a]=[1]\nl=w[a]",
    check="l.append(2)\nout=w[a],len(w)",
    reported=True,
)
case(
    "object/weakref subclass",
    "import weakref\nclass R(weakref.ref):\n    __slots__=('k',)\nclass A: pass\na=A()\nr=R(a)\nr.k=[1]",
    check="out=r() is a,r.k,type(r) is R",
    reported=True,
)
case(
    "object/weakref callback",
    "import weakref\nhits=[]\nclass A: pass\na=A()\nr=weakref.ref(a,hits.append)",
    check="out=r() is a\ndel a\nimport gc;gc.collect()\nout=(out,len(hits))",
    reported=True,
)
case("object/weakref to a class", "import weakref\nclass A: pass\nr=weakref.ref(A)", check="out=r() is A")
hidden(
    "process/local module state",
    "open('mm1.py','w').write('x=[]\\ncount=0\\nclass K:\\n    n=0\\ndef up():\\n    global count\\n    count+=1\\n    return count\\n')\nimport sys,os\nsys.path.insert(0,os.getcwd())\nimport mm1",
    "mm1.x.append(1)\nmm1.up()\nmm1.K.n=7",
    change="pass",
    check="out=mm1.x,mm1.count,mm1.K.n",
    reported=True,
)
hidden(
    "process/local module list aliased",
    "open('mm2.py','w').write('x=[]\\n')\nimport sys,os\nsys.path.insert(0,os.getcwd())\nfrom mm2 import x",
    "x.append(1)",
    change="pass",
    check="import mm2\nx.append(2)\nout=mm2.x,mm2.x is x",
    reported=True,
)
hidden(
    "process/local module instance",
    "open('mm3.py','w').write('class A:\\n    reg=[]\\n    def __init__(s): A.reg.append(s)\\n')\nimport sys,os\nsys.path.insert(0,os.getcwd())\nimport mm3\na=mm3.A()",
    change="pass",
    check="out=len(mm3.A.reg),type(a) is mm3.A",
    reported=True,
)
case(
    "numpy/structured titles aligned",
    "import numpy as np\ndt=np.dtype({'names':['a','b'],'formats':['u1','<f8'],'offsets':[0,8],'itemsize':24,'titles':['A t','B t']})\na=np.zeros(3,dt)\nv=a['b']",
    check="v[1]=5\nout=a['B t'].tolist(),a.dtype==dt,a.dtype.itemsize,a.dtype.fields['a'][1]",
    needs=NP,
)
case(
    "numpy/structured aligned flag",
    "import numpy as np\na=np.zeros(2,np.dtype([('a','u1'),('b','f8')],align=True))",
    check="out=a.dtype.isalignedstruct,a.dtype.itemsize,a.dtype.alignment",
    needs=NP,
)
case(
    "numpy/structured objects",
    "import numpy as np\nl=[1]\na=np.zeros(2,[('o',object),('i','i4')])\na['o'][0]=l\nr=a[0]",
    check="l.append(2)\nout=a['o'][0],a['o'][0] is l,r['o'] is l",
    reported=True,
    needs=NP,
)
case(
    "numpy/structured nested view",
    "import numpy as np\na=np.zeros(4,[('p',[('x','f4'),('y','f4')]),('s','S3')])\nx=a['p']['x']\ns=a['s'][::-1]",
    check="x[2]=3\ns[0]=b'ab'\nout=a.tolist()",
    needs=NP,
)
case(
    "numpy/real imag",
    "import numpy as np\nz=np.zeros(3,complex)\nr,i=z.real,z.imag[::-1]",
    check="r[0]=1\ni[0]=2\nout=z.tolist()",
    needs=NP,
)
case(
    "numpy/unaligned",
    "import numpy as np\nb=bytearray(33)\na=np.frombuffer(b,dtype='f8',offset=1,count=4)",
    check="a[0]=1\nout=bytes(b[:10]),a.flags.aligned,a.tolist()",
    needs=NP,
)
case(
    "numpy/big endian view",
    "import numpy as np\na=np.arange(3,dtype='>i4')\nb=a.view('<i4')\nc=a.view('u1')[::-4]",
    check="a[0]=1\nout=b.tolist(),c.tolist(),a.dtype.str",
    needs=NP,
)
case(
    "numpy/negative overlapping",
    "import numpy as np\na=np.arange(10)\nb=a[8:2:-2]\nc=b[::-1]\nd=a[3:9]",
    check="b[0]=-1\nc[0]=-2\nd[1]=-3\nout=a.tolist(),b.tolist(),c.tolist()",
    needs=NP,
)
case(
    "numpy/zero size strides",
    "import numpy as np\na=np.zeros((3,0,2))\nb=a[:,:,::-1]\nc=np.empty((0,))[::2]",
    check="out=a.shape,b.shape,b.strides,c.strides",
    needs=NP,
)
case(
    "numpy/0d view",
    "import numpy as np\na=np.arange(4)\nz=a[2,...]\ny=a.reshape(2,2)[1,1,...]",
    check="z[...]=9\ny[()]=8\nout=a.tolist(),z.shape,z.base is not None",
    needs=NP,
)
case(
    "numpy/finalize attr",
    "import numpy as np\nclass U(np.ndarray):\n    def __new__(c,a,unit=None):\n        o=np.asarray(a).view(c)\n        o.unit=unit\n        return o\n    def __array_finalize__(s,o): s.unit=getattr(o,'unit','none')\na=np.arange(4.)\nu=U(a,['m'])\nv=u[::-1]",
    check="v[0]=7\nu.unit.append('s')\nout=a.tolist(),v.unit,type(v) is U,v.unit is u.unit",
    needs=NP,
)
case(
    "numpy/matrix poly",
    "import numpy as np\nm=np.matrix([[1,2],[3,4]])\na=np.asarray(m)\np=np.poly1d([1,2,3])\nc=p.coeffs",
    check="a[0,0]=9\nc[0]=5\nout=m.tolist(),p(2),type(m).__name__",
    needs=NP,
)
case(
    "numpy/memmap c mode changed",
    "import numpy as np\nnp.arange(8.).tofile('mc.bin')\nm=np.memmap('mc.bin',mode='c',dtype='f8',shape=(4,),offset=16)\nv=m[1:3]",
    "m[0]=-1\nv[0]=-2",
    check="v[1]=-3\nout=m.tolist(),np.fromfile('mc.bin').tolist()",
    reported=True,
    needs=NP,
)
case(
    "numpy/memmap two maps of one file",
    "import numpy as np\nnp.zeros(4).tofile('m2.bin')\na=np.memmap('m2.bin',mode='r+',dtype='f8')\nb=np.memmap('m2.bin',mode='r+',dtype='f8')",
    "a[0]=1\na.flush()",
    check="a[1]=2\nout=b.tolist()",
    reported=True,
    needs=NP,
)
case(
    "numpy/frombuffer of an mmap",
    "import numpy as np,mmap\nopen('mb.bin','wb').write(bytes(64))\nf=open('mb.bin','r+b')\nm=mmap.mmap(f.fileno(),0)\na=np.frombuffer(m,dtype='u1')",
    check="m[0]=5\nout=int(a[0])",
    reported=True,
    needs=NP,
)
case(
    "numpy/bytesio buffer",
    "import io,numpy as np\nb=io.BytesIO(b'abcdef')\nv=b.getbuffer()\na=np.frombuffer(v,dtype='u1')",
    check="a[0]=65\nout=b.getvalue()",
    reported=True,
    needs=NP,
)
case(
    "numpy/void scalar view",
    "import numpy as np\na=np.zeros(3,[('x','i4')])\ns=a[1]",
    check="s['x']=7\nout=a.tolist()",
    needs=NP,
)
case(
    "numpy/record scalar",
    "import numpy as np\nr=np.rec.array([(1,2.)],names='a,b')\ns=r[0]",
    check="s.a=5\nout=r.a.tolist(),type(s).__name__",
    needs=NP,
)
case(
    "numpy/flat and iter over changed",
    "import numpy as np\na=np.arange(6).reshape(2,3)\nf=a.T.flat\nnext(f)",
    check="a[1,0]=77\nout=next(f),list(f)",
    reported=True,
    needs=NP,
)
case(
    "numpy/int subclass dtype and enum array",
    "import numpy as np,enum\nclass E(enum.IntEnum):\n    A=1\na=np.array([E.A,None],dtype=object)",
    check="out=a[0] is E.A,a.tolist()",
    needs=NP,
)
case(
    "numpy/string dtype",
    "import numpy as np\na=np.array(['a','bb'*40,'c'],dtype=np.dtypes.StringDType()) if hasattr(np,'dtypes') and hasattr(np.dtypes,'StringDType') else np.array(['a'])\nb=a[::-1]",
    check="b[0]='zz'*50\nout=a.tolist(),str(a.dtype)",
    reported=True,
    needs=NP,
)
case(
    "pandas/item cache, write series",
    "import pandas as pd\ndf=pd.DataFrame({'a':[1,2],'b':[3.,4]})\ns=df['a']",
    check="s.iloc[1]=8\nout=s.tolist(),df.a.tolist()",
    needs=PD,
)
case(
    "pandas/index identity",
    "import pandas as pd\na=pd.DataFrame({'x':[1,2]},index=['p','q'])\nb=a*2\ni=a.index",
    check="out=a.index is i,b.index is i,i.is_(b.index)",
    needs=PD,
)
case(
    "pandas/shared index renamed",
    "import pandas as pd\na=pd.DataFrame({'x':[1,2]})\nb=a.x",
    check="a.index.name='n'\nout=b.index.name,a.index.name",
    needs=PD,
)
case(
    "pandas/duplicate columns",
    "import pandas as pd\nd=pd.DataFrame([[1,2.,'a']],columns=['x','x','x'])\ne=d.iloc[:,1]",
    check="out=d.dtypes.astype(str).tolist(),e.tolist(),d.shape",
    needs=PD,
)
case(
    "pandas/groupby after change",
    "import pandas as pd\ndf=pd.DataFrame({'k':[1,1,2],'v':[1,2,3]})\ng=df.groupby('k')",
    "df.loc[0,'v']=10",
    check="out=g.v.sum().tolist(),g.obj is df",
    needs=PD,
)
case(
    "pandas/styler",
    "import pandas as pd\ndf=pd.DataFrame({'a':[1]})\nst=df.style.format('{:.2f}')",
    check="df.loc[0,'a']=5\nout='5.00' in st.to_html(),st.data is df",
    needs=PD + " jinja2",
    reported=True,
)
case(
    "pandas/sparse, interval",
    "import pandas as pd\ns=pd.Series(pd.arrays.SparseArray([0,0,1]))\ni=pd.IntervalIndex.from_breaks([0,1,2])\nc=pd.cut([0.5,1.5],i)",
    check="out=s.sparse.density,i.get_loc(0.5),c.codes.tolist(),str(c.categories.dtype)",
    needs=PD,
)
case(
    "pandas/own extension",
    "import pandas as pd,numpy as np\nfrom pandas.api.extensions import ExtensionDtype,ExtensionArray\nclass MD(ExtensionDtype):\n    name='md'\n    type=float\n    @classmethod\n    def construct_array_type(c): return MA\nclass MA(ExtensionArray):\n    def __init__(s,d): s.d=np.asarray(d,float)\n    @classmethod\n    def _from_sequence(c,x,dtype=None,copy=False): return c(list(x))\n    def __getitem__(s,i): return s.d[i] if isinstance(i,(int,np.integer)) else MA(s.d[i])\n    def __setitem__(s,i,v): s.d[i]=v\n    def __len__(s): return len(s.d)\n    @property\n    def dtype(s): return MD()\n    @property\n    def nbytes(s): return s.d.nbytes\n    def isna(s): return np.isnan(s.d)\n    def take(s,i,allow_fill=False,fill_value=None): return MA(s.d.take(i))\n    def copy(s): return MA(s.d.copy())\na=MA([1,2])\ns=pd.Series(a,copy=False)",
    check="a.d[0]=9\nout=float(s.iloc[0]),str(s.dtype),s.array.d is a.d",
    needs=PD,
)
case(
    "pandas/nat na identity",
    "import pandas as pd\nx=[pd.NA,pd.NaT]\ns=pd.Series([1,None],dtype='Int64')",
    check="out=x[0] is pd.NA,x[1] is pd.NaT,s[1] is pd.NA",
    needs=PD,
)
case(
    "pandas/frame over transposed array",
    "import pandas as pd,numpy as np\na=np.arange(6.).reshape(2,3)\nd=pd.DataFrame(a.T,copy=False)\nv=d.values",
    check="a[0,0]=50\nout=d.iloc[0,0],v[0,0]",
    needs=PD,
)
case(
    "pandas/frame of a read only array",
    "import pandas as pd,numpy as np\na=np.arange(3.)\na.flags.writeable=False\ns=pd.Series(a,copy=False)",
    check="try:\n    s.iloc[0]=5\n    out='wrote'\nexcept ValueError as e:\n    out='refused'\nout=(out,a.tolist(),s.tolist())",
    needs=PD,
)
case(
    "stdlib/stringio position",
    "import io\ns=io.StringIO('abc\\ndef')\ns.readline()\nt=io.TextIOWrapper(io.BytesIO(b'x\\ny\\n'))",
    check="out=s.read(),t.readline(),s.tell()",
    reported=True,
)
case(
    "stdlib/bytesio alias",
    "import io\nb=io.BytesIO()\nb.write(b'ab')\nl=[b]\nclass B(io.BytesIO): pass\nc=B(b'q');c.n=[1]",
    check="l[0].write(b'c')\nout=b.getvalue(),c.n,type(c) is B,c.read()",
)
case(
    "object/compressor, hash",
    "import zlib,hashlib\nz=zlib.compressobj()\nd=z.compress(b'a'*100)\nh=hashlib.sha1(b'q')",
    check="out=h.hexdigest(),len(d+z.flush())>0",
    reported=True,
)
case(
    "object/tee and shared",
    "import itertools\ni=iter([1,2,3,4])\na,b=itertools.tee(i)\nnext(a)",
    check="out=next(b),list(a),list(b),list(i)",
    reported=True,
)
case(
    "object/zip enumerate shared",
    "i=iter(range(9))\nz=zip(i,i)\ne=enumerate(i,5)\nnext(z)",
    check="out=next(e),next(z),list(i)",
    reported=True,
)
case(
    "object/logger, adapter",
    "import logging\nlg=logging.getLogger('adv.x')\nlg.setLevel(15)\nad=logging.LoggerAdapter(lg,{'k':[1]})\nf=logging.Filter('q')\nlg.addFilter(f)",
    check="out=logging.getLogger('adv.x') is lg,lg.level,ad.extra,ad.logger is lg,len(lg.filters)\nlg.removeFilter(f)",
    reported=True,
)
case(
    "object/cell object",
    "def mk():\n    x=[1]\n    def g(): return x\n    return g\ng=mk()\nc=g.__closure__[0]",
    check="c.cell_contents=[5]\nout=g()",
)
case(
    "object/code, ast, signature",
    "import ast,inspect\ndef f(a,b=[1]): return a\nc=f.__code__\nt=ast.parse('x=1')\ns=inspect.signature(f)",
    check="out=ast.dump(t),str(s),s.parameters['b'].default is f.__defaults__[0]",
    reported=True,
)
case(
    "object/stdout alias",
    "import sys\no=sys.stdout\ne=[sys.stderr]",
    check="out=o is not None,e[0] is sys.stderr",
    reported=True,
)
case(
    "object/shadowed builtins",
    "list=[1]\ndef print(*a): return a\nlen=lambda x:99\nsum=list",
    check="out=len([]),print(1),sum is list\ndel list\nout=out+(list((1,)),)",
)
case(
    "object/star import",
    "from math import *\nfrom os.path import join as j\npi=3",
    check="out=pi,sqrt(4),j('a','b'),tau>6",
)
case(
    "object/attributes of a builtin singleton",
    "import sys\nx=sys.flags\nv=sys.version_info\nf=sys.float_info",
    check="out=tuple(x)==tuple(sys.flags),v==sys.version_info,f.max==sys.float_info.max",
    reported=True,
)
case(
    "object/asyncio queue",
    "import asyncio\nq=asyncio.Queue()\nq.put_nowait([1])\ne=asyncio.Event()\ne.set()",
    check="out=q.get_nowait(),e.is_set()",
    reported=True,
)
case(
    "object/simple namespace recursive",
    "import types\nclass N(types.SimpleNamespace): pass\nn=N(a=[1])\nn.me=n\nm=n.__dict__",
    check="m['b']=2\nout=n.me is n,n.b,type(n) is N",
    reported=True,
)
case(
    "object/mapping proxy of a class",
    "class A: x=[1]\np=A.__dict__\nimport types\nq=types.MappingProxyType({'a':A.x})",
    check="A.x.append(2)\nA.y=3\nout=p['y'],q['a'],p['x'] is A.x",
    reported=True,
)
case(
    "object/abc cached virtual",
    "import abc\nclass P(abc.ABC):\n    @classmethod\n    def __subclasshook__(c,k): return hasattr(k,'quack') or NotImplemented\nclass D:\n    def quack(s): pass\nx=isinstance(D(),P)",
    check="out=isinstance(D(),P),issubclass(int,P)",
)
case(
    "object/fraction decimal subclasses",
    "import fractions,decimal,datetime\nclass F(fractions.Fraction): pass\nclass D(decimal.Decimal): pass\nclass T(datetime.datetime): pass\na=F(1,3);b=D('1.5');c=T(2020,1,1)",
    check="out=a,b,c,type(a) is F,type(b) is D,type(c) is T",
)
case(
    "object/date with own zone",
    "import datetime\nclass Z(datetime.tzinfo):\n    def __init__(s,h=1): s.h=h\n    def utcoffset(s,d): return datetime.timedelta(hours=s.h)\n    def dst(s,d): return None\nz=Z(3)\nt=datetime.datetime(2020,1,1,tzinfo=z)",
    check="z.h=5\nout=str(t.utcoffset()),t.tzinfo is z",
)
case(
    "object/zoneinfo",
    "import zoneinfo\nz=zoneinfo.ZoneInfo('Europe/Berlin')\nl=[z]",
    check="out=l[0] is zoneinfo.ZoneInfo('Europe/Berlin'),str(z)",
    needs="zoneinfo",
)
case(
    "object/argparse",
    "import argparse\np=argparse.ArgumentParser(prog='q')\nseen=[]\np.add_argument('--x',type=lambda v:seen.append(v) or int(v),default=[1])",
    check="out=p.parse_args(['--x','5']).x,seen,p.get_default('x')",
)
case(
    "object/partial chain",
    "import functools\nl=[]\np=functools.partial(l.append)\nq=functools.partial(p)\nq.note=l\nclass P(functools.partial): pass\nr=P(max,3)",
    check="q(1)\nout=l,q.note is l,type(r) is P,r(2)",
)
case(
    "object/exec'd class in a dict",
    "d={}\nexec('class A:\\n    def f(self): return g()\\ndef g(): return 7',d)\na=d['A']()",
    check="d['g']=lambda: 8\nout=a.f(),type(a) is d['A']",
)
case(
    "object/function in two namespaces",
    "ns={'v':1}\nexec('def f(): return v\\ndef up():\\n    global v\\n    v+=1',ns)\nf=ns['f'];up=ns['up']\nup()",
    check="up()\nout=f(),ns['v']",
)
case(
    "object/recursive default dict",
    "import collections\ntree=lambda: collections.defaultdict(tree)\nt=tree()\nt['a']['b']=1\ns=t['a']",
    check="s['c']['d']=2\nout=t['a']['c']['d'],t['x']['y']=={}",
)
case(
    "object/large dict of views",
    "import numpy as np\nb=np.zeros(400_000)\nd={i:b[i*1000:(i+1)*1000][::-1] for i in range(400)}",
    "d[7][0]=1",
    "d[399][5]=2",
    check="d[0][999]=3\nout=float(b.sum()),float(b[0]),float(b[7999]),float(b[399994])",
    needs=NP,
)
case(
    "object/large memory moved",
    "import numpy as np\nb=np.arange(300_000)\nv=b[10:]",
    "c=b\nb=b.copy()\nc[20]=-1",
    check="out=int(v[10]),int(b[20]),v.base is c",
    needs=NP,
)
case(
    "object/swap data of large arrays",
    "import numpy as np\na=np.zeros(300_000);b=np.ones(300_000)",
    "a,b=b,a",
    "a[:]=5",
    check="out=float(a.sum()),float(b.sum())",
    needs=NP,
)
case(
    "object/large in place by out=",
    "import numpy as np\na=np.zeros(300_000)\nf=np.add",
    "f(a,1,a)",
    "np.copyto(a[5:],3.0)",
    check="out=float(a.sum())",
    needs=NP,
)
hidden(
    "hidden/large through ctypes pointer kept",
    "import numpy as np,ctypes\na=np.zeros(300_000)\np=a.ctypes.data_as(ctypes.POINTER(ctypes.c_double))",
    change="p[123]=9.0",
    check="out=float(a[123])",
    needs=NP,
    reported=True,
)
hidden(
    "hidden/borg",
    "class B:\n    _s={}\n    def __init__(s): s.__dict__=s._s\na=B();b=B()\na.x=[1]\nk=b.__dict__",
    change="k['x'].append(2)\nk['y']=3",
    check="out=a.x,b.y",
)
hidden(
    "hidden/default of a method",
    "class A:\n    def f(s,l=[]):\n        l.append(1)\n        return l\nh=A.f.__defaults__[0]\na=A()",
    change="h.append('x')",
    check="out=a.f()",
)
hidden(
    "hidden/cell content",
    "def mk():\n    x=[1]\n    return lambda: x\nf=mk()\nc=f.__closure__[0]",
    change="c.cell_contents=[2]",
    check="out=f()",
)
hidden(
    "hidden/via gc referents",
    "import gc\nd={'a':[1]}\nl=gc.get_referents(d)[-1]\nl=[x for x in gc.get_referents(d) if isinstance(x,list)][0]",
    change="l.append(2)",
    check="out=d",
)
hidden(
    "hidden/torch via numpy of a view",
    "import torch\nt=torch.zeros(400_000)\nn=t[5:].numpy()[::2]",
    change="n[3]=4",
    check="out=float(t.sum()),float(t[11])",
    needs=TORCH_NP,
)
hidden(
    "hidden/pandas via to_numpy",
    "import pandas as pd\ndf=pd.DataFrame({'a':range(200_000)})\nn=df['a'].to_numpy()\ntry: n.flags.writeable=True\nexcept ValueError: pass",
    change="n[5]=-7",
    check="out=int(df.a[5])",
    needs=PD,
)
case(
    "object/slots refuse others",
    "class A:\n    __slots__=('a',)\nx=A()\nx.a=1\nclass B(A):\n    __slots__=()\ny=B()\nclass C:\n    __slots__='one'\nc=C();c.one=2",
    check="out=[]\nfor o in (x,y,c):\n    try:\n        o.zz=1\n        out.append('took')\n    except AttributeError: out.append('refused')\nout+=[x.a,c.one,C.__slots__,A.__slots__]",
)
case(
    "object/slots generic dataclass",
    "import dataclasses as D,typing,sys\nT=typing.TypeVar('T')\nclass G(typing.Generic[T]):\n    __slots__=('x',)\ng=G()\ng.x=[1]\nkw={'slots':True} if sys.version_info>=(3,10) else {}\n@D.dataclass(**kw)\nclass P:\n    a:int\n    b:list=D.field(default_factory=list)\np=P(1)",
    check="p.b.append(2)\nout=g.x,p,P(3),[f.name for f in D.fields(P)]",
)
case(
    "object/dataclass inherited after a restore",
    "import dataclasses as D\n@D.dataclass\nclass A:\n    x:int\n    y:list=D.field(default_factory=list)\na=A(1)",
    check="@D.dataclass\nclass B(A):\n    z:int=3\nout=B(1),B(1,z=9),D.fields(B)[0].default is D.MISSING",
)
case(
    "object/private slots inherited",
    "class A:\n    __slots__=('__a',)\n    def __init__(s): s.__a=[1]\n    def get(s): return s.__a\nclass B(A):\n    __slots__=('__a',)\n    def __init__(s):\n        super().__init__()\n        s.__a=[2]\n    def mine(s): return s.__a\nx=B()",
    check="x.get().append(5)\nout=x.get(),x.mine()",
)
case(
    "object/argparse namespace vars",
    "import argparse\np=argparse.ArgumentParser()\np.add_argument('--lr',type=float,default=0.1)\nargs=p.parse_args([])\ncfg=vars(args)",
    "cfg['lr']=0.5",
    check="cfg['new']=[1]\nargs.more=2\nout=args.lr,args.new,cfg['more']",
)
case(
    "object/vars of a library object",
    "import string\nf=string.Formatter()\nd=vars(f)\nf.tag=[1]",
    check="d['tag'].append(2)\nd['k']=3\nout=f.tag,f.k",
)
case(
    "object/vars of a subclass of dict with attributes",
    "class D(dict): pass\nx=D(a=1)\nv=vars(x)\nx.t=1",
    check="v['u']=2\nx['b']=3\nout=x.u,x.t,dict(x)",
)
case(
    "object/borg with slots",
    "class S:\n    _s={}\n    __slots__=('k','__dict__')\n    def __init__(s):\n        s.__dict__=S._s\na=S();b=S()\na.k=1\nb.k=2\na.v=[0]",
    check="b.v.append(1)\nout=a.v,a.k,b.k,a.__dict__ is S._s",
)
case(
    "object/attribute access object",
    "class O(dict):\n    def __init__(s,*a,**k):\n        super().__init__(*a,**k)\n        s.__dict__=s\nx=O(a=1)\nx.b=2",
    check="x['c']=3\nx.d=4\nout=x.c,x['d'],x.__dict__ is x,sorted(x)",
)
case(
    "object/new with arguments",
    "class P:\n    made=0\n    def __new__(c,name):\n        P.made+=1\n        o=object.__new__(c)\n        o.name=name\n        return o\n    def __init__(s,name): s.ran=True\nx=P('a')\ny=P('b')",
    check="out=P.made,x.name,y.ran",
)
case(
    "object/interned by new",
    "class S:\n    known={}\n    def __new__(c,k):\n        if k not in c.known:\n            c.known[k]=super().__new__(c)\n            c.known[k].k=k\n        return c.known[k]\n    def __getnewargs__(s): return (s.k,)\na=S('x');b=S('y')\nl=[a,a]",
    check="out=S('x') is a,l[0] is a,len(S.known),S('z') is not a",
    reported=True,
)
case(
    "object/new of a str, int and tuple subclass",
    "class S(str):\n    def __new__(c,v,unit):\n        o=str.__new__(c,v+unit)\n        o.unit=unit\n        return o\nclass I(int):\n    def __new__(c,v): return int.__new__(c,v*2)\nclass T(tuple):\n    def __new__(c,*a): return tuple.__new__(c,a)\ns=S('5','m');i=I(4);t=T(1,[2]);d={s:t}",
    check="t[1].append(3)\nout=s,s.unit,i,t,d[s] is t,type(s) is S,type(i) is I",
)
case(
    "object/code of others at load",
    "import collections\nR={}\ndef mk(v):\n    o=Z(v)\n    R[v]=o\n    return o\nclass Z:\n    def __init__(s,v): s.v=v\n    def __reduce__(s): return mk,(s.v,)\nz=Z(3)",
    check="out=z.v,type(z) is Z",
)
case(
    "object/metaclass asks for a global",
    "RULES={'x':1}\nclass M(type):\n    def __new__(m,n,b,d):\n        d=dict(d)\n        d['rules']=list(RULES)\n        return super().__new__(m,n,b,d)\nclass A(metaclass=M): pass\na=A()",
    check="out=A.rules,type(a) is A,type(A) is M",
)
case(
    "object/structured elements and their array",
    "import numpy as np\na=np.zeros(4,[('x','i4'),('y','f8')])\nl=[a[i] for i in range(4)]\nb=a[::-2]\ne=b[0]",
    "l[2]['x']=5",
    check="l[0]['y']=1.5\ne['x']=9\na['x'][1]=7\nout=a.tolist(),int(l[1]['x']),int(e['x']),int(l[3]['x'])",
    needs=NP,
)
case(
    "object/record of a large array",
    "import numpy as np\nr=np.rec.array(np.zeros(60000,[('x','i4'),('y','f8')]))\ns=r[500]",
    "r.x[500]=3",
    check="s.y=2.5\nout=float(r.y[500]),int(s.x),type(s).__name__",
    needs=NP,
)
case(
    "object/element of an array that is gone",
    "import numpy as np\ndef f():\n    a=np.zeros(3,[('x','i4')])\n    a['x'][1]=4\n    return a[1],a[1]\ns,t=f()",
    check="s['x']=8\nout=int(t['x'])",
    needs=NP,
)
hidden(
    "process/own module, unchanged",
    "open('mo1.py','w').write('import os\\nX=[1]\\nS={\"a\",\"b\"}\\nNAME=\"q\"\\nclass K:\\n    n=[1,2]\\n    def f(self): return 1\\n')\nimport sys,os\nsys.path.insert(0,os.getcwd())\nimport mo1\nk=mo1.K()",
    change="y=1",
    check="out=mo1.X,k.f()",
)
case(
    "object/enumeration of the notebook in a frame",
    "import pandas as pd,enum\nclass E(enum.Enum):\n    A=1\n    B=2\nd=pd.DataFrame({'e':[E.A,E.B]})",
    check="out=d.e[0] is E.A,(d.e==E.B).tolist()",
    needs=PD,
)
case(
    "object/type alias",
    "type X = list[int]\ndef f(x: X) -> X: return x"
    if sys.version_info >= (3, 12)
    else "X=list\ndef f(x: X) -> X: return x",
    check="out=f.__annotations__['x'] is X",
    reported=True,
)
case(
    "object/nested class names",
    "class A:\n    class B:\n        class C: pass\n        def f(self): pass\nx=A.B.C()",
    check="out=A.B.C.__qualname__,type(x) is A.B.C,A.B.f.__qualname__,repr(A.B)",
)
case(
    "object/local class name",
    "def mk():\n    class L: pass\n    return L\nL=mk()\nx=L()",
    check="out=L.__qualname__,type(x) is L,repr(L)",
)

# --- attributes that a class's own pickling leaves out ------------------------------------------------------------------

case(
    "object/attributes of frames and series",
    "import pandas as pd\ndf=pd.DataFrame({'a':[1,2]})\ns=df['a'].copy()\ndf.note=['kept']\nsame=df.note\ndef mark(x): x.unit='K'\nmark(s)\nsetattr(s,'by_name',3)",
    check="same.append(1)\nout=df.note,s.unit,s.by_name,df.a.tolist()",
    needs=PD,
)
case(
    "object/attributes in a second restore",
    "import collections\ndef mark(x,n): x.rank=n\nc=collections.Counter('aab')\nmark(c,1)",
    "e=collections.Counter('b')\nmark(e,2)\nboth=[c,e]",
    check="out=[x.rank for x in both],c.most_common(1),c+e",
)
case(
    "object/subclasses of what pickles in its own way",
    "import collections,datetime,decimal,fractions,random\nclass Tally(collections.Counter): pass\nclass Day(datetime.date): pass\nclass Price(decimal.Decimal): pass\nclass Part(fractions.Fraction): pass\nclass Dice(random.Random): pass\nxs=[Tally('aab'),Day(2020,1,2),Price('1.5'),Part(1,2),Dice(3)]\nfor n,x in enumerate(xs): vars(x)['note']=n",
    check="out=[x.note for x in xs],xs[:4],xs[4].random(),[type(x).__name__ for x in xs]",
)
case(
    "object/own init above a library's constructor",
    "import collections\nmade=[]\nclass Tree(collections.defaultdict):\n    def __init__(self):\n        super().__init__(Tree)\n        self.visits=0\n        made.append(1)\nclass Scores(collections.Counter):\n    def __init__(self,who,*a):\n        super().__init__(*a)\n        self.who=who\nt,s=Tree(),Scores('me','aab')\nt['a']['b']\nt['a'].visits=4",
    check="out=t['a'].visits,t.visits,len(made),s.who,s['a'],s.most_common(1),len(t['c']),t.default_factory is Tree",
)
case(
    "pandas/accessor that keeps something",
    "import pandas as pd\n@pd.api.extensions.register_dataframe_accessor('hop_lab')\nclass Lab:\n    def __init__(self,f): self.f,self.n=f,0\n    def warm(self):\n        self.n+=1\n        return self.n\ndf=pd.DataFrame({'a':[1]})",
    "df.hop_lab.warm()",
    check="out=df.hop_lab.warm(),df.hop_lab.f is df\ndel pd.DataFrame.hop_lab\npd.DataFrame._accessors.discard('hop_lab')",
    needs=PD,
)

# --- files that were removed or replaced while they were open ---------------------------------------------------------

case(
    "file/text removed",
    "open('fr1.txt','wb').write('a\\r\\n\u00e4\\r\\nc'.encode())\nh=open('fr1.txt',encoding='utf-8',newline='')\nh.readline()",
    "import os\nos.remove('fr1.txt')",
    check="out=h.readline(),h.tell(),h.name,h.mode,h.newlines,h.read(),h.seek(0),h.read(1),h.closed,h.writable()",
)
case(
    "file/binary and raw removed",
    "open('fr2.bin','wb').write(bytes(range(200))*500)\nh=open('fr2.bin','rb')\nr=open('fr2.bin','rb',0)\nh.read(7);r.seek(99_990)",
    "import os\nos.remove('fr2.bin')",
    check="out=h.read(3),h.name,h.mode,len(h.read()),r.read(5),r.mode,type(h).__name__,type(r).__name__",
)
case(
    "file/replaced",
    "open('fr3.txt','w').write('old')\nh=open('fr3.txt')",
    "import os\nopen('fr3.new','w').write('new one')\nos.replace('fr3.new','fr3.txt')",
    check="out=h.read(),open('fr3.txt').read()",
)
case(
    "file/removed in a list and shared",
    "open('fr4.txt','w').write('one\\ntwo\\n')\nh=open('fr4.txt')\nl=[h]\nimport os\nos.remove('fr4.txt')",
    check="out=l[0] is h,l[0].readline(),h.readline()",
)
case(
    "file/name that is relative",
    "open('fr5.txt','w').write('x')\nh=open('fr5.txt')\nb=open('fr5.txt','rb')",
    check="out=h.name,repr(h),b.name,repr(b)",
)
case(
    "file/text that is decompressed",
    "import gzip\nwith gzip.open('fr8.gz','wt') as w: w.write('one\\ntwo\\nthree\\n')\ndel w\nh=gzip.open('fr8.gz','rt')\nh.readline()",
    check="out=h.readline()",
    reported=True,
)
case(
    "file/buffer over what is decompressed",
    "import gzip,io\nwith gzip.open('fr9.gz','wb') as w: w.write(b'one\\ntwo\\nthree\\n')\ndel w\nh=io.BufferedReader(gzip.open('fr9.gz'))\nh.readline()",
    check="out=h.readline()",
    reported=True,
)
case(
    "file/changed under what was read ahead",
    "open('fr7.txt','w').write('abc')\nh=open('fr7.txt')\nh.read(1)",
    "w=open('fr7.txt','w')\nw.write('xyzw')\nw.close()\ndel w",
    "y=h.closed",
    check="out=h.read()",
    reported=True,
)
case(
    "file/too large to be kept",
    "import os\nopen('fr6.bin','wb').truncate(100*1024*1024)\nh=open('fr6.bin','rb')\nos.remove('fr6.bin')",
    check="out=h.seek(0,2)",
    reported=True,
)
case(
    "file/pipe",
    "import os\nr,w=os.pipe()\nh=os.fdopen(r,'rb')",
    check="out=h.readable()",
    reported=True,
)
case(
    "archive/npz removed",
    "import numpy as np\na=np.arange(10)\nnp.savez('ar1.npz',a=a,b=a*2)\nz=np.load('ar1.npz')\nz['b']",
    "import os\nos.remove('ar1.npz')",
    check="out=z['b'].tolist(),z.files,sorted(z),z.f.a.sum(),z.allow_pickle,z.fid.name,z.zip.filename,z.close(),z.fid",
    needs=NP,
)
case(
    "archive/npz replaced",
    "import numpy as np,os\nnp.savez('ar2.npz',a=np.arange(3))\nz=np.load('ar2.npz',allow_pickle=True)\nnp.savez('ar2b.npz',a=np.ones(2))\nos.replace('ar2b.npz','ar2.npz')",
    check="out=z['a'].tolist(),z.allow_pickle,np.load('ar2.npz')['a'].tolist()",
    needs=NP,
)
case(
    "archive/npz as it was",
    "import numpy as np\nnp.savez('ar3.npz',a=np.arange(3))\nz=np.load('ar3.npz')",
    check="out=z['a'].tolist(),repr(z.fid),z.zip.filename",
    needs=NP,
)
case(
    "archive/npz over bytes",
    "import numpy as np,io\nb=io.BytesIO()\nnp.savez_compressed(b,a=np.arange(3))\nb.seek(0)\nz=np.load(b)",
    check="out=z['a'].tolist(),z.zip.fp is b,z.fid",
    needs=NP,
)
case(
    "archive/npz closed",
    "import numpy as np\nnp.savez('ar4.npz',a=np.arange(3))\nz=np.load('ar4.npz')\nz.close()",
    check="out=z.files",
    reported=True,
    needs=NP,
)
case(
    "archive/npz changed",
    "import numpy as np\nnp.savez('ar5.npz',a=np.arange(3))\nz=np.load('ar5.npz')\nx=z['a']",
    "np.savez('ar5.npz',a=np.ones(400),b=np.ones(3))",
    check="out=len(z['a'])",
    reported=True,
    needs=NP,
)
case(
    "archive/zip removed",
    "import zipfile,os\nwith zipfile.ZipFile('ar6.zip','w') as w: w.writestr('a.txt','one');w.writestr('d/b.txt','two'*9)\nz=zipfile.ZipFile('ar6.zip')\nos.remove('ar6.zip')",
    check="out=z.namelist(),z.read('a.txt'),z.getinfo('d/b.txt').file_size,z.filename,z.testzip()",
)
case(
    "archive/zip as it was",
    "import zipfile\nwith zipfile.ZipFile('ar7.zip','w') as w: w.writestr('a.txt','one')\nz=zipfile.ZipFile('ar7.zip')",
    check="out=z.read('a.txt'),z.filename,repr(z)",
)
case(
    "archive/zip path",
    "import zipfile\nwith zipfile.ZipFile('ar9.zip','w') as w: w.writestr('a.txt','one')\nz=zipfile.ZipFile('ar9.zip')\np=zipfile.Path(z)",
    check="out=z.read('a.txt'),[x.name for x in p.iterdir()],p.root.filename",
    reported=True,
)
case(
    "stdlib/text in memory while output goes there",
    "import io,sys\nkept=sys.stdout\nsys.stdout=io.StringIO()\nb=io.StringIO('a\\nb\\n')\nb.readline()",
    "l=[b]",
    "sys.stdout=kept\ndel kept",
    check="out=b.readline(),l[0] is b",
)
case(
    "archive/csv reader over a file that was removed",
    "import csv,os\nopen('ar8.csv','w').write('a,b\\n1,2\\n3,4\\n')\nh=open('ar8.csv')\nr=csv.DictReader(h)\nos.remove('ar8.csv')",
    check="out=list(r)",
    reported=True,
)

# --- modules of the notebook, markers, iterators over what is gone ----------------------------------------------------

case(
    "module/functions see its variables",
    "import types\nm=types.ModuleType('made1')\nexec('def f(): return g()+V\\ndef g(): return len(L)\\nV=1\\nL=[]',m.__dict__)\nh=m.f",
    "m.V=20\nm.L.append(1)",
    check="m.V+=1\nm.L.append(2)\nout=m.f(),h(),h is m.f,m.__name__,m.f.__globals__ is vars(m)",
)
case(
    "module/changed in place and shared",
    "import types\nm=types.ModuleType('made2','doc')\nm.x=[1]\nl=[m]\nx=m.x",
    "m.y=2",
    "l[0].x.append(2)",
    check="x.append(3)\nout=m.x,m.y,l[0] is m,m.__doc__,isinstance(m.__builtins__,dict)",
)
case(
    "module/holds itself and a class",
    "import types\nm=types.ModuleType('made3')\nm.me=m\nclass A: mod=m\nm.A=A\nm.a=A()",
    check="out=m.me is m,m.A is A,type(m.a) is A,A.mod is m",
)
case(
    "module/function alone, its module deleted",
    "import types\nm=types.ModuleType('made4')\nexec('V=1\\ndef f(): return V',m.__dict__)\nf=m.f",
    "del m",
    check="f.__globals__['V']=3\nout=f()",
)
case(
    "stdlib/argparse",
    "import argparse\np=argparse.ArgumentParser('prog')\np.add_argument('--n',type=int,default=argparse.SUPPRESS)\ns=p.add_subparsers(dest='cmd')\nq=s.add_parser('run')\nq.add_argument('f',nargs='?')",
    check="out=p.parse_args(['--n','3','run','x']),p.parse_args([]),q.parse_args([]),p.format_help()",
)
case(
    "iterator/zip and map over a generator that can't be saved",
    "def g():\n    while True: yield 1\nd={'a':[1]}\ni=g();next(i)\nz=zip(d['a'],i,[d]);m=map(str,i);l=d['a']",
    check="d['a'].append(2)\nout=d['a'] is l,len(l)",
    reported=True,
)
case(
    "pandas/rows half taken",
    "import pandas as pd\ndf=pd.DataFrame({'a':[1,2,3],'b':list('xyz')})\nr=df.itertuples()\nnext(r)",
    check="df.loc[0,'a']=9\nout=df.a.tolist()",
    reported=True,
    needs=PD,
)
case(
    "pandas/groups half taken",
    "import pandas as pd\ndf=pd.DataFrame({'a':[1,2,1],'b':list('xyz')})\ng=df.groupby('a')\ni=iter(g)\nnext(i)\ns=df['b']",
    check="out=df.a.sum(),g.b.count().tolist(),s.tolist()",
    reported=True,
    needs=PD,
)

# --- what matplotlib's objects call when they change -------------------------------------------------------------------

PLT = "matplotlib numpy"
case(
    "matplotlib/colorbar follows its image",
    "import matplotlib.pyplot as plt,numpy as np\nfig,ax=plt.subplots()\nim=ax.imshow(np.eye(3))\ncb=fig.colorbar(im)",
    check="im.set_clim(0,2)\na=cb.vmax\nim.norm.vmax=3\nb=cb.vmax\nim.set_cmap('gray')\nout=a,b,cb.cmap.name,len(im.callbacks.callbacks['changed'])\nplt.close('all')",
    needs=PLT,
)
case(
    "matplotlib/two images with one norm",
    "import matplotlib.pyplot as plt,numpy as np\nn=plt.Normalize(0,1)\nfig,axs=plt.subplots(2)\nims=[a.imshow(np.eye(2),norm=n) for a in axs]\nseen=[]\nids=[i.callbacks.connect('changed',lambda m,k=k: seen.append(k)) for k,i in enumerate(ims)]",
    "n.vmax=2",
    check="n.vmax=5\nims[0].callbacks.disconnect(ids[0])\nn.vmin=-1\nout=seen,ims[1].callbacks.connect('changed',print)!=ids[1]\nplt.close('all')",
    needs=PLT,
)
case(
    "matplotlib/axes call a function of the notebook",
    "import matplotlib.pyplot as plt\nfig,ax=plt.subplots()\nseen=[]\ndef on(a): seen.append(a.get_xlim())\nax.callbacks.connect('xlim_changed',on)",
    check="ax.set_xlim(0,7)\nout=seen\nplt.close('all')",
    needs=PLT,
)
case(
    "matplotlib/slider",
    "import matplotlib.pyplot as plt\nfrom matplotlib.widgets import Slider,CheckButtons\nfig=plt.figure()\ns=Slider(fig.add_axes([0,0,1,.1]),'s',0,1)\nv=[]\ns.on_changed(v.append)\nc=CheckButtons(fig.add_axes([0,.2,1,.5]),['a','b'])\nc.on_clicked(v.append)",
    "s.set_val(.5)",
    check="s.set_val(.7)\nc.set_active(1)\nout=v,c.get_status()\nplt.close('all')",
    needs=PLT,
)
case(
    "widgets/what is selected",
    "import ipywidgets as w\nd=w.Dropdown(options=[('one',1),('two',{'k':[]})],value=1)\nm=w.SelectMultiple(options=['a','b','c'],value=('b','c'))\nr=w.SelectionSlider(options=[3,5,7],index=1)\nseen=[]\nd.observe(lambda c: seen.append(c['new']),'index')",
    "d.index=1",
    check="d.value['k'].append(1)\nd.index=0\nm.value=('a',)\nout=d.label,d.options[1][1],m.index,r.value,seen",
    needs="ipywidgets",
)
case(
    "matplotlib/a figure that pyplot alone holds",
    "import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt\nplt.figure()\nf=plt.figure()\nplt.figure()\n_=__=___=None",
    check="out=plt.get_fignums(),plt.figure(2) is f",
    reported=True,
    needs="matplotlib",
)
case(
    "pillow/a picture of several frames",
    "import io\nfrom PIL import Image\nb=io.BytesIO()\nImage.new('L',(2,2),3).save(b,'GIF',save_all=True,append_images=[Image.new('L',(2,2),9)])\nx=Image.open(io.BytesIO(b.getvalue()))\nx.seek(1)",
    check="out=list(x.convert('L').getdata()),x.tell()",
    reported=True,
    needs="PIL",
)
case(
    "pillow/a picture of one frame",
    "import io\nfrom PIL import Image\nb=io.BytesIO()\nImage.new('L',(2,2),3).save(b,'PNG')\nx=Image.open(io.BytesIO(b.getvalue()))\nx.load()",
    check="out=list(x.getdata()),x.mode",
    needs="PIL",
)
case(
    "answering/what hands on to what it wraps",
    "class Wrapper:\n    def __init__(self, env): self.env=env\n    def __getattr__(self, name): return getattr(self.env, name)\nclass Env:\n    def __init__(self): self.n=3\n    def step(self):\n        self.n+=1\n        return self.n\nenv=Wrapper(Env())\nhist=[env.step()]\nenv.more=hist",
    "inner=env.env",
    check="out=env.step(),inner.n,hist,env.more is hist",
)
case(
    "answering/what looks into a dictionary of its own",
    "class Lazy:\n    def __init__(self): self._data={'a':1}\n    def __getattr__(self, name):\n        if name in self._data: return self._data[name]\n        raise AttributeError(name)\nz=Lazy()\ny=Lazy()\nd=vars(y)",
    check="d['_data']['b']=5\nout=z.a,y.b",
)
case(
    "answering/by slots, by a base, and as a number",
    "class S:\n    __slots__=('env','rest')\n    def __init__(self, env): self.env=env\n    def __getattr__(self, name): return getattr(self.env, name)\nclass T(S):\n    def __new__(cls, *a): return super().__new__(cls)\nclass U(int):\n    def __getattr__(self, name): return getattr(self.what, name)\ns,t,u=S('abc'),T([1,2]),U(7)\nt.rest=s\nu.what=s",
    check="out=s.upper(),t.count(1),type(t) is T,t.rest is s,u+1,u.lower(),u.what is s",
)
case(
    "answering/dictionaries whose keys are attributes",
    "import collections\nclass A(dict):\n    __getattr__=dict.__getitem__\nclass B(collections.OrderedDict):\n    def __getattr__(self, name): return self[name]\nclass L(list):\n    def __getattr__(self, name): return [getattr(x, name) for x in self]\na,b,l=A(x=1),B(y=[2]),L([1,2j])\nfor o in a,b,l: o.__dict__['_own']=b",
    check="b['z']=1\nout=a.x,b.y,list(b),l.real,a._own is b,b._own is b,l._own is b,a,len(l)",
)
case(
    "answering/of a module of one's own",
    "open('wrapping.py','w').write('class Wrapper:\\n    def __init__(self, env): self.env=env\\n    def __getattr__(self, name): return getattr(self.env, name)\\nclass Slots:\\n    __slots__=(\"env\",)\\n    def __init__(self, env): self.env=env\\n    def __getattr__(self, name): return getattr(self.env, name)\\n')\nimport sys\nsys.path.insert(0,'.')\nimport wrapping",
    "import time\nnow=time.time()\nw,s,parts=wrapping.Wrapper('ab'),wrapping.Slots('cd'),[wrapping.Wrapper('ef')]*2",
    check="import sys\nout=w.upper(),s.upper(),parts[0].upper(),parts[0] is parts[1]\ndel sys.modules['wrapping']",
)
case(
    "answering/every question is counted",
    "class Count:\n    hits=0\n    def __init__(self, x): object.__setattr__(self,'x',x)\n    def __getattribute__(self, name):\n        Count.hits+=1\n        return object.__getattribute__(self, name)\nclass Slots(Count):\n    __slots__=('y',)\nclass Miss:\n    asked=[]\n    def __getattr__(self, name):\n        Miss.asked.append(name)\n        raise AttributeError(name)\nc,s,m=Count(1),Slots(2),Miss()\ns.y=[c]\nc.me=m",
    "c.x",
    "many=[c,s,m]",
    check="out=Count.hits,Miss.asked,c.x,s.y[0] is c,many[1].x,c.me is m",
)
case(
    "answering/slots that can't be set from outside",
    "class Im:\n    __slots__=('a','b')\n    def __init__(self, a): object.__setattr__(self,'a',a)\n    def __setattr__(self, *a): raise AttributeError('immutable')\nx=Im([3])\ny=Im(x)",
    check="out=x.a,y.a is x,hasattr(x,'b')",
)
case(
    "answering/what C code keeps in an instance is told",
    "import struct\nclass Fmt(struct.Struct):\n    def __getattr__(self, name): raise AttributeError(name)\nclass Slots(struct.Struct):\n    __slots__=('a',)\n    def __getattr__(self, name): raise AttributeError(name)\nx,y=Fmt('ii'),[Slots('d')]",
    check="out=x.pack(1,2),y[0].size",
    reported=True,
)
case(
    "rebuilt/a writer of csv and what it writes into",
    "import csv, io\nbuf=io.StringIO()\nw=csv.writer(buf)\nw.writerow([1,2])",
    check="w.writerow([5,6])\nout=buf.getvalue()",
)
case(
    "rebuilt/two writers of csv in later cells",
    "import csv, io\nbuf=io.StringIO()\nhold={'b':io.StringIO()}",
    "w=csv.DictWriter(buf,['a','b'])\nw.writeheader()",
    "v=csv.writer(hold['b'])",
    "w.writerow({'a':1,'b':2})",
    check="w.writerow({'a':3,'b':4})\nv.writerow([7])\nout=buf.getvalue(),hold['b'].getvalue()",
)
case(
    "rebuilt/a flat iterator and its array",
    "import numpy as np\na=np.arange(6.0).reshape(2,3)\nmore={'f':a.flat}\nnext(more['f'])",
    check="more['f'][:]=7\nout=a.tolist()",
    needs=NP,
)
case(
    "rebuilt/an iterator that writes into its array",
    "import numpy as np\na=np.arange(3.0)\nit=np.nditer(a,op_flags=['readwrite'])",
    check="for x in it: x[...]=2*x\nout=a.tolist()",
    needs=NP,
)
case(
    "rebuilt/a broadcast of arrays",
    "import numpy as np\na,b=np.arange(3.0),np.arange(3.0)",
    "both=np.broadcast(a,b)",
    check="a[:]=b[:]=7\nout=list(both)",
    needs=NP,
)
