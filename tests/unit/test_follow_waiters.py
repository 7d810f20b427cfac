"""Waiters as an observer sees them at any moment (monitor.py): every schedule with two switches.

The follower takes events and looks until there are no more; a waiter takes its steps in between. Afterwards the
follower must know what is so, without the sweep that would make up for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast._admin.monitor import CONFIRM_AFTER, SETTLE, Follower, LockEvent
from holdfast._platform.inotify import FolderWatch
from holdfast.engines.file import queue as queues
from holdfast.engines.file.queue import Ticket
from process.support import inotify_instance
from unit.stepping import Contender, Stepped
from unit.test_interleavings import Player, Schedules

MOST = 40
"""More steps than any of them takes."""


class Theatre:
    """One who follows a directory, anew in each play, and one who waits for a lock in it, which is all that it does."""

    def __init__(self, disk: Path, environments: Callable[..., Stepped]) -> None:
        self.directory = disk
        self.queue = disk / ".holdfast-l.queue"
        self.looks, self.waits = environments(), environments()
        self.request = Contender(self.waits, str(disk / "l"), timeout=None).request
        self.told: list[LockEvent] = []
        self.count = 0
        self.ticket: Ticket | None = None
        os.close(inotify_instance())
        self.watch = FolderWatch()

    def raise_curtain(self) -> None:
        self.follower = Follower(self.looks, self.watch)  # type: ignore[arg-type]
        self.follower.add(str(self.directory))
        self.follower.first_look()
        self.told = []
        self.count += 1
        self.name = queues.name_of(self.waits.monotonic(), os.getpid(), f"{self.count:016x}", shared=False)

    def lower_curtain(self) -> None:
        for directory in (self.directory, self.queue):
            self.watch.discard(str(directory))
        if self.ticket is not None:
            self.leave()
        self.watch.take()

    # -- what the waiter does ------------------------------------------------------------------------------------------

    def arrive(self) -> None:
        self.ticket = queues.issue(self.waits, self.request, self.name, self.waits.time())  # type: ignore[arg-type]
        assert self.ticket is not None

    def leave(self) -> None:
        assert self.ticket is not None
        self.ticket.give_up()
        self.ticket = None

    def get_in(self) -> None:
        assert self.ticket is not None
        self.ticket.hold()

    # -- what the follower does ----------------------------------------------------------------------------------------

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
    if theatre.ticket is not None:
        theatre.leave()
    theatre.watch.close()


def plays(theatre: Theatre, scene: Callable[[], object], before: Callable[[], object]) -> Iterator[str]:
    """Each schedule: so many steps of the waiter, so many of the follower, then the waiter's others, then the rest."""
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
    """Z16: what was listed before it was written is not taken for one that was written twice, and is inside."""
    played = 0
    for where in plays(theatre, theatre.arrive, lambda: None):
        played += 1
        assert theatre.waiting() == [theatre.name], where
        assert theatre.kinds() == ["waiting"], where
    assert played > 30


def test_a_waiter_whose_ticket_is_made_again_is_shown(theatre: Theatre) -> None:
    """Z17: it queues anew under the same name when somebody has lost patience with it (Q6), or probed it too early."""

    def again() -> None:
        theatre.leave()
        theatre.arrive()

    for where in plays(theatre, again, theatre.arrive):
        assert theatre.waiting() == [theatre.name], where
        assert theatre.kinds() in ([], ["waiting"]), where


def test_a_waiter_in_a_queue_that_is_made_again_is_shown(theatre: Theatre) -> None:
    """Z17: the last one leaves with the directory, the next one makes it anew."""
    names: list[str] = []

    def next_one() -> None:
        theatre.leave()
        theatre.name = theatre.name[:-4] + "beef"
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
    """Z16: as long as it can be read again, it says so itself."""
    for where in plays(theatre, theatre.get_in, theatre.arrive):
        assert theatre.waiting() == [], where
        assert "gave-up" not in theatre.kinds(), where


def test_a_waiter_that_dies_is_reported_to_have_given_up(theatre: Theatre) -> None:
    """Z15: its ticket is closed a moment before its guard is gone."""
    theatre.raise_curtain()
    theatre.arrive()
    theatre.look()
    assert theatre.waiting() == [theatre.name]
    theatre.follower.handle([(str(theatre.queue), theatre.name, "closed")])
    assert theatre.waiting() == [theatre.name]
    theatre.waits.real.close(theatre.ticket._fd)  # type: ignore[union-attr]
    theatre.ticket.queue.close()  # type: ignore[union-attr]
    theatre.watch.take()
    theatre.ticket = None
    assert theatre.follower.due <= theatre.looks.monotonic() + SETTLE
    theatre.look_later()
    assert theatre.waiting() == []
    assert theatre.kinds() == ["waiting", "gave-up"]
    (theatre.queue / theatre.name).unlink()
    theatre.queue.rmdir()
