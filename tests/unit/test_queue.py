"""The queue of waiters (queue.py): processes played by hand, on a clock that the test sets. Waiters are only stepped
once their event has come (`settle`), unless the test is about a deadline, so a lost wake-up fails it."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import select
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast._core.attempt import Refusal
from holdfast._core.messages import refused
from holdfast._core.wait import Wait
from holdfast._drivers.sync import drive
from holdfast._platform.values import RECHECK, Presence, Process
from holdfast.engines.file import queue as queues
from holdfast.engines.file.acquire import AcquireAttempt, look
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.paths import queue_of, waited_for
from holdfast.engines.file.queue import NEW, PATIENCE, RECORD, is_ticket, tidy, wake
from holdfast.engines.file.remove import break_lock
from holdfast.engines.file.request import FileRequest, slots_of
from holdfast.errors import LockLost
from holdfast.model import Waiter
from unit.stepping import (
    Clock,
    Contend,
    Contender,
    Crash,
    Stepped,
    by_turns,
    failing,
    forged_ticket,
    is_ready,
    ticket_name,
)
from unit.test_interleavings import Player, Schedules

Clocked = Callable[..., Stepped]


@pytest.fixture
def path(disk: Path) -> str:
    return str(disk / "l")


@pytest.fixture
def place(path: str) -> Path:
    """The directory of the queue, if there is one."""
    return Path(queue_of(*os.path.split(path)))


@pytest.fixture
def arrive(contend: Contend, clocked: Clocked, path: str) -> Contend:
    """A fair contender for the lock, in its own process unless one is given."""

    def make(env: Stepped | None = None, **options: object) -> Contender:
        return contend(path, env or clocked(), **{"timeout": None, "fair": True, **options})

    return make


@pytest.fixture
def held(arrive: Contend) -> Contender:
    """A holder that came before any waiter, and so has no ticket."""
    holder = arrive()
    holder.get()
    return holder


def names(place: Path) -> list[str]:
    return sorted(os.listdir(place)) if place.exists() else []


def woken(contender: Contender) -> bool:
    """Whether the contender's event has come."""
    wait = contender.waits[-1]
    if wait.signal is not None:
        return wait.signal.is_set
    return is_ready(wait)


def release(contender: Contender) -> None:
    assert isinstance(contender.result, FileHold)
    contender.result.release()


def settle(*contenders: Contender) -> int:
    """Step the contenders that have been woken, until none is; the number of wake-ups."""
    steps = 0
    while ready := [one for one in contenders if not one.done and woken(one)]:
        for one in ready:
            one.step()
            steps += 1
        assert steps < 100, "they wake each other for ever"
    return steps


def in_turn(*contenders: Contender) -> None:
    """They are let in one after the other, each once the one before has released; the last one stays inside."""
    for one, following in itertools.pairwise([*contenders, None]):
        assert one is not None
        settle(one)
        assert one.inside
        if following is not None:
            release(one)


def wait_on(contender: Contender, clock: Clock) -> None:
    """Let its wait pass: it looks, and waits again."""
    clock.now = contender.waits[-1].deadline
    assert contender.step() is not None


def persist(contender: Contender, clock: Clock) -> float:
    """Step it to its end, with each wait at most to its deadline; the time that takes."""
    began = clock.now
    while contender.step() is not None:
        if not woken(contender):
            clock.now = max(clock.now, contender.waits[-1].deadline)
        assert clock.now < began + 100
    return clock.now - began


