"""Scenes that a stranger would try on Windows: `python scenes.py SCENE [PROTOCOL] DIRECTORY`, in Windows' Python.

A scene ends with status 0 and prints `done`, or ends with a traceback. It runs under Wine (wine.py) and on Windows.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from holdfast import _platform

ROUNDS, PROCESSES = 40, 4
SOON = 60.0
"""Seconds for anything that takes milliseconds on an idle machine; a busy one takes several to start a process."""
SCENES: dict[str, Callable[..., None]] = {}


def scene(function: Callable[..., None]) -> Callable[..., None]:
    SCENES[function.__name__] = function
    return function


def lock(place: Path, protocol: str, **options: object) -> holdfast.Lock:
    return holdfast.Lock(place / "l", protocol=protocol, **{"timeout": SOON, "parents": True, **options})


def other(*words: object) -> subprocess.Popen[str]:
    """Start another process, which prints a line when it has got where the scene wants it."""
    command = [sys.executable, __file__, *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    started.append(process)
    line = process.stdout.readline()
    assert line == "ready\n", (words, line)
    return process


started: list[subprocess.Popen[str]] = []
"""Processes that end with the scene: they have its streams, and a reader of its output reads to their end."""


to_stop: list[Working] = []
"""Commands of `holdfast run` that end with the scene, for the same reason."""


def ready() -> None:
    print("ready", flush=True)


def require_nothing_left(place: Path, *kept: str, counted: bool = False) -> None:
    """Require that nothing is left. `counted`: except for the counters of tokens, which holds on a share have with
    their leases."""
    found = sorted(str(one.relative_to(place)) for one in place.rglob("*") if not (counted and one.suffix == ".token"))
    assert found == sorted(kept), found


def require_refused(wrong: str) -> None:
    try:
        holdfast.Lock(wrong)
    except holdfast.InvalidPath:
        return
    raise AssertionError(f"{wrong!r} was accepted")


def kept_by(protocol: str) -> tuple[str, ...]:
    return {"flock": ("l",), "beads": ("l",)}.get(protocol, ())


@scene
def hold(protocol: str, place: Path) -> None:
    """Hold until standard input ends."""
    with lock(place, protocol):
        ready()
        sys.stdin.read()


@scene
def exclusion(protocol: str, place: Path) -> None:
    """Hold a lock: another process is refused; after the release, that process acquires it."""
    ours = lock(place, protocol)
    holder = other("hold", protocol, place)
    status = ours.status()
    assert status.locked, status
    assert status.evidence.proven, status
    assert protocol == "flock" or status.holder.pid == holder.pid, (status, holder.pid)
    assert ours.try_acquire() is None
    try:
        ours.acquire(timeout=0.1)
    except holdfast.AcquireTimeout:
        pass
    else:
        raise AssertionError("two holders")
    waiter = threading.Thread(target=lambda: ours.acquire().release())
    waiter.start()
    holder.communicate()
    waiter.join(SOON)
    assert not waiter.is_alive(), "the release woke nobody"
    assert not ours.status().locked
    require_nothing_left(place, *kept_by(protocol))


@scene
def death(protocol: str, place: Path) -> None:
    """A killed holder is replaced, by one that comes later and by one that waits."""
    for waits in (False, True):
        holder = other("hold", protocol, place)
        ours = lock(place, protocol)
        got: list[float] = []

        def acquire(ours: holdfast.Lock = ours, got: list[float] = got) -> None:
            hold = ours.acquire()
            got.append(time.perf_counter())
            assert protocol == "flock" or hold.recovered_from is not None
            hold.release()

        waiter = threading.Thread(target=acquire)
        if waits:
            waiter.start()
            time.sleep(0.2)  # so that it is waiting in the usual case; the outcome does not depend on it
            assert not got
        began = time.perf_counter()
        holder.kill()
        holder.wait()
        if not waits:
            waiter.start()
        waiter.join(SOON)
        assert got, "nobody noticed the death"
        print(f"replaced after {(got[0] - began) * 1000:.1f} ms")
        holder.stdout.close()
        holder.stdin.close()
    require_nothing_left(place, *kept_by(protocol))


@scene
def increment(protocol: str, place: Path, counter: Path) -> None:
    """Increment as each process of `increments` does. The counter is read and written without any care."""
    ours = lock(place, protocol, timeout=120)
    ready()
    sys.stdin.readline()
    for _ in range(ROUNDS):
        with ours:
            counter.write_text(str(int(counter.read_text()) + 1))


@scene
def increments(protocol: str, place: Path) -> None:
    """Every increment of four processes counts."""
    counter = place.with_name(f"{place.name}.counter")
    counter.write_text("0")
    began = time.perf_counter()
    workers = [other("increment", protocol, place, counter) for _ in range(PROCESSES)]
    for one in workers:
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in workers:
        one.communicate()
        assert one.returncode == 0
    print(f"{counter.read_text()} increments in {time.perf_counter() - began:.1f} s")
    assert int(counter.read_text()) == ROUNDS * PROCESSES
    require_nothing_left(place, *kept_by(protocol))


@scene
def threads(protocol: str, place: Path) -> None:
    """Threads exclude each other, and all have their turn."""
    count = 0

    def work() -> None:
        nonlocal count
        for _ in range(10):
            with lock(place, protocol):
                before = count
                time.sleep(0.0005)
                count = before + 1

    crowd = [threading.Thread(target=work) for _ in range(4)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()
    assert count == 40, count
    require_nothing_left(place, *kept_by(protocol))


@scene
def tasks(protocol: str, place: Path) -> None:
    """Tasks exclude each other and other processes, on both event loops; a cancelled one leaves nothing."""

    async def work() -> None:
        async def one() -> None:
            nonlocal inside
            async with holdfast.AsyncLock(place / "l", protocol=protocol, timeout=SOON) as held:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.01)
                held.ensure_held()
                inside -= 1

        inside = 0
        await asyncio.gather(*[one() for _ in range(5)])
        holder = await asyncio.to_thread(other, "hold", protocol, place)
        waiting = asyncio.create_task(one())
        cancelled = asyncio.create_task(one())
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert cancelled.cancelled()
        assert not waiting.done()
        await asyncio.to_thread(holder.communicate)
        await waiting

    for policy in (asyncio.WindowsProactorEventLoopPolicy(), asyncio.WindowsSelectorEventLoopPolicy()):
        asyncio.set_event_loop_policy(policy)
        asyncio.run(work())
        require_nothing_left(place, *kept_by(protocol))


@scene
def steps_in_threads(place: Path) -> None:
    """Each step has a thread of its own (`durable`), which ends with what it has asked the system to tell."""
    from holdfast._platform import windows

    asked: list[str] = []
    alarms: list[object] = []

    class Alarm(windows.Alarm):
        def __init__(self, *about: Any) -> None:
            alarms.append(self)
            assert len(alarms) < 30, "it wakes again and again"
            super().__init__(*about)

    def ask(handle: int, ask: Callable[[int], int] = windows.KERNEL.FindNextChangeNotification) -> int:
        done = ask(handle)
        asked.append(threading.current_thread().name)
        return done

    def asks() -> int:
        """Those of threads that wait."""
        return sum(name not in ("MainThread", "holdfast-step") for name in asked)

    async def until(condition: Callable[[], object]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    async def main() -> None:
        holder = lock(place, "sema").acquire()
        waiting = asyncio.create_task(holdfast.AsyncLock(place / "l", durable=True).acquire())
        await asyncio.wait_for(until(asks), SOON)
        for number in range(30):
            count = asks()
            (place / "other").write_text(f"{number}")
            await asyncio.wait_for(until(lambda count=count: asks() > count), SOON)
        assert len(alarms) < 10, "the changes are of another file"  # a few looks are due by the clock
        holder.release()
        await (await asyncio.wait_for(waiting, SOON)).release()

    windows.Alarm = Alarm
    windows.KERNEL.FindNextChangeNotification = ask
    for policy in (asyncio.WindowsProactorEventLoopPolicy(), asyncio.WindowsSelectorEventLoopPolicy()):
        alarms.clear()
        asked.clear()
        asyncio.set_event_loop_policy(policy)
        asyncio.run(main())
        require_nothing_left(place, "other")


@scene
def turns(place: Path, journal: Path) -> None:
    """Take turns as each process of `order` does: one turn, after saying that it waits."""
    from holdfast.engines.file import queue

    queue.PATIENCE = 60.0  # a waiter that reacts later, on a busy machine, may be passed (guarantees.md)
    ours = holdfast.Lock(place / "l", timeout=60)
    assert ours.try_acquire() is None
    waiter = threading.Thread(target=lambda: take_turn(ours, journal))
    waiter.start()
    while os.getpid() not in [one.pid for one in ours.status().waiters]:
        time.sleep(0.005)
    ready()
    waiter.join()


def take_turn(ours: holdfast.Lock, journal: Path) -> None:
    with ours, open(journal, "a") as file:
        file.write(f"{os.getpid()}\n")


@scene
def order(place: Path) -> None:
    """Waiters of several processes get the lock in the order of their arrival; one that is killed is passed."""
    journal = place.with_name(f"{place.name}.journal")
    held = holdfast.Lock(place / "l").acquire()
    crowd = [other("turns", place, journal) for _ in range(5)]
    assert [one.pid for one in holdfast.Lock(place / "l").status().waiters] == [one.pid for one in crowd]
    crowd[2].kill()
    crowd[2].wait()
    began = time.perf_counter()
    held.release()
    for one in crowd:
        one.communicate()
    print(f"four hand-overs after {(time.perf_counter() - began) * 1000:.0f} ms, the ends of the processes included")
    said = [int(line) for line in journal.read_text().split()]
    assert said == [one.pid for one in crowd if one is not crowd[2]], said
    require_nothing_left(place)


@scene
def semaphore(place: Path) -> None:
    """As many holders as slots, then no more; all or none of several."""
    with holdfast.Semaphore(place / "pool", 2) as first, holdfast.Semaphore(place / "pool", 2) as second:
        assert {first.slot, second.slot} == {0, 1}
        assert holdfast.Semaphore(place / "pool", 2).try_acquire() is None
        assert holdfast.Semaphore(place / "pool", 2).status().free == 0
    with holdfast.acquire_all([holdfast.Lock(place / "a"), holdfast.Lock(place / "b")]):
        holder = other("refused", place / "b")
        assert holder.communicate()[0] == "refused\n"
    require_nothing_left(place)


@scene
def refused(path: Path) -> None:
    ready()
    print("acquired" if holdfast.Lock(path).try_acquire() else "refused")


@scene
def sharing(place: Path) -> None:
    """Readers share a kernel lock, and keep a writer out."""
    reader, writer = lock(place, "flock", shared=True), lock(place, "flock")
    with reader, lock(place, "flock", shared=True).acquire():
        assert writer.try_acquire() is None
    with writer:
        assert reader.try_acquire() is None
    require_nothing_left(place, "l")


@scene
def loss(place: Path) -> None:
    """A hold whose file another removes knows it."""
    told = threading.Event()
    ours = holdfast.Lock(place / "l", on_lost=lambda _error: told.set()).acquire()
    os.rename(place / "l", place / "away")
    os.unlink(place / "away")
    assert told.wait(SOON), "nobody looks after holds"
    assert ours.lost
    try:
        ours.release()
    except holdfast.LockLost:
        pass
    else:
        raise AssertionError("the loss went unsaid")
    del ours
    require_nothing_left(place)


@scene
def names(place: Path) -> None:
    """One file is one lock, however it is named; what cannot be a file is refused in plain words."""
    text = str(place / "l")
    with holdfast.Lock(text) as hold:
        assert hold.path == text.replace("\\", "/"), hold.path
        same = [text.replace("\\", "/"), f"\\\\?\\{text}", text.upper(), f"{text}. .", f"{place}\\x\\..\\l"]
        for one in same:
            assert holdfast.Lock(one).try_acquire() is None, one
    os.chdir(place)
    with holdfast.Lock("l"), holdfast.Lock("ll"):
        assert sorted(os.listdir(place)) == ["l", "ll"]
    devices = ("nul", "CON.lock", "COM1", "LPT9.x", "aux ", "conin$", "com¹", "\\\\.\\pipe\\x", "\\\\?\\pipe\\x")
    for wrong in (*devices, "ab:c.lock", "a*", "ll:stream", "a\tb", "l|", f"\\\\?\\{text}.", ""):
        require_refused(wrong)
    deep = place / ("d" * 100) / ("e" * 100) / ("f" * 100) / "l"
    with holdfast.Lock(deep, parents=True) as hold:
        hold.ensure_held()
        assert holdfast.Lock(deep).try_acquire() is None
    for above in (deep.parent, deep.parent.parent, deep.parent.parent.parent):
        os.rmdir(f"\\\\?\\{above}")
    (place / "file").write_text("")
    (place / "directory").mkdir()
    for wrong, options in (
        ("no/l", {}),
        ("file/l", {}),
        ("file/below/l", {"parents": True}),
        ("directory", {}),
        ("directory", {"protocol": "flock"}),
    ):
        try:
            holdfast.Lock(place / wrong, **options).acquire(timeout=0)
        except holdfast.InvalidPath:
            pass
        else:
            raise AssertionError(f"{wrong} was acquired")
    (place / "file").unlink()
    (place / "directory").rmdir()
    require_nothing_left(place)


@scene
def shares(share: Path, place: Path) -> None:
    """A share, by each of its names, has the locks of the directory behind it; what follows no events is looked at."""
    root = str(share).rstrip("\\")  # pathlib ends what is a share with one
    path, bare = root.replace("\\", "/") + "/l", root.removeprefix("\\\\")
    names = [f"{root}\\l", path, f"\\\\?\\UNC\\{bare}\\l", str(place / "l")]
    for name in names:
        with holdfast.Lock(name) as hold:
            assert hold.path == ((place / "l").as_posix() if name == names[-1] else path), hold.path
            for one in names:
                assert holdfast.Lock(one).try_acquire() is None, (name, one)
        require_nothing_left(place, counted=True)
    holder = other("hold", "sema", share)
    listed = holdfast_("ls", share)
    assert path in listed.stdout, listed
    waiter = threading.Thread(target=lambda: lock(share, "sema").acquire().release())
    waiter.start()
    holder.communicate()
    waiter.join(SOON)
    assert not waiter.is_alive()
    for wrong in (root, f"{root}\\nul", f"\\\\?\\UNC\\{bare}\\l."):
        require_refused(wrong)
    require_nothing_left(place, counted=True)


@scene
def foreign_removal(place: Path) -> None:
    """A lock that another program removes, while a waiter looks at it, goes to that waiter."""
    (place / "l").write_text(f"pid={os.getpid()}\ntimestamp={int(time.time())}\n")
    got = threading.Event()

    def wait() -> None:
        with holdfast.Lock(place / "l", timeout=SOON):
            got.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.1)
    assert not got.is_set()
    os.unlink(place / "l")
    assert got.wait(SOON)
    waiter.join()
    require_nothing_left(place)


@scene
def open_elsewhere(place: Path) -> None:
    """A program that has the lock file open, as any program opens files, delays a release no longer than it looks."""
    held = holdfast.Lock(place / "l").acquire()
    reader = open(place / "l", "rb")  # noqa: SIM115 - without sharing of removal
    threading.Timer(0.01, reader.close).start()
    held.release()
    require_nothing_left(place)


class Opened:
    """Another program that opens a file as soon as it has its name, so that nobody can rename or remove it, and closes
    it while we pause."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._handles: list[int] = []

    def open(self, path: str, *, sharing: int = 1 | 2) -> None:  # without sharing of removal
        import _winapi

        read, existing, directories = 0x80000000, 3, 0x02000000
        self._handles.append(_winapi.CreateFile(path, read, sharing, 0, existing, directories, 0))
        self.names.append(os.path.basename(path))

    def close(self, _seconds: float) -> None:
        import _winapi

        while self._handles:
            _winapi.CloseHandle(self._handles.pop())


