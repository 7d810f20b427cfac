"""fs-safe's file lock in Python (sidecar.py): each state of the lock path, under every option, awaited and not."""

from __future__ import annotations

import asyncio
import errno
import functools
import gc
import itertools
import json
import os
import pickle
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AcquireTimeout, InvalidPath, LockStale, NotHeld, sidecar
from holdfast._core.wait import Signal
from holdfast._drivers.background import Keeper
from holdfast._platform import environment
from holdfast.model import Identity, marker_text
from holdfast.protocols import get
from holdfast.sidecar import FileLockStale, FileLockTimeout, ReclaimParams, Retry, StaleSnapshot
from holdfast.sidecar.options import Awaited
from process.support import eventually
from unit.loops import asleep, events_only, until

__all__ = ["events_only"]

ROOT = Path(__file__).parents[2]
LONG = 3600.0


class Face:
    """The face for one caller: the functions for threads, or the awaited ones on a loop of its own."""

    def __init__(self, *, awaited: bool) -> None:
        self.awaited = awaited
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.close()

    def _do(self, result: Any) -> Any:
        async def main() -> Any:
            return await result

        return self._runner.run(main()) if self.awaited else result

    def acquire(self, target: object, **options: Any) -> Any:
        options.setdefault("payload", {"pid": os.getpid()})
        options.setdefault("timeout", 0)
        acquire = sidecar.acquire_file_lock if self.awaited else sidecar.acquire_file_lock_sync
        return self._do(acquire(target, **options))

    def with_lock(self, target: object, fn: Callable[[], object], **options: Any) -> Any:
        options.setdefault("payload", {})
        call = sidecar.with_file_lock if self.awaited else sidecar.with_file_lock_sync
        return self._do(call(target, fn, **options))

    def release(self, handle: Any) -> None:
        self._do(handle.release())

    def is_held(self, handle: Any) -> bool:
        held: bool = self._do(handle.verify_still_held())
        return held


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    made = Face(awaited=request.param)
    yield made
    made.close()


@pytest.fixture
def target(disk: Path) -> Path:
    return disk / "state.json"


@pytest.fixture
def lock(disk: Path) -> Path:
    """The lock file."""
    return disk / "state.json.lock"


