"""Turns between machines: the order in which the first waiters of several machines try, in a directory that they share.

A ticket (queue.py) is a FIFO, which tells other machines nothing. So on a filesystem that machines share, the first
waiter of each machine also makes a file in the queue, its turn. The name has a number, one higher than all that were
there, and a beat. Waiters read the names from time to time: the first one tries to get the lock.

    behind another waiter of this machine ──▶ behind a turn ──▶ first ──▶ holding, or gone: the turn is removed

MT1  Exclusion never depends on turns, nor on tickets (Q1). A failure here is ignored: then the waiter tries.
MT2  A waiter that is not first opens the directory anew to read it, so that a network filesystem asks its server: after
     half the time in which it expects to be first, by how long the last one ahead has taken to go, or takes already;
     `_NEAR` seconds at least; at most `_NEXT` if only one is ahead, else `_FAR`. It looks at the lock file each
     `LOOK_EVERY` seconds, and reads the tickets of its own machine only when no turn is ahead. So far from its turn it
     makes no more than two requests a second, its beats included. When the next one gets the lock, it has the time of
     that hold to find out that it is first.
MT3  The first waiter stays first until it leaves: a later turn has a higher number. It reads the names with each beat.
MT4  A beat is a change of the name, each `_BEAT_EVERY` seconds. A turn that has not changed for `_LASTS` seconds of an
     observer's own monotonic clock, while it kept looking, is a dead machine's, and is removed. No clock is compared
     with another one.
MT5  The first turn is passed as an idle ticket is (Q6): when the lock has been free for `PATIENCE` seconds, in which a
     first waiter tries several times. It is removed then if it is older than `_LASTS`, compared with our own turn, both
     by the server's clock. A living waiter that finds its turn gone makes a new one.
MT6  A waiter removes its turn when it has the lock, so the next one looks at the lock by the time that it is free; and
     when it gives up, whatever interrupts it: its name is known before the file is made. No process has such a file
     open, so NFS keeps no `.nfs` file of it. The last waiter to leave removes the directory.
MT7  A process that takes the lock again makes a new turn, behind the others: machines take turns, whatever their number
     of waiters. It finds the queue even if it remembers that there was none (`uncontended._is_on_server`).
MT8  A directory that is read while a name in it changes may show neither the old name nor the new one. So a turn is
     gone when two readings in a row have not shown it.
"""

from __future__ import annotations

import math

from .queue import Queue, QueueEntry, is_turn, make_queue, opened, remove_queue, turn_name, turn_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..._core.wait import Signal
    from ..._platform.interface import Environment
    from .request import FileRequest

PATIENCE = 1.0
"""Seconds for which a free lock is left to the first waiter (MT5)."""
LOOK_EVERY = 30.0
"""Seconds between looks at the lock file of a waiter that is behind another machine's (MT2)."""
_BEAT_EVERY = 3.0
_TRIES = 3
_EARLY = 0.5
"""Seconds by which a beat may come early, so that it goes with a look."""
_LASTS = 12.0
"""Seconds after which a turn without a beat is a dead machine's: four beats (MT4)."""
_NEAR, _NEXT, _FAR = 0.005, 0.5, 3.0
"""Seconds between looks at the directory (MT2)."""
_MODE = 0o644
_SECONDS_SEEN = 6.0
"""Seconds of the longest pause between two looks: after a longer one, time counts anew (MT4)."""


