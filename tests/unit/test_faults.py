"""Every system call of every operation is made to fail: nothing leaks, results stay true, and the next contender gets
the lock. tests/unit/faults.md has the outcome of each fault, and is compared with the code here."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import places
from abilities import need_own_device
from holdfast._core.attempt import Refusal
from holdfast.engines.file.hold import FileHold
from unit import faults_table
from unit.failing import DOCUMENTED, Tap, alike, error, tapped
from unit.fault_operations import NOBODY, OPERATIONS, Acquire, Operation, Scene, TakeOverDead, once

Contend = Callable[..., object]
EVERY = "HOLDFAST_TEST_SECONDS" in os.environ
"""Not only the first few of calls that come again and again, and a run for each error."""


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, if there is one, for thousands of locks, some of them durable."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir=places.memory()))
    yield place
    shutil.rmtree(place)


@pytest.fixture
def tap() -> Iterator[Tap]:
    with tapped() as tap:
        yield tap


def calls_of(kind: type[Operation], memory: Path, tap: Tap, way: str) -> list[str]:
    """The calls of an operation without faults."""
    return once(memory, tap, kind, way)[0]


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_no_fault_leaks_or_lies_and_each_has_the_outcome_of_the_page(
    kind: type[Operation], memory: Path, within: Callable[[float], AbstractContextManager[None]]
) -> None:
    with within(3000 if EVERY else 300):  # generous, for a busy machine
        rows, wrong, number = faults_table.run(kind, memory, every=EVERY)
    assert number > 30
    assert wrong == []
    if not EVERY:
        if kind.name.startswith("Status "):
            (memory / "file").touch()
            need_own_device(memory / "file")  # elsewhere the kernel's tables are read more often than the page says
        expected = faults_table.page_sections().get(kind.name)
        now = faults_table.section(kind, rows)
        assert now == expected, f"faults.md is not what the code does: write it again, or mend the code\n{now}"


def test_the_page_has_every_operation() -> None:
    assert list(faults_table.page_sections()) == [kind.name for kind in OPERATIONS]


def test_every_kind_of_call_is_made_to_fail(memory: Path, tap: Tap) -> None:
    """The page has each kind of call that the tap knows, for some operation."""
    page = faults_table.PAGE.read_text(encoding="utf-8")
    made = {line[2:].partition(":")[0].partition(" |")[0] for line in page.splitlines() if line.startswith("| ")}
    # No operation here is the first to make a directory or a pipe, and with pidfd_open no kill is needed.
    assert DOCUMENTED.keys() - made <= {"pipe2", "kill"}


def test_an_error_stands_for_those_that_the_code_does_not_tell_apart(tap: Tap) -> None:
    tap.arm("l")
    number = error("EROFS").errno
    assert number not in (errno.ELOOP, errno.ENOSPC)
    assert alike("EROFS", "EIO", tap.compared)
    assert not alike("EROFS", "ENOSPC", tap.compared)  # asked for
    assert not alike("EROFS", "EPERM", tap.compared)  # another class
    assert number == errno.EROFS
    assert not alike("EROFS", "EIO", tap.compared)
    tap.arm("l")
    assert errno.errorcode[error("EROFS").errno or 0] == "EROFS"
    assert not alike("EROFS", "EIO", tap.compared)  # perhaps asked for


@pytest.mark.parametrize("way", ["portable", "without kernel locks"])
def test_a_failed_release_without_a_guard_can_be_repeated(way: str, memory: Path, tap: Tap) -> None:
    """FH4: the remaining file would belong to this process as long as it lives, and no other could remove it."""
    scene = Scene(memory, tap, way)
    held = scene.acquire(scene.acts)
    calls = ["lstat: lock file", "pread: lock file", "unlink: lock file"]
    for at, call in enumerate(calls):
        tap.arm(scene.lock_file, at, "EIO")
        with pytest.raises(OSError, match="Input/output"):
            held.release()
        assert tap.calls[: at + 1] == calls[: at + 1], call
        tap.open = False
        assert not held.released
        scene.require_held(held)
    held.release()
    assert scene.litter() == []
    scene.dispose()


def test_a_failed_release_with_a_guard_lets_the_next_one_in(memory: Path, tap: Tap) -> None:
    """FH3: the file stays without a guard, so its holder counts as dead."""
    scene = Scene(memory, tap, "unnamed")
    held = scene.acquire(scene.acts)
    tap.arm(scene.lock_file, 2, "EROFS", always=True)
    with pytest.raises(OSError, match="Read-only"):
        held.release()
    tap.open = False
    assert held.released
    assert scene.litter() == ["l"]
    again = scene.acquire(scene.env())
    assert isinstance(again, FileHold)
    again.release()
    scene.dispose()


def test_a_failed_heartbeat_keeps_the_hold_and_the_timestamp(memory: Path, tap: Tap) -> None:
    scene = Scene(memory, tap, "unnamed")
    held = scene.acquire(scene.acts)
    before = Path(held.path).read_bytes()
    tap.arm(scene.lock_file, 2, "ENOSPC")
    with pytest.raises(OSError, match="No space left") as caught:
        held.beat()
    tap.open = False
    assert caught.value.errno == 28
    assert Path(held.path).read_bytes() == before
    held.beat()
    scene.require_held(held)
    held.release()
    scene.dispose()


@pytest.mark.parametrize("way", ["unnamed", "portable", "without kernel locks"])
def test_a_takeover_on_a_full_disk_leaves_a_lock_that_can_be_acquired(way: str, memory: Path, tap: Tap) -> None:
    """A mix of the new record and the old one would count as held by this process, or for ever."""
    calls = calls_of(TakeOverDead, memory, tap, way)
    scene = Scene(memory, tap, way)
    scene.leave_dead()
    tap.arm(scene.lock_file, max(at for at, call in enumerate(calls) if call == "pwrite: lock file"), "full")
    with pytest.raises(OSError, match="No space left"):
        scene.acquire(scene.acts)
    tap.open = False
    assert isinstance(scene.acquire(scene.env()), FileHold)
    scene.dispose()


def test_a_claim_that_fails_leaves_no_temporary_name(memory: Path, tap: Tap) -> None:
    calls = calls_of(TakeOverDead, memory, tap, "portable")
    scene = Scene(memory, tap, "portable")
    scene.leave_dead()
    tap.arm(scene.lock_file, max(at for at, call in enumerate(calls) if call == "close: temporary name"), "EIO")
    with pytest.raises(OSError, match="Input/output"):
        scene.acquire(scene.acts)
    assert scene.litter() == ["l"]
    scene.dispose()


@pytest.mark.parametrize("call", ["fstat: lock file", "pread: lock file", "flock(LOCK_SH): lock file"])
def test_an_error_about_a_descriptor_names_the_lock_file(call: str, memory: Path, tap: Tap) -> None:
    """The system's own error names no file."""
    scene = Scene(memory, tap, "unnamed")
    held = scene.hold()
    assert isinstance(scene.acquire(scene.acts), Refusal)
    tap.arm(scene.lock_file)
    assert isinstance(scene.acquire(scene.acts), Refusal)
    tap.arm(scene.lock_file, tap.calls.index(call), "EIO")
    with pytest.raises(OSError, match="Input/output") as caught:
        scene.acquire(scene.acts)
    assert caught.value.filename == scene.lock_file
    assert scene.lock_file in str(caught.value)
    held.release()
    scene.dispose()


