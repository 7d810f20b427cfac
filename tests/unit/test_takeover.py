"""Taking over a dead or stale lock: one winner, in place, and never on an outdated judgement (takeover.py)."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast._core.messages import advice
from holdfast.engines.file.hold import FileHold
from holdfast.engines.file.takeover import SETTLE
from holdfast.model import marker_text
from holdfast.protocols import get
from unit.elsewhere import NOBODY, elsewhere, needs_root
from unit.stepping import Contend, Crash, Stepped, by_turns, device_in, sema_record

Environments = Callable[..., Stepped]
Gates = Callable[[Stepped, Callable[[], object]], None]
FOREIGN = sema_record(1, 9_000_000_000, "a foreign process was here")


@pytest.fixture
def dead(disk: Path, contend: Contend) -> Path:
    """The lock of a crashed holder: its death is proven."""
    holder = contend(disk / "l", tag="the dead one")
    holder.get()
    holder.crash()
    return disk / "l"


@pytest.fixture
def stale(disk: Path, dead_pid: int) -> Path:
    """A foreign lock that is stale by rule: its process is gone and its record is old."""
    (disk / "l").write_bytes(sema_record(dead_pid, 1000, "the stale one"))
    return disk / "l"


def test_one_of_two_contenders_takes_over_a_dead_lock(dead: Path, contend: Contend, past_the_gates: Gates) -> None:
    """T1: the second comes while the first has the guard, and is refused."""
    first, second = contend(dead), contend(dead)
    results: list[object] = []
    past_the_gates(first.env, lambda: results.append(second.run()))
    assert first.get().verify()
    assert results
    assert not isinstance(results[0], FileHold)
    assert second.env.steps.count("guard") == 1, (
        "its own, unnamed file: whoever sees the guard held sees a living holder"
    )


def test_one_of_two_that_judged_before_either_had_the_guard_takes_over(dead: Path, contend: Contend) -> None:
    """T1: the second has the guard by the time the first tries to take it."""
    first, second = contend(dead), contend(dead)
    openings: list[bool] = []

    def judged(_path: str, *, write: bool) -> None:
        if write and not openings:
            openings.append(write)
            second.get()

    first.env.before["open_existing"] = judged
    assert not isinstance(first.run(), FileHold)
    assert second.inside


def test_a_loser_goes_back_to_waiting(dead: Path, contend: Contend, past_the_gates: Gates) -> None:
    """T1: a contender with time left waits when it is refused the guard, and gets the lock once it is free."""
    first, second = contend(dead), contend(dead, timeout=None)
    waits: list[object] = []
    past_the_gates(first.env, lambda: waits.append(second.step()))
    held = first.get()
    assert waits != [None]
    held.release()
    assert second.get().verify()


def test_a_holder_that_came_back_is_not_robbed(stale: Path, contend: Contend, past_the_gates: Gates) -> None:
    """T2: the record is not, byte for byte, the one that was judged."""
    for changed in (sema_record(1, 9e9), b"\n" + sema_record(1, 9e9), b""):
        contender = contend(stale)
        past_the_gates(contender.env, lambda changed=changed: stale.write_bytes(changed))
        before = stale.stat().st_ino
        assert not isinstance(contender.run(), FileHold)
        assert stale.read_bytes() == changed
        assert stale.stat().st_ino == before
        stale.write_bytes(sema_record(2**22 + 5, 1000))


def test_a_new_holder_at_the_same_path_is_not_robbed(stale: Path, contend: Contend, past_the_gates: Gates) -> None:
    """T2: the path names another inode, with the same record in it."""
    content = stale.read_bytes()
    contender = contend(stale)

    def replace() -> None:
        stale.unlink()
        stale.write_bytes(content)
        contender.env.instead["time"] = lambda: 1001.0  # at which the new holder is not stale

    past_the_gates(contender.env, replace)
    assert not isinstance(contender.run(), FileHold)
    assert stale.read_bytes() == content


@pytest.mark.parametrize("length", [1, 100, 10_000])
def test_the_end_of_the_old_record_does_not_show_after_the_new_one(length: int, disk: Path, contend: Contend) -> None:
    """T3: one write covers a longer old record, with padding that readers ignore."""
    path = disk / "l"
    old = sema_record(2**22 + 5, 1000, "x" * length + "\u20ac" * length)
    path.write_bytes(old)
    contender = contend(path, tag="new")
    held = contender.get()
    assert contender.env.steps.count("write") == 1 + contender.env.steps.count("link_unnamed"), "publishing writes too"
    now = path.read_bytes()
    assert len(now) >= len(old)
    assert b"x" not in now.split(b"tag=")[1].replace(b"\n", b"")
    record = get("sema").decode(now)
    assert (record.pid, record.tag) == (os.getpid(), "new")
    assert now == held.data
    held.release()
    assert not path.exists()


def test_a_reader_sees_the_old_record_or_the_new_one(stale: Path, contend: Contend) -> None:
    """T3: after every step, the file is the old record or the new one."""
    contender, allowed = contend(stale, tag="t" * 10_000), {stale.read_bytes()}
    seen = set()
    contender.env.past_step = lambda _number, _name: seen.add(stale.read_bytes())
    held = contender.get()
    assert seen <= allowed | {held.data}
    assert len(seen) == 2


@pytest.mark.parametrize("content", [None, FOREIGN], ids=["removed", "replaced"])
@pytest.mark.parametrize("which", ["dead", "stale"])
def test_a_lock_removed_under_the_takeover_is_not_entered(
    content: bytes | None, which: str, contend: Contend, request: pytest.FixtureRequest
) -> None:
    """T4: the path is checked again after the write, and a new file there is left alone."""
    path = request.getfixturevalue(which)
    contender = contend(path)

    def remove() -> None:
        path.unlink()
        if content is not None:
            path.write_bytes(content)

    def after_write(fd: int, _data: bytes, _offset: int) -> None:
        if path.exists() and os.fstat(fd).st_ino == path.stat().st_ino:  # and not its own, unnamed file
            remove()

    contender.env.after["write"] = after_write
    if content is None:
        held = contender.get()  # nothing there: published anew, which is not a takeover
        assert held.recovered_from is None
        assert held.verify()
    else:
        assert not isinstance(contender.run(), FileHold)
        assert path.read_bytes() == content


def test_after_a_judgement_by_rule_the_new_hold_settles(stale: Path, contend: Contend) -> None:
    """T5: long enough for a foreign process to act on the same judgement."""
    contender = contend(stale)
    wait = contender.step()
    assert wait is not None
    assert wait.fds == ()
    assert contender.env.monotonic() + SETTLE / 2 < wait.deadline <= contender.env.monotonic() + SETTLE
    assert get("sema").decode(stale.read_bytes()).pid == os.getpid(), "written before the wait, not after it"
    held = contender.get()
    assert held.recovered_from is not None
    assert held.recovered_from.tag == "the stale one"


def test_after_a_proof_there_is_no_wait(dead: Path, contend: Contend) -> None:
    """T5: a foreign process cannot outdate a proof, as long as its own rule does not hold."""
    contender = contend(dead)
    assert contender.step() is None
    assert contender.inside


def test_a_proof_settles_where_the_rule_holds_as_well(dead: Path, contend: Contend) -> None:
    """T5: a foreign process may be about to remove a dead holder's lock that is old as well."""
    contender = contend(dead)
    contender.env.instead["time"] = lambda: time.time() + 4000
    wait = contender.step()
    assert wait is not None
    assert wait.fds == ()
    assert wait.deadline > contender.env.monotonic() + SETTLE / 2
    assert contender.get().recovered_from is not None