@scene
def opened_in_between(place: Path) -> None:
    """A removed file is opened by its other name, as by a virus scanner; so is a ticket before it has its own."""
    from holdfast._platform import windows
    from holdfast.engines.file.queue import is_ticket

    other, rename, make_fifo = Opened(), os.rename, windows.WindowsEnvironment.make_fifo

    def renamed(name: str, new: str) -> None:
        rename(name, new)
        if new.endswith(".tmp"):
            other.open(new)

    def made(env: Any, name: str, mode: int, *, dir_fd: Any) -> None:
        make_fifo(env, name, mode, dir_fd=dir_fd)
        other.open(f"{dir_fd.path}\\{name}")

    windows.time = types.SimpleNamespace(**{**vars(time), "sleep": other.close})  # type: ignore[assignment]
    windows._unlink_as_posix = lambda _path: False  # as on a filesystem that cannot
    windows.os.rename = renamed  # type: ignore[assignment]
    hold = lock(place, "sema").acquire()
    hold.release()
    assert other.names
    require_nothing_left(place)
    hold = lock(place, "sema").acquire()
    windows.WindowsEnvironment.make_fifo = made  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: lock(place, "sema").acquire().release())
    thread.start()
    await_(lambda: other.names[-1].endswith(".new"))
    await_(lambda: any(is_ticket(name) for name in os.listdir(place / ".holdfast-l.queue")))
    hold.release()
    thread.join()
    require_nothing_left(place)


