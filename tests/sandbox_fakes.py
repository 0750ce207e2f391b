"""Solutions that are wrong and try to pass. Each is a program; ``TESTS`` has the tests that it aims at."""

from __future__ import annotations

HONEST_TESTS = """
def check(candidate):
    assert candidate(1) == 2
check(f)
"""

WRONG = """
def f(x):
    return None
"""

# Ends, output, forks: no way out of the tests is a pass.
ENDS = {
    "sys.exit": "import sys\nsys.exit(0)",
    "os._exit": "import os\nos._exit(0)",
    "exit when called": "import os\ndef f(x): os._exit(0)",
    "sys.exit when called": "import sys\ndef f(x): sys.exit(0)",
    "BaseException when called": "class Stop(BaseException): pass\ndef f(x): raise Stop",
    "StopIteration": "def f(x): raise StopIteration",
    "GeneratorExit": "def f(x): raise GeneratorExit",
    "hides the exception": "class E(Exception):\n    def __str__(s): import os; os._exit(0)\ndef f(x): raise E",
    "failure kept quiet": "import os\nos._exit = os.write = lambda *a: 0\ndef f(x): raise KeyError",
    "exec": "import os\nos.execv('/bin/true', ['true'])",
    "exec when called": "import os\ndef f(x): os.execv('/bin/true', ['true'])",
    "says so": WRONG + "print('passed')",
    "atexit": WRONG + "import atexit, os\natexit.register(os._exit, 0)",
    "excepthook": WRONG + "import sys, os\nsys.excepthook = lambda *a: os._exit(0)",
    "closes every descriptor": WRONG + "import os\nos.closerange(0, 256)",
    "says so on every descriptor": WRONG
    + r"""
import os
for fd in range(256):
    try: os.write(fd, b'passed\n')
    except OSError: pass
""",
    "__del__": """
import os
class D:
    def __del__(self, leave=os._exit): leave(0)
d = D()
def f(x):
    global d
    del d
""",
    "thread": """
import threading, os, time
threading.Thread(target=lambda: (time.sleep(.01), os._exit(0))).start()
def f(x): time.sleep(1)
""",
    "fork": WRONG + "import os\nif os.fork():\n    os.wait(); os._exit(0)",
    "fork, right in the child only": """
import os
def f(x):
    if os.fork():
        os.wait(); os._exit(0)
    return 2
""",
    "signal": """
import signal, os
signal.signal(signal.SIGALRM, lambda *a: os._exit(0))
signal.setitimer(signal.ITIMER_REAL, .001, .001)
def f(x):
    while True: pass
""",
    "stops itself": "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGSTOP)",
}

# What the solution's own process thinks of these is nobody's business.
REPLACED = {
    "built-ins": WRONG
    + """
import builtins
for name in ('AssertionError', 'exec', 'compile', '__build_class__', 'len'):
    setattr(builtins, name, lambda *a, **k: None)
""",
    "built-ins while tested": "import builtins\ndef f(x):\n    builtins.abs = lambda x: 0\n    return 9",
    "the runner": WRONG
    + """
import __main__, os, sys
for module in (__main__, *(m for name, m in sys.modules.items() if name.startswith('dare_bench'))):
    for name in list(vars(module)):
        if name[:2] != '__': setattr(module, name, lambda *a, **k: True)
""",
    "stdout": WRONG + "import sys\nsys.stdout = sys.stderr = sys.__stdout__ = None",
    "check": WRONG + "def check(c): pass",
    "abs": "def abs(x): return 0\ndef f(x): return 9",
    "__builtins__": "import builtins\n__builtins__ = dict(vars(builtins), abs=lambda x: 0)\ndef f(x): return 9",
    "trace": """
import sys
def tracer(frame, event, arg):
    frame.f_lineno += 1
    return tracer
def f(x):
    sys.settrace(tracer)
    sys._getframe(1).f_trace = tracer
""",
    "frames": WRONG
    + """
import sys
frame = sys._getframe(1)
while frame:
    frame.f_globals.update(check=lambda *a: None, describe=lambda *a: "")
    frame = frame.f_back
""",
    "code of the caller": """
import sys, gc
def f(x):
    for function in gc.get_objects():
        if type(function) is type(f) and function.__name__ in ("check", "perform"):
            function.__code__ = (lambda *a, **k: None).__code__
""",
}

