"""The path of the lock file: from the caller's path, by the rules of the protocol, which may follow links.

LK1  We read the links ourselves, so the kernel's own protection (fs.protected_symlinks) does not apply. A link in place
     of the lock file is followed only if it is ours or root's: any other could make us create, write and remove a file
     anywhere. A link on the way is refused if it is another user's, in a directory that is not that user's and that
     others than its owner may write to.
LK2  A link is opened first, then examined and read by that descriptor: it may be replaced in between.
"""

from __future__ import annotations

import errno
import os
import stat

from ..._platform import environment
from ..._platform.fork import forking
from ...errors import InvalidPath

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...protocols import Protocol


_MOST = 40
_UNREACHABLE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENAMETOOLONG, errno.EINVAL)
"""Errors about a path that does not exist or may not be searched: opening it will report them."""


def followed(path: str, protocol: str, *, last: bool = False) -> str:
    """The path with all symbolic links resolved, dangling ones too, as by `os.path.realpath`.

    InvalidPath for a link that cannot be trusted (LK1); `last`: a lock file would be created at the end of the path.
    """
    if not hasattr(os, "geteuid"):
        return _absolute(os.path.realpath(path), protocol)
    env = environment()
    return env.operations.perform(env, lambda _: _followed(path, protocol, last=last))


def _followed(path: str, protocol: str, *, last: bool) -> str:
    at, rest, links = "/", path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            at = os.path.dirname(at)
            continue
        above, at = at, os.path.join(at, name)
        try:
            found, target = _look(at)
            if target is None:
                continue
            end = last and not any(part not in ("", ".") for part in rest)
            if found.st_uid not in (0, os.geteuid()) and (end or _is_writable_by_others(above, found.st_uid)):
                raise _untrusted(at, found.st_uid, path, protocol)
        except OSError as error:
            if error.errno not in _UNREACHABLE:
                raise
            continue
        links += 1
        if links > _MOST:
            return os.path.join(at, *rest[::-1])  # a loop: opening it will report that
        at = "/" if target.startswith("/") else above
        rest.extend(target.split("/")[::-1])
    return at


def _followed_in_time(path: str, protocol: str, *, last: bool = False) -> str:
    """Call `followed`; EngineUnavailable if a file server on the way does not answer."""
    env = environment()
    if not env.may_block(f"{path}/."):
        return followed(path, protocol, last=last)
    with forking:
        from ..._drivers.apart import at_place
    apart = at_place(env, path)
    return apart.call(lambda: followed(path, protocol, last=last)) if apart else followed(path, protocol, last=last)


def _look(path: str) -> tuple[os.stat_result, str | None]:
    """The stat of the path, and its target if it is a link (LK2)."""
    if not hasattr(os, "O_PATH"):
        found = os.lstat(path)
        return found, os.readlink(path) if stat.S_ISLNK(found.st_mode) else None
    env = environment()
    fd = env.open_path(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        found = os.fstat(fd)
        return found, os.readlink("", dir_fd=fd) if stat.S_ISLNK(found.st_mode) else None
    finally:
        env.close(fd)


def _is_writable_by_others(directory: str, user: int) -> bool:
    """Whether this user may have made a link there without owning the directory."""
    found = os.lstat(directory)
    return bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)) and found.st_uid != user


def _untrusted(link: str, user: int, path: str, protocol: str) -> InvalidPath:
    return InvalidPath(
        f"{link} is a symbolic link of user {user}, who could have it lead anywhere, so it is not followed; name what "
        "it leads to, or choose another path",
        path=path,
        protocol=protocol,
    )


ANY_SLOT = ".#.lock"
"""The end of a slot's lock file with `#` for the number, by which the queue of all slots is named."""
_LONGEST_NAME = 255 - len(".holdfast-.queue")


