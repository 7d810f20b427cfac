"""The comparison table of the README: every cell is tried out with the libraries that are installed here.

    make comparison            # prints it, and writes it into README.md

Each column is a library with its defaults (peers.py), each row a question that a few processes answer. If a row asks
for a feature by its name, the name is looked up in the library. Speed is measured by run.py.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib.metadata import metadata, requires, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from marks import between
from peers import Fasteners, FileLock, Holdfast, HoldfastFlock, Portalocker, SoftFileLock, Subject
from procs import Failed, kill, kill_all, spawn, wake_ups

COLUMNS: tuple[type[Subject], ...] = (Holdfast, FileLock, SoftFileLock, Portalocker, Fasteners)
MARK = "comparison"
NO, CANNOT_WAIT = "no", "cannot wait"
_LOOKS, _KILLED = 4.0, 3.0
"""Seconds of watching a waiter, and of waiting for a dead holder's lock."""


def hold(pipe: Connection, subject: type[Subject], path: str) -> None:
    """Hold the lock in a child: report that it is held, release when told, and report how that went."""
    lock = subject(path)
    lock.acquire()
    pipe.send(time.monotonic())
    pipe.recv()
    try:
        lock.release()
    except Exception as error:
        pipe.send(type(error).__name__)
    else:
        pipe.send(None)
    pipe.recv()


def until_it_waits(pid: int) -> None:
    """Wait until a process is asleep at three looks in a row: on a busy machine, it may take long to load its
    library."""
    asleep = 0
    while asleep < 3:
        time.sleep(0.03)
        asleep = asleep + 1 if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S" else 0


def how_it_waits(subject: type[Subject], path: str) -> str:
    if subject.poll is None:
        return CANNOT_WAIT
    holder, waiter = spawn(hold, subject, path), None
    try:
        holder.answer(10)
        waiter = spawn(hold, subject, path)
        until_it_waits(waiter.pid)
        time.sleep(1)  # by then it has set up its way of waiting
        before = wake_ups(waiter.pid)
        time.sleep(_LOOKS)
        looks = (wake_ups(waiter.pid) - before) / _LOOKS
    finally:
        for child in (waiter, holder):
            if child is not None:
                child.end()
    return "sleeps until the release" if looks < 0.5 else f"polls {looks:.0f} times a second"


def after_a_kill(subject: type[Subject], path: str) -> str:
    """Whether the waiter gets the lock, three times out of three. run.py measures how soon, beside all other times."""
    if subject.poll is None:
        return CANNOT_WAIT
    for number in range(3):
        name = f"{path}.{number}"
        holder = spawn(hold, subject, name)
        holder.answer(10)
        waiter = spawn(hold, subject, name)
        try:
            time.sleep(0.5)
            kill(holder.pid)
            waiter.answer(_KILLED)
        except Failed:
            return f"not within {_KILLED:.0f} s"
        finally:
            waiter.end()
            holder.end()
    return "yes"


def who_holds(subject: type[Subject], path: str) -> str:
    holder = spawn(hold, subject, path)
    try:
        holder.answer(10)
        contender = spawn(_refused, subject, path)
        text = contender.answer(20)
        contender.end()
        return "yes" if re.search(rf"\b{holder.pid}\b", text) else NO
    finally:
        holder.end()


def _refused(pipe: Connection, subject: type[Subject], path: str) -> None:
    """Report what a caller that does not wait is told, by an exception or by a line in the log."""
    said = io.StringIO()
    logging.basicConfig(stream=said, level=logging.INFO)
    try:
        subject.once(path)
    except Exception as error:
        pipe.send(f"{error} {vars(error)} {said.getvalue()}")
    else:
        pipe.send(said.getvalue())


def loss(subject: type[Subject], path: str) -> str:
    """Whether a holder whose lock file was removed, which lets the next one in, is told when it releases."""
    holder = spawn(hold, subject, path)
    try:
        holder.answer(10)
        Path(path).unlink()
        error = holder.ask("release", 10)
        return f"`{error}`" if error else NO
    finally:
        holder.end()


def order(subject: type[Subject], path: str) -> str:
    """Whether waiters get the lock in order, in three rounds: polling processes may come in order by chance."""
    if subject.poll is None:
        return CANNOT_WAIT
    return "yes" if all(_in_order(subject, path) for _ in range(3)) else NO


def _in_order(subject: type[Subject], path: str) -> bool:
    holder = spawn(hold, subject, path)
    waiters = []
    try:
        holder.answer(10)
        for _ in range(5):
            waiters.append(spawn(hold, subject, path))
            until_it_waits(waiters[-1].pid)
        time.sleep(0.5)
        holder.pipe.send("release")
        left, came = list(range(5)), []
        end = time.monotonic() + 30
        while left and time.monotonic() < end:
            for number in left:
                if waiters[number].pipe.poll(0.005):
                    waiters[number].answer(1)
                    waiters[number].ask("release", 10)
                    came.append(number)
                    left.remove(number)
                    break
    finally:
        for child in (*waiters, holder):
            child.end()
    return came == sorted(came) and not left


def file_afterwards(subject: type[Subject], path: str) -> str:
    holder = spawn(hold, subject, path)
    try:
        holder.answer(10)
        holder.ask("release", 10)
        return "stays" if os.path.lexists(path) else "is gone"
    finally:
        holder.end()


def forked(subject: type[Subject], path: str) -> str:
    if subject.poll is None:
        return CANNOT_WAIT
    child = spawn(_fork, subject, path)
    try:
        return "yes" if child.answer(10) else NO
    finally:
        child.end()


