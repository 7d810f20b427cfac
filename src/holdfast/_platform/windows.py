"""Windows: the guard is `LockFileEx`, events are change notifications, processes are `OpenProcess` and creation times.

WI1  A file is opened with all sharing, so that others can read, rename and remove it meanwhile; nothing inherits it.
WI2  The guard is a lock on two bytes far behind any content. Locks are mandatory here: on the content they would keep
    others from reading who holds it. Programs that lock the file itself, as filelock and portalocker do, lock its first
    byte; so do we in their protocol (`guard_content`).
WI3  An unnamed file is one with a temporary name, and its link is a rename, which never replaces. It is open and
    guarded the whole time. A kill before that leaves the temporary name, which the next process here removes.
WI4  A removed file keeps its name until the last descriptor of it is closed, unless the filesystem can do as POSIX
    does. So it is renamed first, and the name is free at once. Where that is refused for an instant, because another
    program has the file open without sharing, it is tried again.
WI5  A file that another program has removed while a process has it open can neither be opened nor made anew. It counts
    as held: there is something, and nothing is known of it.
WI6  A ticket of the queue is a file that its owner keeps guarded, which proves that it lives, with the names of two
    events: the owner sets one when it leaves, others set the other to have it look. A waiter behind it waits for the
    first, and for the end of the process.
WI7  The start of a process is its creation time, in units of 100 ns, which does not change with the clock. A boot is
    identified by its time, less what the clock has been set by since.
WI8  A lock belongs to the process that has taken it: no other gets it by inheriting the handle. So the guard of a lock
    that is to outlive its process is handed over by halves. A contender needs both bytes, and locks them in their
    order; a probe is refused by either. The holder gives up the second byte, which another process takes, and keeps the
    first. Once that process says that it has the second byte, at least one is locked until both have ended: neither
    ever takes the other's byte.
WI9  The end of a process that the record does not name wakes nobody. So a process that drops the second byte then sets
    the time of the file, a change that waiters are told of.
WI10 A change notification that a thread has requested is signalled when that thread ends. Each step of a task may run
    in a thread of its own (asyncio.py), so the thread that waits for changes requests the notifications anew.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import itertools
import os
import stat
import sys
import time

from .descriptors import Created, Descriptor
from .drives import is_share
from .handles import Handle, Waitable, handles_of, msvcrt, winapi
from .operations import Operation, is_running, sweep, sweep_when_due, unlink_quietly
from .portable import GenericEnvironment
from .values import CHANGED, Presence, Process, Storage, temporary_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, TypeVar

    from .interface import Stat

    T = TypeVar("T")

_ctypes: Any = ctypes
KERNEL = _ctypes.WinDLL("kernel32", use_last_error=True)
_NT = _ctypes.WinDLL("ntdll")
HANDLE = POINTER = ctypes.c_void_p
DWORD = ctypes.c_uint32

_READ, _WRITE, _DELETE = 0x80000000, 0x40000000, 0x00010000
_SHARED = 1 | 2 | 4
_NEW, _EXISTING = 1, 3
_AS_IT_IS = 0x00200000 | 0x02000000
"""FILE_FLAG_OPEN_REPARSE_POINT, which follows no link, and FILE_FLAG_BACKUP_SEMANTICS, which opens directories."""
_GONE_ON_CLOSE = 0x04000000
"""FILE_FLAG_DELETE_ON_CLOSE."""
_FLAGS: int = getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
_LINK = 0x400
_FAR, _FIRST = 0x4000_0000_0000_0000, 0
_AT_ONCE, _EXCLUSIVELY = 1, 2
_SECOND = 4
"""The second byte of the guard alone, exclusively (WI8)."""
_REFUSED = frozenset({33, 997})  # ERROR_LOCK_VIOLATION, ERROR_IO_PENDING
_UNSUPPORTED = frozenset({1, 6, 50, 87})
"""ERROR_INVALID_FUNCTION, _INVALID_HANDLE (of a directory), _NOT_SUPPORTED, _INVALID_PARAMETER."""
_NO_PATH, _DENIED, _SHARING, _NO_PROCESS, _TOO_LONG = 3, 5, 32, 87, 206
_DELETE_PENDING = 0xC0000056
_DISPOSITION_EX, _POSIX_DELETE = 21, 1 | 2 | 0x10
_END_OF_FILE = 38
_QUERY, _SYNCHRONIZE, _MODIFY = 0x1000, 0x00100000, 0x0002
_SERVED_BY_SMB = frozenset({"ntfs", "refs", "fat32", "exfat"})
"""Names of the filesystems of SMB shares; those of WebDAV and WSL have names of their own."""
_DESCRIPTION = ".tag"
"""The ending of files that stand beside tickets and are none."""
_CHANGES = 0x01 | 0x08 | 0x10
"""Changes of names, sizes and last writes in a directory."""
_REMOTE = 4
_TIME_OF_DAY = 3
_EPOCH = 116_444_736_000_000_000
"""1970, in the units of Windows: 100 ns since 1601."""
_MOST_DESCRIPTORS = 8192
_KILL_ON_CLOSE, _ALL_OF_A_JOB = 0x2000, 0x1F001F
_PIDS, _LIMITS = 3, 9
_MOST_PIDS = 256
_IN_JOBS = 0x2000D
"""PROC_THREAD_ATTRIBUTE_JOB_LIST."""
_UNICODE, _EXTENDED = 0x400, 0x80000
_STARTERS = frozenset({"holdfast.exe", "py.exe", "uv.exe", "uvx.exe"})
_MOST_STARTERS = 4
_MOST_AT_ONCE, _FOR_EVER = 60, 0xFFFFFFFF
_LONGEST_PATH = 247
"""The longest path without the prefix that takes it as it is. A directory's may be no longer."""
_LONGEST_NAME = 255
_PAUSES = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
"""Seconds between tries where another program has a file open without sharing, or one is about to go (WI4, WI5)."""


