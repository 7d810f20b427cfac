"""The queue of those who wait (queue.py): processes played by hand, on a clock that the test turns."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast._platform.values import CLOSED, RECHECK
from holdfast.engines.file import queue as queues
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.paths import queue_of
from holdfast.engines.file.queue import MOMENT, PATIENCE
from unit.stepping import Clock, Contend, Contender, Crash, Stepped
from unit.test_acquire import told


@pytest.fixture
def path(disk: Path) -> str:
    return str(disk / "l")


@pytest.fixture
def arrive(contend: Contend, clocked: Callable[..., Stepped], path: str) -> Contend:
    """A fair contender for the lock, in a process of its own unless one is given."""

    def make(env: Stepped | None = None, **options: object) -> Contender:
        return contend(path, env or clocked(), **{"timeout": None, "fair": True, **options})

    return make


def names(path: str) -> list[str]:
    place = queue_of(*os.path.split(path))
    return sorted(os.listdir(place)) if os.path.exists(place) else []


def woken(contender: Contender) -> bool:
    """Whether what the contender waits for has happened."""
    wait = contender.waits[-1]
    if wait.signal is not None:
        return wait.signal.is_set
    return bool(select.select(wait.fds, [], [], 0)[0])


def release(contender: Contender) -> None:
    assert isinstance(contender.result, FileHold)
    contender.result.release()


def test_a_newcomer_does_not_pass_a_long_waiter(arrive: Contend, queued: Contend, clock: Clock) -> None:
    """Q5: within a moment it goes in directly; after that it stays behind, even if the lock is free."""
    holder = arrive()
    holder.get()
    first = arrive()
    assert first.step() is not None
    release(holder)
    lucky = arrive()
    assert lucky.step() is None  # nobody has waited for as long as a moment
    clock.now += MOMENT
    first.step()
    release(lucky)
    late = arrive()
    assert late.step() is not None
    assert not late.inside
    assert first.step() is None
    release(first)
    assert late.step() is None


def test_a_contender_that_will_not_wait_gets_a_free_lock(arrive: Contend, queued: Contend) -> None:
    """Q5: `try_acquire` takes part in no queue."""
    holder = arrive()
    holder.get()
    queued()
    release(holder)
    assert arrive(timeout=0).step() is None
    assert len(holder.env.contenders) == 1


def test_a_release_wakes_only_the_next_one(arrive: Contend, queued: Contend, path: str) -> None:
    """Q4: whatever their number, only the next one; and nobody is woken when that one gets the lock."""
    holder = arrive()
    holder.get()
    waiting = [queued() for _ in range(4)]
    assert len(names(path)) == 4
    assert names(path) == sorted(names(path))
    while waiting:
        assert not any(map(woken, waiting))
        release(holder)
        assert [woken(waiter) for waiter in waiting] == [True] + [False] * (len(waiting) - 1)
        holder = waiting.pop(0)
        assert holder.step() is None
    release(holder)
    assert names(path) == []
    assert not os.path.exists(queue_of(*os.path.split(path)))


def test_within_a_process_waiters_are_woken_by_a_signal(
    arrive: Contend, queued: Contend, clocked: Callable[..., Stepped], path: str
) -> None:
    """Q4: inside a process a line does: one ticket, no descriptors for those behind."""
    env = clocked()
    holder = arrive(env)
    holder.get()
    waiting = [queued(env) for _ in range(3)]
    assert len(names(path)) == 1
    assert [waiter.waits[-1].fds == () for waiter in waiting] == [False, True, True]
    while waiting:
        release(holder)
        assert [woken(waiter) for waiter in waiting] == [True] + [False] * (len(waiting) - 1)
        holder = waiting.pop(0)
        assert holder.step() is None
    release(holder)
    assert env.real.local_queues == {}


def test_the_next_one_sleeps_through_releases_within_a_slice(
    arrive: Contend, queued: Contend, clocked: Callable[..., Stepped], clock: Clock
) -> None:
    """Q5: it finds the lock taken again by the process whose turn it was, and lets it alone for most of the slice."""
    env = clocked()
    holder = arrive()
    holder.get()
    first, second = queued(env), queued()
    release(holder)
    assert first.step() is None
    release(first)
    assert woken(second)
    again = arrive(env)
    assert again.step() is None, "within its slice"
    steps = 0
    while second.step() is not None and second.waits[-1].fds:
        steps += 1
    assert steps < 5
    assert second.waits[-1].deadline == pytest.approx(clock.now + queues.NAP)
    release(again)
    assert second.step() is None


def test_a_killed_waiter_is_not_waited_for(arrive: Contend, queued: Contend, path: str) -> None:
    """Q2: a ticket without its guard does not count, and is removed by whoever finds it."""
    holder = arrive()
    holder.get()
    killed, second, third = queued(), queued(), queued()
    killed.crash()
    assert woken(second)
    assert not woken(third)
    assert second.step() is not None
    assert len(names(path)) == 2
    release(holder)
    assert second.step() is None
    release(second)
    assert third.step() is None
    release(third)
    assert names(path) == []


def test_a_queue_of_the_dead_is_removed_by_the_next_acquisition(arrive: Contend, queued: Contend, path: str) -> None:
    """Q2: what killed waiters left goes with the next one who acquires, though nobody contends any more."""
    holder = arrive()
    holder.get()
    for waiter in (queued(), queued()):
        waiter.crash()
    release(holder)
    newcomer = arrive()
    newcomer.get()
    assert not os.path.exists(queue_of(*os.path.split(path)))


def test_a_queue_of_the_dead_is_removed_by_the_release(arrive: Contend, queued: Contend, path: str) -> None:
    """Q2: nobody may come any more; so whoever releases after some time removes what killed waiters left."""
    holder = arrive()
    holder.get()
    killed, living, dead = queued(), queued(), queued()
    killed.crash()
    dead.crash()
    release(holder)
    assert len(names(path)) == 2
    living.get()
    living.env.instead["monotonic"] = lambda: 2000.0
    release(living)
    assert not os.path.exists(queue_of(*os.path.split(path)))


def test_a_ticket_removed_at_its_creation_is_made_again(arrive: Contend, clock: Clock, path: str) -> None:
    """Q2: between creation and guard it looks like a dead waiter's; its creator notices, and makes another."""
    holder = arrive()
    holder.get()
    waiter, spoiled = arrive(), []

    def spoil() -> None:
        for name in names(path):
            if not spoiled:
                spoiled.append(name)
                with queues.Queue(holder.env.real, queue_of(*os.path.split(path))) as opened:
                    assert not opened.is_guarded(name)

    assert waiter.step() is not None
    clock.now += MOMENT
    waiter.env.once(waiter.env.before, "guard", spoil)
    assert waiter.step() is not None
    assert spoiled
    assert len(names(path)) == 1


