"""Steps that may last forever: on a filesystem whose server, or whose process, may not answer.

A call to such a server waits inside the kernel, and no signal that Python handles ends that. So each step of an engine
runs there in a thread of its own, which can be left behind, and the caller waits for the thread with a deadline.

AP1  Whether a path leads to such a mount is known from the table of mounts, and from symbolic links outside of it
     (`procfs.mount_on_the_way`): without a call that the server has to answer. Elsewhere a `Lock` does not load
     this module.
AP2  Either the step ends, or its caller gives up waiting for it: one atomic claim decides which comes first. A step
     that was given up undoes its whole operation when it ends, whatever that has acquired by then. From the moment when
     the caller gives up, nobody else resumes, closes or undoes that operation.
AP3  The caller gives up `GRACE` after its own deadline, so that an engine whose server answers has its say first; a
     look, or a single try, has `ANSWER` seconds. A caller that waits without limit waits for the server as well. An
     exception (Ctrl-C, a cancellation) ends the wait; the caller then waits `GRACE` seconds for the operation to be
     undone.
AP4  No other thread waits for a call that may hang: descriptors are opened and closed there without `forking`
     (descriptors.py). A forked child has none of these threads: there the wait ends with an error, and what the parent
     has begun is left alone.
AP5  The threads are daemons, so a process does not wait for them at its end, or only until `GRACE` after they were left
     behind. If `MOST_LEFT` of them are left behind at one server, no further acquisition or look begins a step: it
     waits until one has ended, or until it gives up.
AP6  A look at many files (`ls`, `clean`, `doctor`) may rightly take long. So its caller gives up when the thread has
     used no processor time for `ANSWER` seconds: then the thread is inside one call, which waits for the server.
     Nothing is printed in such a thread, because a reader that pauses would be taken for the server.
AP7  Where steps fail while the server is away, the thread of a release repeats it until the lease is over: its caller
     waits, and is interrupted, as where the steps themselves wait.
AP8  Where a client does not reconnect (9p), a process with a thread inside a call cannot end, not even by a signal,
     until the kernel gives the connection up, after a minute or so. So a command has a child process ask each such
     server first. Without an answer, the command ends without a call of its own.
AP9  The notice of a long wait (`lock.announce`) says after a second that the server does not answer. A look at a hold
     has no notice, as its caller does not wait for the lock.
"""

from __future__ import annotations

import _thread
import atexit
import os
import time

from .._core.options import Request
from .._core.wait import Deadline, Steps
from .._platform import environment
from .._platform.fork import forking, in_child
from .._platform.operations import Operation, partial
from ..errors import EngineUnavailable, HoldfastError
from ..events import report
from ..model import INFINITY
from .background import start
from .sync import LOOK_EVERY, Cancellation, wait_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    from .._core.attempt import Refusal
    from .._core.hold import HoldState
    from .._platform.interface import Environment

    T = TypeVar("T")

GRACE = 0.5
"""Seconds that a server gets beyond the deadline of a caller (AP3)."""
ANSWER = 5.0
"""Seconds in which a server has to answer a call that does not wait for a lock (AP3)."""
MOST_LEFT = 4
_CROWDED_POLL = 0.05
_AT_EXIT_POLL = 0.01
_AWAY_POLL = 0.5
_FIRST_POLL, _LONGEST_POLL = 0.002, 0.1
_MOST_INHERITED = 256
_LONGEST = 1.0
"""Seconds of one wait for a thread: a signal that comes just before a wait begins is noticed after it."""
_PULSE = 0.25
_BATCH = 0.1
"""Seconds: items that come within them are handed over together."""

_going: dict[Step, None] = {}
_left: dict[str, dict[object, float]] = {}
"""Calls left behind and not ended yet, by server, with the time when each was left (AP5)."""
_answered: set[str] = set()
"""The servers that have answered a child process (AP8)."""


def _in_child() -> None:
    """Orphan the parent's steps (AP4)."""
    _left.clear()
    for step in _going.copy():
        step.orphan()
        _going.pop(step, None)


def _at_exit() -> None:
    """Wait for each call that was left behind, until `GRACE` after that (AP5)."""
    for behind in list(_left.values()):
        for one, since in behind.copy().items():
            while one in behind and time.monotonic() < since + GRACE:
                time.sleep(_AT_EXIT_POLL)


in_child(_in_child)
atexit.register(_at_exit)


