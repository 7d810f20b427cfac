"""Operations that one process of the adapter carries out, one after the other: it `serve`s (docs/conformance.md).

Questions are lines, `OPERATION PATH`, and so are answers. An empty line stands for the end of stdin, and `exit STATUS`
for the end of the process. An empty line after that means nothing: the kit may have let go of what had just ended.
"""

from __future__ import annotations

import re
import time

from .process import Process, Running


class Served(Running):
    """One operation of a process that serves."""

    def __init__(self, server: Process, operation: str, path: str) -> None:
        self.server = server
        self._said: list[str] = []
        """Lines that came while its end was waited for."""
        self._status: int | None = None
        self._complained = server.complained
        server.say(f"{operation} {path}")

    @property
    def pid(self) -> int:
        return self.server.pid

    def line(self, within: float) -> str | None:
        if not self._said:
            self._listen(within)
        return self._said.pop(0) if self._said else None

    def let_go(self) -> None:
        if self._status is None:
            self.server.say("")

    def ended(self, within: float) -> int | None:
        deadline = time.monotonic() + within
        while self._status is None and self._listen(deadline - time.monotonic()):
            pass
        return self._status

    def kill(self) -> None:
        self.server.kill()
        self._status = self.server.ended(0)

    def complaint(self) -> str:
        return self.server.complaint(self._complained)

    def done(self) -> bool:
        """Whether it has ended as it should, so that its process can be asked for something else."""
        return self.ended(0) is not None and self.server.ended(0) is None and not self.server.in_mid_sentence

    def _listen(self, within: float) -> bool:
        """Take a line, or the end; whether there was a line."""
        if self._status is not None:
            return False
        deadline = time.monotonic() + within
        said = self.server.line(max(0.0, within))
        if said is None:
            if self.server.at_end:
                self._status = self.server.ended(deadline - time.monotonic())
            return False
        end = re.fullmatch(r"exit ([0-9]{1,3})", said)
        if end:
            self._status = int(end[1])
        else:
            self._said.append(said)
        return True
