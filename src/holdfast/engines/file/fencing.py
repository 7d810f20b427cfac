"""Fencing tokens for locks on files: each holder gets a higher number than all before it, from a counter on disk.

The counter of `<lock file>` is `<lock file>.token`: two lines, each of 20 decimal digits. The higher number is the last
token given out.

TK1  Counting requires the lock and the counter's guard. So a process that loses the lock while it counts and its
     successor never count at the same time. A number that was counted in a file that the path no longer names, before
     or after the write, is not given out.
TK2  The number is on disk before it is given out: the file is written and synced; the directory too, as long as one of
     the two numbers is 0, which means that only the counter's maker has had a token.
TK3  The new number overwrites the lower of the two. Whatever a crash leaves of that write (old digits, new ones or a
     mixture), the other line still has the last number given out, and the next one is above both.
TK4  A counter that is missing, empty or all zero bytes (created but not yet written at a power failure) starts at the
     microseconds since the epoch: above every earlier token, unless the clock was set back.
TK5  Content that cannot be read for certain is an error, and the lock is given back. A number is never guessed.
TK6  After counting we check that the lock is still ours. The token of a lost lock is not given out.
TK7  The lock itself excludes, so the guard protects only against a process that has lost it; and any process that may
     read the counter can take the guard. So we wait for the guard only a moment. Then the counter is replaced: its name
     is removed, the old file is read again, and a new file with a higher number gets the name, which must be free. A
     process that still writes to the old file finds by TK1 that its number does not count; an earlier write is read. A
     claim (takeover.py) lets only one process at a time replace it: of two, one could give the name to its file after
     the other had counted on. A kill there may leave no counter, and the next one starts by TK4.
TK8  Waiting for the counter ends with the first try after the caller's time is up, and no earlier than 20 ms after the
     first one, so that a replacement (TK7) has been tried. A process that may not replace it waits, and reports which
     process is in the way.
TK9  A counter that has another name elsewhere may be a foreign file that was linked here: it is read, and replaced. Its
     names are looked at right before the write, as in a takeover (takeover.py, T18).
TK10 A process whose lease is over may still be counting, without the lock. So a hold with a lease counts by names, each
     of which only one process can make: `<lock file>.<20 digits>.token`. A number is given out if we have made it and a
     listing after that shows none above it. Lower names are removed then; the highest one always stays. A late name is
     below the highest, or above all that were given out: so none is given out twice, or after a higher one.
TK11 A hold without a token gets one when a handle that asks for it joins. While that counts, another handle may join
     and count as well. The first number that is written into the hold is the token of all its handles; the other is not
     given out.
"""

from __future__ import annotations

import errno
import math
import stat
import zlib

from ..._core.attempt import AttemptEvents, Refusal, Refused
from ..._core.hold import HoldRef, give_back
from ..._core.wait import Steps, Wait
from ..._platform.operations import let_go, unlink_quietly
from ..._platform.values import temporary_name
from ...errors import HoldfastError, InvalidPath, MalformedRecord, set_error_path
from ...liveness import Liveness
from ...model import Evidence, Holder, Status
from .publish import NOT_HERE
from .steps import NO_ROOM, UNWRITABLE, is_there, names_there, open_lasting, write_all
from .takeover import NO_LOCKS, make_claim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..._platform.interface import Environment
    from .hold import FileHold
    from .request import FileRequest


SUFFIX = ".token"
_WIDTH = 20
_LINE = _WIDTH + 1
_HIGHEST = 2**63 - 1
_PAUSE, _LONGEST_PAUSE = 0.001, 0.025
_MOMENT = 0.010
"""Seconds to wait for the counter's guard (TK7), which counting keeps for as long as a sync takes."""
_PATIENCE = 10.0
"""Seconds that a caller without a timeout waits for a counter that it may not replace (TK8)."""


class CounterBusy(Refused):
    """The end of an acquisition whose time was up before the counter became available."""

    def __init__(self, env: Environment, request: FileRequest, waited: float) -> None:
        self._env = env
        self._request = request
        self._waited = waited

    def refusal(self) -> Refusal:
        """The refusal, which looks up the process in the way on demand."""
        env, request = self._env, self._request
        return Refusal(request.target, self._waited, lambda: (self._status(),), AttemptEvents(env, request, ()))

    def _status(self) -> Status:
        env, path = self._env, self._request.path + SUFFIX
        text = f"{path}, the counter of its fencing tokens, is locked by another holder"
        holder = None
        try:
            found = env.stat(path)
            owners = env.lock_owners((found.st_dev, found.st_ino))
            pid = next((owner.pid for owner in owners if owner.pid is not None and not owner.waiting), None)
            holder = None if pid is None else Holder(pid=pid, command=env.command(pid))
        except OSError:
            pass
        evidence = Evidence("counter", text)
        protocol = self._request.protocol.name
        return Status(self._request.path, protocol, True, False, Liveness.ALIVE, evidence, holder, reason=text)


