"""Publication: whole or not at all, by exactly one publisher, whichever way the directory allows (publish.py)."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast._platform.values import temporary_name
from holdfast.engines.file.acquire import look
from holdfast.engines.file.hold import FileHold
from holdfast.errors import UnsupportedFilesystem
from holdfast.liveness import Liveness
from holdfast.model import Identity
from unit.elsewhere import needs_root
from unit.stepping import Contend, Contender, Crash, Stepped, by_turns, failing

# The abilities to switch off for each way of publishing; below, the step that makes its name.
WAYS = {"unnamed": (), "named": ("unnamed",), "exclusive": ("unnamed", "link")}
CREATING = {"unnamed": "link_unnamed", "named": "link", "exclusive": "open_new"}
ways = pytest.mark.parametrize("way", WAYS)

Environments = Callable[..., Stepped]


@pytest.fixture
def publisher(contend: Contend, environments: Environments) -> Contend:
    """A contender that publishes in one given way, without trying others first."""

    def make(way: str, path: Path, **options: object) -> Contender:
        contender = contend(path, environments(*WAYS[way]), **options)
        contender.request.method = way
        return contender

    return make


@ways
def test_one_of_two_publishers_succeeds(way: str, place: Path, publisher: Contend) -> None:
    """P1: the second finds the name taken, however late the first was overtaken."""
    path = place / "l"
    first, second = (publisher(way, path) for _ in range(2))
    winner: list[FileHold] = []
    first.env.once(first.env.before, CREATING[way], lambda: winner.append(second.get()))
    result = first.run()
    assert winner
    assert not isinstance(result, FileHold)
    assert first.request.method == way
    assert winner[0].verify()
    assert path.read_bytes() == winner[0].data


@ways
def test_a_lock_file_is_seen_only_with_its_whole_record(
    way: str, disk: Path, publisher: Contend, contend: Contend
) -> None:
    """P2: after no step of a publisher does a look find a proof of its death; P3: nor half-way."""
    contender, observer = publisher(way, disk / "l"), contend(disk / "l")
    seen = []

    def observe(_number: int, name: str) -> None:
        status = look(observer.env, observer.request)
        seen.append((name, status.locked or status.stale, status.liveness, status.record is not None))

    contender.env.at_step = contender.env.past_step = observe
    held = contender.get()
    assert [state for state in seen if state[2] is Liveness.DEAD] == []
    visible = [state for state in seen if state[1]]
    assert visible or way == "unnamed"
    if way != "exclusive":  # there, the empty file is marked as unfinished, P6
        assert all(whole for *_, whole in visible)
    status = look(observer.env, observer.request)
    assert (status.liveness, status.evidence.source, status.evidence.proven) == (Liveness.ALIVE, "guard", True)
    assert held.guarded


def test_a_record_claims_a_guard_only_when_its_inode_has_it(disk: Path, publisher: Contend) -> None:
    """P3: under a temporary name first, the record says `n` until the guard of the lock path is held."""
    contender = publisher("named", disk / "l")
    said = {}

    def note(when: str) -> Callable[..., None]:
        def look_at_bytes(*_: object) -> None:
            said.setdefault(when, (disk / "l").read_bytes())

        return look_at_bytes

    contender.env.after["link"], contender.env.before["guard"] = note("linked"), note("guarding")
    held = contender.get()
    assert b"\nholdfast=2 n " in said["linked"]
    assert said["guarding"] == said["linked"]
    assert (disk / "l").read_bytes() == held.data == said["linked"].replace(b"=2 n ", b"=2 g ")


def test_a_prober_at_the_wrong_moment_does_not_cost_a_holder_its_guard(disk: Path, publisher: Contend) -> None:
    """P3: a guard that is being probed is requested again; the hold is known by its process until then."""
    contender = publisher("named", disk / "l")
    probes = []

    def probe() -> None:
        probes.append(os.open(disk / "l", os.O_RDONLY))
        fcntl.flock(probes[0], fcntl.LOCK_SH)

    contender.env.once(contender.env.after, "link", probe)
    assert contender.step() is not None
    assert b"=2 n " in (disk / "l").read_bytes()
    os.close(probes[0])
    held = contender.get()
    assert held.guarded
    assert b"=2 g " in (disk / "l").read_bytes()


def test_a_guard_on_another_name_of_the_file_does_not_count(disk: Path, publisher: Contend) -> None:
    """P3: where the two names do not share the guard (FUSE), only a descriptor of the lock path itself will do."""
    contender = publisher("named", disk / "l")
    opened = []
    contender.env.after["open_existing"] = lambda path, **_: opened.append(path)
    contender.env.before["guard"] = lambda _fd: opened.append("guard")
    contender.get()
    assert opened == [str(disk / "l"), "guard"]


def test_without_kernel_locks_the_record_does_not_promise_one(
    disk: Path, contend: Contend, environments: Environments
) -> None:
    """P3: the process remains the proof of life."""
    for way, without in WAYS.items():
        held = contend(disk / way, environments("flock", *without)).get()
        assert not held.guarded
        assert b"\nholdfast=2 n " in held.data
        held.release()


class Interrupted(BaseException):
    pass


@ways
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interrupted_publisher_leaves_no_lock(way: str, after: bool, disk: Path, publisher: Contend) -> None:
    """P4: interrupted before or after any step, it leaves the path free and no descriptor open."""
    path = disk / "l"
    rehearsal = publisher(way, path, durable=True)
    held = rehearsal.get()
    steps = list(rehearsal.env.steps)
    held.release()
    assert CREATING[way] in steps
    for number, name in enumerate(steps):
        if after and name.startswith("open_"):
            continue  # whose descriptor never left the call
        if not after and ((way, name) == ("named", "unlink") or name == "close"):
            continue  # the file that this step was to clean up stays; a later publisher sweeps temporary names
        contender = publisher(way, path, durable=True)

        def interrupt(at: int, _name: str, number: int = number) -> None:
            if at == number:
                raise Interrupted

        setattr(contender.env, "past_step" if after else "at_step", interrupt)
        with pytest.raises(Interrupted):
            contender.run()
        assert os.listdir(disk) == [], f"after {name}"
        assert not contender.env.open_descriptors()
        assert not contender.env.holds


@ways
def test_an_interrupted_publisher_leaves_the_lock_of_another(way: str, disk: Path, publisher: Contend) -> None:
    """P4: the object at the path is removed only if it is the publisher's own inode."""
    path = disk / "l"
    contender = publisher(way, path)

    def replace() -> None:
        path.unlink()
        path.write_bytes(b"pid=1\ntimestamp=2\n")
        raise Interrupted

    made = {"unnamed": "link_unnamed", "named": "link", "exclusive": "write"}[way]
    contender.env.once(contender.env.after, made, replace)
    with pytest.raises(Interrupted):
        contender.run()
    assert path.read_bytes() == b"pid=1\ntimestamp=2\n"
    assert not contender.env.open_descriptors()


