"""Promises that must hold in every run. Each checker is told of events, and raises Violation."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.engines.file import queue
from holdfast.engines.file.flock import FlockHold
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.queue import PATIENCE
from holdfast.errors import HoldfastError
from holdfast.model import Record
from sim.kernel import EXCLUSIVE, START, Inode, Process
from sim.world import Actor, Checker, First, Program, Violation, World


class Exclusion(Checker):
    """At most one of ours is inside, or as many as there are slots, each in a slot of its own. A holder that somebody
    else has robbed does not count: that is reported, not prevented."""

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots

    def enters(self, world: World, who: Actor) -> None:
        if who.foreign:
            return
        leased = who.held is not None and who.held.lease is not None
        if who.robbed and not leased and not any(other.foreign or other.breaks for other in world.actors):
            raise Violation(f"{who.name} is inside, and {who.inside} is not its own")
        if is_lost(who):
            return
        others = [a for a in world.actors if a.inside is not None and a is not who and not a.foreign and not is_lost(a)]
        for other in others:
            if other.inside == who.inside and not (other.shared and who.shared):
                raise Violation(f"{who.name} is inside while {other.name} holds {who.inside}")
        if len(others) >= self.slots and not who.shared:
            raise Violation(f"{len(others) + 1} are inside, and there are {self.slots} slots")


def is_lost(who: Actor) -> bool:
    """Whether an actor has lost its lock. With a lease it knows by itself: until then, nobody else may enter."""
    if who.held is None or who.held.lease is None:
        return who.robbed
    return who.held.lease.is_over()


class Neighbours(Checker):
    """Ours never enters over somebody else who lives and has not been robbed by third parties. `strict`: nor does
    anybody else over one of ours."""

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict

    def enters(self, world: World, who: Actor) -> None:
        if who.robbed:
            if self.strict and not who.foreign:
                raise Violation(f"{who.name} enters, and somebody else has taken the lock away from it")
            return
        for other in world.actors:
            if other.inside != who.inside or other is who or other.robbed or other.foreign == who.foreign:
                continue
            if other.foreign or self.strict:
                raise Violation(f"{who.name} enters over {other.name}")

    def name_goes(self, world: World, inode: Inode, path: str) -> None:
        who = world.current
        for actor in world.actors:
            hit = actor.inside == path and actor.inode == inode.number and not actor.foreign
            if self.strict and hit and who is not None and who.foreign:
                raise Violation(f"{who.name} takes the lock away from {actor.name}, which is inside")


class Told(Checker):
    """A robbed holder is told so at the release; others are not."""

    def released(self, world: World, who: Actor, *, robbed: bool, told: bool, sure: bool) -> None:
        if robbed and not told:
            raise Violation(f"{who.name} was robbed, and its release did not say so")
        if told and not robbed and sure:
            raise Violation(f"{who.name} is told that its lock was lost, and it was not")


class Daemon(Checker):
    """An observer finds a lock file as long as one of ours is inside."""

    def found_free(self, world: World, who: Actor, path: str) -> None:
        for other in world.actors:
            if other.inside == path and not other.foreign and not other.robbed:
                raise Violation(f"{who.name} finds no lock while {other.name} is inside")


class RecoveredFrom(Checker):
    """`recovered_from` is the record of the replaced holder, and None if nobody was replaced."""

    def __init__(self) -> None:
        self.removed: dict[Actor, list[bytes]] = {}
        """Contents of the lock file that an actor has removed last, which may be the first half of a takeover."""
        self.entered: set[bytes] = set()
        """The records of holders that have been inside."""

    def name_goes(self, world: World, inode: Inode, path: str) -> None:
        if world.current is not None and not path.endswith((".claim", ".tmp")):
            self.removed[world.current] = [*inode.history, inode.data]

    def enters(self, world: World, who: Actor) -> None:
        self._enters(world, who)
        there = world.kernel.names.get(who.inside or "")
        if there is not None and not who.robbed:
            self.entered.add(there.data)

    def _is_removed(self, who: Actor, found: Record, held: FileHold) -> bool:
        """Whether a record is that of the lock file that an actor has removed: the last record, or the one before those
        that contenders wrote over it who then found a claim, and went back."""
        for data in reversed(self.removed[who]):
            record = held.request.protocol.decode(data)
            if (record.pid, record.created) == (found.pid, found.created):
                return True
            if data in self.entered:
                return False
        return False

    def _enters(self, world: World, who: Actor) -> None:
        held = who.held
        if who.foreign or held is None or who.robbed or not held.recorded:
            return
        mine = held.record()
        inode = world.kernel.names.get(held.path)
        before = None
        for data in [] if inode is None else inode.history:
            try:
                record = held.request.protocol.decode(data)
            except HoldfastError:
                continue
            if mine.marker is None or record.marker is None or record.marker.identity != mine.marker.identity:
                before = record
        found = held.recovered_from
        if before is None and found is not None and who in self.removed and self._is_removed(who, found, held):
            before = found
        if (before and (before.pid, before.created)) != (found and (found.pid, found.created)):
            raise Violation(f"{who.name} has recovered from {_named(found)}, and it was {_named(before)}")
        if found is not None and found.marker is not None:
            started = found.marker.identity.started
            if any(process.started == started for process in world.kernel.processes.values()):
                raise Violation(f"{who.name} has recovered from {_named(found)}, which lives")


def _named(record: Record | None) -> str:
    return "nobody" if record is None else f"process {record.pid}"


class Tokens(Checker):
    """Every hold has a fencing token that is higher than all before it; no two holds have the same, robbed or not."""

    def __init__(self) -> None:
        self.given: dict[str, list[int]] = {}

    def enters(self, world: World, who: Actor) -> None:
        if who.held is None or who.foreign:
            return
        token, given = who.held.token, self.given.setdefault(who.held.path, [])
        if token is None:
            raise Violation(f"{who.name} is inside, and has no token")
        if token in given or (not who.robbed and token < max(given, default=0)):
            raise Violation(f"{who.name} has token {token} after {given[-3:]}")
        given.append(token)


class Refusals(Checker):
    """A waiter without a timeout is never refused; one with a timeout is refused only when that is over."""

    def refused(self, world: World, who: Actor, timeout: float | None, *, allowed: bool) -> None:
        if timeout is None or not allowed:
            raise Violation(f"{who.name} was refused")


class Wakefulness(Checker):
    """Nobody sleeps for longer than `bound` seconds while the lock, or a slot, is free, and nobody is about to take
    it."""

    def __init__(self, bound: float = 0.1, slots: int = 1) -> None:
        self.bound = bound
        self.slots = slots
        self.since: dict[str, float] = {}

    def enters(self, world: World, who: Actor) -> None:
        self.since.clear()  # it was not free all the time, whatever was seen when time passed

    def time_passes(self, world: World, now: float, until: float) -> None:
        wanted = {actor.wants for actor in world.actors if actor.wants and not actor.over}
        for path in wanted:
            if not self._is_free(world, path):
                self.since.pop(path, None)
                continue
            since = self.since.setdefault(path, now)
            if until - since > self.bound:
                asleep = ", ".join(a.name for a in world.actors if a.wants == path and not a.over)
                raise Violation(f"{path} is free since {since:.4f}, and {asleep} sleep until {until:.4f}")

    def _is_free(self, world: World, path: str) -> bool:
        alive = [actor for actor in world.actors if not actor.over and not actor.robbed]
        if sum(actor.inside is not None or actor.inode >= 0 for actor in alive) >= self.slots:
            return False
        paths = [name for name in world.kernel.names if name == path or name.startswith(f"{path}.")]
        return sum(_is_held(world, name) for name in paths) < self.slots


def _is_held(world: World, path: str) -> bool:
    inode = world.kernel.names[path]
    if any(file.kind == EXCLUSIVE for files in inode.locks.values() for file in files):
        return True
    words = _mark(inode)
    if not words:
        return bool(inode.data)  # not of ours: held as long as its protocol says
    return any(process.started.encode() == words[5] for process in world.kernel.processes.values())


def _mark(inode: Inode) -> list[bytes]:
    """The words of holdfast's mark in the file's record; none if the record is not ours."""
    return (inode.data.partition(b"holdfast=")[2] or inode.data.partition(b'"holdfast": "')[2]).split()


class NothingLeft(Checker):
    """A process that ends has no descriptors and watches any more; when all have ended, no file is left."""

    def __init__(self, *, may_stay: tuple[str, ...] = ()) -> None:
        self.may_stay = may_stay

    def process_ends(self, world: World, process: Process) -> None:
        left = {
            "descriptors": list(process.files),
            "watches": list(process.watches),
            "process descriptors": list(process.pidfds),
            "holds": list(process.holds),
            "lines": list(process.local_queues),
        }
        for what, found in left.items():
            if found:
                raise Violation(f"{process.name} has come to its end and left {what}: {found}")

    def at_end(self, world: World) -> None:
        left = [name for name in world.kernel.names if name != "/d" and not name.endswith(self.may_stay or ("\0",))]
        if left:
            raise Violation(f"left behind: {', '.join(left)}")


class Tidy(NothingLeft):
    """If nobody was killed, nothing is left even without a newcomer's help."""

    def at_end(self, world: World) -> None:
        if not any(actor.crashed for actor in world.actors):
            super().at_end(world)


