"""The engine with one lock file for each slot: processes played by hand, on a clock that the test sets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast._core.attempt import Refusal
from holdfast._drivers.sync import drive
from holdfast._platform.values import RECHECK
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.queue import PATIENCE
from holdfast.engines.file.remove import break_lock
from holdfast.engines.file.request import slots_of
from holdfast.errors import LockLost, ProtocolMismatch, WouldDeadlock
from unit.stepping import Clock, Contend, Contender, Crash, Stepped, is_ready


@pytest.fixture
def base(disk: Path) -> str:
    return str(disk / "b")


@pytest.fixture
def arrive(contend: Contend, clocked: Callable[..., Stepped], base: str) -> Contend:
    """A fair contender for one of two slots, in its own process unless one is given."""

    def make(env: Stepped | None = None, **options: object) -> Contender:
        return contend(base, env or clocked(), **{"slots": 2, "timeout": None, "fair": True, **options})

    return make


@pytest.fixture
def full(arrive: Contend) -> list[Contender]:
    """Holders of both slots."""
    holders = [arrive(), arrive()]
    assert [slot(holder) for holder in holders] == [0, 1]
    return holders


def slot(contender: Contender) -> int | None:
    """Run to the end, which must be a hold; the number of its slot."""
    return contender.get().request.slot


def slot_of(contender: Contender) -> int | None:
    assert isinstance(contender.result, FileHold)
    return contender.result.request.slot


def woken(contender: Contender) -> bool:
    """Whether the contender's event has come."""
    wait = contender.waits[-1]
    if wait.signal is not None:
        return wait.signal.is_set
    return is_ready(wait)


def release(contender: Contender) -> None:
    assert isinstance(contender.result, FileHold)
    contender.result.release()


def tickets(base: str) -> list[str]:
    place = queue(base)
    return sorted(os.listdir(place)) if os.path.exists(place) else []


def queue(base: str) -> str:
    return slots_of(base, 1, {})[0].queue


# -- choice of the slot ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"owner": "me"}, {"fair": False}])
def test_the_lowest_free_slot_is_taken(arrive: Contend, options: dict[str, object]) -> None:
    holders = [arrive(slots=4, **options) for _ in range(4)]
    assert [slot(holder) for holder in holders] == [0, 1, 2, 3]
    for number in (2, 1):
        release(holders[number])
    assert [slot(arrive(slots=4, **options)) for _ in range(2)] == [1, 2]


@pytest.mark.parametrize("options", [{}, {"owner": "me"}, {"timeout": 0}])
def test_the_slot_of_a_crashed_holder_is_taken_over_at_once(arrive: Contend, options: dict[str, object]) -> None:
    """At first contact it counts as free, and its new holder learns of the takeover."""
    killed, living = arrive(slots=3, tag="killed"), arrive(slots=3)
    killed.get()
    living.get()
    killed.crash()
    heir = arrive(slots=3, **options)
    assert slot(heir) == 0
    assert isinstance(heir.result, FileHold)
    assert heir.result.recovered_from is not None
    assert heir.result.recovered_from.tag == "killed"


def test_a_slot_lost_to_a_rival_does_not_end_the_search(arrive: Contend, clock: Clock) -> None:
    """The rival gets slot 0 between our look and our attempt: slot 1 is still free."""
    rival, other = arrive(), arrive()
    other.env.once(other.env.before, "open_unnamed", rival.get)
    assert slot(other) == 1
    assert slot_of(rival) == 0


def test_no_more_holders_are_inside_than_there_are_slots(arrive: Contend, full: list[Contender]) -> None:
    refused = [arrive(timeout=0) for _ in range(3)]
    for contender in refused:
        assert isinstance(contender.run(), Refusal)
    assert sorted(os.listdir(os.path.dirname(full[0].request.path))) == ["b.0.lock", "b.1.lock"]


@pytest.mark.parametrize("kind", ["linux", "posix", "generic"])
def test_a_platform_that_lacks_something_keeps_the_slots_apart(
    kind: str, arrive: Contend, clocked: Callable[..., Stepped]
) -> None:
    holders = [arrive(clocked(kind=kind)) for _ in range(2)]
    assert [slot(holder) for holder in holders] == [0, 1]
    waiter = arrive(clocked(kind=kind))
    assert waiter.step() is not None
    release(holders[1])
    assert slot(waiter) == 1