class Prober:
    """A neighbour that probes whatever ticket is being made, at the moment when its maker wants the guard."""

    def __init__(self, maker: Stepped, env: Stepped, path: str) -> None:
        self._maker, self._env, self._path = maker, env.real, path
        self._fd = -1
        self.probes = 0

    def begin(self) -> None:
        self._maker.before["guard"] = self._probe
        self._maker.after["guard"] = self._done

    def end(self) -> None:
        del self._maker.before["guard"], self._maker.after["guard"]

    def _probe(self, _fd: int) -> None:
        (name,) = names(self._path)
        self._fd = self._env.open_existing(f"{queue_of(*os.path.split(self._path))}/{name}", write=False)
        assert self._env.guard(self._fd, shared=True)
        self.probes += 1

    def _done(self, _fd: int) -> None:
        self._env.unguard(self._fd)
        self._env.close(self._fd)


def test_a_ticket_probed_at_its_creation_still_counts(arrive: Contend, clock: Clock, path: str) -> None:
    """Q2: the probe keeps its maker from the guard; later arrivals still queue behind it."""
    holder = arrive()
    holder.get()
    waiter = arrive()
    assert waiter.step() is not None
    clock.now += MOMENT
    prober = Prober(waiter.env, holder.env, path)
    prober.begin()
    waiter.env.once(waiter.env.before, "unlink", prober.end)  # of the spoiled ticket, before the next try
    assert waiter.step() is not None
    assert prober.probes == 1
    assert len(names(path)) == 1
    release(holder)
    newcomer = arrive()
    assert newcomer.step() is not None
    assert waiter.step() is None


