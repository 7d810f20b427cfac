"""Code as a user writes it, with every public name in it. Checked by mypy and pyright, and run by `test_types.py`.

`assert_type` claims that a type checker, and with it an editor, infers exactly this type.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, assert_type

import holdfast
from holdfast import (
    AcquireCancelled,
    AcquireTimeout,
    AsyncHold,
    AsyncLock,
    AsyncSemaphore,
    EngineUnavailable,
    Evidence,
    Hold,
    Holder,
    HoldfastError,
    InvalidPath,
    Liveness,
    Lock,
    LockLost,
    LockStale,
    MalformedRecord,
    NotHeld,
    ProtocolMismatch,
    Record,
    Semaphore,
    Status,
    UnsupportedFilesystem,
    Waiter,
    WouldDeadlock,
    acquire_all,
    aio,
    beads,
    events,
    sema,
    semats,
    sidecar,
)


def locks(place: Path) -> None:
    lock = Lock(place / "a.lock", tag="deploy", timeout=5, stale="safe", mode=0o640, fencing=True)
    stop, (source, sink) = threading.Event(), os.pipe()
    for cancel in (stop, source, None):
        with lock.acquire(5, cancel=cancel) as cancelled:
            assert_type(cancelled, Hold)
    assert_type(lock.wait(0, cancel=stop), bool)
    acquire_all([lock], cancel=stop).release()
    stop.set()
    try:
        lock.acquire(cancel=stop)
    except AcquireCancelled as error:
        assert_type(error.path, str | None)
    os.close(source)
    os.close(sink)
    assert_type(str(lock.status()), str)
    assert_type(lock.path, str)
    assert_type(lock.protocol, str)
    with lock as hold:
        assert_type(hold, Hold)
        assert_type(hold.token, int | None)
        assert_type(hold.slot, int | None)
        assert_type(hold.path, str)
        assert_type(hold.lost, bool)
        assert_type(hold.record, Record)
        assert_type(hold.recovered_from, Record | None)
        hold.ensure_held()
    assert_type(lock.acquire(), Hold).release()
    maybe = lock.try_acquire()
    assert_type(maybe, Hold | None)
    if maybe is not None:
        with maybe:
            look(lock.status())
    assert_type(lock.wait(timeout=0), bool)
    assert_type(lock.break_lock(), Record | None)
    for kind in ("sema", "semats", "flock"):
        with Lock(str(place / kind), protocol=kind, owner=("any", "hashable"), fair=False):
            pass
    with Lock(place / "shared", protocol="flock", shared=True) as hold:
        look(Lock(place / "shared", protocol="flock").status())


def look(status: Status) -> None:
    assert_type(status.locked, bool)
    assert_type(status.stale, bool)
    assert_type(status.liveness, Liveness)
    assert_type(status.evidence, Evidence)
    assert_type(status.evidence.proven, bool)
    assert_type(status.holder, Holder | None)
    assert_type(status.holders, tuple[Holder, ...])
    assert_type(status.waiters, tuple[Waiter, ...])
    assert_type(status.age, float | None)
    if status.liveness is Liveness.ALIVE and status.holder is not None:
        assert_type(status.holder.pid, int | None)
        assert_type(status.holder.since, float | None)
    for waiter in status.waiters:
        assert_type(waiter.position, int | None)


def records(record: Record) -> None:
    assert_type(record.pid, int | None)
    assert_type(record.created, float | None)
    assert_type(record.tag, str | None)
    assert Holder(pid=1) == Holder(1, None)
    assert assert_type(Evidence("guard", "held", True).replaced(proven=False), Evidence).proven is False


def decorated(place: Path) -> None:
    @Lock(place / "a.lock")
    def report(times: int, *, loud: bool = False) -> str:
        return "report" * times + "!" * loud

    assert_type(report(2, loud=True), str)

    @Lock(place / "a.lock")
    async def fetch(url: str) -> bytes:
        return url.encode()

    assert_type(asyncio.run(fetch("x")), bytes)


def semaphores(place: Path) -> None:
    pool = Semaphore(place / "pool", slots=2, tag="worker")
    assert_type(pool.base, str)
    assert_type(pool.slots, int)
    with pool as hold:
        assert_type(hold, Hold)
        status = pool.status()
        assert_type(status.free, int)
        assert_type(status.locked, bool)
        assert_type(status.holders, tuple[Holder, ...])
        assert_type(status[0], Status)


def together(place: Path) -> None:
    with acquire_all([Lock(place / "a.lock"), Semaphore(place / "pool", 2)], timeout=5) as holds:
        assert_type(holds[0], Hold)
        assert_type(holds.lost, bool)
        for hold in holds:
            assert_type(hold, Hold)
    wanted: list[Lock] = [Lock(place / "a.lock"), Lock(place / "b.lock")]  # a list of one kind is a list of locks, too
    acquire_all(wanted, timeout=0).release()


async def tasks(place: Path) -> None:
    lock = AsyncLock(place / "a.lock", timeout=5)
    async with lock as hold:
        assert_type(hold, AsyncHold)
        assert_type(hold.token, int | None)
        look(await lock.status())
    maybe = await lock.try_acquire()
    assert_type(maybe, AsyncHold | None)
    if maybe is not None:
        await maybe.release()
    assert_type(await lock.wait(0), bool)
    assert_type(await lock.break_lock(), Record | None)
    async with AsyncSemaphore(place / "pool", 2) as slot:
        assert_type(slot.slot, int | None)
    async with aio.acquire_all([lock, AsyncSemaphore(place / "pool", 2)]) as holds:
        assert_type(holds[1], AsyncHold)
    await (await aio.acquire_all([lock])).release()

    @lock
    async def report(times: int) -> str:
        return "report" * times

    assert_type(await report(1), str)


def judged(status: Status) -> bool:
    return status.age is not None and status.age > 60


def callbacks(place: Path) -> None:
    heard: list[Literal["waiting", "joined", "gave-up", "reclaimed", "acquired", "lost", "released"]] = []

    def hear(event: events.Event) -> None:
        assert_type(event.waited, float | None)
        heard.append(event.kind)

    def lost(error: LockLost) -> None:
        print(error.path)

    stop = events.listen(hear)
    assert_type(stop, Callable[[], None])
    with Lock(place / "a.lock", on_event=hear, on_lost=lost, stale=judged):
        pass
    stop()
    assert heard[-1] == "released"


def errors(place: Path) -> None:
    lock = Lock(place / "a.lock")
    with lock:
        try:
            Lock(place / "a.lock", tag="another").acquire(timeout=0)
        except AcquireTimeout as error:
            as_base: HoldfastError = error
            as_builtin: TimeoutError = error
            assert_type(error.holder, Holder | None)
            assert_type(error.path, str | None)
            print(as_base, as_builtin)
    builtin: list[type[OSError]] = [UnsupportedFilesystem, EngineUnavailable]
    values: list[type[ValueError]] = [InvalidPath, MalformedRecord]
    runtime: type[RuntimeError] = WouldDeadlock
    ours: list[type[HoldfastError]] = [LockStale, NotHeld, ProtocolMismatch]
    print(builtin, values, runtime, ours)


def faces(place: Path) -> None:
    with sema.Semaphore(place / "s.lock", sema.SemaphoreConfig(acquire_timeout=1)).acquire() as guard:
        assert_type(guard, sema.SemaphoreGuard)
        assert_type(sema.Semaphore.with_defaults(place / "s.lock").lock_info(), sema.LockInfo | None)
    with semats.Semaphore(place / "t.lock", stale_timeout=60) as semaphore:
        assert_type(semaphore, semats.Semaphore)
        assert_type(semaphore.get_lock_info(), semats.LockInfo | None)
    assert_type(sidecar.with_file_lock_sync(place / "u", lambda: 5, payload={"what": "x"}, timeout=1), int)
    with sidecar.acquire_file_lock_sync(place / "u", payload={"what": "x"}) as handle:
        assert_type(handle.verify_still_held(), bool)
    with beads.acquire(place, "tool", "1.0") as hold:
        assert_type(hold, Hold)
        assert_type(beads.should_skip_database(place), tuple[bool, str | None, str | None])


def sent(lock: Lock) -> None:
    with lock:
        pass


def elsewhere(place: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=sent, args=(Lock(place / "a.lock", timeout=5),))
    child.start()
    child.join()
    assert child.exitcode == 0


def main(place: Path) -> None:
    assert_type(holdfast.__version__, str)
    steps: list[Callable[[Path], Any]] = [locks, decorated, semaphores, together, callbacks, errors, faces, elsewhere]
    for step in steps:
        step(place)
    with Lock(place / "a.lock") as hold:
        records(hold.record)
    asyncio.run(tasks(place))
