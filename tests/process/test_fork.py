"""Fork and exec: a child owns none of its parent's locks, and keeps none of them alive."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Lock, NotHeld
from process.support import Peer, descriptors, eventually, polling


def of_the_library(pid: int, path: str) -> list[str]:
    """The open files of a process that lead to the lock's directory or to events. (A file that was unnamed at first and
    then linked is shown as deleted, under a number.)"""
    ours = (os.path.dirname(path), "inotify", "eventfd")
    return [target for target in descriptors(pid).values() if any(word in target for word in ours)]


# In each script, the child reports its findings; then the script's parent goes on when it is told to.

CHILD_RELEASES = """
hold = Lock(path, heartbeat=heartbeat, owner=owner).acquire()
again = Lock(path, owner=owner).acquire() if owner else hold
if os.fork() == 0:
    say("child", hold.lost, hold._held.inert)
    for handle in (again, hold):
        handle.release()
        try:
            handle.ensure_held()
        except holdfast.NotHeld:
            say("child not held")
        try:
            with handle:
                say("child entered")
        except holdfast.NotHeld:
            pass
    say("child end")
    hear()
    os._exit(0)
hear()
hold.ensure_held()
again.release()
hold.release()
say("parent released")
hear()
"""


@pytest.mark.parametrize("owner", ["None", "'me'"], ids=["plain", "re-entrant"])
@pytest.mark.parametrize("heartbeat", ["None", "0.02"], ids=["no-beat", "beating"])
@pytest.mark.needs("flock")
def test_a_child_that_releases_does_not_free_its_parents_lock(
    spawn: Callable[..., Peer], path: str, heartbeat: str, owner: str
) -> None:
    process = spawn(f"heartbeat, owner = {heartbeat}, {owner}\n" + CHILD_RELEASES, path)
    process.expect("child False True")
    process.expect("child not held")
    process.expect("child not held")
    process.expect("child end")
    status = Lock(path).status()
    assert status.locked
    assert status.evidence.source == "guard"
    assert Lock(path).try_acquire() is None
    process.say("go on")  # either process may read this: the parent, or else the child, which then just ends
    process.say("go on")
    process.expect("parent released")
    with Lock(path).acquire(timeout=1):
        pass


def test_a_with_block_left_by_a_child_does_not_free_its_parents_lock(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn(
        """
        lock = Lock(path)
        with lock:
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        say(os.waitpid(pid, 0)[1], os.path.exists(path))
        with lock:
            if os.fork() == 0:
                sys.exit(0)  # runs what is to run at exit, in the child too
            os.wait()
            say(os.path.exists(path))
        """,
        path,
    )
    process.expect("0 False")
    process.expect("True")
    process.finish()


@pytest.mark.needs("events")
def test_a_childs_copy_of_the_descriptor_does_not_keep_its_dead_parents_lock(
    spawn: Callable[..., Peer], path: str
) -> None:
    process = spawn(
        """
        hold = Lock(path, tag="parent", on_lost=print).acquire()
        child = os.fork()
        if child == 0:
            say("child")
            hear()
            os._exit(0)
        hear()
        """,
        path,
    )
    process.expect("child")
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    assert len(of_the_library(process.pid, path)) == 2  # the lock file and the events
    assert of_the_library(child, path) == []
    process.kill()
    with Lock(path).acquire(timeout=1) as hold:
        assert hold.recovered_from is not None
        assert hold.recovered_from.pid == process.pid
        assert os.path.exists(f"/proc/{child}")


def test_a_child_can_take_locks_of_its_own(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn(
        """
        other = path + ".other"
        hold = Lock(path).acquire()
        elsewhere = Lock(other).acquire()
        child = os.fork()
        if child == 0:
            say(Lock(path).try_acquire())  # not WouldDeadlock either: the lock is not this process's
            try:
                Lock(path).acquire(timeout=0.05)
            except holdfast.AcquireTimeout as error:
                say(error.holder.pid == os.getppid())
            hear()
            mine = Lock(path).acquire(timeout=5)
            say(mine.record.pid == os.getpid())
            mine.release()
            os._exit(0)
        hear()
        hold.release()
        say("released")
        os.waitpid(child, 0)
        say(os.path.exists(path), os.path.exists(other))
        """,
        path,
    )
    process.expect("None")
    process.expect("True")
    process.say("go on")  # one for each of the two
    process.say("go on")
    assert sorted([process.hear(), process.hear()]) == ["True", "released"]
    process.expect("False True")
    process.finish()


# The forking thread forks children that live on; the other goes on acquiring and releasing. If a child had a copy of a
# guard's descriptor, a released path could be taken, but one that a holder let go without unlinking could not: hence
# the parent's own death is the test, besides the child's open files.
FORK_STORM = """
lock = Lock(path)
stop = threading.Event()
taken = 0

