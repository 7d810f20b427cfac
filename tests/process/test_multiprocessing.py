"""multiprocessing and concurrent.futures: a lock can be sent to a child, which holds none of its parent's locks."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest

from holdfast import Liveness, Lock
from process import targets
from process.support import Peer, eventually, state

# Python 3.12 and later warn when a process with threads forks; multiprocessing and pools have threads of their own.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(scope="module", autouse=True)
def no_server_is_left() -> Iterator[None]:
    yield
    forkserver._forkserver._stop()


@pytest.fixture(params=METHODS)
def context(request: pytest.FixtureRequest) -> BaseContext:
    return multiprocessing.get_context(request.param)


def run(context: BaseContext, target: Callable[..., object], *arguments: object) -> int | None:
    """The exit status of a child that ran this function."""
    child = context.Process(target=target, args=arguments)
    child.start()
    child.join(20)
    status = child.exitcode
    child.close()
    return status


def test_a_lock_keeps_its_options_when_it_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lock = Lock("a.lock", tag="sent", timeout=0.01, stale="never", mode=0o600, owner=("who", 1))
    monkeypatch.chdir("/")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(lock, protocol))
        assert copy.path == str(tmp_path / "a.lock")
        with copy as hold:
            assert hold.record.tag == "sent"
            assert os.stat(hold.path).st_mode & 0o777 == 0o600
            again = lock.try_acquire()  # the same owner, in the same process
            assert again is not None
            assert Lock(lock.path).try_acquire() is None
        environment_holds_nothing(lock)


def environment_holds_nothing(lock: Lock) -> None:
    for held in list(lock._env.holds.values()):
        held.release()
    assert not os.path.exists(lock.path)


def test_a_pickled_lock_takes_no_holds_along(path: str) -> None:
    lock = Lock(path, timeout=0)
    with lock:
        copy = pickle.loads(pickle.dumps(lock))
        assert copy.try_acquire() is None
        with pytest.raises(TimeoutError), copy:
            pass
    with copy:
        pass


def test_a_subclass_stays_a_subclass(path: str) -> None:
    assert type(pickle.loads(pickle.dumps(targets.Named(path)))) is targets.Named


def test_a_hold_cannot_be_sent_to_another_process(path: str) -> None:
    with Lock(path) as hold:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError, match=r"belongs to this process .* send the Lock"):
                pickle.dumps(hold, protocol)
        with pytest.raises(TypeError, match="send the Lock"):
            multiprocessing.get_context("spawn").Process(target=targets.touch, args=(hold,)).start()
        hold.ensure_held()


def test_a_child_has_none_of_its_parents_holds_and_can_take_its_own(path: str, context: BaseContext) -> None:
    lock = Lock(path)
    with lock as hold, context.Pool(1) as pool:
        assert pool.apply(targets.look_and_take, (lock,)) == (0, True, True, path)
        status = pool.apply(targets.look, (lock,))
        assert (status.liveness, status.holder.pid) == (Liveness.ALIVE, os.getpid())
        pool.close()
        pool.join()
        hold.ensure_held()
    assert os.listdir(os.path.dirname(path)) == []


def test_a_hold_that_a_child_inherits_does_not_free_the_lock(path: str) -> None:
    with Lock(path) as hold:
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), _keep_in_child, (hold,)) as pool:
            assert pool.submit(_touch_kept).result(20) == (False, True)
        hold.ensure_held()


def _keep_in_child(hold: object) -> None:
    global _kept
    _kept = hold


def _touch_kept() -> tuple[bool, bool]:
    return targets.touch(_kept)


_kept: object = None


def test_no_increment_is_lost_in_a_pool(shm: Path, context: BaseContext) -> None:
    counter = shm / "counter"
    counter.write_text("0")
    lock = Lock(shm / "pool.lock", timeout=60)
    with context.Pool(4) as pool:
        pool.starmap(targets.increment, [(lock, str(counter), 25)] * 8, chunksize=1)
        pool.close()
        pool.join()
    assert counter.read_text() == "200"
    assert os.listdir(shm) == ["counter"]


def test_no_increment_is_lost_between_an_executor_and_its_parent(shm: Path, context: BaseContext) -> None:
    counter = shm / "counter"
    counter.write_text("0")
    lock = Lock(shm / "pool.lock", timeout=60)
    with ProcessPoolExecutor(3, context) as pool:
        done = [pool.submit(targets.increment, lock, str(counter), 25) for _ in range(6)]
        targets.increment(lock, str(counter), 50)
        assert os.getpid() not in {future.result(60) for future in done}
    assert counter.read_text() == "200"
    assert os.listdir(shm) == ["counter"]


@pytest.mark.parametrize(("how", "status"), [("a return", 0), ("an exception", 1), ("sys.exit", 3)])
def test_a_child_that_exits_normally_releases_its_lock(
    path: str, context: BaseContext, how: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(context, targets.take_and_end, Lock(path), how) == status
    assert os.listdir(os.path.dirname(path)) == []


def test_a_child_keeps_its_locks_while_its_thread_still_works(path: str, context: BaseContext) -> None:
    said = path + ".said"
    assert run(context, targets.end_before_a_thread, Lock(path), said) == 0
    assert Path(said).read_text() == "kept"
    assert not os.path.exists(path)


def test_a_killed_worker_does_not_keep_the_lock(path: str, context: BaseContext) -> None:
    with ProcessPoolExecutor(2, context) as pool:
        with pytest.raises(BrokenProcessPool):
            pool.submit(targets.be_killed, Lock(path)).result(20)
        with Lock(path).acquire(timeout=1) as hold:
            assert hold.recovered_from is not None


# In the scripts below, the process is a separate one, which can be killed, or end.

WITH_A_CHILD = """
import multiprocessing
sys.path.insert(0, {tests!r})
from process import targets
{hold}
child = multiprocessing.get_context({method!r}).Process(target=targets.talk, args=("child",))
child.start()
say(child.pid)
{then}
"""


def script_with(method: str, then: str, hold: str = "hold = Lock(path, tag='parent').acquire()") -> str:
    return WITH_A_CHILD.format(tests=str(Path(__file__).parent.parent), method=method, then=then, hold=hold)


@pytest.mark.parametrize("method", METHODS)
def test_a_parents_death_frees_its_lock_though_its_children_live(
    spawn: Callable[..., Peer], shm: Path, method: str
) -> None:
    path = str(shm / "the.lock")
    # A killed process leaves the directory of its forkserver behind: here, where it goes with the test.
    parent = spawn(script_with(method, "child.join()"), path, env={"TMPDIR": str(shm)})
    child = int(heard(parent, "child"))
    parent.kill()
    with Lock(path).acquire(timeout=1) as hold:
        assert hold.recovered_from is not None
        assert hold.recovered_from.pid == parent.pid
        assert state(child) not in ("", "Z")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("method", METHODS)
def test_a_childs_death_does_not_free_its_parents_lock(
    spawn: Callable[..., Peer], path: str, method: str, number: int
) -> None:
    then = "child.join(); hold.ensure_held(); say('held'); hear(); hold.release()"
    parent = spawn(script_with(method, then), path)
    child = int(heard(parent, "child"))
    os.kill(child, number)
    parent.expect("held")
    assert Lock(path).status().liveness is Liveness.ALIVE
    assert Lock(path).try_acquire() is None
    parent.say("release")
    parent.finish()
    assert not os.path.exists(path)


def heard(parent: Peer, word: str) -> str:
    """The other of two lines that arrive in any order."""
    lines = [parent.hear(), parent.hear()]
    lines.remove(word)
    return lines[0]


@pytest.mark.parametrize("first", ["child", "hold"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_that_waits_for_its_child_at_its_end_keeps_the_lock(
    spawn: Callable[..., Peer], path: str, method: str, first: str
) -> None:
    # A process that starts a child waits for it at exit, and the child may work under its parent's lock.
    then = "hold = Lock(path).acquire()\nimport atexit; atexit.register(say, 'leaving')"
    parent = spawn(script_with(method, then, hold="" if first == "child" else "Lock(path).acquire().release()"), path)
    assert sorted(parent.hear() for _ in range(3))[1:] == ["child", "leaving"]
    eventually(lambda: state(parent.pid) == "S", what="the wait for the child")
    assert Lock(path).try_acquire() is None
    parent.say("end")
    parent.finish()
    assert not os.path.exists(path)


@pytest.mark.unmeasured("coverage.py loads multiprocessing")
def test_multiprocessing_is_not_loaded(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn("with Lock(path): pass\nsay('multiprocessing' in sys.modules)", path, real=True)
    process.expect("False")
    assert process.finish() == ""
