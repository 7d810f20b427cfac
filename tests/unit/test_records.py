"""Record locks: requests to the kernel, its tables, and which locks conflict (flock.py)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Lock, Semaphore, UnsupportedFilesystem, WouldDeadlock
from holdfast._core.attempt import Refusal
from holdfast._platform import records
from holdfast._platform.proc_locks import LockEntry, entries
from holdfast._platform.storage import storage_of
from holdfast._platform.values import Storage
from holdfast.engines.file.request import FileRequest
from holdfast.errors import MalformedRecord
from holdfast.protocols import get
from unit.stepping import Contend, Contender, Stepped

Environments = Callable[..., Stepped]

LOCKS = """\
1: POSIX  ADVISORY  WRITE 3568 fd:00:2531452 0 EOF
1: -> POSIX  ADVISORY  READ 3569 fd:00:2531452 20 20
2: FLOCK  ADVISORY  WRITE 3517 fd:00:2531448 0 EOF
3: OFDLCK ADVISORY  READ  -1 fd:00:2531452 10 19
4: POSIX  MANDATORY WRITE 12 fd:00:2531452 18446744073709551615 99999999999999999999
5: POSIX  ADVISORY  UNLCK 12 fd:00:2531452 0 EOF
lock:\t1: OFDLCK ADVISORY  WRITE -1 fe:00:15344846 100 109
"""
FILE = (os.makedev(0xFD, 0), 2531452)


def test_the_tables_tell_which_record_locks_meet_a_range() -> None:
    """W9: of either kind; an OFD lock has no pid. Locks of `flock` do not count."""
    whole = LockEntry(3568, True, False, FILE, "fcntl")
    opened = LockEntry(0, False, False, FILE, "ofd", (10, 19))
    reader = LockEntry(3569, False, True, FILE, "fcntl", (20, 20))
    assert entries(LOCKS, (0, 0))[:3] == [whole, reader, opened]
    assert entries(LOCKS, (0, 10)) == [whole]
    assert entries(LOCKS, (19, 1)) == [whole, opened]
    assert entries(LOCKS, (20, 1)) == [whole, reader]
    assert [entry.file[1] for entry in entries(LOCKS, (109, 1))] == [2531452, 15344846]
    assert entries(LOCKS, (110, 1)) == [whole]
    assert len(entries(LOCKS)) == 1


def test_the_structure_for_the_kernel_has_the_size_that_it_expects() -> None:
    asked = records.asked(1, (7, 9))
    assert len(asked) == 32
    assert records.free_in(asked, 1)
    assert not records.free_in(asked, 2)


@pytest.fixture
def ofd(contend: Contend, disk: Path) -> Callable[..., Contender]:
    return lambda *span, env=None, **options: contend(
        disk / "l", env, protocol="ofd", **({"range": span} if span else {}), **options
    )


@pytest.mark.needs("flock")
@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ((0, 0), (0, 0), True),
        ((0, 10), (10, 10), False),
        ((0, 10), (9, 1), True),
        ((5, 0), (0, 5), False),
        ((5, 0), (0, 6), True),
        ((5, 0), (1000, 0), True),
        ((3, 1), (2, 1), False),
    ],
)
def test_ranges_exclude_each_other_where_they_meet(
    one: tuple[int, int], other: tuple[int, int], meet: bool, ofd: Callable[..., Contender]
) -> None:
    """F10: between processes and within one, where a contender does not wait for itself beside its own hold."""
    first = ofd(*one)
    held = first.get()
    second = ofd(*other)
    assert isinstance(second.run(), Refusal) == meet
    context = held.refs[0].context
    third = ofd(*other, env=first.env, timeout=None if meet else 0, context=context)
    if meet:
        with pytest.raises(WouldDeadlock):
            third.run()
    else:
        second.result.release()  # type: ignore[union-attr]
        third.get().release()
    held.release()


@pytest.mark.needs("flock")
def test_an_owner_enters_again_only_within_its_range(ofd: Callable[..., Contender]) -> None:
    """F10: a part of its range is its own, and anything beyond is not."""
    first = ofd(10, 10, owner="me")
    held = first.get()
    again = ofd(12, 3, owner="me", env=first.env)
    assert again.get() is held
    assert isinstance(ofd(5, 10, owner="me", env=first.env).run(), Refusal)
    held.release(held.refs[-1])
    held.release()


@pytest.mark.needs("flock")
def test_a_lock_of_the_other_kind_on_the_same_file_is_in_nobodys_way(
    ofd: Callable[..., Contender], contend: Contend, disk: Path
) -> None:
    """F10."""
    first = ofd()
    held = first.get()
    flock = contend(disk / "l", first.env, protocol="flock", context=held.refs[0].context, timeout=None)
    flock.get().release()
    held.release()


def test_each_range_and_kind_has_a_queue_of_its_own(disk: Path) -> None:
    """F10: a waiter for one does not wait behind waiters for another."""
    path = str(disk / "l")
    queues = [
        FileRequest(path, {"protocol": "flock"}).queue,
        *(FileRequest(path, {"protocol": "ofd", "range": span}).queue for span in ((0, 0), (0, 1), (1, 0))),
    ]
    assert len(set(queues)) == 4
    assert FileRequest(path, {"protocol": "ofd"}).queue == queues[1]


@pytest.mark.needs("flock")
def test_nothing_is_ever_written_into_the_file(ofd: Callable[..., Contender], disk: Path) -> None:
    """F10: no tag is written, and none removed."""
    one = ofd(tag="x")
    held = one.get()
    assert (disk / "l").read_bytes() == b""
    assert held.record().tag == "x"
    held.release()
    (disk / "l").write_bytes(b"precious")
    ofd(tag="x").get().release()
    assert (disk / "l").read_bytes() == b"precious"
    with pytest.raises(MalformedRecord):
        get("ofd").decode(b"")
    with pytest.raises(ValueError, match="nothing is written"):
        get("ofd").encode(held.record())


@pytest.mark.parametrize("wrong", [(-1, 0), (0, -1), (2**63, 0), (1, 2**63 - 1)])
def test_an_impossible_range_is_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="range"):
        Lock("/tmp/x", protocol="ofd", range=wrong)


@pytest.mark.parametrize("wrong", [5, (1,), (1, 2, 3), (1.0, 2), [0, 1], (True, 1), "0:1"])
def test_a_range_of_another_type_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="range"):
        Lock("/tmp/x", protocol="ofd", range=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="range is not an option of the flock protocol"):
        Lock("/tmp/x", protocol="flock", range=(0, 1))


@pytest.mark.needs("flock")
def test_a_semaphore_can_be_of_record_locks(disk: Path) -> None:
    slots = Semaphore(disk / "s", 2, protocol="ofd")
    with slots, slots as two:
        assert two.slot == 1
        assert slots.try_acquire() is None


@pytest.mark.needs("flock")
def test_each_range_of_the_slots_has_a_queue_of_its_own(contend: Contend, disk: Path) -> None:
    """So a contender neither waits behind waiters for other bytes, nor shows them as waiters."""

    def contender(*span: int) -> Contender:
        return contend(disk / "b", slots=1, timeout=None, fair=True, protocol="ofd", range=span)

    holder, waiter, other = contender(0, 10), contender(0, 10), contender(10, 10)
    assert holder.step() is None
    assert waiter.step() is not None
    assert other.env.exists(waiter.request.queue), "it waits in the queue"
    assert other.step() is None, "although others wait"


NFS = {"vers": "3"}


@pytest.mark.parametrize(
    ("options", "flock", "ofd"),
    [
        ({"vers": "4.2"}, True, True),
        ({**NFS, "local_lock": "none"}, True, True),
        ({**NFS, "local_lock": "all"}, False, False),
        ({**NFS, "local_lock": "flock"}, False, True),
        ({**NFS, "local_lock": "posix"}, True, False),
    ],
)
def test_the_options_of_nfs_decide_which_kinds_of_lock_others_see(
    options: dict[str, str], flock: bool, ofd: bool
) -> None:
    """F4: nfs(5)."""
    found = storage_of("nfs", options)
    assert (found.guards, found.records) == (flock, ofd)


@pytest.mark.needs("flock")
def test_a_record_lock_that_other_machines_do_not_see_is_refused(ofd: Callable[..., Contender]) -> None:
    """F4."""
    one = ofd()
    one.env.instead["storage"] = lambda *_: Storage(
        "nfs", shared=True, guards=True, records=False, remedy="mount it so"
    )
    with pytest.raises(UnsupportedFilesystem, match=r"record locks stay on this one.*mount it so"):
        one.run()