def take():
    global taken
    while not stop.is_set():
        hold = lock.acquire(timeout=10)
        taken += 1
        hold.release()

threads = [threading.Thread(target=take) for _ in range(3)]
for thread in threads:
    thread.start()
children = []
for number in range(150):
    while taken <= number:
        time.sleep(0)  # else the forks leave the threads no time
    pid = os.fork()
    if pid == 0:
        leaks = []
        for name in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink("/proc/self/fd/" + name)
            except FileNotFoundError:
                continue
            if os.path.dirname(path) in target or "inotify" in target or "eventfd" in target:
                leaks.append(target)
        if leaks:
            say("leak", *leaks)
        try:
            with Lock(path + ".child", timeout=60):  # no lock of the library was left taken by a thread that is gone
                pass
        except BaseException as error:
            say("error", error)
        os.close(1)
        hear()
        os._exit(0)
    children.append(pid)
stop.set()
for thread in threads:
    thread.join()
say("taken", taken)
hold = Lock(path).acquire()
say("holding")
time.sleep(60)
"""


def test_a_fork_beside_an_acquire_leaves_no_guard_in_the_child(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn(FORK_STORM, path)
    word, *rest = process.hear(90).split()
    assert word == "taken", rest
    assert int(rest[0]) > 100
    process.expect("holding")
    process.kill()
    with Lock(path).acquire(timeout=1) as hold:
        assert hold.recovered_from is not None
        assert hold.recovered_from.pid == process.pid


@pytest.mark.needs("events")
def test_a_started_program_does_not_inherit_the_descriptor(path: str) -> None:
    with Lock(path, on_lost=print):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
        try:
            eventually(lambda: os.readlink(f"/proc/{child.pid}/exe").endswith("sleep"), what="the exec")
            assert len(of_the_library(os.getpid(), path)) > 1
            assert of_the_library(child.pid, path) == []
        finally:
            child.kill()
            child.wait()


POPEN_STORM = """
import subprocess
stop = threading.Event()
started = 0

def start():
    global started
    while not stop.is_set():
        subprocess.Popen(["/bin/true"], close_fds=False).wait()
        started += 1

threads = [threading.Thread(target=start) for _ in range(2)]
for thread in threads:
    thread.start()
other = Lock(path)
held = 0
rounds = 0
until = time.monotonic() + 2
while time.monotonic() < until or rounds <= 100 or started <= 20:
    # The guard, not the name: what is left between vfork and exec shows only on a file that stays.
    hold = Lock(path).acquire(timeout=10)
    fd = os.open(path, os.O_RDONLY)
    hold.release()
    import fcntl
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held += 1
    os.close(fd)
    other.acquire(timeout=0).release()
    rounds += 1
stop.set()
for thread in threads:
    thread.join()
