"""The process in which generated code runs, from the text of this file: nothing of dare_bench is there.

The supervisor sends a secret, then one text after the other, and the next only when the proof of the last has come
back: a digest of this very text and the secret, made when the text has run to its end. Code that exits, prints, closes
descriptors or forks makes no proof; nor does code that reads the channel, or puts one of its own in its place.

All of it, from the bytes read to the proof written, is a chain of iterators made of C functions. While it runs there
is no frame of ours but ``main``'s, which holds none of it: only the value stack of ``main`` refers to the chain. So
handlers of signals, callbacks of the garbage collector, threads, tracebacks and closures do not lead to the secret,
and nothing that the code rebinds is called here.
"""

import builtins
import os
import resource
import sys
from _blake2 import blake2b  # hashlib would load OpenSSL first, for 5 ms
from collections.abc import Callable, Iterator
from itertools import repeat, tee
from types import ModuleType
from typing import Any

# Ways to other frames' variables and to the chain. Legitimate answers need none of them. Another interpreter would
# have no audit hook.
REFUSED = frozenset(
    {
        *("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"),
        *("sys._current_frames", "sys._current_exceptions", "cpython.PyInterpreterState_New"),
        *("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
    }
)
FILES = ("<solution>", "<checks>", "<tests>", "<checks>")  # the texts in order
MESSAGE_BYTES = 2000


def main(channel: int) -> None:
    """Run each text; the first that raises ends it."""
    fail = failing(channel)
    try:
        for _ in proofs(channel):
            pass
        raise StopIteration("raised by the code")  # which ends a chain without an error
    except BaseException as error:
        fail(error)


def proofs(channel: int) -> Iterator[int]:
    """Each step reads a text, runs it and writes its proof. Only C functions here, or a frame would be in reach.

    To be read downwards; ``map`` and ``zip`` ask their arguments from left to right, which says what happens when.
    """
    os.write(channel, b"\0\0\0\1+")
    read = open(channel, "rb", closefd=False).read  # noqa: SIM115  (lives as long as the process)
    secrets = {os.getpid(): read(16)}  # a forked child finds none: it does not answer for its parent
    sizes: Iterator[int] = map(int.from_bytes, map(read, repeat(8)), repeat("big"))  # type: ignore[arg-type]
    bodies, copies = tee(map(read, sizes))
    texts = map(bytes.__getitem__, bodies, repeat(slice(16, None)))
    sources = map(bytes.decode, texts, repeat("utf-8"), repeat("surrogatepass"))
    code = map(compile, sources, iter(FILES), repeat("exec"), repeat(0), repeat(True), repeat(0))
    ran = map(exec, code, namespaces())
    done: Iterator[Any] = map(tuple.__getitem__, zip(ran, copies, strict=False), repeat(1))
    sealed = map(bytes.__add__, done, map(secrets.__getitem__, iter(os.getpid, 0)))
    digests = map(blake2b.digest, map(blake2b, sealed))
    return map(os.write, repeat(channel), map(bytes.__add__, repeat(b"\0\0\0\x41+"), digests))


def namespaces() -> Iterator[dict[str, Any]]:
    """Where the texts run. Each checks has built-ins of its own, copied before there was any other code."""
    solution = ModuleType("solution")
    sys.modules["solution"] = solution  # pickle, dataclasses and typing look there
    shared = vars(solution)
    known = sys.stdlib_module_names

    def checking() -> dict[str, Any]:
        pristine, own = dict(vars(builtins)), dict(vars(builtins))
        view = {"current": vars(builtins), "modules": sys.modules, "solution": shared, "standard": known}
        return {"__builtins__": own, "pristine": pristine, **view}

    return iter((shared, checking(), shared, checking()))


def failing(channel: int) -> Callable[[BaseException], None]:
    """What says that a text raised. Code can reach and change it; so the proofs share nothing with it."""
    write, leave, own_pid, pid, say = os.write, os._exit, os.getpid, os.getpid(), describe

    def fail(error: BaseException) -> None:
        if own_pid() == pid:  # nor does a child fail for its parent
            payload = b"-" + say(error).encode("utf-8", "replace")[:MESSAGE_BYTES]
            write(channel, len(payload).to_bytes(4, "big") + payload)
        leave(1)

    return fail


def describe(error: BaseException) -> str:
    """One line: the type, the message and the last line of the solution or tests that it came through."""
    try:
        text = " ".join(f"{type(error).__name__}: {error}".split())
    except BaseException:
        text = f"{type(error).__name__} (its message cannot be printed)"
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file in ("<solution>", "<tests>"):
            place = f" ({file[1:-1]}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return text[:MESSAGE_BYTES].removesuffix(": ") + place


def limit(memory: int, cpu: int, processes: int, file_bytes: int, files: int) -> None:
    """Limits of this process and what it starts; never above what the process that started us may."""
    wanted = {"AS": memory, "CPU": cpu, "NPROC": processes, "FSIZE": file_bytes, "NOFILE": files, "CORE": 0}
    for name, value in wanted.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        ceiling = resource.getrlimit(kind)[1]
        hard = value + 1 if name == "CPU" else value  # SIGXCPU first: it says why
        if ceiling != resource.RLIM_INFINITY:
            hard = min(hard, ceiling)
        try:
            resource.setrlimit(kind, (min(value, hard), hard))
        except (OSError, ValueError):  # macOS refuses some; only the unsafe level runs there
            if sys.platform == "linux":
                raise


def become(user: int) -> None:
    """Leave root: its processes would not be counted against the limit, and its files could be opened."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def guard() -> None:
    """Close the ways that ``REFUSED`` names; an audit hook cannot be taken away again."""

    def refuse(event: str, _: tuple[Any, ...], refused: frozenset[str] = REFUSED) -> None:
        if event in refused:
            raise RuntimeError(f"{event} is not available in the sandbox")

    def quiet(function: object) -> None:
        if function is not None:  # doctest sets None when it is done
            raise RuntimeError("tracing is not available in the sandbox")

    sys.settrace = sys.setprofile = quiet
    sys.addaudithook(refuse)
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # what ``site`` would have added


if __name__ == "__main__":
    _channel, _user, *_limits = map(int, sys.argv[1:8])
    sys.path += sys.argv[8:]
    sys.argv[1:] = []
    os.set_inheritable(_channel, False)
    limit(*_limits)
    if _user:
        become(_user)
    guard()
    main(_channel)