@scene
def unshared_directory(place: Path) -> None:
    """A directory that another program has for itself, for an instant, is listed all the same."""
    from holdfast._platform import environment, windows

    other = Opened()
    windows.time = types.SimpleNamespace(**{**vars(time), "sleep": other.close})  # type: ignore[assignment]
    (place / "file").touch()
    other.open(str(place), sharing=0)
    assert environment().list_directory(str(place)) == ["file"]


@scene
def interrupted_removal(place: Path) -> None:
    """Ctrl-C before each bytecode of what removes a file. What that leaves, the next removal takes along."""
    steps = {"unlink", "_unlink_as_posix", "_end_removal", "_rename_away", "_remove_away"}
    left = 0

    def trace(frame: FrameType, event: str, _about: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith("windows.py") or frame.f_code.co_name not in steps:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys._getframe().f_trace_opcodes = True  # Python 3.12 asks for it before the trace begins
    number = 0
    while left <= 0:
        number += 1
        left = number
        sys.settrace(trace)
        try:
            with lock(place, "sema"):
                pass
        except KeyboardInterrupt:
            assert left == 0
        finally:
            sys.settrace(None)
        with lock(place, "sema"):
            pass
        require_nothing_left(place)
    assert number > 100, number


@scene
def crash(place: Path) -> None:
    """A kill between the temporary name and the lock's leaves a file that the next process removes."""
    ready()
    from holdfast._platform import environment

    env = environment()
    env.link_unnamed = lambda _fd, _path: os._exit(0)
    holdfast.Lock(place / "l").acquire()


@scene
def leftovers(place: Path) -> None:
    crashed = other("crash", place)
    crashed.communicate()
    assert len(list(place.iterdir())) == 1
    left = next(place.iterdir()).name
    with holdfast.Lock(place / "l"):
        assert [one.name for one in place.iterdir()] == ["l"]
    queue = place / ".holdfast-l.queue"
    queue.mkdir()
    (queue / left).write_text("")
    with holdfast.Lock(place / "l"):
        pass
    require_nothing_left(place)


@scene
def environment(place: Path) -> None:
    """This is the environment of Windows, whose processes agree on the boot, and whose start times tell them apart."""
    from holdfast._platform import environment

    env = environment()
    assert type(env).__name__ == "WindowsEnvironment"
    told = [subprocess.check_output([sys.executable, __file__, "who"], text=True).split() for _ in range(2)]
    mine = env.identity()
    assert {mine.boot} == {boot for boot, _, _ in told}
    assert len({mine.started, told[0][1], told[1][1]}) == 3
    assert env.inspect(mine.pid).presence == "running"
    assert env.inspect(mine.pid).started == mine.started
    assert abs(env.inspect(mine.pid).since - time.time()) < 3600
    assert env.inspect(2**31 - 4).presence == "gone"
    assert env.inspect(mine.pid + 1).presence == "gone"  # which OpenProcess takes for the same
    assert "python" in env.command(mine.pid)
    assert list(place.iterdir()) == []


@scene
def who() -> None:
    from holdfast._platform import environment

    mine = environment().identity()
    print(mine.boot, mine.started, mine.pid)


def holdfast_(*words: object, **more: object) -> subprocess.CompletedProcess[str]:
    """Run one command of the command line."""
    command = [sys.executable, "-m", "holdfast", *map(str, words)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, **more)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@scene
def run(place: Path) -> None:
    """`holdfast run` holds the lock while its command runs, and ends as that does; a loss ends all of it."""
    path = place / "l"
    done = holdfast_("run", path, "--", *python("import sys; sys.exit(7)"))
    assert (done.returncode, done.stdout, done.stderr) == (7, "", ""), done
    done = holdfast_(
        "run", path, "--", *python("import os; lock = os.environ['HOLDFAST_LOCK']; print(os.stat(lock).st_size > 0)")
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done
    assert holdfast_("run", path, "--", "no-such-program").returncode == 127
    inner = [sys.executable, "-m", "holdfast", "run", "-n", path, "--", *python("")]
    done = holdfast_("run", path, "--", *inner)
    assert (done.returncode, "held by process" in done.stderr) == (75, True), done
    late = python(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {LATE!r}])")
    for options, says in ((), True), (("--until", "command"), False), (("-p", "flock"), True):
        done = holdfast_("run", *options, path, "--", *late)
        assert (done.returncode, f"{says}\n" in done.stdout, "--until" in done.stderr) == (0, True, says), done
        if options[-1:] == ("flock",):
            path.unlink()
        await_(lambda: not any(place.iterdir()))
    steal = "import os, time; lock = os.environ['HOLDFAST_LOCK']; os.rename(lock, lock + '.away'); time.sleep(60)"
    done = holdfast_("run", path, "--", *python(steal))
    assert (done.returncode, "Ending the command" in done.stderr) == (4, True), done
    os.unlink(f"{path}.away")
    require_nothing_left(place)


LATE = "import os, time; time.sleep(0.5); print(os.path.exists(os.environ['HOLDFAST_LOCK']), flush=True)"


def await_(condition: Callable[[], object]) -> None:
    until = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < until, "it has not come so far"
        time.sleep(0.01)


class Working:
    """A `holdfast run` whose command works until it is told to stop; its last word says that it was told."""

    def __init__(
        self, path: Path, *options: str, catches: str = "nothing", program: Sequence[str] = ("-m", "holdfast")
    ) -> None:
        self.path = path
        self._said = path.parent.with_name(f"{path.parent.name}.said")
        self._told = self._said.with_suffix(".told")
        for one in (self._said, self._told):
            one.unlink(missing_ok=True)
        command = [sys.executable, *program, "run", *options, str(path), "--"]
        words = (sys.executable, __file__, "work", catches, str(self._said), str(self._told))
        self.run = subprocess.Popen([*command, *words], stdin=subprocess.DEVNULL)
        to_stop.append(self)
        await_(lambda: self.words()[-1:] == ["working"])
        self.command = int(self.words()[0])
        (self.guardian,) = [pid for pid in children(self.run.pid) if pid != self.command] or [0]

    def words(self) -> list[str]:
        try:
            return self._said.read_text().split()
        except OSError:
            return []

    def stop(self) -> None:
        self._told.write_text("")

    def has_ended(self) -> bool:
        from holdfast._platform import environment

        return environment().inspect(self.command).has_ended


@scene
def work(catches: str, said: Path, told: Path) -> None:
    if catches == "exit":
        signal.signal(signal.SIGINT, lambda *_: sys.exit(9))
    elif catches == "all":
        signal.signal(signal.SIGINT, lambda *_: said.write_text("pressed"))
    said.write_text(f"{os.getpid()} working")
    while not told.exists():
        time.sleep(0.01)
    said.write_text("stopped")


def children(pid: int) -> list[int]:
    import ctypes

    from holdfast._platform.windows import parent

    pids, size = (ctypes.c_uint32 * 1024)(), ctypes.c_uint32()
    ctypes.WinDLL("kernel32").K32EnumProcesses(pids, ctypes.sizeof(pids), ctypes.byref(size))
    return [one for one in pids[: size.value // 4] if one and parent(one) == pid]


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)  # TerminateProcess


@scene
def killed_run(protocol: str, place: Path) -> None:
    """The lock of a killed `holdfast run` is held until its command has ended; then it goes to the waiter."""
    working = Working(place / "l", "-p", protocol, "--parents")
    ours, got = lock(place, protocol), threading.Event()
    assert ours.status().holder.pid == working.run.pid
    waiter = threading.Thread(target=lambda: got.set() if ours.acquire().recovered_from else None)
    waiter.start()
    while not ours.status().waiters:
        time.sleep(0.005)
    kill(working.run.pid)
    working.run.wait()
    for _ in range(20):
        status = ours.status()
        assert (status.locked, status.evidence.proven) == (True, True), status
        assert f"held by a process that inherited it from process {working.run.pid}, which has ended" in str(status)
        assert ours.try_acquire() is None
        time.sleep(0.01)
    assert not got.is_set()
    assert not working.has_ended()
    working.stop()
    waiter.join(SOON)
    assert (got.is_set(), working.words()) == (True, ["stopped"])
    assert working.has_ended()
    holdfast.lock.release_all()
    require_nothing_left(place, *kept_by(protocol))


FAILING = """
import os, sys
from holdfast import cli
from holdfast.cli import job

def fail(wait, original=job.wait_for):
    original(wait)
    if os.path.exists(sys.argv[0]):
        raise MemoryError

job.wait_for = fail
sys.argv[0] = sys.argv.pop(1)
cli.main(sys.argv[1:])
"""


@scene
def failed_run(place: Path) -> None:
    """A `holdfast run` that fails leaves the lock to its guardian, as if it had been killed."""
    fails = place.with_name(f"{place.name}.fails")
    working = Working(place / "l", program=("-c", FAILING, str(fails)))
    fails.write_text("")
    assert working.run.wait() == 3
    status = holdfast.Lock(place / "l").status()
    assert (status.locked, status.evidence.proven) == (True, True), status
    assert not working.has_ended()
    working.stop()
    with holdfast.Lock(place / "l", timeout=SOON) as hold:
        assert hold.recovered_from.pid == working.run.pid
        assert working.words() == ["stopped"]
    require_nothing_left(place)


@scene
def killed_guardian(place: Path) -> None:
    """A `holdfast run` whose guardian is killed goes on alone; if that is killed as well, so is the command."""
    for dies in (False, True):
        working = Working(place / "l")
        kill(working.guardian)
        await_(lambda pid=working.guardian: holdfast_platform().inspect(pid).has_ended)
        assert holdfast.Lock(place / "l").try_acquire() is None
        if dies:
            kill(working.run.pid)
            working.run.wait()
            with holdfast.Lock(place / "l", timeout=SOON) as hold:
                assert hold.recovered_from.pid == working.run.pid
                await_(working.has_ended)
            assert working.words()[-1] == "working"
        else:
            working.stop()
            assert working.run.wait() == 0
        require_nothing_left(place)


_GUARDED_BY = """
import sys
from holdfast import cli
from holdfast.cli import job
begin = job._Guardian.begin
def tells(self, text):
    print("guardian", self._process.pid, file=sys.stderr)
    return begin(self, text)
job._Guardian.begin, job._STARTS_WITHIN, job._GUARDIAN = tells, {starts}, {guardian!r}
sys.exit(cli.main(sys.argv[1:]))
"""


@scene
def hung_guardian(place: Path) -> None:
    """A `holdfast run` ends a guardian that does not start, or does not end, and goes on without it."""
    path = place / "l"
    for starts, guardian, told in (
        (0.5, "import time; time.sleep(60)", "did not start within 0.5 s"),
        (30, "pass", "could not start"),
    ):
        patched = _GUARDED_BY.format(starts=starts, guardian=guardian)
        words = ["run", str(path), "--", *python("import sys; sys.exit(7)"), "x" * 9000]  # more than a pipe takes
        done = subprocess.run(
            [*python(patched), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50
        )
        said = f"{told}: if this process ends, so does the command"
        assert (done.returncode, said in " ".join(done.stderr.split())) == (7, True), done
        pid = int(done.stderr.partition("guardian ")[2].split()[0])
        await_(lambda pid=pid: holdfast_platform().inspect(pid).has_ended)
        require_nothing_left(place)
    working = Working(path)
    suspend(working.guardian)
    working.stop()
    assert working.run.wait(50) == 0
    await_(lambda: holdfast_platform().inspect(working.guardian).has_ended)
    require_nothing_left(place)


def suspend(pid: int) -> None:
    import ctypes

    handle = ctypes.WinDLL("kernel32").OpenProcess(0x800, False, pid)  # PROCESS_SUSPEND_RESUME
    assert handle
    assert ctypes.WinDLL("ntdll").NtSuspendProcess(handle) == 0
    ctypes.WinDLL("kernel32").CloseHandle(handle)


@scene
def robbed_guardian(place: Path) -> None:
    """The guardian of a killed `holdfast run` ends the command when the lock is lost."""
    working = Working(place / "l")
    kill(working.run.pid)
    working.run.wait()
    os.rename(place / "l", place / "away")
    await_(working.has_ended)
    assert working.words()[-1] == "working"
    await_(lambda: holdfast_platform().inspect(working.guardian).has_ended)
    os.unlink(place / "away")
    require_nothing_left(place)


THREADLESS = """
import sys, threading

def few(thread, start=threading.Thread.start):
    if thread.name.startswith("holdfast-"):
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = few
"""
RUN_WITHOUT_THREADS = f"""{THREADLESS}
from holdfast import cli
from holdfast.cli import job

job._GUARDIAN = {THREADLESS!r} + job._GUARDIAN
cli.main(sys.argv[1:])
"""


@scene
def run_without_threads(place: Path) -> None:
    """A loss ends the command though no thread can be had that would notice it (background.py, K10)."""
    for killed in (False, True):
        working = Working(place / "l", program=("-c", RUN_WITHOUT_THREADS))
        if killed:
            kill(working.run.pid)
            working.run.wait()
        os.rename(place / "l", place / "away")
        await_(working.has_ended)
        assert working.words()[-1] == "working"
        if killed:
            await_(lambda pid=working.guardian: holdfast_platform().inspect(pid).has_ended)
        else:
            assert working.run.wait() == 4
        os.unlink(place / "away")
        require_nothing_left(place)


@scene
def run_several(place: Path) -> None:
    """Several locks of `holdfast run` are had all or none, and held until the command of a killed one has ended."""
    a, b = place / "a", place / "b"
    with holdfast.Lock(b):
        done = holdfast_("run", "-n", a, b, "--", *python("print('in')"))
        assert (done.returncode, done.stdout, a.exists()) == (75, "", False), done
    done = holdfast_("run", b, a, "--", *python("import os; print(os.environ['HOLDFAST_LOCK'].splitlines())"))
    assert (done.returncode, done.stdout.count(f"/{place.name}/")) == (0, 2), done
    for beside in (), ("-p", "flock"):
        working = Working(b, *beside, str(a))
        kill(working.run.pid)
        working.run.wait()
        if beside:  # neither is handed over, so the command ends
            await_(working.has_ended)
            a.unlink()
            b.unlink()
            continue
        for path in (a, b):
            assert holdfast.Lock(path).try_acquire() is None
        assert not working.has_ended()
        working.stop()
        for path in (a, b):
            with holdfast.Lock(path, timeout=SOON) as hold:
                assert hold.recovered_from.pid == working.run.pid
        await_(lambda pid=working.guardian: holdfast_platform().inspect(pid).has_ended)
    require_nothing_left(place)


@scene
def run_line(place: Path) -> None:
    """`-c` is a line of cmd, quotes and operators too; `--limit` ends the tree; `--on-conflict` is told the holder."""
    path = place / "l"
    done = holdfast_("run", "-c", 'echo "a b"&& echo %HOLDFAST_LOCK%& exit 3', path)
    assert (done.returncode, done.stdout.split("\n")[0].strip()) == (3, '"a b"'), done
    assert place.name in done.stdout, done
    late = python(f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {LATE!r}]); time.sleep(60)")
    done = holdfast_("run", "--limit", "300ms", "-E", "42", path, "--", *late)
    assert (done.returncode, "which is the limit" in done.stderr, done.stdout) == (42, True, ""), done
    left = python("import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(200)'])")
    for limit in ("5", "20", "80"):  # until the command ends before its time does, which takes a busy machine long
        done = holdfast_("run", "-p", "flock", "--limit", limit, "-E", "42", f"{path}.flock", "--", *left)
        if "Ending what the command has left running" in done.stderr:
            break
    else:
        raise AssertionError(done)
    assert done.returncode == 42, done
    os.unlink(f"{path}.flock")
    with holdfast.Lock(path):
        done = holdfast_("run", "-n", "-q", "--on-conflict", "echo %HOLDFAST_HOLDER%", path, "--", "nothing")
    assert (done.returncode, done.stdout.strip()) == (75, str(os.getpid())), done
    require_nothing_left(place)


@scene
def hold_url(url: str, _place: Path) -> None:
    """Hold a lock on a server until standard input ends."""
    with holdfast.Lock(url, timeout=SOON):
        ready()
        sys.stdin.read()


@scene
def increment_by(url: str, counter: Path) -> None:
    ours = holdfast.Lock(url, timeout=120)
    for _ in range(10):
        with ours:
            counter.write_text(str(int(counter.read_text()) + 1))


@scene
def server(url: str, place: Path) -> None:
    """A lock on a server: held, refused, handed on, freed by a death, counted with, and awaited on both event loops."""
    ours, got = holdfast.Lock(url), deque[float]()
    holder = other("hold_url", url, place)
    assert (ours.status().locked, ours.status().holder.pid) == (True, holder.pid)
    assert ours.try_acquire() is None
    try:
        ours.acquire(timeout=0.2)
    except holdfast.AcquireTimeout:
        pass
    else:
        raise AssertionError("two holders")

    def acquire() -> None:
        with ours.acquire(SOON):
            got.append(time.perf_counter())

    for dies in (False, True):
        waiter = threading.Thread(target=acquire)
        waiter.start()
        await_(lambda: ours.status().waiters)
        if dies:
            holder.kill()
        began = time.perf_counter()
        holder.communicate()
        waiter.join(SOON)
        print(f"{'replaced' if dies else 'handed on'} after {(got.pop() - began) * 1000:.1f} ms")
        if not dies:
            holder = other("hold_url", url, place)
    counter = place.with_name("counter")
    counter.write_text("0")
    workers = [subprocess.Popen([sys.executable, __file__, "increment_by", url, str(counter)]) for _ in range(3)]
    assert [one.wait() for one in workers] == [0, 0, 0]
    assert counter.read_text() == "30"

    async def take() -> None:
        async with holdfast.AsyncLock(url, timeout=SOON):
            waiting = asyncio.ensure_future(holdfast.AsyncLock(url).acquire(0.1))
            assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], holdfast.AcquireTimeout)

    for loop in (asyncio.ProactorEventLoop(), asyncio.SelectorEventLoop()):
        loop.run_until_complete(take())
        loop.close()
    done = holdfast_("run", url, "--", *python("import os; print(int(os.environ['HOLDFAST_TOKEN']) > 0)"))
    assert (done.returncode, done.stdout) == (0, "True\n"), done
    assert not ours.status().locked


