"""Many locks in one process: each needs a descriptor, and nothing else may run out first."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable

import pytest

from holdfast import Lock
from process.support import Peer

MANY = 10_000
SPARE = 100
"""Descriptors for everything else that the process has open."""


def test_ten_thousand_locks_of_one_process_are_held_and_released(spawn: Callable[..., Peer], path: str) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < MANY + SPARE:
        pytest.skip(f"the hard limit of descriptors is below {MANY + SPARE}")
    process = spawn(
        f"""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, ({MANY + SPARE}, {MANY + SPARE}))
        options = [{{}}, {{"owner": 1}}, {{"heartbeat": 3000}}, {{"on_lost": print}}]
        holds = [Lock(f"{{path}}.{{i}}", timeout=5, **options[i % 4]).acquire() for i in range({MANY})]
        say(len(set(h.record.pid for h in holds)), len(os.listdir("/proc/self/fd")) < {MANY + SPARE})
        for hold in holds:
            hold.ensure_held()
        say("holding")
        hear()
        for hold in holds[: {MANY // 2}]:  # the others at exit
            hold.release()
        """,
        path,
    )
    process.expect("1 True", within=300)
    process.expect("holding")
    assert len(os.listdir(os.path.dirname(path))) == MANY
    for i in range(0, MANY, 997):
        assert Lock(f"{path}.{i}").try_acquire() is None
    process.say("release")
    assert process.finish(within=300) == ""
    assert os.listdir(os.path.dirname(path)) == []


@pytest.mark.needs("unnamed", "events")
@pytest.mark.unmeasured("it counts calls")
def test_the_cost_of_a_lock_does_not_grow_with_the_number_held(spawn: Callable[..., Peer], path: str) -> None:
    """Counted in calls of Python and C functions: an acquisition, an immediate release, and a release after a while."""
    process = spawn(
        """
        import holdfast._platform.linux
        holdfast._platform.linux._WORTH_A_LOG = 0  # of the directory: the more there is in it, the more a listing costs
        def counted(action):
            seen = []
            sys.setprofile(lambda _frame, event, _arg: seen.append(event))
            action()
            sys.setprofile(None)
            return seen.count("call") + seen.count("c_call")
        def costs():
            hold = []
            taken = counted(lambda: hold.append(Lock(path).acquire()))
            hold[0]._held.acquired += 60  # however long this process is not let run here
            at_once = counted(hold[0].release)
            hold = Lock(path).acquire()
            hold._held.acquired -= 60
            return taken, at_once, counted(hold.release)
        costs(), costs()
        while holdfast.lock._keeper.wakes == float("inf"):
            time.sleep(0.001)  # until the thread that keeps them sleeps: a short hold does not concern it then
        # The least of several: after a second, the next one reads the table of mounts again.
        before = min(costs() for _ in range(3))
        others = [Lock(f"{path}.{i}").acquire() for i in range(200)]
        say(before, min(costs() for _ in range(3)))
        """,
        path,
    )
    before, after = process.hear().split(") (")
    assert before.strip("(") == after.strip(")")
    process.finish()


def test_a_killed_process_keeps_none_of_a_thousand_locks(spawn: Callable[..., Peer], path: str) -> None:
    process = spawn("holds = [Lock(f'{path}.{i}').acquire() for i in range(1000)]; say('holding'); hear()", path)
    process.expect("holding")
    process.kill()
    process.wait()
    for i in range(1000):
        with Lock(f"{path}.{i}").acquire(timeout=0) as hold:
            assert hold.recovered_from is not None
    assert os.listdir(os.path.dirname(path)) == []


AT_THE_LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
holds = []

def fill():
    while True:
        try:
            holds.append(Lock(f"{path}.{len(holds)}", **options).acquire(timeout=5))
        except OSError as error:
            return error

error = fill()
count = len(holds)
say(count)
say(error)
say(type(error) is OSError, error.errno, error.filename == f"{path}.{count}")
for way in (Lock(path).acquire, Lock(path).try_acquire):
    try:
        way()
    except OSError as error:
        say(error.errno)
for way in (Lock(path + ".0").try_acquire, Lock(path + ".0").status):
    try:
        assert not way() or way().locked  # one that needs less than a hold
    except OSError as error:
        assert error.errno == 24
say("full")
hear()
for hold in holds:
    hold.ensure_held()
holds.pop().release()
fill()  # there is room for one more, and no more than that
say(len(holds))
hear()
for hold in holds:
    hold.ensure_held()
    hold.release()
holds.clear()
fill()
say(len(holds))
"""


@pytest.mark.parametrize("options", ["{}", "{'on_lost': print}", "{'heartbeat': 0.05}", "{'owner': 1}"])
def test_the_limit_of_descriptors_loses_no_hold_and_leaks_none(
    spawn: Callable[..., Peer], path: str, options: str
) -> None:
    process = spawn(f"options = {options}\n{AT_THE_LIMIT}", path)
    count = int(process.hear())
    assert count > 180
    said = process.hear()
    assert f"this process, with {count} holds, has reached its limit of 200" in said
    assert "each hold needs a descriptor" in said
    assert "release some holds" in said
    assert "ulimit -n" in said
    process.expect("True 24 True")
    process.expect("24")
    process.expect("24")
    process.expect("full")
    names = [f"the.lock.{i}" for i in range(count)]
    assert sorted(os.listdir(os.path.dirname(path))) == sorted(names)
    process.say("go on")
    process.expect(str(count))
    assert sorted(os.listdir(os.path.dirname(path))) == sorted(names)
    process.say("go on")
    process.expect(str(count))
    process.finish()
    assert os.listdir(os.path.dirname(path)) == []


def test_a_takeover_at_the_limit_keeps_the_dead_holders_record(spawn: Callable[..., Peer], path: str) -> None:
    """T10."""
    spawn("Lock(path, tag='dead').acquire(); os.kill(os.getpid(), 9)", path).wait()
    process = spawn(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        with Lock(path + ".warm"):
            pass
        spare = []
        def fill():
            try:
                while True:
                    spare.append(os.dup(0))
            except OSError:
                pass
        fill()
        while True:  # none is free, then one, two, three: a look needs one, a takeover more
            try:
                hold = Lock(path).acquire(timeout=0)
            except OSError as error:
                say(error.errno)
                os.close(spare.pop())
            else:
                say("recovered", hold.recovered_from.tag)
                break
        """,
        path,
    )
    said = [process.hear()]
    while said[-1] != "recovered dead":
        assert said[-1] == "24"
        said.append(process.hear())
    assert len(said) > 1
    process.finish()
    assert not os.path.exists(path)


@pytest.mark.needs("unnamed", "events")
def test_a_process_that_has_closed_all_descriptors_goes_on(spawn: Callable[..., Peer], path: str) -> None:
    """K11 of background.py. Its log of new names (N8) is begun anew as well."""
    process = spawn(
        """
        import contextlib, threading
        import holdfast._platform.linux
        from holdfast import LockLost
        holdfast._platform.linux._WORTH_A_LOG = 0
        hold = Lock(path).acquire()
        while holdfast.lock._keeper.wakes == float("inf"):
            time.sleep(0.01)
        os.closerange(3, 256)  # while the keeper sleeps for long
        with contextlib.suppress(LockLost):
            hold.release()
        lost = threading.Semaphore(0)
        lock = Lock(path, timeout=30, heartbeat=0.05, on_lost=lambda _: lost.release())
        for _ in range(2):
            hold = lock.acquire()
            before = open(path).read()
            while open(path).read() == before:
                time.sleep(0.01)
            say("is kept")
            os.closerange(3, 256)
            lost.acquire()
            with contextlib.suppress(LockLost):
                hold.release()
        with lock as hold:
            os.unlink(path)
            lost.acquire()
            say("was told")
            with contextlib.suppress(LockLost):
                hold.release()
        """,
        path,
    )
    for word in ("is kept", "is kept", "was told"):
        process.expect(word, within=60)
    process.finish()
    assert os.listdir(os.path.dirname(path)) == []
