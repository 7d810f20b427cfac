"""Containers and users: a pid may mean another process elsewhere, and files may belong to another user.

The differences between the protocols are in test_namespaces_protocols.py."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from abilities import LINUX, need
from holdfast import Liveness, Lock
from holdfast._platform import environment
from process.support import Peer, eventually, polling, state

# A clock that is two hours slow, so that the record is old, by the protocol's letter, as soon as it is written.
HOLD = """
holdfast._platform.environment().time = lambda: time.time() - 7200
hold = Lock(path, tag="holder", mode=0o644).acquire(timeout=5)
say("holding", os.getpid(), holdfast._platform.environment().identity().host)
hear()
hold.ensure_held()
hold.release()
say("released")
hear()
"""

# Looks, tries by every rule, then waits.
CONTEND = """
status = Lock(path).status()
say(status.locked, status.liveness.value, status.evidence.source)
say(Lock(path).try_acquire(), Lock(path, stale="protocol").try_acquire())
hold = Lock(path, timeout=20).acquire()
was = hold.recovered_from
say(time.monotonic(), was and was.pid)
hear()
hold.release()
"""

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
ABROAD = ("unshare", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child")
HERE: tuple[str, ...] = ()
OTHER_CLOCK = ("unshare", "--time", "--boottime", "432000", "--monotonic", "432000", "--fork", "--kill-child")
USERS = ("unshare", "--user", "--map-root-user", *CONTAINER[1:])


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, for namespaces and for other users")
    if shutil.which("unshare") is None:
        pytest.skip("unshare(1) is not installed")


def process_of(peer: Peer) -> int:
    """The process itself, not the unshare(1) that waits for it."""
    children = Path(f"/proc/{peer.pid}/task/{peer.pid}/children").read_text().split()
    return int(children[0]) if children else peer.pid


def end(peer: Peer) -> None:
    """Kill the process itself."""
    os.kill(process_of(peer), 9)


@pytest.mark.parametrize(
    ("where", "from_where"),
    [
        (CONTAINER, HERE),
        (HERE, CONTAINER),
        (CONTAINER, CONTAINER),
        (ABROAD, HERE),
        (ABROAD, CONTAINER),
        (USERS, HERE),
        (HERE, USERS),
        (USERS, USERS),
    ],
    ids=[
        "inside-outside",
        "outside-inside",
        "two-containers",
        "another-host-name",
        "host-and-container",
        "users-inside-outside",
        "users-outside-inside",
        "two-with-users",
    ],
)
@pytest.mark.needs("flock")
def test_a_holder_in_another_container_is_respected_and_recovered_when_dead(
    spawn: Callable[..., Peer], path: str, where: tuple[str, ...], from_where: tuple[str, ...]
) -> None:
    if ABROAD in (where, from_where):
        need("linux")  # the boot's own number: a machine's is known by its name as well
    rename = "import socket; socket.sethostname('elsewhere')\n" if where is ABROAD else ""
    holder = spawn(rename + HOLD, path, prefix=where)
    word, pid, host = holder.hear().split()
    assert word == "holding"
    if where:
        assert pid == "1"
    assert (host == "elsewhere") == (where is ABROAD)
    contender = spawn(CONTEND, path, prefix=from_where)
    contender.expect("True alive guard")
    contender.expect("None None")
    end(holder)
    killed = time.monotonic()
    moment, recovered = contender.hear().split()
    assert float(moment) - killed < 5  # it would look again after ten seconds
    assert recovered == pid
    contender.say("release")
    contender.finish()
    assert os.listdir(os.path.dirname(path)) == []


@pytest.mark.needs("flock")
def test_a_released_lock_is_seen_from_another_container(spawn: Callable[..., Peer], path: str) -> None:
    holder = spawn(HOLD, path, prefix=CONTAINER)
    holder.hear()
    contender = spawn(CONTEND, path, prefix=CONTAINER)
    contender.expect("True alive guard")
    contender.expect("None None")
    holder.say("release")
    holder.expect("released")
    released = time.monotonic()
    moment, recovered = contender.hear().split()
    assert float(moment) - released < 5
    assert recovered == "None"
    contender.say("release")
    contender.finish()


@pytest.mark.needs("flock")
def test_a_new_containers_first_process_recovers_its_dead_predecessors_lock(
    spawn: Callable[..., Peer], path: str
) -> None:
    first = spawn(HOLD, path, prefix=CONTAINER)
    assert first.hear().split()[1] == "1"
    end(first)
    first.wait()
    second = spawn(CONTEND.partition("hold =")[2].join(["hold =", ""]), path, prefix=CONTAINER)
    assert second.hear().split()[1] == "1"
    second.say("release")
    second.finish()


def test_a_holder_without_a_kernel_lock_is_not_judged_by_a_foreign_number(
    spawn: Callable[..., Peer], path: str
) -> None:
    # Its pid 1 is another process out here, and a pid from out here is none in there: unknown, and so held.
    without = {"HOLDFAST_WITHOUT": "flock"}
    holder = spawn(HOLD, path, prefix=CONTAINER, env=without)
    holder.hear()
    status = Lock(path).status()
    assert (status.locked, status.liveness) == (True, Liveness.UNKNOWN)
    assert "another PID namespace" in status.evidence.text
    assert Lock(path).try_acquire() is None
    end(holder)
    holder.wait()
    assert Lock(path).try_acquire() is None
    os.unlink(path)

    outside = spawn(HOLD, path, env=without)
    outside.hear()
    inside = spawn(
        """
        status = Lock(path).status()
        say(status.locked, status.liveness.value)
        say(Lock(path).try_acquire())
        """,
        path,
        prefix=CONTAINER,
    )
    inside.expect("True unknown")
    inside.expect("None")
    inside.finish()
    outside.say("release")
    outside.expect("released")


def test_a_foreign_record_of_a_process_that_proc_hides_counts_as_alive(spawn: Callable[..., Peer], shm: Path) -> None:
    path = str(shm / "the.lock")
    foreign = spawn("hear()")
    Path(path).write_text(f"pid={foreign.pid}\ntimestamp={int(time.time()) - 10}\n")
    hiding = ("unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh")
    looker = spawn(
        """
        become(61001)
        say(os.path.exists(f"/proc/{sys.argv[2]}"))
        status = Lock(path).status()
        say(status.locked, status.liveness.value)
        """,
        path,
        foreign.pid,
        prefix=hiding,
    )
    assert looker.hear() == "False"
    looker.expect("True alive")
    looker.finish()


@pytest.mark.needs("flock")
def test_without_proc_locks_still_exclude(spawn: Callable[..., Peer], path: str) -> None:
    bare = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")
    holder = spawn(HOLD, path, prefix=bare)
    assert holder.hear().startswith("holding")
    assert Lock(path).status().evidence.source == "guard"
    assert Lock(path).try_acquire() is None
    contender = spawn("say(Lock(path).try_acquire()); Lock(path).acquire(timeout=20).release()", path, prefix=bare)
    contender.expect("None")
    eventually(lambda: state(contender.pid) == "S", what="the wait")
    holder.say("release")
    holder.expect("released")
    contender.finish()


# Only an event ends this wait in time.
WAIT = """
import holdfast.engines.file.queue, holdfast.engines.file.watched
holdfast.engines.file.queue.RECHECK = holdfast.engines.file.watched.RECHECK = 600.0
say(Lock(path).try_acquire())
hold = Lock(path).acquire(timeout=60)
say("got it from", hold.recovered_from and hold.recovered_from.tag)
hear()
hold.release()
"""


@pytest.fixture
def _events(path: str) -> None:
    need("events", "flock")
    if not environment().events_reach(path):
        pytest.skip("there are no events on this filesystem")


@pytest.mark.usefixtures("_events")
@pytest.mark.parametrize("dies", [True, False], ids=["death", "release"])
@pytest.mark.parametrize(("where", "from_where"), [(ABROAD, CONTAINER), (HERE, CONTAINER), (CONTAINER, HERE)])
def test_an_event_reaches_another_container(
    spawn: Callable[..., Peer], path: str, where: tuple[str, ...], from_where: tuple[str, ...], dies: bool
) -> None:
    """Also behind another waiter: the first waits for the lock file, the second for the first's ticket."""
    holder = spawn(HOLD, path, prefix=where)
    holder.hear()
    first, second = spawn(WAIT, path, prefix=from_where), spawn(WAIT, path, prefix=CONTAINER)
    for waiter in (first, second):
        waiter.expect("None")
        eventually(lambda waiter=waiter: polling(process_of(waiter)), what="the wait")
    if dies:
        end(holder)
    else:
        holder.say("release")
        holder.expect("released")
    served = eventually(lambda: [waiter for waiter in (first, second) if not waiter.silent()], what="a wake-up")
    (one,) = served
    one.expect("got it from holder" if dies else "got it from None")
    other = second if one is first else first
    assert other.silent()
    one.say("release")
    one.finish()
    other.expect("got it from None")
    other.say("release")
    other.finish()
    assert os.listdir(os.path.dirname(path)) == []


