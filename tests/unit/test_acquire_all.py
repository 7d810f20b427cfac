"""Several locks at once (several.py): one order for all, all or none."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AcquireTimeout,
    AsyncLock,
    InvalidPath,
    Lock,
    LockLost,
    NotHeld,
    ProtocolMismatch,
    Semaphore,
    WouldDeadlock,
    acquire_all,
    aio,
)
from holdfast.events import Event
from holdfast.several import in_order
from unit.elsewhere import elsewhere, mount, needs_root
from unit.stepping import Stepped, failing

module = importlib.import_module("holdfast.several")  # the package has the function of that name
PATIENCE = 60.0
MS_BIND = 4096


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*.lock*"))


def order(resources: list[Any]) -> list[str]:
    """The real paths, in the order in which they are acquired."""
    return [os.path.realpath(resources[number].path) for number in in_order(resources)]


# -- the order ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def spellings(disk: Path, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[str], str]]:
    """Spellings of the path of a file in one of the directories `one` and `two`."""
    for name in ("one", "two", "aside"):
        (disk / name).mkdir()
    (disk / "aside" / "1").symlink_to(disk / "two")  # in the opposite order, by name
    (disk / "aside" / "2").symlink_to(disk / "one")
    (disk / "aside" / "3").symlink_to(disk / "aside")
    monkeypatch.chdir(disk / "aside")
    links = {"one": "2", "two": "1"}

    def by_link(path: str) -> str:
        directory, name = path.split("/")
        return f"3/{links[directory]}/{name}"

    return [
        lambda path: f"{disk}/{path}",
        lambda path: f"../{path}",
        lambda path: f"{disk}//aside/.././{path}",
        by_link,
    ]


def test_the_order_does_not_depend_on_spelling_or_on_the_list(spellings: list[Callable[[str], str]]) -> None:
    """D1: the order is by directory, name and slot."""
    names = ["one/a", "one/b", "two/a", "one/s.0.lock", "one/s.10.lock", "one/s.9.lock", "two/B"]
    found = set()
    for spelling in spellings:
        for shift in range(len(names)):
            turned = [*names[shift:], *names[:shift]]
            locks: list[Any] = [Lock(spelling(name)) for name in turned]
            locks += [Semaphore(spelling("one/t"), 3), Lock(spelling("one/f"), protocol="flock")]
            found.add(tuple(order(locks if shift % 2 else locks[::-1])))
    assert len(found) == 1
    [only] = found
    there = [path.rpartition("/")[2] for path in only if "/one/" in path]
    assert there == ["a", "b", "f", "s.0.lock", "s.9.lock", "s.10.lock", "t"]


@needs_root
def test_a_bind_mount_gives_the_same_order(disk: Path) -> None:
    """D1: through another mount, a directory has another path but the same device and inode."""
    for name in ("one", "two", "a"):
        (disk / name).mkdir()

    def seen(second: str) -> list[int]:
        return in_order([Lock(disk / "one" / "l"), Lock(disk / second / "l")])

    bind = elsewhere(lambda: seen("a"), mounts=lambda: mount(str(disk / "two"), str(disk / "a"), None, MS_BIND))
    assert bind == seen("two")
    with pytest.raises(ValueError, match="in common"):
        elsewhere(
            lambda: in_order([Lock(disk / "two" / "l"), Lock(disk / "a" / "l")]),
            mounts=lambda: mount(str(disk / "two"), str(disk / "a"), None, MS_BIND),
        )


def test_on_a_served_filesystem_the_order_goes_by_the_real_path(
    disk: Path, environments: Callable[..., Stepped], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: FUSE may give a forgotten directory another inode number, so the real path counts there."""
    for name in ("one", "two"):
        (disk / name).mkdir()
    (disk / "zero").symlink_to(disk / "two")
    locks = [Lock(disk / "zero" / "l"), Lock(disk / "one" / "l")]
    env = environments()
    env.instead["may_block"] = lambda _path: True
    env.instead["stat"] = lambda _path: pytest.fail("the number of an inode was asked for")
    monkeypatch.setattr(module, "environment", lambda: env)
    assert in_order(locks) == [1, 0]


def test_the_order_ignores_case_where_the_filesystem_does(disk: Path) -> None:
    """D1: on a case-insensitive filesystem, `a, B` and `A, b` are the same two locks."""
    one = [Path(path).name.lower() for path in order([Lock(disk / "a"), Lock(disk / "B")])]
    other = [Path(path).name.lower() for path in order([Lock(disk / "A"), Lock(disk / "b")])]
    assert one == other