class Stays(Checker):
    """None of ours removes these paths."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths

    def name_goes(self, world: World, inode: Inode, path: str) -> None:
        who = world.current
        if path in self.paths and who is not None and not who.foreign:
            raise Violation(f"{who.name} removes {path}")


class KeepsMode(Checker):
    """None of ours changes the mode of this path."""

    def __init__(self, world: World, path: str) -> None:
        self.inode = world.kernel.names[path]
        self.mode = self.inode.mode

    def at_end(self, world: World) -> None:
        if self.inode.mode != self.mode:
            raise Violation(f"it has the mode {self.inode.mode:o}, and had {self.mode:o}")


class MeantThat(Checker):
    """A process that breaks a lock removes the one that it has looked at, as far as a look just before can tell."""

    def name_goes(self, world: World, inode: Inode, path: str) -> None:
        who = world.current
        if who is None or not who.breaks or "/.holdfast-" in path:
            return
        if who.before != "stat" and all(file.inode is not inode for file in who.process.files.values()):
            raise Violation(f"{who.name} removes {path}, which is another lock by now")
        number, data = who.process.last_read
        inside = [actor for actor in world.actors if actor.inside == path and actor.inode == number == inode.number]
        if inside and data != inode.data and not inside[0].foreign:
            raise Violation(f"{who.name} removes {path} of {inside[0].name}, whose record it has never seen")


class Recovery(Checker):
    """After the run, a newcomer gets in within `bound` seconds, however the others have ended. `age`: it comes that
    many seconds later, because somebody else's record must be that old."""

    def __init__(self, program: Program, *, bound: float = 0.1, age: float = 0.0, always: bool = False) -> None:
        self.program = program
        self.bound = bound
        self.age = age
        self.always = always

    def at_end(self, world: World) -> None:
        if not self.always and len(world.kernel.names) == 1:
            return  # nothing is left
        world.stalls = world.crashes = world.losses = world.stops = 0
        world.kernel.full = False
        world.kernel.now += self.age
        for deferred in world.kernel.deferred:
            deferred.act()
        world.kernel.deferred.clear()
        began = world.kernel.now
        after = world.actor(world.process("after", 999), self.program)
        world.start()
        chooser = First()
        while (key := chooser.choose(world)) is not None:
            world.perform(key)
        assert after.over
        if world.kernel.now - began > self.bound:
            raise Violation(f"a newcomer got in only after {world.kernel.now - began:.3f} s")


