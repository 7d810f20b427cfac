"""The storm: processes that increment a counter under one lock, and are killed at random.

    python worker.py LOCK STATE WANTED WORKERS [SHELL]

LOCK is the lock path, STATE a directory for everything else, WANTED how much has to happen (wanted.py). This small
process forks the workers, so that a new one costs a millisecond; it prints the results as JSON. The notes from inside
the critical section are the proof:

    journal    e PID            this process is inside
               i N WHO FROM     WHO is about to make the counter N; it took the lock over from FROM, or `-`
               d N WHO          the counter is N
               x WHO PID        WHO found PID inside as well
    counter    N

Exact, because a killed process can leave out only a last `d`, and then its `i` says so. The next process must find N,
or N - 1 and an `i` without a `d`. A file that has nothing to do with the lock also shows that two are never inside at
once: its flock must never be refused, except by a process that is being killed at that moment, whose descriptors the
kernel closes one after the other.
"""

from __future__ import annotations

import fcntl
import gc
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from children import fork
from wanted import DEADLINE, Wanted

LULL, LULL_INSIDE = 0.01, 4
"""Most seconds between two kills; but that many visits come before it, or ten times as long passes: on a busy machine,
too, most live for long enough to get in."""
LURK = 0.01
"""Seconds of looking for a process that is inside at that moment."""
LINGER, LINGER_SHARE = 0.002, 0.1
"""Seconds that some stay inside at most, so that the lock changes hands and kills find a process inside."""
END = b" ."
"""End of each line. A line has one to itself: the kernel ends the write of a killed process at the end of a page."""

SHELL = r"""
# A contender as the specification's own example has it: plain shell, nothing of holdfast.
lock=$1 state=$2
now=$(date +%s)
exec 8>>"$state/journal" 9>>"$state/detector"
say() { printf '\n%s .\n' "$1" >&8; }
while [ -e "$state/go" ]; do
    if (set -o noclobber; printf 'pid=%s\ntimestamp=%s\ntag=shell\n' $$ "$now" > "$lock") 2>/dev/null; then
        read -r n < "$state/counter"
        n=$((n + 1))
        say "e $$"
        if ! flock -n 9; then
            other=$(grep '^e' "$state/journal" | tail -n 2 | head -n 1)
            other=${other#e }
            other=${other% .}
            set -- $(cat "/proc/$other/stat" 2>/dev/null)
            if [ $# -gt 9 ] && [ $(($9 & 4)) -eq 0 ]; then say "x shell $other"; fi
            flock 9
        fi
        say "i $n shell -"
        echo "$n" > "$state/counter"
        say "d $n shell"
        flock -u 9
        rm -f "$lock"
    else
        sleep 0.001
    fi
done
"""


