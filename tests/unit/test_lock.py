"""`Lock` and `Hold`, `AsyncLock` and `AsyncHold`, as a caller uses them (lock.py, aio.py)."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import functools
import gc
import math
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AcquireCancelled,
    AcquireTimeout,
    Hold,
    Liveness,
    Lock,
    LockLost,
    NotHeld,
    Semaphore,
    WouldDeadlock,
    acquire_all,
    beads,
    sema,
    semats,
)
from holdfast import lock as handles
from holdfast._drivers.background import Keeper
from holdfast._platform import environment
from unit.elsewhere import elsewhere
from unit.stepping import Stepped, sema_record

PATIENCE = 60.0


@pytest.fixture
def path(disk: Path) -> Path:
    return disk / "l"


def test_a_lock_is_held_within_its_block_and_no_longer(face: Any, path: Path) -> None:
    lock = face.Lock(path, tag="mine")
    assert not path.exists(), "making a lock touches nothing"
    with lock as hold:
        assert isinstance(hold, face.Hold)
        assert (hold.path, lock.path, lock.protocol) == (str(path), str(path), "sema")
        assert hold.record.pid == os.getpid()
        assert hold.record.tag == "mine"
        assert hold.recovered_from is None
        assert not hold.lost
        hold.ensure_held()
        assert face.Lock(path).try_acquire() is None
        assert Lock(path).try_acquire() is None
    assert not path.exists()
    with pytest.raises(NotHeld, match=str(path)):
        hold.ensure_held()
    hold.release()
    assert not hold.lost


def test_no_body_runs_under_a_hold_that_has_been_released(face: Any, path: Path) -> None:
    hold = face.Lock(path).acquire()
    with hold:
        pass
    both = face.acquire_all([face.Lock(path), face.Lock(path.with_name("other"))])
    both.release()
    for released in (hold, both):
        with pytest.raises(NotHeld, match="released by this handle"), released:
            pytest.fail("entered")


def test_a_timeout_is_a_timeout_error_and_knows_the_holder(face: Any, path: Path) -> None:
    with face.Lock(path, tag="why"):
        for attempt in (lambda: face.Lock(path, timeout=0.01).acquire(), lambda: face.Lock(path).acquire(timeout=0)):
            with pytest.raises(TimeoutError) as caught:
                attempt()
            error = caught.value
            assert isinstance(error, AcquireTimeout)
            assert (error.path, error.protocol) == (str(path), "sema")
            assert error.holder is not None
            assert (error.holder.pid, error.holder.tag) == (os.getpid(), "why")
        with pytest.raises(ValueError, match="timeout"):
            face.Lock(path).acquire(timeout=-1)


def test_a_lock_object_can_be_used_again(face: Any, path: Path) -> None:
    lock = face.Lock(path)
    for _ in range(3):
        with lock:
            pass
    first = lock.acquire()
    first.release()
    second = lock.acquire()
    first.release()
    second.ensure_held()
    second.release()
    with lock.acquire() as hold:
        with hold:
            pass
        assert not path.exists()


def test_an_error_in_the_body_releases_the_lock(face: Any, path: Path) -> None:
    for error in (ZeroDivisionError, asyncio.CancelledError):
        with pytest.raises(error), face.Lock(path):
            raise error
        assert not path.exists()


def test_the_end_of_a_lost_lock_raises(face: Any, path: Path) -> None:
    with pytest.raises(LockLost), face.Lock(path):
        path.unlink()

    def fail_after_the_loss() -> None:
        with face.Lock(path):
            path.unlink()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fail_after_the_loss()
    assert any(str(path) in note for note in caught.value.__notes__), "the body's own error is the news"
    hold = face.Lock(path).acquire()
    path.write_bytes(sema_record(1, 1))
    assert hold.lost
    with pytest.raises(LockLost):
        hold.ensure_held()
    with pytest.raises(LockLost):
        hold.release()
    assert hold.lost
    assert repr(hold) == f"<holdfast.{face.prefix}Hold {str(path)!r} lost>"
    assert path.read_bytes() == sema_record(1, 1)


def test_a_decorated_function_runs_with_the_lock(path: Path) -> None:
    @Lock(path)
    def work(a: int, *, b: int) -> tuple[int, bool]:
        """Doc."""
        return a + b, path.exists()

    assert work(1, b=2) == (3, True)
    assert not path.exists()
    assert (work.__name__, work.__doc__) == ("work", "Doc.")


def test_generators_cannot_be_decorated(path: Path) -> None:
    async def async_generator():  # type: ignore[no-untyped-def]
        yield

    def generator():  # type: ignore[no-untyped-def]
        yield

    for function in (async_generator, generator):
        for one in (function, functools.partial(function)):
            with pytest.raises(TypeError, match=function.__name__):
                Lock(path)(one)


def test_a_decorated_function_whose_coroutine_would_run_without_the_lock_is_refused(path: Path) -> None:
    class Job:
        async def __call__(self) -> bool:
            return path.exists()

        @staticmethod
        async def work() -> bool:
            return path.exists()

    def wrapped(*arguments: object) -> Any:
        return Job.work(*arguments)

    for function in (Job(), Job.__dict__["work"], wrapped):
        locked: Any = Lock(path)(function)
        with pytest.raises(TypeError, match="without the lock"):
            locked()
        assert not path.exists()


def test_a_class_cannot_be_decorated(path: Path) -> None:
    with pytest.raises(TypeError, match="Path is a class"):
        Lock(path)(Path)


def test_a_decorated_coroutine_runs_with_the_lock_and_lets_its_loop_run(path: Path) -> None:
    @Lock(path, tag="t")
    async def work() -> str | None:
        holder = Lock(path).status().holder
        return holder and holder.tag

    async def main() -> list[str | None]:
        return await asyncio.wait_for(asyncio.gather(work(), work()), PATIENCE)

    assert asyncio.run(main()) == ["t", "t"]
    assert not path.exists()


def test_a_wait_for_oneself_is_refused(face: Any, path: Path) -> None:
    lock = face.Lock(path)
    with lock:
        for waits in (lock.acquire, lock.wait, face.Lock(path).__enter__):
            with pytest.raises(WouldDeadlock, match=str(path)):
                waits()
        with pytest.raises(AcquireTimeout):
            lock.acquire(timeout=0.01)
        assert lock.try_acquire() is None
    assert not path.exists()


def test_an_owner_enters_again_and_the_last_to_leave_releases(face: Any, path: Path) -> None:
    with face.Lock(path, owner="me") as outer:
        with face.Lock(path, owner="me") as inner:
            inner.ensure_held()
            assert face.Lock(path, owner="you").try_acquire() is None
        with pytest.raises(NotHeld):
            inner.ensure_held()
        inner.release()
        inner.release()
        with Lock(path, owner="me") as beside:
            assert isinstance(beside, Hold)
        outer.ensure_held()
        assert path.exists()
    assert not path.exists()


@pytest.mark.parametrize("protocol", ["sema", "flock"])
def test_an_owner_does_not_wait_until_its_own_lock_is_free(face: Any, path: Path, protocol: str) -> None:
    """It could acquire it."""
    mine = face.Lock(path, protocol=protocol, owner="me")
    with mine:
        assert mine.wait()
        assert mine.wait(timeout=0)
        assert not face.Lock(path, protocol=protocol, owner="you").wait(timeout=0)
        with pytest.raises(WouldDeadlock):
            face.Lock(path, protocol=protocol, owner="you").wait()
    with face.Lock(path, protocol=protocol, owner="you"):
        assert not mine.wait(timeout=0)


@pytest.mark.parametrize("events", [True, False])
def test_each_handle_of_an_owner_is_told_of_the_loss(
    face: Any, path: Path, events: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own `on_lost`, whether the first handle has one, and whether one raises; not after the handle's
    release."""
    if not events:
        monkeypatch.setattr(type(environment()), "events_reach", lambda _self, _path: False)
    told: queue.SimpleQueue[str] = queue.SimpleQueue()

    def tells(name: str) -> Any:
        def tell(_lost: LockLost) -> None:
            told.put(name)
            raise ValueError(name)

        return face.Lock(path, owner="me", on_lost=tell)

    one, other = tells("one"), tells("other")
    first = face.Lock(path, owner="me").acquire()
    holds = [lock.acquire() for lock in (one, tells("released"), one, other)]
    holds.pop(1).release()
    path.unlink()
    assert [told.get(timeout=PATIENCE) for _ in range(2)] == ["one", "other"]
    for hold in (first, *holds):
        assert hold.lost
        with pytest.raises(LockLost):
            hold.ensure_held()
        with contextlib.suppress(LockLost):
            hold.release()
    assert told.empty()
    for thread in threading.enumerate():
        if thread.name == "holdfast-lost":
            thread.join(PATIENCE)  # it logs what was raised, and reads this file for that