def test_a_ticket_whose_every_try_is_spoiled_is_made_a_moment_later(arrive: Contend, clock: Clock, path: str) -> None:
    """Q2: a busy neighbour is no reason to wait without a ticket for good."""
    holder = arrive()
    holder.get()
    waiter = arrive()
    assert waiter.step() is not None
    clock.now += MOMENT
    prober = Prober(waiter.env, holder.env, path)
    prober.begin()
    wait = waiter.step()
    prober.end()
    assert prober.probes > 1
    assert names(path) == []
    assert wait is not None
    assert wait.deadline <= clock.now + MOMENT
    clock.now += MOMENT
    assert waiter.step() is not None
    assert len(names(path)) == 1


def test_a_ticket_is_issued_although_a_neighbour_removes_the_new_directory(
    arrive: Contend, clock: Clock, path: str
) -> None:
    """Q2: it is empty, as one that a dead waiter has left."""
    holder = arrive()
    holder.get()
    waiter, removed = arrive(), []

    def make(directory: str, mode: int) -> None:
        os.mkdir(directory, mode)
        if not removed:
            removed.append(queues.names(holder.env.real, directory))

    assert waiter.step() is not None
    clock.now += MOMENT
    waiter.env.instead["make_directory"] = make
    assert waiter.step() is not None
    assert removed == [[]]
    assert len(names(path)) == 1


@pytest.mark.parametrize("moment", ["before the watch", "after the watch"])
def test_a_predecessor_that_leaves_at_the_wrong_moment_is_not_waited_for(
    arrive: Contend, queued: Contend, clock: Clock, moment: str
) -> None:
    """Q3: seen in the list, but gone before it is watched, or before its guard is probed."""
    holder = arrive()
    holder.get()
    first, second = queued(), arrive()
    # The newcomer finds the ticket of the first. That one gives up now.
    table = second.env.before if moment == "before the watch" else second.env.after
    second.env.once(table, "watch", first.steps.close)
    assert second.step() is not None
    release(holder)
    assert second.step() is None or second.step() is None


def test_an_earlier_arrival_that_shows_late_goes_first(arrive: Contend, clock: Clock, path: str) -> None:
    """Q3: after waking, the queue is looked at anew; whoever arrived before us goes first."""
    holder = arrive()
    holder.get()
    slow = arrive()
    slow.step()  # it has arrived, but has no ticket yet
    clock.now += MOMENT / 2
    quick = arrive()
    quick.step()
    clock.now += MOMENT * 2
    quick.step()
    slow.step()
    assert len(names(path)) == 2
    release(holder)
    quick.step()
    assert not quick.inside
    assert slow.step() is None
    release(slow)
    assert quick.step() is None


def test_a_killed_waiters_guard_that_outlives_its_close_event_is_polled(
    arrive: Contend, queued: Contend, clock: Clock, clocked: Callable[..., Stepped], path: str
) -> None:
    """Q3: woken by the event, it finds the guard still held; there will be no other event."""
    holder, env = arrive(), clocked()
    holder.get()
    killed = queued()
    watches = told(env)
    following = queued(env)
    clock.now += MOMENT
    watches[-1].change = CLOSED
    assert following.step() is not None
    assert following.waits[-1].deadline < clock.now + 0.1
    killed.crash()
    clock.now = following.waits[-1].deadline
    assert following.step() is not None
    assert len(names(path)) == 1
    release(holder)
    assert following.step() is None


@pytest.mark.parametrize("where", ["elsewhere", "here"])
def test_a_waiter_passed_with_the_idle_one_still_gets_its_turn(
    where: str, arrive: Contend, queued: Contend, clock: Clock, clocked: Callable[..., Stepped]
) -> None:
    """Q6: it waits for its turn behind the idle one; out of the queue, it would never be told."""
    holder = arrive()
    holder.get()
    env = clocked() if where == "here" else None
    idle, between, other = queued(env), queued(env), queued(env)
    release(holder)
    while not other.inside:
        assert not woken(between)
        clock.now = max(other.waits[-1].deadline, clock.now + PATIENCE)
        other.step()
    assert woken(between)
    assert between.step() is not None
    clock.now += MOMENT
    between.step()
    release(other)
    assert idle.step() is None
    release(idle)
    while between.step() is not None:
        assert woken(between) or between.waits[-1].deadline <= clock.now + 1
        clock.now = between.waits[-1].deadline
    release(between)