# Objects that answer as asked.
ANSWERS = {
    "equals everything": "class E:\n    def __eq__(s, o): return True\ndef f(x): return E()",
    "number that equals everything": "class E(int):\n    def __eq__(s, o): return True\ndef f(x): return E(7)",
    "equals every number": "class E(int):\n    def __eq__(s, o): return isinstance(o, int)\ndef f(x): return E()",
    "equals everything, by exec": 'exec("class E:\\n    def __eq__(s, o): return True")\ndef f(x): return E()',
    "equals everything, by attribute": """
class E:
    def __init__(s): s.t = True
    def __eq__(s, o): return s.t is True
def f(x): return E()
""",
    "class that equals everything": """
class M(type):
    def __eq__(c, o): return True
    def __hash__(c): return 1
class E(metaclass=M): pass
def f(x): return E
""",
    "mock.ANY": "from unittest.mock import ANY\ndef f(x): return ANY",
    "mock.ANY by another way": """
import unittest.mock
anything = vars(unittest.mock)["".join("ANY")]
def f(x): return anything
""",
    "MagicMock": """
from unittest.mock import MagicMock
def f(x):
    made = MagicMock()
    made.__eq__.return_value = made.__lt__.return_value = made.__bool__.return_value = True
    return made
""",
    "equal to the first that asks": """
class E:
    asked = True
    def __eq__(s, o):
        said, E.asked = E.asked, False
        return said
def f(x):
    E.asked = True
    return E()
E() == 0
""",
    "set.__ge__": "class E(set):\n    __eq__ = set.__ge__\ndef f(x): return E(range(99))",
    "C function": "import math\nclass E:\n    __eq__ = math.isfinite\ndef f(x): return E()",
    "who asks": """
import sys
class E:
    def __eq__(s, o): return sys._getframe(1).f_code.co_filename == "<tests>"
def f(x): return E()
""",
    "not unequal": "class E:\n    def __ne__(s, o): return False\ndef f(x): return E()",
    "difference": """
class E:
    def __sub__(s, o): return 0
    __rsub__ = __abs__ = __float__ = lambda s, *o: 0
def f(x): return E()
""",
    "contains": "class E(list):\n    def __contains__(s, o): return True\ndef f(x): return E()",
    "class property": "class E:\n    __class__ = int\n    def __eq__(s, o): return True\ndef f(x): return E()",
    "string": "class E(str):\n    def __eq__(s, o): return True\n    __hash__ = str.__hash__\ndef f(x): return E('no')",
    "key": """
class E(str):
    def __eq__(s, o): return True
    def __hash__(s): return hash('yes')
def f(x): return {E('no'): 1}
""",
    "inside a list": "class E:\n    def __eq__(s, o): return True\ndef f(x): return [E()]",
    "array function": """
class E:
    def __array_function__(s, *a): return True
    def __array_ufunc__(s, *a, **k): return True
def f(x): return E()
""",
    "array interface": """
class E:
    @property
    def __array_interface__(s): return {"version": 3, "shape": (1,), "typestr": "<i8", "data": (id(2) + 24, False)}
    def __len__(s): raise TypeError
def f(x): return E()
""",
    "the caller's constants": """
import sys
def f(x):
    frame = sys._getframe(1)
    while frame:
        found = [c for c in frame.f_code.co_consts if c == 2]
        if found and frame.f_code.co_name == "check": return found[0]
        frame = frame.f_back
""",
    "exception of the tests": "def f(x):\n    import unittest\n    raise unittest.SkipTest",
}

