"""Waiting for a lock: events that wake a waiter, and what happens without them (acquire.py)."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast._core.attempt import Refusal
from holdfast._core.wait import Wait
from holdfast._drivers.sync import drive
from holdfast._platform.values import CHANGED, CLOSED, RECHECK
from holdfast.engines.file.acquire import wait_until_free
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.request import FileRequest
from holdfast.engines.file.takeover import NO_LOCKS, make_claim
from holdfast.errors import WouldDeadlock
from holdfast.liveness import Liveness
from unit.stepping import Contend, Contender, Stepped, is_ready, sema_record

Environments = Callable[..., Stepped]

BURST = 0.0127
"""Seconds that a contender keeps looking for after a close event."""


@pytest.fixture
def held(disk: Path, contend: Contend) -> Contender:
    """A holder in another environment."""
    holder = contend(disk / "l", tag="first")
    holder.get()
    return holder


def release(holder: Contender) -> None:
    assert isinstance(holder.result, FileHold)
    holder.result.release()


NEVER_READABLE = os.eventfd(0) if hasattr(os, "eventfd") else -1


class Told:
    """A watch that reports what the test tells it to."""

    def __init__(self) -> None:
        self.change = 0
        self.closed = False

    def fds(self) -> tuple[int, ...]:
        return (NEVER_READABLE,)

    def woken(self, *, over: bool = True) -> bool:
        return True

    def take(self) -> int:
        change, self.change = self.change, 0
        return change

    def close(self) -> None:
        self.closed = True


def told(env: Stepped) -> list[Told]:
    """Replace the watches of an environment; the list gets each one that is made."""
    made: list[Told] = []

    def watch(_path: str) -> Told:
        made.append(Told())
        return made[-1]

    env.instead["watch"] = watch
    return made


def test_a_waiter_looks_again_whatever_woke_it(disk: Path, held: Contender, contend: Contend) -> None:
    """A1: spurious wake-ups and false reports leave it outside; after a release, any wake-up will do."""
    waiter = contend(disk / "l", timeout=None)
    watches = told(waiter.env)
    for change in (0, CHANGED, CLOSED, CHANGED | CLOSED) * 5:
        assert waiter.step() is not None
        watches[0].change = change
    release(held)
    assert waiter.step() is None
    assert waiter.inside


def test_a_release_before_the_watch_is_seen(disk: Path, held: Contender, contend: Contend) -> None:
    """WF1: after a release between the look and the watch, the waiter looks once more before its first wait."""
    waiter = contend(disk / "l", timeout=None)
    waiter.env.once(waiter.env.before, "watch", lambda: release(held))
    assert waiter.step() is None
    assert waiter.inside


def test_a_release_just_after_the_watch_is_seen(disk: Path, held: Contender, contend: Contend) -> None:
    """WF1: a release after the watch is armed is seen as well."""
    waiter = contend(disk / "l", timeout=None)
    waiter.env.once(waiter.env.after, "watch", lambda: release(held))
    assert waiter.step() is None
    assert waiter.inside


@pytest.mark.parametrize("look", [1, 2, 3])
def test_a_release_between_a_look_and_the_wait_shortens_the_wait(
    look: int, disk: Path, live_pid: int, contend: Contend
) -> None:
    """WF1: the event is taken before the wait, whichever look it follows, so the wait must not be a long one. A foreign
    holder removes its file without closing anything, so no close event makes the waiter cautious."""
    (disk / "l").write_bytes(sema_record(live_pid, 9e9))
    waiter = contend(disk / "l", timeout=None)
    looks = 0

    def count(*_args: object) -> None:
        nonlocal looks
        looks += 1
        if looks == look:
            (disk / "l").unlink()

    waiter.env.after["guarded"] = count
    for _ in range(5):
        wait = waiter.step()
        if wait is None:
            break
        if looks >= look:
            assert wait.deadline - waiter.env.monotonic() < 0.1, "the lock is free, and nothing will tell"
        else:
            os.utime(disk / "l")  # an event that changes nothing: one more look
    assert waiter.inside


def test_a_replacement_before_the_watch_is_watched(disk: Path, held: Contender, contend: Contend) -> None:
    """WF1: the lock is released and taken again in between; the watch must be on the new file before the first wait."""
    waiter, other = contend(disk / "l", timeout=None), contend(disk / "l")

    def hand_over() -> None:
        release(held)
        other.get()

    waiter.env.once(waiter.env.before, "watch", hand_over)
    wait = waiter.step()
    assert wait is not None
    release(other)
    assert waiter.step() is None


@pytest.mark.parametrize("without", [(), ("events",), ("flock",), ("flock", "events")], ids="-".join)
def test_a_waiter_that_gets_no_event_looks_at_a_deadline(
    without: tuple[str, ...], disk: Path, contend: Contend, environments: Environments, live_pid: int
) -> None:
    """A2: with every event lost, each wait still ends at a deadline, and the next look finds the lock free."""
    path = disk / "l"
    path.write_bytes(sema_record(live_pid, 9e9))
    waiter = contend(path, environments(*without), timeout=None)
    if "events" not in without:
        told(waiter.env)
    for _ in range(30):
        wait = waiter.step()
        assert wait is not None
        now = waiter.env.monotonic()
        limit = 0.025 if "events" in without else RECHECK
        assert wait.deadline <= now + limit
    path.unlink()
    assert waiter.step() is None
    assert waiter.inside


def test_a_descriptor_that_stays_readable_makes_a_waiter_poll(disk: Path, held: Contender, contend: Contend) -> None:
    """A4: the descriptor stays readable although nothing changes; after some wake-ups the waiter polls."""
    waiter = contend(disk / "l", timeout=None)
    told(waiter.env)
    for _ in range(200):
        wait = waiter.step()
        assert wait is not None
        if not wait.fds:
            return
    raise AssertionError("it would never sleep")


def test_a_claimed_stale_file_is_polled_ever_more_slowly(
    disk: Path, contend: Contend, environments: Callable[..., Stepped], live_pid: int
) -> None:
    """T1, A4: a contender was stopped while it took over a stale lock; one waiter's try must not wake the next."""
    path = disk / "l"
    path.write_bytes(sema_record(2**22 + 5, 1000))
    waiter, found = contend(path, timeout=None), path.stat()
    inode = (found.st_dev, found.st_ino)
    claim = make_claim(environments(pid=live_pid), str(path), inode, NO_LOCKS)  # type: ignore[arg-type]
    assert claim is not None
    pauses = []
    for _ in range(30):
        before = waiter.env.monotonic()
        wait = waiter.step()
        assert wait is not None
        assert wait.fds == ()
        pauses.append(wait.deadline - before)
    assert pauses[-1] > 0.02, "it is polled, ever more slowly"
    claim.end()
    waiter.get()
    assert waiter.inside