class Step:
    """One call in a thread of its own."""

    def __init__(self, apart: Apart, call: Callable[[], Any]) -> None:
        import contextvars

        self._apart = apart
        self._call = call
        self._context = contextvars.copy_context()
        self._claims: dict[str, str] = {}
        """The winners of the claims, the thread or its caller: to `begin` the step, to `end` the wait for it (AP2)."""
        self._undo: Callable[[], object] | None = None
        self._gate = _thread.allocate_lock()
        self._gate.acquire()
        self._clock: int | None = None
        """The clock of its thread's processor time."""
        self._result: Any = None
        self._error: BaseException | None = None
        self._ended = False
        self.began = time.monotonic()
        self.is_orphan = False
        """Whether its thread is the parent's, and this process a forked child."""

    def begin(self) -> None:
        with forking:
            import threading
        try:
            start(threading.Thread(target=self._run, name="holdfast-apart", daemon=True))
        except RuntimeError:  # no thread can be started, or not of this kind (a subinterpreter): better late than never
            self._run()
            self._apart.env.operations.about_to_hang(False)

    def wait(self, until: float) -> bool:
        """Whether it has ended by then, and has undone what it was left to undo."""
        while not self._ended:
            if self._gate.acquire(timeout=max(0.0, min(until - time.monotonic(), _LONGEST))):
                self._gate.release()
            elif time.monotonic() >= until:
                return self._ended
        return True

    def wait_while_it_runs(self, meanwhile: Callable[[], object]) -> bool:
        """Whether it has ended: False if it is stuck in one call (AP6). If that cannot be seen, wait for the end."""
        used, until = -1.0, 0.0
        while not self._ended:
            now, spent = time.monotonic(), self._spent()
            if spent != used:
                used, until = spent, now + ANSWER
            elif now >= until:
                return self._ended
            self.wait(now + _PULSE)
            meanwhile()
        return True

    def _spent(self) -> float:
        """The processor time that its thread has used; without such a clock, monotonic time: it seems to run."""
        if self._clock is None:
            return 0.0 if hasattr(time, "pthread_getcpuclockid") else time.monotonic()
        try:
            return time.clock_gettime(self._clock)
        except OSError:
            return time.monotonic()  # it has just ended

    def done(self) -> bool:
        return self._ended

    def outcome(self) -> Any:
        """The result of the call, or its exception, raised."""
        if self.is_orphan:
            raise RuntimeError(
                f"the process was forked while it waited for {self._apart.request.target}; acquire again in the child"
            )
        if self._error is not None:
            raise self._error
        return self._result

    def leave(self, undo: Callable[[], object]) -> bool:
        """Give up waiting: the thread then calls `undo` when the call has ended. False if it will not, because the call
        has ended or never begun (AP2)."""
        if self._claims.setdefault("begin", "caller") == "caller":
            return False
        self._undo = undo
        return self._claims.setdefault("end", "caller") == "caller"

    def orphan(self) -> None:
        self.is_orphan = self._ended = True
        if self._gate.locked():
            self._gate.release()

    def _run(self) -> None:
        if self._claims.setdefault("begin", "thread") != "thread":
            return
        _going[self] = None
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(_thread.get_ident())
        self._apart.env.operations.about_to_hang()
        try:
            self._result = self._context.run(self._call)
        except BaseException as error:
            self._error = error
        try:
            if self._claims.setdefault("end", "thread") != "thread" and self._undo is not None:
                self._undo()
        except Exception as error:
            report(f"while giving back {self._apart.request.target}, whose server has answered late", error)
        finally:
            _going.pop(self, None)
            self._apart.has_come_back(self)
            self._ended = True
            self._gate.release()


