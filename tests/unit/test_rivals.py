"""Other files beside a lock file: rivals that rename, and announcements of the removal of a stale lock (interop.py)."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast._core.attempt import Refusal
from holdfast._core.messages import refused, waiting
from holdfast._core.wait import Wait
from holdfast._drivers.sync import drive
from holdfast.engines.file.acquire import look
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.remove import break_lock
from holdfast.errors import InvalidPath
from unit.stepping import Contend, Contender, Crash, Stepped

SIDECAR = {"protocol": "sidecar", "timeout": 0}


def temporary(lock: Path, pid: int, age: float = 0.0) -> Path:
    """The temporary file of a semats process."""
    path = lock.with_name(f"{lock.name}.{pid}.0123456789abcdef.tmp")
    path.write_text(f"pid={pid}\ntimestamp={int(time.time())}\n")
    os.utime(path, (time.time() - age, time.time() - age))
    return path


@pytest.fixture
def lock(disk: Path) -> Path:
    """The path of a sidecar lock of `target`."""
    return disk / "target.lock"


@pytest.fixture
def reclaim(disk: Path) -> Path:
    return disk / "target.lock.reclaim"


@pytest.fixture
def dead(disk: Path, lock: Path, contend: Contend) -> Path:
    """A target whose holder crashed: its death is proven."""
    holder = contend(disk / "target", **SIDECAR)
    holder.get()
    holder.crash()
    return disk / "target"


def leave(reclaim: Path, *, age: float = 0.0, kind: str = "directory", sticky: bool = False) -> None:
    reclaim.mkdir() if kind == "directory" else reclaim.write_text("{}")
    if sticky:
        reclaim.chmod(0o1755)
    os.utime(reclaim, (time.time() - age, time.time() - age))


def test_a_rival_that_may_still_rename_is_waited_for(disk: Path, contend: Contend) -> None:
    """Y1: no contender is let in while it is there, and none that it has replaced."""
    rival = temporary(disk / "l", os.getpid())
    contender = contend(disk / "l", protocol="semats", timeout=0.2)
    for _ in range(3):
        assert contender.step() is not None
    rival.replace(disk / "l")
    assert not isinstance(contender.run(), FileHold)
    assert (disk / "l").read_text().startswith(f"pid={os.getpid()}\n")


def test_a_contender_that_replaced_a_dead_holder_beside_a_rival_still_learns_of_it(
    disk: Path, contend: Contend
) -> None:
    """Y1: it gives the lock back while the rival is there, and the dead holder's record with it."""
    holder = contend(disk / "l", protocol="semats", tag="dead")
    holder.get()
    holder.crash()
    rival = temporary(disk / "l", os.getpid())
    contender = contend(disk / "l", protocol="semats", timeout=60)
    assert contender.step() is not None
    while (disk / "l").exists():
        assert contender.step() is not None
    rival.unlink()
    replaced = contender.get().recovered_from
    assert replaced is not None
    assert replaced.tag == "dead"


@pytest.mark.needs("flock")
@pytest.mark.parametrize("options", [{}, {"protocol": "flock", "fencing": True}], ids=["sema", "fencing"])
@pytest.mark.parametrize("parents", [False, True])
def test_a_directory_that_goes_right_after_the_publication_counts_as_missing(
    disk: Path, contend: Contend, options: dict[str, Any], parents: bool
) -> None:
    """The lock file is gone with it: the contender begins anew, and is told, or makes the directory, as at first."""
    directory = disk / "d"
    directory.mkdir()
    contender = contend(directory / "l", parents=parents, **options)
    contender.env.once(contender.env.before, "list_directory", lambda: directory.rename(disk / "old"))
    if parents:
        assert contender.get().verify()
        assert (directory / "l").exists()
    else:
        with pytest.raises(InvalidPath, match="does not exist, so no lock file can be in it"):
            contender.run()
    assert (disk / "old").exists()


def test_a_full_descriptor_table_is_explained_after_the_publication_too(disk: Path, contend: Contend) -> None:
    contender = contend(disk / "l")

    def refuse(place: object) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), place)

    contender.env.instead["list_directory"] = refuse
    with pytest.raises(OSError, match="each hold needs a descriptor") as caught:
        contender.run()
    assert caught.value.filename == str(disk / "l")
    assert not (disk / "l").exists()