NAMES = ["s", "s.lock", "s.-1.lock", "s.0.lock", "s.00.lock", "s.1.lock", "s.1.lock.lock", "s.2.lock", "s.2a.lock"]
NAMES += ["s.3.lock", "s.10.lock", "s.99999.lock", "s.0", ".0.lock", "S.1.lock", "s.٣.lock", "s.0.lock.x", "t.0.lock"]


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 12])
def test_a_lock_comes_before_or_after_all_slots_of_a_semaphore(disk: Path, slots: int) -> None:
    """D2: whatever its name; a lock that is one of the slots is refused."""
    semaphore = Semaphore(disk / "s", slots)
    their_own = {os.path.basename(request.path) for request in semaphore._requests}
    for name in NAMES:
        lock = Lock(disk / name)
        if name in their_own:
            with pytest.raises(ValueError, match="a lock file in common"):
                in_order([semaphore, lock])
            continue
        each = [Lock(request.path) for request in semaphore._requests]
        alone = [number < slots for number in in_order([*each, lock])]
        place = alone.index(False)
        assert place in (0, slots), name
        assert in_order([semaphore, lock]) == ([1, 0] if place == 0 else [0, 1]), name


def test_all_pairs_of_locks_agree_on_one_order(disk: Path) -> None:
    """D3: a waiter holds only earlier locks, whatever the lists, so all pairs agree on the order."""
    names = ["a", "b", "s.0.lock", "s.1.lock", "s.7.lock"]
    everything: list[Any] = [*(Lock(disk / name) for name in names), Semaphore(disk / "t", 2)]
    together = [resource.path for resource in (everything[number] for number in in_order(everything))]
    for some in itertools.permutations(everything, 3):
        ordered = [some[number].path for number in in_order(some)]
        assert ordered == sorted(ordered, key=together.index)


# -- requests ----------------------------------------------------------------------------------------------------------


def test_the_same_lock_twice_is_an_error(face: Any, disk: Path) -> None:
    """D2: however it is spelled, also as a slot of a semaphore."""
    (disk / "link").symlink_to(disk)
    lock, semaphore = face.Lock(disk / "a"), face.Semaphore(disk / "s", 2)
    for pair in (
        [lock, lock],
        [lock, face.Lock(disk / "link" / "a")],
        [lock, face.Lock(disk / "a", owner="me")],
        [face.Lock(disk / "a", owner="me"), face.Lock(disk / "a", owner="you")],
        [semaphore, semaphore],
        [semaphore, face.Semaphore(disk / "s", 5)],
        [semaphore, face.Lock(disk / "s.1.lock")],
        [face.Semaphore(disk / "s", 2, owner="me"), face.Lock(disk / "s.1.lock", owner="me")],
    ):
        with pytest.raises(ValueError, match="a lock file in common"):
            face.acquire_all([face.Lock(disk / "0"), *pair])
        assert files(disk) == []


def test_one_file_with_two_protocols_is_an_error(face: Any, disk: Path) -> None:
    with pytest.raises(ValueError, match="protocols do not exclude each other"):
        face.acquire_all([face.Lock(disk / "a"), face.Lock(disk / "a", protocol="flock")])


def test_an_owner_may_name_its_lock_twice(face: Any, disk: Path) -> None:
    mine = face.Lock(disk / "a", owner="me")
    slots = face.Semaphore(disk / "s", 2, owner="me")
    with face.acquire_all(
        [mine, slots, face.Lock(disk / "a", owner="me"), face.Semaphore(disk / "s", 3, owner="me")]
    ) as holds:
        assert [hold.slot for hold in holds] == [None, 0, None, 0]
    assert list(disk.iterdir()) == []


@pytest.mark.needs("flock")
def test_a_writer_that_is_named_after_a_reader_is_acquired_before_it(face: Any, disk: Path) -> None:
    """D2: a shared hold cannot become exclusive."""
    writer, reader = (face.Lock(disk / "a", protocol="flock", owner="me", shared=shared) for shared in (False, True))
    for locks in ([writer, reader], [reader, writer]):
        with face.acquire_all(locks, timeout=0) as holds:
            holds.ensure_held()
            assert not Lock(disk / "a", protocol="flock", shared=True).wait(0)
        assert Lock(disk / "a", protocol="flock").wait(0)


def ranged(disk: Path, start: int, length: int, **options: Any) -> Lock:
    return Lock(disk / "a", protocol="ofd", range=(start, length), **options)


