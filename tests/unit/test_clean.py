"""Cleaning: removal of leftovers and of nothing else, whatever happens between the look and the removal (clean.py)."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from holdfast._admin.clean import (
    ANNOUNCEMENT,
    CHANGED,
    LOCK,
    QUEUE,
    REMOVED,
    TEMPORARY,
    TICKET,
    Leftover,
    Removal,
    directories,
    leftovers,
    remove,
    remove_lock,
    request_of,
    safe_or_approved,
)
from holdfast._admin.scan import Survey
from holdfast._core.wait import Wait
from holdfast._drivers.sync import drive, wait_for
from holdfast._platform.values import Presence, Process, temporary_name
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.paths import queue_of
from holdfast.engines.file.queue import QueueEntry
from holdfast.engines.file.request import FileRequest
from holdfast.engines.file.takeover import NO_LOCKS, make_claim
from unit.stepping import Clock, Contend, Contender, Crash, Stepped, forged_ticket, sema_record, ticket_name

Environments = Callable[..., Stepped]
SAFE = safe_or_approved(approved=False)
OLD = 4000.0


def found(env: Stepped, where: Path, *, approved: bool = False) -> list[Leftover]:
    every = list(leftovers(env, Survey(env), str(where), approved=approved))
    assert all(isinstance(one, Leftover) for one in every)
    return every


def names(env: Stepped, where: Path, *, approved: bool = False) -> list[str]:
    """The names of what may be removed; names of what is kept begin with `=`."""
    every = found(env, where, approved=approved)
    return sorted(("=" if one.way else "") + os.path.relpath(one.path, where) for one in every)


def clean(env: Stepped, where: Path, *, approved: bool = False) -> list[Removal]:
    every = [one for one in found(env, where, approved=approved) if not one.way]
    return [drive(remove(env, one, approved=approved)) for one in every]


@pytest.fixture
def dead(disk: Path, contend: Contend) -> Path:
    """The lock of a holdfast process that crashed."""
    holder = contend(disk / "l.lock", tag="dead")
    holder.get()
    holder.crash()
    return disk / "l.lock"


@pytest.fixture
def stale(disk: Path, dead_pid: int) -> Path:
    """A foreign lock whose process has ended, older than its rule allows."""
    path = disk / "l.lock"
    path.write_bytes(sema_record(dead_pid, time.time() - OLD, "stale"))
    return path


def settled(steps: Generator[Wait, None, Removal], clock: Clock) -> Removal:
    """The outcome, as time passes while it waits."""
    while True:
        try:
            clock.now = max(clock.now, next(steps).deadline)
        except StopIteration as done:
            result: Removal = done.value
            return result


# -- a contender comes in between --------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["dead", "stale"])
@pytest.mark.parametrize("kind", ["linux", "posix", "generic"])
@pytest.mark.parametrize("when", ["at_step", "past_step"])
def test_a_lock_taken_over_meanwhile_is_not_removed(
    when: str,
    kind: str,
    which: str,
    disk: Path,
    dead_pid: int,
    environments: Environments,
    clocked: Environments,
    clock: Clock,
    contend: Contend,
) -> None:
    """M7, M8, M9: at each step of the removal, a contender tries to get the lock; its hold stays."""
    path = disk / "l.lock"
    if which == "stale":
        path.write_bytes(sema_record(dead_pid, time.time() - OLD, "stale"))
    else:
        holder = contend(path, environments(kind=kind, pid=dead_pid), tag="dead")
        holder.get()
        holder.crash()
    record, number, won = path.read_bytes(), 0, 0
    while True:
        env = clocked(kind=kind)
        path.write_bytes(record)
        other = contend(path, environments(kind=kind, pid=os.getppid()))

        def compete(step: int, _name: str, other: Contender = other, number: int = number) -> None:
            if step == number:
                other.run()

        setattr(env, when, compete)
        removal = settled(remove_lock(env, request_of(str(path), "sema"), SAFE), clock)
        if not other.done:
            break
        held = other.result
        if isinstance(held, FileHold):
            won += 1
            assert held.check(), f"robbed after step {number}, {env.steps[number]}"
            assert path.exists()
            held.release()
        else:
            assert removal.result == REMOVED, f"both were refused at step {number}, {env.steps[number]}"
            assert not path.exists()
        number += 1
    assert number > 5
    assert won > 2, "it never came in time"


def test_a_newcomer_is_safe_from_a_foreign_removal_of_the_stale_lock(
    stale: Path, environments: Environments, contend: Contend
) -> None:
    """M9: a foreign process has judged the lock stale, and removes it by path before our removal has settled."""
    env, newcomer = environments(), contend(stale)
    steps = remove_lock(env, request_of(str(stale), "sema"), SAFE)
    wait = next(steps)
    assert wait.deadline > time.monotonic()
    assert not isinstance(newcomer.run(), FileHold), "nobody may be inside yet"
    stale.unlink()  # the foreign process, by its older look
    stale.write_bytes(theirs := sema_record(os.getpid(), time.time(), "theirs"))
    wait_for(wait)
    with pytest.raises(StopIteration) as done:
        next(steps)
    assert done.value.value.result == CHANGED
    assert stale.read_bytes() == theirs


def test_a_lock_proven_dead_is_removed_at_once(dead: Path, environments: Environments) -> None:
    """M8: nothing has to settle."""
    steps = remove_lock(environments(), request_of(str(dead), "sema"), SAFE)
    with pytest.raises(StopIteration) as done:
        next(steps)
    assert done.value.value.result == REMOVED
    assert not dead.exists()


@pytest.mark.parametrize("which", ["dead", "stale"])
def test_a_kill_in_the_middle_leaves_a_lock_that_can_be_acquired(
    which: str, request: pytest.FixtureRequest, environments: Environments, contend: Contend
) -> None:
    """M7: the lock of a dead holder is left, or none."""
    path: Path = request.getfixturevalue(which)
    record, number = path.read_bytes(), 0
    while True:
        path.write_bytes(record)
        env = environments()

        def crash(step: int, _name: str, env: Stepped = env, number: int = number) -> None:
            if step == number:
                env.crash()
                raise Crash

        env.past_step = crash
        try:
            drive(remove_lock(env, request_of(str(path), "sema"), SAFE))
            break
        except Crash:
            pass
        contend(path).get().release()
        number += 1
    assert number > 5


def test_a_removal_is_announced(disk: Path, environments: Environments, contend: Contend) -> None:
    """M8, M9: beside a sidecar's lock file."""
    holder = contend(disk / "target", protocol="sidecar")
    holder.get()
    holder.crash()
    path, env, seen = disk / "target.lock", environments(), []
    env.before["unlink"] = lambda gone: seen.append((gone, (disk / "target.lock.reclaim").exists()))
    assert drive(remove_lock(env, request_of(str(path), "sidecar"), SAFE)).result == REMOVED
    assert (str(path), True) in seen
    assert os.listdir(disk) == []