def fenced(env: Environment, held: FileHold, deadline: float = math.inf) -> Steps[FileHold | None]:
    """The hold with its token and, with a lease, its first beat (lease.py, LE7); None if it was lost before that.

    A failure gives the lock back.

    Raises CounterBusy if the counter was not available by the `deadline`.
    """
    try:
        held.token = yield from _next(env, held, held.request, deadline)
        if held.token is not None and held.lease is not None:
            held.send_beat()
        if held.token is not None and held.verify():  # TK6
            return held
    except BaseException:
        held.give_back()  # TK5
        raise
    held.give_back()
    return None


def fenced_for(env: Environment, request: FileRequest, ref: HoldRef, deadline: float) -> Steps[bool]:
    """Whether the hold that this handle has joined, and that had no token, has one now (TK11). False if it was lost;
    then the handle's share is given back.

    Raises what `fenced` raises; then the caller gives the share back.
    """
    held: Any = ref.held
    token = yield from _next(env, held, request, deadline)
    with held.mutex:
        if token is not None and held.verify():  # TK6
            held.token = held.token or token
            return True
    give_back(ref)
    held.check()  # tells the other handles
    return False


def _next(env: Environment, held: FileHold, request: FileRequest, deadline: float) -> Steps[int | None]:
    """The next number, for a hold with or without a lease; None if the directory is gone, and with it the lock."""
    try:
        if held.lease is not None or _is_counted_by_name(env, request):
            return _count_by_name(env, request)
        return (yield from _count(env, request, deadline))
    except (FileNotFoundError, NotADirectoryError):
        if is_there(env, held.path, held.identity):
            raise
        return None


def _is_counted_by_name(env: Environment, request: FileRequest) -> bool:
    """Whether a hold with a lease has counted here."""
    try:
        return bool(_numbers_by_name(env, request)[0])
    except PermissionError:
        return False  # this user may not list the directory, so it has no lease here; docs/fencing.md has the limit


def _count_by_name(env: Environment, request: FileRequest) -> int:
    """Count by names, as a hold with a lease does (TK10)."""
    numbers, has_other = _numbers_by_name(env, request)
    last = max([*numbers, _last_by_content(env, request) if has_other or not numbers else 0])
    token = last + 1 if last else int(env.time() * 1_000_000)  # TK4
    while True:
        if not 0 < token <= _HIGHEST:
            raise _exhausted(env, request, token - 1)
        path = _named(request, token)
        try:
            fd = env.open_new(path, request.mode)
        except FileExistsError:
            token += 1
            continue
        except OSError as error:
            raise _with_hint(error, request, path) from error
        try:
            _write(env, fd, _line(token) + _line(0), 0)  # for people, and for `clean`
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # The name is the number; and one that stays without being given out would be one more file on a full disk.
        finally:
            env.close(fd)
        env.sync_directory(request.directory)  # TK2
        numbers, _ = _numbers_by_name(env, request)
        highest = max(numbers, default=token)
        for number in numbers:
            if number < highest:
                unlink_quietly(env, _named(request, number))
        if highest <= token:
            return token
        token = highest + 1


def _named(request: FileRequest, number: int) -> str:
    return f"{request.path}.{number:0{_WIDTH}d}{SUFFIX}"


def _numbers_by_name(env: Environment, request: FileRequest) -> tuple[list[int], bool]:
    """The numbers that are names, and whether there is a counter of holds without a lease."""
    begin, other, found, has_other = f"{request.name}.", f"{request.name}{SUFFIX}", [], False
    for name in env.list_directory(request.directory):
        digits = name.removeprefix(begin).removesuffix(SUFFIX)
        if len(digits) == _WIDTH and digits.isascii() and digits.isdecimal() and name == f"{begin}{digits}{SUFFIX}":
            found.append(int(digits))
        has_other = has_other or name == other
    return found, has_other


def _last_by_content(env: Environment, request: FileRequest) -> int:
    """The last number that a hold without a lease has counted."""
    path = request.path + SUFFIX
    try:
        fd = env.open_existing(path, write=False)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise _with_hint(error, request, path) from error
    try:
        _require_regular(env.fstat(fd).st_mode, request, path)
        return max(_numbers(env.read(fd, 2 * _LINE + 1), request, path))
    finally:
        env.close(fd)


