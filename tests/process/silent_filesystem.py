"""Calls on a FUSE filesystem whose process is stopped; runs in a namespace of its own (filesystem.py)."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast import AcquireTimeout, AsyncLock, EngineUnavailable, Lock

TIMEOUT = 1.0


def bindfs() -> int:
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and (path / "comm").read_text().strip() == "bindfs":
            return int(path.name)
    raise LookupError("no bindfs runs in this namespace")


def main() -> None:
    place = os.environ["HOLDFAST_TEST_PLACE"]
    path = f"{place}/l"
    lock = Lock(path)
    lock.acquire().release()
    hold = Lock(f"{place}/held", lease=0).acquire()
    os.mkdir(f"{place}/below")
    server = bindfs()
    os.kill(server, signal.SIGSTOP)
    try:
        for name, call in {
            "acquire": lambda: lock.acquire(TIMEOUT),
            "wait": lambda: lock.wait(TIMEOUT),
            "task": lambda: asyncio.run(acquired(AsyncLock(path))),
            "status": lock.status,
            "ensure_held": hold.ensure_held,
            "lost": lambda: hold.lost,
            "making semats": lambda: Lock(f"{place}/below/l", protocol="semats"),
            "making sidecar": lambda: Lock(f"{place}/below/l", protocol="sidecar"),
        }.items():
            began = time.monotonic()
            try:
                call()
                outcome = "answered"
            except (AcquireTimeout, EngineUnavailable) as error:
                outcome = str(error)
            print(f"{name}|{time.monotonic() - began:.2f}|{outcome}", flush=True)
        for words in (
            ("run", "-w", f"{TIMEOUT}", path, "--", "true"),
            ("status", path),
            ("ls", place),
            ("ls", "-r", f"{place}/*"),
            ("clean", "--yes", place),
            ("doctor", place),
        ):
            began = time.monotonic()
            command = [sys.executable, "-m", "holdfast", *words]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            said = " ".join((done.stdout + done.stderr).split())
            name = " ".join(words[:-1]) if words[0] == "ls" else words[0]
            print(f"command {name}|{time.monotonic() - began:.2f}|{done.returncode} {said}", flush=True)
        with Lock(f"{sys.argv[1]}/local").acquire(TIMEOUT):
            print("local|0|acquired", flush=True)
    finally:
        os.kill(server, signal.SIGCONT)
    lock.acquire(20).release()
    hold.ensure_held()
    hold.release()
    os.rmdir(f"{place}/below")
    until = time.monotonic() + 20
    while os.listdir(place) and time.monotonic() < until:
        time.sleep(0.01)
    print(f"left|0|{os.listdir(place)}")


async def acquired(lock: AsyncLock) -> None:
    await lock.acquire(TIMEOUT)


if __name__ == "__main__":
    main()
