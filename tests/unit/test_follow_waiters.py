"""Waiters as an observer sees them at any moment (monitor.py), in every schedule with two switches. The follower takes
events and looks until there are none left, and a waiter makes steps in between. Afterwards the follower must know the
true state, without the sweep that would repair a wrong one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast._admin.monitor import CONFIRM_AFTER, SETTLE, Follower, LockEvent
from holdfast._platform.inotify import FolderWatch
from holdfast.engines.file.queue import QueueEntry
from process.support import inotify_instance
from unit.stepping import Contender, Stepped
from unit.test_interleavings import Player, Schedules

MOST = 40
"""More steps than any of them takes."""


class Theatre:
    """A follower of a directory, new in each play, and a waiter for a lock in it."""

    def __init__(self, disk: Path, environments: Callable[..., Stepped]) -> None:
        self.directory = disk
        self.queue = disk / ".holdfast-l.queue"
        self.looks, self.waits = environments(), environments()
        self.request = Contender(self.waits, str(disk / "l"), timeout=None).request
        self.told: list[LockEvent] = []
        self.entry: QueueEntry | None = None
        self.name = ""
        os.close(inotify_instance())
        self.watch = FolderWatch()

    def raise_curtain(self) -> None:
        self.follower = Follower(self.looks, self.watch)  # type: ignore[arg-type]
        self.follower.add(str(self.directory))
        self.follower.first_look()
        self.told = []

    def lower_curtain(self) -> None:
        for directory in (self.directory, self.queue):
            self.watch.discard(str(directory))
        if self.entry is not None:
            self.leave()
        self.watch.take()

    # -- steps of the waiter -------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        now = self.waits.monotonic()
        self.entry = QueueEntry(self.waits, self.request, now)  # type: ignore[arg-type]
        assert self.entry.is_first()
        self.queue_up()

    def queue_up(self) -> None:
        assert self.entry is not None
        self.entry.queue_up()
        self.name = self.entry.name
        assert self.name

    def leave(self) -> None:
        assert self.entry is not None
        self.entry.leave()
        self.entry = None

    def get_in(self) -> None:
        assert self.entry is not None
        self.entry.hold()

    # -- steps of the follower -----------------------------------------------------------------------------------------

    def look(self) -> None:
        """What `following.happenings` does, as long as there are events."""
        while changes := self.watch.take():
            self.told += self.follower.handle(changes)

    def look_later(self) -> None:
        self.look()
        now = self.looks.monotonic()
        self.looks.instead["monotonic"] = lambda: now + 2 * max(CONFIRM_AFTER, SETTLE)
        self.told += self.follower.tick()
        del self.looks.instead["monotonic"]

    def waiting(self) -> list[str]:
        return [
            name for (_, name), wait in self.follower.waiters.waits.items() if wait in self.follower.waiters.waiting()
        ]

    def kinds(self) -> list[str]:
        return [one.kind for one in self.told]


@pytest.fixture
def theatre(shm: Path, environments: Callable[..., Stepped]) -> Iterator[Theatre]:
    theatre = Theatre(shm, environments)
    yield theatre
    theatre.looks.at_step = theatre.waits.at_step = None
    if theatre.entry is not None:
        theatre.leave()
    theatre.watch.close()


def plays(theatre: Theatre, scene: Callable[[], object], before: Callable[[], object]) -> Iterator[str]:
    """Each schedule: some steps of the waiter, some of the follower, the waiter's other steps, then the rest."""
    turns = Schedules(MOST, MOST)
    for switch, back in turns:
        theatre.raise_curtain()
        before()
        players = [Player(theatre.waits, scene), Player(theatre.looks, theatre.look)]
        turns.play(players, switch, back)
        theatre.look_later()
        yield f"{switch} steps of the waiter, {back} of the follower: {theatre.kinds()}"
        theatre.lower_curtain()


def test_a_waiter_that_comes_at_any_step_is_shown(theatre: Theatre) -> None:
    """Z17: whether its ticket is first found in the list or by its event."""
    played = 0
    for where in plays(theatre, theatre.arrive, lambda: None):
        played += 1
        assert theatre.waiting() == [theatre.name], where
        assert theatre.kinds() == ["waiting"], where
    assert played > 30


def test_a_waiter_whose_ticket_is_made_again_is_shown(theatre: Theatre) -> None:
    """Z17: its ticket was removed, so it queues anew under another name."""

    def again() -> None:
        assert theatre.entry is not None
        theatre.entry.drop_ticket()
        theatre.queue_up()

    for where in plays(theatre, again, theatre.arrive):
        assert theatre.waiting() == [theatre.name], where
        assert theatre.kinds().count("gave-up") == theatre.kinds().count("waiting") - 1, where


def test_a_waiter_in_a_queue_that_is_made_again_is_shown(theatre: Theatre) -> None:
    """Z17: the last waiter leaves with the directory, and the next one makes it anew."""
    names: list[str] = []

    def next_one() -> None:
        theatre.leave()
        theatre.arrive()

    for where in plays(theatre, next_one, theatre.arrive):
        assert theatre.waiting() == [theatre.name], where
        names.append(theatre.name)
    assert names


def test_a_waiter_that_leaves_at_any_step_is_no_longer_shown(theatre: Theatre) -> None:
    for where in plays(theatre, lambda: (theatre.arrive(), theatre.leave()), lambda: None):
        assert theatre.follower.waiters.waits == {}, where
        assert theatre.kinds() in ([], ["waiting"], ["waiting", "gave-up"]), where


def test_a_waiter_that_gets_in_neither_waits_nor_gave_up(theatre: Theatre) -> None:
    """Z16: the mode of its ticket says so."""
    for where in plays(theatre, theatre.get_in, theatre.arrive):
        assert theatre.waiting() == [], where
        assert "gave-up" not in theatre.kinds(), where


def test_a_waiter_that_dies_is_reported_to_have_given_up(theatre: Theatre, live_pid: int) -> None:
    """Z15: an event reports that the ticket was closed; the follower looks at it again a moment later."""
    theatre.waits.real._identity = theatre.waits.real._identify(live_pid)
    theatre.raise_curtain()
    theatre.arrive()
    theatre.look()
    assert theatre.waiting() == [theatre.name]
    theatre.follower.handle([(str(theatre.queue), theatre.name, "closed")])
    assert theatre.waiting() == [theatre.name]
    theatre.waits.crash()
    os.kill(live_pid, signal.SIGKILL)
    os.waitid(os.P_PID, live_pid, os.WEXITED | os.WNOWAIT)
    theatre.watch.take()
    theatre.entry = None
    assert theatre.follower.due <= theatre.looks.monotonic() + SETTLE
    theatre.look_later()
    assert theatre.waiting() == []
    assert theatre.kinds() == ["waiting", "gave-up"]
    (theatre.queue / theatre.name).unlink()
    theatre.queue.rmdir()