@pytest.mark.parametrize("where", ["elsewhere", "here"])
def test_a_waiter_that_sleeps_on_is_passed(
    where: str, arrive: Contend, queued: Contend, clock: Clock, clocked: Callable[..., Stepped]
) -> None:
    """Q6: stopped in front of a free lock, it is passed after a second; and it queues anew when it is back."""
    holder = arrive()
    holder.get()
    env = clocked()
    stopped, other = queued(env), queued(env if where == "here" else None)
    release(holder)
    assert 0.9 < other.waits[-1].deadline - clock.now < 1.1
    clock.now = other.waits[-1].deadline
    assert other.step() is not None  # it leaves the sleeper some time yet
    assert other.waits[-1].deadline <= clock.now + PATIENCE
    clock.now += PATIENCE * 1.01
    assert other.step() is None
    late = queued()
    assert stopped.step() is not None
    clock.now += MOMENT
    stopped.step()
    release(other)
    assert late.step() is not None
    assert stopped.step() is None  # by its old arrival
    release(stopped)
    assert late.step() is None


def test_a_busy_queue_is_not_taken_for_a_sleeping_one(arrive: Contend, queued: Contend, clock: Clock) -> None:
    """Q6: a lock found free twice is no sign of sleep while those ahead change."""
    holder = arrive()
    holder.get()
    first, second, third = queued(), queued(), queued()
    release(holder)
    assert third.step() is not None  # woken for whatever reason: it finds the lock free, as the first is on its way
    assert first.step() is None
    release(first)
    clock.now += PATIENCE
    assert third.step() is not None  # free again, but it is another who is on its way
    assert not third.inside
    assert second.step() is None
    release(second)
    assert third.step() is None


def test_a_waiter_whose_time_is_up_gets_a_free_lock(arrive: Contend, queued: Contend, clock: Clock) -> None:
    """Nobody is told that a lock is held when it is free."""
    holder = arrive()
    holder.get()
    queued()
    waiter = arrive(timeout=0.5)
    waiter.step()
    release(holder)
    clock.now += 0.6
    assert waiter.step() is None
    assert waiter.inside


@pytest.mark.parametrize(
    "step", ["make_directory", "open_directory", "chmod", "open_new", "guard", "write", "list_directory", "watch"]
)
@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.EIO])
def test_a_failure_of_the_queue_does_not_keep_a_waiter_from_the_lock(
    step: str, number: int, arrive: Contend, clock: Clock, path: str
) -> None:
    """Q1: without a ticket one waits as if there were no queue."""
    holder = arrive()
    holder.get()
    waiter = arrive()
    assert waiter.step() is not None
    clock.now += MOMENT

    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    waiter.env.instead[step] = fail
    for _ in range(3):
        assert waiter.step() is not None
    del waiter.env.instead[step]
    release(holder)
    waiter.get()
    release(waiter)
    assert names(path) == []


@pytest.mark.parametrize("without", ["flock", "events", "unnamed"])
def test_a_platform_that_lacks_something_has_order_and_lock(
    without: str, queued: Contend, arrive: Contend, clocked: Callable[..., Stepped], path: str
) -> None:
    """Q1: without kernel locks there are no tickets; without events the predecessor is polled."""
    holder = arrive(clocked(without))
    holder.get()
    first, second = queued(clocked(without)), queued(clocked(without))
    assert len(names(path)) == (0 if without == "flock" else 2)
    if without == "events":
        assert second.waits[-1].fds == ()
    release(holder)
    first.get()
    assert not second.inside
    release(first)
    second.get()
    release(second)
    assert names(path) == []


@pytest.mark.parametrize("there", ["a file", "a link", "a closed directory", "strange names"])
def test_something_else_at_the_place_of_the_queue_stops_no_waiter(
    there: str, arrive: Contend, clock: Clock, path: str, disk: Path
) -> None:
    """Q1."""
    place = Path(queue_of(*os.path.split(path)))
    if there == "a file":
        place.write_text("x")
    elif there == "a link":
        (disk / "elsewhere").mkdir()
        place.symlink_to(disk / "elsewhere")
    else:
        place.mkdir()
        (place / "00000000000000000001").write_text("no ticket")
        (place / "x").mkdir()
    holder = arrive()
    holder.get()
    waiter = arrive()
    assert waiter.step() is not None
    clock.now += MOMENT
    assert waiter.step() is not None
    if there == "a link":
        assert not list((disk / "elsewhere").iterdir())
    release(holder)
    waiter.get()
    release(waiter)
    if place.is_dir() and not place.is_symlink():
        for child in place.iterdir():
            child.rmdir() if child.is_dir() else child.unlink()
        place.rmdir()
    else:
        place.unlink()