def test_the_release_of_each_handle_of_an_owner_tells_of_the_loss(face: Any, path: Path) -> None:
    holds = [face.Lock(path, owner="me").acquire() for _ in range(3)]
    holds.pop().release()
    path.write_text("another's")
    for hold in holds:
        with pytest.raises(LockLost, match="written over"):
            hold.release()
        hold.release()
    assert path.read_text() == "another's"
    path.unlink()
    mine = semats.Semaphore(path)
    holds = [Lock(path, protocol="semats", owner="me").acquire() for _ in range(3)]
    path.write_text("another's")
    with pytest.raises(LockLost):
        mine.release()
    for hold in holds:
        hold.release()
    assert path.read_text() == "another's"
    path.unlink()


def test_a_thread_inside_holds_though_its_owner_releases_in_another(path: Path) -> None:
    """One thread releases while the other enters again: a thread inside always holds."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(300):
                with Lock(path, owner="both", timeout=PATIENCE) as hold:
                    hold.ensure_held()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not path.exists()


def test_a_hold_can_be_released_by_another_thread(path: Path) -> None:
    hold = Lock(path).acquire()
    thread = threading.Thread(target=hold.release)
    thread.start()
    thread.join()
    assert not path.exists()


def test_a_thread_that_threading_has_not_started_gets_no_thread_object(path: Path) -> None:
    """Python 3.11.2 (Debian 12) would keep it for good."""
    seen: queue.SimpleQueue[object] = queue.SimpleQueue()

    def work() -> None:
        with Lock(path) as hold:
            seen.put(hold.record.pid)
        seen.put(_thread.get_ident() in [one.ident for one in threading.enumerate()])

    _thread.start_new_thread(work, ())
    assert (seen.get(timeout=60), seen.get(timeout=60)) == (os.getpid(), False)


def test_one_lock_object_keeps_the_holds_of_its_threads_apart(path: Path) -> None:
    lock, order = Lock(path), []

    def work(name: int) -> None:
        for _ in range(20):
            with lock as hold:
                order.append(name)
                hold.ensure_held()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(order) == 80
    assert not path.exists()
    assert not lock._entered


def test_a_status_is_true_and_changes_nothing(face: Any, path: Path, dead_pid: int) -> None:
    lock = face.Lock(path)
    free = lock.status()
    assert (free.locked, free.stale, free.holder, free.record) == (False, False, None, None)
    assert free.path == str(path)
    with face.Lock(path, tag="t"):
        held = lock.status()
        assert (held.locked, held.stale, held.liveness) == (True, False, Liveness.ALIVE)
        assert held.holder is not None
        assert held.holder.pid == os.getpid()
        assert held.age is not None
        assert held.age < 60
    path.write_bytes(sema_record(dead_pid, 1000))
    stale = lock.status()
    assert (stale.locked, stale.stale, stale.liveness) == (False, True, Liveness.DEAD)
    assert path.exists(), "looking changes nothing"
    with lock as hold:
        assert hold.recovered_from is not None
        assert hold.recovered_from.pid == dead_pid


def test_waiting_until_a_lock_is_free_acquires_nothing(face: Any, path: Path) -> None:
    lock = face.Lock(path)
    assert lock.wait()
    with face.Lock(path):
        assert not lock.wait(timeout=0)
        assert not face.Lock(path, timeout=0.01).wait()
        waiting = face.begin(lock.wait)
    assert waiting.result()
    assert lock.wait(0)
    assert not path.exists()


def test_breaking_a_lock_returns_its_record(face: Any, path: Path) -> None:
    assert face.Lock(path).break_lock() is None
    hold = face.Lock(path, tag="broken").acquire()
    record = face.Lock(path).break_lock()
    assert record is not None
    assert record.tag == "broken"
    assert hold.lost
    with pytest.raises(LockLost):
        hold.release()


def test_a_loss_calls_on_lost(face: Any, path: Path) -> None:
    told = threading.Event()
    hold = face.Lock(path, on_lost=lambda _error: told.set()).acquire()
    face.Lock(path).break_lock()
    assert told.wait(PATIENCE)
    with pytest.raises(LockLost):
        hold.release()


def drop(*holds: object) -> None:
    """Drop the last references to these handles."""
    refs = [ref for one in holds if (ref := getattr(one, "_ref", None)) is not None]
    del holds
    while not all(ref.dropped for ref in refs):  # without the GIL, another thread's objects may live longer
        gc.collect()


def forget_all() -> None:
    for held in list(environment().holds.values()):
        held.release()


def test_a_dropped_handle_keeps_the_lock_and_makes_a_warning(face: Any, path: Path) -> None:
    """H8."""
    with pytest.warns(ResourceWarning, match=f"{path} was dropped without release.*held until this process ends"):
        drop(face.Lock(path).acquire())
    assert face.Lock(path).try_acquire() is None
    assert path.exists()
    forget_all()


def test_a_process_with_a_dropped_handle_is_not_told_to_wait_for_its_own_end(face: Any, path: Path) -> None:
    with pytest.warns(ResourceWarning):
        drop(face.Lock(path).acquire())
    with pytest.raises(AcquireTimeout, match=r"This very process holds it, by a handle that was dropped") as caught:
        face.Lock(path).acquire(timeout=0)
    assert "Wait until process" not in str(caught.value)
    with pytest.raises(WouldDeadlock, match="by a handle that was dropped without release"):
        face.Lock(path).acquire()
    forget_all()
    with (
        face.Lock(path),
        pytest.raises(AcquireTimeout, match="This very process holds it, by another handle") as caught,
    ):
        face.Lock(path).acquire(timeout=0)
    assert "Wait until process" not in str(caught.value)


def test_another_process_that_holds_the_lock_is_not_taken_for_this_one(path: Path) -> None:
    """A forked child is not the holder of its parent's hold."""

    def child() -> str:
        with pytest.raises(AcquireTimeout) as caught:
            Lock(path).acquire(timeout=0)
        return str(caught.value)

    with Lock(path):
        said = elsewhere(child)
    assert f"Wait until process {os.getpid()} releases it" in said
    assert "This very process" not in said


