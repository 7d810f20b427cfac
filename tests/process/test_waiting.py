"""Waiting: by events where there are any, by polling where there are none, and never longer than asked."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from abilities import lacking
from holdfast import AcquireTimeout, Lock
from process.support import (
    NO_NOTICE,
    Peer,
    descriptors,
    eventually,
    polling,
    quiet,
    state,
    threads_asleep,
)

WAIT = """
say("waiting")
hold = Lock(path, timeout=30).acquire()
say(time.monotonic())
hold.release()
"""


def watching(peer: Peer) -> bool:
    """Whether the process sleeps, waiting for events, or between its looks where there are none."""
    if lacking("events"):
        return state(peer.pid) == "S"
    waits = any(to == "anon_inode:inotify" or ".queue/" in to for to in descriptors(peer.pid).values())
    return waits and state(peer.pid) == "S" and _in_poll(peer)


def _in_poll(peer: Peer) -> bool:
    return Path(f"/proc/{peer.pid}/syscall").read_text().split()[0] in ("7", "271", "73")  # poll, ppoll; ppoll on arm64


@pytest.mark.needs("events")
def test_a_waiter_sleeps_until_the_release(spawn: Callable[..., Peer], path: str) -> None:
    with Lock(path):
        waiter = spawn(NO_NOTICE + WAIT, path)
        waiter.expect("waiting")
        eventually(lambda: watching(waiter), what="the wait")
        # Polling would be 40 looks.
        eventually(lambda: quiet(waiter.pid, seconds=1, wakes=2), what="a second asleep")
        released = time.monotonic()
    assert float(waiter.hear()) - released < 5  # with events it would look after ten seconds
    waiter.finish()


@pytest.mark.needs("events")
def test_idle_waiters_do_not_wake_each_other(spawn: Callable[..., Peer], path: str) -> None:
    # A waiter that opened the file to look, and closed it again, would wake all others with that, for ever. Nor does an
    # observer wake them, which opens each ticket.
    with Lock(path):
        waiters = [spawn(NO_NOTICE + WAIT, path) for _ in range(5)]
        for waiter in waiters:
            waiter.expect("waiting")
        eventually(lambda: Lock(path).status().waiters[4:], what="the queue")
        for waiter in waiters:
            eventually(lambda waiter=waiter: watching(waiter), what="the wait")
        eventually(lambda: quiet(*(waiter.pid for waiter in waiters), seconds=1, wakes=5), what="a second asleep")
        assert len(Lock(path).status().waiters) == 5
    for waiter in waiters:
        waiter.hear()
        waiter.finish()


DEAF = """
import holdfast.engines.file.queue, holdfast.engines.file.watched
from holdfast._platform import environment
holdfast.engines.file.queue.RECHECK = holdfast.engines.file.watched.RECHECK = 0.3
class Deaf:
    def __init__(self): self.pipe = os.pipe()
    def fds(self): return (self.pipe[0],)
    def __getattr__(self, name): return lambda **_: 0
environment().watch = lambda path: Deaf()
"""


@pytest.mark.needs("events")
def test_no_wake_up_is_lost(spawn: Callable[..., Peer], path: str) -> None:
    hold = Lock(path).acquire()
    waiter = spawn(DEAF + WAIT, path)
    waiter.expect("waiting")
    eventually(lambda: state(waiter.pid) == "S" and _in_poll(waiter), what="the wait")
    hold.release()
    waiter.hear()
    waiter.finish()


def test_without_a_free_inotify_instance_waiting_goes_on(spawn: Callable[..., Peer], shm: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to use up the inotify instances of a user that nobody else is")
    path = str(shm / "x.lock")
    shm.chmod(0o777)
    user = 61337
    limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    glutton = spawn(
        """
        import ctypes, resource
        become(int(sys.argv[1]))
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        libc = ctypes.CDLL(None)
        count = 0
        while libc.inotify_init1(os.O_CLOEXEC) >= 0:
            count += 1
        say(count)
        hear()
        """,
        user,
    )
    assert int(glutton.hear()) == limit
    hold = Lock(path).acquire()
    waiter = spawn("become(int(sys.argv[2]))\n" + WAIT, path, user)
    waiter.expect("waiting")
    eventually(lambda: state(waiter.pid) == "S", what="the wait")
    assert "anon_inode:inotify" not in descriptors(waiter.pid).values()
    released = time.monotonic()
    hold.release()
    assert float(waiter.hear()) - released < 5  # with events it would look after ten seconds
    waiter.finish()


def test_in_a_directory_without_events_waiting_goes_on(spawn: Callable[..., Peer], path: str) -> None:
    hold = Lock(path).acquire()
    waiter = spawn(WAIT, path, env={"HOLDFAST_WITHOUT": "events"})
    waiter.expect("waiting")
    eventually(lambda: state(waiter.pid) == "S", what="the wait")
    assert "anon_inode:inotify" not in descriptors(waiter.pid).values()
    released = time.monotonic()
    hold.release()
    assert float(waiter.hear()) - released < 5  # with events it would look after ten seconds
    waiter.finish()


@pytest.mark.parametrize("env", [{}, {"HOLDFAST_WITHOUT": "events"}, {"HOLDFAST_OS": "generic"}], ids=str)
def test_a_timeout_is_kept(spawn: Callable[..., Peer], path: str, env: dict[str, str]) -> None:
    timeouts = (0, 0.2, 0.05) if env else (0, 0.2, 0.05, 1.2)  # the last is beyond the notice after a second
    with Lock(path):
        waiter = spawn(
            """
            def kept(wait, timeout):
                for _ in range(20):  # a busy machine may take away some time, but not each time
                    begun, said = time.monotonic(), None
                    try:
                        said = wait(timeout=timeout)
                    except TimeoutError:
                        pass
                    took = time.monotonic() - begun
                    if took < timeout + 0.15:
                        break
                return said, took

            lock = Lock(path)
            for timeout in map(float, sys.argv[2:]):
                say(timeout, *kept(lock.acquire, timeout))
            say(*kept(lock.wait, 0.1))
            """,
            path,
            *timeouts,
            env=env,
        )
        for timeout in timeouts:
            said, got, took = waiter.hear().split()
            assert (float(said), got) == (timeout, "None")
            assert timeout <= float(took) < timeout + 0.15
        free, took = waiter.hear().split()
        assert free == "False"
        assert 0.1 <= float(took) < 0.25
        waiter.finish()


INTERRUPTED = """
import fcntl