# -- removable leftovers -----------------------------------------------------------------------------------------------


def test_only_locks_proven_dead_or_stale_are_removed(
    disk: Path, contend: Contend, environments: Environments, live_pid: int, dead_pid: int
) -> None:
    """M10: locks that are alive, young, unknown, unreadable, unrecognised or the kernel's stay."""
    now = time.time()
    holders = [contend(disk / "alive.lock"), contend(disk / "shared", protocol="flock")]
    for holder in holders:
        holder.get()
    (disk / "old-alive.lock").write_bytes(sema_record(live_pid, now, "a live pid"))
    (disk / "young.lock").write_bytes(sema_record(dead_pid, now - 10, "young"))
    (disk / "empty.lock").write_bytes(b"")
    (disk / "torn.lock").write_bytes(b"pid=7\ntimestamp=1\nholdfast=1 g torn\n")
    (disk / "garbage.lock").write_bytes(b"pid=x\n")
    (disk / "poetry.lock").write_bytes(b"# generated\n[[package]]\n")
    (disk / "flock").write_bytes(b"")
    (disk / "linked.lock").symlink_to("young.lock")
    (disk / "dir.lock").mkdir()
    os.mkfifo(disk / "fifo.lock")
    before = sorted(os.listdir(disk))
    env = environments()
    assert names(env, disk) == ["=young.lock"]
    assert names(env, disk, approved=True) == ["=young.lock"]
    assert clean(env, disk, approved=True) == []
    assert sorted(os.listdir(disk)) == before


