"""Waiting for locks of the kernel alone, and looking at them (flock.py)."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast._core.attempt import Refusal
from holdfast._core.messages import refused, sentence
from holdfast._core.wait import Wait
from holdfast._platform.values import LockOwner
from holdfast.engines.file.acquire import look, wait_until_free
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.paths import queue_of
from holdfast.engines.file.queue import PATIENCE
from holdfast.engines.file.request import FileRequest
from holdfast.errors import WouldDeadlock
from holdfast.liveness import Liveness
from holdfast.lock import _log_waiting
from holdfast.model import Status
from holdfast.protocols import get
from unit.stepping import Clock, Contend, Contender, Stepped, is_ready

Environments = Callable[..., Stepped]
RECHECK = get("flock").recheck


@pytest.fixture
def path(disk: Path) -> Path:
    return disk / "l"


@pytest.fixture
def arrive(contend: Contend, clocked: Callable[[], Stepped], path: Path) -> Contend:
    """A contender for the lock that queues, in its own process unless one is given."""

    def make(env: Stepped | None = None, **options: object) -> Contender:
        return contend(path, env or clocked(), **{"timeout": None, "fair": True, "protocol": "flock", **options})

    return make


@pytest.fixture
def foreigner(path: Path) -> Iterator[Callable[..., int]]:
    """Lock the file as another program does; the descriptor."""
    fds: list[int] = []

    def lock(how: int = fcntl.LOCK_EX) -> int:
        fds.append(os.open(path, os.O_RDONLY | os.O_CREAT, 0o644))
        fcntl.flock(fds[-1], how | fcntl.LOCK_NB)
        return fds[-1]

    yield lock
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass


def release(contender: Contender) -> None:
    assert isinstance(contender.result, FileHold)
    contender.result.release()


def settled(contender: Contender) -> Wait:
    """Step on until the contender sleeps; the wait in which it does."""
    for _ in range(20):
        wait = contender.step()
        assert wait is not None
        if wait.fds and not is_ready(wait):
            return wait
    raise AssertionError("it does not come to rest")


def request(path: Path, **options: object) -> FileRequest:
    return FileRequest(str(path), {"protocol": "flock", **options})  # type: ignore[typeddict-item]


# -- F6, F8: the wait --------------------------------------------------------------------------------------------------


def test_a_waiter_comes_to_rest_and_stays_so(
    arrive: Contend, foreigner: Callable[..., int], clock: Clock, path: Path
) -> None:
    """WF2: a change just after the watch was armed makes it look once more, not for ever."""
    foreigner()
    waiter = arrive(fair=False)
    pauses = []
    for _ in range(8):
        wait = waiter.step()
        assert wait is not None
        pauses.append(wait.deadline - clock.now)
        clock.now = wait.deadline
    assert pauses[-4:] == pytest.approx([RECHECK] * 4)


def test_a_waiter_does_not_wake_itself(arrive: Contend, foreigner: Callable[..., int], path: Path) -> None:
    """F6: the one descriptor, opened once, becomes the hold's; none of its steps wakes waiters."""
    holder = foreigner()
    waiter, other = arrive(fair=False), arrive(fair=False)
    settled(waiter)
    asleep = settled(other)
    opened = waiter.env.steps.count("open_existing")
    for _ in range(5):
        waiter.step()
    assert not is_ready(asleep)
    assert waiter.env.steps.count("open_existing") == opened == 2  # the short way in, and the wait
    before = waiter.env.open_descriptors()
    os.close(holder)
    held = waiter.get()
    assert held.fd in before
    assert waiter.env.open_descriptors() == {held.fd}


def test_a_waiter_follows_the_path_to_another_file(arrive: Contend, foreigner: Callable[..., int], path: Path) -> None:
    """F6: the path names another file, locked by another process; then no file."""
    foreigner()
    waiter = arrive(fair=False)
    asleep = settled(waiter)
    path.unlink()
    second = foreigner()
    assert is_ready(asleep)
    asleep = settled(waiter)
    os.close(second)
    assert is_ready(asleep)
    assert waiter.get().identity == (path.stat().st_dev, path.stat().st_ino)


