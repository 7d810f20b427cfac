"""The storm of worker.py on a semaphore: each slot has a counter, a journal and a detector of its own.

    python slots_worker.py BASE STATE WANTED WORKERS SLOTS

STATE/0 … STATE/<SLOTS - 1> are each a STATE as in worker.py. A worker with a slot that is not one of these fails, and
two in one slot are seen by its detector: so there are never more inside than SLOTS, whatever the semaphore believes.
"""

from __future__ import annotations

import glob
import json
import os
import random
import signal
import sys
import time

from wanted import Wanted
from worker import SoFar, Storm, in_a_child, increment, prepare, warm_up

EACH = 100
"""The least used slot gets more than one visit in so many: waiters take the first slot that becomes free."""


class SlotsStorm(Storm):
    def __init__(self, path: str, state: str, slots: int) -> None:
        super().__init__(path, state)
        self.slots = slots

    def work(self, name: str) -> None:
        from holdfast import Semaphore

        files = []
        for slot in range(self.slots):
            state = f"{self.state}/{slot}"
            flags = (os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_RDWR)
            names = ("counter", "journal", "detector")
            files.append([os.open(f"{state}/{name}", flag) for name, flag in zip(names, flags, strict=True)])
        semaphore = Semaphore(self.path, self.slots, tag=name, protocol=protocol())
        while os.path.exists(f"{self.state}/go"):
            hold = semaphore.acquire(timeout=30)
            recovered = hold.recovered_from.tag if hold.recovered_from else "-"
            increment(name, f"{self.state}/{hold.slot}", *files[hold.slot], recovered)
            hold.release()

    def enough(self, wanted: Wanted) -> bool:
        """Whether it has been a storm, and each slot was used."""
        if len(self.killed) < wanted.kills or self.visits() < wanted.increments:
            return False
        so_far = [SoFar.of(f"{self.state}/{slot}") for slot in range(self.slots)]
        used = all(each.visits > wanted.increments / EACH for each in so_far)
        takeovers, unfinished = (sum(counts) for counts in list(zip(*so_far, strict=True))[1:3])
        return used and unfinished > 0 and takeovers >= wanted.takeovers

    def visits(self) -> int:
        count = 0
        for slot in range(self.slots):
            with open(f"{self.state}/{slot}/counter", encoding="ascii") as file:
                count += int(file.read())
        return count

    def journal(self) -> str:
        return f"{self.state}/{random.randrange(self.slots)}"


NAMESAKES = 50
"""Tries of a takeover while the pid of a claim's dead process may have been reused meanwhile."""


def claims(path: str) -> list[str]:
    """Claims beside the slots that should have gone. Portable Python cannot tell a process from a later one with its
    pid, and leaves the claims of both."""
    found = (os.path.basename(name).split(".") for name in glob.glob(f"{os.path.dirname(path)}/.*.claim"))
    return [".".join(name) for name in found if name[-3] != "-" or not os.path.exists(f"/proc/{name[-4]}")]


def die_inside(path: str, slots: int) -> None:
    from holdfast import Semaphore

    semaphore = Semaphore(path, slots, timeout=10, protocol=protocol())
    _holds = [semaphore.acquire() for _ in range(slots)]
    os.kill(os.getpid(), signal.SIGKILL)


def pass_through(path: str, slots: int) -> None:
    """Require that every slot is there for the next ones, at once and all together, whatever the last killed ones left.

    The leftovers are gone after the next takeover of the slot: claims stay until then (takeover.py, T13).
    """
    from holdfast import Semaphore

    semaphore = Semaphore(path, slots, timeout=10, protocol=protocol())
    holds = [semaphore.acquire() for _ in range(slots)]
    assert [hold.slot for hold in holds] == list(range(slots))
    assert semaphore.try_acquire() is None
    for hold in holds:
        hold.release()


def protocol() -> str:
    return os.environ.get("HOLDFAST_TEST_PROTOCOL", "sema")


def main(path: str, state: str, wanted: str, workers: str, slots: str) -> None:
    open(f"{state}/go", "w").close()
    for slot in range(int(slots)):
        os.mkdir(f"{state}/{slot}")
        prepare(f"{state}/{slot}")
    warm_up()
    storm = SlotsStorm(path, state, int(slots))
    try:
        storm.run(Wanted.of(wanted), int(workers))
        if not storm.failed:
            after = (lambda: die_inside(path, storm.slots), lambda: pass_through(path, storm.slots))
            for _ in range(NAMESAKES):
                if (ended := tuple(map(in_a_child, after))) != (-signal.SIGKILL, 0):
                    storm.failed.append(f"those who came afterwards: {ended}")
                if storm.failed or not (left := claims(path)):
                    break
                time.sleep(0.1)
            else:
                storm.failed.append(f"claims are left: {left}")
    finally:
        for pid in (*storm.workers, *storm.dying):
            os.kill(pid, signal.SIGKILL)
    print(json.dumps({"killed": storm.killed, "failed": storm.failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