def test_a_user_who_may_not_list_the_directory_is_told_that_it_has_to(disk: Path, contend: Contend) -> None:
    """Y1: a rival could not be seen."""
    contender = contend(disk / "l", protocol="semats")

    def refuse(_place: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    contender.env.instead["list_directory"] = refuse
    with pytest.raises(PermissionError) as refused:
        contender.run()
    assert "semats locks need a directory that this user may list" in refused.value.__notes__[0]
    assert not (disk / "l").exists()


def test_a_rival_that_backs_off_is_no_longer_waited_for(disk: Path, contend: Contend) -> None:
    """Y1: once its file is gone, it is no rival any more."""
    rival = temporary(disk / "l", os.getpid())
    contender = contend(disk / "l", protocol="semats", timeout=5)
    assert contender.step() is not None
    rival.unlink()
    assert contender.step() is None
    assert contender.inside


@pytest.mark.parametrize("age", [61, -61])
def test_a_rival_that_is_stopped_is_not_waited_for_for_ever(age: float, disk: Path, contend: Contend) -> None:
    """Y2: its file is old, or from the future, which means that the clock was set back."""
    temporary(disk / "l", os.getpid(), age)
    contender = contend(disk / "l", protocol="semats")
    assert contender.step() is None
    assert contender.inside


def test_a_dead_rival_is_waited_for_no_longer_than_a_second(disk: Path, dead_pid: int, contend: Contend) -> None:
    """Y2: until then its pid may be another container's."""
    contender = contend(disk / "l", protocol="semats")
    contender.env.stop_clocks()
    temporary(disk / "l", dead_pid, 0.5)
    temporary(disk / "other", os.getpid())
    assert contender.step() is not None
    temporary(disk / "l", dead_pid, 1.5)
    assert contender.step() is None
    assert contender.inside


def test_a_server_with_another_clock_does_not_hide_a_rival(disk: Path, contend: Contend) -> None:
    """Y2: its age is by the clock that stamped our own lock file."""
    temporary(disk / "l", os.getpid())
    contender = contend(disk / "l", protocol="semats")
    contender.env.instead["time"] = lambda: time.time() + 3600
    assert contender.step() is not None


@pytest.mark.parametrize("protocol", ["sema", "semats"])
def test_a_refusal_for_a_rival_names_its_file_and_no_record(protocol: str, disk: Path, contend: Contend) -> None:
    """Y1: there is no lock file, so no lock to break. The refusal names the process in the way, and the file."""
    rival = temporary(disk / "l", os.getpid())
    result = contend(disk / "l", protocol=protocol, timeout=0).run()
    assert isinstance(result, Refusal)
    said = str(refused(result, 0))
    for part in ("no lock file is there", f"process {os.getpid()}", str(rival), "semats", "Try again"):
        assert part in said, part
    assert "record" not in said
    assert "break" not in said


def test_a_rival_that_stays_refuses_a_try_once_its_patience_is_over(disk: Path, contend: Contend) -> None:
    """Y1: a contender that does not wait is refused then."""
    temporary(disk / "l", os.getpid())
    contender = contend(disk / "l", timeout=0)
    assert isinstance(contender.run(), Refusal)
    assert contender.env.steps.count("link_unnamed") == 2  # the short way in, and the long one


def test_a_wait_for_a_rival_is_announced(disk: Path, contend: Contend) -> None:
    """Y1: after a second, as any other wait, and with the rival's process."""
    told: list[str] = []
    rival = temporary(disk / "l", os.getpid())
    contender = contend(disk / "l", timeout=1.2)
    contender.request.notice = lambda refusal: told.append(waiting(refusal))
    os.utime(rival, (time.time() + 2, time.time() + 2))  # not yet old when the time is up
    assert isinstance(contender.run(), Refusal)
    assert len(told) == 1
    assert str(rival) in told[0]


def test_a_lock_is_not_taken_over_while_another_removes_it(dead: Path, reclaim: Path, contend: Contend) -> None:
    """Y3: a contender that finds the directory goes back to waiting."""
    leave(reclaim, age=50)
    assert not isinstance(contend(dead, **SIDECAR).run(), FileHold)
    assert reclaim.exists()
    reclaim.rmdir()
    contend(dead, **SIDECAR).get()
    assert not reclaim.exists()


@pytest.mark.parametrize("kind", ["directory", "file"])
@pytest.mark.parametrize("age", [61, -61])
def test_an_announcement_left_by_a_crash_does_not_stop_takeovers(
    kind: str, age: float, dead: Path, reclaim: Path, contend: Contend
) -> None:
    """Y3: an old one is nobody's, of either kind that fs-safe makes."""
    contender = contend(dead, **SIDECAR)
    contender.env.stop_clocks()
    leave(reclaim, age=age, kind=kind)
    contender.get()
    assert not reclaim.exists()


@pytest.mark.parametrize("kind", ["data", "FIFO"])
def test_a_file_that_announces_no_removal_is_left_alone_and_named(
    kind: str, dead: Path, lock: Path, reclaim: Path, contend: Contend
) -> None:
    """Y10: neither a takeover, nor a break, nor a new lock beside it removes it. A mere look says so, too."""
    os.mkfifo(reclaim) if kind == "FIFO" else reclaim.write_text("mine")
    os.utime(reclaim, (0, 0))
    refusal = contend(dead, **SIDECAR).run()
    assert isinstance(refusal, Refusal)
    assert f"{reclaim} is in the way" in str(refused(refusal, 0))
    breaker = contend(dead, **SIDECAR)
    status = look(breaker.env, breaker.request)
    assert status.locked
    assert f"{reclaim} is in the way" in status.reason
    with pytest.raises(FileExistsError, match="is in the way"):
        drive(break_lock(breaker.env, breaker.request))
    lock.unlink()
    contend(dead, **SIDECAR).get().release()
    assert reclaim.exists()


def test_a_takeover_is_announced_from_the_last_look_to_the_write(dead: Path, reclaim: Path, contend: Contend) -> None:
    """Y3, T7: from before the last look until after the write, and gone before any contender is let in."""
    contender = contend(dead, **SIDECAR)
    there: list[tuple[str, bool]] = []
    contender.env.at_step = lambda _number, name: there.append((name, reclaim.exists()))
    contender.get()
    names = [name for name, _ in there]
    first = names.index("open_new_directory") + 1
    last = names.index("remove_directory")
    assert "write" in names[first:last]
    assert all(beside for _, beside in there[first : last + 1])
    assert not reclaim.exists()


def test_a_lock_whose_takeover_may_not_be_announced_stays_held_and_is_explained(dead: Path, contend: Contend) -> None:
    """T7: a user who may write to the file, but not to the directory, waits for others as where it may do neither."""
    before = dead.with_name("target.lock").read_bytes()
    for timeout in (0, 0.02):
        contender = contend(dead, **{**SIDECAR, "timeout": timeout})
        contender.env.instead["open_new_directory"] = contender.env.instead["make_directory"] = forbidden
        result = contender.run()
        assert not isinstance(result, FileHold)
        assert "it could be taken over, but this user may not announce that in" in result.status.reason
        assert result.status.locked
        assert dead.with_name("target.lock").read_bytes() == before
    contend(dead, **SIDECAR).get()


def forbidden(path: str, _mode: int) -> None:
    raise PermissionError(13, "Permission denied", path)


def test_a_breaking_announces_itself(disk: Path, dead: Path, reclaim: Path, contend: Contend) -> None:
    """Y3."""
    contender = contend(dead, **SIDECAR)
    seen: list[bool] = []
    lock_file = contender.request.path
    contender.env.before["unlink"] = lambda path: seen.append(reclaim.exists()) if path == lock_file else None
    assert drive(break_lock(contender.env, contender.request)) is not None
    assert seen == [True]
    assert os.listdir(disk) == []


@pytest.mark.parametrize("what", ["taken over", "broken"])
def test_a_lock_with_too_long_a_name_for_an_announcement_can_be_had(what: str, disk: Path, contend: Contend) -> None:
    """Y9: the name of the lock file is not too long, but that of `LOCK.reclaim` would be."""
    target = disk / ("t" * (255 - len(".lock")))
    holder = contend(target, **SIDECAR)
    holder.get()
    holder.crash()
    contender = contend(target, **SIDECAR)
    if what == "broken":
        assert drive(break_lock(contender.env, contender.request)) is not None
    else:
        contender.get().release()
    assert os.listdir(disk) == []


@pytest.mark.needs("flock")
@pytest.mark.parametrize("word", ["ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("what", ["taken over", "broken"])
def test_a_dead_holders_lock_can_be_had_on_a_full_disk(what: str, word: str, dead: Path, contend: Contend) -> None:
    """Y9: there is room neither for `LOCK.reclaim` nor for a claim, and none is needed."""

    def full(path: str, _mode: int) -> None:
        raise OSError(getattr(errno, word), os.strerror(getattr(errno, word)), path)

    contender = contend(dead, **SIDECAR)
    for step in ("open_new_directory", "open_new", "open_unnamed"):
        contender.env.instead[step] = full
    if what == "broken":
        assert drive(break_lock(contender.env, contender.request)) is not None
    else:
        contender.get().release()
    assert os.listdir(dead.parent) == []


@pytest.mark.parametrize("again", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("what", ["taken over", "broken"])
def test_an_interruption_leaves_no_announcement(
    what: str, late: bool, again: int, dead: Path, lock: Path, reclaim: Path, contend: Contend
) -> None:
    """Y3: fs-safe would wait for it for ever. `again`: a second interruption that many steps later."""
    record = lock.read_bytes()
    for number in range(200):
        lock.write_bytes(record)
        contender = contend(dead, **SIDECAR)
        env = contender.env
        steps = contender.steps if what == "taken over" else break_lock(env, contender.request)  # type: ignore[arg-type]

        def interrupt(step: int, _name: str, last: int = number) -> None:
            if step in (last, last + again):
                raise KeyboardInterrupt

        setattr(env, "past_step" if late else "at_step", interrupt)
        operations = env.real.operations
        operation = operations.begin(env)
        try:
            result: Any = drive(steps)  # type: ignore[arg-type]
            if len(env.steps) <= number:
                break
            if what == "taken over":
                result.held.release()  # that step had failed
        except KeyboardInterrupt:
            try:
                operations.abort(operation)
            except KeyboardInterrupt:
                operations.abort(operation)  # as the next operation would
        finally:
            operations.end(operation)
        assert not reclaim.exists(), env.steps
        assert not env.open_descriptors()
        lock.unlink(missing_ok=True)
    else:
        pytest.fail("it has more steps than that")
    assert number > 20


def test_a_crash_of_ours_does_not_stop_takeovers(dead: Path, lock: Path, reclaim: Path, contend: Contend) -> None:
    """Y4: a contender killed before any of its steps leaves nothing that the next one cannot reuse."""
    old = lock.read_bytes()
    left, number = 0, 0
    while True:
        lock.write_bytes(old)
        victim = contend(dead, **SIDECAR)

        def kill(at: int, name: str, victim: Contender = victim, number: int = number) -> None:
            if at == number:
                victim.crash()
                raise Crash

        victim.env.at_step = kill
        try:
            victim.get().abandon()
            break
        except Crash:
            pass
        left += reclaim.exists()
        heir = contend(dead, **SIDECAR)
        heir.get().abandon()
        assert not reclaim.exists(), f"killed before step {number}"
        number += 1
    assert left > 3


def test_one_of_two_contenders_takes_over_beside_an_announcement(
    dead: Path, lock: Path, reclaim: Path, contend: Contend
) -> None:
    """Y4: whenever the second comes, with or without an announcement left by a crash, only one gets in."""
    old = lock.read_bytes()
    for sticky in (False, True):
        number, over = 0, False
        while not over:
            lock.write_bytes(old)
            if sticky:
                leave(reclaim, sticky=True)
            first, second = contend(dead, **SIDECAR), contend(dead, **SIDECAR)

            def intrude(at: int, name: str, second: Contender = second, number: int = number) -> None:
                if at == number:
                    second.run()

            first.env.at_step = intrude
            first.run()
            over = not second.done
            assert first.inside + second.inside == 1, f"at step {number}"
            assert not reclaim.exists()
            for one in (first, second):
                if one.inside:
                    assert one.result.verify()
                    one.result.abandon()
            number += 1
        assert number > 10


@pytest.mark.parametrize("ends", ["in its own time", "killed"])
def test_an_announcement_that_vanishes_with_its_process_leaves_nothing(
    ends: str, dead: Path, lock: Path, reclaim: Path, contend: Contend
) -> None:
    """Y8: after a kill at any step the next contender takes over at once, though no file shows the death."""
    contender = contend(dead, **SIDECAR)
    vanishing: list[int] = []

    def open_vanishing(path: str) -> int:
        vanishing.append(contender.env.real.open_new(path, 0o600))
        return vanishing[0]

    def vanish(fd: int) -> None:
        if fd in vanishing:
            os.unlink(reclaim)

    def kill(_number: int, name: str) -> None:
        if name == "write" and reclaim.is_file():
            os.unlink(reclaim)  # as the system does
            contender.crash()
            raise Crash

    contender.env.instead["open_vanishing"] = open_vanishing
    contender.env.before["close"] = vanish
    if ends == "killed":
        contender.env.past_step = kill
        with pytest.raises(Crash):
            contender.get()
    else:
        contender.get().abandon()
    assert len(vanishing) == 1
    assert not reclaim.exists()
    contend(dead, **SIDECAR).get().abandon()


def test_the_announcement_of_another_is_left_alone(dead: Path, reclaim: Path, contend: Contend) -> None:
    """Y4: the path names another's by then."""
    contender = contend(dead, **SIDECAR)

    def replace(*_arguments: object) -> None:
        if reclaim.exists():
            os.rmdir(reclaim)
            leave(reclaim)

    contender.env.after["write"] = replace
    wait = contender.step()
    assert wait is not None, "it waits beside the other's (Y5)"
    assert not stat.S_IMODE(reclaim.stat().st_mode) & stat.S_ISVTX


@pytest.mark.parametrize("removed", [True, False])
def test_a_new_lock_beside_an_announcement_is_entered_only_when_that_is_gone(
    removed: bool, disk: Path, lock: Path, reclaim: Path, contend: Contend
) -> None:
    """Y5: it was published beside the announcement."""
    leave(reclaim)
    contender = contend(disk / "target", protocol="sidecar", timeout=0.2)
    contender.env.stop_clocks()
    for _ in range(3):
        assert contender.step() is not None
        assert lock.exists()
    del contender.env.instead["monotonic"]
    if removed:
        lock.unlink()
        lock.write_text('{"pid": 1}')
    reclaim.rmdir()
    assert isinstance(contender.run(), FileHold) != removed


def test_an_announcement_that_stays_is_waited_for_only_a_moment(disk: Path, reclaim: Path, contend: Contend) -> None:
    """Y5: once it is older than a second; fs-safe would wait for ever."""
    leave(reclaim, age=2)
    contender = contend(disk / "target", **SIDECAR)
    contender.env.stop_clocks()
    wait = contender.step()
    assert isinstance(wait, Wait)
    del contender.env.instead["monotonic"]
    contender.get()
    assert reclaim.exists()


@pytest.mark.parametrize("left", [{"sticky": True}, {"age": 61}], ids=["ours", "old"])
def test_an_announcement_left_by_a_crash_is_removed_by_a_publisher(
    left: dict[str, object], disk: Path, reclaim: Path, contend: Contend
) -> None:
    """Y4: otherwise fs-safe would wait for it for ever."""
    leave(reclaim, **left)
    contender = contend(disk / "target", **SIDECAR)
    assert contender.step() is None
    assert contender.inside
    assert not reclaim.exists()


@pytest.mark.parametrize("kind", ["generic", "no flock"])
def test_without_guards_a_takeover_is_announced(
    kind: str, disk: Path, reclaim: Path, contend: Contend, environments: Callable[..., Stepped], dead_pid: int
) -> None:
    """Y3: also without kernel locks; a leftover is judged by its age alone."""
    (disk / "target.lock").write_text(f'{{"pid": {dead_pid}}}')
    for age, there in ((None, False), (1, True), (61, False)):
        env = environments(kind="generic") if kind == "generic" else environments("flock")
        if age is not None:
            leave(reclaim, age=age, sticky=age == 1)
        contender = contend(disk / "target", env, stale=lambda _: True, **SIDECAR)
        result = contender.run()
        assert isinstance(result, FileHold) != there
        assert reclaim.exists() == there
        if there:
            reclaim.rmdir()
        else:
            result.abandon()
        (disk / "target.lock").write_text(f'{{"pid": {dead_pid}}}')
