"""Scenarios with locks that are directories: fresh, stale, refreshed, and what is none."""

from __future__ import annotations

import math
import os
import time

from .bench import HELD, Bench, Failed, scenario
from .contention import ROUNDS, one_after_another

DIRECTORY = "proper-lockfile"
_REFRESHED_WITHIN = 7.0
"""Seconds: a holder refreshes its lock every 5 s, at most."""
_LOOK_EVERY = 0.02


@scenario(DIRECTORY)
def a_fresh_directory_is_respected(bench: Bench) -> None:
    """Its holder may have been late with a refresh; only ten seconds without one make it stale."""
    for age in (0, 6):
        bench.put(b"", age=age)
        bench.expect_refused(f"a directory that is {age} s old to be held")


@scenario(DIRECTORY)
def a_directory_from_the_future_is_respected(bench: Bench) -> None:
    """Clocks differ, and a filesystem that keeps whole seconds gets the next one: what is not over yet has no age."""
    for seconds in (1, 3600):
        bench.put(b"", age=-seconds)
        bench.expect_refused(f"a directory whose time is {seconds} s ahead to be held")


@scenario(DIRECTORY)
def a_stale_directory_is_taken_over(bench: Bench) -> None:
    """A holder that crashed must not keep everybody out forever."""
    bench.put(b"", age=15)
    running = bench.get()
    claim = bench.expect_own_record(running)
    if claim.at is None or claim.at < time.time() - 10:
        raise Failed("a directory that is fresh again", f"its time is {claim.at}, and it is {time.time():.0f}")
    bench.expect_refused("a second one to be refused after the takeover")
    bench.expect_released(running)


@scenario(DIRECTORY, needs="hold", waits=True)
def a_directory_is_stale_after_10_seconds_and_not_before(bench: Bench) -> None:
    """A waiter gets in when nobody has refreshed the directory for so long."""
    lead = 1 + math.ceil(bench.adapter.startup)
    bench.put(b"", age=10 - lead)
    stale_at = os.stat(bench.lock).st_mtime + 10
    waiter = bench.start("hold")
    line = waiter.line(stale_at - time.time())
    if line is not None and time.time() < stale_at:
        raise Failed("the lock to be respected until it is 10 s old", f"before that it said {line!r}")
    if line is None:
        bench.expect_held(waiter, "the lock to be taken over when it is 10 s old")
    bench.expect_own_hold(waiter)


@scenario(DIRECTORY, needs="hold", waits=True)
def a_holder_keeps_its_directory_fresh(bench: Bench) -> None:
    """Its age is all that others know of it. After a refresh it must know its own lock again, and refresh once more."""
    running = bench.get("hold")
    for _ in range(2):
        before = os.stat(bench.lock).st_mtime
        until = time.monotonic() + _REFRESHED_WITHIN
        while os.stat(bench.lock).st_mtime <= before:
            if time.monotonic() >= until:
                raise Failed(f"a later time of the directory every {_REFRESHED_WITHIN:g} s", "it has not changed")
            time.sleep(_LOOK_EVERY)
        bench.expect_refused("a second one to be refused after a refresh")
    bench.expect_released(running)


@scenario(DIRECTORY, needs="hold", waits=True)
def a_holder_that_was_robbed_refreshes_nothing(bench: Bench) -> None:
    """It would keep the lock of somebody else, who may have ended, from becoming stale."""
    running = bench.get("hold")
    bench.put(b"", age=3)
    _expect_left_alone(bench)
    running.kill()


@scenario(DIRECTORY, needs="hold", waits=True)
def a_holder_that_was_robbed_in_place_refreshes_nothing(bench: Bench) -> None:
    """A takeover may keep the directory and set its time, as that of holdfast does: then only the time differs."""
    running = bench.get("hold")
    _rob_in_place(bench)
    _expect_left_alone(bench)
    running.kill()


@scenario(DIRECTORY, needs="hold", basis="care")
def a_lock_that_was_taken_over_in_place_is_left(bench: Bench) -> None:
    """A release that compares the directory and not its time lets a third one in beside the thief."""
    running = bench.get("hold")
    _rob_in_place(bench)
    bench.expect_end(running)
    bench.require(os.path.isdir(bench.lock), "the directory of somebody else to be left alone", "it was removed")


def _rob_in_place(bench: Bench) -> None:
    """Set the time a second back: further than a filesystem rounds, and not stale."""
    at = os.stat(bench.lock).st_mtime - 1
    os.utime(bench.lock, (at, at))


def _expect_left_alone(bench: Bench) -> None:
    theirs = os.stat(bench.lock)
    until = time.monotonic() + _REFRESHED_WITHIN
    while time.monotonic() < until:
        found = os.stat(bench.lock)
        if (found.st_ino, found.st_mtime_ns) != (theirs.st_ino, theirs.st_mtime_ns):
            raise Failed("the directory of somebody else to be left alone", "it was refreshed or replaced")
        time.sleep(_LOOK_EVERY)


@scenario(DIRECTORY, needs="hold", basis="care")
def two_who_take_over_one_stale_directory_are_never_both_inside(bench: Bench) -> None:
    """Judging and removing are two steps: the second may remove the fresh directory of the first."""
    for _ in range(ROUNDS):
        bench.put(b"", age=15)
        one_after_another(bench)


@scenario(DIRECTORY)
def a_file_is_left_alone(bench: Bench) -> None:
    """Somebody uses another protocol there, or it is data."""
    for age in (0, 100):
        with open(bench.lock, "wb") as file:
            file.write(b"data")
        os.utime(bench.lock, (time.time() - age,) * 2)
        bench.expect_error("a file in the place of the directory to be refused")
        bench.require(os.path.isfile(bench.lock), "the file to be left", "it was removed or replaced")


@scenario(DIRECTORY)
def what_is_in_a_stale_directory_is_left(bench: Bench) -> None:
    """A lock is empty, so this may be anybody's."""
    bench.put(b"")
    inside = os.path.join(bench.lock, "data")
    with open(inside, "wb"):
        pass
    os.utime(bench.lock, (time.time() - 100,) * 2)
    bench.expect_error("a directory with a file in it to be refused")
    bench.require(os.path.isfile(inside), "the file in the directory to be left", "it is gone")


@scenario(DIRECTORY)
def a_target_that_is_missing_is_refused(bench: Bench) -> None:
    """Its links cannot be followed, so others might lock another path."""
    missing = os.path.join(bench.directory, "missing")
    bench.expect_error("a lock for a file that does not exist to be refused", missing)
    bench.require(not os.path.lexists(f"{missing}.lock"), "no directory to be made", "there is one")


@scenario(DIRECTORY)
def a_link_to_the_target_is_the_same_lock(bench: Bench) -> None:
    """Two paths to one protected file are one lock."""
    link = os.path.join(bench.directory, "link")
    os.symlink(bench.path, link)
    bench.put(b"")
    answer = bench.start("try", link).answer(bench.adapter.limit)
    if answer.line == HELD or answer.status != 1:
        raise Failed("the lock to be held by its other path", str(answer))