def test_a_filesystem_without_events_is_polled_ever_more_slowly(disk: Path, held: Contender, contend: Contend) -> None:
    """A2: where not every change makes an event, polling starts at a millisecond and slows down to the limit."""
    waiter = contend(disk / "l", timeout=None, fair=False)
    waiter.env.instead["events_reach"] = lambda _path: False
    waiter.env.instead["poll_limit"] = lambda _path: 0.1
    pauses = []  # from before the step, and from after it: a step may take long
    for _ in range(20):
        before = waiter.env.monotonic()
        wait = waiter.step()
        assert wait is not None
        assert wait.fds == ()
        pauses.append((wait.deadline - before, wait.deadline - waiter.env.monotonic()))
    assert "watch" not in waiter.env.steps
    (longest, shortest), (last_longest, last_shortest) = pauses[0], pauses[-1]
    assert longest >= 0.001
    assert shortest < 0.01
    assert last_longest > 0.09
    assert last_shortest < 0.15
    release(held)


def test_a_wait_ends_when_the_lock_becomes_stale(disk: Path, contend: Contend, dead_pid: int) -> None:
    """A2: when time alone will make the lock stale, the wait ends there."""
    path = disk / "l"
    waiter = contend(path, timeout=None, fair=False, stale_after=100)
    now = waiter.env.time()
    path.write_bytes(sema_record(dead_pid, now - 95))
    wait = waiter.step()
    assert wait is not None
    assert 4.5 < wait.deadline - waiter.env.monotonic() <= 6.0
    waiter.env.instead["time"] = lambda: now + 7
    assert isinstance(waiter.step(), Wait), "settling"
    assert waiter.get().recovered_from is not None


def test_a_guard_that_outlives_the_close_event_is_polled_briefly(disk: Path, held: Contender, contend: Contend) -> None:
    """WF2: after a close event, the waiter polls for some milliseconds, then goes back to waiting."""
    waiter = contend(disk / "l", timeout=None, fair=False)
    watches = told(waiter.env)
    waiter.step()
    watches[0].change = CLOSED
    pauses = []
    now = waiter.env.monotonic()
    waiter.env.instead["monotonic"] = lambda: now  # a slow step is no pause
    while True:
        wait = waiter.step()
        assert wait is not None
        if wait.deadline > now + 1:
            break
        pauses.append(wait.deadline - now)
        now = wait.deadline
    assert len(pauses) >= 5
    assert BURST * 0.9 < sum(pauses) < BURST * 2
    # and once more, with the guard dropped half-way
    watches[0].change = CLOSED
    waiter.step()
    waiter.step()
    held.crash()
    assert waiter.step() is None
    assert waiter.inside


