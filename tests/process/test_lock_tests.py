"""CPython's own tests of threading's Lock, RLock and BoundedSemaphore (`test.lock_tests`), run on holdfast's.

The adapters below give a lock on a path the methods of a lock of `threading`. What differs, and why:

- A blocking acquire has a timeout of a minute here. `threading` lets a thread wait for itself for ever; holdfast raises
  WouldDeadlock where nobody sets a limit, and some of the cases are such waits that another thread ends.
- Waits have no upper limit in holdfast; `threading` raises OverflowError above TIMEOUT_MAX. The adapter does so.
- `blocking`, `locked`, the form of `repr` and the RuntimeError of a release too many are `threading`'s, made here of
  `status()` and of the holds.
- A hold is left by its handle. Whose turn it is to release is what the adapter knows: any thread's for Lock, and for
  RLock the thread that acquired, as in `threading`.
- Locks are dropped while they are held; there is no ResourceWarning, which holdfast has for that.
- No heartbeats: the cases count threads, and the keeper's would be one more.
- How long a wait may last at most, and how soon threads must have ended, is a matter of the machine's load: a wait is
  only checked not to be too short, and the threads have the patience of all tests.

What cannot apply is in LEFT_OUT, with its reason; everything else is run, also what later versions of CPython add.
"""

from __future__ import annotations

import _thread
import os
import shutil
import tempfile
import threading
import unittest
from typing import Any, ClassVar

import pytest

from holdfast import AcquireTimeout, Hold, Lock, Semaphore
from holdfast.lock import leave_to_others
from process.support import eventually

try:
    from test import lock_tests
except ImportError:
    pytest.skip(
        "CPython's own tests of locks are NOT RUN: this Python comes without its `test` package (on Debian, install "
        "libpython3.11-testsuite, or the one of your version)",
        allow_module_level=True,
    )

LEFT_OUT = {
    "test_at_fork_reinit": "`_at_fork_reinit` makes a lock free, whoever holds it. The holder of a lock on a path may "
    "be any process, so that is not a child's to do. What a child gets is tested in test_fork.py.",
}
LONG = 60.0


class Threadlike(Lock):
    """A lock that does not know who holds it, like threading.Lock: a subclass, so that weak references see the Lock."""

    directory: ClassVar[str]
    made: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).made += 1
        super().__init__(f"{self.directory}/{self.made}.lock", timeout=LONG, heartbeat=0)
        self._holds: list[Hold] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # type: ignore[override]
        try:
            self._holds.append(undisputed(super().acquire(limit(blocking, timeout))))
        except AcquireTimeout:
            return False
        return True

    __enter__ = acquire  # type: ignore[assignment]

    def release(self) -> None:
        if not self._holds:
            raise RuntimeError("release unlocked lock")
        self._holds.pop().release()

    def __exit__(self, *_error: object) -> None:
        self.release()

    def locked(self) -> bool:
        return self.status().locked

    def __repr__(self) -> str:
        return f"<{'locked' if self.locked() else 'unlocked'} {type(self).__name__} object at {self.path}>"


class RThreadlike(Threadlike):
    """Re-entrant for the thread that holds it, like threading.RLock: each thread is an owner."""

    def __init__(self) -> None:
        super().__init__()
        self._owned: dict[int, list[Hold]] = {}

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # type: ignore[override]
        me = threading.get_ident()
        mine = Lock(self.path, owner=me, timeout=LONG, heartbeat=0)
        try:
            hold = undisputed(mine.acquire(limit(blocking, timeout)))
        except AcquireTimeout:
            return False
        self._owned.setdefault(me, []).append(hold)
        return True

    __enter__ = acquire  # type: ignore[assignment]

    def release(self) -> None:
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self._owned[threading.get_ident()].pop().release()

    def _holding(self) -> list[Hold]:
        return [hold for hold in self._owned.get(threading.get_ident(), []) if not hold.lost]

    def _is_owned(self) -> bool:
        return bool(self._holding())

    def _recursion_count(self) -> int:
        return len(self._holding())

    def _release_save(self) -> int:
        count = self._recursion_count()
        if not count:
            raise RuntimeError("cannot release un-acquired lock")
        for _ in range(count):
            self.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        for _ in range(count):
            self.acquire()


class BoundedSemaphore(Semaphore):
    """A semaphore that does not know who holds it, like threading.BoundedSemaphore: a release may be of any slot."""

    def __init__(self, value: int = 1) -> None:
        Threadlike.made += 1
        super().__init__(f"{Threadlike.directory}/{Threadlike.made}", value, timeout=LONG, heartbeat=0)
        self._holds: list[Hold] = []

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:  # type: ignore[override]
        try:
            self._holds.append(undisputed(super().acquire(limit(blocking, -1 if timeout is None else timeout))))
        except AcquireTimeout:
            return False
        return True

    __enter__ = acquire  # type: ignore[assignment]

    def release(self, n: int = 1) -> None:
        if len(self._holds) < n:
            raise ValueError("Semaphore released too many times")
        for _ in range(n):
            self._holds.pop().release()

    def __exit__(self, *_error: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<holdfast.BoundedSemaphore at {self.base}: value={self.status().free}/{self.slots}>"


def undisputed(hold: Hold) -> Hold:
    """Disable the warning about a hold that is dropped unreleased, as some cases do: `threading` does not warn."""
    leave_to_others(hold)
    return hold


def limit(blocking: bool, timeout: float) -> float:
    """The holdfast timeout for the two arguments of `threading`, which are checked here."""
    if not blocking:
        if timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        return 0
    if timeout > threading.TIMEOUT_MAX:
        raise OverflowError("timeout value is too large")
    return LONG if timeout == -1 else timeout


class OnFiles(unittest.TestCase):
    """The directory for the locks of one case; at its end nobody waits, and only held locks are left in it."""

    def setUp(self) -> None:
        Threadlike.directory = tempfile.mkdtemp(prefix="holdfast-test-")
        self.addCleanup(shutil.rmtree, Threadlike.directory)
        self.threads = _thread._count()
        super().setUp()

    def tearDown(self) -> None:
        super().tearDown()
        lock = Threadlike()

        def ended() -> bool:
            for held in list(lock._env.holds.values()):  # after a failed case, its threads wait for these
                if held.path.startswith(Threadlike.directory):
                    held.release()
            return _thread._count() <= self.threads

        eventually(ended, what=f"the end of all but {self.threads} of the threads {threading.enumerate()}")
        self.assertEqual(os.listdir(Threadlike.directory), [])  # noqa: PT009

    def assertTimeout(self, actual: float, expected: float) -> None:
        self.assertGreaterEqual(actual, expected * 0.6)  # noqa: PT009


def without(cases: type[unittest.TestCase], left_out: dict[str, str]) -> Any:
    """The cases except these; a name that no longer exists has to be removed from the list."""
    return type(cases.__name__, (cases,), dict.fromkeys(left_out))


class TestLock(OnFiles, without(lock_tests.LockTests, LEFT_OUT)):
    """threading.Lock."""

    locktype = Threadlike


class TestRLock(OnFiles, lock_tests.RLockTests):
    """threading.RLock."""

    locktype = RThreadlike


class TestSemaphore(OnFiles, lock_tests.BoundedSemaphoreTests):
    """threading.BoundedSemaphore. The unbounded one, whose releases make slots, has no counterpart."""

    semtype = BoundedSemaphore


def test_every_case_left_out_exists_and_has_a_reason() -> None:
    assert all(callable(getattr(lock_tests.LockTests, name)) for name in LEFT_OUT)
    assert all(reason for reason in LEFT_OUT.values())
