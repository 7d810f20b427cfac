"""Scenes: functions that fill a world with processes, actors and checkers (named in workloads.py).

Scenes that can be combined come first, then single situations, each of its own kind.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Any

from holdfast.engines.file import queue
from holdfast.engines.file.lease import is_claim
from holdfast.engines.file.queue import QueueEntry
from holdfast.model import Identity, marker_text
from sim import foreign
from sim.checkers import (
    Daemon,
    Exclusion,
    KeepsMode,
    MeantThat,
    Neighbours,
    NothingLeft,
    RecoveredFrom,
    Recovery,
    Refusals,
    Stays,
    Tidy,
    Tokens,
    Told,
    Turns,
    usual,
)
from sim.kernel import Cache, Mount, Process
from sim.ours import breaker, canceller, command, filler, holder, requests, waiter
from sim.world import Actor, Program, World

LOCK = "/d/l"
QUEUE = requests(0, LOCK)[0].queue
OLD = 7200.0
"""Seconds: older than the limit of any rule."""
NO_UNNAMED = Mount(unnamed=False)
EXCLUSIVE_ONLY = Mount(unnamed=False, link=False)
NO_EVENTS = Mount(events=False)
FUSE = Mount(unnamed=False, lock_by_name=True, events=False)
NO_FLOCK = Mount(flock=False)
NO_FIFOS = Mount(fifos=False)
LEASE = 1.0


def ours(world: World, count: int, make: Callable[[int], Program], **options: Any) -> None:
    for number in range(count):
        world.actor(world.process("ABCDEFGH"[number], 101 + number, **options), make(number))


def newcomer(slots: int | None = None, path: str = LOCK, **options: Any) -> Program:
    """A program that gets in; or one after the other into all slots."""
    if slots is not None:
        return filler(requests(99, path, slots, **options), slots)
    return holder(requests(99, path, slots, **options), timeout=60.0)


def contenders(
    count: int,
    *,
    rounds: int = 1,
    timeout: float | None = None,
    slots: int | None = None,
    bound: float = 0.1,
    stay: float = 0.0,
    litter: tuple[str, ...] = (),
    **options: Any,
) -> Callable[[World], None]:
    """That many contenders for the lock at the same time."""
    bounded = timeout is not None
    flock = options.get("protocol") == "flock"
    fencing = bool(options.get("fencing"))
    may_stay = (*litter, *(("/l",) if flock else ()), *((".token",) if fencing else ()))
    bound = 0.2 if flock else bound

    def build(world: World) -> None:
        ours(
            world,
            count,
            lambda who: holder(
                requests(who, LOCK, slots, **options),
                timeout=timeout,
                rounds=rounds,
                may_be_refused=bounded,
                inside_for=stay,
            ),
        )
        world.checkers = usual(newcomer(slots, **options), slots=slots or 1, bound=bound, may_stay=may_stay)
        if fencing:
            world.checkers.append(Tokens())

    words = [f"{count} contenders", *(f"{name} {value}" for name, value in options.items())]
    words += [f"{slots} slots"] if slots else []
    words += [f"{rounds} rounds"] if rounds > 1 else []
    words += [f"timeout {timeout} s"] if timeout is not None else []
    words += [f"inside for {stay} s"] if stay else []
    build.__doc__ = ", ".join(words)
    return build


def on(mount: Mount, build: Callable[[World], None]) -> Callable[[World], None]:
    """The same build on another filesystem."""

    def elsewhere(world: World) -> None:
        build(world)
        for actor in world.actors:
            actor.process.mount = mount
            actor.process.guards = mount.flock
        make = world.process
        world.process = lambda *args, **named: make(*args, **{"mount": mount, **named})  # type: ignore[method-assign]

    elsewhere.__doc__ = f"{(build.__doc__ or '').rstrip('.')}; {mount}"
    return elsewhere


def machines(
    count: int,
    guards: str,
    *,
    stay: float = 0.7,
    rounds: int = 1,
    prompt: bool = True,
    dead: bool = False,
    fair: bool = False,
) -> Callable[[World], None]:
    """That many machines share the directory. `guards`: whether kernel locks work between them, on each only, or not.
    `prompt`: nobody is stopped between the last check of a release and the removal (lease.py, LE8). `dead`: the lock is
    that of a machine that has died. `fair`: they take turns."""

    def build(world: World) -> None:
        make = world.process
        if prompt:
            world.never_stopped = ("unlink", LOCK)

        def process(name: str, pid: int, **_: Any) -> Process:
            number = "ABC".find(name) + 1
            mount = Mount(
                unnamed=False,
                events=False,
                domain=0 if guards == "between" else number,
                flock=guards != "none",
                cache=Cache(),
            )
            where: Any = {"namespace": str(number), "machine": f"m{number}", "ahead": 5000.0 * number}
            return make(name, pid, mount=mount, **where)

        world.process = process  # type: ignore[method-assign]
        if dead:
            gone = marker_text(True, 1, Identity(77, "m9", "9", "tgone", "m9"), world.kernel.time(), LEASE)
            put(world, LOCK, b"pid=77\ntimestamp=%d\nholdfast=%s\n" % (int(world.kernel.time()), gone.encode()))
        options: Any = {"lease": LEASE, "fair": fair}
        ours(
            world,
            count,
            lambda who: holder(requests(who, LOCK, **options), inside_for=stay, beat_every=LEASE / 3, rounds=rounds),
        )
        after = holder(requests(99, LOCK, **options), timeout=60.0)
        world.checkers = [
            Exclusion(),
            Tokens(),
            Refusals(),
            Recovery(after, bound=2.6 * LEASE),
            NothingLeft(may_stay=(".token", ".lapsed", ".tmp")),
        ]
        if fair:
            world.checkers[-2:] = [Turns(), Tidy(may_stay=(".token",))]

    build.__doc__ = f"{count} machines, kernel locks: {guards}, inside for {stay} s, {rounds} rounds"
    build.__doc__ += "; another one has died" if dead else ""
    return build


def broken_while_replaced(world: World) -> None:
    """Two machines wait for the lock of one that has died; when the first has made its claim, the lock is broken."""
    machines(2, "none", dead=True)(world)

    def breaks(me: Actor) -> None:
        me.sleep(LEASE)
        while me.process.exists(LOCK) and not any(map(is_claim, me.process.list_directory("/d"))):
            me.sleep(LEASE / 50)
        breaker(requests(4, LOCK), only=77)(me)

    world.actor(world.process("R", 104), breaks, crashable=False)


def dead_holder(
    build: Callable[[World], None],
    *,
    guarded: bool = True,
    age: float = 5.0,
    boot: str | None = None,
    version: int = 1,
) -> Callable[[World], None]:
    """The same build at a lock whose holder has died; perhaps with another boot of the machine. `version`: its
    marker's."""

    def at_a_dead_lock(world: World) -> None:
        kernel = world.kernel
        gone = Identity(77, boot or kernel.boot, "1", "tgone", "host")
        marker = marker_text(guarded, 1, gone, kernel.time() - age if version > 1 else None)
        put(world, LOCK, b"pid=77\ntimestamp=%d\nholdfast=%s\n" % (int(kernel.time() - age), marker.encode()))
        build(world)
        for checker in world.checkers:
            if isinstance(checker, NothingLeft):
                checker.may_stay += (".claim",)  # of one that is killed: also beside a guarded file, if others share it

    before = "" if boot is None else f" with another boot, {age:g} s ago"
    at_a_dead_lock.__doc__ = f"{(build.__doc__ or '').rstrip('.')}; its holder has died{before}"
    return at_a_dead_lock


