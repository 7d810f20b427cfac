"""Workers on a few slots, one of which dies at its work: `python examples/pool.py`.

Twelve jobs share three slots: three GPUs, say, or three seats of a licence. Each is a process of its own, and other
programs on this machine could take part: who names the same base and number of slots shares them.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import holdfast

JOBS, SLOTS = 12, 3
DOOMED = 0


def job(number: int, base: str, journal: str) -> None:
    with holdfast.Semaphore(base, slots=SLOTS, tag=f"job {number}") as hold:  # sleeps until any of them is free
        # The slot is a number that no other holder has: an index of a device, a port, a directory to work in.
        after = "-" if hold.recovered_from is None else hold.recovered_from.pid
        note(journal, f"begins {number} {hold.slot} {os.getpid()} {after}")
        if number == DOOMED:
            while len(Path(journal).read_text().splitlines()) < SLOTS:
                time.sleep(0.01)  # until others are at work, too
            os.kill(os.getpid(), 9)  # what the kernel does to who needs too much memory
        time.sleep(0.03)  # the work
        note(journal, f"ends {number} {hold.slot} {os.getpid()} -")


def note(journal: str, line: str) -> None:
    """Append a line. One write of a few bytes to a file that is open for appending: those of others do not mix in."""
    with open(journal, "a") as file:
        file.write(line + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        base, journal = os.path.join(directory, "gpu"), os.path.join(directory, "journal")
        jobs = [multiprocessing.Process(target=job, args=(number, base, journal)) for number in range(JOBS)]
        jobs[DOOMED].start()
        while not os.path.exists(journal):
            time.sleep(0.01)
        for process in jobs[1:-1]:
            process.start()
        jobs[DOOMED].join()
        jobs[-1].start()  # so there is one who comes after it, on the slowest of machines
        for process in jobs:
            process.join()
        tell(Path(journal).read_text().splitlines(), [process.exitcode for process in jobs])
        print(f"left behind: {sorted(set(os.listdir(directory)) - {'journal'})}")


def tell(lines: list[str], codes: list[int | None]) -> None:
    inside: dict[str, str] = {}  # who is at work, by slot
    most, done = 0, 0
    for line in lines:
        what, number, slot, pid, after = line.split()
        if what == "ends":
            assert inside.pop(slot) == pid
            done += 1
            continue
        if after != "-":  # the slot of one that died: the kernel proved it, and nobody had to wait
            assert inside.pop(slot) == after
            print(f"a job was killed at its work in slot {slot}; job {number} has taken its place")
        assert slot not in inside, "two in one slot"
        inside[slot] = pid
        most = max(most, len(inside))
    print(f"{done} of {len(codes)} jobs are done, {codes.count(-9)} was killed; at most {most} worked at once")


if __name__ == "__main__":
    main()
