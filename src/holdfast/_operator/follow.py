"""Following what happens to lock files, from outside: events of directories become events of locks.

Z11  Nobody is disturbed. Descriptors are read-only, so closing them wakes nobody; a file that is known as a lock of the
    kernel alone, whose waiters do hear of readers, is not opened at all. No guard is taken; it is probed, shared, where
    there is content: a lock or ticket that is just being made has none yet, and its maker would have to try again. The
    kernel's table is read seldom: while it is read, nobody on this machine can lock anything.
Z12  Events are hints, taken in their order: a file that vanishes ends the hold that was known, one that appears or is
    written is looked at. Of several that come at once, only the last state is seen: what was acquired and released in
    between is counted in `missed`, not told.
Z13  What makes no event is looked at on a clock: kernel locks taken, holders without a guard that die or overstay, and
    everything where events do not arrive, or were lost.
Z14  A lock file that vanishes under a guard that is still held was removed by somebody else: `lost`, not `released`. A
    release closes the file right after, which makes an event; where that does not come, the table is asked, twice.
Z15  A dying holder's file is closed a moment before its guard is gone, so after any such event it is looked at again;
    and so is the ticket of one who waits.
"""

from __future__ import annotations

import math

from . import recognition
from .crowd import Crowd, lock_of
from .departures import SETTLE, Departures
from .findings import EMPTY, Found, Unseen
from .ghosts import Ghosts
from .happening import Happening, Held, is_free, is_stale
from .onlooker import Onlooker
from .places import Places
from .survey import Survey
from .sweep import sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from .findings import Census, Surroundings

    Change = tuple[str, str, str]
    """Directory, name, and what happened to it: `made`, `gone`, `written`, `closed`; or `unknown`: some events were
    lost. Without a name it is about the directory itself."""

    class FolderWatch(Protocol):
        """Tells what happens in directories. `fd` is readable when there is something to `take`."""

        fd: int

        def add(self, directory: str) -> bool:
            """Watch this one too; False where that cannot be done."""

        def discard(self, directory: str) -> None: ...
        def take(self) -> list[Change]: ...
        def close(self) -> None: ...


KERNEL_EVERY, FOREIGN_EVERY, POLL_EVERY, SWEEP_EVERY = 0.25, 1.0, 0.25, 10.0
"""Seconds between looks (Z13): at kernel locks, at holders without a guard, without events, at everything."""