def put(world: World, path: str, data: bytes, *, age: float = 0.0) -> None:
    """Put a file there from the beginning."""
    inode = world.kernel.add(path, 0o100644)
    inode.data, inode.mtime = data, world.kernel.time() - age


def stale_foreign(build: Callable[[World], None]) -> Callable[[World], None]:
    """The same build at a lock that somebody else left long ago."""

    def at_a_stale_lock(world: World) -> None:
        put(world, LOCK, b"pid=77\ntimestamp=%d\n" % int(world.kernel.time() - OLD), age=OLD)
        build(world)

    at_a_stale_lock.__doc__ = f"{(build.__doc__ or '').rstrip('.')}; somebody else's stale record is there"
    return at_a_stale_lock


def stale_directory(build: Callable[[World], None]) -> Callable[[World], None]:
    """The same build at a lock that is a directory, and that somebody else has not refreshed for long."""

    def at_a_stale_lock(world: World) -> None:
        world.kernel.add(f"{LOCK}.lock", stat.S_IFDIR | 0o755).mtime = world.kernel.time() - OLD
        build(world)
        for checker in world.checkers:
            if isinstance(checker, NothingLeft):
                checker.may_stay += (".claim",)  # of one that is killed

    at_a_stale_lock.__doc__ = f"{(build.__doc__ or '').rstrip('.')}; somebody else's stale directory is there"
    return at_a_stale_lock


