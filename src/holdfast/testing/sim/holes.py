"""Known holes: what nobody promises, and a schedule that shows each.

The races of other implementations among themselves, which no third party can mend, and the limits of what is promised
towards them. A campaign does not run these; a test finds each of them again, so that none is described that is not
there, or no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import foreign, scenes
from .checkers import Checker, Neighbours, Told
from .ours import breaker, holder, requests
from .scenes import LOCK, put
from .workloads import Workload
from .world import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from .actor import Actor, Program
    from .kernel import Inode
    from .world import World

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
    """Who breaks a lock takes away the hold that it has seen, and no later one."""

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