class Follower:
    """Never waits: to be called when `watch` has something, and at `due` (monotonic) at the latest."""

    def __init__(self, env: Surroundings, watch: FolderWatch | None, glimpse: Callable[[], Census]) -> None:
        self._env = env
        self._look_on = Onlooker(env, glimpse)
        self.watch = watch
        self.places = Places()
        self.held: dict[str, Held] = {}
        self.crowd = Crowd(self._look_on, watch)
        self.missed = 0
        """Acquisitions that were over before they could be looked at."""
        self._numbered: dict[str, str] = {}
        """The lock files by `#` and their inode."""
        self._foreign: dict[str, None] = {}
        """Those whose holders' end makes no event."""
        self._seen: dict[str, tuple[object, ...]] = {}
        self._ghosts = Ghosts(self._look_on, self.held)
        self._unsettled: dict[str, float] = {}
        self._departures = Departures(self._look_on, self.crowd, self.held)
        self._out: list[Happening] = []
        self._dues: dict[str, float] = {}

    def add(self, directory: str, name: str | None = None, *, pattern: bool = False) -> None:
        """Follow a directory, or what can be a lock of that name in it. OSError when there is no such directory."""
        self._env.list_directory(directory)
        reached = self._env.events_reach(f"{directory}/x") and self.watch is not None and self.watch.add(directory)
        self.places.add(directory, name, polled=not reached, pattern=pattern)

    # -- looking -------------------------------------------------------------------------------------------------------

    def first_look(self) -> list[Happening]:
        """How things are now: `held` and `waiting`, and who is stale."""
        now = self._env.monotonic()
        self._dues = {"kernel": now + KERNEL_EVERY, "foreign": now + FOREIGN_EVERY}
        self._dues["sweep"] = now + (POLL_EVERY if self.places.polled else SWEEP_EVERY)
        survey = Survey(self._env)
        for directory in self.places.directories:
            for one in survey.directory(directory):
                if isinstance(one, Unseen) or not self.places.wanted(*one.status.path.rpartition("/")[::2]):
                    continue
                since = one.status.holder.since if one.status.holder else None
                since = one.status.modified if since is None else since
                if not is_free(one):
                    held = self.held[one.status.path] = Held(one, since or self._env.time(), None)
                    self._out.append(held.tell("held", held.since, first_look=True))
                    self._judge(held, first_look=True)
                self._note(one)
                self._out += self.crowd.of_kernel(one, first_look=True)
            self._sweep_directory(directory, first_look=True)
        return self._told()

    def heed(self, changes: Iterable[Change]) -> list[Happening]:
        """What these changes of directories mean (Z12)."""
        self._look_on.anew()
        dirty: dict[str, None] = {}
        fresh: dict[tuple[str, str], None] = {}
        left: dict[tuple[str, str], None] = {}
        everything = False
        for directory, name, what in changes:
            path = f"{directory}/{name}"
            if what == "unknown" or (directory in self.places.directories and not name):
                everything = True
            elif self.crowd.is_queue(directory):
                if what == "gone":
                    left[directory, name] = None
                    fresh.pop((directory, name), None)
                elif name:
                    self.crowd.heard((directory, name), what)
                    fresh[directory, name] = None
                    if what == "made":
                        left.pop((directory, name), None)
                    elif what == "closed":
                        self._departures.expect((directory, name))  # Z15
            elif recognition.is_queue(name) and directory in self.places.directories:
                if what == "gone":
                    left.update(dict.fromkeys(self.crowd.vanished(path)))
                elif self.places.wanted(directory, lock_of(path).rpartition("/")[2]):
                    for place in self.crowd.appeared(path, lock_of(path)):
                        fresh[place] = None
                        left.pop(place, None)
            elif name in self._numbered or (self.places.wanted(directory, name) and not recognition.is_beside(name)):
                self._of_file(self._numbered.get(name, path), what, dirty)
        if fresh or dirty:
            self._look(dirty, fresh)
        for place in left:
            self._departures.add(place)
        if everything:
            self._sweep()
        return self._told()

    def _of_file(self, path: str, what: str, dirty: dict[str, None]) -> None:
        """Also of one known by its number: made without a name, it is called so as long as that descriptor lives."""
        if what == "gone" and path in self.held and self._is_there(path, self.held[path].found):
            self.held[path].doubtful = True  # a look was ahead of the events, or the next file has the same number
            dirty[path] = None
        elif what == "gone":
            self.missed += path in dirty and path not in self.held
            dirty.pop(path, None)
            self._vanished(path)
        elif what == "closed" and path in self._ghosts:
            self._out.append(self._ghosts.lay(path, "released"))
        else:
            dirty[path] = None
            if path in self.held:
                self._unsettled[path] = self._env.monotonic() + SETTLE  # Z15

    def tick(self) -> list[Happening]:
        """What the clock asks for (Z13, Z14)."""
        now = self._env.monotonic()
        self._look_on.anew()
        self._out += self._ghosts.decide(now)
        for one in self._departures.decide(now):
            self._tell(one)
        settled = [path for path, until in self._unsettled.items() if now >= until]
        dirty = dict.fromkeys(settled)
        for path in settled:
            del self._unsettled[path]
        if now >= self._dues["kernel"]:
            dirty.update((path, None) for path in self._look_on.kernels)
            self._dues["kernel"] = math.inf
        if now >= self._dues["foreign"]:
            dirty.update(self._foreign)
            self._dues["foreign"] = now + max(FOREIGN_EVERY, len(self._foreign) * 0.01)
        fresh = self._departures.expected(now)
        if dirty or fresh:
            self._look(dirty, fresh)
        if self._dues["kernel"] == math.inf:
            spent = self._env.monotonic() - now
            self._dues["kernel"] = now + max(KERNEL_EVERY, 20 * spent)
        if now >= self._dues["sweep"]:
            self._sweep()
            self._dues["sweep"] = now + (POLL_EVERY if self.places.polled else SWEEP_EVERY)
        return self._told()

    @property
    def due(self) -> float:
        """When to call `tick` next, on the monotonic clock."""
        dues = [self._dues["sweep"], *self._unsettled.values(), *self._ghosts.dues(), *self._departures.dues()]
        if self._look_on.kernels:
            dues.append(self._dues["kernel"])
        if self._foreign:
            dues.append(self._dues["foreign"])
        return min(dues)

    def _told(self) -> list[Happening]:
        out, self._out = self._out, []
        return sorted(out, key=lambda one: one.time)

    # -- one lock file -------------------------------------------------------------------------------------------------

    def _look(self, dirty: Iterable[str], fresh: Iterable[tuple[str, str]]) -> None:
        survey = Survey(self._look_on)
        for place in fresh:
            if self.crowd.is_queue(place[0]):
                self._read(place)
        for path in dirty:
            try:
                one = survey.alone(path)
            except FileNotFoundError:
                self._vanished(path)
                continue
            except OSError:
                continue  # it was there, and may be read again later
            self._saw(path, one)

    def _saw(self, path: str, one: Found | None) -> None:
        before = self.held.get(path)
        if one is None or is_free(one):
            if one is not None:
                self._note(one)
                self._out += self.crowd.of_kernel(one)
            if before is not None:
                self._out.append(self._ended(before, "released"))
            return
        if before is None or not before.is_same(one):
            self._began(path, before, one)
        else:
            before.found, before.doubtful = one, False
        self._note(one)
        if not is_stale(one) or self._is_there(path, one):
            self._judge(self.held[path])
        self._out += self.crowd.of_kernel(one)

    def _is_there(self, path: str, one: Found) -> bool:
        """Whether it is no release that was seen in the middle: that removes the file before it drops the guard."""
        try:
            found = self._env.stat(path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == one.identity

    def _began(self, path: str, before: Held | None, one: Found) -> None:
        self._out += self._ghosts.hasten(path)
        recovered = None
        if before is not None:
            same_number = before.found.identity == one.identity and not before.is_kernels
            if before.told_stale or (same_number and not before.doubtful):
                recovered = before.holder.pid
            elif same_number:  # so the old file is closed, too
                self._out.append(self._ended(before, "released"))
            else:
                self._vanished(path)
                self._out += self._ghosts.hasten(path)
        now = self._env.time()
        waited = self.crowd.admitted(path, one.status.holder.pid if one.status.holder else None, now)
        held = self.held[path] = Held(one, now, waited)
        if recovered is not None:
            self._out.append(held.tell("reclaimed", now, waited=waited, recovered_from=recovered))
        self._out.append(held.tell("acquired", now, waited=waited, recovered_from=recovered))

    def _judge(self, held: Held, *, first_look: bool = False) -> None:
        if is_stale(held.found) and not held.told_stale:
            held.told_stale = True
            now = self._env.time()
            self._out.append(held.tell("stale", now, held=max(0.0, now - held.since), first_look=first_look))

    def _ended(self, held: Held, kind: str) -> Happening:
        path = held.found.status.path
        if self.held.get(path) is held:
            del self.held[path]
            self._foreign.pop(path, None)
        if path not in self.held:
            self._numbered.pop(f"#{held.found.identity[1]}", None)
        self._unsettled.pop(path, None)
        now = self._env.time()
        return held.tell(kind, now, waited=held.waited, held=max(0.0, now - held.since))

    def _vanished(self, path: str) -> None:
        self._look_on.kernels.pop(path, None)
        held = self.held.get(path)
        if held is None:
            return
        if held.is_proven and not held.is_kernels and not held.told_stale:
            if path in self._ghosts:
                self._out.append(self._ghosts.lay(path, "released"))
            self._ghosts.add(path, held)  # Z14
            del self.held[path]
            self._foreign.pop(path, None)
        else:
            self._out.append(self._ended(held, "released"))

    def _note(self, one: Found) -> None:
        """Remember which files the kernel alone locks (Z11)."""
        path = one.status.path
        if one.status.protocol == "flock" or one.condition == EMPTY:
            self._look_on.kernels[path] = one.identity
        elif self._look_on.kernels.get(path) != one.identity or one.status.data:
            self._look_on.kernels.pop(path, None)
        held = self.held.get(path)
        if held is not None:
            self._numbered[f"#{one.identity[1]}"] = path
        if held is not None and not held.is_proven:
            self._foreign[path] = None
        else:
            self._foreign.pop(path, None)

    def _read(self, place: tuple[str, str], *, first_look: bool = False) -> None:
        """A ticket is there."""
        one = self.crowd.read(place, first_look=first_look)
        if one is not None and not (one.kind == "waiting" and self._departures.is_back(place)):
            self._tell(one)

    def _tell(self, one: Happening | None) -> None:
        if one is not None:
            held = self.held.get(one.path)
            self._out.append(one if held is None else one.replaced(protocol=held.found.status.protocol))

    # -- everything ----------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        for directory in self.places.directories:
            self._sweep_directory(directory)

    def _sweep_directory(self, directory: str, *, first_look: bool = False) -> None:
        if self.watch is not None and directory not in self.places.polled:
            self.watch.add(directory)  # it may be another directory of that name by now
        dirty, queues = sweep(self._look_on, directory, self.places, self._seen, self.held)
        standing = set()
        for queue in queues:
            for place in self.crowd.appeared(queue, lock_of(queue)):
                standing.add(place)
                self._read(place, first_look=first_look)
        if not first_look:
            self._look(dirty, {})
        for place in [*self.crowd.waits]:
            if place[0].startswith(f"{directory}/.holdfast-") and place not in standing:
                self._departures.add(place)