def _fork(pipe: Connection, subject: type[Subject], path: str) -> None:
    lock = subject(path)
    lock.acquire()
    pid = os.fork()
    if pid == 0:
        signal.alarm(2)  # ends a wait, which is the right behaviour
        try:
            lock.acquire()
            os._exit(0)
        except BaseException:
            os._exit(1)
    pipe.send(os.waitpid(pid, 0)[1] != 0)


def tasks(subject: type[Subject], path: str) -> str:
    name = {
        Holdfast: "holdfast.AsyncLock",
        FileLock: "filelock.AsyncFileLock",
        SoftFileLock: "filelock.AsyncSoftFileLock",
    }
    if subject not in name:
        return "no asyncio"
    child = spawn(_tasks, name[subject], path)
    try:
        return f"{child.answer(30)}"
    finally:
        child.end()


def _tasks(pipe: Connection, name: str, path: str) -> None:
    pipe.send(asyncio.run(_threads(found(name), path)))
    pipe.recv()


async def _threads(factory: Any, path: str) -> int:
    first = factory(path)
    held = await first.acquire()
    before = threading.active_count()
    waiting = [asyncio.create_task(factory(path).acquire()) for _ in range(20)]
    await asyncio.sleep(1)
    more = threading.active_count() - before
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await (held if hasattr(held, "ensure_held") else first).release()
    return more


def with_flock(subject: type[Subject], path: str) -> str:
    """Whether flock(1) is kept out while the library holds the lock."""
    way = HoldfastFlock if subject is Holdfast else subject
    holder = spawn(hold, way, path)
    try:
        holder.answer(10)
        free = subprocess.run(["flock", "-n", path, "true"], check=False).returncode == 0
        return NO if free else "yes" if way is subject else '`protocol="flock"`'
    finally:
        holder.end()


def named(**names: str) -> Callable[[type[Subject], str], str]:
    """A question about a feature, which exists if its name does: `module.name`, or `module.name shown as this`."""

    def answer(subject: type[Subject], path: str) -> str:
        del path
        name = names.get(subject.label.replace(".", "_"))
        if name is None:
            return NO
        name, _, shown = name.partition(" shown as ")
        child = spawn(_found, name)
        try:
            child.answer(10)
        finally:
            child.end()
        return f"`{shown or name.rpartition('.')[2]}`"

    return answer


def _found(pipe: Connection, name: str) -> None:
    pipe.send(found(name) is not None)


def found(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def maturity(subject: type[Subject], path: str) -> str:
    """The development status that the package states."""
    del path
    assert subject.package is not None
    said = metadata(subject.package).get_all("Classifier") or []
    found = [one.rpartition(" - ")[2].lower() for one in said if one.startswith("Development Status")]
    return found[0] if found else "not stated"


def stated(*answers: str) -> Callable[[type[Subject], str], str]:
    """Answers that cannot be tried out here, by column: from each project's own pages and continuous integration."""
    by_column = dict(zip(COLUMNS, answers, strict=True))
    return lambda subject, _: by_column[subject]


def dependencies(subject: type[Subject], path: str) -> str:
    del path
    assert subject.package is not None
    return str(len([one for one in requires(subject.package) or () if "extra ==" not in one]))


SHARED = {
    "holdfast": "holdfast.Lock shown as shared=True",
    "FileLock": "filelock.ReadWriteLock",
    "SoftFileLock": "filelock.SoftReadWriteLock",
    "portalocker": "portalocker.LockFlags shown as LockFlags.SHARED",
    "fasteners": "fasteners.InterProcessReaderWriterLock",
}
ON_SERVERS = {
    "holdfast": "holdfast.engines shown as postgresql://, etcd://",
    "portalocker": "portalocker.RedisLock",
}
QUESTIONS: tuple[tuple[str, Callable[[type[Subject], str], str]], ...] = (
    ("While it waits, a process", how_it_waits),
    ("A killed holder's lock is free", after_a_kill),
    ("A refusal names the holder's process", who_holds),
    ("Waiters get the lock in order of arrival", order),
    ("A holder whose lock file was removed is told", loss),
    ("A forked child of the holder is excluded", forked),
    ("asyncio: threads for 20 waiting tasks", tasks),
    ("Readers can share the lock", named(**SHARED)),
    ("N holders at once", named(holdfast="holdfast.Semaphore", portalocker="portalocker.BoundedSemaphore")),
    ("Excludes `flock(1)` on the same file", with_flock),
    (
        "Other languages on the same lock",
        stated("Rust, Node, Go, Java, shell", "by `flock(2)`", NO, "by `flock(2)`", "by `fcntl(2)`"),
    ),
    (
        "A directory on several machines",
        stated("leases", "the server's locks", "`SoftFileLease`", "the server's locks", "the server's locks"),
    ),
    ("Locks on servers", named(**ON_SERVERS)),
    ("Tested on", stated("Linux; Windows under Wine only", *["Linux, Windows, macOS"] * 4)),
    ("Maturity, in its own words", maturity),
    ("Dependencies", dependencies),
)


def table(directory: str) -> str:
    known = [one for one in COLUMNS if _version(one)]
    rows = [["", *(f"{one.label} {_version(one)}" for one in known)], ["---"] * (len(known) + 1)]
    for number, (question, answer) in enumerate(QUESTIONS):
        print(question, file=sys.stderr)
        cells = [answer(one, os.path.join(directory, f"{number}-{one.label}")) for one in known]
        rows.append([question, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _version(subject: type[Subject]) -> str:
    assert subject.package is not None
    try:
        return version(subject.package)
    except ImportError:
        return ""


def main() -> None:
    directory = tempfile.mkdtemp(prefix="holdfast-comparison-")
    try:
        text = table(directory)
    finally:
        kill_all()
        shutil.rmtree(directory, ignore_errors=True)
    print(text, end="")
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(between(page.read_text(encoding="utf-8"), MARK, text, name), encoding="utf-8")


if __name__ == "__main__":
    main()