_removing: dict[FrameType, int] = {}
"""Handles opened for a removal, by the frame that opened them. The next removal closes those of interrupted ones."""


class _Overlapped(ctypes.Structure):
    _fields_ = (
        ("internal", ctypes.c_size_t),
        ("internal_high", ctypes.c_size_t),
        ("offset", ctypes.c_uint64),
        ("event", HANDLE),
    )


class _TimeOfDay(ctypes.Structure):
    _fields_ = (
        ("boot", ctypes.c_int64),
        ("now", ctypes.c_int64),
        ("zone", ctypes.c_int64),
        ("zone_id", DWORD),
        ("reserved", DWORD),
        ("set_by", ctypes.c_int64),
        ("slept", ctypes.c_int64),
    )


class _StartUp(ctypes.Structure):
    """STARTUPINFOEX, of which only the size and the attributes are used."""

    _fields_ = (
        ("size", DWORD),
        ("_names", HANDLE * 3),
        ("_numbers", DWORD * 8),
        ("_words", ctypes.c_uint16 * 2),
        ("_handles", HANDLE * 4),
        ("attributes", HANDLE),
    )


class _Made(ctypes.Structure):
    _fields_ = (("process", HANDLE), ("thread", HANDLE), ("pid", DWORD), ("thread_id", DWORD))


class _Members(ctypes.Structure):
    _fields_ = (("count", DWORD), ("listed", DWORD), ("pids", ctypes.c_size_t * _MOST_PIDS))


def declare(*functions: tuple[Any, ...]) -> None:
    """Declare functions of kernel32: the name of each, and the types of its arguments."""
    for name, *arguments in functions:
        getattr(KERNEL, name).argtypes = arguments


_OVERLAPPED, _SIZE, _TEXT = ctypes.POINTER(_Overlapped), ctypes.POINTER(DWORD), ctypes.c_wchar_p
declare(
    ("LockFileEx", HANDLE, DWORD, DWORD, DWORD, DWORD, _OVERLAPPED),
    ("UnlockFileEx", HANDLE, DWORD, DWORD, DWORD, _OVERLAPPED),
    ("ReadFile", HANDLE, POINTER, DWORD, _SIZE, _OVERLAPPED),
    ("WriteFile", HANDLE, POINTER, DWORD, _SIZE, _OVERLAPPED),
    ("SetFileInformationByHandle", HANDLE, ctypes.c_int, POINTER, DWORD),
    ("SetFileTime", HANDLE, POINTER, POINTER, POINTER),
    ("FindFirstChangeNotificationW", _TEXT, ctypes.c_int, DWORD),
    ("FindNextChangeNotification", HANDLE),
    ("GetProcessTimes", HANDLE, POINTER, POINTER, POINTER, POINTER),
    ("GetProcessId", HANDLE),
    ("CreateJobObjectW", POINTER, _TEXT),
    ("SetInformationJobObject", HANDLE, ctypes.c_int, POINTER, DWORD),
    ("QueryInformationJobObject", HANDLE, ctypes.c_int, POINTER, DWORD, POINTER),
    ("OpenJobObjectW", DWORD, ctypes.c_int, _TEXT),
    ("InitializeProcThreadAttributeList", POINTER, DWORD, DWORD, POINTER),
    ("UpdateProcThreadAttribute", POINTER, DWORD, ctypes.c_size_t, POINTER, ctypes.c_size_t, POINTER, POINTER),
    ("CreateProcessW", _TEXT, _TEXT, POINTER, POINTER, ctypes.c_int, DWORD, POINTER, _TEXT, POINTER, POINTER),
    ("TerminateJobObject", HANDLE, ctypes.c_uint32),
    ("CreateEventW", POINTER, ctypes.c_int, ctypes.c_int, _TEXT),
    ("OpenEventW", DWORD, ctypes.c_int, _TEXT),
    ("SetEvent", HANDLE),
    ("ResetEvent", HANDLE),
    ("QueryFullProcessImageNameW", HANDLE, DWORD, _TEXT, _SIZE),
    ("GetDriveTypeW", _TEXT),
    ("GetVolumeInformationW", _TEXT, _TEXT, DWORD, POINTER, POINTER, POINTER, _TEXT, DWORD),
)
KERNEL.FindFirstChangeNotificationW.restype = ctypes.c_ssize_t  # -1 is none
for _function in (KERNEL.CreateEventW, KERNEL.OpenEventW, KERNEL.CreateJobObjectW, KERNEL.OpenJobObjectW):
    _function.restype = ctypes.c_ssize_t  # 0 is none


def require(done: object) -> None:
    """Raise the OSError of kernel32's last error, unless `done`."""
    if not done:
        raise _ctypes.WinError(_ctypes.get_last_error())


class File(Descriptor):
    """The descriptor of a file or of a directory."""

    at = _FAR
    """The place of its guard (WI2)."""
    guard = 0
    """The kind of guard that we have: 0 (none), `_AT_ONCE` shared, `_AT_ONCE | _EXCLUSIVELY`, `_SECOND`."""
    temporary = ""
    """Its temporary name, until it has the final one (WI3)."""
    path = ""
    device = 0


class New(File, Created):
    """The descriptor of a file that did not exist before."""


class Ticket(File, Waitable):
    """The descriptor of a ticket (WI6): its owner's, or a follower's."""

    gone: Handle | None = None
    """The event to set when its owner leaves; None for a follower's."""
    token = ""


