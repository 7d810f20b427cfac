"""A command with a filesystem of its own, which is gone when the command has ended, whatever has happened to it.

    python filesystem.py KIND COMMAND [ARGUMENT ...]

KIND is one of `KINDS`. The command finds the directory in HOLDFAST_TEST_PLACE (and TMPDIR). It runs in a mount and a
PID namespace, which the kernel takes apart when its first process ends: that ends the command's processes and FUSE
servers, unmounts everything, frees loop devices, and drops the images, which are in memory. The first process is killed
when whoever started this is. Exit status: the command's; 77 and a reason where this filesystem cannot be had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

UNABLE = 77
POINTS = ("/media", "/srv", "/mnt", "/opt")
"""Mount points: the first empty one is hidden below a filesystem in memory, for the command alone."""
NAMESPACE = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]
PROGRAMS = {"ext4": ("mkfs.ext4",), "xfs": ("mkfs.xfs",), "btrfs": ("mkfs.btrfs",), "fuse": ("bindfs",)}
IMAGE = 512 << 20
"""Bytes of an image, of which few are ever written. mkfs.xfs wants more than 300 MiB."""


class Unable(Exception):
    """This filesystem cannot be had here; the text says why."""


def tmpfs(base: Path, place: Path) -> None:
    mount("-t", "tmpfs", "tmpfs", place)


def on_loop(*mkfs: str) -> Callable[[Path, Path], None]:
    def make(base: Path, place: Path) -> None:
        image = base / "image"
        with image.open("wb") as file:
            file.truncate(IMAGE)
        run(*mkfs, image)
        mount("-o", "loop", image, place)

    return make


def overlay(base: Path, place: Path) -> None:
    """Mount an overlay of two filesystems."""
    lower, upper = base / "lower", base / "upper"
    for directory in (lower, upper):
        directory.mkdir()
        mount("-t", "tmpfs", "tmpfs", directory)
    for directory in (upper / "files", upper / "work"):
        directory.mkdir()
    mount("-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={upper}/files,workdir={upper}/work", place)


def upper_of_overlay(base: Path, place: Path) -> None:
    """Mount the directory below an overlay, while that is mounted elsewhere."""
    lower, merged = base / "lower", base / "merged"
    for directory in (lower, merged, place / "files", place / "work"):
        directory.mkdir()
    options = f"lowerdir={lower},upperdir={place}/files,workdir={place}/work"
    mount("-t", "overlay", "overlay", "-o", options, merged)
    mount("--bind", place / "files", place)


def fuse(base: Path, place: Path) -> None:
    if not os.path.exists("/dev/fuse"):
        raise Unable("there is no /dev/fuse")
    (base / "below").mkdir()
    run("bindfs", base / "below", place)


def bind(base: Path, place: Path) -> None:
    (base / "below").mkdir()
    mount("--bind", base / "below", place)


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "tmpfs": tmpfs,
    "ext4": on_loop("mkfs.ext4", "-q", "-F"),
    "xfs": on_loop("mkfs.xfs", "-q", "-f"),
    "btrfs": on_loop("mkfs.btrfs", "-q", "-f"),
    "overlay": overlay,
    "upper": upper_of_overlay,
    "fuse": fuse,
    "bind": bind,
}


def command(kind: str, words: list[str]) -> list[str]:
    """The command that runs these words on such a filesystem; Unable if that is impossible."""
    if os.geteuid() != 0:
        raise Unable("needs root, to mount")
    for program in ("setpriv", "unshare", "mount", *PROGRAMS.get(kind, ())):
        if shutil.which(program) is None:
            raise Unable(f"{program} is not installed")
    return ["setpriv", "--pdeathsig", "KILL", *NAMESPACE, sys.executable, __file__, "-inside", kind, *words]


def inside(kind: str, words: list[str]) -> int:
    point = next((Path(name) for name in POINTS if os.path.isdir(name) and not os.listdir(name)), None)
    if point is None:
        raise Unable(f"none of {', '.join(POINTS)} is there, and empty, to mount on")
    mount("-t", "tmpfs", "tmpfs", point)
    base, place = point / "base", point / "place"
    for directory in (base, place):
        directory.mkdir()
    KINDS[kind](base, place)
    place.chmod(0o1777)
    os.chdir(Path(__file__).parents[2])
    environment = {**os.environ, "HOLDFAST_TEST_PLACE": str(place), "TMPDIR": str(place)}
    return wait_for_all(subprocess.Popen(words, env=environment).pid)


def wait_for_all(command: int) -> int:
    """The exit status of the command. As process 1 of its namespace, this also reaps processes that lose their
    parents."""
    while True:
        pid, status = os.wait()
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def mount(*words: object) -> None:
    run("mount", *words)


def run(*words: object) -> None:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise Unable(f"{' '.join(map(str, words))}: {done.stderr.strip()}")


def main(words: list[str]) -> int:
    try:
        if words[0] == "-inside":
            return inside(words[1], words[2:])
        argv = command(words[0], words[1:])
    except Unable as why:
        print(f"no {words[words[0] == '-inside']} here: {why}", file=sys.stderr)
        return UNABLE
    return os.execvp(argv[0], argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
