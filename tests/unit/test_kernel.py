"""Locks of the kernel alone: acquired, held and released (flock.py)."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast._core.attempt import Refusal
from holdfast._drivers.sync import drive
from holdfast._platform.records import asked
from holdfast.engines.file.acquire import look
from holdfast.engines.file.flock import _TRIES
from holdfast.engines.file.remove import break_lock
from holdfast.engines.file.request import FileRequest
from holdfast.errors import HoldfastError, InvalidPath, LockLost, ProtocolMismatch, UnsupportedFilesystem
from unit.elsewhere import NOBODY, elsewhere, needs_root
from unit.stepping import Contend, Contender, Crash, Stepped, by_turns, sema_record

Environments = Callable[..., Stepped]
KIND = ["flock"]
flock_alone = pytest.mark.parametrize("_spoken", ["flock"], indirect=True)
"""Of a test that is about what only `flock` does."""


@pytest.fixture(
    autouse=True, params=["flock", "ofd"] if hasattr(fcntl, "F_OFD_SETLK") and sys.platform != "win32" else ["flock"]
)
def _spoken(request: pytest.FixtureRequest) -> None:
    """The protocol that the test is about."""
    KIND[:] = [request.param]


@pytest.fixture
def path(disk: Path) -> Path:
    return disk / "l"


@pytest.fixture
def flock(contend: Contend, path: Path) -> Contend:
    """A contender for the lock, in a process of its own unless an environment is given."""

    def make(env: Stepped | None = None, **options: object) -> Contender:
        return contend(path, env, protocol=KIND[0], **options)

    return make


@contextmanager
def foreigner(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[int]:
    """Lock the file as another program does."""
    fd = os.open(path, (os.O_RDONLY if KIND[0] == "flock" else os.O_RDWR) | os.O_CREAT, 0o644)
    try:
        if KIND[0] == "flock":
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        else:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, asked(fcntl.F_WRLCK if how == fcntl.LOCK_EX else fcntl.F_RDLCK, (0, 0)))
        yield fd
    finally:
        os.close(fd)


def is_free(path: Path, how: int = fcntl.LOCK_EX) -> bool:
    try:
        with foreigner(path, how):
            return True
    except BlockingIOError:
        return False


def identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def request(path: Path, **options: object) -> FileRequest:
    return FileRequest(str(path), {"protocol": KIND[0], **options})  # type: ignore[typeddict-item]


# -- F1 ----------------------------------------------------------------------------------------------------------------

FOREIGN_ENDS: dict[str, Callable[[Path], object]] = {
    "removed": lambda path: path.unlink(),
    "replaced": lambda path: (path.with_name("t").touch(), path.with_name("t").replace(path)),
    "moved away": lambda path: path.rename(path.with_name("t")),
}


@pytest.mark.parametrize("how", FOREIGN_ENDS)
@pytest.mark.parametrize("step", ["guard", "fstat", "stat"])
def test_a_guard_on_a_file_without_a_name_is_not_the_lock(how: str, step: str, path: Path, flock: Contend) -> None:
    """F1: whatever happens to the path before it is checked, the hold is of the file that is there then."""
    path.touch()
    contender = flock()
    contender.env.once(contender.env.before, step, lambda: FOREIGN_ENDS[how](path))
    held = contender.get()
    assert held.identity == identity(path)
    assert isinstance(flock().run(), Refusal)
    assert contender.env.open_descriptors() == {held.fd}


def test_a_path_that_changes_all_the_time_is_given_up(path: Path, flock: Contend) -> None:
    """F1: the contender starts over a few times, then is refused as if its time were up, with its last look."""
    contender = flock()
    contender.env.before["guard"] = lambda *_args, **_kwargs: FOREIGN_ENDS["replaced"](path)
    refusal = contender.run()
    assert isinstance(refusal, Refusal)
    assert "neither created nor opened" in refusal.status.evidence.text
    assert len(contender.env.steps) < 20 * _TRIES
    assert not contender.env.open_descriptors()


def test_one_holder_is_inside_while_a_third_removes_the_file(
    path: Path, flock: Contend, environments: Environments
) -> None:
    """F1: a process that locks, removes and unlocks, as some programs do, at each step of a contender; then another
    contender."""
    path.touch()
    rehearsal = flock()
    rehearsal.get()
    steps = len(rehearsal.env.steps)
    rehearsal.env.end()
    rivals = environments()

    def third_and_rival(at: int, wanted: int) -> None:
        if at == wanted:
            if is_free(path):
                with foreigner(path):
                    path.unlink(missing_ok=True)
            rival.run()

    for wanted in range(steps):
        path.touch()
        contender, rival = flock(rehearsal.env), flock(rivals)
        start = len(rehearsal.env.steps) + wanted
        rehearsal.env.at_step = lambda at, _name, start=start: third_and_rival(at, start)
        contender.run()
        rehearsal.env.at_step = None
        inside = [one.result for one in (contender, rival) if one.inside]
        assert len(inside) == 1, f"step {wanted}"
        assert inside[0].verify()  # type: ignore[union-attr]
        inside[0].release()  # type: ignore[union-attr]


# -- F2, F3 ------------------------------------------------------------------------------------------------------------


def test_the_file_stays_when_the_lock_goes(path: Path, flock: Contend) -> None:
    """F2: the same file throughout, and it is the one that is locked."""
    path.touch()
    before = identity(path)
    for _ in range(3):
        held = flock(tag="x").get()
        assert not is_free(path)
        held.release()
        assert is_free(path)
    assert identity(path) == before


@pytest.mark.parametrize("shared", [False, True])
def test_breaking_a_lock_does_not_split_it(
    shared: bool, path: Path, flock: Contend, environments: Environments
) -> None:
    """F2: removing the file would let others in beside the holder. So it stays, and the error names the holder."""
    env = environments()
    assert drive(break_lock(env, request(path))) is None
    held = flock(shared=shared).get()
    for how in (False, True):
        with pytest.raises(HoldfastError, match=rf"not removed: held by .*process {os.getpid()}.*end that process"):
            drive(break_lock(env, request(path, shared=how)))
    assert held.verify()
    held.release()
    assert drive(break_lock(env, request(path))) is None
    assert path.exists()


CONTENTS = [b"#!/bin/sh\nexit 0\n", b'{"a": 1}\n', b"x" * 100_000, b"protocol=flock\nand more\n", b"tag=\n", b"\0\xff"]


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: repr(content[:12]))
@pytest.mark.parametrize("options", [{}, {"tag": "deploy"}, {"shared": True}], ids=str)
def test_a_locked_script_or_file_of_data_is_unchanged(
    content: bytes, options: dict[str, object], path: Path, flock: Contend
) -> None:
    """F3: by the acquisition and by the release; additions that others make meanwhile stay."""
    path.write_bytes(content)
    before = path.stat()
    held = flock(**options).get()
    assert path.read_bytes() == content
    path.write_bytes(content + b"more\n")
    assert held.verify()
    held.release()
    assert path.read_bytes() == content + b"more\n"
    assert (path.stat().st_ino, path.stat().st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("how", FOREIGN_ENDS)
def test_a_holder_learns_that_its_file_is_gone(how: str, path: Path, flock: Contend) -> None:
    """F3: others may be inside by now."""
    held = flock().get()
    assert held.check()
    FOREIGN_ENDS[how](path)
    assert not held.check()
    with pytest.raises(LockLost):
        held.ensure()
    with pytest.raises(LockLost):
        held.release()
    assert path.exists() == (how == "replaced")
    assert not held.env.holds


@flock_alone
@needs_root
@pytest.mark.parametrize("mode", [0o1777, 0o755])
@pytest.mark.parametrize("options", [{}, {"tag": "x"}, {"shared": True}], ids=str)
def test_the_file_of_another_user_can_be_locked(
    mode: int, options: dict[str, object], path: Path, flock: Contend
) -> None:
    """F3: it is readable, and in a sticky directory the kernel refuses to open it with O_CREAT."""
    path.touch(0o644)
    path.parent.chmod(mode)

    def lock() -> tuple[bool, bool]:
        held = flock(**options).get()
        inside = not is_free(path)
        held.release()
        return inside, is_free(path)

    assert elsewhere(lock, user=NOBODY) == (True, True)
    assert path.read_bytes() == b""


@needs_root
def test_a_file_that_this_user_may_not_open_is_refused(path: Path, flock: Contend) -> None:
    path.touch(0o600)
    path.chmod(0o600)
    with pytest.raises(PermissionError):
        elsewhere(lambda: flock(timeout=None).get(), user=NOBODY)


def test_a_filesystem_that_wants_writers_says_so(path: Path, flock: Contend) -> None:
    """F3: NFS grants an exclusive guard only to processes that may write; EBADF alone would be puzzling."""
    contender = flock()

    def guard(_fd: int, **_kwargs: object) -> bool:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    contender.env.instead["guard"] = guard
    with pytest.raises(PermissionError, match="permission to write"):
        contender.run()
    assert not contender.env.open_descriptors()


def in_the_way(path: Path, kind: str) -> None:
    if kind == "directory":
        path.mkdir()
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "symbolic link":
        path.with_name("target").touch()
        path.symlink_to("target")
    elif kind == "dangling symbolic link":
        path.symlink_to("nothing")
    else:
        import socket

        with socket.socket(socket.AF_UNIX) as there:
            there.bind(str(path))


@pytest.mark.parametrize("kind", ["directory", "FIFO", "symbolic link", "dangling symbolic link", "socket"])
def test_a_path_that_is_no_file_is_refused(kind: str, path: Path, flock: Contend) -> None:
    in_the_way(path, kind)
    for timeout in (0, None):
        contender = flock(timeout=timeout)
        with pytest.raises(InvalidPath, match=kind.split(" ", 1)[-1] if "dangling" in kind else kind):
            contender.run()
        assert not contender.env.open_descriptors()
    with pytest.raises(InvalidPath):
        look(contender.env, contender.request)
    assert not contender.env.open_descriptors()


def test_missing_directories_are_made_only_when_asked_for(disk: Path, contend: Contend) -> None:
    with pytest.raises(InvalidPath, match="parents=True"):
        contend(disk / "a" / "b" / "l", protocol=KIND[0]).run()
    assert not (disk / "a").exists()
    contend(disk / "a" / "b" / "l", protocol=KIND[0], parents=True).get()
    (disk / "file").touch()
    with pytest.raises(InvalidPath, match="not a directory"):
        contend(disk / "file" / "b" / "l", protocol=KIND[0], parents=True).run()


def test_a_new_file_has_the_mode_asked_for(path: Path, flock: Contend) -> None:
    before = os.umask(0)
    try:
        flock().get()
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        contender = flock(mode=0o660)
        path.unlink()
        contender.get()
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    finally:
        os.umask(before)


@pytest.mark.parametrize("umask", [0o077, 0o477, 0o777], ids=oct)
def test_a_new_file_can_be_opened_again_by_its_owner_whatever_the_umask(path: Path, flock: Contend, umask: int) -> None:
    """It stays: with the umask alone, only root could use that lock again."""
    before = os.umask(umask)
    try:
        flock().get()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 | 0o644 & ~umask


# -- F4 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("kind", ["linux", "posix", "generic"])
def test_the_protocol_is_refused_without_kernel_locks(
    kind: str, there: bool, path: Path, flock: Contend, environments: Environments
) -> None:
    """F4: by every call, and nothing is left."""
    if there:
        path.touch()
    env = environments("flock", kind=kind)
    for timeout in (0, None):
        with pytest.raises(UnsupportedFilesystem, match=r"no kernel locks|no record locks"):
            flock(env, timeout=timeout).run()
    assert path.exists() is there
    if there:
        with pytest.raises(UnsupportedFilesystem):
            look(env, request(path))
    assert not env.open_descriptors()


# -- F5 ----------------------------------------------------------------------------------------------------------------


@flock_alone
def test_a_tag_is_shown_while_the_lock_is_held(path: Path, flock: Contend, environments: Environments) -> None:
    """F5: for as long as it is true."""
    held = flock(tag="deploy v1").get()
    status = look(environments(), request(path))
    assert status.holder is not None
    assert (status.holder.pid, status.holder.tag) == (os.getpid(), "deploy v1")
    assert status.record == held.record()
    assert status.age is not None
    held.release()
    assert path.read_bytes() == b""
    assert look(environments(), request(path)).holder is None


def test_a_shared_hold_writes_nothing(path: Path, flock: Contend) -> None:
    """F5: a reader is not alone; its own hold still has its record."""
    held = flock(tag="reading", shared=True).get()
    assert path.read_bytes() == b""
    record = held.record()
    assert (record.pid, record.tag, record.fields) == (os.getpid(), "reading", {})


def leave_a_tag(flock: Contend, tag: str = "dead") -> None:
    killed = flock(tag=tag)
    killed.get()
    killed.crash()


@flock_alone
def test_the_tag_of_a_dead_holder_is_not_shown_as_the_next_ones(
    path: Path, flock: Contend, environments: Environments
) -> None:
    """F5: neither while another program holds the lock, nor when it is free."""
    env = environments()
    leave_a_tag(flock)
    assert b"tag=dead" in path.read_bytes()
    assert look(env, request(path)).record is None
    env.instead["lock_owners"] = lambda _identity, _records: []  # and where no holder can be seen
    with foreigner(path):
        status = look(env, request(path))
    assert status.locked
    assert status.record is None


@flock_alone
def test_a_tag_is_shown_only_while_its_process_lives(
    path: Path, flock: Contend, environments: Environments, process: Callable[..., int], dead_pid: int
) -> None:
    """F5: another process may have its pid, or the file may be locked by another process."""
    env = environments()
    other = process("flock", "--no-fork", str(path), "sleep", "1000")  # or `sleep` would outlive a killed `flock`
    while is_free(path):
        os.sched_yield()
    for pid in (os.getpid(), dead_pid):
        who = environments(pid=pid).identity()
        marker = f"1 g {who.boot} {path.stat().st_dev} {who.pid_namespace} {who.started} {who.host}"
        path.write_bytes(b"protocol=flock\n" + sema_record(pid, 1_700_000_000, "outdated", marker))
        status = look(env, request(path))
        assert status.holder is not None
        assert status.holder.pid == other
        assert status.record is None
    who = environments(pid=other).identity()
    marker = f"1 g {who.boot} {path.stat().st_dev} {who.pid_namespace} t1 {who.host}"
    path.write_bytes(b"protocol=flock\n" + sema_record(other, 1_700_000_000, "an earlier process", marker))
    assert look(env, request(path)).record is None
    marker = marker.replace(" t1 ", f" {who.started} ")
    path.write_bytes(b"protocol=flock\n" + sema_record(other, 1_700_000_000, "its own", marker))
    assert look(env, request(path)).record is not None


@flock_alone
@pytest.mark.parametrize("tag", [None, "next", "n" * 9_000])
def test_the_next_exclusive_holder_takes_away_the_tag_of_a_dead_one(
    tag: str | None, path: Path, flock: Contend
) -> None:
    """F5: it removes the tag, or writes its own over it; a reader leaves it."""
    leave_a_tag(flock, "dead" * 2_000)
    left = path.read_bytes()
    flock(shared=True).get().release()
    assert path.read_bytes() == left
    held = flock(tag=tag).get()
    assert path.read_bytes() == held.data
    assert (b"tag=n" in held.data) is (tag is not None)
    held.release()
    assert path.read_bytes() == b""


@pytest.mark.parametrize("content", [b"", "a record of ours"], ids=["empty", "a tag of the dead"])
def test_a_tag_is_not_written_into_a_file_of_another_directory(
    content: bytes | str, disk: Path, path: Path, flock: Contend
) -> None:
    """F5: another user has linked it here, and the locking process may write to all files."""
    elsewhere_ = disk / "elsewhere"
    if isinstance(content, str):
        dead = flock(tag=content)
        dead.get()
        dead.crash()
        os.rename(path, elsewhere_)
    else:
        elsewhere_.write_bytes(content)
    before = elsewhere_.read_bytes()
    os.utime(elsewhere_, (1, 1))
    os.link(elsewhere_, path)
    held = flock(tag="some tag").get()
    assert elsewhere_.read_bytes() == before
    held.release()
    assert (elsewhere_.read_bytes(), elsewhere_.stat().st_mtime) == (before, 1)


def test_a_tag_is_not_written_into_a_file_that_is_linked_here_by_turns(disk: Path, path: Path, flock: Contend) -> None:
    """F5: whenever the descriptor is checked, the file has one name, which is elsewhere."""
    elsewhere_, contender = disk / "elsewhere", flock(tag="some tag")
    elsewhere_.touch()
    os.link(elsewhere_, path)
    by_turns(contender.env, path, elsewhere_)
    contender.run()
    assert elsewhere_.read_bytes() == b""


@flock_alone
def test_content_written_by_others_stays_when_a_tag_is_removed(path: Path, flock: Contend) -> None:
    """F5: at the release, and at the next acquisition."""
    held = flock(tag="x").get()
    with path.open("ab") as file:
        file.write(b"precious\n")
    held.release()
    assert path.read_bytes().endswith(b"tag=x\nprecious\n")
    held = flock(tag="y").get()
    assert path.read_bytes().endswith(b"tag=x\nprecious\n")
    held.release()
    assert path.read_bytes().endswith(b"tag=x\nprecious\n")


@pytest.mark.parametrize("step", ["write", "truncate"])
def test_a_tag_that_cannot_be_written_does_not_fail_the_acquisition(step: str, path: Path, flock: Contend) -> None:
    """F5: on a full disk, or in a read-only file."""
    leave_a_tag(flock)
    contender = flock(tag="x")

    def fail(*_args: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    contender.env.instead[step] = fail
    held = contender.get()
    assert held.data == b""
    assert not is_free(path)
    held.release()
    assert is_free(path)


def test_half_a_tag_is_removed(path: Path, flock: Contend) -> None:
    """F5: the disk becomes full in the middle of it."""
    contender = flock(tag="x")

    def half(fd: int, data: bytes, offset: int) -> int:
        if offset:
            raise OSError(errno.ENOSPC, "full")
        return os.pwrite(fd, data[:10], 0)

    contender.env.instead["write"] = half
    contender.get()
    assert path.read_bytes() == b""


RECORDS = {
    "sema": sema_record(1, 1_700_000_000, "theirs"),
    "beads": b'{"holder": "x", "pid": 1, "hostname": "h", "started_at": "2026-01-01T00:00:00Z", "version": "1"}',
}


@pytest.mark.parametrize("other", RECORDS)
@pytest.mark.parametrize("options", [{}, {"tag": "x"}, {"shared": True}], ids=str)
def test_a_lock_of_another_protocol_is_not_entered(
    other: str, options: dict[str, object], path: Path, flock: Contend
) -> None:
    """Its holder may keep no guard."""
    path.write_bytes(RECORDS[other])
    contender = flock(**options)
    with pytest.raises(ProtocolMismatch, match=rf"the {other} protocol.*speaks {KIND[0]}"):
        contender.run()
    assert path.read_bytes() == RECORDS[other]
    assert not contender.env.open_descriptors()
    assert is_free(path)


# -- every step --------------------------------------------------------------------------------------------------------

STATES: dict[str, Callable[[Path, Contend], object]] = {
    "absent": lambda path, _flock: path.unlink(missing_ok=True),
    "free": lambda path, _flock: path.write_bytes(b""),
    "left with a tag": lambda _path, flock: leave_a_tag(flock),
    "data": lambda path, _flock: path.write_bytes(b"precious"),
}
states = pytest.mark.parametrize("state", STATES)


def timeless(flock: Contend) -> Contender:
    """A contender whose number of steps is constant: a release makes one step more once the hold has lasted a
    moment."""
    contender = flock(tag="x")
    setattr(contender.env, "monotonic", lambda: 1000.0)  # noqa: B010  # mypy: a method
    return contender


def rehearse(flock: Contend) -> tuple[list[str], list[str]]:
    """The steps of an acquisition, and those of its release."""
    contender = timeless(flock)
    held = contender.get()
    count = len(contender.env.steps)
    held.release()
    return contender.env.steps[:count], contender.env.steps[count:]


def check_next(flock: Contend, path: Path, where: str) -> None:
    held = flock().get()
    assert held.verify(), where
    held.release()
    assert path.read_bytes() in (b"", b"precious"), where
    assert os.listdir(path.parent) == ["l"], where


@states
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=lambda n: errno.errorcode[n])
def test_no_fault_at_any_step_leaks_or_lies(state: str, number: int, path: Path, flock: Contend) -> None:
    STATES[state](path, flock)
    acquiring, releasing = rehearse(flock)
    for at, name in enumerate(acquiring + releasing):
        where = f"{name} at {at}"
        STATES[state](path, flock)
        contender = timeless(flock)

        def fail(step: int, done: str, *, late: bool, at: int = at) -> None:
            if step == at and (done == "close") is late:
                raise OSError(number, os.strerror(number))

        contender.env.at_step = lambda step, done, fail=fail: fail(step, done, late=False)
        contender.env.past_step = lambda step, done, fail=fail: fail(step, done, late=True)
        raised = number
        try:
            held = contender.get()
            if at < len(acquiring):
                contender.env.at_step = contender.env.past_step = None
                assert held.verify(), f"{where}: a false success"
            held.release()
        except OSError as error:
            raised = error.errno
        assert raised == number, where
        contender.env.at_step = contender.env.past_step = None
        assert not contender.env.open_descriptors(), where
        assert not contender.env.holds, where
        check_next(flock, path, where)


@states
def test_a_kill_at_any_step_leaves_a_lock_that_can_be_acquired(state: str, path: Path, flock: Contend) -> None:
    STATES[state](path, flock)
    acquiring, releasing = rehearse(flock)
    for at, name in enumerate(acquiring + releasing):
        STATES[state](path, flock)
        contender = timeless(flock)

        def crash(step: int, _name: str, at: int = at, contender: Contender = contender) -> None:
            if step == at:
                contender.crash()
                raise Crash

        contender.env.at_step = crash
        with pytest.raises(Crash):
            contender.get().release()
        check_next(flock, path, f"{name} at {at}")


class Interrupt(BaseException):
    pass


@states
def test_an_interruption_at_any_step_leaves_nothing(state: str, path: Path, flock: Contend) -> None:
    STATES[state](path, flock)
    acquiring, _ = rehearse(flock)
    for at, name in enumerate(acquiring):
        for late in (False, True):
            if name in ("open_existing", "open_new") and late:
                continue  # the one bytecode between a descriptor and its entry; docs/guarantees.md
            STATES[state](path, flock)
            contender = timeless(flock)

            def interrupt(step: int, _name: str, at: int = at) -> None:
                if step == at:
                    raise Interrupt

            setattr(contender.env, "past_step" if late else "at_step", interrupt)
            with pytest.raises(Interrupt):
                contender.get()
            contender.env.at_step = contender.env.past_step = None
            where = f"{'after' if late else 'before'} {name} at {at}"
            assert not contender.env.open_descriptors(), where
            assert not contender.env.holds, where
            check_next(flock, path, where)


def test_a_forked_child_leaves_its_parents_lock_locked(path: Path, flock: Contend) -> None:
    held = flock(tag="x").get()
    before = path.read_bytes()

    def in_the_child() -> tuple[bool, bool]:
        held.release()
        held.give_back()
        return held.inert, held.verify()

    assert elsewhere(in_the_child) == (True, False)
    assert path.read_bytes() == before
    assert not is_free(path)
    assert held.verify()


def test_holds_of_one_file_in_one_process_are_kept_apart(
    path: Path, flock: Contend, environments: Environments
) -> None:
    env = environments()
    one, two, three = (flock(env, shared=True).get() for _ in range(3))
    assert len({held.fd for held in (one, two, three)}) == len(env.holds) == 3
    two.release()
    assert set(env.holds.values()) == {one, three}
    assert [held.verify() for held in (one, two, three)] == [True, False, True]
    assert not is_free(path)
    one.give_back()
    three.release()
    assert not env.holds
    assert is_free(path)


MEANINGLESS = [{"stale": lambda _status: True}, {"stale_after": 60}, {"heartbeat": 1}, {"durable": True}]


@pytest.mark.parametrize("options", MEANINGLESS, ids=lambda options: next(iter(options)))
def test_an_option_without_a_meaning_is_refused(options: dict[str, object], path: Path) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} has no meaning with protocol '{KIND[0]}'"):
        request(path, **options)


def test_an_option_that_says_nothing_is_accepted(path: Path) -> None:
    for stale in ("safe", "protocol", "never"):
        request(path, stale=stale, stale_after=None, heartbeat=0, durable=False)