@pytest.mark.usefixtures("_events")
@pytest.mark.parametrize(
    "wheres", [(OTHER_CLOCK, HERE), (HERE, OTHER_CLOCK)], ids=["later clock first", "later clock second"]
)
def test_a_waiter_with_a_shifted_clock_is_served_in_its_turn(
    spawn: Callable[..., Peer], path: str, wheres: tuple[tuple[str, ...], ...]
) -> None:
    """A time namespace shifts the monotonic clock, by which waiters are told apart; here by five days."""
    if not os.path.exists("/proc/self/timens_offsets"):
        pytest.skip("this kernel has no time namespaces")
    with Lock(path):
        waiters: list[Peer] = []
        queue = Path(path).parent / ".holdfast-the.lock.queue"
        for where in wheres:
            waiters.append(spawn(WAIT, path, prefix=where))
            waiters[-1].expect("None")
            eventually(lambda: queue.exists() and len(os.listdir(queue)) == len(waiters), what="the ticket")
    first, second = waiters
    first.expect("got it from None")
    assert second.silent()
    first.say("release")
    second.expect("got it from None")
    second.say("release")
    for waiter in waiters:
        waiter.finish()


@pytest.mark.parametrize("env", [{}, {"HOLDFAST_OS": "generic"}], ids=["linux", "portable"])
def test_a_process_older_than_its_clock_counts_as_alive(
    spawn: Callable[..., Peer], path: str, env: dict[str, str]
) -> None:
    """With a start in the future, it could not have written its record, and a foreign lock would be taken from it."""
    offsets = Path("/proc/self/timens_offsets")
    if not offsets.exists():
        pytest.skip("this kernel has no time namespaces")
    ours = int(offsets.read_text().split()[4])
    zero = ours - int(time.clock_gettime(time.CLOCK_BOOTTIME))
    where = ("unshare", "--time", "--boottime", str(zero), "--fork", "--kill-child")
    Path(path).write_text(f"pid={os.getpid()}\ntimestamp={int(time.time())}\n")
    code = "status = Lock(path).status(); say(status.liveness.value, status.evidence.source)"
    foreign = spawn(code, path, prefix=where, env={**LINUX, **env})
    foreign.expect("alive process")
    foreign.finish()