@pytest.mark.parametrize("how", ["removed", "replaced", "overwritten"])
def test_a_lock_taken_while_settling_is_not_entered(how: str, stale: Path, contend: Contend) -> None:
    """T5: a foreign process acted on the same judgement and is inside, so this contender is not."""
    contender = contend(stale, timeout=0.05)
    assert contender.step() is not None
    if how != "overwritten":
        stale.unlink()
    if how != "removed":
        stale.write_bytes(FOREIGN)
    result = contender.run()
    if how == "removed":
        assert isinstance(result, FileHold)
        assert result.recovered_from is None, "published anew"
    else:
        assert not isinstance(result, FileHold)
        assert stale.read_bytes() == FOREIGN


def test_a_cancelled_takeover_leaves_nothing(stale: Path, contend: Contend) -> None:
    """T5: cancelled while it settles, nobody holds the lock."""
    contender = contend(stale)
    contender.step()
    contender.steps.close()
    assert not stale.exists()
    assert not contender.env.open_descriptors()
    assert not contender.env.holds


def forbid_writing(env: Stepped) -> None:
    def refuse(path: str, *, write: bool) -> int:
        if write:
            raise PermissionError(13, "Permission denied", path)
        fd: int = env.real.open_existing(path, write=False)
        return fd

    env.instead["open_existing"] = refuse


def test_a_dead_lock_that_may_only_be_removed_is_published_anew(dead: Path, contend: Contend) -> None:
    """T6: removed under the guard, and published anew."""
    contender, before = contend(dead), dead.stat().st_ino
    forbid_writing(contender.env)
    guarded = []

    def try_to_guard(path: str) -> None:
        if path == str(dead):
            fd = os.open(dead, os.O_RDONLY)
            guarded.append(contender.env.real.guard(fd))
            os.close(fd)

    contender.env.before["unlink"] = try_to_guard
    held = contender.get()
    assert guarded == [False], "removed without the guard"
    assert held.verify()
    assert held.recovered_from is not None
    assert dead.stat().st_ino != before or held.identity[1] == dead.stat().st_ino