def test_the_error_of_a_callers_function_is_unchanged(memory: Path, tap: Tap) -> None:
    """It is not about the lock file."""
    mine = ConnectionRefusedError(111, "no answer from the database")

    def ask(_status: object) -> bool:
        raise mine

    scene = Scene(memory, tap, "unnamed", stale=ask)
    Path(scene.lock_file).write_text(f"pid={NOBODY}\ntimestamp=1000\n")
    with pytest.raises(ConnectionRefusedError) as caught:
        scene.acquire(scene.acts)
    assert caught.value is mine
    assert mine.filename is None
    scene.dispose()


def test_an_error_names_the_lock_and_no_temporary_name(memory: Path, tap: Tap) -> None:
    """Neither /proc/self/fd nor a temporary name."""
    for way in ("unnamed", "named"):
        calls = calls_of(Acquire, memory, tap, way)
        scene = Scene(memory, tap, way)
        tap.arm(scene.lock_file, next(at for at, call in enumerate(calls) if call.startswith("link")), "EIO")
        with pytest.raises(OSError, match="Input/output") as caught:
            scene.acquire(scene.acts)
        assert str(caught.value) == f"[Errno 5] {os.strerror(5)}: {scene.lock_file!r}"
        scene.dispose()


def test_the_tap_leaves_others_alone(memory: Path, tap: Tap) -> None:
    """Calls set aside are neither counted nor made to fail; a word becomes the error of that name."""
    scene = Scene(memory, tap, "unnamed")
    tap.arm(scene.lock_file, 0, "EIO", always=True)
    with tap.aside():
        held = scene.hold()
    assert tap.calls == []
    tap.open = False
    held.release()
    assert error("ENOSPC", "there").filename == "there"
    scene.dispose()