@scene
def killed_flock(place: Path) -> None:
    """A lock of the kernel alone cannot be handed over: the command of a killed `holdfast run` ends with it."""
    working = Working(place / "l", "-p", "flock")
    assert not working.guardian
    kill(working.run.pid)
    working.run.wait()
    with lock(place, "flock"):
        await_(working.has_ended)
    assert working.words()[-1] == "working"
    require_nothing_left(place, "l")


def holdfast_platform() -> object:
    from holdfast._platform import environment

    return environment()


@scene
def shell(place: Path) -> None:
    """`holdfast try` binds the lock to the shell that calls it, and it is free when that ends."""
    path, script = place / "l", place.with_name(f"{place.name}.bat")
    ours = f'"{sys.executable}" -m holdfast'
    lines = ("try", "status", "release", "status", "try")
    script.write_text("@echo off\n" + "".join(f"{ours} {one} -q {path}\necho {one} %ERRORLEVEL%\n" for one in lines))
    shell = subprocess.run(["cmd", "/c", str(script)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = [line.strip() for line in shell.stdout.splitlines() if line.strip()]
    assert said == ["try 0", "status 1", "release 0", "status 0", "try 0"], (shell, said)
    status = holdfast.Lock(path).status()
    assert (status.locked, status.stale, status.evidence.proven) == (False, True, True), status
    with holdfast.Lock(path, timeout=1) as hold:
        assert hold.recovered_from is not None
    require_nothing_left(place)


@scene
def commands(place: Path) -> None:
    """The other commands: what they say of a lock, and what cannot be had there is refused in plain words."""
    path = place / "l"
    holder = other("hold", "sema", place)
    done = holdfast_("status", "--json", path)
    assert (done.returncode, json.loads(done.stdout)["holder"]["pid"]) == (1, holder.pid), done
    assert holdfast_("wait", "-w", "0.1", path).returncode == 1
    done = holdfast_("ls", place)
    assert (done.returncode, str(holder.pid) in done.stdout) == (0, True), done
    done = holdfast_("doctor", place)
    assert (done.returncode, "all promises hold here" in done.stdout) == (0, True), done
    done = holdfast_("doctor", place, "--peer", place)
    assert (done.returncode, "each sees the other's kernel lock (flock)" in done.stdout) == (0, True), done
    assert [name for name in os.listdir(place) if name.startswith(".holdfast")] == []
    holder.communicate()
    assert holdfast_("wait", "-w", "1", path).returncode == 0
    assert holdfast_("clean", place).returncode == 0
    assert holdfast_("sema", "try", path).returncode == 0
    assert holdfast_("sema", "release", path).returncode == 0
    done = holdfast_("beads", "daemon", place, "--", "x")
    assert (done.returncode, "that this system does not have" in done.stderr) == (3, True), done
    done = holdfast_("status", place / "schlüssel-☃", env={**os.environ, "PYTHONUTF8": "1"}, encoding="utf-8")
    assert (done.returncode, "schlüssel-☃" in done.stdout) == (0, True), done
    require_nothing_left(place)


def command_at_work(*words: object) -> subprocess.Popen[str]:
    """Start a command that goes on until it is killed; its output comes by pipes."""
    command, said = [sys.executable, "-m", "holdfast", *map(str, words)], subprocess.PIPE
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, text=True)


@scene
def following(place: Path) -> None:
    """`holdfast watch` tells what happens, `holdfast top` how things are, by looking."""
    watch = command_at_work("watch", "-q", place)
    try:
        told = [json.loads(line) for line in _what_is_told(place, watch)]
    finally:
        watch.kill()
        watch.communicate()
    assert {one["path"] for one in told} == {(place / "l").as_posix()}, told
    holder, waiter = told[0]["pid"], told[-1]["pid"]
    # A lock that changes hands between two looks may have a file of the same number, and seem taken over.
    kinds = [one["kind"] for one in told if one["kind"] != "reclaimed" and one["pid"] in (holder, waiter)]
    assert kinds[-4:] in (
        ["waiting", "released", "acquired", "released"],
        [kinds[0], "waiting", "acquired", "released"],
    ), told
    require_nothing_left(place)


def _what_is_told(place: Path, watch: subprocess.Popen[str]) -> Iterator[str]:
    holder = other("hold", "sema", place)
    waiter = other("hold_later", place)
    for line in watch.stdout:
        yield line
        kind, pid = json.loads(line)["kind"], json.loads(line)["pid"]
        if kind == "waiting":
            done = holdfast_("top", place)
            assert f" {holder.pid} " in done.stdout, done
            assert "1 waiting" in done.stdout, done
            holder.communicate()
        elif (kind, pid) == ("acquired", waiter.pid):
            waiter.communicate()
        elif (kind, pid) == ("released", waiter.pid):
            return


@scene
def recording(place: Path) -> None:
    """`--record` appends lines, each at the end of that moment; or says why it cannot. Two processes at the same moment
    are not tried: Wine looks for the end first, and writes then."""
    from holdfast.cli.console import Recording

    events = place / "events"
    done = holdfast_("run", "--record", events, place / "l", "--", *python("pass"))
    kinds = [json.loads(line)["kind"] for line in events.read_bytes().split(b"\n")[:-1]]
    assert (done.returncode, kinds) == (0, ["acquired", "released"]), done
    both = [Recording(str(events)) for _ in range(2)]
    for number, record in enumerate([*both, *both]):
        record.add(str(number))
    assert events.read_bytes().splitlines(keepends=True)[2:] == [b"0\n", b"1\n", b"2\n", b"3\n"]
    done = holdfast_("watch", "--record", place / "no" / "where", place)
    assert (done.returncode, "where" in done.stderr, len(done.stderr.splitlines())) == (3, True, 1), done
    require_nothing_left(place, "events")


@scene
def hold_later(place: Path) -> None:
    waiter = threading.Thread(target=lambda: lock(place, "sema").acquire())
    waiter.start()
    while os.getpid() not in [one.pid for one in lock(place, "sema").status().waiters]:
        time.sleep(0.005)
    ready()
    waiter.join()
    sys.stdin.read()
    holdfast.lock.release_all()


@scene
def reaping(place: Path) -> None:
    """`holdfast reap` removes the lock of a holder that is killed, and of none that lives."""
    reap = command_at_work("reap", place)
    try:
        assert "watching" in reap.stderr.readline()
        killed, lives = other("hold", "sema", place), other("hold", "sidecar", place / "other")
        killed.kill()
        killed.wait()
        assert f"removed {(place / 'l').as_posix()}: " in reap.stderr.readline()
        assert not (place / "l").exists()
        assert holdfast.Lock(place / "other" / "l", protocol="sidecar").status().locked
        lives.communicate()
    finally:
        reap.kill()
        reap.communicate()
    require_nothing_left(place, "other")


@scene
def interruption(place: Path) -> None:
    """Ctrl-C ends a wait for another process at once, and nothing is left of it."""
    holder = other("hold", "sema", place)
    threading.Timer(0.5, signal.raise_signal, [signal.SIGINT]).start()
    began = time.monotonic()
    try:
        lock(place, "sema").acquire()
    except KeyboardInterrupt:
        assert time.monotonic() - began < SOON / 2
    else:
        raise AssertionError("nothing came")
    assert lock(place, "sema").status().waiters == ()
    holder.communicate()
    require_nothing_left(place)


STOPPED = 0xC000013A
"""The exit status of a process that Ctrl-C has ended."""


def in_console(*words: object) -> None:
    """Play a scene in a console of its own, where it can send Ctrl-C to all processes that it has started."""
    command = [sys.executable, __file__, *map(str, words)]
    done = subprocess.run(command, creationflags=subprocess.CREATE_NO_WINDOW, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, words


def press_control_c() -> None:
    import ctypes

    came = threading.Event()  # to us as well
    before = signal.signal(signal.SIGINT, lambda *_: came.set())
    assert ctypes.WinDLL("kernel32").GenerateConsoleCtrlEvent(0, 0)
    await_(came.is_set)
    signal.signal(signal.SIGINT, before)


@scene
def control_c(place: Path) -> None:
    """Ctrl-C ends waits, and nothing is left of them; of a `run` at work it is the command's."""
    holder = other("hold", "sema", place)
    in_console("control_c_for_waiters", place)
    holder.communicate()
    require_nothing_left(place)
    in_console("control_c_for_commands", place)
    require_nothing_left(place)


@scene
def control_c_for_waiters(place: Path) -> None:
    path = place / "l"
    commands = (
        ["run", path, "--", "nothing"],
        ["acquire", "-w", "60", "--owner-pid", os.getpid(), path],
        ["wait", path],
    )
    waiting = []
    for words in commands:
        command = [sys.executable, "-m", "holdfast", *map(str, words)]
        waiting.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        assert "waiting" in waiting[-1].stderr.readline()
    command = [sys.executable, "-c", f"import holdfast; holdfast.Lock({str(path)!r}).acquire()"]
    waiting.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
    while waiting[-1].pid not in [one.pid for one in holdfast.Lock(path).status().waiters]:
        time.sleep(0.01)
    press_control_c()
    said = [one.communicate(timeout=SOON)[1] for one in waiting]
    assert [one.returncode for one in waiting] == [STOPPED] * 4, said
    told = "".join(said[:3]).splitlines()
    assert all(line.startswith("holdfast: waiting for") for line in told), said  # with another place in the queue
    assert holdfast.Lock(path).status().waiters == ()


@scene
def control_c_for_commands(place: Path) -> None:
    for catches, status in ("exit", 9), ("nothing", STOPPED):
        working = Working(place / "l", catches=catches)
        press_control_c()
        assert working.run.wait(SOON) == status
        require_nothing_left(place)
    working = Working(place / "l", catches="all")
    press_control_c()
    await_(lambda: working.words()[-1:] == ["pressed"])
    assert (working.run.poll(), holdfast_platform().inspect(working.guardian).has_ended) == (None, False)
    working.stop()
    assert working.run.wait(SOON) == 0


class Screen:
    """The console of this process: its text, and its keys."""

    def __init__(self) -> None:
        import ctypes
        import msvcrt

        from holdfast._platform.windows_console import Console

        self.console = Console()
        self.stream = os.open("CONOUT$", os.O_RDWR)
        self.handle = ctypes.c_void_p(msvcrt.get_osfhandle(self.stream))
        self.kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        self.unit, self.number, self.short = ctypes.create_unicode_buffer, ctypes.c_uint32, ctypes.c_int16
        self.resize(80, 12)
        self.modes = self.console.modes()

    def resize(self, width: int, height: int) -> None:
        assert self.kernel.SetConsoleWindowInfo(self.handle, True, (self.short * 4)(0, 0, width - 1, height - 1))

    def press(self, key: int | str) -> None:
        """Press and release a key: a character, or the code of a key without one."""
        code, unit = (key, 0) if isinstance(key, int) else (0, ord(key))
        events = b"".join(struct.pack("<HxxiHHHHI", 1, down, 1, code, 0, unit, 0) for down in (1, 0))
        assert self.kernel.WriteConsoleInputW(int(self.console.input), events, 2, (self.number * 1)())

    def text(self) -> str:
        """The text of its first lines. Wine's console shows sequences, instead of obeying them."""
        text, read = self.unit(_ON_SCREEN + 1), (self.number * 1)()
        assert self.kernel.ReadConsoleOutputCharacterW(self.handle, text, _ON_SCREEN, 0, read)
        return text.value.rstrip()

    def lines(self) -> list[str]:
        """The lines as a console shows them that obeys sequences."""
        text, (width, height) = self.text(), self.console.size()
        if "\x1b" not in text:
            return [text[at : at + width].rstrip() for at in range(0, width * height, width)]
        found = [""] * height
        written = re.split(r"\x1b\[(\d+);1H", text.rpartition("\x1b[2J")[2])
        for at, line in zip(written[1::2], written[2::2], strict=True):
            if int(at) <= height:  # else it is of a larger window
                found[int(at) - 1] = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", line).rstrip()
        return found

    def top(self, place: Path, code: str = "") -> subprocess.Popen[str]:
        """Start `holdfast top`, changed by this code, and wait until it has taken over the console."""
        words = ["-m", "holdfast"] if not code else ["-c", f"{code}\nfrom holdfast import cli; cli.main(sys.argv[1:])"]
        top = subprocess.Popen(
            [sys.executable, *words, "top", str(place)], stdout=self.stream, stderr=subprocess.PIPE, text=True
        )
        await_(lambda: self.console.modes()[0] != self.modes[0] or top.poll() is not None)
        return top

    def require_given_back(self) -> None:
        assert self.console.modes() == self.modes
        text = self.text()
        assert "\x1b" not in text or text.endswith("\x1b[?1049l"), text[-200:]


_ON_SCREEN = 80 * 150


@scene
def in_a_console(name: str, place: Path) -> None:
    in_console(name, place)


@scene
def top_is_drawn(place: Path) -> None:
    screen = Screen()
    holder = other("hold", "sema", place)
    top = screen.top(place)
    await_(lambda: f" {holder.pid} " in screen.lines()[3])
    assert (screen.lines()[0][:7], screen.lines()[-1]) == ("1 held,", "q quit  s sort  r reverse  ? help")
    screen.press("?")
    await_(lambda: screen.lines()[-1] == "any key goes back")
    screen.press(DOWN)
    await_(lambda: screen.lines()[-1].startswith("q quit"))
    screen.press("s")
    await_(lambda: screen.lines()[0].endswith("by longest hold"))
    screen.press("r")
    await_(lambda: screen.lines()[0].endswith("by longest hold, backwards"))
    holder.communicate()
    await_(lambda: "nobody holds or waits for a lock here" in screen.lines())
    screen.resize(60, 9)
    await_(lambda: len(screen.lines()) == 9 and screen.lines()[-1].startswith("q quit"))
    screen.press("q")
    assert (top.wait(SOON), top.stderr.read()) == (0, "")
    screen.require_given_back()


DOWN = 0x28
_DRAWN = """
import signal, sys
from holdfast.cli import fullscreen
draw = fullscreen.Display.draw
def then(self, lines):
    draw(self, lines)
    {then}
fullscreen.Display.draw = then
"""
"""Acts when the screen has been drawn."""
_STOPS = """
import sys, threading
from holdfast._platform.windows_console import Console
write, calls = Console.write, []
def stops(self, text):
    calls.append(text)
    if len(calls) > 2:
        print('stopped', file=sys.stderr, flush=True)
        threading.Event().wait()
    write(self, text)
Console.write = stops
"""
"""Has the console accept nothing more when the screen has been drawn twice."""


@scene
def top_ends(place: Path) -> None:
    """By Ctrl-C, by Ctrl-Break as Python raises it, and by an error."""
    screen = Screen()
    for code, status in (
        ("", STOPPED),
        (_DRAWN.format(then="signal.raise_signal(signal.SIGBREAK)"), STOPPED),
        (_DRAWN.format(then="raise OSError(28, 'No space left on device')"), 3),
    ):
        top = screen.top(place, code)
        if not code:
            await_(lambda: screen.lines()[-1])
            press_control_c()
        assert top.wait(SOON) == status, top.stderr.read()
        assert top.stderr.read() == ("" if status != 3 else "holdfast: No space left on device\n")
        screen.require_given_back()


@scene
def top_without_output(place: Path) -> None:
    """While the console takes nothing, as when somebody selects text in it, a key and Ctrl-C end it."""
    screen = Screen()
    with lock(place, "sema"):  # its time moves, so there is something to write
        for pressed, status in ("q", 0), ("", STOPPED):
            top = screen.top(place, _STOPS)
            assert top.stderr.readline() == "stopped\n"
            screen.press("q") if pressed else press_control_c()
            assert top.wait(SOON) == status, top.stderr.read()
            assert screen.console.modes() == screen.modes


@scene
def top_on_what_is_no_screen(place: Path) -> None:
    """A table, and the end: into NUL, and in a console that is said to be dumb."""
    screen = Screen()
    command = [sys.executable, "-m", "holdfast", "top", str(place)]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, timeout=SOON).returncode == 0
    dumb = {**os.environ, "TERM": "dumb"}
    done = subprocess.run(command, stdout=screen.stream, stderr=subprocess.PIPE, text=True, env=dumb, timeout=SOON)
    assert (done.returncode, "cannot be drawn on" in done.stderr) == (0, True), done
    assert screen.text() == "0 held, 0 waiting, 0 stale"
    assert screen.console.modes() == screen.modes


@scene
def control_break(place: Path) -> None:
    """Ctrl-Break, as Python raises it, ends the wait of a command, and nothing is left of it."""
    holder = other("hold", "sema", place)
    for words in (["run", "l", "--", "nothing"], ["acquire", "-w", "60", "--owner-pid", str(os.getpid()), "l"]):
        code = (
            "import signal, threading, time, holdfast; from holdfast import cli\n"
            "def press():\n while not holdfast.Lock('l').status().waiters: time.sleep(0.01)\n"
            " signal.raise_signal(signal.SIGBREAK)\n"
            f"threading.Thread(target=press).start(); cli.main({words!r})"
        )
        done = subprocess.run(python(code), cwd=place, stdin=subprocess.DEVNULL, timeout=2 * SOON)
        assert done.returncode == STOPPED, done
        assert holdfast.Lock(place / "l").status().waiters == ()
    holder.communicate()
    require_nothing_left(place)


@scene
def control_c_before_the_command(place: Path) -> None:
    """A guardian takes a moment to start. What is pressed meanwhile reaches no command, so none is started."""
    for name in "SIGINT", "SIGBREAK":
        code = (
            "import signal; from holdfast import cli; from holdfast.cli import job\n"
            "def press(*about, begin=job._guardian_of):\n"
            f" signal.raise_signal(signal.{name}); return begin(*about)\n"
            "job._guardian_of = press\n"
            "cli.main(['run', 'l', '--', 'cmd', '/c', 'echo at work'])"
        )
        done = subprocess.run(
            python(code), cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=2 * SOON
        )
        assert (done.returncode, done.stdout) == (STOPPED, b""), done
        require_nothing_left(place)


PEERS = {"filelock": "hold_filelock", "portalocker": "hold_portalocker"}


@scene
def hold_filelock(path: Path) -> None:
    import filelock

    with filelock.FileLock(path):
        ready()
        sys.stdin.read()


@scene
def hold_portalocker(path: Path) -> None:
    import portalocker

    with portalocker.Lock(path, "a", flags=portalocker.LOCK_EX | portalocker.LOCK_NB):
        ready()
        sys.stdin.read()


@scene
def peer(name: str, place: Path) -> None:
    """`protocol="flock"` excludes another library's locks on the same file, both ways, and gets them in turn."""
    path = place / "l"
    path.touch()
    theirs = other(PEERS[name], path)
    ours = lock(place, "flock")
    assert ours.try_acquire() is None
    assert ours.status().locked
    theirs.kill()
    theirs.communicate()
    with ours:
        assert not acquires(name, path), "both are inside"
    theirs = other(PEERS[name], path)
    waiter = threading.Thread(target=lambda: ours.acquire().release())
    waiter.start()
    theirs.communicate()
    waiter.join(SOON)
    assert not waiter.is_alive()
    assert acquires(name, path)


def acquires(name: str, path: Path) -> bool:
    """Whether the other library gets the lock at once."""
    if name == "filelock":
        import filelock

        try:
            with filelock.FileLock(path, timeout=0):
                return True
        except filelock.Timeout:
            return False
    import portalocker

    try:
        with portalocker.Lock(path, "a", timeout=0, flags=portalocker.LOCK_EX | portalocker.LOCK_NB):
            return True
    except portalocker.exceptions.LockException:
        return False


class FsSafe:
    """A Node with fs-safe that gets its orders in lines (foreign/fs_safe.mjs)."""

    def __init__(self, node: str, module: str, target: Path, stale_ms: int = 30000) -> None:
        script = Path(__file__).parents[1] / "process" / "foreign" / "fs_safe.mjs"
        # It takes Wine for an old Windows.
        variables = {**os.environ, "NODE_SKIP_PLATFORM_CHECK": "1"}
        command = [node, str(script), module, str(target), str(stale_ms)]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, **streams, env=variables, encoding="utf-8")
        started.append(self.process)

    def tell(self, *words: object) -> None:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        return self.process.stdout.readline().strip()

    def ask(self, *words: object) -> str:
        self.tell(*words)
        return self.hear()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def is_dead(status: holdfast.Status) -> bool:
    return status.liveness is holdfast.Liveness.DEAD


