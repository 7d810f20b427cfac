"""Common parts of the stand-ins: they get their orders in lines, and can be stopped before any of their steps.

stop NAME …     stop before each step of these names; no names: at none
METHOD WORD …   call that method, and print its result
go              go on, for a stand-in that is `at NAME`
"""

from __future__ import annotations

import os
import time

_stops: set[str] = set()


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def hear() -> list[str]:
    """The next line, in words; nothing at the end of all lines."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit
        line += byte
    return line.decode().split()


def step(name: str) -> None:
    """Stop before the step of that name, if a test wants that."""
    if name in _stops:
        say("at", name)
        while (words := hear()) != ["go"]:
            obey(words)


def obey(words: list[str]) -> None:
    assert words[0] == "stop", words
    _stops.clear()
    _stops.update(words[1:])


def serve(player: object) -> None:
    while True:
        words = hear()
        if words[0] == "stop":
            obey(words)
        else:
            say(getattr(player, words[0])(*words[1:]))


class Lockable:
    """A stand-in that can acquire: `attempt` and `release` are its own."""

    def __init__(self, path: str) -> None:
        self.path = path

    def attempt(self) -> bool:
        raise NotImplementedError

    def release(self) -> str:
        raise NotImplementedError

    def stamp(self) -> None:
        """Make the record that it writes; a stand-in does that here."""

    def take(self) -> str:
        """Try once."""
        self.stamp()
        return "acquired" if self.attempt() else "held"

    def acquire(self, pause: str = "0.1") -> str:
        """Acquire, however long it takes; a pause of 0 spins."""
        self.stamp()
        while not self.attempt():
            time.sleep(float(pause))
        return "acquired"

    def storm(self, state: str, pause: str) -> int:
        """Go in and out while `<state>/go` is there, but at least once; the number of times inside."""
        from inside import Inside

        inside, done = Inside(state, type(self).__name__), 0
        while os.path.exists(f"{state}/go") or not done:
            self.stamp()
            if self.attempt():
                inside.visit()
                done += 1
                self.release()
            time.sleep(float(pause))
        return done
