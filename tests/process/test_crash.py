"""A process is killed or stopped: what its contenders get, when, and what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import places
from abilities import LINUX
from ahead import Ran
from holdfast import AcquireTimeout, Lock
from process.support import Peer, eventually, state

STEPS = Path(__file__).with_name("steps.py")

HOLD = """
hold = Lock(path, tag="holder").acquire(timeout=5)
say("holding")
hear()
hold.ensure_held()
say("held")
hold.release()
say("released")
hear()
"""

WAIT = """
say("waiting")
hold = Lock(path).acquire(timeout=20)
old = hold.recovered_from
say(time.monotonic(), old and old.pid, old and old.tag)
hold.release()
"""

# A clock that is two hours slow, so that the record is old as soon as it is written.
OLD_HOLD = (
    """
from holdfast._platform import environment
environment().time = lambda: time.time() - 7200
"""
    + HOLD
)

PUBLISHING = {
    "unnamed": {},
    "named": {"HOLDFAST_WITHOUT": "unnamed"},
    "exclusive": {"HOLDFAST_WITHOUT": "unnamed,link"},
    "no-proc": {"HOLDFAST_WITHOUT": "proc"},
    "no-guard": {"HOLDFAST_WITHOUT": "flock"},
    "portable": {"HOLDFAST_OS": "generic"},
}


def _killed(operation: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    with places.directory_in_memory() as shm:
        return subprocess.run(
            [sys.executable, str(STEPS), str(shm / "a.lock"), operation],
            env={**os.environ, **LINUX, **env},
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.mark.ahead(body=_killed)
@pytest.mark.unmeasured("hundreds of forks, each of which would begin to measure anew")
@pytest.mark.parametrize("env", PUBLISHING.values(), ids=PUBLISHING)
@pytest.mark.parametrize("operation", ["acquire", "takeover", "release"])
def test_a_kill_at_any_step_leaves_a_lock_that_can_be_acquired(operation: str, env: dict[str, str], ran: Ran) -> None:
    done = ran()
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["problems"] == [], done.stderr
    assert told["steps"] > 5  # otherwise the kill did not hit the operation


def test_a_waiter_wakes_when_the_holder_is_killed(spawn: Callable[..., Peer], path: str) -> None:
    holder = spawn(HOLD, path)
    holder.expect("holding")
    waiter = spawn(WAIT, path)
    waiter.expect("waiting")
    eventually(lambda: state(waiter.pid) == "S", what="the waiter's sleep")
    killed = time.monotonic()
    holder.kill()
    moment, pid, tag = waiter.hear().split()
    assert (int(pid), tag) == (holder.pid, "holder")
    assert float(moment) - killed < 5  # it would look again after ten seconds
    waiter.finish()
    assert not os.path.exists(path)


@pytest.mark.parametrize("stale", ["safe", "protocol"])
@pytest.mark.needs("flock")
def test_a_stopped_holder_keeps_its_lock(spawn: Callable[..., Peer], path: str, stale: str) -> None:
    holder = spawn(OLD_HOLD, path)
    holder.expect("holding")
    holder.kill(signal.SIGSTOP)
    eventually(lambda: state(holder.pid) == "T", what="the stop")
    contender = Lock(path, stale=stale, stale_after=0.01)
    before = Path(path).read_bytes()
    assert contender.try_acquire() is None
    assert contender.status().evidence.source == "guard"
    with pytest.raises(AcquireTimeout, match=f"process {holder.pid}"):
        contender.acquire(timeout=0.2)
    assert Path(path).read_bytes() == before
    holder.kill(signal.SIGCONT)
    holder.say("go on")
    holder.expect("held")
    holder.expect("released")
    with contender.acquire(timeout=1) as hold:
        assert hold.recovered_from is None


def test_a_holder_killed_while_it_is_stopped_is_not_waited_for(spawn: Callable[..., Peer], path: str) -> None:
    holder = spawn(HOLD, path)
    holder.expect("holding")
    holder.kill(signal.SIGSTOP)
    waiter = spawn(WAIT, path)
    waiter.expect("waiting")
    holder.kill()
    assert waiter.hear().split()[1] == str(holder.pid)


def test_a_killed_waiter_takes_neither_the_lock_nor_a_file_with_it(spawn: Callable[..., Peer], path: str) -> None:
    holder = spawn(HOLD, path)
    holder.expect("holding")
    waiter = spawn(WAIT, path)
    waiter.expect("waiting")
    eventually(lambda: state(waiter.pid) == "S", what="the waiter's sleep")
    waiter.kill()
    waiter.wait()
    assert Lock(path).status().holder.pid == holder.pid
    holder.say("go on")
    holder.expect("held")
    holder.expect("released")
    assert os.listdir(os.path.dirname(path)) == []


def test_a_dead_holder_that_its_parent_has_not_reaped_counts_as_dead(tmp_path: Path) -> None:
    path = str(tmp_path / "zombie.lock")
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", "import os, sys, holdfast; holdfast.Lock(sys.argv[1]).acquire(); os._exit(0)", path],
        {**os.environ, "HOLDFAST_WITHOUT": "flock"},
    )
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert state(pid) == "Z"
        with Lock(path).acquire(timeout=1) as hold:
            assert hold.recovered_from is not None
            assert hold.recovered_from.pid == pid
    finally:
        os.waitpid(pid, 0)


@pytest.mark.parametrize("pages", [1, 3])
def test_a_takeover_of_a_long_record_leaves_no_piece_of_it(spawn: Callable[..., Peer], path: str, pages: int) -> None:
    holder = spawn("Lock(path, tag='x' * int(sys.argv[2])).acquire(); say('holding'); hear()", path, 3000 * pages)
    holder.expect("holding")
    holder.kill()
    holder.wait()
    with Lock(path, tag="heir").acquire(timeout=1) as hold:
        assert hold.recovered_from is not None
        assert hold.recovered_from.tag == "x" * 3000 * pages
        assert Lock(path).status().record == hold.record
        assert b"x" not in Path(path).read_bytes().split(b"tag=")[1]


def test_an_unfinished_lock_without_a_proof_counts_as_held(spawn: Callable[..., Peer], path: str) -> None:
    # The one crash that cannot be proven: no record yet, and no kernel lock that could be gone. It stays held, and the
    # message says why and what to do.
    env = {**LINUX, "HOLDFAST_WITHOUT": "unnamed,link,flock"}
    victim = spawn(
        """
        from holdfast._platform import environment
        environment().write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        lock = Lock(path)
        lock._request.method = "exclusive"
        lock.acquire()
        """,
        path,
        env=env,
    )
    assert victim.wait() == -signal.SIGKILL
    assert Path(path).read_bytes() == b""
    contender = spawn(
        """
        try:
            Lock(path).acquire(timeout=0.1)
        except holdfast.AcquireTimeout as error:
            say(error)
        """,
        path,
        env=env,
    )
    message = contender.hear()
    assert "the record is empty" in message
    assert "if nobody uses it" in message
    contender.finish()
    # A contender with kernel locks does not finish it either: its creator could not keep that one out (publish.py, P7).
    assert Lock(path).try_acquire() is None
    Lock(path).break_lock()
    assert not os.path.exists(path)
