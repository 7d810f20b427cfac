"""One run: a machine, its actors, and one interleaving of their steps, chosen one step at a time.

What may be chosen at any point, each with a key (`kind * KIND + number`) and the footprint of what it would touch:

    STEP    an actor takes the step that it stands before, or wakes up from a wait that has ended
    EXPIRE  the deadline of a wait comes although others could go on: they are slow, or stopped
    CRASH   an actor's process is killed where it stands
    KERNEL  the kernel does what it has put off
    LOSE    an event is lost
    IDLE    nobody can go on, and time passes

Time passes by IDLE and EXPIRE alone (and by `step_seconds`, where a workload wants each step to take a while), and
never beyond the moment until which an actor or the kernel is known to act.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from .actor import Actor
from .base import Crash
from .footprint import Footprint
from .process import Process, traced

if TYPE_CHECKING:
    from typing import Protocol

    from .actor import Program
    from .checkers import Checker
    from .kernel import Inode, Kernel, Mount

    class Chooser(Protocol):
        def choose(self, world: World) -> int | None: ...


KIND = 10_000
STEP, EXPIRE, CRASH, KERNEL, LOSE, IDLE = (kind * KIND for kind in range(6))
KINDS = ("step", "expire", "crash", "kernel", "lose", "idle")
ALL: Footprint = (-1, -1)
"""Of a step after which another time is read everywhere: it touches whatever anybody touches."""
Option = tuple[int, Footprint]
MOST_STEPS = 4000


class Violation(AssertionError):
    """A promise was broken in this run."""


class World:
    """One run. A workload fills it with processes, actors and checkers."""

    def __init__(self, kernel: Kernel, *, trace: bool = False) -> None:
        self.kernel = kernel
        self.actors: list[Actor] = []
        self.checkers: list[Checker] = []
        self.crashes = 0
        self.stalls = 0
        self.losses = 0
        """How often each may be chosen yet."""
        self.step_seconds = 0.0
        self.after_crash: Any = None
        """What the workload does when an actor has been killed."""
        self.steps = 0
        self.last: Actor | None = None
        self.trace: list[tuple[float, str, str]] | None = [] if trace else None
        self.current: Actor | None = None
        self._main = getcurrent().switch
        kernel.on_unnamed = self._unnamed

    # -- making --------------------------------------------------------------------------------------------------------

    def process(self, name: str, pid: int, *, namespace: str = "1", mount: Mount | None = None) -> Process:
        made = Process(self.kernel, name, pid, namespace=namespace, mount=mount)
        made.switch = self._main
        if self.trace is not None:
            traced(made, self._tell)
        return made

    def actor(self, process: Process, program: Program, *, foreign: bool = False, crashable: bool = True) -> Actor:
        others = [actor for actor in self.actors if actor.process is process]
        name = process.name if not others else f"{process.name}{len(others) + 1}"
        process.shared = bool(others)
        actor = Actor(self, len(self.actors), name, process, program, foreign=foreign, crashable=crashable)
        self.actors.append(actor)
        return actor

    # -- choosing ------------------------------------------------------------------------------------------------------

    def options(self) -> list[Option]:
        """What may be chosen now: the actor that went last comes first. Empty at the end."""
        now = self.kernel.now
        found: list[Option] = []
        later: list[Option] = []
        last = self.last
        alive = False
        limit = math.inf
        expiring = []
        for actor in self.actors:
            if actor.over:
                continue
            alive = True
            if actor.must_by < limit:
                limit = actor.must_by
            busy = actor.process.busy
            free = busy is None or busy is actor
            if actor.wait is None or actor.ready(now):
                if free:
                    (found if actor is last else later).append((actor.index, actor.footprint))
            elif self.stalls and free and actor.wait.deadline < math.inf:
                expiring.append(actor)
            if self.crashes and actor.crashable:
                later.append((CRASH + actor.index, actor.process.end_footprint()))
        found += later
        kernel = self.kernel
        for deferred in kernel.deferred:
            limit = min(limit, deferred.until)
            found.append((KERNEL + deferred.number, deferred.footprint))
            if self.losses and deferred.can_be_lost:
                found.append((LOSE + deferred.number, deferred.footprint))
        could = any(key < EXPIRE or key >= KERNEL for key, _ in found)
        for actor in expiring:
            assert actor.wait is not None
            if could and actor.wait.deadline <= limit:
                found.append((EXPIRE + actor.index, ALL))
        if alive and not could:
            found.insert(0, (IDLE, ALL))
        return found if alive else []

    def perform(self, key: int) -> None:
        """Take what was chosen."""
        kind, number = divmod(key, KIND)
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Violation(f"after {MOST_STEPS} steps it has not come to an end")
        if key < EXPIRE:
            self._resume(self.actors[number])
        elif key < CRASH:
            actor = self.actors[number]
            assert actor.wait is not None
            self.stalls -= 1
            self.pass_time(actor.wait.deadline)
            self._note(actor.name, f"its wait ends at its deadline, t={self.kernel.now:.4f}, while others are slow")
            self._resume(actor)
        elif key < KERNEL:
            self.crashes -= 1
            self.kill(self.actors[number])
        elif key < IDLE:
            self._settle(number, lose=kind * KIND == LOSE)
        else:
            self._idle()

    def _resume(self, actor: Actor) -> None:
        process = actor.process
        self.last = self.current = actor
        process.actor = actor
        if process.shared:
            process.busy = actor
        if self.step_seconds:
            self.kernel.now += self.step_seconds
        if self.trace is not None and actor.wait is not None:
            self._note(actor.name, "wakes up")
        actor.run()
        if actor.over:
            self._ended(actor)
        elif self.trace is not None and actor.wait is not None:
            self._note(actor.name, f"waits until {actor.wait.deadline:.4f}" + (" for events" * bool(actor.wait.fds)))

    def _ended(self, actor: Actor) -> None:
        if actor.error is not None:
            if isinstance(actor.error, Violation):
                raise actor.error
            raise Violation(f"{actor.name} failed: {actor.error!r}") from actor.error
        process = actor.process
        if all(other.over for other in self.actors if other.process is process):
            for checker in self.checkers:
                checker.process_ends(self, process)
            process.end()

    def _settle(self, number: int, *, lose: bool) -> None:
        deferred = next(found for found in self.kernel.deferred if found.number == number)
        self.kernel.deferred.remove(deferred)
        self._note("kernel", f"{deferred.text}{': lost' if lose else ''}")
        if lose:
            self.losses -= 1
        else:
            deferred.act()

    def kill(self, actor: Actor) -> None:
        """SIGKILL, at this very point."""
        process = actor.process
        self._note(process.name, f"is killed before {actor.op}{'' if actor.arg is None else f' {actor.arg!r}'}")
        self.last = None
        self.current = None
        process.end()
        for other in self.actors:
            if other.process is process and not other.over:
                other.crashed = True
                other.die()
                other.inside = other.held = None
                other.inode = -1
        if self.after_crash is not None:
            self.after_crash(self, actor)

    def _idle(self) -> None:
        now = self.kernel.now
        until = min((actor.wait.deadline for actor in self.actors if actor.wait and not actor.over), default=math.inf)
        if until == math.inf:
            asleep = ", ".join(actor.name for actor in self.actors if not actor.over)
            raise Violation(f"nobody will ever go on: {asleep} sleep for ever")
        for checker in self.checkers:
            checker.time_passes(self, now, until)
        self.pass_time(until)

    def pass_time(self, until: float) -> None:
        self.kernel.now = max(self.kernel.now, until)

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self, chooser: Chooser) -> None:
        """Take the steps that are chosen, until all have come to their end. Violation when a promise is broken."""
        try:
            self.start()
            while (key := chooser.choose(self)) is not None:
                self.perform(key)
            for checker in self.checkers:
                checker.at_end(self)
        finally:
            self._dispose()

    def start(self) -> None:
        """Bring those who have not begun before their first step; of several in a process, one at a time."""
        for actor in self.actors:
            if actor.op == "start" and not actor.over and actor.process.busy is None:
                self._resume(actor)
        self.last = None

    def _dispose(self) -> None:
        for actor in self.actors:
            if not actor.over:
                actor.process.vanish()
                actor.die()

    # -- telling -------------------------------------------------------------------------------------------------------

    def _unnamed(self, inode: Inode, path: str) -> None:
        """A name leads to another file by now, or to none; or the file was written over."""
        who = self.current
        for actor in self.actors:
            if actor.inode == inode.number and actor is not who and _excuses(who):
                actor.robbed = True
        for checker in self.checkers:
            checker.name_goes(self, inode, path)

    def _note(self, who: str, text: str) -> None:
        if self.trace is not None:
            self.trace.append((self.kernel.now, who, text))

    def _tell(self, who: Actor, name: str, args: tuple[Any, ...], named: dict[str, Any], result: object) -> None:
        from .trace import described

        self._note(who.name, described(name, args, named, result))


def _excuses(who: Actor | None) -> bool:
    """Whether somebody's lock may go by this one's hand: not of holdfast, told to, or robbed itself a moment ago,
    between its last look and its removal."""
    return who is None or who.foreign or who.breaks or who.robbed


__all__ = ["Crash", "Violation", "World"]