def test_a_stale_lock_of_an_unknown_holder_goes_if_approved(
    disk: Path, environments: Environments, contend: Contend
) -> None:
    """M10: its holder is on another host, or its protocol is sidecar, whose rule alone decides nothing."""
    env = environments()
    elsewhere = f"1 g 00000000-1111-2222-3333-444444444444 1 4026531836 t1 not-{socket.gethostname()}"
    (disk / "there.lock").write_bytes(sema_record(7, time.time() - OLD, marker=elsewhere))
    (disk / "side.lock").write_text('{"createdAt": "2020-01-01T00:00:00.000Z"}\n')
    holder = contend(disk / "dead", protocol="sidecar")
    holder.get()
    holder.crash()
    assert names(env, disk) == ["=side.lock", "=there.lock", "dead.lock"]
    assert [one.result for one in clean(env, disk)] == [REMOVED]
    assert names(env, disk, approved=True) == ["side.lock", "there.lock"]
    assert [one.result for one in clean(env, disk, approved=True)] == [REMOVED, REMOVED]
    assert os.listdir(disk) == []


def test_a_living_holders_stale_lock_stays_though_approved(
    disk: Path, environments: Environments, contend: Contend, live_pid: int
) -> None:
    """M10: its guard is held, or its process exists."""
    env, holder = environments(), contend(disk / "held", protocol="sidecar")
    held = holder.get()
    os.utime(held.path, (1, 1))
    data = held.data.replace(b'"createdAt": "2', b'"createdAt": "1')
    os.pwrite(held.fd, data, 0)
    (disk / "pid.lock").write_text(f'{{"pid": {live_pid}, "createdAt": "2020-01-01T00:00:00.000Z"}}')
    env.instead["inspect"] = lambda _pid: Process(Presence.RUNNING)  # for longer than that record is old
    assert names(env, disk, approved=True) == []
    steps = remove_lock(env, request_of(held.path, "sidecar"), safe_or_approved(approved=True))
    assert drive(steps).result == CHANGED
    assert (disk / "held.lock").exists()


def test_a_file_that_was_never_finished_goes(disk: Path, environments: Environments) -> None:
    """M9: its creator died before it wrote its record (publish.py, P6)."""
    path, env = disk / "l.lock", environments()
    path.write_bytes(b"")
    path.chmod(0o644 | stat.S_ISVTX)
    assert names(env, disk) == ["l.lock"]
    assert [one.result for one in clean(env, disk)] == [REMOVED]
    assert os.listdir(disk) == []


@pytest.mark.needs("flock")
@pytest.mark.parametrize("kind", ["stale", "unfinished", "directory"])
def test_a_reader_that_shares_the_guard_prevents_no_removal(
    kind: str, disk: Path, dead_pid: int, environments: Environments
) -> None:
    """T9: cleaning tries once, and does not wait for readers."""
    path = disk / "l.lock"
    if kind == "directory":
        path.mkdir()
        os.utime(path, (1, 1))
    elif kind == "unfinished":
        path.touch()
        path.chmod(0o644 | stat.S_ISVTX)
    else:
        path.write_bytes(sema_record(dead_pid, time.time() - OLD))
    env, reader = environments(), environments()
    fd = reader.open_directory(str(path)) if kind == "directory" else reader.open_existing(str(path), write=False)
    assert reader.guard(fd, shared=True)
    request = request_of(str(path), "proper-lockfile" if kind == "directory" else "sema")
    assert drive(remove_lock(env, request, safe_or_approved(approved=True))) == Removal(REMOVED)
    reader.close(fd)
    assert os.listdir(disk) == []


# -- files beside a lock file ------------------------------------------------------------------------------------------


def test_only_temporary_files_of_ended_processes_go(
    disk: Path, environments: Environments, live_pid: int, dead_pid: int
) -> None:
    """M11: by pid, place, age and content; lookalikes stay."""
    env, now = environments(), time.time()
    env.instead["time"] = lambda: now
    who = env.identity()

    def make(name: str, content: str = "", age: float = 100.0) -> None:
        (disk / name).write_text(content)
        os.utime(disk / name, (now - age, now - age))

    token = "0123456789abcdef"
    mine = temporary_name(who.replaced(pid=dead_pid), token)
    make(mine)
    make(temporary_name(who.replaced(pid=live_pid), token))
    make(temporary_name(who.replaced(pid=dead_pid, boot="another"), token))
    theirs = f"l.lock.{dead_pid}.{token}.tmp"
    make(theirs, f"pid={dead_pid}\ntimestamp=5\n")
    make(f"m.lock.{live_pid}.{token}.tmp", f"pid={live_pid}\ntimestamp=5\n")
    make(f"n.lock.{dead_pid}.{token}.tmp", f"pid={dead_pid}\ntimestamp=5\n", age=0.0)
    make(f"o.lock.{dead_pid}.{token}.tmp", "my thesis\n")
    make("l.lock.notes.tmp")
    (disk / f"p.lock.{dead_pid}.{token}.tmp").mkdir()
    (disk / f"q.lock.{dead_pid}.{token}.tmp").symlink_to(theirs)
    before = set(os.listdir(disk))
    assert names(env, disk) == sorted([mine, theirs])
    assert [one.result for one in clean(env, disk)] == [REMOVED, REMOVED]
    assert before - set(os.listdir(disk)) == {mine, theirs}
    for path in disk.iterdir():
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_only_claims_of_ended_processes_go(
    disk: Path, environments: Environments, dead_pid: int, live_pid: int
) -> None:
    """M12."""
    (disk / "l.lock").touch()
    found = os.stat(disk / "l.lock")
    for pid in (live_pid, dead_pid):  # a claim that is made removes those of the dead
        claim = make_claim(environments(pid=pid), str(disk / "l.lock"), (found.st_dev, found.st_ino + pid), NO_LOCKS)
        assert claim is not None
    (disk / "l.lock").unlink()
    env = environments()
    (dead,) = names(env, disk)
    assert f".{dead_pid}." in dead
    assert [one.result for one in clean(env, disk)] == [REMOVED]
    (left,) = os.listdir(disk)
    assert f".{live_pid}." in left
    (disk / left).unlink()