def moment(age: float) -> str:
    return datetime.fromtimestamp(time.time() - age, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_json(**payload: object) -> bytes:
    return json.dumps(payload, indent=2).encode() + b"\n"


def put(lock: Path, data: bytes, age: float = 0.0) -> None:
    lock.write_bytes(data)
    then = time.time() - age
    os.utime(lock, (then, then))


def of_dead_holder(age: float, pid: int) -> bytes:
    """The record of a dead holdfast process, known by its process: only a guard can prove a guard gone."""
    who = Identity(pid, "no-such-boot", "1", "t1", "elsewhere")
    marker = marker_text(False, 1, who)
    return get("sidecar").compose(who, time.time() - age, None, marker, {"payload": {"createdAt": moment(age)}})


# -- states of the lock path -------------------------------------------------------------------------------------------

HELD, STALE, YOUNG = "held", "stale", "young"
"""YOUNG: held whatever anybody says of it, as it may be a lock file that is being created."""

STATES: dict[str, tuple[Callable[[], bytes], float, str]] = {
    # state: content, age of the file, its state by the rule
    "fresh": (lambda: as_json(pid=1, createdAt=moment(0)), 0, HELD),
    "fresh, no createdAt": (lambda: as_json(pid=1), 0, HELD),
    "fresh, an empty object": (lambda: b"{}", 0, HELD),
    "fresh createdAt, old file": (lambda: as_json(createdAt=moment(0)), LONG, HELD),
    "createdAt in the future, old file": (lambda: as_json(createdAt=moment(-LONG)), LONG, HELD),
    "createdAt not quite old enough": (lambda: as_json(createdAt=moment(25)), LONG, HELD),
    "old createdAt": (lambda: as_json(createdAt=moment(LONG)), 0, STALE),
    "old createdAt just over the limit": (lambda: as_json(createdAt=moment(31)), 0, STALE),
    "no createdAt, old file": (lambda: as_json(pid=1), LONG, STALE),
    "createdAt a number, old file": (lambda: as_json(createdAt=time.time()), LONG, STALE),
    "createdAt a number, fresh file": (lambda: as_json(createdAt=1), 0, HELD),
    "createdAt no date, old file": (lambda: as_json(createdAt="yesterday"), LONG, STALE),
    "createdAt in another case, fresh file": (lambda: as_json(createdat=moment(LONG)), 0, HELD),
    "empty, young": (lambda: b"", 0, YOUNG),
    "empty, old": (lambda: b"", LONG, STALE),
    "garbage, young": (lambda: b"x", 0, YOUNG),
    "garbage, old": (lambda: b"x", LONG, STALE),
    "half a record, young": (lambda: as_json(createdAt=moment(LONG))[:20], 0, YOUNG),
    "an array, old": (lambda: b"[1]", LONG, STALE),
    "null, young": (lambda: b"null\n", 0, YOUNG),
    "with a BOM, young": (lambda: b"\xef\xbb\xbf" + as_json(createdAt=moment(LONG)), 0, YOUNG),
    "no UTF-8, old": (lambda: b"\xff\xfe", LONG, STALE),
    "file from the future, no record": (lambda: b"", -LONG, YOUNG),
    "more than is ever read": (lambda: as_json(createdAt=moment(LONG), x="x" * (1 << 20)), LONG, YOUNG),
    "a dead holdfast process, young": (lambda: of_dead_holder(0, 1), 0, HELD),
    "a dead holdfast process, old": (lambda: of_dead_holder(LONG, 1), LONG, STALE),
}

yes: Callable[[object], bool] = lambda _: True  # noqa: E731
no: Callable[[object], bool] = lambda _: False  # noqa: E731
REMOVE = {"stale_recovery": "remove-if-unchanged"}
ASKED: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    # options, and the outcome of an acquisition for each state of the lock
    "nothing": ({}, {HELD: "timeout", STALE: "stale", YOUNG: "timeout"}),
    "fail-closed, approved": (
        {"stale_recovery": "fail-closed", "should_remove_stale_lock": yes},
        {HELD: "timeout", STALE: "stale", YOUNG: "timeout"},
    ),
    "remove, approved": (
        {**REMOVE, "should_remove_stale_lock": yes},
        {HELD: "timeout", STALE: "acquired", YOUNG: "timeout"},
    ),
    "remove, not approved": (
        {**REMOVE, "should_remove_stale_lock": no},
        {HELD: "timeout", STALE: "stale", YOUNG: "timeout"},
    ),
    "remove, nobody to approve": (REMOVE, {HELD: "timeout", STALE: "stale", YOUNG: "timeout"}),
    "never stale": ({"stale": float("inf")}, {HELD: "timeout", STALE: "timeout", YOUNG: "timeout"}),
    "should_reclaim: no": ({"should_reclaim": no}, {HELD: "timeout", STALE: "timeout", YOUNG: "timeout"}),
    "should_reclaim: yes": ({"should_reclaim": yes}, {HELD: "stale", STALE: "stale", YOUNG: "timeout"}),
    "should_reclaim: yes; remove, approved": (
        {"should_reclaim": yes, **REMOVE, "should_remove_stale_lock": yes},
        {HELD: "acquired", STALE: "acquired", YOUNG: "timeout"},
    ),
    "should_reclaim: no; remove, approved": (
        {"should_reclaim": no, **REMOVE, "should_remove_stale_lock": yes},
        {HELD: "timeout", STALE: "timeout", YOUNG: "timeout"},
    ),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("state", STATES)
def test_a_foreign_lock_is_judged_as_the_options_say(
    face: Face, target: Path, lock: Path, state: str, asked: str
) -> None:
    content, age, kind = STATES[state]
    options, outcomes = ASKED[asked]
    put(lock, content(), age)
    before = lock.read_bytes()
    outcome = outcomes[kind]
    if outcome == "acquired":
        handle = face.acquire(target, payload={"mine": True}, **options)
        assert json.loads(lock.read_bytes())["mine"] is True
        face.release(handle)
        assert not lock.exists()
        return
    with pytest.raises(FileLockTimeout if outcome == "timeout" else FileLockStale):
        face.acquire(target, **options)
    assert lock.read_bytes() == before


def test_a_free_lock_is_acquired_and_released(face: Face, target: Path, lock: Path) -> None:
    handle = face.acquire(target, payload={"pid": 7, "what": "snapshot"})
    assert (handle.lock_path, handle.normalized_target_path) == (str(lock), str(target))
    record = json.loads(lock.read_text())
    assert (record["pid"], record["what"]) == (7, "snapshot")
    assert lock.stat().st_mode & 0o777 == 0o600
    assert face.is_held(handle)
    face.release(handle)
    assert not lock.exists()
    assert not face.is_held(handle)
    assert list(target.parent.iterdir()) == []
    face.release(handle)


def test_a_removal_under_way_is_left_undisturbed(face: Face, target: Path, lock: Path) -> None:
    """fs-safe 0.21 makes `<lock>.reclaim` while it removes a stale lock."""
    put(lock, as_json(createdAt=moment(LONG)))
    announced = lock.with_name("state.json.lock.reclaim")
    announced.mkdir()
    with pytest.raises(FileLockTimeout):
        face.acquire(target, should_remove_stale_lock=yes, **REMOVE)
    assert announced.is_dir()
    announced.rmdir()
    face.release(face.acquire(target, should_remove_stale_lock=yes, **REMOVE))
    assert not announced.exists()


def test_a_live_holder_is_not_robbed_for_its_age(face: Face, target: Path, lock: Path) -> None:
    """A held kernel lock is respected at any age; fs-safe 0.3 throws file_lock_stale at once."""
    asked: list[object] = []
    holder = face.acquire(target, payload={"createdAt": moment(0)})
    os.utime(lock, (1, 1))
    for options in ({}, {"should_reclaim": asked.append, "should_remove_stale_lock": asked.append, **REMOVE}):
        with pytest.raises(FileLockTimeout) as caught:
            face.acquire(target, stale=0, **options)
        assert caught.value.holder is not None
        assert caught.value.holder.pid == os.getpid()
    assert not asked
    assert face.is_held(holder)
    face.release(holder)


# -- arguments of the callbacks ----------------------------------------------------------------------------------------


def test_the_callbacks_get_the_observed_lock(face: Face, target: Path, lock: Path) -> None:
    told: list[Any] = []

    def should_reclaim(params: ReclaimParams) -> bool:
        told.append(params)
        return True

    def should_remove(snapshot: StaleSnapshot) -> bool:
        told.append(snapshot)
        return False

    data = as_json(pid=1, name="ä")
    put(lock, data)
    before = time.time()
    with pytest.raises(FileLockStale):
        face.acquire(
            target, stale=12.5, should_reclaim=should_reclaim, should_remove_stale_lock=should_remove, **REMOVE
        )
    params, snapshot = told
    assert isinstance(params, ReclaimParams)
    assert (params.lock_path, params.normalized_target_path) == (str(lock), str(target))
    assert params.payload == {"pid": 1, "name": "ä"}
    assert (params.stale, params.held_by_this_process) == (12.5, False)
    assert before <= params.now <= time.time()
    assert isinstance(snapshot, StaleSnapshot)
    assert (snapshot.lock_path, snapshot.normalized_target_path) == (str(lock), str(target))
    assert (snapshot.raw, snapshot.payload) == (data.decode(), {"pid": 1, "name": "ä"})


def test_an_unreadable_payload_is_none(face: Face, target: Path, lock: Path) -> None:
    told: list[Any] = []

    def note(thing: object) -> bool:
        told.append(thing)
        return True

    put(lock, b"\xffx", LONG)
    face.release(face.acquire(target, should_reclaim=note, should_remove_stale_lock=note, **REMOVE))
    assert told
    assert all(thing.payload is None for thing in told)
    assert {thing.raw for thing in told if isinstance(thing, StaleSnapshot)} == {"\ufffdx"}


def _errors() -> list[Exception]:
    """Exceptions of a callback: of its own, and such as a step of the engine may raise (attempt.py, CE1)."""
    return [
        LookupError("no process table"),
        FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), "/srv/report"),
        FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/proc/4711/cmdline"),
        PermissionError(errno.EPERM, os.strerror(errno.EPERM)),
        OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP)),
        OSError(errno.ESTALE, os.strerror(errno.ESTALE)),
        ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)),
        TimeoutError("the register does not answer"),
    ]


ERRORS = pytest.mark.parametrize("number", range(len(_errors())), ids=[type(error).__name__ for error in _errors()])
"""By number, as an exception belongs to one test."""


