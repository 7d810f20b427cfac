"""Those who wait, seen from outside: by their tickets, and by the kernel's table. For `follow.py`.

Z16  A ticket that can be read says itself whether its owner waits. Its events decide about one that is gone before
    that: written twice, it was used. Where its making was not seen, as it was found in a list, the first write may be
    still to be heard of, or not; until it has been read after that, it is not known how many there were.
Z17  A ticket may be removed and made again under its name (Q6), and a queue with it. It is gone when nothing has made
    it since, by the events, and by the list of a queue that is new.
"""

from __future__ import annotations

from .._core import tickets
from .._core.locate import queue_of
from .._core.waiters import read_ticket
from . import recognition
from .happening import Happening, Waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model import Waiter
    from .findings import Found
    from .follow import FolderWatch
    from .onlooker import Onlooker

    Place = tuple[str, str]
    """Of a ticket: its directory and its name."""


class Crowd:
    """Who waits, by ticket, or by lock file and pid for those that only the kernel knows."""

    def __init__(self, look_on: Onlooker, watch: FolderWatch | None) -> None:
        self.waits: dict[Place, Waits] = {}
        self._look_on = look_on
        self._watch = watch
        self._queues: dict[str, str] = {}
        """The lock of each queue, as far as its name tells."""
        self._inside: set[Place] = set()
        """Tickets of those who have got in; they are kept until the release."""

        self._writes: dict[Place, int] = {}
        """How often each ticket was written: with its record, and again when its owner has got in."""
        self._guessed: set[Place] = set()
        """Those of which that is a guess (Z16)."""
        self._admitted: set[Place] = set()
        """Those whose acquisition was told."""

    # -- queues --------------------------------------------------------------------------------------------------------

    def is_queue(self, directory: str) -> bool:
        return directory in self._queues

    def appeared(self, queue: str, lock: str) -> list[Place]:
        """A queue is there: its tickets. The watch comes first, so that none is overlooked."""
        self._queues[queue] = lock
        if self._watch is not None:
            self._watch.add(queue)
        opened = tickets.opened(self._look_on, queue)
        if opened is None:
            return []
        with opened:
            found = [(queue, name) for name in opened.names()]
        for place in found:
            if place not in self._writes:
                self._writes[place] = 1
                self._guessed.add(place)
        return found

    def heard(self, place: Place, what: str) -> None:
        """Something has happened to a ticket. It may be gone before it can be read again (Z16)."""
        if what == "made":
            self._writes[place] = 0
            self._guessed.discard(place)
        elif what == "written":
            self._writes[place] = self._writes.get(place, 0) + 1
            if self._writes[place] > 1 and place not in self._guessed:
                self._inside.add(place)

    def vanished(self, queue: str) -> list[Place]:
        """The queue is gone, and all its tickets."""
        self._queues.pop(queue, None)
        if self._watch is not None:
            self._watch.discard(queue)
        return [place for place in {**self.waits, **self._writes} if place[0] == queue]

    def read(self, place: Place, *, first_look: bool = False) -> Happening | None:
        """A ticket was made or written: `waiting`, if it says so for the first time."""
        queue, name = place
        if place in self.waits:
            return self._reread(place)
        opened = tickets.opened(self._look_on, queue)
        if opened is None:
            return None
        with opened:
            waiter = read_ticket(self._look_on, opened, name)
        if waiter is None:
            return None
        self._is_unused(place)
        now = self._look_on.time()
        arrived = tickets.arrival(name) + self._look_on.clock_shift
        since = now - max(0.0, self._look_on.monotonic() - arrived)
        wait = self.waits[place] = Waits(self._queues[queue], "", waiter, since)
        return self._waiting(wait, since if first_look else now, first_look=first_look)

    def _reread(self, place: Place) -> Happening | None:
        """Its owner has got in, or has died."""
        env = self._look_on
        try:
            with tickets.Queue(env, place[0]) as queue:
                fd = queue.open(place[1])
        except OSError:
            return None  # that it is gone makes an event of its own
        try:
            data, guarded = env.read(fd, len(tickets.WAITING)), env.guarded(fd)
        finally:
            env.close(fd)
        if data == tickets.HOLDING:
            self._inside.add(place)
        elif data == tickets.WAITING:
            self._is_unused(place)
            if guarded is False:
                return self._gave_up(self.waits.pop(place))
        return None

    def _is_unused(self, place: Place) -> None:
        """It says so itself: so if it was heard to be written, that was the first time."""
        if place not in self._admitted:
            self._inside.discard(place)
        if place in self._guessed and self._writes[place] > 1:
            self._writes[place] = 1
            self._guessed.discard(place)

    def left(self, place: Place, holder: int | None) -> Happening | None:
        """A ticket is gone: `gave-up`, unless its owner had got in."""
        wait = self.waits.pop(place, None)
        inside = place in self._inside or (place in self._guessed and self._writes[place] > 1)
        for known in (self._inside, self._admitted, self._guessed):
            known.discard(place)
        self._writes.pop(place, None)
        if wait is None or inside or holder == wait.waiter.pid:
            return None
        return self._gave_up(wait)

    def admitted(self, path: str, pid: int | None, now: float) -> float | None:
        """Somebody has got the lock: for how long it had waited, where that was seen."""
        directory, _, name = path.rpartition("/")
        slot = recognition.slot_of(name)
        queues = {queue_of(directory, name), *([queue_of(directory, f"{slot[0]}.#.lock")] if slot else [])}
        mine = [place for place, wait in self.waits.items() if wait.waiter.pid == pid]
        for place in sorted(place for place in mine if place[0] in queues and place not in self._admitted):
            self._admitted.add(place)
            self._inside.add(place)
            return max(0.0, now - self.waits[place].since)
        wait = self.waits.pop((path, str(pid)), None)
        return None if wait is None else max(0.0, now - wait.since)

    def waiting(self) -> list[Waits]:
        """Those who wait still, by arrival."""
        return sorted(
            [wait for place, wait in self.waits.items() if place not in self._inside], key=lambda wait: wait.since
        )

    # -- the kernel's table --------------------------------------------------------------------------------------------

    def of_kernel(self, one: Found, *, first_look: bool = False) -> list[Happening]:
        """Who waits in the kernel, or (at the first look) watches the file."""
        path, out = one.status.path, []
        seen: dict[Place, Waiter] = {
            (path, str(waiter.pid)): waiter for waiter in one.status.waiters if waiter.position is None
        }
        for place, waiter in seen.items():
            if place not in self.waits and one.status.protocol == "flock":
                wait = self.waits[place] = Waits(path, "flock", waiter, self._look_on.time())
                out.append(self._waiting(wait, wait.since, first_look=first_look))
        holders = {holder.pid for holder in one.status.holders}
        gone = [place for place in self.waits if place[0] == path and place not in seen]
        return out + [
            self._gave_up(self.waits.pop(place)) for place in gone if self.waits[place].waiter.pid not in holders
        ]

    def _waiting(self, wait: Waits, time: float, *, first_look: bool) -> Happening:
        waited = max(0.0, self._look_on.time() - wait.since)
        return wait.tell("waiting", time, self._look_on.identity().host, waited=waited, first_look=first_look)

    def _gave_up(self, wait: Waits) -> Happening:
        now = self._look_on.time()
        return wait.tell("gave-up", now, self._look_on.identity().host, waited=max(0.0, now - wait.since))


def lock_of(queue: str) -> str:
    """The lock that a queue is named after; a long name is cut, and stays so. Of a semaphore: its base."""
    directory, _, name = queue.rpartition("/")
    return f"{directory}/{name[len('.holdfast-') : -len('.queue')].removesuffix('.#.lock')}"