def test_a_cancelled_waiter_passes_the_turn_on(
    arrive: Contend, queued: Contend, clocked: Callable[..., Stepped]
) -> None:
    """Q4: closing the generator of the first passes the turn on, here by a signal and there by an event."""
    holder = arrive()
    holder.get()
    env = clocked()
    first, beside, other = queued(env), queued(env), queued()
    first.steps.close()
    assert woken(beside)
    assert woken(other)
    assert beside.step() is not None
    release(holder)
    assert woken(beside)
    beside.steps.close()
    other.get()


def test_a_waiter_whose_loop_is_closed_does_not_hold_up_the_others(
    arrive: Contend, queued: Contend, clocked: Callable[..., Stepped]
) -> None:
    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    env = clocked()
    holder = arrive(env)
    holder.get()
    lost, other = queued(env), queued(env)
    last = queued(env)
    assert other.waits[-1].signal is not None
    other.waits[-1].signal.subscribe(closed)
    lost.steps.close()
    assert woken(last)
    release(holder)
    assert last.step() is None


def test_an_owner_inside_is_joined_by_its_own_waiters(
    arrive: Contend, queued: Contend, clocked: Callable[..., Stepped]
) -> None:
    """Re-entrancy goes before order: they would wait for themselves."""
    env = clocked()
    holder = arrive()
    holder.get()
    first, stranger, same = queued(env, owner="me"), queued(env), queued(env, owner="me")
    release(holder)
    assert first.step() is None
    assert woken(same)
    assert same.step() is None
    assert isinstance(first.result, FileHold)
    assert same.result is first.result
    for held in list(env.real.holds.values()):
        held.refs.pop()
    release(first)
    assert woken(stranger)


def crash_at(env: Stepped, last: int) -> Callable[[int, str], None]:
    def at_step(number: int, _name: str) -> None:
        if number >= last:
            env.crash()
            raise Crash

    return at_step


def test_a_crash_at_any_step_of_queueing_does_not_stop_the_queue(
    arrive: Contend, queued: Contend, clock: Clock, path: str
) -> None:
    """Q2, Q6: a waiter that is killed at any step of its wait, of its acquisition or of its release is got over."""
    number = 0
    while True:
        number += 1
        holder = arrive()
        holder.get()
        victim, heir = arrive(), None
        victim.env.at_step = crash_at(victim.env, number)
        done = False
        try:
            victim.step()
            clock.now += MOMENT
            victim.step()
            heir = queued()
            release(holder)
            victim.step()
            release(victim)
            done = True
        except (Crash, OSError):
            pass
        if holder.inside:
            release(holder)
        heir = heir or arrive()
        for _ in range(50):
            if heir.step() is None:
                break
            clock.now = max(clock.now, min(heir.waits[-1].deadline, clock.now + 0.1))
        assert heir.inside, f"after a crash at step {number}"
        release(heir)
        assert names(path) == [], f"after a crash at step {number}"
        if done:
            break
    assert number > 40


def test_a_forked_child_leaves_its_parents_queue_as_it_is(arrive: Contend, queued: Contend, path: str) -> None:
    holder = arrive()
    holder.get()
    waiter = queued()
    before = names(path)
    waiter.env.real._in_child()
    waiter.steps.close()
    assert names(path) == before
    release(holder)
    newcomer = arrive()
    newcomer.get()  # the ticket's guard is gone, as it would be with the parent
    release(newcomer)


@pytest.mark.parametrize("name", ["l", "x" * 239, "x" * 240, "x" * 255, "ü" * 127])
def test_a_long_name_has_a_queue_of_its_own(name: str) -> None:
    made = queue_of("/d", name)
    assert len(os.fsencode(os.path.basename(made))) <= 255
    assert made != queue_of("/d", name[:-1] + "y")


def test_a_waiter_far_from_its_turn_looks_less_often(queued: Contend, arrive: Contend) -> None:
    """Far from its turn a waiter looks rarely, near to it soon: together they look at most once in a while."""
    holder = arrive()
    holder.get()
    waiting = [queued() for _ in range(12)]
    pauses = [waiter.waits[-1].deadline - waiter.env.monotonic() for waiter in waiting]
    assert pauses[1] < pauses[5] < RECHECK
    assert pauses[-1] <= RECHECK
    assert queues._RECHECK_EACH <= 1.0


