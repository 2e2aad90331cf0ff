"""Still more of the torture set: settings outside the namespace, enumerations, and what is only told."""

from __future__ import annotations

from cases import NP, PD, TORCH, case, hidden

case(
    "settings/an option that is a lambda, beside others",
    "import pandas as pd",
    "pd.set_option('display.float_format', lambda x: f'<{x:.1f}>')\npd.set_option('display.max_columns', 3)",
    check="out=pd.get_option('display.max_columns'),repr(pd.Series([1.23]))\npd.reset_option('all')",
    needs=PD,
)
case(
    "settings/numpy prints by a function of the notebook, beside the random state",
    "import numpy as np\nnp.random.seed(5)\ndef shown(x):\n    return f'<{x:.{digits}f}>'\ndigits=1",
    "np.set_printoptions(formatter={'float': shown})\nold=np.seterr(over='raise')\nnp.random.rand()",
    check="digits=2\nout=str(np.array([1.234])),np.geterr()['over'],np.random.rand()\nnp.set_printoptions(formatter=None)\nnp.seterr(**old)",
    needs=NP,
)
case(
    "settings/what numpy calls at an error",
    "import numpy as np\nseen=[]\ndef note(kind, flag): seen.append(kind)\nold=np.seterr(all='call')\nnp.seterrcall(note)",
    check="np.array([1.0])/0\nout=seen\nnp.seterr(**old)\nnp.seterrcall(None)",
    needs=NP,
)
case(
    "settings/torch prints",
    "import torch\ntorch.set_printoptions(precision=2,sci_mode=False)\nt=torch.tensor([1.23456,1e-7])",
    check="out=str(t)\ntorch.set_printoptions(profile='default')",
    needs=TORCH,
)
case(
    "settings/torch looks for anomalies",
    "import torch\nkept=torch.autograd.set_detect_anomaly(True)\ndel kept",
    check="out=torch.is_anomaly_enabled()\ntorch.autograd.set_detect_anomaly(False)",
    needs=TORCH,
)
case(
    "settings/sklearn",
    "import sklearn\nold=sklearn.get_config()\nsklearn.set_config(display='text',working_memory=77)",
    check="c=sklearn.get_config()\nout=c['display'],c['working_memory']\nsklearn.set_config(**old)",
    needs="sklearn",
)
case(
    "settings/an accessor of pandas",
    "import pandas as pd\n@pd.api.extensions.register_series_accessor('lab')\nclass Lab:\n    def __init__(self,s): self.s=s\n    def twice(self): return (self.s*2).tolist()\ns=pd.Series([1,2])",
    check="out=s.lab.twice(),isinstance(s.lab,Lab)\ndel pd.Series.lab\npd.Series._accessors.discard('lab')",
    needs=PD,
)
case(
    "settings/a colormap of its own",
    "import matplotlib as mpl\nmpl.colormaps.register(mpl.colors.ListedColormap(['r','g'],name='hop_mine'))",
    check="out=mpl.colormaps['hop_mine'](0.0)\nmpl.colormaps.unregister('hop_mine')",
    needs="matplotlib",
)
case(
    "settings/the colour of the next line",
    "import matplotlib\nmatplotlib.use('agg')\nfrom matplotlib.figure import Figure\nfrom cycler import cycler\nold=matplotlib.rcParams['axes.prop_cycle']\nmatplotlib.rcParams['axes.prop_cycle']=cycler(color=['r','g','b'])\nf=Figure()\na=f.subplots()\nb=f.add_axes([0,0,1,1])",
    "a.plot([1,2])\nfor i in range(5): b.plot([i])",
    check="out=a.plot([1])[0].get_color(),a.plot([1])[0].get_color(),[b.plot([1])[0].get_color() for _ in range(4)]\nmatplotlib.rcParams['axes.prop_cycle']=old",
    needs="matplotlib",
)
case(
    "settings/a dialect of csv",
    "import csv\ncsv.register_dialect('hop_semi',delimiter=';',quoting=csv.QUOTE_ALL)",
    check="out=next(csv.reader(['a;b'],'hop_semi')),csv.get_dialect('hop_semi').quoting\ncsv.unregister_dialect('hop_semi')",
)
case(
    "settings/a class registered as an abstract one",
    "import numbers, collections.abc\nclass Frac: pass\nnumbers.Number.register(Frac)\ncollections.abc.Sequence.register(Frac)\nx=Frac()",
    check="out=isinstance(x,numbers.Number),isinstance(x,collections.abc.Sequence),isinstance(x,collections.abc.Mapping)",
)
case(
    "settings/attributes of a library's modules and classes",
    "import json, fractions\nfrom string import Template\ncfg={'a':[1]}",
    "json.HOP=cfg\njson.encoder.HOP=1\nfractions.Fraction.hop=lambda self: self.numerator+len(cfg)\nTemplate.idpattern=r'hop'",
    check="cfg['b']=2\nout=json.HOP is cfg,json.encoder.HOP,fractions.Fraction(3,4).hop(),Template.idpattern\ndel json.HOP,json.encoder.HOP,fractions.Fraction.hop\nTemplate.idpattern=r'(?a:[_a-z][_a-z0-9]*)'",
)
case(
    "settings/a library's attribute that holds what can't be kept there",
    "import json\njson.HOP=[[1]]",
    check="out=json.HOP\ndel json.HOP",
    reported=True,
)
case(
    "settings/a method of a library's class replaced and put back",
    "import fractions\nold=fractions.Fraction.limit_denominator",
    "fractions.Fraction.limit_denominator=lambda self,n=1: 'patched'",
    "fractions.Fraction.limit_denominator=old",
    check="out=fractions.Fraction(3,4).limit_denominator(2)",
)
case(
    "settings/an object of which a library has one",
    "import mpmath\nfrom mpmath import mp\nmp.dps=40",
    "mp.pretty=True\nmp._aliases['hop']='sqrt'",
    check="out=mp is mpmath.mp,mp.dps,mpmath.nstr(mpmath.pi,30),mp.pretty,mpmath.mp._aliases['hop']\nmp.dps,mp.pretty=15,False\ndel mp._aliases['hop']",
    needs="mpmath",
)
case(
    "told/what a cell put into an object of which a library has one",
    "from mpmath import mp\ndef mine(): pass\nmp.hyp_summators['hop']=mine",
    check="out='hop' in mp.hyp_summators\nmp.hyp_summators.clear()",
    needs="mpmath",
    reported=True,
)
hidden(
    "settings/entries in the tables of libraries' modules and classes",
    "import shutil, sqlite3, string\ndef pack(name, base, **more): return name\nclass Key: pass\nsqlite3.register_adapter(Key,lambda key: 'k')\nshutil.register_archive_format('hop',pack,description='of the notebook')",
    change="pass",
    check="out=shutil.make_archive('x','hop'),sqlite3.connect(':memory:').execute('select ?',(Key(),)).fetchone(),dict(shutil.get_archive_formats())['hop']\nshutil.unregister_archive_format('hop')\nsqlite3.adapters.pop((Key,sqlite3.PrepareProtocol))",
)
hidden(
    "settings/entries in the tables of a class that copies them",
    "import yaml\nclass Money:\n    def __init__(self,n): self.n=n\nclass Loader(yaml.SafeLoader): pass",
    change="yaml.add_constructor('!hop',lambda loader,node: Money(int(node.value)),Loader=yaml.SafeLoader)\nyaml.add_representer(Money,lambda dumper,m: dumper.represent_scalar('!hop',str(m.n)))",
    check="out=yaml.safe_load('!hop 7').n,yaml.dump([Money(3)])\nfor c in yaml.SafeLoader,yaml.Dumper:\n    for n in 'yaml_constructors','yaml_representers': getattr(c,n,{}).pop('!hop',None),getattr(c,n,{}).pop(Money,None)",
    needs="yaml",
)
hidden(
    "told/an entry in a library's table that can't be kept",
    "import shutil\ndef places(): yield\nclass Held:\n    def __init__(self): self.place=places()\n    def __call__(self,*a,**k): pass",
    change="shutil.register_archive_format('hop',Held())",
    check="out='hop' in dict(shutil.get_archive_formats())\nif out: shutil.unregister_archive_format('hop')",
    reported=True,
)
case(
    "settings/a function in a library's place, under that one's name",
    "import json, functools\nplain=json.dumps",
    "@functools.wraps(plain)\ndef dumps(*a,**k): return plain(*a,**{'sort_keys':True,**k})\njson.dumps=dumps",
    check="out=json.dumps({'b':1,'a':2}),json.dumps is dumps,dumps.__wrapped__ is plain\njson.dumps=plain",
)
hidden(
    "told/functions of one library that a cell had put into another",
    "import pandas as pd\nfrom tqdm import tqdm",
    change="tqdm.pandas(disable=True)",
    check="out=hasattr(pd.Series,'progress_apply')\nfrom pandas.core.groupby.generic import DataFrameGroupBy as D,SeriesGroupBy as S\nfrom pandas.core.groupby.groupby import GroupBy as G\nfrom pandas.core.window import expanding as e,rolling as r\nfor c in pd.DataFrame,pd.Series,D,S,G,e.Expanding,r.Rolling:\n    for n in [n for n in vars(c) if n[:9]=='progress_']: delattr(c,n)",
    needs="pandas tqdm",
    reported=True,
)
case(
    "settings/logging as a whole",
    "import logging, warnings\nclass Named(logging.Logger): pass\nlogging.setLoggerClass(Named)\nlogging.addLevelName(25,'NOTICE')\nlogging.disable(logging.INFO)\nlogging.captureWarnings(True)",
    check="out=logging.getLevelName(25),logging.root.isEnabledFor(20),type(logging.getLogger('hop_named')) is Named,warnings.showwarning is logging._showwarning\nlogging.captureWarnings(False)\nlogging.disable(0)\nlogging.setLoggerClass(logging.Logger)\ndel logging._levelToName[25],logging._nameToLevel['NOTICE']",
)
case(
    "settings/warnings shown by a function after logging had them",
    "import logging, warnings\nkept=warnings.showwarning\nlogging.captureWarnings(True)\ndef loud(*a, **k): pass\nwarnings.showwarning=loud",
    check="out=warnings.showwarning is loud\nlogging.captureWarnings(False)\nwarnings.showwarning=kept",
)
case(
    "settings/calendar, prefixes of XML, fields of csv, how processes start",
    "import calendar, csv, multiprocessing\nimport xml.etree.ElementTree as ET\ncalendar.setfirstweekday(6)\nET.register_namespace('hop','http://hop.example/ns')\ncsv.field_size_limit(77)\nmultiprocessing.set_start_method('spawn',force=True)",
    check="out=calendar.firstweekday(),ET.tostring(ET.Element('{http://hop.example/ns}a')),csv.field_size_limit(),multiprocessing.get_start_method()\ncalendar.setfirstweekday(0)\ncsv.field_size_limit(131072)\nmultiprocessing.set_start_method(None,force=True)",
)
hidden(
    "settings/a handler of encodings, and a codec",
    "import codecs\ndef swapped(error): return '?',error.end\ncodecs.register_error('hop_swapped',swapped)\ncodecs.register_error('hop_gone',lambda error: ('!',error.end))\ncodecs.register(lambda name: codecs.lookup('ascii') if name=='hop_ascii' else None)",
    change="pass",
    check="out='n\\xefve'.encode('ascii','hop_swapped'),'n\\xefve'.encode('hop_ascii','hop_gone'),codecs.lookup_error('hop_swapped') is swapped",
)
hidden(
    "settings/types of files",
    "import mimetypes\nmimetypes.add_type('text/x-hop','.hop')\nmimetypes.add_type('text/x-hop','.html',strict=False)\nmimetypes.suffix_map['.thop']='.tar.gz'",
    change="pass",
    check="out=mimetypes.guess_type('a.hop'),mimetypes.guess_type('a.thop'),mimetypes.guess_extension('text/x-hop')\nmimetypes.init()",
)
case(
    "settings/the exception that was shown last",
    "import sys\nclass Mine(Exception): pass",
    "try: raise Mine('a',3)\nexcept Mine as e: sys.last_type,sys.last_value=Mine,e",
    check="out=type(sys.last_value) is Mine,sys.last_value.args,sys.last_type is Mine\ndel sys.last_value,sys.last_type",
)
case(
    "told/a last exception that holds an array",
    "import sys,numpy as np\ntry: raise ValueError(np.zeros(10_000_000))\nexcept ValueError as e: sys.last_type,sys.last_value=ValueError,e",
    check="out=hasattr(sys,'last_value')\nif out: del sys.last_value,sys.last_type",
    needs=NP,
    reported=True,
)
case(
    "enum/combinations of flags",
    "import enum\nclass C(enum.Flag):\n    R=1\n    G=2\n    RG=3\nm=C.R|C.G\nclass P(enum.IntFlag):\n    X=1\n    W=2\n    XW=3",
    check="out=m is C.RG,C['RG'],C.RG&~C.R is C.G,list(C.__members__),P(3) is P.XW,P.XW==3",
)
case(
    "enum/members that hold more than their value",
    "import enum\nclass Planet(enum.Enum):\n    EARTH=(5.97,6.37)\n    MARS=(.64,3.39)\n    TERRA=(5.97,6.37)\n    def __init__(self,m,r): self.m,self.r=m,[r]\nx=Planet.EARTH\nheld=x.r",
    check="held.append(1)\nout=Planet.EARTH.m,Planet.EARTH.r is held,x is Planet.TERRA,Planet((.64,3.39)).m",
)
case(
    "enum/members that the class makes itself",
    "import enum\nclass N(bytes,enum.Enum):\n    def __new__(cls,v,label):\n        o=bytes.__new__(cls,[v])\n        o._value_,o.label=v,label\n        return o\n    P=(1,'pp')\n    Q=(2,'qq')\nclass A(enum.Enum):\n    def __new__(cls,*a):\n        o=object.__new__(cls)\n        o._value_=len(cls.__members__)+1\n        o.a=a\n        return o\n    X=('x',)\n    Y=('y',)\nq=N.Q",
    check="out=N(2) is q,q.label,q==b'\\x02',q.value,A(2) is A.Y,A.Y.a,[a.value for a in A]",
)
case(
    "enum/further names of members",
    "import enum\nclass L(enum.IntEnum):\n    LO=1\n    HI=2\n    TOP=2\n    @classmethod\n    def _missing_(cls,v): return cls.LO\ntop=L.TOP",
    check="out=top is L.HI,L.TOP is L.HI,list(L.__members__),list(L),L(9)",
)
case(
    "told/a lock that a later cell took",
    "import threading\nl=threading.Lock()",
    "l.acquire()",
    check="out=l.locked()",
    reported=True,
)
case(
    "told/a cache that a later cell filled",
    "import functools\n@functools.lru_cache\ndef f(x): return x",
    "f(1)",
    check="out=f.cache_info().currsize",
    reported=True,
)
case(
    "kept/nothing else holds what was restored",
    "import weakref\nclass A: pass\na=A()\na.me=[1]\nr=weakref.ref(a)\nw=weakref.WeakValueDictionary(k=a)",
    check="del a\nout=r() is None,len(w)",
)
case(
    "kept/how a memory map was opened",
    "import numpy as np\nm=np.memmap('hop.dat',dtype='f8',mode='w+',shape=(4,))\nm[:]=2",
    check="out=m.mode,m.sum()",
    needs=NP,
)
WIDGETS = "ipywidgets"
case(
    "widgets/a class of the notebook that is made of others",
    "import ipywidgets as W, traitlets as T\nruns=[]\nclass Panel(W.VBox):\n    count=T.Int(0)\n    def __init__(self,**kw):\n        super().__init__(**kw)\n        runs.append('init')\n        self.btn,self.lab=W.Button(),W.Label('0')\n        self.children=[self.btn,self.lab]\n        self.btn.on_click(self.hit)\n        self.observe(self.seen,'count')\n    def seen(self,c): runs.append(c['new'])\n    def hit(self,_):\n        self.count+=1\n        self.lab.value=str(self.count)\np=Panel()",
    "p.btn.click()",
    check="p.btn.click()\nout=p.lab.value,runs,p.children[1] is p.lab,p.count",
    needs=WIDGETS,
)
case(
    "widgets/traits and attributes of a subclass",
    "import ipywidgets as W, traitlets as T\nclass S(W.IntSlider):\n    extra=T.List([1])\nq=S(value=4)\nq.extra=[5]\nw=W.Text('a')\nw.tag=['x']\nt=w.tag",
    check="t.append('y')\nout=q.extra,q.value,w.tag,S().extra",
    needs=WIDGETS,
)
case(
    "widgets/a function with its controls",
    "import ipywidgets as W\nruns=[]\nf=W.interactive(lambda a,b: runs.append((a,b)),a=(0,5),b=True)",
    check="f.children[0].value=4\nout=runs[-1],f.kwargs,f.children[0] is f.kwargs_widgets[0]",
    needs=WIDGETS,
)
case(
    "widgets/a grid",
    "import ipywidgets as W\nb=W.Button()\ng=W.GridspecLayout(2,3)\ng[0,1]=b",
    check="g[1,0]=W.Label('x')\nout=g[0,1] is b,g[1,0].value,g.n_columns,len(g.children)",
    needs=WIDGETS,
)
case(
    "told/the base of a view of a subclass",
    "import numpy as np\nclass Q(np.ndarray): pass\nq=np.arange(6.0).view(Q)\nv=q[1:]",
    check="v[0]=9\nout=v.base is q,q.tolist(),type(v) is Q",
    reported=True,
    needs=NP,
)
case(
    "settings/colours, cycles of colours and a font",
    "import matplotlib as mpl, matplotlib.font_manager as fm, matplotlib.colors as mc, shutil\nfrom pathlib import Path\nshutil.copy(Path(mpl.get_data_path(),'fonts/ttf/DejaVuSans.ttf'),'hop_font.ttf')",
    "fm.fontManager.addfont(str(Path('hop_font.ttf').resolve()))\nmc.get_named_colors_mapping()['hop_blue']='#0000fe'\nmpl.color_sequences.register('hop_cycle',['r','#00ff00'])",
    check="out=mc.to_hex('hop_blue'),list(mpl.color_sequences['hop_cycle']),[e.name for e in fm.fontManager.ttflist if 'hop_font' in e.fname]\nmpl.color_sequences.unregister('hop_cycle')\ndel mc.get_named_colors_mapping()['hop_blue']",
    needs="matplotlib",
)
case(
    "settings/a type of the notebook for pandas' columns",
    "import pandas as pd\nfrom pandas.api.extensions import ExtensionDtype, register_extension_dtype\n@register_extension_dtype\nclass HopType(ExtensionDtype):\n    name='hop_type'\n    type=float\n    @classmethod\n    def construct_array_type(cls): return None",
    check="out=type(pd.api.types.pandas_dtype('hop_type')) is HopType\nimport pandas.core.dtypes.base as b\nb._registry.dtypes[:]=[t for t in b._registry.dtypes if t.__name__!='HopType']",
    needs=PD,
)