@ERRORS
def test_an_exception_of_a_callback_is_raised_and_leaves_nothing(
    face: Face, target: Path, lock: Path, number: int
) -> None:
    def fail(*_: object) -> Any:
        raise error

    error = _errors()[number]
    text = str(error)
    with pytest.raises(type(error)) as raised:
        face.acquire(target, payload=fail)
    assert raised.value is error
    assert not lock.exists()
    data = as_json(createdAt=moment(LONG))
    put(lock, data)
    attempts: list[dict[str, Any]] = [
        {"should_reclaim": fail},
        {"should_remove_stale_lock": fail, **REMOVE},
        {"should_remove_stale_lock": yes, "payload": fail, **REMOVE},
    ]
    for options in attempts:
        with pytest.raises(type(error)) as raised:
            face.acquire(target, **options)
        assert raised.value is error
        assert str(error) == text
        assert error.__cause__ is error.__context__ is None
        assert lock.read_bytes() == data
        assert sorted(target.parent.iterdir()) == [lock]


def test_a_callback_that_waits_for_another_lock_in_vain_says_which(face: Face, target: Path, disk: Path) -> None:
    other = disk / "other.json"

    def wait_for_it() -> dict[str, Any]:
        sidecar.acquire_file_lock_sync(other, payload={}, timeout=0)
        return {}

    held = sidecar.acquire_file_lock_sync(other, payload={})
    with pytest.raises(FileLockTimeout) as raised:
        face.acquire(target, payload=wait_for_it, lock_path=disk / "l")
    assert raised.value.normalized_target_path == str(other)
    held.release()
    with sidecar.acquire_file_lock_sync(target, payload={}, lock_path=disk / "l"):
        with pytest.raises(FileLockTimeout) as raised:
            face.acquire(target, lock_path=disk / "l")
        assert raised.value.normalized_target_path == str(target)


async def _coroutine(*_: object) -> dict[str, Any]:
    return {}


class _Asynchronous:
    async def __call__(self, *_: object) -> dict[str, Any]:
        return {}


CALLBACKS = ["payload", "should_reclaim", "should_remove_stale_lock"]


class _Awaitable:
    def __await__(self) -> Iterator[None]:
        yield None