def test_slots_of_dropped_handles_are_told_apart(face: Any, path: Path) -> None:
    gpu = face.Semaphore(path, slots=2)
    kept = gpu.acquire()
    with pytest.warns(ResourceWarning, match=r"l\.1\.lock was dropped"):
        drop(gpu.acquire())
    with pytest.raises(AcquireTimeout, match="This very process holds 1 of the slots by handles that were dropped"):
        gpu.acquire(timeout=0)
    kept.release()
    forget_all()


@pytest.mark.needs("linux")
def test_readers_of_this_process_are_not_blamed_for_each_other(path: Path) -> None:
    """A reader that is in nobody's way is no reason for a refusal."""
    reader = Lock(path, protocol="flock", shared=True).acquire()
    with pytest.raises(AcquireTimeout, match="This very process holds it, by another handle"):
        Lock(path, protocol="flock").acquire(timeout=0)
    Lock(path, protocol="flock", shared=True).acquire(timeout=0).release()
    reader.release()


def test_a_handle_that_something_else_releases_makes_no_warning(path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """H3: released by a `with`, or by a face that goes by the path; dropped after a release, a loss, or a fork."""
    with Lock(path):
        gc.collect()
    with Lock(path).acquire() as hold:
        del hold
        gc.collect()
    with acquire_all([Lock(path), Semaphore(path, slots=1)]) as holds:
        del holds
        gc.collect()
    Lock(path).acquire().release()
    lost = Lock(path).acquire()
    Lock(path).break_lock()
    assert lost.lost
    del lost
    with pytest.raises(LockLost):
        forget_all()
    semats.Semaphore(path).try_acquire()
    semats.Semaphore(path).release()
    drop(sema.Semaphore(path).try_acquire())
    beads.acquire(path.parent, "me")
    beads.release(path.parent)
    inherited = [Lock(path).acquire()]
    child = os.fork()
    if child == 0:
        inherited.clear()
        os._exit(len(recwarn))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    inherited[0].release()
    assert [str(one.message) for one in recwarn if one.category is ResourceWarning] == []  # not of threads at the fork


def test_a_suspended_with_in_a_cycle_makes_no_warning(path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """H3: the collector may end the generator, which releases, before or after it looks at the handle."""

    def entered(me: list[object]) -> Iterator[None]:
        with Lock(path).acquire() as hold:
            me.append(hold)
            yield

    me: list[object] = []
    me.append(entered(me))
    next(me[0])  # type: ignore[call-overload]
    del me
    gc.collect()
    assert not path.exists()
    assert not recwarn.list


def test_a_keeper_that_cannot_start_leaves_no_lock_held(face: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: Keeper, _held: object, _every: float) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Keeper, "keep", fail)
    lock = face.Lock(path, heartbeat=0.05)
    for acquire in (lock.acquire, lock.try_acquire):
        with pytest.raises(RuntimeError, match="thread"):
            acquire()
        assert not path.exists()
        assert not environment().holds


def test_a_hold_that_is_due_after_the_keeper_wakes_is_not_given_to_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """background.py, K2."""
    given: list[object] = []
    lock = Lock(path)
    with lock:
        keeper = handles._keeper
        assert keeper is not None
    monkeypatch.setattr(Keeper, "keep", lambda _self, held, _every: given.append(held))
    for wakes in (0.0, math.inf):
        monkeypatch.setattr(keeper, "wakes", wakes)
        lock.acquire().release()
    assert len(given) == 1


def test_a_failing_thread_is_reported_and_started_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(handles, "_keeper", None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with Lock(path) as hold, caplog.at_level("ERROR"):
            assert path.exists(), "a lock without a heartbeat is a lock"
            keeper = handles._keeper
            assert keeper is not None
            assert keeper._thread is None
            patch.undo()
            hold.ensure_held()
            thread = keeper._thread
            assert thread is not None, "who looks at the hold tries again"
            assert thread.is_alive()
        assert "no thread keeps it fresh" in caplog.text
    import atexit

    atexit.unregister(keeper.release_all)
    with keeper._mutex:
        keeper._next_wake = 0.0
        keeper._ring()
    thread.join(PATIENCE)
    for fd in keeper._doorbell or ():
        environment().close(fd)


def test_a_long_wait_is_logged(
    path: Path, environments: Callable[..., Stepped], caplog: pytest.LogCaptureFixture, logged: threading.Event
) -> None:
    lock, env = Lock(path), environments()
    lock._env = env  # type: ignore[assignment]
    hold = Lock(path, tag="busy").acquire()
    clock = env.real.monotonic
    env.instead["monotonic"] = lambda: clock() - (0 if "watch" in env.steps else 1.3)
    with pytest.raises(AcquireCancelled):
        lock.acquire(timeout=None, cancel=logged)
    hold.release()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert str(path) in lines[0]
    assert "busy" in lines[0]


def test_a_representation_names_the_path_and_the_state(face: Any, path: Path) -> None:
    lock = face.Lock(path)
    hold = lock.acquire()
    assert repr(lock) == f"<holdfast.{face.prefix}Lock {str(path)!r} protocol=sema>"
    assert repr(hold) == f"<holdfast.{face.prefix}Hold {str(path)!r} held>"
    hold.release()
    assert repr(hold) == f"<holdfast.{face.prefix}Hold {str(path)!r} released>"


def test_a_child_does_not_own_its_parents_hold(face: Any, path: Path) -> None:
    with face.Lock(path) as hold:

        def in_the_child() -> tuple[bool, bool, str, str]:
            hold.release()
            free = face.Lock(path).try_acquire() is None
            with pytest.raises(NotHeld) as caught:
                hold.ensure_held()
            return hold.lost, free, str(caught.value), repr(hold)

        lost, refused, said, shown = elsewhere(in_the_child)
        assert (lost, refused) == (False, True)
        assert shown == f"<holdfast.{face.prefix}Hold {str(path)!r} of the parent process>"
        assert "forked" in said
        hold.ensure_held()


def test_the_lock_of_another_pid_namespace_is_not_judged_by_its_number(
    disk: Path, environments: Callable[..., Stepped]
) -> None:
    """Inside, the holder has a low pid, which belongs to another process outside: only the guard tells."""
    path = disk / "l"
    code = (
        "import sys, holdfast; h = holdfast.Lock(sys.argv[1], tag='inside').acquire(); print(h.record.pid, flush=True);"
        "sys.stdin.read()"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code, str(path)]
    pipe = subprocess.PIPE
    own = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=own) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stderr is not None
        pid = other.stdout.readline()
        if not pid:
            pytest.skip(f"PID namespaces are not permitted here: {other.stderr.read().decode().strip()}")
        assert int(pid) < 10
        lock = Lock(path)
        lock._env = environments()  # type: ignore[assignment]
        status = lock.status()
        assert (status.locked, status.liveness, status.evidence.source) == (True, Liveness.ALIVE, "guard")
        assert status.holder is not None
        assert status.holder.command is None, "the command of another process that has the number here"
        # The same record without a guard: nothing can be known.
        record = path.read_bytes()
        (disk / "copy").write_bytes(record.replace(b"=2 g ", b"=2 n "))
        assert Lock(disk / "copy").status().liveness is Liveness.UNKNOWN
        assert Lock(disk / "copy", stale_after=1).try_acquire() is None
        other.stdin.close()
    with Lock(path).acquire(timeout=PATIENCE):
        pass


def test_a_status_is_printed_as_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "the.lock"
    lock = Lock(path, tag="deploy v1")
    assert str(lock.status()) == f"{path} is free"
    with lock.acquire():
        said = str(lock.status())
        assert said.startswith(f"{path} is held by process {os.getpid()} (")
        assert " since " in said
        assert "for 'deploy v1'" in said
        status = lock.status()
        assert str(status) == f"{status}"
        assert repr(lock.status()).startswith("Status(")
    path.write_text("pid=999999999\ntimestamp=17\n")
    assert str(lock.status()).startswith(f"{path} can be taken over: held by process 999999999 since ")
    path.write_text("pid=x\n")
    assert str(lock.status()).startswith(f"{path}: its record cannot be used (the record's pid is not")


@pytest.mark.needs("flock", "linux")
def test_a_status_that_readers_share_is_printed_as_a_sentence(tmp_path: Path) -> None:
    readers = Lock(tmp_path / "the.lock", protocol="flock", shared=True)
    with readers.acquire():
        assert f"{readers.path} is free, and held by " in str(readers.status())


def test_the_status_of_a_semaphore_is_printed_as_a_sentence(tmp_path: Path) -> None:
    semaphore = Semaphore(tmp_path / "gpu", 2)
    assert str(semaphore.status()) == "2 of 2 slots are free"
    with semaphore.acquire():
        assert str(semaphore.status()).startswith(f"1 of 2 slots is free (slot 0: held by process {os.getpid()} (")
