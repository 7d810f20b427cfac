"""The workloads by name: who meets where, and how much may happen to them in one run.

Those of `SMALL` are for searching through every interleaving; all are good for random ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import foreign, scenes, situations
from .kernel import Kernel
from .scenes import LOCK, beside, contenders, dead_holder, on, reborn, stale_foreign, tasks
from .world import World

if TYPE_CHECKING:
    from collections.abc import Callable

WORKLOADS: dict[str, Workload] = {}


class Workload:
    """A way to fill a world. `crashes`, `stalls`, `losses`: how often each may happen in one run; `machine`: what the
    kernel is like. One that is not `listed` is a known hole (holes.py)."""

    def __init__(
        self,
        name: str,
        build: Callable[[World], None],
        *,
        crashes: int = 0,
        stalls: int = 0,
        losses: int = 0,
        step_seconds: float = 0.0,
        listed: bool = True,
        **machine: Any,
    ) -> None:
        self.name = name
        self.build = build
        self.crashes = crashes
        self.stalls = stalls
        self.losses = losses
        self.step_seconds = step_seconds
        self.machine = machine
        limits = {"crashes": crashes, "early deadlines": stalls, "lost events": losses, **machine}
        words = [f"{name.replace('_', ' ')} {value}" for name, value in limits.items() if value or name in machine]
        self.about = "; ".join([(build.__doc__ or "").strip().rstrip("."), *words])
        if listed:
            WORKLOADS[name] = self

    def world(self, *, trace: bool = False) -> World:
        """A new one, for one run."""
        world = World(Kernel(**self.machine), trace=trace)
        world.crashes, world.stalls, world.losses = self.crashes, self.stalls, self.losses
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
Workload("readers", situations.readers, crashes=1, stalls=1, readers_matter=True)
Workload("cancelled", situations.cancelled, crashes=1, stalls=1)
Workload("sidecar", contenders(3, fair=False, protocol="sidecar"), crashes=1)
Workload("semats-ours", contenders(3, protocol="semats"), crashes=1, stalls=1)
Workload("waiting", situations.waiting, crashes=1, stalls=1)
Workload("idle-first", situations.idle_first)
Workload("five", contenders(5), crashes=2, stalls=3, step_seconds=20e-6)
Workload("mixed", situations.mixed, crashes=2, stalls=3, step_seconds=20e-6)
Workload("fenced", contenders(2, fair=False, fencing=True), crashes=1)
Workload("fenced-dead", dead_holder(contenders(3, fair=False, fencing=True)), crashes=2)
Workload("fenced-fair", contenders(3, rounds=2, fencing=True), crashes=1, stalls=2, step_seconds=20e-6)
Workload("fenced-slots", contenders(3, slots=2, fencing=True), crashes=1)
Workload("fenced-flock", contenders(3, protocol="flock", fencing=True), crashes=1, readers_matter=True)
Workload("fenced-breaking", situations.breaking_fenced, stalls=1)

# On lesser filesystems and kernels.
Workload("named", on(scenes.NO_UNNAMED, contenders(2, fair=False)), crashes=1)
Workload("named-dead", on(scenes.NO_UNNAMED, dead_holder(contenders(2, fair=False))), crashes=1)
Workload("exclusive", on(scenes.EXCLUSIVE_ONLY, contenders(2, fair=False)), crashes=1)
Workload("exclusive-three", on(scenes.EXCLUSIVE_ONLY, contenders(3, fair=False)), crashes=2)
Workload("fuse", on(scenes.FUSE, contenders(2, fair=False)), crashes=1)
Workload("no-flock", on(scenes.NO_FLOCK, contenders(2, fair=False)), crashes=1)
_claimants = contenders(2, fair=False, litter=(".claim",))  # one that is killed may leave its claim
Workload("no-flock-dead", on(scenes.NO_FLOCK, dead_holder(_claimants, guarded=False)), crashes=1)
Workload("no-flock-reborn", on(scenes.NO_FLOCK, reborn(contenders(2, fair=False))), crashes=1)
Workload("no-events", on(scenes.NO_EVENTS, contenders(3)), crashes=1, stalls=2)
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
Workload("containers", situations.containers, crashes=1)
Workload("containers-no-flock", on(scenes.NO_FLOCK, situations.living_elsewhere))
Workload("views", situations.views)
Workload("full", situations.full)
Workload("full-exclusive", on(scenes.EXCLUSIVE_ONLY, situations.full))
Workload("clock", situations.clock, crashes=1)

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
Workload("beads", situations.beads_beside, stalls=1)
Workload("daemon", situations.daemon_beside, crashes=1)
Workload("paused", situations.paused_holder, stalls=1)
Workload("beating", situations.beating_holder)
Workload("old-neighbour", situations.old_neighbour)
Workload("breaking-dead", dead_holder(situations.breaking), crashes=1)
Workload("breaking", situations.breaking, stalls=1)
Workload("command", situations.running, crashes=1)

# A contender without kernel locks beside those that have them, and readers that lock what they may only read.
Workload("sandboxed", dead_holder(situations.sandboxed, guarded=False))
Workload("sandboxed-crash", dead_holder(situations.sandboxed, guarded=False), crashes=2)
Workload("sandboxed-stale", stale_foreign(situations.sandboxed), crashes=1)
Workload("read-dead", dead_holder(situations.read_by_others))
Workload("read-dead-crash", dead_holder(situations.read_by_others), crashes=1)
Workload("fenced-read", situations.counter_read_by_others, stalls=1)
Workload("read-stale", stale_foreign(situations.read_by_others))
