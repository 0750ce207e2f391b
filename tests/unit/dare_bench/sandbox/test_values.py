# ruff: noqa: F811  (fixtures are imported)
"""What crosses between a solution and its tests, faithfully; and honest programs of unusual kinds that pass."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import fractions
import re
from typing import Any

import pytest
from require import need_package
from sandboxes import QUICK, attack, nothing_left, strongest  # noqa: F401

from dare_bench.sandbox.reader import Reader
from dare_bench.sandbox.values import dumps, loads
from dare_bench.sandbox.verdict import Level
from dare_bench.sandbox.writer import Writer

Point = collections.namedtuple("Point", "x y")


def crossed(value: Any) -> Any:
    writer = Writer((), lambda value: pytest.fail(f"{value!r} does not cross"))
    item, nodes = loads(dumps([writer.item(value), writer.nodes]))
    reader = Reader(pytest.fail, [])
    reader.add(nodes)
    return reader.item(item)


VALUES = [
    *(None, True, 0, -1, 2**70, -(2**700), 0.1, -0.0, float("inf"), 1e308, 1 + 2j, "", "a\ud800é\0", b"", b"\xff", ...),
    *([], [1, 1.0, True, None, "x"], [[1], [2, [3]]], (), (1, (2, [3])), [(1, 2), (3,)], [(1, 2), [3]], [()]),
    *({}, {1: "a", "1": 2, (1, 2): [3], None: {}}, set(), {(1, "a", (2,))}, frozenset({1, frozenset({2})})),
    *(range(1, 9, 2), slice(1, None), bytearray(b"xy"), {1: 2}.keys(), {1: [2]}.items(), int, list, ValueError),
    *(decimal.Decimal("1.10"), decimal.Decimal("NaN"), fractions.Fraction(2, 3), collections.Counter("aab")),
    *(collections.deque([1, [2]], maxlen=3), collections.OrderedDict([(2, 1), (1, 2)]), Point(1, [2])),
    *(collections.defaultdict(list, {1: [2]}), datetime.date(2024, 2, 29), datetime.timedelta(1, 2, 3)),
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.timezone(datetime.timedelta(hours=1))),
    [(n % 3, "ab"[n % 2], 0.5, None, True) for n in range(2000)],
    [(1,) * (n % 4) for n in range(2000)],
    [()] * 2000,
    [(n, str(n)) for n in range(2000)],
]


@pytest.mark.parametrize("value", VALUES, ids=[f"{n}-{type(value).__name__}" for n, value in enumerate(VALUES)])
def test_a_value_crosses_as_it_is(value: Any) -> None:
    result = crossed(value)
    assert repr(result) == repr(value)  # tells 1 from 1.0 and True, and the order
    assert type(result) is type(value) or isinstance(value, Point)


def test_numbers_of_any_size_cross() -> None:
    assert crossed([10**5000, {-(10**5000): 1}]) == [10**5000, {-(10**5000): 1}]


def test_shared_and_circular_objects_stay_so() -> None:
    row = [0]
    result = crossed([row, row, (row,)])
    result[0][0] = 1
    assert result == [[1], [1], ([1],)]
    circle: dict[str, Any] = {"list": []}
    circle["list"].append((circle,))
    result = crossed(circle)
    assert result["list"][0][0] is result


def test_an_object_of_a_derived_class_is_read_as_its_base() -> None:
    class Liar(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    class Mine(dict[str, int]):
        pass

    result = crossed([Liar(3), Mine(a=1)])
    assert result == [3, {"a": 1}] and list(map(type, result)) == [int, dict]


def test_arrays_and_matches_are_the_readers_own() -> None:
    np = need_package("numpy")
    for array in (
        np.arange(6).reshape(2, 3),
        np.array([1.5, np.nan]),
        np.array(["ab", "c"]),
        np.array([[1, "x"]], "O"),
    ):
        result = crossed(array)
        assert result.dtype == array.dtype and repr(result) == repr(array)
    assert type(crossed(np.float32(0.5))) is np.float32 and crossed(np.bool_(True)) is np.bool_(True)
    for match in (re.match("a+", "aab"), re.search(r"(?<=b)(c)?", "abcd"), re.search("b??$", "ab")):
        assert match is not None
        result = crossed(match)
        assert isinstance(result, re.Match) and (result.span(), result.groups()) == (match.span(), match.groups())


def test_an_exception_crosses_as_the_nearest_of_pythons_own() -> None:
    class Own(KeyError):
        pass

    for error, kind in ((Own("k"), KeyError), (OSError(2, "no"), OSError), (SystemExit(3), SystemExit)):
        result = crossed(error)
        assert type(result) is type(kind(*error.args)) and result.args == error.args


# Solutions, and tests that they pass.
HONEST = {
    "recursion": ("def f(n): return 0 if n == 0 else 1 + f(n - 1)", "assert f(900) == 900"),
    "globals": ("n = 0\ndef f():\n    global n\n    n += 1\n    return n", "assert f() == 1 and f() == 2 and n == 2"),
    "cache": (
        "import functools\n@functools.lru_cache\ndef f(n): return n if n < 2 else f(n - 1) + f(n - 2)",
        "assert f(80) == 23416728348467685\nassert f.cache_info().hits == 78\nf.cache_clear()",
    ),
    "decorator": (
        "def twice(f):\n    def g(*a, **k): return 2 * f(*a, **k)\n    return g\n"
        "@twice\ndef f(x, *, y=1): return x + y",
        "assert f(1) == 4 and f(1, y=2) == 6 and f(*[1], **{'y': 3}) == 8",
    ),
    "in place": (
        "def f(rows, d, s):\n    rows[0].sort()\n    rows.append(rows[0])\n    d.pop(1); s.add(3); return None",
        "rows, d, s = [[2, 1]], {1: 2}, {1}\nkept = rows[0]\nassert f(rows, d, s) is None\n"
        "assert rows == [[1, 2], [1, 2]] and kept == [1, 2] and rows[1] is kept and d == {} and s == {1, 3}",
    ),
    "returns its argument": ("def f(x):\n    x.append(x)\n    return x", "x = []\nassert f(x) is x and x[0] is x"),
    "generator": ("def f(n):\n    for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2] and next(f(1)) == 0"),
    "generator that is sent to": (
        "def f():\n    x = yield 1\n    yield x + 1",
        "g = f()\nassert next(g) == 1 and g.send(4) == 5",
    ),
    "iterators": (
        "def f(x): return zip(x, map(str, x))\ndef g(x): return filter(None, reversed(x))",
        "assert list(f([1, 2])) == [(1, '1'), (2, '2')] and list(g([0, 1])) == [1]",
    ),
    "views": ("def f(d): return d.keys(), d.values()", "k, v = f({1: 2})\nassert k == {1} and list(v) == [2]"),
    "derived types": (
        "import collections, enum\nclass L(list): pass\nclass N(enum.IntEnum): ONE = 1\n"
        "P = collections.namedtuple('P', 'x y')\ndef f(): return L([1]), N.ONE, P(1, 2)",
        "made = f()\nassert made == ([1], 1, (1, 2)) and made[2].y == 2",
    ),
    "classes": (
        "class Node:\n    count = 0\n    def __init__(s, v): s.v, s.left, s.right = v, None, None; Node.count += 1\n"
        "    def depth(s): return 1 + max(n.depth() if n else 0 for n in (s.left, s.right))\n"
        "def f(n): return n.depth()",
        "root = Node(1)\nroot.left = Node(2)\nroot.left.right = Node(3)\nassert f(root) == root.depth() == 3\n"
        "assert root.left.right.v == 3 and root.right is None and root.left is root.left and Node.count == 3",
    ),
    "container": (
        "class C:\n    def __init__(s): s.d = {}\n    def __getitem__(s, k): return s.d[k]\n"
        "    def __setitem__(s, k, v): s.d[k] = v\n    def __len__(s): return len(s.d)\n"
        "    def __iter__(s): return iter(s.d)\n    def __str__(s): return 'C' + str(s.d)",
        "c = C()\nc['a'] = [1]\nassert c['a'] == [1] and len(c) == 1 and 'a' in c and str(c) == \"C{'a': [1]}\"\n"
        "try: c['b']\nexcept KeyError as error: assert error.args == ('b',)\nelse: assert False",
    ),
    "closures": ("def f(n):\n    def g(x): return x + n\n    return g", "assert f(1)(2) == 3"),
    "functions of the tests": (
        "def f(g, xs): return sorted(map(g, xs), key=g)",
        "assert f(lambda x: -x, [1, 2]) == [-1, -2] and f(abs, [-1]) == [1] and f(str, [3, 1]) == ['1', '3']",
    ),
    "exceptions of the tests": (
        "def f(g):\n    try: return g()\n    except ZeroDivisionError: return 'caught'",
        "assert f(lambda: 1 / 0) == 'caught'",
    ),
    "objects of the tests": (
        "def f(head):\n    n = 0\n    while head:\n        head.seen, head, n = True, head.next, n + 1\n    return n",
        "class N:\n    def __init__(s, n): s.next = n\nhead = N(N(None))\n"
        "assert f(head) == 2 and head.next.seen is True",
    ),
    "types of the tests": (
        "def f(x, t): return [v for v in x if isinstance(v, t)]",
        "assert f([1, 'a'], str) == ['a']",
    ),
    "exceptions": (
        "class Own(ValueError): pass\ndef f(x): raise Own('no', x)",
        "try: f(1)\nexcept ValueError as error: assert error.args == ('no', 1)\nelse: assert False",
    ),
    "long numbers": ("def f(n): return [10 ** n, {n: 10 ** n}]", "assert f(5000) == [10 ** 5000, {5000: 10 ** 5000}]"),
    "many digits": (
        "import sys\nsys.set_int_max_str_digits(0)\ndef f(n): return 10 ** n, len(str(10 ** n))",
        "assert f(5000) == (10 ** 5000, 5001)",
    ),
    "nan": ("def f(): return [float('nan'), float('-inf')]", "x, y = f()\nassert x != x and y == float('-inf')"),
    "what it imports": (
        "import sys, math\nfrom math import isclose",
        "assert isclose(math.pi, 3.14159265358979) and sys.path",
    ),
    "shadowed built-in that was asked for": ("def sum(a, b): return a * b", "global sum\nassert sum(3, 4) == 12"),
    "shadowed built-in that was not": (
        "def len(x): return 7\ndef f(x): return len(x)",
        "assert f([]) == 7 and len([]) == 0",
    ),
    "prints and reads nothing": ("def f():\n    print('out')\n    return None", "assert f() is None"),
    "threads": (
        "import threading\ndef f():\n    got = []\n    t = threading.Thread(target=got.append, args=(1,))\n"
        "    t.start(); t.join()\n    return got",
        "assert f() == [1]",
    ),
    "child that goes on": ("import os\nif os.fork() == 0: raise ValueError\nos.wait()", "x = 1"),
    "library changed for itself": (
        "import json, math\njson.JSONEncoder.default = lambda s, o: str(o)\nmath.foo = abs\n"
        "def f(): return json.dumps(1j) + str(math.foo(-1))",
        "assert f() == '\"1j\"1'",
    ),
    "module of its own": (
        "import sys, types\nm = types.ModuleType('mm')\ndef g(): return 1\nm.g = g\nsys.modules['mm'] = m\nimport mm",
        "assert mm.g() == 1",
    ),
    "tests with classes of their own": (
        "def f(x): return x + 1",
        "import dataclasses, unittest\n@dataclasses.dataclass\nclass P:\n    x: 'int'\n"
        "class T(unittest.TestCase):\n    def test(self): self.assertEqual(f(P(1).x), 2)\n"
        "result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))\n"
        "assert result.testsRun == 1 and result.wasSuccessful() and P(1) == P(1)",
    ),
}
# These need packages, so not everywhere.
WITH_PACKAGES = {
    "numpy": (
        "import numpy as np\ndef f(x):\n    x *= 2\n    return x.mean(), x.max(), x > 2",
        "import numpy\nx = numpy.array([1.0, 3.0])\nmean, top, big = f(x)\n"
        "assert mean == 4.0 and top == 6 and big.tolist() == [False, True] and numpy.allclose(x, [2, 6])",
    ),
    "libraries": (
        "import pandas, regex, scipy.stats, sortedcontainers, sympy, networkx, asyncio\n"
        "def f(): return pandas.Series([1, 2]).tolist(), str(sympy.Symbol('x') + 1)",
        "assert f() == ([1, 2], 'x + 1')",
    ),
}


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.usefixtures("nothing_left")
def test_honest_programs_pass(strongest: Level, name: str) -> None:
    verdict = attack(strongest, *HONEST[name])
    assert verdict.status == "passed", verdict


@pytest.mark.parametrize("name", WITH_PACKAGES)
@pytest.mark.usefixtures("nothing_left")
def test_honest_programs_with_packages_pass(strongest: Level, name: str) -> None:
    limits = dataclasses.replace(QUICK, seconds=60.0, memory_mb=4096)  # importing every package takes some
    verdict = attack(strongest, *WITH_PACKAGES[name], limits)
    assert verdict.status == "passed", verdict


@pytest.mark.parametrize(
    "tests",
    [
        *(
            "assert P(1) == P(1)",
            "assert not P(1) != P(2)",
            "assert P(1)",
            "assert P(1) < P(2)",
            "assert isinstance(P(1), P)",
        ),
        *("assert P(1) in [P(1)]", "try: P(1) == 1\nexcept BaseException: pass"),
    ],
)
def test_a_comparison_that_the_tests_cannot_make_fails(strongest: Level, tests: str) -> None:
    point = "import dataclasses\n@dataclasses.dataclass(order=True)\nclass P:\n    x: int\n"
    verdict = attack(strongest, point, tests)
    assert verdict.status == "failed" and "not of a built-in type" in verdict.stdout_tail, verdict
