"""The ends of processes, and what becomes of their locks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from holdfast import Liveness, Lock
from process.support import Peer, eventually, polling

ENDINGS = {
    "at the end of the script": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise ValueError('unhandled')", 1),
    "an exception in a with block": ("with Lock(path + '2'): raise ValueError('unhandled')", 1),
    "SystemExit in a with block": ("with Lock(path + '2'): sys.exit(4)", 4),
    "with a thread that still runs": ("threading.Thread(target=time.sleep, args=(0.1,)).start()", 0),
}
HOLDS = {
    "kept": "hold = Lock(path).acquire()",
    "dropped": "Lock(path).acquire()",
    "without a heartbeat": "hold = Lock(path, heartbeat=0).acquire()",
    "beating": "hold = Lock(path, heartbeat=0.001).acquire()",
    "from a thread": "t = threading.Thread(target=lambda: Lock(path).acquire()); t.start(); t.join()",
    "twice by an owner": "Lock(path, owner=1).acquire(); Lock(path, owner=1).acquire()",
}


def ids(table: dict[str, object]) -> list[str]:
    return [name.replace(" ", "-") for name in table]


@pytest.mark.parametrize(("ending", "status"), ENDINGS.values(), ids=ids(ENDINGS))
def test_a_process_that_exits_normally_releases_its_lock(
    spawn: Callable[..., Peer], path: str, ending: str, status: int
) -> None:
    process = spawn(f"hold = Lock(path).acquire()\nsay('holding')\n{ending}", path)
    process.expect("holding")
    assert process.wait() == status
    assert os.listdir(os.path.dirname(path)) == []
    assert "holdfast" not in process.complaint().replace("/holdfast/", "")


@pytest.mark.parametrize("hold", HOLDS.values(), ids=ids(HOLDS))
def test_every_kind_of_hold_is_released_at_exit(spawn: Callable[..., Peer], path: str, hold: str) -> None:
    process = spawn(hold, path)
    assert process.finish() == ""
    assert os.listdir(os.path.dirname(path)) == []


@pytest.mark.parametrize(
    "ending", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGTERM)"]
)
def test_a_process_that_exits_at_once_leaves_a_lock_proven_dead(
    spawn: Callable[..., Peer], path: str, ending: str
) -> None:
    process = spawn(f"hold = Lock(path, tag='gone').acquire(); {ending}", path)
    process.wait()
    status = Lock(path).status()
    assert (status.locked, status.stale, status.liveness) == (False, True, Liveness.DEAD)
    assert status.evidence.proven
    assert Lock(path).wait(timeout=1)
    with Lock(path).acquire(timeout=1) as hold:
        assert hold.recovered_from is not None
        assert hold.recovered_from.tag == "gone"


def test_a_ctrl_c_releases_the_lock(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn(
        """
        with Lock(path):
            say("holding")
            time.sleep(60)
        """,
        path,
    )
    process.expect("holding")
    eventually(lambda: polling(process.pid), what="the wait")
    process.kill(signal.SIGINT)
    assert process.wait() == -signal.SIGINT
    assert not os.path.exists(path)


def test_a_ctrl_c_at_exit_releases_the_lock(spawn: Callable[..., Peer], path: str) -> None:
    # It interrupts another function at exit, which was registered later and so runs first.
    process = spawn(
        """
        import atexit
        hold = Lock(path).acquire()
        @atexit.register
        def slow():
            say("leaving")
            time.sleep(60)
        """,
        path,
    )
    process.expect("leaving")
    eventually(lambda: polling(process.pid), what="the wait")
    process.kill(signal.SIGINT)
    process.wait()
    assert not os.path.exists(path)


def test_endless_daemon_threads_neither_block_the_exit_nor_keep_the_lock(spawn: Callable[..., Peer], path: str) -> None:
    for _ in range(3):
        process = spawn(
            """
            entered = [0] * 4

            def work(number):
                while True:
                    with Lock(path, timeout=20):
                        entered[number] += 1
                    with Lock(f"{path}.{number}", on_lost=print):
                        pass

            for number in range(4):
                threading.Thread(target=work, args=(number,), daemon=True).start()
            while min(entered) < 5:
                time.sleep(0)
            """,
            path,
        )
        assert process.finish() == ""
        for name in (path, *(f"{path}.{number}" for number in range(4))):
            with Lock(name).acquire(timeout=1):  # a thread that went on after the release at exit may have left it dead
                pass


def test_a_fork_at_exit_does_not_free_the_lock(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn(
        """
        import atexit

        def fork():
            try:
                child = os.fork()
            except RuntimeError:  # Python 3.12 forks no more by then
                say("forked", 0, True)
                return
            if child:  # the child goes on with what else is to run at exit
                say("forked", os.waitpid(child, 0)[1], os.path.exists(path))

        hold = Lock(path).acquire()
        atexit.register(fork)
        """,
        path,
    )
    process.expect("forked 0 True")
    process.finish()
    assert not os.path.exists(path)


def test_a_lock_can_be_acquired_at_exit(spawn: Callable[..., Peer], path: str) -> None:
    # Registered before the first hold, so that it runs when those have been released; no thread starts any more then.
    process = spawn(
        """
        import atexit

        @atexit.register
        def late():
            with Lock(path) as hold, Lock(path + ".2", on_lost=print):
                say("held", hold.recovered_from)

        hold = Lock(path).acquire()
        """,
        path,
    )
    process.expect("held None")
    assert process.finish() == ""
    assert os.listdir(os.path.dirname(path)) == []


def test_a_lock_lost_before_the_end_is_reported_at_exit(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn("hold = Lock(path).acquire(); os.unlink(path); Lock(path + '2').acquire()", path)
    assert "another process may be inside" in process.finish()
    assert os.listdir(os.path.dirname(path)) == []


def test_the_library_installs_no_signal_handler(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn(
        """
        def handlers():
            return [signal.getsignal(n) for n in range(1, 65) if n not in (32, 33)]
        before = handlers()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        with Lock(path, heartbeat=0.01, on_lost=print):
            Lock(path).try_acquire()
            say(handlers() == before, signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask)
        """,
        path,
    )
    process.expect("True True")
    process.finish()


def test_a_signal_wakes_the_main_thread_beside_the_keepers(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn(
        """
        with Lock(path, heartbeat=0.001):
            try:
                say("holding")
                Lock(path + "2").acquire()
                Lock(path + "2").acquire(timeout=60)
            except KeyboardInterrupt:
                say("interrupted")
        """,
        path,
    )
    process.expect("holding")
    eventually(lambda: polling(process.pid), what="the wait")
    process.kill(signal.SIGINT)
    process.expect("interrupted", within=5)
    process.finish()


LATE = """
class Late:
    def __del__(self, write=os.write, lock=Lock(path, **options), fails=Exception, name=type):
        try:
            lock.acquire(timeout=60).release()
            write(2, b'released\\n')
        except fails as error:
            write(2, f'{name(error).__name__}: {error}\\n'.encode())
