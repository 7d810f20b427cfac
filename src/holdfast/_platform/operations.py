"""Operations: what each call of this process has made so far, so that an interrupted one leaves nothing behind.

A KeyboardInterrupt, or any other exception of a signal handler, may come between any two bytecodes, and a second one
during the clean-up after the first. So nothing that has to be undone is known to a local variable alone.

J1  A descriptor enters the table of the process, under the number of its operation, by the same C call that opens it,
    and leaves it by the same C call that closes it (descriptors.py). It is an object of its own: a caller that still
    has a closed one cannot touch another file that has got its number.
J2  An operation is on the list of the process from before its first step until its caller has the result. It is taken
    off by `del`, which is one bytecode, and nothing is called between that and the return to the caller. A caller that
    is interrupted there all the same puts it back first, where Python looks for no second signal. A hold that is being
    released is on the same list, from before its first step until its descriptor is closed and the keeper knows
    (hold.py).
J3  `undo` may be broken off anywhere and begun anew: each of its steps looks whether it is still due, and the mark that
    it was done is set after it.
J4  An operation that begins, and the exit of a process that has held a lock, first undo all those whose frame has
    ended. Those that still run, in another thread or greenlet or below the current signal handler, are left alone, and
    so is all that they began themselves.
J5  Python may raise before the first line of an `__exit__`, or of a finalizer. So the `with` of a lock has an object of
    its own to call when it is left (lock.py, Leaving); that of a hold has the hold. If the call does not happen, or is
    broken off, the object is dropped, and its finalizer releases. If that is interrupted too, the next contender that
    waits finds the object gone, and releases. A hold acquired before its `with` is for an instant not entered yet: one
    interruption, after the first line of that entry, releases it (guarantees.md).
J6  An `undo` that raises an error is tried once more by the next operation, as a signal handler may have raised it, and
    then taken off the list. The error is raised when all the others have been undone, so it keeps none of them from
    that, and no operation after the next one.
J7  A signal handler or a finalizer may run in the midst of a block under `exclusive`, or under a mutex of all waits or
    of a local queue, and wait for a lock of a thread that waits for that mutex. So code that may wait lets other
    threads have these meanwhile, and takes them back in their order, the outermost first. A block under `exclusive` is
    one call of C, or a look and a step with no call between them, so nothing is half done then. The others are
    re-entrant: each step in them expects that such code has changed their tables since the step before.
J8  A task or greenlet sleeps while the others of its thread go on, and the collector may end a task in the midst of any
    operation of any thread. So the steps of a thread meanwhile are no part of the sleeper's operation, and when an
    operation ends, its thread stays in the operation that it was in.
"""

from __future__ import annotations

import itertools
import stat
import sys
from _thread import _local

from .fork import MayHang, forking, notice_fork, under_way
from .values import temporary_prefix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from functools import partial as partial
    from operator import attrgetter, methodcaller
    from operator import call as call
    from types import FrameType
    from typing import Any, Protocol, TypeVar

    from ..model import Identity
    from .values import Process

    T = TypeVar("T")

    class Stat(Protocol):
        @property
        def st_mode(self) -> int: ...

    class Environment(Protocol):
        """The part of an environment that undoing needs (interface.py)."""

        holds: dict[tuple[object, ...], Any]
        operations: Operations

        swept: dict[str, float]

        def monotonic(self) -> float: ...
        def identity(self) -> Identity: ...
        def inspect(self, pid: int) -> Process: ...
        def list_directory(self, directory: str) -> list[str]: ...
        def stat(self, path: str) -> Stat: ...
        def close(self, fd: int) -> None: ...
        def unguard(self, fd: int) -> None: ...
        def unlink(self, path: str) -> None: ...
        def is_open(self, fd: int) -> bool: ...
        def is_lasting(self, fd: int) -> bool: ...
        def has_created(self, fd: int) -> bool: ...

    class Unfinished(Protocol):
        """An entry on the list: an operation, or a hold that is being released."""

        frame: FrameType | None
        outer: Operation | None

        def undo(self) -> None: ...
