"""A relay before a server, which counts the messages of clients: round trips that no counter of the server shows.

All that a client sends in one go counts as one message, so a question and its answer are one. The relay adds two system
calls to each message; nothing that is timed goes through it.
"""

from __future__ import annotations

import asyncio
import time
from multiprocessing.connection import Connection

from peers import Subject
from procs import Child, Slots, spawn

_MESSAGES, _OPEN, _MADE = range(3)
_COUNTED = 40


class Relay:
    """A relay in a process of its own, from the beginning until `end`."""

    def __init__(self, port: int) -> None:
        self._slots = Slots(3)
        self._child: Child = spawn(_relay, port, self._slots)
        self.port: int = self._child.answer(10)

    @property
    def messages(self) -> int:
        """Number of messages that clients have sent so far."""
        return self._slots[_MESSAGES]

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return self._slots[_OPEN]

    def end(self) -> None:
        self._child.end()


def round_trips(subject: type[Subject], url: str, relay: Relay) -> float:
    """Number of messages that a warm client sends for one cycle; `url` leads through the relay."""
    child = spawn(_cycles, subject, url)
    try:
        child.answer(30)
        before = relay.messages
        child.ask(None, 30)
        return (relay.messages - before) / _COUNTED
    finally:
        child.end()


def _cycles(pipe: Connection, subject: type[Subject], url: str) -> None:
    lock = subject(url)
    for count in (5, _COUNTED):
        for _ in range(count):
            lock.acquire()
            lock.release()
        time.sleep(0.05)  # for messages after a release
        pipe.send(None)
        pipe.recv()


def _relay(pipe: Connection, port: int, slots: Slots) -> None:
    asyncio.run(_serve(pipe, port, slots))


async def _serve(pipe: Connection, port: int, slots: Slots) -> None:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        slots[_OPEN] += 1
        slots[_MADE] += 1
        try:
            there = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_copy(reader, there[1], slots), _copy(there[0], writer, None))
        except OSError:
            pass
        finally:
            slots[_OPEN] -= 1
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0, backlog=1024)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slots: Slots | None) -> None:
    try:
        while data := await reader.read(65536):
            if slots is not None:
                slots[_MESSAGES] += 1
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
