"""Interrupt each step of one operation, and see what is left of it.

    python interruptions.py LOCK OPERATION KIND EVERY

OPERATION is `acquire`, `enter` (a with statement), `wait` (for a lock that stays held), `takeover`, `again` (for an
owner that holds it) or `release`. A step is a point at which CPython runs signal handlers: the beginning of a function,
and the return from one that is written in C. At one such point this happens (KIND), and in the next trial at a later
one, until the operation comes through; EVERY says at which share of them, beginning anywhere:

    ctrl-c     the handler raises KeyboardInterrupt
    handler    the handler acquires, waits and releases locks of its own, and this one if it can
    fork       another thread forks, and the child goes on with locks of its own
    thread     another thread looks at this lock, joins it as the same owner, and releases what it can

It prints, as JSON, the number of steps and what went wrong at which.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from holdfast import AcquireTimeout, Hold, Lock, WouldDeadlock
from holdfast._platform import environment, linux

PROMPTLY = 10.0
"""Seconds within which a free lock must be acquired."""
WAIT = 0.004
"""Seconds of a wait in vain: long enough to queue in sight of all."""


class Steps:
    """Counts the steps of this thread, and acts at one of them."""

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        self.count = 0
        self.where = ""
        self._step = step
        self._action = action

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event not in ("call", "c_return") or code.co_filename == __file__:
            return
        self.count += 1
        if self.count == self._step:
            what = "the beginning of" if event == "call" else f"the return from {argument.__name__} in"
            self.where = f"{what} {code.co_qualname}"
            self._action()


class Trial:
    def __init__(self, path: str, operation: str, kind: str) -> None:
        self.path = path
        self.directory = os.path.dirname(path)
        self.operation = operation
        self.kind = kind
        owner = "me" if operation == "again" or kind == "thread" else None
        self.lock = Lock(path, tag="main", timeout=PROMPTLY, heartbeat=0, owner=owner)
        self.hold: Hold | None = None
        self.problems: list[str] = []
        self.expected = (os.path.basename(path),)
        self.reached = threading.Event()
        self.gone_on = threading.Event()
        self.other: threading.Thread | None = None

    # -- the operation -------------------------------------------------------------------------------------------------

    def prepare(self) -> Callable[[], None]:
        """Prepare the operation; the function that undoes that."""
        if self.operation == "takeover":
            child = os.fork()
            if child == 0:
                Lock(self.path, tag="dead").acquire(timeout=PROMPTLY)
                os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(child, 0)
        if self.operation in ("release", "again"):
            hold = self.lock.acquire()
            if self.operation == "again":
                return hold.release
            self.hold = hold
        return lambda: None

    def operate(self) -> None:
        if self.operation == "release":
            assert self.hold is not None
            self.hold.release()
        elif self.operation == "wait":
            try:
                self.lock.acquire(timeout=WAIT)
            except AcquireTimeout:
                pass
        elif self.operation == "enter":
            with self.lock as hold:
                hold.ensure_held()
        else:
            self.hold = self.lock.acquire()

    # -- what happens at the step --------------------------------------------------------------------------------------

    def at_step(self) -> None:
        if self.kind == "ctrl-c":
            raise KeyboardInterrupt
        if self.kind == "handler":
            self.handler()
        elif self.kind == "thread":
            self.other = threading.Thread(target=self.thread, daemon=True)
            self.other.start()
            self.other.join(0.02)  # where it has to wait for this thread, it goes on later
        else:
            self.reached.set()
            self.gone_on.wait(0.02)  # where a fork has to wait for this thread, it comes later

    def handler(self) -> None:
        """Act as a signal handler may."""
        with Lock(self.path + ".own", timeout=PROMPTLY, heartbeat=0):
            for timeout in (WAIT, None):
                try:
                    Lock(self.path + ".own", heartbeat=0).acquire(timeout)
                except (AcquireTimeout, WouldDeadlock):
                    pass
        mine = Lock(self.path, tag="handler", heartbeat=0).try_acquire()
        if mine is not None:
            mine.ensure_held()
            mine.release()
        if self.operation == "release" and self.hold is not None:
            self.hold.release()
        Lock(self.path).status()

    def thread(self) -> None:
        try:
            Lock(self.path).status()
            if self.hold is not None:
                assert not self.hold.lost
            for lock in (self.lock, Lock(self.path, tag="other", heartbeat=0)):
                mine = lock.try_acquire()
                assert mine is not None or self.operation != "again" or lock is not self.lock
                if mine is not None:
                    mine.ensure_held()
                    mine.release()
            if self.operation == "release" and self.hold is not None:
                self.hold.release()
        except BaseException:
            self.problems.append(f"the other thread: {traceback.format_exc()}")

    def forker(self) -> None:
        self.reached.wait()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(5)
                self.child()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        self.gone_on.set()
        _, status = os.waitpid(child, 0)
        if status:
            self.problems.append(f"the child ended with {status:#x}")

    def child(self) -> None:
        left = [name for name in self.open_files() if self.directory in name or "inotify" in name or "eventfd" in name]
        assert not left, f"the child has {left}"
        assert not environment().holds
        with Lock(self.path + ".child", timeout=PROMPTLY, heartbeat=0):
            pass
        if self.hold is not None:
            self.hold.release()  # which does nothing
        try:
            with self.lock.acquire(timeout=WAIT):
                pass
        except AcquireTimeout:
            pass

    # -- one trial -----------------------------------------------------------------------------------------------------

    def run(self, step: int) -> bool:
        """Run one trial; whether the operation came through without getting to that step."""
        found = len(self.problems)
        undo = self.prepare()
        before = self.open_files()
        steps = Steps(step, self.at_step)
        forker = threading.Thread(target=self.forker)
        self.reached.clear()
        self.gone_on.clear()
        if self.kind == "fork":
            forker.start()
        try:
            sys.setprofile(steps)
            try:
                self.operate()
            finally:
                sys.setprofile(None)
        except KeyboardInterrupt:
            if self.operation != "release":
                self.hold = None
        except BaseException:
            self.problems.append(f"step {step}: {steps.where}:\n{traceback.format_exc()}")
        self.reached.set()
        if self.kind == "fork":
            forker.join()
        if self.other is not None:
            self.other.join(PROMPTLY)
            if self.other.is_alive():
                self.problems.append(f"step {step}: {steps.where}: the other thread hangs")
            self.other = None
        try:
            if self.hold is not None:
                if self.operation != "release":
                    self.hold.ensure_held()
                self.hold.release()
                self.hold = None
            undo()
            self.check(before)
        except BaseException:
            self.problems.append(f"step {step}: {steps.where}:\n{traceback.format_exc()}")
        if len(self.problems) > found:
            self.recover()
        return steps.count < step

    def recover(self) -> None:
        """Clean up after an error, so that the next step does not find it again."""
        env = environment()
        for held in list(env.holds.values()):
            held.released = False
            held.give_back()
        env.holds.clear()
        env.local_queues.clear()
        for name in os.listdir(self.directory):
            place = os.path.join(self.directory, name)
            if os.path.isdir(place):
                shutil.rmtree(place)
            elif self.operation != "wait" or place != self.path:
                os.unlink(place)

    def check(self, before: list[str]) -> None:
        """Require that the lock is free and nothing is left, once another operation has completed the one broken
        off."""
        env = environment()
        holds = [held.path for held in env.holds.values()]
        assert not holds, f"still held: {holds}"
        if self.operation == "wait":
            Lock(self.path + ".next", heartbeat=0).acquire(timeout=PROMPTLY).release()
        else:
            begun = time.monotonic()
            with Lock(self.path, tag="next", heartbeat=0).acquire(timeout=PROMPTLY):
                took = time.monotonic() - begun
            assert took < PROMPTLY / 2, f"to be had after {took:.3f} s"
        left = [name for name in os.listdir(self.directory) if self.operation != "wait" or name not in self.expected]
        assert not left, f"left: {left}"
        after = self.open_files()
        assert len(after) <= len(before), f"{before} descriptors before, now {after}"
        assert not env.local_queues, "still in a queue"
        assert not env.operations.running, "not finished"
        hub = getattr(env, "_hub", None)
        assert hub is None or not hub._watches, "still watching"

    def open_files(self) -> list[str]:
        found = []
        for name in os.listdir("/proc/self/fd"):
            try:
                found.append(os.readlink(f"/proc/self/fd/{name}"))
            except FileNotFoundError:
                pass
        return found


def main(path: str, operation: str, kind: str, every: str) -> None:
    # Imported here, once: in each trial they would be hundreds of steps that have nothing to do with locks.
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
    linux._WORTH_A_LOG = 0.0  # a log of the directory is made now, and stays
    for _ in range(2):
        Lock(f"{path}.first", heartbeat=0).acquire().release()
    trial = Trial(path, operation, kind)
    holder = None
    if operation == "wait":
        ready, holding = os.pipe()
        holder = os.fork()
        if holder == 0:
            Lock(path).acquire()
            os.write(holding, b"!")
            time.sleep(600)
        os.close(holding)
        assert os.read(ready, 1), "the holder has failed"
    trial.handler()  # sets up events, which stay
    until = time.monotonic() + ("events" not in os.environ.get("HOLDFAST_WITHOUT", "")) * PROMPTLY
    while getattr(environment(), "_hub", 0) is None and time.monotonic() < until:
        trial.handler()  # the instances of this user were used up by others
    step = 1 + os.getpid() % int(every)
    while not trial.run(step):
        step += int(every)
    if holder is not None:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
    print(json.dumps({"steps": step, "problems": trial.problems}))


if __name__ == "__main__":
    main(*sys.argv[1:])