def test_a_ticket_removed_with_its_lock_is_reported_as_gone(
    disk: Path, contend: Contend, environments: Environments
) -> None:
    holder, waiter = (contend(disk / "l.lock", timeout=None, fair=True) for _ in range(2))
    holder.get()
    assert waiter.step() is not None
    for dead in (holder, waiter):
        dead.crash()
    env = environments()
    lock, ticket = sorted((one for one in found(env, disk) if not one.way), key=lambda one: one.kind)
    assert (lock.kind, ticket.kind) == ("lock", "ticket")
    assert drive(remove(env, lock, approved=False)).result == REMOVED
    assert os.listdir(disk) == []
    assert drive(remove(env, ticket, approved=False)) == Removal(CHANGED, "it is already gone")


def test_only_tickets_of_ended_processes_go(disk: Path, environments: Environments) -> None:
    """M7: a ticket is judged anew before its removal."""
    env, living, crashed = environments(), environments(), environments()
    request = FileRequest(str(disk / "l.lock"), {})
    queue = disk / ".holdfast-l.lock.queue"
    queue.mkdir()
    assert names(env, disk) == [queue.name], "empty"
    places = [QueueEntry(one, request, one.monotonic() - 1) for one in (crashed, living)]
    for place in places:
        place.is_first()
        place.queue_up()
    assert len(os.listdir(queue)) == 2
    assert names(env, disk) == []
    crashed.crash()
    before = found(env, disk)
    assert [one.path for one in before] == [f"{queue}/{places[0].name}"]
    assert drive(remove(env, before[0], approved=False)).result == REMOVED
    assert os.listdir(queue) == [places[1].name]
    alive = Leftover("ticket", f"{queue}/{places[1].name}", "", "")
    assert drive(remove(env, alive, approved=False)).result == CHANGED
    places[1].leave()
    assert not queue.exists()


def test_a_ticket_is_not_removed_through_a_link_put_in_its_queues_place(disk: Path, environments: Environments) -> None:
    """M7, Q8: a user who may write to the directory exchanges the queue at any step between the survey and the
    removal."""
    queue, elsewhere = disk / ".holdfast-l.lock.queue", disk / "elsewhere"
    for place in (queue, elsewhere):
        place.mkdir()
    name = forged_ticket(queue).name
    os.mkfifo(elsewhere / name)
    env = environments()
    (ticket,) = found(env, disk)
    done = False
    for at in range(50):
        swapped = environments()

        def exchange(number: int, _name: str, at: int = at) -> None:
            if number == at:
                os.rename(queue, disk / "moved")
                os.symlink(elsewhere, queue)

        swapped.at_step = exchange
        result = drive(remove(swapped, ticket, approved=False)).result
        assert os.listdir(elsewhere) == [name], f"before step {at}"
        done = len(swapped.steps) <= at
        if done:
            assert result == REMOVED
            break
        queue.unlink()
        os.rename(disk / "moved", queue)
        if not (queue / name).exists():
            os.mkfifo(queue / name)
    assert done
    (elsewhere / name).unlink()