def test_an_interrupted_publisher_leaves_a_record_written_over_its_own(disk: Path, contend: Contend) -> None:
    """P4: the inode may be the publisher's, but the lock is not."""
    contender = contend(disk / "l")

    def overwrite() -> None:
        (disk / "l").write_bytes(b"pid=1\ntimestamp=2\n")
        raise Interrupted

    contender.env.once(contender.env.after, "link_unnamed", overwrite)
    with pytest.raises(Interrupted):
        contender.run()
    assert (disk / "l").read_bytes() == b"pid=1\ntimestamp=2\n"


# -- exclusive creation ------------------------------------------------------------------------------------------------


def test_a_creator_does_not_enter_after_a_contender_has_finished_its_file(disk: Path, publisher: Contend) -> None:
    """P5: the file is its own inode, but not empty any more. P6: the contender may do that."""
    creator, contender = (publisher("exclusive", disk / "l") for _ in range(2))
    got = []
    creator.env.once(creator.env.after, "open_new", lambda: got.append(contender.get()))
    assert not isinstance(creator.run(), FileHold)
    assert got[0].verify()


def test_a_creator_takes_over_the_record_of_a_dead_contender(disk: Path, publisher: Contend) -> None:
    """P5: the contender that finished its file has died since; the hold reports a takeover."""
    creator, contender = (publisher("exclusive", disk / "l") for _ in range(2))
    contender.request.tag = "finished it"

    def finish_and_die() -> None:
        contender.get()
        contender.crash()

    creator.env.once(creator.env.after, "open_new", finish_and_die)
    held = creator.get()
    assert held.recovered_from is not None
    assert held.recovered_from.tag == "finished it"


