"""Scenarios with something at the path that is no lock file: a refusal soon, and never a hang."""

from __future__ import annotations

import os
import stat

from .bench import HELD, Bench, Failed, scenario
from .holding import ALL, EVERY


@scenario(*EVERY, basis="care")
def a_fifo_is_refused(bench: Bench) -> None:
    """A process that opens it to read a record hangs until another one writes."""
    os.mkfifo(bench.lock)
    bench.expect_error("a FIFO at the path of the lock file to be refused")
    bench.require(stat.S_ISFIFO(os.lstat(bench.lock).st_mode), "the FIFO to be left", "it was replaced")


@scenario(*ALL)
def a_directory_is_refused(bench: Bench) -> None:
    """It can be neither written nor removed as a file."""
    os.mkdir(bench.lock)
    bench.expect_error("a directory at the path of the lock file to be refused")
    bench.require(os.path.isdir(bench.lock), "the directory to be left", "it was replaced")


@scenario("sema", "sidecar", "beads", basis="care")
def a_symbolic_link_is_refused(bench: Bench) -> None:
    """A process that follows it locks another file than one that does not, and anybody can put one there."""
    target = os.path.join(bench.directory, "target")
    for content in (bench.record(), None):
        if content is not None:
            bench.put(content, at=target)
        elif os.path.lexists(target):
            os.unlink(target)
        os.symlink(target, bench.lock)
        what = "a dangling symbolic link" if content is None else "a symbolic link to a lock file"
        bench.expect_error(f"{what} to be refused")
        if not os.path.islink(bench.lock) or bench.found(target) != content:
            raise Failed(f"{what} to be left, and where it leads to", "one was changed", bench.found(target))
        os.unlink(bench.lock)


@scenario(*EVERY)
def a_circle_of_symbolic_links_is_refused(bench: Bench) -> None:
    """It leads nowhere."""
    os.symlink(os.path.basename(bench.lock), bench.lock)
    bench.expect_error("a symbolic link to itself to be refused")
    bench.require(os.path.islink(bench.lock), "the symbolic link to be left", "it was replaced")


@scenario("semats")
def a_symbolic_link_is_followed(bench: Bench) -> None:
    """A link and what it leads to are one lock, also before there is one."""
    target = os.path.join(bench.directory, "target")
    os.symlink(target, bench.lock)
    running = bench.get()
    if not os.path.islink(bench.lock) or not os.path.isfile(target):
        raise Failed("a lock file where the dangling link leads to", "there is none, or the link is gone")
    bench.expect_own_record(running)
    running.let_go()
    if running.ended(bench.adapter.limit) != 0 or os.path.lexists(target) or not os.path.islink(bench.lock):
        raise Failed("a release that removes the lock file and leaves the link", "it did something else")
    theirs = bench.record()
    bench.put(theirs, at=target)
    bench.expect_refused("the lock that the link leads to to be respected")


@scenario("semats")
def a_path_with_dots_is_refused(bench: Bench) -> None:
    """`..` could lead out of the directory that the caller trusts."""
    os.mkdir(os.path.join(bench.directory, "a"))
    bench.expect_error("a path with `..` to be refused", os.path.join(bench.directory, "a", "..", "lock"))
    bench.require(not os.path.lexists(bench.lock), "no lock file to be made", "there is one")


@scenario("sema", "semats", "beads")
def a_missing_directory_is_not_made(bench: Bench) -> None:
    """A typing mistake would make a lock that nobody else looks at."""
    missing = os.path.join(bench.directory, "missing")
    path = missing if bench.dialect.name == "beads" else os.path.join(missing, "lock")
    bench.expect_error("a lock in a directory that does not exist to be refused", path)
    bench.require(not os.path.lexists(missing), "no directory to be made", "there is one")


@scenario("sidecar")
def missing_directories_are_made(bench: Bench) -> None:
    """The lock may be taken before the protected file is there, and so may its directory be missing."""
    path = os.path.join(bench.directory, "a", "b", "state.json")
    running = bench.get("try", path)
    bench.require(os.path.isfile(path + ".lock"), "a lock file in a directory that was made for it", "there is none")
    running.let_go()
    if running.ended(bench.adapter.limit) != 0 or os.path.lexists(path + ".lock"):
        raise Failed("the lock to be released", "it was not")


@scenario("sidecar")
def a_directory_that_is_a_link_is_followed(bench: Bench) -> None:
    """Two paths to one protected file are one lock."""
    link = os.path.join(bench.root, "link")
    os.symlink(bench.directory, link)
    bench.put(bench.record())
    answer = bench.start("try", os.path.join(link, os.path.basename(bench.path))).answer(bench.adapter.limit)
    if answer.line == HELD or answer.status != 1:
        raise Failed("the lock to be held by its other path", str(answer), bench.found())


@scenario("sema", "semats")
def an_empty_path_is_refused(bench: Bench) -> None:
    """A variable of a script that was not set."""
    bench.expect_error("an empty path to be refused", "")
