"""Scenarios with a lock that its protocol calls stale: reclaimed then, and not before."""

from __future__ import annotations

import math
import os
import socket
import time

from .bench import HELD, REFUSED, STALE, Bench, Failed, scenario
from .dialects import Claim


@scenario("sema", "semats", needs="try reclaim")
def a_stale_lock_is_reclaimed(bench: Bench) -> None:
    """A holder that crashed must not keep everybody out forever."""
    bench.put(bench.record(pid=bench.dead_pid(), age=3700))
    bench.expect_own_hold(bench.get())


@scenario("sema", "semats", needs="try reclaim")
def a_stale_lock_with_unknown_fields_is_reclaimed(bench: Bench) -> None:
    """A field that is not known does not make a record malformed."""
    for data in (
        bench.dialect.with_stranger(bench.claim(pid=bench.dead_pid(), age=3700)),
        bench.record(pid=bench.dead_pid(), age=3700).replace(b"\n", b"\r\n"),
    ):
        bench.put(data)
        bench.expect_own_hold(bench.get())


@scenario("sema", "semats", needs="hold reclaim", waits=True)
def a_lock_is_stale_after_3600_seconds_and_not_before(bench: Bench) -> None:
    """In whole seconds and strictly greater: 3600 s is held, 3601 s is stale. A waiter gets in then."""
    lead = 1 + math.ceil(bench.adapter.startup)
    stamp = int(time.time()) + lead - 3600
    bench.put(bench.dialect.write(Claim(bench.dead_pid(), float(stamp))))
    waiter = bench.start("hold")
    line = waiter.line(stamp + 3601 - time.time())
    if line is not None and time.time() < stamp + 3601:
        age = time.time() - stamp
        raise Failed("the lock to be respected until it is 3601 s old", f"at {age:.3f} s it said {line!r}")
    if line is None:
        bench.expect_held(waiter, "the lock to be reclaimed when it is 3601 s old")
    bench.expect_own_hold(waiter)


@scenario("beads", needs="try reclaim")
def the_lock_of_a_dead_process_is_reclaimed(bench: Bench) -> None:
    """On this host no such process means stale, however fresh; host names are compared without regard to case."""
    host = socket.gethostname()
    for name in (host, host.upper(), host.lower()):
        bench.put(bench.record(pid=bench.dead_pid(), host=name))
        bench.expect_own_hold(bench.get())


@scenario("beads", needs="try reclaim")
def the_lock_of_a_dead_process_with_unknown_fields_is_reclaimed(bench: Bench) -> None:
    """A member that is not known does not make a record malformed."""
    bench.put(bench.dialect.with_stranger(bench.claim(pid=bench.dead_pid())))
    bench.expect_own_hold(bench.get())


@scenario("sidecar")
def a_stale_lock_fails_closed(bench: Bench) -> None:
    """Nobody removes what may be a slow holder's, unless the application says so; nor is it waited for."""
    bench.put(bench.record(age=100))
    for operation in ("try", "hold"):
        bench.expect_refused("a lock that is stale to be told and left alone", operation, STALE)


@scenario("sidecar", needs="hold", waits=True)
def a_lock_is_stale_after_30_seconds_and_not_before(bench: Bench) -> None:
    """A waiter waits until `createdAt` is more than 30 s old, and then no longer."""
    lead = 1 + math.ceil(bench.adapter.startup)
    stamp = time.time() + lead - 30
    data = bench.dialect.write(Claim(os.getpid(), stamp))
    bench.put(data)
    waiter = bench.start("hold")
    line = waiter.line(bench.adapter.limit + lead)
    age = time.time() - stamp
    if line != STALE or waiter.ended(bench.adapter.limit) != 1:
        raise Failed("a line `stale` and exit status 1", f"at an age of {age:.3f} s it said {line!r}", bench.found())
    bench.require(age >= 30, "the lock to be waited for until it is 30 s old", f"it was called stale at {age:.3f} s")
    bench.require(bench.found() == data, "the stale lock to be left alone", "it has changed")


