"""Processes and mounts, as `/proc` shows them.

No server is asked, so nothing here can hang. Hidden, vanished and torn entries are missing from the answer, and are no
errors.
"""

from __future__ import annotations

import os
from io import FileIO

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


MOUNTS = "/proc/self/mountinfo"
_MOST_LINKS = 40
_OCTAL = frozenset("01234567")


def read(path: str) -> str:
    """The text of a file, each byte a character; empty if it cannot be read."""
    try:
        with FileIO(path) as file:
            return file.readall().decode("latin-1")
    except OSError:
        return ""


# -- processes ---------------------------------------------------------------------------------------------------------


def is_ours() -> bool:
    """Whether `/proc` shows this PID namespace: after `unshare --pid` it may still show that of another."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())
    except OSError:
        return False


def pids() -> Iterator[int]:
    """All processes that `/proc` shows."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    yield from (int(name) for name in names if name.isdecimal())


def stat_fields(pid: int | str) -> list[str]:
    """The fields of `/proc/PID/stat` from the third on; empty if there is no such process, or it is hidden."""
    # The name in field 2 may hold blanks and parentheses; what follows the last one is plain.
    return read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def words(pid: int, most: int) -> list[bytes] | None:
    """The command line of a process, as far as it is in the first `most` bytes; None if unknown."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(most).rstrip(b"\0").split(b"\0")
    except OSError:
        return None


def descriptors(pid: int) -> tuple[str, list[str]]:
    """The directory of `/proc` that shows the descriptors of a process, and these; OSError if it may not be looked at.
    If its first thread has ended, that shows none, and another one all."""
    shown = f"/proc/{pid}"
    fds = os.listdir(f"{shown}/fd")
    for thread in () if fds else os.listdir(f"{shown}/task"):
        at = f"{shown}/task/{thread}"
        fds = os.listdir(f"{at}/fd")
        if fds:
            return at, fds
    return shown, fds


def comm(pid: int) -> str:
    """The name of a process's program, for people; empty if unknown."""
    return read(f"/proc/{pid}/comm").encode("latin-1").decode("utf-8", "replace").strip()


# -- mounts ------------------------------------------------------------------------------------------------------------


class Mount:
    """A line of a `mountinfo`. Its parts are read when they are asked for, as most never are."""

    __slots__ = ("_right", "_words")

    def __init__(self, line: str) -> None:
        left, _, self._right = line.partition(" - ")
        self._words = left.split(" ", 5)

    @property
    def is_whole(self) -> bool:
        return self._right.count(" ") >= 2 and len(self._words) > 5

    @property
    def number(self) -> str:
        return self._words[0]

    @property
    def device(self) -> int:
        """The device of its superblock; -1 if it cannot be read."""
        major, _, minor = self.numbers.partition(":")
        try:
            return os.makedev(int(major), int(minor))
        except (ValueError, OverflowError):
            return -1

    @property
    def root(self) -> str:
        """The directory of the filesystem that is mounted."""
        return _plain(self._words[3])

    @property
    def point(self) -> str:
        """The directory where it is mounted."""
        return _plain(self._words[4])

    @property
    def kind(self) -> str:
        """The type of the filesystem."""
        return self._right.split(" ", 1)[0]

    @property
    def source(self) -> str:
        """The device, the server's directory, or any word that is mounted."""
        return _plain(self._right.split(" ", 2)[1]) if " " in self._right else ""

    @property
    def options(self) -> dict[str, str]:
        """Options of the filesystem, and of this mount; empty where one has no value."""
        words = [*self._right.rpartition(" ")[2].split(","), *self._words[5].split(" ", 1)[0].split(",")]
        return {name: _plain(value) for name, _, value in (word.partition("=") for word in words)}

    @property
    def upper(self) -> str:
        """The upper directory, if it is an overlay; else empty."""
        return self.options.get("upperdir", "") if "upperdir=" in self._right else ""

    @property
    def numbers(self) -> str:
        """Numbers of the device, as they are written."""
        return self._words[2]


def parse_mounts(text: str) -> list[Mount]:
    """The mounts in a `mountinfo`, in its order; torn lines are skipped."""
    return [mount for mount in map(Mount, text.split("\n")) if mount.is_whole]


def mounts() -> list[Mount]:
    """All mounts that this process sees."""
    return parse_mounts(read(MOUNTS))


def mount_at(path: str, table: list[Mount]) -> Mount | None:
    """The mount with the longest matching mount point; None if there is none.

    Symbolic links are not followed, so it is a first answer and not the last one.
    """
    wanted = os.path.normpath(path).replace("//", "/") + "/"
    best, longest = None, 0
    for mount in table:
        prefix = mount.point.rstrip("/") + "/"
        if len(prefix) >= longest and wanted.startswith(prefix):  # of two on one point the later one lies on top
            best, longest = mount, len(prefix)
    return best


def mount_on_the_way(path: str, table: list[Mount], wanted: Collection[Mount]) -> Mount | None:
    """The first of the wanted mounts that a call meets which follows this path, and its symbolic links; None if there
    is none.

    Nothing that lies on such a mount is looked at.
    """
    at, rest, links = "/", path.split("/")[::-1], 0
    while True:
        mount = mount_at(at, table)
        if mount in wanted:
            return mount
        try:
            target = os.readlink(at) if at != "/" else ""
        except OSError:
            target = ""  # no link, or not there
        if target:
            links += 1
            if links > _MOST_LINKS:
                return None
            rest.extend(target.split("/")[::-1])
            at = "/" if target.startswith("/") else os.path.dirname(at)
        while rest and rest[-1] in ("", "."):
            rest.pop()
        if not rest:
            return None
        name = rest.pop()
        at = os.path.dirname(at) if name == ".." else os.path.join(at, name)


def mount_of(device: int, table: list[Mount]) -> Mount | None:
    """A mount of the filesystem with this `st_dev`. `statfs` cannot tell sshfs from other FUSE; the table can.

    It does not list the devices of subvolumes (btrfs).
    """
    numbers = f"{os.major(device)}:{os.minor(device)}"
    return next((mount for mount in table if mount.numbers == numbers), None)


def _plain(text: str) -> str:
    """The path that is meant: blanks, tabs, newlines and backslashes are written as a backslash and three octal
    digits."""
    if "\\" not in text:
        return os.fsdecode(text.encode("latin-1"))
    first, *others = text.split("\\")
    raw = first + "".join(
        # Some filesystems write their options as they were given, backslashes too (9p under WSL).
        chr(int(part[:3], 8) & 0xFF) + part[3:] if len(part) > 2 and _OCTAL.issuperset(part[:3]) else "\\" + part
        for part in others
    )
    return os.fsdecode(raw.encode("latin-1"))
