"""The operations in which system calls are made to fail, and the conditions that must hold after each failure.

Processes are environments of their own, time is a number: nothing here waits, so thousands of cases take seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import instances
from holdfast._core.attempt import Refusal
from holdfast._core.hold import HoldRef
from holdfast._core.wait import Wait
from holdfast._drivers.asyncio import begin, caller, drive
from holdfast._platform.linux import LinuxEnvironment
from holdfast._platform.portable import GenericEnvironment
from holdfast.engines.file.acquire import look, look_at_all, wait_until_free
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.remove import break_lock
from holdfast.engines.file.request import FileRequest, slots_of
from holdfast.engines.file.uncontended import acquire
from holdfast.errors import HoldfastError
from holdfast.model import Identity, Record, Status, marker_text
from unit.failing import ANSWERS, DOCUMENTED, Tap
from unit.stepping import device_in, forged_ticket, sema_record

NOBODY = 2**22 + 5
"""A pid that no process has."""
MOST = 3
"""Most failures of a call that an operation repeats."""
LATE = 11.0
"""Seconds within which everybody notices everything, event or not (acquire.py, A2)."""

# What to switch off, and the options, for each way to the lock.
WAYS: dict[str, tuple[tuple[str, ...], dict[str, object]]] = {
    "unnamed": ((), {}),
    "durable": ((), {"durable": True}),
    "without /proc": (("proc",), {}),
    "named": (("unnamed",), {"durable": True}),
    "exclusive": (("unnamed", "link"), {"durable": True}),
    "portable": (("generic",), {"durable": True}),
    "without kernel locks": (("flock",), {}),
    "without events": (("events",), {}),
}
ALL = tuple(WAYS)
MAIN = ("unnamed", "named", "exclusive", "portable", "without kernel locks")
PLAIN = ("unnamed",)
ASIDE = ("unnamed", "portable", "without kernel locks")
_identities: dict[str, Identity] = {}
_mounts = LinuxEnvironment(frozenset())
"""The mounts, looked up once for all the environments of a scene."""


class Wrong(AssertionError):
    """A fault led to a result that is not promised."""


class Waits(Wrong):
    """The wait does not end: right only as long as the system says that nobody can know any better."""


class Scene:
    """A lock path, its contenders, and a clock that nobody waits for."""

    def __init__(self, place: Path, tap: Tap, way: str, **options: Any) -> None:
        self.place, self.tap, self.way = place, tap, way
        self.without, ways_options = WAYS[way]
        if options.get("protocol") == "flock":
            ways_options = {}
        self.options = {"fair": False, **ways_options, **options}
        self.slots: int | None = self.options.pop("slots", None)
        self.path = place / "l"
        self.clock = 1000.0
        self.environments: list[Any] = []
        self.acts = self.env()
        """The process whose calls fail."""
        self.request = self.requests()[0]
        self.word = ""
        """The fault."""
        self.late = 0.0
        """Seconds that it took to notice the actions of others."""

    @property
    def lock_file(self) -> str:
        return self.request.path

    def env(self, *, fresh: bool = False) -> Any:
        """A new process."""
        kind: type[GenericEnvironment] = GenericEnvironment if "generic" in self.without else LinuxEnvironment
        made = kind(frozenset(self.without) - {"generic"})
        made.monotonic = lambda: self.clock  # type: ignore[method-assign]
        if self.environments and not fresh and isinstance(made, LinuxEnvironment):  # not the one whose calls fail
            made._mounts, made._mount_table = _mounts._mounts, _mounts._mount_table  # type: ignore[method-assign]
        if not fresh:
            if self.way not in _identities:
                _identities[self.way] = made.identity()
            made._identity = _identities[self.way]
        self.environments.append(made)
        return made

    def requests(self, **options: Any) -> tuple[FileRequest, ...]:
        given: Any = {**self.options, **options}
        return (FileRequest(self.path, given),) if self.slots is None else slots_of(self.path, self.slots, given)

    def _other_slots(self) -> tuple[FileRequest, ...]:
        return () if self.slots is None else self.requests()[1:]

    # -- what processes do ---------------------------------------------------------------------------------------------

    def run(self, steps: Generator[Wait, None, Any], *others: Callable[[], object], endless: bool = False) -> Any:
        """Run to the end. When it waits for something that does not come, another process acts; else time passes. An
        endless wait is one without a timeout."""
        try:
            return self._run(steps, list(others), endless)
        finally:
            steps.close()

    def _run(self, steps: Generator[Wait, None, Any], waiting: list[Callable[[], object]], endless: bool) -> Any:
        acted = math.inf
        idle = self.clock
        for rounds in range(300):
            if endless and rounds > 100 and self.clock > acted + 2.0:
                break  # it polls
            try:
                wait = next(steps)
            except StopIteration as done:
                self.late = max(0.0, self.clock - acted)
                return done.value
            with self.tap.aside():
                if wait.fds and _readable(wait.fds):
                    continue
                if waiting and (
                    wait.deadline == math.inf
                    or self.clock - idle > 0.01
                    or (wait.fds and wait.deadline > self.clock + 1)
                ):
                    waiting.pop(0)()
                    acted = idle = self.clock
                    continue
                if wait.deadline == math.inf:
                    raise Wrong("it waits for ever")
                self.clock = max(self.clock, wait.deadline)
        raise Waits("it waits again and again")

    def acquire(self, env: Any, *others: Callable[[], object], timeout: float | None = 0, **options: Any) -> Any:
        """Acquire: a hold, or a refusal."""
        steps = acquire(
            env,
            self.requests(**options) if env is not self.acts or options else (self.request, *self._other_slots()),
            timeout,
            (object(),),
        )
        result = self.run(steps, *others, endless=timeout is None)
        return result.held if isinstance(result, HoldRef) else result

    def hold(self, **options: Any) -> FileHold:
        """A hold of another process."""
        held = self.acquire(self.env(), **options)
        assert isinstance(held, FileHold), held
        return held

    def leave_dead(self, lock_file: str | None = None) -> None:
        """Leave the lock of a process that has died."""
        path = Path(lock_file or self.lock_file)
        if self.way in ("portable", "without kernel locks"):
            here = self.acts.identity()
            gone = Identity(NOBODY, here.boot, here.pid_namespace, "-", here.host)
            path.write_bytes(sema_record(gone.pid, time.time(), "x" * 300, marker_text(False, self.device, gone)))
        else:
            held = self.hold(tag="x" * 300)
            die(held.env)

    def leave_stale(self) -> None:
        """Leave the lock of a process that its protocol calls stale."""
        Path(self.lock_file).write_bytes(sema_record(NOBODY, 1000, "x" * 300))

    @property
    def device(self) -> int:
        return device_in(self.place)

    # -- what must be true ---------------------------------------------------------------------------------------------

    def require_held(self, held: FileHold) -> None:
        """Require that a process that believes it holds the lock holds it exclusively."""
        if not held.verify():
            raise Wrong("a false success: the lock is not its own")
        if held.data and Path(held.path).read_bytes() != held.data:
            raise Wrong("a false success: the record is another")
        if self.slots is None and not isinstance(self.acquire(self.env()), Refusal):
            raise Wrong("a false success: another one gets in")

    def require_nothing_left(self) -> None:
        """Require that the process that has failed, or released, has nothing open, and no place anywhere."""
        env = self.acts
        hub = getattr(env, "_hub", None)
        left = {fd for fd in env._descriptors if hub is None or fd != hub.fd}
        if left:
            raise Wrong(f"descriptors are left: {sorted(map(self.tap.role, left))}")
        if env.holds or env.local_queues:
            raise Wrong(f"left: {env.holds or env.local_queues}")
        if hub is not None and (hub._watches or hub.waiting or hub.leaders):
            raise Wrong("a watch is left")

    def litter(self) -> list[str]:
        """The files in the directory beside lock files."""
        return [path[len(str(self.place)) + 1 :] for path in self.everything()]

    def everything(self) -> list[str]:
        """Everything in the directory; a directory before its content."""
        found = []
        for where, directories, files in os.walk(self.place):
            found += [os.path.join(where, name) for name in (*directories, *files)]
        return sorted(found)

    def dispose(self) -> None:
        self.tap.open = False
        for env in self.environments:
            die(env)
        for path in reversed(self.everything()):
            try:
                os.unlink(path)
            except IsADirectoryError:
                os.rmdir(path)


def die(env: Any) -> None:
    """End a process as SIGKILL does."""
    hub = getattr(env, "_hub", None)
    for fd in env._descriptors:
        env._descriptors.disown(fd)
        if hub is not None and fd == hub.fd:
            instances.leave(fd)
        else:
            os.close(fd)
    env._hub = None
    env.holds.clear()


def _readable(fds: tuple[int, ...]) -> bool:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


class Operation:
    """An operation in a scene: `prepare`, then `act`, whose calls fail, then `after`, when it is known how it ended."""

    name = ""
    ways: tuple[str, ...] = MAIN
    options: ClassVar[dict[str, Any]] = {}

    def prepare(self, scene: Scene) -> None:
        pass

    def act(self, scene: Scene) -> Any:
        raise NotImplementedError

    def after(self, scene: Scene, result: Any, raised: Exception | None) -> None:
        """Check the result, and bring the acting process to where it has nothing."""
        if isinstance(result, FileHold):
            scene.require_held(result)
            result.release()
        scene.require_nothing_left()

    def clear(self, scene: Scene) -> None:
        """End the holds of the others."""


class Acquire(Operation):
    name = "Acquire a free lock"
    ways = ALL

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts)


class AcquireFirst(Operation):
    name = "The first acquisition of a process"
    ways = PLAIN

    def prepare(self, scene: Scene) -> None:
        scene.acts = scene.env(fresh=True)

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts)


class AcquireFencedFirst(Operation):
    name = "Acquire a lock with a fencing token, the first one"
    ways = ASIDE
    options: ClassVar[dict[str, Any]] = {"fencing": True}

    def prepare(self, scene: Scene) -> None:
        self.last = 0

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts)

    def after(self, scene: Scene, result: Any, raised: Exception | None) -> None:
        token = result.token if isinstance(result, FileHold) else self.last
        super().after(scene, result, raised)
        following = scene.acquire(scene.env())
        if isinstance(following, Refusal):
            return  # a lock file that could not be removed; who gets it then is seen later
        if following.token is None or token is None or not self.last <= token < following.token:
            raise Wrong(f"token {following.token} after {token} after {self.last}")
        following.release()


class AcquireFenced(AcquireFencedFirst):
    name = "Acquire a lock with a fencing token"

    def prepare(self, scene: Scene) -> None:
        held = scene.hold()
        assert held.token is not None
        self.last = held.token
        held.release()


class TakeOverDead(Operation):
    name = "Take over a dead holder's lock"

    def prepare(self, scene: Scene) -> None:
        scene.leave_dead()

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts)


class TakeOverStale(Operation):
    name = "Take over a stale lock"

    def prepare(self, scene: Scene) -> None:
        scene.leave_stale()

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts)


class TakeOverInTask(TakeOverDead):
    name = "Take over a dead holder's lock in a task (asyncio), each step in a thread"
    ways = PLAIN

    def act(self, scene: Scene) -> Any:
        # asyncio's driver waits by the real clock, so the steps that it drives have to ask the same one.
        scene.acts.monotonic = time.monotonic
        steps = acquire(scene.acts, (scene.request,), 0, (object(),))

        async def go() -> Any:
            operation = begin(scene.acts, caller())
            operation.undo = lambda: None  # type: ignore[method-assign]
            try:
                return await drive(steps, operation, in_threads=True)
            finally:
                scene.acts.operations.end(operation)

        result = asyncio.run(go())
        return result.held if isinstance(result, HoldRef) else result

    def after(self, scene: Scene, result: Any, raised: Exception | None) -> None:
        super().after(scene, result, raised)
        for thread in threading.enumerate():
            if thread.name == "holdfast-step":
                thread.join(10)  # it has said how it ended, and is about to end
                if thread.is_alive():
                    raise Wrong("a thread is left")


class _WithHolder(Operation):
    def prepare(self, scene: Scene) -> None:
        self.holder = scene.hold()

    def clear(self, scene: Scene) -> None:
        if not self.holder.released:
            self.holder.release()


class Refused(_WithHolder):
    name = "Be refused"

    def act(self, scene: Scene) -> Any:
        refusal = scene.acquire(scene.acts)
        if isinstance(refusal, FileHold):
            raise Wrong("let in beside the holder")
        return refusal.status

    def after(self, scene: Scene, result: Any, raised: Exception | None) -> None:
        super().after(scene, result, raised)
        if not self.holder.verify():
            raise Wrong("the holder was robbed")


class HandOver(_WithHolder):
    name = "Wait in the queue, and be handed the lock"
    ways = ("unnamed", "portable", "without kernel locks", "without events")
    options: ClassVar[dict[str, Any]] = {"fair": True}

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts, self.holder.release, timeout=None)

    def after(self, scene: Scene, result: Any, raised: Exception | None) -> None:
        if raised is not None and not self.holder.released and not self.holder.verify():
            raise Wrong("the holder was robbed")
        if isinstance(result, FileHold) and scene.late > LATE:
            raise Wrong(f"it was noticed only after {scene.late:.1f} s")
        super().after(scene, result, raised)


class WaitForDead(HandOver):
    name = "Wait for a holder that dies"
    ways = ("unnamed", "without events")

    def act(self, scene: Scene) -> Any:
        def kill() -> None:
            die(self.holder.env)
            self.holder.released = True

        return scene.acquire(scene.acts, kill, timeout=None)


class HandOverBehind(HandOver):
    name = "Wait behind another who waits"
    ways = PLAIN

    def prepare(self, scene: Scene) -> None:
        super().prepare(scene)
        env = scene.env()
        self.first = acquire(env, scene.requests(), None, (object(),))
        for _ in range(3):
            scene.clock = max(scene.clock, min(next(self.first).deadline, scene.clock + 0.01))
        assert any(".queue/" in name for name in scene.litter())

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts, lambda: self.pass_on(scene), self.end, timeout=None)

    def end(self) -> None:
        self.got.release()

    def pass_on(self, scene: Scene) -> None:
        self.holder.release()
        self.got = scene.run(self.first).held

    def clear(self, scene: Scene) -> None:
        if not self.holder.released:
            self.pass_on(scene)
        self.got.release()


class WaitUntilFree(_WithHolder):
    name = "Wait until a lock is free"
    ways = ASIDE

    def act(self, scene: Scene) -> Any:
        steps = wait_until_free(scene.acts, (scene.request,), None, (object(),))
        result = scene.run(steps, self.holder.release, endless=True)
        if result is None and not self.holder.released and scene.word not in ANSWERS:
            raise Wrong("it was not free")
        return result is None


class _Holding(Operation):
    def prepare(self, scene: Scene) -> None:
        self.held = scene.acquire(scene.acts)
        assert isinstance(self.held, FileHold)


class Release(_Holding):
    name = "Release"

    def act(self, scene: Scene) -> Any:
        self.held.release()
        return True

    def after(self, scene: Scene, result: Any, raised: Exception | None) -> None:
        again(scene, self.held)
        super().after(scene, result, raised)


def again(scene: Scene, held: FileHold) -> None:
    """Require that a failed release has released all the same, or else can be repeated."""
    if held.released:
        held.release()  # does nothing
        return
    if not held.verify():
        raise Wrong("a failed release has lost track of the lock")
    held.release()


class ReleaseLong(Release):
    name = "Release after a long hold"
    ways = ASIDE

    def prepare(self, scene: Scene) -> None:
        super().prepare(scene)
        os.mkdir(scene.request.queue)
        if scene.way != "portable":  # it has no FIFOs
            forged_ticket(scene.request.queue, NOBODY, scene.clock - 1)
        scene.clock += 1


class ReleaseToQueue(Release):
    name = "Release to one who queues"
    ways = PLAIN
    options: ClassVar[dict[str, Any]] = {"fair": True}

    def prepare(self, scene: Scene) -> None:
        holder = scene.hold()
        self.held = scene.acquire(scene.acts, holder.release, timeout=None)
        assert self.held.entry is not None
        self.next = scene.env()
        self.steps = acquire(self.next, scene.requests(), None, (object(),))
        for _ in range(3):
            scene.clock = max(scene.clock, min(next(self.steps).deadline, scene.clock + 0.01))

    def after(self, scene: Scene, result: Any, raised: Exception | None) -> None:
        again(scene, self.held)
        begun = scene.clock
        ref = scene.run(self.steps)
        if scene.clock - begun > LATE:
            raise Wrong(f"who is next noticed it only after {scene.clock - begun:.1f} s")
        if not ref.held.verify():
            raise Wrong("who is next does not hold it")
        ref.held.release()
        scene.require_nothing_left()


class Heartbeat(_Holding):
    name = "Heartbeat"

    def act(self, scene: Scene) -> Any:
        self.held.beat()
        return not self.held.lost

    def after(self, scene: Scene, result: Any, raised: Exception | None) -> None:
        if not self.held.lost:
            scene.require_held(self.held)
            self.held.beat()
            scene.require_held(self.held)
            self.held.release()
        else:
            with contextlib.suppress(HoldfastError):
                self.held.release()
        scene.require_nothing_left()


class LookAtFree(Operation):
    name = "Status of a free lock"
    ways = ASIDE

    def act(self, scene: Scene) -> Any:
        return look(scene.acts, scene.request)


class LookAtHeld(Refused):
    name = "Status of a held lock"
    ways = ASIDE

    def act(self, scene: Scene) -> Any:
        status = look(scene.acts, scene.request)
        if not status.locked and scene.word not in ANSWERS:
            raise Wrong("a held lock is shown as free")
        return status


class LookAtStale(Operation):
    name = "Status of a stale lock"
    ways = ASIDE

    def prepare(self, scene: Scene) -> None:
        scene.leave_stale()

    def act(self, scene: Scene) -> Any:
        return look(scene.acts, scene.request)


class Break(_WithHolder):
    name = "Break a held lock"

    def act(self, scene: Scene) -> Any:
        return scene.run(break_lock(scene.acts, scene.request))

    def clear(self, scene: Scene) -> None:
        with contextlib.suppress(HoldfastError):
            self.holder.release()


class BreakDead(Operation):
    name = "Break a dead holder's lock"
    ways = ASIDE

    def prepare(self, scene: Scene) -> None:
        scene.leave_dead()

    def act(self, scene: Scene) -> Any:
        return scene.run(break_lock(scene.acts, scene.request))


_FLOCK = {"protocol": "flock", "tag": "some tag"}


class AcquireKernel(Operation):
    name = "Acquire a new lock of the kernel (flock)"
    ways = PLAIN
    options: ClassVar[dict[str, Any]] = _FLOCK

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts)


class AcquireKernelAgain(AcquireKernel):
    name = "Acquire a lock of the kernel (flock) that was used before"

    def prepare(self, scene: Scene) -> None:
        scene.hold(tag="left behind")
        die(scene.environments[-1])


class HandOverKernel(HandOver):
    name = "Wait in the queue for a lock of the kernel (flock)"
    ways = ("unnamed", "without events")
    options: ClassVar[dict[str, Any]] = {**_FLOCK, "fair": True}


class HandOverKernelShared(HandOver):
    name = "Wait as a reader for a lock of the kernel (flock)"
    ways = ("unnamed", "without events")
    options: ClassVar[dict[str, Any]] = {**_FLOCK, "fair": True}

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts, self.holder.release, timeout=None, shared=True)


class ReleaseKernel(Release):
    name = "Release a lock of the kernel (flock)"
    ways = PLAIN
    options: ClassVar[dict[str, Any]] = _FLOCK


class LookAtHeldKernel(LookAtHeld):
    name = "Status of a held lock of the kernel (flock)"
    ways = PLAIN
    options: ClassVar[dict[str, Any]] = _FLOCK


class AcquireSlot(Operation):
    name = "Acquire a slot of a semaphore"
    ways = ASIDE
    options: ClassVar[dict[str, Any]] = {"slots": 2}

    def prepare(self, scene: Scene) -> None:
        self.holder = scene.hold()

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts)

    def clear(self, scene: Scene) -> None:
        self.holder.release()


class TakeOverSlot(Operation):
    name = "Take over a dead holder's slot"
    ways = ASIDE
    options: ClassVar[dict[str, Any]] = {"slots": 1}

    def prepare(self, scene: Scene) -> None:
        scene.leave_dead()

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts)


class HandOverSlot(HandOver):
    name = "Wait for any slot of a semaphore"
    ways = ("unnamed", "without events")
    options: ClassVar[dict[str, Any]] = {"slots": 2, "fair": True}

    def prepare(self, scene: Scene) -> None:
        self.other = scene.hold()
        super().prepare(scene)

    def clear(self, scene: Scene) -> None:
        self.other.release()
        super().clear(scene)


class LookAtSlots(Operation):
    name = "Status of a semaphore"
    ways = PLAIN
    options: ClassVar[dict[str, Any]] = {"slots": 2}

    def prepare(self, scene: Scene) -> None:
        self.holder = scene.hold()

    def act(self, scene: Scene) -> Any:
        statuses = look_at_all(scene.acts, scene.requests())
        if not statuses[0].locked and scene.word not in ANSWERS:
            raise Wrong("a held slot is shown as free")
        return statuses[0]

    def clear(self, scene: Scene) -> None:
        self.holder.release()


class AcquireBesideRivals(Operation):
    name = "Acquire beside rivals (semats)"
    ways = ASIDE
    options: ClassVar[dict[str, Any]] = {"protocol": "semats"}

    def prepare(self, scene: Scene) -> None:
        self.rival = Path(f"{scene.lock_file}.{os.getpid()}.0123456789abcdef.tmp")
        self.rival.write_bytes(b"")

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts, lambda: self.rival.unlink(missing_ok=True), timeout=5)

    def clear(self, scene: Scene) -> None:
        self.rival.unlink(missing_ok=True)


_SIDECAR = {"protocol": "sidecar"}


class AcquireBesideAnnouncement(Operation):
    name = "Acquire beside one who announces a removal (sidecar)"
    ways = ASIDE
    options: ClassVar[dict[str, Any]] = _SIDECAR

    def prepare(self, scene: Scene) -> None:
        os.mkdir(scene.lock_file + ".reclaim")

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts, lambda: self.clear(scene), timeout=5)

    def clear(self, scene: Scene) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(scene.lock_file + ".reclaim")


class TakeOverAnnounced(Operation):
    name = "Take over a dead holder's lock, announced (sidecar)"
    ways = ("unnamed", "without kernel locks")
    options: ClassVar[dict[str, Any]] = _SIDECAR

    def prepare(self, scene: Scene) -> None:
        held = scene.hold()
        if scene.way == "unnamed":
            die(held.env)
        else:
            die(held.env)
            text = Path(scene.lock_file).read_text()
            Path(scene.lock_file).write_text(text.replace(f'"pid": {os.getpid()}', f'"pid": {NOBODY}'))

    def act(self, scene: Scene) -> Any:
        return scene.acquire(scene.acts)


class TakeOverAnnouncement(TakeOverAnnounced):
    name = "Take over a lock and the announcement of one who crashed (sidecar)"

    def prepare(self, scene: Scene) -> None:
        super().prepare(scene)
        os.mkdir(scene.lock_file + ".reclaim")
        os.chmod(scene.lock_file + ".reclaim", 0o1755)
        os.utime(scene.lock_file + ".reclaim", (1000, 1000))


OPERATIONS: tuple[type[Operation], ...] = (
    Acquire,
    AcquireFirst,
    AcquireFencedFirst,
    AcquireFenced,
    TakeOverDead,
    TakeOverStale,
    TakeOverInTask,
    Refused,
    HandOver,
    WaitForDead,
    HandOverBehind,
    WaitUntilFree,
    Release,
    ReleaseLong,
    ReleaseToQueue,
    Heartbeat,
    LookAtFree,
    LookAtHeld,
    LookAtStale,
    Break,
    BreakDead,
    AcquireKernel,
    AcquireKernelAgain,
    HandOverKernel,
    HandOverKernelShared,
    ReleaseKernel,
    LookAtHeldKernel,
    AcquireSlot,
    TakeOverSlot,
    HandOverSlot,
    LookAtSlots,
    AcquireBesideRivals,
    AcquireBesideAnnouncement,
    TakeOverAnnounced,
    TakeOverAnnouncement,
)


# -- one case ----------------------------------------------------------------------------------------------------------


def summary(result: Any, scene: Scene) -> object:
    """The essence of a result, to be compared with that of a run without a fault."""
    if isinstance(result, FileHold):
        return "held", result.guarded, result.request.method, result.recovered_from is not None
    if isinstance(result, Status):
        holder = result.holder.pid if result.holder is not None else None
        return result.locked, result.stale, result.liveness, result.evidence.source, holder, len(result.waiters)
    if isinstance(result, Refusal):
        return "refused"
    return "record" if isinstance(result, Record) else result


def once(
    place: Path,
    tap: Tap,
    kind: type[Operation],
    way: str,
    at: int | None = None,
    word: str = "",
    *,
    always: bool = False,
) -> tuple[list[str], object, str, Exception | None]:
    """Run one operation, perhaps with one fault: its calls, its result, the leftovers, the error.

    Wrong if the result is not as promised.
    """
    operation = kind()
    scene = Scene(place, tap, way, **operation.options)
    scene.word = word
    raised: Exception | None = None
    result: Any = None
    try:
        operation.prepare(scene)
        tap.arm(scene.lock_file, at, word, always=always)
        try:
            result = operation.act(scene)
        except (OSError, HoldfastError) as caught:
            raised = caught
            if kind is Heartbeat and isinstance(caught, OSError):
                caught.filename = caught.filename or scene.lock_file  # the keeper says it (test_keeper.py)
        except Waits:
            if not (always or word in ANSWERS):
                raise
            result = "waits as long as that lasts"
        finally:
            tap.open = False
        calls = tap.calls
        if raised is not None:
            _require_clear(raised, word)
        seen = summary(result, scene)
        operation.after(scene, result, raised)
        operation.clear(scene)
        left = _next_gets_it(scene, word, always=always)
    finally:
        scene.dispose()
    return calls, seen, left, raised


def _require_clear(raised: Exception, word: str) -> None:
    if isinstance(raised, HoldfastError):
        if not raised.path or not raised.message:
            raise Wrong(f"the error does not say where: {raised!r}") from raised
        return
    assert isinstance(raised, OSError)
    number = int(raised.errno or 0)  # of its own, which notes no question
    if word == "EBADF" and number == errno.EACCES:
        return  # NFS says so if writing is not permitted, which the user can understand
    if word not in ("short", "full") and number != getattr(errno, word, None):
        raise Wrong(f"another error than the system's: {raised!r}") from raised
    if not raised.filename or not raised.strerror:
        raise Wrong(f"the error does not say where: {raised!r}") from raised


def _next_gets_it(scene: Scene, word: str, *, always: bool) -> str:
    """Require that the next one gets the lock, and nothing is left then; leftovers of the fault for longer than
    that."""
    persistent = scene.request.protocol.persistent
    there = [name for name in scene.litter() if not (persistent and name == "l")]
    held = scene.acquire(scene.env(), timeout=0.1)
    left = []
    announcement = scene.lock_file + ".reclaim"
    if not isinstance(held, FileHold) and scene.way != "unnamed" and os.path.exists(announcement):
        left.append("announcement, for a minute")  # without kernel locks, age alone tells that its maker has died
        os.utime(announcement, (1000, 1000))
        held = scene.acquire(scene.env(), timeout=0.1)
    if not isinstance(held, FileHold):
        if not ((always or word in {*ANSWERS, "full"}) and _counts_as_ours(scene)):
            raise Wrong(f"the next one is refused: {held.status.reason}; there is {there}")
        left.append("lock file")
        Path(scene.lock_file).unlink(missing_ok=True)
    else:
        scene.require_held(held)
        scene.clock += 1  # a holder for longer than a moment removes leftovers of dead waiters
        for _ in range((scene.slots or 1) - 1):  # leftovers of another slot go with its next holder
            another = scene.acquire(scene.env(), timeout=0.1)
            if isinstance(another, FileHold):
                another.release()
        held.release()
    for name in scene.litter():
        if persistent and name == "l":
            continue
        role = scene.tap.role(scene.place / name)
        if role == "counter":
            continue  # it stays, for as long as there is the lock
        if role == "lock file" and _counts_as_ours(scene, scene.place / name):
            left.append(role)
            continue
        if role == "announcement" and scene.way != "unnamed" and always:
            left.append("announcement, for a minute")
            continue
        if role not in ("temporary name", "claim", "queue", "ticket") or not (always or word in ANSWERS):
            raise Wrong(f"left even after the next one: {name}")
        left.append(role)
    return ", ".join(sorted(set(left)))


def _counts_as_ours(scene: Scene, path: Path | None = None) -> bool:
    """Whether what keeps the next one out would not do so if this process ended: nothing of it is guarded."""
    if any(name.endswith(".claim") for name in scene.litter()):
        return True
    record = scene.request.protocol.decode((path or Path(scene.lock_file)).read_bytes())
    return record.pid == os.getpid() and record.marker is not None and not record.marker.guarded


def cases(calls: list[str], *, every: bool = False) -> Iterator[tuple[int, str, bool]]:
    """Each call and each way in which it may fail: once, and always from then on.

    Of a call that comes again and again (polling) the first few and the last; `every` one if there is time for that.
    """
    seen: Counter[str] = Counter()
    in_all = Counter(calls)
    for at, name in enumerate(calls):
        seen[name] += 1
        most = 1 if name.endswith("/proc") else MOST
        if seen[name] > most and (most == 1 or not (every or seen[name] == in_all[name])):
            continue
        for word in DOCUMENTED.get(name.partition(":")[0], ()):
            yield at, word, False
            if word not in ANSWERS and word not in ("short", "full"):  # a lie that is kept up is none of the system's
                yield at, word, True
