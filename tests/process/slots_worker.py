"""The storm of worker.py on a semaphore: each slot has a counter, a journal and a detector of its own.

    python slots_worker.py BASE STATE SECONDS WORKERS SLOTS

STATE/0 … STATE/<SLOTS - 1> are what STATE is in worker.py. Who gets a slot that is not one of these fails, and two in
one slot are seen by its detector: so there are never more inside than SLOTS, whatever the semaphore believes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys

from worker import KILLS_A_SECOND, Storm, increment, inside, prepare


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
        protocol = os.environ.get("HOLDFAST_TEST_PROTOCOL", "sema")
        semaphore = Semaphore(self.path, self.slots, tag=name, protocol=protocol)
        while os.path.exists(f"{self.state}/go"):
            hold = semaphore.acquire(timeout=30)
            recovered = hold.recovered_from.tag if hold.recovered_from else "-"
            increment(name, f"{self.state}/{hold.slot}", *files[hold.slot], recovered)
            hold.release()

    def enough(self, seconds: float) -> bool:
        """Each slot was used, and somebody was killed in one: an `i` that no `d` follows."""
        if len(self.killed) <= KILLS_A_SECOND * seconds:
            return False
        kinds = [self.kinds(slot) for slot in range(self.slots)]
        return all(each.count("d") > seconds for each in kinds) and any("ii" in each for each in kinds)

    def kinds(self, slot: int) -> str:
        with open(f"{self.state}/{slot}/journal", encoding="ascii") as file:
            return "".join(line[0] for line in file if line[0] in "id")

    def inside(self) -> list[int]:
        return inside(f"{self.state}/{random.randrange(self.slots)}")


def main(path: str, state: str, seconds: str, workers: str, slots: str) -> None:
    open(f"{state}/go", "w").close()
    for slot in range(int(slots)):
        os.mkdir(f"{state}/{slot}")
        prepare(f"{state}/{slot}")
    import holdfast._os  # once, here; every worker is a fork of this process

    holdfast._os.environment().identity()
    storm = SlotsStorm(path, state, int(slots))
    try:
        storm.run(float(seconds), int(workers))
    finally:
        for pid in storm.workers:
            os.kill(pid, signal.SIGKILL)
    print(json.dumps({"killed": storm.killed, "failed": storm.failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
