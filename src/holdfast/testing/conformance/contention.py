"""Scenarios with several contenders: never two inside, and none is forgotten."""

from __future__ import annotations

import os
import time

from .adapter import Running
from .bench import HELD, Bench, Failed, scenario
from .holding import ALL, EVERY

ROUNDS = 4
_TAKEN, _FREE = 0.0003, 0.00004
"""Seconds. Free for about as long as it takes to look and then to rename, and often enough for polling waiters."""
_FREE_SHARE = 0.08
"""Least time that it is free, as a share of the time that it was taken: a busy system wakes us late, and a polling
waiter would hardly find it free."""
_INSIDE = 0.03
"""Seconds for which a holder is kept inside, so that a second one that is let in is seen."""


@scenario(*EVERY, needs="hold", basis="care", waits=True)
def a_waiter_gets_in_after_a_release(bench: Bench) -> None:
    """And its record says when it got in: one that was stamped before the wait may be stale at once."""
    holder = bench.get("hold")
    waiter = bench.start("hold")
    bench.expect_silent(waiter, "the second one to wait while the first holds")
    line = waiter.line(2.1 - bench.adapter.silence)
    bench.require(line is None, "the second one to wait while the first holds", f"it said {line!r}")
    released = time.time()
    bench.expect_released_to(holder, waiter)
    claim = bench.expect_own_record(waiter)
    if claim.at is None or claim.at < released - 1:
        raise Failed(f"the time of the acquisition, {released:.0f}", f"the record says {claim.at}", bench.found())
    bench.expect_released(waiter)


@scenario(*EVERY, needs="hold")
def a_waiter_gets_in_when_somebody_else_removes_the_lock(bench: Bench) -> None:
    """Others release by removing the file, and send no wake-up."""
    bench.put(bench.record())
    waiter = bench.start("hold")
    bench.expect_silent(waiter, "it to wait while somebody else holds")
    bench.remove()
    bench.expect_held(waiter, "the waiter to get in once the lock file is removed")
    bench.expect_own_hold(waiter)


@scenario(*EVERY, needs="hold", basis="care")
def two_contenders_are_never_both_inside(bench: Bench) -> None:
    """Started together, one gets in, the other after its release."""
    for _ in range(ROUNDS):
        one_after_another(bench)