def test_a_creator_waits_while_a_contender_has_the_guard(disk: Path, publisher: Contend) -> None:
    """P5: its empty file is guarded by another contender; it waits, and then finds the file taken."""
    creator, contender = (publisher("exclusive", disk / "l") for _ in range(2))

    paused = []

    def pause_contender() -> None:
        # It has the guard, and is about to write. The creator must wait now, and not enter.
        contender.env.once(contender.env.before, "write", lambda: paused.append(creator_step()))
        contender.get()

    def creator_step() -> bool:
        other = os.open(disk / "l", os.O_RDWR)
        try:
            return creator.env.real.guard(other) is False
        finally:
            os.close(other)

    creator.env.once(creator.env.before, "guard", pause_contender)
    assert not isinstance(creator.run(), FileHold)
    assert paused == [True]
    assert contender.inside


def test_a_creator_keeps_its_file_from_a_prober(disk: Path, publisher: Contend) -> None:
    """P5: a guard that is refused for an instant is requested again."""
    creator = publisher("exclusive", disk / "l")
    creator.env.instead["guard"] = lambda _fd: False
    assert creator.step() is not None
    creator.env.instead.clear()
    assert creator.get().guarded


def test_a_creator_does_not_enter_through_a_file_no_longer_at_the_path(disk: Path, publisher: Contend) -> None:
    """P5: another process removed the empty file and created its own."""
    path = disk / "l"
    creator = publisher("exclusive", path)

    def replace() -> None:
        path.unlink()
        path.write_bytes(b"pid=1\ntimestamp=99999999999\n")

    creator.env.once(creator.env.after, "open_new", replace)
    assert not isinstance(creator.run(), FileHold)
    assert path.read_bytes() == b"pid=1\ntimestamp=99999999999\n"


def test_a_creator_that_died_before_it_wrote_does_not_block_the_lock(
    disk: Path, contend: Contend, publisher: Contend
) -> None:
    """P6: the next contender finishes an empty file with the bit and without a guard, and clears the bit."""
    path = disk / "l"
    creator, other = publisher("exclusive", path), contend(path)
    creator.env.once(creator.env.after, "open_new", creator.crash)
    with pytest.raises(Crash):
        creator.run()
    assert path.stat().st_mode & stat.S_ISVTX
    assert path.read_bytes() == b""
    held = other.get()
    assert held.verify()
    assert not path.stat().st_mode & stat.S_ISVTX


@pytest.mark.needs("link", "flock")
@pytest.mark.parametrize("when", ["before", "while it is opened", "by turns"])
def test_an_unfinished_file_that_has_another_name_is_replaced_and_not_written_to(
    when: str, disk: Path, contend: Contend
) -> None:
    """P6, and T18 (takeover.py): it may belong to another directory and have been linked here."""
    path, elsewhere = disk / "l", disk / "elsewhere"
    path.touch()
    path.chmod(0o644 | stat.S_ISVTX)
    contender = contend(path)
    if when == "while it is opened":
        contender.env.before["open_existing"] = lambda _path, write: (
            os.link(path, elsewhere) if write and not elsewhere.exists() else None
        )
    else:
        os.link(path, elsewhere)
    if when == "by turns":
        by_turns(contender.env, path, elsewhere)
    assert contender.get().verify()
    assert elsewhere.read_bytes() == b""
    assert elsewhere.stat().st_mode & stat.S_ISVTX


def test_an_empty_file_of_another_implementation_is_not_taken(disk: Path, contend: Contend) -> None:
    """P6: without the bit, a foreign creator is between its two steps, however old the file is."""
    path = disk / "l"
    path.touch()
    os.utime(path, (0, 0))
    for stale in ("safe", "protocol", lambda _status: True):
        assert not isinstance(contend(path, stale=stale).run(), FileHold)
    assert path.read_bytes() == b""