class Changes(Handle):
    """Change notifications of a directory, of which only those about one file matter."""

    path = ""
    """The path of the file."""
    seen: tuple[int, ...] | None = None
    """Its fingerprint at the last look."""
    are_unread = False
    """Whether another thread has taken a notification, so that a look is due though none is signalled (WI10)."""

    def ask(self) -> bool:
        """Ask for the next notification. Comes before a look, so that later changes are reported. False on failure."""
        return bool(KERNEL.FindNextChangeNotification(int(self)))

    def are_news(self) -> bool:
        """Whether the signalled notification is about the file. Asks for the next one, in this thread."""
        self.are_unread = True
        return not self.ask() or _fingerprint(self.path) != self.seen


class WindowsEnvironment(GenericEnvironment):
    guards = True
    fifos = True
    lingering = True
    has_jobs = True
    limits = "memory and page file, or the limits of a job object"
    raises_open_limit = ""  # it is the greatest that the C runtime allows

    def __init__(self, without: frozenset[str] = frozenset()) -> None:
        super().__init__(without)
        self.close = self._close
        self.keep = self._keep
        self._away: dict[str, None] = {}
        """Names that removed files have got, and may still have (WI4)."""
        self._remote: dict[str, bool] = {}
        self._storages: dict[str, Storage] = {}

    # -- who -----------------------------------------------------------------------------------------------------------

    def _boot(self) -> str:
        """The boot by its time (WI7)."""
        found = _TimeOfDay()
        if _NT.NtQuerySystemInformation(_TIME_OF_DAY, ctypes.byref(found), ctypes.sizeof(found), None) != 0:
            return super()._boot()
        return f"windows:{found.boot - found.set_by:x}"

    def inspect(self, pid: int) -> Process:
        try:
            handle = winapi.OpenProcess(_QUERY | _SYNCHRONIZE, False, pid)
        except OverflowError:
            return Process(Presence.RUNNING)  # as elsewhere: a number that somebody has made up proves nothing
        except OSError as error:
            # Access is denied to processes of other users and of the system, which exist.
            return Process(Presence.GONE if error.winerror == _NO_PROCESS else Presence.RUNNING)  # type: ignore[attr-defined]
        try:
            # Numbers are multiples of four, and Windows takes the three above each for the same. One that has ended
            # is still there while any handle to it is open.
            if KERNEL.GetProcessId(handle) != pid or winapi.WaitForSingleObject(handle, 0) == 0:
                return Process(Presence.GONE)
            times = (ctypes.c_uint64 * 4)()
            at = [ctypes.byref(times, 8 * n) for n in range(4)]
            if not KERNEL.GetProcessTimes(handle, *at):
                return Process(Presence.RUNNING)
        finally:
            winapi.CloseHandle(handle)
        return Process(Presence.RUNNING, f"c{times[0]:x}", (times[0] - _EPOCH) / 1e7)

    def command(self, pid: int) -> str | None:
        """The program alone: another process's command line cannot be had without reading its memory."""
        try:
            handle = winapi.OpenProcess(_QUERY, False, pid)
        except (OSError, OverflowError):
            return None
        try:
            text, size = ctypes.create_unicode_buffer(32768), DWORD(32768)
            return text.value if KERNEL.QueryFullProcessImageNameW(handle, 0, text, ctypes.byref(size)) else None
        finally:
            winapi.CloseHandle(handle)

    def program(self, pid: int) -> tuple[str, list[str]] | None:
        path = self.command(pid)
        return None if path is None else (path.rpartition("\\")[2], [])

    def caller(self) -> int:
        """The process that has called this one, past the starters between a shell and us: the interpreter of a virtual
        environment starts another one, and so do `py` and the program that pip makes of an entry point."""
        mine = (self.command(os.getpid()) or "").casefold()
        starters = {sys.executable.casefold(), *_STARTERS} - {mine}
        pid, child = parent(os.getpid()), os.getpid()
        for _ in range(_MOST_STARTERS):
            path = ((self.command(pid) if pid else None) or "").casefold()
            if not starters.intersection((path, path.rpartition("\\")[2])):
                break
            pid, child = parent(pid), pid
        since, born = self.inspect(pid).since, self.inspect(child).since
        return pid if since is None or born is None or since <= born else 0  # else the number is another's by now

    # -- files ---------------------------------------------------------------------------------------------------------

    def _open_handle(self, path: str, access: int, disposition: int, kind: type[File], flags: int = _AS_IT_IS) -> int:
        """Open a file with all sharing (WI1). Opening it, and entering it among the descriptors, is one call into C
        (operations.py, J1)."""

        def opened() -> int:
            found: dict[str, int] = {}
            arguments = (path, access, _SHARED, 0, disposition, flags, 0)
            handles: Any = map(found.setdefault, ("handle",), itertools.starmap(winapi.CreateFile, (arguments,)))
            opening: Any = map(msvcrt.open_osfhandle, handles, (_FLAGS,))
            try:
                return self._descriptors.open(opening.__next__, kind=kind)
            except OSError:
                if "handle" in found:
                    winapi.CloseHandle(found["handle"])  # there is no descriptor left
                raise

        try:
            fd: Any = _patiently(opened)
        except OSError as error:
            raise _named(error, path) from None
        fd.path, fd.device = path, os.fstat(fd).st_dev
        return fd  # type: ignore[no-any-return]

    def open_directory(self, path: str) -> int:
        fd = self._open_handle(native(path), _READ, _EXISTING, File)
        if stat.S_ISDIR(os.fstat(fd).st_mode) and not _is_link(fd):
            return fd
        self.close(fd)
        raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)

    def open_new(self, path: str, mode: int, *, dir_fd: int | None = None) -> int:  # noqa: ARG002
        return self._open_handle(_at(path, dir_fd), _READ | _WRITE, _NEW, New)

    def open_vanishing(self, path: str) -> int | None:
        return self._open_handle(native(path), _READ | _WRITE | _DELETE, _NEW, New, _AS_IT_IS | _GONE_ON_CLOSE)

    def open_existing(self, path: str, *, write: bool, dir_fd: int | None = None) -> int:
        fd = self._open_handle(_at(path, dir_fd), _READ | (_WRITE if write else 0), _EXISTING, File)
        is_directory = write and stat.S_ISDIR(os.fstat(fd).st_mode)
        if not is_directory and not _is_link(fd):
            return fd
        self.close(fd)
        if is_directory:
            raise IsADirectoryError(errno.EISDIR, "it is a directory", path)
        raise OSError(errno.ELOOP, "it is a link", path)

    def open_unnamed(self, directory: str, mode: int) -> int:  # noqa: ARG002
        """A file with a temporary name (WI3)."""
        if "unnamed" in self.without:
            raise OSError(errno.EOPNOTSUPP, "unnamed files are switched off", directory)
        sweep_when_due(self, directory)  # WI3
        temporary = f"{directory}/{temporary_name(self.identity(), self.token())}"
        self.operations.about_to_make(temporary)
        fd: Any = self._open_handle(native(temporary), _READ | _WRITE, _NEW, File)
        fd.temporary = temporary
        return fd  # type: ignore[no-any-return]

    def link_unnamed(self, fd: int, path: str) -> None:
        """Rename the file, never in the place of another (WI3)."""
        file: Any = fd
        for pause in (*_PAUSES, None):
            try:
                os.rename(native(file.temporary), native(path))
            except PermissionError as error:
                # A directory, or a file that is about to go (WI5), is in the way; or somebody has ours open.
                if self.exists(path):
                    raise FileExistsError(errno.EEXIST, "there is something already", path) from error
                if pause is None:
                    raise
                time.sleep(pause)
            else:
                file.temporary = ""
                return

    def _close(self, fd: int) -> None:
        temporary = getattr(fd, "temporary", "")
        if isinstance(fd, Ticket):
            self._end_ticket(fd)
        self._descriptors.close(fd)
        if temporary:
            unlink_quietly(self, temporary)  # its token makes it ours, whatever came between

    def stat(self, path: str, *, dir_fd: int | None = None) -> Stat:  # type: ignore[override]
        """The stat of a file; of one about to go (WI5), Python tells what the directory says: without a number."""
        found = os.lstat(_at(path, dir_fd))
        if dir_fd is not None and stat.S_ISREG(found.st_mode) and not path.endswith(_DESCRIPTION):
            return _told(found, mode=stat.S_IFIFO)
        if path.endswith("/.") and not stat.S_ISDIR(os.stat(native(path)).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        return _told(found)

    def fstat(self, fd: int) -> Stat:  # type: ignore[override]
        """The stat of an open file. Under Wine, one that was renamed while open is said to be on no device."""
        found, device = os.fstat(fd), getattr(fd, "device", 0)
        if isinstance(fd, Ticket):
            return _told(found, mode=stat.S_IFIFO | self._read_ticket(fd)[0], device=device)
        return _told(found, device=None if found.st_dev else device)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:  # type: ignore[override]
        """Remove a file so that its name is free at once (WI4)."""
        where = _at(path, dir_fd)
        if stat.S_ISDIR(os.lstat(where).st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory", path)
        for pause in (*_PAUSES, None):
            try:
                if not _unlink_as_posix(where):
                    self._rename_away(where)
                return
            except PermissionError:
                if pause is None:
                    raise
                time.sleep(pause)

    def replace(self, existing: str, path: str) -> None:
        os.lstat(existing)  # Wine may remove what is at `path` even if this is missing
        os.replace(existing, path)

    def _rename_away(self, path: str) -> None:
        """Rename the file, which removes the lock, and remove it by its new name, now or at a later removal (WI4)."""
        for left in self._away.copy():
            self._remove_away(left)
        away = os.path.join(os.path.dirname(path), temporary_name(self.identity(), self.token()))
        self._away[away] = None
        try:
            os.rename(path, away)
        except OSError as error:
            self._away.pop(away, None)
            raise _named(error, path) from None
        for pause in _PAUSES:
            if self._remove_away(away):
                return
            time.sleep(pause)

    def _remove_away(self, away: str) -> bool:
        """Remove a renamed file. Whether that worked; if not, the next removal tries again."""
        try:
            os.unlink(away)
        except FileNotFoundError:
            pass
        except OSError:
            return False
        self._away.pop(away, None)
        return True

    def rename(self, name: str, new: str, *, dir_fd: int) -> None:
        _patiently(lambda: os.rename(_at(name, dir_fd), _at(new, dir_fd)))

    def link(self, existing: str, path: str) -> None:
        super().link(native(existing), native(path))

    def read(self, fd: int, size: int) -> bytes:
        """Read the beginning of a file, wherever another thread reads or writes meanwhile."""
        content, count = ctypes.create_string_buffer(size), DWORD()
        at = _Overlapped(offset=0)
        if not KERNEL.ReadFile(msvcrt.get_osfhandle(fd), content, size, ctypes.byref(count), ctypes.byref(at)):
            error = _ctypes.get_last_error()
            if error == _END_OF_FILE or (error in _REFUSED and getattr(fd, "at", _FAR) == _FIRST):
                return b""  # empty, or nobody may read it as long as it is locked (WI2)
            raise _ctypes.WinError(error)
        return content.raw[: count.value]

    def write(self, fd: int, data: bytes, offset: int) -> int:
        count, at = DWORD(), _Overlapped(offset=offset)
        require(KERNEL.WriteFile(msvcrt.get_osfhandle(fd), data, len(data), ctypes.byref(count), ctypes.byref(at)))
        return count.value

    def chmod(self, fd: int, mode: int) -> None:
        if isinstance(fd, Ticket):
            self.write(fd, b"%06o" % mode, 0)
        # Elsewhere there are no permission bits: access is inherited from the directory.

    def sync_directory(self, directory: str) -> None:
        pass  # names are in the journal of NTFS; a directory cannot be flushed

    def make_directories(self, directory: str) -> None:
        try:
            os.makedirs(native(directory), exist_ok=True)
        except FileNotFoundError as error:
            raise _named(error, native(directory)) from None

    def list_directory(self, directory: str | int) -> list[str]:
        path = native(directory) if isinstance(directory, str) else getattr(directory, "path", directory)

        def names() -> list[str]:
            with self._forking:
                return os.listdir(path)

        return _patiently(names)

    def way_to(self, fd: int) -> str | None:
        return getattr(fd, "path", None)

    def exists(self, path: str) -> bool:
        return os.access(native(path), os.F_OK)

    def make_directory(self, path: str, mode: int) -> None:
        try:
            os.mkdir(native(path), mode)
        except PermissionError as error:
            if self.exists(path):  # one that is about to go
                raise FileExistsError(errno.EEXIST, "there is something already", path) from error
            raise

    def remove_directory(self, path: str) -> None:
        if not stat.S_ISDIR(os.lstat(native(path)).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        try:
            os.rmdir(native(path))
        except OSError:
            names = self.list_directory(path)
            if not names or not all(name.endswith(".tmp") for name in names):
                raise
            sweep(self, path)  # a kill has left files renamed for their removal (WI4)
            os.rmdir(native(path))

    def open_limit(self) -> int | None:
        return _MOST_DESCRIPTORS

    # -- tickets (WI6) -------------------------------------------------------------------------------------------------

    def make_fifo(self, name: str, mode: int, *, dir_fd: int) -> None:
        fd = self.open_new(name, mode, dir_fd=dir_fd)
        try:
            self.write(fd, b"%06o %s %d\n" % (mode, self.token().encode(), os.getpid()), 0)
        finally:
            self.close(fd)

    def open_fifo(self, name: str, *, write: bool, dir_fd: int) -> int:
        path = _at(name, dir_fd)
        fd: Any = self._open_handle(path, _READ if write else _READ | _WRITE, _EXISTING, Ticket)
        try:
            if write and self.guarded(fd) is False:
                raise OSError(errno.ENXIO, "its owner has left", path)  # perhaps before it had written anything
            _, fd.token, pid = self._read_ticket(fd)
            if write:
                self._follow(fd, path, pid)
            elif self.guard(fd):
                fd.gone = self._new_event(fd.token, "gone")
                fd.handles = (self._new_event(fd.token, "look"),)  # as a byte in a pipe, until it is read
            else:
                raise FileNotFoundError(errno.ENOENT, "another process looks at it", path)
        except BaseException:
            self.close(fd)
            raise
        return fd  # type: ignore[no-any-return]

    def _read_ticket(self, fd: int) -> tuple[int, str, int]:
        """The mode of a ticket, the token in the names of its events, and its process. EINVAL: it is no ticket."""
        words = self.read(fd, 64).split()
        try:
            return int(words[0], 8), words[1].decode(), int(words[2])
        except (ValueError, IndexError):
            raise OSError(errno.EINVAL, "not a ticket", getattr(fd, "path", "")) from None

    def _follow(self, fd: Ticket, path: str, pid: int) -> None:
        gone = self._descriptors.open(KERNEL.OpenEventW, _SYNCHRONIZE, False, _event(fd.token, "gone"), kind=Handle)
        if gone:
            process = self.watch_process(pid)
            fd.handles = (gone,) if process is None else (gone, process)  # type: ignore[assignment]
        else:
            self._descriptors.disown(gone)
        if self.hung_up(fd):
            raise OSError(errno.ENXIO, "its owner has left", path)
        if not gone:  # another user's
            raise PermissionError(errno.EACCES, "its events may not be opened", path)

    def _new_event(self, token: str, what: str) -> Handle:
        made: Any = self._descriptors.open(KERNEL.CreateEventW, None, True, False, _event(token, what), kind=Handle)
        if not made:
            self._descriptors.disown(made)
        require(made)
        return made  # type: ignore[no-any-return]

    def _end_ticket(self, fd: Ticket) -> None:
        gone, handles, fd.handles = fd.gone, fd.handles, ()
        if gone is not None and self.is_open(gone):
            KERNEL.SetEvent(int(gone))
            self._descriptors.close(gone)
        for handle in handles:
            self._descriptors.close(handle)

    def _keep(self, fd: int) -> None:
        if isinstance(fd, Ticket):
            for handle in (fd.gone, *fd.handles):
                if handle is not None:
                    self._descriptors.keep(handle)
        self._descriptors.keep(fd)

    def hung_up(self, fd: int) -> bool:
        return any(_is_signalled(one) for one in getattr(fd, "handles", ())) or self.guarded(fd) is False

    def nudge(self, fd: int) -> None:
        event = KERNEL.OpenEventW(_MODIFY, False, _event(getattr(fd, "token", ""), "look"))
        if event:
            KERNEL.SetEvent(event)
            winapi.CloseHandle(event)

    def drain(self, fd: int) -> bool:
        told = [one for one in getattr(fd, "handles", ()) if _is_signalled(one)]
        for event in told:
            KERNEL.ResetEvent(int(event))
        return bool(told)

    # -- the guard -----------------------------------------------------------------------------------------------------

    def guard_content(self, fd: int) -> None:
        file: Any = fd
        file.at = _FIRST

    def guard(self, fd: int, *, shared: bool = False) -> bool | None:
        if "flock" in self.without:
            return None
        wanted = _AT_ONCE if shared else _AT_ONCE | _EXCLUSIVELY
        had = getattr(fd, "guard", 0)
        if had == wanted:
            return True
        if had:
            self.unguard(fd)
        taken = _lock(fd, wanted)
        if taken and isinstance(fd, File):
            fd.guard = wanted
        return taken

    def guarded(self, fd: int) -> bool | None:
        if "flock" in self.without:
            return None
        # Shared, because two exclusive probes would each take the other for the holder.
        taken = _lock(fd, _AT_ONCE)
        if taken:
            _unlock(fd, _AT_ONCE)
        return None if taken is None else not taken

    def unguard(self, fd: int) -> None:
        had, file = getattr(fd, "guard", 0), fd
        if had and isinstance(file, File):
            file.guard = 0
            _unlock(fd, had)

    def offer_guard(self, fd: int) -> bool:
        """Give up the second byte, for another process to take (WI8). False where the guard has none."""
        if getattr(fd, "at", _FAR) == _FIRST:
            return False
        _unlock_bytes(fd, _FAR + 1, 1)
        return True

    def accept_guard(self, fd: int) -> bool:
        """Take the second byte, by a descriptor of our own; False if it is not on offer (WI8)."""
        file: Any = fd
        if not _lock_bytes(fd, _AT_ONCE | _EXCLUSIVELY, _FAR + 1, 1):
            return False
        file.guard = _SECOND
        return True

    # -- events --------------------------------------------------------------------------------------------------------

    def pipe(self, *, among_sockets: bool = False) -> tuple[int, int]:
        if not among_sockets:
            return super().pipe()
        import socket

        from .sockets import Socket

        ends = socket.socketpair()
        for one in ends:
            one.setblocking(False)
        return self.adopt(ends[0].detach(), Socket), self.adopt(ends[1].detach(), Socket)

    def watch(self, path: str, *, readers: bool = False) -> FileWatch | None:
        if readers or "events" in self.without:  # the end of a kernel lock makes no event
            return None
        directory, seen = os.path.dirname(native(path)), _fingerprint(path)
        if seen is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", path)
        found: Any = self._descriptors.open(
            KERNEL.FindFirstChangeNotificationW, directory, False, _CHANGES, kind=Changes
        )
        if found < 0:
            return None
        found.path, found.seen = path, seen
        return FileWatch(self, found, self.operations.current())

    def watch_process(self, pid: int, *, inherited: bool = False) -> int | None:
        if inherited:
            return None  # there are no forked children
        try:
            return self._descriptors.open(winapi.OpenProcess, _SYNCHRONIZE, False, pid, kind=Handle)
        except (OSError, OverflowError):
            return None

    def may_block(self, path: str) -> bool:
        return self._is_remote(path)

    def _is_remote(self, path: str) -> bool:
        """Whether the path is on another machine, which is not asked."""
        drive = os.path.splitdrive(native(path))[0]
        known = self._remote.get(drive)
        if known is None:
            known = is_share(path) or KERNEL.GetDriveTypeW(f"{drive}\\") == _REMOTE
            self._remote[drive] = known
        return known

    def storage(self, path: str, device: int | None = None) -> Storage:  # noqa: ARG002
        drive = os.path.splitdrive(native(path))[0]
        found = self._storages.get(drive)
        if found is None:
            found = self._storages[drive] = self._look_at(drive, path)
        return found

    def _look_at(self, drive: str, path: str) -> Storage:
        name = ctypes.create_unicode_buffer(64)
        known = KERNEL.GetVolumeInformationW(f"{drive}\\", None, 0, None, None, None, name, 64)
        kind = name.value.lower() if known else ""
        if not self._is_remote(path):
            return Storage(kind, text="local" if kind else "of a type that cannot be known")
        from .storage import shared, storage_of

        # LockFileEx: the server of an SMB share keeps the locks. Other redirectors (WebDAV, NFS, WSL) may not.
        return storage_of("cifs", {}) if kind in _SERVED_BY_SMB else shared(kind or "cifs")


class FileWatch:
    """A watch by change notifications. See `Watch`. They are of a whole directory, and do not say what has changed."""

    def __init__(self, env: WindowsEnvironment, changes: Changes, made: Operation | None) -> None:
        self._env = env
        self._changes = changes
        self._change = CHANGED if _fingerprint(changes.path) != changes.seen else 0
        if made is not None:
            made.watches = (*made.watches, self)

    def fds(self) -> tuple[int, ...]:
        return (self._changes,)

    def woken(self, *, over: bool = True) -> bool:
        self._read()
        return over or bool(self._change)

    def take(self) -> int:
        self._read()
        change, self._change = self._change, 0
        return change

    def close(self) -> None:
        self._env.close(self._changes)

    def _read(self) -> None:
        changes = self._changes
        if _is_signalled(changes):
            changes.ask()
        elif not changes.are_unread:
            return
        changes.are_unread = False
        found = _fingerprint(changes.path)
        if found != changes.seen:
            changes.seen, self._change = found, CHANGED


class Job:
    """A command and all that it starts. They end when the last process that has the job open ends, or closes it.

    With a name, it is the job that another process has made by that name.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name or f"Local\\holdfast-{os.urandom(16).hex()}"
        if name is None:
            self._job = KERNEL.CreateJobObjectW(None, self.name)
        else:
            self._job = KERNEL.OpenJobObjectW(_ALL_OF_A_JOB, False, self.name)
        require(self._job)
        if name is None:
            self._limit(_KILL_ON_CLOSE)

    def start(self, words: list[str], variables: dict[str, str], line: str | None = None) -> Program:
        """Start the command, or with `line` the shell that the words name. It is in the job from its first moment on,
        so it cannot be left behind outside of it."""
        import shutil
        import subprocess

        found = shutil.which(words[0], path=variables.get("PATH"))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), words[0])
        text = subprocess.list2cmdline([found, *words[1:]])
        if line is not None:
            text += f' "{line}"'  # as it is, in two quotes that /s makes the shell remove
        command = ctypes.create_unicode_buffer(text)
        block = ctypes.create_unicode_buffer("\0".join(f"{name}={value}" for name, value in variables.items()) + "\0")
        size = ctypes.c_size_t()
        KERNEL.InitializeProcThreadAttributeList(None, 1, 0, ctypes.byref(size))
        attributes, job, made = ctypes.create_string_buffer(size.value), HANDLE(self._job), _Made()
        how = _StartUp(size=ctypes.sizeof(_StartUp), attributes=ctypes.addressof(attributes))
        flags, of_start, of_process = _UNICODE | _EXTENDED, ctypes.byref(how), ctypes.byref(made)
        length = ctypes.sizeof(job)
        require(
            KERNEL.InitializeProcThreadAttributeList(attributes, 1, 0, ctypes.byref(size))
            and KERNEL.UpdateProcThreadAttribute(attributes, 0, _IN_JOBS, ctypes.byref(job), length, None, None)
            and KERNEL.CreateProcessW(None, command, None, None, False, flags, block, None, of_start, of_process)
        )
        winapi.CloseHandle(made.thread)
        return Program(made.pid, Handle(made.process))

    def pids(self) -> list[int]:
        """The processes of the job that have not ended; at most the first `_MOST_PIDS`."""
        found = _Members()
        KERNEL.QueryInformationJobObject(self._job, _PIDS, ctypes.byref(found), ctypes.sizeof(found), None)
        return [*found.pids[: found.listed]]

    def end(self) -> None:
        """Kill all processes of the job."""
        KERNEL.TerminateJobObject(self._job, 1)

    def let_go(self) -> None:
        """Let the processes of the job live on when it is closed."""
        self._limit(0)

    def _limit(self, flags: int) -> None:
        limits = (ctypes.c_uint64 * (18 if ctypes.sizeof(HANDLE) == 8 else 14))()
        limits[2] = flags  # behind two times
        require(KERNEL.SetInformationJobObject(self._job, _LIMITS, limits, ctypes.sizeof(limits)))


class Program:
    """A process that was started. `end`: the handle that tells a wait of its end."""

    def __init__(self, pid: int, end: Handle) -> None:
        self.pid = pid
        self.end = end

    def status(self) -> int | None:
        """The exit status, once it has ended: a number of 32 bits without a sign."""
        if winapi.WaitForSingleObject(int(self.end), 0) != 0:
            return None
        return int(winapi.GetExitCodeProcess(int(self.end)))


class Alarm:
    """Calls a function from a thread of its own when one of the descriptors has something to tell, for an event loop,
    which cannot wait for handles. The thread ends soon after `stop`, and touches nothing that it has waited for."""

    def __init__(self, fds: tuple[int, ...], tell: Callable[[], object]) -> None:
        self._mutex = _thread.RLock()  # the collector may come in the midst of it, and close who waits
        self._stopped = KERNEL.CreateEventW(None, True, False, None)
        if self._stopped:
            changes = {int(fd): fd for fd in fds if isinstance(fd, Changes)}
            # The first one that is signalled is told. Behind it may be others' by now, which have got the same numbers.
            handles = [self._stopped, *handles_of(fds)[: _MOST_AT_ONCE - 1]]
            _thread.start_new_thread(self._run, (handles, changes, tell))

    def stop(self) -> None:
        with self._mutex:
            if self._stopped:
                KERNEL.SetEvent(self._stopped)

    def _run(self, handles: list[int], changes: dict[int, Changes], tell: Callable[[], object]) -> None:
        try:
            while signalled := winapi.WaitForMultipleObjects(handles, False, _FOR_EVER):
                if self._are_news(changes.get(handles[signalled])):
                    tell()
                    break
        except (OSError, RuntimeError):
            pass  # they have been closed, or the loop has: the wait polls, or nobody waits any more
        winapi.WaitForSingleObject(self._stopped, _FOR_EVER)
        with self._mutex:
            stopped, self._stopped = self._stopped, 0
            winapi.CloseHandle(stopped)

    def _are_news(self, changes: Changes | None) -> bool:
        """Most changes of a directory are of other files; and see WI10."""
        if changes is None:
            return True
        with self._mutex:
            return not _is_signalled(self._stopped) and changes.are_news()


def native(path: str) -> str:
    """The path as Windows wants it. Long paths, and those to be taken as they are, have a prefix."""
    path = path.replace("/", "\\")
    if path.startswith("\\\\?\\") or len(path) <= _LONGEST_PATH:
        return path.removesuffix("\\.") if path.startswith("\\\\?\\") else path
    path = os.path.abspath(path)
    return "\\\\?\\UNC\\" + path[2:] if path.startswith("\\\\") else "\\\\?\\" + path


def _at(path: str, dir_fd: int | None) -> str:
    return native(path) if dir_fd is None else native(f"{getattr(dir_fd, 'path', '.')}/{path}")


def _fingerprint(path: str) -> tuple[int, ...] | None:
    try:
        found = os.lstat(native(path))
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def parent(pid: int) -> int:
    """The process that has started `pid`; 0 if unknown."""
    try:
        handle = winapi.OpenProcess(_QUERY, False, pid)
    except OSError:
        return 0
    try:
        found = (ctypes.c_size_t * 6)()
        status = _NT.NtQueryInformationProcess(HANDLE(handle), 0, found, ctypes.sizeof(found), None)
        return int(found[5]) if status == 0 else 0
    finally:
        winapi.CloseHandle(handle)


def _told(found: os.stat_result, *, mode: int | None = None, device: int | None = None) -> os.stat_result:
    """The stat of a file with another mode or device. The device is what all versions of Python tell: since 3.12 it has
    64 bits, of which the lower ones are what it had before."""
    device = (device or found.st_dev) & 0xFFFFFFFF
    if mode is None and device == found.st_dev:
        return found
    words = (found.st_mode if mode is None else mode, found.st_ino, device, *found[3:10])
    return os.stat_result(words, {name: getattr(found, name) for name in ("st_atime", "st_mtime", "st_ctime")})


def _event(token: str, what: str) -> str:
    return f"Global\\holdfast-{token}-{what}"


def _is_signalled(handle: int) -> bool:
    try:
        return bool(winapi.WaitForSingleObject(int(handle), 0) == 0)
    except OSError:
        return False  # it has been closed


def _is_link(fd: int) -> bool:
    return bool(getattr(os.fstat(fd), "st_file_attributes", 0) & _LINK)


def _lasts_an_instant(error: OSError) -> bool:
    """Whether the reason may pass in a moment: a file open without sharing, or one that is about to go."""
    number = getattr(error, "winerror", None)
    return number == _SHARING or (number == _DENIED and _NT.RtlGetLastNtStatus() & 0xFFFFFFFF == _DELETE_PENDING)


def _patiently(step: Callable[[], T]) -> T:
    """The step's result; it is tried again while another program is in its way for an instant."""
    for pause in _PAUSES:
        try:
            return step()
        except OSError as error:
            if not _lasts_an_instant(error):
                raise
        time.sleep(pause)
    return step()


def _named(error: OSError, path: str) -> OSError:
    """The error with its path, and with its reason where Windows only says that it finds nothing."""
    if getattr(error, "winerror", None) == _TOO_LONG or len(os.path.basename(path)) > _LONGEST_NAME:
        return OSError(errno.ENAMETOOLONG, "the name is too long", path)
    if getattr(error, "winerror", None) == _NO_PATH:
        above = os.path.dirname(path)
        while above != (further := os.path.dirname(above)) and not os.path.lexists(above):
            above = further
        if os.path.isfile(above):
            return NotADirectoryError(errno.ENOTDIR, "not a directory", above)
    error.filename = path
    return error


def _unlink_as_posix(path: str) -> bool:
    """Remove a file so that its name goes at once. False where the filesystem cannot do that."""
    for left in _removing.copy():
        if not is_running(left):
            _end_removal(left)
    frame: Any = sys._getframe()
    arguments = (path, _DELETE, _SHARED, 0, _EXISTING, _AS_IT_IS, 0)
    try:
        (handle,) = map(_removing.setdefault, (frame,), itertools.starmap(winapi.CreateFile, (arguments,)))
        how = DWORD(_POSIX_DELETE)
        if KERNEL.SetFileInformationByHandle(handle, _DISPOSITION_EX, ctypes.byref(how), ctypes.sizeof(how)):
            return True
        error = _ctypes.get_last_error()
    except OSError as refused:
        raise _named(refused, path) from None
    finally:
        _end_removal(frame)
        frame = None  # it refers to itself
    if error in _UNSUPPORTED:
        return False
    raise _named(_ctypes.WinError(error), path)


def _end_removal(frame: FrameType) -> None:
    """Close what it has opened. What takes it off the list, and what closes it, is one call into C."""
    if frame in _removing:
        for _ in map(winapi.CloseHandle, map(_removing.pop, (frame,))):
            pass


def _lock(fd: int, how: int) -> bool | None:
    """Lock the bytes of the guard, for an exclusive one in their order (WI8)."""
    if getattr(fd, "at", _FAR) == _FIRST:
        return _lock_bytes(fd, how, _FIRST, 1)
    if not how & _EXCLUSIVELY:
        return _lock_bytes(fd, how, _FAR, 2)
    taken = _lock_bytes(fd, how, _FAR, 1)
    if taken and not _lock_bytes(fd, how, _FAR + 1, 1):
        _unlock_bytes(fd, _FAR, 1)
        return False
    return taken


def _unlock(fd: int, how: int) -> None:
    if getattr(fd, "at", _FAR) == _FIRST:
        _unlock_bytes(fd, _FIRST, 1)
    elif how == _AT_ONCE:
        _unlock_bytes(fd, _FAR, 2)
    else:
        _unlock_bytes(fd, _FAR + 1, 1)
        if how == _SECOND:
            _touch(fd)
        else:
            _unlock_bytes(fd, _FAR, 1)


def _lock_bytes(fd: int, how: int, at: int, count: int) -> bool | None:
    where = _Overlapped(offset=at)
    if KERNEL.LockFileEx(msvcrt.get_osfhandle(fd), how, 0, count, 0, ctypes.byref(where)):
        return True
    error = _ctypes.get_last_error()
    if error in _REFUSED:
        return False
    if error in _UNSUPPORTED:
        return None
    raise _ctypes.WinError(error)


def _unlock_bytes(fd: int, at: int, count: int) -> None:
    where = _Overlapped(offset=at)
    KERNEL.UnlockFileEx(msvcrt.get_osfhandle(fd), 0, count, 0, ctypes.byref(where))


def _touch(fd: int) -> None:
    """Set the time of the file, which waiters are told of (WI9)."""
    now = ctypes.c_uint64(time.time_ns() // 100 + _EPOCH)
    KERNEL.SetFileTime(msvcrt.get_osfhandle(fd), None, None, ctypes.byref(now))
