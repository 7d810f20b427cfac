"""One run: a machine, its actors, and one interleaving of their steps, chosen one step at a time.

What may be chosen at any point, each with a key (`kind * KIND + number`) and the footprint of what it would touch:

    STEP    an actor takes the step that it stands before, or wakes up from a wait that has ended
    EXPIRE  the deadline of a wait comes although others could go on: they are slow, or stopped
    CRASH   an actor's process is killed where it stands
    KERNEL  the kernel does what it has put off
    LOSE    an event is lost
    IDLE    nobody can go on, and time passes
    STOP    an actor is stopped where it stands, for as long as the workload says: SIGSTOP, or a server out of reach

Time passes by IDLE and EXPIRE alone (and by `step_seconds`, where a workload wants each step to take a while), and
never beyond the moment until which an actor or the kernel is known to act.

An actor is a thread of control in a simulated process. The engine calls its environment from deep within ordinary
functions, and plain Python cannot suspend those. Threads that hand over a baton could, at 10 to 20 µs a switch; a run
has about a hundred switches and there are a million runs. So each actor is a greenlet, which switches in a fraction
of a microsecond and nests in any call.
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from holdfast._core.wait import Wait
from holdfast.engines.file.hold import FileHold
from sim.kernel import Crash, Footprint, Inode, Kernel, Process, both, traced

Program = Callable[["Actor"], None]
T = TypeVar("T")


class Actor:
    """One program in one process. `op`, `arg` and `footprint` are those of the step that it takes next."""

    __slots__ = (
        "arg",
        "at_leisure",
        "before",
        "began",
        "breaks",
        "context",
        "crashable",
        "crashed",
        "error",
        "fair",
        "followed",
        "footprint",
        "foreign",
        "held",
        "index",
        "inode",
        "inside",
        "listed",
        "must_by",
        "name",
        "op",
        "over",
        "process",
        "program",
        "robbed",
        "run",
        "shared",
        "stopped",
        "timeout",
        "wait",
        "wants",
        "world",
    )

    def __init__(
        self, world: World, index: int, name: str, process: Process, program: Program, *, foreign: bool, crashable: bool
    ) -> None:
        self.world = world
        self.index = index
        self.name = name
        self.process = process
        self.program = program
        self.foreign = foreign
        self.crashable = crashable
        self.crashed = False
        self.before = ""
        """The previous step."""
        self.op = "start"
        self.arg: object = None
        self.footprint: Footprint = world.kernel.critical.r
        self.wait: Wait | None = None
        self.over = False
        self.error: BaseException | None = None
        self.context: tuple[object, ...] = (process, self)
        self.must_by = math.inf
        """Time until which it takes its next step: a process that is assumed not to be stopped here."""
        self.at_leisure = False
        """Whether it may be stopped for any time between two steps, however prompt its program says that it is."""
        self.stopped = 0.0
        """Time until which it takes no step."""
        self.listed = self.followed = 0
        """The steps at which it last listed the queue, and did so in order to follow the one ahead."""
        self.wants = ""
        """The lock file that it is acquiring."""
        self.began = 0.0
        """Time at which it began to acquire it."""
        self.timeout: float | None = None
        self.fair = True
        self.inside: str | None = None
        """The lock file that it holds, as it believes."""
        self.held: FileHold | None = None
        self.inode = -1
        """The inode of that lock file."""
        self.shared = False
        """Whether it holds the lock together with others."""
        self.robbed = False
        """Whether its lock file was removed, or written over, by an actor that is not of holdfast or was told to."""
        self.breaks = False
        """Whether it breaks locks on purpose."""
        self.run = greenlet(self._main).switch

    def _main(self) -> None:
        try:
            self.program(self)
        except Crash:
            pass
        except BaseException as error:
            self.error = error
        self.over = True
        self.process.busy = None

    def die(self) -> None:
        """Never take another step. What the engine cleans up meanwhile has no effect, as its process is dead."""
        if not self.over:
            self.wait = None
            self.run()  # `step` and `sleep` raise Crash
            self.over = True

    # -- for programs --------------------------------------------------------------------------------------------------

    def drive(self, steps: Generator[Wait, None, T]) -> T:
        """Run a generator of the engine to its end, as the drivers in `_drive` do."""
        try:
            while True:
                self.pause(next(steps))
        except StopIteration as done:
            result: T = done.value
            return result
        except BaseException:
            steps.close()
            raise

    def pause(self, wait: Wait) -> None:
        process = self.process
        if process.dead:
            raise Crash
        touched = process.mark.r
        for fd in wait.fds:
            file, watch = process.files.get(fd), process.watches.get(fd)
            if file is not None:
                touched = both(touched, file.inode.mark.r)
            else:
                touched = both(touched, process.pidfds[fd].mark.r if watch is None else watch.inode.mark.r)
        self.op, self.arg = "wake", None
        self.footprint = both(touched, process.mark.w) if process.shared else touched
        self.wait = wait
        process.busy = None
        process.switch()
        if process.dead:
            raise Crash
        self.wait = None

    def sleep(self, seconds: float) -> None:
        self.pause(Wait((), self.world.kernel.now + seconds))

    def step(self, op: str, arg: object, footprint: Footprint) -> None:
        self.process.step(op, arg, footprint)

    def prompt(self, within: float = math.inf) -> None:
        """Announce within how many seconds the next steps are taken: what a guarantee assumes of others."""
        self.must_by = math.inf if self.at_leisure else self.world.kernel.now + within

    def begin(self, path: str, timeout: float | None, *, shared: bool, fair: bool) -> None:
        """Want a lock, from here on."""
        self.wants, self.began, self.timeout = path, self.world.kernel.now, timeout
        self.shared, self.fair = shared, fair
        for checker in self.world.checkers:
            checker.begins(self.world, self)

    def give_up(self) -> None:
        """Want the lock no more."""
        self.wants = ""
        for checker in self.world.checkers:
            checker.gives_up(self.world, self)

    def enter(self, path: str, inode: int, held: FileHold | None = None, *, shared: bool = False) -> None:
        """Be inside, from here on: the checkers check whether that is right."""
        self.step("enter", path, self.world.kernel.critical.w)
        there = self.world.kernel.names.get(path)
        self.inside, self.inode, self.held, self.shared = path, inode, held, shared
        self.robbed = (
            there is None or there.number != inode or (held is not None and held.data not in (b"", there.data))
        )
        self.note("is inside" if not self.foreign else "is inside (not of holdfast)")
        for checker in self.world.checkers:
            checker.enters(self.world, self)

    def leave(self) -> None:
        """Be inside no more; the lock is released after that."""
        self.step("leave", self.inside, self.world.kernel.critical.w)
        self.note("leaves")
        for checker in self.world.checkers:
            checker.leaves(self.world, self)
        self.inside = None

    def note(self, text: str) -> None:
        if self.world.trace is not None:
            self.world.trace.append((self.world.kernel.now, self.name, text))

    @property
    def may_go_at(self) -> float:
        """The time at which time alone lets it go on."""
        return max(self.stopped, self.world.kernel.now if self.wait is None else self.wait.deadline)

    def ready(self, now: float) -> bool:
        """Whether its wait has ended."""
        wait = self.wait
        if wait is None or wait.deadline <= now:
            return True
        if wait.signal is not None and wait.signal.is_set:
            return True
        return any(map(self._is_ready, wait.fds))

    def ready_fds(self) -> list[int]:
        """The descriptors that end its wait."""
        return [] if self.wait is None else [fd for fd in self.wait.fds if self._is_ready(fd)]

    def _is_ready(self, fd: int) -> bool:
        process = self.process
        file = process.files.get(fd)
        if file is not None:
            return file.is_ready
        watch = process.watches.get(fd)
        return process.pidfds[fd].dead if watch is None else bool(watch.change)


class Chooser(Protocol):
    def choose(self, world: World) -> int | None: ...


KIND = 10_000
STEP, EXPIRE, CRASH, KERNEL, LOSE, IDLE, STOP = (kind * KIND for kind in range(7))
KINDS = ("step", "expire", "crash", "kernel", "lose", "idle", "stop")
ALL: Footprint = (-1, -1)
"""The footprint of a step after which another time is read everywhere: it touches everything."""
Option = tuple[int, Footprint]
MOST_STEPS = 4000


class Violation(AssertionError):
    """A promise was broken in this run."""


class Checker:
    """Is told of everything, checks nothing."""

    def begins(self, world: World, who: Actor) -> None:
        """One of ours wants a lock: `wants` says which, `timeout` for how long, `shared` and `fair` how."""

    def gives_up(self, world: World, who: Actor) -> None:
        """One of ours does not want it any more: it was refused, or cancelled."""

    def wakes(self, world: World, who: Actor, fds: list[int]) -> None:
        """A wait has ended, and these of its descriptors are ready."""

    def name_comes(self, world: World, inode: Inode, path: str) -> None:
        """A name leads to the inode now."""

    def killed(self, world: World, process: Process) -> None:
        """A process has just been killed."""

    def enters(self, world: World, who: Actor) -> None:
        """An actor believes that it holds the lock."""

    def leaves(self, world: World, who: Actor) -> None:
        """An actor is about to release."""

    def released(self, world: World, who: Actor, *, robbed: bool, told: bool, sure: bool) -> None:
        """One of ours has released. `robbed`: it had lost the lock before; `told`: LockLost said so."""

    def refused(self, world: World, who: Actor, timeout: float | None, *, allowed: bool) -> None:
        """One of ours was refused."""

    def found_free(self, world: World, who: Actor, path: str) -> None:
        """An observer has found no lock file."""

    def time_passes(self, world: World, now: float, until: float) -> None:
        """No actor can go on before `until`."""

    def process_ends(self, world: World, process: Process) -> None:
        """All programs of a process have come to their end."""

    def name_goes(self, world: World, inode: Inode, path: str) -> None:
        """A name no longer leads to the inode."""

    def finds_none(self, world: World, who: Actor, path: str) -> None:
        """An actor has looked at a path, and nothing was there."""

    def lists(self, world: World, who: Actor) -> None:
        """An actor lists the queue."""

    def finds_unguarded(self, world: World, who: Actor, inode: Inode) -> None:
        """An actor has looked at the guard of a file, and no holder had it."""

    def at_end(self, world: World) -> None:
        """All actors have ended, or are dead."""


class World:
    """One run. A workload fills it with processes, actors and checkers."""

    def __init__(self, kernel: Kernel, *, trace: bool = False) -> None:
        self.kernel = kernel
        self.actors: list[Actor] = []
        self.checkers: list[Checker] = []
        self.crashes = 0
        self.stalls = 0
        self.losses = 0
        self.stops = 0
        """How often each may still be chosen."""
        self.stop_seconds = 0.0
        self.stops_at: tuple[str, ...] = ()
        """The steps before which one may be stopped; empty: all."""
        self.never_stopped: tuple[str, object] = ("", None)
        """A step, and its object, before which nobody is stopped: what a promise assumes."""
        self.step_seconds = 0.0
        self.after_crash: Any = None
        """Called when an actor has been killed."""
        self.steps = 0
        self.last: Actor | None = None
        self.trace: list[tuple[float, str, str]] | None = [] if trace else None
        self.current: Actor | None = None
        self._main = getcurrent().switch
        kernel.on_named, kernel.on_unnamed, kernel.on_missing = self._named, self._unnamed, self._missing
        kernel.on_unguarded = self._unguarded

    # -- making --------------------------------------------------------------------------------------------------------

    def process(self, name: str, pid: int, **where: Any) -> Process:
        made = Process(self.kernel, name, pid, **where)
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
        """The choices at this point: the actor that went last comes first. Empty at the end."""
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
            if actor.stopped > now:
                continue
            if (
                self.stops
                and (actor.op, actor.arg) != self.never_stopped
                and actor.op in (self.stops_at or (actor.op,))
            ):
                later.append((STOP + actor.index, ALL))
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
        could = any(key < EXPIRE or KERNEL <= key < STOP for key, _ in found)
        for actor in expiring:
            assert actor.wait is not None
            if could and actor.wait.deadline <= limit:
                found.append((EXPIRE + actor.index, ALL))
        if alive and not could:
            found.insert(0, (IDLE, ALL))
        return found if alive else []

    def perform(self, key: int) -> None:
        """Perform the chosen step."""
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
        elif key < STOP:
            self._idle()
        else:
            self.stops -= 1
            self.actors[number].stopped = self.kernel.now + self.stop_seconds
            self._note(self.actors[number].name, f"is stopped for {self.stop_seconds} s")

    def _resume(self, actor: Actor) -> None:
        process = actor.process
        self.last = self.current = actor
        process.actor = actor
        if actor.op == "list" and "/.holdfast-" in str(actor.arg):
            actor.listed = self.steps
            for checker in self.checkers:
                checker.lists(self, actor)
        elif actor.op in ("open_fifo_to_write", "hung_up"):
            actor.followed = actor.listed
        if process.shared:
            process.busy = actor
        if self.step_seconds:
            self.kernel.now += self.step_seconds
        if actor.wait is not None:
            ready = actor.ready_fds()
            for checker in self.checkers:
                checker.wakes(self, actor, ready)
            if self.trace is not None:
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
        """Kill an actor as by SIGKILL, at this very point."""
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
        for checker in self.checkers:
            checker.killed(self, process)
        if self.after_crash is not None:
            self.after_crash(self, actor)

    def _idle(self) -> None:
        now = self.kernel.now
        until = min((actor.may_go_at for actor in self.actors if not actor.over), default=math.inf)
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
        """Take the chosen steps, until all have ended. Violation if a promise is broken."""
        try:
            self.start()
            while (key := chooser.choose(self)) is not None:
                self.perform(key)
            for checker in self.checkers:
                checker.at_end(self)
        finally:
            self._dispose()

    def start(self) -> None:
        """Bring those that have not begun before their first step; of several in a process, one at a time."""
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

    def _named(self, inode: Inode, path: str) -> None:
        for checker in self.checkers:
            checker.name_comes(self, inode, path)

    def _missing(self, path: str) -> None:
        if self.current is not None:
            for checker in self.checkers:
                checker.finds_none(self, self.current, path)

    def _unguarded(self, inode: Inode) -> None:
        if self.current is not None:
            for checker in self.checkers:
                checker.finds_unguarded(self, self.current, inode)

    def _unnamed(self, inode: Inode, path: str) -> None:
        """Note that a name leads to another file by now, or to none; or that the file was written over."""
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
        self._note(who.name, described(name, args, named, result))


def _excuses(who: Actor | None) -> bool:
    """Whether this actor may take somebody's lock away: it is not of holdfast, is told to, or was itself robbed a
    moment ago, between its last look and its removal."""
    return who is None or who.foreign or who.breaks or who.robbed


class First:
    """Chooses the actor that went last as long as it can go on; then the next one. Nobody is killed."""

    def choose(self, world: World) -> int | None:
        for key, _ in world.options():
            if key < EXPIRE or KERNEL <= key < LOSE or IDLE <= key < STOP:
                return key
        return None


_LONGEST = 60
_TICKET = re.compile(r"\d{11}(\d{9}-[xs]-\d+)-[0-9a-f]{16}-[0-9a-f]{16}")
_NAMED = {"write", "shared", "readers"}


def described(name: str, args: tuple[Any, ...], named: dict[str, Any], result: object) -> str:
    """One step as text: `name(arguments) -> result`, or its error."""
    words = [_short(arg) for arg in args]
    words += [f"{key}={value}" for key, value in named.items() if key in _NAMED and value]
    if isinstance(result, OSError):
        said = f"!! {errno.errorcode.get(result.errno or 0, result)}"
    elif result is None:
        said = ""
    elif name in ("stat", "fstat"):
        stat: Any = result
        said = f"-> inode {stat.st_ino}, {stat.st_size} bytes"
    elif name == "inspect":
        seen: Any = result
        said = f"-> {seen.presence}"
    elif name == "watch":
        watch: Any = result
        said = f"-> watch on inode {watch.inode.number}"
    else:
        said = f"-> {_short(result)}"
    return f"{name}({', '.join(words)}) {said}".rstrip()


def _short(value: object) -> str:
    text = _TICKET.sub(r"…\1", repr(value))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]}…{text[-1]}"
