"""`holdfast reap`: a daemon beside real processes, killed holders and foreign waiters (reap.py)."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.support import HOLDFAST, Started, World, dormant, eventually
from process.support import Peer, switches

HOLD = "hold = Lock(path).acquire(); say('held'); hear()"
PLAIN = {"HOLDFAST_OS": "", "HOLDFAST_WITHOUT": ""}
"""As the world's environment."""


@pytest.fixture
def reap(world: World, tmp_path: Path) -> Callable[..., Started]:
    """Start a reaper, and wait until it watches."""

    def start(*words: object, directory: Path = tmp_path, **more: object) -> Started:
        one = world.start([*HOLDFAST, "reap", directory, *words], stdout=subprocess.DEVNULL, **more)
        assert one.process.stderr is not None
        one.source = one.process.stderr.fileno()
        one.hear("holdfast: watching")
        return one

    return start


@pytest.fixture
def hold() -> Iterator[Callable[[Path], Peer]]:
    """A process that holds a lock."""
    started: list[Peer] = []

    def start(path: Path, code: str = HOLD) -> Peer:
        started.append(Peer(code, [path], env=PLAIN))
        started[-1].expect("held")
        return started[-1]

    yield start
    for one in started:
        one.destroy()


def test_a_foreign_waiter_gets_in_before_its_timeout(
    world: World, path: Path, reap: Callable[..., Started], hold: Callable[..., Peer]
) -> None:
    """A shell that creates its lock file exclusively, and knows no proofs of death."""
    holder, reaper = hold(path), reap()
    waiter = world.sh("echo waits; until (set -C; echo mine > $1) 2>/dev/null; do sleep 0.01; done; echo inside", path)
    waiter.hear("waits")
    holder.kill()
    waiter.hear("inside")
    line = reaper.hear("holdfast: removed")
    assert str(path) in line
    assert str(holder.pid) in line
    assert path.read_text() == "mine\n"


def test_a_living_lock_is_not_removed(path: Path, reap: Callable[..., Started], hold: Callable[..., Peer]) -> None:
    """Its holder stops, forks, and hands its guard on: none of these is a death."""
    reap()
    living = hold(path)
    living.kill(signal.SIGSTOP)
    parent = hold(path.with_name("inherited"), "Lock(path).acquire(); say('held'); hear()")
    dying = hold(path.with_name("dying"))
    parent.kill(signal.SIGSTOP)
    dying.kill()
    eventually(lambda: not path.with_name("dying").exists())
    assert path.exists()
    assert path.with_name("inherited").exists()


def test_a_command_that_outlives_its_wrapper_keeps_its_lock(
    world: World, path: Path, reap: Callable[..., Started], hold: Callable[..., Peer]
) -> None:
    """`holdfast run` is killed, and its command goes on with the guard."""
    reap()
    wrapper = world.run(path, "import os, sys; print('pid', os.getpid(), flush=True); sys.stdin.read()", stdin=-1)
    child = int(wrapper.hear("pid").split()[1])
    wrapper.signal(signal.SIGKILL)
    wrapper.wait()
    marker = hold(path.with_name("dying"))
    marker.kill()
    eventually(lambda: not path.with_name("dying").exists())
    assert path.exists()
    os.kill(child, signal.SIGKILL)
    eventually(lambda: not path.exists())


def test_no_holder_loses_its_lock_in_a_storm_of_contenders_and_deaths(
    world: World, path: Path, reap: Callable[..., Started]
) -> None:
    """Two reapers run beside contenders that are killed again and again: neither removes a holder's lock."""
    reapers = [reap(), reap()]
    code = """
    import random
    for _ in range(25):
        child = os.fork()
        if child == 0:
            hold = Lock(path).acquire(timeout=20)
            for _ in range(3):
                hold.ensure_held()
                os.sched_yield()
            os.kill(os.getpid(), 9) if random.random() < 0.5 else hold.release()
            os._exit(0)
        if os.waitpid(child, 0)[1] not in (0, 9):
            os._exit(1)
    say("done")
    """
    working = [Peer(code, [path], env=PLAIN) for _ in range(3)]
    try:
        for one in working:
            one.expect("done", within=60)
            one.finish()
    finally:
        for one in working:
            one.destroy()
    eventually(lambda: not path.exists(), what="the last dead holder's lock goes")
    for reaper in reapers:
        assert reaper.process.poll() is None
        reaper.signal(signal.SIGTERM)
        assert reaper.wait() == -signal.SIGTERM
        assert "Traceback" not in reaper.rest()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_reaper_at_once(number: int, reap: Callable[..., Started]) -> None:
    reaper = reap()
    eventually(lambda: dormant(reaper.pid))
    reaper.signal(number)
    assert reaper.wait() == -number


