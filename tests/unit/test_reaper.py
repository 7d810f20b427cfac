"""`reap`, which stays with a directory: dead holders' locks are removed at once, and no others (reaper.py)."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast._admin.reaper import Reaper
from holdfast._drivers.sync import wait_for
from holdfast._platform.values import RECHECK
from holdfast.engines.file.hold import FileHold
from unit.stepping import Contend, Contender, Stepped, sema_record

Environments = Callable[..., Stepped]


class Playing:
    """A reaper advanced turn by turn."""

    def __init__(self, env: Stepped, directory: Path) -> None:
        self.env = env
        self.told: list[str] = []
        self.complaints: list[tuple[str, str]] = []
        self.ready = 0
        reaper = Reaper(env, str(directory), lambda path, _why: self.told.append(path), self._complain)
        self.steps = reaper.run(self._be_ready)

    def _complain(self, path: str, problem: str) -> None:
        self.complaints.append((path, problem))

    def _be_ready(self) -> None:
        self.ready += 1

    def until(self, come: Callable[[], object], within: float = RECHECK / 2) -> None:
        """Go on until it has happened: by events, so before the periodic look at everything."""
        deadline = time.monotonic() + within
        while not come():
            assert time.monotonic() < deadline, "only the next look at everything would help"
            wait_for(next(self.steps).replaced(deadline=time.monotonic() + 0.05))

    def turn(self) -> None:
        next(self.steps)

    def settle(self) -> None:
        """Go on until nothing is looked at again soon (RP2)."""
        while (wait := next(self.steps)).deadline < time.monotonic() + 1.0:
            wait_for(wait)


@pytest.fixture
def playing(environments: Environments) -> Iterator[Callable[..., Playing]]:
    made: list[Playing] = []

    def play(directory: Path, *without: str, kind: str = "linux") -> Playing:
        made.append(Playing(environments(*without, kind=kind), directory))
        made[-1].turn()
        return made[-1]

    yield play
    for one in made:
        one.steps.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("without", [(), ("events",)])
def test_the_lock_of_a_holder_that_dies_goes(
    without: tuple[str, ...], when: str, place: Path, playing: Callable[..., Playing], contend: Contend
) -> None:
    """RP3, RP4: acquired before the reaper came, or later without an event; with events and without."""
    early = contend(place / "l")
    if when == "before":
        early.get()
    one = playing(place, *without)
    assert one.ready == 1
    if when == "after":
        early.get()
    one.turn()
    early.crash()
    one.until(lambda: not (place / "l").exists())
    assert one.told == [str(place / "l")]
    assert one.complaints == []


def test_a_lock_that_has_changed_hands_is_still_watched(
    disk: Path, playing: Callable[..., Playing], contend: Contend
) -> None:
    """RP3: another file at the same path, and another holder of the same file."""
    first, second, third = contend(disk / "l"), contend(disk / "l"), contend(disk / "l")
    held = first.get()
    one = playing(disk)
    held.release()
    second.get()
    one.turn()
    second.crash()
    third.get()  # takes it over in place
    one.turn()
    third.crash()
    one.until(lambda: not (disk / "l").exists())


@pytest.mark.parametrize("kind", ["linux", "posix", "generic"])
def test_a_lock_taken_over_meanwhile_is_not_removed(
    kind: str, disk: Path, dead_pid: int, playing: Callable[..., Playing], environments: Environments, contend: Contend
) -> None:
    """RP1: at each step from the look to the removal, a contender tries to get the lock; its hold stays."""
    number, won = 0, 0
    while True:
        path = disk / "l"
        dead = contend(path, environments(kind=kind, pid=dead_pid))
        other = contend(path, environments(kind=kind, pid=os.getppid()))
        dead.get()
        dead.crash()
        one = Playing(environments(kind=kind), disk)

        def compete(step: int, _name: str, other: Contender = other, number: int = number) -> None:
            if step == number:
                other.run()

        one.env.at_step = compete
        one.turn()
        one.steps.close()
        if not other.done:
            break
        if isinstance(other.result, FileHold):
            won += 1
            assert other.result.check(), f"robbed after step {number}, {one.env.steps[number]}"
            other.result.release()
        assert not path.exists()
        number += 1
    assert number > 15
    assert won > 10
    if path.exists():
        path.unlink()


def test_a_guard_that_outlives_its_event_is_polled(
    disk: Path, playing: Callable[..., Playing], contend: Contend
) -> None:
    """RP2: at the moment of the event, the dead holder still has its kernel lock."""
    holder = contend(disk / "l")
    holder.get()
    one = playing(disk)
    late = [True] * 3
    guarded = one.env.real.guarded
    one.env.instead["guarded"] = lambda fd: late.pop() if late else guarded(fd)
    holder.crash()
    one.until(lambda: not (disk / "l").exists())
    assert not late


def test_a_directory_that_was_made_anew_is_watched(
    disk: Path, playing: Callable[..., Playing], contend: Contend
) -> None:
    """RP4: removed with its locks, absent for a while, and back with others."""
    place = disk / "locks"
    place.mkdir()
    held = contend(place / "old")
    held.get()
    one = playing(place)
    shutil.rmtree(place)
    one.turn()
    one.turn()
    place.mkdir()
    holder = contend(place / "new")
    holder.get()
    one.turn()
    holder.crash()
    one.until(lambda: not (place / "new").exists())
    assert one.told == [str(place / "new")]


def number_again(path: Path, number: int) -> None:
    if path.stat().st_ino != number:
        pytest.skip("this filesystem does not give the number of a removed file to the next one at once")


def test_a_directory_that_gets_the_number_of_the_last_one_is_watched(
    disk: Path, playing: Callable[..., Playing], contend: Contend
) -> None:
    """RP4: removed and made anew between two turns, as on ext4."""
    place = disk / "locks"
    place.mkdir()
    number = place.stat().st_ino
    one = playing(place)
    place.rmdir()
    place.mkdir()
    number_again(place, number)
    one.settle()
    holder = contend(place / "l")
    holder.get()
    holder.crash()
    one.until(lambda: not (place / "l").exists())


def test_a_lock_file_that_gets_the_number_of_the_last_one_is_watched(
    disk: Path, playing: Callable[..., Playing], contend: Contend
) -> None:
    """RP3: released and acquired between two turns."""
    path = disk / "l"
    held = contend(path).get()
    number = path.stat().st_ino
    one = playing(disk)
    held.release()
    holder = contend(path)
    holder.get()
    number_again(path, number)
    one.settle()
    holder.crash()
    one.until(lambda: not path.exists())


def test_a_flood_of_events_does_not_hide_a_death(disk: Path, playing: Callable[..., Playing], contend: Contend) -> None:
    """RP4: the kernel's queue overflows, and reports only that events were lost."""
    holder = contend(disk / "l")
    holder.get()
    one = playing(disk)
    hub = one.env.real._hub
    holder.crash()
    os.read(hub.fd, 65536)  # what was lost
    hub._dispatch(-1, 0x4000)
    one.until(lambda: not (disk / "l").exists())


