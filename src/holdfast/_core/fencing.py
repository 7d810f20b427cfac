"""Fencing tokens for locks on files: a number that is higher than that of every holder before, in a counter beside it.

The counter of `<lock file>` is `<lock file>.token`: two lines, each of 20 decimal digits. The higher number is the
token that was given last.

TK1  Who counts has the lock, and the counter's guard as well. So one that was robbed in the midst of counting and its
     successor do not count at the same time; a counter that its path does not name any more is not counted with.
TK2  The number is on the disk before anybody sees it: written, and the file synced; the directory, too, as long as one
     of the two numbers is 0, which says that nobody but its maker has had a token yet.
TK3  The new number goes over the lower of the two. Whatever a crash leaves of that write, old digits, new ones or some
     of each, the other line still has the number that was given last, and the next one is above both.
TK4  A counter that is missing, empty or all zero bytes (made, and not yet written when the power went) begins at the
     microseconds since the epoch: above all that was given before it vanished, unless the clock was set back.
TK5  What cannot be read for certain is an error, and the lock is given back. A number is never guessed.
TK6  After counting we look whether the lock is still ours. One that was lost meanwhile is not given out.
"""

from __future__ import annotations

import errno
import stat

from ..errors import HoldfastError, InvalidPath, MalformedRecord
from .environment import Environment, Wait
from .files import UNWRITABLE, is_there, let_go, located
from .hold import Held

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from .request import Request

SUFFIX = ".token"
_WIDTH = 20
_LINE = _WIDTH + 1
_HIGHEST = 2**63 - 1
_PAUSE = 0.001
_PATIENCE = 10.0
"""Seconds to wait for somebody else who has the counter's guard. It takes as long as a sync."""


def fenced(env: Environment, held: Held) -> Generator[Wait, None, Held | None]:
    """The same hold, which has its token now; None if it was lost before that. What fails gives the lock back."""
    try:
        held.token = yield from _count(env, held.request)
        if held.verify():  # TK6
            return held
    except BaseException:
        held.give_back()  # TK5
        raise
    held.give_back()
    return None


def is_counter(data: bytes) -> bool:
    """Whether this is what a counter has in it."""
    return _written(data) is not None


def _count(env: Environment, request: Request) -> Generator[Wait, None, int]:
    path = request.path + SUFFIX
    patience = env.monotonic() + _PATIENCE
    while True:
        try:
            fd = _open(env, request, path)
            if fd is not None:
                try:
                    token = _advance(env, request, path, fd)
                finally:
                    let_go(env, fd)
                if token is not None:
                    return token
        except OSError as error:
            located(error, path)
            raise
        if env.monotonic() >= patience:
            raise HoldfastError(
                f"{path}, the counter of fencing tokens, is locked by somebody else, who does not go on; find out who "
                f"has it open (fuser, lsof). {request.path} is not held",
                path=request.path,
                protocol=request.protocol.name,
            )
        yield Wait((), env.monotonic() + _PAUSE)


def _open(env: Environment, request: Request, path: str) -> int | None:
    """A descriptor of the counter, which is made if there is none; None if it is to be tried again."""
    try:
        _require_regular(env.stat(path).st_mode, request, path)
        return env.open_existing(path, write=True)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _explained(error, request, path) from error
    try:
        return env.open_new(path, request.mode)
    except FileExistsError:
        return None
    except OSError as error:
        raise _explained(error, request, path) from error


def _advance(env: Environment, request: Request, path: str, fd: int) -> int | None:
    """The next number, which is on the disk; None while somebody else counts, or with another file (TK1)."""
    found = env.fstat(fd)
    _require_regular(found.st_mode, request, path)
    if env.guard(fd) is False or not is_there(env, path, (found.st_dev, found.st_ino)):
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
    return token


def _numbers(data: bytes, request: Request, path: str) -> tuple[int, int]:
    """What is in it; both are 0 where nothing is."""
    written = _written(data)
    if written is not None:
        return written
    if not data.strip(b"\0"):
        return 0, 0  # TK4
    # A number that somebody has put there; what is left of two lines that were cut off begins with a 0.
    digits = data.removesuffix(b"\n")
    if not digits.isdigit() or digits.startswith(b"0") or len(digits) >= _WIDTH - 1:
        raise _unusable("its content is no number", request, path)
    return int(digits), 0


def _written(data: bytes) -> tuple[int, int] | None:
    """The two numbers of a counter that was written by these rules."""
    lines = (data[:_LINE], data[_LINE:])
    for line in lines:
        if len(line) != _LINE or not line.endswith(b"\n") or not line[:-1].isdigit() or not line.startswith(b"0"):
            return None
    return int(lines[0]), int(lines[1])


def _line(number: int) -> bytes:
    return b"%020d\n" % number


def _write(env: Environment, fd: int, data: bytes, offset: int) -> None:
    written = 0
    while written < len(data):
        count = env.write(fd, data[written:], offset + written)
        if count == 0:
            raise OSError(errno.ENOSPC, "the fencing token could not be written whole")
        written += count


def _restore(env: Environment, fd: int, data: bytes) -> None:
    """Half of two lines would be no counter; what was there before is one."""
    try:
        if data:
            _write(env, fd, data, 0)
        env.truncate(fd, len(data))
    except OSError:
        pass  # the first failure is the one to report; the next one is told that this is no counter (TK5)


def _require_regular(mode: int, request: Request, path: str) -> None:
    if not stat.S_ISREG(mode):
        raise InvalidPath(
            f"{path} is no regular file, so it cannot count fencing tokens; remove it, or choose another path for the "
            f"lock. {request.path} is not held",
            path=request.path,
            protocol=request.protocol.name,
        )


def _unusable(why: str, request: Request, path: str) -> MalformedRecord:
    return MalformedRecord(
        f"{path} is no counter of fencing tokens: {why}. Find out which token was given last, and write a higher "
        f"number into the file (echo 5000 > FILE). {request.path} is not held",
        path=request.path,
        protocol=request.protocol.name,
    )


def _explained(error: OSError, request: Request, path: str) -> Exception:
    """The same in words that say what to do."""
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        what = "its name is too long" if error.errno == errno.ENAMETOOLONG else "a symbolic link is in the way"
        return InvalidPath(
            f"{path}, the counter of fencing tokens, cannot be there: {what}. Choose another path for the lock",
            path=request.path,
            protocol=request.protocol.name,
        )
    if error.errno in UNWRITABLE:
        need = (
            "whoever acquires this lock with fencing needs permission to read and write its counter; mode= and the "
            "umask of whoever made it decide that"
        )
        return OSError(error.errno, f"{error.strerror}; {need}", path)
    return error