say(held)
"""


def test_between_vfork_and_exec_a_program_does_not_keep_a_released_lock(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn(POPEN_STORM, path)
    process.expect("0")
    process.finish()


def test_a_child_of_a_waiting_thread_can_wait_on_its_own(spawn: Callable[..., Peer], path: str) -> None:
    with Lock(path):
        process = spawn(
            """
            def wait():
                Lock(path).acquire(timeout=20).release()
                say("thread served")

            thread = threading.Thread(target=wait)
            thread.start()
            say("waiting")
            hear()
            if os.fork() == 0:
                # The waiting thread is not here; a wait of this child's own must work from the start.
                Lock(path).acquire(timeout=20).release()
                say("child served")
                os._exit(0)
            thread.join()
            os.wait()
            """,
            path,
        )
        process.expect("waiting")
        process.say("fork")
    assert sorted([process.hear(), process.hear()]) == ["child served", "thread served"]
    process.finish()


@pytest.mark.needs("events")
def test_a_fork_in_the_middle_of_a_wait_gives_the_child_no_lock(spawn: Callable[..., Peer], path: str) -> None:
    # A signal handler that forks while the main thread waits: the child finds itself inside acquire().
    with Lock(path):
        process = spawn(
            """
            children = []
            signal.signal(signal.SIGUSR1, lambda *_: children.append(os.fork()))
            say("waiting")
            try:
                hold = Lock(path).acquire(timeout=20)
            except RuntimeError as error:
                say("child:", error)
                os._exit(0)
            os.wait()
            hold.ensure_held()
            hold.release()
            say("parent served")
            """,
            path,
        )
        process.expect("waiting")
        eventually(lambda: "inotify" in "".join(descriptors(process.pid).values()), what="the wait")
        eventually(lambda: polling(process.pid), what="the wait")
        process.kill(10)
        assert process.hear().startswith("child: the process was forked while it waited")
    process.expect("parent served")
    process.finish()


@pytest.mark.parametrize("kind", ["acquire", "with", "async with", "acquire_all"])
def test_a_child_of_a_callback_gets_no_hold_from_the_acquisition(
    kind: str, spawn: Callable[..., Peer], path: str
) -> None:
    """The callback for `acquired` forks: the child finds itself inside an acquisition that is about to return."""
    process = spawn(
        """
        import asyncio
        from holdfast import AsyncLock, acquire_all
        kind = hear()
        children = []

        def fork(event):
            if event.kind == "acquired":
                children.append(os.fork())

        async def enter():
            async with AsyncLock(path, on_event=fork):
                say("inside")

        lock = Lock(path, on_event=fork)
        try:
            if kind == "acquire":
                hold = lock.acquire()
                say("inside")
                hold.release()
            elif kind == "acquire_all":
                with acquire_all([lock]):
                    say("inside")
            elif kind == "with":
                with lock:
                    say("inside")
            else:
                asyncio.run(enter())
        except RuntimeError as error:
            say("child:", error)
            os._exit(0)
        assert children[0]
        os.wait()
        """,
        path,
    )
    process.say(kind)
    heard = sorted([process.hear(), process.hear()])
    assert heard[0].startswith("child: the process was forked while it acquired")
    assert heard[1] == "inside"
    process.finish()
    assert not os.path.exists(path)


def test_a_hold_in_a_child_says_that_it_is_not_held(path: str) -> None:
    hold = Lock(path).acquire()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            hold.ensure_held()
        except NotHeld as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        assert "was acquired by another process" in answer.read()
    hold.release()
    assert sys.exc_info() == (None, None, None)


def test_a_thread_can_fork_while_another_has_the_holds_mutex(path: str) -> None:
    # The child must not wait for a mutex whose owner does not exist there.
    hold = Lock(path, owner="x").acquire()
    again = Lock(path, owner="x").acquire()
    taken, go = threading.Event(), threading.Event()

    def keep_mutex() -> None:
        with hold._held.mutex:
            taken.set()
            go.wait(20)

    thread = threading.Thread(target=keep_mutex)
    thread.start()
    taken.wait(20)
    pid = os.fork()
    if pid == 0:
        again.release()
        hold.release()
        os._exit(0)
    try:
        eventually(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), what="the child's end")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        go.set()
        thread.join()
    again.release()
    hold.release()
    assert not os.path.exists(path)


FORK_WITH_LOGGING = """
import threading
importing, forking = threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)  # after the hook of logging, and before that of holdfast if it is the older one
import logging

class Gate:
    def find_spec(self, name, path=None, target=None):
        if name == "asyncio.log" and threading.current_thread() is worker:
            importing.set()
            forking.wait(0.5)

def load():
    holdfast.AsyncLock

worker = threading.Thread(target=load)
sys.meta_path.insert(0, Gate())
worker.start()
importing.wait(20)
if os.fork() == 0:
    os._exit(0)
os.wait()
worker.join()
say("forked")
"""


def test_a_fork_during_the_import_of_asyncio_does_not_wait_for_the_lock_of_logging(
    spawn: Callable[..., Peer], path: str
) -> None:
    """A fork takes that lock before or after our mutex, and the import has our mutex and needs that lock."""
    process = spawn(FORK_WITH_LOGGING, path, real=True)
    process.expect("forked")
    process.finish()


FORK_WHILE_IMPORTING = """
import threading
started, forked = threading.Event(), threading.Event()
names = []