class Apart:
    """A caller's limits for calls that may have to wait for a server: how long it waits, and its error then."""

    def __init__(
        self,
        env: Environment,
        request: Request,
        timeout: float | None,
        *,
        acquires: bool = False,
        cancel: Cancellation | None = None,
        unannounced: bool = False,
    ) -> None:
        self.env = env
        self.request = request
        self._cancel = cancel
        self._timeout = timeout
        self._acquires = acquires and bool(timeout)
        self._unannounced = unannounced
        self.until = INFINITY
        if timeout is not None:
            self.until = time.monotonic() + (timeout + GRACE if timeout else ANSWER)
        self._server: str | None = None

    @property
    def server(self) -> str:
        if self._server is None:
            self._server = self.env.server_at(self.request.path)
        return self._server

    def perform(self, steps: Steps[T]) -> T:
        """Run the steps like `sync.perform`."""
        return self.env.operations.perform(self.env, lambda operation: self.drive(steps, operation))

    def drive(self, steps: Steps[T], operation: Operation) -> T:
        """Run the steps like `sync.drive`. Before it raises, the operation is undone, or left to be undone."""
        self._ask_first()
        steps = as_part_of(operation, steps)
        at: list[Step] = []
        wait = wait_for if self._cancel is None else self._cancel.wait_for
        try:
            self._check()
            while True:
                while self.is_crowded(time.monotonic()):
                    time.sleep(_CROWDED_POLL)
                    self._check()
                at[:] = (Step(self, lambda: next(steps)),)
                at[0].begin()
                if not self._has_ended(at[0]):
                    raise self.no_answer(time.monotonic() - at[0].began)
                wait(at[0].outcome())
        except StopIteration as done:
            result: T = done.value
            return result
        except BaseException:
            try:
                self._undo(steps, operation, at)
            except BaseException:
                self._undo(steps, operation, at)  # again: that may be what was interrupted
                raise
            raise

    def _ask_first(self) -> None:
        """Have a child process ask the server first, where the system needs that (AP8)."""
        env, began = self.env, time.monotonic()
        if env.asks_first and not env.reconnects(self.request.path) and self.server not in _answered:
            if not _answers(os.path.dirname(self.request.path), self.until, partial(self._tell, self._notice(), began)):
                raise self.no_answer(time.monotonic() - began)
            _answered.add(self.server)

    def _check(self) -> None:
        if self._cancel is not None:
            self._cancel.check()

    def _has_ended(self, step: Step) -> bool:
        """Whether the step ends in time. A cancellation is an exception (AP3), noticed within `LOOK_EVERY`."""
        notice = self._notice()
        while True:
            look_at = INFINITY if self._cancel is None else time.monotonic() + LOOK_EVERY
            until = notice.bounded(min(self.until, look_at))
            if step.wait(until):
                return True
            if time.monotonic() >= self.until:
                return False
            self._tell(notice, step.began)
            self._check()

    def _notice(self) -> Deadline:
        return Deadline(self.env, self.request, None, unannounced=self._unannounced)

    def _tell(self, notice: Deadline, since: float) -> None:
        """Call the notice, if it is due (AP9)."""
        notice.announce(partial(self._unanswered, since))

    def _unanswered(self, since: float) -> Refusal:
        with forking:
            from .._core.attempt import AttemptEvents, Refusal
            from .._core.messages import is_silent, unasked
        seconds = time.monotonic() - since
        status = unasked(self.request, is_silent(self.server, seconds))
        return Refusal(self.request.target, seconds, lambda: (status,), AttemptEvents(self.env, self.request, ()))

    def _undo(self, steps: Steps[Any], operation: Operation, at: list[Step]) -> None:
        """Have the operation undone, in the thread of its last step or in another one (AP2)."""
        if at and at[0].is_orphan:
            return
        operations = self.env.operations

        def clean_up() -> None:
            try:
                steps.close()
            finally:
                operation.undo()
                operations.end(operation)

        operations.leave_to(operation, lambda: at[0])
        if not at or not at[0].leave(clean_up):
            at[:] = (Step(self, clean_up),)
            at[0].begin()
        now = time.monotonic()
        if not at[0].wait(now + (GRACE if now < self.until else 0.0)):
            self.leave_behind(at[0])

    def call(self, function: Callable[[], T], *, meanwhile: Callable[[], object] | None = None) -> T:
        """The function's result, or its exception, raised. Nothing of it is undone: once begun, it runs to its end.

        With `meanwhile`, which is called from time to time, it may take as long as it runs (AP6).
        """
        self._ask_first()
        step = Step(self, function)
        try:
            step.begin()
            if not (self._has_ended(step) if meanwhile is None else step.wait_while_it_runs(meanwhile)):
                raise self.no_answer(time.monotonic() - step.began)
            result: T = step.outcome()
            return result
        except BaseException:
            now = time.monotonic()
            if step.leave(bool) and not step.wait(now + (GRACE if now < self.until else 0.0)):
                self.leave_behind(step)
            raise

    def each(self, items: Iterator[T], *, meanwhile: Callable[[], object] = bool, batch: float = _BATCH) -> Iterator[T]:
        """The items, made in threads (AP6). `batch=0`: none is made before the previous one is dealt with."""
        ended = False
        while not ended:
            found: list[T] = []
            try:
                ended = self.call(partial(_add_some, items, found, batch), meanwhile=meanwhile)
            except EngineUnavailable:
                yield from found.copy()
                raise
            yield from found

    def is_crowded(self, now: float) -> bool:
        """Whether too many calls are left behind here to begin another; raises when the time is up (AP5)."""
        if not _left:
            return False
        behind = _left.get(self.server, {})
        if len(behind) < MOST_LEFT:
            return False
        if now >= self.until:
            raise self.no_answer(now - min(behind.values(), default=now))
        return True

    def is_silent(self) -> bool:
        """Whether the server is known not to answer: a call is left behind there."""
        return bool(_left) and self.server in _left

    def leave_behind(self, one: Any) -> None:
        """Note that a call has not ended and that nobody waits for it."""
        behind = _left.setdefault(self.server, {})
        behind[one] = time.monotonic()
        if one.done():
            self.has_come_back(one)

    def has_come_back(self, one: Any) -> None:
        for server, behind in _left.copy().items():
            behind.pop(one, None)
            if not behind:
                _left.pop(server, None)

    def no_answer(self, seconds: float) -> HoldfastError:
        """The error for a caller that has waited in vain; `seconds`: how long it has waited for this answer."""
        with forking:
            from .._core.messages import no_answer
        return no_answer(self.request, self.server, self._timeout, seconds, acquires=self._acquires)


