"""The start of each process of a run, before it reads any code: limits, and another user if we are root. Then one runs
the tests (tester.py), and the other the solution: it serves the requests of the first.

Its text, and that of the modules that it needs, comes by the command line: dare_bench cannot be imported.
"""

from __future__ import annotations

import builtins
import os
import resource
import sys
from types import ModuleType

from dare_bench.sandbox import tester
from dare_bench.sandbox.peer import OPERATIONS, Peer

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to load than all the rest
    from collections.abc import Callable
    from typing import Any, NoReturn


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
        tester.main(channel, control)