def test_a_guard_dropped_after_the_watch_was_armed_shortens_the_wait(held: Contender, contend: Contend) -> None:
    """WF2: the close event of a dying holder came before the watch, and its guard outlives both looks."""
    waiter = contend(held.request.path, timeout=None, fair=False)
    times = [1000.0]
    waiter.env.instead["monotonic"] = lambda: times[-1]
    first = waiter.step()
    assert first is not None
    assert 0.005 < first.deadline - times[-1] < 0.1
    times.append(first.deadline)
    second = waiter.step()
    assert second is not None
    assert second.deadline > times[-1] + 1


def test_a_waiter_delayed_after_its_look_does_not_rely_on_its_watch(held: Contender, contend: Contend) -> None:
    """WF2: the guard that it saw may have been dropped since, and no further event will come."""
    waiter = contend(held.request.path, timeout=None, fair=False)
    held.crash()
    times = [1000.0]
    waiter.env.instead["monotonic"] = lambda: times[-1]

    def is_written(_fd: int) -> bool | None:
        if "watch" in waiter.env.steps and len(times) == 1:
            times.append(2000.0)
        return None

    waiter.env.instead["guarded"] = lambda fd: len(times) == 1 or waiter.env.real.guarded(fd)
    waiter.env.instead["is_written"] = is_written
    wait = waiter.step()
    assert wait is not None
    assert wait.deadline <= times[-1]
    assert isinstance(waiter.run(), FileHold)


def test_a_waiter_delayed_after_a_wake_up_for_another_lock_looks_again(held: Contender, contend: Contend) -> None:
    """WF2: a later look lets it rely on its watch; time alone does not."""
    waiter = contend(held.request.path, timeout=None, fair=False)
    waiter.env.instead["monotonic"] = lambda: 1000.0
    first = waiter.step()
    assert first is not None
    times = iter([1000.001])
    waiter.env.instead["monotonic"] = lambda: next(times, 1000.1)
    second = waiter.step()
    assert second is not None
    assert second.deadline == first.deadline


def test_wake_ups_for_other_locks_do_not_use_up_the_looks_at_a_dying_guard(disk: Path, contend: Contend) -> None:
    """WF2: a waiter for a slot watches several files, so other files wake it before its next look at this one."""
    holders = [contend(disk / f"l.{number}.lock") for number in range(2)]
    for one in holders:
        one.get()
    waiter = contend(disk / "l", slots=2, timeout=None, fair=False)
    times = [1000.0]
    waiter.env.instead["monotonic"] = lambda: times[-1]
    waiter.step()
    times.append(1001.0)
    rest = waiter.step()
    assert rest is not None
    assert rest.deadline > times[-1] + 1
    path = disk / "l.0.lock"
    dying = path.stat().st_ino
    waiter.env.instead["guarded"] = lambda fd: (
        (os.fstat(fd).st_ino == dying and times[-1] < 1001.01) or waiter.env.real.guarded(fd)
    )
    waiter.env.instead["is_written"] = lambda _fd: None
    holders[0].crash()
    for _ in range(20):
        wait = waiter.step()
        assert wait is not None
        assert wait.deadline < times[-1] + 1
    times.append(1001.02)
    hold = waiter.run()
    assert isinstance(hold, FileHold)
    assert hold.path == str(path)


def test_a_refusal_without_waiting_names_the_holder(disk: Path, held: Contender, contend: Contend) -> None:
    """A3: one try, without waiting."""
    contender = contend(disk / "l", timeout=0)
    assert contender.step() is None
    assert isinstance(contender.result, Refusal)
    status = contender.result.status
    assert (status.locked, status.liveness) == (True, Liveness.ALIVE)
    assert status.holder is not None
    assert (status.holder.tag, status.holder.pid) == ("first", os.getpid())


def test_a_single_try_recovers_a_dead_lock(disk: Path, held: Contender, contend: Contend) -> None:
    """A3: the one round includes a takeover."""
    held.crash()
    contender = contend(disk / "l", timeout=0)
    assert contender.step() is None
    assert contender.inside


def test_a_release_at_the_deadline_is_seen_by_a_last_look(disk: Path, held: Contender, contend: Contend) -> None:
    """A3: the look after the deadline decides, not the clock."""
    contender = contend(disk / "l", timeout=5)
    assert contender.step() is not None
    release(held)
    contender.env.instead["monotonic"] = lambda: math.inf
    assert contender.step() is None
    assert contender.inside


