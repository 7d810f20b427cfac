"""Somebody who takes steps: a thread of control in a simulated process, which the scheduler resumes when it likes.

The engine calls its environment from deep within ordinary functions, and plain Python cannot suspend those. Threads
that hand over a baton could, at 10 to 20 µs a switch; a run has about a hundred switches and there are a million runs.
So each actor is a greenlet, which switches in a fraction of a microsecond and nests in any call. The package `greenlet`
is needed by this simulation and by nothing else of holdfast (`pip install 'holdfast[sim]'`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from greenlet import greenlet

from ..._core.wait import Wait
from .base import Crash
from .footprint import Footprint, both

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ...engines.file.hold import FileHeld
    from .process import Process
    from .world import World

    Program = Callable[["Actor"], None]
T = TypeVar("T")


class Actor:
    """One program in one process. `op`, `arg` and `footprint` are of the step that it takes next."""

    __slots__ = (
        "arg",
        "at_leisure",
        "before",
        "breaks",
        "context",
        "crashable",
        "crashed",
        "error",
        "footprint",
        "foreign",
        "held",
        "index",
        "inode",
        "inside",
        "must_by",
        "name",
        "op",
        "over",
        "process",
        "program",
        "robbed",
        "run",
        "shared",
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
        """The step before."""
        self.op = "start"
        self.arg: object = None
        self.footprint: Footprint = world.kernel.critical.r
        self.wait: Wait | None = None
        self.over = False
        self.error: BaseException | None = None
        self.context: tuple[object, ...] = (process, self)
        self.must_by = math.inf
        self.at_leisure = False
        """Whether it may be stopped for any time between two steps, however prompt its program says that it is."""
        """Until when it takes its next step: a process that is assumed not to be stopped here."""
        self.wants = ""
        """The lock file that it is acquiring."""
        self.inside: str | None = None
        """The lock file that it holds, as it believes."""
        self.held: FileHeld | None = None
        self.inode = -1
        """Of that lock file."""
        self.shared = False
        """Whether it holds it together with others."""
        self.robbed = False
        """Whether somebody has taken its lock file away, or written over it, who is not of holdfast or was told to."""
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
            watch = process.watches.get(fd)
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
        """Say within how many seconds the next steps are taken: what a guarantee assumes of others."""
        self.must_by = math.inf if self.at_leisure else self.world.kernel.now + within

    def enter(self, path: str, inode: int, held: FileHeld | None = None, *, shared: bool = False) -> None:
        """Be inside, from here on: the checkers look whether that is right."""
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
        """Not be inside any more; the lock is released after that."""
        self.step("leave", self.inside, self.world.kernel.critical.w)
        self.note("leaves")
        self.inside = None

    def note(self, text: str) -> None:
        if self.world.trace is not None:
            self.world.trace.append((self.world.kernel.now, self.name, text))

    def ready(self, now: float) -> bool:
        """Whether its wait has ended."""
        wait = self.wait
        if wait is None or wait.deadline <= now:
            return True
        if wait.signal is not None and wait.signal.is_set:
            return True
        process = self.process
        for fd in wait.fds:
            watch = process.watches.get(fd)
            if process.pidfds[fd].dead if watch is None else watch.change:
                return True
        return False