class Gate:
    # Stops the worker in the middle of each of its imports until the other thread has forked; where a fork waits for
    # the end of the import instead, which is the cure, it goes on after a moment.
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is worker:
            names.append(name)
            started.set()
            forked.wait(0.02)
            forked.clear()

def wait():
    try:
        Lock(path).acquire(timeout=0.05)
    except holdfast.AcquireTimeout:
        pass

def ask():
    holdfast.AsyncLock, holdfast.acquire_all

async def decorated(): ...

def decorate():
    Lock(path)(decorated)

wait = globals()[os.environ.get("USE", "wait")]
worker = threading.Thread(target=wait)
sys.meta_path.insert(0, Gate())
worker.start()
while worker.is_alive():
    if started.wait(0.01):
        started.clear()
        child = os.fork()
        if child == 0:
            signal.alarm(3)
            wait()
            os._exit(0)
        forked.set()
        if os.waitpid(child, 0)[1]:
            say("hung", names[-1])
say(len(names) > 0)
"""


@pytest.mark.parametrize(
    "env",
    [{}, {"HOLDFAST_OS": "generic"}, {"USE": "ask"}, {"USE": "decorate"}],
    ids=["linux", "portable", "a name for asyncio", "an async def"],
)
def test_a_child_forked_during_an_import_does_not_wait_for_it(
    spawn: Callable[..., Peer], path: str, env: dict[str, str]
) -> None:
    with Lock(path):
        process = spawn(FORK_WHILE_IMPORTING, path, env=env, real=True)
        process.expect("True")
        process.finish()


INTERRUPTED_AT_A_FORK = """
import _thread, os, sys, threading
path, where = sys.argv[1:]

def interrupt():
    # A Ctrl-C that Python notices at the first bytecode of whichever function is called next.
    os.register_at_fork(**{f"after_in_{where}": _thread.interrupt_main})

interrupt()
import holdfast
interrupt()
hold = holdfast.Lock(path).acquire()
try:
    child = os.fork()
    if child:
        holdfast.Lock
except KeyboardInterrupt:
    child = -1  # of the parent, and after all functions that holdfast has registered
if child == 0:
    hold.release()
worker = threading.Thread(target=lambda: holdfast.Lock(f"{path}.{child}").acquire().release(), daemon=True)
worker.start()
worker.join(20)
print("child" if child == 0 else "parent", worker.is_alive(), flush=True)
if child == 0:
    os._exit(0)
os.wait()
hold.ensure_held()
hold.release()
"""


@pytest.mark.parametrize("where", ["child", "parent"])
@pytest.mark.needs("flock")
def test_a_ctrl_c_in_the_instant_of_a_fork_frees_no_lock_and_stops_no_thread(path: str, where: str) -> None:
    """Python ignores what a signal handler raises in a function that was registered for forks."""
    script = [sys.executable, "-c", INTERRUPTED_AT_A_FORK, path, where]
    ended = subprocess.run(script, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["child False", "parent False"]


RELEASED_AT_A_FORK = """
import _thread, os, signal, sys
path, when = sys.argv[1:]
if when == "late":
    import threading
os.register_at_fork(after_in_child=_thread.interrupt_main)  # noticed at the first bytecode after it
import threading, holdfast
os.register_at_fork(after_in_child=_thread.interrupt_main)
hold = holdfast.Lock(path).acquire()

def release_and_work(number, frame):
    hold.release()
    try:
        hold.ensure_held()
    except holdfast.NotHeld:
        print("not held in the child", flush=True)
    with holdfast.Lock(f"{path}.{when}"):
        pass

signal.signal(signal.SIGINT, release_and_work)
child = os.fork()
if child == 0:
    with holdfast.Lock(f"{path}.{when}", timeout=0):
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
hold.ensure_held()
hold.release()
"""


@pytest.mark.parametrize("when", ["early", "late"])
@pytest.mark.needs("flock")
def test_a_signal_handler_that_releases_in_the_instant_of_a_fork_frees_no_lock(path: str, when: str) -> None:
    """Early: in a function that a module which was imported before holdfast has registered for forks."""
    # From Python 3.12 on, it warns of forks beside threads.
    script = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", RELEASED_AT_A_FORK, path, when]
    ended = subprocess.run(script, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert set(ended.stdout.splitlines()) == {"not held in the child"}
