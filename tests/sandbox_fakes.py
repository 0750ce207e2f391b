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

# Reads what is sent to the worker and answers in its place, as well as can be without the secret.
READER = (
    WRONG
    + r"""
import os, stat
def is_socket(fd):
    try: return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError: return False
channel = next(fd for fd in range(3, 256) if is_socket(fd))
EMPTY = (16).to_bytes(8, "big") + bytes(16)
def steal(*a):
    import hashlib
    while True:
        size = int.from_bytes(os.read(channel, 8), "big")
        body = b""
        while len(body) < size: body += os.read(channel, size - len(body))
        os.write(channel, b"\0\0\0\x41+" + hashlib.blake2b(body).digest())
"""
)

# Writes a forged proof as soon as a frame of the runner holds any long byte string.
FRAMES = (
    READER
    + r"""
import sys
def look(frame):
    while frame:
        if frame.f_code.co_filename == "<string>":
            for value in frame.f_locals.values():
                if isinstance(value, (bytes, tuple)) or hasattr(value, "gi_frame"): os._exit(77)
        frame = frame.f_back
"""
)

FAKES = {
    "sys.exit": """
import sys
sys.exit(0)
""",
    "os._exit": """
import os
os._exit(0)
""",
    "exit when called": """
import os
def f(x):
    os._exit(0)
""",
    "sys.exit when called": """
import sys
def f(x):
    sys.exit(0)
""",
    "BaseException when called": """
class Stop(BaseException): pass
def f(x):
    raise Stop
""",
    "says so": WRONG
    + """
print('passed'); print('+' + '0' * 16)
""",
    "says so on every descriptor": WRONG
    + r"""
import os
for fd in range(256):
    try: os.write(fd, b'\0\0\0\x11+' + b'0' * 16)
    except OSError: pass
""",
    "empty answers on every descriptor": WRONG
    + r"""
import os
for fd in range(3, 256):
    try: os.write(fd, b'\0\0\0\x01+' * 9)
    except OSError: pass
""",
    "closes every descriptor": WRONG
    + """
import os
os.closerange(0, 256)
""",
    "atexit": WRONG
    + """
import atexit, os
atexit.register(os._exit, 0)
""",
    "__del__": WRONG
    + """
import os
class D:
    def __del__(self, leave=os._exit): leave(0)
d = D()
def f(x):
    global d
    del d
""",
    "thread": WRONG
    + """
import threading, os, time
threading.Thread(target=lambda: (time.sleep(.01), os._exit(0))).start()
def f(x): time.sleep(1)
""",
    "fork": WRONG
    + """
import os
if os.fork():
    os.wait(); os._exit(0)
""",
    "fork, right in the child only": """
import os
def f(x):
    if os.fork():
        os.wait(); os._exit(0)
    return 2
""",
    "exec": """
import os
os.execv('/bin/true', ['true'])
""",
    "replaced built-ins": WRONG
    + """
import builtins
for name in ('AssertionError', 'exec', 'compile', '__build_class__', 'len'):
    setattr(builtins, name, lambda *a, **k: None)
""",
    "replaced in the runner": WRONG
    + """
import __main__, os
for name in list(vars(__main__)):
    if name[:2] != '__': setattr(__main__, name, lambda *a: None)
__main__.exec = __main__.compile = lambda *a: None
os._exit = os.write = lambda *a: 0
""",
    "failure kept quiet": """
import os
os._exit = os.write = lambda *a: 0
def f(x): raise KeyError
""",
    "frames rewritten": WRONG
    + """
import sys
frame = sys._getframe(1)
frame.f_locals.update(run=lambda *a: None)
frame.f_globals.update(exec=lambda *a: None)
""",
    "trace": """
import sys
def tracer(frame, event, arg):
    frame.f_lineno += 1
    return tracer
def f(x):
    sys.settrace(tracer)
    sys._getframe(1).f_trace = tracer
""",
    "trace, by the original": """
import sys, importlib
del sys.modules['sys']
import sys as fresh
def f(x):
    fresh.settrace(lambda *a: None)
""",
    "profile": WRONG
    + """
import cProfile
cProfile.Profile().enable()
""",
    "gc": WRONG
    + """
import gc
for o in gc.get_objects(): pass
""",
    "library": WRONG
    + """
import math
math.isclose = lambda *a: True
""",
    "modules": WRONG
    + """
import sys
sys.modules['math'] = type('M', (), {'isclose': lambda *a: True})()
""",
    "equals everything": """
class E:
    def __eq__(self, o): return True
def f(x): return E()
""",
    "number that equals everything": """
class E(int):
    def __eq__(self, o): return True
def f(x): return E(7)
""",
    "built-ins replaced while tested": """
import builtins
def f(x):
    builtins.abs = lambda x: 0
    return 9
""",
    "module class": WRONG
    + """
import sys, types
class M(types.ModuleType):
    isclose = lambda *a: True
sys.modules['math'] = M('math')
""",
    "signal": WRONG
    + """
import signal, os
signal.signal(signal.SIGALRM, lambda *a: os._exit(0))
signal.setitimer(signal.ITIMER_REAL, .001, .001)
def f(x):
    while True: pass
""",
    "replaced stdout": WRONG
    + """
import sys
sys.stdout = sys.stderr = sys.__stdout__ = None
""",
    "excepthook": WRONG
    + """
import sys, os
sys.excepthook = lambda *a: os._exit(0)
""",
    "hides the exception": """
class E(Exception):
    def __str__(self): import os; os._exit(0)
def f(x): raise E
""",
    "check defined early": WRONG
    + """
def check(c): pass
""",
    "cells of the runner": WRONG
    + """
import sys
fail = sys._getframe(1).f_locals["fail"]
for cell in fail.__closure__:
    cell.cell_contents = lambda *a: b""
fail.__code__ = (lambda error: None).__code__
def f(x): raise ValueError
""",
    "thread that answers": READER
    + """
import threading, time
threading.Thread(target=steal, daemon=True).start(); time.sleep(.2)
""",
    "child that answers": READER
    + """
import time
if os.fork() == 0: steal()
time.sleep(.2)
""",
    "another channel in the place of this one": READER
    + """
import socket, threading
ours, theirs = socket.socketpair()
real = os.dup(channel)
os.dup2(theirs.fileno(), channel)
def between():
    while True:
        ours.send(os.read(real, 1 << 20) and EMPTY)
threading.Thread(target=between, daemon=True).start()
def back():
    while True:
        os.write(real, ours.recv(4096))
threading.Thread(target=back, daemon=True).start()
""",
    "gc callback": FRAMES
    + """
import gc
gc.callbacks.append(lambda phase, info: look(sys._getframe()))
gc.set_threshold(1)
hold = [[(i,) * 6 for i in range(5000)]]
""",
    "signal that looks": FRAMES
    + """
import signal
signal.signal(signal.SIGALRM, lambda number, frame: look(frame))
signal.setitimer(signal.ITIMER_REAL, .0005, .0005)
""",
    "excepthook that answers": READER
    + """
import sys
sys.excepthook = steal
for n in range(1, 60):
    try: sys.setrecursionlimit(n); break
    except RecursionError: pass
""",
    "interpreter of its own": WRONG
    + """
import _xxsubinterpreters as other
other.run_string(other.create(), "import gc; gc.get_objects()")
""",
    "StopIteration": """
def f(x): raise StopIteration
""",
}

# Not a trick in itself: every byte string to which frames, closures and the runner's module lead.
DIG = """
import sys
found, seen = set(), set()
WAYS = ("__closure__", "cell_contents", "__defaults__", "f_locals", "f_globals", "f_back", "gi_frame", "__self__")
def dig(value, depth=0):
    if id(value) in seen or depth > 12:
        return
    seen.add(id(value))
    if isinstance(value, bytes):
        found.add(value)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, set)) else ()
    for item in list(inside):
        dig(item, depth + 1)
    for name in WAYS:
        try:
            dig(getattr(value, name, None), depth + 1)
        except ValueError:  # an empty cell
            pass
def f(x):
    dig(sys._getframe())
    dig(vars(sys.modules["__main__"]))
"""

# Where the trick aims at what these use.
TESTS = {
    **dict.fromkeys(("library", "modules", "module class"), "import math\nassert math.isclose(1, 2)\n"),
    "built-ins replaced while tested": "assert abs(f(1) - 2) < 1e-6\n",
}
