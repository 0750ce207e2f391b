"""The Hugging Face hub where there is no network: one attempt, then what the cache has, and a message that says so."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from dare_bench.errors import first_line

_CONNECTING = frozenset({"ConnectError", "ConnectTimeout", "ProxyError"})
"""Of httpx or httpx2, by the version of huggingface_hub."""
_unreachable = ""
"""The reason why the hub could not be reached within the last :func:`asked_once`; the libraries drop it."""


@contextlib.contextmanager
def asked_once() -> Iterator[None]:
    """Inside, a hub that cannot be reached is not asked again: the libraries go on as in their offline mode, with what
    is cached. Connections that break after the hub has answered are tried again as usual."""
    global _unreachable
    from huggingface_hub import get_session
    from huggingface_hub.errors import OfflineModeIsEnabled

    client: Any = get_session()
    send, answered, _unreachable = client.send, False, ""

    def send_once(request: Any, **named: Any) -> Any:
        nonlocal answered
        global _unreachable
        if _unreachable:
            raise OfflineModeIsEnabled(_unreachable)
        try:
            response = send(request, **named)
        except Exception as error:
            if answered or _CONNECTING.isdisjoint(kind.__name__ for kind in type(error).__mro__):
                raise
            cause = re.sub(r"^\[Errno -?\d+\] ", "", first_line(error))
            _unreachable = f"{request.url.host} cannot be reached ({cause})"
            raise OfflineModeIsEnabled(_unreachable) from error
        answered = True
        return response

    client.send = send_once
    try:
        yield
    finally:
        client.send = send


def why_offline(error: BaseException) -> str | None:
    """The reason if loading failed because the hub could not be asked; None for another error."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    if _unreachable and any(isinstance(cause, OSError) for cause in causes):
        return _unreachable
    if any("OfflineModeIsEnabled" in repr(cause) for cause in causes):
        return "the hub is not asked in offline mode (HF_HUB_OFFLINE or HF_DATASETS_OFFLINE)"
    return None
