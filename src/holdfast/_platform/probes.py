"""Abilities of a directory's filesystem and of this system for locks, found out by trying.

PB1  Nothing is left: each file of ours is unnamed, or has a name that tells whose it is (publish.py), so that a
    leftover of a kill is removed by the next process that publishes through names there.
PB2  No lock is touched: every probe is of a file made here.
"""

from __future__ import annotations

import os
import stat

from . import procfs
from .interface import Abilities, Limits
from .portable import CLOEXEC, NOFOLLOW, NONBLOCK, GenericEnvironment
from .values import CHANGED, CLOSED, temporary_name

_MOST_MOUNTS = 8


def abilities(env: GenericEnvironment, directory: str) -> Abilities:
    """The abilities of a directory. OSError if it has none: it is not there, or nothing may be made in it."""
    found = os.stat(directory)
    probe = _Probe(env, directory)
    try:
        link_proc = probe.link_unnamed("proc")
        return Abilities(
            storage=env.storage(f"{directory}/x"),
            mode=stat.S_IMODE(found.st_mode),
            uid=found.st_uid,
            exclusive=probe.exclusive(),
            unnamed=link_proc is not None,
            link_proc=link_proc,
            link_empty=probe.link_unnamed("empty"),
            link=probe.link(),
            guard=probe.guarded_at(probe.path),
            guard_by_names=probe.guard_by_names(),
            guard_by_mounts=probe.guard_by_mounts(),
            events=probe.events(),
            sync=probe.sync(),
            bits=probe.bits(),
            ordered=env.fifos,
        )
    finally:
        probe.end()


class _Probe:
    """A file of ours, open, and its names."""

    def __init__(self, env: GenericEnvironment, directory: str) -> None:
        self._env = env
        self._directory = directory
        self._names: list[str] = []
        self._fds: list[int] = []
        self.path = self._name()
        try:
            self.fd = self._open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            os.write(self.fd, b"a probe of holdfast doctor\n")
        except BaseException:
            self.end()
            raise

    def _name(self) -> str:
        """A new name for a file of ours, which `end` removes (PB1)."""
        path = f"{self._directory}/{temporary_name(self._env.identity(), self._env.token())}"
        self._names.append(path)
        return path

    def _open(self, path: str, flags: int) -> int:
        fd = os.open(path, flags | CLOEXEC | NOFOLLOW | NONBLOCK, 0o600)
        self._fds.append(fd)
        return fd

    def end(self) -> None:
        for fd in self._fds:
            os.close(fd)  # first: on Windows, an open file cannot be removed
        for path in self._names:
            try:
                os.unlink(path)
            except OSError:
                pass
        self._names, self._fds = [], []

    def exclusive(self) -> bool:
        try:
            self._open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return True
        return False

    def link_unnamed(self, way: str) -> bool | None:
        """Whether an unnamed file can be given a name; None where there are none."""
        if self._env.lingering:
            return None
        try:
            fd = self._env.open_unnamed(self._directory, 0o600)
        except OSError:
            return None
        try:
            path = self._name()
            if way == "empty":
                from .linux import link_empty_path

                link_empty_path(fd, path)
            elif "proc" in self._env.without:
                return False
            else:
                os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
            return True
        except OSError:
            return False
        finally:
            self._env.close(fd)

    def link(self) -> bool:
        try:
            self._env.link(self.path, self._name())
        except OSError:
            return False
        return True

    def guard_by_names(self) -> bool | None:
        """Whether a guard is seen through another name of the file; None where there are no such names, or no guards.

        On SMB there are names by which the file cannot be opened.
        """
        path = self._name()
        try:
            self._env.link(self.path, path)
            return self.guarded_at(path)
        except OSError:
            return None

    def guard_by_mounts(self) -> tuple[str, ...]:
        """Other places where the directory is visible, but a guard is not."""
        found = os.fstat(self.fd)
        name = os.path.basename(self.path)
        missed = []
        for directory in _elsewhere(self._directory) if self._env.guards else ():
            try:
                other = os.lstat(f"{directory}/{name}")
            except OSError:
                continue
            if (found.st_ino, found.st_size) == (other.st_ino, other.st_size) and not self.guarded_at(
                f"{directory}/{name}"
            ):
                missed.append(directory)
        return tuple(missed)

    def guarded_at(self, path: str) -> bool | None:
        """Whether a guard is seen through another descriptor; None where none can be taken."""
        if self._env.guard(self.fd) is not True:
            return None
        try:
            return self._is_guarded(path)
        finally:
            self._env.unguard(self.fd)

    def _is_guarded(self, path: str) -> bool:
        fd = os.open(path, os.O_RDONLY | CLOEXEC | NOFOLLOW | NONBLOCK)
        try:
            return self._env.guarded(fd) is True
        finally:
            os.close(fd)

    def events(self) -> bool:
        """Whether each change of the file makes an event, also changes by other processes."""
        watch = self._env.watch(self.path)
        if watch is None:
            return False
        if self._env.lingering:  # a file that this has open cannot be removed
            watch.close()
            return self._env.events_reach(self.path)
        try:
            os.close(os.open(self.path, os.O_WRONLY | CLOEXEC | NOFOLLOW | NONBLOCK))
            closed = watch.take()
            os.unlink(self.path)
            return bool(closed & CLOSED and watch.take() & CHANGED) and self._env.events_reach(self.path)
        except OSError:
            return False  # another file has been put there
        finally:
            watch.close()

    def sync(self) -> bool:
        try:
            os.fsync(self.fd)
            self._env.sync_directory(self._directory)
        except OSError:
            return False
        return True

    def bits(self) -> bool:
        """Whether a file keeps its permission bits, the sticky one too."""
        try:
            self._env.chmod(self.fd, 0o1600)
        except OSError:
            return False
        return stat.S_IMODE(os.fstat(self.fd).st_mode) == 0o1600


