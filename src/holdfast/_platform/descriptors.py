"""Descriptors of this process that must neither live on in a forked child nor be forgotten (operations.py, J1).

`map` does several things in one call into C, so no exception of a signal handler comes between them. `opening` keeps
forks by other threads from coming between them. Calls that may last for ever are not made under it.
"""

from __future__ import annotations

import errno
import os
from itertools import count, islice, starmap

from .operations import Operations, call
from .values import LOST_SIGHT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


_numbers = count()


class Descriptor(int):
    """A descriptor of our own. It is told apart from an earlier one with the same number."""

    key: tuple[int, int] = (0, -1)
    """Key of its entry in the table, while it is open: the operation that opened it, and a number of its own."""
    end: Callable[[int], object] | None = None
    """Closes it in place of `os.close`: a handle or a socket of Windows, or a kqueue."""
    records: tuple[int, int] | None = None
    """Start and length of the bytes that its guard is on, if that is a record lock."""
    undo: Callable[[int], object] | None = None
    """Undoes what was done through it, and closes it; None: closing it is enough."""


class Created(Descriptor):
    """The descriptor of a file that did not exist before."""


class Descriptors:
    """All open descriptors, whether or not the operations that opened them still run."""

    def __init__(self, operations: Operations) -> None:
        self.operation = operations.number
        self._made = operations.made
        self._exclusive = operations.exclusive

    def open(
        self,
        call: Callable[..., int],
        *arguments: object,
        kind: Callable[[int], Descriptor] = Descriptor,
        lasting: bool = False,
    ) -> Descriptor:
        """Call `call` and enter the descriptor that it returns, unless negative. `lasting`: no operation owns it."""
        made: Any = self._made
        key = (0 if lasting else self.operation(), next(_numbers))
        with self._exclusive():
            (fd,) = map(made.setdefault, (key,), map(kind, starmap(call, (arguments,))))
        fd.key = key
        if fd < 0:
            del made[key]
        return fd  # type: ignore[no-any-return]

    def make(self, make: Callable[[], object], call_: Callable[[], int], unmake: Callable[[], object]) -> Descriptor:
        """Call `make`, and open by `call_` what it has made; both, and the entry, are one call into C. If it cannot be
        opened, it is unmade; FileExistsError if another process has removed it first."""
        made: Any = self._made
        kind: Any = Created
        key = (self.operation(), next(_numbers))
        steps = iter((make, call_))
        try:
            with self._exclusive():
                opened = islice(map(call, steps), 1, None)
                (fd,) = map(made.setdefault, (key,), map(kind, opened))
        except BaseException as error:
            if next(steps, None) is None and key not in made:
                if isinstance(error, FileNotFoundError):  # the name may be another's by now
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), error.filename) from error
                try:
                    unmake()
                except OSError:
                    pass  # the first failure is the one to report
            raise
        fd.key = key
        return fd  # type: ignore[no-any-return]

    def close(self, fd: int) -> None:
        """Close it, unless it is closed already; in a forked child, where all are, do nothing."""
        if isinstance(fd, Descriptor):
            made, key = self._made, fd.key
            try:
                with self._exclusive():
                    if key in made:
                        (_,) = map(fd.end or os.close, map(made.pop, (key,)))
            except OSError as error:
                if error.errno not in LOST_SIGHT:
                    raise  # else it is closed, and its server has forgotten it

    def keep(self, fd: int) -> None:
        """Keep it open when the operation that opened it is undone."""
        if isinstance(fd, Descriptor) and fd.key[0]:
            made, old = self._made, fd.key
            fd.key = (0, next(_numbers))
            for _ in map(made.setdefault, (fd.key,), map(made.pop, (old,))):
                pass

    def disown(self, fd: int) -> None:
        """Forget it: it was closed elsewhere."""
        if isinstance(fd, Descriptor):
            self._made.pop(fd.key, None)

    def __contains__(self, fd: object) -> bool:
        return isinstance(fd, Descriptor) and fd.key in self._made

    def __len__(self) -> int:
        return len(self._made)

    def __iter__(self) -> Iterator[Descriptor]:
        return iter(list(self._made.values()))

    def close_copies(self) -> None:
        """Close all, in a forked child; each leaves the table by the same call of C, so that this may be begun anew."""
        made: Any = self._made
        for key, fd in self._made.copy().items():
            try:
                # One with an end of its own is none of the child's (kqueue.py, KQ3).
                for _ in map(os.close if fd.end is None else int, map(made.pop, (key,))):
                    pass
            except (OSError, KeyError):
                pass