def descriptors():
    return sorted(os.listdir("/proc/self/fd"))

try:
    Lock(path).acquire(timeout=0.3)  # what is kept for the life of the process is there from now on
except TimeoutError:
    pass
before = descriptors()
for _ in range(int(sys.argv[2])):
    try:
        say("waiting")
        Lock(path).acquire()
        say("acquired")
    except KeyboardInterrupt:
        say("interrupted", descriptors() == before, threading.active_count())
hear()
"""


@pytest.mark.parametrize("env", [{}, {"HOLDFAST_WITHOUT": "events"}, {"HOLDFAST_OS": "generic"}], ids=str)
def test_a_ctrl_c_while_waiting_leaves_nothing(spawn: Callable[..., Peer], path: str, env: dict[str, str]) -> None:
    hold = Lock(path).acquire()
    before = os.listdir(os.path.dirname(path))
    waiter = spawn(INTERRUPTED, path, 3, env=env)
    for _ in range(3):
        waiter.expect("waiting")
        eventually(lambda: state(waiter.pid) == "S", what="the wait")
        waiter.kill(signal.SIGINT)
        waiter.expect("interrupted True 1")
    assert os.listdir(os.path.dirname(path)) == before
    hold.ensure_held()
    hold.release()
    with Lock(path).acquire(timeout=1) as again:
        assert again.recovered_from is None
    waiter.say("end")
    waiter.finish()


def test_a_ctrl_c_in_the_settling_time_leaves_no_lock(spawn: Callable[..., Peer], path: str) -> None:
    # A takeover by rule waits for a moment before it lets anyone in; if interrupted there, it must undo its changes.
    Path(path).write_text("pid=4194304\ntimestamp=1\n")
    waiter = spawn(
        """
        import holdfast.engines.file.takeover
        holdfast.engines.file.takeover.SETTLE = 30
        before = sorted(os.listdir("/proc/self/fd"))
        try:
            Lock(path, stale="protocol").acquire()
        except KeyboardInterrupt:
            say("interrupted", sorted(os.listdir("/proc/self/fd")) == before, os.path.exists(path))
        """,
        path,
    )
    eventually(lambda: b"holdfast=" in Path(path).read_bytes() and polling(waiter.pid), what="the settling time")
    waiter.kill(signal.SIGINT)
    waiter.expect("interrupted True False")
    waiter.finish()


MANY = """
served = []
def wait(path):
    with Lock(path, timeout=30):
        served.append(path)
paths = [path + str(n % int(sys.argv[2])) for n in range(40)]
threads = [threading.Thread(target=wait, args=(p,)) for p in paths]
for thread in threads:
    thread.start()
say("waiting")
for thread in threads:
    thread.join()
