"""The program of each machine: `program.py ROLE ARGUMENTS`. NODE, SHARE and OUT tell where it is (lab.py)."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from holdfast import AcquireTimeout, AsyncLock, EngineUnavailable, Hold, Lock, LockLost, UnsupportedFilesystem

NODE, SHARE, OUT = int(os.environ["NODE"]), os.environ["SHARE"], os.environ["OUT"]
BOOT = os.environ["BOOT"]
PATH = f"{SHARE}/x.lock"


def tell(name: str, text: str = "") -> None:
    with open(f"{OUT}/.{name}.{NODE}", "w") as file:
        file.write(text)
    os.replace(f"{OUT}/.{name}.{NODE}", f"{OUT}/{name}")


def await_(name: str) -> str:
    while not os.path.exists(f"{OUT}/{name}"):
        time.sleep(0.02)
    with open(f"{OUT}/{name}") as file:
        return file.read()


def count(protocol: str, lease: str, processes: str) -> None:
    """Increment a number on the host, which only the lock protects, until the test has seen enough."""
    children = [
        subprocess.Popen([sys.executable, __file__, "increment", protocol, lease, str(number)])
        for number in range(int(processes))
    ]
    failed = [child.wait() for child in children]
    assert not any(failed), failed


def increment(protocol: str, lease: str, process: str) -> None:
    """Increment again and again, and report each number before and after it is made: a kill may come in between
    (increments in test_leases.py)."""
    lock = Lock(PATH, protocol=protocol, lease=None if protocol == "flock" else float(lease))
    made = os.open(f"{OUT}/made-{NODE}.{BOOT}.{process}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while not os.path.exists(f"{OUT}/end"):
        hold = lock.acquire(timeout=300)
        entered = _enter()
        _increment(hold, made)
        if entered:
            os.unlink(f"{OUT}/inside")
        try:
            hold.release()
        except LockLost:
            print("LOST")


def _enter() -> bool:
    """Enter; whether nobody else is inside, except a machine that was killed there."""
    while True:
        try:
            fd = os.open(f"{OUT}/inside", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            try:
                with open(f"{OUT}/inside") as file:
                    who = file.read()
            except FileNotFoundError:
                who = "one that has just left"
            if not os.path.exists(f"{OUT}/killed-{who}"):
                print(f"OVERLAP with {who}")
                return False
            os.unlink(f"{OUT}/inside")
            continue
        os.write(fd, f"{NODE}.{BOOT}".encode())
        os.close(fd)
        return True


def _increment(hold: Hold, made: int) -> None:
    """Act as a resource with fencing does: refuse a token that is older than the last one."""
    fd = os.open(f"{OUT}/counter", os.O_RDWR)
    number, token = map(int, os.pread(fd, 64, 0).split())
    if hold.token is None or hold.token > token:
        os.write(made, f"<{number + 1} ".encode())
        os.pwrite(fd, f"{number + 1:020} {hold.token or 0:020}".encode(), 0)
        os.write(made, f">{number + 1} ".encode())
    else:
        print(f"FENCED {hold.token} by {token}, {'lost' if hold.lost else 'not known to be lost'}")
    os.close(fd)


def refuse() -> None:
    """Require that lock files are refused here: nothing is left of the attempt, and `flock` works."""
    try:
        Lock(f"{SHARE}/{NODE}.lock").acquire(timeout=10)
    except UnsupportedFilesystem as refusal:
        text = str(refusal)
    else:
        text = "it was acquired"
    assert "protocol='flock'" in text, text
    assert os.listdir(SHARE) in ([], ["x.lock"])
    with Lock(PATH, protocol="flock").acquire(timeout=60):
        assert not Lock(PATH, protocol="flock").try_acquire()


def hold(lease: str, rounds: str) -> None:
    """Hold on machine 1 and wait on machine 0, round by round, when the test says so."""
    for number in range(int(rounds)):
        if NODE and os.path.exists(f"{OUT}/held-{number}"):
            continue  # this machine was killed in it
        (_holds if NODE else _waits)(Lock(PATH, lease=float(lease), on_lost=_told(number)), number)


def _told(number: int) -> Callable[[LockLost], None]:
    return lambda _: tell(f"lost-{number}", f"{time.time()}")


def _holds(lock: Lock, number: int) -> None:
    held = lock.acquire(timeout=120)
    tell(f"held-{number}", f"{held.token}")
    await_(f"leave-{number}")
    try:
        held.release()
        tell(f"left-{number}", "released")
    except LockLost:
        tell(f"left-{number}", "lost")
    await_(f"next-{number}")


def _waits(lock: Lock, number: int) -> None:
    await_(f"held-{number}")
    tell(f"waiting-{number}")
    with lock.acquire(timeout=300) as held:
        tell(f"acquired-{number}", f"{time.time()} {held.token}")
        await_(f"next-{number}")
        assert not held.lost


def stop(lease: str) -> None:
    """Have a holder on machine 1 that is stopped, and goes on when the test says so."""
    if NODE == 0:
        hold(lease, "1")
        return
    child = subprocess.Popen([sys.executable, __file__, "hold", lease, "1"])
    await_("held-0")
    await_("stop")
    child.send_signal(signal.SIGSTOP)
    tell("stopped")
    await_("go-on")
    child.send_signal(signal.SIGCONT)
    assert child.wait() == 0


def silent() -> None:
    """Use a server that has fallen silent in every way, on machine 1, and once more when it answers again."""
    if NODE == 0:
        await_("done")
        return
    lock = Lock(PATH)
    lock.acquire(timeout=120).release()
    lock.status()
    held = Lock(f"{SHARE}/held", lease=0).acquire(timeout=120)
    tell("ready")
    await_("is-cut")
    calls: dict[str, Callable[[], object]] = {
        "acquire": lambda: lock.acquire(timeout=5),
        "wait": lambda: lock.wait(timeout=5),
        "acquire async": lambda: asyncio.run(_acquire(AsyncLock(PATH))),
        "try_acquire": lock.try_acquire,
        "status": lock.status,
        "ensure_held": held.ensure_held,
        "making semats": lambda: Lock(f"{SHARE}/below/l", protocol="semats"),
        **{name: partial(command, name) for name in ("ls", "clean", "doctor")},
    }
    for name, call in calls.items():
        began = time.monotonic()
        try:
            call()
            outcome = "answered"
        except (AcquireTimeout, EngineUnavailable) as error:
            outcome = f"{type(error).__name__}: {error}"
        print(f"{name}|{time.monotonic() - began:.2f}|{outcome}")
    began = time.monotonic()
    child = subprocess.run([sys.executable, __file__, "leaves"], timeout=60)
    print(f"exit of a process|{time.monotonic() - began:.2f}|status {child.returncode}")
    tell("asked")
    await_("is-mended")
    lock.acquire(timeout=120).release()
    held.release()
    until = time.monotonic() + 60
    while threads := [one for one in threading.enumerate() if one.name.startswith("holdfast-") and _is_step(one)]:
        assert time.monotonic() < until, threads
        time.sleep(0.1)
    print(f"left|{' '.join(sorted(name for name in os.listdir(SHARE) if not name.endswith('.token')))}")
    tell("done")


def command(name: str) -> None:
    """Run a command of holdfast; EngineUnavailable if it says that the server does not answer."""
    done = subprocess.run([sys.executable, "-m", "holdfast", name, SHARE], capture_output=True, text=True, timeout=60)
    if done.returncode == 3:
        raise EngineUnavailable(" ".join((done.stdout + done.stderr).split()))


def _is_step(thread: threading.Thread) -> bool:
    return thread.name.removeprefix("holdfast-") in ("apart", "step")


def requests() -> Counter[str]:
    """Number of requests that this machine has sent to the server of the directory, by kind."""
    with open("/proc/self/mountstats") as file:
        ours = file.read().partition(f" mounted on {SHARE} with fstype")[2].partition("\ndevice ")[0]
    rows = [row.split() for row in ours.partition("per-op statistics")[2].splitlines() if row.strip()]
    return Counter({row[0].rstrip(":"): int(row[1]) for row in rows})


def turns() -> list[str]:
    try:
        return [name for name in os.listdir(f"{SHARE}/.holdfast-x.lock.queue") if name.startswith("turn-")]
    except FileNotFoundError:
        return []


def line(seconds: str, lease: str) -> None:
    """Hold on machine 0; have the others come one after the other, wait, and count the cost to the server."""
    lock = Lock(PATH, lease=float(lease))
    if NODE == 0:
        held = lock.acquire(timeout=120)
        tell("queue-0")
        await_("leave")
        tell("left", f"{time.time()}")
        held.release()
        await_("end")
        deadline = time.monotonic() + 30
        while (left := [name for name in os.listdir(SHARE) if not name.endswith(".token")]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.1)
        print(f"LEFT {left}")
        return
    await_(f"queue-{NODE - 1}")
    before = len(turns())

    def count_requests() -> None:
        until = time.monotonic() + 60
        while len(turns()) == before and time.monotonic() < until:
            time.sleep(0.05)
        tell(f"queue-{NODE}")
        await_("all-wait")
        began, sent = time.monotonic(), requests()
        time.sleep(float(seconds))
        sent, passed = requests() - sent, time.monotonic() - began
        kinds = ", ".join(f"{kind} {number}" for kind, number in sent.most_common())
        print(f"REQUESTS {sent.total() / passed:.2f} a second; in {passed:.1f} s {kinds}")
        tell(f"counted-{NODE}")

    counting = threading.Thread(target=count_requests)
    counting.start()
    with lock.acquire(timeout=300):
        tell(f"acquired-{NODE}", f"{time.time()}")
    counting.join()


def hand_over(kind: str, seconds: str, inside: str, packages: str) -> None:
    """Acquire the lock again at once after each release, and report when we had it. The first second is for imports."""
    acquire = _filelock(kind, packages) if kind.endswith("FileLock") else _holdfast(kind)
    acquire()()  # a server of NFS 3 that has just started grants no kernel lock for some seconds
    tell(f"here-{NODE}")
    await_(f"here-{1 - NODE}")
    began, had = time.monotonic(), []
    while time.monotonic() < began + 1 + float(seconds):
        release = acquire()
        had.append((time.time(), time.monotonic() - began))
        time.sleep(float(inside))
        release()
    tell(f"had-{NODE}", " ".join(str(moment) for moment, passed in had if passed >= 1))


def _holdfast(protocol: str) -> Callable[[], Callable[[], object]]:
    lock = Lock(PATH, protocol=protocol, lease=10 if protocol == "sema" else None)
    return lambda: lock.acquire(timeout=100).release


def _filelock(kind: str, packages: str) -> Callable[[], Callable[[], object]]:
    sys.path.append(packages)
    import filelock

    lock = getattr(filelock, kind)(f"{SHARE}/theirs", timeout=100)
    return lambda: lock.acquire() and lock.release


async def _acquire(lock: AsyncLock) -> None:
    await lock.acquire(timeout=5)


def leaves() -> None:
    """Run a process that gives up, and ends."""
    try:
        Lock(PATH).acquire(timeout=1)
    except AcquireTimeout:
        sys.exit(5)


if __name__ == "__main__":
    threading.stack_size(256 * 1024)
    globals()[sys.argv[1]](*sys.argv[2:])
