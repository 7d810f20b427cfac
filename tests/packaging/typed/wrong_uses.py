"""Mistakes that a user may make, and that both type checkers refuse. Never run.

Each mistake names its error: `make check` fails if one of the checkers accepts it, as its comment then ignores nothing.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

import holdfast
from holdfast import AsyncLock, Evidence, Lock, LockLost, Semaphore, Status, acquire_all, aio, events, sema


def judged_by_path(path: str) -> bool:
    return path == "x"


def heard_nothing() -> None: ...


def sync() -> None:
    lock = Lock("x")
    Lock(5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    Lock("x", 5)  # type: ignore[arg-type, call-arg] # pyright: ignore[reportCallIssue]
    Lock("x", timout=5)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    Lock("x", timeout="5")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    Lock("x", stale="always")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    Lock("x", stale=judged_by_path)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    Lock("x", on_lost=heard_nothing)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    Lock("x", on_event=judged_by_path)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    Lock("x", owner=["not", "hashable"])  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    Lock("x", mode="0644")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    lock.acquire("5")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    lock.acquire(cancel="x")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    lock.try_acquire().release()  # type: ignore[union-attr] # pyright: ignore[reportOptionalMemberAccess]
    lock.try_acquire(5)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    lock.release()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    lock.path = "y"  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]
    lock.acquire().token + 1  # type: ignore[operator] # pyright: ignore[reportOptionalOperand]
    lock.status().holder.pid  # type: ignore[union-attr] # pyright: ignore[reportOptionalMemberAccess]
    lock.status().held  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    lock.status().locked = False  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]
    holdfast.Mutex("x")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    Semaphore("x")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    Semaphore("x", slots="3")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    acquire_all(lock)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    acquire_all([AsyncLock("x")])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    Evidence("guard")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    Evidence(source="guard", text=5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    events.listen(heard_nothing)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    sema.SemaphoreConfig(stale_timout=5)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]


async def asynchronous(lost: LockLost, status: Status) -> None:
    lock = AsyncLock("x")
    lock.acquire().release()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    (await lock.acquire()).release()  # type: ignore[unused-coroutine] # pyright: ignore[reportUnusedCoroutine]
    lock.acquire()  # type: ignore[unused-coroutine] # pyright: ignore[reportUnusedCoroutine]
    aio.acquire_all([Lock("x")])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    lost.holder.pid  # type: ignore[union-attr] # pyright: ignore[reportOptionalMemberAccess]
    status.waiters.append(5)  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]

    with lock:  # type: ignore[attr-defined] # pyright: ignore[reportGeneralTypeIssues]
        pass
    async with Lock("x"):  # type: ignore[attr-defined] # pyright: ignore[reportGeneralTypeIssues]
        pass

    @lock  # type: ignore[type-var] # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
    def plain() -> None: ...

    plain()