def reborn(build: Callable[[World], None]) -> Callable[[World], None]:
    """The same build; a killed process is followed by another one with its pid, which wants the lock, too."""

    def with_reuse(world: World) -> None:
        build(world)

        def again(world: World, who: Actor) -> None:
            process = world.process(f"{who.name}'", who.process.pid, mount=who.process.mount)
            world.actor(process, holder(requests(50 + who.index, LOCK)), crashable=False)
            world.start()

        world.after_crash = again

    with_reuse.__doc__ = f"{(build.__doc__ or '').rstrip('.')}; the numbers of the dead are given out again"
    return with_reuse


def tasks(count: int, others: int, **options: Any) -> Callable[[World], None]:
    """Several tasks of one process, and others."""

    def build(world: World) -> None:
        ours(world, others, lambda who: holder(requests(who, LOCK, **options)))
        process = world.process("T", 150)
        for number in range(count):
            task = holder(requests(10, LOCK, **options), inside_for=0.001, rounds=2)
            world.actor(process, task, crashable=number == 0)
        world.checkers = usual(newcomer(**options))

    build.__doc__ = f"{count} tasks of one process and {others} others"
    return build


def lines(world: World) -> None:
    """Tasks of two processes, and one alone, come again and again; those of one process give up soon."""
    for name, pid, timeout in (("S", 150, None), ("T", 151, 0.003)):
        process = world.process(name, pid)
        for number in range(2):
            wanted = holder(
                requests(10 + pid, LOCK),
                timeout=timeout,
                may_be_refused=timeout is not None,
                inside_for=0.001 * number,
                rounds=2,
            )
            world.actor(process, wanted, crashable=number == 0)
    ours(world, 1, lambda who: holder(requests(who, LOCK), rounds=2))
    world.checkers = usual(newcomer())


def lines_of_readers(world: World) -> None:
    """Readers and a writer in one process, a reader and a writer in others, at a lock of the kernel alone."""
    process = world.process("T", 150)
    for number, shared in enumerate((False, True, True)):
        wanted = holder(requests(20 + number, LOCK, protocol="flock", shared=shared), inside_for=0.001)
        world.actor(process, wanted, crashable=number == 0)
    ours(world, 2, lambda who: holder(requests(who, LOCK, protocol="flock", shared=bool(who)), rounds=2))
    world.checkers = usual(newcomer(protocol="flock"), bound=0.2, may_stay=("/l",))


def beside(
    other: Callable[[World], Program],
    *,
    count: int = 1,
    others: int = 1,
    strict: bool = True,
    protocol: str = "sema",
    path: str = LOCK,
    litter: tuple[str, ...] = (),
    inside_for: float = 0.0,
    age: float = OLD,
    told: bool = True,
    others_die: bool = True,
    **options: Any,
) -> Callable[[World], None]:
    """Ours beside other implementations."""

    def build(world: World) -> None:
        ours(
            world,
            count,
            lambda who: holder(
                requests(who, path, protocol=protocol, **options),
                timeout=20.0,
                may_be_refused=True,
                inside_for=inside_for,
            ),
        )
        for number in range(others):
            world.actor(world.process("xyz"[number], 201 + number), other(world), foreign=True, crashable=others_die)
        after = newcomer(path=path, protocol=protocol, **options)
        world.checkers = [
            Exclusion(),
            Neighbours(strict=strict),
            RecoveredFrom(),
            Recovery(after, bound=3.0, age=age),
            NothingLeft(may_stay=litter),
        ]
        if told:
            world.checkers.insert(0, Told())

    build.__doc__ = f"{count} of ours beside {others} of another implementation of {protocol}"
    return build