# Libraries that the tests use, in the solution's own version.
FORGED = """
import sys, types
def forge(name, text):
    module = types.ModuleType(name)
    exec(compile(text, "<frozen " + name + ">", "exec"), vars(module))
    return module
"""
SAYS_YES = "def isclose(*a, **k): return True\nallclose = isclose\n"
LIBRARIES = {
    "function": WRONG + "import math\nmath.isclose = lambda *a: True",
    "callable object": WRONG + "import math\nclass C:\n    def __call__(s, *a, **k): return True\nmath.isclose = C()",
    "partial": WRONG + "import math, functools\nmath.isclose = functools.partial(lambda *a, **k: True)",
    "by exec": WRONG + "import math\nthere = {}\nexec('def g(*a, **k): return True', there)\nmath.isclose = there['g']",
    "another built-in": WRONG + "import math\nmath.isclose = max",
    "sys.modules": WRONG + "import sys\nsys.modules['math'] = type('M', (), {'isclose': lambda *a: True})()",
    "module class": WRONG
    + """
import sys, types
class M(types.ModuleType):
    isclose = lambda *a: True
sys.modules['math'] = M('math')
""",
    "forged module name": WRONG
    + """
import math
there = {"__name__": "math"}
exec(compile("def isclose(*a, **k): return True", "math.py", "exec"), there)
math.isclose = there["isclose"]
""",
    "forged module": WRONG + FORGED + f"sys.modules['math'] = forge('math', {SAYS_YES!r})",
    "module of the temporary folder": WRONG
    + f"""
import math, sys
with open("forged_math.py", "w") as file: file.write({SAYS_YES!r})
sys.path.insert(0, ".")
import forged_math
math.isclose = forged_math.isclose
""",
    "for the time of the test": """
import math
def f(x):
    math.isclose = lambda *a: True
""",
    "import": WRONG
    + FORGED
    + f"""
import builtins
real = builtins.__import__
def load(name, *a):
    if name == "math":
        builtins.__import__ = real
        return forge("math", {SAYS_YES!r})
    return real(name, *a)
builtins.__import__ = load
""",
    "import hook": WRONG
    + FORGED
    + f"""
import importlib.abc, importlib.machinery
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(s, name, *a): return importlib.machinery.ModuleSpec(name, s) if name == "math" else None
    def create_module(s, spec): return forge("math", {SAYS_YES!r})
    def exec_module(s, module): pass
sys.modules.pop("math", None)
sys.meta_path.insert(0, Finder())
""",
}
PACKAGES = {
    "numpy function": WRONG + "import numpy\nclass C:\n    def __call__(s, *a, **k): return True\nnumpy.allclose = C()",
    "shadow numpy": WRONG
    + f"""
import sys
with open("numpy.py", "w") as file: file.write({SAYS_YES!r})
sys.path.insert(0, "/tmp")
sys.path.insert(0, ".")
""",
    "forged numpy": WRONG + FORGED + f"sys.modules['numpy'] = forge('numpy', {SAYS_YES!r})",
}
_SUITE = """
class TestCase:
    def assertEqual(*a): pass
class Result:
    def wasSuccessful(s): return True
class TextTestRunner:
    def run(s, *a): return Result()
class defaultTestLoader:
    loadTestsFromTestCase = print
"""
UNITTEST = {
    "unittest assertEqual": WRONG + "import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None",
    "unittest wasSuccessful": WRONG + "import unittest\nunittest.TestResult.wasSuccessful = lambda *a, **k: True",
    "shadow unittest": WRONG
    + f"""
import sys, os
os.mkdir("unittest")
with open("unittest/__init__.py", "w") as file: file.write({_SUITE!r})
sys.path.insert(0, ".")
""",
    "forged unittest": WRONG + FORGED + f"sys.modules['unittest'] = forge('unittest', {_SUITE!r})",
}
OF_CLASSES = {
    "method of Fraction": WRONG + "import fractions\nfractions.Fraction.__eq__ = lambda s, o: True",
    "method of Fraction, C function": WRONG + "import fractions, math\nfractions.Fraction.__eq__ = math.isfinite",
}

SUITE = """
import unittest
class T(unittest.TestCase):
    def test(self): self.assertEqual(f(1), 2)
result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))
"""

FAKES = {**ENDS, **REPLACED, **ANSWERS, **LIBRARIES, **PACKAGES, **UNITTEST, **OF_CLASSES}

TESTS = {
    **dict.fromkeys(LIBRARIES, "import math\nassert math.isclose(f(1) or 1, 2)\n"),
    **dict.fromkeys(PACKAGES, "import numpy\nassert numpy.allclose(f(1) or 1, 2)\n"),
    **dict.fromkeys(("array function", "array interface"), "import numpy\nassert numpy.allclose(f(1), 2)\n"),
    **dict.fromkeys(("built-ins while tested", "abs", "__builtins__", "difference"), "assert abs(f(1) - 2) < 1e-6\n"),
    **dict.fromkeys(OF_CLASSES, "import fractions\nassert fractions.Fraction(f(1) or 1) == fractions.Fraction(2)\n"),
    **dict.fromkeys(UNITTEST, SUITE + "assert result.wasSuccessful()\n"),
    "StopIteration": "for made in map(f, [1]):\n    assert made == 2\nassert all(map(f, [1]))\n",
    "set.__ge__": "assert f(1) == {1, 2}\n",
    "not unequal": "assert not f(1) != 2\n",
    "contains": "assert 2 in f(1)\n",
    "string": "assert f(1) == 'yes'\n",
    "key": "assert f(1) == {'yes': 1}\n",
    "inside a list": "assert f(1) == [2]\n",
    "exception of the tests": SUITE + "assert result.wasSuccessful() and not result.skipped\n",
}
