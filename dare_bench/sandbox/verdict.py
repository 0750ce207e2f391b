"""The outcome of a run of generated code, and its limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["bubblewrap", "namespaces", "none"]
Status = Literal["passed", "failed", "timeout", "crashed", "refused"]

InstallHint: Final = (
    "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap) or allow user namespaces; "
    "--unsafe-no-sandbox runs generated code with your rights"
)
"""What to do if no isolation works; the end of an error message."""

MEMORY_MB: Final = 4096
"""The default limit of a program. The reference solution that needs most, MBPP+'s 255, takes 2.5 GB."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one solution did against its tests.

    ``status``: ``passed``, ``failed`` (an exception, ``SystemExit`` and ``SyntaxError`` included, or a comparison that
    the tests cannot make themselves), ``timeout`` (wall clock or CPU), ``crashed`` (ended, was killed or broke a limit
    before the tests did), ``refused`` (not run: nothing isolates here, or the isolation did not start).
    ``stdout_tail``: the last output of the code and, if it did not pass, a line with the reason. ``seconds``: wall time
    of the code itself.
    """

    status: Status
    level: Level
    stdout_tail: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one run.

    They hold for the processes of the solution and of the tests separately, except ``seconds`` and ``output_bytes``.
    ``seconds``: wall time from the start of the code; each process gets the same in CPU time, rounded up, and one
    second more. ``memory_mb``: address space of each process, and resident memory of all of a side together.
    ``processes`` counts threads. ``tmp_mb``: its file system, and the longest file.
    """

    seconds: float = 10.0
    memory_mb: int = MEMORY_MB
    processes: int = 64
    files: int = 256
    tmp_mb: int = 64
    output_bytes: int = 8 << 20
    tail_bytes: int = 4096

    @property
    def cpu_seconds(self) -> int:
        return math.ceil(self.seconds) + 1