COROUTINES = [
    _coroutine,
    functools.partial(_coroutine, 1),
    _Asynchronous(),
    lambda *_: _Awaitable(),
    lambda *_: _coroutine(),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", CALLBACKS)
@pytest.mark.parametrize("callback", COROUTINES, ids=["declared", "partial", "object", "awaitable", "returned"])
def test_a_coroutine_without_a_loop_is_no_answer(target: Path, lock: Path, name: str, callback: Any) -> None:
    """SC1: it would count as true, whatever its result would be."""
    data = as_json(createdAt=moment(LONG))
    put(lock, data, LONG)
    before = lock.stat().st_mtime
    options: dict[str, Any] = {"payload": {}, "timeout": 0, **REMOVE, name: callback}
    options.setdefault("should_remove_stale_lock", yes)
    manager = sidecar.create_file_lock_manager_sync("refused")
    for acquire, instead in (
        (lambda: sidecar.acquire_file_lock_sync(target, **options), "Use acquire_file_lock, "),
        (lambda: sidecar.with_file_lock_sync(target, lambda: None, **options), "Use with_file_lock, "),
        (lambda: manager.acquire(target, **options), "Use one of create_file_lock_manager, "),
    ):
        with pytest.raises(TypeError, match=f"{name} is asynchronous: .*{instead}"):
            acquire()
        gc.collect()  # Python warns of a coroutine that was never awaited
        assert (lock.read_bytes(), lock.stat().st_mtime) == (data, before)
        assert list(target.parent.iterdir()) == [lock]


def test_a_refused_payload_makes_no_directory(disk: Path) -> None:
    """SC1."""
    with pytest.raises(TypeError, match="payload is asynchronous"):
        sidecar.acquire_file_lock_sync(disk / "a" / "b" / "state", payload=COROUTINES[-1])
    assert list(disk.iterdir()) == []


# -- callbacks that are awaited ----------------------------------------------------------------------------------------


def _rewritten(lock: Path) -> None:
    put(lock, as_json(createdAt=moment(0)))


def _refreshed(lock: Path) -> None:
    os.utime(lock)


def _replaced(lock: Path) -> None:
    other = lock.with_name("other")
    put(other, as_json(createdAt=moment(0)))
    other.replace(lock)


def _copied(lock: Path) -> None:
    """A new file with the content and time of the one before."""
    other, found = lock.with_name("other"), lock.stat()
    other.write_bytes(lock.read_bytes())
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(lock)


async def _later(answer: Any) -> Any:
    await asyncio.sleep(0)
    return answer


def _in_a_future(answer: Any) -> Any:
    return asyncio.ensure_future(_later(answer))  # only where a loop runs


@pytest.fixture(params=[False, True], ids=["on the loop", "steps in threads"])
def awaited(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Face]:
    if request.param:
        monkeypatch.setattr(type(environment()), "may_block", lambda _self, _path: True)
    made = Face(awaited=True)
    yield made
    made.close()


@pytest.mark.parametrize("how", [_later, _in_a_future], ids=["coroutine", "future"])
def test_an_answer_is_awaited(awaited: Face, target: Path, lock: Path, how: Callable[[Any], Any]) -> None:
    """SC2, V7: whatever the deadline, also with `timeout=0`."""
    told: list[Any] = []

    def answer(result: Any) -> Callable[..., Any]:
        def asked(*about: object) -> Any:
            assert threading.current_thread() is threading.main_thread(), "that is where the loop runs"
            told.extend(about)
            return how(result)

        return asked

    data = as_json(pid=1, createdAt=moment(0))
    put(lock, data)
    with pytest.raises(FileLockTimeout):
        awaited.acquire(target, should_reclaim=answer(False))
    with pytest.raises(FileLockStale, match="should_reclaim calls it stale"):
        awaited.acquire(target, should_reclaim=answer(True))
    with pytest.raises(FileLockStale, match="does not approve"):
        awaited.acquire(target, should_reclaim=yes, should_remove_stale_lock=answer(False), **REMOVE)
    assert lock.read_bytes() == data
    assert {type(about) for about in told} == {ReclaimParams, StaleSnapshot}
    handle = awaited.acquire(
        target,
        payload=answer({"mine": True}),
        should_reclaim=answer(True),
        should_remove_stale_lock=answer(True),
        **REMOVE,
    )
    assert json.loads(lock.read_bytes())["mine"] is True
    awaited.release(handle)
    assert not lock.exists()


def test_a_coroutine_function_of_the_specification_is_accepted(awaited: Face, target: Path, lock: Path) -> None:
    """The first example of fs-safe's document."""

    async def payload() -> dict[str, object]:
        return {"pid": os.getpid(), "host": platform.node()}

    handle = awaited.acquire(target, manager_key="snapshot", stale=5 * 60.0, payload=payload)
    assert json.loads(lock.read_bytes())["pid"] == os.getpid()
    awaited.release(handle)


@pytest.mark.parametrize("change", [_rewritten, _refreshed, _replaced, _copied])
def test_an_answer_about_another_lock_is_not_believed(
    awaited: Face, target: Path, lock: Path, change: Callable[[Path], None]
) -> None:
    """SC3: the lock changed while the answer was awaited."""
    asked: list[StaleSnapshot] = []

    async def approve(snapshot: StaleSnapshot) -> bool:
        asked.append(snapshot)
        await asyncio.sleep(0)
        if len(asked) == 1:
            change(lock)
        return len(asked) == 1

    put(lock, as_json(pid=1), LONG)
    with pytest.raises((FileLockTimeout, FileLockStale)):
        awaited.acquire(target, should_remove_stale_lock=approve, **REMOVE)
    assert b"holdfast" not in lock.read_bytes()


def test_a_lock_that_changes_with_each_question_is_given_up_at_the_deadline(
    awaited: Face, target: Path, lock: Path
) -> None:
    """A6: there is an end at the deadline."""

    async def renewed(_: object) -> bool:
        await asyncio.sleep(0)
        put(lock, as_json(createdAt=moment(LONG), number=next(numbers)))
        return True

    numbers = itertools.count()
    put(lock, as_json(createdAt=moment(LONG)))
    with pytest.raises(FileLockTimeout):
        awaited.acquire(target, should_reclaim=renewed, should_remove_stale_lock=yes, **REMOVE)
    assert next(numbers) < 10, "a takeover that comes too late is tried a few times"


def test_a_payload_is_composed_after_the_wait(target: Path, lock: Path, events_only: None) -> None:
    """A6: composed for the attempt, it says when the lock was acquired; no other contender gets in meanwhile."""

    async def main() -> None:
        made: list[str] = []

        async def payload() -> dict[str, str]:
            await asyncio.sleep(0)
            made.append(moment(0))
            return {"createdAt": made[-1], "number": str(len(made))}

        holder = await sidecar.acquire_file_lock(target, payload={})
        first = asyncio.create_task(sidecar.acquire_file_lock(target, payload=payload))
        await until(lambda: made)
        await asleep(first)
        second = asyncio.create_task(sidecar.acquire_file_lock(target, payload={"second": True}))
        await asleep(second)
        before = len(made)
        await holder.release()
        handle = await first
        assert len(made) > before
        assert json.loads(lock.read_bytes())["number"] == str(len(made))
        assert not second.done(), "the place in the queue was kept"
        await handle.release()
        await (await second).release()

    asyncio.run(main())


def test_a_cancelled_acquisition_ends_its_callback(awaited: Face, target: Path, lock: Path) -> None:
    """SC4."""

    async def main() -> None:
        begun, ended = asyncio.Event(), []

        async def ask(_: object) -> bool:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(True)
            return True

        acquiring = asyncio.create_task(sidecar.acquire_file_lock(target, payload={}, should_reclaim=ask))
        await begun.wait()
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        assert ended == [True]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    data = as_json(createdAt=moment(LONG))
    put(lock, data)
    awaited._do(main())
    assert lock.read_bytes() == data
    assert list(target.parent.iterdir()) == [lock]


def test_a_closed_acquisition_ends_its_callback(target: Path, lock: Path) -> None:
    """SC4: a closed acquisition cannot wait for the end of its callback."""

    async def main() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def ask(_: object) -> bool:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return True

        acquiring = sidecar.acquire_file_lock(target, payload={}, should_reclaim=ask)
        acquiring.send(None)
        await begun.wait()
        acquiring.close()
        await ended.wait()

    put(lock, as_json(createdAt=moment(LONG)))
    asyncio.run(main())
    assert list(target.parent.iterdir()) == [lock]


def test_a_question_that_is_out_of_date_is_cancelled(within: Callable[[float], Any]) -> None:
    """SC3: a new question takes its place."""

    def about(function: Callable[[], Any]) -> Any:
        return (yield "should_reclaim", function, ())

    async def main() -> None:
        functions = Awaited()
        asked, cancelled = asyncio.Event(), asyncio.Event()

        async def never() -> None:
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        assert isinstance(functions.judge("before", about(never)), Signal)
        await asked.wait()
        assert functions.judge("after", about(lambda: "known")) == "known"
        await cancelled.wait()
        with pytest.raises(RuntimeError, match="forked"):
            functions.payload()
        await functions.close()

    with within(60.0):
        asyncio.run(main())


def test_ctrl_c_in_a_coroutine_is_raised(target: Path, lock: Path) -> None:
    async def interrupted() -> dict[str, Any]:
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(sidecar.acquire_file_lock(target, payload=interrupted))
    assert not lock.exists()


@ERRORS
@pytest.mark.parametrize("name", CALLBACKS)
def test_an_exception_of_a_coroutine_is_raised_and_leaves_nothing(
    awaited: Face, target: Path, lock: Path, name: str, number: int
) -> None:
    async def fail(*_: object) -> Any:
        await asyncio.sleep(0)
        raise error

    error = _errors()[number]
    text = str(error)

    data = as_json(createdAt=moment(LONG))
    put(lock, data)
    options: dict[str, Any] = {"should_remove_stale_lock": yes, **REMOVE, name: fail}
    with pytest.raises(type(error)) as raised:
        awaited.acquire(target, **options)
    assert raised.value is error
    assert str(error) == text
    assert lock.read_bytes() == data
    assert list(target.parent.iterdir()) == [lock]


@pytest.mark.usefixtures("awaited")
@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt])
@pytest.mark.parametrize("name", CALLBACKS)
def test_a_cancellation_that_a_callback_raises_ends_the_acquisition(
    target: Path, lock: Path, name: str, error: type[BaseException]
) -> None:
    """As of a task whose result it asks for; also where the steps run in a thread."""

    def fail(*_: object) -> Any:
        raise error

    async def main() -> None:
        options: dict[str, Any] = {"payload": {}, "should_remove_stale_lock": yes, **REMOVE, name: fail}
        await asyncio.wait_for(sidecar.acquire_file_lock(target, **options), 5)

    put(lock, as_json(createdAt=moment(LONG)))
    with pytest.raises(error):
        asyncio.run(main())


