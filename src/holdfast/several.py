"""Several locks at once: `acquire_all`, and `Holds`, its handle.

Two processes that acquire two locks in opposite orders may wait for each other forever. So:

D1  There is one order of all lock files, the same in every process of a kernel however their paths are spelled: by the
    directory (its device and inode; its real path on network and FUSE filesystems, whose inode numbers change), then by
    name, as slots of a semaphore where the name is that of a slot (stem, then number). Locks on servers come last, by
    their names on the server; the URL may have parameters, and may name other servers of the same cluster. Ranges of
    one file come by their first byte.
D2  The lock files of one entry (all slots of a semaphore) lie side by side in that order: no other entry of the list
    has a file among them. An entry with the same file, or a byte of the same range, is refused, unless it has the same
    owner and can join: so an exclusive lock comes before a shared one, and a range before those within it.
D3  The entries are acquired in that order. So a waiter for an entry holds, by this call, only files before all of its
    files, and there is no circle: of all files held by processes that wait for each other, take the last one. Its
    holder waits for files after it, which one of the others must hold; but there is none. Likewise with ranges: take
    the one that ends last. Its holder waits for a range that begins behind that end, and the one in the way ends later.
D4  All or none: whatever goes wrong, an interruption included, all acquired locks are released, last one first. A lock
    that was lost meanwhile is noticed before the handle is returned.

Not covered: locks that a caller held before. Not in the order of D1: processes on different machines that share several
filesystems, or one FUSE filesystem mounted twice; nor locks of one name on two servers whose addresses are spelled in
several ways; nor kernel locks on one file by several names, as its number is known only once it is there. A timeout
ends such a wait.
"""

from __future__ import annotations

import math
import os

