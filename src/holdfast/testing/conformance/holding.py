"""Scenarios of an implementation by itself: acquiring, holding, releasing, being killed."""

from __future__ import annotations

import os
import stat
import time

from .bench import HELD, Bench, Failed, scenario

ALL = ("sema", "semats", "sidecar", "beads")
"""Protocols whose locks are files."""
EVERY = (*ALL, "proper-lockfile")


@scenario(*EVERY, needs="hold")
def a_free_lock_is_acquired(bench: Bench) -> None:
    """The lock is there before the holder says so: a whole record that names its process, or an empty directory."""
    before = time.time()
    running = bench.get("hold")
    claim = bench.expect_own_record(running)
    after = time.time()
    if claim.at is None or not before - 1 <= claim.at <= after + 1:
        raise Failed(f"the time of the acquisition, {before:.0f}", f"the record says {claim.at}", bench.found())
    bench.expect_released(running)


@scenario(*EVERY)
def a_free_lock_is_acquired_at_the_first_try(bench: Bench) -> None:
    """A single try gets a free lock, holds it until told to release, and others are told that it is held."""
    running = bench.get("try")
    bench.expect_own_record(running)
    bench.expect_refused("a second one to be refused")
    bench.expect_silent(running, "it to hold until its input ends")
    bench.expect_released(running)


@scenario(*ALL)
def the_mode_is_the_protocols(bench: Bench) -> None:
    """Others can read who holds the lock, or must not; nobody else can write it."""
    running = bench.get()
    mode = stat.S_IMODE(os.stat(bench.lock).st_mode)
    if mode != bench.dialect.mode:
        raise Failed(f"mode {bench.dialect.mode:04o}, with a umask of 0022", f"the lock file has {mode:04o}")
    bench.expect_released(running)


@scenario(*EVERY, needs="hold")
def a_released_lock_can_be_had_again(bench: Bench) -> None:
    """A release leaves nothing that keeps the next one out."""
    for _ in range(2):
        bench.expect_released(bench.get("hold"))


@scenario(*EVERY, needs="hold", basis="care")
def nothing_is_left(bench: Bench) -> None:
    """Temporary files of holders and waiters would fill the directory, and some count as rivals."""
    holder = bench.get("hold")
    waiter = bench.start("hold")
    bench.expect_silent(waiter, "the second one to wait")
    bench.expect_released_to(holder, waiter)
    bench.expect_released(waiter)
    left = sorted(
        os.path.relpath(os.path.join(directory, name), bench.directory)
        for directory, directories, files in os.walk(bench.directory)
        for name in files + directories
        if os.path.join(directory, name) != bench.path
    )
    bench.require(not left, "an empty directory after all have released", f"there is {', '.join(left)}")


@scenario(*EVERY, needs="hold", basis="care")
def a_lock_of_somebody_else_in_its_place_is_left(bench: Bench) -> None:
    """A holder that was robbed, and removes the lock file all the same, lets a third one in beside the thief."""
    running = bench.get("hold")
    theirs = bench.record()
    inode = bench.put(theirs)
    bench.expect_end(running)
    if bench.found() != theirs or os.lstat(bench.lock).st_ino != inode:
        raise Failed("the lock file of somebody else to be left alone", "it was removed or changed", bench.found())


@scenario(*EVERY, needs="hold", basis="care")
def a_lock_that_was_removed_under_its_holder_is_not_made_again(bench: Bench) -> None:
    """A release of what is gone already must neither hang nor leave a lock file that nobody holds."""
    running = bench.get("hold")
    bench.remove()
    bench.expect_end(running)
    bench.require(not os.path.lexists(bench.lock), "no lock file", "there is one")


@scenario("sema", "beads", needs="release")
def release_removes_the_lock_file(bench: Bench) -> None:
    """A shell script acquires with one command and releases with another, so the pid is not the holder's any more."""
    bench.put(bench.record(pid=bench.dead_pid()))
    answer = bench.start("release").answer(bench.adapter.limit, ends=True)
    if answer.status != 0 or os.path.lexists(bench.lock):
        raise Failed("exit status 0 and no lock file", str(answer), bench.found())


@scenario("semats", needs="release")
def release_leaves_the_lock_of_another_process(bench: Bench) -> None:
    """Only the process that the record names may release, unless it is forced."""
    theirs = bench.record()
    bench.put(theirs)
    answer = bench.start("release").answer(bench.adapter.limit, ends=True)
    if answer.status != 1 or bench.found() != theirs:
        raise Failed("exit status 1 and the lock file as it was", str(answer), bench.found())


@scenario("sema", "semats", "beads", needs="release")
def release_of_a_free_lock_makes_nothing(bench: Bench) -> None:
    """Cleaning up twice is what scripts do."""
    answer = bench.start("release").answer(bench.adapter.limit, ends=True)
    if answer.hung or answer.status is None or answer.status < 0 or os.path.lexists(bench.lock):
        raise Failed("any exit status, and no lock file", str(answer), bench.found())


@scenario(*EVERY, needs="hold try")
def a_killed_holder_leaves_a_whole_record(bench: Bench) -> None:
    """Other implementations judge the lock of a killed holder: they refuse until it is stale, or take it over whole."""
    holder = bench.get("hold")
    holder.kill()
    left = bench.found()
    if left is not None:
        try:
            bench.dialect.read(left)
        except ValueError as error:
            raise Failed("a whole record after SIGKILL", f"it is none: {error}", left) from None
    running = bench.start("try")
    answer = running.answer(bench.adapter.limit)
    if answer.line == HELD:
        bench.expect_own_hold(running)
    elif bench.dialect.name == "beads" or left is None:
        raise Failed("the lock of a process that has ended to be acquired", str(answer), bench.found())
    elif answer.status != 1:
        raise Failed("`held`, or `refused` and exit status 1", str(answer), bench.found())
    elif bench.found() != left:
        raise Failed("a lock file that is as the killed holder left it", "it has changed", bench.found())


@scenario(*EVERY, needs="hold", basis="care")
def a_killed_waiter_is_in_nobodys_way(bench: Bench) -> None:
    """A place in a queue, or a temporary file, ends with the process that made it."""
    holder = bench.get("hold")
    killed = bench.start("hold")
    bench.expect_silent(killed, "the second one to wait")
    last = bench.start("hold")
    bench.expect_silent(last, "the third one to wait")
    killed.kill()
    bench.expect_released_to(holder, last)
    bench.expect_own_hold(last)