def test_only_files_of_dead_waiters_are_leftovers_in_a_queue(
    disk: Path, environments: Environments, dead_pid: int
) -> None:
    """M7, Q2, Q3, Q8: tickets without a reader, records without a ticket; those of another kernel after a day."""
    queue = disk / ".holdfast-l.lock.queue"
    queue.mkdir()
    other = queue / f"{ticket_name(queue)}.new"
    other.touch()  # no FIFO: not ours
    os.utime(other, (0, 0))
    read, unread = (queue / f"{ticket_name(queue)}.new" for _ in range(2))
    for path in (read, unread):
        os.mkfifo(path)
    maker = os.open(read, os.O_RDWR | os.O_NONBLOCK)
    ticket = forged_ticket(queue)  # its owner is gone, whatever its number is now
    goes, stays = {ticket.name, unread.name}, {other.name, read.name}
    for age in (3600, 2 * 86400):
        path = forged_ticket(queue, dead_pid, where="f" * 16)
        os.utime(path, (time.time() - age,) * 2)
        (goes if age > 86400 else stays).add(path.name)
    foreign = path
    tag = queue / f"{ticket_name(queue)}.tag"
    tag.touch()
    goes.add(tag.name)
    waiter = environments()
    entry = QueueEntry(waiter, FileRequest(str(disk / "l.lock"), {"tag": "t"}), waiter.monotonic())  # type: ignore[arg-type]
    entry.queue_up()
    stays |= {entry.name, f"{entry.name}.tag"}
    env = environments()
    assert {os.path.basename(one.path) for one in found(env, disk)} == goes
    whys = {one.path: one.why for one in found(env, disk) if not one.way}
    assert "another machine" in whys.pop(str(foreign))
    assert set(whys.values()) == {"the process that waited has ended"}
    assert {one.result for one in clean(env, disk)} == {REMOVED}
    assert set(os.listdir(queue)) == stays
    os.close(maker)
    entry.leave()
    shutil.rmtree(queue)


@pytest.mark.parametrize(
    ("age", "sticky", "goes"), [(0.0, False, False), (100.0, False, True), (0.0, True, True), (100.0, True, True)]
)
def test_only_an_announcement_no_longer_in_use_goes(
    age: float, *, sticky: bool, goes: bool, disk: Path, environments: Environments
) -> None:
    """M7: one left by a crash, by its guard or its age; not one in use."""
    env, path = environments(), disk / "t.lock.reclaim"
    path.mkdir()
    if sticky:
        path.chmod(0o1755)
    os.utime(path, (time.time() - age, time.time() - age))
    assert bool(names(env, disk)) == goes
    if goes:
        every = found(env, disk)
        if sticky:
            other = environments()
            fd = other.open_existing(str(path), write=False)
            assert other.guard(fd)
            assert names(env, disk) == []
            assert drive(remove(env, every[0], approved=False)).result == CHANGED
            other.close(fd)
        assert [one.result for one in clean(env, disk)] == [REMOVED]
        assert not path.exists()
    else:
        path.rmdir()


def test_a_directory_that_is_not_empty_is_kept(disk: Path, environments: Environments) -> None:
    path = disk / "t.lock.reclaim"
    path.mkdir()
    (path / "thesis").write_text("x")
    os.utime(path, (1, 1))
    assert names(environments(), disk) == []


@pytest.mark.parametrize("approved", [False, True])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cfg.ini", "pid={pid}\ntimestamp=1000\n[section]\nkey=value\n"),
        ("the.lock", "pid={pid}\ntimestamp=1000\n[section]\nkey=value\n"),
        ("notes", "pid={pid}\ntimestamp=1000\nremember the milk\n"),
        ("run.cfg", "pid={pid}\ntimestamp=1000\n"),
        ("state.json", "tag=x\npid={pid}\ntimestamp=1000\n"),
        ("app.lock", '{{"name": "app", "pid": {pid}, "dependencies": {{}}}}\n'),
        ("package.json", '{{"pid": {pid}, "createdAt": "2020-01-01T00:00:00.000Z"}}\n'),
    ],
)
def test_a_file_of_data_is_kept(
    name: str, content: str, approved: bool, disk: Path, environments: Environments, dead_pid: int
) -> None:
    """M14: even if it looks like the old lock of an ended process."""
    path = disk / name
    path.write_text(content.format(pid=dead_pid))
    os.utime(path, (0, 0))
    env = environments()
    assert [one for one in found(env, disk, approved=approved) if not one.way] == []
    path.chmod(0o600)
    assert [one for one in found(env, disk, approved=approved) if not one.way] == []


