"""What runs on each machine: `program.py ROLE ARGUMENTS`. Told by NODE, SHARE and OUT where it is (lab.py)."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from holdfast import Hold, Lock, LockLost, UnsupportedFilesystem

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
    """Say which number is made, before and after it is: a kill may come in between (increments in test_leases.py)."""
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
    """Whether nobody else is inside, but for a machine that was killed there."""
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
    """Do what a resource with fencing does: refuse a token that is older than the last one."""
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
    """Lock files cannot be had here: nothing is left of the attempt, and `flock` works."""
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
    """Machine 1 holds, machine 0 waits; round by round, as the test says when what happens."""
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
    """Machine 1 has a holder that is stopped, and goes on when the test says so."""
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


if __name__ == "__main__":
    threading.stack_size(256 * 1024)
    globals()[sys.argv[1]](*sys.argv[2:])