say(len(served), threading.active_count() - 1)
"""


@pytest.mark.parametrize("locks", [1, 4, 40])
def test_each_of_many_waiting_threads_is_served(spawn: Callable[..., Peer], path: str, locks: int) -> None:
    holds = [Lock(f"{path}{n}").acquire() for n in range(locks)]
    waiter = spawn("events_only()\n" + MANY, path, locks)
    waiter.expect("waiting")
    eventually(lambda: threads_asleep(waiter.pid, 41), what="the wait of all threads")
    for hold in reversed(holds):
        hold.release()
    served, keepers = waiter.hear().split()
    assert int(served) == 40
    assert int(keepers) <= 1
    waiter.finish()


@pytest.mark.needs("events")
def test_a_thread_that_gives_up_leaves_the_others_their_wake_ups(spawn: Callable[..., Peer], path: str) -> None:
    # The first waiter reads the events for all; when its time is up, another must read them.
    hold = Lock(path).acquire()
    waiter = spawn(
        """
        events_only()
        def give_up():
            try:
                Lock(path + ".other").acquire(timeout=0.5)
            except TimeoutError:
                say("gave up")
        other = Lock(path + ".other").acquire()
        leader = threading.Thread(target=give_up)
        leader.start()
        def target(n):
            try:
                return os.readlink("/proc/self/fd/" + n)
            except FileNotFoundError:
                return ""  # the one of the listing itself, or closed since
        while "anon_inode:inotify" not in map(target, os.listdir("/proc/self/fd")):
            pass
        def wait():
            Lock(path).acquire(timeout=30).release()
            say(time.monotonic())
        follower = threading.Thread(target=wait)
        follower.start()
        leader.join()
        follower.join()
        """,
        path,
    )
    waiter.expect("gave up")
    hold.release()
    waiter.hear()
    waiter.finish()


def test_a_slow_callback_delays_no_other_thread(spawn: Callable[..., Peer], path: str) -> None:
    # While the caller's on_lost runs, in the thread that reads the events, other threads must still be woken.
    hold = Lock(path).acquire()
    other = spawn(
        """
        events_only()
        def on_lost(error):
            say("lost")
            hear()
        watched = [Lock(path + str(n), on_lost=on_lost).acquire() for n in range(3)]
        def wait():
            say("waiting")
            Lock(path).acquire(timeout=30).release()
            say(time.monotonic())
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        os._exit(0)
        """,
        path,
    )
    other.expect("waiting")
    eventually(lambda: threads_asleep(other.pid, 3), what="the wait")
    os.unlink(path + "1")
    other.expect("lost")
    hold.release()
    other.hear()
    assert other.wait() == 0


@pytest.mark.needs("events")
def test_a_signal_handler_that_waits_is_woken_and_withholds_events_from_no_thread(
    spawn: Callable[..., Peer], path: str
) -> None:
    # It interrupts a wait of the main thread, which would read the events for all.
    holds = {which: Lock(path + which).acquire() for which in (".thread", ".handler", ".main")}
    waiter = spawn(
        """
        events_only()
        def wait(which):
            Lock(path + which).acquire().release()
            say(which)
        def handle(*_):
            threading.Thread(target=wait, args=(".thread",)).start()
            wait(".handler")
        signal.signal(signal.SIGUSR1, handle)
        say("waiting")
        wait(".main")
        """,
        path,
    )
    waiter.expect("waiting")
    eventually(lambda: watching(waiter), what="the wait")
    waiter.kill(signal.SIGUSR1)
    eventually(lambda: threads_asleep(waiter.pid, 2), what="the waits of the handler and the thread")
    for which, hold in holds.items():
        hold.release()
        waiter.expect(which)
    waiter.finish()


@pytest.mark.needs("events")
def test_a_waiter_notices_that_a_foreign_holder_has_ended(spawn: Callable[..., Peer], path: str) -> None:
    # A foreign tool's process ends and leaves its file: no event on the file, only the end of the process. With its
    # record old by the protocol's rule, that makes it stale.
    foreign = spawn("hear()")
    Path(path).write_text(f"pid={foreign.pid}\ntimestamp={int(time.time())}\n")
    waiter = spawn(
        """
        events_only()
        say("waiting")
        hold = Lock(path, stale_after=0.01).acquire(timeout=30)
        say(hold.recovered_from.pid)
        hold.release()
        """,
        path,
    )
    waiter.expect("waiting")
    eventually(lambda: "anon_inode:[pidfd]" in descriptors(waiter.pid).values(), what="the watch on the process")
    time.sleep(2.1)  # until the rule says stale; alive all the same
    assert waiter.silent()
    foreign.say("end")
    foreign.finish()
    assert int(waiter.hear()) == foreign.pid
    waiter.finish()


def test_a_replaced_lock_file_is_not_waited_for_by_its_old_inode(spawn: Callable[..., Peer], path: str) -> None:
    Path(path).write_text(f"pid={os.getpid()}\ntimestamp={int(time.time())}\n")
    waiter = spawn("events_only()\n" + WAIT, path)
    waiter.expect("waiting")
    eventually(lambda: watching(waiter), what="the wait")
    Path(path + ".new").write_text(f"pid={os.getpid()}\ntimestamp={int(time.time())}\ntag=new\n")
    os.replace(path + ".new", path)
    eventually(lambda: state(waiter.pid) == "S", what="the wait")
    os.unlink(path)
    waiter.hear()
    waiter.finish()


def test_waiting_without_acquiring_changes_nothing(spawn: Callable[..., Peer], path: str) -> None:
    hold = Lock(path).acquire()
    waiter = spawn("say('waiting'); say(Lock(path).wait(timeout=20)); hear()", path)
    waiter.expect("waiting")
    eventually(lambda: watching(waiter), what="the wait")
    assert waiter.silent()
    hold.release()
    waiter.expect("True")
    assert os.listdir(os.path.dirname(path)) == []
    with pytest.raises(AcquireTimeout), Lock(path):
        Lock(path).acquire(timeout=0)
