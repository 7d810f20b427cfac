"""Locks by any Python on any POSIX system, with nothing but the standard library: `python smoke.py DIRECTORY`.

Each protocol: acquired, refused while it is held, released, taken over from a killed holder; then four processes that
count. Processes are forked, never started anew, so that an emulator of another processor can run this:

    qemu-aarch64-static -L ROOT ROOT/usr/bin/python3.11 tests/platforms/smoke.py DIRECTORY
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from holdfast import Lock, _platform

PROTOCOLS = ("sema", "semats", "sidecar", "beads", "flock")
PATIENCE = 60.0
CONTENDERS, TURNS = 4, 50


def killed_holder(lock: Lock) -> None:
    """Have a child acquire the lock, and kill it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        hold = lock.acquire(timeout=PATIENCE)
        os.write(writing, b"held")
        signal.pause()
        hold.release()
    os.close(writing)
    assert os.read(reading, 4) == b"held"
    os.close(reading)
    assert lock.try_acquire() is None, "its holder lives"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def each_protocol(place: Path) -> None:
    for protocol in PROTOCOLS:
        lock = Lock(place / protocol / "lock", protocol=protocol, parents=True)
        with lock as hold:
            hold.ensure_held()
            assert lock.status().locked
            assert lock.try_acquire() is None
        assert not lock.status().locked
        killed_holder(lock)
        hold = lock.acquire(timeout=PATIENCE)
        assert protocol == "flock" or hold.recovered_from is not None
        hold.release()
        print(protocol, flush=True)


def counting(place: Path) -> None:
    counter, lock = place / "counter", Lock(place / "counter.lock")
    counter.write_text("0")
    children = []
    for _ in range(CONTENDERS):
        child = os.fork()
        if child == 0:
            for _ in range(TURNS):
                with lock:
                    counter.write_text(str(int(counter.read_text()) + 1))
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert int(counter.read_text()) == CONTENDERS * TURNS
    left = sorted(path.name for path in place.iterdir() if path.name not in PROTOCOLS)
    assert left == ["counter"], left


if __name__ == "__main__":
    each_protocol(Path(sys.argv[1]))
    counting(Path(sys.argv[1]))
    words = (platform.python_implementation(), platform.python_version(), platform.machine(), platform.libc_ver()[0])
    print(*words, type(_platform.environment()).__name__, "all of it")
