"""Readers and writers of one lock of the protocol `flock`, of several makes, which are killed at random.

    python sharing.py LOCK STATE WANTED

LOCK is the lock path, STATE a directory for everything else, WANTED how much has to happen (wanted.py): with no kills
wanted there are none. The actions inside are the proof:

    counter    two numbers, which a writer makes one larger, one after the other. Readers must find them equal, unless
               a writer was killed between the two.
    journal    + PID KIND       somebody is inside: r, w, or s for a shell with flock(1), f for filelock
               - PID            is about to leave
               n PID NUMBER     a writer has made the counter NUMBER
               x PID HOW        found somebody inside who must not be
    detector   another file, which a writer locks alone, and readers lock together. It must never be refused, except by
               somebody who is being killed, whose descriptors the kernel closes one after the other.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from children import fork
from wanted import DEADLINE, Wanted
from worker import warm_up

WRITERS, READERS = 4, 8
KILL_EVERY = 0.015
READS = 2
"""Reads for each increment that is wanted."""

SHELL = r"""
lock=$1 state=$2
exec 8>>"$state/journal" 7>>"$state/detector"
while [ -e "$state/go" ]; do
    (
        flock 9
        echo "+ $$ s" >&8
        flock $3 7 || echo "x $$ shell" >&8
        read -r a b < "$state/counter"
        [ "$a" -ge "$b" ] && n=$((a + 1)) || n=$((b + 1))
        printf '%-20d %-20d\n' $n $n 1<> "$state/counter"
        echo "n $$ $n" >&8
        echo "- $$" >&8
        flock -u 7
    ) 9>>"$lock"
    sleep 0.005
done
"""


class Inside:
    """The critical section, and its checks."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.counter = os.open(f"{state}/counter", os.O_RDWR)
        self.journal = os.open(f"{state}/journal", os.O_WRONLY | os.O_APPEND)
        self.detector = os.open(f"{state}/detector", os.O_RDWR)

    def say(self, *words: object) -> None:
        os.write(self.journal, (" ".join(map(str, words)) + "\n").encode())

    def detect(self, how: int) -> None:
        try:
            fcntl.flock(self.detector, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if not self.somebody_is_dying():
                self.say("x", os.getpid(), "detected")
            fcntl.flock(self.detector, how)

    def somebody_is_dying(self) -> bool:
        with open(f"{self.state}/journal", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            pids = {int(line.split()[1]) for line in file.read().splitlines()[1:] if line.startswith(b"+ ")}
        return any(is_dying(pid) for pid in pids)

    def numbers(self) -> list[int]:
        return [int(word) for word in os.pread(self.counter, 64, 0).split()]

    def write(self, kind: str) -> None:
        self.say("+", os.getpid(), kind)
        self.detect(fcntl.LOCK_EX)
        n = max(self.numbers()) + 1
        os.pwrite(self.counter, b"%-20d " % n, 0)
        if random.random() < 0.1:
            time.sleep(0.001)
        os.pwrite(self.counter, b"%-20d\n" % n, 21)
        self.say("n", os.getpid(), n)
        self.say("-", os.getpid())
        fcntl.flock(self.detector, fcntl.LOCK_UN)

    def read(self) -> None:
        self.say("+", os.getpid(), "r")
        self.detect(fcntl.LOCK_SH)
        before = self.numbers()
        if random.random() < 0.5:
            time.sleep(random.random() * 0.003)
        if self.numbers() != before:
            self.say("x", os.getpid(), "torn")
        self.say("-", os.getpid())
        fcntl.flock(self.detector, fcntl.LOCK_UN)


def is_dying(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            flags = int(file.read().rpartition(b")")[2].split()[6])
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(flags & 4)  # PF_EXITING


def going_on(state: str) -> bool:
    return os.path.exists(f"{state}/go")


def writer(path: str, state: str) -> None:
    from holdfast import Lock

    lock, inside = Lock(path, protocol="flock", tag="writer", timeout=30), Inside(state)
    while going_on(state):
        with lock:
            inside.write("w")
        time.sleep(random.random() * 0.002)


def reader(path: str, state: str) -> None:
    from holdfast import Lock

    lock, inside = Lock(path, protocol="flock", shared=True, timeout=30), Inside(state)
    while going_on(state):
        with lock:
            inside.read()


def file_lock(path: str, state: str) -> None:
    from filelock import FileLock

    lock, inside = FileLock(path, timeout=30, poll_interval=0.002), Inside(state)
    while going_on(state):
        with lock:
            inside.write("f")
        time.sleep(0.005)


class Crowd:
    def __init__(self, path: str, state: str) -> None:
        self.path, self.state = path, state
        self.running: dict[int, Callable[[str, str], None]] = {}
        self.killed, self.failed = 0, 0

    def start(self, work: Callable[[str, str], None]) -> None:
        self.running[fork(lambda: work(self.path, self.state))] = work

    def reap(self, pid: int) -> Callable[[str, str], None]:
        _, status = os.waitpid(pid, 0)
        self.killed += os.WIFSIGNALED(status)
        self.failed += os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
        return self.running.pop(pid)

    def enough(self, wanted: Wanted) -> bool:
        """Whether every contender was inside, and often enough."""
        if self.killed < wanted.kills:
            return False
        with open(f"{self.state}/journal", encoding="ascii") as file:
            lines = [line.split() for line in file if line[0] in "+n" and line[-1] == "\n"]
        kinds = [words[2] for words in lines if words[0] == "+"]
        enough = len(lines) - len(kinds) >= wanted.increments and kinds.count("r") >= READS * wanted.increments
        return enough and set(kinds) >= set("rwsf")

    def run(self, wanted: Wanted) -> None:
        for work in [writer] * WRITERS + [reader] * READERS + [file_lock]:
            self.start(work)
        until = time.monotonic() + wanted.seconds
        while not self.failed and (time.monotonic() < until or not self.enough(wanted)):
            assert time.monotonic() < until + DEADLINE, "too little has happened"
            time.sleep(KILL_EVERY)
            if wanted.kills:
                pid = random.choice(list(self.running))
                os.kill(pid, signal.SIGKILL)
                self.start(self.reap(pid))
        os.unlink(f"{self.state}/go")
        for pid in list(self.running):
            self.reap(pid)


def main(path: str, state: str, word: str) -> None:
    wanted = Wanted.of(word)
    for name, content in (("counter", f"{0:<20d} {0:<20d}\n"), ("journal", "\n"), ("detector", ""), ("go", "")):
        with open(f"{state}/{name}", "w") as file:
            file.write(content)
    import filelock

    assert filelock
    warm_up()
    crowd = Crowd(path, state)
    patience = "-w10" if wanted.kills else "-n"  # with kills, the shell gives the kernel time to close descriptors
    shell = subprocess.Popen(["sh", "-c", SHELL, "sh", path, state, patience])
    try:
        crowd.run(wanted)
        crowd.failed += shell.wait(30) != 0
    finally:
        for pid in crowd.running:
            os.kill(pid, signal.SIGKILL)
        shell.kill()
    print(json.dumps({"killed": crowd.killed, "failed": crowd.failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