late = Late()
"""


@pytest.mark.needs("linux")
def test_a_finalizer_at_the_very_end_may_make_the_first_acquisition(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn("options = {}" + LATE, path, real=True)
    assert process.finish() == "released\n"
    assert os.listdir(os.path.dirname(path)) == []


def test_a_finalizer_that_is_too_late_to_import_modules_gets_a_clear_error(
    spawn: Callable[..., Peer], path: str
) -> None:
    process = spawn("options = {'fencing': True}" + LATE, path, real=True)
    assert process.finish().startswith("RuntimeError: Python is shutting down")
    assert os.listdir(os.path.dirname(path)) == []


KEEPER_ENDS_WITH_ITS_MUTEX = """
import atexit, threading
go, taken = threading.Event(), threading.Event()
atexit.register(lambda: go.set() or taken.wait(20))  # after what holdfast does at exit

# As the keeper's thread has the mutex for an instant, which may be its last. In a namespace of its own, as the thread
# keeps that from being cleared.
apart = {"go": go, "taken": taken, "lock": holdfast.lock, "sleep": time.sleep}
exec('''
def keep_mutex():
    go.wait()
    with lock._keeper._mutex:
        taken.set()
        sleep(100)
''', apart)
threading.Thread(target=apart["keep_mutex"], daemon=True).start()
with Lock(path):
    pass
options = {}
"""


@pytest.mark.needs("linux")
def test_a_finalizer_does_not_wait_for_a_thread_that_has_ended_with_the_interpreter(
    spawn: Callable[..., Peer], path: str
) -> None:
    process = spawn(KEEPER_ENDS_WITH_ITS_MUTEX + LATE, path, real=True)
    assert process.finish() == "released\n"
    assert os.listdir(os.path.dirname(path)) == []