def locate(path: str | os.PathLike[str], protocol: Protocol, *, links: bool = True) -> tuple[str, str]:
    """The caller's path made absolute, and the path of its lock file.

    Symbolic links are followed now, if the protocol follows them: later changes to them do not count. `links`: False if
    the protocol leaves the choice to the caller, who wants none followed.
    """
    in_directory = protocol.suffix.startswith("/")
    named = check_path(path, protocol.name, directory=in_directory)
    if protocol.refuses_parent_components and ".." in os.fsdecode(path).replace(os.sep, "/").split("/"):
        raise InvalidPath(
            f"{named!r} has a component '..', which the {protocol.name} protocol refuses; name the directory itself",
            path=named,
            protocol=protocol.name,
        )
    if protocol.is_directory:  # as text first, as it does, whether or not links are followed then
        named = os.path.normpath(named).replace(os.sep, "/")
    if protocol.resolves == "path" and links:
        named = _followed_in_time(named, protocol.name, last=True)
    elif protocol.resolves == "directory":
        # First as text, then the links: other implementations do it in this order, so another would name another file.
        directory, name = os.path.split(os.path.normpath(named))
        named = os.path.join(_followed_in_time(directory, protocol.name), name).replace(os.sep, "/")
    return named, (named.rstrip("/") if in_directory else named) + protocol.suffix


def check_path(path: str | os.PathLike[str], protocol: str, *, directory: bool = False) -> str:
    """The absolute path without `.` and double slashes; `..` stays, because the kernel resolves it through links."""
    text = os.fsdecode(path)
    if not text:
        raise InvalidPath("the lock path is empty; name a file", path=text, protocol=protocol)
    if "\0" in text:
        raise InvalidPath(f"{text!r} contains a NUL byte; name a file without one", path=text, protocol=protocol)
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidPath(f"{text!r} is not a file name here; use another", path=text, protocol=protocol) from None
    if os.path.basename(text) in ("", ".", "..") and not directory:
        raise InvalidPath(f"{text!r} names a directory; a lock path names a file", path=text, protocol=protocol)
    return _absolute(text, protocol)


def _absolute(path: str, protocol: str) -> str:
    """The absolute path, with a slash between its components on every system."""
    if os.sep == "/":
        path = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
        if "/./" not in f"{path}/" and "//" not in path:
            return path
        end = "/" if path.endswith("/") else ""
        return "/" + "/".join([name for name in path.split("/") if name not in ("", ".")]) + end
    with forking:
        from ..._platform.drives import absolute
    try:
        return absolute(path)
    except ValueError as error:
        raise InvalidPath(f"{path!r} {error}; choose another path", path=path, protocol=protocol) from None


def queue_of(directory: str, name: str, span: str = "") -> str:
    """The hidden directory of a lock's waiters. It is named after the lock file and, for a record lock, after the
    bytes. No other lock has it, whatever the files are called."""
    if name.endswith(("@", ANY_SLOT)) or _ends_like_a_span(name):
        name += "@"
    return _queue(directory, name + span)


def queue_of_slots(directory: str, base: str, span: str = "") -> str:
    """The hidden directory of the waiters for any slot of a semaphore."""
    return _queue(directory, base + ANY_SLOT + span)


def waited_for(queue: str) -> str:
    """The lock that a queue is named after, or the base of a semaphore; a long name, which was cut, stays cut."""
    directory, _, name = queue.rpartition("/")
    name = name[len(".holdfast-") : -len(".queue")]
    return f"{directory}/{name.removesuffix(ANY_SLOT) if name.endswith(ANY_SLOT) else name.removesuffix('@')}"


def _ends_like_a_span(name: str) -> bool:
    _, at, span = name.rpartition("@")
    first, plus, many = span.partition("+")
    return bool(at and plus) and f"{first}{many}".isdecimal()


def _queue(directory: str, name: str) -> str:
    """The path of the queue, its name cut to the length of a file name."""
    short = os.fsencode(name)
    if len(short) > _LONGEST_NAME:
        with forking:
            import zlib
        short = short[: _LONGEST_NAME - 9] + b"~%08x" % zlib.crc32(short)
    return f"{directory}/.holdfast-{os.fsdecode(short)}.queue"