def has_reader(ticket: Path) -> bool:
    try:
        os.close(os.open(ticket, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


# -- order (Q4, Q5) ----------------------------------------------------------------------------------------------------


def test_a_newcomer_does_not_pass_a_waiter(arrive: Contend, held: Contender, queued: Contend) -> None:
    """Q5: it stays behind, even if the lock is free."""
    first = queued()
    release(held)
    late = arrive()
    assert late.step() is not None
    assert first.step() is None
    assert not woken(late)
    release(first)
    assert woken(late)
    assert late.step() is None


def test_a_process_that_takes_the_lock_again_and_again_lets_each_waiter_in(arrive: Contend, clocked: Clocked) -> None:
    """Q5: a holder that acquires right after its release goes behind the waiters, however quick it is."""
    here, there = clocked(), clocked()
    holder = arrive(here)
    holder.get()
    waiter = arrive(there)
    assert waiter.step() is not None
    for _ in range(6):
        release(holder)
        again = arrive(holder.env)
        assert again.step() is not None
        assert settle(waiter, again) == 1
        assert waiter.inside
        holder, waiter = waiter, again
    release(holder)
    settle(waiter)
    release(waiter)


@pytest.mark.parametrize("options", [{"timeout": 0}, {"fair": False}], ids=str)
def test_a_contender_that_does_not_queue_gets_a_free_lock(
    options: dict[str, object], arrive: Contend, held: Contender, queued: Contend, place: Path
) -> None:
    """Q5: `try_acquire` and `fair=False` use no queue."""
    waiter = queued()
    before = names(place)
    assert isinstance(arrive(**{**options, "timeout": 0}).run(), Refusal)
    release(held)
    hasty = arrive(**options)
    assert hasty.step() is None
    assert hasty.inside
    assert names(place) == before
    release(hasty)
    settle(waiter)
    assert waiter.inside


def test_a_release_wakes_only_the_next_one(held: Contender, queued: Contend, place: Path) -> None:
    """Q4: one wake-up for each release, however many wait; none when the next one gets the lock."""
    waiting = [queued() for _ in range(6)]
    assert len(names(place)) == 6
    assert names(place) == sorted(names(place))
    holder = held
    while waiting:
        assert not any(map(woken, waiting))
        release(holder)
        assert [woken(waiter) for waiter in waiting] == [True] + [False] * (len(waiting) - 1)
        assert settle(*waiting) == 1
        holder = waiting.pop(0)
        assert holder.inside
    release(holder)
    assert not place.exists()


@pytest.mark.needs("unnamed")
@pytest.mark.parametrize("end", ["acquired", "cannot be linked", "another is faster", "gives up"])
def test_a_waiter_has_its_file_made_before_its_turn(
    end: str, held: Contender, queued: Contend, arrive: Contend, path: str
) -> None:
    """P10: without name and record. If it is not used, it is closed; if it cannot be used, it is made again."""

    def refuse() -> None:
        raise OSError(errno.EXDEV, "the directory is another one by now")

    first, waiter, hasty = queued(), queued(), arrive(fair=False)
    release(held)
    settle(first)
    ours = waiter.env.real.operations.made
    blanks = [fd for fd in ours.values() if stat.S_ISREG(os.fstat(fd).st_mode)]
    assert [(os.fstat(fd).st_nlink, os.fstat(fd).st_size) for fd in blanks] == [(0, 1)]
    inode = os.fstat(blanks[0]).st_ino
    if end == "gives up":
        waiter.steps.close()
        assert not any(waiter.env.real.is_open(fd) for fd in blanks)
        return
    if end == "cannot be linked":
        waiter.env.once(waiter.env.before, "link_unnamed", refuse)
    if end == "another is faster":
        waiter.env.once(waiter.env.before, "link_unnamed", hasty.get)
    del waiter.env.steps[:]
    release(first)
    settle(waiter)
    assert ("open_unnamed" in waiter.env.steps) == (end == "cannot be linked")
    if end == "another is faster":
        assert not waiter.inside
        release(hasty)
        settle(waiter)
    assert waiter.inside
    assert end != "acquired" or os.stat(path).st_ino == inode
    release(waiter)
    assert not [fd for fd in ours.values() if stat.S_ISREG(os.fstat(fd).st_mode)]


def test_a_waiter_is_woken_when_the_lock_file_is_gone_and_not_before(
    held: Contender, queued: Contend, path: str
) -> None:
    """Q4: so its first look finds the lock free."""
    holder, waiter = queued(), queued()
    release(held)
    settle(holder)
    seen = []

    def look_around(_number: int, _name: str) -> None:
        seen.append((os.path.exists(path), woken(waiter)))
        assert seen[-1] != (True, True)

    holder.env.at_step = holder.env.past_step = look_around
    release(holder)
    assert {(True, False), (False, True)} <= set(seen)
    assert waiter.step() is None


def test_within_a_process_waiters_are_woken_by_a_signal(
    arrive: Contend, queued: Contend, clocked: Clocked, place: Path
) -> None:
    """Q4: with one ticket, and no descriptors for the others."""
    env = clocked()
    holder = arrive(env)
    holder.get()
    waiting = [queued(env) for _ in range(4)]
    assert len(names(place)) == 1
    assert [waiter.waits[-1].fds == () for waiter in waiting] == [False, True, True, True]
    while waiting:
        release(holder)
        assert [woken(waiter) for waiter in waiting] == [True] + [False] * (len(waiting) - 1)
        assert settle(*waiting) == 1
        holder = waiting.pop(0)
        assert holder.inside
    release(holder)
    assert env.real.local_queues == {}
    assert not place.exists()


def test_an_earlier_arrival_that_shows_late_goes_first(arrive: Contend, held: Contender, place: Path) -> None:
    """Q5: a woken waiter looks at the queue anew, and earlier arrivals go first."""
    slow, quick = arrive(), arrive()
    slow.env.once(slow.env.before, "make_fifo", quick.step)  # it has arrived, but has no ticket yet
    assert slow.step() is not None
    assert len(names(place)) == 2
    release(held)
    settle(quick)
    assert not quick.inside
    assert slow.step() is None
    release(slow)
    settle(quick)
    assert quick.inside


def test_a_contender_that_finds_a_queue_is_in_it_before_it_looks_at_the_lock(
    arrive: Contend, held: Contender, queued: Contend
) -> None:
    """Q5: so no later contender can be faster, even if the lock is free and no living waiter is ahead."""
    queued().crash()
    release(held)
    first, second = arrive(), arrive()
    first.env.once(first.env.before, "open_unnamed", second.step)
    assert first.step() is None
    assert first.inside
    release(first)
    settle(second)
    assert second.inside


@pytest.fixture(params=["a holder", "a holder with a ticket", "a waiter that leaves", "a process with two waiters"])
def scene(request: pytest.FixtureRequest, arrive: Contend, clocked: Clocked) -> Callable[[], Scene]:
    envs = [clocked() for _ in range(4)]
    return lambda: Scene(request.param, arrive, envs)


class Scene:
    """A process that is ahead, and leaves; a waiter in place; and a newcomer. Each has its own environment."""

    def __init__(self, what: str, arrive: Contend, envs: list[Stepped]) -> None:
        first, second, third, self.fourth = envs
        self._arrive = arrive
        holder = ahead = arrive(first)
        assert holder.step() is None
        self.waiting: list[Contender] = []
        """In the order in which they are to get in."""
        if what != "a holder":
            ahead = arrive(second)
            assert ahead.step() is not None
        if what == "a process with two waiters":
            other = arrive(second)
            assert other.step() is not None
            self.waiting.append(other)
        waiter = arrive(third)
        assert waiter.step() is not None
        self.waiting.append(waiter)
        if what in ("a holder with a ticket", "a process with two waiters"):
            release(holder)
            assert ahead.step() is None
        self.ahead = ahead
        self.leave = ahead.steps.close if what == "a waiter that leaves" else lambda: release(ahead)
        self.holder = holder if holder.inside and ahead is not holder else None

    def newcomer(self) -> Contender:
        late = self._arrive(self.fourth)
        self.waiting.append(late)
        return late

    def play_on(self, where: str) -> None:
        """All get in, in their order, each woken by an event."""
        if self.holder is not None:
            settle(*self.waiting)
            assert not any(waiter.inside for waiter in self.waiting), where
            release(self.holder)
        while self.waiting:
            settle(*self.waiting)
            assert [waiter.inside for waiter in self.waiting] == [True] + [False] * (len(self.waiting) - 1), where
            release(self.waiting.pop(0))


def test_no_ordering_of_steps_passes_a_waiter_or_fails_to_wake_it(scene: Callable[[], Scene], place: Path) -> None:
    """Q5, Q4: a newcomer queues while the process ahead leaves, each stopped at any step of the other."""
    played = 0
    turns = Schedules(100, 100)
    for switch, back in turns:
        played += 1
        cast = scene()
        late = cast.newcomer()
        turns.play([Player(cast.ahead.env, cast.leave), Player(late.env, late.step)], switch, back)
        where = f"{switch} steps of the one that leaves, {back} of the newcomer"
        assert not late.inside, where
        cast.play_on(where)
        assert not place.exists(), where
    assert played > 100


def test_a_newcomer_beside_a_waiter_that_is_let_in_stays_behind_it(arrive: Contend, clocked: Clocked) -> None:
    """Q5: it comes while the first waiter finds the lock free and takes it."""
    envs = [clocked() for _ in range(3)]
    turns = Schedules(100, 100)
    for switch, back in turns:
        holder, waiter, late = [arrive(env) for env in envs]
        holder.get()
        assert waiter.step() is not None
        release(holder)
        turns.play([Player(waiter.env, waiter.step), Player(late.env, late.step)], switch, back)
        where = f"{switch} steps of the waiter, {back} of the newcomer"
        settle(waiter, late)
        assert (waiter.inside, late.inside) == (True, False), where
        release(waiter)
        settle(late)
        assert late.inside, where
        release(late)


# -- the dead, and tickets (Q2) ----------------------------------------------------------------------------------------


def test_a_killed_waiter_is_not_waited_for(held: Contender, queued: Contend, place: Path) -> None:
    """Q2: a ticket without a reader does not count; the waiter that finds it removes it."""
    first, killed, third, fourth = queued(), queued(tag="killed"), queued(), queued()
    killed.crash()
    assert [woken(waiter) for waiter in (first, third, fourth)] == [False, True, False]
    assert third.step() is not None
    assert len(names(place)) == 3
    queued(tag="killed, and followed by no waiter").crash()
    fifth = queued()
    assert len(names(place)) == 4
    release(held)
    for waiter in (first, third, fourth, fifth):
        assert settle(first, third, fourth, fifth) == 1
        assert waiter.inside
        release(waiter)
    assert not place.exists()


def test_a_reader_that_passes_readers_removes_the_tickets_of_the_dead(arrive: Contend, place: Path) -> None:
    """Q2: it does not queue behind readers, so it looks at none of their tickets; without this, the queue would stay
    for ever."""
    kernel: dict[str, object] = {"protocol": "flock"}
    writer, killed, living = arrive(**kernel), arrive(shared=True, **kernel), arrive(shared=True, **kernel)
    writer.get()
    for waiter in (killed, living):
        waiter.step()
    killed.crash()
    release(writer)
    settle(living)
    assert living.inside
    assert arrive(shared=True, **kernel).step() is None
    assert len(names(place)) == 1, "that of the living one"
    living.crash()
    assert arrive(shared=True, timeout=0, **kernel).step() is None
    assert not place.exists()


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_waiter_killed_at_any_step_of_the_next_one_is_not_waited_for(
    ahead: int, arrive: Contend, held: Contender, clocked: Clocked
) -> None:
    """Q2: before it is listed, before it is followed, or later; the one behind waits only for living waiters."""
    holder, number, done = held, 0, False
    while not done:
        waiters = [arrive() for _ in range(ahead)]
        for waiter in waiters:
            assert waiter.step() is not None
        second = arrive()

        def kill(at: int, _name: str, waiter: Contender = waiters[-1], number: int = number) -> None:
            if at == number:
                waiter.crash()

        second.env.at_step = kill
        assert second.step() is not None
        done = not waiters[-1].env.dead
        if done:
            waiters.pop().steps.close()
        release(holder)
        for waiter in waiters[: ahead - 1]:
            settle(waiter)
            release(waiter)
        settle(second)
        assert second.inside, f"killed at step {number}: {second.env.steps[number - 1 : number + 1]}"
        holder = second
        number += 1
    assert number > 10


def test_a_queue_of_the_dead_is_removed_by_the_next_acquisition(
    arrive: Contend, held: Contender, queued: Contend, place: Path
) -> None:
    """Q2: the next contender removes the tickets of killed waiters, even without contention."""
    for waiter in (queued(tag="t"), queued()):
        waiter.crash()
    release(held)
    assert len(names(place)) == 3
    newcomer = arrive()
    newcomer.get()
    assert len(names(place)) == 1
    release(newcomer)
    assert not place.exists()


def test_a_queue_of_the_dead_is_removed_by_the_release(
    held: Contender, queued: Contend, clock: Clock, place: Path
) -> None:
    """Q2: perhaps no other contender comes, so a release after some time removes the tickets of killed waiters."""
    killed, living, dead = queued(), queued(), queued(tag="t")
    killed.crash()
    dead.crash()
    release(held)
    settle(living)
    assert living.inside
    clock.now += 1
    release(living)
    assert not place.exists()


@pytest.mark.parametrize("mode", [0o700, 0o777], ids=oct)
def test_a_ticket_is_never_without_its_reader_until_it_is_given_up(
    mode: int, arrive: Contend, held: Contender, clocked: Clocked, path: str, place: Path
) -> None:
    """Q2: at any step of a wait, a hold, a release, or a hand-over to another thread."""
    os.chmod(os.path.dirname(path), mode)
    env, looks = clocked(), 0

    def look_around(_number: int, step: str) -> None:
        nonlocal looks
        for name in names(place):
            if is_ticket(name):
                looks += 1
                assert has_reader(place / name) or step in ("close", "unlink")

    env.at_step = env.past_step = look_around
    first, second = arrive(env, tag="first"), arrive(env)
    assert first.step() is not None
    assert second.step() is not None
    other = arrive()
    assert other.step() is not None
    third = arrive(env)
    assert third.step() is not None
    release(held)
    for waiter in (first, second, other, third):
        settle(first, second, other, third)
        assert waiter.inside
        release(waiter)
    assert not place.exists()
    assert looks > 100


def test_a_name_is_used_once(
    arrive: Contend, clocked: Clocked, held: Contender, queued: Contend, clock: Clock, place: Path
) -> None:
    """Q2: a ticket made again for the same arrival gets a new name: ENXIO is final."""
    waiter, made = arrive(), list[str]()
    waiter.env.before["rename"] = lambda _old, new, **_options: made.append(new)
    assert waiter.step() is not None
    for _ in range(3):
        (ticket,) = place.iterdir()
        ticket.unlink()
        clock.now = waiter.waits[-1].deadline
        assert waiter.step() is not None
        assert names(place) == made[-1:]
    assert len(set(made)) == 4
    assert len({queues.arrival(name) for name in made}) == 1
    release(held)
    waiter.get()


@pytest.mark.parametrize("what", ["the new ticket", "the directory"])
def test_a_neighbour_that_sweeps_at_any_step_costs_a_new_try(what: str, arrive: Contend, place: Path) -> None:
    """Q2: a half-made ticket looks like a dead waiter's, and so does an empty queue."""
    number, done, swept = 0, False, 0
    while not done:
        holder, waiter, victim = arrive(), arrive(), []
        holder.get()

        def sweep(at: int, _name: str, number: int = number, victim: list[str] = victim) -> None:
            if at == number and place.exists():
                for new in place.glob("*" + NEW) if what == "the new ticket" else ():
                    new.unlink()
                    victim.append(new.name)
                if what == "the directory" and not names(place):
                    place.rmdir()
                    victim.append("")

        waiter.env.at_step = sweep
        assert waiter.step() is not None
        swept += bool(victim)
        (ticket,) = names(place)
        assert is_ticket(ticket), f"swept at step {number}"
        assert has_reader(place / ticket)
        done = number >= len(waiter.env.steps)
        release(holder)
        settle(waiter)
        assert waiter.inside, f"swept at step {number}"
        release(waiter)
        number += 1
    assert swept >= 2


@pytest.mark.parametrize("tries", [5, 1000])
def test_a_neighbour_that_sweeps_each_try_costs_the_ticket_not_the_lock(
    tries: int, arrive: Contend, held: Contender, place: Path
) -> None:
    """Q2, Q1: if it does so without end, the waiter waits without a ticket, and takes one at its next wait."""
    waiter, swept = arrive(), list[str]()

    def sweep(name: str, **_options: object) -> None:
        if name.endswith(NEW) and len(swept) < tries:
            swept.append(name)
            (place / name).unlink()

    waiter.env.before["open_fifo"] = sweep
    assert waiter.step() is not None
    assert len(set(swept)) == len(swept) <= 100
    if tries == 1000:
        assert not place.exists()
        del waiter.env.before["open_fifo"]
        os.utime(waiter.request.path)
        assert settle(waiter) > 0
    assert len(names(place)) == 1
    release(held)
    while not waiter.inside:
        waiter.step()


def test_a_removed_ticket_is_made_again(arrive: Contend, held: Contender, queued: Contend, place: Path) -> None:
    """Q2: a waiter whose ticket was removed, alone or with the whole queue, keeps its arrival."""
    first, second = queued(tag="t"), queued()
    shutil.rmtree(place)
    assert second.step() is not None
    assert first.step() is not None
    late = queued()
    release(held)
    for waiter in (first, second, late):
        settle(first, second, late)
        assert waiter.inside
        release(waiter)


def test_a_waiter_that_cannot_read_the_queue_keeps_its_place(
    held: Contender, queued: Contend, clock: Clock, place: Path
) -> None:
    """Q1: for want of descriptors, or as another program has the directory for itself."""
    first, second = queued(), queued()
    tickets = names(place)
    second.env.before["list_directory"] = failing(errno.EMFILE)
    wait_on(second, clock)
    assert names(place) == tickets
    release(held)
    wait_on(second, clock)
    del second.env.before["list_directory"]
    in_turn(first, second)


def test_a_crash_at_any_step_of_queueing_does_not_stop_the_queue(
    arrive: Contend, clocked: Clocked, clock: Clock, place: Path
) -> None:
    """Q2, Q6: a waiter is killed at any step of its wait, its acquisition or its release."""
    number, done = 0, False
    while not done:
        number += 1
        holder, heir, mate = arrive(), arrive(), None
        holder.get()
        env = clocked()
        victim, mate = arrive(env, tag="t"), arrive(env)
        env.at_step = crash_at(env, number)
        try:
            victim.step()
            mate.step()
            heir.step()
            release(holder)
            victim.step()
            release(victim)
            mate.step()
            release(mate)
            done = True
        except (Crash, OSError):
            pass
        if holder.inside:
            release(holder)
        persist(heir, clock)
        assert heir.inside, f"after a crash at step {number}"
        clock.now += 1
        release(heir)
        assert names(place) == [], f"after a crash at step {number}"
    assert number > 60


def crash_at(env: Stepped, last: int) -> Callable[[int, str], None]:
    def at_step(number: int, _name: str) -> None:
        if number >= last:
            env.crash()
            raise Crash

    return at_step


def interrupt_at(env: Stepped, last: int) -> Callable[[int, str], None]:
    def at_step(number: int, _name: str) -> None:
        if number == last:
            raise KeyboardInterrupt

    return at_step


def test_an_interruption_at_any_step_of_queueing_leaves_nothing(
    arrive: Contend, held: Contender, clocked: Clocked, place: Path
) -> None:
    """Q2: of a waiter that is first, behind another one, or behind a dead waiter's ticket."""
    for ahead in ("nobody", "a waiter", "a dead one"):
        number, done = 0, False
        while not done:
            first = arrive()
            if ahead != "nobody":
                assert first.step() is not None
            if ahead == "a dead one":
                first.crash()
            waiter = arrive(tag="t")
            operation = waiter.env.operations.begin(waiter.env)
            waiter.env.at_step = interrupt_at(waiter.env, number)
            try:
                done = waiter.step() is not None
            except KeyboardInterrupt:
                pass
            waiter.env.at_step = None
            waiter.steps.close()
            waiter.env.operations.abort(operation)
            assert not waiter.env.open_descriptors(), f"behind {ahead}, interrupted at step {number}"
            if ahead == "a waiter":
                assert len(names(place)) == 1, f"behind {ahead}, interrupted at step {number}"
                first.steps.close()
            elif ahead == "a dead one":
                tidying = arrive()
                assert tidying.step() is not None
                tidying.steps.close()
            assert names(place) == [], f"behind {ahead}, interrupted at step {number}"
            number += 1
        assert number > 10


def test_a_forked_child_leaves_its_parents_queue_as_it_is(
    arrive: Contend, held: Contender, queued: Contend, place: Path
) -> None:
    waiter = queued()
    before = names(place)
    waiter.env.real._in_child()
    waiter.steps.close()
    assert names(place) == before
    release(held)
    arrive().get()  # nobody reads the ticket, as if the parent had died


@pytest.mark.parametrize("name", ["l", "x" * 239, "x" * 240, "x" * 255, "ü" * 127])
def test_a_long_name_has_a_queue_of_its_own(name: str) -> None:
    made = queue_of("/d", name)
    assert len(os.fsencode(os.path.basename(made))) <= 255
    assert made != queue_of("/d", name[:-1] + "y")


def test_no_lock_has_the_queue_of_a_semaphore_or_of_bytes_of_another_file() -> None:
    names = ["l", "l@", "l.#.lock", "l.#.lock@", "l@1+2", "l@1+2@", "l.#.lock@1+2", "l@1+2.#.lock", "x" * 239 + "@"]
    made = [FileRequest(f"/d/{name}", {}).queue for name in names]
    assert [waited_for(queue) for queue in made[:-1]] == [f"/d/{name}" for name in names[:-1]]
    for span in (None, (1, 2)):
        ranged: Any = {"protocol": "ofd", "range": span}
        made += [FileRequest(f"/d/{name}", ranged).queue for name in names]
        made += [slots_of(f"/d/{name}", 2, ranged)[1].queue for name in names]
    assert len(set(made)) == len(made) == 5 * len(names)


GOOD_NAME = queues.name_of(12.5, 4711, "0123456789abcdef", "f" * 16, shared=True)


def test_a_name_tells_arrival_kind_and_process() -> None:
    assert is_ticket(GOOD_NAME)
    assert queues.arrival(GOOD_NAME) == 12.5
    assert queues.pid_of(GOOD_NAME) == 4711
    assert queues.is_shared(GOOD_NAME)
    assert queues.name_of(9.0, 4711, "0" * 16, "0" * 16, shared=False) < GOOD_NAME


@pytest.mark.parametrize(
    "name",
    [
        "", "l", GOOD_NAME + NEW, GOOD_NAME + RECORD, GOOD_NAME[1:], GOOD_NAME[:-1], GOOD_NAME.replace("-s-", "-y-"),
        GOOD_NAME.replace("4711", ""), GOOD_NAME.replace("4711", "1" * 11), GOOD_NAME.replace("4711", "-1"),
        GOOD_NAME.upper(), GOOD_NAME.replace("f" * 16, "g" * 16), GOOD_NAME.replace("4711", "٤"),
    ],
)  # fmt: skip
def test_a_name_unlike_a_tickets_names_no_ticket(name: str) -> None:
    """Q8."""
    assert not is_ticket(name)


# -- other kernels and mounts (Q3) -------------------------------------------------------------------------------------

ELSEWHERE = f"{0:08x}"
"""What the name of a ticket says of a kernel or mount that is not ours."""


@pytest.mark.parametrize("read", [False, True], ids=["unread", "read"])
def test_a_ticket_of_another_kernel_is_not_waited_for_and_not_removed_before_a_day(
    read: bool, arrive: Contend, clock: Clock, place: Path
) -> None:
    """Q3: on a shared directory, a ticket without a reader here may have one elsewhere."""
    place.mkdir()
    here = ticket_name(place)[-25:-17]
    ticket = forged_ticket(place, where=ELSEWHERE + here)
    reader = os.open(ticket, os.O_RDWR | os.O_NONBLOCK) if read else -1
    for _ in range(2):
        newcomer = arrive()
        assert newcomer.step() is None
        assert seen(newcomer.env, newcomer) == []
        clock.now += 1
        release(newcomer)
        assert names(place) == [ticket.name]
    if read:
        os.close(reader)
    for age, stays in ((86_000, True), (87_000, False)):
        os.utime(ticket, (time.time() - age,) * 2)
        newcomer = arrive()
        newcomer.get()
        release(newcomer)
        assert place.exists() == stays


def test_a_ticket_says_of_which_kernel_mount_and_pid_namespace_it_is(place: Path, clocked: Clocked) -> None:
    """Q3: another boot, host, device, or namespace of process numbers."""
    place.mkdir()
    env = clocked()
    real = env.identity()
    halves = set()
    for who in (
        real,
        real.replaced(pid=1),
        real.replaced(boot="another"),
        real.replaced(boot="-"),
        real.replaced(boot="-", host="another"),
        real.replaced(pid_namespace="another"),
    ):
        env.instead["identity"] = lambda who=who: who
        with queues.Queue(env, str(place)) as queue:  # type: ignore[arg-type]
            halves.add((queue.where[:8], queue.where[8:]))
    place.rmdir()
    assert len(halves) == 5, "all but the second differ"
    assert len({kernel for kernel, _ in halves}) == 4, "a PID namespace is of the same kernel"


def test_a_ticket_of_another_pid_namespace_is_waited_for(
    arrive: Contend, held: Contender, clocked: Clocked, place: Path, clock: Clock
) -> None:
    """Q3: its pipe belongs to the same kernel, though its pid means nothing here."""
    env = clocked()
    env.instead["identity"] = lambda *_: env.real.identity().replaced(pid_namespace="another")
    first, second = arrive(env, tag="there"), arrive()
    assert first.step() is not None
    assert second.step() is not None
    (there, _) = look(held.env, held.request).waiters  # type: ignore[arg-type]
    assert (there.tag, there.command) == ("there", None)
    release(held)
    assert settle(first, second) == 1
    assert first.inside
    release(first)
    settle(second)
    assert second.inside


# -- tickets that are not used (Q6) ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["elsewhere", "here"])
def test_a_waiter_that_sleeps_on_is_passed_and_goes_on_later(
    where: str, arrive: Contend, held: Contender, queued: Contend, clocked: Clocked, clock: Clock, place: Path
) -> None:
    """Q6: stopped in front of a free lock, it is passed at the next look, 20 ms later, and keeps its place."""
    env = clocked()
    stopped, other = queued(env), queued(env if where == "here" else None)
    ticket = names(place)[0]
    release(held)
    assert other.waits[-1].deadline - clock.now < 1.1
    wait_on(other, clock)  # it leaves the sleeper some time yet
    assert other.waits[-1].deadline <= clock.now + PATIENCE
    clock.now += PATIENCE * 0.9
    assert other.step() is not None
    clock.now += PATIENCE * 0.2
    assert other.step() is None
    assert ticket in names(place)
    late = queued(env if where == "here" else None)
    assert stopped.step() is not None
    release(other)
    settle(late, stopped)
    assert (stopped.inside, late.inside) == (True, False)
    release(stopped)
    settle(late)
    assert late.inside


@pytest.mark.parametrize("running", range(4))
def test_a_release_tells_the_first_waiter_that_is_not_stopped(
    running: int, held: Contender, queued: Contend, clock: Clock
) -> None:
    """Q6: it sleeps behind stopped ones, and would look again after as long as it has waited."""
    line = [queued() for _ in range(3)]
    for waiter in line[1:]:
        wait_on(waiter, clock)  # the look that is due soon after the arrival
    clock.now += 9
    for waiter in line[1:]:
        wait_on(waiter, clock)
    answers = [True] * running + [False] * 3
    held.env.instead["inspect"] = lambda _pid: Process(Presence.RUNNING, stopped=answers.pop(0))
    release(held)
    assert [woken(waiter) for waiter in line] == [True, running == 1, running == 2]
    for waiter in line[running:][:running]:
        assert persist(waiter, clock) <= 4 * PATIENCE
        release(waiter)
    for waiter in line:
        waiter.steps.close()


def test_a_newcomer_during_a_hand_over_leaves_the_first_waiter_its_time(
    held: Contender, queued: Contend, arrive: Contend, clock: Clock, path: str
) -> None:
    """Q6: the lock file is missing, so the first waiter has 20 ms from then on to take the lock, and is passed
    afterwards. Until then the newcomer does not look at the lock."""
    first = queued()
    release(held)
    late = arrive()
    came = clock.now
    assert late.step() is not None
    assert not os.path.exists(path)
    queued_up = late.env.steps[len(late.env.steps) - late.env.steps[::-1].index("open_fifo") :]
    assert not {"open_existing", "stat", "guarded"} & set(queued_up)
    assert late.waits[-1].deadline == pytest.approx(came + PATIENCE)
    assert persist(late, clock) == pytest.approx(PATIENCE, rel=0.01)
    assert not first.inside


def test_a_process_behind_a_ticket_does_not_take_the_next_ticket_for_the_idle_one(
    held: Contender, queued: Contend, clocked: Clocked, clock: Clock
) -> None:
    """Q6: the lock is free at both looks, but the first ticket is another one at each, so no waiter is idle."""
    env = clocked()
    first, second = queued(), queued()
    mate, late = queued(env), queued(env)
    release(held)
    wait_on(late, clock)  # it finds the lock free, while the first is on its way
    settle(first)
    release(first)
    clock.now += PATIENCE
    assert late.step() is not None
    assert not mate.inside
    assert not late.inside
    in_turn(second, mate, late)


@pytest.mark.parametrize("moment", ["unlink", "list_directory", "rename", "chmod"])
def test_a_waiter_is_not_taken_for_idle_while_it_hands_its_place_on(
    moment: str, held: Contender, queued: Contend, clocked: Clocked, clock: Clock, path: str
) -> None:
    """Q6, Q10: it has had the lock between the two looks; the waiter that gets its place is not passed."""
    env = clocked()
    first, mate, late = queued(env), queued(env), queued()
    release(held)
    wait_on(late, clock)  # it finds the lock free, while the first is on its way
    settle(first)
    clock.now += PATIENCE
    env.once(env.after, moment, late.step)
    release(first)
    assert not late.inside
    in_turn(mate, late)


@pytest.mark.parametrize("moment", ["open_fifo", "fstat"])
def test_a_waiter_that_hands_its_place_on_while_it_is_asked_about_is_not_passed(
    moment: str, held: Contender, queued: Contend, clocked: Clocked, clock: Clock
) -> None:
    """Q6, Q10: it takes the lock after the second look and releases it, and another waiter gets its place."""
    env = clocked()
    first, mate, late = queued(env), queued(env), queued()
    release(held)
    wait_on(late, clock)
    clock.now += PATIENCE

    def comes_and_goes() -> None:
        settle(first)
        release(first)

    late.env.once(late.env.after, moment, comes_and_goes)
    assert late.step() is not None
    in_turn(mate, late)


def test_a_waiter_behind_one_that_was_passed_and_goes_on_is_not_idle(
    held: Contender, queued: Contend, clocked: Clocked, clock: Clock
) -> None:
    """Q6: a process that has passed the one before it sees it as the first, but its turn has only just come."""
    env = clocked()
    stopped, other = queued(), queued(env)
    release(held)
    persist(other, clock)
    behind = queued()
    release(other)
    settle(behind)
    again = queued(env)
    clock.now += PATIENCE / 2
    assert stopped.step() is None
    release(stopped)
    wait_on(again, clock)
    in_turn(behind, again)


@pytest.mark.parametrize("where", ["elsewhere", "here"])
def test_a_waiter_passed_with_the_idle_one_still_gets_its_turn(
    where: str, arrive: Contend, held: Contender, queued: Contend, clock: Clock, clocked: Clocked
) -> None:
    """Q6: it is queued behind the idle one, and is let in when that one goes on, or passes it in its turn."""
    env = clocked() if where == "here" else None
    idle, between, other = queued(env), queued(env), queued(env)
    release(held)
    while not other.inside:
        clock.now = max(other.waits[-1].deadline, clock.now)
        other.step()
    assert woken(between), "it has to queue again, or has been told of the free lock"
    settle(between)
    assert not between.inside
    release(other)
    assert persist(between, clock) < 3
    release(between)
    settle(idle)
    assert idle.inside


def play_until(moment: float, clock: Clock, *contenders: Contender) -> None:
    """Let time pass: each goes on when it is woken, or when its wait is over."""
    while not any(one.inside for one in contenders):
        settle(*contenders)
        clock.now = min([one.waits[-1].deadline for one in contenders if not one.done] + [moment])
        if clock.now >= moment:
            return
        for one in contenders:
            if not one.done and one.waits[-1].deadline <= clock.now:
                one.step()


def test_a_stream_of_newcomers_does_not_keep_the_waiter_behind_an_idle_one_from_the_lock(
    arrive: Contend, held: Contender, queued: Contend, clocked: Clocked, clock: Clock
) -> None:
    """Q6: it sleeps behind the idle one; a newcomer about to pass both tells it, and leaves it the lock."""
    env = clocked()
    idle, well = queued(), queued()
    clock.now += 11  # its own next look is as far away as possible
    settle(well)
    well.step()
    release(held)
    began = clock.now
    for _ in range(3):
        late = arrive(env)
        late.step()
        play_until(began + 1, clock, well, late)
        if well.inside:
            break
        release(late)
    assert (well.inside, late.inside) == (True, False)
    assert clock.now - began <= 2 * PATIENCE
    release(well)
    play_until(clock.now + 1, clock, late)
    assert late.inside
    release(late)
    settle(idle)
    release(idle)


def test_waiters_behind_an_idle_one_are_told_together_and_go_in_their_order(
    arrive: Contend, held: Contender, queued: Contend, clock: Clock
) -> None:
    """Q6: the newcomer tells all of them, and none of those tells the others again."""
    idle, *others = (queued() for _ in range(5))
    clock.now += 11
    for one in others:
        one.step()
    release(held)
    late = arrive()
    late.step()
    others.append(late)
    before = [one.env.steps.count("nudge") for one in others]
    while others:
        play_until(clock.now + 1, clock, *others)
        assert [one.inside for one in others] == [True] + [False] * (len(others) - 1)
        if before:
            told = [one.env.steps.count("nudge") - count for one, count in zip(others, before, strict=True)]
            assert told == [0, 0, 0, 0, 4]
            before = []
        release(others.pop(0))
    settle(idle)
    release(idle)


def test_a_waiter_that_is_told_and_still_leaves_the_lock_alone_is_passed(
    arrive: Contend, held: Contender, queued: Contend, clocked: Clocked, clock: Clock, place: Path
) -> None:
    """Q6: it has read the message, so it gets more time; this process does not remember it as idle."""
    env = clocked()
    idle, slow = queued(), queued()
    ticket = names(place)[0]
    release(held)
    late, began = arrive(env), clock.now
    late.step()
    while not late.inside:
        clock.now = late.waits[-1].deadline
        late.step()
        if not slow.done and woken(slow):
            slow.step()  # it looks, and then stops
    assert clock.now - began == pytest.approx(3 * PATIENCE, rel=0.1)
    assert set(env.real.passed) == {ticket}
    release(late)
    settle(idle)
    release(idle)
    settle(slow)
    release(slow)


def test_a_waiter_that_has_passed_others_and_was_too_late_does_not_wait_for_them_again(
    arrive: Contend, held: Contender, queued: Contend, clock: Clock
) -> None:
    """Q6: not during this wait, however long it lasts."""
    queued()
    other, rival = queued(), arrive(fair=False)
    release(held)
    for step in ("link_unnamed", "open_new"):  # by whichever way it publishes
        other.env.once(other.env.before, step, lambda: rival.inside or rival.get())
    while not rival.inside:
        clock.now = max(clock.now, other.waits[-1].deadline)
        assert other.step() is not None
    clock.now += 5
    settle(other)
    assert other.step() is not None
    release(rival)
    assert settle(other) == 1
    assert other.inside


def test_a_busy_queue_is_not_taken_for_a_sleeping_one(held: Contender, queued: Contend, clock: Clock) -> None:
    """Q6: a lock found free twice is no sign of sleep while the waiters ahead change."""
    first, second, third = queued(), queued(), queued()
    release(held)
    wait_on(third, clock)  # it finds the lock free, while the first is on its way
    assert first.step() is None
    release(first)
    clock.now += PATIENCE
    assert third.step() is not None  # free again, but another waiter is on its way
    assert not third.inside
    assert second.step() is None
    release(second)
    assert third.step() is None


@pytest.mark.parametrize("number", [1, 100])
@pytest.mark.parametrize("mode", [0o600, 0o700], ids=["waiting", "holding"])
def test_tickets_that_are_not_used_cost_20_ms_once_a_second(
    mode: int, number: int, arrive: Contend, clocked: Clocked, clock: Clock, place: Path
) -> None:
    """Q6: forged tickets in front of a free lock. They have a reader, so they are not removed, but this process ignores
    them for a second."""
    patience = 2 * PATIENCE if mode & 0o100 else PATIENCE  # a ticket that looks like a holder's gets the time twice
    place.mkdir()
    tickets = [forged_ticket(place, arrival=1 + number) for number in range(number)]
    readers = [os.open(ticket, os.O_RDWR | os.O_NONBLOCK) for ticket in tickets]
    for ticket in tickets:
        ticket.chmod(mode)
    env = clocked()
    for begins, costs in ((0.0, True), (0.0, False), (0.5, False), (1.1, True)):
        clock.now += begins
        waiter = arrive(env)
        took = persist(waiter, clock)
        assert waiter.inside
        assert (patience <= took <= patience + 0.005) if costs else took < PATIENCE / 10
        release(waiter)
    other = arrive()
    assert patience <= persist(other, clock) <= patience + 0.005, "another process remembers nothing"
    release(other)
    assert len(names(place)) == number
    for reader in readers:
        os.close(reader)
    shutil.rmtree(place)


def test_a_stream_of_idle_tickets_does_not_keep_a_waiter_from_a_free_lock(
    arrive: Contend, clock: Clock, place: Path
) -> None:
    """Q6: each of them would be the first, with its own 20 ms."""
    place.mkdir()
    waiter, readers, began = arrive(), [], clock.now
    for number in range(100):
        ticket = forged_ticket(place, arrival=100 - number)
        readers.append(os.open(ticket, os.O_RDWR | os.O_NONBLOCK))
        if waiter.step() is None:
            break
        clock.now = max(clock.now, min(waiter.waits[-1].deadline, clock.now + PATIENCE))
    assert waiter.inside
    assert clock.now - began <= 12 * PATIENCE
    release(waiter)
    for reader in readers:
        os.close(reader)
    shutil.rmtree(place)


def test_a_ticket_with_a_pid_that_no_process_can_have_breaks_no_release(place: Path, clocked: Clocked) -> None:
    """Q6: it is a neighbour's, and keeps nobody from anything."""
    place.mkdir()
    reader = os.open(forged_ticket(place, pid=2**32), os.O_RDWR | os.O_NONBLOCK)
    tidy(clocked(), str(place))
    os.close(reader)
    shutil.rmtree(place)


def test_the_memory_of_idle_tickets_does_not_grow(arrive: Contend, clocked: Clocked, clock: Clock, place: Path) -> None:
    """Q6."""
    env = clocked()
    for _ in range(5):
        place.mkdir(exist_ok=True)
        ticket = forged_ticket(place)
        reader = os.open(ticket, os.O_RDWR | os.O_NONBLOCK)
        waiter = arrive(env)
        persist(waiter, clock)
        release(waiter)
        clock.now += 1.1
        os.close(reader)
        ticket.unlink()
    assert len(env.real.passed) == 1
    place.rmdir()


def test_a_ticket_that_cannot_be_opened_is_polled_and_passed(
    arrive: Contend, held: Contender, queued: Contend, clock: Clock, clocked: Clocked, place: Path
) -> None:
    """Q6: the state of another user's owner is unknown: it counts as alive until it leaves a free lock alone."""
    other = queued()
    ticket = names(place)[0]
    env = clocked()
    env.instead["open_fifo"] = refusing(env.real.open_fifo, lambda name, write: write and name == ticket)
    behind = arrive(env)
    wait = behind.step()
    assert wait is not None
    assert wait.fds == ()
    assert wait.deadline < clock.now + 0.01
    clock.now += 0.001
    assert behind.step() is not None
    other.steps.close()
    wait_on(behind, clock)
    assert behind.waits[-1].fds, "it is first, and watches the lock"
    behind.steps.close()
    other = queued()
    ticket = names(place)[0]
    release(held)
    behind = arrive(env)
    assert persist(behind, clock) <= PATIENCE + 0.005
    assert ticket in names(place)
    release(behind)
    settle(other)


def refusing(real: Callable[..., int], concerns: Callable[[str, bool], bool]) -> Callable[..., int]:
    def open_fifo(name: str, *, write: bool, dir_fd: int) -> int:
        if concerns(name, write):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        return real(name, write=write, dir_fd=dir_fd)

    return open_fifo


def test_a_waiter_whose_time_is_up_gets_a_free_lock(
    arrive: Contend, held: Contender, queued: Contend, clock: Clock
) -> None:
    """A free lock is refused to no writer."""
    queued()
    waiter = arrive(timeout=0.5)
    waiter.step()
    release(held)
    clock.now += 0.6
    assert waiter.step() is None
    assert waiter.inside


@pytest.mark.parametrize("protocol", ["sema", pytest.param("flock", marks=pytest.mark.needs("flock"))])
def test_a_waiter_whose_time_is_up_just_after_it_has_left_a_free_lock_to_others_gets_it(
    protocol: str, arrive: Contend, queued: Contend, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above: the clock is read again between the two."""
    may_pass = AcquireAttempt._may_pass

    def slowly(attempt: AcquireAttempt, *, free: bool) -> bool:
        may = may_pass(attempt, free=free)
        clock.now += 1.0
        return may

    holder = arrive(protocol=protocol)
    holder.get()
    queued(protocol=protocol), queued(protocol=protocol)
    waiter = arrive(timeout=0.5, protocol=protocol)
    waiter.step()
    release(holder)
    clock.now += 0.012
    monkeypatch.setattr(AcquireAttempt, "_may_pass", slowly)
    assert waiter.step() is None
    assert waiter.inside
    release(waiter)


def test_a_waiter_far_from_its_turn_looks_less_often(queued: Contend, held: Contender) -> None:
    """Far from its turn a waiter looks rarely, near to it soon: all of them together look a few times a second, however
    many they are."""
    waiting = [queued() for _ in range(80)]
    for waiter in waiting:
        waiter.env.instead["monotonic"] = lambda: 1000.1
        waiter.step()
    pauses = [waiter.waits[-1].deadline - 1000.1 for waiter in waiting]
    assert pauses[1] < pauses[5] < RECHECK < pauses[20]
    assert pauses[-1] <= 6 * RECHECK
    assert sum(1 / pause for pause in pauses[1:]) < 8
    assert queues._RECHECK_EACH <= 1.0


def test_a_long_wait_looks_less_often_than_a_short_one(queued: Contend, held: Contender) -> None:
    """A stopped waiter costs the others no more time than they have waited already, and their looks become ever
    rarer."""
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


# -- waiting without a queue (Q1) --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    ["make_directory", "open_directory", "fstat", "chmod", "make_fifo", "open_fifo", "rename", "list_directory"],
)
@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.EIO, errno.ENOENT])
def test_a_failure_of_the_queue_does_not_keep_a_waiter_from_the_lock(
    step: str, number: int, arrive: Contend, held: Contender, clock: Clock, place: Path
) -> None:
    """Q1: without a ticket, a contender waits as if there were no queue."""
    waiter = arrive()

    def fail(*args: object, **_kwargs: object) -> object:
        if step == "fstat" and not place.exists():
            return waiter.env.real.fstat(*args)
        raise OSError(number, os.strerror(number))

    waiter.env.instead[step] = fail
    for _ in range(3):
        assert waiter.step() is not None
        clock.now = waiter.waits[-1].deadline
    del waiter.env.instead[step]
    release(held)
    persist(waiter, clock)
    assert waiter.inside
    release(waiter)
    arrive().get()
    assert names(place) == []


def test_on_a_full_disk_a_waiter_has_a_ticket_without_a_record(arrive: Contend, held: Contender, place: Path) -> None:
    """Q1: its place does not depend on the record, which is for people."""
    waiter = arrive(tag="t")

    def full(*_args: object, **_options: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    waiter.env.once(waiter.env.before, "open_new", lambda: waiter.env.instead.update(write=full))
    assert waiter.step() is not None
    del waiter.env.instead["write"]
    assert has_reader(place / names(place)[0])
    assert [one.tag for one in look(held.env, held.request).waiters] == [None]  # type: ignore[arg-type]
    release(held)
    settle(waiter)
    release(waiter)
    assert not place.exists()


@pytest.mark.parametrize("without", ["flock", "events", "unnamed"])
def test_a_platform_that_lacks_something_has_order_and_lock(
    without: str, queued: Contend, arrive: Contend, clocked: Clocked, clock: Clock, place: Path
) -> None:
    """Q1: tickets need neither kernel locks nor events; without events the first waiter polls the lock file."""
    holder = arrive(clocked(without))
    holder.get()
    first, second = queued(clocked(without)), queued(clocked(without))
    assert len(names(place)) == 2
    assert (first.waits[-1].fds == ()) == (without == "events")
    assert second.waits[-1].fds
    release(holder)
    persist(first, clock)
    assert not second.inside
    release(first)
    assert woken(second)
    persist(second, clock)
    release(second)
    assert not place.exists()


def test_waiters_poll_where_there_are_no_fifos(arrive: Contend, clocked: Clocked, clock: Clock, place: Path) -> None:
    """Q1: within one process, order of arrival still holds."""
    env = clocked(kind="generic")
    holder = arrive(clocked(kind="generic"))
    holder.get()
    first, second, other = arrive(env), arrive(env), arrive(clocked(kind="generic"))
    for waiter in (first, second, other):
        assert waiter.step() is not None
    assert not place.exists()
    release(holder)
    persist(first, clock)
    assert other.step() is not None
    assert not woken(second)
    release(first)
    assert woken(second)
    persist(second, clock)
    release(second)
    persist(other, clock)


@pytest.mark.parametrize("there", ["a file", "a link", "a FIFO", "strange names"])
def test_something_else_at_the_place_of_the_queue_stops_no_waiter(
    there: str, arrive: Contend, held: Contender, clock: Clock, place: Path, disk: Path
) -> None:
    """Q1, Q8."""
    (disk / "elsewhere").mkdir()
    os.mkfifo(disk / "pipe")
    reader = os.open(disk / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    if there == "a file":
        place.write_text("x")
    elif there == "a link":
        place.symlink_to(disk / "elsewhere")
    elif there == "a FIFO":
        os.mkfifo(place)
    else:
        place.mkdir()
        (place / "00000000000000000001").write_text("no ticket")
        (place / "x").mkdir()
        (place / ticket_name(place)).write_text("a file")
        (place / ticket_name(place)).mkdir()
        (place / ticket_name(place)).symlink_to(disk / "elsewhere")
        (place / ticket_name(place)).symlink_to(disk / "pipe")
        os.mkfifo(place / "! pipe")
        os.mkfifo(place / f"! pipe{NEW}")
        for one in place.iterdir():
            os.utime(one, (0, 0), follow_symlinks=False)
        before = names(place)
    waiter = arrive()
    assert waiter.step() is not None
    release(held)
    settle(waiter)
    clock.now += 1
    release(waiter)
    assert not list((disk / "elsewhere").iterdir())
    assert not select.select([reader], [], [], 0)[0], "it was opened for writing"
    os.close(reader)
    if there == "strange names":
        assert names(place) == before
        shutil.rmtree(place)
    else:
        place.unlink()


# -- waiters of one process (Q10) --------------------------------------------------------------------------------------


def test_waiters_of_several_processes_are_served_by_arrival(
    held: Contender, queued: Contend, clocked: Clocked, place: Path
) -> None:
    """Q10: A1 B1 A2 B2 A3 B3; no thread goes before an earlier thread of another process."""
    envs = [clocked(), clocked()]
    waiting = [queued(envs[number % 2], tag=str(number)) for number in range(6)]
    holder = held
    while waiting:
        assert not any(map(woken, waiting))
        release(holder)
        settle(*waiting)
        holder = waiting.pop(0)
        assert holder.inside
        assert not any(waiter.inside for waiter in waiting)
    release(holder)
    assert not place.exists()


def test_a_waiter_behind_others_of_its_process_looks_later_in_proportion(
    held: Contender, queued: Contend, clocked: Clocked, clock: Clock
) -> None:
    """Q6: a thousand threads that all looked after 10 ms would keep the first one from the interpreter."""
    env = clocked()
    line = [queued(env) for _ in range(5)]
    pauses = [waiter.waits[-1].deadline - clock.now for waiter in line[1:]]
    assert pauses == pytest.approx([queues.FIRST_LOOK * behind for behind in range(1, 5)], rel=0.05)
    for waiter in line:
        waiter.steps.close()
    release(held)


def test_a_waiter_whose_turn_comes_reads_the_list_of_tickets_once(held: Contender, queued: Contend) -> None:
    """Q4, Q10: reading a list of a thousand tickets takes as long as everything else."""
    first, second, _third = queued(), queued(), queued()
    release(held)
    settle(first)
    begun = len(second.env.steps)
    first.env.once(first.env.after, "close", second.step)  # it has closed its ticket, and is yet to remove the name
    release(first)
    assert second.inside
    steps = second.env.steps[begun:]
    assert steps[: steps.index("link_unnamed")].count("list_directory") == 1


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("leaving", ["a holder", "a waiter"])
def test_a_place_is_handed_on_without_a_gap(
    leaving: str, between: bool, held: Contender, queued: Contend, clocked: Clocked, place: Path
) -> None:
    """Q10: at each step the process has a ticket with a reader. It is the old ticket, renamed, if there is no other one
    between the two; then the waiter behind is not woken."""
    env = clocked()
    first = queued(env, tag="first")
    others = [queued()] if between else []
    second = queued(env, tag="second")
    others += [] if between else [queued()]
    if leaving == "a holder":
        release(held)
        settle(first)
    ours = f"-x-{os.getpid()}-"
    (theirs,) = others
    fds = theirs.waits[-1].fds

    def look_around(_number: int, _name: str) -> None:
        tickets = [name for name in names(place) if is_ticket(name) and has_reader(place / name)]
        assert len(tickets) >= 2, "one of each process"
        assert all(ours in name for name in tickets)

    env.at_step = env.past_step = look_around
    begun = len(env.steps)
    release(first) if leaving == "a holder" else first.steps.close()
    env.at_step = env.past_step = None
    steps = env.steps[begun:]
    assert ("make_fifo" in steps) == between
    assert steps.count("rename") == 1
    assert len([name for name in names(place) if is_ticket(name)]) == 2
    assert woken(theirs) == between
    assert theirs.waits[-1].fds == fds
    assert [waiter.tag for waiter in look(theirs.env, held.request).waiters if waiter.tag] == ["second"]  # type: ignore[arg-type]
    (record,) = (name for name in names(place) if name.endswith(RECORD))
    assert record.removesuffix(RECORD) in names(place)
    if leaving == "a waiter":
        settle(second, theirs)
        release(held)
    queue = [theirs, second] if between else [second, theirs]
    while queue:
        settle(*queue)
        assert [waiter.inside for waiter in queue] == [True] + [False] * (len(queue) - 1)
        release(queue.pop(0))
    assert not place.exists()


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("leaving", ["a holder", "a waiter"])
@pytest.mark.parametrize("how", ["an interruption", "a crash"])
def test_a_hand_over_that_ends_at_any_step_stops_nobody(
    how: str, leaving: str, between: bool, arrive: Contend, clocked: Clocked, clock: Clock, place: Path
) -> None:
    """Q10: an interrupted release or wait lets the others in before any deadline, and leaves nothing."""
    number, done = 0, False
    while not done:
        holder, env, theirs = arrive(), clocked(), arrive()
        first, second = arrive(env, tag="first"), arrive(env, tag="second")
        holder.get()
        operations = env.operations
        operation = operations.begin(env)
        assert first.step() is not None
        operations.resume(None)
        for waiter in (theirs, second) if between else (second, theirs):
            assert waiter.step() is not None
        if leaving == "a holder":
            release(holder)
            settle(first)
        begun = len(env.steps)
        env.at_step = (crash_at if how == "a crash" else interrupt_at)(env, begun + number)
        try:
            release(first) if leaving == "a holder" else first.steps.close()
            done = True
        except (KeyboardInterrupt, Crash):
            pass
        env.at_step = None
        where = f"{how} at step {number}: {env.steps[begun + number - 1 : begun + number + 1]}"
        if holder.inside:
            settle(theirs, *(() if env.dead else (second,)))
            release(holder)
        if env.dead:
            settle(theirs)
            assert theirs.inside, where
        else:
            first.steps.close()
            operations.abort(operation)
            for _ in range(2):
                settle(second, theirs)
                assert second.inside != theirs.inside, where
                release(second if second.inside else theirs)
            assert second.done, where
            assert theirs.done, where
            assert not env.open_descriptors(), where
        if theirs.inside:
            clock.now += 1
            release(theirs)
        assert names(place) == [], where
        number += 1
    assert number > 5


def test_readers_of_one_process_have_a_ticket_each_while_they_wait(
    arrive: Contend, contend: Contend, clocked: Clocked, place: Path, path: str
) -> None:
    """Q10: once the writer before them is gone, all of them are first; none waits for another's ticket."""
    kernel = {"protocol": "flock"}
    holder, env = arrive(**kernel), clocked()
    holder.get()
    writer, readers = arrive(env, **kernel), [arrive(env, shared=True, **kernel) for _ in range(3)]
    for waiter in (writer, *readers):
        assert waiter.step() is not None
    assert len(names(place)) == 1
    writer.steps.close()
    tickets = names(place)
    assert len(tickets) == 3
    assert all(queues.is_shared(name) for name in tickets)
    release(holder)
    settle(*readers)
    assert all(reader.inside for reader in readers)
    for reader in readers:
        release(reader)
    assert not place.exists()


def test_a_cancelled_waiter_passes_the_turn_on(held: Contender, queued: Contend, clocked: Clocked) -> None:
    """Q4, Q10: closing the generator of the first waiter wakes the next one of this process, which has its ticket."""
    env = clocked()
    first, beside, other = queued(env), queued(env), queued()
    first.steps.close()
    assert [woken(beside), woken(other)] == [True, False]
    settle(beside)
    release(held)
    settle(beside, other)
    assert (beside.inside, other.inside) == (True, False)
    release(beside)
    settle(other)
    assert other.inside


def test_a_waiter_that_leaves_while_a_ticket_is_handed_to_it_leaves_none(
    held: Contender, queued: Contend, clocked: Clocked, place: Path
) -> None:
    """operations.py, J7: a signal handler lets its thread go ahead in the midst of the hand-over."""
    env = clocked()
    first, second = queued(env), queued(env)
    env.once(env.before, "rename", second.steps.close)
    first.steps.close()
    assert not place.exists()
    release(held)


@pytest.mark.parametrize("step", ["list_directory", "rename"])
def test_a_waiter_that_looks_while_a_ticket_is_handed_to_it_takes_no_other(
    step: str, held: Contender, queued: Contend, clocked: Clocked, place: Path
) -> None:
    """operations.py, J7: as above. It waits until it has that ticket."""
    env = clocked()
    first, second, other = queued(env), queued(env), queued()
    env.once(env.before, step, second.step)
    first.steps.close()
    settle(second, other)
    assert len(names(place)) == 2
    release(held)
    in_turn(second, other)
    release(other)
    assert not place.exists()


def test_a_waiter_whose_loop_is_closed_does_not_hold_up_the_others(
    arrive: Contend, queued: Contend, clocked: Clocked, place: Path
) -> None:
    """Q10: it never asks again, so it gets no ticket and loses its place."""

    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    env = clocked()
    holder = arrive(env)
    holder.get()
    first, lost, last, other = queued(env), queued(env), queued(env), queued()
    assert lost.waits[-1].signal is not None
    lost.waits[-1].signal.subscribe(closed)
    first.steps.close()
    assert woken(last)
    settle(last, other)
    release(holder)
    settle(last, other)
    assert last.inside
    release(last)
    settle(other)
    assert other.inside
    release(other)
    assert not place.exists()


def test_an_owner_inside_is_joined_by_its_own_waiters(held: Contender, queued: Contend, clocked: Clocked) -> None:
    """Re-entrancy takes precedence over order, or they would wait for themselves."""
    env = clocked()
    first, stranger, same = queued(env, owner="me"), queued(env), queued(env, owner="me")
    release(held)
    assert first.step() is None
    assert woken(same)
    assert same.step() is None
    assert isinstance(first.result, FileHold)
    assert same.result is first.result
    for hold in list(env.real.holds.values()):
        hold.refs.pop()
    release(first)
    assert woken(stranger)


# -- a byte in a ticket (Q11) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [{}, {"protocol": "semats"}], ids=str)
def test_a_broken_lock_of_a_holder_that_had_queued_is_noticed_at_once(
    kind: dict[str, object], arrive: Contend, clocked: Clocked, place: Path
) -> None:
    """Q11: the next waiter follows the holder's ticket, which is still open."""
    before, holder, first, second = [arrive(**kind) for _ in range(4)]
    before.get()
    for waiter in (holder, first, second):
        assert waiter.step() is not None
    release(before)
    settle(holder)
    assert not woken(first)
    remover = clocked()
    assert drive(break_lock(remover, first.request)) is not None  # type: ignore[arg-type]
    assert [woken(first), woken(second)] == [True, True], "any of them may follow the holder's ticket"
    settle(first, second)
    assert (first.inside, second.inside) == (True, False)
    with pytest.raises(LockLost):
        release(holder)
    assert not woken(second)
    release(first)
    settle(second)
    assert second.inside
    release(second)
    assert not place.exists()


def test_breaking_a_lock_removes_the_queue_of_the_dead(
    held: Contender, queued: Contend, clocked: Clocked, place: Path
) -> None:
    """Q2, Q11: the breaker checks whether the waiters live before it tells them."""
    for waiter in (queued(), queued()):
        waiter.crash()
    assert drive(break_lock(clocked(), held.request)) is not None  # type: ignore[arg-type]
    assert not place.exists()
    with pytest.raises(LockLost):
        release(held)


def test_a_byte_makes_a_waiter_look(arrive: Contend, held: Contender, queued: Contend, place: Path) -> None:
    """Q11: at the lock and at the queue; the byte is read."""
    first, second = queued(), queued()
    looks = second.env.steps.count("open_existing")
    nudge(place, 1)
    assert [woken(first), woken(second)] == [False, True]
    assert second.step() is not None
    assert second.env.steps.count("open_existing") > looks
    assert not woken(second)


def nudge(place: Path, number: int, count: int = 1) -> None:
    fd = os.open(place / names(place)[number], os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(fd, b"x" * count)
    except BlockingIOError:
        pass
    os.close(fd)


@pytest.mark.parametrize("count", [1, 65536])
def test_endless_bytes_do_not_keep_a_waiter_busy(count: int, held: Contender, queued: Contend, place: Path) -> None:
    """Q11: others may write to a ticket. After some wake-ups it is no longer polled; order and wake-ups still work."""
    first, second = queued(), queued()
    rounds = 0
    while True:
        nudge(place, 1, count)
        if not woken(second):
            break
        rounds += 1
        assert second.step() is not None
        assert rounds < 2000
    assert rounds <= 50 * max(1, count // 4096)
    release(held)
    assert settle(first, second) == 1
    release(first)
    settle(second)
    assert second.inside


def test_a_nudge_into_a_full_or_closed_ticket_is_no_error(place: Path, clocked: Clocked) -> None:
    """Q11."""
    env = clocked()
    place.mkdir()
    ticket = forged_ticket(place)
    reader = os.open(ticket, os.O_RDWR | os.O_NONBLOCK)
    writer = os.open(ticket, os.O_WRONLY | os.O_NONBLOCK)
    assert not env.hung_up(writer)
    os.write(writer, b"x" * fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ))
    env.nudge(writer)
    os.close(reader)
    assert env.hung_up(writer)
    env.nudge(writer)
    os.close(writer)
    shutil.rmtree(place)


@pytest.mark.needs("link")
@pytest.mark.parametrize("how", ["linked", "while it is opened", "by turns"])
def test_a_fifo_of_another_directory_is_no_ticket_and_is_not_written_to(
    how: str, place: Path, clocked: Clocked, clock: Clock, arrive: Contend
) -> None:
    """Q12: its reader is in that directory. Here it is neither waited for nor told."""
    place.mkdir()
    env, ticket, elsewhere = clocked(), forged_ticket(place), place.with_name("elsewhere")
    reader = os.open(ticket, os.O_RDWR | os.O_NONBLOCK)
    if how == "while it is opened":
        env.once(env.after, "open_fifo", lambda: os.link(ticket, elsewhere))
    else:
        os.link(ticket, elsewhere)
    if how == "by turns":
        by_turns(env, ticket, elsewhere)
    wake(env, str(place), 1)  # type: ignore[arg-type]
    assert os.path.exists(elsewhere)
    assert not is_ready(Wait((reader,), 0.0))
    env.before.clear()
    env.after.clear()
    assert persist(arrive(env), clock) < PATIENCE / 10
    os.close(reader)
    os.unlink(elsewhere)
    shutil.rmtree(place)


@pytest.mark.needs("link")
def test_the_mode_of_a_fifo_of_another_directory_stays(
    place: Path, clock: Clock, clocked: Clocked, arrive: Contend, held: Contender
) -> None:
    """Q12: another user has linked it in place of a new ticket, and its descriptor is checked when it has one name."""
    elsewhere, env = place.with_name("elsewhere"), clocked()
    os.mkfifo(elsewhere, 0)
    os.chmod(elsewhere, 0o1600)
    reader = os.open(elsewhere, os.O_RDWR | os.O_NONBLOCK)
    waiter, tickets = arrive(env), list[Path]()

    def exchange(name: str, *_mode: int, dir_fd: int) -> None:
        tickets.append(place / name)
        os.unlink(place / name)
        os.link(elsewhere, place / name)
        by_turns(env, place / name, elsewhere)

    env.after["make_fifo"] = exchange
    assert waiter.step() is not None
    assert tickets
    env.before.clear()
    env.after.clear()
    release(held)
    persist(waiter, clock)
    assert waiter.inside
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o1600
    os.close(reader)


# -- what is shown -----------------------------------------------------------------------------------------------------


def seen(observer: Stepped, contender: Contender) -> list[Waiter]:
    return list(look(observer, contender.request).waiters)  # type: ignore[arg-type]


def test_a_waiter_is_never_seen_without_its_tag(
    held: Contender, queued: Contend, clocked: Clocked, place: Path
) -> None:
    """Q2: its record is there before its ticket has its name, and stays, whoever removes leftovers meanwhile."""
    observer, last, at = clocked(), False, -1
    while not last:
        env = clocked()

        def look_around(number: int, _name: str, at: int = at) -> None:
            if number == at:
                tidy(observer, str(place))
            if number == at or at < 0:
                assert {one.tag for one in seen(observer, held)} <= {"mine"}

        env.at_step = env.past_step = look_around
        waiter = queued(env, tag="mine")
        env.at_step = env.past_step = None
        assert [one.tag for one in seen(observer, held)] == ["mine"], env.steps[at - 1 : at + 1]
        waiter.steps.close()
        last = len(env.steps) <= at
        at += 1
    assert at > 20
    release(held)


def test_the_status_shows_each_waiter_at_each_moment_and_never_a_holder(
    arrive: Contend, held: Contender, clocked: Clocked
) -> None:
    """From its first wait until it has the lock, at each step of the others: with tag, command and position."""
    observer = clocked()
    waiting = [arrive(tag=str(number)) for number in range(3)]
    for number, waiter in enumerate(waiting):
        assert waiter.step() is not None
        assert [one.tag for one in seen(observer, held)] == ["0", "1", "2"][: number + 1]
    assert [(one.position, one.pid) for one in seen(observer, held)] == [
        (1, os.getpid()),
        (2, os.getpid()),
        (3, os.getpid()),
    ]
    assert all(one.command for one in seen(observer, held))
    holder = held

    def look_around(_number: int, _name: str) -> None:
        assert {one.tag for one in seen(observer, held)} >= {one.request.tag for one in waiting[1:]}

    while waiting:
        for contender in (holder, *waiting):
            contender.env.at_step = contender.env.past_step = look_around
        release(holder)
        settle(*waiting)
        for contender in (holder, *waiting):
            contender.env.at_step = contender.env.past_step = None
        holder = waiting.pop(0)
        assert holder.inside
        assert [one.tag for one in seen(observer, held)] == [one.request.tag for one in waiting]
    release(holder)
    assert seen(observer, held) == []


def test_a_look_at_any_step_of_a_hand_over_within_a_process_shows_its_waiter(
    arrive: Contend, held: Contender, clocked: Clocked
) -> None:
    """Q10: the ticket may be renamed after an observer has listed it."""
    env, observer = clocked(), clocked()
    found: list[list[Waiter]] = []
    turns = Schedules(100, 100)
    for switch, back in turns:
        first, second = arrive(env, tag="first"), arrive(env, tag="second")
        for waiter in (first, second):
            assert waiter.step() is not None
        players = [Player(env, first.steps.close), Player(observer, lambda: found.append(seen(observer, held)))]
        turns.play(players, switch, back)
        assert [one.pid for one in found[-1]] == [os.getpid()], f"{switch} steps of the waiter, {back} of the look"
        settle(second)
        second.steps.close()
    assert len(found) > 50


# -- a directory that others may write to (Q8, Q9) ---------------------------------------------------------------------


def described(place: Path) -> dict[str, tuple[object, ...]]:
    """Mode, inode and content of a directory and everything below it."""
    found = [place, *sorted(place.rglob("*"))]
    return {
        str(path): (at.st_mode, at.st_ino, path.read_bytes() if path.is_file() else b"")
        for path, at in zip(found, map(os.lstat, found), strict=True)
    }


@pytest.fixture
def elsewhere(disk: Path, place: Path) -> Path:
    """A directory that only its owner may enter, with lookalikes of dead waiters' tickets."""
    other = disk / "elsewhere"
    other.mkdir(mode=0o700)
    fill(other)
    return other


def fill(other: Path) -> None:
    for name in OTHERS:
        (other / name).unlink(missing_ok=True)
    (other / "secret").write_text("people's data")
    (other / OTHERS[0]).write_text("people's data")
    (other / OTHERS[0]).chmod(0o600)
    os.mkfifo(other / OTHERS[1], 0o600)
    os.mkfifo(other / OTHERS[2], 0o600)
    (other / OTHERS[2]).chmod(0o1600)


OTHERS = [queues.name_of(number, 2**22 + 5, "0" * 16, "0" * 16, shared=False) for number in (1, 2, 3)]


def wait_and_hold(arrive: Contend, clock: Clock, env: Stepped) -> None:
    """A whole course: wait, acquire, release after some time."""
    holder = arrive()
    holder.get()
    waiter = arrive(env, tag="t")
    assert waiter.step() is not None
    release(holder)
    persist(waiter, clock)
    clock.now += 1.0
    release(waiter)


@pytest.mark.parametrize("kind", ["link", "directory", "file", "FIFO", "dangling link"])
def test_an_object_put_in_place_of_a_queue_at_any_step_is_left_alone(
    kind: str, arrive: Contend, clock: Clock, clocked: Clocked, place: Path, elsewhere: Path
) -> None:
    """Q8: other users that may write to the lock's directory exchange the queue before any step of a waiter."""
    before = described(elsewhere)
    moved = Path(f"{place}.moved")
    at, last = 0, False
    while not last:
        env = clocked()

        def exchange(number: int, _name: str, at: int = at) -> None:
            if number != at:
                return
            if os.path.lexists(place):
                os.rename(place, moved)
            if kind == "directory":
                os.rename(elsewhere, place)
            elif kind in ("file", "FIFO"):
                os.link(elsewhere / OTHERS[kind == "FIFO"], place)
            else:
                os.symlink(elsewhere if kind == "link" else elsewhere / "nothing", place)

        env.at_step = exchange
        wait_and_hold(arrive, clock, env)
        last = len(env.steps) <= at
        where = f"{kind}, before step {at}: {env.steps[at - 1 : at + 1]}"
        if kind == "directory" and not last:
            os.rename(place, elsewhere)
        elif os.path.lexists(place):
            os.unlink(place)
        if moved.exists():
            moved.rmdir()  # not even a ticket of ours is left in it
        assert described(elsewhere) == before, where
        at += 1
    assert at > 30


def test_nothing_is_removed_through_a_link_in_place_of_a_queue(
    arrive: Contend, clock: Clock, place: Path, elsewhere: Path
) -> None:
    """Q8: the link is there from the beginning."""
    before = described(elsewhere)
    os.symlink(elsewhere, place)
    newcomer = arrive()
    newcomer.get()
    clock.now += 1.0
    release(newcomer)
    assert queues.read_tickets(newcomer.env, str(place)) == []  # type: ignore[arg-type]
    assert described(elsewhere) == before
    os.unlink(place)


SWAPS: dict[str, Callable[[Path, Path], object]] = {
    "a link to a file": lambda at, other: at.symlink_to(other / OTHERS[0]),
    "a link to a FIFO": lambda at, other: at.symlink_to(other / OTHERS[1]),
    "a link to a directory": Path.symlink_to,
    "a hard link of a file": lambda at, other: os.link(other / OTHERS[0], at),
    "a hard link of a FIFO": lambda at, other: os.link(other / OTHERS[1], at),
    "a hard link of a half-made ticket": lambda at, other: os.link(other / OTHERS[2], at),
    "a directory": lambda at, _: at.mkdir(),
    "a FIFO": lambda at, _: os.mkfifo(at, 0o640),
    "nothing": lambda _at, _other: None,
}


@pytest.mark.parametrize("kind", SWAPS)
@pytest.mark.parametrize("suffix", ["", NEW, RECORD])
def test_an_object_put_in_place_of_a_ticket_at_any_step_is_left_alone(
    suffix: str, kind: str, arrive: Contend, clock: Clock, clocked: Clocked, place: Path, path: str, elsewhere: Path
) -> None:
    """Q8, Q9: neither its mode nor its content nor its target changes, and the waiter gets the lock."""
    os.chmod(os.path.dirname(path), 0o777)
    before = described(elsewhere)
    at, last, swapped, fifos = 0, False, 0, list[int]()
    while not last:
        env = clocked()

        def exchange(number: int, _name: str, at: int = at) -> None:
            nonlocal swapped
            for name in names(place) if number == at else ():
                if is_ticket(name.removesuffix(suffix)):
                    os.rename(place / name, elsewhere.parent / "moved")
                    SWAPS[kind](place / name, elsewhere)
                    swapped += 1
                    if kind == "a FIFO":
                        fifos.append(os.open(place / name, os.O_RDWR | os.O_NONBLOCK))

        env.at_step = exchange
        wait_and_hold(arrive, clock, env)
        last = len(env.steps) <= at
        where = f"{kind}, before step {at}: {env.steps[at - 1 : at + 1]}"
        assert described(elsewhere) == before, where
        while fifos:
            assert stat.S_IMODE(os.fstat(fifos[-1]).st_mode) == 0o640, where
            os.close(fifos.pop())
        shutil.rmtree(place, ignore_errors=True)
        at += 1
    assert swapped >= 3


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o775, 0o1777], ids=oct)
def test_a_queue_and_its_tickets_are_open_to_the_users_of_the_directory(
    mode: int, umask: int, arrive: Contend, held: Contender, queued: Contend, place: Path
) -> None:
    """Q9: whatever the umask of the waiter. Users that may take the lock may write to a ticket, to follow it."""
    os.chmod(place.parent, mode)
    before = os.umask(umask)
    try:
        waiter = queued()
        (ticket,) = place.iterdir()
        waiting = stat.S_IMODE(ticket.stat().st_mode)
        release(held)
        settle(waiter)
        holding = stat.S_IMODE(ticket.stat().st_mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == mode
    assert waiting & 0o777 == (0o622 if mode & 0o022 else 0o600)
    assert holding & 0o777 == (0o722 if mode & 0o022 else 0o700)
    release(waiter)


def test_a_queue_that_its_maker_may_not_open_is_removed(
    arrive: Contend, held: Contender, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q1: nobody else could use it. With some umasks, its owner may not open it; the waiter does without a queue."""
    waiter, real, made = arrive(), os.open, list[bool]()

    def fail(path: str, *more: Any, **others: Any) -> int:
        if path == str(place):
            made.append(place.is_dir())
            if place.is_dir():
                raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, *more, **others)

    monkeypatch.setattr(os, "open", fail)
    assert waiter.step() is not None, "it waits"
    assert True in made
    assert not place.exists()
    release(held)
    settle(waiter)
    release(waiter)


@pytest.mark.parametrize("mode", [0o600, 0o644], ids=oct)
def test_the_record_of_a_waiter_may_be_read_by_the_readers_of_the_lock_file(
    mode: int, arrive: Contend, queued: Contend, place: Path
) -> None:
    """It has the tag."""
    holder = arrive(mode=mode)
    holder.get()
    queued(mode=mode, tag="secret")
    (record,) = (name for name in names(place) if name.endswith(RECORD))
    assert stat.S_IMODE((place / record).stat().st_mode) == mode
    assert b"tag=secret" in (place / record).read_bytes()
    release(holder)


def test_a_queue_in_a_linked_directory_has_the_mode_of_the_directory(
    disk: Path, contend: Contend, clocked: Clocked
) -> None:
    """Q9: as `/var/run` leads to `/run`. The mode of a link is 0777 and means nothing."""
    (disk / "real").mkdir(mode=0o755)
    (disk / "link").symlink_to("real")
    path = disk / "link" / "l"
    contend(path, clocked(), fair=True, timeout=None).get()
    waiter = contend(path, clocked(), fair=True, timeout=None)
    assert waiter.step() is not None
    assert stat.S_IMODE(os.stat(queue_of(*os.path.split(path))).st_mode) == 0o755


@pytest.mark.parametrize("step", ["open_directory", "fstat", "chmod"])
def test_a_queue_whose_maker_died_is_opened_up_by_the_next_waiter(
    step: str, arrive: Contend, held: Contender, queued: Contend, place: Path
) -> None:
    """Q9: until then, its mode marks it as unfinished."""
    killed = arrive()

    def die(*_args: object) -> None:
        if place.is_dir():
            killed.env.crash()
            raise Crash

    killed.env.before[step] = die
    with pytest.raises(Crash):
        killed.step()
    assert stat.S_IMODE(place.stat().st_mode) == 0o1500
    queued()
    assert stat.S_IMODE(place.stat().st_mode) == 0o755
    release(held)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("mode", [0o700, 0o711, 0o1700, 0o750], ids=oct)
def test_a_directory_moved_to_the_place_of_a_queue_keeps_its_mode(
    mode: int, full: bool, held: Contender, queued: Contend, place: Path
) -> None:
    """Q9: only an unfinished queue is opened to others."""
    os.chmod(place.parent, 0o777)
    place.mkdir()
    if full:
        (place / "secret").write_text("people's data")
    place.chmod(mode)
    queued()
    assert stat.S_IMODE(place.stat().st_mode) == mode
    release(held)
    if full:
        (place / "secret").unlink()


def test_a_full_directory_in_the_making_is_not_opened_to_others(held: Contender, queued: Contend, place: Path) -> None:
    """Q9: whatever its mode, it has not just been made."""
    place.mkdir()
    (place / "secret").write_text("people's data")
    place.chmod(0o1500)
    queued()
    assert stat.S_IMODE(place.stat().st_mode) == 0o1500
    release(held)
    place.chmod(0o700)
    shutil.rmtree(place)


def test_waiters_behind_one_of_their_process_that_never_waited_have_a_ticket(
    arrive: Contend, clocked: Clocked, place: Path
) -> None:
    """Q5: it took over a dead lock, so its place has no ticket and other processes cannot see it."""
    ours, theirs = clocked(), clocked()
    dead = arrive()
    dead.get()
    dead.crash()
    holder = arrive(ours, timeout=0)
    holder.get()
    waiter = arrive(ours)
    assert waiter.step() is not None
    assert len(names(place)) > 0
    later = arrive(theirs)
    assert later.step() is not None
    release(holder)
    settle(waiter, later)
    assert waiter.inside
    assert not later.inside
    release(waiter)
    settle(later)
    release(later)


@pytest.mark.parametrize("listens", [False, True])
def test_a_contender_that_was_too_slow_is_refused_by_the_holder_that_was_faster(
    arrive: Contend, clocked: Clocked, clock: Clock, held: Contender, listens: bool
) -> None:
    """A3: it finds the lock free, and another process gets it while this one is stopped. No descriptor stays open."""
    env, faster = clocked(), arrive(fair=False)
    slow = arrive(env, timeout=0, **({"on_event": lambda _event: None} if listens else {}))
    tries: list[str] = []
    released: list[str] = []

    def at_a_try(*_: object) -> None:
        tries.append("")
        if len(tries) == 2:
            faster.get()
            clock.now += 0.06

    def at_step(_number: int, name: str) -> None:
        if name == "stat" and len(tries) == 1 and held.inside and not released:
            released.append(name)
            release(held)

    env.before["link_unnamed"] = at_a_try
    env.at_step = at_step
    before = env.open_descriptors()
    refusal = slow.run()
    env.at_step = None
    assert len(tries) == 2
    assert isinstance(refusal, Refusal)
    assert "alive" in str(refused(refusal, 0))
    assert env.open_descriptors() == before
    release(faster)


def test_a_thousand_forged_tickets_cost_no_more_than_a_hundred(
    held: Contender, arrive: Contend, clocked: Clocked, queued: Contend, place: Path
) -> None:
    """Q1: they have no reader, and only another user may remove them (a sticky directory); no order is kept then."""
    queued().crash()  # so there is a queue
    forged = {forged_ticket(place, arrival=0.5 + number / 10000).name for number in range(1000)}

    def refuse(path: str, **_more: object) -> None:
        if os.path.basename(path) in forged:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)
        unlink(path, **_more)

    env = clocked()
    unlink = env.real.unlink
    env.instead["unlink"] = refuse
    waiter = arrive(env)
    assert waiter.step() is not None
    assert not waiter.inside
    assert env.steps.count("open_fifo") < 250
    assert env.steps.count("list_directory") < 25
    release(held)
    settle(waiter)
    assert waiter.inside
    assert env.steps.count("open_fifo") < 500
    release(waiter)
    env.steps.clear()
    with queues.Queue(env, str(place)) as queue:  # type: ignore[arg-type]
        queue.sweep()
    assert env.steps.count("open_fifo") < 250
    for name in forged:
        (place / name).unlink()
    place.rmdir()