def is_ticket(path: str) -> bool:
    """Whether the path is that of a ticket in place."""
    return "/.holdfast-" in path and queue.is_ticket(path.rpartition("/")[2])


class LivingTickets(Checker):
    """A ticket comes with its reader; its owner removes it, or anybody once nobody has it open for reading. Only a
    process that breaks a lock removes the ticket of its holder."""

    def __init__(self) -> None:
        self.owners: dict[int, Process] = {}
        """Processes that have put tickets in place, by the ticket's inode."""

    def name_comes(self, world: World, inode: Inode, path: str) -> None:
        if not is_ticket(path) or world.current is None or world.current.foreign:
            return
        if not _is_read(inode):
            raise Violation(f"{world.current.name} puts ticket {inode.number} in place, and does not have it open")
        self.owners[inode.number] = world.current.process

    def name_goes(self, world: World, inode: Inode, path: str) -> None:
        who, owner = world.current, self.owners.get(inode.number)
        if owner is None or not is_ticket(path) or who is None or who.process is owner or who.breaks:
            return
        if _is_read(inode):
            raise Violation(f"{who.name} removes ticket {inode.number} of {owner.name}, which has it open")


class Turns(Checker):
    """A waiter with a turn goes before a contender of another machine that began after that turn was there."""

    def __init__(self) -> None:
        self.happened = 0
        self.begun: dict[Actor, int] = {}
        self.turns: dict[Actor, int] = {}

    def begins(self, world: World, who: Actor) -> None:
        self.happened += 1
        self.begun[who] = self.happened

    def gives_up(self, world: World, who: Actor) -> None:
        self.begun.pop(who, None)
        self.turns.pop(who, None)

    def name_comes(self, world: World, inode: Inode, path: str) -> None:
        who = world.current
        if who in self.begun and queue.is_turn(path.rpartition("/")[2]):
            self.happened += 1
            self.turns.setdefault(who, self.happened)

    def killed(self, world: World, process: Process) -> None:
        for actor in world.actors:
            if actor.process is process:
                self.gives_up(world, actor)

    def enters(self, world: World, who: Actor) -> None:
        began = self.begun.get(who, 0)
        self.gives_up(world, who)
        for other, turn in self.turns.items():
            if turn < began and other.process is not who.process and other.inode < 0:
                raise Violation(f"{who.name} is served before {other.name}, whose turn was there when it began")


