"""Actors of holdfast: programs that run the real engine."""

from __future__ import annotations

from holdfast._core.attempt import Refusal
from holdfast._core.hold import HoldRef
from holdfast.engines.file.acquire import wait_until_free
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.remove import break_lock, remove_if
from holdfast.engines.file.request import FileRequest, slots_of
from holdfast.engines.file.uncontended import acquire
from holdfast.errors import HoldfastError, LockLost
from sim.world import Actor, Program

_made: dict[tuple[object, ...], tuple[FileRequest, ...]] = {}


def requests(who: int, path: str, slots: int | None = None, **options: object) -> tuple[FileRequest, ...]:
    """The requests of one actor: made once, because that costs as much as a run, and reset for each run."""
    key = (who, path, slots, *sorted(options.items()))
    found = _made.get(key)
    if found is None:
        given: dict[str, object] = dict(options)
        made = (FileRequest(path, given),) if slots is None else slots_of(path, slots, given)  # type: ignore[arg-type]
        found = _made[key] = made
    for request in found:
        request.method = "unnamed"
    return found


def holder(
    wanted: tuple[FileRequest, ...],
    *,
    timeout: float | None = None,
    rounds: int = 1,
    inside_for: float = 0.0,
    beat_every: float = 0.0,
    may_be_refused: bool = False,
    begins_after: float = 0.0,
) -> Program:
    """Acquire, be inside, release; in that many rounds. It beats while it is inside, if asked to."""

    def program(me: Actor) -> None:
        if begins_after:
            me.sleep(begins_after)
        for _ in range(rounds):
            ref = _acquire(me, wanted, timeout, may_be_refused=may_be_refused)
            if ref is None:
                continue
            held = ref.held
            assert isinstance(held, FileHold)
            me.enter(held.path, held.identity[1], held, shared=held.request.shared)
            _stay(me, held, inside_for, beat_every)
            me.leave()
            robbed, told = me.robbed, False
            try:
                held.release(ref)
            except LockLost:
                told = True
            sure = robbed == me.robbed  # not in the midst of the release
            me.held, me.inode, me.robbed = None, -1, False
            for checker in me.world.checkers:
                checker.released(me.world, me, robbed=robbed, told=told, sure=sure)

    return program


def _acquire(
    me: Actor, wanted: tuple[FileRequest, ...], timeout: float | None, *, may_be_refused: bool
) -> HoldRef | None:
    _begin(me, wanted, timeout)
    result = me.drive(acquire(me.process, wanted, timeout, me.context))
    me.wants = ""
    if isinstance(result, Refusal):
        me.give_up()
        me.note("is refused")
        for checker in me.world.checkers:
            checker.refused(me.world, me, timeout, allowed=may_be_refused)
        return None
    return result


def _begin(me: Actor, wanted: tuple[FileRequest, ...], timeout: float | None) -> None:
    me.begin(wanted[0].target, timeout, shared=wanted[0].shared, fair=wanted[0].fair)


def _stay(me: Actor, held: FileHold, seconds: float, beat_every: float) -> None:
    kernel = me.world.kernel
    until = kernel.now + seconds
    while beat_every and kernel.now + beat_every < until:
        me.sleep(beat_every)
        held.beat()
    if kernel.now < until:
        me.sleep(until - kernel.now)


def filler(wanted: tuple[FileRequest, ...], slots: int) -> Program:
    """Acquire all slots, and release them."""

    def program(me: Actor) -> None:
        refs = []
        for _ in range(slots):
            ref = _acquire(me, wanted, 60.0, may_be_refused=False)
            assert ref is not None
            refs.append(ref)
        for ref in refs:
            ref.held.release(ref)

    return program


def waiter(wanted: tuple[FileRequest, ...], *, timeout: float | None = None) -> Program:
    """Wait until the lock is free, without acquiring it."""

    def program(me: Actor) -> None:
        me.wants = wanted[0].target
        me.drive(wait_until_free(me.process, wanted, timeout, me.context))
        me.wants = ""

    return program


def canceller(wanted: tuple[FileRequest, ...], waits: int) -> Program:
    """Want the lock, and be cancelled in the wait of that number for it; or release it, if it did not come to that."""

    def program(me: Actor) -> None:
        steps = acquire(me.process, wanted, None, me.context)
        _begin(me, wanted, None)
        try:
            for _ in range(waits - 1):
                me.pause(next(steps))
            next(steps)
        except StopIteration as done:
            me.wants = ""
            held = done.value.held
            me.enter(held.path, held.identity[1], held, shared=held.request.shared)
            me.leave()
            held.release(done.value)
            me.held, me.inode = None, -1
            return
        except BaseException:
            steps.close()
            raise
        me.note("is cancelled")
        me.give_up()
        steps.close()

    return program


def breaker(wanted: tuple[FileRequest, ...], only: int | None = None) -> Program:
    """Break the lock, whoever holds it, or `only` that of the process with this pid. It may give up: it does not wait
    for a process that was stopped while it probed."""

    def program(me: Actor) -> None:
        me.breaks = True
        request = wanted[0]
        steps = break_lock(me.process, request)
        if only is not None:
            steps = remove_if(me.process, request, lambda seen, _: seen.record is not None and seen.record.pid == only)
        try:
            me.drive(steps)
        except HoldfastError:
            me.note("could not break it")

    return program


def command(wanted: tuple[FileRequest, ...], child_pid: int) -> Program:
    """Hold the lock for a child that inherits its descriptors, and may outlive us: `holdfast run`."""

    def program(me: Actor) -> None:
        ref = _acquire(me, wanted, None, may_be_refused=False)
        assert ref is not None
        held = ref.held
        assert isinstance(held, FileHold)
        me.enter(held.path, held.identity[1], held)
        child = me.world.process(f"{me.name}-child", child_pid)
        child.inherit(me.process)
        work = me.world.actor(child, _child(held.path, held.identity[1]), crashable=True)
        me.inside = None  # the child is, on our behalf
        work.inside, work.inode, work.held = held.path, held.identity[1], held
        while not work.over:
            me.sleep(0.01)
        held.release(ref)
        me.held, me.inode = None, -1

    return program


def _child(path: str, inode: int) -> Program:
    def program(me: Actor) -> None:
        me.step("work", path, me.world.kernel.critical.w)
        me.sleep(0.03)
        me.step("done", inode, me.world.kernel.critical.w)
        me.inside, me.inode = None, -1
        for fd in list(me.process.files):
            me.process.close(fd)

    return program