class Turn:
    """One waiter's turn, and its knowledge of the others."""

    def __init__(self, env: Environment, request: FileRequest) -> None:
        self._env = env
        self._request = request
        self._token = env.token()
        self._beat = 0
        self._number = 0
        self._may_be: list[str] = []
        """Names that our file may have (MT6): the last one is the name that it should have."""
        self._beat_at = 0.0
        self._cannot = False
        self._failed = 0
        """The number of failures in a row to read or change it."""
        self._ahead: list[str] = []
        self._seen: dict[str, tuple[str, float]] = {}
        """The whole name of each turn and the time since which it has been that, by the fixed part of the name."""
        self._looked = -math.inf
        self._missing: set[str] = set()
        """Turns that the last reading missed for the first time (MT8)."""
        self._passed: set[str] = set()
        self._moved_at = -math.inf
        """The time when we last found fewer ahead, or began."""
        self._each = 0.0
        """Seconds that each turn has taken that we last found gone."""
        self.next_look = 0.0
        """The time of the next reading of the directory."""

    @property
    def first_ahead(self) -> tuple[str, str] | None:
        """The fixed part of the first turn ahead; None if we are first."""
        return ("turn", _key(self._ahead[0])) if self._ahead else None

    def is_behind(self) -> bool:
        """Whether another machine's waiter is ahead, as far as is known now. Never raises OSError (MT1)."""
        now = self._env.monotonic()
        if not self._may_be and not self._env.exists(self._request.queue):
            return False  # nobody waits
        if not self._cannot and (now >= self.next_look or now >= self._beat_at):
            try:
                self._look(now)
                self._failed = 0
            except OSError:
                self._failed += 1
                self.next_look = self._beat_at = now + _NEXT
                if self._failed == _TRIES:
                    self._cannot, self._ahead = True, []
        return bool(self._ahead)

    def _look(self, now: float) -> None:
        queue = make_queue(self._env, self._request)
        if queue is None:
            self.next_look = now + _NEAR
            return
        with queue:
            turns = [name for name in queue.names() if is_turn(name)]
            if not any(name in turns or queue.stat(name) is not None for name in self._may_be):
                self._make(queue, turns)
                turns += [name for name in queue.names() if is_turn(name)]
            elif now >= self._beat_at - _EARLY:
                self._send_beat(queue, turns)
            gone = len(self._ahead)
            self._ahead = self._living(queue, turns, now)
        gone -= len(self._ahead)
        if self._moved_at == -math.inf:
            self._moved_at = now
        elif gone > 0:
            self._each, self._moved_at = (now - self._moved_at) / gone, now
        if self._missing:
            self.next_look = now + _NEAR
            return
        expected = len(self._ahead) * max(self._each, now - self._moved_at)
        most = _FAR if len(self._ahead) > 1 else _NEXT
        self.next_look = now + (min(max(expected / 2, _NEAR), most) if self._ahead else _BEAT_EVERY)

    def _make(self, queue: Queue, turns: list[str]) -> None:
        for name in self._may_be:
            queue.unlink(name)
        self._number = max([turn_number(name) for name in turns], default=0) + 1
        self._beat = 0
        self._may_be = [self._name()]
        self._env.close(queue.new_file(self._may_be[0], _MODE))
        self._beat_at = self._env.monotonic() + _BEAT_EVERY

    def _name(self) -> str:
        return turn_name(self._number, self._token, self._beat)

    def _send_beat(self, queue: Queue, turns: list[str]) -> None:
        """Change our turn's name (MT4)."""
        old = next((name for name in self._may_be if name in turns), self._may_be[-1])
        self._may_be = [old]
        self._beat += 1
        self._may_be.append(self._name())
        queue.rename(old, self._may_be[-1])
        del self._may_be[:-1]
        self._beat_at = self._env.monotonic() + _BEAT_EVERY

    def _living(self, queue: Queue, turns: list[str], now: float) -> list[str]:
        """The turns ahead, without dead ones, which are removed."""
        mine = _key(self._may_be[-1])
        if now - self._looked > _SECONDS_SEEN:
            self._seen.clear()
        self._looked = now
        found = {_key(name): name for name in sorted(turns)}
        missing = {key for key in self._seen if key not in found} - self._missing
        self._missing = missing
        found.update((key, self._seen[key][0]) for key in missing)
        ahead, seen = [], {}
        for key, name in sorted(found.items()):
            if key >= mine or key in self._passed:
                continue
            known, since = self._seen.get(key, ("", now))
            if known != name:
                since = now
            if now - since >= _LASTS:
                queue.unlink(name)
                continue
            seen[key] = (name, since)
            ahead.append(name)
        self._seen = seen
        return ahead

    def pass_idle(self) -> None:
        """Ignore the turns ahead: they have left a free lock alone (MT5)."""
        if not self._ahead:
            return
        first = self._ahead[0]
        self._passed.update(_key(name) for name in self._ahead)
        self._ahead = []
        queue = opened(self._env, self._request.queue)
        if queue is None:
            return
        with queue:
            theirs, ours = queue.stat(first), queue.stat(self._may_be[-1]) if self._may_be else None
            if theirs is not None and ours is not None and ours.st_mtime - theirs.st_mtime > _LASTS:
                queue.unlink(first)

    def leave(self) -> None:
        """Remove our turn; may be interrupted, and called again (MT6). Never raises OSError."""
        self._ahead = []
        if not self._may_be:
            return
        queue = opened(self._env, self._request.queue)
        if queue is not None:
            with queue:
                for name in self._may_be:
                    queue.unlink(name)
            remove_queue(self._env, self._request.queue)
        self._may_be = []


class EntryWithTurn(QueueEntry):
    """A contender's place in the queue of its machine and, when it is first there, among the machines."""

    def __init__(self, env: Environment, request: FileRequest, started: float) -> None:
        super().__init__(env, request, started)
        self._turn = Turn(env, request)
        self._behind_turn = False

    @property
    def patience(self) -> float:
        return PATIENCE  # also with the first waiter of this machine: it polls, and not every 20 ms

    def is_first(self) -> bool:
        if self._behind_turn and self._turn.is_behind():
            self.first_ahead = self._turn.first_ahead
            return False
        first = super().is_first()
        self._behind_turn = first and self._turn.is_behind()
        if self._behind_turn:
            self.first_ahead = self._turn.first_ahead
        return first and not self._behind_turn

    def recheck(self, now: float, *, several: bool = False) -> float:
        return LOOK_EVERY if self._behind_turn else super().recheck(now, several=several)

    def plan(self, now: float) -> tuple[tuple[int, ...], float, Signal | None]:
        return ((), self._turn.next_look, None) if self._behind_turn else super().plan(now)

    def pass_idle_waiters(self, first: object) -> object:
        instead = super().pass_idle_waiters(first)
        if instead is None:
            self._turn.pass_idle()
            self._behind_turn = False
        return instead

    def hold(self) -> None:
        super().hold()
        self._turn.leave()

    def leave(self) -> None:
        if not self._is_inherited():
            self._turn.leave()
        super().leave()

    def drop_place(self) -> None:
        self._turn.leave()
        super().drop_place()


def _key(name: str) -> str:
    return name.rpartition("-")[0]