def _is_read(inode: Inode) -> bool:
    return any(pipe.readers for pipe in inode.pipes.values())


class Order(Checker):
    """A waiter whose ticket was in place before another contender began goes before that one.

    One that waits behind others of its process, which have a ticket, has had its place since its first wait. Nobody has
    to let others go first with `fair=False`, on another mount, or when its time is up: it takes a free lock. And those
    that have left a free lock alone for PATIENCE may be passed, by all who waited then, and for a second by newcomers.
    So may, by one process, those in the queue when a waiter of it has found the lock free twice, PATIENCE apart, behind
    the same first ticket and the same ones that it has passed, and no owner of these had it in between; that nobody
    else had, it cannot know. Who stands behind others of its process is passed with their ticket, until one who lists
    the queue finds another in the place of that.
    """

    def __init__(self, slots: int = 1) -> None:
        self.happened = 0
        self.begun: dict[Actor, int] = {}
        """When each contender began, by the number of the event."""
        self.places: dict[Actor, tuple[int, float]] = {}
        """When each contender got its place, by that number and by the clock."""
        self.tickets: dict[Process, dict[str, float]] = {}
        """When each ticket got its name."""
        self.held: dict[Actor, str] = {}
        self.free: dict[str, float] = {str(slot): START for slot in range(slots)}
        """When each slot became free; by number for slots that nobody has had yet, else by path."""
        self.left_alone: list[float] = []
        """When locks were taken that had been free for PATIENCE."""
        self.listed: dict[Actor, list[str]] = {}
        """The first in the queue when each contender listed it."""
        self.seen: dict[Actor, dict[Process, dict[str, float]]] = {}
        """The tickets in the queue then, or at an earlier list since the contender's last wait."""
        self.found: dict[Actor, list[tuple[float, list[list[str]]]]] = {}
        """When each contender found the lock free, and behind whom: then, and when it listed the queue before and
        after."""
        self.looking: set[Actor] = set()
        """Contenders that have not waited since they found it free."""
        self.used: dict[str, float] = {}
        """When the owner of each ticket that says that it has the lock last had it."""
        self.lock_files: dict[int, str] = {}
        """The path that each lock file has, or had, by its inode."""
        self.found_twice: dict[Process, list[float]] = {}
        """When a contender of a process found it free behind the same ones as PATIENCE before."""

    def begins(self, world: World, who: Actor) -> None:
        self.happened += 1
        self.begun[who] = self.happened

    def gives_up(self, world: World, who: Actor) -> None:
        self.begun.pop(who, None)
        self.places.pop(who, None)
        self.found.pop(who, None)
        self.seen.pop(who, None)
        self.looking.discard(who)

    def finds_none(self, world: World, who: Actor, path: str) -> None:
        if who.wants and path.startswith(who.wants) and who in self.begun:
            self.looking.add(who)
            self.found.setdefault(who, []).append((world.kernel.now, []))
            self._finds_behind(world, who, self.listed.get(who, []))
            self._finds_behind(world, who, _first_tickets(world, who))

    def lists(self, world: World, who: Actor) -> None:
        self.listed[who] = _first_tickets(world, who)
        seen = self.seen.setdefault(who, {})
        for process, tickets in self.tickets.items():
            seen[process] = {**seen.get(process, {}), **tickets}
        if who in self.looking:
            self._finds_behind(world, who, self.listed[who])

    def _finds_behind(self, world: World, who: Actor, first: list[str]) -> None:
        *before, (now, firsts) = self.found[who]
        firsts.append(first)
        used = max([self.used.get(ticket, 0.0) for ticket in first], default=0.0)
        if any(now - at > PATIENCE - 1e-6 and first in others and used <= at for at, others in before):
            self.found_twice.setdefault(who.process, []).append(world.kernel.now)

    def finds_unguarded(self, world: World, who: Actor, inode: Inode) -> None:
        if _mark(inode)[1:2] == [b"g"]:  # its owner has a guard as long as it holds: it is dead, or has just released
            self.finds_none(world, who, self.lock_files.get(inode.number, ""))

    def name_comes(self, world: World, inode: Inode, path: str) -> None:
        who = world.current
        if who is not None and not who.foreign and is_ticket(path):
            self.tickets.setdefault(who.process, {})[path] = world.kernel.now
            self._has_place(world, who)
        elif "/.holdfast-" not in path:
            self.lock_files[inode.number] = path

    def wakes(self, world: World, who: Actor, fds: list[int]) -> None:
        self.looking.discard(who)
        self.seen.pop(who, None)
        if who.fair and self.tickets.get(who.process):
            self._has_place(world, who)

    def _has_place(self, world: World, who: Actor) -> None:
        if who in self.begun and who not in self.places:
            self.happened += 1
            self.places[who] = self.happened, world.kernel.now

    def name_goes(self, world: World, inode: Inode, path: str) -> None:
        for tickets in self.tickets.values():
            if is_ticket(path):
                tickets.pop(path, None)
        if path in self.free and any(actor.inode == inode.number for actor in world.actors):
            self.free[path] = world.kernel.now

    def leaves(self, world: World, who: Actor) -> None:
        path = self.held.pop(who, None)
        if path is not None:
            self.free[path] = world.kernel.now
            self._uses(world, who)

    def _uses(self, world: World, who: Actor) -> None:
        for ticket in self.tickets.get(who.process, {}):
            if world.kernel.names[ticket].mode & 0o100:  # not that of another, which it has passed
                self.used[ticket] = world.kernel.now

    def killed(self, world: World, process: Process) -> None:
        for actor in world.actors:
            if actor.process is process:
                self.gives_up(world, actor)
                self.leaves(world, actor)

    def enters(self, world: World, who: Actor) -> None:
        if who.foreign or who not in self.begun:
            return
        now, began = world.kernel.now, self.begun[who]
        seen = self.seen.get(who, {})
        self.gives_up(world, who)
        self._uses(world, who)
        if self.free and now - min(self.free.values()) > PATIENCE - 1e-6:
            self.left_alone.append(now)
        if who.inside not in self.free:
            self.free.pop(next((slot for slot in self.free if slot.isdigit()), ""), None)
        self.held[who] = who.inside or ""
        self.free.pop(who.inside or "", None)
        if not who.fair or (who.timeout is not None and now >= who.began + who.timeout):
            return
        passed = [other for other, (number, _) in self.places.items() if number < began]
        for other in passed:
            if self.held[who].startswith(other.wants) and not self._may_pass(world, who, other, seen):
                raise Violation(f"{who.name} is served before {other.name}, whose place was taken when it began")

    def _may_pass(self, world: World, who: Actor, other: Actor, seen: dict[Process, dict[str, float]]) -> bool:
        if (other.shared and who.shared) or other.process.mount.device != who.process.mount.device:
            return True
        _, since = self.places[other]
        if since == who.began:  # by the clock, they came at the same time
            return True
        if any(_holds(world, other, path) for path in world.kernel.names):
            return True  # it has a slot, and is about to enter
        if other.timeout is not None and world.kernel.now >= other.began + other.timeout:
            return True  # it is giving up
        placed = [*self.tickets.get(other.process, {}).values(), *seen.get(other.process, {}).values()]
        left_alone = [end for end in self.left_alone if since <= end]
        left_alone += [end for end in self.found_twice.get(who.process, []) if min(placed, default=since) <= end]
        return any(who.began <= end or world.kernel.now <= end + 1.0 for end in left_alone)