@scenario("sidecar")
def createdat_counts_and_not_the_time_of_the_file(bench: Bench) -> None:
    """A backup tool or a clock may set the time of the file; the holder wrote `createdAt`."""
    bench.put(bench.record(), age=100)
    bench.expect_refused("a fresh `createdAt` to count, in a file that is old")
    bench.put(bench.record(age=100))
    bench.expect_refused("an old `createdAt` to count, in a file that is new", word=STALE)


@scenario("sidecar")
def without_createdat_the_time_of_the_file_counts(bench: Bench) -> None:
    """The payload is the caller's, who may leave `createdAt` out; an empty or malformed file has none either."""
    for data in (b'{"pid":1}\n', b'{"createdAt":1735420800}', b"", b"no JSON", b"[1]"):
        bench.put(data)
        bench.expect_refused(f"a new file with {data!r} to be held", word=REFUSED)
        bench.put(data, age=100)
        bench.expect_refused(f"an old file with {data!r} to be stale", word=STALE)


@scenario("sidecar", needs="recover")
def a_stale_lock_is_removed_where_the_application_says_so(bench: Bench) -> None:
    """`remove-if-unchanged`, with an application that agrees."""
    bench.put(bench.record(pid=bench.dead_pid(), age=100))
    bench.expect_own_hold(bench.get("recover"))
    bench.require(
        not os.path.lexists(f"{bench.lock}.reclaim"), "no directory `.reclaim` to be left", "it is still there"
    )


@scenario("sidecar", needs="recover", basis="care")
def a_removal_by_somebody_else_is_not_interfered_with(bench: Bench) -> None:
    """Two that remove one stale lock at once end with two holders; fs-safe 0.21 makes `<lock>.reclaim` meanwhile."""
    bench.put(bench.record(pid=bench.dead_pid(), age=100))
    os.mkdir(bench.lock + ".reclaim")
    before = bench.found(), bench.identity()
    answer = bench.start("recover").answer(bench.adapter.limit)
    if answer.line == HELD or answer.status is None or answer.status <= 0:
        raise Failed("no acquisition while `.reclaim` is there", str(answer), bench.found())
    if (bench.found(), bench.identity()) != before or not os.path.isdir(bench.lock + ".reclaim"):
        raise Failed("the lock and the directory `.reclaim` to be left alone", "one was changed", bench.found())


@scenario("beads", needs="skip")
def the_daemon_skips_what_is_locked(bench: Bench) -> None:
    """The daemon's side: a database is left alone while a tool that lives holds it, and where it cannot be known."""
    cases = {
        "a lock of a living process": bench.record(),
        "a lock of another host": bench.record(pid=bench.dead_pid(), host="elsewhere.invalid"),
        "a malformed lock": b"{",
        "an empty lock": b"",
        "a record without a holder": bench.record().replace(b"vc-executor", b""),
    }
    for what, data in cases.items():
        bench.put(data)
        answer = bench.start("skip").answer(bench.adapter.limit, ends=True)
        if (answer.line, answer.status) != ("skip", 1) or bench.found() != data:
            raise Failed(f"{what} to be skipped: `skip`, exit status 1", str(answer), bench.found())


@scenario("beads", needs="skip")
def the_daemon_proceeds_where_nobody_holds(bench: Bench) -> None:
    """No lock, or one of a process of this host that has ended: that one is removed."""
    for data in (None, bench.record(pid=bench.dead_pid())):
        if data is not None:
            bench.put(data)
        answer = bench.start("skip").answer(bench.adapter.limit, ends=True)
        if (answer.line, answer.status) != ("proceed", 0) or os.path.lexists(bench.lock):
            raise Failed("`proceed`, exit status 0 and no lock file", str(answer), bench.found())
