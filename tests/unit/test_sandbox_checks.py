# ruff: noqa: F811  (fixtures are imported)
"""The checks around the tests: what judges is not replaced, nothing equals everything, and honest programs pass."""

from __future__ import annotations

import dataclasses

import pytest
from sandbox_fakes import HONEST_TESTS, WRONG
from sandboxes import QUICK, attack, level, nothing_left  # noqa: F401

from dare_bench.sandbox.verdict import Level

pytestmark = pytest.mark.usefixtures("nothing_left")

FAKES = {
    "mock.ANY": """
def f(x):
    from unittest.mock import ANY
    return ANY
""",
    "mock.ANY, global": """
import unittest.mock
anything = unittest.mock.ANY
def f(x): return anything
""",
    "class that equals everything": """
class M(type):
    def __eq__(c, o): return True
    def __hash__(c): return 1
class E(metaclass=M): pass
def f(x): return E
""",
    "equals everything, by exec": """
exec("class E:\\n    def __eq__(s, o): return True")
def f(x): return E()
""",
    "equals everything, by attribute": """
class E:
    def __init__(s): s.t = True
    def __eq__(s, o): return s.t
def f(x): return E()
""",
    "equals every number": """
class E(int):
    def __eq__(s, o): return isinstance(o, int)
def f(x): return E()
""",
    "library, callable object": WRONG
    + """
import math
class C:
    def __call__(s, *a, **k): return True
math.isclose = C()
""",
    "library, partial": WRONG
    + """
import math, functools
math.isclose = functools.partial(lambda *a, **k: True)
""",
    "library, by exec": WRONG
    + """
import math
exec("def g(*a, **k): return True")
math.isclose = g
""",
    "library, by exec elsewhere": WRONG
    + """
import math
there = {}
exec("def g(*a, **k): return True", there)
math.isclose = there["g"]
""",
    "library, another built-in": WRONG
    + """
import math
math.isclose = max
""",
    "library, numpy": WRONG
    + """
import numpy
class C:
    def __call__(s, *a, **k): return True
numpy.allclose = C()
""",
    "unittest assertEqual": WRONG
    + """
import unittest
unittest.TestCase.assertEqual = lambda *a, **k: None
""",
    "unittest wasSuccessful": WRONG
    + """
import unittest
unittest.TestResult.wasSuccessful = lambda *a, **k: True
""",
    "__builtins__": WRONG
    + """
import builtins
__builtins__ = dict(vars(builtins), abs=lambda x: 0)
""",
}

UNITTEST = """
import unittest
class T(unittest.TestCase):
    def test(self): self.assertEqual(f(1), 2)
result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))
assert result.wasSuccessful()
"""

TESTS = {
    **{name: "import math\nassert math.isclose(1, 2)\n" for name in FAKES if name.startswith("library, ")},
    "library, numpy": "import numpy\nassert numpy.allclose(1, 2)\n",
    **dict.fromkeys(("unittest assertEqual", "unittest wasSuccessful"), UNITTEST),
    "__builtins__": "assert abs(f(1) - 2) < 1e-6\n",
}

# Honest programs that look like one of the tricks, and tests that they pass.
HONEST = {
    "eq by dict": (
        "class P:\n    def __init__(s, x): s.x = x\n    def __eq__(s, o):\n"
        "        return s.__dict__ == getattr(o, '__dict__', {})",
        "assert P(1) == P(1)",
    ),
    "eq over all attributes": (
        "class P:\n    def __init__(s, x): s.x = x\n"
        "    def __eq__(s, o): return all(getattr(s, k, None) == getattr(o, k, None) for k in vars(s))",
        "assert P(1) == P(1) and P(1) != P(2)",
    ),
    "eq over slots": (
        "class P:\n    __slots__ = ('x',)\n    def __init__(s, x): s.x = x\n"
        "    def __eq__(s, o): return all(getattr(s, k, None) == getattr(o, k, None) for k in s.__slots__)",
        "assert P(1) == P(1)",
    ),
    "empty dataclass": ("import dataclasses\n@dataclasses.dataclass\nclass P: pass", "assert P() == P()"),
    "metaclass without hash": (
        "class M(type):\n    def __eq__(c, o): return c.__name__ == getattr(o, '__name__', None)\n"
        "class A(metaclass=M): pass",
        "assert A == A",
    ),
    "warn": (
        "import warnings\ndef warn(*a, **k): pass\nwarnings.warn = warnings.showwarning = warn",
        "warnings.warn('x')",
    ),
    "hooks": ("import sys, threading\ndef h(*a): pass\nsys.excepthook = threading.excepthook = h", ""),
    "polyfill": (
        "import math, bisect\ndef foo(x): return x\nmath.foo = bisect.foo = foo",
        "assert math.foo(1) == bisect.foo(1)",
    ),
    "method for a library's class": (
        "import json\njson.JSONEncoder.default = lambda s, o: str(o)",
        "assert json.dumps(1j) == '\"1j\"'",
    ),
    "module of its own": (
        "import sys, types\nm = types.ModuleType('mm')\ndef g(): return 1\nm.g = g\nsys.modules['mm'] = m\nimport mm",
        "assert mm.g() == 1",
    ),
    "libraries": (
        "import numpy, pandas, regex, scipy.stats, sortedcontainers, sympy, networkx, asyncio, unittest.mock",
        "m = unittest.mock.Mock()\nm(1)\nm.assert_called_with(unittest.mock.ANY)",
    ),
    "child that goes on": ("import os\nif os.fork() == 0: raise ValueError\nos.wait()", "x = 1"),
}


@pytest.mark.parametrize("name", FAKES)
def test_the_checks_see_it(level: Level, name: str) -> None:
    verdict = attack(level, FAKES[name], TESTS.get(name, HONEST_TESTS))
    assert verdict.status == "failed" and "RuntimeError: " in verdict.stdout_tail, verdict


@pytest.mark.parametrize("name", HONEST)
def test_honest_programs_pass(level: Level, name: str) -> None:
    limits = dataclasses.replace(QUICK, seconds=30.0, memory_mb=4096)  # importing every package takes some
    verdict = attack(level, *HONEST[name], limits)
    assert verdict.status == "passed", verdict