@pytest.mark.parametrize("without", ["flock", "events", "unnamed", "unnamed,link", "proc"])
def test_a_filesystem_that_lacks_something_keeps_the_slots_apart(
    without: str, arrive: Contend, clocked: Callable[..., Stepped]
) -> None:
    holders = [arrive(clocked(*without.split(","))) for _ in range(2)]
    assert [slot(holder) for holder in holders] == [0, 1]
    waiter = arrive(clocked(*without.split(",")))
    assert waiter.step() is not None
    release(holders[0])
    assert slot(waiter) == 0


def test_a_slot_of_another_protocol_is_an_error(arrive: Contend, base: str) -> None:
    """No release would ever come: two protocols on one base are a mistake to be reported."""
    Path(f"{base}.0.lock").write_text('{"holder": "bd", "pid": 1, "hostname": "h", "started_at": "x", "version": "1"}')
    with pytest.raises(ProtocolMismatch):
        arrive().run()


# -- waiting for any ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1])
def test_the_release_of_any_slot_wakes_only_the_first(
    number: int, arrive: Contend, full: list[Contender], queued: Contend, base: str
) -> None:
    """Q7: the first waiter watches all slots, and the others watch the one before them."""
    waiting = [queued() for _ in range(3)]
    assert len(tickets(base)) == 3
    assert not any(map(woken, waiting))
    release(full[number])
    assert [woken(waiter) for waiter in waiting] == [True, False, False]
    assert waiting[0].step() is None
    assert slot_of(waiting[0]) == number
    # It has left the queue, so that the next one watches the slots.
    assert [woken(waiter) for waiter in waiting[1:]] == [True, False]
    assert waiting[1].step() is not None
    release(full[1 - number])
    assert [woken(waiter) for waiter in waiting[1:]] == [True, False]
    assert waiting[1].step() is None
    assert slot_of(waiting[1]) == 1 - number


def test_two_slots_released_at_once_let_in_two(arrive: Contend, full: list[Contender], queued: Contend) -> None:
    """Q7: a waiter that gets a slot leaves the queue at once, and the next one looks."""
    first, second, third = queued(), queued(), queued()
    for holder in full:
        release(holder)
    assert first.step() is None
    assert woken(second)
    assert second.step() is None
    assert {slot_of(first), slot_of(second)} == {0, 1}
    assert woken(third)
    assert third.step() is not None
    assert not third.inside


def test_a_lock_named_like_the_pattern_of_the_slots_keeps_no_waiter_from_a_slot(
    full: list[Contender], queued: Contend, contend: Contend, clocked: Callable[..., Stepped], base: str
) -> None:
    """Its holder has a place in the lock's own queue, where it would never look at the slots."""
    holder, heir = (contend(f"{base}.#.lock", clocked(), timeout=None, fair=True) for _ in range(2))
    holder.get()
    assert heir.step() is not None
    release(holder)
    heir.get()
    waiter = queued()
    release(full[0])
    assert woken(waiter)


@pytest.mark.parametrize("where", ["elsewhere", "here"])
def test_waiters_get_in_in_order(
    where: str, full: list[Contender], queued: Contend, clocked: Callable[..., Stepped]
) -> None:
    env = clocked() if where == "here" else None
    waiting = [queued(env) for _ in range(5)]
    inside = list(full)
    while waiting:
        release(inside.pop(0))
        assert [woken(waiter) for waiter in waiting] == [True] + [False] * (len(waiting) - 1)
        inside.append(waiting.pop(0))
        assert inside[-1].step() is None
        if waiting:
            assert woken(waiting[0])
            assert waiting[0].step() is not None  # it is the first now, and finds no free slot


def test_a_newcomer_does_not_pass_a_long_waiter(arrive: Contend, full: list[Contender], queued: Contend) -> None:
    first = queued()
    release(full[1])
    late = arrive()
    assert late.step() is not None
    assert not late.inside
    assert first.step() is None
    assert slot_of(first) == 1


def test_a_killed_holder_is_not_waited_for(full: list[Contender], queued: Contend) -> None:
    first, second = queued(), queued()
    full[1].crash()
    assert [woken(first), woken(second)] == [True, False]
    assert slot(first) == 1


