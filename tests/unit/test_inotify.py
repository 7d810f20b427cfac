"""One inotify instance for all waits of a process (inotify.py)."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast._platform.descriptors import Descriptors
from holdfast._platform.inotify import FileWatch, Hub
from holdfast._platform.operations import Operations, waits
from holdfast._platform.values import CHANGED, CLOSED
from unit.elsewhere import elsewhere
from unit.stepping import Contender

Watching = Callable[[Path], FileWatch]


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub(Descriptors(Operations(threading.RLock())), threading.RLock())
    yield hub
    assert not hub.leaders, "a watch was left open"
    assert not hub._watches
    assert set(hub.descriptors) == {hub.fd}, "an eventfd was left open"
    os.close(hub.fd)


@pytest.fixture
def watching(hub: Hub) -> Iterator[Watching]:
    made: list[FileWatch] = []

    def watch(path: Path) -> FileWatch:
        made.append(hub.add(str(path)))
        return made[-1]

    yield watch
    for watch_ in made:
        watch_.close()


@pytest.fixture
def file(disk: Path) -> Path:
    (disk / "l").write_bytes(b"x")
    return disk / "l"


def touch(path: Path) -> None:
    """Make a close event, as the end of a holder does."""
    os.close(os.open(path, os.O_RDWR))


def is_ready(watch: FileWatch, timeout: float = 0) -> bool:
    return bool(select.select(watch.fds(), (), (), timeout)[0])


def test_a_follower_hears_its_events(file: Path, hub: Hub, watching: Watching) -> None:
    """N1: the leader reads the descriptor, and hands events to the other watches of their inodes."""
    leader, follower = watching(file), watching(file)
    assert leader.fds() == (hub.fd,)
    follower.fds()
    touch(file)
    assert is_ready(leader, 5)
    assert leader.take() & CLOSED
    assert is_ready(follower, 5)
    assert follower.take() & CLOSED
    assert not leader.take()
    assert not follower.take()
    assert not is_ready(follower), "an eventfd that stays readable makes the wait spin"
    assert not is_ready(leader)


def test_an_event_wakes_only_the_waits_that_it_concerns(file: Path, hub: Hub, watching: Watching) -> None:
    """N2: a follower waits on its own eventfd, which only its own events write."""
    other = file.with_name("other")
    other.write_bytes(b"y")
    leader, follower, stranger = watching(file), watching(file), watching(other)
    for watch in (leader, follower, stranger):
        watch.fds()
    assert hub.fd not in follower.fds()
    assert follower.fds() != stranger.fds()
    touch(file)
    assert not is_ready(follower), "only the leader looks at the instance"
    leader.take()
    assert is_ready(follower)
    assert not is_ready(stranger)


def test_an_event_handed_over_between_look_and_sleep_wakes_the_follower(file: Path, watching: Watching) -> None:
    """N2: the event comes before the follower has an eventfd; it must not go to sleep."""
    leader, follower = watching(file), watching(file)
    leader.fds()
    touch(file)
    leader.take()
    assert is_ready(follower)
    assert follower.take() & CLOSED


def test_events_outlast_the_leader(file: Path, hub: Hub, watching: Watching) -> None:
    """N3: when it leaves, a follower is woken and leads; events from in between are still there."""
    leader, follower = watching(file), watching(file)
    assert leader.fds()
    assert follower.fds() != (hub.fd,)
    touch(file)
    leader.close()
    assert is_ready(follower), "nobody told the follower to lead"
    assert follower.take() & CLOSED
    assert hub.fd in follower.fds()
    touch(file)
    assert is_ready(follower, 5)


def test_a_watch_that_finds_another_one_and_sees_it_end_hears_its_events(file: Path, hub: Hub) -> None:
    """N5, and operations.py, J7: code that interrupts it, or that this lets go ahead, ends the only other one."""

    class Ending(FileWatch):
        __slots__ = ()
        __hash__ = FileWatch.__hash__

        def __eq__(self, other: object) -> bool:
            self.close()
            return False

    first = Ending(hub, -1, readers=False)
    first.wd = hub.subscribe(str(file), first)
    second = hub.add(str(file))
    assert first.closed
    touch(file)
    assert is_ready(second, 5)
    second.close()


@pytest.mark.parametrize("leading", [True, False])
def test_a_wait_for_many_files_is_told_which_changed(leading: bool, file: Path, hub: Hub, watching: Watching) -> None:
    """N1, N2: a set of watches waits as one, and reports which of its files have changed."""
    other = file.with_name("other")
    other.write_bytes(b"y")
    leader = None if leading else watching(file)
    if leader is not None:
        leader.fds()
    many = hub.watch_set()
    one, two = many.add(str(file)), many.add(str(other))
    before = set(hub.descriptors)
    assert not select.select(many.fds(), (), (), 0)[0]
    assert len(set(hub.descriptors) - before) <= 1
    touch(other)
    if leader is not None:
        leader.take()
    assert select.select(many.fds(), (), (), 5)[0]
    assert many.changed() == {two}
    assert many.changed() == set()
    assert not select.select(many.fds(), (), (), 0)[0], "an eventfd that stays readable makes the wait spin"
    many.discard(two)
    touch(other)
    touch(file)
    if leader is not None:
        leader.take()
    assert many.changed() == {one}
    many.close()
    many.close()


@pytest.mark.parametrize("crew", [0, 1])
def test_a_new_leader_is_woken_once(crew: int, file: Path, watching: Watching) -> None:
    """N3: a promotion is signalled once; a loop's leader goes on waiting on the eventfd that signalled it."""
    with on_loop(crew):
        leader, follower = watching(file), watching(file)
        leader.fds()
        waiting = follower.fds()
        leader.close()
        assert select.select(waiting, (), (), 0)[0], "nobody told the follower to lead"
        assert not follower.woken(over=False)
        assert not is_ready(follower)
        touch(file)
        assert is_ready(follower, 5)
        assert follower.woken(over=False)