from ._core.options import Request, check_timeout
from ._drivers.sync import Cancellation
from ._platform import environment
from ._platform.fork import forking
from .engines.file.publish import make_parents
from .engines.file.request import FileRequest
from .engines.file.steps import with_hint
from .errors import AcquireTimeout, LockLost
from .lock import (
    UNSET,
    Acquirable,
    Hold,
    Resource,
    attempt,
    give_up_of,
    leave_to_statement,
    release_now,
    requests_of,
    require_unreleased,
    store_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Any, NoReturn, TypeVar

    from ._core.attempt import Refusal
    from ._drivers.apart import Apart
    from .lock import BaseHold, Cancel

    H = TypeVar("H", bound="BaseHolds")

    R = TypeVar("R", bound=Resource)

_LONGEST_NUMBER = 4


class GivenTwice(ValueError):
    """Two entries of a list have a lock file in common (D2)."""

    def __init__(self, message: str, *paths: str) -> None:
        super().__init__(message)
        self.paths = paths


class BaseHolds:
    """Queries common to the handles of several locks, whichever face they belong to."""

    _acquired: tuple[Any, ...] = ()

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[BaseHold]: ...

    @property
    def lost(self) -> bool:
        """Whether any of the locks was lost. Looks now."""
        return any(hold.lost for hold in self)

    def ensure_held(self) -> None:
        """Raise what `Hold.ensure_held` raises for the first lock that is not held now."""
        for hold in self:
            hold.ensure_held()

    def __reduce__(self) -> NoReturn:
        raise TypeError("holds belong to this process and cannot be pickled or copied; send the locks")


class Holds(tuple[Hold, ...], BaseHolds):
    """Several locks that were acquired together: a tuple of one `Hold` for each, in the order of the list.

    `with` releases them at the end.
    """

    def release(self) -> None:
        """Release all of them, the last one acquired first. A second call does nothing.

        Raises LockLost if one of them was lost; the others are released all the same. If there are several such errors,
        it raises the first, with the others as notes.
        """
        try:
            failed = release_all(self._acquired)
        except BaseException:
            release_all(self._acquired)  # Ctrl-C came before it had begun
            raise
        raise_first(failed)

    def __enter__(self) -> Holds:
        try:
            for hold in self:
                leave_to_statement(hold, hold)
                require_unreleased(hold)
            return self
        except BaseException:
            release_all(self._acquired)  # Ctrl-C: nobody may have them
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockLost as lost:
            if error is None:
                raise
            note(error, [lost])
        except BaseException:
            release_all(self._acquired)  # Ctrl-C came before it had begun
            raise


def acquire_all(locks: Iterable[Acquirable], timeout: float | None = UNSET, *, cancel: Cancel | None = None) -> Holds:
    """Acquire several locks and semaphores, all or none. Callers of this function do not deadlock each other.

    It acquires them in an order that depends neither on the order of the list nor on the spelling of paths. So two
    processes that name the same locks in different orders do not wait for each other forever. That holds on one
    machine, among processes that acquire everything they need by one call (several.py has the argument).

    `timeout` is in seconds, for all together. `None` waits without limit, `0` tries each once. Without an argument, the
    shortest timeout of the locks applies. `cancel` works as in `Lock.acquire`, for all together. Returns a tuple of
    holds, in the order of the list, which a `with` releases. For an empty list it is empty.

    Raises what `Lock.acquire` raises for the lock that could not be acquired, and LockLost if one of them was lost
    before all were there; then nothing is held. ValueError for two entries with a common lock file, or a common byte of
    ranges, where one would wait for the other: unless both have the same `owner`, and one includes the other.
    TypeError for an AsyncLock: await `holdfast.aio.acquire_all`.
    """
    wanted = checked(locks, Acquirable, "is for asyncio; await holdfast.aio.acquire_all for it")
    limit = limit_of(wanted, timeout)
    if not wanted:
        return finished(Holds, {})
    env = environment()
    ends = None if cancel is None else Cancellation(cancel, wanted[0].path, wanted[0].protocol)
    plan = _planned(wanted, limit, ends)
    operation = env.operations.begin(env)
    got: dict[int, Any] = {}
    try:
        for number in plan.order:
            got[number] = attempt(wanted[number], operation, plan.left(), plan.error, ends)
        holds = finished(Holds, got)
        env.operations.about_to_deliver(operation)
        del env.operations.running[operation.number]  # delivered: nothing is called between here and the caller
        operation.frame = None
        return holds
    except BaseException as error:
        env.operations.running[operation.number] = operation  # operations.py, J2
        try:
            failed: list[Exception] = []
            left = [*got.values()]
            if operation.left_to is not None:  # with all that lies at such a server (_drivers/apart.py, AP2)
                left = [hold for hold in left if not env.may_block(hold.path)]
            release_in_turn(left, failed)  # D4
            note(error, failed)
        finally:
            env.operations.abort(operation)
        raise


# -- what both faces do ------------------------------------------------------------------------------------------------


def checked(locks: Iterable[R], kind: type[R], instead: str) -> list[R]:
    """The list, if this face can acquire each of its entries; else TypeError."""
    if isinstance(locks, Resource):
        raise TypeError(f"acquire_all takes a list of locks, not {locks!r}: put it into a list, or just acquire it")
    wanted = list(locks)
    for lock in wanted:
        if isinstance(lock, Resource) and not isinstance(lock, kind):
            raise TypeError(f"{lock!r} {instead}")
        if not isinstance(lock, kind):
            raise TypeError(f"acquire_all takes locks and semaphores, not {lock!r}")
    return wanted


def limit_of(wanted: Sequence[Resource], timeout: float | None) -> float | None:
    """The limit of the wait for all of them, in seconds; None: no limit."""
    own = [limit for lock in wanted if (limit := requests_of(lock)[0].timeout) is not None]
    return min(own, default=None) if timeout is UNSET else check_timeout(timeout)


def give_up_of_all(wanted: Sequence[Resource], limit: float | None, cancel: Cancellation | None = None) -> Apart | None:
    """The `Apart` by which a plan, which looks at the directories, can give up waiting for their servers; None where
    there are none."""
    return next((apart for lock in wanted if (apart := give_up_of(lock, limit, acquires=True, cancel=cancel))), None)


def _planned(wanted: Sequence[Resource], limit: float | None, cancel: Cancellation | None) -> Plan:
    if cancel is not None:
        cancel.check()  # a plan may make directories
    apart = give_up_of_all(wanted, limit, cancel)
    return Plan(wanted, limit) if apart is None else apart.call(lambda: Plan(wanted, limit))


class Plan:
    """The order in which to acquire them, and the end of the wait."""

    def __init__(self, wanted: Sequence[Resource], limit: float | None) -> None:
        self._wanted = wanted
        self._limit = limit
        self._until = math.inf if limit is None else environment().monotonic() + limit
        self.order = in_order(wanted)

    def left(self) -> float | None:
        """Seconds left for all the others; None: no limit."""
        return None if self._limit is None else max(0.0, self._until - environment().monotonic())

    def error(self, refusal: Refusal, _left: float | None = None) -> AcquireTimeout:
        with forking:
            from ._core.messages import refused
        return refused(refusal, self._limit, together=len(self._wanted))


def in_order(wanted: Sequence[Resource]) -> list[int]:
    """The numbers of the entries, in the order of acquisition (D1). ValueError by D2."""
    places = [[_place(lock, request) for request in requests_of(lock)] for lock in wanted]
    order = sorted(range(len(wanted)), key=lambda number: (min(places[number]), _rank(wanted[number])))
    seen: dict[tuple[object, ...], list[int]] = {}
    for number in order:
        for file in places[number]:
            earlier = seen.setdefault(file, [])
            for first in earlier:
                _require_joinable(wanted[first], wanted[number])
            earlier.append(number)
    return order


def _rank(lock: Resource) -> tuple[float, bool, float, int]:
    """The order of entries that begin at the same file: each before those that may join it (D2)."""
    first, *others = requests_of(lock)
    start, length = (first.records if isinstance(first, FileRequest) else None) or (0, 0)
    return (start, first.shared, -(length or math.inf), len(others))


def _place(lock: Resource, request: Request) -> tuple[Any, ...]:
    """The place of a lock file in the order of all (D1); other engines' locks come after all files, by name."""
    if store_of(lock).is_remote:
        return (2, *request.place)
    assert isinstance(request, FileRequest)
    directory, name = _directory(request), request.name
    bare = name
    while bare.endswith(".lock"):
        bare = bare.removesuffix(".lock")
    stem, _, number = bare.rpartition(".")
    if stem and bare != name and len(number) <= _LONGEST_NUMBER and number.isdecimal() and str(int(number)) == number:
        return (*directory, stem.casefold(), stem, name[len(bare) :], int(number))
    return (*directory, name.casefold(), name, "", -1)  # case may make no difference here, but it is part of the name


def _directory(request: FileRequest) -> tuple[Any, ...]:
    env = environment()
    if env.may_block(request.path):
        return (1, 0, 0, os.path.realpath(request.directory))
    raced: list[OSError] = []
    while True:
        try:
            found = env.stat(f"{request.directory}/.")  # /. follows a symbolic link
            return (0, found.st_dev, found.st_ino, "")
        except OSError as error:
            if not make_parents(env, request, error, raced):
                raise with_hint(error, request, env) from error


def _require_joinable(one: Resource, other: Resource) -> None:
    """Raise ValueError if `other` would wait for `one`, which is acquired before it and has a lock file in common."""
    if one.protocol != other.protocol:
        raise ValueError(
            f"{one!r} and {other!r} have a lock file in common, but their protocols do not exclude each other; use one"
        )
    first, second = requests_of(one)[0], requests_of(other)[0]
    includes = True
    if isinstance(first, FileRequest) and isinstance(second, FileRequest):
        if not first.meets(second):
            return
        includes = first.includes(second)
    same_kind = (first.slot is None) == (second.slot is None)
    if not same_kind or first.owner is None or first.owner != second.owner:
        have, remedy = "a lock file in common", "leave one out, or pass the same owner= to both"
    elif not includes:
        have = "bytes of one file in common, but neither includes the other"
        remedy = "pass one lock that includes both"
    else:
        return
    raise GivenTwice(
        f"{one!r} and {other!r} have {have}, so that one would wait for the other forever; {remedy}",
        one.path,
        other.path,
    )


def finished(kind: Callable[[list[Any]], H], got: dict[int, Any]) -> H:
    """The handle, once all are acquired and, however long the last one took, still held (D4)."""
    for hold in got.values():
        hold.ensure_held()
    holds = kind([got[number] for number in range(len(got))])
    holds._acquired = tuple(got.values())
    return holds


def release_all(holds: Iterable[Any]) -> list[Exception]:
    """Release these holds in this thread, the last one first, even if Ctrl-C comes in between. Their errors."""
    left, failed = [*holds], list[Exception]()
    try:
        release_in_turn(left, failed)
    finally:
        release_in_turn(left, failed)
    return failed


def release_in_turn(left: list[Any], failed: list[Exception]) -> None:
    """Release these holds in this thread, the last one first; those not yet released stay in the list."""
    while left:
        try:
            release_now(left[-1])
        except Exception as error:
            failed.append(error)
        left.pop()


def raise_first(failed: list[Exception]) -> None:
    if failed:
        note(failed[0], failed[1:])
        raise failed[0]


def note(error: BaseException, others: Iterable[BaseException]) -> None:
    """Add the other errors to this one as notes."""
    for other in others:
        for text in (str(other), *getattr(other, "__notes__", ())):
            if text != str(error):
                error.add_note(text)
