"""An unfriendly neighbour: the target of a path is exchanged for something else, between any two system calls.

`Watchful` counts the calls that go by a path while it is open, and calls `before(number, path)` ahead of each. Calls on
descriptors are no steps: an exchange before one of them is the same as one before the next that goes by a path.
`KINDS` are the things that a path is exchanged for; most of them lead to files of an `Outside`, and these must stay as
they are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast._core.hold import HoldRef
from holdfast._drivers.sync import drive
from holdfast._platform import inotify, linux, portable
from holdfast._platform.linux import LinuxEnvironment
from holdfast._platform.portable import GenericEnvironment
from holdfast._platform.values import temporary_name
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.request import FileRequest
from holdfast.engines.file.uncontended import acquire
from holdfast.model import Identity, marker_text
from unit.elsewhere import NOBODY as STRANGER
from unit.failing import Module, instance
from unit.fault_operations import NOBODY, die
from unit.stepping import sema_record

OLD = 1_000_000
HUGE = 10 * 2**30
_CALLS = ("open", "lstat", "stat", "unlink", "mkdir", "rmdir", "listdir", "scandir", "access", "readlink", "chmod")
_REAL_OPEN, _LISTING = os.open, (os.listdir, os.scandir)


class Watchful:
    """The calls of this process that go by a path."""

    def __init__(self) -> None:
        self.open = False
        self.count = 0
        self.before: Callable[[int, str], object] | None = None
        self.forbidden = "/nowhere"
        """A directory in which nothing may be opened or listed by a path that only leads there."""
        self.strayed: list[str] = []

    def step(self, path: Any, dir_fd: int | None = None) -> None:
        if not self.open or isinstance(path, int):
            return
        self.open = False
        try:
            text = os.fsdecode(path)
            if dir_fd is not None:
                text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
            if text.startswith("/proc/self/fd/"):  # of a directory that was entered (clean.py, M13)
                text = os.path.join(os.path.realpath(os.path.dirname(text)), os.path.basename(text))
            if not text.startswith(("/proc", "/sys")):
                number, self.count = self.count, self.count + 1
                if self.before is not None:
                    self.before(number, text.removesuffix("/."))
        finally:
            self.open = True

    def wrapped(self, real: Callable[..., Any], at: int = 0) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if not self.open or len(args) <= at:
                return real(*args, **options)
            self.step(args[at], options.get("dir_fd"))
            result = real(*args, **options)
            if isinstance(result, int) and real is _REAL_OPEN:
                self._note(os.readlink(f"/proc/self/fd/{result}"), args[at])
            elif real in _LISTING and not isinstance(args[at], int):
                self.open = False  # how this finds out is no step
                self._note(os.path.realpath(args[at]), args[at])
                self.open = True
            return result

        return call

    def _note(self, led: str, path: object) -> None:
        if f"{led}/".startswith(f"{self.forbidden}/"):
            self.strayed.append(f"{path!r} led to {led}")


class _Library:
    """The C library as inotify.py calls it."""

    def __init__(self, real: Any, watchful: Watchful) -> None:
        self._real, self._watchful = real, watchful

    def __getattr__(self, name: str) -> Any:
        if name == "inotify_init1":
            return instance  # closing one, as thousands of cases would, takes 10 ms each
        real = getattr(self._real, name)
        return self._watchful.wrapped(real, 1) if name == "inotify_add_watch" else real


@contextlib.contextmanager
def watchful() -> Iterator[Watchful]:
    """Make calls of `os` steps in this block, while the result is open."""
    made = Watchful()
    before: list[tuple[Any, str, Any]] = []
    added: set[Any] = set()

    def replace(holder: Any, name: str, value: Any) -> None:
        before.append((holder, name, vars(holder).get(name)))
        setattr(holder, name, value)

    for name in _CALLS:
        real = getattr(os, name)
        wrapped = made.wrapped(real)
        replace(os, name, wrapped)
        if real in os.supports_dir_fd:
            added.add(wrapped)
        if name in ("unlink", "lstat"):
            replace(GenericEnvironment, "stat" if name == "lstat" else name, staticmethod(wrapped))
    replace(os, "link", made.wrapped(os.link, 1))
    replace(linux, "link_empty_path", made.wrapped(linux.link_empty_path, 1))
    replace(inotify, "_libc", _Library(inotify._libc, made))
    # Environments are made by the thousand here, and each fork of a test to come would call them all.
    replace(portable, "os", Module(os, register_at_fork=lambda **_hooks: None))
    os.supports_dir_fd.update(added)
    try:
        yield made
    finally:
        made.open = False
        os.supports_dir_fd.difference_update(added)
        for holder, name, value in reversed(before):
            if value is None:
                delattr(holder, name)
            else:
                setattr(holder, name, value)


# -- what is outside ---------------------------------------------------------------------------------------------------


class Outside:
    """Files outside that must stay as they are, and a lock that is held among them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        here = LinuxEnvironment().identity()
        gone = Identity(NOBODY, here.boot, here.pid_namespace, "t1", here.host)
        device = os.stat(root).st_dev
        dead = sema_record(NOBODY, OLD, "dead", marker_text(True, device, gone))
        self._write("text", b"people's data\n", 0o600)
        self._write("empty", b"", 0o600)
        self._write("number", b"4711\n", 0o644)
        self._write("unfinished", b"", 0o1600)
        self._write("dead", dead, 0o644)
        self._write("ended", sema_record(NOBODY, OLD, "ended", marker_text(False, device, gone)), 0o644)
        self._write("tagged", b"\n" + dead, 0o644)
        inner = root / "directory"
        inner.mkdir()
        for name in ("l", "l.lock", "l.0.lock", "l.1.lock", ".exclusive-lock", "x.lock"):
            self._write(f"directory/{name}", dead, 0o644)
        for name in (
            f"{1:020d}-x-{NOBODY}-{0:016x}",
            temporary_name(gone, "0" * 16),
            f"l.{NOBODY}.{'0' * 16}.tmp",
            "l.token",
            "l.lock.token",
        ):
            self._write(f"directory/{name}", b"state=waiting\n", 0o644)
        (inner / "l.lock.reclaim").mkdir(mode=0o755)
        os.chmod(inner / "l.lock.reclaim", 0o1755)
        queue = inner / ".holdfast-l.queue"
        queue.mkdir()
        self._write(f"directory/.holdfast-l.queue/{1:020d}-x-{NOBODY}-{0:016x}", b"state=waiting\n", 0o644)
        os.mkfifo(root / "pipe", 0o600)
        self._reader = os.open(root / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        self._keeper = LinuxEnvironment()
        self.held = taken(self._keeper, root / "held")
        for path in sorted(root.rglob("*"), reverse=True):
            os.utime(path, (OLD, OLD), follow_symlinks=False)
        os.utime(root, (OLD, OLD))
        self._before, self._data = self._now(), self._contents()

    def _write(self, name: str, data: bytes, mode: int) -> None:
        path = self.root / name
        path.write_bytes(data)
        path.chmod(mode)

    def _now(self) -> dict[str, tuple[object, ...]]:
        found: dict[str, tuple[object, ...]] = {}
        directories = [str(self.root)]
        for where in directories:
            found[where] = _described(os.lstat(where))
            with os.scandir(where) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.path)
                    else:
                        found[entry.path] = _described(entry.stat(follow_symlinks=False))
        return found

    def _contents(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.root.rglob("*") if path.is_file()}

    def differences(self, *, bytewise: bool = False) -> list[str]:
        """Differences from the beginning: mode, owner, size, time or name; `bytewise`: or content."""
        before: dict[str, Any]
        before, now = self._before, self._now()
        if before == now and bytewise:
            before, now = self._data, self._contents()  # type: ignore[assignment]
        wrong = [
            f"{path}: {before.get(path)} is now {now.get(path)}"
            for path in sorted(before.keys() | now.keys())
            if before.get(path) != now.get(path)
        ]
        return wrong if self.held.verify() else [*wrong, "the lock outside is not held any more"]

    def end(self) -> None:
        self.held.release()
        os.close(self._reader)
        die(self._keeper)
        shutil.rmtree(self.root)