def paused_holder(world: World) -> None:
    """A holder that is stopped for two hours, so that its heartbeat stops, and others who want the lock."""
    world.actor(world.process("A", 101), holder(requests(0, LOCK), inside_for=OLD))
    world.actor(
        world.process("B", 102), holder(requests(1, LOCK), begins_after=OLD - 100, timeout=200.0, may_be_refused=True)
    )
    world.actor(world.process("x", 201), foreign.sema(LOCK, attempts=3, poll=OLD / 2), foreign=True, crashable=False)
    world.checkers = [Exclusion(), Neighbours(strict=False), Told(), Recovery(newcomer()), NothingLeft()]


def beating_holder(world: World) -> None:
    """A holder whose heart beats for two hours is not robbed by those who judge by age."""
    world.actor(world.process("A", 101), holder(requests(0, LOCK), inside_for=OLD, beat_every=1200))
    world.actor(world.process("x", 201), foreign.sema(LOCK, attempts=4, poll=2000), foreign=True, crashable=False)
    world.checkers = [Exclusion(), Neighbours(), Told(), Recovery(newcomer()), NothingLeft()]


def breaking(world: World) -> None:
    """Two want the lock, and a third breaks it, whoever has it."""
    ours(world, 2, lambda who: holder(requests(who, LOCK), timeout=20.0, may_be_refused=True))
    world.actor(world.process("R", 104), breaker(requests(4, LOCK)), crashable=False)
    world.checkers = [Exclusion(), MeantThat(), Told(), Recovery(newcomer()), NothingLeft()]


def breaking_fenced(world: World) -> None:
    """Two want the lock and a token, and a third breaks it, whoever has it."""
    ours(world, 2, lambda who: holder(requests(who, LOCK, fencing=True), timeout=20.0, rounds=2, may_be_refused=True))
    world.actor(world.process("R", 104), breaker(requests(4, LOCK)), crashable=False)
    after = newcomer(fencing=True)
    world.checkers = [Exclusion(), MeantThat(), Told(), Tokens(), Recovery(after), NothingLeft(may_stay=(".token",))]


def sandboxed(world: World) -> None:
    """Two want the lock, and one that is denied kernel locks: it cannot prove the death of one that had them."""
    ours(world, 2, lambda who: holder(requests(who, LOCK, fair=False)))
    denied = holder(requests(3, LOCK, fair=False), timeout=0.1, may_be_refused=True)
    world.actor(world.process("S", 103, mount=Mount(flock=False)), denied)
    after = Recovery(newcomer())
    # One that is killed may leave its claim.
    world.checkers = [Exclusion(), Told(), RecoveredFrom(), after, NothingLeft(may_stay=(".claim",))]


def read_by_others(world: World, *, shared: bool = True) -> None:
    """Two want the lock, on which somebody who may only read it has a shared or an exclusive lock, now and then."""

    def reader(me: Actor) -> None:
        try:
            fd = me.process.open_existing(LOCK, write=False)
        except FileNotFoundError:
            return
        for seconds in (100.0, 0.0, 100.0):
            me.process.guard(fd, shared=shared)
            me.sleep(seconds)
            me.process.unguard(fd)
        me.process.close(fd)

    world.actor(world.process("R", 109), reader, foreign=True, crashable=False)
    ours(world, 2, lambda who: holder(requests(who, LOCK, fair=False), timeout=1.0))
    world.checkers = usual(newcomer(), may_stay=(".claim",))


def kept_by_others(world: World) -> None:
    """Two want the lock, on which somebody who may only read it has an exclusive lock, now and then."""
    read_by_others(world, shared=False)


def counter_read_by_others(world: World) -> None:
    """Two want the lock and a token, a third breaks it, and somebody who may only read has locked the counter."""

    def reader(me: Actor) -> None:
        for seconds in (0.012, 0.1):
            try:
                fd = me.process.open_existing(f"{LOCK}.token", write=False)
            except FileNotFoundError:
                return
            me.process.guard(fd, shared=True)
            me.sleep(seconds)
            me.process.close(fd)

    put(world, f"{LOCK}.token", b"%020d\n%020d\n" % (6, 7))
    world.actor(world.process("V", 109), reader, foreign=True, crashable=False)
    breaking_fenced(world)
    world.checkers[-1] = NothingLeft(may_stay=(".token", ".claim"))


