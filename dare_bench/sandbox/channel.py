"""The supervisor's side of the talk with the worker (worker.py says what it is for).

To the worker: the secret (16 bytes); then for each text the length of the body (8 bytes) and the body, which is a
ticket (16 bytes) and the text. From it: length (4 bytes), then ``+`` and the proof that the text has run, or ``-`` and
one line about the exception that ended it.

The proof is a digest of body and secret. The secret is sent before there is any code, so reading the channel does not
give it. The proof does not give it either, and is of these texts and no others: code can put a socket of its own in the
place of the channel and pass on what it likes. The ticket makes the proofs of equal texts differ.
"""

from __future__ import annotations

import hashlib
import secrets
import selectors
import socket
from collections.abc import Sequence
from contextlib import suppress

from dare_bench.sandbox.verdict import Status

_LONGEST = 8192
_PIECE = 1 << 16
_FORGED: tuple[Status, str] = ("crashed", "the code wrote into the channel of the runner")


class Closed(Exception):
    """The other end is closed: nothing that could prove a pass can come any more."""


class Channel:
    """``texts``: what to run, in order. ``ready``: the worker has said its first word."""

    def __init__(self, ours: socket.socket, texts: Sequence[str]) -> None:
        ours.setblocking(False)
        self.socket, self.ready = ours, False
        self._texts = list(texts)
        self._secret = secrets.token_bytes(16)
        self._proof = b""  # the one that comes next, and no other; the worker's greeting has an empty one
        self._incoming, self._outgoing = b"", memoryview(b"")

    @property
    def waiting(self) -> bool:
        """There is something to send."""
        return len(self._outgoing) > 0

    def turn(self, events: int) -> tuple[Status, str] | None:
        """Send and receive what can be without blocking; a status and one line when all is decided.

        Raises:
            Closed: the code ended, or closed the channel.
        """
        if events & selectors.EVENT_WRITE and self.waiting:
            with suppress(BlockingIOError):
                self._outgoing = self._outgoing[self._send() :]
        if not events & selectors.EVENT_READ:
            return None
        try:
            piece = self.socket.recv(_PIECE)
        except BlockingIOError:
            return None
        except OSError:
            piece = b""
        if not piece:
            raise Closed
        self._incoming += piece
        return self._answer()

    def _send(self) -> int:
        try:
            return self.socket.send(self._outgoing[:_PIECE])
        except (BrokenPipeError, ConnectionResetError):
            return len(self._outgoing)  # the end is then read too

    def _answer(self) -> tuple[Status, str] | None:
        if len(self._incoming) < 4:
            return None
        length = int.from_bytes(self._incoming[:4], "big")
        if length > _LONGEST:
            return _FORGED
        if len(self._incoming) < 4 + length:
            return None
        payload, self._incoming = self._incoming[4 : 4 + length], self._incoming[4 + length :]
        if payload[:1] == b"-":
            return "failed", payload[1:].decode("utf-8", "replace")
        # A proof before its text was sent in full, a second one, or a guess: none is the worker's.
        if payload != b"+" + self._proof or self.waiting or self._incoming:
            return _FORGED
        if not self._texts:
            return "passed", ""
        body = secrets.token_bytes(16) + self._texts.pop(0).encode("utf-8", "surrogatepass")
        self._proof = hashlib.blake2b(body + self._secret).digest()
        first = b"" if self.ready else self._secret
        self._outgoing = memoryview(first + len(body).to_bytes(8, "big") + body)
        self.ready = True
        return None