def test_a_file_that_becomes_data_after_the_look_is_kept(disk: Path, environments: Environments, stale: Path) -> None:
    """M14: the file is judged again under its guard."""
    env = environments()
    (leftover,) = found(env, disk)
    assert not leftover.way
    stale.write_bytes(stale.read_bytes() + b"[section]\n")
    assert drive(remove(env, leftover, approved=True)).result == CHANGED
    assert stale.read_bytes().endswith(b"[section]\n")


# -- errors and changes during the work --------------------------------------------------------------------------------

LOOKS = frozenset({"stat", "open_existing", "open_directory", "fstat", "read", "list_directory", "scan", "guarded"})
"""The steps of a look that the system may refuse."""


@pytest.fixture
def everything(disk: Path, dead_pid: int, environments: Environments) -> Path:
    """A directory with one leftover of each kind, and one lock of a living process."""
    past = time.time() - OLD
    identity = environments().identity()
    (disk / "a.lock").write_bytes(sema_record(dead_pid, past, "stale"))
    (disk / "b.lock").write_bytes(sema_record(os.getpid(), time.time(), "alive"))
    (disk / temporary_name(identity.replaced(pid=dead_pid), "0" * 16)).write_text("a publisher's")
    (disk / f"c.{dead_pid}.0123456789abcdef.tmp").write_text("a rival's")
    (disk / "d.lock.reclaim").mkdir()
    for number, suffix in enumerate(("", ".new")):
        place = Path(queue_of(str(disk), f"e{number}.lock"))
        place.mkdir()
        ticket = place / f"{ticket_name(place, dead_pid)}{suffix}"
        os.mkfifo(ticket)
        os.utime(ticket, (past, past))
    Path(queue_of(str(disk), "f.lock")).mkdir()
    (disk / "g").mkdir()
    for path in disk.iterdir():
        os.utime(path, (past, past))
    return disk


@pytest.fixture
def _emptied(disk: Path) -> Iterator[None]:
    yield
    for path in [*disk.iterdir()]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.usefixtures("_emptied")
@pytest.mark.parametrize("word", ["ENOENT", "EACCES", "EIO"])
def test_an_error_of_one_file_does_not_hide_the_others(word: str, everything: Path, environments: Environments) -> None:
    """E1: at each step of a look, its object has vanished or may not be looked at. Nothing is changed."""

    def look(env: Stepped) -> set[str]:
        seen: set[str] = set()
        for where in directories(env, str(everything), recursive=True):
            seen |= {one.path for one in leftovers(env, Survey(env), where, approved=False)}
        return seen

    before = sorted(everything.rglob("*"))
    rehearsed = environments()
    tables = rehearsed.real.proc_locks()  # once: it reads what all processes have open
    rehearsed.instead["proc_locks"] = lambda: tables
    all_of_them = look(rehearsed)
    assert len(all_of_them) >= 6
    for number, name in enumerate(rehearsed.steps):
        env = environments()

        def fail(at: int, step: str, number: int = number) -> None:
            if at == number and step in LOOKS:
                raise OSError(getattr(errno, word), os.strerror(getattr(errno, word)))

        env.at_step = fail
        env.instead["proc_locks"] = lambda: tables
        seen = look(env)
        # A list that cannot be read hides what is in it, and nothing else does.
        assert name in ("list_directory", "scan", "stat", "open_directory") or len(all_of_them - seen) <= 1
        env.end()
    assert sorted(everything.rglob("*")) == before


@pytest.mark.usefixtures("_emptied")
def test_a_leftover_that_was_changed_after_the_look_is_kept(everything: Path, environments: Environments) -> None:
    """M7: it vanished, or became something else."""
    env = environments()
    every = [one for one in found(env, everything) if not one.way and one.kind != LOCK]
    assert {one.kind for one in every} == {TEMPORARY, TICKET, QUEUE, ANNOUNCEMENT}
    for one in every:
        path = Path(one.path)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if one.kind != TICKET:  # a missing ticket needs no removal, and the rest of its queue goes with it
            assert drive(remove(env, one, approved=False)).result == CHANGED
        if one.kind == QUEUE:
            path.write_text("a file")
            assert drive(remove(env, one, approved=False)).result == CHANGED
            assert path.read_text() == "a file"
            path.unlink()
            path.mkdir()
            (path / "x").write_text("somebody's")
            assert drive(remove(env, one, approved=False)).result == CHANGED
            assert (path / "x").exists()
    (queue,) = (one for one in every if one.kind == QUEUE)
    env.instead["remove_directory"] = refuse
    with pytest.raises(PermissionError):
        drive(remove(env, queue, approved=False))


def refuse(*_args: object, **_options: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")