# -- mounts ------------------------------------------------------------------------------------------------------------

BOUND = ("unshare", "--mount", "sh", "-c", 'mount --bind "$1" /media && shift && exec "$@"', "sh")


@pytest.mark.needs("flock")
def test_a_directory_that_is_mounted_elsewhere_has_the_same_locks(spawn: Callable[..., Peer], path: str) -> None:
    """A container's volume: the same directory by another path, in another mount and PID namespace."""
    holder = spawn(HOLD, "/media/the.lock", prefix=(*CONTAINER, *BOUND, os.path.dirname(path)))
    word, _, _ = holder.hear().split()
    assert word == "holding"
    assert "the.lock" in os.listdir(os.path.dirname(path))
    assert Lock(path).status().evidence.source == "guard"
    assert Lock(path, stale="protocol").try_acquire() is None
    contender = spawn(CONTEND, path)
    contender.expect("True alive guard")
    contender.expect("None None")
    end(holder)
    assert contender.hear().split()[1] == "1"
    contender.say("release")
    contender.finish()


@pytest.fixture(params=["one filesystem", "two filesystems"])
def layers(request: pytest.FixtureRequest, disk: Path, mount: Callable[..., None]) -> tuple[Path, Path, Path]:
    """An overlay, its lower and its upper directory; in memory, as an overlay on an overlay may be refused."""
    base, merged = disk / "base", disk / "merged"
    for directory in (base, merged):
        directory.mkdir()
    mount("-t", "tmpfs", "tmpfs", base)
    for name in ("lower", "upper", "work"):
        (base / name).mkdir()
    lower = base / "lower"
    if request.param == "two filesystems":
        mount("-t", "tmpfs", "tmpfs", lower)
    options = f"lowerdir={lower},upperdir={base}/upper,workdir={base}/work"
    mount("-t", "overlay", "overlay", "-o", options, merged)
    return merged, lower, base / "upper"