def test_without_watches_the_dead_are_found(disk: Path, playing: Callable[..., Playing], contend: Contend) -> None:
    """RP4: no watches are left for lock files, so that of the directory must do."""
    one = playing(disk)
    real = one.env.real._hub.subscribe

    def subscribe(path: str, waiter: object) -> int:
        if path != str(disk):
            raise OSError(28, "no space left on device")
        found: int = real(path, waiter)
        return found

    one.env.real._hub.subscribe = subscribe
    holder = contend(disk / "l")
    holder.get()
    holder.crash()
    one.until(lambda: not (disk / "l").exists())


def test_a_waiter_comes_first_and_is_told_whom_it_has_replaced(
    disk: Path, playing: Callable[..., Playing], environments: Environments, contend: Contend
) -> None:
    """RP5: queued waiters come first, but only for a moment, as they may be stopped."""
    holder, waiter = contend(disk / "l"), contend(disk / "l", timeout=None, fair=True)
    holder.get()
    one = playing(disk)
    for _ in range(10):  # it looks, and then queues
        wait_for(waiter.step().replaced(deadline=time.monotonic() + 0.002))
        if (disk / ".holdfast-l.queue").exists():
            break
    holder.crash()
    one.env.steps.clear()
    one.until(lambda: "exists" in one.env.steps)  # it has seen that somebody queues
    assert (disk / "l").exists()
    held = waiter.get()
    assert held.recovered_from is not None
    held.release()
    stopped = contend(disk / "l")
    stopped.get()
    (disk / ".holdfast-l.queue").mkdir()
    stopped.crash()
    one.until(lambda: not (disk / "l").exists())
    one.until(lambda: not (disk / ".holdfast-l.queue").exists())  # nobody is in it