@scene
def fs_safe(node: str, module: str, place: Path) -> None:
    """fs-safe in Node, and `protocol="sidecar"`: each is refused what the other holds, is let in after it, and takes
    over from it when it has died."""
    ours, theirs = lock(place, "sidecar"), FsSafe(node, module, place / "l", stale_ms=300)
    assert theirs.ask("take") == "acquired"
    assert ours.try_acquire() is None
    assert ours.status().holder.pid == theirs.process.pid
    assert ours.status().record.fields["payload"]["note"] == 'ü \u2028 "x"'
    waiter = threading.Thread(target=lambda: ours.acquire().release())
    waiter.start()
    assert theirs.ask("release") == "released"
    waiter.join(SOON)
    assert not waiter.is_alive(), "their release woke nobody"
    with ours:
        assert theirs.ask("take") in ("held", "stale")
        theirs.tell("acquire")
    assert theirs.hear() == "acquired"
    theirs.end()
    with lock(place, "sidecar", stale_after=0.3, stale=is_dead) as hold:
        assert hold.recovered_from.pid == theirs.process.pid
    holder = other("hold", "sidecar", place)
    holder.kill()
    holder.communicate()
    theirs = FsSafe(node, module, place / "l", stale_ms=300)
    until = time.monotonic() + SOON
    while (answer := theirs.ask("seize")) != "acquired":
        assert answer in ("held", "stale"), answer
        assert time.monotonic() < until, "a dead holder of ours is never replaced by them"
    assert theirs.ask("release") == "released"
    theirs.end()
    require_nothing_left(place)