def _first_tickets(world: World, who: Actor) -> list[str]:
    """The tickets that a contender has passed, and then the first one that it has not."""
    found: list[str] = []
    for path in sorted(path for path in world.kernel.names if is_ticket(path)):
        found.append(path)
        if who.process.passed.get(path.rpartition("/")[2], 0.0) <= world.kernel.now:
            break
    return found


def _holds(world: World, who: Actor, path: str) -> bool:
    """Whether this is a lock file of that actor's process."""
    return path.startswith(who.wants) and who.process.started.encode() in world.kernel.names[path].data.split()


class Follower(NamedTuple):
    """A waiter woken by the end of a ticket: its own ticket, the step at which that was put in place, and the step at
    which it had looked who is ahead."""

    actor: Actor
    ticket: str
    placed: int
    looked: int

    def saw(self, other: Follower) -> bool:
        """Whether the other's ticket was ahead when this one looked."""
        return other.ticket < self.ticket and other.placed < self.looked


class WokenOnce(Checker):
    """A waiter behind another is woken when the ticket right ahead of it goes, and no other waiter is. `in_time`: not
    before the lock file of that ticket's owner has gone.

    Of two that follow the same ticket, the later one has looked before the ticket of the earlier one was in place.
    """

    def __init__(self, *, in_time: bool = True) -> None:
        self.in_time = in_time
        self.tickets: dict[Actor, int] = {}
        """The inode of the ticket that each has put in place for the lock that it wants, or wanted when it got the
        lock."""
        self.locks: dict[Actor, tuple[str, int]] = {}
        """The lock file that each has, and removes."""
        self.placed: dict[Actor, tuple[str, int]] = {}
        """The ticket of each, and the step at which it was put in place."""
        self.woken: dict[object, list[Follower]] = {}
        """Waiters woken, by pipe."""

    def begins(self, world: World, who: Actor) -> None:
        self.tickets.pop(who, None)

    def enters(self, world: World, who: Actor) -> None:
        if self.in_time and not isinstance(who.held, FlockHold):
            self.locks[who] = who.inside or "", who.inode

    def released(self, world: World, who: Actor, *, robbed: bool, told: bool, sure: bool) -> None:
        self.locks.pop(who, None)

    def _has_lock(self, world: World, who: Actor) -> bool:
        path, number = self.locks.get(who, ("", -1))
        there = world.kernel.names.get(path)
        return there is not None and there.number == number and not who.crashed and not who.robbed

    def name_comes(self, world: World, inode: Inode, path: str) -> None:
        who = world.current
        if who is not None and is_ticket(path):
            self.placed[who] = path, world.steps
            self.tickets[who] = inode.number

    def wakes(self, world: World, who: Actor, fds: list[int]) -> None:
        for fd in fds:
            file = who.process.files.get(fd)
            if file is None or file.pipe is None or file.reads:
                continue
            for owner, ticket in self.tickets.items():
                if ticket == file.inode.number and not owner.process.shared and self._has_lock(world, owner):
                    raise Violation(f"{who.name} is woken by the ticket of {owner.name}, which has the lock")
            woken = self.woken.setdefault(file.pipe, [])
            if any(other.actor is who for other in woken):
                raise Violation(f"{who.name} is woken again by ticket {file.inode.number}, which has gone")
            if who.process.shared or who.process.passed or who not in self.placed:
                continue  # it may have the ticket of another one; or have passed some, and not this one
            this = Follower(who, *self.placed[who], who.followed)
            for other in woken:
                if not (who.shared and other.actor.shared) and (this.saw(other) or other.saw(this)):
                    raise Violation(f"{other.actor.name} and {who.name} are woken as ticket {file.inode.number} goes")
            woken.append(this)


def usual(
    program: Program, *, slots: int = 1, bound: float = 0.1, age: float = 0.0, may_stay: tuple[str, ...] = ()
) -> list[Checker]:
    """The checkers for ours. `program`: that of a newcomer, which comes `age` seconds after the end."""
    return [
        Exclusion(slots),
        LivingTickets(),
        Order(slots),
        WokenOnce(in_time=slots == 1),
        Told(),
        RecoveredFrom(),
        Refusals(),
        Wakefulness(bound, slots),
        Tidy(may_stay=may_stay),
        Recovery(program, bound=max(bound, 0.1), age=age),
        NothingLeft(may_stay=may_stay),
    ]