def test_a_payload_is_composed_anew_for_each_attempt(face: Face, target: Path, lock: Path) -> None:
    numbers = itertools.count()
    made: list[int] = []

    def payload() -> dict[str, int]:
        made.append(next(numbers))
        return {"number": made[-1]}

    put(lock, as_json(createdAt=moment(LONG)))
    handle = face.acquire(target, payload=payload, should_remove_stale_lock=yes, **REMOVE)
    assert made[-1] > 0, "the first attempt found the path taken, so there was a second one"
    assert json.loads(lock.read_bytes())["number"] == made[-1]
    face.release(handle)
    face.release(face.acquire(target, payload=payload))
    assert made == sorted(set(made))


# -- a lock changed since the look is not removed ----------------------------------------------------------------------


@pytest.mark.parametrize("change", [_rewritten, _refreshed, _replaced])
def test_a_lock_that_has_changed_since_the_judgement_stays(
    face: Face, target: Path, lock: Path, change: Callable[[Path], None]
) -> None:
    approvals = []

    def approve(snapshot: StaleSnapshot) -> bool:
        approvals.append(snapshot)
        change(lock)
        return True

    put(lock, as_json(pid=1), LONG)
    with pytest.raises(FileLockTimeout):
        face.acquire(target, should_remove_stale_lock=approve, **REMOVE)
    assert len(approvals) == 1
    left = lock.read_bytes()
    assert b"holdfast" not in left
    assert json.loads(left)


# -- path of the lock file ---------------------------------------------------------------------------------------------


def test_a_missing_directory_is_made(face: Face, disk: Path) -> None:
    handle = face.acquire(disk / "a" / "b" / "state")
    assert (disk / "a" / "b" / "state.lock").exists()
    face.release(handle)


def test_two_spellings_of_a_directory_are_one_lock(face: Face, disk: Path) -> None:
    (disk / "real").mkdir()
    (disk / "link").symlink_to("real")
    with sidecar.acquire_file_lock_sync(disk / "real" / "x", payload={}) as holder:
        with pytest.raises(FileLockTimeout):
            face.acquire(disk / "link" / "x")
        with pytest.raises(FileLockTimeout):
            face.acquire(f"{disk}/absent/../real/x/")
        assert holder.lock_path == str(disk / "real" / "x.lock")


def test_a_link_at_the_target_is_not_followed(face: Face, disk: Path) -> None:
    (disk / "link").symlink_to("elsewhere")
    handle = face.acquire(disk / "link")
    assert handle.lock_path == str(disk / "link.lock")
    face.release(handle)