case(
    "settings/signals that are ignored",
    "import signal\nsignal.signal(signal.SIGTERM,signal.SIG_IGN)\nsignal.signal(signal.SIGPIPE,signal.SIG_DFL)",
    check="out=signal.getsignal(signal.SIGTERM),signal.getsignal(signal.SIGPIPE)\nsignal.signal(signal.SIGTERM,signal.SIG_DFL)\nsignal.signal(signal.SIGPIPE,signal.SIG_IGN)",
    reported=True,
)
case(
    "settings/blocked signals, and a timer",
    "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK,[signal.SIGUSR2])\nsignal.setitimer(signal.ITIMER_VIRTUAL,9e5)",
    check="out=sorted(signal.pthread_sigmask(signal.SIG_BLOCK,[])),signal.getitimer(signal.ITIMER_VIRTUAL)[0]>1\nsignal.pthread_sigmask(signal.SIG_UNBLOCK,[signal.SIGUSR2])\nsignal.setitimer(signal.ITIMER_VIRTUAL,0)",
    reported=True,
)
case(
    "settings/a hook for paths",
    "import sys\ndef hook(path): raise ImportError\nsys.path_hooks.append(hook)",
    check="out=hook in sys.path_hooks\nsys.path_hooks[:]=[h for h in sys.path_hooks if getattr(h,'__name__','')!='hook']",
    reported=True,
)
case(
    "settings/tracemalloc",
    "import tracemalloc\ntracemalloc.start()",
    check="out=tracemalloc.is_tracing()\ntracemalloc.stop()",
    reported=True,
)

