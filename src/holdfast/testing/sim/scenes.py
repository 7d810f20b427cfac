"""Who meets whom, and where: functions that fill a world with processes, actors and checkers. See workloads.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model import Identity, marker_text
from .checkers import Exclusion, Neighbours, NothingLeft, RecoveredFrom, Recovery, Tokens, Told, usual
from .kernel import Mount
from .ours import filler, holder, requests
from .world import World

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .actor import Actor, Program

LOCK = "/d/l"
OLD = 7200.0
"""Seconds: older than any rule's limit."""
NO_UNNAMED = Mount(unnamed=False)
EXCLUSIVE_ONLY = Mount(unnamed=False, link=False)
NO_EVENTS = Mount(events=False)
FUSE = Mount(unnamed=False, lock_by_name=True, events=False)
NO_FLOCK = Mount(flock=False)


def ours(world: World, count: int, make: Callable[[int], Program], **options: Any) -> None:
    for number in range(count):
        world.actor(world.process("ABCDEFGH"[number], 101 + number, **options), make(number))


def newcomer(slots: int | None = None, path: str = LOCK, **options: Any) -> Program:
    """One that gets in; or one after the other into all slots."""
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
    """So many that want the lock at the same time."""
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
    """The same on another filesystem."""

    def elsewhere(world: World) -> None:
        build(world)
        for actor in world.actors:
            actor.process.mount = mount
            actor.process.guards = mount.flock
        make = world.process
        world.process = lambda *args, **named: make(*args, **{"mount": mount, **named})  # type: ignore[method-assign]

    elsewhere.__doc__ = f"{(build.__doc__ or '').rstrip('.')}; {mount}"
    return elsewhere


def dead_holder(
    build: Callable[[World], None], *, guarded: bool = True, age: float = 5.0, boot: str | None = None
) -> Callable[[World], None]:
    """The same at a lock whose holder has died; perhaps with another boot of the machine."""

    def at_a_dead_lock(world: World) -> None:
        kernel = world.kernel
        gone = Identity(77, boot or kernel.boot, "1", "tgone", "host")
        marker = marker_text(guarded, 1, gone)
        put(world, LOCK, b"pid=77\ntimestamp=%d\nholdfast=%s\n" % (int(kernel.time() - age), marker.encode()))
        build(world)

    before = "" if boot is None else f" with another boot, {age:g} s ago"
    at_a_dead_lock.__doc__ = f"{(build.__doc__ or '').rstrip('.')}; its holder has died{before}"
    return at_a_dead_lock


def put(world: World, path: str, data: bytes, *, age: float = 0.0) -> None:
    """A file that is there from the beginning."""
    inode = world.kernel.add(path, 0o100644)
    inode.data, inode.mtime = data, world.kernel.time() - age


def stale_foreign(build: Callable[[World], None]) -> Callable[[World], None]:
    """The same at a lock that somebody else left long ago."""

    def at_a_stale_lock(world: World) -> None:
        put(world, LOCK, b"pid=77\ntimestamp=%d\n" % int(world.kernel.time() - OLD), age=OLD)
        build(world)

    at_a_stale_lock.__doc__ = f"{(build.__doc__ or '').rstrip('.')}; somebody else's stale record is there"
    return at_a_stale_lock


def reborn(build: Callable[[World], None]) -> Callable[[World], None]:
    """The same; whoever is killed is followed by another process of the same number, which wants the lock, too."""

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
) -> Callable[[World], None]:
    """Ours beside other implementations."""

    def build(world: World) -> None:
        ours(
            world,
            count,
            lambda who: holder(
                requests(who, path, protocol=protocol), timeout=20.0, may_be_refused=True, inside_for=inside_for
            ),
        )
        for number in range(others):
            world.actor(world.process("xyz"[number], 201 + number), other(world), foreign=True, crashable=others_die)
        after = newcomer(path=path, protocol=protocol)
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