def test_the_lock_file_is_at_the_requested_path(face: Face, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(disk)
    for lock_path in (disk / "locks" / "my.lck", "locks/my.lck"):
        handle = face.acquire("state", lock_path=lock_path)
        assert handle.lock_path == str(disk / "locks" / "my.lck")
        assert handle.normalized_target_path == str(disk / "state")
        assert (disk / "locks" / "my.lck").exists()
        assert not (disk / "state.lock").exists()
        face.release(handle)
        assert not (disk / "locks" / "my.lck").exists()


def _obstacle(kind: str, lock: Path) -> None:
    if kind == "a directory":
        lock.mkdir()
    elif kind == "a FIFO":
        os.mkfifo(lock)
    else:
        (lock.with_name("there")).write_bytes(b"{}")
        lock.symlink_to({"a dangling link": "nowhere", "a link in a circle": lock.name}.get(kind, "there"))


@pytest.mark.parametrize("kind", ["a directory", "a FIFO", "a link", "a dangling link", "a link in a circle"])
def test_a_path_that_is_no_lock_file_is_refused_in_time(
    face: Face, target: Path, lock: Path, kind: str, within: Callable[[float], AbstractContextManager[None]]
) -> None:
    """fs-safe 0.3 loops or hangs at some of these, whatever its timeoutMs."""
    _obstacle(kind, lock)
    expected = {"a directory": "is a directory", "a FIFO": "is a FIFO"}.get(kind, "symbolic link")
    with within(60.0), pytest.raises(InvalidPath, match=expected):
        face.acquire(target, timeout=None)
    assert os.path.lexists(lock)


@pytest.mark.parametrize("path", ["", "/", "a\0b"])
def test_a_target_without_a_name_is_refused(face: Face, path: str) -> None:
    with pytest.raises(InvalidPath):
        face.acquire(path)


# -- the length of a wait ----------------------------------------------------------------------------------------------

PAUSES: list[tuple[dict[str, Any], list[float]]] = [
    # as fs-safe computes them for a random number of 0.5
    ({}, [0.05, 0.05, 0.05]),  # factor 1, as both versions do
    ({"factor": 2}, [0.05, 0.1, 0.2, 0.4, 0.8, 1, 1]),
    ({"factor": 0.5}, [0.05, 0.05, 0.05]),  # no pause is shorter than min_timeout
    ({"factor": 0}, [0.05, 0.05]),
    ({"min_timeout": 2, "max_timeout": 2}, [2, 2]),
    ({"min_timeout": 0, "factor": 9}, [0, 0, 0]),
    ({"randomize": True}, [0.075, 0.075]),
    ({"randomize": True, "max_timeout": 0.06}, [0.06, 0.06]),
    ({"factor": 2, "randomize": True}, [0.075, 0.15, 0.3]),
]


@pytest.mark.parametrize(("retry", "pauses"), PAUSES)
def test_pauses_are_as_long_as_those_of_fs_safe(retry: dict[str, Any], pauses: list[float]) -> None:
    made = Retry(**retry)
    assert [made.pause(number, chance=lambda: 0.5) for number in range(len(pauses))] == pytest.approx(pauses)
    assert made.pause(2**53, chance=lambda: 0.5) == pytest.approx(made.pause(100, chance=lambda: 0.5))


def test_a_random_pause_varies_within_bounds() -> None:
    seen = {Retry(randomize=True).pause(0) for _ in range(20)}
    assert len(seen) > 1
    assert all(0.05 <= pause <= 0.1 for pause in seen)


@pytest.mark.parametrize("pause", [0, 0.001])
def test_the_tries_are_at_least_as_many_as_asked_for(face: Face, target: Path, lock: Path, pause: float) -> None:
    """LM1: each try is a look, whose time is no part of the pauses."""
    asked: list[float] = []

    def slow(_: object) -> bool:
        asked.append(time.monotonic())
        while time.monotonic() < asked[-1] + 4 * pause:
            pass
        return False

    put(lock, as_json(createdAt=moment(0)))
    with pytest.raises(FileLockTimeout, match="could not get"):
        face.acquire(target, timeout=None, retry=Retry(retries=5, min_timeout=pause), should_reclaim=slow)
    assert len(asked) >= 6


def test_tries_end_at_the_deadline(face: Face, target: Path, lock: Path, within: Any) -> None:
    put(lock, as_json(createdAt=moment(0)))
    with within(60.0), pytest.raises(FileLockTimeout):
        face.acquire(target, timeout=0.02, retry=Retry(retries=2**53 - 1))


def test_a_limited_number_of_tries_ends_a_wait_for_oneself(face: Face, target: Path) -> None:
    """WouldDeadlock is not raised, as the wait ends."""
    handle = face.acquire(target)
    with pytest.raises(FileLockTimeout):
        face.acquire(target, timeout=None, retry={"retries": 2, "min_timeout": 0.001})
    face.release(handle)


def test_a_lock_that_becomes_free_within_a_pause_is_acquired(target: Path, within: Any) -> None:
    async def main() -> None:
        holder = await sidecar.acquire_file_lock(target, payload={})
        pauses = Retry(retries=1, min_timeout=600, max_timeout=600)
        waiter = asyncio.create_task(sidecar.acquire_file_lock(target, payload={}, retry=pauses))
        await asleep(waiter)
        await holder.release()
        await (await waiter).release()

    with within(60.0):
        asyncio.run(main())


def test_the_retries_reach_the_acquisition(face: Face, target: Path, lock: Path) -> None:
    put(lock, as_json(createdAt=moment(0)))
    retries: list[Any] = [Retry(retries=0), {"retries": 0}, {"retries": 2, "min_timeout": 0.001}]
    for retry in retries:
        with pytest.raises(FileLockTimeout):
            face.acquire(target, timeout=None, retry=retry)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"timeout": -1}, ValueError, "timeout"),
    ({"timeout": float("nan")}, ValueError, "timeout"),
    ({"timeout": "1"}, TypeError, "timeout"),
    ({"stale": -1}, ValueError, "stale"),
    ({"stale": float("nan")}, ValueError, "stale"),
    ({"stale": None}, TypeError, "stale"),
    ({"stale": True}, TypeError, "stale"),
    ({"retry": {"retries": -1}}, ValueError, "retries"),
    ({"retry": {"retries": 2**53}}, ValueError, "retries"),
    ({"retry": {"retries": 1.5}}, TypeError, "retries"),
    ({"retry": {"retries": True}}, TypeError, "retries"),
    ({"retry": {"factor": -1}}, ValueError, "factor"),
    ({"retry": {"factor": float("inf")}}, ValueError, "factor"),
    ({"retry": Retry(min_timeout=float("nan"))}, ValueError, "min_timeout"),
    ({"retry": {"max_timeout": -1}}, ValueError, "max_timeout"),
    ({"retry": {"min_timeout": 2}}, ValueError, "above max_timeout"),
    ({"retry": {"minTimeout": 2}}, TypeError, "retry must be a Retry"),
    ({"retry": 3}, TypeError, "retry must be a Retry"),
    ({"stale_recovery": "remove"}, ValueError, "stale_recovery"),
    ({"reentrant_owner": 3}, TypeError, "reentrant_owner"),
    ({"reentrant_owner": "one", "allow_reentrant": True}, ValueError, "pass only one of them"),
    ({"parse_payload": "json"}, TypeError, "parse_payload must be a function"),
    ({"parse_payload": _coroutine}, TypeError, "parse_payload must be a plain function"),
    ({"on_compromised": 3}, TypeError, "on_compromised must be a function"),
    ({"on_compromised": _coroutine}, TypeError, "on_compromised must be a plain function"),
    ({"compromise_check_interval": -1}, ValueError, "compromise_check_interval"),
    ({"compromise_check_interval": 0.0001}, ValueError, "compromise_check_interval"),
    ({"compromise_check_interval": 2147484}, ValueError, "compromise_check_interval"),
    ({"compromise_check_interval": "1"}, TypeError, "compromise_check_interval"),
    ({"lock_root": "/dev/null"}, InvalidPath, "is not a directory"),
    ({"lock_root": "/nowhere/at/all"}, InvalidPath, "cannot be used"),
    ({"lock_root": "/usr"}, InvalidPath, "does not contain"),
    ({"should_reclaim": True}, TypeError, "should_reclaim must be a function"),
    ({"should_remove_stale_lock": "yes"}, TypeError, "should_remove_stale_lock must be a function"),
    ({"stale": -(10**400)}, ValueError, "stale"),
    ({"retry": {"max_timeout": 10**400}}, ValueError, "max_timeout"),
    ({"payload": None}, TypeError, "payload is missing"),
    ({"payload": [1]}, TypeError, "payload must be a mapping"),
    ({"payload": lambda: 3}, TypeError, "payload must be a mapping"),
    ({"payload": {"x": object()}}, ValueError, "JSON"),
    ({"payload": {"holdfast": "1 g"}}, ValueError, "holdfast's own"),
    ({"manager_key": 3}, TypeError, "key"),
    ({"manager_key": ""}, TypeError, "key"),
    ({"staleMs": 30_000}, TypeError, "unknown option 'staleMs'"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD)
def test_an_option_that_makes_no_sense_is_refused(
    face: Face, target: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        face.acquire(target, **options)
    assert list(target.parent.iterdir()) == []


def test_a_payload_is_required(target: Path) -> None:
    with pytest.raises(TypeError, match="payload is missing"):
        sidecar.acquire_file_lock_sync(target)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="payload is missing"):
        asyncio.run(sidecar.acquire_file_lock(target))  # type: ignore[call-arg]


def test_an_error_without_a_reason_is_a_whole_sentence(target: Path, lock: Path) -> None:
    put(lock, b"garbage", LONG)
    with pytest.raises(FileLockStale) as caught:
        sidecar.acquire_file_lock_sync(target, payload={})
    assert "; ." not in str(caught.value)
    assert caught.value.holder is not None
    assert caught.value.holder.pid is None


# -- the later options -------------------------------------------------------------------------------------------------


def test_a_root_that_was_exchanged_is_not_locked_in(face: Face, disk: Path) -> None:
    """Between the check and the attempt, and after it."""
    root, calls = disk / "root", []

    def exchange() -> dict[str, Any]:
        root.rename(disk / f"before {len(calls)}")
        root.mkdir()
        calls.append(1)
        return {}

    root.mkdir()
    with pytest.raises(InvalidPath, match="has been replaced"):
        face.acquire(disk / "state", lock_root=root, lock_path=root / "l.lock", payload=exchange)
    assert not list(root.iterdir())
    put(root / "l.lock", as_json(createdAt=moment(LONG)))
    options: dict[str, Any] = {"should_remove_stale_lock": lambda _: not exchange(), **REMOVE}
    with pytest.raises(InvalidPath, match="has been replaced"):
        face.acquire(disk / "state", lock_root=root, lock_path=root / "l.lock", **options)
    assert not list(root.iterdir())