def running(world: World) -> None:
    """A command that inherits the guard goes on after its wrapper was killed; the lock is held until it ends."""
    world.actor(world.process("W", 101), command(requests(0, LOCK), 301))
    world.actor(world.process("B", 102), holder(requests(1, LOCK)))
    world.checkers = [Exclusion(), Recovery(newcomer()), NothingLeft()]


def containers(world: World) -> None:
    """Two containers with the same process numbers."""
    for number, namespace in enumerate(("1", "2", "2")):
        process = world.process("ABC"[number], 101 if number < 2 else 102, namespace=namespace)
        world.actor(process, holder(requests(number, LOCK)))
    world.checkers = usual(newcomer(), age=11.0)  # by then, a ticket that one elsewhere has half made is left


def living_elsewhere(world: World) -> None:
    """A holder without a guard lives in another container: its number means nothing here."""
    world.actor(world.process("A", 101), holder(requests(0, LOCK), inside_for=1.0), crashable=False)
    other = world.process("B", 102, namespace="2")
    world.actor(other, holder(requests(1, LOCK), timeout=5.0, may_be_refused=True), crashable=False)
    world.checkers = [Exclusion(), Told(), NothingLeft()]


def views(world: World) -> None:
    """Two views of one file that do not share its guard: a living holder is not robbed, whatever the guard says."""
    lower, upper = Mount(1, domain=1, events=False), Mount(2, domain=2, events=False)
    world.actor(world.process("A", 101, mount=lower), holder(requests(0, LOCK), inside_for=1.0), crashable=False)
    world.actor(
        world.process("B", 101, namespace="2", mount=upper),
        holder(requests(1, LOCK), timeout=5.0, may_be_refused=True),
        crashable=False,
    )
    world.checkers = [Exclusion(), Told(), NothingLeft()]


def mounts(world: World) -> None:
    """Waiters on an overlay and in its upper directory, which share neither guards nor pipes."""
    lower, upper = Mount(1, domain=1, events=False), Mount(2, domain=2, events=False)
    for number, mount in enumerate((lower, lower, upper, upper)):
        process = world.process("ABCD"[number], 101 + number, mount=mount)
        world.actor(process, holder(requests(number, LOCK), rounds=2), crashable=mount is lower)
    world.checkers = usual(newcomer())


def waiting(world: World) -> None:
    """One who only waits until the lock is free, beside two who want it."""
    ours(world, 2, lambda who: holder(requests(who, LOCK)))
    world.actor(world.process("W", 105), waiter(requests(5, LOCK)))
    world.checkers = usual(newcomer())


def readers(world: World) -> None:
    """Readers and a writer at a lock of the kernel alone."""
    for number in range(3):
        wanted = requests(number, LOCK, protocol="flock", shared=number < 2)
        world.actor(world.process("ABC"[number], 101 + number), holder(wanted))
    world.checkers = usual(newcomer(protocol="flock"), bound=0.2, may_stay=("/l",))


def full(world: World) -> None:
    """The disk is full for a while: who fails says so, and half a record never stays."""

    def tries(who: int) -> Program:
        inner = holder(requests(who, LOCK), rounds=1)

        def program(me: Actor) -> None:
            try:
                inner(me)
            except OSError:
                me.wants = ""
                me.note("the disk is full")

        return program

    def fill(me: Actor) -> None:
        for full in (True, False):
            me.step("fill" if full else "make room", None, (-1, -1))
            me.world.kernel.full = full

    ours(world, 2, tries)
    world.actor(world.process("F", 109), fill, crashable=False)
    world.checkers = usual(newcomer())


def clock(world: World) -> None:
    """The wall clock jumps two hours ahead and back; no living holder of ours is robbed for that."""

    def jumps(me: Actor) -> None:
        for seconds in (OLD, -2 * OLD):
            me.step("jump", seconds, (-1, -1))
            me.world.kernel.wall += seconds

    ours(world, 2, lambda who: holder(requests(who, LOCK)))
    world.actor(world.process("J", 109), jumps, crashable=False)
    world.checkers = usual(newcomer())
    world.checkers.pop(2)  # a lock that was taken over has another time by now