@scenario(*EVERY, basis="care")
def of_four_who_try_at_once_one_gets_in(bench: Bench) -> None:
    """Looking whether the lock is free and then writing it is two steps, and another can do both in between."""
    for _ in range(ROUNDS // 2):
        tried = [bench.start("try") for _ in range(4)]
        answers = [running.answer(bench.adapter.limit) for running in tried]
        inside = [running for running, answer in zip(tried, answers, strict=True) if answer.line == HELD]
        odd = [str(answer) for answer in answers if answer.line != HELD and answer.status != 1]
        if len(inside) != 1 or odd:
            said = "; ".join(map(str, answers))
            raise Failed("one to hold the lock, and three to be refused", f"{len(inside)} hold it: {said}")
        bench.expect_own_hold(inside[0])


@scenario("sema", "semats", "beads", needs="hold reclaim", basis="care")
def two_who_reclaim_one_stale_lock_are_never_both_inside(bench: Bench) -> None:
    """Judging and removing are two steps: the second may remove the fresh lock of the first."""
    for _ in range(ROUNDS):
        bench.put(bench.record(pid=bench.dead_pid(), age=3700))
        one_after_another(bench)


@scenario("sidecar", needs="recover", basis="care")
def two_who_remove_one_stale_lock_are_never_both_inside(bench: Bench) -> None:
    """Both have seen the stale one; the second must not remove what the first has put in its place."""
    for _ in range(ROUNDS):
        bench.put(bench.record(pid=bench.dead_pid(), age=3700))
        tried = [bench.start("recover"), bench.start("recover")]
        inside = [running for running in tried if running.answer(bench.adapter.limit).line == HELD]
        bench.require(len(inside) <= 1, "one at a time", "two are inside")
        for running in inside:
            bench.expect_own_hold(running)


@scenario(*ALL, needs="hold", basis="care")
def a_lock_that_appears_in_the_last_moment_is_respected(bench: Bench) -> None:
    """The kit takes the lock and gives it back in quick succession; what is not created exclusively replaces it."""
    enough = time.monotonic() + bench.adapter.limit / 2
    for _ in range(2 * ROUNDS):
        if time.monotonic() >= enough:
            break
        running = bench.start("hold")
        aside = bench.prepare(bench.record(), bench.dialect.mode)
        while True:
            try:
                os.link(aside, bench.lock)
            except FileExistsError:
                break  # the adapter is inside
            taken = time.perf_counter()
            following = bench.prepare(bench.record(), bench.dialect.mode)
            inode = os.lstat(aside).st_ino
            _stay(bench, running, inode)
            _let_go(bench, inode)
            if time.monotonic() >= enough:
                break  # it looks so rarely that it has missed each of the moments
            aside = following
            _spin(max(_FREE, _FREE_SHARE * (time.perf_counter() - taken)))
        bench.expect_held(running)
        bench.expect_own_hold(running)


def _stay(bench: Bench, running: Running, inode: int) -> None:
    """Hold for a moment, and check that no other process does."""
    time.sleep(_TAKEN)  # asleep, so that the system does not take the processor away while the lock is free
    line = running.line(0)
    _require_same(bench, bench.lock, inode)
    bench.require(line is None, "nobody to get in while somebody else's lock file is there", f"it said {line!r}")
    if running.ended(0) is not None:
        raise Failed("it to wait until the lock is free", str(running.answer(0)), bench.found())


def _let_go(bench: Bench, inode: int) -> None:
    """Remove our lock file by a rename, which takes whatever file is there in that instant: it must still be ours."""
    gone = os.path.join(bench.side, "gone")
    try:
        os.rename(bench.lock, gone)
    except FileNotFoundError:
        gone = bench.lock
    _require_same(bench, gone, inode)


def _require_same(bench: Bench, path: str, inode: int) -> None:
    try:
        found = os.lstat(path).st_ino
    except FileNotFoundError:
        found = None
    if found != inode:
        happened = "it was removed" if found is None else "another file is in its place"
        raise Failed("the lock file that appeared just before to be respected", happened, bench.found(path))


def one_after_another(bench: Bench) -> None:
    """Require of two contenders that each gets in, and never both at once. Only one can create the file `inside`."""
    contenders = [bench.start("hold"), bench.start("hold")]
    inside = os.path.join(bench.side, "inside")
    while contenders:
        entered = _first(bench, contenders)
        try:
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            raise Failed("one at a time", "two are inside", bench.found()) from None
        bench.expect_own_record(entered)
        contenders.remove(entered)
        until = time.monotonic() + _INSIDE
        for other in contenders:
            line = other.line(max(0.0, until - time.monotonic()))
            bench.require(line is None, "the others to wait while one is inside", f"another one said {line!r}")
        os.unlink(inside)
        entered.let_go()
        if not contenders:
            bench.expect_released(entered)
        # The others may get in before this one has ended, so its status is not asked for.


def _first(bench: Bench, contenders: list[Running]) -> Running:
    """The first contender that says `held`."""
    deadline = time.monotonic() + bench.adapter.limit
    while time.monotonic() < deadline:
        for running in contenders:
            line = running.line(0.002)
            if line == HELD:
                return running
            if line is not None or running.ended(0) is not None:
                raise Failed("each contender to get in", str(running.answer(0, ends=True)), bench.found())
    raise Failed("each contender to get in", "none did in time", bench.found())


def _spin(seconds: float) -> None:
    """Wait for a moment that is too short to sleep for."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