def test_an_empty_file_that_came_in_between_is_not_taken(disk: Path, contend: Contend) -> None:
    """P6: the bit must be on the inode that is finished, and not on one seen a moment ago."""
    path = disk / "l"
    path.touch()
    path.chmod(0o644 | stat.S_ISVTX)
    contender = contend(path)

    def replace() -> None:
        path.unlink()
        path.touch()

    looked = contender.env.before
    contender.env.before["open_existing"] = lambda _path, write: replace() if write else None
    assert looked
    assert not isinstance(contender.run(), FileHold)
    assert path.read_bytes() == b""


def test_the_mode_that_was_asked_for_is_set(disk: Path, contend: Contend, environments: Environments) -> None:
    umask = os.umask(0o022)
    try:
        for way, without in WAYS.items():
            for mode, wanted in ((None, 0o644), (0o600, 0o600), (0o666, 0o644)):
                held = contend(disk / way, environments(*without), mode=mode).get()
                assert stat.S_IMODE((disk / way).stat().st_mode) == wanted, way
                held.release()
    finally:
        os.umask(umask)


@pytest.mark.parametrize("umask", [0o077, 0o277, 0o477, 0o777], ids=oct)
@ways
def test_a_lock_file_can_be_opened_again_by_its_owner_whatever_the_umask(
    way: str, umask: int, disk: Path, contend: Contend, environments: Environments
) -> None:
    """With the umask alone, a dead holder's lock would stay held for its own user."""
    holder, before = contend(disk / "l", environments(*WAYS[way])), os.umask(umask)
    try:
        holder.get()
    finally:
        os.umask(before)
    assert stat.S_IMODE((disk / "l").stat().st_mode) == 0o600 | 0o644 & ~umask


@needs_root
@ways
def test_a_filesystem_without_modes_is_no_error_under_any_umask(
    way: str, disk: Path, contend: Contend, environments: Environments
) -> None:
    """Of a user whom such a filesystem refuses nothing."""
    holder, before = contend(disk / "l", environments(*WAYS[way])), os.umask(0o077)
    holder.env.instead["chmod"] = failing(errno.EPERM)
    real = holder.env.real.open_new, holder.env.real.open_unnamed
    holder.env.instead["open_new"] = lambda path, mode: real[0](path, mode & 0o1077)
    holder.env.instead["open_unnamed"] = lambda path, mode: real[1](path, mode & 0o1077)
    try:
        assert holder.get().verify()
    finally:
        os.umask(before)


# -- falling back ------------------------------------------------------------------------------------------------------


def test_a_hidden_proc_does_not_make_publishing_impossible(
    place: Path, contend: Contend, environments: Environments
) -> None:
    contender = contend(place / "l", environments("proc"))
    assert contender.get().guarded
    assert contender.request.method == "unnamed"
    rival = contend(place / "l", environments("proc"))
    assert not isinstance(rival.run(), FileHold)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS])
def test_a_filesystem_without_unnamed_files_is_accepted(number: int, disk: Path, contend: Contend) -> None:
    contender = contend(disk / "l")
    contender.env.instead["open_unnamed"] = failing(number)
    contender.get().release()
    assert contender.request.method == "named"
    again = contend(disk / "l", contender.env)
    again.request.method = contender.request.method
    del contender.env.steps[:]
    again.get()
    assert "open_unnamed" not in contender.env.steps, "what does not work here is tried again and again"


def test_two_threads_of_one_lock_skip_no_way(disk: Path, contend: Contend) -> None:
    """Both find that a way does not work here; the slower must not skip the next way, or the last."""
    contender = contend(disk / "l")

    def another_thread_was_faster(_directory: str, _mode: int) -> None:
        contender.request.method = "exclusive"
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    contender.env.instead["open_unnamed"] = another_thread_was_faster
    contender.get()
    assert contender.request.method == "exclusive"


def test_a_directory_that_can_do_nothing_is_explained(disk: Path, contend: Contend) -> None:
    contender = contend(disk / "l")
    for step in ("open_unnamed", "open_new"):
        contender.env.instead[step] = failing(errno.EOPNOTSUPP)
    with pytest.raises(UnsupportedFilesystem, match="local filesystem") as caught:
        contender.run()
    assert caught.value.path == str(disk / "l")
    assert str(disk) in str(caught.value)


