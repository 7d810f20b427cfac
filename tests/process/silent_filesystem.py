"""Calls on a FUSE filesystem whose process is stopped; runs in a namespace of its own (filesystem.py)."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from holdfast import AcquireTimeout, AsyncLock, EngineUnavailable, Lock

TIMEOUT = 1.0


def bindfs() -> int:
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and (path / "comm").read_text().strip() == "bindfs":
            return int(path.name)
    raise LookupError("no bindfs runs in this namespace")


def told(name: str, call: Callable[[], object]) -> None:
    """Make this call, and print how long it took and what came of it."""
    began = time.monotonic()
    try:
        call()
        outcome = "answered"
    except (AcquireTimeout, EngineUnavailable) as error:
        outcome = str(error)
    print(f"{name}|{time.monotonic() - began:.2f}|{outcome}", flush=True)


def main() -> None:
    place = os.environ["HOLDFAST_TEST_PLACE"]
    path = f"{place}/l"
    lock = Lock(path)
    lock.acquire().release()
    server = bindfs()
    os.kill(server, signal.SIGSTOP)
    try:
        status = Thread(target=told, args=("status", lock.status))
        status.start()  # beside the calls that follow, as all do little but wait
        told("acquire", lambda: lock.acquire(TIMEOUT))
        told("wait", lambda: lock.wait(TIMEOUT))
        told("task", lambda: asyncio.run(acquired(AsyncLock(path))))
        status.join()
        for words in (("run", "-w", f"{TIMEOUT}", path, "--", "true"), ("status", path)):
            began = time.monotonic()
            command = [sys.executable, "-m", "holdfast", *words]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            said = " ".join(done.stderr.split())
            print(f"command {words[0]}|{time.monotonic() - began:.2f}|{done.returncode} {said}", flush=True)
        with Lock(f"{sys.argv[1]}/local").acquire(TIMEOUT):
            print("local|0|acquired", flush=True)
    finally:
        os.kill(server, signal.SIGCONT)
    lock.acquire(20).release()
    until = time.monotonic() + 20
    while os.listdir(place) and time.monotonic() < until:
        time.sleep(0.01)
    print(f"left|0|{os.listdir(place)}")


async def acquired(lock: AsyncLock) -> None:
    await lock.acquire(TIMEOUT)


if __name__ == "__main__":
    main()