@pytest.mark.needs("flock")
def test_a_guard_that_cannot_be_seen_through_a_layer_counts_as_unknown(
    spawn: Callable[..., Peer], layers: tuple[Path, Path, Path]
) -> None:
    """L2: unknown, not dead, whether the holder lives or not: held until its protocol's age limit, and no longer."""
    merged, _, upper = layers
    young = HOLD.partition("hold =")[2].join(["hold =", ""])
    holder = spawn(young, merged / "the.lock", prefix=CONTAINER)
    holder.hear()
    through = Lock(upper / "the.lock")

    def is_unknown() -> None:
        status = through.status()
        assert (status.locked, status.stale, status.liveness) == (True, False, Liveness.UNKNOWN)
        assert "another PID namespace" in status.evidence.text
        assert through.try_acquire() is None

    is_unknown()
    end(holder)
    holder.wait()
    is_unknown()
    with Lock(merged / "the.lock", timeout=5) as hold:
        assert hold.recovered_from.pid == 1
    assert os.listdir(merged) == []


def test_a_stale_lock_in_an_image_is_taken_over(layers: tuple[Path, Path, Path]) -> None:
    """It is in the lower layer: a write to it makes another file, and a removal leaves a mark."""
    merged, lower, _ = layers
    (lower / "the.lock").write_text(f"pid=2147483647\ntimestamp={int(time.time()) - 7200}\n")
    for _ in range(2):
        with Lock(merged / "the.lock", timeout=5) as hold:
            hold.ensure_held()
            assert Lock(merged / "the.lock").try_acquire() is None
        assert os.listdir(merged) == []


# -- users -------------------------------------------------------------------------------------------------------------

ALICE, BOB = 61001, 61002

AS_USER = """
become(int(sys.argv[2]))
try:
    hold = Lock(path, tag="of " + sys.argv[2], mode=int(sys.argv[3], 8)).acquire(timeout=0.5)
    was = hold.recovered_from
    say("holding", was and was.tag)
    hear()
    hold.release()
    say("released")
except holdfast.AcquireTimeout as error:
    say("refused:", error)
except OSError as error:
    say("error:", error)
hear()
"""


@pytest.fixture
def shared(shm: Path, request: pytest.FixtureRequest) -> str:
    """A lock path in a directory that everybody may write to, with the mode bits that the test asks for."""
    shm.chmod(getattr(request, "param", 0o1777))
    return str(shm / "the.lock")