else:
    try:
        from _functools import partial as partial  # `functools` takes 2 ms to load
        from _operator import attrgetter, methodcaller
        from _operator import call as call
    except ImportError:  # PyPy
        from functools import partial as partial
        from operator import attrgetter, methodcaller
        from operator import call as call


_is_mine, _give, _take = methodcaller("_is_owned"), methodcaller("_release_save"), attrgetter("_acquire_restore")
_free = methodcaller("_at_fork_reinit")
"""What the standard library uses of an RLock: `threading.Condition`, and `logging` in a forked child."""
_SWEPT_LASTS = 60.0
"""Seconds between two sweeps of a directory."""
numbers = itertools.count(1)
has_forking: Callable[[], bool] = getattr(forking, "_is_owned")  # noqa: B009 - of the standard library


class Operation:
    """A call that is still running: acquiring, waiting, looking, breaking."""

    task: Callable[[], Any] | None = None
    """A weak reference to the task that performs it, if a task does."""
    steps: Callable[[], Any] | None = None
    """A weak reference to the generator that its task resumes on an event loop."""
    attempt: Any = None
    watches: Any = ()
    temporary: tuple[str, ...] = ()
    """Paths that carry a token of ours, so that removing them is right at any time."""
    undo_created: Callable[[int], object] | None = None
    """Removes a file that it may have created, and closes its descriptor."""
    undo_claims: Callable[[], object] | None = None
    """Removes claims that it may have made (lease.py, LE6)."""

    left_to: Callable[[], Any] | None = None
    """The thread that undoes it, once that is no longer the caller's to do (_drivers/apart.py, AP2)."""

    def __init__(self, env: Environment, frame: FrameType | None, outer: Operation | None, gave: Any) -> None:
        self.env = env
        self.frame = frame
        """The frame of the function that the caller has called; None for a task, whose frame sleeps while it lives."""
        self.outer = outer
        """The operation that a signal handler has interrupted, or that this one is a part of."""
        self.gave = gave
        """Mutexes, by how to take them back, that other threads may have until this operation ends (J7)."""
        self.number = next(numbers)

    def is_in_step(self) -> bool:
        """Whether an event loop is in the midst of a step of it."""
        return getattr(None if self.steps is None else self.steps(), "gi_running", False)

    def undo(self) -> None:
        """Give up all that it has, except what is the caller's (J3)."""
        env = self.env
        if self.attempt is not None:
            self.attempt.close()
            self.attempt = None
        for held in list(env.holds.values()):
            held.give_back_of(self.number)
        # A hold that is still there now belongs to the same owner's other calls, which have joined it.
        joined = [fd for held in env.holds.copy().values() for fd in held.descriptors()]
        for key, fd in env.operations.made.copy().items():
            if key[0] == self.number and not env.is_lasting(fd) and not any(fd is one for one in joined):
                fd.key = key
                undo = fd.undo or (self.undo_created if env.has_created(fd) else None)
                if undo is None:
                    let_go(env, fd)
                else:
                    undo(fd)
        for watch in list(self.watches):
            watch.close()
        for path in self.temporary:
            unlink_quietly(env, path)
        if self.undo_claims is not None:
            self.undo_claims()


class _Here(_local):
    """State of each thread."""

    current: Operation | None = None
    may_hang = False
    """Whether system calls of this thread may last for ever (_drivers/apart.py, AP4)."""


class _Waits(_local):
    loop = 0
    """The id of the event loop that waits for the step that runs now; 0 for the thread itself."""


waits = _Waits()