def test_a_removed_file_is_not_waited_for(arrive: Contend, foreigner: Callable[..., int], path: Path) -> None:
    """F6: the holder of a file without a name keeps nobody out."""
    foreigner()
    waiter = arrive(fair=False)
    asleep = settled(waiter)
    path.unlink()
    assert is_ready(asleep)
    assert waiter.get().identity == (path.stat().st_dev, path.stat().st_ino)


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY], ids=["read", "read and write", "write"])
def test_the_end_of_a_foreign_holder_makes_an_event(flags: int, arrive: Contend, path: Path) -> None:
    """F8: flock(1) opens for reading only."""
    fd = os.open(path, flags | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    waiter = arrive(fair=False)
    asleep = settled(waiter)
    os.close(fd)
    assert is_ready(asleep)
    waiter.get()


def test_a_holder_that_unlocks_and_keeps_the_file_open_is_noticed(
    arrive: Contend, foreigner: Callable[..., int], clock: Clock
) -> None:
    """F8: `flock -u 9` makes no event."""
    holder = foreigner()
    waiter = arrive(fair=False)
    asleep = settled(waiter)
    assert asleep.deadline <= clock.now + RECHECK
    assert RECHECK <= 0.1
    fcntl.flock(holder, fcntl.LOCK_UN)
    assert not is_ready(asleep)
    clock.now = asleep.deadline
    assert waiter.step() is None
    assert waiter.inside


def test_a_wait_without_events_polls(contend: Contend, environments: Environments, path: Path) -> None:
    holder = contend(path, protocol="flock")
    held = holder.get()
    waiter = contend(path, environments("events"), protocol="flock", timeout=None)
    waits = [waiter.step() for _ in range(20)]
    now = waiter.env.monotonic()
    assert all(wait is not None and not wait.fds and wait.deadline <= now + 0.025 for wait in waits)
    held.release()
    waiter.get()


# -- F7: looking without taking ----------------------------------------------------------------------------------------


def test_a_look_neither_takes_nor_keeps_the_lock(
    environments: Environments, foreigner: Callable[..., int], contend: Contend, path: Path
) -> None:
    """F7: status and wait find out by trying, and give back what they get."""
    for shared in (False, True):
        env = environments()
        path.touch()
        assert not look(env, request(path, shared=shared)).locked
        waiting = wait_until_free(env, [request(path, shared=shared)], 0, ())
        assert next(waiting, "free") == "free"
        assert not env.open_descriptors()
        fd = foreigner()
        assert look(env, request(path, shared=shared)).locked
        refusal = None
        try:
            next(wait_until_free(env, [request(path, shared=shared)], 0, ()))
        except StopIteration as done:
            refusal = done.value
        assert isinstance(refusal, Refusal)
        os.close(fd)


def test_a_lock_is_free_for_readers_while_readers_hold_it(
    environments: Environments, foreigner: Callable[..., int], path: Path
) -> None:
    """F7: not for a writer."""
    readers = [foreigner(fcntl.LOCK_SH) for _ in range(2)]
    env = environments()
    assert next(wait_until_free(env, [request(path, shared=True)], None, ()), "free") == "free"
    waiting = wait_until_free(env, [request(path)], None, ())
    for _ in range(5):
        assert isinstance(next(waiting, "free"), Wait)
    for reader in readers:
        os.close(reader)
    while isinstance(wait := next(waiting, "free"), Wait):
        assert wait.deadline < env.monotonic() + 1
    assert wait == "free"


def test_the_first_in_the_queue_is_not_passed_while_readers_are_inside(
    queued: Contend, arrive: Contend, clock: Clock
) -> None:
    """F7: to the reader behind it the lock seems idle, but the first waiter cannot have it."""
    reader = arrive(shared=True)
    reader.get()
    first = queued()
    for behind in (queued(shared=True), queued()):
        for _ in range(5):
            clock.now += 2 + PATIENCE
            assert behind.step() is not None
            clock.now += PATIENCE
            assert behind.step() is not None
    release(reader)
    clock.now += RECHECK
    assert first.step() is None
    assert first.inside


@pytest.mark.parametrize("shared", [False, True])
def test_a_stopped_waiter_does_not_keep_a_free_lock_from_all(
    shared: bool, queued: Contend, arrive: Contend, clock: Clock, path: Path
) -> None:
    """F7: the lock is free and the first waiter does nothing; after a while the next one goes in."""
    holder = arrive()
    holder.get()
    queued()  # and never steps again
    behind = queued(shared=shared)
    release(holder)
    for _ in range(4):
        clock.now += 2
        if behind.step() is None:
            break
    assert behind.inside
    release(behind)


# -- F9: readers and writers -------------------------------------------------------------------------------------------


def test_readers_do_not_wait_for_each_other(arrive: Contend, queued: Contend, clock: Clock) -> None:
    """F9: those inside, and those that have waited for a writer."""
    first = arrive(shared=True)
    first.get()
    second = arrive(shared=True)
    second.get()
    writer = queued()
    readers = [queued(shared=True) for _ in range(3)]
    release(first)
    release(second)
    writer.get()
    assert all(reader.step() is not None for reader in readers)
    release(writer)
    for reader in readers:
        assert reader.step() is None
    assert all(reader.inside for reader in readers)
    other = arrive(timeout=0)
    assert isinstance(other.run(), Refusal)
    for reader in readers:
        release(reader)
    arrive(timeout=0).get()


@pytest.mark.parametrize("same", [False, True], ids=["other process", "same process"])
@pytest.mark.parametrize("timeout", [0, 5, None])
def test_a_stream_of_readers_does_not_starve_a_writer(
    timeout: float | None, same: bool, arrive: Contend, queued: Contend, clocked: Callable[[], Stepped]
) -> None:
    """F9: a contender that comes later goes behind the waiting writer, also with timeout=0, and with fewer steps."""
    env = clocked()
    inside = arrive(env, shared=True)
    inside.get()
    writer = queued(env if same else None)
    late = arrive(env, shared=True, timeout=timeout)
    late.step()
    assert not late.inside
    if timeout == 0:
        assert isinstance(late.result, Refusal)
        assert "comes first" in sentence(late.result.status)
    release(inside)
    writer.get()
    release(writer)
    if timeout != 0:
        late.get()


def test_a_reader_within_a_reader_does_not_wait_for_a_writer(arrive: Contend, queued: Contend) -> None:
    """F9: its thread or task is inside already."""
    me: tuple[object, ...] = (object(),)
    outer = arrive(shared=True, context=me)
    outer.get()
    env = outer.env
    writer = queued()
    for timeout in (0, None):
        inner = arrive(env, shared=True, context=me, timeout=timeout)
        assert inner.step() is None
        assert inner.inside
        release(inner)
    another = arrive(env, shared=True, timeout=0)
    another.step()
    assert not another.inside
    release(outer)
    writer.get()


def test_a_reader_cannot_wait_for_itself_as_a_writer(
    arrive: Contend, clocked: Callable[[], Stepped], clock: Clock
) -> None:
    """F9: without a time limit it would wait for ever."""
    env, me = clocked(), (object(),)
    for inner, outer in ((False, True), (False, False), (True, False)):
        held = arrive(env, shared=outer, context=me).get()
        with pytest.raises(WouldDeadlock, match="shared hold cannot" if outer else "held by this very thread"):
            arrive(env, shared=inner, context=me).step()
        limited = arrive(env, shared=inner, context=me, timeout=1)
        assert limited.step() is not None
        clock.now += 1
        while limited.step() is not None:
            pass
        assert isinstance(limited.result, Refusal)
        held.release()


def test_one_reader_of_many_cannot_wait_for_itself_as_a_writer(arrive: Contend, clocked: Callable[[], Stepped]) -> None:
    """F9: other readers of the process are inside too, and their end would not be enough."""
    env, me = clocked(), (object(),)
    arrive(env, shared=True).get()
    arrive(env, shared=True, context=me).get()
    with pytest.raises(WouldDeadlock):
        arrive(env, context=me).step()
    somebody_else = arrive(env)
    assert somebody_else.step() is not None


def test_an_owner_is_let_in_for_no_more_than_it_holds(arrive: Contend, clocked: Callable[[], Stepped]) -> None:
    """F9: equal owners share a hold, but a shared hold does not become exclusive."""
    env = clocked()
    options = {"owner": "me", "timeout": 0}
    reader = arrive(env, shared=True, **options)
    held = reader.get()
    again = arrive(env, shared=True, **options)
    again.get()
    assert isinstance(arrive(env, **options).run(), Refusal)
    release(again)
    held.release()
    writer = arrive(env, **options).get()
    assert arrive(env, shared=True, **options).get() is writer
    assert isinstance(arrive(env, shared=True, timeout=0).run(), Refusal)


# -- what is said of it ------------------------------------------------------------------------------------------------

EX, SH = True, False
OWNERS: dict[str, tuple[list[LockOwner], str]] = {
    "one": ([LockOwner(1, EX)], r"held by process 1 \(command of 1\); alive: the kernel lock on its file is held"),
    "a reader": ([LockOwner(1, SH)], r"held by a reader, process 1 \(command of 1\); alive: "),
    "readers": ([LockOwner(pid, SH) for pid in (1, 2, 3)], r"held by 3 readers; the first is process 1 \("),
    "readers, some unseen": (
        [LockOwner(None, SH), LockOwner(2, SH)],
        r"held by 1 or more readers; the first is process 2 \(",
    ),
    "heirs": (
        [LockOwner(4, EX), LockOwner(5, EX)],
        r"held by 2 processes, which inherited it; the first is process 4 \(",
    ),
    "unseen": ([LockOwner(None, EX)], r"held by a process that cannot be seen from here.*; alive: the kernel lock"),
    "nobody": ([], r"held by a process that cannot be seen from here, or that has released it since; alive: "),
}

ADVICE = {
    "readers": "Wait until processes 1, 2 and 3 release it, or end them",
    "readers, some unseen": "Wait until process 2 releases it",
    "heirs": "Wait until processes 4 and 5 release it, or end them",
    "unseen": "fuser",
    "nobody": "fuser",
}


@pytest.mark.parametrize("who", OWNERS)
def test_a_refusal_says_who_holds_it(who: str, arrive: Contend, foreigner: Callable[..., int], path: Path) -> None:
    owners, said = OWNERS[who]
    foreigner()
    contender = arrive(timeout=0)
    contender.env.instead["lock_owners"] = lambda _identity, _records: [*owners, LockOwner(9, EX, waiting=True)]
    contender.env.instead["command"] = lambda pid: f"command of {pid}"
    refusal = contender.run()
    assert isinstance(refusal, Refusal)
    error = str(refused(refusal, 0))
    assert re.search(said, error), error
    assert "break" not in error
    assert ADVICE.get(who, "Wait until process 1 releases it") in error
    status = look(contender.env, contender.request)
    assert status.replaced(waiters=()) == refusal.status.replaced(waiters=())
    assert (status.locked, status.stale, status.liveness, status.record) == (True, False, Liveness.ALIVE, None)
    assert status.evidence.proven
    assert [waiter.pid for waiter in status.waiters] == [9]


def test_only_a_refusal_that_is_read_looks_for_the_holder(arrive: Contend, foreigner: Callable[..., int]) -> None:
    """The search takes milliseconds, which a discarded refusal does not cost."""
    foreigner()
    contender = arrive(timeout=0)
    refusal = contender.run()
    assert "lock_owners" not in contender.env.steps
    assert isinstance(refusal, Refusal)
    assert refusal.status.holder is not None
    assert contender.env.steps.count("lock_owners") == 1
    assert refusal.status is refusal.statuses[0]


def test_without_a_listener_a_long_wait_does_not_look_for_the_holder(
    arrive: Contend, foreigner: Callable[..., int]
) -> None:
    """A thousand waiting tasks would each keep their loop busy for milliseconds."""
    foreigner()
    contender = arrive(timeout=0)
    refusal = contender.run()
    assert isinstance(refusal, Refusal)
    _log_waiting(refusal)
    assert "lock_owners" not in contender.env.steps


def test_a_lock_released_in_between_is_said_to_be_free(
    environments: Environments, foreigner: Callable[..., int], path: Path
) -> None:
    fd = foreigner()
    env = environments()
    env.once(env.before, "lock_owners", lambda: os.close(fd))
    status = look(env, request(path))
    assert (status.locked, status.holder, status.reason) == (False, None, "nobody holds it")


STATES: dict[str, tuple[int | None, bool, tuple[bool, Liveness, str]]] = {
    "nobody": (None, False, (False, Liveness.UNKNOWN, "nobody holds it")),
    "a writer": (fcntl.LOCK_EX, False, (True, Liveness.ALIVE, "its holder is alive")),
    "a writer, for a reader": (fcntl.LOCK_EX, True, (True, Liveness.ALIVE, "its holder is alive")),
    "a reader": (fcntl.LOCK_SH, False, (True, Liveness.ALIVE, "its holder is alive")),
    "a reader, for a reader": (
        fcntl.LOCK_SH,
        True,
        (False, Liveness.ALIVE, "only readers hold it, and another may join them"),
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_a_status_is_true_in_every_state(
    state: str, environments: Environments, foreigner: Callable[..., int], path: Path
) -> None:
    how, shared, expected = STATES[state]
    path.touch()
    if how is not None:
        foreigner(how)
    status = look(environments(), request(path, shared=shared))
    assert (status.locked, status.liveness, status.reason) == expected
    assert [holder.pid for holder in status.holders] == ([] if how is None else [os.getpid()])
    assert all(holder.shared is (how == fcntl.LOCK_SH) for holder in status.holders)


def test_a_status_of_nothing_makes_no_file(environments: Environments, path: Path) -> None:
    status: Status = look(environments(), request(path))
    assert (status.locked, status.stale, status.holder) == (False, False, None)
    assert not path.exists()


def test_a_holder_that_watches_its_file_does_not_seem_to_wait(
    contend: Contend, environments: Environments, path: Path
) -> None:
    """It watches the file for its loss."""
    held = contend(path, protocol="flock").get()
    env = environments()
    env.instead["watchers"] = lambda _identity: [os.getpid(), os.getpid() + 1]
    assert [waiter.pid for waiter in look(env, request(path)).waiters] == [os.getpid() + 1]
    held.release()


# -- every step --------------------------------------------------------------------------------------------------------

NEVER_FAIL = frozenset({"inspect", "watch", "watch_process", "lock_owners", "watchers", "exists"})


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE], ids=lambda n: errno.errorcode[n])
def test_no_fault_while_waiting_leaks_or_hangs(
    number: int, shared: bool, contend: Contend, foreigner: Callable[..., int], path: Path
) -> None:
    """The call fails with the error or goes on, and its descriptors are closed."""
    options: dict[str, object] = {"protocol": "flock", "shared": shared, "timeout": None}
    foreigner()
    rehearsal = contend(path, **options)
    for _ in range(3):
        rehearsal.step()
    steps = list(rehearsal.env.steps)
    rehearsal.steps.close()
    for at, name in enumerate(steps):
        contender = contend(path, **options)
        if name in NEVER_FAIL:
            contender.env.instead[name] = lambda *_args, **_kwargs: None
        else:

            def fail(step: int, done: str, at: int = at) -> None:
                if step == at and done != "close":
                    raise OSError(number, os.strerror(number))

            contender.env.at_step = fail
        try:
            waits = [contender.step() for _ in range(3)]
        except OSError as error:
            outcome = error.errno == number
        else:
            outcome = all(wait is not None and wait.deadline < contender.env.monotonic() + 1 for wait in waits)
        assert outcome, f"{name} at {at}"
        contender.env.at_step = None
        contender.steps.close()
        assert not contender.env.open_descriptors(), f"{name} at {at}"


def test_a_crash_while_waiting_does_not_stop_the_queue(
    arrive: Contend, queued: Contend, clock: Clock, path: Path
) -> None:
    for shared in (False, True):
        holder = arrive()
        holder.get()
        victims = [queued(shared=shared) for _ in range(2)]
        heir = queued()
        for victim in victims:
            victim.crash()
        release(holder)
        for _ in range(20):
            if heir.step() is None:
                break
            clock.now = max(clock.now, min(heir.waits[-1].deadline, clock.now + 0.1))
        assert heir.inside
        release(heir)
    assert not os.path.exists(queue_of(*os.path.split(path)))


def test_a_thousand_cycles_leave_no_descriptor(contend: Contend, environments: Environments, path: Path) -> None:
    env, rival = environments(), environments()
    with ExitStack() as stack:
        for number in range(1000):
            held = contend(path, env, protocol="flock", shared=bool(number % 2), tag="x").get()
            refusal = contend(path, rival, protocol="flock").run()
            assert isinstance(refusal, Refusal)
            if number % 200 == 0:
                stack.callback(look, rival, request(path))
            held.release()
    assert not env.open_descriptors()
    assert not rival.open_descriptors()