def mixed(world: World) -> None:
    """Eight at one lock: processes, tasks of one process, one that gives up, one that only waits."""
    ours(world, 3, lambda who: holder(requests(who, LOCK), rounds=2))
    process = world.process("T", 150)
    for _ in range(2):
        world.actor(process, holder(requests(10, LOCK)), crashable=True)
    impatient = holder(requests(11, LOCK), timeout=0.004, may_be_refused=True)
    world.actor(world.process("I", 151), impatient)
    world.actor(world.process("N", 152), holder(requests(12, LOCK, fair=False)))
    world.actor(world.process("W", 153), waiter(requests(13, LOCK)))
    world.checkers = usual(newcomer())


def idle_first(world: World) -> None:
    """The first in the queue was stopped when it had its ticket; the lock is not left lying there for that."""

    def stopped(me: Actor) -> None:
        wanted = requests(7, LOCK)[0]
        place = QueueEntry(me.process, wanted, me.world.kernel.now)
        place.is_first()
        place.queue_up()
        me.sleep(100.0)
        place.leave()

    world.actor(world.process("S", 107), stopped, crashable=False)
    ours(world, 2, lambda who: holder(requests(who, LOCK), begins_after=0.5))
    world.checkers = usual(newcomer(), bound=1.5)


def _forge(world: World, name: str, mode: int, *, age: float = 0.0) -> None:
    """Put something into the queue from the beginning."""
    if QUEUE not in world.kernel.names:
        world.kernel.add(QUEUE, stat.S_IFDIR | 0o755)
    world.kernel.add(f"{QUEUE}/{name}", mode).mtime -= age


def _ticket(arrival: int, pid: int, boot: str, kind: str = "x") -> str:
    """The name of a ticket."""
    where = queue._where(boot, "1", "host", Mount().device)
    return queue.name_of(arrival, pid, where, f"{pid:016x}", shared=kind == "s")


def one_gives_up(world: World) -> None:
    """Of three that wait for a holder that never queued, the second gives up: the third is still behind the first."""
    ours(world, 1, lambda _: holder(requests(0, LOCK), inside_for=0.008))
    for number, timeout in enumerate((None, 0.003, None), 1):
        wanted = holder(requests(number, LOCK), timeout=timeout, begins_after=0.001 * number, may_be_refused=True)
        world.actor(world.process("ABCD"[number], 101 + number), wanted)
    world.checkers = usual(newcomer())


def leftovers(world: World) -> None:
    """The queue is full of what dead waiters have left, whole and half made."""
    dead, here = (_ticket(number, 77 + number, world.kernel.boot) for number in range(2))
    for name in (dead, here + queue.NEW):
        _forge(world, name, stat.S_IFIFO | 0o622)
    for name in (dead + queue.RECORD, _ticket(3, 80, world.kernel.boot) + queue.RECORD):
        _forge(world, name, stat.S_IFREG | 0o644)
    _forge(world, _ticket(4, 101, world.kernel.boot) + queue.NEW, stat.S_IFIFO | 0o622, age=20.0)
    _forge(world, _ticket(5, 82, "boot-0"), stat.S_IFIFO | 0o622, age=100_000.0)
    ours(world, 2, lambda who: holder(requests(who, LOCK), inside_for=0.003))
    world.checkers = usual(newcomer())


def other_kernel(world: World) -> None:
    """A waiter on another machine has a ticket, of which nothing can be said here: it is left alone."""
    other = _ticket(1, 101, "boot-0")
    _forge(world, other, stat.S_IFIFO | 0o622, age=3600.0)
    _forge(world, other + queue.RECORD, stat.S_IFREG | 0o644, age=3600.0)
    ours(world, 3, lambda who: holder(requests(who, LOCK), inside_for=0.003))
    stays = (other, other + queue.RECORD)
    world.checkers = usual(newcomer(), may_stay=(*stays, QUEUE))
    world.checkers.append(Stays(*(f"{QUEUE}/{name}" for name in stays)))