def test_the_watch_moves_to_the_new_inode(disk: Path, held: Contender, contend: Contend) -> None:
    """WF3: when the path names another inode, the watch moves there, and the old watch ends."""
    waiter, next_holder = contend(disk / "l", timeout=None), contend(disk / "l")
    watches = told(waiter.env)
    waiter.step()
    release(held)
    next_holder.get()
    assert waiter.step() is not None
    assert [watch.closed for watch in watches] == [True, False]
    release(next_holder)
    assert waiter.step() is None
    assert [watch.closed for watch in watches] == [True, True]


def test_a_release_by_the_second_holder_wakes_the_waiter(disk: Path, held: Contender, contend: Contend) -> None:
    """WF3: with real events: the release of the second holder ends the wait, not its deadline."""

    waiter, next_holder = contend(disk / "l", timeout=None), contend(disk / "l")
    waiter.step()
    release(held)
    next_holder.get()
    wait = waiter.step()
    while wait is not None and not wait.fds:  # the close event of the first one makes it look a few times more
        wait = waiter.step()
    assert wait is not None
    release(next_holder)
    assert is_ready(wait, 5)
    assert waiter.step() is None


def test_the_end_of_a_foreign_process_wakes_the_waiter_once(disk: Path, contend: Contend) -> None:
    """A foreign holder has no guard: the waiter watches its process, and the age decides once that ends."""
    import subprocess

    foreign = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (disk / "l").write_bytes(sema_record(foreign.pid, 9e9))
    waiter = contend(disk / "l", timeout=None)
    wait = waiter.step()
    foreign.kill()
    assert wait is not None
    assert is_ready(wait, 5)
    wait = waiter.step()
    foreign.communicate()
    assert wait is not None
    assert not is_ready(wait), "its end would wake the waiter again and again"


@pytest.mark.parametrize("timeout", [0.01, 0.05])
def test_a_timeout_is_neither_shorter_nor_much_longer_than_asked(
    timeout: float, disk: Path, held: Contender, contend: Contend
) -> None:
    contender = contend(disk / "l", timeout=timeout)
    before = contender.env.monotonic()
    assert isinstance(contender.run(), Refusal)
    after = contender.env.monotonic()
    assert timeout <= after - before < timeout + 5  # it would look again after ten seconds
    # A slow machine comes to no wait at all.
    assert not contender.waits or contender.waits[-1].deadline <= after


def test_a_cancelled_wait_closes_its_descriptors(disk: Path, held: Contender, contend: Contend) -> None:
    waiter = contend(disk / "l", timeout=None)
    waiter.step()
    assert waiter.env.open_descriptors()
    waiter.steps.close()
    assert not waiter.env.open_descriptors()
    assert (disk / "l").exists()


def test_a_wait_of_a_second_is_announced_once(disk: Path, held: Contender, contend: Contend) -> None:
    notices: list[Refusal] = []
    waiter = contend(disk / "l", timeout=None)
    waiter.request.notice = notices.append
    wait = waiter.step()
    assert wait is not None
    assert wait.deadline <= waiter.env.monotonic() + 1.0
    assert not notices
    waiter.env.instead["monotonic"] = lambda: waiter.env.real.monotonic() + 1.5
    waiter.step()
    waiter.step()
    assert len(notices) == 1
    assert notices[0].status.holder is not None


# -- one process, twice ------------------------------------------------------------------------------------------------


def test_a_thread_cannot_wait_for_itself_for_ever(disk: Path, contend: Contend) -> None:
    first = contend(disk / "l", context="thread 1")
    first.get()
    for timeout, context, owner, refused in (
        (None, "thread 1", None, True),
        (None, "thread 2", None, False),
        (1, "thread 1", None, False),
        (0, "thread 1", None, False),
        (None, "thread 1", "somebody else", True),
    ):
        again = contend(disk / "l", first.env, timeout=timeout, context=context, owner=owner)
        if refused:
            with pytest.raises(WouldDeadlock, match=r"timeout.*owner") as caught:
                again.step()
            assert caught.value.path == str(disk / "l")
        else:
            again.step()
            assert not again.inside
        again.steps.close()


def test_a_thread_with_one_share_of_several_cannot_wait_for_itself_for_ever(disk: Path, contend: Contend) -> None:
    first = contend(disk / "l", context="thread 1", owner="me")
    first.get()
    second = contend(disk / "l", first.env, context="thread 2", owner="me")
    second.get()
    for context in ("thread 1", "thread 2"):
        with pytest.raises(WouldDeadlock):
            contend(disk / "l", first.env, timeout=None, context=context).step()
    stranger = contend(disk / "l", first.env, timeout=None, context="thread 3")
    assert stranger.step() is not None
    stranger.steps.close()


