"""Functions for children of `multiprocessing`, which a started process can import and find again."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

from holdfast import Hold, Lock, Status
from holdfast._platform import environment


def look_and_take(lock: Lock) -> tuple[int, bool, bool, str]:
    """Number of holds of this process; whether the lock is refused to it; whether it can have another; and where it
    looked."""
    held = len(environment().holds)
    with Lock(lock.path + f".{os.getpid()}", timeout=5) as own:
        return held, lock.try_acquire() is None, own.record.pid == os.getpid(), lock.path


def increment(lock: Lock, counter: str, times: int) -> int:
    """Increment the number in a file, that often, so that two who are inside at once lose an increment."""
    for _ in range(times):
        with lock:
            Path(counter).write_text(str(int(Path(counter).read_text()) + 1))
    return os.getpid()


def take_and_end(lock: Lock, how: str) -> None:
    """End with the lock still held, in this way."""
    lock.acquire()
    if how == "an exception":
        raise ValueError("not handled")
    if how == "sys.exit":
        raise SystemExit(3)


def end_before_a_thread(lock: Lock, said: str) -> None:
    """Return while a thread of this process still works under the lock; it reports whether it kept the lock."""
    inside = threading.Event()

    def work() -> None:
        hold = lock.acquire()
        inside.set()
        threading.main_thread().join(0.3)  # time for the code that runs when a process ends
        Path(said).write_text("kept" if os.path.exists(hold.path) and not hold.lost else "lost")

    threading.Thread(target=work).start()
    inside.wait(20)


def be_killed(lock: Lock) -> None:
    lock.acquire()
    os.kill(os.getpid(), signal.SIGKILL)


def look(lock: Lock) -> Status:
    return lock.status()


def touch(hold: Hold) -> tuple[bool, bool]:
    """The state of an inherited handle, which must free nothing."""
    hold.release()
    return hold.lost, os.path.exists(hold.path)


def talk(word: str) -> None:
    """Say a word, and live until the other side says one."""
    os.write(1, word.encode() + b"\n")
    os.read(0, 1)


class Named(Lock):
    """A subclass, as an application may define it."""
