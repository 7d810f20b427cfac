"""Contenders that run Python: threads, tasks, forks, and stand-ins of other implementations.

    python contenders.py KIND LOCK PROTOCOL STATE NAME PROC

runs one outside the storm's own processes; PROC is a descriptor of the storm's /proc.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from storm.inside import Inside, linger

PATIENCE = 60.0
"""Seconds after which a contender believes that it will never get the lock: a failure."""
TOGETHER = 3
"""Threads or tasks of one process."""
OF_CHILD = "c"
"""Suffix of the name of a forked child that contends, after its parent's."""
FORK_SHARE, STEP_SHARE, HASTE_SHARE = 0.03, 0.02, 0.1
CLOCK_STEPS = {"sema": 1000, "semats": 1000, "sidecar": 5, "proper-lockfile": 4}
"""Most seconds of a jump of the clock; a year for other protocols. No more, as foreign implementations contend that
judge by age."""
YEAR = 365 * 86400


class Contender:
    """Settings that all contenders for one lock in one process share."""

    def __init__(self, path: str, protocol: str, state: str, name: str, proc: int | None = None) -> None:
        self.path, self.protocol, self.name = path, protocol, name
        self.inside = Inside(state, proc)
        self.more: dict[str, Any] = {"holder": "storm"} if protocol == "beads" else {}
        random.seed(f"{name} {os.getpid()} {time.monotonic_ns()}")

    def again(self) -> bool:
        if random.random() < STEP_SHARE:
            self._step_clock()
        return self.inside.going()

    def _step_clock(self) -> None:
        """Have the wall clock of this process jump."""
        from holdfast._platform import environment

        largest = CLOCK_STEPS.get(self.protocol, YEAR)
        offset = random.choice((0, random.uniform(-largest, largest)))
        environment().time = lambda: time.time() + offset

    def timeout(self) -> float:
        """A timeout; now and then too short, so that waits end without the lock."""
        return random.random() * 0.02 if random.random() < HASTE_SHARE else PATIENCE


def recovered(hold: Any) -> str:
    was = hold.recovered_from
    return "-" if was is None else was.tag or "?"


# -- kinds -------------------------------------------------------------------------------------------------------------


def sync(contender: Contender, name: str = "", lock: Any = None) -> None:
    from holdfast import AcquireTimeout, Lock

    name = name or contender.name
    lock = lock or Lock(contender.path, protocol=contender.protocol, tag=name, **contender.more)
    while contender.again():
        timeout = contender.timeout()
        try:
            hold = lock.acquire(timeout=timeout)
        except AcquireTimeout:
            if timeout == PATIENCE:
                raise
            continue
        contender.inside.enter(name, recovered(hold))
        time.sleep(linger())
        if random.random() < FORK_SHARE:
            fork(contender, hold)
        contender.inside.leave(name)
        hold.release()


def threads(contender: Contender) -> None:
    failures: list[BaseException] = []

    def run(name: str) -> None:
        try:
            sync(contender, name)
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=run, args=(f"{contender.name}.{i}",)) for i in range(TOGETHER)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if failures:
        raise failures[0]


def tasks(contender: Contender) -> None:
    import asyncio

    asyncio.run(_several(contender))


def uvloop_tasks(contender: Contender) -> None:
    import uvloop

    uvloop.run(_several(contender))


async def _several(contender: Contender) -> None:
    import asyncio

    await asyncio.gather(*(_task(contender, f"{contender.name}.{i}") for i in range(TOGETHER)))


async def _task(contender: Contender, name: str) -> None:
    import asyncio

    from holdfast import AcquireTimeout, AsyncLock

    lock = AsyncLock(contender.path, protocol=contender.protocol, tag=name, **contender.more)
    while contender.again():
        timeout = contender.timeout()
        try:
            if timeout == PATIENCE or random.random() < 0.5:
                hold = await lock.acquire(timeout=timeout)
            else:
                async with asyncio.timeout(timeout):  # cancels
                    hold = await lock.acquire()
        except AcquireTimeout:
            if timeout == PATIENCE:
                raise
            continue
        except TimeoutError:
            contender.inside.give_up()
            continue
        contender.inside.enter(name, recovered(hold))
        await asyncio.sleep(linger())
        contender.inside.leave(name)
        await hold.release()


