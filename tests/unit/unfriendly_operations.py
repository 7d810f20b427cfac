"""Operations of `test_unfriendly.py` beside those of `fault_operations.py`: those of operators, and the rest."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from holdfast._admin.clean import Leftover, PinnedEnvironment, directories, leftovers, remove, side_by_side
from holdfast._admin.doctor import of_abilities, of_leftovers
from holdfast._admin.reaper import Reaper
from holdfast._admin.scan import Survey
from holdfast._platform.operations import sweep
from holdfast._platform.probes import abilities
from holdfast._platform.values import temporary_name
from holdfast.beads import should_skip_database
from holdfast.engines.file.interop import sweep_rivals
from holdfast.engines.file.request import FileRequest
from holdfast.model import Identity
from unit.fault_operations import NOBODY, Operation, Scene
from unit.stepping import forged_ticket, sema_record

OLD = 1_000_000
LINUX, HERE = ("unnamed",), ("unnamed", "portable")


def _leave(where: Path, identity: Identity) -> None:
    """Leave one of each kind of leftover."""
    gone = Identity(NOBODY, identity.boot, identity.pid_namespace, "-", identity.host)
    (where / "stale.lock").write_bytes(sema_record(NOBODY, OLD, "stale"))
    (where / temporary_name(gone, "1" * 16)).write_bytes(b"half a record")
    (where / f"l.{NOBODY}.{'1' * 16}.tmp").write_bytes(b"")
    (where / "l.lock.reclaim").mkdir(mode=0o755)
    os.chmod(where / "l.lock.reclaim", 0o1755)
    queue = where / ".holdfast-l.queue"
    queue.mkdir()
    ticket = forged_ticket(queue, NOBODY)
    Path(f"{ticket}.tag").write_bytes(sema_record(NOBODY, OLD, "left"))
    os.mkfifo(f"{ticket}.new")
    for path in (*where.rglob("*"), *queue.iterdir()):
        if not path.name.endswith(".lock"):
            os.utime(path, (OLD, OLD))


class Clean(Operation):
    name = "clean -r --yes"
    ways = LINUX  # elsewhere, no path leads to a directory that is open: docs/security.md, known holes

    def prepare(self, scene: Scene) -> None:
        below = scene.place / "below"
        below.mkdir()
        for where in (scene.place, below):
            _leave(where, scene.acts.identity())
        scene.leave_dead()

    def act(self, scene: Scene) -> Any:
        env: Any = PinnedEnvironment(scene.acts)
        top = str(scene.place)
        try:
            survey = Survey(env)
            found: list[Leftover] = []
            for where in directories(env, top, recursive=True):
                env.enter(top, where)
                found += [one for one in leftovers(env, survey, where, approved=True) if isinstance(one, Leftover)]
            return scene.run(side_by_side([remove(env, one, approved=True) for one in found])) and None
        finally:
            env.leave()


class List(Clean):
    name = "ls -r"

    def act(self, scene: Scene) -> Any:
        return list(Survey(scene.acts).tree(str(scene.place))) and None


class Reap(Operation):
    name = "reap"
    ways = HERE

    def prepare(self, scene: Scene) -> None:
        scene.leave_dead()
        Path(f"{scene.lock_file}.other").write_bytes(sema_record(NOBODY, time.time()))

    def act(self, scene: Scene) -> Any:
        self.told: list[object] = []
        steps: Iterator[Any] = Reaper(
            scene.acts, str(scene.place), lambda *said: self.told.append(said), lambda *said: self.told.append(said)
        ).run(lambda: None)
        for _ in range(8):
            scene.clock = max(scene.clock, next(steps).deadline)
        steps.close()  # type: ignore[attr-defined]


class Doctor(Operation):
    name = "doctor"
    ways = ("unnamed", "named", "exclusive", "portable")

    def prepare(self, scene: Scene) -> None:
        _leave(scene.place, scene.acts.identity())

    def act(self, scene: Scene) -> Any:
        found = abilities(scene.acts, str(scene.place))
        return [*of_abilities(found, os.geteuid()), *of_leftovers(scene.acts, str(scene.place), [])] and None


class Sweep(Doctor):
    name = "Sweep temporary files"
    ways = ("named", "portable")

    def act(self, scene: Scene) -> Any:
        return sweep(scene.acts, str(scene.place))


class SweepRivals(Doctor):
    name = "Sweep temporary files of semats"
    ways = HERE
    options: ClassVar[dict[str, Any]] = {"protocol": "semats"}

    def act(self, scene: Scene) -> Any:
        return sweep_rivals(scene.acts, scene.request) and None


class AcquireNamed(Operation):
    """Acquisitions that name the path anew each time, as a program does that is run again and again."""

    name = "Name a lock of semats, and acquire it"
    ways = HERE
    options: ClassVar[dict[str, Any]] = {"protocol": "semats"}

    def act(self, scene: Scene) -> Any:
        scene.request = FileRequest(scene.path, {"protocol": "semats"})
        return scene.acquire(scene.acts)


class AcquireBeads(Operation):
    name = "Acquire a lock of beads"
    ways = HERE
    options: ClassVar[dict[str, Any]] = {"protocol": "beads", "holder": "x"}

    def prepare(self, scene: Scene) -> None:
        scene.path.mkdir()

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts)


class CheckBeads(Operation):
    name = "The daemon's check of beads"
    ways = LINUX
    options: ClassVar[dict[str, Any]] = {"protocol": "beads", "holder": "x"}

    def prepare(self, scene: Scene) -> None:
        scene.path.mkdir()
        held = scene.hold()
        data = Path(held.path).read_text()
        held.release()
        Path(held.path).write_text(data.replace(str(os.getpid()), str(NOBODY)))

    def act(self, scene: Scene) -> Any:
        return should_skip_database(scene.path) and None


class Finish(Operation):
    name = "Finish what was created and not written"
    ways = ("unnamed", "exclusive")

    def prepare(self, scene: Scene) -> None:
        Path(scene.lock_file).touch()
        os.chmod(scene.lock_file, 0o1644)

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts)


MORE: tuple[type[Operation], ...] = (
    Clean,
    List,
    Reap,
    Doctor,
    Sweep,
    SweepRivals,
    AcquireNamed,
    AcquireBeads,
    CheckBeads,
    Finish,
)