def forged(world: World) -> None:
    """Somebody keeps an old ticket that is never used, and makes others that are none; and rouses all waiters."""
    forger = world.process("F", 107)
    file, directory, unused = (_ticket(number, 1, world.kernel.boot) for number in range(3))
    for name, kind in ((unused, stat.S_IFIFO), (file, stat.S_IFREG), (directory, stat.S_IFDIR)):
        _forge(world, name, kind | 0o777)
    world.kernel.names[QUEUE].mode = stat.S_IFDIR | 0o711
    end = forger._install(world.kernel.names[f"{QUEUE}/{unused}"], unused, writable=True)

    def rouses(me: Actor) -> None:
        process = me.process
        there = process.open_directory(QUEUE)
        for _ in range(4):
            for name in process.list_directory(there):
                try:
                    fd = process.open_fifo(name, write=True, dir_fd=there)
                except OSError:
                    continue
                process.nudge(fd)
                process.close(fd)
            me.sleep(0.004)
        me.sleep(100.0)
        process.remove_directory(f"{QUEUE}/{directory}")
        for name in (unused, file):
            process.unlink(name, dir_fd=there)
        for fd in (end, there):
            process.close(fd)
        try:
            process.remove_directory(QUEUE)
        except OSError:
            pass  # others are in it

    world.actor(forger, rouses, foreign=True, crashable=False)
    ours(world, 3, lambda who: holder(requests(who, LOCK), inside_for=0.003))
    world.checkers = usual(newcomer(), bound=6.0)
    world.checkers += [Stays(*(f"{QUEUE}/{name}" for name in (unused, file, directory))), KeepsMode(world, QUEUE)]


def breaking_queued(world: World) -> None:
    """A lock is broken whose holder has a ticket: the waiter behind does not wait for that one."""
    for number, stays in enumerate((0.05, 5.0, 0.0)):
        wanted = holder(requests(number, LOCK), inside_for=stays, begins_after=0.01 * number)
        world.actor(world.process("ABC"[number], 101 + number), wanted)

    def breaks(me: Actor) -> None:
        me.sleep(0.1)
        breaker(requests(4, LOCK))(me)

    world.actor(world.process("R", 104), breaks, crashable=False)
    world.checkers = usual(newcomer())
    world.checkers.append(MeantThat())


def old_neighbour(world: World) -> None:
    """Somebody else who lives holds the lock for longer than the rule's limit; evidence says that it lives."""
    world.actor(world.process("x", 201), foreign.sema(LOCK, attempts=1, inside_for=OLD), foreign=True, crashable=False)
    ours(world, 2, lambda who: holder(requests(who, LOCK), begins_after=OLD - 100))
    world.checkers = [Exclusion(), Neighbours(), Told(), Recovery(newcomer(), age=OLD), NothingLeft()]


def cancelled(world: World) -> None:
    """Some are cancelled in their first, second or third wait: nothing of them is left, and nobody sleeps for that."""
    ours(world, 2, lambda who: holder(requests(who, LOCK), inside_for=0.02))
    for waits in (1, 2, 3):
        world.actor(world.process("XYZ"[waits - 1], 120 + waits), canceller(requests(20 + waits, LOCK), waits))
    world.checkers = usual(newcomer())


def daemon_beside(world: World) -> None:
    """The beads daemon looks while ours come and go, and while the tool's own writer writes over them."""
    ours(world, 2, lambda who: holder(requests(who, "/d", protocol="beads"), timeout=20.0, may_be_refused=True))
    path = requests(0, "/d", protocol="beads")[0].path
    world.actor(world.process("d", 201), foreign.daemon(path), foreign=True, crashable=False)
    world.checkers = [Exclusion(), Daemon(), Told(), Recovery(newcomer(path="/d", protocol="beads")), NothingLeft()]


def beads_beside(world: World) -> None:
    """The tool's own writer writes over whatever is there: whoever was written over is told."""
    ours(world, 2, lambda who: holder(requests(who, "/d", protocol="beads"), timeout=20.0, may_be_refused=True))
    path = requests(0, "/d", protocol="beads")[0].path
    world.actor(world.process("x", 201), foreign.beads(path), foreign=True, crashable=False)
    after = newcomer(path="/d", protocol="beads")
    world.checkers = [Exclusion(), Told(), Recovery(after), NothingLeft()]
