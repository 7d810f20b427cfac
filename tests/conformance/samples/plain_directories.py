"""The protocol of proper-lockfile in plain Python, as an adapter for the conformance kit: `… OPERATION [PATH]`."""

import os
import sys
import threading
import time


def attempt(target):
    """Try to acquire: the lock that is now ours, as `look` sees it; None if somebody holds it."""
    lock = os.path.realpath(target, strict=True) + ".lock"
    try:
        os.mkdir(lock)
    except FileExistsError:
        seen = look(lock)
        if seen and time.time() - seen[1] / 1e9 > 10:
            remove_if(lock, seen)
            return attempt(target)
        return None
    return lock, look(lock)


def look(lock):
    """The identity and the time of a directory; None for no directory."""
    try:
        found = os.stat(lock)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def remove_if(lock, seen):
    """Remove the lock if it is still the one that was seen. It is moved away first: only one of several can do that."""
    aside = f"{lock}.{os.getpid()}.aside"
    try:
        os.rename(lock, aside)
    except FileNotFoundError:
        return
    if look(aside) != seen:
        os.rename(aside, lock)  # somebody was faster; a third one may be inside in between
        return
    try:
        os.rmdir(aside)
    except OSError:
        os.rename(aside, lock)
        raise


def refresh(lock, ours, ended):
    """Refresh the lock every five seconds, as long as it is ours."""
    while not ended.wait(5):
        if look(lock) != ours[0]:
            return
        os.utime(lock)
        ours[0] = look(lock)


def on_a_path(operation, target):
    taken = attempt(target)
    while taken is None and operation == "hold":
        time.sleep(0.02)
        taken = attempt(target)
    if taken is None:
        print("refused")
        return 1
    lock, ours, ended = taken[0], [taken[1]], threading.Event()
    keeper = threading.Thread(target=refresh, args=(lock, ours, ended))
    keeper.start()
    print("held", flush=True)
    sys.stdin.read()
    ended.set()
    keeper.join()
    if look(lock) == ours[0]:
        os.rmdir(lock)
    return 0


def main():
    operation, *path = sys.argv[1:]
    if operation == "abilities":
        print("hold try")
        return 0
    try:
        return on_a_path(operation, path[0])
    except OSError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
