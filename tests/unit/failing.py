"""System calls that fail when they are told to: calls of `_platform` go through a tap.

`tapped()` puts the tap between `holdfast._platform` and the modules it calls (`os`, `fcntl`, `select`, the C library,
`open`). A tap that is armed counts calls, by what they are and what they are about ("pwrite: lock file"), and lets one
of them fail, or all of that kind from one on. Below the environment, and not at its methods as `stepping.Stepped`: the
number that comes out is then the one that the kernel would give, before `_platform` has interpreted it.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import errno
import fcntl
import math
import os
import select
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import instances
from holdfast._drivers import background
from holdfast._platform import descriptors, environment, inotify, linux, portable, posix, proc_locks, procfs
from process.support import inotify_instance

# What the man page of each call documents, where it can occur: not what a wrong argument makes (EBADF, EFAULT, EINVAL
# of flags that are never given), and not EINTR, after which Python itself calls again (PEP 475), but for close. EIO is
# said of every call that reaches a disk, whatever its page says; EOVERFLOW and ESTALE are what other kinds of
# filesystems add. "short": fewer bytes are written than were asked for, then the rest; "full": and then no more.
_PATH = ("EACCES", "EIO", "ELOOP", "ENAMETOOLONG", "ENOENT", "ENOMEM", "ENOTDIR", "ESTALE")
_NEW = ("EDQUOT", "ENOSPC", "EPERM", "EROFS")
_TABLE = ("EMFILE", "ENFILE")
DOCUMENTED: dict[str, tuple[str, ...]] = {
    "open(O_TMPFILE)": (*_PATH, *_NEW, *_TABLE, "EINVAL", "EISDIR", "ENXIO", "EOPNOTSUPP"),
    "open(O_CREAT)": (*_PATH, *_NEW, *_TABLE, "EEXIST", "EINVAL", "EISDIR", "ENXIO", "EOPNOTSUPP"),
    "open(O_DIRECTORY)": (*_PATH, *_TABLE, "EAGAIN", "ENODEV", "EOVERFLOW", "EPERM"),
    "open(O_RDONLY)": (*_PATH, *_TABLE, "EAGAIN", "ENODEV", "ENXIO", "EOVERFLOW", "EPERM"),
    "open(O_WRONLY)": (*_PATH, *_TABLE, "EAGAIN", "EISDIR", "ENODEV", "ENXIO", "EOVERFLOW", "EPERM"),
    "open(O_RDWR)": (*_PATH, *_TABLE, "EAGAIN", "EISDIR", "ENODEV", "ENXIO", "EOVERFLOW", "EPERM", "EROFS", "ETXTBSY"),
    "open": (*_PATH, *_NEW, *_TABLE, "EEXIST"),
    "read": ("EIO", "EISDIR", "ENOMEM", "ESRCH"),
    "close": ("EDQUOT", "EINTR", "EIO", "ENOSPC"),
    "flock(LOCK_EX)": ("EAGAIN", "EBADF", "EINVAL", "EIO", "ENOLCK", "ENOSYS", "EOPNOTSUPP"),
    "flock(LOCK_SH)": ("EAGAIN", "EINVAL", "EIO", "ENOLCK", "ENOSYS", "EOPNOTSUPP"),
    "flock(LOCK_UN)": ("EINVAL", "EIO", "ENOLCK", "ENOSYS", "EOPNOTSUPP"),
    "fstat": ("EIO", "ENOMEM", "EOVERFLOW", "ESTALE"),
    "lstat": (*_PATH, "EOVERFLOW"),
    "stat": (*_PATH, "EOVERFLOW"),
    "access": _PATH,
    "pread": ("EIO", "EISDIR", "EOVERFLOW", "ESTALE"),
    "pwrite": ("EDQUOT", "EFBIG", "EIO", "ENOSPC", "EPERM", "ESTALE", "short", "full"),
    "ftruncate": ("EFBIG", "EINVAL", "EIO", "EPERM", "EROFS", "ETXTBSY"),
    "fchmod": ("EACCES", "EIO", "ENOMEM", "EOPNOTSUPP", "EPERM", "EROFS"),
    "fsync": ("EDQUOT", "EINVAL", "EIO", "ENOSPC", "EROFS"),
    "link": (*_PATH, *_NEW, "EEXIST", "EMLINK", "EOPNOTSUPP", "EXDEV"),
    "linkat": (*_PATH, *_NEW, "EEXIST", "EMLINK", "EOPNOTSUPP", "EXDEV"),
    "linkat(AT_EMPTY_PATH)": (*_PATH, *_NEW, "EEXIST", "EINVAL", "EMLINK", "EOPNOTSUPP", "EXDEV"),
    "unlink": (*_PATH, "EBUSY", "EISDIR", "EPERM", "EROFS"),
    "mkdir": (*_PATH, *_NEW, "EEXIST", "EINVAL", "EMLINK"),
    "mkfifo": (*_PATH, *_NEW, "EEXIST", "EOPNOTSUPP"),
    "rename": (*_PATH, *_NEW, "EBUSY", "EEXIST", "EINVAL"),
    "rmdir": (*_PATH, "EBUSY", "EINVAL", "ENOTEMPTY", "EPERM", "EROFS"),
    "readdir": (*_PATH, *_TABLE, "EPERM"),
    "readlink": ("EACCES", "EIO", "ENOENT", "ENOMEM"),
    "inotify_init1": (*_TABLE, "ENOMEM", "ENOSYS"),
    "inotify_add_watch": ("EACCES", "ELOOP", "ENAMETOOLONG", "ENOENT", "ENOMEM", "ENOSPC", "ENOTDIR"),
    "inotify_rm_watch": ("EINVAL",),
    "eventfd": (*_TABLE, "ENODEV", "ENOMEM"),
    "pidfd_open": (*_TABLE, "ENODEV", "ENOMEM", "ENOSYS", "EPERM"),
    "poll": ("EINVAL", "ENOMEM"),
    "kill": ("EPERM",),
    "pipe2": _TABLE,
}
ANSWERS = frozenset({"ENOENT", "ENOTDIR", "EEXIST", "EAGAIN"})
"""Errors that state something about the path: a lie if it is not so."""


NO_FILE = "no file"


class Tap:
    """Counts calls while it is open, and lets the one at `at` fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.open = False
        self.lock_file = ""
        self._at: int | None = None
        self._word = ""
        self._always = False
        self._writes: int | None = None
        self._roles: dict[int, str] = {}
        self.compared: set[int] | None = set()
        """The numbers with which the code has compared that of the error; None if it may have asked in another way."""

    def arm(self, lock_file: str, at: int | None = None, word: str = "", *, always: bool = False) -> None:
        self.lock_file = lock_file
        self.calls = []
        self._at, self._word, self._always = at, word, always
        self._writes = None
        self.compared = set()
        self.open = True

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Neither count nor fail the calls of others inside the block."""
        before, self.open = self.open, False
        try:
            yield
        finally:
            self.open = before

    def role(self, path: object, dir_fd: int | None = None) -> str:
        """The meaning of a path, in the words of the engine. It asks the system itself, beside the tap."""
        if dir_fd is not None:
            return "ticket" if self._roles.get(dir_fd) == "queue" else "?"
        if isinstance(path, int):
            return self._roles.get(path, "?")
        if path == self.lock_file:
            return "lock file"
        text = os.fsdecode(path)  # type: ignore[arg-type]
        return _role_by_name(text) or ("directory" if text.endswith("/.") or os.path.isdir(text) else "lock file")

    def enter(self, fd: int, path: object) -> int:
        self._roles[fd] = self.role(path)
        return fd

    def fails(self, call: str, role: str) -> str:
        """The way in which this call is to fail; empty if it is not."""
        if not self.open:
            return ""
        number = len(self.calls)
        self.calls.append(f"{call}: {role}" if role else call)
        if self._at is None or number < self._at:
            return ""
        if number == self._at or (self._always and call == self.calls[self._at].partition(":")[0]):
            return self._word
        if self._word == "full" and call == "pwrite":
            return "ENOSPC"
        return ""


tap = Tap()


@lru_cache(maxsize=1000)
def _role_by_name(text: str) -> str:
    """The meaning by the name alone; empty if it may be a lock file or a directory."""
    directory, name = os.path.split(text)
    if text.startswith("/proc/"):
        return "/proc"
    if name.endswith(".tmp"):
        return "temporary name" if name.startswith(".holdfast-") else "rival's file"
    for end, role in (
        (".claim", "claim"),
        (".reclaim", "announcement"),
        (".queue", "queue"),
        (".token", "counter"),
    ):
        if name.endswith(end):
            return role
    return "ticket" if directory.endswith(".queue") else ""


class _Number(int):
    """The number of an error. It notes what the code asks about it."""

    def __eq__(self, other: object) -> bool:
        if tap.compared is not None and isinstance(other, int):
            tap.compared.add(int(other))
        return int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        tap.compared = None  # a set or a dictionary compares only what is in it
        return hash(int(self))


def error(word: str, *paths: object) -> OSError:
    number, compared = getattr(errno, word), tap.compared
    made = OSError(_Number(number), os.strerror(number), *paths)
    tap.compared = compared  # OSError has looked for its class
    return made


def alike(one: str, other: str, compared: set[int] | None) -> bool:
    """Whether code that has failed with one error, and compared its number with these, would do the same after the
    other: both are of one class, and none of the answers would differ."""
    numbers = {getattr(errno, word, None) for word in (one, other)}
    if compared is None or None in numbers or numbers & compared:
        return False
    return type(OSError(getattr(errno, one), "")) is type(OSError(getattr(errno, other), ""))


def _by_path(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(path: Any, *args: Any, **kwargs: Any) -> Any:
        if tap.open:
            role = tap.role(path, kwargs.get("dir_fd", kwargs.get("src_dir_fd")))
            if word := tap.fails(call, role):
                raise error(word, path)
        return real(path, *args, **kwargs)

    return wrapped


def _by_descriptor(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(fd: int, *args: Any) -> Any:
        if tap.open and (word := tap.fails(call, tap.role(fd))):
            raise error(word)
        return real(fd, *args)

    return wrapped


def _without_subject(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any) -> Any:
        if word := tap.fails(call, ""):
            raise error(word)
        made = real(*args)
        for fd in (made,) if isinstance(made, int) else made or ():
            tap._roles[fd] = NO_FILE
        return made

    return wrapped


_FLAGS = {os.O_TMPFILE: "O_TMPFILE", os.O_DIRECTORY: "O_DIRECTORY", os.O_CREAT: "O_CREAT", os.O_RDWR: "O_RDWR"}
_FLAGS[os.O_WRONLY] = "O_WRONLY"


def _open(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    call = f"open({next((name for flag, name in _FLAGS.items() if flags & flag == flag), 'O_RDONLY')})"
    role = "lock file" if call == "open(O_TMPFILE)" else tap.role(path, dir_fd)
    if word := tap.fails(call, role):
        raise error(word, path)
    fd = os.open(path, flags, mode, dir_fd=dir_fd)
    tap._roles[fd] = role
    return fd


def _close(fd: int) -> None:
    role = tap.role(fd)
    word = "" if role == NO_FILE else tap.fails("close", role)  # there is nothing to write back
    os.close(fd)  # the kernel frees the number in any case
    if word:
        raise error(word)


def _pwrite(fd: int, data: bytes, offset: int) -> int:
    word = tap.fails("pwrite", tap.role(fd))
    if word in ("short", "full"):
        return os.pwrite(fd, data[: max(1, len(data) // 2)], offset)
    if word:
        raise error(word)
    return os.pwrite(fd, data, offset)


def _link(existing: str, path: str, **options: Any) -> None:
    call = "linkat" if options else "link"
    if word := tap.fails(call, "lock file" if path == tap.lock_file else tap.role(path)):
        raise error(word, existing, None, path)
    os.link(existing, path, **options)


def link_empty_path(fd: int, path: str) -> None:
    if word := tap.fails("linkat(AT_EMPTY_PATH)", "lock file"):
        raise error(word, path)
    _reallink_empty_path(fd, path)


_reallink_empty_path = linux.link_empty_path


def _list_directory(path: str) -> list[str]:
    if path == "/proc":  # as if this process were alone: the others are none of our business, and come and go
        if word := tap.fails("readdir", "/proc"):
            raise error(word, path)
        return [str(os.getpid())]
    return _real_list_directory(path)


_real_list_directory = _by_path("readdir", os.listdir)


def _access(path: str, mode: int) -> bool:
    role = tap.role(path)
    return False if tap.fails("access", role) else os.access(path, mode)


def _flock(fd: int, operation: int) -> None:
    names = {fcntl.LOCK_EX: "LOCK_EX", fcntl.LOCK_SH: "LOCK_SH", fcntl.LOCK_UN: "LOCK_UN"}
    if word := tap.fails(f"flock({names[operation & ~fcntl.LOCK_NB]})", tap.role(fd)):
        raise error(word)
    fcntl.flock(fd, operation)


class _Poll:
    def __init__(self) -> None:
        self._real = select.poll()
        self.register = self._real.register

    def poll(self, timeout: float | None = None) -> Any:
        if word := tap.fails("poll", ""):
            raise error(word)
        return self._real.poll(timeout)


class _File:
    """The result of `open`, whose reading may fail."""

    def __init__(self, real: Any, role: str) -> None:
        self._real, self._role = real, role
        self.close, self.fileno = real.close, real.fileno

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_error: object) -> None:
        self._real.close()

    def read(self, *args: Any) -> Any:
        if word := tap.fails("read", self._role):
            raise error(word)
        return self._real.read(*args)

    readall = read

    def write(self, data: Any) -> Any:
        if word := tap.fails("pwrite", self._role):
            raise error("ENOSPC" if word in ("short", "full") else word)  # a file object goes on until it fails
        return self._real.write(data)


def _open_file(path: str, *args: Any, **options: Any) -> _File:
    role = tap.role(path)
    if word := tap.fails("open", role):
        raise error(word, path)
    return _File(builtins.open(path, *args, **options), role)


def _raw_file(path: str) -> _File:
    return _open_file(path, "rb", buffering=0)


class _Library:
    """The C library as inotify.py calls it."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*args: Any) -> int:
            role = tap.role(args[1]) if name == "inotify_add_watch" else ""
            if word := tap.fails(name, role):
                tap.compared = None  # the number is the C library's
                ctypes.set_errno(getattr(errno, word))
                return -1
            if name != "inotify_init1":
                result: int = getattr(self._real, name)(*args)
                return result
            made = instance(*args)
            tap._roles[made] = NO_FILE
            return made

        return call


