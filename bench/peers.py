"""Every library that the benchmarks measure, behind one interface; references.py has the locks they are compared with.

A subject is made once per process, on one path; `acquire` and `release` are measured. Each library is used the way its
documentation shows and with its own defaults, except that none is given a time limit (a limit that expires would end a
measurement). The extra Python call of an adapter costs each subject the same, 0.1-0.2 µs a cycle.

Imports happen in the constructor: a process loads the one library that it measures.
"""

from __future__ import annotations

from typing import Any

from procs import Failed, NotAvailable

# "For ever" where a library insists on a number of seconds.
FOREVER = 3600.0


class Subject:
    """A lock on one path.

    `package` names the distribution whose version is printed. `poll` is the mean number of seconds between two looks of
    a waiter (0: it is woken), `None` if the library offers no waiting. `after_kill` says that the death of a holder
    frees the lock.
    """

    label: str
    package: str | None = None
    poll: float | None = 0.0
    after_kill = True

    def __init__(self, path: str) -> None:
        raise NotImplementedError

    def acquire(self) -> None:
        """Wait for the lock, without limit."""
        raise NotImplementedError

    def release(self) -> None:
        """Free the lock that `acquire` took."""
        raise NotImplementedError

    @classmethod
    def once(cls, path: str) -> None:
        """Try once, without a wait; if the lock is held, raise what the library raises, if it raises."""
        raise NotImplementedError


class Holdfast(Subject):
    """holdfast.Lock with its defaults."""

    label = "holdfast"
    package = "holdfast"

    def __init__(self, path: str) -> None:
        import holdfast

        self._lock = holdfast.Lock(path)
        self._hold: Any = None

    def acquire(self) -> None:
        self._hold = self._lock.acquire()

    def release(self) -> None:
        self._hold.release()

    @classmethod
    def once(cls, path: str) -> None:
        import holdfast

        holdfast.Lock(path).acquire(timeout=0)


class HoldfastFlock(Holdfast):
    """holdfast.Lock with its protocol for files that stay, locked by the kernel alone."""

    label = "holdfast, protocol flock"

    def __init__(self, path: str) -> None:
        import holdfast

        try:
            self._lock = holdfast.Lock(path, protocol="flock")
        except ValueError:
            raise NotAvailable("not available: this holdfast has no protocol flock") from None
        self._hold: Any = None


class _FileLock(Subject):
    """A lock class of filelock; polls every 50 ms."""

    package = "filelock"
    poll = 0.05
    class_name: str

    def __init__(self, path: str) -> None:
        import filelock

        self._lock = getattr(filelock, self.class_name)(path)

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    @classmethod
    def once(cls, path: str) -> None:
        import filelock

        getattr(filelock, cls.class_name)(path).acquire(timeout=0)


class FileLock(_FileLock):
    """flock on a file that stays."""

    label = class_name = "FileLock"


class SoftFileLock(_FileLock):
    """A file created exclusively, with the holder's process id and host name."""

    label = class_name = "SoftFileLock"


class StrictSoftFileLock(_FileLock):
    """Claims in a directory of their own; the death of a holder does not free it."""

    label = class_name = "StrictSoftFileLock"
    after_kill = False


class Portalocker(Subject):
    """portalocker.Lock: opens and flocks a file that stays; polls every 250 ms."""

    label = package = "portalocker"
    poll = 0.25

    def __init__(self, path: str) -> None:
        import portalocker

        # Its default limit of 5 s would end a wait.
        self._lock = portalocker.Lock(path, timeout=FOREVER)

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    @classmethod
    def once(cls, path: str) -> None:
        import portalocker

        portalocker.Lock(path, timeout=0, fail_when_locked=True).acquire()


class Fasteners(Subject):
    """fasteners.InterProcessLock: opens and lockf's a file that stays; polls, 10 ms growing to 100 ms."""

    label = package = "fasteners"
    poll = 0.1

    def __init__(self, path: str) -> None:
        import fasteners

        self._lock = fasteners.InterProcessLock(path)

    def acquire(self) -> None:
        self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    @classmethod
    def once(cls, path: str) -> None:
        import fasteners

        if fasteners.InterProcessLock(path).acquire(blocking=False):
            raise Failed("two hold it")


class Flufl(Subject):
    """flufl.lock.Lock: a claim file linked to the lock path; polls every 0-2 s, at random."""

    label = package = "flufl.lock"
    poll = 1.0
    after_kill = False  # only its lifetime, 15 s by default, frees it

    def __init__(self, path: str) -> None:
        import flufl.lock

        # Its default lifetime of 15 s ends a hold, with others waiting: a limit that would end a measurement.
        self._lock = flufl.lock.Lock(path, lifetime=round(FOREVER))

    def acquire(self) -> None:
        self._lock.lock()

    def release(self) -> None:
        self._lock.unlock()

    @classmethod
    def once(cls, path: str) -> None:
        import flufl.lock

        flufl.lock.Lock(path).lock(timeout=0.1)


class ZcLockfile(Subject):
    """zc.lockfile.LockFile: opens, flocks, writes the process id; the file stays. It raises instead of waiting."""

    label = package = "zc.lockfile"
    poll = None

    def __init__(self, path: str) -> None:
        import zc.lockfile

        self._open = zc.lockfile.LockFile
        self._path = path
        self._lock: Any = None

    def acquire(self) -> None:
        self._lock = self._open(self._path)

    def release(self) -> None:
        self._lock.close()

    @classmethod
    def once(cls, path: str) -> None:
        cls(path).acquire()


LIBRARIES: tuple[type[Subject], ...] = (
    Holdfast,
    FileLock,
    SoftFileLock,
    StrictSoftFileLock,
    Portalocker,
    Fasteners,
    Flufl,
    ZcLockfile,
)


def waiting(*references: type[Subject]) -> list[type[Subject]]:
    """The references, then every library that can wait."""
    return [*references, *(subject for subject in LIBRARIES if subject.poll is not None)]
