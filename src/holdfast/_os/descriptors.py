"""The descriptors of this process that must neither live on in a forked child nor be forgotten (operation.py, J1).

What `map` is for here: one call into C does several things, so no exception of a signal handler comes between them.
`forking` keeps a fork by another thread from coming between them.
"""

from __future__ import annotations

import itertools
import os

from .._core.operation import Operations
from . import forking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_numbers = itertools.count()


class Descriptor(int):
    """A descriptor that is ours. Two with the same number, one after the other, are two."""

    home: tuple[dict[int, Any], int, int] = ({}, 0, 0)
    """The list that it is on while it is open, under which number, and of which operation."""
    publication: tuple[Any, bytes] | None = None
    """The request that it may be the lock file of, and the record that was to be written there."""


class Created(Descriptor):
    """That of a file that did not exist before."""


class Descriptors:
    """Those that are open: on the lists of the operations that opened them, whether these last or not."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._lasting: dict[int, Any] = {}
        """Those of no operation."""

    def open(
        self, call: Callable[..., int], *arguments: object, kind: type[Descriptor] = Descriptor, lasting: bool = False
    ) -> Descriptor:
        """What `call` returns; a negative number is not entered. `lasting`: it is not the operation's."""
        operation = None if lasting else self._operations.current()
        made, owner = (self._lasting, 0) if operation is None else (operation.made, operation.number)
        number = next(_numbers)
        keep: Any = made.setdefault
        with forking:
            (fd,) = map(keep, (number,), map(kind, itertools.starmap(call, (arguments,))))
        if fd < 0:
            del made[number]
        else:
            fd.home = (made, number, owner)
        return fd  # type: ignore[no-any-return]

    def close(self, fd: int) -> None:
        """Close it, if that has not been done; in a forked child, where all are closed already, do nothing."""
        if isinstance(fd, Descriptor):
            made, number, owner = fd.home
            with forking:
                if number not in made:
                    return
                for _ in map(os.close, map(made.pop, (number,))):
                    pass
            if not made:
                self._operations.forget(owner)

    def disown(self, fd: int) -> None:
        """Forget it: somebody else has closed it."""
        if isinstance(fd, Descriptor):
            fd.home[0].pop(fd.home[1], None)
            self._operations.forget(fd.home[2])

    def __contains__(self, fd: object) -> bool:
        return isinstance(fd, Descriptor) and fd.home[1] in fd.home[0]

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __iter__(self) -> Iterator[Descriptor]:
        lists = [self._lasting, *self._operations.made.values()]
        return iter([fd for made in lists for fd in list(made.values())])

    def clear(self) -> None:
        for fd in self:
            fd.home[0].clear()
        self._operations.made.clear()