# -- leftovers of a crash ----------------------------------------------------------------------------------------------


def test_temporary_names_of_the_dead_are_removed(
    disk: Path, environments: Environments, dead_pid: int, live_pid: int, publisher: Contend
) -> None:
    here = environments().identity()
    others = [
        temporary_name(Identity(live_pid, here.boot, here.pid_namespace, "-", "h"), "aa"),
        temporary_name(Identity(dead_pid, here.boot, "another-namespace", "-", "h"), "bb"),
        temporary_name(Identity(dead_pid, "another-boot", here.pid_namespace, "-", "h"), "cc"),
        ".holdfast-notes.tmp",
        f"k.{dead_pid}.0123456789abcdef.tmp",
    ]
    ours = temporary_name(Identity(dead_pid, here.boot, here.pid_namespace, "-", "h"), "dd")
    for name in [*others, ours]:
        (disk / name).touch()
    publisher("named", disk / "l").get().release()
    assert sorted(os.listdir(disk)) == sorted(others)
    for name in others:
        (disk / name).unlink()


def test_a_takeover_removes_the_temporary_names_of_the_dead_too(
    disk: Path, contend: Contend, dead_pid: int, environments: Environments
) -> None:
    """Windows renames a lock file before it removes it: after a kill in between, the next lock may be a dead
    holder's."""
    holder = contend(disk / "l")
    holder.get()
    holder.crash()
    here = environments().identity()
    left = disk / temporary_name(Identity(dead_pid, here.boot, here.pid_namespace, "-", "h"), "aa")
    left.touch()
    contend(disk / "l", timeout=0).get().release()
    assert os.listdir(disk) == []


def test_a_takeover_does_not_fail_because_leftovers_cannot_be_listed(disk: Path, contend: Contend) -> None:
    holder = contend(disk / "l")
    holder.get()
    holder.crash()
    contender = contend(disk / "l", timeout=0)

    def refuse() -> None:
        raise PermissionError(errno.EACCES, "not for you")

    contender.env.once(contender.env.before, "list_directory", refuse)
    contender.get().abandon()
    assert "list_directory" not in contender.env.before


def test_a_temporary_name_fits_wherever_a_lock_name_does(
    disk: Path, contend: Contend, environments: Environments
) -> None:
    for way, without in WAYS.items():
        contend(disk / ("n" * 255), environments(*without)).get().release()
        assert os.listdir(disk) == [], way


def test_a_file_among_the_missing_directories_is_explained(disk: Path) -> None:
    (disk / "dangling").symlink_to(disk / "nowhere" / "deep")
    with pytest.raises(holdfast.InvalidPath, match="not a directory"):
        holdfast.Lock(disk / "dangling" / "l", parents=True).acquire(timeout=0)


@pytest.mark.needs("flock")
def test_a_creator_without_kernel_locks_and_a_finisher_exclude_each_other(
    disk: Path, contend: Contend, environments: Environments
) -> None:
    """P7: the contender, which has kernel locks, comes before the creator has written its record."""
    path = disk / "l"
    creator = contend(path, environments("unnamed", "link", "flock"))
    contender, losers = contend(path, environments("unnamed", "link")), []
    creator.request.method = "exclusive"
    creator.env.once(creator.env.after, "open_new", lambda: losers.append(contender.run()))
    held = creator.get()
    assert held.verify()
    assert losers
    assert not isinstance(losers[0], FileHold)
    assert path.stat().st_mode & stat.S_ISVTX == 0


@pytest.mark.needs("unnamed", "flock")
@pytest.mark.parametrize("parents", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"protocol": "flock"}, {"protocol": "proper-lockfile", "realpath": False}], ids=str
)
def test_a_directory_that_another_process_makes_just_then_is_used(
    disk: Path, contend: Contend, options: dict[str, Any], parents: bool
) -> None:
    """As where two processes start together. The lock is made as in any other directory."""
    contender = contend(disk / "d" / "l", parents=parents, **options)

    def make(path: str, **_kwargs: object) -> None:
        if path.endswith("/."):  # it is asked whether the directory is missing
            (disk / "d").mkdir(exist_ok=True)

    contender.env.before["stat"] = make
    assert contender.get().verify()
    assert contender.request.method == "unnamed"
