"""One operation, in a process whose system calls fail under strace.

    python operations.py LOCK OPERATION

When all is prepared, it says so and waits for a line, so that strace may join it. It calls `stat` for two missing
paths, at the beginning and at the end of the operation, so that a log shows which calls belong to that. It prints a
line of JSON about the end. If it holds a lock then, it waits for a line, releases, and prints what is left.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import holdfast

PR_SET_PTRACER = 0x59616D61
BEGIN, END = "/holdfast-begin", "/holdfast-end"


def mark(path: str) -> None:
    try:
        os.stat(path)
    except OSError:
        pass


def descriptors() -> set[str]:
    """Open descriptors, without the one instance of inotify that a process keeps, and the doorbell of its keeper."""
    found = set()
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:  # the call to fail came one later than expected: it is this one
        names = os.listdir("/proc/self/fd")
    for fd in names:
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target != "anon_inode:inotify" and not target.startswith("pipe:"):
            found.add(f"{fd} {target}")
    return found


def say(**words: Any) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def acquire(path: str, **options: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    """The operation, and the clean-up after its success."""
    lock = holdfast.Lock(path, heartbeat=0, timeout=15, **options)
    holds: list[holdfast.Hold] = []
    return lambda: holds.append(lock.acquire()), lambda: holds[0].release()  # noqa: PLW0108 - not there yet


def release(path: str) -> tuple[Callable[[], object], Callable[[], object]]:
    hold = holdfast.Lock(path, heartbeat=0).acquire(timeout=5)
    return hold.release, lambda: None


def beat(path: str) -> tuple[Callable[[], object], Callable[[], object]]:
    hold = holdfast.Lock(path, heartbeat=0).acquire(timeout=5)
    return hold._held.beat, hold.release


def semaphore(path: str) -> tuple[Callable[[], object], Callable[[], object]]:
    both = holdfast.Semaphore(path, 1, heartbeat=0, timeout=15)
    holds: list[holdfast.Hold] = []
    return lambda: holds.append(both.acquire()), lambda: holds[0].release()  # noqa: PLW0108 - not there yet


def task(path: str) -> tuple[Callable[[], object], Callable[[], object]]:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.sleep(0))
    lock = holdfast.AsyncLock(path, heartbeat=0, timeout=15)
    holds: list[Any] = []

    async def go() -> None:
        holds.append(await lock.acquire())

    async def end() -> None:
        await holds[0].release()

    return lambda: loop.run_until_complete(go()), lambda: loop.run_until_complete(end())


def look(path: str) -> tuple[Callable[[], object], Callable[[], object]]:
    return holdfast.Lock(path).status, lambda: None


OPERATIONS: dict[str, Callable[[str], tuple[Callable[[], object], Callable[[], object]]]] = {
    "acquire": acquire,
    "takeover": acquire,
    "wait": acquire,
    "flock": lambda path: acquire(path, protocol="flock", tag="tag"),
    "task": task,
    "semaphore": semaphore,
    "release": release,
    "beat": beat,
    "status": look,
}


def main(path: str, name: str) -> None:
    for module in ("hashlib", "logging", "select", "holdfast._platform.inotify", "holdfast._platform.proc_locks"):
        importlib.import_module(module)
    act, undo = OPERATIONS[name](path)
    holdfast.Lock(path)._env.identity()
    before = descriptors()
    error: BaseException | None = None
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1))  # strace is no parent of ours
    say(ready=True)
    sys.stdin.readline()
    mark(BEGIN)
    try:
        act()
    except Exception as caught:
        error = caught
    mark(END)
    if error is not None:
        known = isinstance(error, (OSError, holdfast.HoldfastError))
        where = getattr(error, "path", None) or getattr(error, "filename", None)
        text = str(error) if known else "".join(traceback.format_exception(error))
        say(ended="error", kind=type(error).__name__, known=known, where=where, text=text)
    else:
        say(ended="done")
    sys.stdin.readline()
    if error is None or name == "beat":
        try:
            undo()
        except (OSError, holdfast.HoldfastError):
            undo()  # a wait is no sequence that repeats itself: the fault may strike only now
    error = None
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    say(left=sorted(descriptors() - before), threads=threads, holds=len(holdfast.Lock(path)._env.holds))


if __name__ == "__main__":
    main(*sys.argv[1:])
