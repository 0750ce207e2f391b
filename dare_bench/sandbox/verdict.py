"""What a run of generated code comes to, and what it may use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["bubblewrap", "namespaces", "none"]
Status = Literal["passed", "failed", "timeout", "crashed", "refused"]

InstallHint: Final = (
    "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap) or allow user namespaces; "
    "--unsafe-no-sandbox runs generated code with your own rights"
)
"""What to do where no isolation works; ends an error message."""


MEMORY_MB: Final = 4096
"""What a program may use when nothing is said. The reference solution that needs most, MBPP+'s 255, takes 2.5 GB."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one solution did against its tests.

    ``status``: ``passed`` (the tests ran to their end), ``failed`` (an exception, ``SystemExit`` and ``SyntaxError``
    included, or a comparison that the tests cannot make themselves), ``timeout`` (wall clock or CPU), ``crashed``
    (ended, was killed or broke a limit before the tests did), ``refused`` (not run: nothing isolates here, or the
    isolation did not start).
    ``level``: what it ran in. ``stdout_tail``: the last output of the code and one line that says why it did not pass.
    ``seconds``: wall time of the code itself, without the start of the sandbox.
    """

    status: Status
    level: Level
    stdout_tail: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use.

    The processes of the solution and those of the tests have all of it each, but for ``seconds`` and ``output_bytes``.
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
