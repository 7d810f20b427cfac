"""All that a command has started, and how it is brought to an end.

C6  The command's tree is what is below its guardian (guardian.py, G1), which nobody leaves. If the guardian was killed,
    it is what is below us: whoever loses its parent then becomes our child (a "subreaper"). What were our children
    before the command began are none of it; then we adopt nobody, because their orphans could not be told from the
    command's.
C7  A signal goes to a process that was seen in the tree, and never to a later one of its number: it is named by a
    pidfd, and looked at again in between.
C8  Those who come while the tree is being stopped get their TERM at the next look; after the time for that, all get
    KILL at each look, so no tree outgrows it.
"""

from __future__ import annotations

import os
import signal
import time

from .._os.tree import Member, adopt_orphans, children, descendants, is_running, program, send
from . import say

_PAUSES = (0.02, 0.2)
"""Seconds between looks: the first, and the longest."""
_UNSEEN = -1
"""Stands for the start of a command where processes cannot be looked at."""
_PATIENCE = 2.0
"""Seconds for which those who got KILL are waited for: one in an uninterruptible call of the kernel may take longer."""


class Tree:
    """To be made before the command starts."""

    def __init__(self, kill_after: float, spared: frozenset[Member] | None = None) -> None:
        self._kill_after = kill_after
        self._spared = children() if spared is None else spared
        self.adopts = not self._spared and adopt_orphans()
        self.root = 0
        """Below whom it is: its guardian, while that lives; 0: below us."""
        self._begun: float | None = None
        self._pause = _PAUSES[0]
        self._sent: set[tuple[int, int, int]] = set()
        self._denied: set[int] = set()
        self._seen: list[Member] = []
        """Who has lost its parent, where we adopt nobody, is still known by having been seen."""
        self._told = False

    def orphan(self) -> Member | None:
        """The command, where its guardian was killed before it could tell which process that is (G4)."""
        below = [one for one in children() if one not in self._spared]
        return min(below, key=lambda one: one.started, default=None)

    def stop(self, command: int) -> float | None:
        """The next step of ending it; the seconds until the one after that, or None when none of it is left.

        `command`: its pid, which is not given to anybody else until we have waited for it; 0: we have.
        """
        now = time.monotonic()
        if self._begun is None:
            self._begun = now
        kill = now - self._begun >= self._kill_after
        seen = {(one.pid, one.started): one for one in self._seen if is_running(one)}
        seen.update({(one.pid, one.started): one for one in descendants(self._spared, self.root)})
        self._seen = left = [one for one in seen.values() if one.pid not in self._denied]
        if not left and command and command not in self._denied:
            left = [Member(command, os.getpid(), _UNSEEN)]
        if not left:
            return None
        if kill and not self._told:
            self._told = True
            say(f"{_processes(left)} did not end within {self._kill_after:g} s of TERM: sending KILL")
        if kill and now - self._begun - self._kill_after > _PATIENCE:
            say(f"{_processes(left)} could not be ended, by KILL either")
            return None
        for one in left:
            self._send(one, signal.SIGKILL if kill else signal.SIGTERM)
            if not kill:
                self._send(one, signal.SIGCONT)  # one that is stopped would not hear of it
        self._pause = min(self._pause * 1.5, _PAUSES[1])
        return self._pause if kill else min(self._pause, max(0.0, self._begun + self._kill_after - now))

    def _send(self, one: Member, number: int) -> None:
        key = (one.pid, one.started, number)
        if key in self._sent:
            return
        self._sent.add(key)
        try:
            if one.started == _UNSEEN:
                os.kill(one.pid, number)
            else:
                send(one, number)
        except PermissionError:
            self._denied.add(one.pid)
            say(f"process {one.pid} is another user's by now, so it could not be ended")


def named(left: list[Member]) -> str:
    """`process 4711 (sleep) has`; `3 processes (4711, 4712, 4713) have`."""
    if len(left) > 1:
        return f"{_processes(left)} have"
    name = program(left[0].pid)
    return f"{_processes(left)}{f' ({name})' if name else ''} has"


def _processes(left: list[Member]) -> str:
    pids = ", ".join(str(one.pid) for one in left[:5]) + (" …" if len(left) > 5 else "")
    return f"process {pids}" if len(left) == 1 else f"{len(left)} processes ({pids})"