def face(contender: Contender) -> None:
    """Contend by the face of the protocol's system; not every handle tells from whom it took over."""
    from holdfast import beads, sema, semats, sidecar

    path, protocol = contender.path, contender.protocol
    acquire: Callable[[], Any]
    if protocol == "sema":
        acquire = sema.Semaphore.with_defaults(path).acquire
    elif protocol == "sidecar":
        acquire = lambda: sidecar.acquire_file_lock_sync(path, payload={"tag": contender.name})  # noqa: E731
    elif protocol == "beads":
        acquire = lambda: beads.acquire(path, contender.name)  # noqa: E731
    else:
        semaphore = semats.Semaphore(path)
        acquire = lambda: semaphore.acquire(tag=contender.name) and semaphore  # noqa: E731
    while contender.again():
        held = acquire()
        contender.inside.visit(contender.name, "?")
        held.release()


def stand_in(contender: Contender) -> None:
    """Contend as sema or semats do, with their races."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "foreign"))
    from foreign.sema import Sema
    from foreign.semats import Semats

    theirs = {"sema": Sema, "semats": Semats}[contender.protocol](contender.path)
    while contender.again():
        theirs.stamp()
        if theirs.attempt():
            contender.inside.visit(contender.name, "-")
            said = theirs.release()
            assert said == "released", said
        time.sleep(0.001)


def lockf(contender: Contender) -> None:
    """Contend as any other program with a record lock of its process."""
    import fcntl

    while contender.again():
        with open(contender.path, "a") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            contender.inside.visit(contender.name, "-")


def rude(contender: Contender) -> None:
    """Enter without the lock, for the test of the detector."""
    while contender.again():
        contender.inside.visit(contender.name, "?")


KINDS: dict[str, Callable[[Contender], None]] = {
    "sync": sync,
    "threads": threads,
    "asyncio": tasks,
    "uvloop": uvloop_tasks,
    "face": face,
    "stand-in": stand_in,
    "lockf": lockf,
    "rude": rude,
}


# -- forks -------------------------------------------------------------------------------------------------------------


def fork(contender: Contender, hold: Any) -> None:
    """Fork a child that dies at once, releases a lock that it does not hold, outlives its parent, or contends
    itself."""
    how = random.choice(("dies", "releases", "outlives", "contends"))
    if os.fork() != 0:
        return
    status = 1
    try:
        if how == "releases":
            _release_in_child(hold)
        elif how == "outlives":
            time.sleep(random.random() * 0.3)
        elif how == "contends":
            _contend_once(contender, contender.name + OF_CHILD)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _release_in_child(hold: Any) -> None:
    from holdfast import NotHeld

    try:
        hold.release()
    except NotHeld:
        pass


def _contend_once(contender: Contender, name: str) -> None:
    from holdfast import Lock

    inside = Inside(contender.inside.state, contender.inside.proc)
    hold = Lock(contender.path, protocol=contender.protocol, tag=name, **contender.more).acquire(timeout=PATIENCE)
    inside.visit(name, recovered(hold))
    hold.release()


def left_open(directory: str) -> list[str]:
    """This process's open descriptors below a directory; at the end of a contender, none."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            pass
    return [target for target in found if target.startswith(directory + "/")]


def be(kind: str, contender: Contender) -> None:
    """Contend until the storm is over."""
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the children are reaped as they end
    KINDS[kind](contender)
    directory = contender.path if contender.protocol == "beads" else os.path.dirname(contender.path)
    left = left_open(directory)
    assert not left, f"{contender.name} has left open: {left}"


def main(words: Iterable[str]) -> None:
    kind, path, protocol, state, name, proc = words
    be(kind, Contender(path, protocol, state, name, int(proc)))


if __name__ == "__main__":
    main(sys.argv[1:])
