"""Removing another's lock: the intended one, or none (remove.py)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast._drivers.sync import drive, wait_for
from holdfast.engines.file.remove import PATIENCE, break_lock, remove_if
from holdfast.engines.file.request import FileRequest
from holdfast.errors import HoldfastError, InvalidPath
from unit.stepping import Contend, Stepped, sema_record

Environments = Callable[..., Stepped]
JUDGED, OTHER = sema_record(7, 1000, "judged"), sema_record(8, 9e9, "another")
kinds = pytest.mark.parametrize("kind", ["linux", "posix", "generic"])


def only_the_judged(seen: object, _assessed: object) -> bool:
    return seen.data == JUDGED  # type: ignore[attr-defined]


@kinds
@pytest.mark.parametrize("how", ["replaced", "rewritten"])
def test_only_the_lock_that_was_judged_goes(how: str, kind: str, disk: Path, environments: Environments) -> None:
    """R1: between the judgement and the removal, another process replaced the path or the record."""
    path, env = disk / "l", environments(kind=kind)
    path.write_bytes(JUDGED)
    request = FileRequest(str(path), {})

    def change() -> None:
        if how == "replaced":
            path.unlink()
        path.write_bytes(OTHER)

    judged: list[bool] = []

    def agree(seen: object, assessed: object) -> bool:
        judged.append(only_the_judged(seen, assessed))
        if len(judged) == 1:
            change()
        return judged[-1]

    assert drive(remove_if(env, request, agree)) is None
    assert judged == [True, False]
    assert path.read_bytes() == OTHER
    assert not env.open_descriptors()


def test_a_release_while_the_lock_is_broken_is_no_error(disk: Path, contend: Contend) -> None:
    """R1: its holder releases it between the last look and the removal, so there is nothing to remove."""
    holder, remover = contend(disk / "l"), contend(disk / "l")
    held = holder.get()
    remover.env.once(remover.env.before, "unlink", held.release)
    assert drive(break_lock(remover.env, remover.request)) is None
    assert not remover.env.open_descriptors()


def test_a_lock_is_removed_under_its_guard(disk: Path, contend: Contend) -> None:
    """R2: while the breaker has the guard, no contender can be taking the same file over."""
    path = disk / "l"
    path.write_bytes(JUDGED)
    remover, contender = contend(path), contend(path)
    guarded: list[bool] = []

    def probe(gone: str) -> None:
        if gone == str(path):
            fd = os.open(path, os.O_RDONLY)
            guarded.append(contender.env.real.guarded(fd) is True)
            os.close(fd)

    remover.env.before["unlink"] = probe
    assert drive(remove_if(remover.env, remover.request, only_the_judged)) is not None
    assert guarded == [True]
    assert not path.exists()


@kinds
def test_any_lock_file_can_be_broken(kind: str, disk: Path, environments: Environments) -> None:
    path, env = disk / "l", environments(kind=kind)
    request = FileRequest(str(path), {})
    assert drive(break_lock(env, request)) is None
    for content in (JUDGED, b"", b"garbage"):
        path.write_bytes(content)
        record = drive(break_lock(env, request))
        assert (record.tag if record else None) == ("judged" if content == JUDGED else None)
        assert not path.exists()
    path.mkdir()
    with pytest.raises(InvalidPath):
        drive(break_lock(env, request))


def test_a_living_holders_lock_can_be_broken(disk: Path, contend: Contend) -> None:
    holder, other = contend(disk / "l", tag="alive"), contend(disk / "l")
    held = holder.get()
    record = drive(break_lock(other.env, other.request))
    assert record is not None
    assert record.tag == "alive"
    assert not (disk / "l").exists()
    assert not held.check(), "the holder finds its lock lost"


def changing_hands(env: Stepped, path: Path, times: int) -> list[int]:
    """Make that many looks at the lock file outdated: it is acquired anew after each."""
    looks: list[int] = []

    def change(*_args: object, **_more: object) -> None:
        looks.append(len(looks))
        if len(looks) <= times:
            path.unlink()
            path.write_bytes(sema_record(len(looks) + 1, 9e9, "the next one"))

    env.before["list_directory"] = change  # when the claim is made
    return looks


def test_a_stream_of_short_holds_does_not_save_a_lock_from_being_broken(disk: Path, environments: Environments) -> None:
    """R3: it changes hands again and again, and is removed at last."""
    path, env = disk / "l", environments()
    env.instead["monotonic"] = lambda: 1000.0  # on a busy machine, so many looks take longer than PATIENCE
    path.write_bytes(JUDGED)
    looks = changing_hands(env, path, 40)
    steps = break_lock(env, FileRequest(str(path), {}))
    with pytest.raises(StopIteration) as end:
        [next(steps) for _ in range(100)]
    record = end.value.value
    assert (record and record.pid, len(looks), path.exists()) == (41, 41, False)


@pytest.mark.parametrize("protocol", ["sema", "sidecar"])
def test_breaking_waits_with_nothing_in_hand_and_ends_in_an_error(
    protocol: str, disk: Path, environments: Environments
) -> None:
    """R3: neither a descriptor nor a file is kept while waiting after a try; once the time is up, an error describes
    the lock."""
    clock, env = [1000.0], environments()
    env.instead["monotonic"] = lambda: clock[0]
    request = FileRequest(str(disk / "l"), {"protocol": protocol})
    path = Path(request.path)
    path.write_bytes(JUDGED if protocol == "sema" else b'{"pid": 5, "createdAt": "2999-01-01T00:00:00.000Z"}')
    looks = changing_hands(env, path, 10_000)

    def run_out() -> None:
        for wait in break_lock(env, request):
            assert clock[0] < wait.deadline <= 1000.0 + PATIENCE
            assert not env.open_descriptors()
            assert [*disk.iterdir()] == [path]
            clock[0] = wait.deadline

    with pytest.raises(HoldfastError, match="changed hands"):
        run_out()
    assert clock[0] == 1000.0 + PATIENCE
    assert 100 < len(looks) < 1000
    assert not env.open_descriptors()


def test_a_breaking_that_is_closed_while_it_waits_breaks_nothing(disk: Path, environments: Environments) -> None:
    """R3."""
    path, env = disk / "l", environments()
    path.write_bytes(JUDGED)
    changing_hands(env, path, 1)
    steps = break_lock(env, FileRequest(str(path), {}))
    next(steps)
    steps.close()
    assert path.exists()
    assert not env.open_descriptors()


@pytest.mark.needs("events", "flock")
def test_a_waiter_behind_the_ticket_of_a_broken_holder_hears_of_it(
    disk: Path, contend: Contend, environments: Environments, live_pid: int
) -> None:
    """R4: it watches that ticket."""
    first = contend(disk / "l").get()
    other = environments(pid=live_pid)
    ahead, behind = (contend(disk / "l", env, fair=True, timeout=20) for env in (other, environments()))
    for contender in (ahead, behind):
        while not any(name.startswith("0") for name in tickets_of(disk)[contender is behind :]):
            wait = contender.step()
            assert wait is not None
            wait_for(wait.replaced(deadline=min(wait.deadline, time.monotonic() + 0.01)))
    first.release()
    assert ahead.get().verify()
    wait = behind.step()
    assert wait is not None
    assert wait.fds
    remover = environments()
    started = time.monotonic()
    assert drive(break_lock(remover, behind.request)) is not None  # type: ignore[arg-type]
    assert len(tickets_of(disk)) == 1, "that of another process stays"
    assert behind.get().verify()
    assert time.monotonic() - started < 5


def tickets_of(place: Path) -> list[str]:
    queue = place / ".holdfast-l.queue"
    return sorted(os.listdir(queue)) if queue.exists() else []
