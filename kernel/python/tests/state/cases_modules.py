"""The torture set: entries that cells put into `sys.modules`."""

from __future__ import annotations

from cases import case, hidden

case(
    "modules/another name of a module",
    "import sys, colorsys\nsys.modules['hop_colours']=colorsys\nsys.modules['xml.etree.hop_colours']=colorsys",
    "x=1",
    check="import hop_colours\nfrom importlib import import_module\nc=import_module('xml.etree.hop_colours')\nout=hop_colours is colorsys,c is colorsys\ndel sys.modules['xml.etree.hop_colours']",
)
case(
    "modules/another name of a module of which no variable knows",
    "import sys, importlib\nsys.modules['hop_colours']=importlib.import_module('colorsys')",
    "x=1",
    check="import hop_colours\nout=hop_colours.__name__,hop_colours.rgb_to_hsv(0,0,1)",
)
case(
    "modules/an import that is forbidden",
    "import sys\nsys.modules['hop_never']=None\nsys.modules['ftplib']=None",
    check="out=[]\nfor n in ('hop_never','ftplib'):\n    try: __import__(n)\n    except ImportError as e: out.append(str(e))\ndel sys.modules['ftplib']",
)
case(
    "modules/a module made in the notebook, under its name",
    "import sys, types\ncfg=types.ModuleType('hop_cfg')\ncfg.rate=[1]\nsys.modules['hop_cfg']=cfg\nheld=cfg.rate",
    "import hop_cfg\nhop_cfg.rate.append(2)\nhop_cfg.more=3",
    "from hop_cfg import rate as r",
    check="import hop_cfg as again\nagain.rate.append(4)\nout=again is cfg is hop_cfg,held is cfg.rate is r,held,cfg.more",
)
case(
    "modules/a module made in the notebook that no variable holds",
    "import sys, types\nfrom sys import modules as table\ndef put(name, **content):\n    sys.modules[name]=types.ModuleType(name,'its words')\n"
    "    vars(sys.modules[name]).update(content)\ndef f(): return n\nn=5",
    "put('hop_other',a=[1,2],f=f)",
    "put('hop_other_too',b=1)",
    check="n=6\nimport hop_other, hop_other_too\nout=hop_other.a,hop_other.f(),hop_other.f is f,hop_other.__doc__,hop_other_too.b",
)
case(
    "modules/an entry that a function puts there for another one",
    "import sys, colorsys\ndef put(name): sys.modules[name]=colorsys\ndef outer(name): put(name)",
    "outer('hop_by_another')",
    check="import hop_by_another\nout=hop_by_another is colorsys",
)
case(
    "modules/code that ran in a module made in the notebook",
    "import sys, types\nm=types.ModuleType('hop_ran')\nexec('v=[1]\\ndef f(x): v.append(x); return v\\nclass A: pass',m.__dict__)\nsys.modules['hop_ran']=m\na=m.A()",
    "from hop_ran import f",
    check="f(2)\nout=m.v,m.f is f,sys.modules['hop_ran'] is m,type(a) is m.A",
)
case(
    "modules/a module of a library behind an object of the notebook",
    "import sys, colorsys, wave\nclass Behind:\n    def __init__(s, of): s.of=of\n    def __getattr__(s, n): return ('behind', n)\nb=Behind(1)\nsys.modules['wave']=b",
    check="import wave as w\nout=w is b,w.open\nsys.modules['wave']=wave",
)
case(
    "modules/a library's object in the place of a module is told",
    "import sys, unittest.mock\nsys.modules['hop_mock']=unittest.mock.MagicMock()",
    check="import hop_mock\nout=type(hop_mock).__name__",
    reported=True,
)
case(
    "modules/what unittest puts there",
    "import colorsys, unittest.mock\npatch=unittest.mock.patch.dict('sys.modules',{'hop_patched':colorsys})\npatch.start();\ndel patch",
    check="import hop_patched\nout=hop_patched is colorsys",
)
case(
    "modules/an entry that was taken out again",
    "import sys, colorsys\nsys.modules['hop_out']=colorsys\nsys.modules['hop_none']=None",
    "del sys.modules['hop_out'], sys.modules['hop_none']",
    check="out='hop_out' in sys.modules,'hop_none' in sys.modules",
)
case(
    "modules/libraries that are forbidden or replaced, which the engine knows",
    "import sys, types\nfor n in ('bs4','joblib','distributed'): sys.modules[n]=None\nsys.modules['hop_stub']=stub=types.ModuleType('hop_stub')\nx=[1]",
    "x.append(2)",
    check="out=x,[sys.modules.get(n,1) for n in ('bs4','joblib','distributed')],sys.modules['hop_stub'] is stub\nfor n in ('bs4','joblib','distributed'): sys.modules.pop(n,0)",
)
hidden(
    "modules/an import that is forbidden without a word",
    "x=1",
    change="getattr(__import__('sys'),'mod'+'ules')['hop_hidden']=None",
    check="import sys\nout=sys.modules.get('hop_hidden',1)",
)
