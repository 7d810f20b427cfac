"""What must be true in every run. Each checker is told of what happens, and raises Violation."""

from __future__ import annotations

from holdfast.engines.file.flock import FlockHold
from holdfast.errors import HoldfastError
from holdfast.model import Record
from sim.kernel import EXCLUSIVE, Inode, Process
from sim.world import Actor, Checker, First, Program, Violation, World


class Exclusion(Checker):
    """Among ours at most one is inside, or as many as there are slots, each in a slot of its own. One that has been
    robbed by somebody else does not count: that is told, not prevented."""

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots

    def enters(self, world: World, who: Actor) -> None:
        if who.foreign:
            return
        if who.robbed and not any(other.foreign or other.breaks for other in world.actors):
            raise Violation(f"{who.name} is inside, and {who.inside} is not its own")
        if who.robbed:
            return
        others = [a for a in world.actors if a.inside is not None and a is not who and not a.foreign and not a.robbed]
        for other in others:
            if other.inside == who.inside and not (other.shared and who.shared):
                raise Violation(f"{who.name} is inside while {other.name} holds {who.inside}")
        if len(others) >= self.slots and not who.shared:
            raise Violation(f"{len(others) + 1} are inside, and there are {self.slots} slots")


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
    """Who was robbed is told at the release; who was not, is not."""

    def released(self, world: World, who: Actor, *, robbed: bool, told: bool, sure: bool) -> None:
        if robbed and not told:
            raise Violation(f"{who.name} was robbed, and its release did not say so")
        if told and not robbed and sure:
            raise Violation(f"{who.name} is told that its lock was lost, and it was not")


class Daemon(Checker):
    """Who only looks finds a lock file as long as one of ours is inside."""

    def found_free(self, world: World, who: Actor, path: str) -> None:
        for other in world.actors:
            if other.inside == path and not other.foreign and not other.robbed:
                raise Violation(f"{who.name} finds no lock while {other.name} is inside")


class RecoveredFrom(Checker):
    """`recovered_from` is the record of the one that was replaced, and None where nobody was."""

    def __init__(self) -> None:
        self.removed: dict[Actor, bytes] = {}
        """The lock file that somebody has removed last, which may be the first half of a takeover."""

    def name_goes(self, world: World, inode: Inode, path: str) -> None:
        if world.current is not None and not path.endswith(".claim"):
            self.removed[world.current] = inode.data

    def enters(self, world: World, who: Actor) -> None:
        held = who.held
        if who.foreign or held is None or who.robbed or isinstance(held, FlockHold):
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
        if before is None and found is not None and who in self.removed:
            before = held.request.protocol.decode(self.removed[who])
        if (before and (before.pid, before.created)) != (found and (found.pid, found.created)):
            raise Violation(f"{who.name} has recovered from {_named(found)}, and it was {_named(before)}")
        if found is not None and found.marker is not None:
            started = found.marker.identity.started
            if any(process.started == started for process in world.kernel.processes.values()):
                raise Violation(f"{who.name} has recovered from {_named(found)}, which lives")


def _named(record: Record | None) -> str:
    return "nobody" if record is None else f"process {record.pid}"


class Tokens(Checker):
    """Every hold has a fencing token that is higher than all before it; and no two have the same, robbed or not."""

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
    """Who waits for ever is never refused; who waits for a time is refused only when that is over."""

    def refused(self, world: World, who: Actor, timeout: float | None, *, allowed: bool) -> None:
        if timeout is None or not allowed:
            raise Violation(f"{who.name} was refused")


class Wakefulness(Checker):
    """Nobody sleeps while the lock is free, and nobody is about to take it, for longer than `bound` seconds."""

    def __init__(self, bound: float = 0.1) -> None:
        self.bound = bound
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
        if any(actor.inside is not None and not actor.over for actor in world.actors):
            return False
        if any(actor.inode >= 0 and not actor.over for actor in world.actors):
            return False
        paths = [name for name in world.kernel.names if name == path or name.startswith(f"{path}.")]
        return not any(_is_held(world, name) for name in paths)


def _is_held(world: World, path: str) -> bool:
    inode = world.kernel.names[path]
    if any(file.kind == EXCLUSIVE for files in inode.locks.values() for file in files):
        return True
    marked = inode.data.partition(b"holdfast=")[2] or inode.data.partition(b'"holdfast": "')[2]
    if not marked:
        return bool(inode.data)  # not of ours: held as long as its protocol says
    words = marked.split()
    return any(process.started.encode() == words[5] for process in world.kernel.processes.values())


class NothingLeft(Checker):
    """Who comes to its end has no descriptors and watches any more; when all have, no file is left."""

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
    """Where nobody was killed, nothing is left without a newcomer's help, either."""

    def at_end(self, world: World) -> None:
        if not any(actor.crashed for actor in world.actors):
            super().at_end(world)


class MeantThat(Checker):
    """Whoever breaks a lock removes the one that it has looked at, as far as a look just before that can tell."""

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
    """After all is over, a newcomer gets in within `bound` seconds, however the others have ended. `age`: so many
    seconds later, because somebody else's record must be that old."""

    def __init__(self, program: Program, *, bound: float = 0.1, age: float = 0.0, always: bool = False) -> None:
        self.program = program
        self.bound = bound
        self.age = age
        self.always = always

    def at_end(self, world: World) -> None:
        if not self.always and len(world.kernel.names) == 1:
            return  # nothing is left
        world.stalls = world.crashes = world.losses = 0
        world.kernel.full = False
        world.kernel.now += self.age
        began = world.kernel.now
        after = world.actor(world.process("after", 999), self.program)
        world.start()
        chooser = First()
        while (key := chooser.choose(world)) is not None:
            world.perform(key)
        assert after.over
        if world.kernel.now - began > self.bound:
            raise Violation(f"a newcomer got in only after {world.kernel.now - began:.3f} s")


def usual(program: Program, *, slots: int = 1, bound: float = 0.1, may_stay: tuple[str, ...] = ()) -> list[Checker]:
    """What holds among ours."""
    return [
        Exclusion(slots),
        Told(),
        RecoveredFrom(),
        Refusals(),
        Wakefulness(bound),
        Tidy(may_stay=may_stay),
        Recovery(program, bound=max(bound, 0.1)),
        NothingLeft(may_stay=may_stay),
    ]
