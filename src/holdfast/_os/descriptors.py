"""The descriptors of this process that must neither live on in a forked child nor be forgotten (operation.py, J1).

What the `map` and `zip` here are for: one call into C does several things, so no exception of a signal handler comes
between them. `forking` keeps a fork by another thread from coming between them.
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
_MANY = 64
"""Descriptors that an operation remembers before those that are closed are forgotten: a long wait opens many."""


class Descriptor(int):
    """A descriptor that is ours. Two with the same number, one after the other, are two."""

    publication: tuple[Any, bytes] | None = None
    """The request that it may be the lock file of, and the record that was to be written there."""


class Created(Descriptor):
    """That of a file that did not exist before."""


class Descriptors:
    """Those that are open."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._open: dict[int, Descriptor] = {}

    def open(
        self, call: Callable[..., int], *arguments: object, kind: type[Descriptor] = Descriptor, lasting: bool = False
    ) -> Descriptor:
        """What `call` returns; a negative number is not entered. `lasting`: it is not the operation's."""
        operation = None if lasting else self._operations.current()
        made: dict[int, Any] = {} if operation is None else operation.made
        if len(made) >= _MANY:
            self._forget_closed(made)
        number = next(_numbers)
        cast: Any = kind
        number_of: Any = call
        opened = map(number_of, *[(argument,) for argument in arguments])
        with forking:
            self._open.update(
                zip(
                    map(made.setdefault, (number,), map(cast, opened)),
                    map(made.get, (number,)),
                    strict=False,
                )
            )
        fd: Descriptor = made[number]
        if fd < 0:
            del self._open[fd]
        return fd

    def close(self, fd: int) -> None:
        """Close it, if that has not been done; in a forked child, where all are closed already, do nothing."""
        with forking:
            if self._open.get(fd) is fd:
                for _ in zip(map(self._open.pop, (fd,)), map(os.close, (fd,)), strict=False):
                    pass

    def __contains__(self, fd: object) -> bool:
        return self._open.get(fd) is fd  # type: ignore[call-overload]

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._open.values()))

    def clear(self) -> None:
        self._open.clear()

    def _forget_closed(self, made: dict[int, Any]) -> None:
        for number, fd in list(made.items()):
            if fd not in self:
                del made[number]