class Operations:
    """The operations of one process.

    Tables like these are iterated as a `copy()`: it is made at once, while in `list(….items())` Python 3.11 may run a
    finalizer, which releases, and changes the table.
    """

    def __init__(self, exclusive: Any, of_queues: Callable[[], Iterable[Any]] = tuple) -> None:
        """`of_queues`: the mutexes of the local queues."""
        self.made: dict[tuple[int, int], Any] = {}
        """The open descriptors, by the number of the operation that opened each, and one of their own."""
        self.running: dict[object, Unfinished] = {}
        """Operations by number, and holds that are being released."""
        self.entered: dict[Any, Callable[[], object]] = {}
        """Weak references to the object that the `with` of each hold drops when it is left (J5)."""
        self._failed: set[object] = set()
        """Entries of the list whose `undo` has raised once (J6)."""
        self._exclusive = exclusive
        self._shared: list[Any] = []
        """The mutexes of J7 that all threads share, the innermost first: each as its test, which is quick to call."""
        self.share(exclusive, 0)
        self._of_queues = of_queues
        self._here = _Here()
        self._may_hang = False
        """Whether any thread has ever announced calls that may last for ever."""

    def begin(self, env: Environment, task: Callable[[], Any] | None = None, *, finish: bool = True) -> Operation:
        """A new operation of the calling function, or of the `task` (a weak reference). `end` or `del` ends it.

        `finish`: first undo what was broken off; not while the caller has a mutex, as undoing takes others.
        """
        if under_way:
            notice_fork()
        outer = None
        gave: Any = ()
        try:
            if task is None and finish and self.is_inside():
                gave = []
                self.give_way(gave)
            if self.running:
                outer = self.current()
                if finish and (outer is None or len(self.running) > 1 or not self._is_alive(outer)):
                    self.finish_broken_off()
                    outer = self.current()
            operation = Operation(env, sys._getframe(1) if task is None else None, outer, gave)
            if task is not None:
                operation.task = task
            self.running[operation.number] = operation
            self._here.current = operation
            return operation
        except BaseException:
            self.take_back(gave)  # what was broken off cannot be undone (J6), or Ctrl-C
            raise

    def perform(
        self,
        env: Environment,
        call: Callable[[Operation], T],
        task: Callable[[], Any] | None = None,
        *,
        finish: bool = True,
    ) -> T:
        """The result of the call, as one operation: whatever interrupts it, nothing that it made is left."""
        operation = self.begin(env, task, finish=finish)
        try:
            result = call(operation)
        except BaseException:
            self.abort(operation)
            raise
        self.end(operation)  # not `abort`, which looks at every hold
        return result

    def resume(self, operation: Operation | None) -> None:
        """Take the next steps of this thread for steps of that operation; None: of whatever comes (J8)."""
        self._here.current = operation

    def leave_tasks(self) -> None:
        """Note that the tasks of this thread sleep next: its steps meanwhile belong to the operation that runs their
        loop, if there is one, or to the one in whose midst an eager task has begun (J8)."""
        one = self.current()
        while one is not None and one.task is not None and not one.is_in_step():
            one = one.outer
        self._here.current = one

    def resume_within(self, operation: Operation, call: Callable[[], T]) -> T:
        """The result of the call, whose steps belong to that operation. If the collector has come in the midst of
        another operation, the thread then goes on with that one (J8)."""
        another = self.current() if self._is_in_another(operation) else None
        try:
            self.resume(operation)
            return call()
        finally:
            if another is not None:
                self.resume(another)

    def end(self, operation: Operation) -> None:
        """End an operation that has nothing left to be undone."""
        self.about_to_deliver(operation)
        self.running.pop(operation.number, None)
        operation.frame = None

    def about_to_deliver(self, operation: Operation) -> None:
        """Prepare for the caller, which takes it off the list next, by `del`, and returns (J2)."""
        if self._here.current is operation or not self._is_in_another(operation):
            self._here.current = operation.outer
        if operation.gave:
            self.take_back(operation.gave)

    def _is_in_another(self, operation: Operation) -> bool:
        """Whether this thread is in the midst of an operation that is neither `operation` nor a part of it (J8)."""
        one = current = self.current()
        while one is not None and one is not operation:
            one = one.outer
        return one is None and current is not None

    def forget_mutexes(self) -> None:
        """Forget those that a forked child makes anew. A thread that is not here may have one, and this one may have
        to take it back."""
        for mutex in self._all_mutexes()[1:]:
            if not _is_mine(mutex):
                _free(mutex)
        del self._shared[1:]

    def is_inside(self) -> bool:
        """Whether this thread is in the midst of a mutex for which others may wait (J7)."""
        for is_mine in self._shared:
            if is_mine():
                return True
        # A thread is in the midst of a local queue's mutex only while something of it is on the list.
        return bool(self.running) and any(map(_is_mine, self._of_queues()))

    def give_way(self, gave: list[Any]) -> None:
        """Let other threads have the mutexes that this one is in the midst of (J7)."""
        for mutex in self._all_mutexes():
            if _is_mine(mutex):
                for _ in map(gave.append, zip((_take(mutex),), map(_give, (mutex,)), strict=False)):
                    pass

    def _all_mutexes(self) -> list[Any]:
        return [*(is_mine.__self__ for is_mine in self._shared), *self._of_queues()]

    def share(self, mutex: Any, place: int) -> None:
        """Enter a mutex of J7 that all threads share, at this place in their order."""
        self._shared.insert(place, getattr(mutex, "_is_owned"))  # noqa: B009 - of the standard library

    def take_back(self, gave: list[Any]) -> None:
        """Take back what `give_way` gave. May be broken off anywhere, and begun anew: the first time, by itself."""
        try:
            self._take_all(gave)
        finally:
            self._take_all(gave)

    def _take_all(self, gave: list[Any]) -> None:
        while gave:
            for _ in itertools.starmap(call, map(gave.pop, (-1,))):
                pass

    def giving_way(self, call: Callable[[], T]) -> T:
        """The result of the call, during which other threads may have the mutexes of this one (J7)."""
        gave: list[Any] = []
        try:
            self.give_way(gave)
            return call()
        finally:
            self.take_back(gave)

    def about_to_hang(self, may_hang: bool = True) -> None:
        """Announce that system calls of this thread may last for ever from here on: no other is to wait for them."""
        self._may_hang = self._may_hang or may_hang
        self._here.may_hang = may_hang

    def exclusive(self) -> Any:
        """A context for a call that no fork may come between: `opening`, unless the call may last for ever. A thread
        that has `forking` is safe already, and does not wait for `opening` (fork.py)."""
        if self._may_hang and self._here.may_hang:
            return MayHang()
        return forking if has_forking() else self._exclusive

    def number(self) -> int:
        """The number of the current operation; 0 if there is none."""
        current = self._here.current
        return current.number if current is not None and current.number in self.running else 0

    def current(self) -> Operation | None:
        """The operation that this thread is in, if any."""
        current = self._here.current
        return current if current is None or current.number in self.running else None

    def about_to_make(self, path: str) -> None:
        """Announce a new file of the current operation, whose name nobody else uses: it may be removed at any time."""
        current = self.current()
        if current is not None:
            current.temporary = (*current.temporary, path)

    def leave_to(self, operation: Operation, thread: Callable[[], Any]) -> None:
        """Leave it to a thread to `undo` and `end` the operation; `thread()` has a method `done`, as a task has."""
        operation.task = operation.left_to = thread

    def abort(self, operation: Operation) -> None:
        """Undo the operation and end it, unless it was left to a thread."""
        if operation.left_to is not None:
            self.about_to_deliver(operation)
            if operation.left_to().done():
                self.running.pop(operation.number, None)
            return
        self.running[operation.number] = operation
        try:
            self.resume_within(operation, lambda: self.giving_way(operation.undo))
        except BaseException:
            if operation.gave:
                self.take_back(operation.gave)  # it does not end: the next operation tries again (J6)
            raise
        self.end(operation)

    def finish_broken_off(self) -> None:
        """Undo what was broken off (J4). When all were tried, raise the first error of those that cannot be undone
        (J6)."""
        self._finish_broken_off(sys._getframe())  # in a variable of its own, it would be a cycle

    def _finish_broken_off(self, mine: FrameType) -> None:
        errors: list[Exception] = []
        for number, left in self.running.copy().items():
            if self._is_alive(left):
                continue  # most of them, without the mutex: a thousand threads would wait for it, each for each
            with self._exclusive:
                frame = left.frame
                # In this order: one that is delivered leaves the list first, and then looks like one that has ended.
                if self._is_alive(left) or self.running.get(number) is not left:
                    continue
                if left.frame is not frame:
                    continue  # finalizers have run, and let another thread begin with it (J7)
                left.frame = mine  # no other thread begins with it while we run
            current = self.current()
            if isinstance(left, Operation):
                self._here.current = left
            try:
                left.undo()
            except Exception as error:
                errors.append(error)
                if number not in self._failed:
                    self._failed.add(number)
                    left.frame = None
                    continue
            finally:
                self._here.current = current
            self._failed.discard(number)
            self.running.pop(number, None)
            left.frame = None
        if errors:
            raise errors.pop(0)

    def leave_dropped(self) -> None:
        """Release the holds of `with` statements that have been left without doing so (J5)."""
        for ref, statement in self.entered.copy().items():
            if statement() is None:
                ref.held.drop(ref)
                self.entered.pop(ref, None)

    def forked(self) -> None:
        """Forget all operations that this thread is not in: in a forked child, no other thread runs."""
        mine: set[object] = set()
        one: Any = self.current()
        while one is not None:
            mine.add(one.number)
            one = one.outer
        for number in self.running.copy():
            if number not in mine:
                self.running.pop(number, None)
        self._failed.clear()
        self.entered.clear()

    def _is_alive(self, left: Unfinished | None) -> bool:
        while left is not None:
            if left.frame is not None and is_running(left.frame):
                return True
            if isinstance(left, Operation):
                task = None if left.task is None else left.task()
                if task is not None and not task.done():
                    return True
            left = left.outer
            if isinstance(left, Operation) and left.number not in self.running:
                return False
        return False


