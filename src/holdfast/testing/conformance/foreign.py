"""Scenarios with another process's lock file that counts as held, whatever it looks like."""

from __future__ import annotations

import os
import shutil
import subprocess

from .bench import Bench, Failed, Skipped, scenario
from .dialects import DIALECTS
from .holding import ALL

_CENTURY = 3e9


def _respects(writer: str, *protocols: str) -> None:
    def respects(bench: Bench) -> None:
        write, mode = bench.dialect.writers[writer]
        bench.put(write(bench.claim()), mode=mode)
        bench.expect_refused(f"the fresh lock of {writer} to be respected")

    respects.__name__ = f"a_lock_of_{writer.replace('-', '_')}_is_respected"
    respects.__doc__ = {
        "holdfast": "Its record has one field more, the marker, which means nothing to others.",
        "another-tool": "The payload is any JSON object, in any layout.",
        "a-shell-script": "Lock files are written by a script, as the specification shows.",
    }.get(writer, f"Its exact bytes and permissions, as {writer} writes them.")
    scenario(*protocols)(respects)


_WRITERS = dict.fromkeys(writer for dialect in DIALECTS.values() for writer in dialect.writers)
for _writer in _WRITERS:
    _respects(_writer, *(name for name, dialect in DIALECTS.items() if _writer in dialect.writers))


@scenario("sema", "semats", "sidecar")
def a_fresh_lock_of_a_dead_process_is_respected(bench: Bench) -> None:
    """The command that wrote it may have ended while its caller works on; only time makes it stale."""
    bench.put(bench.record(pid=bench.dead_pid()))
    bench.expect_refused("the fresh lock of a process that has ended to be respected")


@scenario(*ALL)
def a_lock_with_pid_0_is_respected(bench: Bench) -> None:
    """0 is no process, but a group of them: nothing follows from what the kernel says about it."""
    bench.put(bench.record(pid=0))
    bench.expect_refused("the fresh lock of pid 0 to be respected")


@scenario(*ALL)
def a_lock_from_the_future_is_respected(bench: Bench) -> None:
    """Clocks differ, and some write milliseconds: what is not over yet has no age."""
    bench.put(bench.record(age=-_CENTURY))
    bench.expect_refused("a lock with a timestamp in the future to be respected")


@scenario(*ALL)
def a_malformed_lock_is_respected(bench: Bench) -> None:
    """It is held in a way that is not understood, or half written."""
    bench.put(b"pid=123\n{\x00\xff")
    bench.expect_refused("a lock file that is no record to count as held")


@scenario(*ALL)
def an_empty_lock_is_respected(bench: Bench) -> None:
    """A holder that creates the file and then writes it is seen in between."""
    bench.put(b"")
    bench.expect_refused("an empty lock file to count as held")


@scenario("sema", "semats", "beads")
def a_malformed_lock_is_respected_however_old(bench: Bench) -> None:
    """A record that cannot be read has no age; a person must look at it."""
    for data in (b"", b"pid=123\n{\x00\xff"):
        bench.put(data, age=1e6)
        bench.expect_refused("an old lock file that is no record to count as held")


@scenario("beads")
def a_lock_of_another_host_is_respected(bench: Bench) -> None:
    """Whether a process of another machine lives cannot be seen from here."""
    bench.put(bench.record(pid=bench.dead_pid(), host="elsewhere.invalid"))
    bench.expect_refused("the lock of another host to be respected, whatever its pid")


@scenario("semats")
def an_old_lock_of_a_living_process_is_respected(bench: Bench) -> None:
    """Stale is only what is old and whose process has ended; a process of another user that lives is alive as well."""
    age = (bench.dialect.stale_after or 0) + 100
    bench.put(bench.record(pid=bench.old_pid(age), age=age))
    bench.expect_refused("an old lock of a process that lives to be respected")


@scenario("semats")
def an_old_lock_with_pid_0_is_respected(bench: Bench) -> None:
    """0 is no process that could have ended."""
    bench.put(bench.record(pid=0, age=(bench.dialect.stale_after or 0) + 100))
    bench.expect_refused("an old lock of pid 0 to be respected")


@scenario("beads")
def a_lock_of_a_living_process_is_respected_however_old(bench: Bench) -> None:
    """Age does not matter, as long as the process lives."""
    bench.put(bench.record(pid=bench.old_pid(3700), age=3600))
    bench.expect_refused("the lock of a process that lives to be respected")


@scenario("sema", "semats")
def other_line_separators_are_data(bench: Bench) -> None:
    """A parser that splits lines at VT, FF, NEL or U+2028 lets the text of a tag say when the lock was acquired."""
    for separator in ("\v", "\f", "\x1c", "\x85", "\u2028", "\r"):
        tag = f"tag=x{separator}timestamp=1{separator}pid=1\n"
        bench.put(bench.record().replace(b"tag=npm build\n", tag.encode()))
        bench.expect_refused(f"a fresh lock with {separator!r} in its tag to be respected")


@scenario(*ALL)
def unknown_fields_are_ignored(bench: Bench) -> None:
    """Others may say more than the specification knows."""
    bench.put(bench.dialect.with_stranger(bench.claim()))
    bench.expect_refused("a fresh lock with unknown fields to be respected")


@scenario(*ALL)
def an_unreadable_lock_is_respected(bench: Bench) -> None:
    """A file that may not be read, such as a lock of another user with mode 0600, is held, and never stale."""
    prefix: tuple[str, ...] = ()
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise Skipped("root may read everything; run the kit as another user, or where there is setpriv(1)")
        prefix = (setpriv, "--bounding-set=-dac_override,-dac_read_search")
    bench.put(bench.record(age=1e6), mode=0, age=1e6)
    reads = [
        subprocess.run([*prefix, *command], capture_output=True, check=False).returncode == 0
        for command in (("true",), ("cat", bench.lock))
    ]
    if reads != [True, False]:
        raise Skipped("root may read everything here, and cannot do without that")
    before = bench.identity()
    running = bench.start("try", prefix=prefix)
    answer = running.answer(bench.adapter.limit)
    if answer.status is None or answer.status <= 0:
        raise Failed("a lock file that may not be read to count as held", str(answer), bench.found())
    if bench.identity() != before:
        raise Failed("a lock file that may not be read to be left alone", "it was replaced", bench.found())