def instance(*args: Any) -> int:
    """An instance that a process has left, or a new one."""
    found = instances.take()
    # Others may have used up all of this user's.
    return inotify_instance(*args) if found is None else found


class Module:
    """A module with some of its functions replaced."""

    def __init__(self, real: Any, **replaced: Any) -> None:
        self.__dict__.update(vars(real))
        self.__dict__.update(replaced)


_OS = Module(
    os,
    open=_open,
    close=_close,
    pwrite=_pwrite,
    link=_link,
    access=_access,
    pread=_by_descriptor("pread", os.pread),
    fstat=_by_descriptor("fstat", os.fstat),
    fsync=_by_descriptor("fsync", os.fsync),
    ftruncate=_by_descriptor("ftruncate", os.ftruncate),
    fchmod=_by_descriptor("fchmod", os.fchmod),
    lstat=_by_path("lstat", os.lstat),
    stat=_by_path("stat", os.stat),
    unlink=_by_path("unlink", os.unlink),
    mkdir=_by_path("mkdir", os.mkdir),
    mkfifo=_by_path("mkfifo", os.mkfifo),
    rename=_by_path("rename", os.rename),
    makedirs=_by_path("mkdir", os.makedirs),
    rmdir=_by_path("rmdir", os.rmdir),
    listdir=_list_directory,
    readlink=_by_path("readlink", os.readlink),
    pidfd_open=_without_subject("pidfd_open", os.pidfd_open),
    kill=_without_subject("kill", os.kill),
    eventfd=_without_subject("eventfd", os.eventfd),
    pipe=_without_subject("pipe2", os.pipe),
    register_at_fork=lambda **_hooks: None,  # the environments here are made by the thousand, and forked by nobody
)
_read, _MOUNTED = procfs.read, procfs.read(procfs.MOUNTS)
_SHIFT = portable.clock_shift()  # in a time namespace, to ask for it takes a step more