def test_a_lock_that_may_not_be_removed_is_complained_of_once(
    disk: Path, playing: Callable[..., Playing], contend: Contend
) -> None:
    """RP6."""
    one = playing(disk)
    first, second = contend(disk / "first"), contend(disk / "second")
    first.get()
    second.get()
    real = one.env.real.unlink

    def unlink(path: str) -> None:
        if path.endswith("first"):
            raise PermissionError(1, "Operation not permitted", path)
        real(path)

    one.env.instead["unlink"] = unlink
    first.crash()
    one.until(lambda: one.complaints)
    second.crash()
    one.until(lambda: not (disk / "second").exists())
    for _ in range(3):
        os.utime(disk / "first")
        wait_for(next(one.steps).replaced(deadline=time.monotonic() + 0.05))
    assert one.complaints == [(str(disk / "first"), "Operation not permitted")]


def test_only_locks_proven_dead_are_removed(
    disk: Path, playing: Callable[..., Playing], contend: Contend, dead_pid: int
) -> None:
    """RP1: locks that are foreign, old, damaged or alive stay, and so do files that are no locks."""
    (disk / "old.lock").write_bytes(sema_record(dead_pid, 1000, "foreign and stale"))
    (disk / "torn.lock").write_bytes(b"pid=7\ntimestamp=1\nholdfast=1 g torn\n")
    (disk / "notes").write_text("holdfast is a library\n")
    (disk / "side.lock").write_text('{"createdAt": "2020-01-01T00:00:00.000Z", "x": "holdfast"}')
    os.mkfifo(disk / "fifo")
    (disk / "link").symlink_to("old.lock")
    contend(disk / "alive").get()
    contend(disk / "kernel", protocol="flock", tag="holdfast").get()
    before = sorted(os.listdir(disk))
    one = playing(disk)
    for _ in range(5):
        wait_for(next(one.steps).replaced(deadline=time.monotonic() + 0.02))
    assert sorted(os.listdir(disk)) == before
    assert (one.told, one.complaints) == ([], [])


def test_a_second_reaper_neither_complains_nor_removes_a_living_lock(
    disk: Path, playing: Callable[..., Playing], contend: Contend
) -> None:
    """RP1."""
    one, two = playing(disk), playing(disk)
    for number in range(20):
        holder = contend(disk / f"{number}")
        holder.get()
        holder.crash()
    both = (one, two)
    deadline = time.monotonic() + RECHECK / 2
    while os.listdir(disk) and time.monotonic() < deadline:
        for playing_one in both:
            wait_for(next(playing_one.steps).replaced(deadline=time.monotonic() + 0.01))
    assert os.listdir(disk) == []
    assert sorted(one.told + two.told) == sorted(str(disk / f"{number}") for number in range(20))
    assert one.complaints == two.complaints == []
