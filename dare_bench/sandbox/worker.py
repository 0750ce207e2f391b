"""The process in which generated code runs, from the text of this file: nothing of dare_bench is there.

The supervisor sends one text after the other, each with a ticket, and the next only when the ticket of the last has
come back: it says that this text ran to its end. The solution's ticket buys the tests, and the last text is empty: its
ticket is the token that proves the pass, so it is in no process before the tests have ended. Code that exits, prints,
closes descriptors or forks returns no ticket.

The tickets live in a suspended generator that only the value stack of ``main`` refers to. No frame, module or global
leads there, and what ``main`` calls is on its stack before the code runs, so that nothing it rebinds is called here.
"""

import builtins
import os
import resource
import sys
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType
from typing import Any

# Ways to other frames' variables and to the generator. Legitimate answers need none of them.
REFUSED = frozenset(
    {
        *("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"),
        *("sys._current_frames", "sys._current_exceptions"),
        *("gc.get_objects", "gc.get_referrers", "gc.get_referents"),
    }
)
FILES = {b"s": "<solution>", b"t": "<tests>", b"c": "<checks>"}
MESSAGE_BYTES = 2000

Make = Callable[..., CodeType]
Run = Callable[[CodeType, dict[str, Any]], None]
Fail = Callable[[BaseException], None]


def main(channel: int) -> None:
    """Run each text; the first that raises ends it. Only C functions stand between a text and its ticket."""
    for make, run, fail, text, file, names in stages(channel):
        try:
            run(make(text.decode("utf-8", "surrogatepass"), file, "exec", 0, True, 0), names)
        except BaseException as error:
            fail(error)
            return


def stages(channel: int) -> Iterator[tuple[Make, Run, Fail, bytes, str, dict[str, Any]]]:
    """What to run next and with what, for as long as the supervisor sends texts.

    Every name it uses is local and bound here, before the first text: the code can rebind globals and built-ins.
    """
    make, run, size, copy, number, files = compile, exec, len, dict, int.from_bytes, dict(FILES)
    read, write, leave, own_pid = os.read, os.write, os._exit, os.getpid
    pristine, pid = dict(vars(builtins)), os.getpid()
    solution = ModuleType("solution")
    sys.modules["solution"] = solution  # pickle, dataclasses and typing look there
    shared = vars(solution)
    checking = {"pristine": dict(pristine), "current": vars(builtins), "modules": sys.modules}

    def take(wanted: int) -> bytes:
        data = b""
        while size(data) < wanted:
            piece = read(channel, wanted - size(data))
            if not piece:
                leave(1)
            data += piece
        return data

    def answer(payload: bytes) -> None:
        write(channel, size(payload).to_bytes(4, "big") + payload)

    def fail(error: BaseException) -> None:
        answer(b"-" + describe(error).encode("utf-8", "replace")[:MESSAGE_BYTES])
        leave(1)

    answer(b"+")
    while True:
        head = take(25)
        text = take(number(head[17:], "big"))
        kind = head[16:17]
        if kind != b"e":
            names = {"__builtins__": copy(pristine), **checking} if kind == b"c" else shared
            yield make, run, fail, text, files[kind], names
            if own_pid() != pid:  # a forked child does not answer for its parent
                leave(1)
        answer(b"+" + head[:16])


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
