"""Candidates for one leadership, and a resource that refuses who has lost it: `python examples/leader.py`.

The leader holds the lock, and sends its token with all that it writes. One is stopped and replaced while it means to
write, the next one is killed; neither does harm. The resource is that of fencing.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fencing import Store, TooLateError

import holdfast


def candidate(where: str, directory: str) -> None:
    store = Store(Path(directory))
    with holdfast.Lock(where, tag="leader", fencing=True) as hold:  # waits until it is its turn
        assert hold.token is not None
        print(f"process {os.getpid()} leads, with token {hold.token}", flush=True)
        for line in sys.stdin:  # its work
            try:
                store.write(line.strip(), hold.token)
            except TooLateError as refused:
                # Not `hold.ensure_held()`: that may be true now, and false before the write arrives.
                print(f"process {os.getpid()} is refused: {refused}", flush=True)
                os._exit(1)  # it knows less than it thought: no clean-up of what may be another's by now
            print(f"process {os.getpid()} has written {store.read()!r}", flush=True)


class Candidate(subprocess.Popen[str]):
    def __init__(self, where: str, store: Path) -> None:
        command = [sys.executable, __file__, where, str(store)]
        super().__init__(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self.kill()  # whatever went wrong: one that is stopped would be waited for
        super().__exit__(*error)

    def says(self) -> None:
        assert self.stdout is not None
        print(self.stdout.readline().rstrip())

    def is_to_write(self, text: str) -> None:
        assert self.stdin is not None
        self.stdin.write(f"{text}\n")
        self.stdin.flush()


def main(where: str, directory: Path) -> None:
    store = directory / "report.sqlite"
    with Candidate(where, store) as first:
        first.says()
        with Candidate(where, store) as second:
            first.is_to_write("from the first")
            first.says()

            first.send_signal(signal.SIGSTOP)  # a machine that swaps, a debugger, a suspended laptop
            first.is_to_write("from the first, too late")
            print("it is stopped. It lives, so nobody takes its place, until somebody breaks its lock")
            holdfast.Lock(where).break_lock()
            second.says()
            second.is_to_write("from the second")
            second.says()
            first.send_signal(signal.SIGCONT)
            first.says()

            with Candidate(where, store) as third:
                second.kill()
                print("the second is killed: that is proven, and the third need not wait for any time to be up")
                third.says()
    print(f"the report is {Store(store).read()!r}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        candidate(sys.argv[1], sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as made:
            main(f"{made}/leader.lock", Path(made))
