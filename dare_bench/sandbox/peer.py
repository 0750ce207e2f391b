"""One end of the protocol between the process of the tests and that of the solution.

A request names an operation and an object: call it, read an attribute, take the next item. The answer has the result or
the exception, and the new content of the request's lists, dictionaries and the like. While an end waits for an answer,
it serves requests: tests may pass functions to a solution. A message is its length (8 bytes) and JSON (values.py).
"""

from __future__ import annotations

import os
from _thread import RLock

from dare_bench.sandbox.reader import Reader
from dare_bench.sandbox.values import Unreadable, describe, dumps, loads
from dare_bench.sandbox.writer import Writer

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to load than all the rest
    from collections.abc import Callable
    from typing import Any, NoReturn

_PIECE = 1 << 20
_MAX_MESSAGE = 1 << 30


class Closed(Exception):
    """The other process has ended, or closed its end."""


def _forwarded(operation: str, read: Callable[[Any], Any] | None = None) -> Any:
    """A method of stand-ins that asks for an operation on the object; ``read`` makes Python's type of the result."""

    def method(self: StandIn, *operands: Any) -> Any:
        value = self._dare_bench_ask(operation, self, *operands)
        return value if read is None else read(value)

    return method


class StandIn:
    """Represents an object of the other process. It compares as itself; only reads and calls are forwarded, never an
    operation that would reveal a value to the other process and let it decide whether that is the right one."""

    __slots__ = ("__weakref__", "_dare_bench_ask")

    def __init__(self, ask: Callable[..., Any]) -> None:
        object.__setattr__(self, "_dare_bench_ask", ask)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._dare_bench_ask("call", self, args, named)

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__" and name != "__name__":  # protocols: numpy's __array_interface__ holds addresses
            raise AttributeError(name)
        return self._dare_bench_ask("get", self, name)

    __setattr__ = _forwarded("set")
    __iter__ = _forwarded("iter")
    __next__ = _forwarded("next")
    __bool__ = _forwarded("bool", lambda value: value is True)
    __len__ = _forwarded("len", int)
    __getitem__ = _forwarded("item")
    __setitem__ = _forwarded("set item")
    __delitem__ = _forwarded("delete item")
    __repr__ = _forwarded("repr", str)
    __str__ = _forwarded("str", str)


def call(target: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        return target(*args, **named)
    except StopIteration as error:  # it would end a loop of the caller's without an error (PEP 479)
        raise RuntimeError("the call raised StopIteration") from error


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": call,
    "get": getattr,
    "set": setattr,
    "iter": iter,
    "next": next,
    "bool": bool,
    "len": len,
    "item": lambda target, key: target[key],
    "set item": lambda target, key, value: target.__setitem__(key, value),
    "delete item": lambda target, key: target.__delitem__(key),
    "repr": repr,
    "str": str,
}


class Peer:
    """``side``: the name of this end. ``perform`` executes a request. ``lost`` does not return: the other process has
    ended or sent an invalid message. ``stand_in``: the class that represents its objects."""

    def __init__(
        self,
        channel: int,
        side: str,
        perform: Callable[..., Any],
        lost: Callable[[Exception], NoReturn],
        stand_in: type[StandIn] = StandIn,
    ) -> None:
        self._channel, self._side, self._perform, self._lost, self._stand_in = channel, side, perform, lost, stand_in
        self._read, self._write, self._leave = os.read, os.write, os._exit  # a solution may replace these
        self._pid, self._process = os.getpid, os.getpid()
        self._exports: list[Any] = []
        self._numbers: dict[int, list[Any]] = {}  # by id: the nodes of exported objects and of stand-ins
        self._stand_ins: dict[int, StandIn] = {}
        self._turn = RLock()

    def ask(self, *request: Any) -> Any:
        """Execute a request in the other process; returns its result, or raises its exception."""
        with self._turn:
            writer = Writer((), self._export)
            text = dumps(["?", writer.item(request), writer.nodes])
            try:
                self._send(text)
                while (message := self._receive())[0] == "?":
                    self._answer(*message[1:])
                outcome, value = self._understood(writer.values, *message)
            except Closed as error:
                self._lost(error)
            except BaseException as error:  # whatever a forged message leads to
                self._lost(Unreadable(describe(error)))
        if outcome == "=":
            return value
        raise value

    def _understood(
        self, known: list[Any], outcome: str, item: Any, nodes: list[Any], changes: list[Any]
    ) -> tuple[str, Any]:
        reader = Reader(self._resolve, known)
        reader.add(nodes)
        for n, node in changes:
            reader.fill(n, node)
        value = reader.item(item)
        if outcome != "=" and not (outcome == "!" and isinstance(value, BaseException)):
            raise Unreadable("neither a result nor an exception")
        return outcome, value

    def serve(self) -> None:
        """Answer requests until the other process ends."""
        while True:
            try:
                message = self._receive()
            except Closed as error:
                self._lost(error)
            self._answer(*message[1:])

    def _answer(self, item: Any, nodes: list[Any]) -> None:
        reader = Reader(self._resolve, [])
        reader.add(nodes)
        outcome, value = "=", None
        try:
            value = self._perform(*reader.item(item))
        except BaseException as error:
            outcome, value = "!", error
        if self._pid() != self._process:  # a forked child does not answer for its parent
            self._leave(1)
        self._send(self._reply(outcome, value, reader.values, nodes))

    def _reply(self, outcome: str, value: Any, known: list[Any], nodes: list[Any]) -> str:
        writer = Writer(known, self._export)
        try:
            return dumps([outcome, writer.item(value), writer.nodes, writer.changes(nodes)])
        except BaseException as error:  # what cannot be written, a value or the content of an argument
            if outcome == "!":
                raise
            return self._reply("!", error, known, nodes)

    def exported(self, value: Any) -> bool:
        """Does the other process have a stand-in for the value?"""
        return self._numbers.get(id(value), ("", ""))[1] == self._side

    def _export(self, value: Any) -> list[Any]:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = ["object", self._side, len(self._exports)]
            self._exports.append(value)
        return self._numbers[id(value)]

    def _resolve(self, side: str, number: int) -> Any:
        if side == self._side:
            return self._exports[number]
        if number not in self._stand_ins:
            self._stand_ins[number] = stand_in = self._stand_in(self.ask)
            self._numbers[id(stand_in)] = ["object", side, number]
        return self._stand_ins[number]

    def _send(self, text: str) -> None:
        data = memoryview(len(text).to_bytes(8, "big") + text.encode("ascii"))
        try:
            while data:
                data = data[self._write(self._channel, data[:_PIECE]) :]
        except OSError:
            raise Closed from None

    def _receive(self) -> Any:
        size = int.from_bytes(self._take(8), "big")
        if size > _MAX_MESSAGE:
            raise Unreadable(f"a message of {size} bytes")
        return loads(self._take(size).decode("ascii"))

    def _take(self, size: int) -> bytes:
        pieces, left = [], size
        while left:
            try:
                piece = self._read(self._channel, min(left, _PIECE))
            except OSError:
                piece = b""
            if not piece:
                raise Closed
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)