@scene
def visit(state: Path, place: Path) -> None:
    """Visit as one of our processes in `fs_safe_increments`, until `go` is removed; print the number of visits."""
    ours, done = lock(place, "sidecar", timeout=60), 0
    ready()
    while (state / "go").exists():
        with ours:
            os.close(os.open(state / "inside", os.O_CREAT | os.O_EXCL))
            (state / "counter").write_text(str(int((state / "counter").read_text()) + 1))
            os.unlink(state / "inside")
        done += 1
        time.sleep(0.005)
    print(done)


@scene
def fs_safe_increments(node: str, module: str, place: Path) -> None:
    """Every increment of two processes of fs-safe and two of ours counts, and nobody meets another inside."""
    state = place.with_name(f"{place.name}.state")
    state.mkdir()
    (state / "counter").write_text("0")
    (state / "go").touch()
    theirs = [FsSafe(node, module, place / "l") for _ in range(2)]
    ours = [other("visit", state, place) for _ in range(2)]
    for one in theirs:
        one.tell("storm", state.as_posix(), 0.005)
    until = time.monotonic() + SOON
    while int((state / "counter").read_text() or 0) < ROUNDS * 4 and time.monotonic() < until:
        time.sleep(0.05)
    (state / "go").unlink()
    counts = [int(one.hear()) for one in theirs] + [int(one.communicate()[0]) for one in ours]
    for one in theirs:
        one.end()
    print(f"{counts} visits of two of fs-safe and two of ours")
    assert not (state / "overlaps").exists(), (state / "overlaps").read_text()
    assert all(counts), counts
    assert sum(counts) == int((state / "counter").read_text())
    require_nothing_left(place)


