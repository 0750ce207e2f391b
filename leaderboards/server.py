"""The server of ``leaderboard serve``: the files of a site, for browsers on this machine."""

from __future__ import annotations

import os
import re
import sys
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_ADDRESS = "127.0.0.1"
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
"""This machine in a request. Another site can give one of its names this address, and its scripts could then read what
is served under that name."""


class SiteServer(ThreadingHTTPServer):
    """Serves ``folder`` at a port of this machine; 0 chooses a free one."""

    def __init__(self, folder: str | Path, port: int) -> None:
        super().__init__((_ADDRESS, port), partial(_SiteHandler, directory=os.path.realpath(folder)))

    @property
    def url(self) -> str:
        return f"http://{_ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line; none if the browser closed the connection."""
        error = sys.exception()
        if not isinstance(error, ConnectionError):
            print(f"a request was not answered: {error!r}", file=sys.stderr)


class _SiteHandler(SimpleHTTPRequestHandler):
    """Answers GET and HEAD for files of the folder, as far as they are regular and no part of their path is hidden."""

    def send_head(self) -> Any:
        host = ", ".join(self.headers.get_all("Host", ()))
        if not _HOST.fullmatch(host):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "Use the address that the server printed")
        elif not self._is_served():
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            return super().send_head()
        return None

    def _is_served(self) -> bool:
        path = Path(self.translate_path(self.path))
        try:
            page = path / "index.html" if path.is_dir() else path
            inside = page.resolve(strict=True).relative_to(self.directory)
            return page.is_file() and not any(part.startswith(".") for part in inside.parts)
        except (OSError, RuntimeError, ValueError):  # a link in a circle, a name too long, NUL, a place outside
            return False