def is_counter(data: bytes) -> bool:
    """Whether this is the content of a counter."""
    return _parsed(data) is not None


def _count(env: Environment, request: FileRequest, deadline: float) -> Steps[int]:
    path, started, pause = request.path + SUFFIX, env.monotonic(), _PAUSE
    until = max(started + 2 * _MOMENT, deadline if deadline < math.inf else started + _PATIENCE)
    while True:
        now = env.monotonic()
        try:
            fd = _open(env, request, path)
            if fd is not None:
                try:
                    shared = env.fstat(fd).st_nlink > 1  # TK9
                    token = None if shared else _advance(env, request, path, fd)
                    if token is None and (shared or now >= started + _MOMENT):
                        token = _replace(env, request, path, fd)  # TK7
                finally:
                    let_go(env, fd)
                if token is not None:
                    return token
        except OSError as error:
            set_error_path(error, path)
            raise
        if now >= until:
            raise _busy(env, request, path, now - started, deadline)  # TK8
        yield Wait((), min(env.monotonic() + pause, until))
        pause = min(pause * 2, _LONGEST_PAUSE)


def _busy(env: Environment, request: FileRequest, path: str, waited: float, deadline: float) -> Exception:
    if deadline < math.inf:
        return CounterBusy(env, request, waited)
    return request.error(
        HoldfastError,
        f"{path}, the counter of fencing tokens, is locked by another process, which makes no progress; find out "
        f"which one has it open (fuser, lsof). {request.path} is not held",
    )


def _open(env: Environment, request: FileRequest, path: str) -> int | None:
    """A descriptor of the counter, which is created if missing; None: try again."""
    try:
        _require_regular(env.stat(path).st_mode, request, path)
        return env.open_existing(path, write=True)
    except FileNotFoundError:
        pass
    except BlockingIOError:
        return None  # a lease (inspect.py, L10), until TK8
    except OSError as error:
        raise _with_hint(error, request, path) from error
    try:
        return open_lasting(env, path, request.mode)
    except FileExistsError:
        return None
    except OSError as error:
        raise _with_hint(error, request, path) from error


def _advance(env: Environment, request: FileRequest, path: str, fd: int) -> int | None:
    """The next number, already on disk; None while another process counts, or if the counter was replaced (TK1)."""
    found = env.fstat(fd)
    _require_regular(found.st_mode, request, path)
    if env.guard(fd) is False or names_there(env, path, (found.st_dev, found.st_ino)) != 1:  # TK9
        return None
    data = env.read(fd, 2 * _LINE + 1)
    numbers = _numbers(data, request, path)
    last = max(numbers)
    token = last + 1 if last else int(env.time() * 1_000_000)  # TK4
    if not 0 < token <= _HIGHEST:
        raise _unusable(f"its number is {last}, and the clock is at second {env.time():.0f}", request, path)
    if is_counter(data):
        _write(env, fd, _line(token), _LINE * numbers.index(min(numbers)))  # TK3
    else:
        try:
            _write(env, fd, _line(token) + _line(0), 0)
        except OSError:
            _restore(env, fd, data)
            raise
    env.sync(fd)  # TK2
    if not min(numbers):
        env.sync_directory(request.directory)
    return token if is_there(env, path, (found.st_dev, found.st_ino)) else None


def _replace(env: Environment, request: FileRequest, path: str, fd: int) -> int | None:
    """The next number, in a new file (TK7); None if another process is replacing it, or this user may not."""
    try:
        about = (0, zlib.crc32(request.name.encode("utf-8", "surrogateescape")))  # whichever inode has the name
        claim = make_claim(env, path, about, NO_LOCKS)
        if claim is None:
            return None
        try:
            return _replace_claimed(env, request, path, fd)
        finally:
            claim.end()
    except FileExistsError:
        return None  # another process has replaced it meanwhile
    except OSError as error:
        if error.errno not in UNWRITABLE and error.errno not in NOT_HERE:
            raise
        return None