def test_a_release_before_the_watch_is_seen(arrive: Contend, full: list[Contender]) -> None:
    """WF1, for each slot: the watch on the second is armed before the look that decides to wait."""
    for number, holder in enumerate(full):
        waiter = arrive()
        watches: list[object] = []

        def at_last_watch(path: str, *_: object, holder: Contender = holder, seen: list[object] = watches) -> None:
            seen.append(path)
            if len(seen) == 2:
                release(holder)

        waiter.env.after["watch"] = at_last_watch
        assert waiter.step() is None
        assert slot_of(waiter) == number
        full[number] = waiter


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_event_on_one_slot_does_not_hide_that_on_another(
    order: tuple[int, int], arrive: Contend, full: list[Contender]
) -> None:
    """WF1: events of both slots are taken one after the other, and none is lost."""
    waiter = arrive()
    assert waiter.step() is not None
    assert not woken(waiter)
    for number in order:
        os.utime(full[number].request.path.replace(".0.", f".{number}."))
        assert woken(waiter)
        assert waiter.step() is not None
    for _ in range(20):  # past the polling after a change
        if waiter.waits[-1].fds:
            break
        assert waiter.step() is not None
    release(full[order[0]])
    assert woken(waiter)
    assert slot(waiter) == order[0]


def test_a_cancelled_wait_closes_its_descriptors(arrive: Contend, full: list[Contender], base: str) -> None:
    waiter = arrive()
    waiter.step()
    assert waiter.env.open_descriptors()
    waiter.steps.close()
    assert not waiter.env.open_descriptors()
    assert tickets(base) == []


def test_a_wait_for_many_slots_has_each_descriptor_once_and_a_deadline(arrive: Contend, full: list[Contender]) -> None:
    """A2: the re-check deadline, or the waiter's own."""
    waiter = arrive(timeout=5.0)
    wait = waiter.step()
    assert wait is not None
    assert len(set(wait.fds)) == len(wait.fds), "some event loops take each descriptor once"
    patient = arrive()
    assert (wait := patient.step()) is not None
    assert wait.deadline <= 1000.0 + RECHECK


def test_a_crash_at_any_step_loses_no_slot(arrive: Contend, clock: Clock, base: str) -> None:
    """A contender killed at any step of its wait, acquisition or release costs no other a slot."""
    number = 0
    while True:
        number += 1
        holders = [arrive(), arrive()]
        for holder in holders:
            holder.get()
        victim, done = arrive(), False

        def at_step(count: int, _name: str, env: Stepped = victim.env, last: int = number) -> None:
            if count >= last:
                env.crash()
                raise Crash

        victim.env.at_step = at_step
        try:
            victim.step()
            release(holders[1])
            victim.step()
            release(victim)
            done = True
        except (Crash, OSError):
            pass
        for holder in holders:
            if holder.inside:
                release(holder)
        heirs = [arrive(timeout=1.0), arrive(timeout=1.0)]
        for heir in heirs:
            for _ in range(100):
                if heir.step() is None:
                    break
                clock.now = max(clock.now, min(heir.waits[-1].deadline, clock.now + 0.1))
            assert heir.inside, f"after a crash at step {number}"
        for heir in heirs:
            release(heir)
        assert tickets(base) == [], f"after a crash at step {number}"
        if done:
            break
    assert number > 40


# -- others on the same base -------------------------------------------------------------------------------------------


def test_waiters_that_know_of_fewer_slots_do_not_keep_others_out_of_the_rest(
    arrive: Contend, full: list[Contender], queued: Contend, clock: Clock
) -> None:
    """A waiter with three slots passes, after a moment, waiters that know of two."""
    narrow = queued()
    wide = arrive(slots=3)
    assert wide.step() is not None
    assert wide.waits[-1].deadline <= clock.now + PATIENCE
    clock.now += PATIENCE * 1.01
    assert wide.step() is None
    assert slot_of(wide) == 2
    release(full[0])
    assert slot(narrow) == 0


def test_a_holder_that_knows_of_one_slot_is_not_ahead_of_waiters_that_know_of_more(arrive: Contend) -> None:
    """Q7: otherwise a waiter behind it would not watch the slots that the holder does not know of."""
    before, narrow = arrive(slots=1), arrive(slots=1)
    assert slot(before) == 0
    assert narrow.step() is not None
    release(before)
    assert narrow.step() is None
    other, wide = arrive(), arrive()
    assert other.step() is None
    assert slot_of(other) == 1
    assert wide.step() is not None
    release(other)
    assert woken(wide)
    assert wide.step() is None
    assert slot_of(wide) == 1


