"""A daemon of which there is never a second one: `python examples/singleton.py` shows it in four starts.

`python examples/singleton.py LOCK` is the daemon itself. It needs no pid file, no port and no supervisor: the lock file
says who runs, and the kernel says whether that is still true.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import holdfast


def daemon(path: str) -> None:
    # Who is told to stop ends by an exception, so that the `with` below gives the lock up.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit())
    lock = holdfast.Lock(path, tag="example daemon", on_lost=stop_at_once)
    try:
        hold = lock.acquire(timeout=0)
    except holdfast.AcquireTimeout as refused:
        who = refused.holder
        if who is None or who.pid is None or who.since is None:  # a record that says less than ours do
            sys.exit(f"it runs already: {refused}")
        since = time.strftime("%H:%M:%S", time.localtime(who.since))
        sys.exit(f"it runs already: process {who.pid}, since {since} ({who.tag})")
    with hold:
        if hold.recovered_from is not None:
            # The moment to put right what the last one left half done.
            print(f"process {os.getpid()} takes over from process {hold.recovered_from.pid}, which died", flush=True)
        print(f"process {os.getpid()} runs", flush=True)
        work()


def work() -> None:
    """Until the process that started it is gone."""
    gone = threading.Event()
    threading.Thread(target=read_to_the_end, args=(gone,), daemon=True).start()
    while not gone.wait(1):  # not for ever: a signal that comes just before Python goes to sleep does not wake it
        pass


def read_to_the_end(gone: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    gone.set()


def stop_at_once(lost: holdfast.LockLost) -> None:
    """Somebody has removed the lock file: a second daemon may start at any moment, so there is no time to be tidy."""
    print(lost, flush=True)
    os._exit(1)


def start(path: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, path]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def told(process: subprocess.Popen[str]) -> str:
    """The next line that the daemon prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "daemon.lock")
        with start(path) as first:
            print(f"1st start: {told(first)}")
            with start(path) as second:
                print(f"2nd start: {told(second)}; exit status {second.wait()}")
            first.kill()
        print("the 1st is killed with SIGKILL, and leaves its lock file behind")
        with start(path) as third:
            print(f"3rd start: {told(third)}")
            print(f"           {told(third)}")
            third.terminate()
        print(f"the 3rd is told to stop, and leaves {os.listdir(directory)}")
        with start(path) as fourth:
            print(f"4th start: {told(fourth)}")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        daemon(sys.argv[1])
    else:
        main()