def test_a_long_wait_looks_less_often_than_a_short_one(queued: Contend, arrive: Contend) -> None:
    """Whoever is stopped in front of others costs them no more time than they have waited; and they look ever less."""
    holder = arrive()
    holder.get()
    queued()
    waiter = queued()
    pauses = []
    for _ in range(6):
        due = waiter.waits[-1].deadline
        waiter.env.instead["monotonic"] = lambda due=due: due
        waiter.step()
        pauses.append(waiter.waits[-1].deadline - due)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(RECHECK, abs=0.1)


# -- a directory that others may write to (Q8, Q9) ---------------------------------------------------------------------

OTHERS_TICKET = f"{1:020d}-x-{2**22 + 5}-{0:016x}"
"""A name that sorts before every other, of a process that is gone."""


def seen_in(place: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a directory, it too: mode and content."""
    found = [place, *sorted(place.rglob("*"))]
    return {str(path): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"") for path in found}


@pytest.fixture
def elsewhere(disk: Path) -> Path:
    """A directory that only its owner may enter, with what looks like a dead waiter's ticket in it."""
    place = disk / "elsewhere"
    place.mkdir(mode=0o700)
    write_ticket(place)
    return place


def write_ticket(place: Path) -> None:
    (place / "secret").write_text("people's data")
    (place / OTHERS_TICKET).write_text("people's data")
    (place / OTHERS_TICKET).chmod(0o600)


def wait_and_hold(arrive: Contend, clock: Clock, env: Stepped) -> None:
    """A whole life in the queue: wait, get it, release after a moment."""
    holder = arrive()
    holder.get()
    waiter = arrive(env)
    assert waiter.step() is not None
    clock.now += MOMENT
    assert waiter.step() is not None
    release(holder)
    while waiter.step() is not None:
        clock.now = max(clock.now, min(waiter.waits[-1].deadline, clock.now + 1.0))
    clock.now += 1.0
    release(waiter)


@pytest.mark.parametrize("kind", ["link", "directory", "file", "dangling link"])
def test_nothing_happens_to_what_takes_the_place_of_a_queue_at_any_step(
    kind: str, arrive: Contend, clock: Clock, clocked: Callable[..., Stepped], path: str, elsewhere: Path
) -> None:
    """Q8: whoever may write to the lock's directory exchanges the queue before some step of a waiter's life."""
    queue = queue_of(*os.path.split(path))
    before = seen_in(elsewhere)
    at, last = 0, False
    while not last:
        env = clocked()

        def exchange(number: int, _name: str, at: int = at) -> None:
            if number != at:
                return
            if os.path.lexists(queue):
                os.rename(queue, f"{queue}.moved")
            if kind == "directory":
                os.rename(elsewhere, queue)
            elif kind == "file":
                os.link(elsewhere / OTHERS_TICKET, queue)
            else:
                os.symlink(elsewhere if kind == "link" else elsewhere / "nothing", queue)

        env.at_step = exchange
        wait_and_hold(arrive, clock, env)
        last = len(env.steps) <= at
        if kind == "directory" and not last:
            os.rename(queue, elsewhere)
            write_ticket(elsewhere)  # in a directory that is a queue, what is known to be a dead waiter's may go
        elif os.path.lexists(queue):
            os.unlink(queue)
        if os.path.lexists(f"{queue}.moved"):
            os.rmdir(f"{queue}.moved")  # not even a ticket of ours is left in it
        assert seen_in(elsewhere) == before, f"{kind}, before step {at}: {env.steps[at - 1 : at + 1]}"
        at += 1
    assert at > 30


def test_nothing_is_removed_through_a_link_in_place_of_a_queue(
    arrive: Contend, clock: Clock, path: str, elsewhere: Path
) -> None:
    """Q8: the same, of a link that is there from the beginning."""
    queue = queue_of(*os.path.split(path))
    before = seen_in(elsewhere)
    os.symlink(elsewhere, queue)
    newcomer = arrive()
    newcomer.get()
    clock.now += 1.0
    release(newcomer)
    assert queues.names(newcomer.env.real, queue) == []
    assert seen_in(elsewhere) == before
    os.unlink(queue)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("mode", [0o755, 0o775, 0o1777])
def test_a_queue_is_open_to_those_to_whom_its_directory_is(
    mode: int, umask: int, queued: Contend, arrive: Contend, path: str
) -> None:
    """Q9: whatever the umask of who made it."""
    os.chmod(os.path.dirname(path), mode)
    holder = arrive()
    holder.get()
    before = os.umask(umask)
    try:
        queued()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(queue_of(*os.path.split(path))).st_mode) == mode
    release(holder)