def _described(found: os.stat_result) -> tuple[object, ...]:
    return found.st_mode, found.st_uid, found.st_gid, found.st_size, found.st_mtime_ns


def taken(env: Any, path: Path) -> FileHold:
    """A free lock, acquired."""
    ref = drive(acquire(env, (FileRequest(path, {}),), 0, (object(),)))
    assert isinstance(ref, HoldRef)
    return ref.held


# -- what a path is exchanged for --------------------------------------------------------------------------------------


def _link(target: str) -> Callable[[str, Outside], None]:
    return lambda path, outside: os.symlink(outside.root / target, path)


def _hard_link(target: str) -> Callable[[str, Outside], None]:
    return lambda path, outside: os.link(outside.root / target, path)


def _full_directory(path: str, _outside: Outside) -> None:
    os.mkdir(path)
    Path(path, "theirs").write_bytes(b"")


def _huge(path: str, _outside: Outside) -> None:
    Path(path).write_bytes(sema_record(NOBODY, OLD, "huge"))
    os.truncate(path, HUGE)


def _forged(path: str, _outside: Outside) -> None:
    Path(path).write_bytes(sema_record(1, time.time(), "\x1b[31mforged"))


KINDS: dict[str, Callable[[str, Outside], None]] = {
    "nothing": lambda _path, _outside: None,
    "a link to a file": _link("text"),
    "a link to a dead record": _link("dead"),
    "a link to nothing": _link("nothing"),
    "a link to a directory": _link("directory"),
    "a FIFO": lambda path, _outside: os.mkfifo(path),
    "a device": lambda path, _outside: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 7)),
    "a directory": lambda path, _outside: os.mkdir(path),
    "a directory with a file": _full_directory,
    "a hard link to a file": _hard_link("text"),
    "a hard link to an empty file": _hard_link("empty"),
    "a hard link to a number": _hard_link("number"),
    "a hard link to an unfinished file": _hard_link("unfinished"),
    "a hard link to a dead record": _hard_link("dead"),
    "a hard link to an ended record": _hard_link("ended"),
    "a hard link to a held lock": _hard_link("held"),
    "a hard link to a FIFO": _hard_link("pipe"),
    "10 GB": _huge,
    "a forged record": _forged,
}
"""Things by name; each function makes one at a path where nothing is."""


class Neighbour:
    """Exchanges things in a directory. The previous things are moved aside, within it."""

    def __init__(self, place: Path, outside: Outside) -> None:
        self._place, self._outside = place, outside
        self.moved = 0

    def exchange(self, path: str, kind: str) -> None:
        """Exchange a path for such a thing. OSError if there is no such directory any more, or such a thing cannot be
        made here."""
        if not path.startswith(f"{self._place}/") or not os.path.isdir(os.path.dirname(path)):
            return
        if os.path.lexists(path):
            self.moved += 1
            os.rename(path, self._place / f"moved-{self.moved}")
        KINDS[kind](path, self._outside)
        if os.geteuid() == 0 and not kind.startswith("a hard link") and kind != "nothing":
            os.lchown(path, STRANGER, STRANGER)