def _replace_claimed(env: Environment, request: FileRequest, path: str, old: int) -> int | None:
    found = env.fstat(old)
    if not is_there(env, path, (found.st_dev, found.st_ino)):
        return None
    before = max(_numbers(env.read(old, 2 * _LINE + 1), request, path))
    temporary = ""
    try:
        new = env.open_unnamed(request.directory, request.mode)
    except OSError as error:
        if error.errno not in NOT_HERE:
            raise
        temporary = f"{request.directory}/{temporary_name(env.identity(), env.token())}"
        env.operations.about_to_make(temporary)
        new = env.open_new(temporary, request.mode)
    try:
        mode = found.st_mode & 0o777
        if env.fstat(new).st_uid != found.st_uid and not mode & (stat.S_IWGRP | stat.S_IWOTH):
            try:
                env.give(new, user=found.st_uid, group=found.st_gid)
            except OSError:
                return None  # its owner could no longer count; only root may give files away
        env.chmod(new, mode)
        token = before + 1 if before else int(env.time() * 1_000_000)
        _write(env, new, _line(token) + _line(before), 0)
        env.sync(new)
        env.unlink(path)
        last = _last_in_old(env, request, path, old, before)
        if last > before:
            token = last + 1
            _write(env, new, _line(token), 0)
            env.sync(new)
        if temporary:
            env.link(temporary, path)
        else:
            env.link_unnamed(new, path)
        env.sync_directory(request.directory)
        return token
    finally:
        env.close(new)
        if temporary:
            unlink_quietly(env, temporary)


def _last_in_old(env: Environment, request: FileRequest, path: str, old: int, before: int) -> int:
    """The highest number in the file whose name was removed, to which another process may still write."""
    try:
        return max(before, *_numbers(env.read(old, 2 * _LINE + 1), request, path))
    except MalformedRecord:
        return before


def _numbers(data: bytes, request: FileRequest, path: str) -> tuple[int, int]:
    """The two numbers in it; both are 0 if it is empty."""
    written = _parsed(data)
    if written is not None:
        return written
    if len(data) <= 2 * _LINE and not data.strip(b"\0"):
        return 0, 0  # TK4; a longer file is not ours, and not even read to its end
    # A number written by hand; the rest of two truncated lines begins with a 0.
    digits = data.removesuffix(b"\n")
    if not digits.isdigit() or digits.startswith(b"0") or len(digits) >= _WIDTH - 1:
        raise _unusable("its content is not a number", request, path)
    return int(digits), 0


def _parsed(data: bytes) -> tuple[int, int] | None:
    """The two numbers of a counter that holdfast has written."""
    lines = (data[:_LINE], data[_LINE:])
    for line in lines:
        if len(line) != _LINE or not line.endswith(b"\n") or not line[:-1].isdigit() or not line.startswith(b"0"):
            return None
    return int(lines[0]), int(lines[1])


def _line(number: int) -> bytes:
    return b"%020d\n" % number


def _write(env: Environment, fd: int, data: bytes, offset: int) -> None:
    write_all(env, fd, data, offset, "the fencing token")


def _restore(env: Environment, fd: int, data: bytes) -> None:
    """Put the old content back: a part of two lines would not be a counter."""
    try:
        if data:
            _write(env, fd, data, 0)
        env.truncate(fd, len(data))
    except OSError:
        pass  # the first failure is the one to report; the next caller finds that this is no counter (TK5)


def _require_regular(mode: int, request: FileRequest, path: str) -> None:
    if not stat.S_ISREG(mode):
        raise request.error(
            InvalidPath,
            f"{path} is not a regular file, so it cannot count fencing tokens; remove it, or choose another path for "
            f"the lock. {request.path} is not held",
        )


def _unusable(why: str, request: FileRequest, path: str) -> MalformedRecord:
    return request.error(
        MalformedRecord,
        f"{path} is not a counter of fencing tokens: {why}. Find out which token was given last, and write a higher "
        f"number into the file (echo 5000 > FILE). {request.path} is not held",
    )


def _exhausted(env: Environment, request: FileRequest, last: int) -> MalformedRecord:
    """The error for a number that does not fit into 64 bits, or a clock before the epoch."""
    return request.error(
        MalformedRecord,
        f"{request.path} has no next fencing token: the last one is {last}, and the clock is at second "
        f"{env.time():.0f}. If no holder has had such a token, remove its counter {_named(request, max(last, 0))} or "
        f"{request.path}{SUFFIX}. {request.path} is not held",
    )


def _with_hint(error: OSError, request: FileRequest, path: str) -> Exception:
    """The error in words that say what to do."""
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        what = "its name is too long" if error.errno == errno.ENAMETOOLONG else "a symbolic link is in the way"
        return request.error(
            InvalidPath,
            f"{path}, the counter of fencing tokens, cannot be there: {what}. Choose another path for the lock",
        )
    if error.errno in UNWRITABLE:
        need = (
            "acquiring this lock with fencing needs permission to read and write its counter, which mode= and the "
            "umask of its creator decide"
        )
        return OSError(error.errno, f"{error.strerror}; {need}", path)
    return error
