"""The workloads by name: their actors and places, and how much may happen to them in one run.

Those of `SMALL` are for searching through every interleaving; all are good for random ones. `HOLES` are known holes in
the promises, and a schedule that shows each. They are the races of other implementations among themselves, which no
third party can mend, and the limits of the promises towards them. A campaign does not run these; a test finds each of
them again, so that no hole is described that no longer exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim import foreign, scenes
from sim.checkers import Neighbours, Told
from sim.kernel import Inode, Kernel
from sim.ours import breaker, holder, requests
from sim.scenes import LOCK, beside, contenders, dead_holder, on, put, reborn, stale_foreign, tasks
from sim.world import Actor, Checker, Program, Violation, World

WORKLOADS: dict[str, Workload] = {}


class Workload:
    """A way to fill a world. `crashes`, `stalls`, `losses`, `stops`: how often each may happen in one run; `machine`:
    properties of the kernel. One that is not `listed` is a known hole (`HOLES`)."""

    def __init__(
        self,
        name: str,
        build: Callable[[World], None],
        *,
        crashes: int = 0,
        stalls: int = 0,
        losses: int = 0,
        stops: int = 0,
        stop_seconds: float = 0.0,
        stops_at: tuple[str, ...] = (),
        step_seconds: float = 0.0,
        listed: bool = True,
        **machine: Any,
    ) -> None:
        self.name = name
        self.build = build
        self.crashes = crashes
        self.stalls = stalls
        self.losses = losses
        self.stops = stops
        self.stop_seconds = stop_seconds
        self.stops_at = stops_at
        self.step_seconds = step_seconds
        self.machine = machine
        limits = {"crashes": crashes, "early deadlines": stalls, "lost events": losses, "stops": stops, **machine}
        words = [f"{name.replace('_', ' ')} {value}" for name, value in limits.items() if value or name in machine]
        self.about = "; ".join([(build.__doc__ or "").strip().rstrip("."), *words])
        if listed:
            WORKLOADS[name] = self

    def world(self, *, trace: bool = False) -> World:
        """A new world, for one run."""
        world = World(Kernel(**self.machine), trace=trace)
        world.crashes, world.stalls, world.losses = self.crashes, self.stalls, self.losses
        world.stops, world.stop_seconds, world.stops_at = self.stops, self.stop_seconds, self.stops_at
        world.step_seconds = self.step_seconds
        self.build(world)
        return world


# Two or three of ours, without the queue: publishing, takeover, waiting, release.
Workload("two", contenders(2, fair=False))
Workload("two-crash", contenders(2, fair=False), crashes=1)
Workload("two-try", contenders(2, timeout=0, fair=False), crashes=1)
Workload("two-dead", dead_holder(contenders(2, fair=False)), crashes=1)
Workload("two-dead-try", dead_holder(contenders(2, fair=False, timeout=0)), crashes=1)
Workload("two-stale", stale_foreign(contenders(2, fair=False)), crashes=1)
Workload("three", contenders(3, fair=False))
Workload("three-crash", contenders(3, fair=False), crashes=1)
Workload("three-dead", dead_holder(contenders(3, fair=False)), crashes=1)
SMALL = list(WORKLOADS)

# With the queue, tasks, slots, readers.
Workload("fair", contenders(2), crashes=1, stalls=1)
Workload("fair-three", contenders(3), crashes=1, stalls=2)
Workload("impatient", contenders(3, timeout=0.004), crashes=1, stalls=3)
Workload("staying", contenders(3, fair=False, stay=0.05), crashes=1)
Workload("staying-fair", contenders(4, stay=0.05), crashes=2, stalls=1)
Workload("rounds", contenders(3, rounds=2), crashes=1, stalls=2, step_seconds=20e-6)
Workload("tasks", tasks(3, 1), crashes=1, stalls=1)
Workload("tasks-only", tasks(3, 0), stalls=1)
Workload("slots", contenders(3, slots=2, fair=False), crashes=1)
Workload("slots-fair", contenders(4, slots=2), crashes=1, stalls=2, step_seconds=20e-6)
Workload("flock", contenders(2, fair=False, protocol="flock"), crashes=1, readers_matter=True)
Workload("flock-fair", contenders(3, protocol="flock"), crashes=1, stalls=1, readers_matter=True)
Workload("readers", scenes.readers, crashes=1, stalls=1, readers_matter=True)
Workload("cancelled", scenes.cancelled, crashes=1, stalls=1)
Workload("sidecar", contenders(3, fair=False, protocol="sidecar"), crashes=1)
Workload("semats-ours", contenders(3, protocol="semats"), crashes=1, stalls=1)
Workload("waiting", scenes.waiting, crashes=1, stalls=1)
Workload("idle-first", scenes.idle_first)
Workload("order", contenders(3, rounds=2, stay=0.001), step_seconds=20e-6)
Workload("order-crash", contenders(4, rounds=2, stay=0.001), crashes=2, stalls=2, step_seconds=20e-6)
Workload("one-gives-up", scenes.one_gives_up, crashes=1, step_seconds=20e-6)
Workload("slots-staying", contenders(4, slots=2, stay=0.3), crashes=1, step_seconds=20e-6)
Workload("tagged", contenders(3, rounds=2, tag="t"), crashes=1, stalls=1, step_seconds=20e-6)
Workload("lines", scenes.lines, crashes=1, stalls=1, step_seconds=20e-6)
Workload("lines-of-readers", scenes.lines_of_readers, crashes=1, stalls=1, step_seconds=20e-6, readers_matter=True)
Workload("mounts", scenes.mounts, stalls=1)
Workload("leftovers", scenes.leftovers, crashes=1, stalls=1)
Workload("other-kernel", scenes.other_kernel, crashes=1, stalls=1)
Workload("forged", scenes.forged, crashes=1)
Workload("five", contenders(5), crashes=2, stalls=3, step_seconds=20e-6)
Workload("mixed", scenes.mixed, crashes=2, stalls=3, step_seconds=20e-6)
Workload("fenced", contenders(2, fair=False, fencing=True), crashes=1)
Workload("fenced-dead", dead_holder(contenders(3, fair=False, fencing=True)), crashes=2)
Workload("fenced-fair", contenders(3, rounds=2, fencing=True), crashes=1, stalls=2, step_seconds=20e-6)
Workload("fenced-slots", contenders(3, slots=2, fencing=True), crashes=1)
Workload("fenced-flock", contenders(3, protocol="flock", fencing=True), crashes=1, readers_matter=True)
Workload("fenced-breaking", scenes.breaking_fenced, stalls=1)

# Several machines, with leases.
Workload("machines", scenes.machines(2, "between"), crashes=1, stops=2, stop_seconds=2.5)
Workload("machines-no-guards", scenes.machines(2, "none"), crashes=1, stops=2, stop_seconds=2.5)
Workload("machines-own-guards", scenes.machines(3, "own", rounds=2), crashes=1, stops=2, stop_seconds=1.3)
Workload("machines-dead", scenes.machines(2, "none", stay=0.5, dead=True), crashes=1, stops=2, stop_seconds=1.1)
Workload("machines-dead-three", scenes.machines(3, "own", stay=0.1, dead=True), stops=2, stop_seconds=1.6)
_replacing = scenes.machines(2, "none", dead=True)
Workload("machines-late", _replacing, stops=1, stop_seconds=1.6, stops_at=("rename", "link"))
Workload("machines-less-late", _replacing, stops=1, stop_seconds=0.3, stops_at=("rename", "link"))
Workload("machines-broken", scenes.broken_while_replaced, stops=1, stop_seconds=0.3, stops_at=("rename",))
Workload("machines-slow", scenes.machines(3, "none", stay=0.2), stops=3, stop_seconds=1.05)
Workload("machines-turns", scenes.machines(3, "between", stay=0.2, rounds=2, fair=True))
Workload("machines-turns-crash", scenes.machines(3, "none", stay=0.2, fair=True), crashes=1)

# On lesser filesystems and kernels.
Workload("named", on(scenes.NO_UNNAMED, contenders(2, fair=False)), crashes=1)
Workload("named-dead", on(scenes.NO_UNNAMED, dead_holder(contenders(2, fair=False))), crashes=1)
Workload("exclusive", on(scenes.EXCLUSIVE_ONLY, contenders(2, fair=False)), crashes=1)
Workload("exclusive-three", on(scenes.EXCLUSIVE_ONLY, contenders(3, fair=False)), crashes=2)
Workload("fuse", on(scenes.FUSE, contenders(2, fair=False)), crashes=1)
Workload("no-flock", on(scenes.NO_FLOCK, contenders(2, fair=False)), crashes=1)
Workload("no-flock-dead", on(scenes.NO_FLOCK, dead_holder(contenders(2, fair=False), guarded=False)), crashes=1)
Workload("no-flock-reborn", on(scenes.NO_FLOCK, reborn(contenders(2, fair=False))), crashes=1)
Workload("no-events", on(scenes.NO_EVENTS, contenders(3)), crashes=1, stalls=2)
Workload("no-fifos", on(scenes.NO_FIFOS, contenders(3)), crashes=1, stalls=1)
Workload("slow-close", contenders(2, fair=False), crashes=1, slow_close=True)
# A waiter that is killed just as the next one begins to watch its ticket delays that one by a look for each one ahead.
Workload("slow-close-fair", contenders(3, bound=2.1), crashes=1, stalls=1, slow_close=True)
Workload("late-events", contenders(2), crashes=1, late_events=True)
Workload("lost-events", contenders(2, fair=False, bound=11.0), crashes=1, losses=3, late_events=True)
Workload("lost-events-fair", contenders(3, bound=11.0), crashes=1, stalls=2, losses=3, late_events=True)
Workload("overflow", contenders(3), crashes=1, queue_limit=0)
Workload("reborn", reborn(contenders(2)), crashes=2)
Workload("rebooted", dead_holder(contenders(2, fair=False), age=scenes.OLD, boot="boot-0"), crashes=1)
Workload("rebooted-soon", dead_holder(contenders(2, bound=12.0), age=3592, boot="boot-0"), crashes=1)
Workload("containers", scenes.containers, crashes=1)
Workload("containers-no-flock", on(scenes.NO_FLOCK, scenes.living_elsewhere))
Workload("views", scenes.views)
Workload("full", scenes.full)
Workload("full-exclusive", on(scenes.EXCLUSIVE_ONLY, scenes.full))
Workload("clock", scenes.clock, crashes=1)

# Beside others, and against them.
_sema = lambda _world: foreign.sema(LOCK)  # noqa: E731
_semats = lambda _world: foreign.semats(LOCK)  # noqa: E731
_fs_safe = lambda _world: foreign.fs_safe(f"{LOCK}.lock")  # noqa: E731
Workload("sema", beside(_sema), crashes=1)
Workload("sema-more", beside(_sema, count=2, others=2), crashes=1, stalls=1)
Workload("sema-stale", stale_foreign(beside(_sema)))
Workload("sema-stale-more", stale_foreign(beside(_sema, count=2)), stalls=1)
Workload("semats", beside(_semats, protocol="semats", litter=(".tmp",)), crashes=1)
Workload("semats-more", beside(_semats, count=2, protocol="semats", litter=(".tmp",)), crashes=1, stalls=1)
Workload("semats-stale", stale_foreign(beside(_semats, protocol="semats", litter=(".tmp",))))
Workload("fs-safe", beside(_fs_safe, protocol="sidecar", others_die=False), crashes=1)
Workload("fs-safe-more", beside(_fs_safe, count=2, protocol="sidecar", others_die=False), stalls=1)
_npm: dict[str, Any] = {"protocol": "proper-lockfile", "realpath": False}
_proper_lockfile = lambda _world: foreign.proper_lockfile(f"{LOCK}.lock")  # noqa: E731
Workload("directory", contenders(2, fair=False, litter=(".claim",), bound=12.0, **_npm), crashes=1)
# A directory of an unknown holder is stale after 10 s; a first waiter that is slow then is passed within 10 s more.
Workload("directory-fair", contenders(3, litter=(".claim",), bound=22.0, **_npm), crashes=1, stalls=1)
Workload("directory-stale", scenes.stale_directory(contenders(2, fair=False, bound=12.0, **_npm)), crashes=1)
Workload(
    "directory-no-flock",
    on(scenes.NO_FLOCK, contenders(2, fair=False, litter=(".claim",), bound=12.0, **_npm)),
    crashes=1,
)
Workload("proper-lockfile", beside(_proper_lockfile, **_npm), crashes=1)
Workload("proper-lockfile-more", beside(_proper_lockfile, count=2, others=2, **_npm), stalls=1)
Workload("proper-lockfile-stale", scenes.stale_directory(beside(_proper_lockfile, **_npm)))
Workload("proper-lockfile-stale-more", scenes.stale_directory(beside(_proper_lockfile, count=2, **_npm)), stalls=1)
Workload("beads", scenes.beads_beside, stalls=1)
Workload("daemon", scenes.daemon_beside, crashes=1)
Workload("paused", scenes.paused_holder, stalls=1)
Workload("beating", scenes.beating_holder)
Workload("old-neighbour", scenes.old_neighbour)
Workload("breaking-dead", dead_holder(scenes.breaking), crashes=1)
Workload("breaking", scenes.breaking, stalls=1)
Workload("breaking-queued", scenes.breaking_queued, crashes=1, stalls=1)
Workload("command", scenes.running, crashes=1)

# A contender without kernel locks beside those that have them, and readers that lock what they may only read.
Workload("sandboxed", dead_holder(scenes.sandboxed, guarded=False))
Workload("sandboxed-crash", dead_holder(scenes.sandboxed, guarded=False), crashes=2)
Workload("sandboxed-stale", stale_foreign(scenes.sandboxed), crashes=1)
Workload("read-dead", dead_holder(scenes.read_by_others))
Workload("read-dead-crash", dead_holder(scenes.read_by_others), crashes=1)
Workload("fenced-read", scenes.counter_read_by_others, stalls=1)
Workload("read-stale", stale_foreign(scenes.read_by_others))
Workload("kept-dead", dead_holder(scenes.kept_by_others, version=2))
Workload("kept-dead-crash", dead_holder(scenes.kept_by_others, version=2), crashes=1)


HOLES: dict[str, Workload] = {}


class Alone(Checker):
    """At most one is inside, whoever it is."""

    def enters(self, world: World, who: Actor) -> None:
        for other in world.actors:
            if other is not who and other.inside == who.inside:
                raise Violation(f"{who.name} enters while {other.name} is inside")


def _among_themselves(make: Callable[[], Program], about: str) -> Callable[[World], None]:
    def build(world: World) -> None:
        for number in range(2):
            process = world.process("xy"[number], 201 + number)
            world.actor(process, make(), foreign=True, crashable=False).at_leisure = True
        world.checkers = [Alone()]

    build.__doc__ = about
    return build


def _stopped(make: Callable[[], Program], about: str) -> Callable[[World], None]:
    def build(world: World) -> None:
        world.actor(world.process("A", 101), holder(requests(0, LOCK), inside_for=0.5), crashable=False)
        world.actor(world.process("x", 201), make(), foreign=True, crashable=False).at_leisure = True
        world.checkers = [Told(), Neighbours()]

    build.__doc__ = about
    return build


def _looks_and_then_works(world: World) -> None:
    """The beads daemon looks for the lock file once a cycle; who takes the lock after that is not seen by it."""

    def daemon(me: Actor) -> None:
        try:
            me.process.close(me.process.open_existing(path, write=False))
        except FileNotFoundError:
            me.enter(path, -1)
            me.sleep(1.0)
            me.leave()

    path = requests(0, "/d", protocol="beads")[0].path
    world.actor(world.process("d", 201), daemon, foreign=True, crashable=False)
    world.actor(world.process("A", 101), holder(requests(0, "/d", protocol="beads")), crashable=False)
    world.checkers = [Alone()]


def _renames_late(world: World) -> None:
    """One of semats is stopped for more than a minute between its look and its rename."""

    temporary = f"{LOCK}.201.0123456789abcdef.tmp"
    put(world, temporary, b"pid=201\ntimestamp=1700000900\n", age=61.0)
    inode = world.kernel.names[temporary].number

    def semats(me: Actor) -> None:
        me.process.rename(temporary, LOCK)
        me.enter(LOCK, inode)
        me.sleep(1.0)
        me.leave()
        me.process.unlink(LOCK)

    world.actor(world.process("x", 201), semats, foreign=True, crashable=False)
    world.actor(world.process("A", 101), holder(requests(0, LOCK, protocol="semats"), inside_for=1.0), crashable=False)
    world.checkers = [Told(), Neighbours()]


class OnlyThatOne(Checker):
    """A process that breaks a lock removes the hold that it has seen, and no later one."""

    def name_goes(self, world: World, inode: Inode, path: str) -> None:
        who = world.current
        if who is None or not who.breaks or any(file.inode is inode for file in who.process.files.values()):
            return
        for actor in world.actors:
            if actor.inside == path and actor.inode == inode.number:
                raise Violation(f"{who.name} takes a lock that it has not seen away from {actor.name}")


def _breaks_the_next(world: World) -> None:
    """Who breaks the lock of a living holder is stopped between its last look and the removal."""
    for number in range(2):
        world.actor(world.process("AB"[number], 101 + number), holder(requests(number, LOCK), timeout=20.0))
    world.actor(world.process("R", 104), breaker(requests(4, LOCK)), crashable=False)
    world.checkers = [OnlyThatOne()]


def _hole(name: str, build: Callable[[World], None], *, stalls: int = 0) -> None:
    HOLES[name] = Workload(name, build, stalls=stalls, listed=False)


_hole(
    "sema-among-themselves",
    scenes.stale_foreign(
        _among_themselves(
            lambda: foreign.sema(LOCK, inside_for=1.0),
            "Two of sema at a stale lock: the second unlinks what the first has just created",
        )
    ),
)
_hole(
    "semats-among-themselves",
    _among_themselves(
        lambda: foreign.semats(LOCK, inside_for=1.0),
        "Two of semats: both find no lock file, and the second renames its own over that of the first",
    ),
)
_hole(
    "fs-safe-among-themselves",
    scenes.stale_foreign(
        _among_themselves(
            lambda: foreign.fs_safe(LOCK, inside_for=1.0),
            "Two of fs-safe 0.3 at a stale lock: one is stopped between its second look and its unlink",
        )
    ),
    stalls=1,
)
_hole(
    "beads-among-themselves",
    _among_themselves(
        lambda: foreign.beads(LOCK, inside_for=1.0),
        "Two writers of beads: the second writes over the record of the first",
    ),
)
_hole("beads-daemon", _looks_and_then_works)
_hole(
    "sema-stopped",
    scenes.stale_foreign(
        _stopped(
            lambda: foreign.sema(LOCK, attempts=1),
            "One of sema is stopped between its look at a stale lock and its unlink, for longer than ours settles",
        )
    ),
    stalls=1,
)
_hole("semats-stopped", _renames_late)
_hole("break-late", _breaks_the_next)
HOLES["released-late"] = Workload(
    "released-late",
    scenes.machines(3, "none", prompt=False),
    stops=1,
    stop_seconds=1.6,
    stops_at=("unlink",),
    listed=False,
)