def test_a_faster_contender_is_not_robbed_by_a_slower_that_may_only_remove(dead: Path, contend: Contend) -> None:
    """T6: another may come between the removal and the new publication; T1 and T2 hold here too."""
    contender, faster = contend(dead), contend(dead)
    forbid_writing(contender.env)
    got: list[FileHold] = []
    contender.env.once(contender.env.after, "unlink", lambda: got.append(faster.get()))
    assert not isinstance(contender.run(), FileHold)
    assert got[0].verify()
    got[0].release()


@pytest.mark.parametrize("how", ["rewritten", "replaced"])
def test_a_removal_hits_only_the_judged_lock(how: str, stale: Path, contend: Contend, past_the_gates: Gates) -> None:
    """T6, by T2: between the judgement and the removal, another process replaced the path or the record."""
    contender = contend(stale)
    forbid_writing(contender.env)

    def change() -> None:
        if how == "replaced":
            stale.unlink()
        stale.write_bytes(FOREIGN)

    past_the_gates(contender.env, change)
    assert not isinstance(contender.run(), FileHold)
    assert stale.read_bytes() == FOREIGN


@pytest.mark.parametrize("left", ["dead", "stale"])
def test_a_lock_that_can_be_neither_written_nor_removed_is_explained(
    left: str, contend: Contend, request: pytest.FixtureRequest
) -> None:
    """T6: it stays held, and the refusal says why, whose it is, and who can help."""
    dead: Path = request.getfixturevalue(left)
    for timeout in (0, 0.02):
        contender = contend(dead, timeout=timeout)
        forbid_writing(contender.env)

        def refuse(path: str) -> None:
            if path == str(dead):
                raise PermissionError(1, "Operation not permitted", path)
            os.unlink(path)

        contender.env.instead["unlink"] = refuse
        result = contender.run()
        assert not isinstance(result, FileHold)
        assert "neither write to the lock file nor remove it" in result.status.reason
        assert result.status.locked
        assert result.status.holder is not None
        assert result.status.holder.tag == f"the {left} one"
        assert advice(result.status).startswith("Any user who may write to the file can take it over")