def test_each_event_wakes_the_watch_of_its_own_file(file: Path, watching: Watching) -> None:
    """N2: of the watches of one wait, only the one with the event reports it."""
    other, third = file.with_name("other"), file.with_name("third")
    for path in (other, third):
        path.write_bytes(b"x")
    leader, *several = watching(third), watching(file), watching(other)
    for watch in (leader, *several):
        watch.fds()
    touch(third)
    assert leader.woken(over=False)
    assert [watch.woken(over=False) for watch in several] == [False, False]
    for watch in (leader, *several):
        leader.take()
        watch.fds()
    touch(other)
    leader.take()
    assert [watch.woken(over=False) for watch in several] == [False, True]
    assert [watch.take() for watch in several] == [0, CLOSED]


def test_a_leader_wakes_its_sleeping_successor(file: Path, hub: Hub, watching: Watching) -> None:
    """N3: a follower that sleeps on its eventfd alone learns that it must now watch the instance."""
    leader, follower = watching(file), watching(file)
    leader.fds()
    asleep = follower.fds()
    leader.close()
    assert select.select(asleep, (), (), 5)[0]
    follower.take()
    assert hub.leaders[0] is follower
    touch(file)
    assert is_ready(follower, 5)


def test_an_overflow_wakes_everyone(file: Path, hub: Hub, watching: Watching) -> None:
    """N4: after the queue has lost events, every waiter looks again."""
    other = file.with_name("other")
    other.write_bytes(b"y")
    leader, stranger = watching(file), watching(other)
    leader.fds()
    stranger.fds()
    with open("/proc/sys/fs/inotify/max_queued_events", encoding="ascii") as limit:
        events = int(limit.read())
    if events > 100_000:
        pytest.skip(f"the queue of this machine holds {events} events; filling it takes too long")
    for _ in range(events // 2 + 10):  # equal neighbours would be merged
        os.close(os.open(file, os.O_RDWR))
        os.utime(file)
    assert leader.take() == CHANGED | CLOSED
    assert is_ready(stranger)
    assert stranger.take() == CHANGED | CLOSED


def test_a_watch_outlasts_another_of_its_file(file: Path, watching: Watching) -> None:
    """N5: they share one counted watch of the kernel."""
    one, two = watching(file), watching(file)
    assert one.wd == two.wd
    two.fds()
    one.close()
    one.close()
    touch(file)
    assert is_ready(two, 5)
    assert two.take() & CLOSED


def test_a_watch_outlasts_another_of_a_file_that_is_gone(file: Path, hub: Hub, watching: Watching) -> None:
    """N5: the kernel's watch went with the inode; closing ours must not remove a later one."""
    gone = watching(file)
    gone.fds()
    file.unlink()
    assert is_ready(gone, 5)
    assert gone.take() & CHANGED
    assert gone.wd not in hub._watches
    file.write_bytes(b"new")
    after = watching(file)
    gone.close()
    after.fds()
    touch(file)
    assert is_ready(after, 5)
    assert after.take() & CLOSED


CHANGES: dict[str, tuple[Callable[[Path], object], int]] = {
    "removed": (os.unlink, CHANGED),
    "renamed": (lambda path: path.rename(path.with_name("t")), CHANGED),
    "renamed over": (lambda path: (path.with_name("t").touch(), path.with_name("t").rename(path)), CHANGED),
    "touched": (os.utime, CHANGED),
    "closed after writing": (lambda path: os.close(os.open(path, os.O_RDWR)), CLOSED),
}


@pytest.mark.parametrize("how", CHANGES)
def test_every_change_makes_an_event(how: str, place: Path, hub: Hub, watching: Watching) -> None:
    (place / "l").write_bytes(b"x")
    watch = watching(place / "l")
    watch.fds()
    change, expected = CHANGES[how]
    change(place / "l")
    assert is_ready(watch, 5)
    assert watch.take() & expected


def test_looking_wakes_no_waiter(file: Path, watching: Watching) -> None:
    watch = watching(file)
    watch.fds()
    os.close(os.open(file, os.O_RDONLY))
    assert not is_ready(watch)


@pytest.mark.parametrize("first", [True, False], ids=["the wide one first", "the narrow one first"])
def test_two_watches_of_one_file_each_get_the_events_they_asked_for(first: bool, file: Path, hub: Hub) -> None:
    """N5: whichever came first or is left."""
    watches = {readers: hub.add(str(file), readers=readers) for readers in (first, not first)}
    for watch in watches.values():
        watch.fds()
    os.close(os.open(file, os.O_RDONLY))
    assert {readers: watch.take() for readers, watch in watches.items()} == {True: CLOSED, False: 0}
    touch(file)
    assert [watch.take() for watch in watches.values()] == [CLOSED, CLOSED]
    watches[True].close()
    os.close(os.open(file, os.O_RDONLY))
    touch(file)
    assert watches[False].take() == CLOSED
    watches[False].close()


def test_a_busy_leader_passes_the_events_of_others_on(file: Path, watching: Watching) -> None:
    """N3: a leader that has stopped waiting resigns; its successor must not report an event of its own."""
    leader, follower = watching(file), watching(file)
    leader.fds()
    asleep = follower.fds()
    assert leader.woken()
    assert select.select(asleep, (), (), 5)[0], "somebody has to tell it"
    assert not follower.woken(), "it is to wait again, not to look, and not to pass the lead on"
    touch(file)
    assert is_ready(follower, 5)
    assert follower.take() == CLOSED


def test_unread_events_are_handed_out_when_the_leader_resigns(file: Path, watching: Watching) -> None:
    """N3."""
    leader, follower = watching(file), watching(file)
    leader.fds()
    asleep = follower.fds()
    touch(file)
    assert leader.woken()
    assert select.select(asleep, (), (), 5)[0]
    assert follower.woken()
    assert follower.take() == CLOSED
    assert leader.take() == CLOSED


@contextmanager
def on_loop(number: int) -> Iterator[None]:
    """Waits in here are those of an event loop with that number."""
    waits.loop = number
    try:
        yield
    finally:
        waits.loop = 0


def readable(fds: tuple[int, ...]) -> bool:
    return bool(select.select(fds, (), (), 0)[0])


@pytest.mark.parametrize("first", ["loop", "thread"])
def test_a_busy_loop_keeps_neither_a_thread_nor_another_loop_waiting(
    first: str, file: Path, hub: Hub, watching: Watching
) -> None:
    """N6: one loop waits but never runs; all other waiters still hear of the event."""
    stuck, thread, loop = watching(file), watching(file), watching(file)
    if first == "loop":
        with on_loop(1):
            stuck.fds()
    asleep = thread.fds()
    if first == "thread":
        with on_loop(1):
            stuck.fds()
    touch(file)
    assert readable(asleep), "the thread relies on a loop that is busy"
    assert thread.woken()
    assert thread.take() == CLOSED
    thread.close()
    with on_loop(2):
        asleep = loop.fds()
    assert readable(asleep)
    assert loop.woken()
    assert loop.take() == CLOSED
    with on_loop(2):
        asleep = loop.fds()
    touch(file)
    assert readable(asleep), "one loop relies on another that is busy"


def test_an_event_that_another_loop_has_read_wakes_both(file: Path, watching: Watching) -> None:
    """N6: both wait on the instance itself; the second finds it empty."""
    one, two = watching(file), watching(file)
    with on_loop(1):
        sleeping = one.fds()
    with on_loop(2):
        two.fds()
    touch(file)
    assert two.woken()
    assert two.take() == CLOSED
    assert readable(sleeping)
    assert one.woken()
    assert one.take() == CLOSED


def test_a_loop_leaves_the_events_of_a_thread_that_is_about_to_sleep(file: Path, hub: Hub, watching: Watching) -> None:
    """N6: the thread has no eventfd, so its event must stay in the kernel until it looks."""
    loop, thread = watching(file), watching(file)
    with on_loop(1):
        assert hub.fd in loop.fds()
    asleep = thread.fds()
    assert asleep == (hub.fd,)
    touch(file)
    assert loop.woken()
    loop.take()
    assert readable(asleep)
    with on_loop(1):
        assert hub.fd not in loop.fds(), "it would wake at each event of the thread's"
    assert thread.woken()
    assert thread.take() == CLOSED
    assert loop.take() == CLOSED


def test_the_lead_of_a_thread_that_resigns_passes_to_a_thread_or_to_each_loop(
    file: Path, hub: Hub, watching: Watching
) -> None:
    """N6: to another thread first."""
    first, second, one, two = (watching(file) for _ in range(4))
    for thread in (first, second):
        thread.fds()
    sleeping = []
    for number, watch in enumerate((one, two), 1):
        with on_loop(number):
            sleeping.append(watch.fds())
    assert first.woken()
    assert set(hub.leaders) == {0}
    first.close()
    assert not readable(sleeping[0])
    second.woken()  # promoted
    assert second.woken()
    assert set(hub.leaders) == {1, 2}
    for number, (watch, fds) in enumerate(zip((one, two), sleeping, strict=True), 1):
        assert readable(fds), "nobody told it to lead"
        assert not watch.woken(), "it is to wait again, not to look"
        with on_loop(number):
            assert hub.fd in watch.fds()
    asleep = watching(file).fds()
    assert set(hub.leaders) == {0, 1, 2}
    touch(file)
    assert readable(asleep)


def test_a_loop_told_to_lead_does_not_lead_beside_a_thread(file: Path, hub: Hub, watching: Watching) -> None:
    """N6: a thread began to wait in between, so the loop is not the leader."""
    thread, loop, later = (watching(file) for _ in range(3))
    thread.fds()
    with on_loop(1):
        loop.fds()
    thread.woken()
    assert set(hub.leaders) == {1}
    later.fds()
    assert not loop.woken()
    with on_loop(1):
        assert hub.fd not in loop.fds()
    assert set(hub.leaders) == {0}
    later.woken()
    assert set(hub.leaders) == {1}
    assert not loop.woken()


def test_a_symbolic_link_is_not_followed(file: Path, hub: Hub) -> None:
    file.with_name("link").symlink_to(file)
    watch = hub.add(str(file.with_name("link")))
    watch.fds()
    touch(file)
    assert not is_ready(watch)
    watch.close()


def test_a_missing_file_cannot_be_watched(file: Path, hub: Hub) -> None:
    file.unlink()
    with pytest.raises(FileNotFoundError):
        hub.add(str(file))


@pytest.mark.needs("events")
def test_a_childs_watches_do_not_disturb_its_parents(disk: Path, contend: Callable[..., Contender]) -> None:
    """A forked child drops its copy of the instance, and the parent's next wait still works."""
    holder, waiter = contend(disk / "l"), contend(disk / "l", timeout=None)
    held = holder.get()
    wait = waiter.step()
    assert wait is not None

    def in_the_child() -> bool:
        waiter.steps.close()
        fresh = contend(disk / "l", waiter.env, timeout=None)
        wait = fresh.step()
        fresh.steps.close()
        return wait is not None and bool(wait.fds)

    assert elsewhere(in_the_child)
    assert wait.fds
    held.release()
    assert select.select(wait.fds, (), (), 5)[0]
    assert waiter.step() is None


def test_a_child_forked_during_a_wait_reads_nothing_of_its_parents(file: Path) -> None:
    """A signal handler may fork between any two steps, when the child's hub is already an orphan."""

    def in_child() -> tuple[tuple[int, ...], int]:
        hub = Hub(Descriptors(Operations(threading.RLock())), threading.RLock())
        watch = hub.add(str(file))
        touch(file)
        os.close(hub.fd)
        hub.orphan()
        fds = watch.fds()
        hub.read()
        return fds, watch.take()

    assert elsewhere(in_child) == ((), 0)
