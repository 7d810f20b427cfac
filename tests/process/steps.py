"""Kill a process at each step of one operation, and check that the next process copes with the leftovers.

    python steps.py LOCK OPERATION

OPERATION is `acquire`, `takeover` or `release`. A step is a call of something written in C, since every system call is
one, but for those that only touch objects of Python: between two system calls, nothing changes that outlives a process.
This small process forks a victim that kills itself at its first step, then one that does so at its second, until one
comes through. It prints, as JSON, the number of steps and what went wrong at which.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from children import fork

from holdfast import Lock
from holdfast._platform import environment

PROMPTLY = 5.0
"""Seconds within which a dead process's lock must be acquired, on a busy machine. A contender that overlooks the death
looks again after ten."""


PLAIN = (str, bytes, bytearray, dict, list, set, frozenset, tuple, int, float)


def is_step(function: Any) -> bool:
    return function.__module__ != "builtins" and not isinstance(getattr(function, "__self__", None), PLAIN)


def killed_at(step: int, operation: Callable[[], Any]) -> None:
    """Run the operation, but kill this process just before its `step`th call."""
    calls = 0

    def count(_frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        if event == "c_call" and is_step(argument):
            calls += 1
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    operation()
    sys.setprofile(None)


class Trial:
    def __init__(self, path: str, operation: str) -> None:
        self.path = path
        self.operation = operation
        self.directory = os.path.dirname(path)
        self.problems: list[str] = []
        self.left: bytes | None = None
        self.mode = 0

    def prepare(self) -> None:
        """Prepare a takeover: the lock of the same dead holder each time."""
        if self.operation != "takeover":
            return
        if self.left is None:
            _, status = os.waitpid(fork(self.acquire_and_end), 0)
            assert status == 0
            with open(self.path, "rb") as file:
                self.left = file.read()
            self.mode = os.stat(self.path).st_mode & 0o7777
        else:
            with open(self.path, "xb") as file:
                os.fchmod(file.fileno(), self.mode)
                file.write(self.left)

    def acquire_and_end(self) -> None:
        Lock(self.path, tag="first", heartbeat=0).acquire(timeout=PROMPTLY)

    def victim(self, step: int) -> None:
        lock = Lock(self.path, tag="victim", timeout=PROMPTLY, heartbeat=0)  # no thread: its start is many steps
        if self.operation == "release":
            hold = lock.acquire()
            killed_at(step, hold.release)
        else:
            killed_at(step, lock.acquire)

    def heir(self) -> None:
        """Acquire the victim's lock, at once, while the victim is a zombie still."""
        try:
            with open(self.path, "rb") as file:
                left = file.read()
        except FileNotFoundError:
            left = b""
        begun = time.monotonic()
        hold = Lock(self.path, tag="heir", heartbeat=0).acquire(timeout=PROMPTLY)
        took = time.monotonic() - begun
        assert took < PROMPTLY, f"that took {took:.3f} s"
        assert (hold.recovered_from is not None) == bool(left), (hold.recovered_from, left)
        if left and self.operation == "takeover":
            assert hold.recovered_from is not None
            assert hold.recovered_from.tag in ("first", "victim"), hold.recovered_from
        hold.ensure_held()
        hold.release()
        assert not os.path.exists(self.path)

    def cleaner(self) -> None:
        """Require that nothing of the victim outlasts the next hold, once it has been reaped."""
        with Lock(self.path, timeout=PROMPTLY, heartbeat=0):
            pass
        assert os.listdir(self.directory) == [], f"left: {os.listdir(self.directory)}"

    def step(self, step: int) -> bool:
        """Run one trial; whether the victim came through."""
        self.prepare()
        victim = fork(lambda: self.victim(step))
        os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
        left = sorted(os.listdir(self.directory))
        _, heir = os.waitpid(fork(self.heir), 0)
        _, status = os.waitpid(victim, 0)
        cleaner = 0
        if os.listdir(self.directory):
            _, cleaner = os.waitpid(fork(self.cleaner), 0)
        if heir or cleaner or not (status == 0 or os.WTERMSIG(status) == signal.SIGKILL):
            self.problems.append(f"step {step}: victim {status}, heir {heir}, cleaner {cleaner}; it left {left}")
            for name in os.listdir(self.directory):
                os.unlink(f"{self.directory}/{name}")
        return status == 0


def main(path: str, operation: str) -> None:
    # Imported here, once: in each victim they would be hundreds of steps that have nothing to do with locks.
    late = (
        "ctypes",
        "hashlib",
        "logging",
        "psutil",
        "select",
        "uuid",
        "zlib",
        "holdfast._platform.inotify",
        "holdfast.engines.file.remove",
    )
    for name in late:
        importlib.import_module(name)
    environment().identity()
    gc.collect()
    getattr(gc, "freeze", gc.collect)()  # each collection in a child would copy all of this
    trial = Trial(path, operation)
    step = 1
    while not trial.step(step):
        step += 1
    print(json.dumps({"steps": step - 1, "problems": trial.problems}))


if __name__ == "__main__":
    main(*sys.argv[1:])
