"""holdfast, controlled like the stand-ins.

    python ours.py LOCK PROTOCOL [SETTLE [FATAL]]

SETTLE in seconds makes that pause long enough for a test to act in it. FATAL is a function of takeover.py, at whose
return the process is killed. Looks without an event are put off for longer than any test lasts, so that a wait that
ends was woken.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from talk import serve

import holdfast.engines.file.queue as queue
import holdfast.engines.file.takeover as takeover
import holdfast.engines.file.watched as sight
from holdfast import AcquireTimeout, Hold, Liveness, Lock, LockLost, LockStale, Status

queue.RECHECK = sight.RECHECK = 600.0


class Ours:
    def __init__(self, path: str, protocol: str, settle: str = "", fatal: str = "") -> None:
        takeover.SETTLE = float(settle or takeover.SETTLE)
        if fatal:
            _kill_after(fatal)
        self.losses: list[LockLost] = []
        self.lock = Lock(path, protocol=protocol, on_lost=self.losses.append, **_more(protocol))
        approving = {} if protocol == "ofd" else {"stale": _is_dead}
        self.approving = Lock(path, protocol=protocol, **approving, **_more(protocol))
        self.hold: Hold | None = None

    def take(self) -> str:
        """Try once."""
        self.hold = self.lock.try_acquire()
        return "acquired" if self.hold else "held"

    def seize(self) -> str:
        """Try once; this caller calls a dead process's lock stale."""
        self.hold = self.approving.try_acquire()
        return "acquired" if self.hold else "held"

    def acquire(self, timeout: str = "60") -> str:
        try:
            self.hold = self.lock.acquire(timeout=float(timeout))
        except AcquireTimeout:
            return "held"
        except LockStale:
            return "stale"
        return "acquired"

    def lost(self) -> str:
        return "lost" if self.hold.lost else "kept"

    def told(self) -> int:
        """Number of times that we have been told of a loss."""
        return len(self.losses)

    def ensure(self) -> str:
        try:
            self.hold.ensure_held()
        except LockLost:
            return "lost"
        return "kept"

    def release(self) -> str:
        try:
            self.hold.release()
        except LockLost:
            return "lost"
        return "released"

    def storm(self, state: str, pause: str) -> int:
        """Go in and out while `<state>/go` is there, but at least once; the number of times inside."""
        from inside import Inside

        inside, done = Inside(state, "ours"), 0
        while os.path.exists(f"{state}/go") or not done:
            hold = self.lock.acquire(timeout=60)
            inside.visit()
            done += 1
            hold.release()
            time.sleep(float(pause))
        return done


def _is_dead(status: Status) -> bool:
    return status.liveness is Liveness.DEAD


def _kill_after(function: str) -> None:
    original = getattr(takeover, function)

    def fatal(*arguments: object) -> None:
        original(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(takeover, function, fatal)


def _more(protocol: str) -> dict[str, str]:
    return {"holder": "ours", "version": "1"} if protocol == "beads" else {}


if __name__ == "__main__":
    serve(Ours(*sys.argv[1:]))
