"""Containers and the protocols: a holder's record is read in another container, where its pid means another process."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast import Hold, Liveness, Lock, LockLost, LockStale
from process.foreign.play import Player, script
from process.support import Peer, eventually, polling

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
NAMED = ("unshare", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child")
PROTOCOLS = ["sema", "semats", "sidecar", "beads", "flock"]
NOT_HERE = 2**22
"""No process has this number: it is the largest that the kernel can be told to give, and one more."""

# Its clock is two hours slow, so that the record is old by the protocol's letter as soon as it is written.
HOLD = """
holdfast._platform.environment().time = lambda: time.time() - 7200
if sys.argv[3] == "elsewhere":
    import socket
    socket.sethostname("elsewhere")
hold = Lock(path, protocol=sys.argv[2]).acquire(timeout=10)
say("holding", os.getpid())
hear()
hold.ensure_held()
hold.release()
"""

CONTEND = """
lock = Lock(path, protocol=sys.argv[2])
status = lock.status()
say(status.locked, status.liveness.value)
say(lock.try_acquire())
say(sys.argv[2] != "flock" and Lock(path, protocol=sys.argv[2], stale="protocol").try_acquire())
hold = Lock(path, protocol=sys.argv[2], timeout=20).acquire()
was = hold.recovered_from
say("got it from", was and was.pid)
hear()
hold.release()
"""


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, for namespaces")
    if shutil.which("unshare") is None:
        pytest.skip("unshare(1) is not installed")


@pytest.fixture
def target(tmp_path: Path) -> str:
    """The path to lock, in a directory of its own; for beads, that directory."""
    (tmp_path / "locks").mkdir()
    return str(tmp_path / "locks" / "it")


def end(peer: Peer) -> None:
    """Kill the process itself, not the unshare(1) that waits for it."""
    (child,) = Path(f"/proc/{peer.pid}/task/{peer.pid}/children").read_text().split()
    os.kill(int(child), 9)


@pytest.mark.parametrize("host", ["here", pytest.param("elsewhere", marks=pytest.mark.needs("linux"))])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.needs("flock")
def test_no_protocol_has_a_false_proof_of_death_across_containers(
    spawn: Callable[..., Peer], target: str, protocol: str, host: str
) -> None:
    """Both are process 1 of a container, on hosts of the same name and of different ones."""
    if protocol == "beads":
        os.mkdir(target)
    holder = spawn(HOLD, target, protocol, host, prefix=NAMED)
    holder.expect("holding 1")
    contender = spawn(CONTEND, target, protocol, prefix=CONTAINER)
    contender.expect("True alive")
    contender.expect("None")
    contender.expect("False" if protocol == "flock" else "None")
    eventually(lambda: polling(first_below(contender)), what="the wait")
    assert contender.silent()
    end(holder)
    contender.expect("got it from None" if protocol == "flock" else "got it from 1")
    contender.say("release")
    contender.finish()


def first_below(peer: Peer) -> int:
    return int(Path(f"/proc/{peer.pid}/task/{peer.pid}/children").read_text().split()[0])


# -- semats: the temporary files of rivals -----------------------------------------------------------------------------


@pytest.fixture
def rival(play: Callable[..., Player], target: str) -> Player:
    """A semats process in another container: it has looked, and is about to rename its temporary file."""
    player = play([*CONTAINER, *script("semats", target)])
    player.stop_at("rename", "take")
    return player


def temporary(target: str) -> Path:
    (found,) = Path(target).parent.glob("*.tmp")
    return found


def in_the_future(path: Path) -> None:
    """Set its time ahead, so that it stays young (Y2) for the whole test: a late look sees it as younger still."""
    later = time.time() + 0.9
    os.utime(path, (later, later))


def test_a_rival_of_another_container_is_waited_for(rival: Player, target: str) -> None:
    """Y2: its pid belongs to no process here, but its temporary file is young."""
    assert ".1." in temporary(target).name
    for pid in ("1", str(NOT_HERE)):  # a process here, and none
        path = temporary(target)
        path = path.rename(path.with_name(f"it.{pid}.{path.name.split('.')[2]}.tmp"))
        in_the_future(path)
        assert Lock(target, protocol="semats").try_acquire() is None
        assert not os.path.exists(target)
    path.rename(path.with_name(f"it.1.{path.name.split('.')[2]}.tmp"))
    rival.go()
    rival.expect("acquired")
    assert Lock(target, protocol="semats").status().holder.pid == 1


def test_a_rival_of_another_container_that_slept_is_noticed(rival: Player, target: str) -> None:
    """Y2: one that has stood between its look and its rename for long is not waited for; its rename is noticed."""
    path = temporary(target)
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago))
    hold = Lock(target, protocol="semats").try_acquire()
    assert isinstance(hold, Hold)
    rival.go()
    rival.expect("acquired")
    theirs = Path(target).read_bytes()
    with pytest.raises(LockLost):
        hold.ensure_held()
    with pytest.raises(LockLost):
        hold.release()
    assert Path(target).read_bytes() == theirs


def test_the_young_lock_of_a_semats_in_another_container_is_not_taken(rival: Player, target: str) -> None:
    """Whatever process has its pid here: a foreign record has only a pid, and the rule asks for age, too."""
    rival.go()
    rival.expect("acquired")
    record = Path(target).read_text()
    for pid in (1, NOT_HERE):
        Path(target).write_text(record.replace("pid=1\n", f"pid={pid}\n"))
        assert Lock(target, protocol="semats").try_acquire() is None
    Path(target).write_text(record)
    assert rival.ask("release") == "released"


# -- sidecar and beads: a pid and a host -------------------------------------------------------------------------------


def foreign_sidecar(target: str, host: str | None, age: float) -> bytes:
    created = datetime.fromtimestamp(time.time() - age, UTC).isoformat().replace("+00:00", "Z")
    payload = {"pid": NOT_HERE, "createdAt": created, **({"host": host} if host else {})}
    data = json.dumps(payload, indent=2).encode() + b"\n"
    Path(target + ".lock").write_bytes(data)
    return data


@pytest.mark.parametrize("host", ["elsewhere", None, socket.gethostname()], ids=["other host", "no host", "same name"])
def test_a_foreign_sidecar_of_another_container_is_not_removed(target: str, host: str | None) -> None:
    """Young or old: its rule fails closed, and no evidence about a pid changes that."""
    lock = Lock(target, protocol="sidecar")
    data = foreign_sidecar(target, host, 1)
    assert lock.try_acquire() is None
    assert lock.status().liveness is (Liveness.UNKNOWN if host == "elsewhere" else Liveness.DEAD)
    assert not lock.status().evidence.proven
    assert Path(target + ".lock").read_bytes() == data
    data = foreign_sidecar(target, host, 3600)
    with pytest.raises(LockStale):
        lock.try_acquire()
    assert Path(target + ".lock").read_bytes() == data


@pytest.mark.parametrize("where", [(), CONTAINER], ids=["outside", "inside"])
def test_a_beads_lock_of_another_host_is_held(spawn: Callable[..., Peer], target: str, where: tuple[str, ...]) -> None:
    """A container with a hostname of its own, as containers have; its processes cannot be seen from another one."""
    os.mkdir(target)
    record = {
        "holder": "vc-executor",
        "pid": NOT_HERE,
        "hostname": "elsewhere",
        "started_at": "2020-01-01T00:00:00Z",
        "version": "1",
    }
    path = Path(target, ".exclusive-lock")
    path.write_text(json.dumps(record, indent=2))
    before = path.read_bytes()
    looker = spawn(
        """
        from holdfast import beads
        status = Lock(path, protocol="beads").status()
        say(status.locked, status.liveness.value, status.stale)
        say(Lock(path, protocol="beads").try_acquire(), Lock(path, protocol="beads", stale="protocol").try_acquire())
        say(*beads.should_skip_database(path))
        """,
        target,
        prefix=where,
    )
    looker.expect("True unknown False")
    looker.expect("None None")
    looker.expect("True vc-executor None")
    looker.finish()
    assert path.read_bytes() == before