def test_a_queue_in_a_linked_directory_has_the_mode_of_the_directory(
    disk: Path, contend: Contend, clock: Clock, clocked: Callable[..., Stepped]
) -> None:
    """Q9: as `/var/run` leads to `/run`. The mode of a link is 0777, and nobody's business."""
    (disk / "real").mkdir(mode=0o755)
    (disk / "link").symlink_to("real")
    path = disk / "link" / "l"
    contend(path, clocked(), fair=True, timeout=None).get()
    waiter = contend(path, clocked(), fair=True, timeout=None)
    assert waiter.step() is not None
    clock.now += MOMENT
    assert waiter.step() is not None
    assert stat.S_IMODE(os.stat(queue_of(*os.path.split(path))).st_mode) == 0o755


@pytest.mark.parametrize("step", ["open_directory", "fstat", "chmod"])
def test_a_queue_whose_maker_died_is_opened_up_by_the_next_waiter(
    step: str, arrive: Contend, queued: Contend, clock: Clock, path: str
) -> None:
    """Q9: until then, its mode says that it is in the making."""
    queue = queue_of(*os.path.split(path))
    holder = arrive()
    holder.get()
    killed = arrive()
    assert killed.step() is not None
    clock.now += MOMENT

    def die(*_args: object) -> None:
        if os.path.isdir(queue):
            killed.env.crash()
            raise Crash

    killed.env.before[step] = die
    with pytest.raises(Crash):
        killed.step()
    assert stat.S_IMODE(os.stat(queue).st_mode) == 0o1500
    queued()
    assert stat.S_IMODE(os.stat(queue).st_mode) == 0o755
    release(holder)


@pytest.mark.parametrize("mode", [0o700, 0o711, 0o1700, 0o750])
def test_a_directory_moved_to_the_place_of_a_queue_keeps_its_mode(
    mode: int, arrive: Contend, queued: Contend, path: str
) -> None:
    """Q9: only what is in the making is opened to others."""
    queue = queue_of(*os.path.split(path))
    os.chmod(os.path.dirname(path), 0o777)
    holder = arrive()
    holder.get()
    os.mkdir(queue)
    Path(queue, "secret").write_text("people's data")
    os.chmod(queue, mode)
    queued()
    assert stat.S_IMODE(os.stat(queue).st_mode) == mode
    release(holder)
    os.unlink(f"{queue}/secret")


def test_a_ticket_may_be_read_by_the_readers_of_the_lock_file(arrive: Contend, queued: Contend, path: str) -> None:
    """Its content has the tag."""
    holder = arrive(mode=0o600)
    holder.get()
    queued(mode=0o600)
    (name,) = names(path)
    assert stat.S_IMODE(os.stat(f"{queue_of(*os.path.split(path))}/{name}").st_mode) == 0o600
    release(holder)


# -- tickets of others that nobody uses (Q6) ---------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["of a stopped process", "forged"])
def test_a_ticket_that_is_not_used_and_cannot_be_removed_costs_20_ms(
    whose: str, arrive: Contend, queued: Contend, clock: Clock, path: str
) -> None:
    """Q6: another user's, in a sticky directory, in front of a lock that is free."""
    queue, fd = queue_of(*os.path.split(path)), -1
    if whose == "forged":
        os.mkdir(queue)
        fd = os.open(f"{queue}/{OTHERS_TICKET}", os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
    else:
        holder = arrive()
        holder.get()
        queued()
        release(holder)
    waiter, made = arrive(), []
    unlink = waiter.env.real.unlink

    def forbidden(name: str, **options: object) -> None:
        if queues.is_ticket(name) and name not in made:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), name)
        unlink(name, **options)

    waiter.env.before["open_new"] = lambda name, *_args, **_options: made.append(name)
    waiter.env.instead["unlink"] = forbidden
    began = clock.now
    while waiter.step() is not None:
        clock.now = max(clock.now, waiter.waits[-1].deadline)
    assert clock.now - began <= PATIENCE + 0.005
    release(waiter)
    if fd >= 0:
        os.close(fd)
        os.unlink(f"{queue}/{OTHERS_TICKET}")
        os.rmdir(queue)