def _answers(directory: str, until: float, meanwhile: Callable[[], object] = bool) -> bool:
    """Whether the server of the directory answers a child process by `until` (AP8). Calls `meanwhile` now and then."""
    parent = os.getpid()
    try:
        child = os.fork()
        if child == 0:
            os.closerange(0, _MOST_INHERITED)  # it may stay for long: nobody is to wait for its end of a pipe
            os.stat(directory)
    except OSError:
        return True  # nobody can ask first
    finally:
        if os.getpid() != parent:
            os._exit(0)  # also where a Ctrl-C has come between
    pause = _FIRST_POLL
    try:
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            left = until - time.monotonic()
            if left <= 0:
                return False
            meanwhile()
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_POLL)
    except ChildProcessError:
        pass  # it has ended, and SIGCHLD is ignored
    return True


def _add_some(items: Iterator[T], found: list[T], seconds: float) -> bool:
    """Add the items that come within this time, at least one. Whether there are no more."""
    until = time.monotonic() + seconds
    for item in items:
        found.append(item)
        if time.monotonic() >= until:
            return False
    return True


def at_place(env: Environment, place: str, timeout: float | None = 0.0) -> Apart | None:
    """The `Apart` by which a look at a file or directory can give up waiting for a server; None if it has none."""
    path = f"{place}/."
    if not env.may_block(path):
        return None
    request = Request("", place, path, {})
    request.target = place
    return Apart(env, request, timeout)


def seen_at(
    place: str, look: Callable[[], T], timeout: float | None = 0.0, *, meanwhile: Callable[[], object] | None = None
) -> T:
    """The result of a look at a file or directory. EngineUnavailable if its server does not answer for five seconds, or
    for that timeout, if it is not 0. The look prints nothing (AP6)."""
    apart = at_place(environment(), os.path.abspath(place).replace(os.sep, "/"), timeout)
    return look() if apart is None else apart.call(look, meanwhile=meanwhile)


def read_at(place: str, call: Callable[[], T]) -> T:
    """Like `seen_at`, the result of a call that may rightly take long (AP6)."""
    return seen_at(place, call, meanwhile=bool)


def look(held: HoldState, check: Callable[[], object]) -> None:
    """Look at a hold, whose server must answer within `ANSWER`; a lease is judged by the clock alone."""
    if held.lease is not None:
        check()
        return
    apart = Apart(held.env, held.request, 0.0, unannounced=True)  # AP9
    while apart.is_crowded(time.monotonic()):
        time.sleep(_CROWDED_POLL)
    apart.call(check)


def apart_of(held: HoldState) -> Apart | None:
    """The `Apart` of a release; None if the release needs none. With a lease it waits until that is over, as the lock
    is lost then."""
    if held.waits or held.inert or not held.env.may_block(held.path):
        return None
    apart = Apart(held.env, held.request, None)
    if held.lease is not None:
        apart.until = time.monotonic() + max(0.0, held.lease.left()) + GRACE
    return apart


def until_it_is_back(held: HoldState, release_here: Callable[[], object]) -> None:
    """Repeat the release while its server is away (AP7)."""
    while True:
        try:
            release_here()
            return
        except OSError as error:
            if held.released or not held.is_waiting_for(error):
                raise
        time.sleep(_AWAY_POLL)


def release(held: HoldState, release_here: Callable[[], object]) -> None:
    """Release a hold in a thread, which runs to its end whatever interrupts the caller."""
    apart = apart_of(held)
    if apart is None:
        release_here()
        return
    begun: list[bool] = []

    def release_there() -> None:
        begun.append(True)
        release_here()

    try:
        apart.call(release_there)
    except EngineUnavailable:
        raise held.lost_error() from None  # its lease is over
    finally:
        if not begun:
            Step(apart, release_here).begin()  # Ctrl-C came first


def as_part_of(operation: Operation, steps: Steps[T]) -> Steps[T]:
    """The steps, each of which belongs to the operation, in whatever thread it runs."""
    resume = operation.env.operations.resume
    try:
        while True:
            resume(operation)
            yield next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        resume(operation)
        steps.close()