def test_a_thousand_locks_of_two_killed_processes_are_removed(
    tmp_path: Path, reap: Callable[..., Started], hold: Callable[..., Peer]
) -> None:
    code = """
    holds = [Lock(f"{path}.{number}").acquire() for number in range(500)]
    say("held")
    hear()
    """
    before = hold(tmp_path / "a", code)
    reaper = reap()
    after = hold(tmp_path / "b", code)
    before.kill()
    after.kill()
    for _ in range(1000):
        reaper.hear("holdfast: removed", within=60)
    eventually(lambda: not os.listdir(tmp_path))
    assert reaper.process.poll() is None


def test_the_reaper_sleeps_while_nothing_happens(
    tmp_path: Path, reap: Callable[..., Started], hold: Callable[..., Peer]
) -> None:
    for name in "abc":
        hold(tmp_path / name)
    reaper = reap()
    eventually(lambda: dormant(reaper.pid))
    before = switches(reaper.pid)
    ended = time.monotonic() + 1.0
    eventually(lambda: time.monotonic() > ended)
    assert switches(reaper.pid) - before < 30


def test_a_directory_that_is_made_anew_is_watched_again(
    tmp_path: Path, reap: Callable[..., Started], hold: Callable[..., Peer]
) -> None:
    place = tmp_path / "locks"
    place.mkdir()
    hold(place / "l")
    reap(directory=place)
    shutil.rmtree(place)
    place.mkdir()
    again = hold(place / "l")
    again.kill()
    eventually(lambda: not (place / "l").exists())


def test_a_missing_directory_is_an_error_at_the_start(world: World, tmp_path: Path) -> None:
    done = world.do("reap", tmp_path / "missing")
    assert done.returncode == 3
    assert "missing" in done.stderr


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_service_manager_is_notified_of_start_and_end(
    kind: str, tmp_path: Path, reap: Callable[..., Started], hold: Callable[..., Peer]
) -> None:
    place = tmp_path / "locks"
    place.mkdir()
    address = str(tmp_path / "notify") if kind == "path" else f"@holdfast-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(20)
        manager.bind(address if kind == "path" else "\0" + address[1:])
        reaper = reap(directory=place, env={"NOTIFY_SOCKET": address})
        assert manager.recv(4096) == b"READY=1"
        reaper.signal(signal.SIGTERM)
        assert manager.recv(4096) == b"STOPPING=1"
        assert reaper.wait() == -signal.SIGTERM


@pytest.mark.parametrize("address", ["/nowhere/at/all", "relative", "@", "/" + "x" * 300])
def test_an_unreachable_service_manager_does_not_end_the_reaper(address: str, reap: Callable[..., Started]) -> None:
    reaper = reap(env={"NOTIFY_SOCKET": address})
    eventually(lambda: dormant(reaper.pid))


def test_no_hostile_name_or_tag_writes_lines_of_its_own_to_the_log(
    tmp_path: Path, reap: Callable[..., Started], hold: Callable[..., Peer]
) -> None:
    reaper = reap()
    one = hold(tmp_path / "a\nholdfast: removed \x1b[2J", "Lock(path, tag='\\x1b[31mx').acquire(); say('held'); hear()")
    one.kill()
    line = reaper.hear("holdfast: removed")
    assert "\x1b" not in line
    assert str(one.pid) in line