def increment(name: str, state: str, counter: int, journal: int, detector: int, recovered: str) -> None:
    say(journal, "e", os.getpid())
    try:
        fcntl.flock(detector, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = inside(state)[-2]  # the last is this process
        if not is_dying(other):
            say(journal, "x", name, other)
        fcntl.flock(detector, fcntl.LOCK_EX)
    n = int(os.pread(counter, 64, 0)) + 1
    say(journal, "i", n, name, recovered)
    if random.random() < LINGER_SHARE:
        time.sleep(random.random() * LINGER)
    os.pwrite(counter, b"%-20d\n" % n, 0)
    say(journal, "d", n, name)
    fcntl.flock(detector, fcntl.LOCK_UN)


def say(journal: int, *words: object) -> None:
    os.write(journal, b"\n%s%s\n" % (" ".join(map(str, words)).encode(), END))


def tail(state: str) -> list[bytes]:
    """The last lines of the journal."""
    with open(f"{state}/journal", "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
        return file.read().splitlines()


def inside(state: str) -> list[int]:
    """The processes that were inside last, the latest at the end."""
    return [int(line.split()[1]) for line in tail(state) if line.startswith(b"e ") and line.endswith(END)]


def is_dying(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            flags = int(file.read().rpartition(b")")[2].split()[6])
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(flags & 4)  # PF_EXITING


def work(path: str, state: str, name: str) -> None:
    from holdfast import Lock

    counter = os.open(f"{state}/counter", os.O_RDWR)
    journal = os.open(f"{state}/journal", os.O_WRONLY | os.O_APPEND)
    detector = os.open(f"{state}/detector", os.O_RDWR)
    lock = Lock(path, tag=name)
    while os.path.exists(f"{state}/go"):
        hold = lock.acquire(timeout=30)
        recovered = hold.recovered_from.tag if hold.recovered_from else "-"
        increment(name, state, counter, journal, detector, recovered)
        hold.release()


def warm_up() -> None:
    """Import and look up once everything that contenders need: they are forks of this process."""
    import holdfast._platform

    holdfast._platform.environment().identity()
    if sys.platform == "linux":
        import holdfast._platform.inotify

        assert holdfast._platform.inotify
    gc.collect()
    getattr(gc, "freeze", gc.collect)()


def in_a_child(what: Callable[[], object]) -> int:
    """Do that in a child; its exit status, or minus a signal's number."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(what), 0)[1])


class SoFar(NamedTuple):
    """The journal so far: how many were inside, took over, did not finish; how often the shell was inside."""

    visits: int
    takeovers: int
    unfinished: int
    by_shell: int

    @classmethod
    def of(cls, state: str) -> SoFar:
        with open(f"{state}/journal", encoding="ascii") as file:
            lines = [line.split()[:-1] for line in file if line[0] in "id" and line.endswith(f"{END.decode()}\n")]
        entries = [words for words in lines if words[0] == "i"]
        takeovers = sum(recovered != "-" for _, _, _, recovered in entries)
        unfinished = sum(one[0] == other[0] == "i" for one, other in itertools.pairwise(lines))
        return cls(len(entries), takeovers, unfinished, sum(who == "shell" for _, _, who, _ in entries))


class Storm:
    def __init__(self, path: str, state: str) -> None:
        self.path = path
        self.state = state
        self.workers: dict[int, str] = {}
        self.dying: dict[int, str] = {}
        """Killed processes, not reaped yet: the kernel needs a while to close an inotify instance."""
        self.killed: list[str] = []
        self.failed: list[str] = []
        self.started = 0
        self.shell = False
        """Whether a shell contends, too."""

    def start(self) -> None:
        name = f"w{self.started}"
        self.started += 1
        self.workers[fork(lambda: self.work(name))] = name

    def work(self, name: str) -> None:
        work(self.path, self.state, name)

    def inside(self) -> list[int]:
        """The processes that are inside at this moment, as far as can be known."""
        state, until = self.journal(), time.monotonic() + LURK
        while not any(line.startswith(b"i ") for line in tail(state)[-1:]) and time.monotonic() < until:
            time.sleep(0.0003)
        return inside(state)[-1:]

    def journal(self) -> str:
        """The directory of the journal to read."""
        return self.state

    def kill(self) -> None:
        """Kill any worker, or the one seen inside; now and then also one of those that then take over."""
        victims = [random.choice(list(self.workers))]
        if random.random() < 0.5:
            victims = [pid for pid in self.inside() if pid in self.workers] or victims
        if random.random() < 0.25:
            victims.append(random.choice(list(self.workers)))
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        for pid in set(victims):
            self.dying[pid] = self.workers.pop(pid)
            self.start()

    def reap(self, pid: int) -> None:
        name = self.workers.pop(pid)
        _, status = os.waitpid(pid, 0)
        self.note(name, status)

    def note(self, name: str, status: int) -> None:
        if os.WIFSIGNALED(status):
            self.killed.append(name)
        elif status:
            self.failed.append(name)

    def bury(self, options: int = 0) -> None:
        """Reap killed processes, or see which of them have ended (WNOHANG)."""
        for pid, name in list(self.dying.items()):
            ended, status = os.waitpid(pid, options)
            if ended:
                del self.dying[pid]
                self.note(name, status)

    def enough(self, wanted: Wanted) -> bool:
        """Whether it has been a storm."""
        if len(self.killed) < wanted.kills or self.visits() < wanted.increments:
            return False
        so_far = SoFar.of(self.state)
        return (
            so_far.takeovers >= wanted.takeovers and so_far.unfinished > 0 and (so_far.by_shell > 0 or not self.shell)
        )

    def visits(self) -> int:
        """Number of visits."""
        with open(f"{self.state}/counter", encoding="ascii") as file:
            return int(file.read() or 0)  # the shell makes it empty for a moment

    def lull(self) -> None:
        """Wait until the next kill: a random time, and long enough for visits."""
        time.sleep(random.random() * LULL)
        visits, until = self.visits(), time.monotonic() + 10 * LULL
        while self.visits() - visits < LULL_INSIDE and time.monotonic() < until:
            time.sleep(0.001)

    def run(self, wanted: Wanted, workers: int) -> None:
        until = time.monotonic() + wanted.seconds
        for _ in range(workers):
            self.start()
        while not self.failed and (time.monotonic() < until or not self.enough(wanted)):
            assert time.monotonic() < until + DEADLINE, "too little has happened"
            self.lull()
            self.kill()
            self.bury(os.WNOHANG)
        self.bury()
        os.unlink(f"{self.state}/go")
        for pid in list(self.workers):
            self.reap(pid)


def prepare(state: str) -> None:
    for name, content in (("counter", "0\n"), ("journal", ""), ("detector", ""), ("go", "")):
        with open(f"{state}/{name}", "w") as file:
            file.write(content)


def die_inside(path: str) -> None:
    from holdfast import Lock

    with Lock(path, timeout=10):
        os.kill(os.getpid(), signal.SIGKILL)


def pass_through(path: str) -> None:
    """Require that everything left is gone after the next takeover and its release: claims stay until then
    (takeover.py, T13), and behind tickets of the killed, a holder has one of its own."""
    from holdfast import Lock

    with Lock(path, timeout=10) as hold:
        assert hold.recovered_from


def main(path: str, state: str, wanted: str, workers: str, shell: str = "") -> None:
    prepare(state)
    warm_up()
    storm = Storm(path, state)
    storm.shell = bool(shell)
    other = subprocess.Popen([shell, "-c", SHELL, shell, path, state]) if shell else None
    try:
        storm.run(Wanted.of(wanted), int(workers))
        if other is not None and other.wait(30) != 0:
            storm.failed.append(shell)
        if not storm.failed:
            ended = in_a_child(lambda: die_inside(path)), in_a_child(lambda: pass_through(path))
            if ended != (-signal.SIGKILL, 0):
                storm.failed.append(f"those who came afterwards: {ended}")
    finally:
        for pid in (*storm.workers, *storm.dying):
            os.kill(pid, signal.SIGKILL)
        if other is not None:
            other.kill()
    print(json.dumps({"killed": storm.killed, "failed": storm.failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