def test_a_waiter_for_one_slot_sees_that_it_is_broken(arrive: Contend, contend: Contend, base: str) -> None:
    """Q7: a process that breaks it by its own path does not know of the queue."""
    before, holder, waiter = arrive(slots=1), arrive(slots=1), arrive(slots=1)
    assert slot(before) == 0
    assert holder.step() is not None
    assert waiter.step() is not None
    release(before)
    assert holder.step() is None
    while woken(waiter):
        assert waiter.step() is not None
    remover = contend(f"{base}.0.lock")
    assert drive(break_lock(remover.env, remover.request)) is not None  # type: ignore[arg-type]
    assert woken(waiter)
    assert waiter.step() is None
    assert slot_of(waiter) == 0
    with pytest.raises(LockLost):
        release(holder)


@pytest.mark.parametrize("narrow", [1, 3])
def test_a_slot_unknown_to_the_waiters_ahead_is_found_as_soon_after_a_long_wait(
    arrive: Contend, full: list[Contender], queued: Contend, clock: Clock, narrow: int
) -> None:
    """Within a second for each of them, ten at most: its release wakes no waiter, as the first one does not watch
    it."""
    third = arrive(slots=3)
    assert slot(third) == 2
    for _ in range(narrow):
        queued()
    wide = arrive(slots=3)
    wait = wide.step()
    began = clock.now
    while clock.now < began + 60:
        assert wait is not None
        clock.now = wait.deadline
        wait = wide.step()
    release(third)
    released = clock.now
    while not wide.inside:
        assert wait is not None
        clock.now = wait.deadline
        wait = wide.step()
    assert slot_of(wide) == 2
    assert clock.now <= released + narrow + 3 * PATIENCE


def test_a_lock_and_a_semaphore_of_one_name_do_not_wait_for_each_other(
    arrive: Contend, contend: Contend, full: list[Contender], queued: Contend, base: str
) -> None:
    queued()
    lock = contend(base, timeout=None, fair=True)
    assert lock.step() is None
    assert lock.request.queue != queue(base)


# -- the same thread, the same owner -----------------------------------------------------------------------------------


def test_a_thread_cannot_wait_for_its_own_slots_for_ever(arrive: Contend, clocked: Callable[..., Stepped]) -> None:
    env, me = clocked(), (object(),)
    for _ in range(2):
        arrive(env, context=me).get()
    with pytest.raises(WouldDeadlock, match="all 2 slots"):
        arrive(env, context=me).run()
    assert isinstance(arrive(env, context=me, timeout=0).run(), Refusal)


def test_a_wait_that_others_could_end_is_not_refused(arrive: Contend, clocked: Callable[..., Stepped]) -> None:
    env, me = clocked(), (object(),)
    arrive(env, context=me).get()
    other = arrive()
    other.get()
    waiter = arrive(env, context=me)
    assert waiter.step() is not None
    release(other)
    assert slot(waiter) == 1


def test_an_owner_takes_one_slot(arrive: Contend, clocked: Callable[..., Stepped]) -> None:
    env = clocked()
    others = [arrive()]
    others[0].get()
    first = arrive(env, owner="me")
    assert slot(first) == 1
    release(others[0])
    again = arrive(env, owner="me")
    assert slot(again) == 1
    assert again.result is first.result
    assert slot(arrive(env, owner="you")) == 0


def test_an_owner_that_lost_a_race_joins_the_first(arrive: Contend, clocked: Callable[..., Stepped]) -> None:
    """Two contenders of one owner see slot 0 free: the second joins the first there, and does not take slot 1."""
    env = clocked()
    first, second = arrive(env, owner="me", timeout=0), arrive(env, owner="me", timeout=0)
    second.env.once(second.env.before, "open_unnamed", first.get)
    assert slot(second) == 0
    assert second.result is first.result


def test_waiters_of_one_owner_join_the_first_inside(
    full: list[Contender], queued: Contend, clocked: Callable[..., Stepped]
) -> None:
    """Q7: re-entrancy takes precedence over order."""
    env = clocked()
    first, stranger, same = queued(env, owner="me"), queued(env), queued(env, owner="me")
    release(full[0])
    assert first.step() is None
    assert woken(stranger)  # it is first now
    assert woken(same)
    assert same.step() is None
    assert same.result is first.result
