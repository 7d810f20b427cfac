"""The events of this process's locks, and the listeners to which they are reported.

    waiting ──▶ gave-up                     refused, timed out, cancelled, interrupted
       │    ──▶ joined                      the same owner has got the lock meanwhile by another call
       ▼
    [reclaimed] ──▶ acquired ──▶ [lost] ──▶ released

The events of each acquisition come in this order, each at most once, even if several threads take part in it;
`_core/attempt.py` ensures that. This module has the event itself, the listeners, and the log.

U1  A callback that raises is logged, and breaks neither the lock nor another callback. Anything but an `Exception`
    (Ctrl-C) is raised again in the caller, once all callbacks have run.
U2  A callback does not hear of its own actions: one that uses locks would be called forever. Its frame says whether it
    still runs, as a note of it may outlive an interruption.
U3  Unless logging is set up, nothing is imported for it; and nothing is written to a logger without a handler.
U4  The same goes for a log handler: what it does with locks is not logged. It would wait for its own lock, or write
    lines about lines forever, also by way of a `QueueListener`. An error with no other way out goes to the standard
    error of the process then, like the errors of a handler.
"""

from __future__ import annotations

import _thread
import sys

from ._platform.operations import is_running, partial
from .model import Holder, Record, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any, Literal

    Kind = Literal["waiting", "joined", "gave-up", "reclaimed", "acquired", "lost", "released"]

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""The levels of `logging`, which is not imported for this."""
_LEVELS = {"reclaimed": WARNING, "lost": ERROR}
_ASYNCHRONOUS = 0x80 | 0x200
"""`inspect.CO_COROUTINE` and `CO_ASYNC_GENERATOR`, the flags of an `async def`."""


class Event(Value):
    """Something that happened to a lock of this process. Frozen; equal by its fields.

    - `kind`: `"waiting"`: the lock is not free, and the caller begins to wait. `"acquired"`: it holds the lock.
      `"gave-up"`: it does not, for whatever reason: a timeout, a failed try, a cancellation, an error. `"joined"`: it
      waited, and now shares the hold that its `owner` has got meanwhile. `"reclaimed"`: the lock was that of a dead or
      stale holder; comes before `acquired`. `"lost"`: the lock file was found removed, replaced or written over; or
      the lease is over, or the server has ended the hold. `"released"`: the hold has ended.
    - `time`: when it happened, in seconds since the epoch.
    - `path`: the absolute path that the lock was made with; for a semaphore its base.
    - `protocol`, `tag`: as the lock was made.
    - `pid`: that of this process.
    - `number`: the same in all events of one acquisition. Unique in a process; a forked child goes on counting.
    - `context`: the name of the acquiring task, or of the thread if there is none; in all events of an acquisition.
    - `slot`: the number of the slot, once a semaphore is held. None for a lock.
    - `waited`: how many seconds the caller has waited so far, or waited in all; 0 if the lock was free. None if that is
      unknown, because the hold is older than the listener.
    - `held`: how many seconds the lock has been held, in `lost` and `released`. None before that.
    - `holder`: in `waiting` and `gave-up`, the holder when the wait began or ended, as far as the lock file tells.
      Always None with `flock` and `ofd`: finding out takes milliseconds (ask `Lock.status`).
    - `recovered_from`: the record of the holder that was replaced, from `reclaimed` on. None after an ordinary
      acquisition.
    """

    kind: Kind
    time: float
    path: str
    protocol: str
    pid: int
    number: int
    context: str
    tag: str | None = None
    slot: int | None = None
    waited: float | None = None
    held: float | None = None
    holder: Holder | None = None
    recovered_from: Record | None = None


listeners: dict[object, Callable[[Event], object]] = {}
"""The callbacks for all locks of this process. Changed in steps that threads and signal handlers cannot interrupt."""

_local = _thread._local()
_logger: logging.Logger | None = None
_handle: CodeType | None = None
"""The code of `logging.Handler.handle`, by which frames of a handler are recognised; None if it is unknown."""


def listen(callback: Callable[[Event], object]) -> Callable[[], None]:
    """Call `callback` with each `Event` of every lock of this process, from now on. Returns a function that ends that.

    It runs where the event happens: in the thread or on the event loop that acquires or releases, or, for a loss, in a
    background thread. Only that caller waits until it returns. It may use locks itself. Its exceptions are logged. A
    forked child has the same listeners, which report what the child does, not what its parent holds.

    Ending it twice is harmless. It does not wait for a call that has begun in another thread.

    Raises TypeError for anything that cannot be called, and for an `async def`, which would never be awaited.
    """
    check_callback("callback", callback)
    key = object()
    listeners[key] = callback

    def end() -> None:
        listeners.pop(key, None)

    return end


def check_callback(name: str, callback: object, takes: str = "a holdfast.events.Event") -> None:
    """Raise TypeError, which uses the name, for anything that cannot be a callback."""
    if not callable(callback):
        raise TypeError(f"{name} must be a callable that takes {takes}, not {callback!r}")
    if is_async(callback):
        raise TypeError(f"{name} is an `async def`, which would never be awaited; have a function start a task")


def is_async(callback: Callable[..., object]) -> bool:
    """Whether it is an `async def`, as far as can be seen without a call; also of a `partial`, or as a `__call__`."""
    called: Any = callback.func if isinstance(callback, partial) else callback
    code = getattr(called, "__code__", None) or getattr(type(called).__call__, "__code__", None)
    return bool(getattr(code, "co_flags", 0) & _ASYNCHRONOUS)


def has_listener(kind: Kind, own: Callable[[Event], object] | None) -> bool:
    """Whether an event of this kind has a listener; `own` is the lock's callback."""
    return own is not None or bool(listeners) or _set_up_logger(_LEVELS.get(kind, DEBUG)) is not None


