"""More of the torture set: what a reviewer who hasn't seen the first part would try."""

from __future__ import annotations

from cases import case, hidden

case(
    "pandas/cat ordered mutated",
    "import pandas as pd, numpy as np\ns=pd.Series(pd.Categorical(list('abca'),categories=list('cba'),ordered=True))",
    "s=s.cat.add_categories(['z'])\ns.iloc[0]='z'",
    check="out=s.tolist(),s.cat.categories.tolist(),s.cat.ordered,s.cat.codes.tolist()",
    needs="numpy pandas",
)
case(
    "pandas/cat view codes",
    "import pandas as pd, numpy as np\nc=pd.Categorical(list('abab'))\nk=c.codes",
    "c[0]='b'",
    check="c[1]='a'\nout=c.tolist(),k.tolist(),k.flags.writeable",
    needs="numpy pandas",
)
case(
    "pandas/two frames one array",
    "import pandas as pd, numpy as np\na=np.arange(6.).reshape(3,2)\nd1=pd.DataFrame(a,copy=False)\nd2=pd.DataFrame(a,columns=list('xy'),copy=False)",
    "a[0,0]=9",
    check="a[1,1]=8\nout=d1.values.tolist(),d2.values.tolist()",
    needs="numpy pandas",
)
case(
    "pandas/multiindex levels",
    "import pandas as pd, numpy as np\nm=pd.MultiIndex.from_arrays([list('aab'),[1,2,1]],names=['p','q'])\nd=pd.DataFrame({'v':[1,2,3]},index=m)",
    "d.loc[('a',2),'v']=7",
    check="out=d.to_dict(),d.index.names,d.index.lexsort_depth if hasattr(d.index,'lexsort_depth') else 0",
    needs="numpy pandas",
)
case(
    "pandas/attrs nested alias",
    "import pandas as pd, numpy as np\nl=[1]\nd=pd.DataFrame({'a':[1]})\nd.attrs['l']=l",
    "l.append(2)",
    check="l.append(3)\nout=d.attrs['l']",
    needs="numpy pandas",
)
case(
    "pandas/extension mask",
    "import pandas as pd, numpy as np\ns=pd.array([1,None,3],dtype='Int64')\nt=s[1:]",
    "s[0]=5",
    check="s[2]=None\nout=list(map(str,s)),list(map(str,t))",
    needs="numpy pandas",
)
case(
    "pandas/boolean dtype",
    "import pandas as pd, numpy as np\ns=pd.Series([True,None],dtype='boolean')",
    check="out=[str(x) for x in s],str(s.dtype)",
    needs="numpy pandas",
)
case(
    "pandas/subclassed frame",
    "import pandas as pd, numpy as np\nclass F(pd.DataFrame):\n    _metadata=['tag']\n    @property\n    def _constructor(self): return F\nf=F({'a':[1]})\nf.tag='t'",
    check="out=type(f) is F,f.tag,type(f[['a']]) is F",
    needs="numpy pandas",
)
case(
    "pandas/set_flags",
    "import pandas as pd, numpy as np\nd=pd.DataFrame({'a':[1]}).set_flags(allows_duplicate_labels=False)",
    check="out=d.flags.allows_duplicate_labels",
    needs="numpy pandas",
)
case(
    "pandas/iterrows midway",
    "import pandas as pd, numpy as np\nd=pd.DataFrame({'a':[1,2,3]})\ni=d.iterrows()\nnext(i)",
    check="out=[int(r.a) for _,r in i]",
    needs="numpy pandas",
)
case(
    "pandas/expanding window obj",
    "import pandas as pd, numpy as np\nd=pd.DataFrame({'a':[1.,2,3]})\ne=d.expanding()\ng=d.groupby('a')",
    "d.loc[0,'a']=50",
    check="out=e.sum().a.tolist(), sorted(g.groups)",
    needs="numpy pandas",
)
case(
    "pandas/slice of frame then write",
    "import pandas as pd, numpy as np\nd=pd.DataFrame({'a':[1,2,3]})\nv=d.iloc[:2]",
    "d.iloc[0,0]=9",
    check="import warnings\nwarnings.simplefilter('ignore')\nd.iloc[1,0]=7\nout=v.a.tolist()",
    needs="numpy pandas",
)
case(
    "pandas/values alias",
    "import pandas as pd, numpy as np\nd=pd.DataFrame({'a':[1.,2],'b':[3.,4]})\nv=d.to_numpy()",
    "d.iloc[0,0]=9",
    check="out=v.tolist(),v.flags.writeable",
    needs="numpy pandas",
)
case(
    "pandas/index name shared",
    "import pandas as pd, numpy as np\ni=pd.Index([1,2],name='n')\nd=pd.DataFrame({'a':[1,2]},index=i)",
    "i.name='m'",
    check="i.name='z'\nout=d.index.name,d.index is i",
    needs="numpy pandas",
)
case(
    "pandas/object column shared list",
    "import pandas as pd, numpy as np\nl=[1]\nd=pd.DataFrame({'a':[l,l]})",
    "l.append(2)",
    check="l.append(3)\nout=d.a[0],d.a[0] is d.a[1]",
    needs="numpy pandas",
)
case(
    "pandas/tz offsets",
    "import pandas as pd, numpy as np\nx=pd.date_range('2020-03-29',periods=3,freq='h',tz='Europe/Berlin')",
    check="out=str(x.tolist()),str(x.freq)",
    needs="numpy pandas",
)
case(
    "pandas/string storage",
    "import pandas as pd, numpy as np\ns=pd.Series(['a',None,'b'],dtype='string')\nt=s.str",
    check="out=t.upper().tolist().__repr__()",
    needs="numpy pandas",
)
case(
    "numpy/structured view field",
    "import numpy as np\na=np.zeros(3,dtype=[('x','i4'),('y','f8',(2,))])\nv=a['y']",
    "v[1,0]=5",
    check="v[2,1]=6\nout=a.tolist()",
    needs="numpy",
)
case(
    "numpy/object array shares",
    "import numpy as np\nl=[1]\na=np.array([l,l,{'k':l}],dtype=object)\nb=a[1:]",
    "b[0].append(2)",
    check="b[1]['k'].append(3)\nout=a[0],a[0] is l,len(b)",
    needs="numpy",
)
case(
    "numpy/object 2d fortran",
    "import numpy as np\na=np.empty((2,3),dtype=object,order='F')\na[:]=[[1,'a',None],[2,'b',[3]]]\nt=a.T",
    "t[2,1].append(4)",
    check="t[0,0]='q'\nout=a.tolist(),a.flags.f_contiguous",
    needs="numpy",
)
case(
    "numpy/as_strided overlap",
    "import numpy as np\na=np.arange(10.)\nw=np.lib.stride_tricks.as_strided(a,(8,3),(8,8))",
    "a[3]=99",
    check="w[0,0]=-1\nout=w.tolist(),a.tolist()",
    needs="numpy",
)
case(
    "numpy/sliding window",
    "import numpy as np\na=np.arange(6.)\nw=np.lib.stride_tricks.sliding_window_view(a,3)",
    "a[2]=9",
    check="a[3]=8\nout=w.tolist(),w.flags.writeable",
    needs="numpy",
)
case(
    "numpy/readonly base writable view big",
    "import numpy as np\na=np.zeros(200_000)\nv=a[10:]\na.flags.writeable=False",
    "v[0]=3",
    check="v[1]=4\nout=a[10],a[11],a.flags.writeable,v.flags.writeable",
    needs="numpy",
)
case(
    "numpy/masked shared mask",
    "import numpy as np\nm=np.ma.array([1,2,3],mask=[0,1,0])\nv=m[1:]\nk=m.mask",
    "m[0]=np.ma.masked",
    check="m[2]=np.ma.masked\nout=str(m),str(v),list(map(bool,k)),m.fill_value.item(),m.hardmask",
    needs="numpy",
)
case(
    "numpy/masked structured",
    "import numpy as np\nm=np.ma.array([(1,2.)],mask=[(0,1)],dtype=[('a',int),('b',float)])\nm.fill_value=(7,8.)",
    check="out=str(m),str(m.filled()),m.fill_value.item()",
    needs="numpy",
)
case(
    "numpy/mvoid, nditer",
    "import numpy as np\nm=np.ma.array([(1,2.)],mask=[(0,1)],dtype=[('a',int),('b',float)])[0]",
    check="out=str(m)",
    needs="numpy",
)
case(
    "numpy/generator spawn",
    "import numpy as np\nr=np.random.Generator(np.random.PCG64(4))\nb=r.bit_generator\nr.random(3)",
    "b.random_raw()",
    check="out=r.random(),b.random_raw(),r.bit_generator is b",
    needs="numpy",
)
case(
    "numpy/seedsequence",
    "import numpy as np\ns=np.random.SeedSequence(5)\nc=s.spawn(2)",
    check="out=s.spawn(1)[0].generate_state(1).tolist(),c[1].generate_state(1).tolist()",
    needs="numpy",
)
case(
    "numpy/mt19937 shared",
    "import numpy as np\nb=np.random.MT19937(3)\nr1=np.random.Generator(b)\nr2=np.random.RandomState(b)",
    "r1.random()",
    check="out=r2.rand(),r1.random()",
    needs="numpy",
)
case(
    "numpy/char array",
    "import numpy as np\nc=np.char.array(['ab','c '])",
    check="out=c.upper().tolist(),type(c).__name__",
    needs="numpy",
)
case(
    "numpy/flatiter",
    "import numpy as np\na=np.arange(4)\nf=a.flat\nnext(f)",
    check="out=list(map(int,f))",
    reported=True,
    needs="numpy",
)
case(
    "numpy/ndenumerate",
    "import numpy as np\ni=np.ndenumerate(np.arange(3))\nnext(i)",
    check="out=[(k,int(v)) for k,v in i]",
    reported=True,
    needs="numpy",
)
case(
    "numpy/broadcast obj",
    "import numpy as np\nb=np.broadcast(np.arange(2),np.zeros((2,1)))\nnext(b)",
    check="out=b.index,b.shape",
    reported=True,
    needs="numpy",
)
case(
    "numpy/dtype metadata",
    "import numpy as np\nd=np.dtype('i4',metadata={'a':1})\na=np.zeros(2,d)",
    check="out=dict(d.metadata),dict(a.dtype.metadata)",
    needs="numpy",
)
case(
    "numpy/datetime nat",
    "import numpy as np\na=np.array(['2020','NaT'],'M8[s]')",
    check="out=str(a)",
    needs="numpy",
)
case(
    "numpy/zero stride writable",
    "import numpy as np\na=np.lib.stride_tricks.as_strided(np.zeros(1),(3,),(0,))",
    "a[0]=5",
    check="a[1]=7\nout=a.tolist()",
    needs="numpy",
)
case(
    "numpy/negative strided view 2d",
    "import numpy as np\na=np.arange(6.).reshape(2,3)\nv=a[::-1,::-1]",
    "v[0,0]=9",
    check="v[1,2]=8\nout=a.tolist(),v.base is a",
    needs="numpy",
)
case(
    "numpy/view of view deleted base",
    "import numpy as np\na=np.arange(12.)\nv=a.reshape(3,4)[1:]\nw=v[:, 1:3]\ndel a",
    "w[0,0]=9",
    check="w[1,1]=8\nout=v.tolist()",
    needs="numpy",
)
case(
    "numpy/over memoryview of bytearray",
    "import numpy as np\nb=bytearray(16)\nm=memoryview(b)\na=np.frombuffer(m,'i4')",
    "a[0]=5",
    check="a[1]=6\nout=bytes(b),bytes(m)",
    needs="numpy",
)
case(
    "numpy/overlapping ctypes",
    "import numpy as np\nimport ctypes\nc=(ctypes.c_double*3)(1,2,3)\na=np.ctypeslib.as_array(c)",
    "a[0]=9",
    check="c[1]=8\nout=list(c),a.tolist()",
    needs="numpy",
)
case(
    "numpy/array interface holder",
    "import numpy as np\nclass H:\n    def __init__(s,a): s.a=a; s.__array_interface__=a.__array_interface__\nbase=np.arange(4.)\nh=H(base)\nx=np.asarray(h)",
    "x[0]=7",
    check="base[1]=9\nout=x.tolist(),base.tolist()",
    needs="numpy",
)
case(
    "numpy/shared memory",
    "import numpy as np\nfrom multiprocessing import shared_memory\ns=shared_memory.SharedMemory(create=True,size=64)\na=np.ndarray(8,'f8',buffer=s.buf)\na[:]=3",
    check="out=a.sum()\ntry:\n    s.close(); s.unlink()\nexcept Exception: pass",
    reported=True,
    needs="numpy",
)
case(
    "numpy/longdouble",
    "import numpy as np\na=np.array([1,2],dtype=np.longdouble)/3",
    check="out=repr(a),a.dtype.itemsize",
    needs="numpy",
)
case(
    "numpy/errstate ctx held",
    "import numpy as np\ne=np.errstate(all='ignore')",
    check="out=type(e).__name__",
    needs="numpy",
)
case(
    "numpy/frompyfunc",
    "import numpy as np\nk=3\nu=np.frompyfunc(lambda x:x*k,1,1)",
    check="out=u(np.array([1,2])).tolist()",
    needs="numpy",
)
case(
    "scipy/formats",
    "import scipy.sparse as s\nms=[s.random(5,5,.5,f,random_state=1) for f in ('csr','csc','coo','lil','dok','dia','bsr')]",
    check="out=[(type(m).__name__,m.toarray().round(3).tolist()) for m in ms]",
    needs="scipy",
)
case(
    "scipy/csr shares indices",
    "import scipy.sparse as s\nm=s.random(5,5,.5,'csr',random_state=1)\nn=s.csr_matrix((m.data,m.indices,m.indptr),shape=m.shape,copy=False)",
    "m.data[0]=9",
    check="m.data[1]=8\nout=n.toarray().tolist()==m.toarray().tolist()",
    needs="scipy",
)
case(
    "scipy/kdtree",
    "import numpy as np\nfrom scipy.spatial import cKDTree\nt=cKDTree(np.arange(10.).reshape(5,2))",
    check="out=t.query([1,1])[1].item(),t.data.tolist()",
    needs="scipy",
)
case(
    "scipy/spline",
    "from scipy.interpolate import CubicSpline\nc=CubicSpline([0,1,2],[0,1,0])",
    check="out=float(c(.5))",
    needs="scipy",
)
case(
    "scipy/rv_frozen with rng",
    "import numpy as np, scipy.stats as s\nn=s.norm()\nn.random_state=np.random.RandomState(3)\nn.rvs()",
    check="out=float(n.rvs())",
    needs="scipy",
)
case(
    "sklearn/pipeline cache attr",
    "import numpy as np\nrng=np.random.RandomState(0)\nX=rng.rand(40,3)\ny=(X[:,0]>.5).astype(int)\nfrom sklearn.pipeline import Pipeline\nfrom sklearn.preprocessing import FunctionTransformer, StandardScaler\nfrom sklearn.linear_model import LogisticRegression\nk=2.\np=Pipeline([('f',FunctionTransformer(lambda a:a*k)),('s',StandardScaler()),('l',LogisticRegression())]).fit(X,y)",
    "k=3.",
    check="out=p.predict_proba(X)[0].round(9).tolist(),p.named_steps['s'] is p.steps[1][1]",
    needs="numpy sklearn",
)
case(
    "sklearn/column transformer",
    "import numpy as np\nrng=np.random.RandomState(0)\nX=rng.rand(40,3)\ny=(X[:,0]>.5).astype(int)\nimport pandas as pd\nfrom sklearn.compose import ColumnTransformer\nfrom sklearn.preprocessing import OneHotEncoder,StandardScaler\nd=pd.DataFrame({'a':list('xyxy'),'b':[1.,2,3,4]})\nc=ColumnTransformer([('o',OneHotEncoder(),['a']),('s',StandardScaler(),['b'])]).fit(d)",
    check="out=c.transform(d).tolist()",
    needs="numpy sklearn pandas",
)
case(
    "sklearn/grid search",
    "import numpy as np\nrng=np.random.RandomState(0)\nX=rng.rand(40,3)\ny=(X[:,0]>.5).astype(int)\nfrom sklearn.model_selection import GridSearchCV,KFold\nfrom sklearn.svm import SVC\ng=GridSearchCV(SVC(),{'C':[1,2]},cv=KFold(2,shuffle=True,random_state=1)).fit(X,y)",
    check="out=g.best_params_,g.best_score_,g.predict(X[:3]).tolist()",
    needs="numpy sklearn",
)
case(
    "sklearn/warm start partial fit",
    "import numpy as np\nrng=np.random.RandomState(0)\nX=rng.rand(40,3)\ny=(X[:,0]>.5).astype(int)\nfrom sklearn.linear_model import SGDClassifier\nm=SGDClassifier(random_state=0)\nm.partial_fit(X,y,classes=[0,1])",
    "m.partial_fit(X,y)",
    check="m.partial_fit(X,y)\nout=m.coef_.tolist()",
    needs="numpy sklearn",
)
case(
    "sklearn/shared randomstate",
    "import numpy as np\nrng=np.random.RandomState(0)\nX=rng.rand(40,3)\ny=(X[:,0]>.5).astype(int)\nfrom sklearn.ensemble import RandomForestClassifier\nm=RandomForestClassifier(3,random_state=rng)",
    "m.fit(X,y)",
    check="m.fit(X,y)\nout=m.predict(X).tolist(),rng.rand()",
    needs="numpy sklearn",
)
case(
    "torch/forward hook",
    "import torch\ntorch.manual_seed(0)\nl=[]\nm=torch.nn.Linear(2,2)\nh=m.register_forward_hook(lambda mod,i,o:l.append(1))",
    "m(torch.ones(1,2))\nNone",
    check="m(torch.ones(1,2))\nh.remove()\nm(torch.ones(1,2))\nout=l",
    needs="torch",
)
case(
    "torch/backward hook on param",
    "import torch\ntorch.manual_seed(0)\nl=[]\nw=torch.ones(2,requires_grad=True)\nh=w.register_hook(lambda g:l.append(g.tolist()))",
    "(w*2).sum().backward()",
    check="(w*3).sum().backward()\nout=l,w.grad.tolist()",
    needs="torch",
)
case(
    "torch/adam, scheduler",
    "import torch\ntorch.manual_seed(0)\nm=torch.nn.Sequential(torch.nn.Linear(2,3),torch.nn.BatchNorm1d(3),torch.nn.Dropout(.5),torch.nn.Linear(3,1))\no=torch.optim.Adam(m.parameters(),lr=.1)\ns=torch.optim.lr_scheduler.StepLR(o,1,.5)\nx=torch.randn(8,2)",
    "for _ in range(2):\n    o.zero_grad(); (m(x)**2).mean().backward(); o.step(); s.step()",
    check="o.zero_grad(); (m(x)**2).mean().backward(); o.step(); s.step()\nout=m[0].weight.tolist(),m[1].running_mean.tolist(),s.get_last_lr(),s.optimizer is o,o.param_groups[0]['params'][0] is m[0].weight",
    needs="torch",
)
case(
    "torch/tied weights",
    "import torch\ntorch.manual_seed(0)\ne=torch.nn.Embedding(4,3)\nd=torch.nn.Linear(3,4,bias=False)\nd.weight=e.weight",
    "with torch.no_grad(): e.weight[0,0]=5",
    check="with torch.no_grad(): e.weight[1,0]=6\nout=d.weight[:2,0].tolist(),d.weight is e.weight",
    needs="torch",
)
case(
    "torch/view with grad leaf",
    "import torch\ntorch.manual_seed(0)\nw=torch.zeros(4,requires_grad=True)\nv=w.detach()[1:3]",
    "v[0]=5",
    check="v[1]=6\nout=w.tolist(),w.requires_grad",
    needs="torch",
)
case(
    "torch/expand",
    "import torch\ntorch.manual_seed(0)\na=torch.arange(3.)\ne=a.expand(2,3)",
    "a[0]=9",
    check="a[1]=8\nout=e.tolist(),e.stride()",
    needs="torch",
)
case(
    "torch/conj view",
    "import torch\ntorch.manual_seed(0)\na=torch.tensor([1+2j])\nc=a.conj()",
    "a[0]=3+4j",
    check="out=c.tolist()",
    needs="torch",
)
case(
    "torch/numpy view of torch view",
    "import torch\ntorch.manual_seed(0)\na=torch.zeros(6)\nn=a[2:].numpy()\nm=n[::2]",
    "m[0]=5",
    check="m[1]=6\nout=a.tolist()",
    needs="torch",
)
case(
    "torch/parameter list",
    "import torch\ntorch.manual_seed(0)\np=torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1)) for _ in range(2)])\nq=p[0]",
    "with torch.no_grad(): q.fill_(3)",
    check="with torch.no_grad(): q.fill_(4)\nout=[x.tolist() for x in p],q is p[0]",
    needs="torch",
)
case(
    "torch/grad mode, device",
    "import torch\ntorch.manual_seed(0)\ntorch.set_grad_enabled(False)",
    check="out=torch.is_grad_enabled()\ntorch.set_grad_enabled(True)",
    needs="torch",
)
case(
    "torch/packed sequence",
    "import torch\ntorch.manual_seed(0)\np=torch.nn.utils.rnn.pack_sequence([torch.ones(2),torch.ones(1)])",
    check="out=p.data.tolist(),p.batch_sizes.tolist()",
    needs="torch",
)
case(
    "torch/autograd function class",
    "import torch\ntorch.manual_seed(0)\nclass F(torch.autograd.Function):\n    @staticmethod\n    def forward(c,x): return x*2\n    @staticmethod\n    def backward(c,g): return g*7\nw=torch.ones(1,requires_grad=True)",
    check="F.apply(w).sum().backward()\nout=w.grad.tolist()",
    needs="torch",
)
case(
    "torch/distribution",
    "import torch\ntorch.manual_seed(0)\nd=torch.distributions.Normal(torch.zeros(1),1.)",
    check="torch.manual_seed(1)\nout=d.sample().tolist()",
    needs="torch",
)
case(
    "torch/deep copy buffer",
    "import torch\ntorch.manual_seed(0)\nclass M(torch.nn.Module):\n    def __init__(s):\n        super().__init__()\n        s.register_buffer('b',torch.zeros(2))\n        s.c=s.b[1:]\nm=M()",
    "m.c[0]=5",
    check="m.c[0]=6\nout=m.b.tolist()",
    needs="torch",
)
case(
    "torch/sampler iterator",
    "import torch\ntorch.manual_seed(0)\nfrom torch.utils.data import DataLoader\ng=torch.Generator().manual_seed(3)\nd=DataLoader(range(6),batch_size=2,shuffle=True,generator=g)\nlist(d)",
    check="out=[b.tolist() for b in d]",
    needs="torch",
)
case(
    "torch/tensor subclass",
    "import torch\ntorch.manual_seed(0)\nclass Q(torch.Tensor): pass\nq=torch.ones(2).as_subclass(Q)\nq.tag='x'",
    check="out=type(q) is Q,q.tolist(),getattr(q,'tag',None)",
    needs="torch",
)
case(
    "torch/tensor in set",
    "import torch\ntorch.manual_seed(0)\nt=torch.ones(1)\ns={t}\nd={t:1}",
    check="out=t in s,d[t]",
    needs="torch",
)
case(
    "class/dataclass slots frozen",
    "from dataclasses import dataclass\n@dataclass(frozen=True,slots=True)\nclass P:\n    x:int\n    l:list\np=P(1,[2])\nq=p.l",
    "q.append(3)",
    check="q.append(4)\nout=p.l,hash(P(1,2)) is not None,p==P(1,[2,3,4])",
    since=(3, 10),
)
case(
    "class/dataclass kw inherit",
    "from dataclasses import dataclass,field,fields\n@dataclass(order=True)\nclass A:\n    x:int=1\n@dataclass\nclass B(A):\n    y:dict=field(default_factory=dict,compare=False)\nb=B(2)",
    "b.y['k']=b",
    check="out=b.y['k'] is b,[f.name for f in fields(b)],A(1)<A(2)",
)
case(
    "class/slots inheritance weakref",
    "import weakref\nclass S:\n    __slots__=('a','__weakref__')\nclass T(S):\n    __slots__=('b','__dict__')\nt=T()\nt.a=[1]\nt.b=t.a\nt.c=3\nr=weakref.ref(t)",
    "t.a.append(2)",
    check="out=t.b,t.b is t.a,t.c,r() is t",
)
case(
    "class/enum with methods",
    "import enum\nclass C(enum.IntFlag):\n    A=1\n    B=2\nclass D(str,enum.Enum):\n    X='x'\n    def up(s): return s.upper()\nc=C.A|C.B\nd=D.X\nm={C.A:d}",
    check="out=c==3,type(c) is C,d.up(),m[C.A] is D.X,d=='x'",
)
case(
    "class/enum auto alias",
    "import enum\nclass C(enum.Enum):\n    A=enum.auto()\n    B=A\n    Z=[1,2]\nx=C.Z",
    "C.Z.value.append(3)",
    check="out=C.B is C.A,x.value,x is C.Z",
)
case(
    "class/metaclass registry",
    "class M(type):\n    reg={}\n    def __new__(m,n,b,d):\n        c=super().__new__(m,n,b,d); m.reg[n]=c; return c\nclass A(metaclass=M): pass\nclass B(A): pass",
    check="out=sorted(M.reg),M.reg['B'] is B",
)
case(
    "class/init_subclass",
    "class A:\n    subs=[]\n    def __init_subclass__(c,**k): super().__init_subclass__(**k); A.subs.append(c)\nclass B(A): pass",
    "class C(B): pass",
    check="out=[c.__name__ for c in A.subs],A.subs[0] is B,A.subs[1] is C",
)
case(
    "class/init_subclass tells a variable",
    "seen=[]\nclass A:\n    def __init_subclass__(c,unit='m',**k):\n        super().__init_subclass__(**k)\n        c.unit=unit\n        seen.append(c.__name__)\nclass B(A,unit='ft'): pass\nclass C(B): pass\nx=C()",
    "seen.append(1)",
    check="class D(C,unit='in'): pass\nout=seen,B.unit,C.unit,D.unit,x.unit,type(x) is C",
)
case(
    "class/init_subclass of a generic class and of an enumeration",
    "import enum,typing\nseen=[]\nT=typing.TypeVar('T')\nclass H:\n    def __init_subclass__(c,**k): super().__init_subclass__(**k); seen.append(c.__name__)\nclass A(H,typing.Generic[T]): pass\nclass B(A[int]): pass\nclass E(H,enum.Enum):\n    X=1\ne=E.X",
    "seen.append(1)",
    check="out=seen,A.__parameters__,B.__orig_bases__,A[str],E(1) is e",
)
case(
    "class/metaclass tells a variable",
    "seen=[]\nclass M(type):\n    def __new__(m,n,b,d,**k):\n        seen.append(n)\n        return super().__new__(m,n,b,d)\n    def __init__(c,n,b,d,**k):\n        super().__init__(n,b,d)\n        c.size=len(k)\n        seen.append(len(seen))\nclass A(metaclass=M,u=1): pass\nclass B(A,u=1,v=2): pass\nx=B()",
    "seen.append(1)",
    check="class C(B): pass\nout=seen,A.size,B.size,C.size,type(B) is M,type(x) is B",
)
case(
    "class/metaclass over abc tells a variable",
    "import abc\nseen=[]\nclass M(abc.ABCMeta):\n    def __init__(c,n,b,d): seen.append(n); super().__init__(n,b,d)\nclass A(metaclass=M):\n    @abc.abstractmethod\n    def f(s): ...\nclass B(A):\n    def f(s): return 1\nA.register(int)\nx=B()",
    "seen.append(1)",
    check="out=seen,isinstance(3,A),A.__abstractmethods__,x.f()",
)
case(
    "class/descriptor set_name",
    "class D:\n    def __set_name__(s,o,n): s.n='_'+n\n    def __get__(s,o,t=None): return getattr(o,s.n,None) if o else s\n    def __set__(s,o,v): setattr(o,s.n,v)\nclass A:\n    x=D()\na=A()\na.x=[1]",
    check="out=a.x,a.__dict__,A.x.n",
)
case(
    "class/abc register",
    "import abc\nclass A(abc.ABC): pass\nclass B: pass\nA.register(B)\nA.register(int)\nb=B()",
    check="out=isinstance(b,A),isinstance(3,A)",
)
case(
    "class/singleton via new",
    "class S:\n    _i=None\n    def __new__(c):\n        if c._i is None: c._i=super().__new__(c); c._i.n=0\n        return c._i\ns=S()\ns.n=5",
    "S().n+=1",
    check="out=S() is s,s.n",
)
case(
    "class/own getattribute",
    "class A:\n    def __getattribute__(s,n):\n        if n=='boom': raise RuntimeError\n        return object.__getattribute__(s,n)\na=A()\na.x=1",
    check="out=a.x",
)
case(
    "class/own setattr logs",
    "log=[]\nclass A:\n    def __setattr__(s,n,v): log.append(n); object.__setattr__(s,n,v)\na=A()\na.x=1",
    "y=1",
    check="out=log,a.x",
)
case(
    "class/hash by content mutated",
    "class K:\n    def __init__(s,v): s.v=v\n    def __hash__(s): return hash(s.v)\n    def __eq__(s,o): return s.v==o.v\nk=K(1)\nd={k:'a'}",
    "k.v=2",
    check="out=len(d),d.get(K(2)),d.get(k),list(d)[0] is k",
    reported=True,
)
case(
    "class/cyclic hash",
    "class N:\n    def __init__(s,n): s.n=n; s.e=set()\n    def __hash__(s): return hash(s.n)\n    def __eq__(s,o): return s.n==o.n\na,b=N('a'),N('b')\na.e.add(b)\nb.e.add(a)",
    check="out=[x.n for x in a.e],a in b.e,b in a.e",
    reported=True,
)
case(
    "class/generic new style",
    "class B[T]:\n    def __init__(s,x:T): s.x=x\nb=B[int](3)\ntype A=list[int]",
    check="out=b.x,type(b) is B,str(A.__value__)",
    since=(3, 12),
    reported=True,
)
case(
    "class/class cell super zero arg",
    "class A:\n    def f(s): return 'A'\nclass B(A):\n    def f(s): return __class__.__name__+super().f()\nb=B()\nf=b.f",
    "B.g=lambda s:'g'",
    check="out=f(),b.g(),f.__self__ is b",
)
case(
    "class/function wrapped by class",
    "class Deco:\n    def __init__(s,f): s.f=f; s.n=0\n    def __call__(s,*a): s.n+=1; return s.f(*a)\n@Deco\ndef h(x): return x+k\nk=1\nh(1)",
    "h(2)",
    check="out=h(3),h.n",
)
case(
    "class/property replaced later",
    "class A:\n    @property\n    def p(s): return 1\na=A()",
    "A.p=property(lambda s:2)",
    check="out=a.p",
)
hidden(
    "class/monkeypatched library function",
    "import textwrap\n_old=textwrap.shorten\ntextwrap.shorten=lambda *a,**k:'patched'",
    change="pass",
    reported=True,
    check="out=textwrap.shorten('aaa',3)",
)
case(
    "class/instance of local class in closure",
    "def mk():\n    class L:\n        n=0\n        def inc(s): L.n+=1; return L.n\n    return L()\na=mk()\na.inc()",
    "a.inc()",
    check="out=a.inc()",
)
case(
    "class/typing namedtuple nested",
    "from typing import NamedTuple\nclass P(NamedTuple):\n    l:list\nl=[1]\np=P(l)\nq=p._replace()",
    "l.append(2)",
    check="l.append(3)\nout=p.l,q.l,p.l is q.l",
)
case(
    "class/typed dict, literal, paramspec",
    "from typing import TypedDict,Literal,Protocol,runtime_checkable\nclass T(TypedDict,total=False):\n    a:int\n@runtime_checkable\nclass Pr(Protocol):\n    def f(s): ...\nclass I:\n    def f(s): pass\ni=I()\nt:T={'a':1}",
    check="out=t,T.__total__,isinstance(i,Pr)",
)
case(
    "class/typed dicts by inheritance and by a call",
    "from typing import TypedDict\nclass M(TypedDict):\n    'a film'\n    name:str\nclass Y(M,total=False):\n    year:int\nF=TypedDict('F',{'a b':int})",
    check="out=sorted(Y.__required_keys__),sorted(Y.__optional_keys__),Y.__total__,list(Y.__annotations__),F(**{'a b':1}),F.__annotations__,M.__doc__,type(Y) is type(M)",
)
case(
    "function/cyclic closures",
    "def mk():\n    def a(n): return b(n-1) if n else 'a'\n    def b(n): return a(n-1) if n else 'b'\n    return a,b\na,b=mk()",
    check="out=a(3),b(2),a.__closure__[0].cell_contents is b",
)
case(
    "function/partial method nested",
    "import functools\nclass A:\n    def m(s,x,y): s.l.append((x,y)); return s.l\n    h=functools.partialmethod(m,1)\na=A()\na.l=[]\np=functools.partial(a.h)",
    "p(2)",
    check="out=p(3),a.l is p(4)",
)
case(
    "function/cache with content",
    "import functools\ncalls=[]\n@functools.cache\ndef f(x): calls.append(x); return x\nf(1)",
    "f(1)",
    check="f(1)\nout=f(1),len(calls)>=1,set(calls)",
)
case(
    "function/lru method on class",
    "import functools\nclass A:\n    @functools.lru_cache(None)\n    def f(s,x): return x*2\na=A()\na.f(2)",
    check="out=a.f(3)",
)
case(
    "function/generator mid with finally",
    "l=[]\ndef g():\n    try:\n        yield 1\n        yield 2\n    finally: l.append('closed')\nx=g()\nnext(x)",
    check="out=next(x),l",
)
case(
    "function/generator sent values",
    "def g():\n    t=0\n    while True:\n        t+=(yield t) or 0\nx=g()\nnext(x)\nx.send(5)",
    "x.send(7)",
    check="out=x.send(1)",
)
case(
    "function/generator holding file",
    "open('gf.txt','w').write('a\\nb\\nc\\n')\ndef g():\n    with open('gf.txt') as h:\n        for line in h: yield line\nx=g()\nnext(x)",
    check="out=list(x)",
    reported=True,
)
case(
    "function/chained iterators",
    "import itertools\nl=[1,2,3,4,5,6]\ni=iter(l)\nz=zip(i,i)\nc=itertools.chain([0],i)\nnext(z)",
    check="out=next(c),next(z),list(c)",
)
case(
    "function/itertools many",
    "import itertools as t\nxs=[t.islice(range(9),2,8,2),t.cycle([1,2]),t.accumulate([1,2,3]),t.groupby('aab'),t.permutations([1,2,3]),t.product('ab',[1]),t.compress('abc',[1,0,1]),t.starmap(pow,[(2,3)]),t.takewhile(bool,[1,0]),t.repeat(3,4),t.zip_longest('a','bc')]\nfor x in xs: next(x)",
    check="out=[list(t.islice(((k if not isinstance(k,tuple) or not hasattr(k[1],'__next__') else k[0]) for k in x),3)) for x in xs]",
)
case(
    "function/iter over dict mutated",
    "d={'a':1,'b':2,'c':3}\ni=iter(d.items())\nnext(i)",
    "d['a']=9",
    check="out=list(i)",
)
case(
    "function/set iterator",
    "s={1,2,3}\ni=iter(s)\nnext(i)",
    check="out=sorted(i)",
)
case(
    "function/callable iterator",
    "l=[3,2,1,0]\ni=iter(l.pop,2)",
    check="out=list(i)",
)
case(
    "function/reversed dict, range iter",
    "r=iter(range(5))\nnext(r)\ns=reversed({'a':1,'b':2})\nnext(s)",
    check="out=list(r),list(s)",
)
case(
    "function/async gen",
    "async def a():\n    yield 1\nx=a()",
    check="out=type(x).__name__",
    reported=True,
)
case(
    "function/context manager obj",
    "import contextlib\n@contextlib.contextmanager\ndef c():\n    yield 5\ncm=c()",
    check="with cm as v: pass\nout=v",
    reported=True,
)
case(
    "function/exit stack",
    "import contextlib\nl=[]\ns=contextlib.ExitStack()\ns.callback(l.append,1)",
    check="s.close()\nout=l",
    reported=True,
)
case(
    "function/defaults mutated by setattr",
    "def f(x=[]): return x\nf.__defaults__=([1],)",
    "f.__defaults__[0].append(2)",
    check="out=f()",
)
case(
    "function/code replaced",
    "def f(): return 1\ndef g(): return 2",
    "f.__code__=g.__code__",
    check="out=f()",
)
case(
    "function/function kwdefaults, dict",
    "def f(*,k=[0]): return k\nf.x=f",
    "f.__kwdefaults__['k'].append(1)",
    check="out=f(),f.x is f",
)
case(
    "function/global from exec namespace",
    "ns={'k':1}\nexec('def f(): return k\\ndef s(v):\\n    global k\\n    k=v',ns)\nf,s=ns['f'],ns['s']",
    "s(5)",
    check="s(6)\nout=f(),ns['k']",
    reported=True,
)
case(
    "function/method of builtin",
    "l=[3,1]\nf=l.sort\ng=str.upper\nh='abc'.replace\nk={}.get",
    check="f()\nout=l,g('a'),h('a','b'),k(1)",
)
case(
    "function/singledispatch method",
    "import functools\nclass A:\n    @functools.singledispatchmethod\n    def f(s,x): return 'any'\n    @f.register\n    def _(s,x:int): return 'int'\na=A()",
    check="out=a.f(1),a.f('')",
)
case(
    "stdlib/array typecodes",
    "import array\na=array.array('q',range(100000))\nm=memoryview(a)\nb=m[5:7]",
    "b[0]=77",
    check="b[1]=78\nout=a[5],a[6],m.obj is a",
)
case(
    "stdlib/memoryview cast 2d",
    "b=bytearray(range(12))\nm=memoryview(b).cast('B',(3,4))",
    "m[1,1]=99",
    check="m[2,2]=98\nout=bytes(b),m.shape",
)
case(
    "stdlib/memoryview released",
    "m=memoryview(b'abc')\nm.release()",
    check="try:\n    m[0]; out='no'\nexcept ValueError: out='released'",
)
case(
    "stdlib/memoryview negative stride",
    "b=bytearray(b'abcdef')\nm=memoryview(b)[::-2]",
    "m[0]=90",
    check="out=m.tolist(),bytes(b)",
    reported=True,
)
case(
    "stdlib/ctypes struct",
    "import ctypes\nclass P(ctypes.Structure):\n    _fields_=[('x',ctypes.c_int),('y',ctypes.c_double)]\np=P(1,2.)\nq=ctypes.pointer(p)",
    "q.contents.x=5",
    check="p.x=6\nout=p.x,p.y,q.contents.x",
    reported=True,
)
case(
    "stdlib/ctypes buffer",
    "import ctypes\nb=ctypes.create_string_buffer(b'abc',8)\nv=memoryview(b)",
    "b[0]=b'z'",
    check="b[1]=b'y'\nout=b.raw,bytes(v)",
    reported=True,
)
case(
    "stdlib/ctypes callback",
    "import ctypes\nF=ctypes.CFUNCTYPE(ctypes.c_int,ctypes.c_int)\nf=F(lambda x:x+1)",
    check="out=f(3)",
    reported=True,
)
case(
    "stdlib/mmap file",
    "import mmap\nopen('mm.txt','wb').write(b'abcdef')\nh=open('mm.txt','r+b')\nm=mmap.mmap(h.fileno(),0)\nm.seek(2)",
    check="out=m.read(2)",
    reported=True,
)
case(
    "stdlib/decimal local context",
    "import decimal\nc=decimal.Context(prec=5)\nd=decimal.getcontext()\nd.prec=9\nd.traps[decimal.Inexact]=True",
    check="out=c.prec,decimal.getcontext().prec,decimal.getcontext().traps[decimal.Inexact]\ndecimal.getcontext().traps[decimal.Inexact]=False",
)
case(
    "stdlib/decimal rounding",
    "import decimal\ndecimal.getcontext().rounding=decimal.ROUND_UP\ndecimal.getcontext().prec=3",
    check="out=decimal.Decimal(1)/decimal.Decimal(3)",
)
case(
    "stdlib/locale",
    "import locale\nlocale.setlocale(locale.LC_NUMERIC,'C.UTF-8')\nlocale.setlocale(locale.LC_CTYPE,'C')",
    check="out=locale.setlocale(locale.LC_CTYPE)",
)
case(
    "stdlib/signal handler",
    "import signal\nhits=[]\ndef h(*a): hits.append(1)\nsignal.signal(signal.SIGUSR2,h)",
    check="import os,time\nhh=signal.getsignal(signal.SIGUSR2)\nout=callable(hh) and hh is h\nsignal.signal(signal.SIGUSR2,signal.SIG_DFL)",
    reported=True,
)
case(
    "stdlib/excepthook",
    "import sys\ndef eh(*a): pass\nsys.excepthook=eh",
    check="out=sys.excepthook is eh\nsys.excepthook=sys.__excepthook__",
    reported=True,
)
case(
    "stdlib/logging handler",
    "import logging,io\ns=io.StringIO()\nlg=logging.getLogger('q.adv')\nlg.setLevel(10)\nhd=logging.StreamHandler(s)\nhd.setFormatter(logging.Formatter('%(message)s!'))\nlg.addHandler(hd)\nlg.propagate=False\nlg.info('a')",
    check="lg.info('b')\nout=s.getvalue(),len(lg.handlers)",
)
case(
    "stdlib/logging handler unnamed",
    "import logging\nlogging.getLogger('q.adv2').addHandler(logging.NullHandler())\nlogging.basicConfig(level=logging.ERROR,format='X%(message)s',force=True)",
    check="out=len(logging.getLogger('q.adv2').handlers),logging.root.level,[h.formatter._fmt for h in logging.root.handlers if h.formatter]",
)
case(
    "stdlib/logging to a file",
    "import logging,tempfile\nname=tempfile.mkstemp()[1]\nlg=logging.getLogger('q.adv3')\nlg.setLevel(10)\nlg.addHandler(logging.FileHandler(name))\nlg.handlers[0].setFormatter(logging.Formatter('{levelname}:{message}',style='{'))",
    "lg.info('one')",
    check="had=len(open(name).read())\nlg.info('two')\nout=open(name).read()[had:],lg.handlers[0].formatter._fmt",
)
case(
    "stdlib/a logging handler that is no plain one",
    "import logging\nclass H(logging.Handler):\n    def emit(self,r): pass\nlogging.getLogger('q.adv4').addHandler(H())",
    check="out=len(logging.getLogger('q.adv4').handlers)",
    reported=True,
)
case(
    "stdlib/warnings filters order",
    "import warnings\nwarnings.resetwarnings()\nwarnings.simplefilter('error',DeprecationWarning)\nwarnings.filterwarnings('ignore','x.*',UserWarning,'mod',7)",
    check="out=[(f[0],getattr(f[1],'pattern',f[1]),f[2].__name__,getattr(f[3],'pattern',f[3]),f[4]) for f in warnings.filters]\nwarnings.resetwarnings()",
)
case(
    "stdlib/warnings own category",
    "import warnings\nclass W(UserWarning): pass\nwarnings.simplefilter('error',W)",
    check="try:\n    warnings.warn('x',W); out='no'\nexcept W: out='raised'\nwarnings.resetwarnings()",
)
case(
    "stdlib/contextvar in dict",
    "import contextvars\nv=contextvars.ContextVar('q',default=1)\nt=v.set(5)\nc=contextvars.copy_context()",
    check="out=v.get(),c[v]",
    reported=True,
)
case(
    "stdlib/threading local",
    "import threading\nl=threading.local()\nl.x=[1]",
    check="out=l.x",
    reported=True,
)
case(
    "stdlib/barrier, semaphore",
    "import threading\ns=threading.Semaphore(2)\ns.acquire()\nb=threading.BoundedSemaphore(1)",
    check="out=s._value,b.acquire(False),b.acquire(False)",
)
case(
    "stdlib/queue with items",
    "import queue\nq=queue.PriorityQueue()\nq.put((2,'b'));q.put((1,'a'))\np=queue.LifoQueue(3)\np.put([1])",
    check="out=q.get(),p.get(),p.maxsize",
)
case(
    "stdlib/thread pool result",
    "from concurrent.futures import ThreadPoolExecutor\ne=ThreadPoolExecutor(2)\nf=e.submit(pow,2,3)\nf.result()",
    check="out=f.result()",
)
case(
    "stdlib/asyncio objects",
    "import asyncio\nq=asyncio.Queue()\nq.put_nowait(3)\nl=asyncio.Lock()\ne=asyncio.Event()\ne.set()",
    check="out=q.get_nowait(),l.locked(),e.is_set()",
)
case(
    "stdlib/asyncio loop and task",
    "import asyncio\nlp=asyncio.new_event_loop()\nasync def f(): return 4\nt=lp.create_task(f())\nlp.run_until_complete(t)",
    check="out=t.result()",
    reported=True,
)
case(
    "stdlib/sqlite file",
    "import sqlite3\nc=sqlite3.connect('q.db')\nc.execute('create table if not exists t(x)')\nc.execute('insert into t values(1)')\nc.commit()\nk=c.execute('select x from t')",
    check="out=k.fetchone()",
    reported=True,
)
case(
    "stdlib/sqlite in memory",
    "import sqlite3\nc=sqlite3.connect(':memory:')\nc.execute('create table t(x)')\nc.execute('insert into t values(7)')",
    check="out=c.execute('select x from t').fetchone()",
    reported=True,
)
case(
    "stdlib/socket pair",
    "import socket\na,b=socket.socketpair()\na.send(b'x')",
    check="out=b.recv(1)",
    reported=True,
)
case(
    "stdlib/popen pipe",
    "import subprocess\np=subprocess.Popen(['cat'],stdin=-1,stdout=-1)",
    check="p.stdin.write(b'x');p.stdin.close()\nout=p.stdout.read()",
    reported=True,
)
case(
    "stdlib/file rw position",
    "open('rw.txt','w').write('hello')\nh=open('rw.txt','r+')\nh.seek(2)",
    check="out=h.read()",
    reported=True,
)
case(
    "stdlib/file deleted",
    "open('del.txt','w').write('hello')\nh=open('del.txt')\nimport os\nos.remove('del.txt')",
    check="out=h.read()",
    reported=True,
)
case(
    "stdlib/file append buffered",
    "h=open('ap.txt','a')\nh.write('x')",
    check="h.write('y');h.close()\nout=open('ap.txt').read()",
    reported=True,
)
case(
    "stdlib/gzip zipfile tarfile",
    "import gzip,zipfile\nwith gzip.open('z.gz','wb') as f: f.write(b'abcdef')\ng=gzip.open('z.gz')\ng.read(2)\nwith zipfile.ZipFile('z.zip','w') as z: z.writestr('a','b')\nz=zipfile.ZipFile('z.zip')",
    check="out=g.read(),z.read('a')",
    reported=True,
)
case(
    "stdlib/text encodings",
    "open('e.txt','wb').write('äöü\\n€\\n'.encode('utf-16'))\nh=open('e.txt',encoding='utf-16')\nh.readline()",
    check="out=h.readline()",
)
case(
    "stdlib/text newline kept",
    "open('nl.txt','wb').write(b'a\\r\\nb\\r\\nc')\nh=open('nl.txt',newline='')\nh.readline()",
    check="out=h.readline()",
)
case(
    "stdlib/csv dictreader",
    "import csv\nopen('c.csv','w').write('a,b\\n1,2\\n3,4\\n')\nh=open('c.csv')\nr=csv.DictReader(h)\nnext(r)",
    check="out=dict(next(r))",
    reported=True,
)
case(
    "stdlib/random SystemRandom & Random sub",
    "import random\nclass R(random.Random): pass\nr=R(3)\nr.random()\ns=random.SystemRandom()",
    check="out=r.random(),type(s).__name__",
    reported=True,
)
case(
    "stdlib/random shuffle default",
    "import random\nrandom.seed(7)\nf=random.gauss\nf(0,1)",
    check="out=f(0,1),random.random()",
)
case(
    "stdlib/exception with traceback",
    "def boom(): raise ValueError('x',[1])\ntry: boom()\nexcept ValueError as e: err=e",
    check="out=err.args,err.__traceback__ is None",
    reported=True,
)
case(
    "stdlib/exception group",
    "e=ExceptionGroup('g',[ValueError(1),KeyError('k')])\ne.add_note('n')",
    check="out=repr(e),e.__notes__",
    since=(3, 11),
)
case(
    "stdlib/exception attrs",
    "class E(Exception):\n    def __init__(s,*,code): super().__init__(f'c{code}'); s.code=code\ne=E(code=5)\ne.data=[1]\nl=e.data",
    "l.append(2)",
    check="l.append(3)\nout=e.code,e.data,str(e)",
)
case(
    "stdlib/exception chain in list",
    "es=[]\nfor i in range(2):\n    try:\n        try: 1/0\n        except ZeroDivisionError as a: raise KeyError(i) from a\n    except KeyError as b: es.append(b)",
    check="out=[repr(e) for e in es],repr(es[0].__cause__)",
)
case(
    "stdlib/re flags & scanner",
    "import re\np=re.compile(r'(?P<a>\\w)(?i:b)',re.X)\nm=p.match('xB')\ni=p.finditer('xBxb')\nnext(i)",
    check="out=m.groupdict(),[x.span() for x in i]",
)
case(
    "stdlib/string template, textwrap",
    "import string\nt=string.Template('$a')\nf=string.Formatter()",
    check="out=t.substitute(a=1),f.format('{}',1)",
)
case(
    "stdlib/types",
    "import types\nm=types.ModuleType('qmod')\nm.x=[1]\ns=types.SimpleNamespace(m=m)\nd=types.MethodType(lambda s:s.x,m)",
    "m.x.append(2)",
    check="m.x.append(3)\nout=s.m.x,d()",
)
case(
    "stdlib/dynamic module in sys.modules",
    "import types,sys\nm=types.ModuleType('q_dyn')\nm.v=5\nsys.modules['q_dyn']=m\nimport q_dyn",
    check="out=q_dyn.v,'q_dyn' in sys.modules",
)
case(
    "stdlib/weakref finalize",
    "import weakref\nclass A: pass\na=A()\nl=[]\nf=weakref.finalize(a,l.append,1)",
    check="out=f.alive",
    reported=True,
)
case(
    "stdlib/weak value after del",
    "import weakref\nclass A: pass\na=A()\nb=A()\nd=weakref.WeakValueDictionary(a=a,b=b)",
    "del b",
    check="out=sorted(d)",
)
case(
    "stdlib/weakmethod",
    "import weakref\nclass A:\n    def m(s): return 5\na=A()\nw=weakref.WeakMethod(a.m)",
    check="out=w()()",
    reported=True,
)
case(
    "stdlib/ordered dict move",
    "from collections import OrderedDict\nd=OrderedDict(a=1,b=2)",
    "d.move_to_end('a')",
    check="out=list(d)",
)
case(
    "stdlib/defaultdict nested recursive",
    "from collections import defaultdict\ntree=lambda: defaultdict(tree)\nt=tree()",
    "t['a']['b']['c']=1",
    check="t['x']['y']\nout='y' in t['x'],t['a']['b']['c'],t.default_factory is tree",
)
case(
    "stdlib/userdict, userlist",
    "from collections import UserDict,UserList\nu=UserDict(a=[1])\nl=UserList([u])",
    "u['a'].append(2)",
    check="u['a'].append(3)\nout=l[0]['a']",
)
case(
    "stdlib/heapq, bisect shared",
    "import heapq\nh=[]\npush=lambda x:heapq.heappush(h,x)\n[push(x) for x in (3,1,2)]",
    check="push(0)\nout=h",
)
case(
    "stdlib/time struct, zone",
    "import datetime,zoneinfo\nz=zoneinfo.ZoneInfo('Europe/Berlin')\nd=datetime.datetime(2020,7,1,tzinfo=z)",
    check="out=d.isoformat(),d.tzinfo is z",
)
case(
    "stdlib/tz env",
    "import os,time\nos.environ['TZ']='Asia/Tokyo'\ntime.tzset()",
    check="out=time.tzname\nos.environ.pop('TZ');time.tzset()",
)
case(
    "stdlib/umask, nice",
    "import os\nos.umask(0o027)",
    check="u=os.umask(0o022)\nout=oct(u)",
)
case(
    "stdlib/gc config",
    "import gc\ngc.disable()\ngc.set_threshold(111,5,5)",
    check="out=gc.isenabled(),gc.get_threshold()[:1]\ngc.enable();gc.set_threshold(700,10,10)",
)
case(
    "stdlib/int max digits",
    "import sys\nsys.set_int_max_str_digits(5000)",
    check="out=sys.get_int_max_str_digits()",
    since=(3, 11),
)
case(
    "stdlib/switch interval",
    "import sys\nsys.setswitchinterval(0.01)",
    check="out=round(sys.getswitchinterval(),4)\nsys.setswitchinterval(0.005)",
)
case(
    "stdlib/sys.path_hooks meta",
    "import sys\nclass F:\n    @staticmethod\n    def find_spec(n,p=None,t=None): return None\nsys.meta_path.append(F)",
    check="out=any(getattr(f,'__name__','')=='F' for f in sys.meta_path)",
    reported=True,
)
case(
    "stdlib/builtins patched",
    "import builtins\nbuiltins.q_adv=lambda:7",
    check="out=q_adv()",
    reported=True,
)
case(
    "stdlib/stdout replaced",
    "import sys,io\nbuf=io.StringIO()\nold=sys.stdout",
    check="out=old is sys.stdout or hasattr(old,'write')",
)
case(
    "stdlib/socket default timeout",
    "import socket\nsocket.setdefaulttimeout(3.5)",
    check="out=socket.getdefaulttimeout()\nsocket.setdefaulttimeout(None)",
)
case(
    "alias/bytes shared identity",
    "b=b'x'*100000\nl=[b,b]",
    check="out=l[0] is l[1],len(l[0])",
)
case(
    "alias/tuple with list shared",
    "l=[1]\nt=(l,(l,))\nd={t[1:]and 1:t}",
    "l.append(2)",
    check="l.append(3)\nout=t,d[1] is t",
)
case(
    "alias/frozenset of mutable hash",
    "class H:\n    pass\nh=H()\nf=frozenset([h])\nh.v=1",
    check="h.v=2\nout=[x.v for x in f],h in f",
)
case(
    "alias/dict keys objects",
    "class H: pass\nh=H()\nd={h:[1]}\nk=list(d)[0]",
    "d[h].append(2)",
    check="out=d[k],k is h",
)
case(
    "alias/int subclass shared",
    "class I(int): pass\ni=I(3)\nl=[i,i]\ni.t=[1]",
    "l[0].t.append(2)",
    check="out=l[1].t,l[0] is i",
)
case(
    "alias/view in closure",
    "import numpy as np\na=np.zeros(1000)\ndef mk():\n    v=a[10:20]\n    def s(x): v[0]=x\n    return s\ns=mk()",
    "s(5)",
    check="s(6)\nout=a[10]",
    needs="numpy",
)
case(
    "alias/array in object attr and dict and list",
    "import numpy as np\nclass A: pass\na=A()\na.x=np.zeros(100000)\nd={'v':a.x[5:]}\nl=[d['v'].reshape(-1,5)]",
    "l[0][0,0]=3",
    check="l[0][0,1]=4\nout=a.x[5],a.x[6]",
    needs="numpy",
)
case(
    "alias/swap contents",
    "import numpy as np\na,b=np.zeros(100000),np.ones(100000)",
    "a,b=b,a",
    "a[0]=5",
    check="out=a[:2].tolist(),b[:2].tolist()",
    needs="numpy",
)
case(
    "alias/resize in place",
    "import numpy as np\na=np.arange(100000)",
    "a.resize(100001,refcheck=False)\na[-1]=7",
    check="out=len(a),int(a[-1])",
    needs="numpy",
)
case(
    "alias/setflags, setdtype",
    "import numpy as np\na=np.arange(4,dtype='i8')",
    "a.dtype='f8'",
    check="out=str(a.dtype),len(a)",
    needs="numpy",
)
case(
    "alias/shape set in place",
    "import numpy as np\na=np.arange(6)\nv=a[:]",
    "a.shape=(2,3)",
    check="a[1,2]=9\nout=v.tolist(),a.shape",
    needs="numpy",
)
case(
    "alias/bytearray grows",
    "b=bytearray(b'a'*70000)\nc=b",
    "b+=b'zz'",
    check="c+=b'y'\nout=len(b),b is c,bytes(b[-3:])",
)
case(
    "alias/deque shared rotate",
    "from collections import deque\nd=deque(range(5),maxlen=5)\ne={'d':d}",
    "d.rotate(2)",
    check="d.append(9)\nout=list(e['d']),e['d'].maxlen",
)
case(
    "alias/list sorted in place via key",
    "l=[[3],[1]]\nm=l[0]",
    "l.sort()",
    check="m.append(4)\nout=l",
)
case(
    "alias/del slice shared",
    "l=list(range(100))\nm={'l':l}",
    "del l[::2]",
    check="l.append(1)\nout=m['l']",
)
case(
    "alias/dict ordering",
    "d={'b':1,'a':2}",
    "d['c']=d.pop('b')",
    check="out=list(d.items())",
)
case(
    "alias/cell del var",
    "def mk():\n    x=[1]\n    def d():\n        nonlocal x\n        del x\n    def g(): return x\n    return d,g\nd,g=mk()",
    "d()",
    check="try:\n    g(); out='no'\nexcept NameError: out='gone'",
)
case(
    "matplotlib/axes twin, legend, artists",
    "import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt\nf,a=plt.subplots()\nb=a.twinx()\nl,=b.plot([1,2],label='q')\nlg=b.legend()\nim=a.imshow([[1,2]])\ncb=f.colorbar(im)",
    "l.set_color('r')\na.set_xlim(0,5)",
    check="out=b.lines[0] is l,l.get_color(),a.get_xlim(),a.figure is f,len(f.axes),cb.mappable is im",
    needs="matplotlib",
)
case(
    "matplotlib/callback",
    "import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt\nhits=[]\nf,a=plt.subplots()\nc=f.canvas.mpl_connect('draw_event',lambda e:hits.append(1))",
    check="f.canvas.draw()\nout=len(hits)",
    reported=True,
    needs="matplotlib",
)
case(
    "matplotlib/style context",
    "import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt\nplt.style.use('ggplot')",
    check="out=plt.rcParams['axes.facecolor'],str(plt.rcParams['axes.prop_cycle'])[:60]\nplt.style.use('default')",
    needs="matplotlib",
)
case(
    "matplotlib/figure numbers",
    "import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt\nplt.close('all')\nf1=plt.figure(7)\nf2=plt.figure('nm')\nplt.figure(7)",
    check="out=f1.number,plt.gcf() is f1,plt.figure('nm') is f2\nplt.close('all')",
    needs="matplotlib",
)
case(
    "matplotlib/norm cmap",
    "import matplotlib\nfrom matplotlib import colors,cm\nn=colors.Normalize(0,5)\nc=colors.ListedColormap(['r','g'])\nc.set_bad('k')",
    check="out=float(n(2.5)),c(0.9),c(float('nan'))",
    needs="matplotlib",
)
case(
    "widgets/link",
    "import ipywidgets as w\na=w.IntSlider()\nb=w.IntText()\nl=w.link((a,'value'),(b,'value'))",
    "a.value=5",
    check="a.value=7\nout=b.value",
    needs="ipywidgets",
)
case(
    "widgets/interactive",
    "import ipywidgets as w\nhits=[]\ndef f(x): hits.append(x)\ni=w.interactive(f,x=(0,5))",
    "i.children[0].value=4",
    check="i.children[0].value=2\nout=i.children[0].value,2 in hits",
    reported=True,
    needs="ipywidgets",
)
case(
    "widgets/output and layout",
    "import ipywidgets as w\nl=w.Layout(width='5px')\na=w.Text(layout=l)\nb=w.Text(layout=l)",
    "l.width='6px'",
    check="l.width='7px'\nout=a.layout.width,b.layout.width,a.layout is b.layout",
    needs="ipywidgets",
)
case(
    "widgets/traitlets hasTraits",
    "import traitlets as t\nlog=[]\nclass A(t.HasTraits):\n    x=t.Int(1)\n    @t.observe('x')\n    def o(s,c): log.append(c.new)\na=A()\na.observe(lambda c:log.append('u'),'x')",
    "a.x=2",
    check="a.x=3\nout=log,a.x",
    needs="traitlets",
)
case(
    "pillow/pil image",
    "from PIL import Image\ni=Image.new('RGB',(4,4),(1,2,3))",
    "i.putpixel((1,1),(9,9,9))",
    check="i.putpixel((2,2),(8,8,8))\nout=i.tobytes(),i.getpixel((1,1))",
    needs="PIL",
)
case(
    "pillow/pil lazy file",
    "from PIL import Image\nImage.new('L',(3,3),7).save('i.png')\ni=Image.open('i.png')",
    check="out=i.size,list(i.getdata())",
    needs="PIL",
)
case(
    "sympy/sympy",
    "import sympy as s\nx,y=s.symbols('x y')\nd=s.Dummy('d')\ne=(x+y)**2+d\nm=s.Matrix([[x,1]])",
    "m[0,1]=y",
    check="out=str(e.subs(d,0).expand()),e.has(d),str(m),x==s.Symbol('x')",
    needs="sympy",
)
case(
    "iterator/dictionary's, which grows",
    "d = {i: str(i) for i in range(5)}\ndel d[1]\nits = [iter(d), iter(d.values()), iter(d.items()), reversed(d), reversed(d.values()), reversed(d.items())]\nfor i in its: next(i)",
    check="""
seen = [(type(i).__name__, next(i)) for i in its]
d[9] = "9"
out = seen
for i in its:
    try:
        out.append(next(i))
    except RuntimeError as e:
        out.append(str(e))
""",
)
case(
    "iterator/over a dictionary that holds it",
    "d = {1: 2, 3: 4}\nd['i'] = iter(d)",
    check="out = type(d['i']).__name__, next(d['i'])",
    reported=True,
)
case(
    "iterator/used up",
    "import collections, itertools\nits = [iter({1}), iter({1: 1}), iter({1: 1}.values()), iter({1: 1}.items()), reversed({1: 1}), iter('a'), iter('\u2026'), iter(b'a'), iter(bytearray(b'a')), iter([1].pop, 1), reversed([1]), iter([1]), iter((1,)), iter(collections.OrderedDict(a=1)), iter(range(1))]\nfor i in its: list(i)\nfor _, group in itertools.groupby('ab'): list(group)\nits.append(group)",
    check="out = [(type(i).__name__, list(i)) for i in its]",
)
case(
    "iterator/group that is out of date",
    "import itertools\ng = itertools.groupby('aab')\nx = next(g)[1]\ny = next(g)[1]",
    check="out = type(x).__name__, list(x), list(y), list(g)",
)
case(
    "iterator/ordered dictionary's",
    "import collections\ni = iter(collections.OrderedDict(a=1, b=2))\nnext(i)",
    check="out = type(i).__name__, list(i)",
    reported=True,
)
case(
    "generator/not begun",
    "l = [1]\nn = 2\ndef f(a, *rest, k, more=3, **named):\n    yield a, rest, k, more, named, n\n    a.append(5)\n    yield lambda: a\ng = f(l, 4, k=6, z=7)",
    "n = 8",
    check="l.append(9)\nout = next(g), next(g)() is l, l, g.__name__, g.__qualname__, list(g)",
)
case(
    "generator/two over one iterator",
    "i = iter(range(20))\ng = (x * 2 for x in i if x % 3)\nh = (y for y in i)\nnext(g), next(h)",
    "next(g)",
    check="out = next(i), next(g), next(h), list(g), list(h)",
)
case(
    "generator/of a redefined function",
    "def f():\n    yield 1\ng = f()\ndef f():\n    yield 2",
    check="out = next(g), next(f())",
)
case(
    "generator/method of a class",
    "class A:\n    def f(self):\n        yield self\n        yield __class__\na = A()\ng = a.f()",
    check="out = next(g) is a, next(g) is A",
)
case(
    "generator/ended, closed and failed",
    "def f(a, *, k):\n    yield a\n    raise ValueError\nx, y, z = f(1, k=2), f(1, k=2), (i for i in [])\nnext(x)\ntry: next(x)\nexcept ValueError: pass\ny.close()\nlist(z)",
    check="import inspect\nout = [(g.__name__, g.gi_code.co_firstlineno, inspect.getgeneratorstate(g), list(g)) for g in (x, y, z)]",
)
case(
    "generator/closure over its loop",
    "g = ((lambda: x) for x in range(5))\na = next(g)",
    check="b = next(g)\nout = a(), b()",
    reported=True,
)
case(
    "generator/two loops",
    "g = ((x, y) for x in range(3) for y in range(3))\nnext(g), next(g)",
    check="out = list(g)",
)
case(
    "generator/in a loop over a generator",
    "def f():\n    yield from range(5)\na = f()\nnext(a)\ng = (x for x in a)\nnext(g)",
    check="out = list(g), list(a)",
)
case(
    "generator/walrus and closure",
    "def f(k):\n    def up(): nonlocal k; k += 10\n    return up, (k + x for x in range(6))\nup, g = f(1)\nh = (last := x for x in range(4))\nnext(g), next(h)",
    "up()",
    check="a = next(g)\nup()\nout = a, list(g), next(h), last",
)
case(
    "generator/sent to",
    "g = (x for x in range(5))\nnext(g)",
    check="out = g.send(3)",
    reported=True,
)
case(
    "generator/over a file",
    "open('gl.txt', 'w').write('a\\nb\\nc\\n')\nh = open('gl.txt')\ng = (l.strip() for l in iter(h.readline, ''))\nnext(g)",
    check="out = list(g), h.readline()",
)
case(
    "file/closed, of all kinds",
    "open('k.txt', 'wb').write(b'a\\r\\nb\\n')\nfs = [open('k.txt', m) for m in ('r', 'rb', 'r+', 'rb+', 'w', 'wb', 'a', 'ab', 'w+', 'wb+')] + [open('k.new', 'x'), open('k.txt', 'rb', 0), open('k.txt', encoding='latin-1', errors='replace')]\nfs[0].read()\nfor f in fs: f.close()\nt = open('k.txt')\nt.read()\nt.close()",
    check="""
out = []
for f in [*fs, t]:
    said = [repr(f), f.name, f.mode, f.closed, getattr(f, 'encoding', ''), getattr(f, 'errors', ''), getattr(f, 'newlines', '')]
    for use in ('read', 'write', 'tell', 'fileno', '__next__', 'readable', '__enter__', 'flush'):
        try:
            said.append(str(getattr(f, use)(*('x',) * (use == 'write'))))
        except Exception as e:
            said.append(f'{type(e).__name__} {e}')
    f.close()
    out.append(said)
""",
)
case(
    "rebuilt/a finaliser is gone, and told, not made again of a copy",
    "import weakref\nclass O: pass\no=O()\nhits=[]",
    "f=weakref.finalize(o,hits.append,1)",
    check="out=f.alive\ndel o\nout=out,hits",
    reported=True,
)
