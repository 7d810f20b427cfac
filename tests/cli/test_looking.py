"""`ls` and `status` change nothing and wake nobody."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.support import World
from cli.test_break import PLAIN
from holdfast._platform.linux import LinuxEnvironment
from process.support import Peer

NOW = int(time.time())
FOREIGN = {
    "stale": f"pid=999999999\ntimestamp={NOW - 7200}\n",
    "young": f"pid=999999999\ntimestamp={NOW}\n",
    "bad.lock": "pid=x\n",
    "new.lock": "",
    "empty.lock": "",
    "free": "protocol=flock\npid=1\ntimestamp=1\n",
    "there.lock": json.dumps({"pid": 7, "host": "farm", "createdAt": "2999-01-01T00:00:00.000Z"}),
    ".exclusive-lock": "{}",
    "notes.txt": "text\n",
    "data": "data\n",
}
HELD = ("sema", "semats", "sidecar", "beads", "flock")


# The world's environment has no HOLDFAST_OS and no HOLDFAST_WITHOUT, and so it is for the holder and the watches.
HOLD = """
for protocol, path in locks.items():
    Lock(path, protocol=protocol, tag="why", **({} if protocol == "flock" else {"heartbeat": 0})).acquire()
say("held")
hear()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Peer]:
    """A process that holds one lock of each protocol."""
    for protocol in HELD:
        (tmp_path / "held" / protocol).mkdir(parents=True)
    locks = {protocol: str(target(tmp_path, protocol)) for protocol in HELD}
    one = Peer(f"locks = {locks!r}\n{HOLD}", [tmp_path], env=PLAIN)
    try:
        one.expect("held")
        yield one
    finally:
        one.destroy()


@pytest.fixture
def place(tmp_path: Path, holder: Peer) -> Path:
    """A directory with foreign locks of each condition, held ones of each protocol, and links."""
    for name, text in FOREIGN.items():
        (tmp_path / name).write_text(text)
        if name == "empty.lock":
            os.utime(tmp_path / name, (NOW - 60, NOW - 60))
    (tmp_path / "link.lock").symlink_to("stale")
    os.mkfifo(tmp_path / "fifo.lock")
    assert holder.pid
    return tmp_path


def target(place: Path, protocol: str) -> Path:
    return place / "held" / protocol / ("" if protocol == "beads" else "l")


def lock_files(place: Path) -> list[Path]:
    return [path for path in sorted(place.rglob("*")) if path.is_file() and not path.is_symlink()]


def as_it_is(place: Path) -> dict[str, tuple[object, ...]]:
    """All files and their attributes, except the time of the last access."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [place, *sorted(place.rglob("*"))]:
        one = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (
            one.st_ino,
            one.st_mode,
            one.st_uid,
            one.st_nlink,
            one.st_mtime_ns,
            one.st_ctime_ns,
            content,
        )
    return found


def look(world: World, how: str, place: Path) -> None:
    if how.startswith("ls"):
        done = world.do(*how.split(), place)
        assert done.returncode == 0, done.stderr
        return
    named = [["status", "-p", protocol, target(place, protocol)] for protocol in HELD]
    done = world.each([*named, *(["status", path] for path in lock_files(place))])
    assert [one.returncode for one in done[: len(named)]] == [1] * len(named)
    assert {one.returncode for one in done} <= {0, 1}, [one.stderr for one in done]


@pytest.mark.parametrize("how", ["ls", "ls -r -j", "status"])
def test_a_look_changes_no_file(world: World, place: Path, how: str) -> None:
    before = as_it_is(place)
    look(world, how, place)
    assert as_it_is(place) == before


@pytest.mark.parametrize("how", ["ls", "ls -r -j", "status"])
def test_a_look_from_a_shell_wakes_no_waiter(world: World, place: Path, how: str) -> None:
    """Each file is watched as a waiter watches it; for a kernel lock, that includes readers."""
    env = LinuxEnvironment()
    watches = {}
    for path in lock_files(place):
        watch = env.watch(str(path), readers=path.parent.name == "flock")
        assert watch is not None
        watches[path] = watch
    try:
        look(world, how, place)
        assert [(str(path), seen) for path, watch in watches.items() if (seen := watch.take())] == []
    finally:
        for watch in watches.values():
            watch.close()


def test_a_record_left_unread_for_the_waiters_sake_is_mentioned(world: World, place: Path, holder: Peer) -> None:
    """The holder of a kernel lock is known without reading its file. Its tag is not, and the verdict says why."""
    path = target(place, "flock")
    seen = json.loads(world.do("status", "-j", "-p", "flock", path).stdout)
    assert (seen["holder"]["pid"], seen["holder"]["tag"]) == (holder.pid, "why")
    env = LinuxEnvironment()
    watch = env.watch(str(path), readers=True)
    assert watch is not None
    try:
        for words in (["status", "-j", path], ["status", "-j", "-p", "flock", path], ["ls", "-j", path]):
            seen = json.loads(world.do(*words).stdout)
            assert (seen["condition"], seen["holder"]["pid"], seen["holder"]["tag"]) == ("held", holder.pid, None)
            assert "would wake the waiters" in seen["reason"]
    finally:
        watch.close()