# --- settings of cells that run again ---------------------------------------------------------------------------------

GEN = "def gen(*held):\n    while True:\n        yield held\n"
case(
    "again/in the cell's settings, and back",
    f"import decimal,logging,os,sys\nfrom decimal import Decimal\nimport numpy as np\nimport pandas as pd\n{GEN}os.makedirs('a'); os.makedirs('b'); base=os.getcwd()",
    "os.environ['MODE']='train'; decimal.getcontext().prec=4; os.chdir('a')",
    "g=gen(os.environ['MODE'],Decimal(1)/3,os.path.relpath(os.getcwd(),base)); first=next(g)\npd.set_option('display.max_rows',7); np.set_printoptions(precision=2); os.chdir('../b')\nos.environ['N']=os.environ.get('N','')+'x'; logging.getLogger('hop_again').addHandler(logging.StreamHandler())",
    "os.environ['MODE']='test'; decimal.getcontext().prec=20; pd.set_option('display.max_rows',50); np.set_printoptions(precision=6)",
    check="out=next(g),os.environ['N'],os.environ['MODE'],decimal.getcontext().prec,pd.get_option('display.max_rows'),np.get_printoptions()['precision'],os.path.relpath(os.getcwd(),base),len(logging.getLogger('hop_again').handlers)\ndecimal.getcontext().prec=28\nlogging.getLogger('hop_again').handlers.clear()",
    needs=PD,
)
case(
    "settings/the stack of threads, and the language of messages",
    "import threading, locale\nthreading.stack_size(1<<20)\nlocale.setlocale(locale.LC_ALL,'C.UTF-8')",
    check="out=threading.stack_size(),locale.setlocale(locale.LC_MESSAGES)\nthreading.stack_size(0)\nlocale.setlocale(locale.LC_MESSAGES,'C')",
)
case(
    "settings/a working directory that was removed",
    "import os\nos.makedirs('hop_gone',exist_ok=True)\nos.chdir('hop_gone')\nos.rmdir('../hop_gone')",
    check="out=os.getcwd()",
    reported=True,
)
