"""A worker process that ends when its parent does, or lets go of it: no orphan computes on, whatever killed the parent.

The parent holds the write end of a pipe, the worker waits on the read end in a thread. Death by SIGKILL closes the
parent's end as surely as ``cut`` does. (Linux's PDEATHSIG would follow the parent's *thread* instead.)
"""

from __future__ import annotations

import os
import threading
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext


class Lifeline:
    """The parent's end. ``far`` is the worker's, to be handed over when it is started."""

    def __init__(self, context: SpawnContext) -> None:
        self.far, self._near = context.Pipe(duplex=False)

    def cut(self) -> None:
        """End the worker now."""
        self._near.close()
        self.far.close()


def hold(far: Connection) -> None:
    """In the worker: end this process at once when the parent is gone."""

    def wait() -> None:
        far.poll(None)  # nothing is ever sent: this returns when the other end is closed
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
