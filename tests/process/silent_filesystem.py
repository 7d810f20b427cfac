"""Calls on a FUSE filesystem whose process is stopped; runs in a namespace of its own (filesystem.py)."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast import AcquireTimeout, AsyncLock, EngineUnavailable, Lock, Status, beads, cli, sema, semats

TIMEOUT = 1.0


def bindfs() -> int:
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and (path / "comm").read_text().strip() == "bindfs":
            return int(path.name)
    raise LookupError("no bindfs runs in this namespace")


def stop(server: int) -> None:
    """Stop all threads of the server: a request that one of them has taken keeps a process from ending."""
    os.kill(server, signal.SIGSTOP)
    states = {"?"}
    while states != {"T"}:
        states = {one.read_text().rpartition(") ")[2][0] for one in Path(f"/proc/{server}/task").glob("*/stat")}


def release(server: int, *words: str) -> None:
    """Run the command, whose server is stopped after its first look."""
    look = Lock.status

    def status(lock: Lock) -> Status:
        found = look(lock)
        stop(server)
        return found

    Lock.status = status  # type: ignore[method-assign]
    cli.main(["release", *words])


def told(name: str, call: Callable[[], object]) -> None:
    """Make this call, and print its time and its result."""
    began = time.monotonic()
    try:
        outcome = call() or "answered"
    except (AcquireTimeout, EngineUnavailable) as error:
        outcome = error
    print(f"{name}|{time.monotonic() - began:.2f}|{outcome}\n", end="", flush=True)


def command(*words: str, by: tuple[str, ...] = ("-m", "holdfast")) -> str:
    done = subprocess.run([sys.executable, *by, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return f"{done.returncode} {' '.join((done.stdout + done.stderr).split())}"


def main() -> None:
    place = os.environ["HOLDFAST_TEST_PLACE"]
    path = f"{place}/l"
    lock = Lock(path)
    lock.acquire().release()
    hold = Lock(f"{place}/held", lease=0).acquire()
    os.mkdir(f"{place}/below")
    as_sema, as_semats = sema.Semaphore(path), semats.Semaphore(path)
    calls: dict[str, Callable[[], object]] = {
        "acquire": lambda: lock.acquire(TIMEOUT) and None,
        "wait": lambda: lock.wait(TIMEOUT) and None,
        "task": lambda: asyncio.run(acquired(AsyncLock(path))),
        "status": lambda: lock.status() and None,
        "ensure_held": hold.ensure_held,
        "lost": lambda: hold.lost and None,
        "making semats": lambda: Lock(f"{place}/below/l", protocol="semats") and None,
        "making sidecar": lambda: Lock(f"{place}/below/l", protocol="sidecar") and None,
        "sema lock_info": as_sema.lock_info,
        "sema is_locked": as_sema.is_locked,
        "semats status": as_semats.status,
        "semats clean_stale": as_semats.clean_stale,
        "semats release": as_semats.release,
        "beads release": lambda: beads.release(place),
        "beads check": lambda: beads.should_skip_database(place),
        "command run": lambda: command("run", "-w", f"{TIMEOUT}", path, "--", "true"),
        "command status": lambda: command("status", path),
        "command sema status": lambda: command("sema", "status", path),
        "command sema release": lambda: command("sema", "release", path),
        "command sema wait": lambda: command("sema", "wait", path, "--timeout", f"{TIMEOUT:.0f}"),
        "command break": lambda: command("break", "--yes", path),
        "command run of two": lambda: command("run", "-w", f"{TIMEOUT}", path, f"{place}/m", "--", "true"),
        "command wait": lambda: command("wait", "-w", f"{TIMEOUT}", path),
        "command watch": lambda: command("watch", place),
        "command reap": lambda: command("reap", place),
        "command ls": lambda: command("ls", place),
        "command ls -r": lambda: command("ls", "-r", f"{place}/*"),
        "command clean": lambda: command("clean", "--yes", place),
        "command doctor": lambda: command("doctor", place),
        "command timeline": lambda: command("timeline", "-o", "-", f"{place}/events"),
        "command timeline -o": lambda: command("timeline", "-o", f"{place}/page.html", f"{sys.argv[1]}/events"),
    }
    server = bindfs()
    Path(sys.argv[1], "events").write_text('{"kind": "held", "time": 1, "path": "/l"}\n')
    recorded = ("run", "--record", f"{place}/events", f"{sys.argv[1]}/recorded", "--")
    try:
        told("command run --record", lambda: command(*recorded, sys.executable, __file__, "-stop", f"{server}"))
    finally:
        os.kill(server, signal.SIGCONT)
    mine = ("--owner-pid", f"{os.getpid()}", f"{place}/mine")
    assert command("try", "--no-keeper", *mine) == "0 "
    try:
        told("command release", lambda: command(f"{server}", *mine, by=(__file__, "-release")))
        stop(server)
        words = [sys.executable, "-m", "holdfast", "run", path, "--", "true"]
        patient = subprocess.Popen(words, stderr=subprocess.PIPE)
        assert patient.stderr is not None
        print(f"patient|0|{patient.stderr.readline().decode()}", end="", flush=True)
        with ThreadPoolExecutor(len(calls)) as pool:  # at once, as all do little but wait
            for done in [pool.submit(told, *item) for item in calls.items()]:
                done.result()
        with Lock(f"{sys.argv[1]}/local").acquire(TIMEOUT):
            print("local|0|acquired", flush=True)
    finally:
        os.kill(server, signal.SIGCONT)
    assert patient.wait(60) == 0
    lock.acquire(20).release()
    hold.ensure_held()
    hold.release()
    command("release", *mine)  # it was killed at some step
    os.rmdir(f"{place}/below")
    os.unlink(f"{place}/events")
    until = time.monotonic() + 20
    while os.listdir(place) and time.monotonic() < until:
        time.sleep(0.01)
    print(f"left|0|{os.listdir(place)}")


async def acquired(lock: AsyncLock) -> None:
    await lock.acquire(TIMEOUT)


if __name__ == "__main__":
    if sys.argv[1] == "-release":
        release(int(sys.argv[2]), *sys.argv[3:])
    elif sys.argv[1] == "-stop":
        stop(int(sys.argv[2]))
    else:
        main()