def is_running(frame: FrameType) -> bool:
    """Whether the function has not ended yet. If it has, its variables are cleared: they are no longer used."""
    try:
        frame.clear()
    except RuntimeError:
        return True
    return False


def let_go(env: Environment, fd: int) -> None:
    """Drop the guard and close. Errors are ignored: the caller has a reason of its own to report."""
    if env.is_open(fd):
        for step in (env.unguard, env.close):
            try:
                step(fd)
            except OSError:
                pass


def unlink_quietly(env: Environment, path: str) -> None:
    try:
        env.unlink(path)
    except OSError:
        pass  # gone already, or another's in a sticky directory


def sweep_when_due(env: Environment, directory: str) -> None:
    """`sweep`, at most once a minute: the directory may hold thousands of locks. Nothing where it may not be listed."""
    now = env.monotonic()
    if now >= env.swept.get(directory, now):
        env.swept[directory] = now + _SWEPT_LASTS
        try:
            sweep(env, directory)
        except OSError:
            pass  # leftovers block no process; what is wrong with the directory shows in the next step


def sweep(env: Environment, directory: str) -> None:
    """Remove the temporary names that dead processes of this machine and PID namespace left in the directory.

    Only files: a user who gives such a name to a file may also remove it (docs/security.md).
    """
    who = env.identity()
    if "-" in (who.boot, who.pid_namespace):
        return  # their owners cannot be identified
    prefix = temporary_prefix(who)
    for name in env.list_directory(directory):
        if name.startswith(prefix) and name.endswith(".tmp"):
            pid = name[len(prefix) :].partition("-")[0]
            if pid.isdecimal() and env.inspect(int(pid)).has_ended:
                try:
                    if stat.S_ISREG(env.stat(f"{directory}/{name}").st_mode):
                        env.unlink(f"{directory}/{name}")
                except OSError:
                    pass  # another sweeper was faster, or it is not ours to remove