def _read_as_it_was(path: str) -> str:
    """The text of a file, but the mounts as they were at first: those of other tests may be slow, and would change the
    steps."""
    text = _read(path)
    return _MOUNTED if text and path == procfs.MOUNTS else text


_PLACES: tuple[tuple[Any, str, Any], ...] = (
    *((module, "os", _OS) for module in (descriptors, portable, posix, inotify, linux, proc_locks, procfs, background)),
    *((module, "open", _open_file) for module in (linux, procfs)),
    *((module, "FileIO", _raw_file) for module in (linux, procfs)),
    (procfs, "read", _read_as_it_was),
    (portable, "clock_shift", lambda: _SHIFT),
    (posix, "fcntl", Module(fcntl, flock=_flock)),
    *((module, "select", Module(select, poll=_Poll)) for module in (posix, linux)),
    # The mounts are looked up once, however long this process is not let run.
    *((module, "_MOUNT_LASTS", math.inf) for module in (linux, posix)),
    (linux, "link_empty_path", link_empty_path),
    (inotify, "_libc", _Library(inotify._libc)),
    (portable.GenericEnvironment, "unlink", staticmethod(_OS.unlink)),
    (portable.GenericEnvironment, "stat", staticmethod(_OS.lstat)),
    (portable.GenericEnvironment, "fstat", staticmethod(_OS.fstat)),
    (portable.GenericEnvironment, "exists", staticmethod(partial(_access, mode=os.F_OK))),
    (portable.GenericEnvironment, "truncate", staticmethod(_OS.ftruncate)),
    (portable.GenericEnvironment, "sync", staticmethod(_OS.fsync)),
    (posix.PosixEnvironment, "write", staticmethod(_OS.pwrite)),
)
_ABSENT = object()


@contextlib.contextmanager
def tapped() -> Iterator[Tap]:
    """The tap is in place inside this block."""
    environment()  # that of this process is forked, by the tests to come, and is not to be made inside
    before = [(holder, name, vars(holder).get(name, _ABSENT)) for holder, name, _ in _PLACES]
    for holder, name, value in _PLACES:
        setattr(holder, name, value)
    try:
        yield tap
    finally:
        tap.open = False
        for holder, name, value in before:
            if value is _ABSENT:
                delattr(holder, name)
            else:
                setattr(holder, name, value)
