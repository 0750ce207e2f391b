"""The two processes of a run. Each starts with limits, and as another user if we are root, before it reads any code.
One runs the tests and decides, the other runs the solution and serves the requests of the first. Their text comes by
the command line: dare_bench cannot be imported."""

from __future__ import annotations

import builtins
import os
import resource
import sys
from types import ModuleType

from dare_bench.sandbox.peer import OPERATIONS, Closed, Peer, StandIn
from dare_bench.sandbox.values import MESSAGE_LENGTH, describe, loads

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to load than all the rest
    from collections.abc import Callable
    from typing import Any, NoReturn


_MAX_REASON = 2 * MESSAGE_LENGTH  # characters


def limit(memory: int, cpu: int, processes: int, file_bytes: int, files: int) -> None:
    """Limits of this process and what it starts; never above what the process that started us may."""
    values = {"AS": memory, "CPU": cpu, "NPROC": processes, "FSIZE": file_bytes, "NOFILE": files, "CORE": 0}
    for name, value in values.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        ceiling = resource.getrlimit(kind)[1]
        hard = value + 1 if name == "CPU" else value  # SIGXCPU first: it tells the cause
        if ceiling != resource.RLIM_INFINITY:
            hard = min(hard, ceiling)
        try:
            resource.setrlimit(kind, (min(value, hard), hard))
        except (OSError, ValueError):  # macOS refuses some; only the unsafe level runs there
            if sys.platform == "linux":
                raise


def become(user: int) -> None:
    """Switch from root: its processes would not be counted against the limit, and its files could be opened."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def solve(channel: int) -> None:
    """Run the solution, and serve until the tests are done."""
    solution = ModuleType("solution")
    sys.modules["solution"] = solution  # pickle, dataclasses and typing look there
    names, leave = vars(solution), os._exit

    def run(text: str) -> None:
        exec(compile(text, "<solution>", "exec", dont_inherit=True), names)

    def lookup(name: str) -> tuple[bool, Any]:
        return (name in names, names.get(name))

    def lost(_: Exception) -> NoReturn:
        leave(1)

    operations: dict[str, Callable[..., Any]] = {**OPERATIONS, "run": run, "name": lookup, "ready": lambda: None}
    Peer(channel, "solution", lambda operation, *operands: operations[operation](*operands), lost).serve()


def test(channel: int, control: int) -> None:
    """Run the tests and decide: the solution runs in another process, and its messages are data."""
    judge = Judge(control)

    def perform(operation: str, target: Any, *operands: Any) -> Any:
        if not peer.exported(target):
            raise AttributeError("the solution requests an object that the tests did not pass")
        return operate(operation, target, *operands)

    peer = Peer(channel, "tests", perform, judge.lost, stand_in(judge))
    peer.ask("ready")
    os.write(control, b"ready\n")
    with open(control, encoding="ascii", closefd=False) as file:
        solution, tests = loads(file.readline().strip())
    try:
        peer.ask("run", solution)
        run(tests, peer.ask)
    except BaseException as error:
        judge.end("failed", describe(error))
    judge.end("passed")


class Judge:
    """Reports the outcome once and ends the process; tests cannot catch that."""

    def __init__(self, control: int) -> None:
        self._control, self._process = control, os.getpid()

    def end(self, outcome: str, reason: str = "") -> NoReturn:
        """``outcome``: passed, failed, or closed (the solution's process has ended)."""
        if os.getpid() == self._process:  # no child of the tests answers for them
            os.write(self._control, f"{outcome}\n{reason[:_MAX_REASON]}".encode("utf-8", "replace"))
        os._exit(0)

    def lost(self, error: Exception) -> NoReturn:
        if isinstance(error, Closed):
            self.end("closed")
        self.end("failed", f"the process of the solution sent something that is not an answer: {error}")


def run(tests: str, ask: Callable[..., Any]) -> None:
    """Execute the tests. Names that neither they nor Python define are the solution's; so are those of built-ins that
    their first line declares ``global``."""
    first = tests.partition("\n")[0]
    declared = first.removeprefix("global ").replace(",", " ").split() if first.startswith("global ") else []
    module = ModuleType("tests")
    sys.modules["tests"] = module  # pickle, dataclasses and typing look there
    vars(module)["__builtins__"] = SolutionNames(ask, declared)
    exec(compile(tests, "<tests>", "exec", dont_inherit=True), vars(module))


class SolutionNames(dict):  # type: ignore[type-arg]  # there is no Any at run time
    """The built-in names of tests; Python uses them for names that the tests do not define."""

    def __init__(self, ask: Callable[..., Any], declared: list[str]) -> None:
        super().__init__((name, value) for name, value in vars(builtins).items() if name not in declared)
        self._ask = ask

    def __missing__(self, name: str) -> Any:
        exists, value = self._ask("name", name)
        if not exists:
            raise KeyError(name)
        if isinstance(value, (StandIn, ModuleType)):  # functions and classes: requested once; other values may change
            self[name] = value
        return value


def stand_in(judge: Judge) -> type[StandIn]:
    """The class that represents objects of the solution's classes in tests. Comparing one would let the solution
    decide whether it is right, so that ends the run."""

    def refuse(self: Any, *_: Any) -> NoReturn:
        judge.end("failed", "TypeError: the tests compare an object that is not of a built-in type")

    compared = ("eq", "ne", "lt", "le", "gt", "ge", "bool", "instancecheck", "subclasscheck")
    methods = {f"__{name}__": refuse for name in compared}
    return type("StandIn", (StandIn,), {**methods, "__hash__": object.__hash__, "__slots__": ()})


def operate(operation: str, target: Any, *operands: Any) -> Any:
    """An operation of the solution on an object from the tests: it may call and iterate, and use the public attributes
    of objects of classes that the tests define. Attributes of other objects give access to everything."""
    if operation in ("get", "set") and (type(target).__module__ != "tests" or str(operands[0])[:1] == "_"):
        raise AttributeError(f"{operands[0]!r} of an object of the tests cannot be used by the solution")
    return OPERATIONS[operation](target, *operands)


def main(arguments: list[str]) -> None:
    """CHANNEL CONTROL USER MEMORY CPU PROCESSES FILE_BYTES FILES FOLDER...: folders of packages. CONTROL: the
    socket for the tests and the verdict, -1 for the solution's process."""
    channel, control, user, *limits = map(int, arguments[:8])
    sys.path += arguments[8:]
    for descriptor in (channel, control):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    limit(*limits)
    if user:
        become(user)
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # what ``site`` would have added
    if control < 0:
        solve(channel)
    else:
        test(channel, control)
