"""The cost of a free lock on Windows, and of a hand-off to a waiter, beside filelock and portalocker.

python bench/windows.py [DIRECTORY]     # on Windows
make bench-windows                      # under Wine
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

CYCLES, REPEATS, TURNS = 50, 5, 25
WAITS = 0.1
"""Seconds, up to twice as many, after which a process that has announced its wait is believed to wait."""

Make = Callable[[str], AbstractContextManager[object]]


def holdfast(protocol: str) -> Make:
    def make(path: str) -> AbstractContextManager[object]:
        import holdfast

        return holdfast.Lock(path, protocol=protocol)

    return make


def filelock(name: str) -> Make:
    def make(path: str) -> AbstractContextManager[object]:
        import filelock

        return getattr(filelock, name)(path)

    return make


def portalocker(path: str) -> AbstractContextManager[object]:
    import portalocker

    flags = portalocker.LOCK_EX | portalocker.LOCK_NB
    return portalocker.Lock(path, "a", timeout=60, flags=flags)


LOCKS: dict[str, Make] = {
    "holdfast, sema": holdfast("sema"),
    "filelock, SoftFileLock": filelock("SoftFileLock"),
    "holdfast, sidecar": holdfast("sidecar"),
    "holdfast, flock": holdfast("flock"),
    "filelock, FileLock": filelock("FileLock"),
    "portalocker, Lock": portalocker,
}


def cycle(make: Make, path: str) -> float:
    """Milliseconds of an uncontended acquisition and release; the fastest of some runs."""
    lock, taken = make(path), []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(CYCLES):
            with lock:
                pass
        taken.append(time.perf_counter() - began)
    return min(taken) / CYCLES * 1000


def hand_offs(name: str, path: str) -> list[float]:
    """Milliseconds from the end of a hold to the beginning of that of a waiter in another process."""
    lock, found, dice = LOCKS[name](path), [], random.Random(7)
    command = [sys.executable, __file__, "--wait", name, path]
    waiter = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert waiter.stdin is not None
    assert waiter.stdout is not None
    for _ in range(TURNS):
        with lock:
            waiter.stdin.write("go\n")
            waiter.stdin.flush()
            waiter.stdout.readline()
            time.sleep(dice.uniform(WAITS, 2 * WAITS))  # at no fixed phase of another one's polling
            released = time.perf_counter()
        if not (said := waiter.stdout.readline()):
            break  # portalocker's lock does not wait under Wine, whose error it does not know
        found.append((float(said) - released) * 1000)
    waiter.communicate()
    return found


def wait(name: str, path: str) -> None:
    """Be the other process of `hand_offs`."""
    lock = LOCKS[name](path)
    for _ in sys.stdin:
        print("waiting", flush=True)
        with lock:
            acquired = time.perf_counter()  # of the system, the same in all processes
        print(acquired, flush=True)


def main(place: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=place) as directory:
        print("| | free: acquired and released, ms | hand-off, ms: median | 95 % |")
        print("|---|---|---|---|")
        for number, (name, make) in enumerate(LOCKS.items()):
            path = str(Path(directory, f"{number}.lock"))
            cost, found = cycle(make, path), sorted(hand_offs(name, path))
            told = f"{statistics.median(found):.2f} | {found[int(len(found) * 0.95)]:.2f}" if found else "- | -"
            print(f"| {name} | {cost:.2f} | {told} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--wait"]:
        wait(*sys.argv[2:])
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else None)