def dead_lock_of(spawn: Callable[..., Peer], path: str, user: int, mode: str) -> Peer:
    holder = spawn("os.umask(0)\n" + AS_USER, path, user, mode)
    assert holder.hear().startswith("holding")
    assert os.stat(path).st_uid == user
    holder.kill()
    holder.wait()
    return holder


def test_another_users_dead_lock_in_a_sticky_directory_is_refused_and_explained(
    spawn: Callable[..., Peer], shared: str
) -> None:
    holder = dead_lock_of(spawn, shared, ALICE, "644")
    before = Path(shared).read_bytes()
    bob = spawn(AS_USER, shared, BOB, "644")
    message = bob.hear()
    assert message.startswith("refused:")
    assert f"process {holder.pid}" in message
    assert f"of {ALICE}" in message
    assert f"may neither write to the lock file nor remove it: it belongs to user {ALICE}" in message
    assert "Any user who may write to the file can take it over" in message
    assert Path(shared).read_bytes() == before
    with Lock(shared).acquire(timeout=1) as hold:  # root may take it over
        assert hold.recovered_from is not None


def test_another_users_lock_that_may_not_be_read_is_refused_as_held(spawn: Callable[..., Peer], shared: str) -> None:
    dead_lock_of(spawn, shared, ALICE, "600")
    bob = spawn(AS_USER, shared, BOB, "644")
    message = bob.hear()
    assert message.startswith("refused:")
    assert "may not be read" in message


@pytest.mark.needs("flock", "linux")
def test_the_holder_of_another_users_lock_that_may_not_be_read_is_named(
    spawn: Callable[..., Peer], shared: str
) -> None:
    alice = spawn("os.umask(0o077)\n" + AS_USER, shared, ALICE, "644")
    alice.expect("holding None")
    bob = spawn(AS_USER, shared, BOB, "644")
    message = bob.hear()
    assert message.startswith("refused:")
    assert "may not be read" in message
    assert f"Wait until process {alice.pid} releases it or ends" in message


@pytest.mark.parametrize("shared", [0o777], indirect=True)
def test_another_users_dead_lock_in_a_shared_directory_is_recovered(spawn: Callable[..., Peer], shared: str) -> None:
    dead_lock_of(spawn, shared, ALICE, "644")
    bob = spawn(AS_USER, shared, BOB, "644")
    assert bob.hear() == f"holding of {ALICE}"
    assert os.stat(shared).st_uid == BOB
    bob.say("release")
    bob.expect("released")
    assert os.listdir(os.path.dirname(shared)) == []


def test_another_users_living_lock_is_respected(spawn: Callable[..., Peer], shared: str) -> None:
    alice = spawn(AS_USER, shared, ALICE, "644")
    alice.expect("holding None")
    bob = spawn(AS_USER, shared, BOB, "644")
    message = bob.hear()
    assert message.startswith("refused:")
    assert "alive" in message
    alice.say("release")
    alice.expect("released")
    assert os.listdir(os.path.dirname(shared)) == []


@pytest.mark.needs("flock")
def test_a_file_that_a_sticky_directory_keeps_does_not_lock_others_out(spawn: Callable[..., Peer], shared: str) -> None:
    # Mode 0666: Bob can take over in place, but may not remove Alice's file when he leaves. He is told so, and what he
    # leaves is a dead holder's record, which the next one takes over at once.
    dead_lock_of(spawn, shared, ALICE, "666")
    bob = spawn(AS_USER, shared, BOB, "666")
    bob.expect(f"holding of {ALICE}")
    bob.say("release")
    assert bob.hear().startswith("error: [Errno 1]")
    assert Lock(shared).status().stale
    carol = spawn(AS_USER, shared, ALICE, "666")
    carol.expect(f"holding of {BOB}")
    carol.say("release")
    carol.expect("released")
    assert os.listdir(os.path.dirname(shared)) == []