def has_any_listener(own: Callable[[Event], object] | None) -> bool:
    """Whether any event has a listener; `own` is the lock's callback."""
    return own is not None or bool(listeners) or _is_logged(DEBUG)


def deliver(event: Event, own: Callable[[Event], object] | None) -> None:
    """Call all listeners (U1, U2)."""
    global _local
    if type(_local) is not _thread._local:
        _local = _thread._local()  # gevent has made greenlets of threads since this was imported
    try:
        running: list[tuple[Callable[[Event], object], FrameType]] = _local.running
        running[:] = [one for one in running if is_running(one[1])]
    except AttributeError:
        running = _local.running = []
    deaf = [callback for callback, _ in running]
    frame = sys._getframe()
    interruption: BaseException | None = None
    for callback in (own, *listeners.copy().values(), _log):
        if callback is None or callback in deaf:
            continue
        running.append((callback, frame))
        try:
            callback(event)
        except Exception as error:
            _log_failure(callback, event, error)
        except BaseException as error:
            interruption = interruption or error
        finally:
            running.pop()
    del frame  # break the cycle: it refers to itself
    if interruption is not None:
        raise interruption


def _find_logger(level: int) -> bool:
    """`_is_logged`, as long as logging is not imported."""
    global _logger, _is_logged, _handle
    if "logging" not in sys.modules:
        return False
    get_logger = getattr(sys.modules["logging"], "getLogger", None)
    if get_logger is None:
        return False  # it is being imported
    _handle = getattr(sys.modules["logging"].Handler.handle, "__code__", None)  # wrapped or compiled, it may have none
    _logger = get_logger("holdfast")
    _is_logged = _logger.isEnabledFor
    return _is_logged(level)


_is_logged: Callable[[int], bool] = _find_logger
"""Whether the logger is enabled for that level. It becomes the logger's own method."""


def logger_for(level: int) -> logging.Logger | None:
    """The logger, if logging is set up and enabled for that level (U3), and no log handler is calling (U4)."""
    logger = _set_up_logger(level)
    return None if logger is None or _is_in_handler() else logger


def _is_in_handler() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _handle:
        frame = frame.f_back
    return frame is not None


def _set_up_logger(level: int) -> logging.Logger | None:
    return _logger if _is_logged(level) and _logger is not None and _logger.hasHandlers() else None


def fields(event: Event) -> dict[str, Any]:
    """The event for `extra=` of a log record: each field, with its name prefixed by `holdfast_`."""
    return {f"holdfast_{name}": getattr(event, name) for name in Event._fields}


def encodable(text: str) -> str:
    """The text for exporters, which encode it: bytes of a path that are not UTF-8 become `\\udcff` and so on."""
    return text.encode("utf-8", "backslashreplace").decode()


def name_of(context: tuple[object, ...]) -> str:
    """The name of a caller: of its task, whose weak reference ends the tuple (asyncio.caller), or of its thread."""
    task: Any = context[-1]() if len(context) > 1 and callable(context[-1]) else None
    name: str | None = getattr(context[0] if context else None, "name", None) if task is None else task.get_name()
    if name is None:
        import threading

        name = threading.current_thread().name
    return name


def _log(event: Event) -> None:
    level = _LEVELS.get(event.kind, DEBUG)
    logger = logger_for(level)
    if logger is not None:
        logger.log(level, "%s", _line(event), extra=fields(event))


def _line(event: Event) -> str:
    """The event for people, on one line whatever its path and context contain."""
    words = [f"{event.kind} {event.path!r}"]
    if event.slot is not None:
        words.append(f"slot {event.slot}")
    if event.recovered_from is not None and event.kind == "reclaimed":
        words.append(f"from process {event.recovered_from.pid}")
    if event.holder is not None and event.holder.pid is not None:
        words.append(f"held by process {event.holder.pid}")
    if event.held is not None:
        words.append(f"after {event.held:.6f} s")
    elif event.waited:
        words.append(f"after {event.waited:.6f} s of waiting")
    context = event.context if event.context.isprintable() else repr(event.context)
    return f"{' '.join(words)} ({context}, {event.number})"


_tell: Callable[[str], object] | None = None


def report_to(tell: Callable[[str], object] | None) -> None:
    """Pass refusals of the system that no caller hears of to `tell`, and not to the log; None: log them again."""
    global _tell
    _tell = tell


def is_refusal(error: Exception) -> bool:
    """Whether the system has refused something: no defect of ours or of the caller's code."""
    return isinstance(error, OSError) or _is_shortage(error)


def _is_shortage(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "can't start new thread" in str(error)


def report(what: str, error: Exception) -> None:
    """Log, or tell, an error that has no caller to be raised in."""
    if _tell is not None and is_refusal(error):
        _tell(f"{what}: {error}")
        return
    # A shortage has no place in the code; an OSError may be a callback's, whose place is worth knowing.
    note(ERROR, f"{what}: {error}", None if _is_shortage(error) else error)


def note(level: int, text: str, error: Exception | None = None) -> None:
    """Log an event or error that has no caller, even if logging is not set up; in a log handler, print it (U4).

    It raises nothing: a filter that fails must not end the thread that keeps all holds.
    """
    try:
        import logging

        _is_logged(level)  # after which `_handle` is known
        if not _is_in_handler():
            logging.getLogger("holdfast").log(level, "%s", text, exc_info=error)
        elif sys.__stderr__ is not None:
            print(f"holdfast: {text}", file=sys.__stderr__)
    except Exception:
        pass  # there is nothing left to try


def _log_failure(callback: object, event: Event, error: Exception) -> None:
    try:
        name = repr(callback)
    except Exception:
        name = f"an object of {type(callback)}"
    note(ERROR, f"{name} failed on the event {event.kind!r}", error)