def test_an_owner_enters_its_own_lock_again(disk: Path, contend: Contend) -> None:
    first = contend(disk / "l", owner=("job", 7))
    hold = first.get()
    again = contend(disk / "l", first.env, owner=("job", 7))
    assert again.get() is hold
    assert len(hold.refs) == 2
    assert not isinstance(contend(disk / "l", first.env, owner=("job", 8)).run(), FileHold)
    assert not isinstance(contend(disk / "l", owner=("job", 7)).run(), FileHold), "another process is another owner"


def test_an_owner_acquires_a_lost_lock_anew(disk: Path, contend: Contend) -> None:
    first = contend(disk / "l", owner="me")
    hold = first.get()
    (disk / "l").unlink()
    assert not hold.check()
    again = contend(disk / "l", first.env, owner="me")
    anew = again.get()
    assert anew is not hold
    assert anew.verify()


# -- waiting without acquiring -----------------------------------------------------------------------------------------


def test_waiting_until_free_sees_the_release_and_acquires_nothing(disk: Path, contend: Contend) -> None:
    holder = contend(disk / "l")
    holder.get()
    other = contend(disk / "x").env
    steps = wait_until_free(other, (FileRequest(str(disk / "l"), {}),), None, ())
    next(steps)
    holder.crash()  # free for whoever takes it over, though the file is there
    with pytest.raises(StopIteration) as done:
        next(steps)
    assert done.value.value is None
    assert (disk / "l").exists()
    assert drive(wait_until_free(other, (FileRequest(str(disk / "nothing"), {}),), 0, ())) is None
    assert not (disk / "nothing").exists()


def test_waiting_until_free_keeps_to_its_timeout(disk: Path, held: Contender, contend: Contend) -> None:
    env = contend(disk / "x").env
    refusal = drive(wait_until_free(env, (FileRequest(str(disk / "l"), {}),), 0.01, ()))
    assert isinstance(refusal, Refusal)
    assert refusal.waited >= 0.0099  # a clock of floats
    assert not env.open_descriptors()


def test_a_waiter_woken_without_a_change_polls_now_and_then(disk: Path, held: Contender, contend: Contend) -> None:
    """A4: woken again and again although nothing changes, it polls now and then instead of spinning."""
    waiter = contend(disk / "l", timeout=None, fair=False)
    told(waiter.env)
    waiter.step()
    now = waiter.env.monotonic() + 1
    waiter.env.instead["monotonic"] = lambda: now  # no time passes between two wake-ups
    pauses = []
    for _ in range(200):
        wait = waiter.step()
        assert wait is not None
        pauses.append(wait.deadline - now)
    polls = [pause for pause in pauses if pause <= 0.025]
    assert 2 <= len(polls) < 100
    release(held)


@pytest.mark.parametrize("state", ["free", "held", "queued"])
def test_a_child_forked_during_an_acquisition_neither_waits_nor_holds(disk: Path, contend: Contend, state: str) -> None:
    """A5: forked at each step, as by a signal handler; the parent goes on undisturbed."""
    path = disk / "l"
    holder = contend(path)
    if state != "free":
        holder.get()
    number, forked = 0, True
    while forked:
        contender = contend(path, timeout=None, fair=state == "queued")
        forked = fork_at(number, contender)
        assert contender.inside == (state == "free"), f"after a fork at step {number}"
        if contender.inside:
            assert contender.result.verify()  # type: ignore[union-attr]
            assert contender.result.recovered_from is None, "the child has left a lock"  # type: ignore[union-attr]
            release(contender)
        contender.steps.close()
        number += 1
    assert number > 5
    assert os.listdir(disk) == ([] if state == "free" else ["l"])


def fork_at(number: int, contender: Contender) -> bool:
    """Fork at this step, if the contender gets that far, and go on to its first wait; the child's copy must end in an
    error."""
    forks, first = [], os.getpid()

    def fork(at: int, _name: str) -> None:
        if at == number:
            forks.append(os.fork())
            if forks[0]:
                status = os.waitstatus_to_exitcode(os.waitpid(forks[0], 0)[1])
                assert status == 0, f"a child of step {number} waits or holds"

    contender.env.at_step = fork
    status = 1
    try:
        contender.step()
    except RuntimeError as error:
        status = int("forked while it" not in str(error) or bool(contender.env.real.holds))
    finally:
        if os.getpid() != first:
            os._exit(status)
    contender.env.at_step = None
    return bool(forks)
