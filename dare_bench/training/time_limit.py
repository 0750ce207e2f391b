"""A limit of time for code of the user's that runs in this process.

In the main thread a signal interrupts the code, also where it waits (a socket, a lock, a child process). It is not
SIGALRM, which the code may use itself. Another thread cannot be interrupted: there the code runs in a thread of its
own, which is left behind when its time is up.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

Result = TypeVar("Result")

SIGNAL = signal.SIGRTMIN + 5
AGAIN = 1.0
"""Seconds until code that caught the interruption is interrupted again."""


class TimeLimitError(Exception):
    """The code took longer than its limit."""


class _TimeUp(BaseException):
    """Raised inside the code; ``except Exception`` there does not stop it."""


def limited(call: Callable[[], Result], seconds: float) -> Result:
    """What ``call`` returns.

    Raises:
        TimeLimitError: it took longer than ``seconds``.
    """
    if threading.current_thread() is threading.main_thread():
        return _interrupted(call, seconds)
    return _left_behind(call, seconds)


def _interrupted(call: Callable[[], Result], seconds: float) -> Result:
    main, over = threading.get_ident(), threading.Event()

    def stop(*_: object) -> None:
        if not over.is_set():
            raise _TimeUp

    def watch() -> None:
        pause = seconds
        while not over.wait(pause):
            signal.pthread_kill(main, SIGNAL)
            pause = AGAIN

    before = signal.signal(SIGNAL, stop)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        try:
            return call()
        finally:
            over.set()
    except _TimeUp:
        raise TimeLimitError from None
    finally:
        watcher.join()  # its last signal arrives before the handler is gone
        signal.signal(SIGNAL, before)


def _left_behind(call: Callable[[], Result], seconds: float) -> Result:
    result: Future[Result] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if wait([result], seconds).not_done:
        raise TimeLimitError
    return result.result()