@pytest.mark.parametrize("timeout", [0, None])
def test_a_dead_lock_on_a_read_only_filesystem_is_not_waited_for(
    dead: Path, contend: Contend, timeout: float | None
) -> None:
    """T6: an error, as for a new lock there. It has no holder, so no release would come."""

    def refuse(path: str, *_more: object, **_options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    contender = contend(dead, timeout=timeout)
    forbid_writing(contender.env)
    contender.env.instead["open_new"] = refuse
    with pytest.raises(OSError, match="Read-only file system; nobody can take the lock over before its") as raised:
        contender.run()
    assert raised.value.filename == str(dead)


@needs_root
def test_another_users_dead_lock_in_a_sticky_directory_is_explained(dead: Path, environments: Environments) -> None:
    """T6 for real: in a sticky directory the user nobody may neither write root's file nor remove it."""
    dead.parent.chmod(0o1777)
    dead.chmod(0o644)

    def try_it() -> str:
        import holdfast

        lock = holdfast.Lock(dead)
        lock._env = environments().real
        try:
            lock.acquire(timeout=0)
        except holdfast.AcquireTimeout as error:
            return str(error)
        return "acquired"

    said = elsewhere(try_it, user=NOBODY)
    assert str(dead) in said
    assert f"process {os.getpid()}" in said
    assert "neither write to the lock file nor remove it" in said


@needs_root
def test_another_users_dead_lock_does_not_block_a_shared_directory(dead: Path, environments: Environments) -> None:
    """T6 for real: in a world-writable directory, the file is removed and a new one made."""
    dead.parent.chmod(0o777)
    dead.chmod(0o644)

    def try_it() -> tuple[bool, str | None, int]:
        import holdfast

        lock = holdfast.Lock(dead)
        lock._env = environments().real
        with lock.acquire(timeout=5) as hold:
            recovered = hold.recovered_from
            return hold.lost, recovered and recovered.tag, os.stat(dead).st_uid

    assert elsewhere(try_it, user=NOBODY) == (False, "the dead one", NOBODY)


# -- files with another name -------------------------------------------------------------------------------------------


@pytest.mark.needs("link")
@pytest.mark.parametrize(
    ("which", "without"), [(w, wo) for w in ("dead", "stale") for wo in ((), ("unnamed",))] + [("stale", ("flock",))]
)
def test_a_file_that_has_another_name_is_replaced_and_not_written_to(
    which: str, without: tuple[str, ...], request: pytest.FixtureRequest, contend: Contend, environments: Environments
) -> None:
    """T18: it may have been linked here; only this name is removed."""
    path: Path = request.getfixturevalue(which)
    elsewhere_, before = path.with_name("elsewhere"), path.read_bytes()
    os.link(path, elsewhere_)
    os.utime(elsewhere_, (1000, 1000))
    contender = contend(path, environments(*without))
    held = contender.get()
    assert held.recovered_from is not None
    assert held.verify()
    assert (elsewhere_.read_bytes(), elsewhere_.stat().st_mtime) == (before, 1000)
    assert elsewhere_.stat().st_nlink == 1
    assert not isinstance(contend(path).run(), FileHold)


@pytest.mark.needs("link")
@pytest.mark.parametrize("step", ["open_existing", "guard", "read", "list_directory"])
def test_a_file_that_is_given_another_name_meanwhile_is_not_written_to(
    step: str, stale: Path, contend: Contend, environments: Environments
) -> None:
    """T18: after the first look at its names, and before any later step."""
    contender, elsewhere_ = contend(stale), stale.with_name("elsewhere")
    before = stale.read_bytes()

    def begin(_path: str, *, write: bool) -> None:
        if write:
            contender.env.before.pop("open_existing")
            if step == "open_existing":
                os.link(stale, elsewhere_)
            else:
                contender.env.once(contender.env.before, step, lambda: os.link(stale, elsewhere_))

    contender.env.before["open_existing"] = begin
    held = contender.get()
    assert held.verify()
    assert elsewhere_.read_bytes() == before


@pytest.mark.needs("link")
def test_the_names_of_a_file_are_counted_when_the_path_is_one_of_them(stale: Path, contend: Contend) -> None:
    """T18: whenever the descriptor is checked, the file has one name, which is elsewhere."""
    contender, elsewhere_, before = contend(stale), stale.with_name("elsewhere"), stale.read_bytes()
    os.link(stale, elsewhere_)
    by_turns(contender.env, stale, elsewhere_)
    assert contender.get().verify()
    assert elsewhere_.read_bytes() == before


@pytest.mark.needs("link")
def test_a_file_with_another_name_that_may_not_be_removed_is_explained(dead: Path, contend: Contend) -> None:
    """T18: in a sticky directory, say; it stays held."""
    os.link(dead, dead.with_name("elsewhere"))
    contender = contend(dead)

    def refuse(path: str) -> None:
        if path == str(dead):
            raise PermissionError(1, "Operation not permitted", path)
        os.unlink(path)

    contender.env.instead["unlink"] = refuse
    result = contender.run()
    assert not isinstance(result, FileHold)
    assert "which has another name elsewhere and so is not written to" in result.status.reason
    assert result.status.locked


@pytest.mark.needs("link", "unnamed")
def test_the_lock_of_a_publisher_that_died_between_its_two_names_can_be_acquired(
    disk: Path, contend: Contend, environments: Environments, dead_pid: int
) -> None:
    """T18: its temporary name stays a second name of the lock file until it is removed."""
    publisher = contend(disk / "l", environments("unnamed", pid=dead_pid))
    publisher.request.method = "named"
    publisher.env.once(publisher.env.after, "link", publisher.crash)
    with pytest.raises(Crash):
        publisher.run()
    assert (disk / "l").stat().st_nlink == 2
    env = environments()
    env.real.swept[str(disk)] = float("inf")  # so that it does not look for such names again
    held = contend(disk / "l", env).get()
    assert held.recovered_from is not None
    assert held.verify()
    (left,) = (name for name in os.listdir(disk) if name.endswith(".tmp"))
    os.unlink(disk / left)


def test_after_a_takeover_without_a_guard_the_record_promises_none(
    disk: Path, contend: Contend, environments: Environments, dead_pid: int
) -> None:
    path, env = disk / "l", environments("flock")
    text = marker_text(False, device_in(disk), env.identity())
    path.write_bytes(sema_record(dead_pid, time.time(), marker=text))
    held = contend(path, env).get()
    assert held.recovered_from is not None
    assert b"holdfast=2 n " in path.read_bytes()
    assert not held.guarded


def test_a_durable_lock_is_on_the_disk_after_a_takeover(dead: Path, contend: Contend) -> None:
    """The dead holder may not have asked for durability."""
    contender = contend(dead, durable=True)
    synced: list[str] = []
    for step in ("sync", "sync_directory"):
        contender.env.before[step] = lambda *_, step=step: synced.append(step)
    contender.env.before["write"] = contender.env.before["pwrite"] = lambda *_: synced.append("written")
    contender.get()
    assert synced[-3:] == ["written", "sync", "sync_directory"]