@pytest.mark.needs("linux")
def test_ranges_of_one_file_are_acquired_together(disk: Path) -> None:
    """D1, D2: disjoint ranges, and ranges that one owner has within others."""
    apart = [ranged(disk, 20, 0), ranged(disk, 0, 10), ranged(disk, 10, 10)]
    nested = [ranged(disk, start, length, owner="me") for start, length in ((2, 3), (0, 10), (0, 5), (10, 0))]
    for locks in (apart, nested, nested[::-1]):
        with acquire_all(locks, timeout=0) as holds:
            holds.ensure_held()
            assert ranged(disk, 12, 1).try_acquire() is None


@pytest.mark.needs("linux")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (((0, 10), {}), ((9, 10), {})),
        (((0, 10), {}), ((2, 3), {})),
        (((0, 10), {"owner": "me"}), ((9, 10), {"owner": "me"})),
        (((0, 10), {"owner": "me", "shared": True}), ((2, 3), {"owner": "me"})),
        (((0, 10), {"owner": "me", "shared": True}), ((0, 5), {"owner": "me"})),
    ],
)
def test_ranges_that_would_block_each_other_are_refused(disk: Path, one: Any, other: Any) -> None:
    """D2."""
    locks = [ranged(disk, *span, **options) for span, options in (one, other)]
    for some in (locks, locks[::-1]):
        with pytest.raises(ValueError, match="in common"):
            acquire_all(some, timeout=0)


@pytest.mark.needs("linux")
def test_a_waiter_for_a_range_holds_no_later_range(disk: Path) -> None:
    """D3: for all triples of ranges."""
    spans = [(start, length) for start in range(4) for length in (1, 2, 0)]
    for some in itertools.permutations(spans, 3):
        locks = [ranged(disk, *span) for span in some]
        try:
            ordered = [some[number] for number in in_order(locks)]
        except ValueError:
            requests = [lock._requests[0] for lock in locks]
            assert any(one.meets(other) for one, other in itertools.combinations(requests, 2))
        else:
            assert all(start + length <= following for (start, length), (following, _) in itertools.pairwise(ordered))


@pytest.mark.parametrize("empty", [[], (), iter(())])
def test_an_empty_list_of_locks_is_accepted(face: Any, empty: Any) -> None:
    with face.acquire_all(empty, timeout=0) as holds:
        assert list(holds) == []
        holds.ensure_held()
        assert not holds.lost


