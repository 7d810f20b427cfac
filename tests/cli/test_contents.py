"""Any kind of content at the path of a lock: all commands report what a contender would meet."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.support import World
from holdfast import AcquireTimeout, Lock
from holdfast.cli import parse, perform
from holdfast.cli.outcome import failed
from holdfast.errors import InvalidPath, LockStale, ProtocolMismatch

GONE = 2**22 + 1
"""Above the largest pid of a kernel as it is delivered."""
JSON = '{"pid": %d, "host": "far", "createdAt": "2020-01-01T00:00:00.000Z"}'


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def _link(path: Path, target: str | None) -> None:
    if target is not None:
        path.with_name("elsewhere").write_text(target)
    path.symlink_to(path.with_name("elsewhere"))


def _sticky(path: Path) -> None:
    path.touch()
    path.chmod(0o1644)


def _of(content: str | bytes, *, old: bool = False) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        if old:
            os.utime(path, (1e9, 1e9))

    return make


CONTENTS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _path: None,
    "empty": _of(""),
    "old and empty": _of("", old=True),
    "unfinished": _sticky,
    "garbage": _of("garbage\n"),
    "old garbage": _of("garbage\n", old=True),
    "NUL": _of(b"\0\0\0\0"),
    "no UTF-8": _of(b"\xff\xfe"),
    "blanks": _of("\n \n"),
    "too large": _of("x" * ((1 << 20) + 2)),
    "half a sema record": _of("pid=12"),
    "half a sidecar record": _of('{"pid": 1, "createdAt": "20'),
    "half a beads record": _of('{"holder": "x", "pid": 1, "started_at"'),
    "any JSON": _of('{"a": 1}\n'),
    "a list": _of("[1]\n"),
    "a living sema": _of(f"pid=1\ntimestamp={int(time.time())}\n"),
    "a dead sema": _of(f"pid={GONE}\ntimestamp=17\n"),
    "a sidecar": _of(JSON % 1),
    "a dead sidecar": _of(JSON % GONE),
    "a beads": _of('{"holder":"x","pid":1,"hostname":"h","started_at":"2026-01-01T00:00:00Z","version":""}'),
    "an unheld flock": _of(f"protocol=flock\npid={GONE}\ntimestamp=17\n"),
    "a torn marker": _of("pid=7\ntimestamp=1\nholdfast=2 g torn\n"),
    "a newer marker": _of("pid=7\ntimestamp=1\nholdfast=3 g b 1 n t1 far\n"),
    "data with a record in it": _of(f"[section]\npid={GONE}\ntimestamp=17\n"),
    "a counter": _of(f"{7:020}\n"),
    "a directory": lambda path: (path / "x").mkdir(parents=True),
    "a proper-lockfile": lambda path: path.mkdir(),
    "a FIFO": os.mkfifo,
    "a socket": _socket,
    "a dangling link": lambda path: _link(path, None),
    "a link": lambda path: _link(path, f"pid={GONE}\ntimestamp=17\n"),
    "a link to itself": lambda path: path.symlink_to(path),
}


def status_of(*words: str) -> int:
    """The exit status of the command, run in this process, which is cheap."""
    try:
        return perform(parse(["status", *words]))
    except Exception as error:
        return failed(error)


def meets(path: str, protocol: str) -> int:
    """The exit status that `status` should have: that of an attempt to acquire the lock."""
    lock = Lock(path, protocol=protocol)
    try:
        lock.acquire(timeout=0).release()
    except (AcquireTimeout, LockStale):
        return 1
    except (InvalidPath, ProtocolMismatch):
        return 3
    return 0


def waits(path: str, protocol: str) -> int:
    try:
        return 0 if Lock(path, protocol=protocol).wait(0) else 1
    except LockStale:
        return 1
    except (InvalidPath, ProtocolMismatch):
        return 3


@pytest.mark.parametrize(
    "protocol",
    ["sema", "semats", "sidecar", "beads", pytest.param("flock", marks=pytest.mark.needs("flock")), "proper-lockfile"],
)
@pytest.mark.parametrize("name", ["the.lock", "the"])
def test_status_and_wait_agree_with_an_acquisition_for_any_content(
    protocol: str, name: str, disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said, met = {}, {}
    for number, (content, make) in enumerate(CONTENTS.items()):
        where = disk / str(number)
        where.mkdir()
        given = where / name
        lock_file = given.with_name(f"{name}.lock") if protocol in ("sidecar", "proper-lockfile") else given
        if protocol == "proper-lockfile":
            given.touch()
        if protocol == "beads":
            given.mkdir()
            lock_file = given / ".exclusive-lock"
        make(lock_file)
        status = status_of("-j", "-p", protocol, str(given))
        shown = capfd.readouterr().out
        said[content] = (status, status_of("-q", "-p", protocol, str(given)), waits(str(given), protocol))
        if status != 3:
            assert (json.loads(shown)["result"], json.loads(shown)["state"] != "held") in (
                ("held", False),
                ("free", True),
            )
            assert Lock(given, protocol=protocol).status().locked == bool(status), content
        met[content] = (meets(str(given), protocol),) * 3
    assert said == met


def test_status_without_a_protocol_agrees_with_run(world: World) -> None:
    """If the content does not name a protocol, `status` assumes that of a `run` without -p."""
    said, met = {}, {}
    for number, (content, make) in enumerate(CONTENTS.items()):
        if any(protocol in content for protocol in ("sidecar", "beads", "proper", "flock")):
            continue
        where = world.directory / str(number)
        where.mkdir()
        path = where / "the.lock"
        make(path)
        listed = [json.loads(line) for line in world.do("ls", "-j", path).stdout.splitlines()]
        status = world.do("status", path).returncode
        said[content] = (status, world.do("wait", "-n", path).returncode)
        done = world.do("run", "-n", path, "--", "true").returncode
        met[content] = ({0: 0, 75: 1, 3: 3}[done],) * 2
        for one in listed:
            assert one["state"] == ("held" if status else one["state"]), content
    assert said == met


def test_a_failed_wait_for_an_empty_file_says_why_in_a_sentence(world: World, path: Path) -> None:
    path.touch()
    done = world.do("wait", "-n", path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"holdfast: {path} is not free: its record cannot be used (the record is")


def test_the_way_out_of_a_mismatch_is_reported_for_programs_and_commands(world: World, path: Path) -> None:
    path.write_text(JSON % 1)
    done = world.do("run", "-n", path, "--", "true")
    assert done.returncode == 3
    target = str(path).removesuffix(".lock")
    assert f"Use protocol='sidecar' (-p sidecar) for {target}, or another path" in done.stderr
    assert f"{path} is stale" in world.do("wait", "-n", "-p", "sidecar", target).stderr
    path.write_text("pid=1\ntimestamp=1\n")
    done = world.do("run", "-n", "-p", "sidecar", target, "--", "true")
    assert f"Use protocol='sema' (-p sema) for {path}, or another path" in done.stderr
    path.with_name("data").write_text(JSON % 1)
    assert "exclude each other. Use another path" in world.do("run", "-n", "data", "--", "true").stderr


def test_an_empty_file_is_called_empty_and_is_free_for_flock(world: World, path: Path) -> None:
    path.touch()
    os.utime(path, (1000, 1000))
    text = world.do("status", path).stdout
    assert "held (empty)" in text
    assert "free for -p flock and -p ofd" in text
    (listed,) = map(json.loads, world.do("ls", "-j", "--held", path.parent).stdout.splitlines())
    assert (listed["condition"], listed["state"], listed["protocol"]) == ("empty", "held", None)
    assert world.do("status", "-q", "-p", "flock", path).returncode == 0
    assert world.do("run", "-n", "-p", "flock", path, "--", "true").returncode == 0