def test_a_root_on_a_server_does_not_block_the_event_loop(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def realpath(path: str) -> str:
        threads.append(threading.current_thread())
        return path

    async def main() -> None:
        options: dict[str, Any] = {"lock_root": disk, "lock_path": disk / "l", "payload": {}}
        async with await sidecar.acquire_file_lock(tmp_path / "state.json", **options):
            pass

    monkeypatch.setattr(type(environment()), "may_block", lambda _self, path: path.startswith(str(disk)))
    monkeypatch.setattr("holdfast.sidecar.options.os.path.realpath", realpath)
    asyncio.run(main())
    assert threads
    assert threading.main_thread() not in threads


def test_a_coroutine_is_refused_as_a_parsed_payload(face: Face, target: Path, lock: Path) -> None:
    put(lock, b"x", LONG)
    for parse in COROUTINES[-2:]:
        with pytest.raises(TypeError, match="parse_payload must be a plain function"):
            face.acquire(target, parse_payload=parse)
    assert lock.read_bytes() == b"x"


def test_a_parser_is_not_shown_a_lock_that_is_being_created(face: Face, target: Path, lock: Path) -> None:
    put(lock, b"")
    with pytest.raises(FileLockTimeout):
        face.acquire(target, parse_payload=pytest.fail)


def test_a_loss_is_reported_only_on_request(face: Face, target: Path, lock: Path) -> None:
    told: list[sidecar.CompromisedInfo] = []
    for interval, times in ((0, 0), (None, 1)):
        handle = face.acquire(target, on_compromised=told.append, compromise_check_interval=interval)
        lock.unlink()
        assert not face.is_held(handle)  # finds the loss, unless another look was faster
        face._do(asyncio.sleep(0.01)) if face.awaited else None
        face.release(handle)
        assert told == [sidecar.CompromisedInfo(str(lock), str(target))] * times


@pytest.mark.parametrize("awaited", [False, True])
def test_a_loss_without_events_is_noticed_as_often_as_asked(
    awaited: bool, target: Path, lock: Path, monkeypatch: pytest.MonkeyPatch, within: Any
) -> None:
    """K3: without events, the hold is checked at the requested interval, even beside a hold with a longer one."""
    monkeypatch.setattr(type(environment()), "events_reach", lambda _self, _path: False)
    looks: list[str] = []
    look = Keeper._look

    def counted(keeper: Keeper, held: Any) -> None:
        looks.append(held.path)
        look(keeper, held)

    monkeypatch.setattr(Keeper, "_look", counted)
    told = threading.Event()
    face = Face(awaited=awaited)
    idle = sidecar.acquire_file_lock_sync(
        target.with_name("idle"), payload={}, on_compromised=print, compromise_check_interval=3600.0
    )
    try:
        handle = face.acquire(target, on_compromised=lambda _: told.set(), compromise_check_interval=0.01)
        with within(15.0):  # once a second would take twice as long
            eventually(lambda: looks.count(str(lock)) >= 30, what="the looks")
        lock.unlink()
        with within(15.0):
            while not told.is_set():
                face._do(asyncio.sleep(0.001)) if awaited else told.wait(0.001)
        face.release(handle)
    finally:
        idle.release()
        face.close()


def test_a_loss_is_reported_though_its_loop_is_closed(target: Path, lock: Path) -> None:
    told: list[object] = []

    async def main() -> sidecar.FileLockHandle:
        return await sidecar.acquire_file_lock(target, payload={}, on_compromised=told.append)

    handle = asyncio.run(main())
    lock.unlink()
    assert not asyncio.run(handle.verify_still_held())
    eventually(lambda: told, what="the news")
    asyncio.run(handle.release())


# -- releasing ---------------------------------------------------------------------------------------------------------


def _made_anew(lock: Path) -> None:
    data = lock.read_bytes()
    lock.unlink()
    lock.write_bytes(data)


def _trimmed(lock: Path) -> None:
    lock.write_bytes(lock.read_bytes().strip())


def _directory(lock: Path) -> None:
    lock.unlink()
    lock.mkdir()


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    # the change of the lock file, and whether a file is there after the release
    "gone": (lambda lock: lock.unlink(), False),
    "another's": (_replaced, True),
    "written over": (_rewritten, True),
    "another inode with the same bytes": (_made_anew, True),
    "trimmed": (_trimmed, True),
    "a directory": (_directory, True),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("looked", [False, True], ids=["", "after a look"])
def test_a_release_removes_only_its_own_lock_and_does_not_raise(
    face: Face, target: Path, lock: Path, change: str, looked: bool
) -> None:
    act, there = CHANGES[change]
    handle = face.acquire(target)
    act(lock)
    before = lock.lstat() if there else None
    if looked:
        assert not face.is_held(handle)
    face.release(handle)
    assert lock.exists() is there
    assert before is None or (lock.lstat().st_ino, lock.lstat().st_mtime) == (before.st_ino, before.st_mtime)
    assert not face.is_held(handle)


# -- with_file_lock ----------------------------------------------------------------------------------------------------


def test_the_body_runs_with_the_lock_and_its_result_is_returned(face: Face, target: Path, lock: Path) -> None:
    assert face.with_lock(target, lock.exists) is True
    assert not lock.exists()
    with pytest.raises(LookupError):
        face.with_lock(target, lambda: {}["x"])
    assert not lock.exists()
    assert face.with_lock(target, lock.unlink) is None, "a loss is no error"


def test_a_coroutine_function_runs_before_the_release(target: Path, lock: Path) -> None:
    async def body() -> str:
        await asyncio.sleep(0)
        return "held" if lock.exists() else "free"

    async def main() -> str:
        return await sidecar.with_file_lock(target, body, payload={})

    assert asyncio.run(main()) == "held"

    class Body:
        async def __call__(self) -> None:
            raise AssertionError("called")

    for asynchronous in (body, Body()):
        with pytest.raises(TypeError, match="coroutine function"):
            sidecar.with_file_lock_sync(target, asynchronous, payload={})
    assert not lock.exists()


def test_a_handle_releases_at_the_end_of_its_block(target: Path, lock: Path) -> None:
    with sidecar.acquire_file_lock_sync(target, payload={}) as handle:
        assert handle.verify_still_held()
    assert not lock.exists()

    async def main() -> None:
        async with await sidecar.acquire_file_lock(target, payload={}) as handle:
            assert await handle.verify_still_held()
        assert not lock.exists()

    asyncio.run(main())


def test_no_body_runs_with_a_handle_that_was_released(target: Path) -> None:
    ran: list[str] = []
    handle = sidecar.acquire_file_lock_sync(target, payload={})
    handle.release()
    with pytest.raises(NotHeld), handle:
        ran.append("a thread")

    async def main() -> None:
        handle = await sidecar.acquire_file_lock(target, payload={})
        await handle.release()
        with pytest.raises(NotHeld):
            async with handle:
                ran.append("a task")

    asyncio.run(main())
    assert not ran


def test_a_loss_is_a_note_on_the_error_of_the_body(face: Face, target: Path, lock: Path) -> None:
    def body() -> None:
        lock.unlink()
        raise LookupError("the news")

    with pytest.raises(LookupError, match="the news") as caught:
        face.with_lock(target, body)
    assert "was removed" in "".join(caught.value.__notes__)


def test_a_cancelled_wait_leaves_nothing(target: Path, lock: Path) -> None:
    async def main() -> None:
        async with await sidecar.acquire_file_lock(target, payload={}):
            waiter = asyncio.create_task(sidecar.acquire_file_lock(target, payload={}))
            await asleep(waiter)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert list(target.parent.iterdir()) == [lock]

    asyncio.run(main())


def test_a_release_wakes_a_waiting_task(target: Path) -> None:
    async def main() -> None:
        holder = await sidecar.acquire_file_lock(target, payload={})
        waiter = asyncio.create_task(sidecar.acquire_file_lock(target, payload={}))
        await asleep(waiter)
        await holder.release()
        await (await asyncio.wait_for(waiter, 10)).release()

    asyncio.run(main())


@pytest.mark.parametrize("state", ["fresh", "old createdAt", "empty, young"])
def test_a_judgement_in_a_thread_counts(target: Path, lock: Path, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network filesystem each step runs in a thread, callbacks included."""
    monkeypatch.setattr(type(environment()), "may_block", lambda _self, _path: True)
    face = Face(awaited=True)
    try:
        content, age, kind = STATES[state]
        put(lock, content(), age)
        with pytest.raises(FileLockStale if kind == STALE else FileLockTimeout):
            face.acquire(target)
        if kind == STALE:
            handle = face.acquire(target, should_remove_stale_lock=yes, **REMOVE)
            assert face.is_held(handle)
            face.release(handle)
            assert not lock.exists()
    finally:
        face.close()


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_says_who_holds_and_survives_a_pickle(face: Face, target: Path, lock: Path) -> None:
    put(lock, as_json(pid=1, createdAt=moment(0)))
    with pytest.raises(FileLockTimeout, match=r"could not get .*process 1") as timeout:
        face.acquire(target)
    put(lock, as_json(pid=1, createdAt=moment(LONG)))
    with pytest.raises(FileLockStale, match=r"is stale, as it is older than 30 s: held by process 1.*remove") as stale:
        face.acquire(target)
    assert isinstance(timeout.value, (AcquireTimeout, TimeoutError))
    assert isinstance(stale.value, LockStale)
    assert (timeout.value.code, stale.value.code) == ("file_lock_timeout", "file_lock_stale")
    for error in (timeout.value, stale.value):
        again = pickle.loads(pickle.dumps(error))
        for one in (error, again):
            assert type(one) is type(error)
            assert (one.lock_path, one.normalized_target_path) == (str(lock), str(target))
            assert (one.protocol, str(one), one.holder) == ("sidecar", str(error), error.holder)


# -- processes ---------------------------------------------------------------------------------------------------------


def _python(code: str, *arguments: object) -> str:
    words = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()


def test_a_process_that_ends_releases_its_locks(target: Path, lock: Path) -> None:
    code = """
import os, sys
from holdfast import sidecar
sidecar.acquire_file_lock_sync(sys.argv[1], payload={"pid": os.getpid()})
print(os.path.exists(sys.argv[1] + ".lock"))
"""
    assert _python(code, target) == "True"
    assert not lock.exists()


def test_the_threads_form_does_not_load_asyncio(target: Path) -> None:
    code = """
import sys
from holdfast import sidecar
with sidecar.acquire_file_lock_sync(sys.argv[1], payload={}):
    print("asyncio" in sys.modules)
"""
    assert _python(code, target) == "False"


def test_a_dead_holder_is_taken_over_only_when_approved(target: Path, lock: Path) -> None:
    """By the letter, a lock fails closed even if its holder is proven dead."""
    code = """
import os, sys
from holdfast import sidecar
sidecar.acquire_file_lock_sync(sys.argv[1], payload={"pid": os.getpid()})
os._exit(0)
"""
    _python(code, target)
    before = lock.read_bytes()
    for options, error in (({}, FileLockTimeout), ({"stale": 0.0}, FileLockStale)):
        with pytest.raises(error):
            sidecar.acquire_file_lock_sync(target, payload={}, timeout=0, **options)  # type: ignore[arg-type]
        assert lock.read_bytes() == before
    with sidecar.acquire_file_lock_sync(
        target,
        payload={},
        should_reclaim=lambda params: params.payload is not None and not _lives(params.payload["pid"]),
        should_remove_stale_lock=lambda snapshot: snapshot.payload is not None and not _lives(snapshot.payload["pid"]),
        stale_recovery="remove-if-unchanged",
    ):
        assert lock.read_bytes() != before


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- documentation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", sorted(sidecar.FileLockOptions.__annotations__))
def test_every_option_is_explained(option: str) -> None:
    assert f"- `{option}`" in (sidecar.__doc__ or "")
    assert f"`{option}`" in (ROOT / "docs" / "sidecar.md").read_text(encoding="utf-8")


def test_every_public_name_is_documented() -> None:
    assert sorted(sidecar.__all__) == sidecar.__all__
    silent = [name for name in sidecar.__all__ if not (getattr(sidecar, name).__doc__ or "").strip()]
    assert not silent


def test_the_example_of_the_page_runs(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "sidecar.md").read_text(encoding="utf-8")
    example = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    monkeypatch.chdir(disk)
    exec(compile(example, "docs/sidecar.md", "exec"), {"__name__": "__main__"})
    assert json.loads((disk / "state.json").read_text()) == {"runs": 1}
    assert [path.name for path in disk.iterdir()] == ["state.json"]
    assert holdfast.sidecar is sidecar