def test_only_locks_and_semaphores_are_accepted(disk: Path) -> None:
    for wrong in (["path"], [None], [Lock(disk / "a"), 1], [Lock]):
        with pytest.raises(TypeError, match="takes locks and semaphores, not"):
            acquire_all(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="put it into a list"):
        acquire_all(Lock(disk / "a"))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        acquire_all(1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout"):
        acquire_all([Lock(disk / "a")], timeout=-1)
    assert list(disk.iterdir()) == []


def test_a_missing_directory_is_refused_early_and_made_where_that_is_asked(face: Any, disk: Path) -> None:
    """D4: before anything is acquired."""
    with pytest.raises(InvalidPath, match="does not exist"):
        face.acquire_all([face.Lock(disk / "a"), face.Lock(disk / "x" / "b")])
    assert list(disk.iterdir()) == []
    with face.acquire_all([face.Lock(disk / "a"), face.Lock(disk / "x" / "y" / "b", parents=True)]):
        assert (disk / "x" / "y" / "b").exists()


# -- all or none -------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(face: Any, disk: Path) -> list[Any]:
    return [face.Lock(disk / "c.lock"), face.Semaphore(disk / "b", 2), face.Lock(disk / "a.lock", protocol="flock")]


@pytest.mark.needs("flock")
def test_the_handle_has_the_order_of_the_list(face: Any, three: list[Any], disk: Path) -> None:
    with face.acquire_all(three) as holds:
        assert isinstance(holds, tuple)
        assert [os.path.basename(hold.path) for hold in holds] == ["c.lock", "b.0.lock", "a.lock"]
        assert len(holds) == 3
        holds.ensure_held()
        assert not holds.lost
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(holds)
    assert files(disk) == ["a.lock"]
    with pytest.raises(NotHeld):
        holds.ensure_held()
    holds.release()


@pytest.mark.parametrize("held", [0, 1, 2])
@pytest.mark.parametrize("timeout", [0, 0.02])
@pytest.mark.needs("flock")
def test_a_timeout_leaves_none_held(face: Any, three: list[Any], disk: Path, held: int, timeout: float) -> None:
    """D4: the error names the missing lock and the time waited, and says that none is held."""
    others = [three[held].acquire()]
    if held == 1:
        others.append(three[1].acquire())
    before = sorted(disk.iterdir())
    with pytest.raises(AcquireTimeout, match="one of 3 to be acquired together") as caught:
        face.acquire_all(three, timeout=timeout)
    assert caught.value.path == three[held].path
    assert ("at once" if timeout == 0 else "within 0.02 s") in str(caught.value)
    assert set(disk.iterdir()) - set(before) <= {disk / "a.lock"}  # which stays, unlocked
    for hold in others:
        hold.release()
    face.acquire_all(three, timeout=0).release()


@pytest.mark.parametrize(
    "protocol", ["sema", pytest.param("flock", marks=pytest.mark.needs("flock")), "proper-lockfile"]
)
def test_a_timeout_leaves_another_call_of_the_owner_its_lock(face: Any, protocol: str, disk: Path) -> None:
    """D4: another call joins the first lock while this one waits for the second; then only that one has it."""
    first = Lock(disk / "a", owner="o", protocol=protocol)
    (disk / "a").touch()
    if protocol == "sema":
        (disk / "a").unlink()
    joined: list[Any] = []

    def join(event: Event) -> None:
        if event.kind == "waiting":
            joined.append(first.acquire())

    wanted = [face.Lock(disk / "a", owner="o", protocol=protocol), face.Lock(disk / "b", on_event=join)]
    with Lock(disk / "b"), pytest.raises(AcquireTimeout):
        face.acquire_all(wanted, timeout=0.5)
    (hold,) = joined
    hold.ensure_held()
    assert Lock(disk / "a", protocol=protocol).try_acquire() is None
    hold.release()
    Lock(disk / "a", protocol=protocol).acquire(timeout=0).release()


@pytest.mark.needs("flock")
def test_a_timeout_leaves_another_call_of_the_owner_its_place_in_the_queue(face: Any, disk: Path) -> None:
    """D4: the call that is given back had waited for the first lock."""
    before = Lock(disk / "a").acquire()
    joined: list[Any] = []

    def join(event: Event) -> None:
        if event.kind == "waiting":
            joined.append(Lock(disk / "a", owner="o").acquire())

    first = face.Lock(disk / "a", owner="o", on_event=lambda event: event.kind == "waiting" and before.release())
    with Lock(disk / "b"), pytest.raises(AcquireTimeout):
        face.acquire_all([first, face.Lock(disk / "b", on_event=join)], timeout=0.5)
    (hold,) = joined
    (queue,) = disk.glob(".holdfast-a.queue")
    with pytest.raises(AcquireTimeout):
        Lock(disk / "a").acquire(timeout=0.01)
    (ticket,) = queue.iterdir()
    os.close(os.open(ticket, os.O_WRONLY | os.O_NONBLOCK))  # ENXIO if it was not open any more
    hold.release()
    assert os.listdir(disk) == []


def test_all_locks_share_one_timeout(disk: Path, environments: Callable[..., Stepped]) -> None:
    """Time used up by the first is not available to the second."""
    first, second, env = Lock(disk / "a"), Lock(disk / "b"), environments()
    now = [1000.0]
    env.instead["monotonic"] = lambda: now[0]
    asked: list[float | None] = []
    real = module.attempt

    def slow(lock: Lock, operation: Any, timeout: float | None, error: Any, *more: object) -> Any:
        asked.append(timeout)
        now[0] += 3.0
        return real(lock, operation, timeout, error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "attempt", slow)
        patch.setattr(module, "environment", lambda: env)
        for timeout, left in ((5.0, [5.0, 2.0]), (2.0, [2.0, 0.0]), (None, [None, None]), (0, [0.0, 0.0])):
            asked.clear()
            acquire_all([second, first], timeout=timeout).release()
            assert asked == left


def test_the_shortest_timeout_of_the_locks_applies(face: Any, disk: Path) -> None:
    busy = face.Lock(disk / "b")
    with busy, pytest.raises(AcquireTimeout, match=r"within 0\.01 s"):
        face.acquire_all([face.Lock(disk / "a", timeout=0.01), face.Lock(disk / "b", timeout=60)])
    with busy, pytest.raises(AcquireTimeout, match=r"within 0\.02 s"):
        face.acquire_all([face.Lock(disk / "a"), face.Lock(disk / "b", timeout=0.02)])
    with busy, pytest.raises(WouldDeadlock):
        face.acquire_all([face.Lock(disk / "a", timeout=0.01), face.Lock(disk / "b")], timeout=None)
    assert list(disk.iterdir()) == []


@pytest.mark.needs("flock")
def test_a_wait_for_oneself_is_refused(face: Any, three: list[Any], disk: Path) -> None:
    with face.Lock(disk / "c.lock"), pytest.raises(WouldDeadlock) as caught:
        face.acquire_all(three)
    assert caught.value.path == f"{disk}/c.lock"
    assert files(disk) == ["a.lock"]


def test_an_error_leaves_none_held(face: Any, disk: Path) -> None:
    (disk / "c").mkdir()
    with pytest.raises(InvalidPath):
        face.acquire_all([face.Lock(disk / "a"), face.Lock(disk / "b"), face.Lock(disk / "c")])
    (disk / "d").write_text('{"holder": "bd", "pid": 1, "hostname": "h", "started_at": "x", "version": "1"}')
    with pytest.raises(ProtocolMismatch):
        face.acquire_all([face.Lock(disk / "a"), face.Lock(disk / "b"), face.Lock(disk / "d")])
    assert sorted(path.name for path in disk.iterdir()) == ["c", "d"]


def test_a_lock_lost_while_the_others_are_acquired_raises(face: Any, disk: Path) -> None:
    """D4: waiting for the second may take long enough to lose the first."""
    first, second = face.Lock(disk / "a"), face.Lock(disk / "b")
    hold = Lock(disk / "b").acquire()

    def steal() -> None:
        while not Lock(disk / "b").status().waiters:  # only then the first is held
            os.sched_yield()
        Lock(disk / "a").break_lock()
        hold.release()

    thief = threading.Thread(target=steal)
    thief.start()
    with pytest.raises(LockLost) as caught:
        face.acquire_all([second, first], timeout=PATIENCE)
    thief.join()
    assert caught.value.path == str(disk / "a")
    assert list(disk.iterdir()) == []


def test_a_lost_lock_does_not_keep_the_others_held(face: Any, disk: Path) -> None:
    locks = [face.Lock(disk / name) for name in "abcd"]
    holds = face.acquire_all(locks)
    for lock in (locks[1], locks[3]):
        lock.break_lock()
    assert holds.lost
    with pytest.raises(LockLost) as ensured:
        holds.ensure_held()
    assert ensured.value.path == locks[1].path
    with pytest.raises(LockLost) as caught:
        holds.release()
    assert caught.value.path == locks[3].path, "the last one acquired is released first"
    assert any(locks[1].path in note for note in caught.value.__notes__)
    assert list(disk.iterdir()) == []
    holds.release()


def test_a_loss_is_noted_with_the_error_of_the_body(face: Any, disk: Path) -> None:
    locks = [face.Lock(disk / name) for name in "ab"]

    def body() -> None:
        with face.acquire_all(locks):
            for lock in locks:
                lock.break_lock()
            raise RuntimeError("body")

    with pytest.raises(RuntimeError, match="body") as caught:
        body()
    assert [path for note in caught.value.__notes__ for path in ("/a ", "/b ") if path in note] == ["/b ", "/a "]
    with pytest.raises(LockLost), face.acquire_all(locks):
        locks[0].break_lock()


@pytest.mark.needs("flock")
def test_a_child_does_not_free_its_parents_locks(face: Any, three: list[Any]) -> None:
    with face.acquire_all(three) as holds:

        def in_the_child() -> bool:
            holds.release()
            with pytest.raises(NotHeld):
                holds.ensure_held()
            return three[0].try_acquire() is None

        assert elsewhere(in_the_child)
        holds.ensure_held()


@pytest.mark.parametrize("waits", [False, True], ids=["threads", "tasks"])
def test_a_second_interruption_while_the_first_gives_all_back_leaves_nothing_held(
    disk: Path, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """D4: the first interruption comes as the `with` begins, the second in the release that it causes."""
    interrupted: list[object] = []

    def release(hold: object, real: Callable[[Any], object] = module.release_now) -> None:
        interrupted.append(hold)
        if len(interrupted) == 1:
            raise KeyboardInterrupt
        real(hold)

    def thread() -> None:
        with acquire_all([Lock(disk / name) for name in "ab"]):
            pytest.fail("it goes on inside")

    async def task() -> None:
        async with await aio.acquire_all([AsyncLock(disk / name) for name in "ab"]):
            pytest.fail("it goes on inside")

    monkeypatch.setattr(module, "release_now", release)
    monkeypatch.setattr(aio if waits else module, "require_unreleased", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(task()) if waits else thread()
    assert len(interrupted) == 3
    assert os.listdir(disk) == []