@scene
def contend(protocols: str, place: Path, counter: Path) -> None:
    """Contend as each process of `storm` does, until it is killed: count, and print the count so far."""
    inside, new = counter.with_suffix(".inside"), counter.with_suffix(f".{os.getpid()}")
    mine = protocols.split(",")
    ours = lock(place, mine[os.getpid() // 4 % len(mine)], timeout=120)
    while True:
        with ours:
            if inside.exists():
                require_end(int(inside.read_text()))
            for path, text in ((inside, os.getpid()), (counter, int(counter.read_text()) + 1)):
                new.write_text(str(text))
                os.replace(new, path)
            print(counter.read_text(), flush=True)
            inside.unlink()


def require_end(pid: int) -> None:
    """Require that a process was inside when it was killed. Its locks may go a moment before it counts as ended."""
    from holdfast._platform import environment

    until = time.monotonic() + 5
    while not environment().inspect(pid).has_ended:
        assert time.monotonic() < until, f"process {pid} is inside as well"
        time.sleep(0.001)


class Contenders:
    """Processes that contend, the oldest first, and all their output."""

    def __init__(self, *words: object) -> None:
        self._command = [sys.executable, __file__, "contend", *map(str, words)]
        self._running: deque[tuple[subprocess.Popen[str], threading.Thread, threading.Event]] = deque()
        self.said: list[int] = []
        self.kills = self.not_started = 0

    def start(self) -> None:
        process, heard = self._started(), threading.Event()

        def listen() -> None:
            for line in process.stdout:
                if line.endswith("\n"):
                    self.said.append(int(line))
                    heard.set()

        thread = threading.Thread(target=listen)
        thread.start()
        self._running.append((process, thread, heard))

    def _started(self) -> subprocess.Popen[str]:
        """Start a process. Wine now and then cannot, and calls that an internal error."""
        for tries_left in range(9, -1, -1):
            try:
                return subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
            except OSError as error:
                if error.winerror != INTERNAL_ERROR or not tries_left:
                    raise
                self.not_started += 1
                time.sleep(0.1)
        raise AssertionError("the last try ends by raising")

    def kill_oldest(self) -> None:
        """Kill the oldest process, once it has had its turn."""
        process, _, heard = self._running[0]
        assert heard.wait(PATIENCE), f"process {process.pid} has not had its turn in {PATIENCE:.0f} s"
        assert process.poll() is None, f"process {process.pid} has ended by itself, with status {process.returncode}"
        self._kill()

    def kill_all(self) -> None:
        while self._running:
            self._kill()

    def _kill(self) -> None:
        process, thread, _ = self._running.popleft()
        process.kill()
        self.kills += 1
        process.wait()
        thread.join()


INTERNAL_ERROR = 1359
PATIENCE = 120.0


@scene
def storm(seconds: str, protocols: str, place: Path) -> None:
    """Contenders of which one is killed again and again: nothing is counted twice, and every death is noticed."""
    counter = place.with_name(f"{place.name}.counter")
    counter.write_text("0")
    dice, until = random.Random(7), time.monotonic() + float(seconds)
    contenders = Contenders(protocols, place, counter)
    first = protocols.split(",")[0]
    try:
        for _ in range(PROCESSES + 2):
            contenders.start()
        while time.monotonic() < until:
            time.sleep(dice.uniform(0.1, 1.2))
            contenders.kill_oldest()
            contenders.start()
    except AssertionError:
        print(lock(place, first).status(), sorted(place.rglob("*")))
        raise
    finally:
        contenders.kill_all()
    last, said = int(counter.read_text()), contenders.said
    print(f"{protocols}: {contenders.kills} kills, counted to {last}, of which {last - len(said)} were not said")
    print(f"{contenders.not_started} times no process could be started")
    assert len(set(said)) == len(said), "counted twice"
    assert 0 <= last - len(said) <= contenders.kills, "an increment is lost"
    _platform.environment().swept.clear()  # as a process has that begins now
    with lock(place, first):
        pass
    require_nothing_left(place, *kept_by(first))


if __name__ == "__main__":
    words = [Path(word) if "\\" in word else word for word in sys.argv[2:]]
    try:
        SCENES[sys.argv[1]](*words)
    finally:
        for one in started:
            one.kill()
        for command in to_stop:
            command.stop()
    if sys.argv[1] not in ("refused", "who", "hold", "increment", "turns", "work", "hold_later", "visit"):
        print("done")