def _elsewhere(directory: str) -> list[str]:
    """Other places where the directory is mounted, as far as the mount table tells; and an overlay's upper
    directory."""
    real = os.path.realpath(directory)
    mounts = procfs.mounts()
    ours = procfs.mount_at(real, mounts)
    if ours is None:
        return []
    inside = real[len(ours.point.rstrip("/")) :]
    found = [f"{ours.upper}{inside}"] if ours.upper else []
    wanted = f"{ours.root.rstrip('/')}{inside}"
    found += [
        mount.point.rstrip("/") + wanted[len(mount.root.rstrip("/")) :]
        for mount in mounts
        if mount.device == ours.device and f"{wanted}/".startswith(f"{mount.root.rstrip('/')}/")
    ]
    return [path for path in dict.fromkeys(found) if path != real][:_MOST_MOUNTS]


def limits(directory: str) -> Limits:
    """Resources that may run out for locks in a directory."""
    instances, watches = _in_use(os.getuid()) if hasattr(os, "getuid") else (0, 0)
    most_instances, most_watches = _number("max_user_instances"), _number("max_user_watches")
    return Limits(instances, most_instances, watches, most_watches, *_descriptors(), *_space(directory))


def _descriptors() -> tuple[int | None, int | None]:
    """Soft and hard limit of open descriptors of a process; None: no limit, or unknown."""
    try:
        import resource
    except ImportError:
        return None, None
    soft, hard = (None if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    return soft, hard


def _space(directory: str) -> tuple[int, int | None]:
    if not hasattr(os, "statvfs"):
        import shutil

        return shutil.disk_usage(directory).free, None
    space = os.statvfs(directory)
    return space.f_bavail * space.f_frsize, space.f_favail if space.f_files else None


def _in_use(uid: int) -> tuple[int, int]:
    """Numbers of inotify instances and watches that a user's processes have."""
    if not os.path.isdir("/proc/self"):
        return 0, 0
    from .proc_locks import OpenFiles, parse_watches

    instances = watches = 0
    for pid in procfs.pids():
        process = OpenFiles(pid)
        try:
            if os.stat(f"/proc/{pid}").st_uid != uid:
                continue
        except OSError:
            continue
        for fd in process.descriptors() or ():
            information = process.information(fd, events=True)
            instances += bool(information)
            watches += len(parse_watches(information))
    return instances, watches


def _number(limit: str) -> int | None:
    text = procfs.read(f"/proc/sys/fs/inotify/{limit}").strip()
    return int(text) if text.isdecimal() else None
