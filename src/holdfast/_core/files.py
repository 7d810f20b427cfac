"""Steps on files that all parts of the engine take."""

from __future__ import annotations

import errno

from ..errors import HoldfastError
from ..model import MARKER_VERSION
from .environment import Environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .request import Request

UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
"""The errors of one who may not write there."""


def is_there(env: Environment, path: str, identity: tuple[int, int]) -> bool:
    """Whether the path names this very inode now."""
    try:
        found = env.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (found.st_dev, found.st_ino) == identity


def leads_to(env: Environment, fd: int, identity: tuple[int, int]) -> bool:
    """Whether the descriptor still leads to this very inode: not if a caller has closed it behind our back."""
    try:
        found = env.fstat(fd)
    except OSError as error:
        return error.errno != errno.EBADF
    return (found.st_dev, found.st_ino) == identity


def located(error: OSError, path: str) -> None:
    """Have the error say where: of a step on a descriptor, or by other names of ours, the system does not."""
    if isinstance(error, (HoldfastError, ConnectionError)):
        return  # it says so in our words; it is of a caller's function, and about no file
    if error.filename2 is not None:
        error.filename = error.filename2
        del error.filename2
    if error.filename is None:
        error.filename = path


def write_all(env: Environment, fd: int, data: bytes) -> None:
    """One write; more only where the kernel wrote short, as it does just before it says ENOSPC."""
    written = env.write(fd, data, 0)
    while written < len(data):
        count = env.write(fd, data[written:], written)
        if count == 0:
            raise OSError(errno.ENOSPC, "the lock file's record could not be written whole")
        written += count


def let_go(env: Environment, fd: int) -> None:
    """Drop the guard and close; what either says is no news beside the reason for doing so."""
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


def forget_hold(env: Environment, identity: tuple[int, int], fd: int) -> None:
    """Strike a hold off the list, unless the entry is of a later hold of the same file by now."""
    held = env.holds.get(identity)
    if held is not None and held.fd == fd:
        del env.holds[identity]


def kinds_of_marker(request: Request) -> tuple[bytes, bytes]:
    """Known by its process, known by its guard: how the two kinds begin in a record (publish.py, P3)."""
    key = request.protocol.marker_key
    version = MARKER_VERSION.encode()
    return key + version + b" n ", key + version + b" g "


def withdraw(env: Environment, request: Request, fd: int, data: bytes) -> None:
    """Undo whatever part of publishing was done (publish.py, P4). Leaves alone what another has made of the file.

    It may be broken off, and called again (operation.py, J3).
    """
    if not env.is_open(fd):
        return
    try:
        found = env.fstat(fd)
        identity = (found.st_dev, found.st_ino)
        forget_hold(env, identity, fd)
        if is_there(env, request.path, identity):
            content = env.read(fd, len(data) + 1)
            by_process, by_guard = kinds_of_marker(request)
            whole = data in (content, content.replace(by_guard, by_process, 1))  # P3's byte may be flipped or not
            if whole or (data.startswith(content) and env.guard(fd) is not False):
                env.unlink(request.path)
    except OSError:
        pass  # the first failure is the one to report; what is left has no guard and will be taken over
    let_go(env, fd)


def undo_descriptor(env: Environment, fd: int, publishing: Request | None) -> None:
    """Close it. If the lock file is one that was to be published with it, that goes, too; `publishing` is the request
    for which one may have been created at its own path."""
    request, record = getattr(fd, "publication", None) or (publishing, b"")
    if request is not None and (record or env.has_created(fd)):
        withdraw(env, request, fd, record)
    else:
        let_go(env, fd)
